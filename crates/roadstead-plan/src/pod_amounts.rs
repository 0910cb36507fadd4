//! What the containers of a pod ask for and may take together, of everything that they name.

use roadstead_api::quantity::exact::{Amounts, add, amounts};
use roadstead_schema::json::Pointer;
use serde_json::Value;

/// Which of its two lists of amounts a container is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Requests,
    Limits,
}

impl Side {
    fn field(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Limits => "limits",
        }
    }
}

/// What one container, or a pod as a whole, names.
pub(crate) fn of(object: &Value, side: Side) -> Amounts {
    amounts(&object["resources"][side.field()])
}

/// What all containers together come to: init containers run one after the other and before the rest,
/// but for sidecars, which stay. What the pod says of itself counts more.
pub(crate) fn of_pod(spec: &Value, side: Side) -> Amounts {
    let (mut stays, mut most) = (Amounts::new(), Amounts::new());
    for init in spec.list("/initContainers") {
        let own = of(init, side);
        let mut now = stays.clone();
        add(&mut now, &own);
        raise(&mut most, now);
        if init.text("/restartPolicy") == "Always" {
            add(&mut stays, &own);
        }
    }
    for container in spec.list("/containers") {
        add(&mut stays, &of(container, side));
    }
    raise(&mut most, stays);
    most.extend(of(spec, side));
    for (name, more) in amounts(&spec["overhead"]) {
        match most.get_mut(&name) {
            Some(own) => *own = own.plus(more),
            // What is not limited is not limited by what comes on top of it.
            None if side == Side::Limits => {}
            None => drop(most.insert(name, more)),
        }
    }
    most
}

fn raise(most: &mut Amounts, others: Amounts) {
    for (name, other) in others {
        let own = most.entry(name).or_insert(other);
        *own = (*own).max(other);
    }
}

#[test]
fn sums_of_pods() {
    use roadstead_api::quantity::exact::listed;
    use serde_json::json;
    let asks = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}});
    let mut sidecar = asks("100m");
    sidecar["restartPolicy"] = "Always".into();
    for (spec, requests, limits) in [
        (json!({"containers": [asks("1"), asks("500m"), {}]}), "cpu=1500m", "cpu=1500m"),
        (json!({"containers": [asks("1")], "initContainers": [asks("3")]}), "cpu=3", "cpu=3"),
        (
            json!({"containers": [asks("1")], "initContainers": [sidecar, asks("1")]}),
            "cpu=1100m",
            "cpu=1100m",
        ),
        (json!({"containers": [{}], "overhead": {"cpu": "1"}}), "cpu=1", ""),
        (
            json!({"containers": [asks("1")], "resources": {"requests": {"cpu": "7"}}}),
            "cpu=7",
            "cpu=1",
        ),
    ] {
        assert_eq!(listed(&of_pod(&spec, Side::Requests)), requests, "{spec}");
        assert_eq!(listed(&of_pod(&spec, Side::Limits)), limits, "{spec}");
    }
}

//! How much of a node a pod asks for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity;

const STORAGE: &str = "ephemeral-storage";
/// What a container that asks for no processor or memory is thought to need of it.
const MODEST: Requests = Requests { cpu: 100, memory: 200 << 20, storage: 0 };

/// An amount of processors, memory and disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// In thousandths of a processor.
    pub cpu: u64,
    /// In bytes.
    pub memory: u64,
    /// Of the node's own disk, in bytes.
    pub storage: u64,
}

impl Requests {
    /// What a pod asks for.
    pub fn of_pod(spec: &PodSpec) -> Self {
        let is_sidecar = |init: &Container| init.restart_policy.as_deref() == Some("Always");
        let init = spec.init_containers.iter().flatten();
        let all = Self::together(
            init.map(|init| (Self::of(init.resources.as_ref()), is_sidecar(init))),
            spec.containers.iter().map(|main| Self::of(main.resources.as_ref())),
        );
        let asked = all.or(Self::of(spec.resources.as_ref()));
        let overhead = spec.overhead.as_ref();
        let more = |name: &str| overhead.and_then(|overhead| overhead.get(name));
        asked.plus(Self {
            cpu: more("cpu").map_or(0, |amount| whole(&amount.0, 1000.0)),
            memory: more("memory").map_or(0, |amount| whole(&amount.0, 1.0)),
            storage: more(STORAGE).map_or(0, |amount| whole(&amount.0, 1.0)),
        })
    }

    /// What a pod is thought to need, for choosing among nodes that have enough: containers that ask for
    /// nothing need something, too.
    pub fn estimated(spec: &PodSpec) -> Self {
        let own = |container: &Container| {
            let asked = Self::of(container.resources.as_ref());
            let says = |name: &str| says(container.resources.as_ref(), name);
            Self {
                cpu: if says("cpu") { asked.cpu } else { MODEST.cpu },
                memory: if says("memory") { asked.memory } else { MODEST.memory },
                storage: asked.storage,
            }
        };
        let is_sidecar = |init: &Container| init.restart_policy.as_deref() == Some("Always");
        let init = spec.init_containers.iter().flatten();
        let init = init.map(|init| (own(init), is_sidecar(init)));
        let all = Self::together(init, spec.containers.iter().map(own));
        let overhead = spec.overhead.as_ref();
        let more = |name: &str, unit: f64| {
            overhead.and_then(|all| all.get(name)).map_or(0, |amount| whole(&amount.0, unit))
        };
        let overhead = Self { cpu: more("cpu", 1000.0), memory: more("memory", 1.0), storage: 0 };
        all.or(Self::of(spec.resources.as_ref())).plus(overhead)
    }

    /// What one container asks for: what is only limited is also requested.
    pub fn of(resources: Option<&ResourceRequirements>) -> Self {
        let get = |name: &str, unit: f64| {
            let resources = resources?;
            let requests = resources.requests.as_ref().and_then(|map| map.get(name));
            let limits = resources.limits.as_ref().and_then(|map| map.get(name));
            requests.or(limits).map(|amount| whole(&amount.0, unit))
        };
        Self {
            cpu: get("cpu", 1000.0).unwrap_or(0),
            memory: get("memory", 1.0).unwrap_or(0),
            storage: get(STORAGE, 1.0).unwrap_or(0),
        }
    }

    /// What containers ask for that run as a pod's do: init containers one after the other and before the
    /// rest, but for sidecars, which stay.
    pub fn together(
        init: impl Iterator<Item = (Self, bool)>,
        main: impl Iterator<Item = Self>,
    ) -> Self {
        let (mut stays, mut most) = (Self::default(), Self::default());
        for (own, is_sidecar) in init {
            most = most.max(stays.plus(own));
            if is_sidecar {
                stays = stays.plus(own);
            }
        }
        most.max(main.fold(stays, Self::plus))
    }

    /// Both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_add(other.cpu),
            memory: self.memory.saturating_add(other.memory),
            storage: self.storage.saturating_add(other.storage),
        }
    }

    /// What is left.
    pub fn minus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(other.cpu),
            memory: self.memory.saturating_sub(other.memory),
            storage: self.storage.saturating_sub(other.storage),
        }
    }

    /// Whichever is more of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
            storage: self.storage.max(other.storage),
        }
    }

    /// What the pod as a whole says counts, where it says something.
    fn or(self, of_pod: Self) -> Self {
        Self {
            cpu: if of_pod.cpu > 0 { of_pod.cpu } else { self.cpu },
            memory: if of_pod.memory > 0 { of_pod.memory } else { self.memory },
            storage: if of_pod.storage > 0 { of_pod.storage } else { self.storage },
        }
    }
}

/// What a pod asks for besides processors, memory and disk, by name: devices, huge pages.
pub fn devices(spec: &PodSpec) -> BTreeMap<String, u64> {
    let init = spec.init_containers.iter().flatten();
    let all = || init.clone().chain(&spec.containers).map(|container| container.resources.as_ref());
    let names = all().chain([spec.resources.as_ref()]).flat_map(names);
    let names: Vec<&String> = names.chain(spec.overhead.iter().flat_map(BTreeMap::keys)).collect();
    let is_device = |name: &&&String| !["cpu", "memory", STORAGE].contains(&name.as_str());
    let amount = |name: &&String| ((*name).clone(), device(spec, name));
    names.iter().filter(is_device).map(amount).collect()
}

fn names(resources: Option<&ResourceRequirements>) -> Vec<&String> {
    let all = resources.into_iter().flat_map(|own| own.requests.iter().chain(&own.limits));
    all.flat_map(BTreeMap::keys).collect()
}

/// How much of one thing a pod asks for.
fn device(spec: &PodSpec, name: &str) -> u64 {
    let own = |container: &Container| amount(container.resources.as_ref(), name).unwrap_or(0);
    let (mut stays, mut most) = (0_u64, 0_u64);
    for init in spec.init_containers.iter().flatten() {
        most = most.max(stays.saturating_add(own(init)));
        if init.restart_policy.as_deref() == Some("Always") {
            stays = stays.saturating_add(own(init));
        }
    }
    let main = spec.containers.iter().map(own).fold(stays, u64::saturating_add);
    let of_pod = amount(spec.resources.as_ref(), name);
    let overhead = spec.overhead.as_ref().and_then(|all| all.get(name));
    let overhead = overhead.map_or(0, |amount| whole(&amount.0, 1.0));
    of_pod.unwrap_or(most.max(main)).saturating_add(overhead)
}

fn amount(resources: Option<&ResourceRequirements>, name: &str) -> Option<u64> {
    find(resources, name).map(|amount| whole(&amount.0, 1.0))
}

fn says(resources: Option<&ResourceRequirements>, name: &str) -> bool {
    find(resources, name).is_some()
}

fn find<'a>(resources: Option<&'a ResourceRequirements>, name: &str) -> Option<&'a Quantity> {
    let own = resources?;
    let requested = own.requests.as_ref().and_then(|map| map.get(name));
    requested.or_else(|| own.limits.as_ref().and_then(|map| map.get(name)))
}

/// Rounded up, as the API says; what is more by less than a millionth was meant to be equal.
fn whole(text: &str, unit: f64) -> u64 {
    (quantity::read(text).unwrap_or(0.0) * unit - 1e-6).ceil().max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_pods_are_thought_to_need() {
        let spec = |text: serde_json::Value| serde_json::from_value::<PodSpec>(text).unwrap();
        let asks = |name: &str, what: serde_json::Value| json!({"name": name, "resources": what});
        let quiet = spec(json!({"containers": [{"name": "a"}, {"name": "b"}]}));
        let found = Requests::estimated(&quiet);
        assert_eq!((found.cpu, found.memory), (200, 400 << 20));
        let nothing = asks("a", json!({"requests": {"cpu": "0", "memory": "0"}}));
        assert_eq!(Requests::estimated(&spec(json!({"containers": [nothing]}))).cpu, 0);
        assert!(devices(&quiet).is_empty());
        let gpu = |name: &str, count: &str| asks(name, json!({"limits": {"v.io/gpu": count}}));
        let mut sidecar = gpu("s", "1");
        sidecar["restartPolicy"] = "Always".into();
        for (given, want) in [
            (json!({"containers": [gpu("a", "1"), gpu("b", "2")]}), 3),
            (json!({"containers": [gpu("a", "1")], "initContainers": [gpu("i", "4")]}), 4),
            (json!({"containers": [gpu("a", "1")], "initContainers": [sidecar]}), 2),
            (json!({"containers": [gpu("a", "1")], "overhead": {"v.io/gpu": "1"}}), 2),
        ] {
            let found = devices(&spec(given.clone()));
            assert_eq!(found, BTreeMap::from([("v.io/gpu".to_owned(), want)]), "{given}");
        }
    }

    #[test]
    fn what_pods_ask_for() {
        let cpu = |amount: &str| json!({"resources": {"requests": {"cpu": amount}}});
        let sidecar =
            json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}});
        let cases = [
            ("nothing", json!({}), 0),
            ("a sum", json!({"containers": [cpu("1"), cpu("500m")]}), 1500),
            (
                "a limit is a request",
                json!({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}),
                2000,
            ),
            ("a large init", json!({"containers": [cpu("1")], "initContainers": [cpu("3")]}), 3000),
            ("a small one", json!({"containers": [cpu("1")], "initContainers": [cpu("1m")]}), 1000),
            ("sidecars stay", json!({"containers": [cpu("1")], "initContainers": [sidecar]}), 1100),
            (
                "also beside init",
                json!({"containers": [], "initContainers": [sidecar, cpu("2"), sidecar]}),
                2100,
            ),
            (
                "the pod's own",
                json!({"containers": [cpu("1")], "resources": {"requests": {"cpu": "7"}}}),
                7000,
            ),
            ("overhead", json!({"containers": [cpu("1")], "overhead": {"cpu": "250m"}}), 1250),
        ];
        for (name, mut spec, want) in cases {
            for list in ["containers", "initContainers"] {
                for container in spec[list].as_array_mut().into_iter().flatten() {
                    container["name"] = json!("c");
                }
            }
            if spec["containers"].is_null() {
                spec["containers"] = json!([]);
            }
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(Requests::of_pod(&spec).cpu, want, "{name}");
        }
    }
}

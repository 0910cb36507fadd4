//! What the components of `up` show of themselves. Each has pages of its own, where it has any; all of them
//! together are on `/debug/state` of the API server, for those who may ask it for that.

use roadstead_component::component::Component;
use serde_json::Value;

/// Each apart, since not everybody may see everything.
#[derive(Clone, Debug, Default)]
pub(super) struct Components {
    pub(super) controllers: Component,
    pub(super) dns: Component,
    pub(super) network_policy: Component,
    pub(super) node: Component,
    /// The announcer of load balancers is part of it.
    pub(super) proxy: Component,
}

impl Components {
    /// What all parts show now.
    pub(super) fn show(&self) -> Value {
        let Self { controllers, dns, network_policy, node, proxy } = self;
        let mut all = serde_json::Map::new();
        for component in [controllers, dns, network_policy, node, proxy] {
            if let Value::Object(parts) = component.state.show() {
                all.extend(parts);
            }
        }
        all.into()
    }
}

#[test]
fn all_parts_are_shown_by_name() {
    let components = Components::default();
    components.proxy.state.register("announce", || 1);
    components.proxy.state.register("proxy", || 2);
    components.node.state.register("node", || 3);
    let want = serde_json::json!({"announce": 1, "node": 3, "proxy": 2});
    assert_eq!(components.show(), want);
}

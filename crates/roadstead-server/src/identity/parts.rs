//! What parts of Roadstead may do besides what roles give them: each node's proxy and DNS server has a Lease
//! of its own, whose name roles cannot say, because it has the name of the node in it.

use crate::identity::rbac::rule::Attributes;
use crate::identity::user::User;

const NAMESPACE: &str = "kube-system";

/// Users, and how the names of their Leases begin.
const LEASES: [(&str, &str); 2] = [
    ("system:kube-proxy", "kube-proxy-"),
    ("system:serviceaccount:kube-system:coredns", "roadstead-dns-"),
];

/// Whether it is about a Lease of the user's own. Leases that others lead by are not.
pub(crate) fn allows(user: &User, action: &Attributes<'_>) -> bool {
    let place = (action.group, action.resource, action.namespace);
    let is_own = |(name, prefix): &(&str, &str)| {
        user.name == *name && action.name.strip_prefix(prefix).is_some_and(|node| !node.is_empty())
    };
    // Of a machine that joined, proxy and DNS are the node.
    let is_of_node =
        || user.node().is_some_and(|node| is_lease_of(node, action.namespace, action.name));
    place == ("coordination.k8s.io", "leases", NAMESPACE)
        && matches!(action.verb, "create" | "get" | "patch" | "update")
        && (LEASES.iter().any(is_own) || is_of_node())
}

/// Whether a Lease is that of the proxy or the DNS server of a node.
pub(crate) fn is_lease_of(node: &str, namespace: &str, name: &str) -> bool {
    let is_own = |(_, prefix): &(&str, &str)| name.strip_prefix(prefix) == Some(node);
    namespace == NAMESPACE && LEASES.iter().any(is_own)
}

#[test]
fn own_leases() {
    const PROXY: &str = "system:kube-proxy";
    const DNS: &str = "system:serviceaccount:kube-system:coredns";
    let cases = [
        (PROXY, "patch kube-system kube-proxy-n1", true),
        (PROXY, "create kube-system kube-proxy-n1", true),
        (PROXY, "delete kube-system kube-proxy-n1", false),
        (PROXY, "patch default kube-proxy-n1", false),
        (PROXY, "patch kube-system kube-scheduler", false),
        (PROXY, "patch kube-system kube-proxy-", false),
        (PROXY, "patch kube-system roadstead-dns-n1", false),
        (DNS, "patch kube-system roadstead-dns-n1", true),
        (DNS, "patch kube-system kube-controller-manager", false),
        ("jane", "patch kube-system kube-proxy-n1", false),
    ];
    for (user, text, want) in cases {
        let [verb, namespace, name] = text.split(' ').collect::<Vec<_>>()[..] else { panic!() };
        let (group, resource) = ("coordination.k8s.io", "leases");
        let action = Attributes { verb, group, resource, namespace, name, ..Attributes::default() };
        assert_eq!(allows(&User::part(user), &action), want, "{user}: {text}");
        let node =
            text.ends_with("-n1") && text.contains("kube-system") && !text.contains("delete");
        assert_eq!(allows(&User::of_node("n1"), &action), node, "n1: {text}");
        assert!(!allows(&User::of_node("n2"), &action), "n2: {text}");
    }
}

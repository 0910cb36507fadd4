//! Who else scales the same pods: two that do would work against each other.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Selector;

/// Which pods each autoscaler is about, as it was when it was looked at last.
#[derive(Default)]
pub(super) struct Rivals(BTreeMap<ObjectKey, Selector>);

impl Rivals {
    /// Takes in whose pods an autoscaler is about. If others select one of these as well, returns all
    /// of them, itself included.
    pub(super) fn meet(&mut self, key: &ObjectKey, selector: &str, pods: &[Pod]) -> Vec<String> {
        match Selector::parse(selector) {
            Ok(own) if !own.is_empty() => drop(self.0.insert(key.clone(), own)),
            _ => drop(self.0.remove(key)),
        }
        let selects = |other: &Selector| {
            pods.iter().any(|pod| other.matches_labels(pod.metadata.labels.as_ref()))
        };
        let near = self.0.iter().filter(|(other, _)| other.namespace == key.namespace);
        let all = near.filter(|(other, own)| *other == key || selects(own));
        let all: Vec<_> = all.map(|(key, _)| key.to_string()).collect();
        if all.len() > 1 { all } else { Vec::new() }
    }

    /// One is gone.
    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }
}

#[test]
fn two_for_one_pod() {
    let mut pod = Pod::default();
    pod.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    let pods = [pod];
    let (a, b, far) =
        (ObjectKey::new("x", "a"), ObjectKey::new("x", "b"), ObjectKey::new("y", "a"));
    let mut rivals = Rivals::default();
    assert!(rivals.meet(&a, "app=web", &pods).is_empty());
    assert!(rivals.meet(&far, "app=web", &pods).is_empty(), "another namespace");
    assert!(rivals.meet(&b, "app=other", &[]).is_empty());
    assert_eq!(rivals.meet(&b, "app in (web,shop)", &pods), ["x/a", "x/b"]);
    assert_eq!(rivals.meet(&a, "app=web", &pods), ["x/a", "x/b"]);
    rivals.forget(&b);
    assert!(rivals.meet(&a, "app=web", &pods).is_empty());
}

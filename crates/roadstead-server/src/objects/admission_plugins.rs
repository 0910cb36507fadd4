//! Admission plugins by the names that upstream has for them, and which of them work here.

use std::collections::BTreeSet;

use crate::kinds::admission::PLUGINS;

/// What is done to new objects here, and can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Plugin {
    /// Ingresses without a class get the default one.
    DefaultIngressClass,
    /// Pods stay for five minutes on a node that does not answer.
    DefaultTolerationSeconds,
    /// Pods and claims get what a LimitRange says, and may not have more.
    LimitRanger,
    /// Nodes write what is their own.
    NodeRestriction,
    /// Pods that run get no more than their node has.
    PodResizeValidator,
    /// Pods are as the labels of their namespace want them.
    PodSecurity,
    /// Pods have the priority of their class.
    Priority,
    /// Nothing is made beyond what a ResourceQuota allows.
    ResourceQuota,
    /// Pods have an account, and it must exist.
    ServiceAccount,
}

/// What is always done, here.
const ALWAYS: [&str; 5] = [
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "NamespaceExists",
    "NamespaceLifecycle",
];

/// What upstream has besides.
const OTHERS: [&str; 27] = [
    "AlwaysAdmit",
    "AlwaysDeny",
    "AlwaysPullImages",
    "ClusterTrustBundleAttest",
    "DefaultStorageClass",
    "DenyServiceExternalIPs",
    "EventRateLimit",
    "ExtendedResourceToleration",
    "ImagePolicyWebhook",
    "LimitPodHardAntiAffinityTopology",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "NamespaceAutoProvision",
    "NodeDeclaredFeatureValidator",
    "OwnerReferencesPermissionEnforcement",
    "PersistentVolumeClaimResize",
    "PodGroupProtection",
    "PodNodeSelector",
    "PodTolerationRestriction",
    "PodTopologyLabels",
    "RuntimeClass",
    "StorageObjectInUseProtection",
    "TaintNodesByCondition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
    "PersistentVolumeLabel",
    "SecurityContextDeny",
];

/// Which plugins are switched off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plugins {
    off: BTreeSet<Plugin>,
    /// What the operator wants and this server does not have.
    pub missing: Vec<String>,
}

impl Plugins {
    /// Reads what an operator wants on and off; everything that works here is on otherwise.
    pub fn choose(on: &[String], off: &[String]) -> Result<Self, String> {
        for (flag, names) in [("enable", on), ("disable", off)] {
            let unknown = names.iter().find(|name| {
                let name = name.as_str();
                find(name).is_none() && !ALWAYS.contains(&name) && !OTHERS.contains(&name)
            });
            if let Some(name) = unknown {
                return Err(format!("{flag}-admission-plugins plugin {name:?} is unknown"));
            }
        }
        if let Some(both) = on.iter().find(|name| off.contains(name)) {
            return Err(format!(
                "[{both}] in enable-admission-plugins and disable-admission-plugins overlapped"
            ));
        }
        if let Some(name) = off.iter().find(|name| ALWAYS.contains(&name.as_str())) {
            return Err(format!("{name} cannot be switched off in this server"));
        }
        let missing = on.iter().filter(|name| OTHERS.contains(&name.as_str())).cloned();
        let off = off.iter().filter_map(|name| find(name)).collect();
        Ok(Self { off, missing: missing.collect() })
    }

    /// Whether a plugin does its work.
    pub(crate) fn has(&self, plugin: Plugin) -> bool {
        !self.off.contains(&plugin)
    }
}

fn find(name: &str) -> Option<Plugin> {
    PLUGINS.iter().find(|row| row.name == name).map(|row| row.plugin)
}

#[test]
fn names() {
    let list = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let all = Plugins::choose(&[], &[]).unwrap();
    assert!(PLUGINS.iter().all(|row| all.has(row.plugin)));
    let some = Plugins::choose(&list("RuntimeClass Priority"), &list("ServiceAccount")).unwrap();
    assert!(!some.has(Plugin::ServiceAccount) && some.has(Plugin::Priority));
    assert_eq!(some.missing, ["RuntimeClass"]);
    let cases = [
        ("Nothing", "", "enable-admission-plugins plugin \"Nothing\" is unknown"),
        ("", "Nothing", "disable-admission-plugins plugin \"Nothing\" is unknown"),
        ("", "NamespaceLifecycle", "NamespaceLifecycle cannot be switched off in this server"),
        (
            "Priority",
            "Priority",
            "[Priority] in enable-admission-plugins and disable-admission-plugins overlapped",
        ),
    ];
    for (on, off, want) in cases {
        assert_eq!(Plugins::choose(&list(on), &list(off)), Err(want.to_owned()));
    }
}

//! The rules that the level restricted adds.

use std::collections::BTreeSet;

use roadstead_schema::json::Pointer;
use serde_json::Value;

use super::baseline::{added, explicit_seccomp, has_own_users};
use super::containers::{Setters, named, names, plural, quoted};
use super::{PodRules, Violation};

const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

pub(super) fn check(pod: &Value, rules: &PodRules, found: &mut Vec<Violation>) {
    // Some of it means nothing elsewhere than on Linux.
    let elsewhere = rules.version.has(25) && pod.text("/spec/os/name") == "windows";
    if rules.version.has(8) && !elsewhere {
        found.extend(escalation(pod));
    }
    if rules.version.has(22) && !elsewhere {
        found.extend(capabilities(pod));
    }
    found.extend(volumes(pod));
    if !has_own_users(pod, rules) {
        found.extend(non_root(pod));
        if rules.version.has(23) {
            found.extend(root(pod));
        }
    }
    if rules.version.has(19) && !elsewhere {
        found.extend(seccomp(pod));
    }
}

fn escalation(pod: &Value) -> Option<Violation> {
    let field = "/securityContext/allowPrivilegeEscalation";
    let containers = names(pod, |own| own.pointer(field) != Some(&Value::Bool(false)));
    (!containers.is_empty()).then(|| {
        let said = named(&containers);
        let detail = format!("{said} must set securityContext.allowPrivilegeEscalation=false");
        Violation::new("allowPrivilegeEscalation != false", detail)
    })
}

fn capabilities(pod: &Value) -> Option<Violation> {
    let keeps = names(pod, |own| {
        !own.list("/securityContext/capabilities/drop").iter().any(|dropped| dropped == "ALL")
    });
    let mut details = Vec::new();
    if !keeps.is_empty() {
        let said = named(&keeps);
        details.push(format!("{said} must set securityContext.capabilities.drop=[\"ALL\"]"));
    }
    details.extend(added(pod, &["NET_BIND_SERVICE"]));
    (!details.is_empty()).then(|| Violation::new("unrestricted capabilities", details.join("; ")))
}

fn volumes(pod: &Value) -> Option<Violation> {
    let (mut bad, mut types) = (Vec::new(), BTreeSet::new());
    for volume in pod.list("/spec/volumes") {
        let source = volume.fields("").find(|(field, own)| *field != "name" && !own.is_null());
        match source.map(|(field, _)| field) {
            Some(known) if VOLUMES.contains(&known) => {}
            // Without a source it is an empty directory.
            None => {}
            Some(other) => {
                bad.push(volume.text("/name"));
                types.insert(other);
            }
        }
    }
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "{} {} {} {} {}",
            plural("volume", "volumes", bad.len()),
            quoted(bad.iter().copied()),
            plural("uses", "use", bad.len()),
            plural("restricted volume type", "restricted volume types", types.len()),
            quoted(types.into_iter())
        );
        Violation::new("restricted volume types", detail)
    })
}

fn non_root(pod: &Value) -> Option<Violation> {
    let field = "/runAsNonRoot";
    let reason = "runAsNonRoot != true";
    let setters = Setters::find(pod, |own| (own.has(field) && !own.flag(field)).then_some(""));
    if !setters.who.is_empty() {
        let said = setters.said();
        let detail = format!("{said} must not set securityContext.runAsNonRoot=false");
        return Some(Violation::new(reason, detail));
    }
    if pod.flag("/spec/securityContext/runAsNonRoot") {
        return None;
    }
    let silent = names(pod, |own| !own.flag("/securityContext/runAsNonRoot"));
    (!silent.is_empty()).then(|| {
        let said = named(&silent);
        Violation::new(reason, format!("pod or {said} must set securityContext.runAsNonRoot=true"))
    })
}

fn root(pod: &Value) -> Option<Violation> {
    let is_root = |own: &Value| own.has("/runAsUser") && own.int("/runAsUser") == 0;
    let setters = Setters::find(pod, |own| is_root(own).then_some(""));
    (!setters.who.is_empty()).then(|| {
        Violation::new("runAsUser=0", format!("{} must not set runAsUser=0", setters.said()))
    })
}

fn seccomp(pod: &Value) -> Option<Violation> {
    if let Some(explicit) = explicit_seccomp(pod) {
        return Some(explicit);
    }
    if pod.has("/spec/securityContext/seccompProfile") {
        return None;
    }
    let silent = names(pod, |own| !own.has("/securityContext/seccompProfile"));
    (!silent.is_empty()).then(|| {
        let detail = format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            named(&silent)
        );
        Violation::new("seccompProfile", detail)
    })
}

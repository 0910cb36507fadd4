//! What AppArmor and SELinux are to hold a container to, where the kernel has them: pure.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SecurityContext,
};
use serde::{Deserialize, Serialize};

use crate::admission::Rejection;
use crate::ephemeral;
use crate::security::{Policy, disallowed};

/// The types that hold containers, as the Pod Security Standards know them.
const CONFINED: [&str; 5] =
    ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// Which profile of AppArmor a container has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum AppArmor {
    /// Nobody has said: that of the runtime, if there is one.
    #[default]
    Unset,
    /// That of the runtime.
    RuntimeDefault,
    /// One that the operator has loaded, of this name.
    Localhost(String),
    /// None.
    Unconfined,
}

/// What a container asks of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mandatory {
    /// Which profile of AppArmor holds it.
    pub app_armor: AppArmor,
    /// Its label, for SELinux.
    pub se_linux: Option<SeLinuxLabel>,
}

/// What a pod says of a container's label; what it leaves out is as usual.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeLinuxLabel {
    /// Who.
    pub user: String,
    /// In which role.
    pub role: String,
    /// Of what type.
    pub kind: String,
    /// How secret, and in which categories.
    pub level: String,
}

/// What those who are under both are to be under.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessLabels {
    /// The name of a profile of AppArmor.
    #[serde(default)]
    pub app_armor: Option<String>,
    /// The label of processes.
    #[serde(default)]
    pub se_linux: Option<String>,
}

impl SeLinuxLabel {
    fn of(options: &SELinuxOptions) -> Self {
        let or = |given: &Option<String>, usual: &str| match given.as_deref() {
            Some(text) if !text.is_empty() => text.to_owned(),
            _ => usual.to_owned(),
        };
        Self {
            user: or(&options.user, "system_u"),
            role: or(&options.role, "system_r"),
            kind: or(&options.type_, "container_t"),
            level: or(&options.level, "s0"),
        }
    }

    /// The label of its processes.
    pub fn of_processes(&self) -> String {
        let Self { user, role, kind, level } = self;
        format!("{user}:{role}:{kind}:{level}")
    }

    /// The label of its files.
    pub fn of_files(&self) -> String {
        format!("{}:object_r:container_file_t:{}", self.user, self.level)
    }
}

fn profile<'a>(
    of_pod: Option<&'a PodSecurityContext>,
    own: Option<&'a SecurityContext>,
) -> Option<&'a AppArmorProfile> {
    let own = own.and_then(|own| own.app_armor_profile.as_ref());
    own.or_else(|| of_pod.and_then(|of_pod| of_pod.app_armor_profile.as_ref()))
}

/// Which profile the container asks for.
pub(crate) fn app_armor(
    of_pod: &PodSecurityContext,
    own: &SecurityContext,
    policy: Policy,
) -> Result<AppArmor, String> {
    let Some(profile) = profile(Some(of_pod), Some(own)) else { return Ok(AppArmor::Unset) };
    let name = profile.localhost_profile.as_deref().unwrap_or_default().trim();
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(AppArmor::RuntimeDefault),
        "Unconfined" if policy == Policy::Baseline => {
            Err(disallowed("the AppArmor profile Unconfined"))
        }
        "Unconfined" => Ok(AppArmor::Unconfined),
        "Localhost" if !name.is_empty() && name.len() < 4096 && !name.contains(['\0', '\n']) => {
            Ok(AppArmor::Localhost(name.to_owned()))
        }
        "Localhost" => Err(format!("invalid AppArmor profile name: {name:?}")),
        other => Err(format!("a {other} AppArmor profile is not supported by this node")),
    }
}

/// Which label the container asks for.
pub(crate) fn se_linux(
    of_pod: &PodSecurityContext,
    own: &SecurityContext,
    policy: Policy,
) -> Result<Option<SeLinuxLabel>, String> {
    let options = own.se_linux_options.as_ref().or(of_pod.se_linux_options.as_ref());
    let Some(options) = options else { return Ok(None) };
    let given = |field: &Option<String>| field.clone().unwrap_or_default();
    let kind = given(&options.type_);
    let is_other = !given(&options.user).is_empty() || !given(&options.role).is_empty();
    if policy == Policy::Baseline && (is_other || !CONFINED.contains(&kind.as_str())) {
        return Err(disallowed("an SELinux label that is no container's"));
    }
    let wrong = |text: &String| text.contains(|c: char| c.is_control() || c.is_whitespace());
    let all = [&options.user, &options.role, &options.type_, &options.level];
    match all.into_iter().flatten().any(wrong) {
        true => Err("seLinuxOptions are no label".into()),
        false => Ok(Some(SeLinuxLabel::of(options))),
    }
}

/// Whether a node can do what the pod asks of AppArmor, in the words of a kubelet.
pub fn check_app_armor(pod: &Pod, is_enabled: bool) -> Result<(), Rejection> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let later: Vec<_> = ephemeral::all(spec).map(ephemeral::as_container).collect();
    let lasting = spec.init_containers.iter().flatten().chain(&spec.containers);
    let all = || lasting.clone().chain(&later);
    let of_pod = spec.security_context.as_ref();
    let own = |container: &'_ Container| container.security_context.clone();
    let holds = |profile: &AppArmorProfile| profile.type_ != "Unconfined";
    let of_pod_holds = profile(of_pod, None).is_some_and(holds);
    let is_asked = of_pod_holds
        || all().any(|container| profile(None, own(container).as_ref()).is_some_and(holds));
    let rejected = |why: &str| {
        let message = format!("Cannot enforce AppArmor: {why}");
        Err(Rejection { reason: "AppArmor", message })
    };
    if !is_asked {
        return Ok(());
    }
    if !is_enabled {
        return rejected("AppArmor is not enabled on the host");
    }
    let is_empty = |profile: &AppArmorProfile| {
        let name = profile.localhost_profile.as_deref().unwrap_or_default();
        profile.type_ == "Localhost" && name.trim().is_empty()
    };
    match all().any(|container| profile(of_pod, own(container).as_ref()).is_some_and(is_empty)) {
        true => rejected("invalid empty AppArmor profile name"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn which_pods_need_app_armor() {
        let of = |type_: &str| json!({"appArmorProfile": {"type": type_}});
        let named = |name: &str| json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": name}});
        let nothing = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        let empty = "Cannot enforce AppArmor: invalid empty AppArmor profile name";
        for (of_pod, own, without, with) in [
            (json!({}), json!({}), "", ""),
            (of("Unconfined"), json!({}), "", ""),
            (json!({}), of("Unconfined"), "", ""),
            (of("RuntimeDefault"), json!({}), nothing, ""),
            (of("RuntimeDefault"), of("Unconfined"), nothing, ""),
            (json!({}), named("web"), nothing, ""),
            (named(" "), json!({}), nothing, empty),
            (of("Unconfined"), named(""), nothing, empty),
        ] {
            for list in ["containers", "initContainers", "ephemeralContainers"] {
                let mut spec = json!({"securityContext": of_pod, "containers": []});
                spec[list] = json!([{"name": "c", "securityContext": own}]);
                let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
                for (is_enabled, want) in [(false, without), (true, with)] {
                    let found = check_app_armor(&pod, is_enabled);
                    let found = found.map_or_else(|no| no.message, |()| String::new());
                    assert_eq!(found, want, "{of_pod} {own} {list}");
                }
            }
        }
    }

    #[test]
    fn what_containers_ask_for() {
        let read_by = |policy: Policy, of_pod: Value, own: Value| {
            let of_pod: PodSecurityContext = serde_json::from_value(of_pod).unwrap();
            let own: SecurityContext = serde_json::from_value(own).unwrap();
            (app_armor(&of_pod, &own, policy), se_linux(&of_pod, &own, policy))
        };
        let read = |of_pod: Value, own: Value| read_by(Policy::Privileged, of_pod, own);
        let web = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "web"}});
        let free = json!({"appArmorProfile": {"type": "Unconfined"}});
        let localhost = Ok(AppArmor::Localhost("web".into()));
        assert_eq!(read(json!({}), json!({})).0, Ok(AppArmor::Unset));
        assert_eq!(read(web.clone(), json!({})).0, localhost);
        assert_eq!(read(free.clone(), web.clone()).0, localhost);
        assert_eq!(read(web.clone(), free.clone()).0, Ok(AppArmor::Unconfined));
        assert!(read_by(Policy::Baseline, web, free).0.is_err(), "it is the operator's profile");
        let two = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "a\nb"}});
        assert!(read(two, json!({})).0.is_err());
        let level = json!({"seLinuxOptions": {"level": "s0:c1,c2", "type": "spc_t"}});
        let label = read(level, json!({})).1.unwrap().unwrap();
        assert_eq!(label.of_processes(), "system_u:system_r:spc_t:s0:c1,c2");
        assert_eq!(label.of_files(), "system_u:object_r:container_file_t:s0:c1,c2");
        for (options, privileged, baseline) in [
            (json!({"level": "s0:c1"}), true, true),
            (json!({"type": "container_init_t"}), true, true),
            (json!({"type": "spc_t"}), true, false),
            (json!({"user": "root"}), true, false),
            (json!({"role": "sysadm_r"}), true, false),
            (json!({"level": "s0 x"}), false, false),
        ] {
            for (policy, want) in [(Policy::Privileged, privileged), (Policy::Baseline, baseline)] {
                let found = read_by(policy, json!({"seLinuxOptions": options}), json!({})).1;
                assert_eq!(found.is_ok(), want, "{options} {policy:?}");
            }
        }
    }
}

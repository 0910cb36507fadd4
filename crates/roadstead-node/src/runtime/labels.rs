//! What this machine has of AppArmor and SELinux, and what a container is held to by it.

use std::fs;
use std::path::Path;

use roadstead_pod::mandatory::{AppArmor, ProcessLabels};
use roadstead_pod::security::Confinement;

/// The profile that containers have who ask for the runtime's, if the operator has loaded one of this name.
const DEFAULT_PROFILE: &str = "roadstead-default";
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";

/// Whether the kernel holds processes to profiles of AppArmor.
pub(crate) fn has_app_armor() -> bool {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    enabled.is_ok_and(|text| text.starts_with('Y')) && Path::new(PROFILES).exists()
}

fn has_se_linux() -> bool {
    Path::new("/sys/fs/selinux/enforce").exists()
}

/// What a container is held to; the error says which profile nobody has loaded.
pub(super) fn of(confinement: &Confinement) -> Result<ProcessLabels, String> {
    let loaded = || fs::read_to_string(PROFILES).unwrap_or_default();
    let app_armor = match has_app_armor() {
        true => profile(&confinement.mandatory.app_armor, &loaded())?,
        // Those that need it are not here at all.
        false => None,
    };
    // As with a kubelet, labels mean nothing to a kernel that has none.
    let label = confinement.mandatory.se_linux.as_ref().filter(|_| has_se_linux());
    Ok(ProcessLabels { app_armor, se_linux: label.map(|label| label.of_processes()) })
}

/// The profile by its name, of those that are `loaded` according to the kernel: `NAME (MODE)`.
fn profile(wanted: &AppArmor, loaded: &str) -> Result<Option<String>, String> {
    let is_loaded = |name: &str| {
        let names =
            loaded.lines().map(|line| line.rsplit_once(" (").map_or(line, |(name, _)| name));
        names.into_iter().any(|known| known == name)
    };
    match wanted {
        AppArmor::Unconfined => Ok(None),
        AppArmor::Unset | AppArmor::RuntimeDefault => {
            Ok(is_loaded(DEFAULT_PROFILE).then(|| DEFAULT_PROFILE.to_owned()))
        }
        AppArmor::Localhost(name) if is_loaded(name) => Ok(Some(name.clone())),
        AppArmor::Localhost(name) => Err(format!("apparmor profile not found {name}")),
    }
}

#[test]
fn profiles_that_are_loaded() {
    let loaded = "web (enforce)\nold thing (1) (complain)\nroadstead-default (enforce)\n";
    let localhost = |name: &str| AppArmor::Localhost(name.into());
    for (wanted, loaded, want) in [
        (AppArmor::Unset, loaded, Ok(Some("roadstead-default"))),
        (AppArmor::RuntimeDefault, loaded, Ok(Some("roadstead-default"))),
        (AppArmor::RuntimeDefault, "", Ok(None)),
        (AppArmor::Unconfined, loaded, Ok(None)),
        (localhost("web"), loaded, Ok(Some("web"))),
        (localhost("old thing (1)"), loaded, Ok(Some("old thing (1)"))),
        (localhost("we"), loaded, Err("apparmor profile not found we")),
    ] {
        let found = profile(&wanted, loaded);
        let want = want.map(|name| name.map(str::to_owned)).map_err(str::to_owned);
        assert_eq!(found, want, "{wanted:?}");
    }
}

//! Whether pods on a bridge are switched past us: then policies do not hold between pods of one node.

use std::fs;
use std::path::Path;

use tracing::warn;

const INTERFACES: &str = "/sys/class/net";
const SETTINGS: &str = "/proc/sys/net/bridge";

/// Says so in the log, if it may be. Of Roadstead's own bridge it is not so
/// (`docs/adr/0120-policies-judge-connections.md`).
pub fn look() {
    let bridges = bridges(Path::new(INTERFACES));
    let missing = missing(&bridges, |name| {
        fs::read_to_string(Path::new(SETTINGS).join(name)).ok().map(|text| text.trim() == "1")
    });
    if !missing.is_empty() {
        warn!(
            bridges = bridges.join(", "),
            settings = missing.join(", "),
            "pods that share a bridge and a subnet reach each other past NetworkPolicies: \
             load br_netfilter and set these to 1 in net.bridge"
        );
    }
}

/// The bridges of a machine that may be a network plugin's, by what the kernel shows.
fn bridges(interfaces: &Path) -> Vec<String> {
    let all = fs::read_dir(interfaces).into_iter().flatten().flatten();
    let bridges = all.filter(|entry| entry.path().join("bridge").exists());
    let names = bridges.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> =
        names.filter(|name| !name.starts_with("roadstead") && name != "docker0").collect();
    names.sort();
    names
}

/// The settings that should be on and are not; without br_netfilter there are none at all.
fn missing(bridges: &[String], is_on: impl Fn(&str) -> Option<bool>) -> Vec<&'static str> {
    let settings = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];
    let off = settings.into_iter().filter(|name| is_on(name) != Some(true));
    off.filter(|_| !bridges.is_empty()).collect()
}

#[test]
fn when_bridges_hide_pods() {
    let cases = [
        ("no bridge", "", [None, None], 0),
        ("a bridge without br_netfilter", "cni0", [None, None], 2),
        ("a bridge, and it is off", "cni0", [Some(false), Some(false)], 2),
        ("off for one family", "cni0", [Some(true), Some(false)], 1),
        ("all is well", "cni0", [Some(true), Some(true)], 0),
    ];
    for (name, bridges, settings, want) in cases {
        let bridges: Vec<_> = bridges.split_whitespace().map(str::to_owned).collect();
        let is_on = |name: &str| settings[usize::from(name.contains("ip6"))];
        assert_eq!(missing(&bridges, is_on).len(), want, "{name}");
    }
    let place = std::env::temp_dir().join(format!("roadstead-bridges-{}", std::process::id()));
    for name in ["cni0/bridge", "eth0/queues", "roadstead0/bridge"] {
        fs::create_dir_all(place.join(name)).unwrap();
    }
    let found = bridges(&place);
    fs::remove_dir_all(&place).unwrap();
    assert_eq!(found, ["cni0"]);
}

//! Our part in how a runtime makes the network of a sandbox.
//!
//! By CRI a runtime makes a pod's network namespace itself, and has plugins (CNI) join it to a network. Ours
//! says which address the agent has given to the pod, and does nothing: it is the agent that joins the
//! namespace to its bridge, keeps it joined and takes it away, as it does for its own pods. So there is
//! nothing that a plugin could leave half done, and no sandbox that cannot be removed because it fails.

use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::{Value, json};

use crate::applet::{CNI, SELECT};
use crate::runtime::record::{NetworkRecord, recorded_network};

/// The names that a runtime knows our plugin by: that of our configuration, and one that containerd calls
/// for every sandbox, and which we do without as well.
const PLUGINS: [&str; 2] = ["roadstead", "loopback"];

/// Where a runtime has to look for plugins and for their configuration.
#[derive(Debug)]
pub(super) struct CniDirectories {
    pub(super) programs: PathBuf,
    pub(super) configuration: PathBuf,
}

impl CniDirectories {
    /// Writes what a runtime reads.
    pub(super) fn write(state: &Path, executable: &Path) -> io::Result<Self> {
        let state = std::path::absolute(state)?;
        let all = state.join("cni");
        let written = Self { programs: all.join("bin"), configuration: all.join("net.d") };
        fs::create_dir_all(&written.programs)?;
        fs::create_dir_all(&written.configuration)?;
        let quoted = |path: &Path| format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"));
        let line = format!("exec {} {SELECT} {CNI} {}", quoted(executable), quoted(&state));
        for name in PLUGINS {
            // Never half of it, however the last agent ended.
            let (path, new) = (written.programs.join(name), written.programs.join(".new"));
            fs::write(&new, format!("#!/bin/sh\n{line}\n"))?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
            fs::rename(new, path)?;
        }
        let list =
            json!({"cniVersion": "0.4.0", "name": "roadstead", "plugins": [{"type": "roadstead"}]});
        let (path, new) = ("10-roadstead.conflist", ".new");
        fs::write(written.configuration.join(new), list.to_string())?;
        fs::rename(written.configuration.join(new), written.configuration.join(path))?;
        Ok(written)
    }
}

/// The plugin, whose argument is the agent's directory; returns its exit code.
pub(crate) fn main(arguments: &[String]) -> i32 {
    let mut question = String::new();
    let _ = io::stdin().take(1 << 20).read_to_string(&mut question);
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let question = Question {
        command: variable("CNI_COMMAND"),
        interface: variable("CNI_IFNAME"),
        namespace: variable("CNI_NETNS"),
        arguments: variable("CNI_ARGS"),
        configuration: serde_json::from_str(&question).unwrap_or_default(),
    };
    let state = PathBuf::from(arguments.first().map(String::as_str).unwrap_or_default());
    let (answer, code) = match answer(&question, |uid| recorded_network(&state, uid)) {
        Ok(answer) => (answer, 0),
        Err(why) => (json!({"cniVersion": question.version(), "code": 100, "msg": why}), 1),
    };
    if !answer.is_null() {
        #[expect(clippy::print_stdout, reason = "this is how a plugin answers")]
        {
            println!("{answer}");
        }
    }
    code
}

/// What a runtime asks of a plugin.
struct Question {
    command: String,
    interface: String,
    namespace: String,
    /// `NAME=value;…`
    arguments: String,
    configuration: Value,
}

impl Question {
    fn version(&self) -> &str {
        self.configuration["cniVersion"].as_str().unwrap_or("0.4.0")
    }

    fn argument(&self, name: &str) -> Option<&str> {
        let mut pairs = self.arguments.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// What a plugin says: nothing but to a request for a network.
fn answer(
    question: &Question,
    network_of: impl Fn(&str) -> Option<NetworkRecord>,
) -> Result<Value, String> {
    let version = question.version();
    let interfaces = json!([{"name": question.interface, "sandbox": question.namespace}]);
    match (question.command.as_str(), question.interface.as_str()) {
        ("VERSION", _) => {
            Ok(json!({"cniVersion": version, "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}))
        }
        ("ADD", "lo") => Ok(json!({"cniVersion": version, "interfaces": interfaces})),
        ("ADD", _) => {
            let uid = question.argument("K8S_POD_UID").unwrap_or_default();
            // It becomes part of a path.
            let is_name = !uid.is_empty() && !uid.contains('/') && !uid.starts_with('.');
            let Some(NetworkRecord::Own(own)) = network_of(uid).filter(|_| is_name) else {
                return Err(format!("the node agent has given no address to the pod {uid:?}"));
            };
            let addresses = own.iter().map(|address| {
                let (family, length) = if address.is_ipv4() { ("4", 32) } else { ("6", 128) };
                json!({"version": family, "address": format!("{address}/{length}"), "interface": 0})
            });
            let addresses: Vec<_> = addresses.collect();
            Ok(json!({"cniVersion": version, "interfaces": interfaces, "ips": addresses}))
        }
        _ => Ok(Value::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_plugin_says() {
        let ask = |command: &str, interface: &str, arguments: &str| {
            let question = Question {
                command: command.into(),
                interface: interface.into(),
                namespace: "/run/netns/x".into(),
                arguments: arguments.into(),
                configuration: json!({"cniVersion": "1.0.0"}),
            };
            let answer = answer(&question, |uid| match uid {
                "own" | "../own" => Some(NetworkRecord::Own([10, 0, 0, 7].into())),
                "host" => Some(NetworkRecord::Host),
                _ => None,
            });
            answer.unwrap_or_else(Value::String)
        };
        let refused =
            |uid: &str| json!(format!("the node agent has given no address to the pod {uid:?}"));
        let given = ask("ADD", "eth0", "IgnoreUnknown=1;K8S_POD_UID=own");
        assert_eq!(given["ips"][0]["address"], "10.0.0.7/32");
        assert_eq!(given["interfaces"][0]["name"], "eth0");
        assert_eq!(given["cniVersion"], "1.0.0");
        for uid in ["host", "none", "../own", ""] {
            assert_eq!(ask("ADD", "eth0", &format!("K8S_POD_UID={uid}")), refused(uid));
        }
        assert_eq!(ask("ADD", "lo", "")["interfaces"][0]["name"], "lo");
        assert_eq!(ask("DEL", "eth0", "K8S_POD_UID=own"), Value::Null);
        assert_eq!(ask("CHECK", "eth0", ""), Value::Null);
        assert_eq!(ask("VERSION", "", "")["supportedVersions"][2], "1.0.0");
    }
}

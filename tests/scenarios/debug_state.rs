//! `/debug/state`: every component shows what it knows and does, on its own port where it has one; the API
//! server shows it of all parts of its process, to those who may ask it for that.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{laboratory_of, try_run};
use serde_json::Value;

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(60);

/// What somebody answers, once it does.
fn state(what: &str, ask: impl Fn() -> Output, is_told: impl Fn(&Value) -> bool) -> Value {
    let ask = || serde_json::from_slice(&ask().stdout).unwrap_or(Value::Null);
    eventually(what, PATIENCE, ask, is_told)
}

fn parts(state: &Value) -> Vec<&str> {
    state.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn every_component_shows_what_it_does() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_with("--load-balancer-pool 192.0.2.10-192.0.2.20");
        let kubectl = roadstead.kubectl();
        let raw = |user: &str| kubectl.try_run(&format!("get --raw /debug/state{user}"));
        let tasks = roadstead_controllers::tasks(&roadstead_controllers::names());
        let is_told = |state: &Value| {
            tasks.iter().all(|(task, _)| state["controllers"][*task]["synced"] == true)
                && state["dns"]["ready"] == true
                && state["proxy"]["programmed"]["commits"].as_u64() > Some(0)
                && state["networkPolicy"]["commits"].as_u64() > Some(0)
                && state["announce"]["alive"][0] == "node"
                && !state["node"]["pods"].as_array().is_none_or(Vec::is_empty)
        };
        let all = state("all parts show themselves", || raw(""), is_told);
        let want =
            ["announce", "apiserver", "controllers", "dns", "networkPolicy", "node", "proxy"];
        assert_eq!(parts(&all), want);
        assert!(all["apiserver"]["revision"].as_u64() > Some(0), "{all}");
        assert!(all["apiserver"]["objects"]["services"].as_u64() > Some(0), "{all}");
        assert_eq!(all["proxy"]["mode"], "nftables", "{all}");
        for part in ["announce", "networkPolicy", "node"] {
            assert_eq!(all[part]["node"], "node", "{part}: {all}");
        }
        // Who may not ask hears nothing.
        let refused = raw(" --as jane");
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && why.contains("Forbidden"), "{why}");
        kubectl.run("create clusterrole looker --verb=get --non-resource-url=/debug/state");
        kubectl.run("create clusterrolebinding looker --clusterrole=looker --user=jane");
        state("jane may", || raw(" --as jane"), |state| state["apiserver"].is_object());

        // On ports of their own each shows only itself.
        let kubeconfig = roadstead.kubeconfig();
        let mut alone = Command::new(env!("CARGO_BIN_EXE_roadstead"))
            .args(["controllers", "--controllers", "event-ttl", "--kubeconfig"])
            .arg(&kubeconfig)
            .args(["--metrics-bind-address", "127.0.0.1:10252"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pages = [
            (10252, &["controllers"][..]),
            (10249, &["announce", "proxy"]),
            (10253, &["networkPolicy"]),
            (9153, &["dns"]),
        ];
        for (port, want) in pages {
            let curl = format!("curl -s -m 2 http://127.0.0.1:{port}/debug/state");
            let own = state(&curl, || try_run(&curl), Value::is_object);
            assert_eq!(parts(&own), want, "port {port}");
        }
        alone.kill().unwrap();
        alone.wait().unwrap();
    });
}

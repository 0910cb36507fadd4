//! Pods that wait until policies know them; the tables are made by hand.

use std::time::Duration;

use roadstead_node::config::{Config, PolicyWait};
use roadstead_policy::pod::mark;
use roadstead_testkit::netns::{laboratory, run};
use serde_json::json;
use tokio::time;

use crate::fake_api::FakeApi;
use crate::fake_runtime::{FakeImages, FakeRuntime};
use crate::{Agent, WEB, config, is_ready, pod};

/// Who should not start gets so much time to do it all the same.
const GRACE: Duration = Duration::from_millis(400);

fn in_laboratory(test: impl AsyncFnOnce()) {
    laboratory(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    });
}

/// What whoever enforces policies says of the address that the fake runtime gives.
fn know(mark: u32) {
    run("nft flush map ip roadstead-policy known");
    run(&format!("nft add element ip roadstead-policy known '{{ 10.244.0.2 : {mark} }}'"));
}

fn has_started(runtime: &FakeRuntime) -> bool {
    runtime.calls().contains(&"start web/main".to_owned())
}

#[test]
fn a_pod_starts_when_policies_know_it() {
    in_laboratory(async || {
        run("nft add table ip roadstead-policy");
        run("nft add map ip roadstead-policy known '{ type ipv4_addr : mark; }'");
        let (api, runtime) = (FakeApi::new(), FakeRuntime::default());
        let agent = Agent::start(&api, runtime.clone());
        api.put(WEB, pod("roadstead/echo", &json!({})));
        // Whoever is to know it hears of its address before it starts.
        api.until(WEB, "with an address", |pod| pod["status"]["podIP"] == "10.244.0.2").await;
        time::sleep(GRACE).await;
        assert!(!has_started(&runtime), "nothing is known of it: {:?}", runtime.calls());
        know(mark("somebody who had the address before"));
        time::sleep(GRACE).await;
        assert!(!has_started(&runtime), "another pod is known: {:?}", runtime.calls());
        know(mark("u1"));
        api.until(WEB, "ready", is_ready).await;
        agent.stop().await;
    });
}

#[test]
fn a_pod_waits_for_policies_that_will_come_but_not_for_ever() {
    in_laboratory(async || {
        let (api, runtime) = (FakeApi::new(), FakeRuntime::default());
        let policies = PolicyWait { expected: true, patience: Duration::from_secs(2) };
        let config = Config { policies, ..config() };
        let agent = Agent::start_as(&api, config, runtime.clone(), FakeImages);
        api.put(WEB, pod("roadstead/echo", &json!({})));
        api.until(WEB, "with an address", |pod| pod["status"]["podIP"] == "10.244.0.2").await;
        time::sleep(GRACE).await;
        assert!(!has_started(&runtime), "they are to come: {:?}", runtime.calls());
        // They do not come.
        api.until(WEB, "ready", is_ready).await;
        assert!(api.event_reasons().contains(&"NetworkPolicyUnknown".into()));
        agent.stop().await;
    });
}

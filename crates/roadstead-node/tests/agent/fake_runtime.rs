//! A runtime whose containers end when the test says so.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use roadstead_node::config::NodeError;
use roadstead_node::runtime::{
    ContainerOrder, Exit, PodName, PodNetwork, PodRuntime, RecoveredPod, StartError,
    StartedContainer, Stop,
};
use tokio::sync::watch;

/// What happened, and what runs.
#[derive(Clone, Default)]
pub struct FakeRuntime {
    state: Arc<Mutex<State>>,
    recovered: Vec<RecoveredPod>,
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    running: HashMap<(String, String), Running>,
    environment: Vec<(String, String)>,
}

/// A run, and what ends it.
type Running = (StartedContainer, watch::Sender<Option<i32>>);

impl FakeRuntime {
    pub fn with_recovered(recovered: Vec<RecoveredPod>) -> Self {
        Self { recovered, ..Self::default() }
    }

    pub fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.clone()
    }

    /// A variable of the container that was started last.
    pub fn variable(&self, name: &str) -> Option<String> {
        let state = self.state.lock().unwrap();
        let found = state.environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    }

    /// Lets a container end with this code.
    pub fn end(&self, pod: &str, container: &str, code: i32) {
        let state = self.state.lock().unwrap();
        let key = (pod.to_owned(), container.to_owned());
        state.running[&key].1.send_replace(Some(code));
    }

    fn call(&self, text: String) {
        self.state.lock().unwrap().calls.push(text);
    }
}

impl PodRuntime for FakeRuntime {
    fn recovered(&self) -> Vec<RecoveredPod> {
        self.recovered.clone()
    }

    async fn create_sandbox(&self, pod: &PodName, _: PodNetwork) -> Result<IpAddr, NodeError> {
        self.call(format!("sandbox {}", pod.name));
        Ok([10, 244, 0, 2].into())
    }

    async fn start(&self, order: ContainerOrder) -> Result<StartedContainer, StartError> {
        self.call(format!("start {}/{}", order.pod.name, order.container));
        self.state.lock().unwrap().environment = order.environment.clone();
        if order.image == "missing" {
            let message = "no such image".to_owned();
            return Err(StartError::Waiting { reason: "ErrImagePull", message });
        }
        let id = format!("{}-{}-{}", order.pod.name, order.container, order.restarts);
        let started = StartedContainer { id, since: Timestamp::now() };
        let key = (order.pod.name, order.container);
        let entry = (started.clone(), watch::channel(None).0);
        self.state.lock().unwrap().running.insert(key, entry);
        Ok(started)
    }

    fn wait(&self, pod: &PodName, container: &str) -> impl Future<Output = Exit> + Send + 'static {
        let key = (pod.name.clone(), container.to_owned());
        let (started, mut ended) = {
            let state = self.state.lock().unwrap();
            let (started, ended) = &state.running[&key];
            (started.clone(), ended.subscribe())
        };
        async move {
            let code = ended.wait_for(Option::is_some).await.unwrap().unwrap();
            Exit {
                id: started.id,
                code,
                reason: if code == 0 { "Completed" } else { "Error" }.into(),
                message: None,
                started_at: started.since,
                finished_at: Timestamp::now(),
            }
        }
    }

    fn stop(&self, pod: &PodName, container: &str, how: Stop) {
        self.call(format!("stop {}/{container} {how:?}", pod.name));
        if how == Stop::Now {
            self.end(&pod.name, container, 137);
        }
    }

    async fn remove_sandbox(&self, pod: &PodName) -> Result<(), NodeError> {
        self.call(format!("remove sandbox {}", pod.name));
        Ok(())
    }

    async fn remove(&self, pod: &PodName) -> Result<(), NodeError> {
        self.call(format!("remove {}", pod.name));
        Ok(())
    }
}

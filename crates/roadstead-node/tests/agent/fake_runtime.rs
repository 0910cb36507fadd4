//! A runtime whose containers end when the test says so.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use jiff::Timestamp;
use roadstead_node::config::NodeError;
use roadstead_node::runtime::exec::{
    ExecError, ExecOrder, ExecProcess, ExecSession, ProcessOutput,
};
use roadstead_node::runtime::{ContainerRuntime, ImageError, Images, StartError, Stop};
use roadstead_pod::addresses::Addresses;
use roadstead_pod::container_config::ContainerConfig;
use roadstead_pod::env_file::VolumeFile;
use roadstead_pod::facts::{Exit, StartedContainer};
use roadstead_pod::image::{ImageContent, ImageFacts};
use roadstead_pod::pod_name::PodName;
use roadstead_pod::recovery::RecoveredPod;
use roadstead_pod::resources::Resources;
use roadstead_pod::sandbox::SandboxOrder;
use roadstead_pod::volumes::PodVolume;
use roadstead_pod::volumes::payload::Payload;
use tokio::sync::watch;

/// What happened, and what runs.
#[derive(Clone, Default)]
pub(crate) struct FakeRuntime {
    state: Arc<Mutex<State>>,
    recovered: Vec<RecoveredPod>,
    trouble: Option<String>,
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    running: HashMap<(String, String), Running>,
    environment: Vec<(String, String)>,
    files: HashMap<String, String>,
}

/// A run, and what ends it.
type Running = (StartedContainer, watch::Sender<Option<i32>>);

impl FakeRuntime {
    pub(crate) fn with_recovered(recovered: Vec<RecoveredPod>) -> Self {
        Self { recovered, ..Self::default() }
    }

    pub(crate) fn that_is_down() -> Self {
        Self { trouble: Some("container runtime is down".into()), ..Self::default() }
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.clone()
    }

    /// A variable of the container that was started last.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let state = self.state.lock().unwrap();
        let found = state.environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    }

    /// What is in a file of a volume, by `volume/path`.
    pub(crate) fn file(&self, path: &str) -> Option<String> {
        self.state.lock().unwrap().files.get(path).cloned()
    }

    /// Puts a file into a volume, by `volume/path`, as a container would.
    pub(crate) fn write(&self, path: &str, text: &str) {
        self.state.lock().unwrap().files.insert(path.into(), text.into());
    }

    /// Lets a container end with this code.
    pub(crate) fn end(&self, pod: &str, container: &str, code: i32) {
        let state = self.state.lock().unwrap();
        let key = (pod.to_owned(), container.to_owned());
        state.running[&key].1.send_replace(Some(code));
    }

    fn call(&self, text: String) {
        self.state.lock().unwrap().calls.push(text);
    }
}

impl ContainerRuntime for FakeRuntime {
    fn recovered(&self) -> Vec<RecoveredPod> {
        self.recovered.clone()
    }

    fn trouble(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async { self.trouble.clone() })
    }

    fn create_sandbox<'a>(
        &'a self,
        pod: &'a PodName,
        _: SandboxOrder,
    ) -> BoxFuture<'a, Result<Addresses, NodeError>> {
        self.call(format!("sandbox {}", pod.name));
        Box::pin(async { Ok([10, 244, 0, 2].into()) })
    }

    fn prepare_volume<'a>(
        &'a self,
        _: &'a PodName,
        volume: PodVolume,
        files: Option<Payload>,
    ) -> BoxFuture<'a, Result<(), String>> {
        let files = files.unwrap_or_default().files.into_iter().map(|(path, file)| {
            (format!("{}/{path}", volume.name), String::from_utf8_lossy(&file.data).into_owned())
        });
        let mut state = self.state.lock().unwrap();
        state.files.retain(|path, _| !path.starts_with(&format!("{}/", volume.name)));
        state.files.extend(files);
        Box::pin(async { Ok(()) })
    }

    fn start(
        &self,
        config: ContainerConfig,
    ) -> BoxFuture<'_, Result<StartedContainer, StartError>> {
        self.call(format!("start {}/{}", config.pod.name, config.container));
        self.state.lock().unwrap().environment = config.environment.clone();
        let id = format!("{}-{}-{}", config.pod.name, config.container, config.restarts);
        let started = StartedContainer { id, since: Timestamp::now() };
        let key = (config.pod.name, config.container);
        let entry = (started.clone(), watch::channel(None).0);
        self.state.lock().unwrap().running.insert(key, entry);
        Box::pin(async { Ok(started) })
    }

    fn read_volume<'a>(
        &'a self,
        _: &'a PodName,
        file: VolumeFile,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        let found = self.file(&format!("{}/{}", file.volume, file.path));
        Box::pin(async { Ok(found) })
    }

    fn resize<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        resources: Resources,
    ) -> BoxFuture<'a, Result<(), String>> {
        let cpu = resources.of_container.cpu_request;
        self.call(format!("resize {}/{container} {cpu}", pod.name));
        Box::pin(async { Ok(()) })
    }

    fn wait(&self, pod: &PodName, container: &str) -> BoxFuture<'static, Exit> {
        let key = (pod.name.clone(), container.to_owned());
        let (started, mut ended) = {
            let state = self.state.lock().unwrap();
            let (started, ended) = &state.running[&key];
            (started.clone(), ended.subscribe())
        };
        Box::pin(async move {
            let code = ended.wait_for(Option::is_some).await.unwrap().unwrap();
            Exit {
                id: started.id,
                code,
                reason: if code == 0 { "Completed" } else { "Error" }.into(),
                message: None,
                started_at: started.since,
                finished_at: Timestamp::now(),
            }
        })
    }

    /// `ok`, `fail TEXT`, `hang`, and anything else cannot be started.
    fn exec<'a>(
        &'a self,
        pod: &'a PodName,
        container: &'a str,
        order: ExecOrder,
    ) -> BoxFuture<'a, Result<ExecSession, ExecError>> {
        let line = order.command.join(" ");
        self.call(format!("exec {}/{container} {line}", pod.name));
        let (code, text) = match line.split_once(' ').unwrap_or((&line, "")) {
            ("ok", _) => (Some(0), ""),
            ("fail", text) => (Some(1), text),
            ("hang", _) => (None, ""),
            _ => return Box::pin(async { Err(ExecError::new("there is no such program")) }),
        };
        let (exit, exited) = watch::channel(code);
        let (fake, name) = (self.clone(), format!("{}/{container}", pod.name));
        let process = ExecProcess::new(exited, move || {
            fake.call(format!("kill {name}"));
            exit.send_replace(Some(137));
        });
        // What hangs says nothing, and does not stop.
        let stdout: ProcessOutput = match code {
            Some(_) => Box::pin(std::io::Cursor::new(text.as_bytes().to_vec())),
            None => Box::pin(tokio::io::duplex(1).0),
        };
        let session = ExecSession { stdin: None, stdout, stderr: None, window: None, process };
        Box::pin(async { Ok(session) })
    }

    fn stop(&self, pod: &PodName, container: &str, how: Stop) {
        self.call(format!("stop {}/{container} {how:?}", pod.name));
        if how == Stop::Now {
            self.end(&pod.name, container, 137);
        }
    }

    fn remove_sandbox<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>> {
        self.call(format!("remove sandbox {}", pod.name));
        Box::pin(async { Ok(()) })
    }

    fn remove<'a>(&'a self, pod: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>> {
        self.call(format!("remove {}", pod.name));
        Box::pin(async { Ok(()) })
    }
}

/// Registries that have one image, `there`, and a machine that has the built-in ones and `loaded`.
#[derive(Clone, Copy, Default)]
pub(crate) struct FakeImages;

fn layered(image: &str) -> ImageFacts {
    let content = ImageContent::Layers(Box::default());
    ImageFacts { id: format!("{image}@sha256:00"), size: 12345, content }
}

impl Images for FakeImages {
    fn find<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<Option<ImageFacts>, ImageError>> {
        let found = match image {
            "Bad" => Err(ImageError::InvalidName("invalid reference format".into())),
            "loaded" => Ok(Some(layered(image))),
            _ => Ok(ImageFacts::built_in(image)),
        };
        Box::pin(async { found })
    }

    fn pull(
        &self,
        image: String,
        _: Vec<Vec<u8>>,
    ) -> BoxFuture<'static, Result<ImageFacts, ImageError>> {
        let pulled = match image.as_str() {
            "there" => Ok(layered(&image)),
            "loaded" => Err(ImageError::Unavailable("no route to host".into())),
            _ => Err(ImageError::Refused("no such image".into())),
        };
        Box::pin(async { pulled })
    }
}

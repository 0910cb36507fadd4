//! From a container's configuration to the recipe that its processes are made by.

use std::path::Path;

use roadstead_pod::builtin_image;
use roadstead_pod::capabilities::Capabilities;
use roadstead_pod::container_config::ContainerConfig;
use roadstead_pod::image::{ImageContent, LayeredImage};
use roadstead_pod::oci::{Bind, Namespace, OciContext, oci_config, stop_signal};
use roadstead_pod::sandbox::Processes;
use roadstead_pod::security::Seccomp;
use roadstead_pod::volumes::{Access, Propagation, Trust};
use serde_json::json;

use super::BuiltinRuntime;
use crate::container::oci::{self, OciRecipe};
use crate::container::{LAST_WORDS, ProcessSpace, RECORD_VERSION, ROOT, Recipe};
use crate::runtime::StartError;
use crate::runtime::namespace::HeldNamespace;
use crate::runtime::{labels, pod_processes, seccomp_profiles, shared_memory};
use crate::seccomp;

impl BuiltinRuntime {
    /// The namespace of processes of the container that this one is put beside, if it is beside one.
    pub(super) fn beside(&self, config: &ContainerConfig) -> Result<Option<HeldNamespace>, String> {
        let Processes::Beside(other) = &config.processes else { return Ok(None) };
        if matches!(config.image.content, ImageContent::BuiltIn(_)) {
            return Err("the built-in image runs beside no other container".into());
        }
        let running = self.container(&config.pod, other);
        let held =
            running.and_then(|container| HeldNamespace::of_processes(&container.running.init));
        held.map(Some).ok_or_else(|| format!("container {other:?} does not run"))
    }

    pub(super) fn recipe(
        &self,
        config: ContainerConfig,
        beside: Option<&HeldNamespace>,
    ) -> Result<Recipe, StartError> {
        let uid = &config.pod.uid;
        let refused = |message| StartError::Waiting { reason: "CreateContainerError", message };
        let volumes = self.disk.volumes(uid);
        let calls = seccomp_profiles::load(self.disk.root(), &config.confinement);
        let mut recipe = Recipe {
            version: RECORD_VERSION,
            id: uuid::Uuid::new_v4().simple().to_string(),
            restarts: config.restarts,
            executable: self.forker.executable().to_owned(),
            command: vec![],
            directory: self.disk.container(uid, &config.container),
            log: self.disk.log(&config.pod, &config.container, config.restarts),
            network: self.network.namespace(uid),
            environment: config.environment.clone(),
            working_directory: config.working_directory.clone(),
            hostname: config.hostname.clone(),
            files: config.files.clone(),
            open_files: self.open_files,
            confinement: config.confinement.clone(),
            groups: Vec::new(),
            oom_score_adj: config.resources.oom_score_adj,
            mounts: config.mounts.iter().map(|mount| self.disk.mount(uid, mount)).collect(),
            stop_signal: config.stop_signal.as_deref().and_then(stop_signal),
            processes: match (&config.processes, beside) {
                (_, Some(held)) => ProcessSpace::At(held.path()),
                (Processes::Pod, None) => ProcessSpace::At(pod_processes::of(&volumes)),
                (Processes::Node, None) => ProcessSpace::Node,
                (Processes::Own | Processes::Beside(_), None) => ProcessSpace::Own,
            },
            calls: calls.map_err(refused)?,
            termination_message: config.termination_message.clone(),
            streams: config.streams,
            shared: Some(shared_memory::of(&volumes, config.messages)),
            labels: labels::of(&config.confinement).map_err(refused)?,
            oci: None,
        };
        match &config.image.content {
            ImageContent::BuiltIn(image) => {
                let line = builtin_image::command_line(*image, &config.command, &config.args);
                recipe.command = line.map_err(StartError::Failed)?;
            }
            ImageContent::Layers(image) => {
                let oci = self.oci_recipe(&config, image, &recipe);
                recipe.oci = Some(oci.map_err(refused)?);
            }
        }
        Ok(recipe)
    }

    fn oci_recipe(
        &self,
        config: &ContainerConfig,
        image: &LayeredImage,
        recipe: &Recipe,
    ) -> Result<OciRecipe, String> {
        let runtime = self.oci_runtime.clone().ok_or(
            "only built-in images run here, because there is no runtime for others: install runc, or name an OCI runtime with --oci-runtime",
        )?;
        let mounts = recipe.mounts.iter().enumerate().map(|(number, mount)| Bind {
            source: mount.source_for_oci(&recipe.directory, number),
            path: mount.path.clone(),
            access: mount.access,
            trust: mount.trust,
            propagation: mount.propagation,
        });
        let is_mounted = |path: &String| recipe.mounts.iter().any(|mount| mount.path == *path);
        let files = recipe.files.keys().filter(|path| !is_mounted(path)).map(|path| Bind {
            source: oci::file_path(&recipe.directory, path),
            path: path.clone(),
            access: Access::ReadWrite,
            trust: Trust::Data,
            propagation: Propagation::None,
        });
        let last_words = recipe.termination_message.iter().map(|message| Bind {
            source: recipe.directory.join(LAST_WORDS),
            path: message.path.clone(),
            access: Access::ReadWrite,
            trust: Trust::Data,
            propagation: Propagation::None,
        });
        let available = rustix::thread::capabilities(None).map(|own| own.permitted.bits());
        let confinement = &recipe.confinement;
        let shared = recipe.shared.as_ref();
        let context = OciContext {
            root: Path::new(ROOT),
            network: recipe.network.as_deref(),
            processes: match &recipe.processes {
                ProcessSpace::Own => Namespace::Own,
                ProcessSpace::At(path) => Namespace::At(path),
                ProcessSpace::Node => Namespace::Node,
            },
            shared_memory: shared.map(|pod| pod.files.as_path()),
            messages: match shared.map(|pod| &pod.messages) {
                None => Namespace::Own,
                Some(Some(path)) => Namespace::At(path),
                Some(None) => Namespace::Node,
            },
            node_queues: Some(Path::new("/dev/mqueue")).filter(|path| path.exists()),
            cgroups_path: self.groups.oci_path(&config.pod.uid, &recipe.id),
            binds: files.chain(mounts).chain(last_words).collect(),
            seccomp: match confinement.seccomp {
                Seccomp::RuntimeDefault => Some(seccomp::profile(confinement.capabilities)),
                Seccomp::Localhost(_) => recipe.calls.as_ref().map(|calls| json!(calls)),
                Seccomp::Unconfined => None,
            },
            available: Capabilities::from_bits(available.unwrap_or_default()),
            labels: &recipe.labels,
        };
        Ok(OciRecipe {
            runtime,
            state: self.disk.oci_state(),
            layers: image.layers.clone(),
            config: oci_config(config, image, &context)?,
            stop_signal: recipe.stop_signal.or_else(|| stop_signal(&image.stop_signal)),
            volumes: match confinement.read_only_root {
                true => image.volumes.clone(),
                // There, all of the root is like them.
                false => Vec::new(),
            },
        })
    }
}

//! Images as a container needs them, and what a pull policy makes of what is there.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};

use crate::builtin_image::{self, BuiltInImage};

/// An image that is on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageFacts {
    /// What `imageID` shows: `name@digest`.
    pub id: String,
    /// Its size in bytes.
    pub size: u64,
    /// What is in it.
    pub content: ImageContent,
}

/// Where the files of an image are.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageContent {
    /// In our own executable.
    BuiltIn(BuiltInImage),
    /// In directories, and they bring their configuration with them.
    Layers(Box<LayeredImage>),
}

/// An image from a registry or an archive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayeredImage {
    /// The directories of its layers, lowest first.
    pub layers: Vec<PathBuf>,
    /// What to run if the pod does not say.
    pub entrypoint: Vec<String>,
    /// The entrypoint's arguments if the pod does not say.
    pub cmd: Vec<String>,
    /// Variables, as `NAME=value`.
    pub env: Vec<String>,
    /// Where the command starts if the pod does not say.
    pub working_dir: String,
    /// `user[:group]`, by name or number.
    pub user: String,
    /// What asks it to end: `SIGQUIT`, or a number; SIGTERM if empty.
    pub stop_signal: String,
    /// The text of its /etc/passwd.
    pub passwd: String,
    /// The text of its /etc/group.
    pub group: String,
    /// Who can read these two.
    pub users: ImageUsers,
    /// Directories that a container may write to even where the rest of its root is read-only.
    pub volumes: Vec<String>,
}

/// Who knows the users of an image by name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ImageUsers {
    /// We do: its files are here.
    #[default]
    Listed,
    /// Only the runtime that has its files.
    KnownToRuntime,
}

impl ImageFacts {
    /// The built-in image of that name, if it is one.
    pub fn built_in(reference: &str) -> Option<Self> {
        let image = builtin_image::find(reference)?;
        Some(Self { id: image.id(), size: 0, content: ImageContent::BuiltIn(image) })
    }
}

/// When a registry is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Each time a container starts.
    Always,
    /// Only for what is not here.
    IfNotPresent,
    /// Never.
    Never,
}

/// An image that a container cannot begin without.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedImage {
    /// As the spec says it.
    pub image: String,
    /// When its registry is asked.
    pub policy: PullPolicy,
    /// The volume that it is; `None` is what the container runs.
    pub volume: Option<String>,
}

/// Returns what a container needs: what it runs, and what it has for volumes.
pub fn wanted_images(spec: &PodSpec, container: &Container) -> Vec<WantedImage> {
    let own = WantedImage {
        image: container.image.clone().unwrap_or_default(),
        policy: PullPolicy::of(container),
        volume: None,
    };
    let mounted = |volume: &&Volume| {
        container.volume_mounts.iter().flatten().any(|mount| mount.name == volume.name)
    };
    let volumes = spec.volumes.iter().flatten().filter(mounted).filter_map(|volume| {
        let source = volume.image.as_ref()?;
        Some(WantedImage {
            image: source.reference.clone().unwrap_or_default(),
            policy: PullPolicy::named(source.pull_policy.as_deref(), source.reference.as_deref()),
            volume: Some(volume.name.clone()),
        })
    });
    [own].into_iter().chain(volumes).collect()
}

/// What to do about an image.
#[derive(Clone, Debug, PartialEq)]
pub enum PullDecision {
    /// It is here, and may be used.
    Use(ImageFacts),
    /// Ask the registry. What is here will do if nobody answers there.
    Pull {
        /// What is here.
        present: Option<ImageFacts>,
    },
    /// It is not here and must not be pulled.
    Refuse,
}

impl PullPolicy {
    /// The container's policy; if nobody filled it in, what the API server would.
    pub fn of(container: &Container) -> Self {
        Self::named(container.image_pull_policy.as_deref(), container.image.as_deref())
    }

    fn named(policy: Option<&str>, image: Option<&str>) -> Self {
        let tag = image.unwrap_or_default().rsplit_once(':').map(|(_, tag)| tag);
        match (policy, tag.filter(|tag| !tag.contains('/'))) {
            (Some("Always"), _) => Self::Always,
            (Some("Never"), _) => Self::Never,
            (Some("IfNotPresent"), _) => Self::IfNotPresent,
            (_, None | Some("latest")) => Self::Always,
            _ => Self::IfNotPresent,
        }
    }

    /// Decides about an image of which this is on the machine.
    pub fn decide(self, present: Option<ImageFacts>) -> PullDecision {
        match (self, present) {
            // No registry has a newer one.
            (_, Some(facts)) if matches!(facts.content, ImageContent::BuiltIn(_)) => {
                PullDecision::Use(facts)
            }
            (Self::IfNotPresent | Self::Never, Some(facts)) => PullDecision::Use(facts),
            (Self::Never, None) => PullDecision::Refuse,
            (Self::Always | Self::IfNotPresent, present) => PullDecision::Pull { present },
        }
    }
}

/// The message of the event `Pulled`, after a pull.
pub fn pulled_message(image: &str, took: Duration, size: u64) -> String {
    let took = go_duration(took);
    format!(
        "Successfully pulled image {image:?} in {took} ({took} including waiting). Image size: {size} bytes."
    )
}

/// The message of the event `Pulled`, if there was nothing to pull.
pub fn present_message(image: &str) -> String {
    format!("Container image {image:?} already present on machine and can be accessed by the pod")
}

/// As Go prints durations, to the millisecond: `234ms`, `1.5s`, `1m2.345s`.
fn go_duration(time: Duration) -> String {
    let millis = time.as_millis();
    if millis < 1000 {
        return if millis == 0 { "0s".into() } else { format!("{millis}ms") };
    }
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let fraction = format!("{:03}", rest % 1000);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    let seconds = format!("{}{point}{fraction}s", rest / 1000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn policies() {
        let there =
            ImageFacts { id: "x".into(), size: 1, content: ImageContent::Layers(Box::default()) };
        let built_in = ImageFacts::built_in("roadstead/echo").unwrap();
        for (image, policy, present, want) in [
            ("nginx", None, None, "pull"),
            ("nginx", None, Some(&there), "pull"),
            ("nginx:latest", None, Some(&there), "pull"),
            ("nginx:1.19", None, Some(&there), "use"),
            ("nginx:1.19", None, None, "pull"),
            ("registry:5000/nginx", None, Some(&there), "pull"),
            ("nginx:1.19", Some("Always"), Some(&there), "pull"),
            ("nginx", Some("IfNotPresent"), Some(&there), "use"),
            ("nginx", Some("Never"), Some(&there), "use"),
            ("nginx", Some("Never"), None, "refuse"),
            ("roadstead/echo", Some("Always"), Some(&built_in), "use"),
        ] {
            let container = json!({"name": "a", "image": image, "imagePullPolicy": policy});
            let container: Container = serde_json::from_value(container).unwrap();
            let found = match PullPolicy::of(&container).decide(present.cloned()) {
                PullDecision::Use(_) => "use",
                PullDecision::Pull { present: kept } => {
                    assert_eq!(kept.as_ref(), present);
                    "pull"
                }
                PullDecision::Refuse => "refuse",
            };
            assert_eq!(found, want, "{image} {policy:?} {}", present.is_some());
        }
    }

    #[test]
    fn durations_and_messages() {
        for (millis, want) in [
            (0, "0s"),
            (7, "7ms"),
            (1000, "1s"),
            (1234, "1.234s"),
            (1500, "1.5s"),
            (62_345, "1m2.345s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(millis)), want);
        }
        assert_eq!(
            pulled_message("nginx", Duration::from_millis(1234), 12345),
            "Successfully pulled image \"nginx\" in 1.234s (1.234s including waiting). \
             Image size: 12345 bytes."
        );
    }

    #[test]
    fn images_that_a_container_needs() {
        let spec: PodSpec = serde_json::from_value(json!({"containers": [], "volumes": [
            {"name": "v", "image": {"reference": "files:1"}},
            {"name": "w", "image": {"reference": "files", "pullPolicy": "Never"}},
            {"name": "x", "image": {"reference": "files"}},
            {"name": "e", "emptyDir": {}},
        ]}))
        .unwrap();
        for (mounts, want) in [
            ("", "app:1 IfNotPresent"),
            ("e", "app:1 IfNotPresent"),
            ("v", "app:1 IfNotPresent; files:1 IfNotPresent v"),
            ("w e x", "app:1 IfNotPresent; files Never w; files Always x"),
        ] {
            let mounts: Vec<_> = mounts
                .split_whitespace()
                .map(|name| {
                    json!({"name": name,
                "mountPath": "/m"})
                })
                .collect();
            let container = json!({"name": "a", "image": "app:1", "volumeMounts": mounts});
            let container: Container = serde_json::from_value(container).unwrap();
            let shown = wanted_images(&spec, &container).into_iter().map(|one| {
                let volume = one.volume.map(|name| format!(" {name}")).unwrap_or_default();
                format!("{} {:?}{volume}", one.image, one.policy)
            });
            assert_eq!(shown.collect::<Vec<_>>().join("; "), want);
        }
    }
}

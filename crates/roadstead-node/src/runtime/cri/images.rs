//! The images of a runtime that keeps them itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use roadstead_grpc::status::{Code, Status};
use roadstead_images::reference::Reference;
use roadstead_images::registry::credentials::Keyring;
use roadstead_pod::image::{ImageContent, ImageFacts, ImageUsers, LayeredImage};
use serde_json::Value;
use tracing::warn;

use super::client::{Client, PATIENT, gone_is_fine};
use super::messages::*;
use crate::runtime::{ImageError, Images, StoredImage};

const LIMIT: Duration = Duration::from_secs(120);

/// Has what the runtime has; registries and their mirrors are its own matter.
pub struct CriImages {
    client: Arc<Client>,
}

impl CriImages {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self { client }
    }
}

impl Images for CriImages {
    fn find<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<Option<ImageFacts>, ImageError>> {
        Box::pin(async move {
            if ImageFacts::built_in(image).is_some() {
                let why = "the built-in image runs only without --container-runtime-endpoint";
                return Err(ImageError::Broken(why.into()));
            }
            parse(image)?;
            let found = look(&self.client, image).await;
            found.map_err(|status| ImageError::Broken(status.to_string()))
        })
    }

    fn pull(
        &self,
        image: String,
        secrets: Vec<Vec<u8>>,
    ) -> BoxFuture<'static, Result<ImageFacts, ImageError>> {
        let client = self.client.clone();
        Box::pin(async move {
            let reference = parse(&image)?;
            let mut keys = Keyring::default();
            for secret in secrets {
                if let Err(error) = keys.add(&secret) {
                    warn!(image, %error, "an image pull secret cannot be read");
                }
            }
            let known = keys.find(&reference).into_iter().map(|credentials| AuthConfig {
                username: credentials.username.clone(),
                password: credentials.password.clone(),
            });
            let mut ways: Vec<_> = known.map(Some).collect();
            if ways.is_empty() {
                ways.push(None);
            }
            let mut failure = None;
            for auth in ways {
                let question =
                    PullImageRequest { image: Some(ImageSpec { image: image.clone() }), auth };
                match client.ask_images("PullImage", &question, PATIENT).await {
                    Ok(PullImageResponse { image_ref }) => {
                        let found = look(&client, &image_ref).await.map_err(refusal)?;
                        let gone = || ImageError::Broken(format!("{image} is gone again"));
                        return found.ok_or_else(gone);
                    }
                    Err(status) => failure = Some(status),
                }
            }
            Err(failure.map_or(ImageError::Broken("nobody was asked".into()), refusal))
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<StoredImage>, ImageError>> {
        Box::pin(async {
            let answer = self.client.ask_images("ListImages", &Empty {}, LIMIT).await;
            let ListImagesResponse { images } =
                answer.map_err(|status: Status| ImageError::Broken(status.to_string()))?;
            Ok(images.into_iter().filter(|image| !image.pinned).map(stored).collect())
        })
    }

    fn remove<'a>(
        &'a self,
        image: &'a StoredImage,
        used: &'a BTreeSet<String>,
    ) -> BoxFuture<'a, Result<(), ImageError>> {
        Box::pin(async move {
            if used.contains(&image.digest) {
                return Ok(());
            }
            let name = image.names.first().unwrap_or(&image.digest).clone();
            let question = RemoveImageRequest { image: Some(ImageSpec { image: name }) };
            let removed = self.client.ask_images::<Empty>("RemoveImage", &question, LIMIT).await;
            let removed = gone_is_fine(removed).map(drop);
            removed.map_err(|status| ImageError::Broken(status.to_string()))
        })
    }
}

async fn look(client: &Client, image: &str) -> Result<Option<ImageFacts>, Status> {
    let question =
        ImageStatusRequest { image: Some(ImageSpec { image: image.into() }), verbose: true };
    let answer: ImageStatusResponse = client.ask_images("ImageStatus", &question, LIMIT).await?;
    Ok(answer.image.map(|image| facts(image, answer.info.get("info"))))
}

/// A registry that nobody reaches may be reached later, and what is here will do until then.
fn refusal(status: Status) -> ImageError {
    let unreached = status.code == Code::Unavailable || status.message.contains("dial tcp");
    match unreached {
        true => ImageError::Unavailable(status.to_string()),
        false => ImageError::Refused(status.to_string()),
    }
}

fn parse(image: &str) -> Result<Reference, ImageError> {
    let parsed: Result<Reference, _> = image.parse();
    parsed.map_err(|error| ImageError::InvalidName(error.to_string()))
}

/// What is known of an image, with what the runtime says about its configuration.
fn facts(image: CriImage, info: Option<&String>) -> ImageFacts {
    let info: Value = info.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let config = &info["imageSpec"]["config"];
    let text = |name: &str| config[name].as_str().unwrap_or_default().to_owned();
    let texts = |name: &str| {
        let all = config[name].as_array().into_iter().flatten();
        all.filter_map(|one| one.as_str().map(str::to_owned)).collect()
    };
    // A runtime that says nothing about the configuration says at least who it runs as.
    let user = match (text("User"), &image.uid) {
        (user, _) if !user.is_empty() => user,
        (_, Some(uid)) => uid.value.to_string(),
        _ => image.username.clone(),
    };
    let content = LayeredImage {
        entrypoint: texts("Entrypoint"),
        cmd: texts("Cmd"),
        env: texts("Env"),
        working_dir: text("WorkingDir"),
        stop_signal: text("StopSignal"),
        user,
        users: ImageUsers::KnownToRuntime,
        ..LayeredImage::default()
    };
    let id = image.repo_digests.first().unwrap_or(&image.id).clone();
    ImageFacts { id, size: image.size, content: ImageContent::Layers(Box::new(content)) }
}

fn stored(image: CriImage) -> StoredImage {
    let pinned = image.repo_digests.first().and_then(|name| name.split_once('@'));
    let digest = pinned.map_or(image.id.as_str(), |(_, digest)| digest).to_owned();
    let names = image.repo_digests.iter().chain(&image.repo_tags).cloned().collect();
    StoredImage { digest, names, size: image.size, loaded: image.repo_digests.is_empty() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_runtime_says_of_an_image() {
        let info = r#"{"imageSpec": {"config": {"Entrypoint": ["/bin/sh"], "User": "web:staff"}}}"#;
        let image = CriImage {
            id: "sha256:abc".into(),
            repo_tags: vec!["docker.io/library/x:1".into()],
            repo_digests: vec!["docker.io/library/x@sha256:def".into()],
            size: 7,
            uid: Some(Int64Value { value: 3 }),
            ..CriImage::default()
        };
        let known = facts(image.clone(), Some(&info.to_owned()));
        assert_eq!((known.id.as_str(), known.size), ("docker.io/library/x@sha256:def", 7));
        let ImageContent::Layers(layered) = &known.content else { panic!("{known:?}") };
        assert_eq!((layered.user.as_str(), &*layered.entrypoint[0]), ("web:staff", "/bin/sh"));
        let silent = facts(image.clone(), None);
        let ImageContent::Layers(layered) = &silent.content else { panic!("{silent:?}") };
        assert_eq!(layered.user, "3");
        let listed = stored(image.clone());
        assert_eq!((listed.digest.as_str(), listed.loaded), ("sha256:def", false));
        let imported = stored(CriImage { repo_digests: vec![], ..image });
        assert_eq!((imported.digest.as_str(), imported.loaded), ("sha256:abc", true));
    }
}

//! The images of a pod's containers: looked for, pulled in the background, and waited for.

use std::time::Duration;

use roadstead_pod::facts::State;
use roadstead_pod::image::{
    ImageFacts, PullDecision, WantedImage, present_message, pulled_message, wanted_images,
};
use tokio::time::Instant;

use super::Worker;
use crate::pod_api;
use crate::runtime::ImageError;

/// What came of a pull.
pub(super) struct FinishedPull {
    container: String,
    /// The image that was asked for: by now the pod may want another.
    wanted: WantedImage,
    /// What was on the machine before.
    present: Option<ImageFacts>,
    result: Result<ImageFacts, ImageError>,
    took: Duration,
}

impl Worker {
    /// Looks for the images that the container needs, those of its volumes first, and begins to pull the first
    /// one that has to be.
    pub(super) async fn pull(&mut self, name: &str) {
        let all = self.wanted_images(name);
        let has = |volume: &Option<String>| {
            volume.as_ref().is_some_and(|volume| self.volumes.images.contains_key(volume))
        };
        let mut missing: Vec<_> = all.into_iter().filter(|one| !has(&one.volume)).collect();
        missing.sort_by_key(|one| one.volume.is_none());
        let Some(wanted) = missing.first().cloned() else { return };
        let image = wanted.image.clone();
        let present = match self.context.runtime.images.find(&image).await {
            Ok(present) => present,
            Err(ImageError::InvalidName(why)) => {
                let message = format!("Failed to apply default image tag {image:?}: {why}");
                return self.image_refused(name, "InspectFailed", "InvalidImageName", message);
            }
            Err(error) => {
                let message = format!("Failed to inspect image {image:?}: {error}");
                return self.image_refused(name, "InspectFailed", "ImageInspectError", message);
            }
        };
        match wanted.policy.decide(present) {
            PullDecision::Use(facts) => {
                self.image_ready(name, &wanted, facts, present_message(&image))
            }
            PullDecision::Refuse => {
                let message =
                    format!("Container image {image:?} is not present with pull policy of Never");
                self.image_refused(name, "ErrImageNeverPull", "ErrImageNeverPull", message);
            }
            PullDecision::Pull { present } => self.begin_pull(name, wanted, present).await,
        }
    }

    /// What a container needs; nothing, if there is no such container any more.
    fn wanted_images(&self, name: &str) -> Vec<WantedImage> {
        let found = self.find(name).zip(self.pod.spec.as_ref());
        found.map(|(container, spec)| wanted_images(spec, &container)).unwrap_or_default()
    }

    async fn begin_pull(&mut self, name: &str, wanted: WantedImage, present: Option<ImageFacts>) {
        let image = wanted.image.clone();
        let text = format!("Pulling image {image:?}");
        self.context.events.normal(&self.pod, Some(name), "Pulling", text);
        let (secrets, missing) = pod_api::pull_secrets(&self.context.client, &self.pod).await;
        if !missing.is_empty() {
            let text = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            let reason = "FailedToRetrieveImagePullSecret";
            self.context.events.warning(&self.pod, None, reason, text);
        }
        self.facts.containers.entry(name.to_owned()).or_default().pulling = true;
        let pull = self.context.runtime.images.pull(image.clone(), secrets);
        let (container, began) = (name.to_owned(), Instant::now());
        self.pulls.push(Box::pin(async move {
            let result = pull.await;
            FinishedPull { container, wanted, present, result, took: began.elapsed() }
        }));
    }

    pub(super) fn pull_finished(&mut self, pull: FinishedPull) {
        let FinishedPull { container: name, wanted, present, result, took } = pull;
        self.facts.containers.entry(name.clone()).or_default().pulling = false;
        if !self.wanted_images(&name).contains(&wanted) {
            return;
        }
        let image = wanted.image.clone();
        match (result, present) {
            (Ok(facts), _) => {
                let text = pulled_message(&image, took, facts.size);
                self.image_ready(&name, &wanted, facts, text);
            }
            // An image that was loaded from a file needs no registry, whatever its tag.
            (Err(ImageError::Unavailable(why)), Some(facts)) => {
                let text =
                    format!("{}, its registry cannot be reached: {why}", present_message(&image));
                self.image_ready(&name, &wanted, facts, text);
            }
            (Err(ImageError::InvalidName(why)), _) => {
                let message = format!("Failed to apply default image tag {image:?}: {why}");
                self.image_refused(&name, "InspectFailed", "InvalidImageName", message);
            }
            (Err(error), _) => {
                let text = format!("Failed to pull image {image:?}: {error}");
                self.context.events.warning(&self.pod, Some(&name), "Failed", text);
                let text = "Error: ErrImagePull";
                self.context.events.warning(&self.pod, Some(&name), "Failed", text);
                self.refused(&name, "ErrImagePull", error.to_string());
                self.volumes.refused_images.insert(name, image);
            }
        }
    }

    /// Says that the image is not tried again for a while.
    pub(super) fn back_off_pull(&mut self, name: &str) {
        let image = self.volumes.refused_images.get(name).cloned().unwrap_or_default();
        let text = format!("Back-off pulling image {image:?}");
        let Some(facts) = self.facts.containers.get_mut(name) else { return };
        let State::Waiting { reason, message } = &mut facts.state else { return };
        let cause = message.take().unwrap_or_default();
        *message = Some(format!("{text}: {reason}: {cause}"));
        *reason = "ImagePullBackOff";
        self.context.events.normal(&self.pod, Some(name), "BackOff", text);
        let text = "Error: ImagePullBackOff";
        self.context.events.warning(&self.pod, Some(name), "Failed", text);
    }

    fn image_ready(
        &mut self,
        name: &str,
        wanted: &WantedImage,
        image: ImageFacts,
        message: String,
    ) {
        self.context.events.normal(&self.pod, Some(name), "Pulled", message);
        if let Some(volume) = &wanted.volume {
            // What else the container needs is looked for next.
            self.volumes.images.insert(volume.clone(), image);
            return;
        }
        let facts = self.facts.containers.entry(name.to_owned()).or_default();
        facts.image_id.clone_from(&image.id);
        facts.image = Some(image);
    }

    fn image_refused(
        &mut self,
        name: &str,
        event: &'static str,
        reason: &'static str,
        message: String,
    ) {
        self.context.events.warning(&self.pod, Some(name), event, message.clone());
        let text = format!("Error: {reason}");
        self.context.events.warning(&self.pod, Some(name), "Failed", text);
        self.refused(name, reason, message);
    }
}

//! The images of this node: the built-in ones, and those of the image store, which come from archives
//! and registries.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use roadstead_images::digest::Digest;
use roadstead_images::reference::Reference;
use roadstead_images::registry::credentials::Keyring;
use roadstead_images::registry::error::PullError;
use roadstead_images::registry::hosts::Hosts;
use roadstead_images::registry::pull::Puller;
use roadstead_images::store::{Image, ImageStore};
use roadstead_pod::image::{ImageContent, ImageFacts, ImageUsers, LayeredImage};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};
use tokio::task;
use tracing::warn;

use crate::config::{Config, NodeError, in_full};
use crate::runtime::{ImageError, Images, StoredImage};

/// An image's list of users is not longer.
const LONGEST_FILE: u64 = 1 << 20;

/// Has the built-in images and those of a store.
pub struct StoredImages {
    store: Arc<ImageStore>,
    registries: Hosts,
    /// Names and passwords that count for all pods.
    authfile: Option<PathBuf>,
    /// Made for the first pull: it reads the machine's certificates.
    puller: Arc<OnceLock<Result<Puller, String>>>,
    /// Where containers have links to the layers that they use.
    containers: PathBuf,
}

impl StoredImages {
    /// Opens the store, and makes it if it is not there.
    pub fn open(config: &Config) -> Result<Self, NodeError> {
        let failed = |path: &Path, source| NodeError::State { path: path.to_owned(), source };
        let root = std::path::absolute(&config.image_dir)
            .map_err(|error| failed(&config.image_dir, error))?;
        let store = ImageStore::open(&root)
            .map_err(|error| failed(&root, std::io::Error::other(in_full(&error))))?;
        let registries = match &config.registry_config {
            None => Hosts::default(),
            Some(path) => {
                let text = std::fs::read(path).map_err(|error| failed(path, error))?;
                serde_json::from_slice(&text).map_err(|error| failed(path, error.into()))?
            }
        };
        let containers = config.state_dir.clone();
        let authfile = config.registry_authfile.clone();
        let (store, puller) = (Arc::new(store), Arc::default());
        Ok(Self { store, registries, authfile, puller, containers })
    }
}

impl Images for StoredImages {
    fn find<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<Option<ImageFacts>, ImageError>> {
        if let Some(facts) = ImageFacts::built_in(image) {
            return Box::pin(async { Ok(Some(facts)) });
        }
        let (store, reference) = (self.store.clone(), parse(image));
        Box::pin(async move {
            let reference = reference?;
            let found = task::spawn_blocking(move || {
                let found = store.find(&reference);
                let found = found.map_err(|error| ImageError::Broken(in_full(&error)))?;
                found.map(|image| facts(&reference, image)).transpose()
            });
            found.await.expect("looking for an image does not panic")
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<StoredImage>, ImageError>> {
        let store = self.store.clone();
        let listed = task::spawn_blocking(move || stored(&store));
        Box::pin(async move {
            let listed = listed.await.expect("listing images does not panic");
            listed.map_err(|error| ImageError::Broken(in_full(&error)))
        })
    }

    fn remove<'a>(
        &'a self,
        image: &'a StoredImage,
        used: &'a BTreeSet<String>,
    ) -> BoxFuture<'a, Result<(), ImageError>> {
        let (store, image, containers) =
            (self.store.clone(), image.clone(), self.containers.clone());
        let used = used.iter().filter_map(|digest| digest.parse().ok()).collect();
        let removed = task::spawn_blocking(move || remove(&store, &image, &used, &containers));
        Box::pin(async move {
            removed.await.expect("removing images does not panic").map_err(ImageError::Broken)
        })
    }

    fn pull(
        &self,
        image: String,
        secrets: Vec<Vec<u8>>,
    ) -> BoxFuture<'static, Result<ImageFacts, ImageError>> {
        let (store, registries) = (self.store.clone(), self.registries.clone());
        let (puller, authfile) = (self.puller.clone(), self.authfile.clone());
        Box::pin(async move {
            let reference = parse(&image)?;
            let mut keys = Keyring::default();
            for secret in secrets {
                if let Err(error) = keys.add(&secret) {
                    warn!(image, %error, "an image pull secret cannot be read");
                }
            }
            if let Some(path) = authfile {
                add_keys(&mut keys, &path);
            }
            let puller = puller
                .get_or_init(|| Puller::new(store, registries).map_err(|error| error.in_full()));
            let puller = puller.as_ref().map_err(|why| ImageError::Refused(why.clone()))?;
            let pulled = puller.pull(&reference, &keys).await.map_err(|error| match error {
                PullError::Unavailable(_) => ImageError::Unavailable(error.in_full()),
                other => ImageError::Refused(other.in_full()),
            })?;
            facts(&reference, pulled)
        })
    }
}

/// Adds what a file holds now: it may be written anew at any time, and without it some images come all the
/// same.
fn add_keys(keys: &mut Keyring, path: &Path) {
    let read = std::fs::read(path).map_err(|error| error.to_string());
    let added = read.and_then(|text| keys.add(&text).map_err(|error| error.to_string()));
    if let Err(why) = added {
        warn!(file = %path.display(), why, "names and passwords for registries cannot be read");
    }
}

/// All images that have names.
fn stored(store: &ImageStore) -> Result<Vec<StoredImage>, roadstead_images::error::ImageError> {
    let mut by_digest: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
    for (name, digest) in store.names()? {
        by_digest.entry(digest).or_default().push(name);
    }
    let images = by_digest.into_iter().map(|(digest, tagged)| {
        let repositories: BTreeSet<_> =
            tagged.iter().filter_map(|name| name.rsplit_once(':')).map(|(path, _)| path).collect();
        let pinned = repositories.iter().map(|path| format!("{path}@{digest}"));
        let names = pinned.chain(tagged.iter().cloned()).collect();
        // One that cannot be read has a name all the same.
        let manifest = store.manifest(&digest).ok().map(|(_, manifest)| manifest);
        let blobs = manifest.iter().flat_map(|all| all.layers.iter().chain([&all.config]));
        let (size, loaded) = (blobs.map(|blob| blob.size).sum(), store.is_loaded(&digest));
        StoredImage { digest: digest.to_string(), names, size, loaded }
    });
    Ok(images.collect())
}

/// Takes all names of an image away, and what only it needs.
fn remove(
    store: &ImageStore,
    image: &StoredImage,
    used: &BTreeSet<Digest>,
    containers: &Path,
) -> Result<(), String> {
    for name in image.names.iter().filter(|name| !name.contains('@')) {
        let reference: Reference = name.parse().map_err(|error| format!("{name}: {error}"))?;
        match store.forget(&reference) {
            Err(roadstead_images::error::ImageError::NotFound(_)) => {}
            forgotten => forgotten.map_err(|error| in_full(&error))?,
        }
    }
    store.collect(used, Some(containers)).map(drop).map_err(|error| in_full(&error))
}

fn parse(image: &str) -> Result<Reference, ImageError> {
    let parsed: Result<Reference, _> = image.parse();
    parsed.map_err(|error| {
        // As the kubelet has it.
        let why = error.to_string().replace(&format!(": {image:?}"), "");
        ImageError::InvalidName(format!("couldn't parse image name {image:?}: {why}"))
    })
}

fn facts(reference: &Reference, image: Image) -> Result<ImageFacts, ImageError> {
    let id = format!("{}@{}", reference.repository(), image.digest);
    let (passwd, group) = (read(&image.layers, "etc/passwd"), read(&image.layers, "etc/group"));
    let execution = image.config.config;
    let content = LayeredImage {
        layers: image.layers,
        entrypoint: execution.entrypoint,
        cmd: execution.cmd,
        env: execution.env,
        working_dir: execution.working_dir,
        user: execution.user,
        stop_signal: execution.stop_signal,
        passwd,
        group,
        users: ImageUsers::Listed,
        volumes: execution.volumes.into_keys().collect(),
    };
    Ok(ImageFacts { id, size: image.size, content: ImageContent::Layers(Box::new(content)) })
}

/// Reads a file of an image as its containers would see it; one that is not there is empty.
fn read(layers: &[impl AsRef<Path>], path: &str) -> String {
    let found = layers.iter().rev().find_map(|layer| {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let layer = rustix::fs::open(layer.as_ref(), flags, Mode::empty()).ok()?;
        // Links lead nowhere but to the same layer; who has a list of users elsewhere has none.
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        openat2(&layer, path, flags, Mode::empty(), resolve).ok()
    });
    let Some(file) = found else { return String::new() };
    let is_file = rustix::fs::fstat(&file)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    let mut text = Vec::new();
    if is_file {
        let _ = std::fs::File::from(file).take(LONGEST_FILE).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_the_node_come_after_those_of_pods() {
        let file = std::env::temp_dir().join(format!("roadstead-auth-{}", std::process::id()));
        let entry = |who: &str| {
            format!(r#"{{"auths": {{"a.example": {{"username": "{who}", "password": "x"}}}}}}"#)
        };
        let mut keys = Keyring::default();
        keys.add(entry("pod").as_bytes()).unwrap();
        add_keys(&mut keys, &file);
        std::fs::write(&file, entry("node")).unwrap();
        add_keys(&mut keys, &file);
        std::fs::remove_file(&file).unwrap();
        let reference = "a.example/app".parse().unwrap();
        let who: Vec<_> = keys.find(&reference).iter().map(|key| key.username.clone()).collect();
        assert_eq!(who, ["pod", "node"]);
    }

    #[test]
    fn names_that_are_none() {
        for (image, want) in [
            ("a b", "couldn't parse image name \"a b\": invalid reference format"),
            (
                "nginx/Web",
                "couldn't parse image name \"nginx/Web\": invalid reference format: repository name must be lowercase",
            ),
        ] {
            assert_eq!(parse(image).unwrap_err().to_string(), want);
        }
    }
}

//! The documents that describe an image: index, manifest, configuration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::ImageError;

/// Documents longer than this are none of ours.
pub(crate) const LONGEST_DOCUMENT: u64 = 4 << 20;

/// What OCI calls a manifest of one image.
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// A blob, by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// What it is called.
    pub digest: Digest,
    /// How long it is.
    pub size: u64,
    /// For which machines, in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// What others say of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A kind of machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// In Go's words: `amd64`, `arm64`.
    pub architecture: String,
    /// `linux` for us.
    pub os: String,
    /// A finer kind of architecture, such as `v7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// The machine that this program was built for.
    pub fn own() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { architecture: architecture.to_owned(), os: "linux".to_owned(), variant: None }
    }
}

/// An image: its configuration and its layers, lowest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// What this document is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// How to run it.
    pub config: Descriptor,
    /// What it is made of.
    pub layers: Vec<Descriptor>,
}

impl Manifest {
    /// A manifest for blobs that came without one.
    pub fn new(config: (Digest, u64), layers: impl IntoIterator<Item = (Digest, u64)>) -> Self {
        let descriptor = |media_type: &str, (digest, size)| Descriptor {
            media_type: media_type.to_owned(),
            digest,
            size,
            platform: None,
            annotations: BTreeMap::new(),
        };
        Self {
            schema_version: 2,
            media_type: Some(OCI_MANIFEST.to_owned()),
            config: descriptor(OCI_CONFIG, config),
            layers: layers.into_iter().map(|layer| descriptor(OCI_LAYER, layer)).collect(),
        }
    }
}

/// What stands under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// One image.
    Manifest(Manifest),
    /// The same for several kinds of machines.
    Index(Vec<Descriptor>),
}

/// Reads a manifest or index, of OCI or of Docker.
pub fn parse(bytes: &[u8]) -> Result<Document, ImageError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Outline {
        schema_version: u32,
        media_type: Option<String>,
        manifests: Option<Vec<Descriptor>>,
        layers: Option<serde::de::IgnoredAny>,
    }
    let malformed = |why: String| ImageError::Malformed { what: "manifest".to_owned(), why };
    let outline: Outline =
        serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
    if outline.schema_version != 2 {
        return Err(malformed(format!("schema version {} is not 2", outline.schema_version)));
    }
    match (outline.manifests, outline.layers) {
        (Some(manifests), None) => Ok(Document::Index(manifests)),
        (None, Some(_)) => {
            let manifest: Manifest =
                serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
            for layer in &manifest.layers {
                Compression::of(&layer.media_type)?;
            }
            Ok(Document::Manifest(manifest))
        }
        _ => Err(malformed(format!(
            "it is neither an image nor an index ({})",
            outline.media_type.unwrap_or_default()
        ))),
    }
}

/// What to ask a registry for.
pub fn accepted() -> [&'static str; 4] {
    [
        OCI_INDEX,
        OCI_MANIFEST,
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
}

/// Picks the entry of an index for a machine.
pub fn choose<'a>(index: &'a [Descriptor], own: &Platform) -> Result<&'a Descriptor, ImageError> {
    let fits = |entry: &&Descriptor| {
        let Some(platform) = &entry.platform else { return false };
        platform.os == own.os && platform.architecture == own.architecture
    };
    // Attestations are listed beside images, for machines that nobody has.
    let only = || match index {
        [one] if one.platform.is_none() => Some(one),
        _ => None,
    };
    let missing = || ImageError::Platform(format!("{}/{}", own.os, own.architecture));
    index.iter().find(fits).or_else(only).ok_or_else(missing)
}

/// How a layer is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// A plain archive.
    None,
    /// By gzip.
    Gzip,
    /// By zstd.
    Zstd,
}

impl Compression {
    /// Reads it from a media type. Layers that lie elsewhere are refused.
    pub fn of(media_type: &str) -> Result<Self, ImageError> {
        let refuse = |why: &str| ImageError::Malformed {
            what: format!("layer of type {media_type:?}"),
            why: why.to_owned(),
        };
        if media_type.contains("foreign") || media_type.contains("nondistributable") {
            return Err(refuse("its content is not distributed"));
        }
        let layer = media_type
            .strip_prefix(OCI_LAYER)
            .or_else(|| media_type.strip_prefix("application/vnd.docker.image.rootfs.diff.tar"));
        match layer {
            Some("") => Ok(Self::None),
            Some("+gzip" | ".gzip") => Ok(Self::Gzip),
            Some("+zstd" | ".zstd") => Ok(Self::Zstd),
            _ => Err(refuse("it is no layer")),
        }
    }

    /// Reads it from the first bytes: some tools write the wrong type.
    pub fn guess(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// How an image wants to be run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// For which machine.
    pub architecture: String,
    /// For which system.
    pub os: String,
    /// What to run.
    pub config: Execution,
    /// The layers, unpacked.
    pub rootfs: RootFs,
}

/// What a container of an image runs, unless its pod says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields are those of the image specification")]
pub struct Execution {
    #[serde(deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<String>,
    pub working_dir: String,
    pub user: String,
    pub stop_signal: String,
    #[serde(deserialize_with = "or_default")]
    pub volumes: BTreeMap<String, serde_json::Value>,
}

/// The digests of the unpacked layers, lowest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootFs {
    /// Of each layer by itself.
    #[serde(deserialize_with = "or_default")]
    pub diff_ids: Vec<Digest>,
}

/// Many tools write `null` for nothing.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl ImageConfig {
    /// Reads the configuration of a manifest, which must have as many layers.
    pub fn parse(bytes: &[u8], manifest: &Manifest) -> Result<Self, ImageError> {
        let malformed =
            |why: String| ImageError::Malformed { what: "image configuration".to_owned(), why };
        let config: Self =
            serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
        let (diffs, layers) = (config.rootfs.diff_ids.len(), manifest.layers.len());
        if diffs != layers {
            return Err(malformed(format!("it names {diffs} layers, the manifest {layers}")));
        }
        Ok(config)
    }

    /// What each layer is called together with all below it: two images that begin alike share
    /// these layers.
    pub(crate) fn chain_ids(&self) -> Vec<Digest> {
        let mut chain: Vec<Digest> = Vec::with_capacity(self.rootfs.diff_ids.len());
        for diff in &self.rootfs.diff_ids {
            let next = match chain.last() {
                None => *diff,
                Some(below) => Digest::of(format!("{below} {diff}").as_bytes()),
            };
            chain.push(next);
        }
        chain
    }
}

#[cfg(test)]
mod tests;

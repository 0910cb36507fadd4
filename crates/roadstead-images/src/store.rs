//! The images of this machine, in one directory.
//!
//! ```text
//! images/
//!   lock                     held while anything is changed
//!   incoming                 held, by many at a time, while blobs come that no name needs yet
//!   names.json               name → digest of a manifest
//!   blobs/sha256/<digest>    manifests, configurations, layers as they came
//!   layers/<chain id>/       layers as directories, ready for overlayfs
//!   new/                     what is being made; nothing of it counts, and a start removes it
//! ```
//!
//! A blob or layer is made in `new`, synced and renamed, so what has its name is whole. Names are
//! written last. A power cut leaves an image that is there or one that is not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use tempfile::NamedTempFile;

use crate::digest::{Digest, Hashed, HashedWriter};
use crate::error::{ImageError, OnPath};
use crate::in_use::linked_layers;
use crate::manifest::{
    Compression, Descriptor, Document, ImageConfig, LONGEST_DOCUMENT, Manifest, Platform, choose,
    parse,
};
use crate::reference::Reference;
use crate::unpack::{Limits, Privileges, unpack};

/// The images of this machine.
pub struct ImageStore {
    root: PathBuf,
    privileges: Privileges,
}

/// An image that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The digest of its manifest.
    pub digest: Digest,
    /// How it wants to be run.
    pub config: ImageConfig,
    /// The directories of its layers, lowest first.
    pub layers: Vec<PathBuf>,
    /// The sum of its blobs.
    pub size: u64,
}

/// Held while the store is changed; others wait.
#[must_use]
struct Changing {
    _lock: File,
}

/// Held while blobs come that no name needs yet, by as many as bring some. Nothing is removed
/// meanwhile, not even by another process.
#[must_use]
pub(crate) struct Incoming {
    _lock: File,
}

impl ImageStore {
    /// Opens the store in `root`, and makes it if it is not there.
    pub fn open(root: &Path) -> Result<Self, ImageError> {
        for part in ["blobs/sha256", "layers", "loaded", "new"] {
            let path = root.join(part);
            fs::create_dir_all(&path).on("cannot make", &path)?;
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(root, mode).on("cannot set the mode of", root)?;
        Ok(Self { root: root.to_owned(), privileges: Privileges::own() })
    }

    /// Removes what an earlier process began and did not finish; waits while somebody is at it.
    pub fn tidy(&self) -> Result<(), ImageError> {
        let _alone = self.lock("incoming", FlockOperation::LockExclusive)?;
        let _changing = self.change()?;
        let new = self.root.join("new");
        for entry in fs::read_dir(&new).on("cannot read", &new)? {
            let path = entry.on("cannot read", &new)?.path();
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.on("cannot remove", &path)?;
        }
        Ok(())
    }

    /// Keeps a blob; `expected` is checked before it gets its name.
    pub(crate) fn put_blob(
        &self,
        mut bytes: impl Read,
        expected: Option<(Digest, u64)>,
    ) -> Result<(Digest, u64), ImageError> {
        let new = self.root.join("new");
        let file = NamedTempFile::new_in(&new).on("cannot write to", &new)?;
        let mut writer = HashedWriter::new(file);
        let most = expected.map_or(u64::MAX, |(_, size)| size);
        // One more than there should be, to notice it.
        let mut bounded = bytes.by_ref().take(most.saturating_add(1));
        io::copy(&mut bounded, &mut writer).map_err(|error| ImageError::Stream("a blob", error))?;
        let (file, size, digest) = writer.finish();
        if let Some((wanted, length)) = expected {
            let what = format!("blob {wanted}");
            if size != length {
                return Err(ImageError::Size { what, found: size, expected: length });
            }
            if digest != wanted {
                return Err(ImageError::Digest { what, found: digest, expected: wanted });
            }
        }
        file.as_file().sync_all().on("cannot sync", file.path())?;
        let path = self.blob_path(&digest);
        file.persist(&path).map_err(|error| error.error).on("cannot keep", &path)?;
        sync_directory(&self.root.join("blobs/sha256"))?;
        Ok((digest, size))
    }

    /// Whether a blob is here.
    pub(crate) fn has_blob(&self, digest: &Digest) -> bool {
        self.blob_path(digest).exists()
    }

    /// Opens a blob.
    pub fn blob(&self, digest: &Digest) -> Result<File, ImageError> {
        let path = self.blob_path(digest);
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(ImageError::NotFound(format!("blob {digest}")))
            }
            opened => opened.on("cannot open", &path),
        }
    }

    /// Reads a manifest, index or configuration, and checks that nobody changed it.
    pub fn document(&self, digest: &Digest) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        let mut file = self.blob(digest)?.take(LONGEST_DOCUMENT);
        file.read_to_end(&mut bytes).on("cannot read", &self.blob_path(digest))?;
        match Digest::of(&bytes) {
            found if found == *digest => Ok(bytes),
            found => {
                Err(ImageError::Digest { what: format!("blob {digest}"), found, expected: *digest })
            }
        }
    }

    /// The manifest under a digest; of an index, the entry for this machine.
    pub fn manifest(&self, digest: &Digest) -> Result<(Digest, Manifest), ImageError> {
        match parse(&self.document(digest)?)? {
            Document::Manifest(manifest) => Ok((*digest, manifest)),
            Document::Index(entries) => {
                let chosen = choose(&entries, &Platform::own())?.digest;
                match parse(&self.document(&chosen)?)? {
                    Document::Manifest(manifest) => Ok((chosen, manifest)),
                    Document::Index(_) => Err(ImageError::Malformed {
                        what: "index".to_owned(),
                        why: "it leads to another index".to_owned(),
                    }),
                }
            }
        }
    }

    /// Unpacks the layers of an image whose blobs are all here, and gives it its names.
    pub fn install(&self, digest: &Digest, names: &[Reference]) -> Result<Image, ImageError> {
        let _changing = self.change()?;
        let (digest, manifest) = self.manifest(digest)?;
        let config = ImageConfig::parse(&self.document(&manifest.config.digest)?, &manifest)?;
        let chain = config.chain_ids();
        for ((layer, diff), id) in manifest.layers.iter().zip(&config.rootfs.diff_ids).zip(&chain) {
            if !self.layer_path(id).exists() {
                self.unpack_layer(layer, diff, id)?;
            }
        }
        if !names.is_empty() {
            let mut all = self.names()?;
            all.extend(names.iter().filter_map(Reference::name).map(|name| (name, digest)));
            self.write_names(&all)?;
        }
        Ok(self.image_of(digest, &manifest, config))
    }

    /// The image under a name or digest, if it is here and whole.
    pub fn find(&self, reference: &Reference) -> Result<Option<Image>, ImageError> {
        let digest = match (&reference.digest, reference.name()) {
            (Some(digest), _) if self.has_blob(digest) => *digest,
            (None, Some(name)) => match self.names()?.get(&name) {
                Some(digest) => *digest,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let (digest, manifest) = match self.manifest(&digest) {
            Err(ImageError::NotFound(_)) => return Ok(None),
            found => found?,
        };
        let config = ImageConfig::parse(&self.document(&manifest.config.digest)?, &manifest)?;
        let image = self.image_of(digest, &manifest, config);
        Ok(image.layers.iter().all(|layer| layer.exists()).then_some(image))
    }

    /// All names, and the manifests that they stand for.
    pub fn names(&self) -> Result<BTreeMap<String, Digest>, ImageError> {
        let path = self.root.join("names.json");
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            read => read.on("cannot read", &path)?,
        };
        serde_json::from_slice(&bytes).map_err(|error| ImageError::Malformed {
            what: path.display().to_string(),
            why: error.to_string(),
        })
    }

    /// Marks an image as one that came from a file: no registry brings it back.
    pub(crate) fn mark_loaded(&self, digest: &Digest) -> Result<(), ImageError> {
        let path = self.root.join("loaded").join(digest.hex());
        File::create(&path).on("cannot make", &path).map(drop)
    }

    /// Whether an image came from a file.
    pub fn is_loaded(&self, digest: &Digest) -> bool {
        self.root.join("loaded").join(digest.hex()).exists()
    }

    /// Takes a name away. The image goes with [`ImageStore::collect`], once nobody needs it.
    pub fn forget(&self, reference: &Reference) -> Result<(), ImageError> {
        let _changing = self.change()?;
        let mut names = self.names()?;
        let known = reference.name().and_then(|name| names.remove(&name));
        known.ok_or_else(|| ImageError::NotFound(reference.to_string()))?;
        self.write_names(&names)
    }

    /// Removes every blob and layer that no name and none of `used` needs, and that no container has a
    /// link to, if `containers` is where the node agent keeps them; returns the bytes of the blobs that
    /// went. Waits for those who bring images in, whichever process they are.
    pub fn collect(
        &self,
        used: &BTreeSet<Digest>,
        containers: Option<&Path>,
    ) -> Result<u64, ImageError> {
        let _alone = self.lock("incoming", FlockOperation::LockExclusive)?;
        let _changing = self.change()?;
        let mut blobs = BTreeSet::new();
        let mut layers = containers.map_or(Ok(BTreeSet::new()), linked_layers)?;
        let named = self.names()?;
        for digest in named.values().chain(used) {
            blobs.insert(digest.hex());
            // What cannot be read needs nothing else; its own blob stays for whoever looks.
            let Ok((digest, manifest)) = self.manifest(digest) else { continue };
            blobs.insert(digest.hex());
            blobs.insert(manifest.config.digest.hex());
            blobs.extend(manifest.layers.iter().map(|layer| layer.digest.hex()));
            let document = self.document(&manifest.config.digest);
            if let Ok(config) = document.and_then(|bytes| ImageConfig::parse(&bytes, &manifest)) {
                layers.extend(config.chain_ids().iter().map(Digest::hex));
            }
        }
        let freed = remove_others(&self.root.join("blobs/sha256"), &blobs)?;
        remove_others(&self.root.join("loaded"), &blobs)?;
        remove_others(&self.root.join("layers"), &layers)?;
        Ok(freed)
    }

    fn image_of(&self, digest: Digest, manifest: &Manifest, config: ImageConfig) -> Image {
        let layers = config.chain_ids().iter().map(|id| self.layer_path(id)).collect();
        let size = manifest.layers.iter().chain([&manifest.config]).map(|blob| blob.size).sum();
        Image { digest, config, layers, size }
    }

    fn unpack_layer(
        &self,
        layer: &Descriptor,
        diff: &Digest,
        id: &Digest,
    ) -> Result<(), ImageError> {
        let new = self.root.join("new");
        let directory = tempfile::tempdir_in(&new).on("cannot write to", &new)?;
        let mut plain = Hashed::new(plain(self.blob(&layer.digest)?)?);
        unpack(&mut plain, directory.path(), Limits::default(), self.privileges)?;
        plain.drain().map_err(|error| ImageError::Stream("the layer", error))?;
        let found = plain.hasher.finish();
        if found != *diff {
            let what = format!("layer {}, unpacked,", layer.digest);
            return Err(ImageError::Digest { what, found, expected: *diff });
        }
        // All of it, before it gets its name.
        let open = File::open(directory.path()).on("cannot open", directory.path())?;
        rustix::fs::syncfs(&open).on("cannot sync", directory.path())?;
        let path = self.layer_path(id);
        fs::rename(directory.keep(), &path).on("cannot keep", &path)?;
        sync_directory(&self.root.join("layers"))
    }

    fn write_names(&self, names: &BTreeMap<String, Digest>) -> Result<(), ImageError> {
        let path = self.root.join("names.json");
        let new = self.root.join("new");
        let mut file = NamedTempFile::new_in(&new).on("cannot write to", &new)?;
        serde_json::to_writer_pretty(&mut file, names)
            .map_err(io::Error::from)
            .on("cannot write", &path)?;
        file.as_file().sync_all().on("cannot sync", &path)?;
        file.persist(&path).map_err(|error| error.error).on("cannot keep", &path)?;
        sync_directory(&self.root)
    }

    fn change(&self) -> Result<Changing, ImageError> {
        Ok(Changing { _lock: self.lock("lock", FlockOperation::LockExclusive)? })
    }

    /// Says that blobs will come.
    pub(crate) fn incoming(&self) -> Result<Incoming, ImageError> {
        Ok(Incoming { _lock: self.lock("incoming", FlockOperation::LockShared)? })
    }

    fn lock(&self, name: &str, how: FlockOperation) -> Result<File, ImageError> {
        let path = self.root.join(name);
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.on("cannot open", &path)?;
        rustix::fs::flock(&lock, how).on("cannot lock", &path)?;
        Ok(lock)
    }

    /// How many bytes of blobs there are, those that are on their way included.
    pub fn size(&self) -> u64 {
        let sizes = |part: &str| {
            let entries = fs::read_dir(self.root.join(part)).into_iter().flatten().flatten();
            let files = entries.filter_map(|entry| entry.metadata().ok());
            files.filter(|file| file.is_file()).map(|file| file.len()).sum::<u64>()
        };
        sizes("blobs/sha256") + sizes("new")
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }

    fn layer_path(&self, chain_id: &Digest) -> PathBuf {
        self.root.join("layers").join(chain_id.hex())
    }
}

/// A layer without its compression, whatever its manifest calls it.
fn plain(blob: File) -> Result<Box<dyn Read>, ImageError> {
    let broken = |error| ImageError::Stream("the layer", error);
    let mut blob = BufReader::with_capacity(128 * 1024, blob);
    let start = io::BufRead::fill_buf(&mut blob).map_err(broken)?;
    Ok(match Compression::guess(start) {
        Compression::None => Box::new(blob),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(blob)),
        Compression::Zstd => Box::new(
            ruzstd::decoding::StreamingDecoder::new(blob)
                .map_err(|error| broken(io::Error::other(error.to_string())))?,
        ),
    })
}

fn sync_directory(path: &Path) -> Result<(), ImageError> {
    File::open(path).and_then(|directory| directory.sync_all()).on("cannot sync", path)
}

fn remove_others(directory: &Path, keep: &BTreeSet<String>) -> Result<u64, ImageError> {
    let mut freed = 0;
    for entry in fs::read_dir(directory).on("cannot read", directory)? {
        let entry = entry.on("cannot read", directory)?;
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| name.len() == 64 && !keep.contains(name));
        if !ours {
            continue;
        }
        let path = entry.path();
        let metadata = entry.metadata().on("cannot read", &path)?;
        let removed = match metadata.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.on("cannot remove", &path)?;
        freed += if metadata.is_dir() { 0 } else { metadata.len() };
    }
    Ok(freed)
}

#[cfg(test)]
pub(crate) mod tests;

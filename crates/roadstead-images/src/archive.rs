//! Images in files: OCI layouts (a directory or an archive of one) and what `docker save` writes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use tar::{Archive, Builder, EntryType, Header};

use crate::digest::Digest;
use crate::error::{ImageError, OnPath};
use crate::manifest::{
    Compression, Descriptor, Document, LONGEST_DOCUMENT, Manifest, Platform, choose, parse,
};
use crate::reference::Reference;
use crate::store::{Image, ImageStore};

/// Where containerd and its friends write the whole name.
const WHOLE_NAME: &str = "io.containerd.image.name";
/// Where OCI has the tag, or the whole name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Brings in every image of a file or directory; `name` replaces the names that the file gives.
pub fn load(
    store: &ImageStore,
    path: &Path,
    name: Option<&Reference>,
) -> Result<Vec<(Vec<Reference>, Image)>, ImageError> {
    let _incoming = store.incoming()?;
    if path.is_dir() {
        return load_directory(store, path, name);
    }
    let file = File::open(path).on("cannot open", path)?;
    let scratch = tempfile::tempdir().on("cannot write to", &std::env::temp_dir())?;
    extract(file, scratch.path())?;
    load_directory(store, scratch.path(), name)
}

/// Whether everything that a plain archive of an OCI layout names is here already. Any doubt is a no.
pub fn is_loaded(store: &ImageStore, path: &Path) -> bool {
    let names = store.names().unwrap_or_default();
    let Some(Document::Index(entries)) = index_of(path) else { return false };
    let mut known = entries.iter().map(|entry| {
        let name = names_of(&entry.annotations)?;
        let installed = names.get(&name.name()?) == Some(&entry.digest);
        (installed && matches!(store.find(&name), Ok(Some(_)))).then_some(())
    });
    !entries.is_empty() && known.all(|one| one.is_some())
}

fn index_of(path: &Path) -> Option<Document> {
    let mut archive = Archive::new(File::open(path).ok()?);
    let mut entries = archive.entries_with_seek().ok()?.map_while(Result::ok);
    let index =
        entries.find(|entry| entry.path().is_ok_and(|path| path == Path::new("index.json")))?;
    let mut bytes = Vec::new();
    index.take(LONGEST_DOCUMENT).read_to_end(&mut bytes).ok()?;
    parse(&bytes).ok()
}

fn load_directory(
    store: &ImageStore,
    directory: &Path,
    name: Option<&Reference>,
) -> Result<Vec<(Vec<Reference>, Image)>, ImageError> {
    let found = match (directory.join("index.json"), directory.join("manifest.json")) {
        (index, _) if index.exists() => from_layout(store, directory, &index)?,
        (_, list) if list.exists() => from_docker(store, directory, &list)?,
        _ => {
            return Err(ImageError::Malformed {
                what: directory.display().to_string(),
                why: "it has neither index.json (an OCI layout) nor manifest.json (docker save)"
                    .to_owned(),
            });
        }
    };
    let mut installed = Vec::new();
    for (digest, names) in found {
        let names = name.map_or(names, |name| vec![name.clone()]);
        let image = store.install(&digest, &names)?;
        store.mark_loaded(&digest)?;
        installed.push((names, image));
    }
    Ok(installed)
}

/// Copies the regular files of an archive, under names that stay inside, and nothing else.
fn extract(file: File, to: &Path) -> Result<(), ImageError> {
    let broken = |error| ImageError::Stream("the archive", error);
    let mut file = BufReader::with_capacity(128 * 1024, file);
    let start = io::BufRead::fill_buf(&mut file).map_err(broken)?;
    let plain: Box<dyn Read> = match Compression::guess(start) {
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    let mut links = Vec::new();
    for entry in Archive::new(plain).entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = entry.path().map_err(broken)?.into_owned();
        let target = to.join(inside(&name)?);
        match entry.header().entry_type() {
            EntryType::Regular => {
                make_parent(&target)?;
                let mut file = File::create_new(&target).on("cannot make", &target)?;
                io::copy(&mut entry, &mut file).on("cannot write", &target)?;
            }
            // `docker save` links layers that several images share.
            EntryType::Symlink | EntryType::Link => {
                let Some(link) = entry.link_name().map_err(broken)? else { continue };
                links.push((name, link.into_owned()));
            }
            _ => {}
        }
    }
    for (name, link) in links {
        let base = name.parent().unwrap_or(Path::new(""));
        let (Ok(from), target) = (inside(&flat(&base.join(link))), to.join(inside(&name)?)) else {
            continue;
        };
        if to.join(&from).is_file() && !target.exists() {
            make_parent(&target)?;
            fs::hard_link(to.join(from), &target).on("cannot link", &target)?;
        }
    }
    Ok(())
}

fn make_parent(path: &Path) -> Result<(), ImageError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).on("cannot make", parent)
}

/// Takes `a/../b` together, as far as it stays inside.
fn flat(path: &Path) -> PathBuf {
    let mut flat = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if flat.file_name().is_some() => drop(flat.pop()),
            other => flat.push(other),
        }
    }
    flat
}

fn inside(path: &Path) -> Result<PathBuf, ImageError> {
    let plain = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !path.components().all(|part| plain(&part)) {
        let name = path.display().to_string();
        return Err(ImageError::Entry { name, why: "its name leads out of the archive" });
    }
    Ok(path.components().filter(|part| *part != Component::CurDir).collect())
}

type Found = Vec<(Digest, Vec<Reference>)>;

fn from_layout(store: &ImageStore, directory: &Path, index: &Path) -> Result<Found, ImageError> {
    let Document::Index(entries) = parse(&read_document(index)?)? else {
        return Err(ImageError::Malformed {
            what: "index.json".to_owned(),
            why: "it is no index".to_owned(),
        });
    };
    let mut found: BTreeMap<Digest, Vec<Reference>> = BTreeMap::new();
    for entry in &entries {
        let names = found.entry(entry.digest).or_default();
        names.extend(names_of(&entry.annotations));
        bring_in(store, directory, entry)?;
    }
    Ok(found.into_iter().collect())
}

fn names_of(annotations: &BTreeMap<String, String>) -> Option<Reference> {
    let whole = annotations.get(WHOLE_NAME);
    // A mere tag names nothing.
    let short = annotations.get(REF_NAME).filter(|name| name.contains([':', '/']));
    whole.or(short)?.parse().ok()
}

/// Copies a blob and what it leads to. Of an index, only the image for this machine.
fn bring_in(store: &ImageStore, directory: &Path, entry: &Descriptor) -> Result<(), ImageError> {
    let path = directory.join("blobs/sha256").join(entry.digest.hex());
    if !store.has_blob(&entry.digest) {
        let file = File::open(&path).on("cannot open", &path)?;
        store.put_blob(file, Some((entry.digest, entry.size)))?;
    }
    if !entry.media_type.ends_with("json") || entry.media_type.contains("config") {
        return Ok(());
    }
    match parse(&store.document(&entry.digest)?)? {
        Document::Index(entries) => bring_in(store, directory, choose(&entries, &Platform::own())?),
        Document::Manifest(manifest) => {
            let blobs = manifest.layers.iter().chain([&manifest.config]);
            blobs.into_iter().try_for_each(|blob| bring_in(store, directory, blob))
        }
    }
}

/// One image of `docker save`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

fn from_docker(store: &ImageStore, directory: &Path, list: &Path) -> Result<Found, ImageError> {
    let malformed = |why: String| ImageError::Malformed { what: "manifest.json".to_owned(), why };
    let images: Vec<Saved> = serde_json::from_slice(&read_document(list)?)
        .map_err(|error| malformed(error.to_string()))?;
    let mut found = Vec::new();
    for image in images {
        let blob = |name: &String| {
            let path = directory.join(inside(Path::new(name))?);
            store.put_blob(File::open(&path).on("cannot open", &path)?, None)
        };
        let config = blob(&image.config)?;
        let layers = image.layers.iter().map(blob).collect::<Result<Vec<_>, _>>()?;
        let manifest = serde_json::to_vec(&Manifest::new(config, layers))
            .map_err(|error| malformed(error.to_string()))?;
        let (digest, _) = store.put_blob(manifest.as_slice(), None)?;
        let tags = image.repo_tags.unwrap_or_default();
        let names = tags.iter().map(|tag| tag.parse()).collect::<Result<_, _>>()?;
        found.push((digest, names));
    }
    Ok(found)
}

fn read_document(path: &Path) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::new();
    let file = File::open(path).on("cannot open", path)?;
    file.take(LONGEST_DOCUMENT).read_to_end(&mut bytes).on("cannot read", path)?;
    Ok(bytes)
}

/// Writes an image as an archive that every tool reads: an OCI layout with Docker's list beside it.
pub fn save(store: &ImageStore, reference: &Reference, to: impl Write) -> Result<(), ImageError> {
    let image = store.find(reference)?;
    let image = image.ok_or_else(|| ImageError::NotFound(reference.to_string()))?;
    let (digest, manifest) = store.manifest(&image.digest)?;
    let document = store.document(&digest)?;
    let name = reference.name();
    let annotations = name.iter().flat_map(|name| {
        let tag = reference.tag.clone().unwrap_or_default();
        [(WHOLE_NAME.to_owned(), name.clone()), (REF_NAME.to_owned(), tag)]
    });
    let entry = Descriptor {
        media_type: manifest
            .media_type
            .clone()
            .unwrap_or_else(|| crate::manifest::OCI_MANIFEST.to_owned()),
        digest,
        size: document.len() as u64,
        platform: Some(Platform::own()),
        annotations: annotations.collect(),
    };
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [entry]});
    let blob = |digest: &Digest| format!("blobs/sha256/{}", digest.hex());
    let saved = [Saved {
        config: blob(&manifest.config.digest),
        repo_tags: Some(name.into_iter().collect()),
        layers: manifest.layers.iter().map(|layer| blob(&layer.digest)).collect(),
    }];
    let broken = |error| ImageError::Stream("the archive", error);
    let mut archive = Builder::new(to);
    let json = |value| serde_json::to_vec(&value).map_err(|error| broken(error.into()));
    let texts = [
        ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        ("index.json", json(index)?),
        ("manifest.json", serde_json::to_vec(&saved).map_err(|error| broken(error.into()))?),
    ];
    for (name, bytes) in texts {
        append(&mut archive, name, bytes.len() as u64, bytes.as_slice()).map_err(broken)?;
    }
    let mut written = std::collections::BTreeSet::new();
    for part in [&entry, &manifest.config].into_iter().chain(&manifest.layers) {
        if written.insert(part.digest) {
            let file = store.blob(&part.digest)?;
            append(&mut archive, &blob(&part.digest), part.size, file).map_err(broken)?;
        }
    }
    archive.into_inner().and_then(|mut to| to.flush()).map_err(broken)
}

fn append(
    archive: &mut Builder<impl Write>,
    name: &str,
    size: u64,
    bytes: impl Read,
) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(size);
    archive.append_data(&mut header, name, bytes)
}

#[cfg(test)]
mod tests;

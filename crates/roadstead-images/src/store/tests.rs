use std::io::Write;

use flate2::Compression as Level;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use super::*;

/// A layer with one file.
pub(crate) fn layer(name: &str, content: &str) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    builder.append_data(&mut header, name, content.as_bytes()).unwrap();
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Puts an image of these layers into the store; returns the digest of its manifest.
pub(crate) fn put_image(store: &ImageStore, layers: &[Vec<u8>]) -> Digest {
    let diffs: Vec<_> = layers.iter().map(|layer| Digest::of(layer)).collect();
    put_with(store, layers, &diffs)
}

fn put_with(store: &ImageStore, layers: &[Vec<u8>], diffs: &[Digest]) -> Digest {
    let config = serde_json::json!({
        "architecture": Platform::own().architecture, "os": "linux",
        "config": {"Cmd": ["/bin/sh"]}, "rootfs": {"type": "layers", "diff_ids": diffs},
    });
    let config = store.put_blob(config.to_string().as_bytes(), None).unwrap();
    let layers = layers.iter().map(|layer| store.put_blob(gzip(layer).as_slice(), None).unwrap());
    let manifest = Manifest::new(config, layers);
    let bytes = serde_json::to_vec(&manifest).unwrap();
    store.put_blob(bytes.as_slice(), None).unwrap().0
}

pub(crate) fn reference(name: &str) -> Reference {
    name.parse().unwrap()
}

fn store() -> (tempfile::TempDir, ImageStore) {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path()).unwrap();
    (place, store)
}

#[test]
fn an_image_comes_and_goes() {
    let (place, store) = store();
    let digest = put_image(&store, &[layer("base", "1"), layer("top", "2")]);
    let nginx = reference("nginx:1.19");
    let image = store.install(&digest, std::slice::from_ref(&nginx)).unwrap();
    assert_eq!(store.find(&nginx).unwrap(), Some(image.clone()));
    assert_eq!(store.find(&reference("nginx")).unwrap(), None);
    let by_digest = reference(&format!("nginx@{digest}"));
    assert_eq!(store.find(&by_digest).unwrap(), Some(image.clone()));
    assert_eq!(fs::read_to_string(image.layers[0].join("base")).unwrap(), "1");
    assert_eq!(fs::read_to_string(image.layers[1].join("top")).unwrap(), "2");
    assert_eq!(image.config.config.cmd, ["/bin/sh"]);

    store.forget(&nginx).unwrap();
    assert!(store.forget(&nginx).is_err());
    assert_eq!(store.collect(&[digest].into(), None).unwrap(), 0, "somebody still uses it");
    let node = place.path().join("node");
    let links = node.join("pods/uid/containers/web/layers");
    fs::create_dir_all(&links).unwrap();
    std::os::unix::fs::symlink(&image.layers[1], links.join("0")).unwrap();
    assert!(store.collect(&BTreeSet::new(), Some(&node)).unwrap() > 0);
    assert!(!image.layers[0].exists() && image.layers[1].exists(), "a container has a link to it");
    fs::remove_dir_all(&node).unwrap();
    store.collect(&BTreeSet::new(), Some(&node)).unwrap();
    assert_eq!(fs::read_dir(place.path().join("layers")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(place.path().join("blobs/sha256")).unwrap().count(), 0);
}

#[test]
fn images_share_the_layers_they_begin_with() {
    let (place, store) = store();
    let first = put_image(&store, &[layer("base", "1"), layer("top", "2")]);
    let second = put_image(&store, &[layer("base", "1"), layer("top", "3")]);
    store.install(&first, &[reference("one")]).unwrap();
    store.install(&second, &[reference("two")]).unwrap();
    let layers = || fs::read_dir(place.path().join("layers")).unwrap().count();
    assert_eq!(layers(), 3);
    store.forget(&reference("one")).unwrap();
    store.collect(&BTreeSet::new(), None).unwrap();
    assert_eq!(layers(), 2);
    assert!(store.find(&reference("two")).unwrap().is_some());
}

#[test]
fn what_is_not_what_it_says_is_refused() {
    let (place, store) = store();
    let wrong = Digest::of(b"other");
    let error = store.put_blob(b"bytes".as_slice(), Some((wrong, 5))).unwrap_err().to_string();
    assert!(error.contains("has digest sha256:") && error.contains("not sha256:"), "{error}");
    let error = store.put_blob(b"bytes".as_slice(), Some((Digest::of(b"bytes"), 4)));
    assert!(error.unwrap_err().to_string().contains("has 5 bytes, not 4"));
    let digest = put_with(&store, &[layer("a", "1")], &[wrong]);
    let error = store.install(&digest, &[reference("bad")]).unwrap_err().to_string();
    assert!(error.contains("unpacked, has digest"), "{error}");
    assert_eq!(store.find(&reference("bad")).unwrap(), None);
    let left = |part: &str| fs::read_dir(place.path().join(part)).unwrap().count();
    assert_eq!((left("new"), left("layers")), (0, 0), "nothing half done stays");
}

#[test]
fn a_damaged_document_is_noticed() {
    let (place, store) = store();
    let digest = put_image(&store, &[layer("a", "1")]);
    store.install(&digest, &[reference("x")]).unwrap();
    let path = place.path().join("blobs/sha256").join(digest.hex());
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(store.find(&reference("x")), Err(ImageError::Digest { .. })));
}

#[test]
fn a_start_removes_what_was_begun() {
    let (place, store) = store();
    fs::create_dir_all(place.path().join("new/half/a/layer")).unwrap();
    fs::write(place.path().join("new/blob"), "half").unwrap();
    store.tidy().unwrap();
    assert_eq!(fs::read_dir(place.path().join("new")).unwrap().count(), 0);
}

#[test]
fn layers_by_zstd() {
    let (_place, store) = store();
    let plain = layer("a", "by zstd");
    // One raw block: a frame that any encoder could have written.
    let mut packed = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    packed.extend((plain.len() as u32).to_le_bytes());
    packed.extend(&(((plain.len() as u32) << 3) | 1).to_le_bytes()[..3]);
    packed.extend(&plain);
    let config = serde_json::json!({
        "architecture": Platform::own().architecture, "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&plain)]},
    });
    let config = store.put_blob(config.to_string().as_bytes(), None).unwrap();
    let blob = store.put_blob(packed.as_slice(), None).unwrap();
    let bytes = serde_json::to_vec(&Manifest::new(config, [blob])).unwrap();
    let (digest, _) = store.put_blob(bytes.as_slice(), None).unwrap();
    let image = store.install(&digest, &[]).unwrap();
    assert_eq!(fs::read_to_string(image.layers[0].join("a")).unwrap(), "by zstd");
}

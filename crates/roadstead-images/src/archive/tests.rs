use super::*;
use crate::store::tests::{layer, put_image, reference};

fn archive_of(files: &[(&str, &[u8])]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut builder = Builder::new(file.as_file());
    for (name, bytes) in files {
        append(&mut builder, name, bytes.len() as u64, *bytes).unwrap();
    }
    builder.into_inner().unwrap();
    file
}

fn store() -> (tempfile::TempDir, ImageStore) {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path()).unwrap();
    (place, store)
}

#[test]
fn what_is_saved_can_be_loaded_elsewhere() {
    let (_here, store) = self::store();
    let digest = put_image(&store, &[layer("etc/motd", "hello"), layer("etc/motd", "bye")]);
    let name = reference("example.com/greeting:v1");
    let image = store.install(&digest, std::slice::from_ref(&name)).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    save(&store, &name, &mut file).unwrap();

    let (_there, other) = self::store();
    let loaded = load(&other, file.path(), None).unwrap();
    assert_eq!(loaded.len(), 1);
    assert_eq!(loaded[0].0, std::slice::from_ref(&name));
    let found = other.find(&name).unwrap().unwrap();
    assert_eq!((found.digest, found.config), (image.digest, image.config));
    assert_eq!(fs::read_to_string(found.layers[1].join("etc/motd")).unwrap(), "bye");

    let renamed = reference("mine");
    load(&other, file.path(), Some(&renamed)).unwrap();
    assert!(other.find(&renamed).unwrap().is_some());
}

#[test]
fn an_unpacked_layout() {
    let (_here, store) = self::store();
    let digest = put_image(&store, &[layer("a", "1")]);
    let name = reference("x:1");
    store.install(&digest, std::slice::from_ref(&name)).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    save(&store, &name, &mut file).unwrap();
    let directory = tempfile::tempdir().unwrap();
    extract(File::open(file.path()).unwrap(), directory.path()).unwrap();
    let (_there, other) = self::store();
    assert_eq!(load(&other, directory.path(), None).unwrap().len(), 1);
}

#[test]
fn what_docker_saves() {
    let one = layer("a", "1");
    let config = serde_json::json!({
        "architecture": Platform::own().architecture, "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&one)]},
    })
    .to_string();
    let list = r#"[{"Config":"c.json","RepoTags":["nginx:1.19","nginx:latest"],"Layers":["1/layer.tar"]}]"#;
    let file = archive_of(&[
        ("c.json", config.as_bytes()),
        ("1/layer.tar", &one),
        ("manifest.json", list.as_bytes()),
    ]);
    let (_place, store) = self::store();
    let loaded = load(&store, file.path(), None).unwrap();
    assert_eq!(loaded[0].0.len(), 2);
    for name in ["nginx", "nginx:1.19"] {
        assert!(store.find(&reference(name)).unwrap().is_some(), "{name}");
    }
}

#[test]
fn archives_that_are_none() {
    let outside = r#"[{"Config":"../../etc/passwd","RepoTags":["x"],"Layers":[]}]"#;
    let cases = [
        ("nothing in it", archive_of(&[("readme", b"hello")]), "neither index.json"),
        ("a name that leads out", archive_of(&[("manifest.json", outside.as_bytes())]), "leads out"),
        ("no JSON", archive_of(&[("manifest.json", b"[")]), "cannot be read"),
        ("a missing blob", archive_of(&[(
            "index.json",
            br#"{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":3,
            "digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}]}"#,
        )]), "cannot open"),
    ];
    for (name, file, want) in cases {
        let (_place, store) = self::store();
        let error = load(&store, file.path(), None).unwrap_err().to_string();
        assert!(error.contains(want), "{name}: {error}");
        assert!(store.names().unwrap().is_empty(), "{name}");
    }
}

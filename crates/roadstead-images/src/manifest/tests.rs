use super::*;

fn digest(of: &str) -> Digest {
    Digest::of(of.as_bytes())
}

fn entry(platform: Option<(&str, &str)>, name: &str) -> Descriptor {
    let platform = platform.map(|(os, architecture)| Platform {
        os: os.to_owned(),
        architecture: architecture.to_owned(),
        variant: None,
    });
    let media_type = OCI_MANIFEST.to_owned();
    Descriptor { media_type, digest: digest(name), size: 1, platform, annotations: BTreeMap::new() }
}

#[test]
fn an_index_has_something_for_this_machine_or_says_so() {
    let own = Platform { architecture: "amd64".into(), os: "linux".into(), variant: None };
    let cases = [
        (
            "ours among others",
            vec![entry(Some(("linux", "arm64")), "a"), entry(Some(("linux", "amd64")), "b")],
            Some("b"),
        ),
        (
            "the first of two",
            vec![entry(Some(("linux", "amd64")), "a"), entry(Some(("linux", "amd64")), "b")],
            Some("a"),
        ),
        ("the only one, for nobody in particular", vec![entry(None, "a")], Some("a")),
        (
            "an attestation beside ours",
            vec![entry(Some(("unknown", "unknown")), "x"), entry(Some(("linux", "amd64")), "b")],
            Some("b"),
        ),
        ("another system", vec![entry(Some(("windows", "amd64")), "a")], None),
        ("nothing", vec![], None),
    ];
    for (name, index, want) in cases {
        let chosen = choose(&index, &own).ok().map(|entry| entry.digest);
        assert_eq!(chosen, want.map(digest), "{name}");
    }
    let error = choose(&[], &own).unwrap_err().to_string();
    assert_eq!(error, "no matching manifest for linux/amd64 in the manifest list entries");
}

#[test]
fn documents() {
    let manifest = Manifest::new((digest("config"), 3), [(digest("layer"), 7)]);
    let bytes = serde_json::to_vec(&manifest).unwrap();
    assert_eq!(parse(&bytes).unwrap(), Document::Manifest(manifest));
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"{OCI_MANIFEST}","digest":"{}","size":5,"platform":{{"os":"linux","architecture":"amd64"}}}}]}}"#,
        digest("m")
    );
    assert!(
        matches!(parse(index.as_bytes()).unwrap(), Document::Index(entries) if entries.len() == 1)
    );
    let cases = [
        ("no JSON", "{".to_owned()),
        ("the first schema", r#"{"schemaVersion":1,"fsLayers":[]}"#.to_owned()),
        ("neither", r#"{"schemaVersion":2}"#.to_owned()),
        ("both", r#"{"schemaVersion":2,"manifests":[],"layers":[]}"#.to_owned()),
        (
            "a foreign layer",
            String::from_utf8(bytes.clone()).unwrap().replace(
                "application/vnd.oci.image.layer.v1.tar",
                "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
            ),
        ),
    ];
    for (name, text) in cases {
        assert!(parse(text.as_bytes()).is_err(), "{name}");
    }
}

#[test]
fn packed_by() {
    let cases = [
        ("application/vnd.oci.image.layer.v1.tar", Some(Compression::None)),
        ("application/vnd.oci.image.layer.v1.tar+gzip", Some(Compression::Gzip)),
        ("application/vnd.oci.image.layer.v1.tar+zstd", Some(Compression::Zstd)),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", Some(Compression::Gzip)),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", None),
        ("application/vnd.in-toto+json", None),
    ];
    for (media_type, want) in cases {
        assert_eq!(Compression::of(media_type).ok(), want, "{media_type}");
    }
}

#[test]
fn configurations() {
    let manifest = Manifest::new((digest("c"), 1), [(digest("a"), 1), (digest("b"), 1)]);
    let text = format!(
        r#"{{"architecture":"amd64","os":"linux","config":{{"Cmd":["sh"],"Entrypoint":null,"Env":["A=b"],"ExposedPorts":{{"80/tcp":{{}}}}}},
        "rootfs":{{"type":"layers","diff_ids":["{}","{}"]}},"history":[]}}"#,
        digest("1"),
        digest("2")
    );
    let config = ImageConfig::parse(text.as_bytes(), &manifest).unwrap();
    assert_eq!((config.config.cmd, config.config.entrypoint.len()), (vec!["sh".to_owned()], 0));
    let config = ImageConfig::parse(text.as_bytes(), &manifest).unwrap();
    let second = Digest::of(format!("{} {}", digest("1"), digest("2")).as_bytes());
    assert_eq!(config.chain_ids(), [digest("1"), second]);
    let fewer = Manifest::new((digest("c"), 1), [(digest("a"), 1)]);
    let error = ImageConfig::parse(text.as_bytes(), &fewer).unwrap_err().to_string();
    assert!(error.contains("names 2 layers, the manifest 1"), "{error}");
}

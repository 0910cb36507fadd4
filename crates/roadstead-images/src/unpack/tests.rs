use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use proptest::prelude::*;
use tar::{Builder, Header};

use super::*;

/// A layer in words, an entry each: `d usr`, `f usr/a=text`, `l b->usr/a` (symbolic), `h c->usr/a`
/// (hard), `c dev/null`, `p pipe`.
fn layer(words: &str) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for line in words.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (kind, rest) = line.split_at(1);
        let rest = rest.trim();
        let (name, other) = match kind {
            "f" => rest.split_once('=').unwrap_or((rest, "")),
            "l" | "h" => rest.split_once("->").expect("a link has a target"),
            _ => (rest, ""),
        };
        let (kind, content, mode) = match kind {
            "d" => (EntryType::Directory, "", 0o755),
            "f" => (EntryType::Regular, other, 0o4755),
            "l" => (EntryType::Symlink, "", 0o777),
            "h" => (EntryType::Link, "", 0o777),
            "c" => (EntryType::Char, "", 0o666),
            _ => (EntryType::Fifo, "", 0o600),
        };
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_000_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        // As a hostile tool would write it, without checks.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        if matches!(kind, EntryType::Symlink | EntryType::Link) {
            header.as_mut_bytes()[157..157 + other.len()].copy_from_slice(other.as_bytes());
        }
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn unpacked(words: &str) -> (tempfile::TempDir, Result<Unpacked, ImageError>) {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("root")).unwrap();
    fs::write(place.path().join("outside"), "untouched").unwrap();
    let archive = layer(words);
    let root = place.path().join("root");
    let result = unpack(archive.as_slice(), &root, Limits::default(), Privileges::own());
    (place, result)
}

#[test]
fn what_a_layer_is_made_of() {
    let (place, result) = unpacked(
        "d usr
         d usr/bin
         f usr/bin/tool=#!/bin/sh
         l bin->usr/bin
         f bin/second=by way of a link
         h usr/again->usr/bin/tool
         f no/parent/was/named=x
         p usr/pipe
         c dev/null",
    );
    let done = result.unwrap();
    assert_eq!((done.entries, done.devices), (9, 1));
    let root = place.path().join("root");
    let tool = fs::metadata(root.join("usr/bin/tool")).unwrap();
    assert_eq!(tool.permissions().mode() & 0o7777, 0o4755, "setuid survives the owner");
    assert_eq!((tool.mtime(), tool.nlink()), (1_000_000_000, 2));
    assert_eq!(fs::read_link(root.join("bin")).unwrap(), Path::new("usr/bin"));
    assert_eq!(fs::read_to_string(root.join("usr/bin/second")).unwrap(), "by way of a link");
    assert_eq!(fs::read_to_string(root.join("no/parent/was/named")).unwrap(), "x");
    assert!(fs::metadata(root.join("usr/pipe")).unwrap().file_type().is_fifo());
    assert!(!root.join("dev/null").exists());
    assert_eq!(fs::metadata(root.join("usr")).unwrap().mtime(), 1_000_000_000);
}

#[test]
fn removals_become_what_overlayfs_understands() {
    let (place, result) =
        unpacked("d etc\nf etc/.wh.passwd=\nd var\nf var/.wh..wh..opq=\nf .wh..wh.plnk=");
    result.unwrap();
    let root = place.path().join("root");
    let passwd = fs::symlink_metadata(root.join("etc/passwd")).unwrap();
    assert!(passwd.file_type().is_char_device());
    assert_eq!(passwd.rdev(), 0);
    let mut value = [0; 8];
    let length =
        rustix::fs::getxattr(root.join("var"), Privileges::own().opaque, &mut value).unwrap();
    assert_eq!(&value[..length], b"y");
    assert_eq!(fs::read_dir(&root).unwrap().count(), 2);
}

#[test]
fn the_last_of_equal_names_counts() {
    let (place, result) =
        unpacked("d a\nf a/b=1\nf a=now a file\nd c\nf c/d=kept\nd c\nf e=1\nd e");
    result.unwrap();
    let root = place.path().join("root");
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "now a file");
    assert_eq!(fs::read_to_string(root.join("c/d")).unwrap(), "kept");
    assert!(root.join("e").is_dir());
}

#[test]
fn hostile_layers_change_nothing_outside() {
    let cases = [
        ("a name that goes up", "f ../outside=owned", false),
        ("in the middle", "f a/../../outside=owned", false),
        ("an absolute name stays inside", "f /outside=inside", true),
        ("through a link that goes up", "l up->..\nf up/outside=owned", true),
        ("through an absolute link", "l up->/\nf up/outside=inside", true),
        ("over a link", "l outside->../outside\nf outside=owned", true),
        ("a hard link that goes up", "h mine->../outside", false),
        ("a hard link through a link", "l up->..\nh mine->up/outside", false),
        ("a hard link to itself", "f a=1\nh a->a", false),
        (
            "through a link that leads nowhere",
            "l self->/proc/self/cwd\nf self/outside=owned",
            false,
        ),
        ("a removal of what is above", "f .wh...=", false),
        ("a removal of nothing", "f .wh.=", false),
        ("a file as root", "f .=x", false),
        ("a device", "c outside", true),
        ("a device through a link", "l up->..\nc up/outside", true),
        ("a hard link to an absolute name", "h mine->/outside", false),
        ("a directory over a link that goes up", "l up->..\nd up\nf up/outside=inside", true),
    ];
    for (name, words, works) in cases {
        let (place, result) = unpacked(words);
        assert_eq!(result.is_ok(), works, "{name}: {result:?}");
        assert_eq!(
            fs::read_to_string(place.path().join("outside")).unwrap(),
            "untouched",
            "{name}"
        );
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2, "{name}");
    }
}

#[test]
fn limits() {
    let place = tempfile::tempdir().unwrap();
    let archive = layer("f a=1\nf b=2\nf c=3");
    let limits = Limits { entries: 2, ..Limits::default() };
    let error = unpack(archive.as_slice(), place.path(), limits, Privileges::own()).unwrap_err();
    assert_eq!(error.to_string(), "layer entry \"c\" is refused: the layer has too many entries");
    let limits = Limits { bytes: 1000, ..Limits::default() };
    assert!(unpack(archive.as_slice(), place.path(), limits, Privileges::own()).is_err());
}

/// A file of eight gigabytes that is one hole takes half a kilobyte in the archive.
#[test]
fn holes_count() {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path("huge").unwrap();
    header.set_mode(0o644);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.realsize = *b"77777777777\0";
    gnu.sparse[0].offset = *b"77777777777\0";
    gnu.sparse[0].numbytes = *b"00000000000\0";
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, &[][..]).unwrap();
    let archive = builder.into_inner().unwrap();
    let place = tempfile::tempdir().unwrap();
    let limits = Limits { bytes: 1 << 20, ..Limits::default() };
    let error = unpack(archive.as_slice(), place.path(), limits, Privileges::own()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "layer entry \"huge\" is refused: the layer is larger than a layer may be"
    );
    let written = fs::metadata(place.path().join("huge")).unwrap().len();
    assert!(written <= limits.bytes + 1, "{written}");
}

/// What is said about an entry is read into memory before anything can be decided.
#[test]
fn descriptions_are_bounded() {
    for kind in [EntryType::XHeader, EntryType::GNULongName, EntryType::GNULongLink] {
        let described = |length: usize| {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(length as u64);
            header.set_cksum();
            let mut builder = Builder::new(Vec::new());
            builder.append(&header, vec![b'a'; length].as_slice()).unwrap();
            builder.into_inner().unwrap()
        };
        let place = tempfile::tempdir().unwrap();
        let archive = described(2 << 20);
        let result = unpack(archive.as_slice(), place.path(), Limits::default(), Privileges::own());
        let Err(ImageError::Stream(_, source)) = result else { panic!("{kind:?}: {result:?}") };
        let mut causes = source.to_string();
        let mut next = std::error::Error::source(&source);
        while let Some(cause) = next {
            causes.push_str(&cause.to_string());
            next = cause.source();
        }
        assert!(causes.contains("described at too great a length"), "{kind:?}: {causes}");
    }
}

proptest! {
    #[test]
    fn damaged_layers_end_in_an_error_or_inside(at in 0usize..4096, to in any::<u8>()) {
        let mut archive = layer("d usr\nf usr/a=text\nl b->usr/a\nh c->usr/a\nf usr/.wh.x=");
        if at < archive.len() {
            archive[at] = to;
        }
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        fs::create_dir(&root).unwrap();
        let _ = unpack(archive.as_slice(), &root, Limits::default(), Privileges::own());
        prop_assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}

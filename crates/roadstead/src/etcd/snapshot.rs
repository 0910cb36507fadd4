//! All of etcd in a file, as etcd itself keeps it. The SHA-256 that a member sends at the end is compared
//! with what has come, and kept at the end of the file, where `etcdutl snapshot restore` looks for it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use aws_lc_rs::digest::{self, SHA256, SHA256_OUTPUT_LEN};
use bytes::{Bytes, BytesMut};
use roadstead_etcd::client::Client;
use roadstead_etcd::maintenance::MemberSnapshot;

use super::members;

pub(super) async fn run(client: &Client, path: &Path) -> anyhow::Result<()> {
    if path.exists() {
        bail!("{} is there already", path.display());
    }
    let (members, _) = members(client).await?;
    // The member that is asked has work to do: one that does not lead has less of it.
    let asked = members.iter().find(|one| !one.is_leader()).unwrap_or(&members[0]);
    let begin = Instant::now();
    let from = &asked.url;
    let snapshot = client.snapshot(asked.at).await;
    let snapshot = snapshot.with_context(|| format!("{from} sends no snapshot"))?;
    let part = part_of(path);
    let written = write(&part, snapshot).await;
    let bytes = match written {
        Ok(bytes) => bytes,
        Err(error) => {
            // It is ours, and worth nothing.
            let _ = fs::remove_file(&part);
            return Err(error.context(format!("the snapshot of {from} was not saved")));
        }
    };
    settle(&part, path)?;
    let (file, took) = (path.display(), begin.elapsed());
    eprintln!("saved {bytes} bytes of {from} to {file} in {took:.1?}; its SHA-256 is right");
    Ok(())
}

/// Where it is until it is whole.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    path.with_file_name(name)
}

async fn write(part: &Path, mut snapshot: MemberSnapshot) -> anyhow::Result<usize> {
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(part);
    let mut file = file.with_context(|| format!("cannot create {}", part.display()))?;
    let mut check = Check::default();
    let mut bytes = 0;
    while let Some((piece, _)) = snapshot.next().await? {
        bytes += piece.len();
        file.write_all(&piece).context("cannot write")?;
        check.add(&piece);
    }
    check.finish()?;
    file.sync_all().context("cannot write")?;
    Ok(bytes)
}

/// Gives the whole file its name, for good.
fn settle(part: &Path, path: &Path) -> anyhow::Result<()> {
    let renamed = fs::hard_link(part, path).and_then(|()| fs::remove_file(part));
    renamed.with_context(|| format!("cannot call it {}", path.display()))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new(".")))?;
    directory.sync_all().context("cannot write the directory")
}

/// The sum of everything but the last 32 bytes, which are that sum.
struct Check {
    sum: digest::Context,
    /// The last bytes so far.
    last: BytesMut,
}

impl Default for Check {
    fn default() -> Self {
        Self { sum: digest::Context::new(&SHA256), last: BytesMut::new() }
    }
}

impl Check {
    fn add(&mut self, piece: &Bytes) {
        self.last.extend_from_slice(piece);
        let known = self.last.len().saturating_sub(SHA256_OUTPUT_LEN);
        self.sum.update(&self.last.split_to(known));
    }

    fn finish(self) -> anyhow::Result<()> {
        match self.sum.finish().as_ref() == self.last {
            true => Ok(()),
            false => bail!("what has come is not whole: its SHA-256 is another"),
        }
    }
}

#[test]
fn sums_at_the_end() {
    let data: Vec<u8> = (0..1000_u32).map(|number| number as u8).collect();
    let whole = [&data[..], digest::digest(&SHA256, &data).as_ref()].concat();
    let checked = |bytes: &[u8], piece: usize| {
        let mut check = Check::default();
        bytes.chunks(piece).for_each(|chunk| check.add(&Bytes::copy_from_slice(chunk)));
        check.finish().is_ok()
    };
    for piece in [1, 7, 31, 32, 33, 999, 5000] {
        assert!(checked(&whole, piece), "{piece}");
        assert!(!checked(&whole[..whole.len() - 1], piece), "{piece}");
        assert!(!checked(&whole[1..], piece), "{piece}");
    }
    assert!(!checked(b"", 1) && !checked(b"short", 1));
}

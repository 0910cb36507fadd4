//! All objects of a data directory, written into an empty etcd.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use roadstead_etcd::client::Client;
use roadstead_etcd::failure::Failure;
use roadstead_etcd::messages::RangeRequest;
use roadstead_server::etcd_layout::{KubernetesLayout, is_made_anew};
use roadstead_store::entry::{Entry, Revision};
use roadstead_store::kv::{EtcdOptions, Store};
use roadstead_store::layout::KeyLayout;
use roadstead_store::retention::Limits;
use roadstead_store::snapshot;
use roadstead_store::transaction::Transaction;

use super::{PATIENCE, soon};
use crate::apiserver;
use crate::etcd_args::EtcdClientArgs;

/// How much goes in one transaction: etcd takes 128 keys and 1.5 MiB, unless it is told otherwise.
const KEYS: usize = 100;
const BYTES: usize = 1 << 20;
/// The largest object that etcd takes, with its key.
const LARGEST: usize = (3 << 20) / 2 - 4096;
/// How far beyond the directory's revision a new etcd should begin.
const LEAP: u64 = 1_000_000_000;
/// How long the compaction afterwards may take.
const LONG: Duration = Duration::from_secs(600);

pub(super) async fn run(
    etcd: &EtcdClientArgs,
    data_dir: &Path,
    accept_relist: bool,
) -> anyhow::Result<()> {
    let path = apiserver::store_file(data_dir);
    if !snapshot::is_store(&path) {
        bail!("there is no store in {}", data_dir.display());
    }
    let found = Store::verify(&path).context("stop the server of the data directory first")?;
    let client = etcd.client()?;
    let layout = Arc::new(KubernetesLayout::new(&etcd.etcd_prefix));
    let entries: Vec<_> = found.entries.iter().filter(|entry| !is_made_anew(&entry.key)).collect();
    fits(&entries, &layout)?;
    let newest = check_empty(&client, &layout).await?;
    if newest < found.revision && !accept_relist {
        bail!("{}", too_young(newest, found.revision));
    }
    let options = EtcdOptions { history: Limits::default(), patience: PATIENCE, compaction: None };
    let store = Store::etcd(client, layout, options).await?;
    write(&store, &entries).await.context(
        "the copy is not whole: remove the keys that are there (etcdctl del --prefix), and try again",
    )?;
    let reached = store.revision();
    forget(&etcd.client()?, reached).await?;
    let (count, from, prefix) = (entries.len(), data_dir.display(), &etcd.etcd_prefix);
    eprintln!(
        "copied {count} objects of {from} to {prefix} of etcd, which is at revision {reached}"
    );
    eprintln!(
        "next: roadstead apiserver --etcd-servers … with the same --data-dir, for its directory pki"
    );
    Ok(())
}

/// Refuses what etcd would refuse halfway.
fn fits(entries: &[&Entry], layout: &KubernetesLayout) -> anyhow::Result<()> {
    let large: Vec<_> = entries.iter().filter(|entry| entry.value.len() > LARGEST).collect();
    if let Some(first) = large.first() {
        let (count, key, size) = (large.len(), &first.key, first.value.len());
        bail!("{count} objects are larger than etcd takes, such as {key} with {size} bytes");
    }
    let lost =
        entries.iter().find(|one| layout.key(&layout.place(&one.key)).as_ref() != Some(&one.key));
    match lost {
        Some(entry) => bail!("{} has no place in etcd", entry.key),
        None => Ok(()),
    }
}

/// The newest revision of an etcd that has nothing of a cluster.
async fn check_empty(client: &Client, layout: &KubernetesLayout) -> anyhow::Result<Revision> {
    let prefix = layout.prefix();
    let end = [&prefix.as_bytes()[..prefix.len() - 1], b"0"].concat();
    let request = RangeRequest {
        key: prefix.to_owned().into(),
        range_end: end.into(),
        count_only: true,
        ..RangeRequest::default()
    };
    let found = client.range(&request, soon()).await.context("etcd does not answer")?;
    match found.count {
        0 => Ok(Revision(found.header.map_or(0, |header| header.revision.unsigned_abs()))),
        some => bail!("etcd has {some} keys below {prefix} already: they would be mixed up"),
    }
}

fn too_young(etcd: Revision, own: Revision) -> String {
    let bump = own.0 + LEAP;
    format!(
        "etcd is at revision {etcd}, and the data directory at {own}: clients that go on would take new \
         revisions for old ones. Let etcd begin later, with a snapshot of an empty one:\n  \
         roadstead etcd snapshot --etcd-servers … EMPTY\n  \
         etcdutl snapshot restore EMPTY --data-dir DIRECTORY --bump-revision {bump} --mark-compacted\n\
         and start etcd with that directory (etcdutl of 3.5.10 or later). Or start all clients anew, and use \
         --accept-relist"
    )
}

async fn write(store: &Store, entries: &[&Entry]) -> anyhow::Result<()> {
    let mut rest = entries;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(batch(rest.iter().map(|entry| entry.value.len())));
        let transaction = now.iter().fold(Transaction::new(), |transaction, entry| {
            transaction.expect(entry.key.clone(), None).put(entry.key.clone(), entry.value.clone())
        });
        store.commit(transaction).await?;
        rest = later;
    }
    Ok(())
}

/// How many of the next values go together: at least one.
fn batch(sizes: impl Iterator<Item = usize>) -> usize {
    let mut all = 0;
    let fitting = sizes.take(KEYS).take_while(|size| {
        all += size;
        all <= BYTES
    });
    fitting.count().max(1)
}

/// Makes everybody who remembers a revision of the data directory list again: what was deleted there is told
/// by nobody.
async fn forget(client: &Client, reached: Revision) -> anyhow::Result<()> {
    match client.compact_thoroughly(reached.0 as i64, LONG).await {
        Ok(_) | Err(Failure::Compacted(_)) => Ok(()),
        Err(failure) => bail!("etcd does not forget what was before: {failure}"),
    }
}

#[test]
fn batches() {
    for (sizes, want) in [
        (vec![1; 1000], KEYS),
        (vec![BYTES / 2; 3], 2),
        (vec![BYTES + 1, 1], 1),
        (vec![BYTES, 1], 1),
        (vec![7], 1),
    ] {
        assert_eq!(batch(sizes.into_iter()), want);
    }
}

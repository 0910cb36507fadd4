//! Room in an etcd that has none any more. Each step is told before it is taken.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use roadstead_etcd::client::Client;
use roadstead_etcd::failure::Failure;
use roadstead_etcd::maintenance::NO_SPACE;
use roadstead_etcd::messages::StatusResponse;
use tokio::time;

use super::{KnownMember, members, soon};

/// How long a compaction or the defragmentation of a member may take.
const LONG: Duration = Duration::from_secs(600);

pub(super) async fn run(client: &Client) -> anyhow::Result<()> {
    let (mut members, silent) = members(client).await?;
    for member in &members {
        eprintln!("{}", told(member));
    }
    silent.iter().for_each(|why| eprintln!("{why}: it is left as it is"));
    compact(client, &members).await?;
    // Whoever leads is needed by all others.
    members.sort_by_key(KnownMember::is_leader);
    for member in &members {
        defragment(client, member).await?;
    }
    disarm(client).await?;
    match silent.is_empty() {
        true => Ok(()),
        false => bail!(
            "{} of the members were not reached: heal again when they are there",
            silent.len()
        ),
    }
}

fn told(member: &KnownMember) -> String {
    let KnownMember { url, status, .. } = member;
    let leads = if member.is_leader() { ", leads" } else { "" };
    format!("{url}: etcd {}{leads}, {}", status.version, sizes(status))
}

/// How large its file is, and how much of it is in use.
pub(super) fn sizes(status: &StatusResponse) -> String {
    let (size, used) = (mebibytes(status.db_size), mebibytes(status.db_size_in_use));
    format!("{size} MiB on disk, {used} MiB in use")
}

fn mebibytes(bytes: i64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Forgets the past on every member: one asks the others to, and each is waited for by its defragmentation.
async fn compact(client: &Client, members: &[KnownMember]) -> anyhow::Result<()> {
    let revisions = members.iter().filter_map(|member| member.status.header.as_ref());
    let newest = revisions.map(|header| header.revision).max().unwrap_or(0);
    let begin = Instant::now();
    eprint!("forgetting what was overwritten up to revision {newest} … ");
    match client.compact_thoroughly(newest, LONG).await {
        Ok(_) => eprintln!("done in {:.1?}", begin.elapsed()),
        Err(Failure::Compacted(_)) => eprintln!("it was forgotten already"),
        Err(failure) => bail!("etcd does not forget the past: {failure}"),
    }
    Ok(())
}

async fn defragment(client: &Client, member: &KnownMember) -> anyhow::Result<()> {
    let begin = Instant::now();
    eprint!("defragmenting {} … ", member.url);
    let done = client.defragment(member.at, LONG).await;
    done.with_context(|| format!("{} was not defragmented", member.url))?;
    let status = after(client, member.at).await?;
    eprintln!("done in {:.1?}: {}", begin.elapsed(), sizes(&status));
    Ok(())
}

/// How a member is, as soon as it answers again.
async fn after(client: &Client, at: usize) -> anyhow::Result<StatusResponse> {
    let deadline = soon();
    loop {
        match client.status().await.swap_remove(at) {
            Ok(status) => return Ok(status),
            Err(_) if time::Instant::now() < deadline => {
                time::sleep(Duration::from_millis(100)).await;
            }
            Err(failure) => bail!("it does not answer after its defragmentation: {failure}"),
        }
    }
}

async fn disarm(client: &Client) -> anyhow::Result<()> {
    let alarms = client.alarms(soon()).await.context("cannot ask for alarms")?.alarms;
    let (full, others): (Vec<_>, Vec<_>) = alarms.iter().partition(|one| one.alarm == NO_SPACE);
    for alarm in &full {
        eprintln!("ending the alarm NOSPACE of the member {:x}", alarm.member_id);
        let ended = client.disarm(alarm.member_id, NO_SPACE, soon()).await;
        ended.context("the alarm was not ended")?;
    }
    if full.is_empty() {
        eprintln!("there is no alarm NOSPACE");
    }
    if let Some(alarm) = others.first() {
        bail!(
            "the member {:x} has the alarm CORRUPT: what it holds differs from the others. Replace it by a \
             new member",
            alarm.member_id
        );
    }
    let again = client.alarms(soon()).await.context("cannot ask for alarms")?.alarms;
    if again.iter().any(|one| one.alarm == NO_SPACE) {
        bail!(
            "the alarm is there again: give etcd a larger --quota-backend-bytes, or delete objects"
        );
    }
    eprintln!("etcd takes writes");
    Ok(())
}

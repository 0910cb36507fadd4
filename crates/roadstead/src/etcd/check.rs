//! What a whole etcd holds, and what would become of it behind this server.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use roadstead_etcd::client::Client;
use roadstead_etcd::maintenance::NO_SPACE;
use roadstead_etcd::messages::RangeRequest;
use roadstead_server::etcd_layout::survey::{Findings, Row, Survey};
use tokio::time::Instant;

use super::{members, soon};
use crate::etcd_args::EtcdClientArgs;

/// How many keys are asked for at once.
const PAGE: i64 = 5_000;
/// How long all pages may take.
const LONG: Duration = Duration::from_secs(600);
/// The oldest etcd that works, and the ones since which watches lose nothing.
const OLDEST: (u32, u32, u32) = (3, 4, 0);
const SOUND: [(u32, u32, u32); 2] = [(3, 4, 31), (3, 5, 13)];
/// How much of its quota etcd may use until somebody should look.
const MUCH: f64 = 0.8;

pub(super) async fn run(etcd: &EtcdClientArgs) -> anyhow::Result<()> {
    let client = etcd.client()?;
    let (cluster, troubled) = cluster(&client).await?;
    let mut survey = Survey::new(&etcd.etcd_prefix);
    let revision = read(&client, &mut survey).await?;
    let findings = survey.finish();
    let told = format!("{}{cluster}", report(&findings, revision));
    std::io::stdout().write_all(told.as_bytes()).context("cannot say what was found")?;
    match (findings.is_harmful(), troubled) {
        (false, false) => Ok(()),
        (true, _) => bail!("not everything would be kept or enforced: see above"),
        (false, true) => bail!("etcd itself needs somebody: see above"),
    }
}

/// Looks at all keys as they are at one revision, which it returns.
async fn read(client: &Client, survey: &mut Survey) -> anyhow::Result<i64> {
    let prefix = survey.prefix().to_owned();
    let end = Bytes::from([&prefix.as_bytes()[..prefix.len() - 1], b"0"].concat());
    let deadline = Instant::now() + LONG;
    let (mut key, mut revision, mut limit) = (Bytes::from(prefix), 0, PAGE);
    loop {
        let range_end = end.clone();
        let request = RangeRequest {
            key: key.clone(),
            range_end,
            limit,
            revision,
            ..RangeRequest::default()
        };
        let page = match client.range(&request, deadline).await {
            Err(roadstead_etcd::failure::Failure::TooLarge(_)) if limit > 1 => {
                limit = (limit / 4).max(1);
                continue;
            }
            page => page.context("cannot read all of etcd")?,
        };
        if revision == 0 {
            revision = page.header.map_or(0, |header| header.revision);
        }
        page.kvs.iter().for_each(|kv| survey.add(&kv.key, &kv.value));
        match page.kvs.last().filter(|_| page.more) {
            Some(last) => key = [&last.key[..], b"\0"].concat().into(),
            None => return Ok(revision),
        }
    }
}

/// How the members are, and whether somebody should do something about it.
async fn cluster(client: &Client) -> anyhow::Result<(String, bool)> {
    let (members, mut wrong) = members(client).await?;
    let mut text = "\nMembers of etcd:\n".to_owned();
    for member in &members {
        let status = &member.status;
        let quota = match status.db_size_quota {
            0 => client.quota(member.at).await,
            known => u64::try_from(known).ok(),
        };
        let share =
            quota.filter(|quota| *quota > 0).map(|quota| status.db_size as f64 / quota as f64);
        let share_text = match (share, quota) {
            (Some(share), Some(quota)) => {
                format!("{:.0}% of the quota of {} MiB", share * 100.0, quota >> 20)
            }
            _ => "quota unknown (it does not tell, and shows no metrics)".to_owned(),
        };
        let leads = if member.is_leader() { ", leads" } else { "" };
        let sizes = super::heal::sizes(status);
        let _ = writeln!(
            text,
            "  {}: etcd {}{leads}, {sizes}, {share_text}",
            member.url, status.version
        );
        if share.is_some_and(|share| share > MUCH) {
            wrong.push(format!(
                "{} has little room left: `roadstead etcd heal` makes some",
                member.url
            ));
        }
        wrong.extend(about_version(&status.version).map(|why| format!("{}: {why}", member.url)));
        wrong.extend(status.errors.iter().map(|error| format!("{} says: {error}", member.url)));
    }
    let alarms = client.alarms(soon()).await.context("cannot ask for alarms")?.alarms;
    wrong.extend(alarms.iter().map(|alarm| match alarm.alarm {
        NO_SPACE => format!(
            "the alarm NOSPACE of the member {:x}: nothing can be written; `roadstead etcd heal` ends it",
            alarm.member_id
        ),
        other => format!("the alarm {other} of the member {:x}: replace that member", alarm.member_id),
    }));
    wrong.iter().for_each(|why| {
        let _ = writeln!(text, "  ! {why}");
    });
    // A version that is old but works is worth a word, and no more.
    let troubled = !alarms.is_empty();
    Ok((text, troubled))
}

/// What is to be said about a version of etcd.
fn about_version(version: &str) -> Option<String> {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    let found = (part(), part(), part());
    if found < OLDEST {
        return Some("this etcd is older than 3.4, and cannot be used".to_owned());
    }
    let sound = SOUND.iter().find(|sound| (sound.0, sound.1) == (found.0, found.1));
    sound.filter(|sound| found < **sound).map(|(a, b, c)| {
        format!(
            "before {a}.{b}.{c} a watch can lose an event after a compaction; a newer etcd does not"
        )
    })
}

/// All that was found, as text.
fn report(findings: &Findings, revision: i64) -> String {
    let Findings { rows, unenforced } = findings;
    let mut text = format!("Revision {revision}\n\n");
    let width = rows.iter().map(|row| row.place.len()).max().unwrap_or(0);
    let line = |text: &mut String, row: &Row| {
        let Row { place, objects, bytes, foreign, .. } = row;
        let kibibytes = bytes.div_ceil(1024);
        let theirs = match foreign {
            0 => String::new(),
            some => format!(", {some} not in the form of this server"),
        };
        let _ = writeln!(text, "  {place:width$}  {objects:>7}  {kibibytes:>8} KiB{theirs}");
        if row.encrypted > 0 {
            let _ = writeln!(text, "    ! {} encrypted by kube-apiserver", row.encrypted);
        }
        for (what, (count, some)) in
            [("cannot be read", &row.unreadable), ("would not stay what they are", &row.changed)]
        {
            if *count > 0 {
                let _ = writeln!(text, "    ! {count} {what}:");
                some.iter().for_each(|one| {
                    let _ = writeln!(text, "        {one}");
                });
            }
        }
    };
    for (title, served) in [("Served:", true), ("Not served (their keys stay as they are):", false)]
    {
        let these: Vec<_> = rows.iter().filter(|row| row.served == served).collect();
        let _ = writeln!(text, "{title}");
        these.iter().for_each(|row| line(&mut text, row));
        if these.is_empty() {
            let _ = writeln!(text, "  none");
        }
    }
    let _ = writeln!(text, "\nWhat a kube-apiserver asks or obeys, and this server does not:");
    if unenforced.is_empty() {
        let _ = writeln!(text, "  nothing");
    }
    unenforced.iter().for_each(|one| {
        let _ = writeln!(text, "  ! {one}");
    });
    text
}

#[test]
fn versions() {
    for (version, want) in [
        ("3.3.25", "cannot be used"),
        ("3.4.23", "before 3.4.31"),
        ("3.4.31", ""),
        ("3.5.0-rc.1", "before 3.5.13"),
        ("3.5.21", ""),
        ("3.6.4", ""),
    ] {
        let found = about_version(version).unwrap_or_default();
        assert!(found.contains(want) && found.is_empty() == want.is_empty(), "{version}: {found}");
    }
}

//! `roadstead etcd`: what an operator asks of the etcd below API servers.

mod check;
mod copy;
mod heal;
mod snapshot;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use roadstead_etcd::client::Client;
use roadstead_etcd::messages::StatusResponse;
use tokio::time::Instant;

use crate::etcd_args::EtcdClientArgs;
use crate::machine;

/// How long an etcd may be silent until a command gives up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Look after the etcd in which API servers keep their objects.
///
/// All commands take the etcd flags of `roadstead apiserver`. `check` and `snapshot` change nothing and may
/// be run at any time, beside any number of servers.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  E=http://127.0.0.1:2379
  roadstead etcd check --etcd-servers $E            may a server take over what kube-apiserver left here?
  roadstead etcd snapshot --etcd-servers $E FILE    all of it in a file, for etcdutl snapshot restore
  roadstead etcd heal --etcd-servers $E             room again, after \"database space exceeded\"
  roadstead etcd copy --etcd-servers $E             the objects of a data directory into an empty etcd";

#[derive(Debug, Subcommand)]
enum Command {
    /// Read everything, change nothing, and say what would become of it behind this server.
    #[command(after_help = CHECK)]
    Check {
        #[command(flatten)]
        etcd: EtcdClientArgs,
    },
    /// Make room: forget the past, give what is free back to the disk, and end the alarm NOSPACE.
    #[command(after_help = HEAL)]
    Heal {
        #[command(flatten)]
        etcd: EtcdClientArgs,
    },
    /// Save everything that etcd has in a file, and check that it is whole.
    #[command(after_help = SNAPSHOT)]
    Snapshot {
        #[command(flatten)]
        etcd: EtcdClientArgs,
        /// Where to save; must not exist.
        path: PathBuf,
    },
    /// Write all objects of a data directory into an empty etcd. The server of the directory must be stopped.
    #[command(after_help = COPY)]
    Copy {
        #[command(flatten)]
        etcd: EtcdClientArgs,
        /// Where the objects are.
        #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
        data_dir: PathBuf,
        /// Copy although etcd counts from a smaller revision: clients that have seen larger ones must all be
        /// started anew.
        #[arg(long)]
        accept_relist: bool,
    },
}

const CHECK: &str = "\
It lists, for each kind: how many objects there are, whether this server serves the kind (keys of other
kinds stay untouched), and which objects are encrypted, cannot be read, or would not be the same when
written again. Then what a kube-apiserver does that this server does not: webhooks, admission policies,
APIs of other servers. Then the members: version, size, share of the quota, alarms.
It ends with status 1 if something would be lost or no longer enforced.";

const HEAL: &str = "\
When etcd's file reaches its quota (--quota-backend-bytes of etcd, 2 GiB unless set), it takes no writes any
more but deletions. What is overwritten or deleted is room only after three steps, which this command
takes, telling about each: a compaction of the past up to now, a defragmentation of each member (each
answers nobody meanwhile; the leader is the last), and the end of the alarm. Clients that are more than
a moment behind list again. If there is no room afterwards, give etcd a larger quota or delete objects.";

const SNAPSHOT: &str = "\
The file is one of etcd's own. To restore it:
  etcdutl snapshot restore FILE --data-dir DIRECTORY --bump-revision 1000000000 --mark-compacted
Without the last two flags (etcd 3.5.10 and later), clients that have seen more than the snapshot has would
take new revisions for old ones. A copy of all objects that fits into a data directory, too, is
`roadstead snapshot save --kubeconfig FILE`.";

const COPY: &str = "\
What clients have seen of the data directory has revisions, and etcd counts its own from 1. A client must
never meet a smaller one, so etcd's must be at least as large. To make an etcd that counts from there:
  etcdutl snapshot restore EMPTY --data-dir DIRECTORY --bump-revision NUMBER --mark-compacted
where EMPTY is a snapshot of an etcd without keys (`roadstead etcd snapshot`). The way back needs no
command of its own: `roadstead snapshot save` from a server, then `roadstead snapshot restore`.";

/// Carries out `roadstead etcd`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Check { etcd } => check::run(&etcd).await,
        Command::Heal { etcd } => heal::run(&etcd.client()?).await,
        Command::Snapshot { etcd, path } => snapshot::run(&etcd.client()?, &path).await,
        Command::Copy { etcd, data_dir, accept_relist } => {
            copy::run(&etcd, &data_dir, accept_relist).await
        }
    }
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A member, by the place of its URL among those that were given.
struct KnownMember {
    at: usize,
    url: String,
    status: StatusResponse,
}

impl KnownMember {
    fn id(&self) -> u64 {
        self.status.header.as_ref().map_or(0, |header| header.member_id)
    }

    fn is_leader(&self) -> bool {
        self.id() == self.status.leader
    }
}

/// All members that answer, and what to say of the others.
async fn members(client: &Client) -> anyhow::Result<(Vec<KnownMember>, Vec<String>)> {
    let (mut members, mut silent) = (Vec::new(), Vec::new());
    for (at, (url, found)) in client.endpoints().into_iter().zip(client.status().await).enumerate()
    {
        match found {
            Ok(status) => members.push(KnownMember { at, url, status }),
            Err(failure) => silent.push(format!("{url} does not answer: {failure}")),
        }
    }
    if members.is_empty() {
        anyhow::bail!("no member of etcd answers: {}", silent.join("; "));
    }
    let cluster = client.cluster(soon()).await.context("cannot ask who is in the cluster")?;
    let unknown = cluster.members.iter().filter(|one| members.iter().all(|m| m.id() != one.id));
    silent.extend(unknown.map(|one| {
        let urls = one.client_urls.join(", ");
        format!(
            "the member {} ({urls}) is not named by --etcd-servers, or does not answer",
            one.name
        )
    }));
    Ok((members, silent))
}

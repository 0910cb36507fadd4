//! The other nodes of `up --nodes N`: network namespaces of this machine, in each of which `roadstead join` runs
//! as on a machine of its own. They are on a bridge with this machine, whose address there is that of the first
//! node.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use ipnet::{IpNet, Ipv4Net};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::token;

mod links;

/// How many fit onto one machine that anybody looks at.
const MOST: u8 = 32;
/// Each is in the directory of its name there.
const DIRECTORY: &str = "machines";
/// A token is used at once.
const TOKEN_LASTS: Duration = Duration::from_secs(600);
/// One that has ended comes again after this.
const PAUSE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(100);

/// How many nodes there are.
#[derive(Clone, Debug, Parser)]
pub(crate) struct MachineArgs {
    /// How many nodes there are: this machine, and others in network namespaces of it, to try what takes more
    /// than one. Each says that it has all of this machine's processors and memory.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST)))]
    pub nodes: u8,
    /// The network between them: a private one that this machine does not use otherwise.
    #[arg(long, value_name = "CIDR", default_value = "172.30.250.0/24")]
    pub node_network: Ipv4Net,
}

impl MachineArgs {
    /// The address of this machine among them, if there are others.
    pub(crate) fn own_address(&self) -> Option<IpAddr> {
        (self.nodes > 1).then(|| self.address(1)).flatten()
    }

    /// The address of the node of that number.
    fn address(&self, number: u8) -> Option<IpAddr> {
        self.node_network.hosts().nth(usize::from(number) - 1).map(IpAddr::V4)
    }

    /// Fails if it cannot be, before anything is made.
    pub(crate) fn check(&self, used: &[IpNet], listen: SocketAddr) -> anyhow::Result<()> {
        if self.nodes == 1 {
            return Ok(());
        }
        let own = IpNet::V4(self.node_network);
        if self.address(self.nodes).is_none() {
            bail!("--node-network {own} has no room for {} nodes", self.nodes);
        }
        if let Some(other) = used.iter().find(|other| other.contains(&own) || own.contains(*other))
        {
            bail!("--node-network {own} overlaps with {other}");
        }
        let reached = listen.ip().is_unspecified() || Some(listen.ip()) == self.own_address();
        if !reached {
            bail!("--listen {listen}: other nodes cannot reach that; leave it out for --nodes");
        }
        Ok(())
    }
}

/// The machines of a data directory.
pub(super) struct Machines {
    directory: PathBuf,
    args: MachineArgs,
    /// The first node.
    node: String,
}

/// One of them.
#[derive(Clone, Debug)]
struct Machine {
    name: String,
    number: u8,
    /// Everything of it.
    directory: PathBuf,
}

impl Machine {
    fn data_dir(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn namespace(&self) -> PathBuf {
        self.directory.join("netns")
    }

    fn token_file(&self) -> PathBuf {
        self.directory.join("token")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }
}

impl Machines {
    pub(super) fn new(data_dir: &Path, args: &MachineArgs, node: &str) -> Self {
        let directory = data_dir.join(DIRECTORY);
        Self { directory, args: args.clone(), node: node.to_owned() }
    }

    fn all(&self) -> impl Iterator<Item = Machine> {
        (2..=self.args.nodes).map(|number| {
            let name = format!("{}-{number}", self.node);
            Machine { directory: self.directory.join(&name), name, number }
        })
    }

    /// Makes the network between them, and what they are in, or what is missing of it.
    pub(super) async fn make(&self, pods: &[IpNet]) -> anyhow::Result<()> {
        let Some(own) = self.args.own_address() else { return Ok(()) };
        let length = self.args.node_network.prefix_len();
        links::make_bridge(own, length).await?;
        for machine in self.all() {
            fs::create_dir_all(machine.data_dir())
                .with_context(|| format!("cannot make {}", machine.directory.display()))?;
            let address = self.args.address(machine.number).context("there is room for it")?;
            let place = (machine.number, &*machine.namespace());
            links::make_machine(place, (address, length), own).await?;
        }
        links::masquerade(self.args.node_network, pods).await
    }

    /// Starts `roadstead join` in each of them; what ends is started again.
    pub(super) async fn start(
        &self,
        admin: &Client,
        (port, dns): (u16, IpAddr),
        (flags, stop): (&[String], CancellationToken),
    ) -> anyhow::Result<Vec<oneshot::Receiver<()>>> {
        let mut ends = Vec::new();
        let own = self.args.own_address().context("there are no other nodes")?;
        let server = format!("https://{}", SocketAddr::new(own, port));
        for machine in self.all() {
            let secrets: Api<Secret> = Api::namespaced(admin.clone(), "kube-system");
            let token = token::fresh(TOKEN_LASTS, Some(machine.name.clone()))?;
            token::create(&secrets, &token).await?;
            let text = token::text(admin, &token).await?;
            let path = machine.token_file();
            roadstead_server::identity::secret_file::write_secret(&path, &text)
                .with_context(|| format!("cannot write {}", path.display()))?;
            let begin = ["join", "--with-parent", "--server", &server];
            let mut arguments: Vec<String> = begin.map(str::to_owned).into();
            arguments.extend(["--dns-upstream".into(), dns.to_string()]);
            arguments.extend(["--token-file".into(), path.display().to_string()]);
            arguments.extend(flags.iter().cloned());
            arguments.extend(machine.flags());
            let (ended, end) = oneshot::channel();
            let stopping = Arc::new(AtomicBool::new(false));
            let (told, token) = (stopping.clone(), stop.clone());
            tokio::spawn(async move {
                token.cancelled().await;
                told.store(true, Ordering::Relaxed);
            });
            // It stays with the process that it has started.
            let keeper = thread::Builder::new().name(machine.name.clone());
            let kept = keeper.spawn(move || {
                if let Err(error) = machine.keep(&arguments, &stopping) {
                    warn!(node = machine.name, "the node is not kept running: {error:#}");
                }
                let _ = ended.send(());
            });
            kept.context("cannot start a thread")?;
            ends.push(end);
        }
        Ok(ends)
    }

    /// The names of the other nodes.
    pub(super) fn names(&self) -> Vec<String> {
        self.all().map(|machine| machine.name).collect()
    }

    /// Each is a zone of its own, as it would be for somebody who wants to see what zones do.
    pub(super) async fn label(&self, admin: &Client) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(admin.clone());
        let names = std::iter::once(self.node.clone()).chain(self.names());
        for (number, name) in names.enumerate() {
            let zone = format!("zone-{}", number + 1);
            let known = nodes.get(&name).await?;
            let labels = known.metadata.labels.unwrap_or_default();
            if labels.contains_key("topology.kubernetes.io/zone") {
                continue;
            }
            let patch = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
            nodes.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        }
        Ok(())
    }

    /// Removes all machines of the data directory, whatever their number; returns their names.
    pub(super) async fn remove(&self) -> anyhow::Result<Vec<String>> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut names = Vec::new();
        for entry in entries.filter(|entry| entry.path().is_dir()) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let machine = Machine { directory: entry.path(), name: name.clone(), number: 0 };
            let removed = tokio::task::spawn_blocking(move || machine.remove()).await?;
            removed.with_context(|| format!("the node {name} is left behind"))?;
            names.push(name);
        }
        if !names.is_empty() {
            let _ = fs::remove_dir(&self.directory);
            links::remove_bridge().await?;
        }
        Ok(names)
    }
}

impl Machine {
    fn flags(&self) -> Vec<String> {
        let directory = self.data_dir().display().to_string();
        ["--data-dir", &directory, "--node-name", &self.name].map(str::to_owned).into()
    }

    /// Starts a process of ours in it. Threads are in a network each.
    fn spawn(&self, arguments: &[String]) -> anyhow::Result<Child> {
        let path = self.namespace();
        let namespace =
            File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("cannot enter {}", path.display()))?;
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.with_context(|| format!("cannot open {}", self.log().display()))?;
        let own = std::env::current_exe().context("a process knows its own path")?;
        let mut command = Command::new(own);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // What is said to this one is not for that one.
        command.env_remove("NOTIFY_SOCKET").env_remove("KUBECONFIG");
        command.spawn().with_context(|| format!("cannot start the node {}", self.name))
    }

    /// Keeps it running until it is to stop.
    fn keep(&self, arguments: &[String], stopping: &AtomicBool) -> anyhow::Result<()> {
        while !stopping.load(Ordering::Relaxed) {
            let child = self.spawn(arguments)?;
            info!(node = self.name, pid = child.id(), log = %self.log().display(), "a node starts");
            let ended = until_stopped(child, stopping)?;
            if stopping.load(Ordering::Relaxed) {
                break;
            }
            warn!(node = self.name, %ended, log = %self.log().display(), "a node has ended");
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Everything of it goes: pods, rules, files, and the namespace.
    fn remove(&self) -> anyhow::Result<()> {
        let joined = self.data_dir().join("join/node").exists();
        if joined && links::is_namespace(&self.namespace()) {
            let mut arguments: Vec<String> = ["leave", "--offline"].map(str::to_owned).into();
            arguments.extend(self.flags());
            // On a thread of its own, which ends in that network.
            let outcome = thread::scope(|scope| {
                let leaving = scope.spawn(|| anyhow::Ok(self.spawn(&arguments)?.wait()?));
                leaving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            let ended = outcome?;
            if !ended.success() {
                bail!("`roadstead leave` ended with {ended}: see {}", self.log().display());
            }
        }
        links::remove_namespace(&self.namespace())?;
        fs::remove_dir_all(&self.directory)
            .with_context(|| format!("cannot remove {}", self.directory.display()))
    }
}

/// Waits for the end of a process; asks it to end when it is to stop.
fn until_stopped(mut child: Child, stopping: &AtomicBool) -> anyhow::Result<ExitStatus> {
    let mut is_asked = false;
    loop {
        if let Some(ended) = child.try_wait()? {
            return Ok(ended);
        }
        if stopping.load(Ordering::Relaxed) && !is_asked {
            is_asked = true;
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // It has not been waited for, so the number is still its own.
            if let Some(pid) = pid {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        thread::sleep(LOOK);
    }
}

#[test]
fn where_machines_can_be() {
    let args = |nodes| MachineArgs { nodes, node_network: "172.30.250.0/29".parse().unwrap() };
    assert_eq!(args(1).own_address(), None);
    assert_eq!(args(3).own_address(), Some([172, 30, 250, 1].into()));
    let check = |nodes, used: &str, listen: &str| {
        let used: Vec<IpNet> = used.split_whitespace().map(|net| net.parse().unwrap()).collect();
        let checked = args(nodes).check(&used, listen.parse().unwrap());
        checked.err().map_or_else(String::new, |why| why.to_string())
    };
    let all = "0.0.0.0:6443";
    for (nodes, used, listen, want) in [
        (1, "172.16.0.0/12", "127.0.0.1:6443", ""),
        (6, "10.244.0.0/16 10.96.0.0/12", all, ""),
        (6, "", "172.30.250.1:6443", ""),
        (7, "", all, "no room for 7 nodes"),
        (2, "10.96.0.0/12 172.16.0.0/12", all, "overlaps with 172.16.0.0/12"),
        (2, "", "127.0.0.1:6443", "other nodes cannot reach that"),
    ] {
        let got = check(nodes, used, listen);
        assert!(got.contains(want) && got.is_empty() == want.is_empty(), "{nodes} {used}: {got}");
    }
}

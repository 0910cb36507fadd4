//! One etcd and several servers in front of it, with the same keys.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kube::Client;
use roadstead_testkit::etcd::Etcd;
use roadstead_testkit::link::Link;

use crate::server::{self, Server};

/// Where the files of each server are: whoever wants to reach one reads there where it is.
pub(super) type Directories = Arc<[PathBuf]>;

/// Servers and their etcd, until this is dropped.
pub(super) struct Cluster {
    pub(super) servers: Vec<Option<Server>>,
    pub(super) directories: Directories,
    /// Between etcd and each server.
    pub(super) links: Vec<Link>,
    pub(super) etcd: Etcd,
    flags: Vec<Vec<String>>,
    _root: tempfile::TempDir,
}

impl Cluster {
    /// So many members and so many servers; `None` if these tests are left out here. With one member
    /// every server reaches it over a link of its own.
    pub(super) fn start(members: usize, servers: usize) -> Option<Self> {
        let etcd = Etcd::start(members)?;
        let root = tempfile::tempdir().unwrap();
        let directories: Directories =
            (0..servers).map(|at| root.path().join(at.to_string())).collect();
        let urls = etcd.urls();
        let address = urls[0].strip_prefix("http://").unwrap().parse::<SocketAddr>().unwrap();
        let wants_links = if members == 1 { servers } else { 0 };
        let links: Vec<_> = (0..wants_links).map(|_| Link::to(address)).collect();
        let flags = |at: usize| {
            let link = links.get(at).map(|link| format!("http://{}", link.address()));
            vec!["--etcd-servers".to_owned(), link.unwrap_or_else(|| urls.join(","))]
        };
        let flags: Vec<_> = (0..servers).map(flags).collect();
        for directory in &*directories {
            fs::create_dir_all(directory.join("data")).unwrap();
        }
        let first = Server::start_with(&directories[0], &flags[0]);
        directories[1..].iter().for_each(|other| copy_keys(&directories[0], other));
        let rest = (1..servers).map(|at| Some(Server::start_with(&directories[at], &flags[at])));
        let servers = [Some(first)].into_iter().chain(rest).collect();
        Some(Self { servers, directories, links, etcd, flags, _root: root })
    }

    /// Ends a server without warning.
    pub(super) fn kill(&mut self, at: usize) {
        self.servers[at].take().expect("it runs").kill();
    }

    /// Starts a server that was killed, and waits until it is ready.
    pub(super) fn restart(&mut self, at: usize) {
        self.servers[at] = Some(Server::start_with(&self.directories[at], &self.flags[at]));
    }

    pub(super) fn server(&self, at: usize) -> &Server {
        self.servers[at].as_ref().expect("it runs")
    }

    /// A client of one server.
    pub(super) async fn client(&self, at: usize) -> Client {
        server::client(&self.directories[at]).await
    }
}

/// All servers of a cluster have the same.
fn copy_keys(from: &Path, to: &Path) {
    let (from, to) = (from.join("data/pki"), to.join("data/pki"));
    fs::create_dir(&to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

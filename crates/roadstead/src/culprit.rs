//! Who already uses a port or a file: the error message that saves a search.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The process that listens on the port of `address`, as `name (pid N)`, if we may see it.
pub(crate) fn listening_on(address: SocketAddr) -> Option<String> {
    let port = format!(":{:04X}", address.port());
    let sockets: Vec<_> = ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/net/{table}")).ok())
        .flat_map(|table| inodes(&table, &port))
        .collect();
    holder(|target| sockets.iter().any(|s| s.as_bytes() == target.as_os_str().as_bytes()))
}

/// The process that has the file open, as `name (pid N)`, if we may see it.
pub(crate) fn having_open(file: &Path) -> Option<String> {
    let file = file.canonicalize().ok()?;
    holder(|target| target == file)
}

/// The first process with an open file of that kind.
fn holder(is_it: impl Fn(&Path) -> bool) -> Option<String> {
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|process| process.path());
    // Not /proc/self, which is one of them by another name.
    let is_process =
        |path: &Path| path.file_name().is_some_and(|n| n.as_bytes()[0].is_ascii_digit());
    let mut processes = processes.filter(|path| is_process(path));
    let holder = processes.find(|path| holds(path, &is_it))?;
    let name = fs::read_to_string(holder.join("comm")).ok()?;
    Some(format!("{} (pid {})", name.trim(), holder.file_name()?.to_str()?))
}

/// The inodes of listening sockets (state 0A) in the format of /proc/net/tcp.
fn inodes(table: &str, port: &str) -> Vec<String> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row.len() > 9 && row[1].ends_with(port) && row[3] == "0A");
    rows.map(|row| format!("socket:[{}]", row[9])).collect()
}

fn holds(process: &Path, is_it: &impl Fn(&Path) -> bool) -> bool {
    let Ok(files) = fs::read_dir(process.join("fd")) else { return false };
    let mut targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    targets.any(|target| is_it(&target))
}

#[test]
fn a_listener_is_found() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let found = listening_on(listener.local_addr().unwrap()).unwrap();
    assert!(found.ends_with(&format!("(pid {})", std::process::id())), "{found}");
}

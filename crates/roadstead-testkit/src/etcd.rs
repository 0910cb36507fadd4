//! A real etcd of one or more members, on loopback and in a temporary directory, which ends with the test.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::netns::is_left_out;

/// What `ROADSTEAD_SKIP` calls the tests that need it.
const LAYER: &str = "etcd";

/// A cluster of etcd.
#[derive(Debug)]
pub struct Etcd {
    directory: tempfile::TempDir,
    members: Vec<Member>,
    arguments: Vec<String>,
    scheme: &'static str,
}

#[derive(Debug)]
struct Member {
    clients: u16,
    peers: u16,
    process: Option<Child>,
}

/// A port that nobody uses at this moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    listener.local_addr().expect("a bound socket has an address").port()
}

impl Etcd {
    /// Starts so many members and waits until they answer; `None` if these tests are left out here.
    pub fn start(members: usize) -> Option<Self> {
        Self::start_with(members, &[], "http")
    }

    /// The same with arguments of etcd's own, and the scheme under which clients reach it.
    pub fn start_with(members: usize, arguments: &[String], scheme: &'static str) -> Option<Self> {
        if is_left_out(LAYER) {
            return None;
        }
        let found = Command::new("etcd").arg("--version").output();
        assert!(
            found.is_ok_and(|output| output.status.success()),
            "etcd is missing: Debian's package etcd-server (set ROADSTEAD_SKIP={LAYER} to leave these \
             tests out)"
        );
        let member = |_| Member { clients: free_port(), peers: free_port(), process: None };
        let mut etcd = Self {
            directory: tempfile::tempdir().expect("a temporary directory can be made"),
            members: (0..members).map(member).collect(),
            arguments: arguments.to_vec(),
            scheme,
        };
        (0..members).for_each(|at| etcd.begin(at));
        (0..members).for_each(|at| etcd.wait(at));
        Some(etcd)
    }

    /// Where clients reach its members: `http://127.0.0.1:2379`.
    pub fn urls(&self) -> Vec<String> {
        let url = |member: &Member| format!("{}://127.0.0.1:{}", self.scheme, member.clients);
        self.members.iter().map(url).collect()
    }

    /// Kills a member as a power cut would.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.members[at].process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts a member that was killed, and waits until it answers.
    pub fn restart(&mut self, at: usize) {
        self.begin(at);
        self.wait(at);
    }

    /// Makes a member stand still, or go on.
    pub fn pause(&self, at: usize, still: bool) {
        let process = self.members[at].process.as_ref().expect("it runs");
        let pid = Pid::from_child(process);
        let signal = if still { Signal::STOP } else { Signal::CONT };
        kill_process(pid, signal).expect("it is our own process");
    }

    /// Which member leads, as the others say that answer.
    pub fn leader(&self) -> Option<usize> {
        let says = |at: usize| {
            self.members[at].process.as_ref()?;
            let status = self.ask(at, "/v3/maintenance/status", "{}").ok()?;
            let (own, leader) = (number(&status, "member_id")?, number(&status, "leader")?);
            Some((at, own, leader))
        };
        let members: Vec<_> = (0..self.members.len()).filter_map(says).collect();
        let (_, _, leader) = members.first()?;
        members.iter().find(|(_, own, _)| own == leader).map(|(at, ..)| *at)
    }

    /// The newest revision.
    pub fn revision(&self) -> u64 {
        let nothing = r#"{"key": "AA=="}"#;
        let answer = (0..self.members.len())
            .find_map(|at| self.ask(at, "/v3/kv/range", nothing).ok().filter(|it| !it.is_empty()));
        answer.and_then(|answer| number(&answer, "revision")).expect("a member answers")
    }

    /// Makes it forget what was overwritten before a revision.
    pub fn compact(&self, revision: u64) {
        let body = format!("{{\"revision\": \"{revision}\", \"physical\": true}}");
        let answer = self.ask(0, "/v3/kv/compaction", &body).expect("a member answers");
        assert!(answer.contains("\"header\""), "{answer}");
    }

    /// Writes something that is nobody's, so many times, of so many bytes.
    pub fn clutter(&self, times: usize, bytes: usize) {
        // Zeros in base64, of a key that no layout has.
        let value = "AAAA".repeat(bytes / 3);
        let body = format!("{{\"key\": \"Y2x1dHRlcg==\", \"value\": \"{value}\"}}");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..times / 4 {
                        self.ask(0, "/v3/kv/put", &body).expect("a member answers");
                    }
                });
            }
        });
    }

    /// Asks a member in JSON.
    fn ask(&self, at: usize, path: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.members[at].clients))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let length = body.len();
        write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn log(&self, at: usize) -> PathBuf {
        self.directory.path().join(format!("m{at}.log"))
    }

    fn begin(&mut self, at: usize) {
        let name = |at: usize| format!("m{at}");
        let peer = |member: &Member| format!("http://127.0.0.1:{}", member.peers);
        let cluster = self.members.iter().enumerate();
        let cluster: Vec<_> =
            cluster.map(|(at, member)| format!("{}={}", name(at), peer(member))).collect();
        let (url, own) = (&self.urls()[at], peer(&self.members[at]));
        let log = File::options().create(true).append(true).open(self.log(at));
        let log = log.expect("a file can be made in a temporary directory");
        let process = Command::new("etcd")
            .args(["--name", &name(at), "--data-dir"])
            .arg(self.directory.path().join(name(at)))
            .args(["--listen-client-urls", url, "--advertise-client-urls", url])
            .args(["--listen-peer-urls", &own, "--initial-advertise-peer-urls", &own])
            .args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"])
            .args(["--logger", "zap", "--log-level", "warn"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd has just told its version");
        self.members[at].process = Some(process);
    }

    /// Waits until a member knows of a leader.
    fn wait(&mut self, at: usize) {
        let begin = Instant::now();
        let address = format!("127.0.0.1:{}", self.members[at].clients);
        let log = self.log(at);
        let log = || fs::read_to_string(&log).unwrap_or_default();
        while !is_healthy(&address, self.scheme == "http") {
            let process = self.members[at].process.as_mut().expect("it was started");
            let ended = process.try_wait().ok().flatten();
            assert!(ended.is_none(), "etcd has ended: {}", log());
            assert!(begin.elapsed() < Duration::from_secs(60), "etcd does not listen: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A number that stands in quotes in an answer.
fn number(answer: &str, name: &str) -> Option<u64> {
    let rest = answer.split_once(&format!("\"{name}\":\""))?.1;
    rest.split_once('"')?.0.parse().ok()
}

/// Whether a member says that it is well. With TLS it says so to nobody without a certificate: then it is
/// enough that it listens.
fn is_healthy(address: &str, plain: bool) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut answer = String::from("true");
        if plain {
            answer.clear();
            stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
            stream.read_to_string(&mut answer)?;
        }
        std::io::Result::Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("true"))
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|at| self.kill(at));
    }
}

//! The Debian package: made twice, installed, replaced while clients talk, removed.
//!
//! In a laboratory whose /usr, /etc and /var are layers over the machine's: nothing is written to those.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{is_left_out, laboratory_of_users, run, try_run};

use crate::lifetime::traces;
use crate::service_manager::{ServiceManager, log_of};

const PATIENCE: Duration = Duration::from_secs(20);
const UNIT: &str = "roadstead.service";
const DATA: &str = "/var/lib/roadstead";
/// What an operator has written; the port is one that the laboratory has to itself.
const CONFIG: &str = "listen: 127.0.0.1:6443\nnode-name: node\neviction-hard: ''\nlog: info\n";

#[test]
fn a_package_comes_goes_on_and_goes() {
    if is_left_out("package") {
        return;
    }
    laboratory_of_users("L5", story);
}

fn story() {
    ["/usr", "/etc", "/var"].into_iter().for_each(lay_over);
    let manager = ServiceManager::install();
    let place = tempfile::tempdir().unwrap();
    let (old, new) = packages(place.path());
    let (files, before) = (files(), (traces(), mounts()));

    run(&format!("dpkg --install {old}"));
    assert_eq!(manager.history(), [""; 0], "nothing is started that nobody asked for");
    verify_units();
    fs::write("/etc/roadstead/config.yaml", CONFIG).unwrap();
    run(&format!("systemctl enable {UNIT} && systemctl start {UNIT}"));
    let kubectl = Kubectl::new(format!("{DATA}/admin.kubeconfig"));
    kubectl.apply("../../examples/web.yaml");
    kubectl.run("rollout status deployment/web --timeout=60s");
    let address = kubectl.run("get service web -o jsonpath='{.spec.clusterIP}'");
    let address: SocketAddr = format!("{address}:80").parse().unwrap();
    eventually("the Service answers", PATIENCE, || ask(address), Result::is_ok).unwrap();

    let pods = pods(&kubectl);
    let calls = while_calling(address, || {
        run(&format!("dpkg --install {new}"));
        let running = fs::read_link(format!("/proc/{}/exe", manager.pid(UNIT))).unwrap();
        assert_eq!(running, Path::new("/usr/bin/roadstead"), "it is the new file");
    });
    eprintln!("{calls} requests while the package was replaced, none failed");
    assert_eq!(run("dpkg-query -W -f '${Version}' roadstead"), "0.1.0+2");
    let [started, stopped] = ["started", "stopped"].map(|what| format!("{what} {UNIT}"));
    assert_eq!(manager.history(), [started.as_str(), &stopped, &started]);
    assert_eq!(fs::read_to_string("/etc/roadstead/config.yaml").unwrap(), CONFIG);
    eventually("the pods go on", PATIENCE, || self::pods(&kubectl), |now| *now == pods);

    fs::write(format!("{DATA}/thesis.txt"), "not ours").unwrap();
    run("dpkg --remove roadstead");
    assert_eq!((traces(), mounts()), before, "pods, rules and links are gone");
    assert!(Path::new(DATA).join("store").exists(), "objects are kept");
    run("dpkg --purge roadstead");
    assert_eq!(run(&format!("ls -A {DATA}")), "roadstead.directory\nthesis.txt", "it stays");
    fs::remove_file(format!("{DATA}/thesis.txt")).unwrap();
    purge_again(&new);
    assert_eq!(self::files(), files, "no file is left");
    assert!(!Path::new("/run/roadstead").exists());
    assert_eq!(manager.history().len(), 4, "stopped: {:?}", manager.history());
}

/// What is written to a directory goes to memory.
fn lay_over(directory: &str) {
    let layer = format!("/run/layers{directory}");
    run(&format!(
        "mkdir -p {layer}/new {layer}/work && mount -t overlay overlay \
         -o lowerdir={directory},upperdir={layer}/new,workdir={layer}/work {directory}"
    ));
}

/// Packs the program twice with one version, which must give the same bytes, and as the version that comes
/// after it. Returns the files of both versions.
fn packages(place: &Path) -> (String, String) {
    let place = &place.display().to_string();
    // Once for all.
    run(&format!("strip -o {place}/program {}", env!("CARGO_BIN_EXE_roadstead")));
    // What is there already: a file of somebody's, and what an earlier run has made.
    run(&format!(
        "mkdir {place}/two && cd {place}/two && touch thesis.txt roadstead_0_amd64.deb && \
                  sha256sum roadstead_0_amd64.deb >SHA256SUMS"
    ));
    let pack = &|to: &str, version: &str| {
        let flags = format!("--fast --binary {place}/program --to {place}/{to}");
        run(&format!("../../scripts/dist {flags} --version {version}"));
        format!("{place}/{to}/roadstead_{version}_amd64.deb")
    };
    let (old, new) = thread::scope(|scope| {
        let [old, _again, new] = [("one", "0.1.0+1"), ("again", "0.1.0+1"), ("two", "0.1.0+2")]
            .map(|(to, version)| scope.spawn(move || pack(to, version)));
        (old.join().unwrap(), new.join().unwrap())
    });
    run(&format!("diff --recursive {place}/one {place}/again"));
    run(&format!("cd {place}/one && sha256sum --check --quiet SHA256SUMS"));
    run(&format!("cd {place}/two && test -f thesis.txt && test ! -e roadstead_0_amd64.deb"));
    let contents = fs::read(format!("{place}/one/roadstead-0.1.0+1.cdx.json")).unwrap();
    let contents: serde_json::Value = serde_json::from_slice(&contents).unwrap();
    assert_eq!(contents["bomFormat"], "CycloneDX");
    (old, new)
}

/// systemd itself understands every line of the units, and finds the programs that they name. Not the manual
/// pages: images of containers often leave them out.
fn verify_units() {
    if !try_run("command -v systemd-analyze").status.success() {
        return eprintln!("NOT RUN: the units before systemd: systemd-analyze is missing");
    }
    let verified =
        try_run("systemd-analyze verify --man=no /usr/lib/systemd/system/roadstead*.service");
    let said = String::from_utf8_lossy(&verified.stderr);
    // Units of others may be odd on this machine.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("roadstead")).collect();
    assert!(verified.status.success() && ours.is_empty(), "{said}");
}

/// The script of a package that is gone already does no harm, and finishes its work.
fn purge_again(package: &str) {
    run(&format!("dpkg-deb --control {package} /run/control"));
    run("sh /run/control/postrm purge && sh /run/control/postrm purge");
    run("sh /run/control/prerm upgrade 0.1.0+3 && sh /run/control/postrm upgrade 0.1.0+3");
}

/// All files that were written over the machine's, except what dpkg and man remember of packages.
fn files() -> BTreeSet<String> {
    let found = run("cd /run/layers && find . -path '*/new/*' ! -type d \
                     ! -path './var/new/lib/dpkg/*' ! -path './var/new/log/*' ! -path './var/new/cache/*'");
    found.lines().map(str::to_owned).collect()
}

fn mounts() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect()
}

/// Which pods there are, since when they run, and how often they were started.
fn pods(kubectl: &Kubectl) -> String {
    let status = "{.status.containerStatuses[0]";
    let fields = ["restartCount", "containerID", "state.running.startedAt"];
    let fields: String = fields.map(|field| format!(" {status}.{field}}}")).concat();
    let each = "{range .items[*]}{.metadata.uid}";
    kubectl.run(&format!("get pods -l app=web -o jsonpath='{each}{fields}{{\"\\n\"}}{{end}}'"))
}

/// Calls a Service again and again while something is done; every call must be answered. Returns how many
/// there were.
fn while_calling(address: SocketAddr, work: impl FnOnce()) -> usize {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let caller = scope.spawn(move || {
            let mut calls = 0;
            while !stop.load(Ordering::Relaxed) {
                let begin = Instant::now();
                if let Err(error) = ask(address) {
                    panic!("call {calls} failed after {:?}: {error}", begin.elapsed());
                }
                calls += 1;
                // Or else it runs out of ports.
                thread::sleep(Duration::from_millis(5));
            }
            calls
        });
        let finished = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        let calls: usize = caller.join().unwrap();
        if let Err(panic) = finished {
            eprintln!("{}", fs::read_to_string(log_of(UNIT)).unwrap_or_default());
            std::panic::resume_unwind(panic);
        }
        assert!(calls > 50, "only {calls}");
        calls
    })
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.starts_with("HTTP/1.1 200") {
        true => Ok(answer),
        false => Err(std::io::Error::other(answer)),
    }
}

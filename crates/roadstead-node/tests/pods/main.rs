//! Pods made by the built-in runtime on a real kernel (layer L4), without an API server.

mod attach;
mod confinement;
mod containerd;
mod exec;
mod host_ports;
mod images;
mod last_words;
mod like_runc;
mod mounts;
mod processes;
mod profiles;
mod serving;
mod serving_exec;
mod serving_forward;
mod two_families;
mod volumes;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use roadstead_component::component::Component;
use roadstead_node::config::{Config, DEFAULT_BRIDGE, Housekeeping, NodeLabels, PolicyWait};
use roadstead_node::runtime::builtin::{BuiltinRuntime, cleanup};
use roadstead_node::runtime::{ContainerRuntime, Stop};
use roadstead_pod::container_config::{ContainerConfig, ContainerStreams};
use roadstead_pod::image::ImageFacts;
use roadstead_pod::pod_name::{NetworkMode, PodName};
use roadstead_pod::recovery::RecoveredState;
use roadstead_pod::resources::{PROCESSES, Resources};
use roadstead_pod::sandbox::{Messages, Processes};
use roadstead_pod::security::Confinement;
use roadstead_pod::sysctls::UnsafeSysctls;
use roadstead_pod::volumes::{Access, Medium, PodVolume, VolumeContent, VolumeMount};
use roadstead_testkit::netns::{is_left_out, laboratory_of, run, try_run};

/// The example beside this test's own executable.
fn executable() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().unwrap().parent().unwrap().join("examples/applets");
    assert!(path.exists(), "{} is missing: build the examples first", path.display());
    path
}

fn config(state_dir: &Path) -> Config {
    Config {
        node_name: "node".into(),
        bridge: DEFAULT_BRIDGE.into(),
        pod_cidrs: vec!["10.244.0.0/24".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        cluster_dns: [10, 96, 0, 10].into(),
        cluster_domain: "cluster.local".into(),
        state_dir: state_dir.into(),
        image_dir: "/run/images".into(),
        registry_config: None,
        registry_authfile: None,
        oci_runtime: None,
        runtime_endpoint: None,
        internal_ips: [192, 0, 2, 1].into(),
        open_files: None,
        allow_privileged: false,
        unsafe_sysctls: UnsafeSysctls::default(),
        node_labels: NodeLabels::default(),
        pod_pids: PROCESSES,
        secure_port: None,
        manifests: None,
        housekeeping: Housekeeping::default(),
        policies: PolicyWait::default(),
        parts: Vec::new(),
        component: Component::default(),
    }
}

fn name(pod: &str) -> PodName {
    PodName { namespace: "default".into(), name: pod.into(), uid: format!("uid-of-{pod}") }
}

fn container_config(pod: &str, container: &str, args: &[&str]) -> ContainerConfig {
    let resolv_conf = "search default.svc.cluster.local\nnameserver 10.96.0.10\n";
    ContainerConfig {
        pod: name(pod),
        container: container.into(),
        image: ImageFacts::built_in("roadstead/echo:latest").unwrap(),
        command: vec![],
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        environment: vec![("PORT".into(), "8080".into())],
        working_directory: None,
        hostname: pod.into(),
        files: BTreeMap::from([("/etc/resolv.conf".to_owned(), resolv_conf.to_owned())]),
        confinement: Confinement::default(),
        resources: Resources::default(),
        mounts: vec![],
        stop_signal: None,
        processes: Processes::Own,
        messages: Messages::Pod,
        termination_message: None,
        restarts: 0,
        streams: ContainerStreams::default(),
    }
}

fn empty_directory(name: &str, medium: Medium) -> PodVolume {
    let content = VolumeContent::EmptyDirectory(medium);
    PodVolume { name: name.into(), content, group: None }
}

fn mounted(volume: PodVolume, path: &str) -> VolumeMount {
    let (access, propagation) = Default::default();
    VolumeMount { volume, sub_path: None, path: path.into(), access, propagation }
}

/// Starts a pod with one container; returns its address.
async fn start(runtime: &BuiltinRuntime, pod: &str, args: &[&str]) -> IpAddr {
    let addresses = runtime.create_sandbox(&name(pod), NetworkMode::Own.into()).await.unwrap();
    runtime.start(container_config(pod, "main", args)).await.unwrap();
    addresses.first
}

/// Runs a command in a container of its own in the pod; returns its exit code and output.
async fn exec(runtime: &BuiltinRuntime, pod: &str, args: &[&str]) -> (i32, String) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let container = format!("exec-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    runtime.start(container_config(pod, &container, args)).await.unwrap();
    let exit = runtime.wait(&name(pod), &container).await;
    (exit.code, log(pod, &container))
}

/// The texts in a container's log.
fn log(pod: &str, container: &str) -> String {
    let path = format!("/run/state/logs/default_{pod}_uid-of-{pod}/{container}/0.log");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or("?").to_owned() + "\n").collect()
}

/// Fetches from the node, patiently: a server needs a moment to open its port.
fn fetch(address: IpAddr, path: &str) -> String {
    let applets = executable();
    let command =
        format!("{} --roadstead-applet curl -s -m 1 {address}:8080{path}", applets.display());
    for _ in 0..50 {
        let output = try_run(&command);
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no answer from {address}: {:?}", try_run(&command));
}

fn in_laboratory(body: impl AsyncFnOnce(Config)) {
    laboratory_of("L4", || block_on(body));
}

fn block_on(body: impl AsyncFnOnce(Config)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(body(config(Path::new("/run/state"))));
}

/// The processes that were made from the example: seen from outside their root directories, some
/// have its path and some the path that they know it by.
fn processes() -> Vec<String> {
    let own = executable();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let ours = entries.filter_map(|entry| {
        let exe = fs::read_link(entry.path().join("exe")).ok()?;
        // It runs from a mount that is nowhere to be seen.
        let is_ours = exe == own || ["/", "/bin/roadstead"].map(Path::new).contains(&&*exe);
        is_ours.then(|| fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default())
    });
    // What makes processes goes with the runtime.
    ours.filter(|line| !line.contains("pod-forker")).collect()
}

/// What the monitor of a pod's container wrote down.
fn pid(pod: &str, which: &str) -> String {
    let text = fs::read(format!("/run/state/pods/uid-of-{pod}/main/running.json")).unwrap();
    let running: serde_json::Value = serde_json::from_slice(&text).unwrap();
    running[which]["pid"].to_string()
}

#[test]
fn programs_do_not_get_the_agents_limit_of_files() {
    in_laboratory(async |config| {
        let config = Config { open_files: Some(77), ..config };
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        start(&runtime, "one", &[]).await;
        let limits = fs::read_to_string(format!("/proc/{}/limits", pid("one", "init"))).unwrap();
        let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        assert_eq!(files.split_whitespace().nth(3), Some("77"), "{files}");
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn two_pods_talk() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let began = Instant::now();
        let one = start(&runtime, "one", &[]).await;
        eprintln!("from nothing to running: {:?}", began.elapsed());
        let two = start(&runtime, "two", &[]).await;
        assert_eq!((one, two), ([10, 244, 0, 2].into(), [10, 244, 0, 3].into()));

        assert_eq!(fetch(one, "/"), "one\n", "from the node");
        assert_eq!(fetch(two, "/any/path"), "two\n");
        let (code, text) = exec(&runtime, "one", &["curl", "-s", &format!("{two}:8080")]).await;
        assert_eq!((code, text.as_str()), (0, "two\n"), "from pod to pod");
        let (code, _) = exec(&runtime, "one", &["curl", "-s", &format!("{two}:9")]).await;
        assert_eq!(code, 7, "nobody listens there");
        let (_, text) = exec(&runtime, "one", &["curl", "-s", "127.0.0.1:8080"]).await;
        assert_eq!(text, "one\n", "containers of a pod share its network");

        assert_eq!(fetch(one, "/healthz"), "ok");
        fetch(one, "/fail");
        assert_eq!(fetch(one, "/healthz"), "failing\n");
        fetch(one, "/ok");
        assert_eq!(fetch(one, "/healthz"), "ok");

        let route = run("ip route get 10.96.0.1");
        assert!(route.contains("dev roadstead0 src 10.244.0.1"), "{route}");
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn a_container_sees_only_its_own_files_and_processes() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let address = start(&runtime, "one", &[]).await;
        fetch(address, "/");
        let root = format!("/proc/{}/root", pid("one", "init"));
        let look = |command: &str| run(&format!("cd {root} && {command}"));
        let libraries = ["lib", "lib64", "usr"];
        let entries = look("ls");
        let entries: Vec<_> = entries.lines().filter(|name| !libraries.contains(name)).collect();
        assert_eq!(entries, ["bin", "dev", "etc", "proc", "sys", "tmp"]);
        assert_eq!(look("head -1 etc/resolv.conf"), "search default.svc.cluster.local");
        assert_eq!(look("ls proc | grep -c '^[0-9]'"), "2", "process 1 and the server");
        assert_eq!(look("tr '\\0' ' ' < proc/2/cmdline").trim(), "/bin/echo");
        assert!(!try_run(&format!("echo x > {root}/bin/roadstead")).status.success(), "read-only");
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

/// A line of what the kernel says about the command of a container.
#[test]
fn containers_of_a_pod_share_its_empty_directories() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        fetch(start(&runtime, "one", &[]).await, "/");
        for medium in [Medium::Disk, Medium::Memory { size: Some(1 << 20) }] {
            let name_of = |medium| if medium == Medium::Disk { "disk" } else { "memory" };
            let volume = empty_directory(name_of(medium), medium);
            let write = async |path: &str, at: &str, read_only: bool| {
                let mut container_config = container_config(
                    "one",
                    "writer",
                    &["curl", "-s", "-o", path, "127.0.0.1:8080"],
                );
                container_config.mounts = vec![VolumeMount {
                    access: if read_only { Access::ReadOnly } else { Access::ReadWrite },
                    ..mounted(volume.clone(), at)
                }];
                container_config.confinement.read_only_root = true;
                runtime.start(container_config).await.unwrap();
                runtime.wait(&name("one"), "writer").await.code
            };
            assert_eq!(write("/a/b/x", "/a/b", false).await, 0, "{medium:?}");
            assert_eq!(write("/other/y", "/other", true).await, 23, "{medium:?}");
            let directory = format!("/run/state/pods/uid-of-one/.volumes/{}", volume.name);
            assert_eq!(run(&format!("ls {directory}; stat -c %a {directory}")), "x\n777");
            assert_eq!(run(&format!("cat {directory}/x")), "one");
        }
        // A link of our own root leads nowhere.
        let mut container_config = container_config("one", "linked", &[]);
        let volume = empty_directory("disk", Medium::Disk);
        container_config.mounts = vec![mounted(volume, "/dev/fd/x")];
        let refusal = runtime.start(container_config).await.unwrap_err().to_string();
        assert!(refusal.contains("cannot make /dev/fd/x"), "{refusal}");
        // The one in memory, and the memory and messages that all containers of the pod share.
        assert_eq!(run("grep -c .volumes /proc/self/mounts"), "3");
        runtime.remove(&name("one")).await.unwrap();
        assert_eq!(run("grep -c .volumes /proc/self/mounts || true"), "0");
        assert_eq!(run("ls /run/state/pods"), "");
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn containers_end_as_they_are_told() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let cases = [("graceful", Stop::Gracefully, 143), ("killed", Stop::Now, 137)];
        for (pod, how, code) in cases {
            start(&runtime, pod, &["sleep", "infinity"]).await;
            runtime.stop(&name(pod), "main", how);
            let exit = runtime.wait(&name(pod), "main").await;
            assert_eq!((exit.code, exit.reason.as_str()), (code, "Error"), "{pod}");
        }
        start(&runtime, "done", &["sleep", "0"]).await;
        let exit = runtime.wait(&name("done"), "main").await;
        assert_eq!((exit.code, exit.reason.as_str()), (0, "Completed"));
        assert_eq!(processes(), [""; 0]);
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn what_cannot_start_says_why() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        runtime.create_sandbox(&name("one"), NetworkMode::Own.into()).await.unwrap();
        let mut wrong = container_config("one", "main", &[]);
        wrong.command = vec!["bash".into()];
        let error = runtime.start(wrong).await.unwrap_err();
        assert!(error.to_string().starts_with("exec: \"bash\""), "{error}");
        let mut wrong = container_config("one", "main", &[]);
        wrong.working_directory = Some("/nowhere".into());
        let error = runtime.start(wrong).await.unwrap_err();
        assert!(error.to_string().contains("run /bin/echo"), "{error}");
        assert_eq!(processes(), [""; 0]);
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn the_next_agent_finds_what_this_one_left() {
    in_laboratory(async |config| {
        let first = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let address = start(&first, "stays", &[]).await;
        start(&first, "ends", &["sleep", "0"]).await;
        first.wait(&name("ends"), "main").await;
        start(&first, "dies", &[]).await;
        drop(first);
        // The monitor is killed, and takes its container with it, without a word.
        run(&format!("kill -9 {}", pid("dies", "monitor")));
        std::thread::sleep(Duration::from_millis(200));

        let second = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let recovered = second.recovered();
        let state = |pod: &str| {
            let pod = recovered.iter().find(|found| found.pod == name(pod)).unwrap();
            pod.containers["main"].state.clone()
        };
        assert!(matches!(state("stays"), RecoveredState::Running(_)));
        assert!(matches!(state("ends"), RecoveredState::Exited(exit) if exit.code == 0));
        assert!(matches!(state("dies"), RecoveredState::Exited(exit) if exit.code == 137));
        assert_eq!(fetch(address, "/"), "stays\n");
        let fresh = start(&second, "fresh", &[]).await;
        assert_eq!(fresh, IpAddr::from([10, 244, 0, 5]), "no address is given twice");
        second.stop(&name("stays"), "main", Stop::Gracefully);
        assert_eq!(second.wait(&name("stays"), "main").await.code, 143, "adopted");
        drop(second);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn the_pod_network_heals() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let address = start(&runtime, "one", &[]).await;
        let two = start(&runtime, "two", &[]).await;
        fetch(two, "/");
        let link = run("ip -br link show type veth | head -1 | cut -d@ -f1");
        let harm = [
            "ip link del roadstead0".to_owned(),
            "ip link set roadstead0 down".into(),
            "ip address del 10.244.0.1/24 dev roadstead0".into(),
            "ip route del 10.96.0.0/12".into(),
            format!("ip link del {link}"),
            format!("ip link set {link} nomaster"),
            format!("ip link set {link} down"),
        ];
        let whole = || {
            try_run("ip route get 10.96.0.1 | grep -q 'dev roadstead0 src 10.244.0.1'")
                .status
                .success()
                && [address, two].iter().all(|address| {
                    let curl = format!("curl -s -m 0.3 http://{address}:8080/");
                    try_run(&curl).status.success()
                })
        };
        let keep = runtime.maintain();
        let hurt = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            for command in &harm {
                run(command);
                let begin = Instant::now();
                while !whole() {
                    assert!(begin.elapsed() < Duration::from_secs(10), "{command} is not healed");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                eprintln!("{command}: healed after {:?}", begin.elapsed());
            }
        };
        tokio::select! {
            () = keep => panic!("it gave up"),
            () = hurt => {}
        }
        let (_, text) = exec(&runtime, "one", &["curl", "-s", &format!("{two}:8080")]).await;
        assert_eq!(text, "two\n", "from pod to pod");

        // What happens while no agent runs is healed by the next one.
        drop(runtime);
        run("ip link del roadstead0");
        run(&format!("ip link del {link}"));
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        assert_eq!((fetch(address, "/"), fetch(two, "/")), ("one\n".into(), "two\n".into()));
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn cleanup_leaves_nothing() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        for pod in ["one", "two", "three"] {
            start(&runtime, pod, &[]).await;
        }
        assert_eq!(processes().len(), 9, "monitor, process 1 and server, thrice");
        let monitors =
            |all: &[String]| all.iter().filter(|line| line.contains("pod-monitor")).count();
        assert!(monitors(&processes()) >= 3, "{:?}", processes());
        runtime.remove(&name("two")).await.unwrap();
        assert_eq!(processes().len(), 6);
        assert_eq!(run("ip -br link show type veth | wc -l"), "2");

        assert!(cleanup(&config).await.is_err(), "not while an agent runs");
        drop(runtime);
        cleanup(&config).await.unwrap();
        assert_eq!(processes(), [""; 0]);
        assert_eq!(run("ip -br link | wc -l"), "1", "only lo: {}", run("ip -br link"));
        assert_eq!(run("ip route | wc -l"), "0");
        assert_eq!(run("ls /run/state | wc -l"), "0");
        assert_eq!(run("grep -c roadstead /proc/self/mounts || true"), "0");
        cleanup(&config).await.unwrap();
    });
}

//! Pods that containerd runs, over CRI: Debian's package, with directories of its own.

use std::process::{Child, Command, Stdio};

use roadstead_node::runtime::Images;
use roadstead_node::runtime::attach::AttachOrder;
use roadstead_node::runtime::cri::images::CriImages;
use roadstead_node::runtime::cri::{self, CriRuntime};
use roadstead_node::runtime::exec::{ExecOrder, ExecSession};
use roadstead_pod::sandbox::SandboxOrder;
use roadstead_pod::termination_message::{Otherwise, TerminationMessage};
use roadstead_testkit::netns::laboratory_of_users;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// What `scripts/test` leaves out where there is no containerd.
const LAYER: &str = "containerd";
const SOCKET: &str = "/run/containerd/containerd.sock";

/// The daemon, which ends with this.
struct Containerd(Child);

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Containerd {
    /// Starts it in the laboratory, and waits until it answers.
    fn start() -> Self {
        for needed in ["busybox", "runc", "containerd", "ctr"] {
            let found = try_run(&format!("command -v {needed}")).status.success();
            assert!(
                found,
                "{needed} is missing (set ROADSTEAD_SKIP={LAYER} to leave these tests out)"
            );
        }
        run("mkdir -p /run/containerd");
        let unused = ["aufs", "btrfs", "devmapper", "zfs"]
            .map(|name| format!("\"io.containerd.snapshotter.v1.{name}\""));
        let configuration = format!(
            "version = 2\nroot = \"/run/containerd/root\"\nstate = \"/run/containerd/state\"\n\
             disabled_plugins = [\"io.containerd.internal.v1.opt\", {}]\n\
             [grpc]\naddress = \"{SOCKET}\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\n\
             sandbox_image = \"registry.k8s.io/pause:3.6\"\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\n\
             conf_dir = \"/run/state/cni/net.d\"\nbin_dir = \"/run/state/cni/bin\"\n",
            unused.join(", ")
        );
        fs::write("/run/containerd/config.toml", configuration).unwrap();
        let log = fs::File::create("/run/containerd/log").unwrap();
        let daemon = Command::new("containerd")
            .args(["--config", "/run/containerd/config.toml"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let daemon = Self(daemon);
        for _ in 0..300 {
            if ctr("version").status.success() {
                return daemon;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("containerd does not answer: {}", run("tail -20 /run/containerd/log"));
    }
}

fn ctr(arguments: &str) -> std::process::Output {
    try_run(&format!("ctr -a {SOCKET} -n k8s.io {arguments}"))
}

/// Gives containerd an image of busybox under these names, one of which it makes sandboxes from.
fn import_image() {
    run("mkdir -p /run/saved/layer/bin /run/saved/layer/etc && cd /run/saved
         cp $(command -v busybox) layer/bin/busybox
         ldd layer/bin/busybox 2>/dev/null | grep -o '/[^ ]*' | while read library; do
             mkdir -p layer$(dirname $library) && cp -L $library layer$library
         done
         for name in sh cat echo env grep id sleep httpd ls touch true tty stty hostname head; do
             ln -s busybox layer/bin/$name
         done
         printf 'root:x:0:0::/root:/bin/sh\\nweb:x:101:33::/srv:/bin/sh\\n' > layer/etc/passwd
         tar -cf layer.tar -C layer . && rm -r layer");
    let digest = run("sha256sum /run/saved/layer.tar | cut -d' ' -f1");
    let save = |file: &str, config: serde_json::Value, tag: &str| {
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        });
        fs::write("/run/saved/config.json", config.to_string()).unwrap();
        let list = json!([{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]);
        fs::write("/run/saved/manifest.json", list.to_string()).unwrap();
        run(&format!("cd /run/saved && tar -cf {file} config.json manifest.json layer.tar"));
        let imported = ctr(&format!("images import /run/saved/{file}"));
        assert!(imported.status.success(), "{imported:?}");
    };
    let pause = json!({"Entrypoint": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]});
    save("pause.tar", pause, "registry.k8s.io/pause:3.6");
    let own = json!({"Entrypoint": ["/bin/sh", "-c"], "Env": ["PATH=/bin", "FROM_IMAGE=yes"],
                     "User": "web", "WorkingDir": "/etc"});
    save("own.tar", own, "docker.io/library/busybox:test");
}

fn with_containerd(body: impl AsyncFnOnce(&Config, CriRuntime, CriImages)) {
    laboratory_of_users(LAYER, || {
        block_on(async |config| {
            let daemon = Containerd::start();
            import_image();
            let (runtime, images) = begin(&config).await;
            body(&config, runtime, images).await;
            cri::cleanup(&config, Path::new(SOCKET)).await.unwrap();
            drop(daemon);
        });
    });
}

/// Starts the agent's side, when containerd has read where the plugins are.
async fn begin(config: &Config) -> (CriRuntime, CriImages) {
    CriRuntime::start(config, Path::new(SOCKET), &executable()).await.unwrap()
}

fn shell(image: &ImageFacts, container: &str, line: &str) -> ContainerConfig {
    ContainerConfig {
        image: image.clone(),
        environment: vec![("OWN".into(), "1".into())],
        termination_message: Some(TerminationMessage {
            path: "/dev/termination-log".into(),
            otherwise: Otherwise::Nothing,
        }),
        ..container_config("one", container, &[line])
    }
}

fn order() -> SandboxOrder {
    SandboxOrder { hostname: "one".into(), ..NetworkMode::Own.into() }
}

async fn result(runtime: &CriRuntime, config: ContainerConfig) -> (i32, String) {
    let container = config.container.clone();
    runtime.start(config).await.unwrap();
    let exit = runtime.wait(&name("one"), &container).await;
    (exit.code, log("one", &container))
}

async fn command(runtime: &CriRuntime, words: &[&str], output_only: bool) -> (i32, String) {
    let command = words.iter().map(|word| (*word).to_owned()).collect();
    let order = ExecOrder { command, output_only, ..ExecOrder::default() };
    let session = runtime.exec(&name("one"), "main", order).await.unwrap();
    let (code, output) = session.output(1 << 16).await;
    (code, String::from_utf8_lossy(&output).into_owned())
}

/// Everything of a pod that this machine can show, outside of containerd's own directories.
fn left() -> String {
    run("ls /run/state/pods /run/state/logs /run/state/netns /run/netns | grep -v : | grep . || true
         ip -o link | grep -o 'pod[0-9a-f]\\{12\\}' || true
         own=roadstead-$(stat -Lc %i /proc/self/ns/net)
         # The number may have been that of another test, which was killed; ours have these names.
         ls -d /sys/fs/cgroup/$own/poduid-of-* /sys/fs/cgroup/*/$own/poduid-of-* 2>/dev/null || true
         grep -E '/run/state/(pods|netns)' /proc/self/mounts || true")
}

#[test]
fn a_pod_of_containerd_from_beginning_to_end() {
    with_containerd(async |_, runtime, images| {
        assert_eq!(runtime.notes(), [], "containerd is ready");
        assert_eq!(images.find("busybox:other").await.unwrap(), None);
        let image = images.find("busybox:test").await.unwrap().expect("it was imported");
        let address = runtime.create_sandbox(&name("one"), order()).await.unwrap().first;
        assert_eq!(address, IpAddr::from([10, 244, 0, 2]));

        let line = "id -u; id -g; pwd; hostname; echo $OWN $FROM_IMAGE $HOME; \
                    cat /etc/resolv.conf; echo oops >&2; echo bye > /dev/termination-log; exit 7";
        let mut unresolved = shell(&image, "said", line);
        unresolved.confinement.unresolved =
            Some(roadstead_pod::security::Unresolved { user: Some("web".into()), group: true });
        runtime.start(unresolved).await.unwrap();
        let exit = runtime.wait(&name("one"), "said").await;
        assert_eq!((exit.code, exit.reason.as_str()), (7, "Error"));
        assert_eq!(exit.message.as_deref(), Some("bye\n"));
        let want = "101\n33\n/etc\none\n1 yes /srv\nsearch default.svc.cluster.local\n\
                    nameserver 10.96.0.10\n";
        let text = log("one", "said");
        assert_eq!(text.replace("oops\n", ""), want);
        assert!(text.contains("oops\n"));
        let lines =
            fs::read_to_string("/run/state/logs/default_one_uid-of-one/said/0.log").unwrap();
        assert!(lines.contains(" stderr F oops\n"), "{lines}");

        // A server, reached over our own network.
        let mut server = shell(&image, "main", "exec httpd -f -p 8080 -h /srv");
        server.mounts = vec![mounted(empty_directory("v", Medium::Disk), "/srv")];
        runtime.start(server).await.unwrap();
        fs::write("/run/state/pods/uid-of-one/.volumes/v/index.html", "hello\n").unwrap();
        assert_eq!(fetch(address, "/index.html"), "hello\n");
        assert!(runtime.dial(&name("one"), 8080).await.is_ok());

        for sync in [true, false] {
            let (code, text) = command(&runtime, &["sh", "-c", "echo $OWN; exit 3"], sync).await;
            assert_eq!((code, text.as_str()), (3, "1\n"), "{sync}");
        }
        let order = ExecOrder { command: vec!["cat".into()], stdin: true, ..ExecOrder::default() };
        let session = runtime.exec(&name("one"), "main", order).await.unwrap();
        let ExecSession { stdin, mut stdout, process, .. } = session;
        let mut stdin = stdin.unwrap();
        stdin.write_all(b"typed").await.unwrap();
        drop(stdin);
        let mut text = String::new();
        stdout.read_to_string(&mut text).await.unwrap();
        assert_eq!((text.as_str(), process.wait().await), ("typed", 0), "the input has an end");

        let usage = runtime.usage().await;
        assert!(usage[0].containers["main"].1.cpu.is_some_and(|cpu| cpu > 0), "{usage:?}");
        let wrong =
            ContainerConfig { command: vec!["nonesuch".into()], ..shell(&image, "wrong", "x") };
        let error = runtime.start(wrong).await.unwrap_err().to_string();
        assert!(error.contains("nonesuch"), "{error}");

        runtime.stop(&name("one"), "main", Stop::Now);
        let exit = runtime.wait(&name("one"), "main").await;
        assert_eq!((exit.code, exit.reason.as_str()), (137, "Error"));
        runtime.remove(&name("one")).await.unwrap();
        assert_eq!(left(), "");
        let containers = ctr("containers ls -q");
        assert_eq!(String::from_utf8_lossy(&containers.stdout), "", "nothing is left there");
    });
}

#[test]
fn pods_of_containerd_outlive_the_agent() {
    with_containerd(async |config, first, images| {
        let image = images.find("busybox:test").await.unwrap().unwrap();
        let address = first.create_sandbox(&name("one"), order()).await.unwrap();
        let polite = "trap 'exit 9' TERM; echo up; while true; do sleep 0.05; done";
        first.start(shell(&image, "main", polite)).await.unwrap();
        assert_eq!(result(&first, shell(&image, "done", "exit 4")).await.0, 4);
        first.create_sandbox(&name("gone"), order()).await.unwrap();
        drop((first, images));
        // Its record is lost: nobody will ask for it any more.
        run("rm -r /run/state/pods/uid-of-gone");

        let (second, images) = begin(config).await;
        let recovered = second.recovered();
        assert_eq!(recovered.len(), 1, "{recovered:?}");
        assert_eq!(recovered[0].addresses, Some(address));
        let state = |container: &str| recovered[0].containers[container].state.clone();
        assert!(matches!(state("main"), RecoveredState::Running(_)));
        assert!(matches!(state("done"), RecoveredState::Exited(exit) if exit.code == 4));
        while log("one", "main") != "up\n" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let attached = AttachOrder { stdout: true, ..AttachOrder::default() };
        assert!(second.attach(&name("one"), "main", attached).await.is_ok());
        second.stop(&name("one"), "main", Stop::Gracefully);
        assert_eq!(second.wait(&name("one"), "main").await.code, 9, "it was asked to end");

        // A second run in the same sandbox; the first one's log stays.
        let again = ContainerConfig { restarts: 1, ..shell(&image, "main", "echo again") };
        second.start(again).await.unwrap();
        assert_eq!(second.wait(&name("one"), "main").await.code, 0);
        let found = second.log(&name("one"), "main").unwrap();
        assert!((found.ended)() && found.previous.is_some());
        assert!(fs::read_to_string(found.path).unwrap().ends_with(" stdout F again\n"));

        // What is finished keeps how it ended until it is removed.
        second.remove_sandbox(&name("one")).await.unwrap();
        drop((second, images));
        let (third, _images) = begin(config).await;
        let recovered = third.recovered();
        assert_eq!(recovered[0].addresses, None);
        let ended = &recovered[0].containers["main"];
        assert_eq!(ended.restarts, 1);
        assert!(matches!(&ended.state, RecoveredState::Exited(exit) if exit.code == 0));
        third.remove(&name("one")).await.unwrap();
        assert_eq!(left(), "");
    });
}

//! Pods whose containers see each other's processes, or those of the node.

use roadstead_node::runtime::exec::ExecOrder;

use super::exec::join;
use super::images::{result, shell, with_image};
use super::*;

fn shared(image: &ImageFacts, container: &str, line: &str) -> ContainerConfig {
    ContainerConfig { processes: Processes::Pod, ..shell(image, container, line) }
}

async fn exec_in(runtime: &BuiltinRuntime, container: &str, line: &str) -> (i32, String) {
    let command = ["sh", "-c", line].map(str::to_owned).into();
    let order = ExecOrder { command, ..ExecOrder::default() };
    let session = runtime.exec(&name("one"), container, order).await.unwrap();
    let (code, text) = session.output(1 << 20).await;
    (code, String::from_utf8(text).unwrap())
}

#[test]
fn containers_of_a_pod_see_each_other() {
    with_image(async |config, runtime, image| {
        runtime.start(shared(&image, "main", "exec sleep 1234")).await.unwrap();
        runtime.start(shared(&image, "other", "exec sleep 4321")).await.unwrap();
        let look = "cat /proc/1/cmdline | busybox tr -d '\\0'; echo; cat /proc/1/comm
            for process in /proc/[0-9]*; do cat $process/cmdline | busybox tr '\\0' ' '; echo; done";
        let (code, seen) = join(runtime, &["sh", "-c", look]).await;
        assert_eq!(code, 0);
        assert!(seen.starts_with("/pause\npause\n"), "{seen}");
        assert!(seen.contains("sleep 1234 \n") && seen.contains("sleep 4321 \n"), "{seen}");

        // A built-in image is among them, too, with all that it starts.
        let mut built_in = container_config("one", "echo", &[]);
        built_in.processes = Processes::Pod;
        runtime.start(built_in).await.unwrap();
        let (_, seen) = join(runtime, &["sh", "-c", look]).await;
        assert!(seen.contains("/bin/echo"), "{seen}");

        // What keeps the namespace shows nothing of the node, and cannot be ended from within.
        let (_, seen) = join(
            runtime,
            &[
                "sh",
                "-c",
                "ls /proc/1/root /proc/1/cwd; readlink /proc/1/exe; readlink /proc/1/fd/0; \
              cat /proc/1/maps /proc/1/environ | busybox head -c 9; kill -9 1; kill 1; \
              busybox grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):' /proc/1/status",
            ],
        )
        .await;
        let kept: Vec<_> =
            seen.lines().filter(|line| !line.contains("Permission denied")).collect();
        let kept: Vec<_> = kept.iter().map(|line| line.replace('\t', " ")).collect();
        let none = "0000000000000000";
        let want = [
            format!("CapPrm: {none}"),
            format!("CapEff: {none}"),
            format!("CapBnd: {none}"),
            "NoNewPrivs: 1".into(),
            "Seccomp: 2".into(),
        ];
        assert_eq!(kept, want, "{seen}");
        let keeper = fs::read("/run/state/pods/uid-of-one/.volumes/.pause").unwrap();
        let keeper: serde_json::Value = serde_json::from_slice(&keeper).unwrap();
        assert_eq!(run(&format!("ls -A /proc/{}/root/", keeper["pid"])), "");
        assert_eq!(run(&format!("ls /proc/{}/fd", keeper["pid"])), "0\n1\n2");

        // Each ends as it is told, and with all that it has started; the others go on.
        let line = "sleep 777 & trap 'exit 9' INT; while true; do sleep 0.05; done";
        runtime.start(shared(&image, "third", line)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        runtime.stop(&name("one"), "third", Stop::Gracefully);
        assert_eq!(runtime.wait(&name("one"), "third").await.code, 9);
        assert_eq!(run("pgrep -fc 'sleep [7]77' || true"), "0");
        runtime.stop(&name("one"), "echo", Stop::Now);
        assert_eq!(runtime.wait(&name("one"), "echo").await.code, 137);
        runtime.stop(&name("one"), "other", Stop::Now);
        assert_eq!(runtime.wait(&name("one"), "other").await.code, 137);
        assert_eq!(exec_in(runtime, "main", "echo still").await, (0, "still\n".into()));
        let _ = config;
    });
}

#[test]
fn a_pod_survives_its_agent_and_not_what_keeps_it() {
    with_image(async |config, runtime, image| {
        runtime.start(shared(&image, "main", "sleep 1234")).await.unwrap();
        let keeper = || {
            let text = fs::read("/run/state/pods/uid-of-one/.volumes/.pause").unwrap();
            let keeper: serde_json::Value = serde_json::from_slice(&text).unwrap();
            keeper["pid"].as_i64().unwrap()
        };
        let first = keeper();
        run(&format!("kill -9 {first}"));
        assert_eq!(runtime.wait(&name("one"), "main").await.code, 137, "the kernel ends them all");
        // There is a new one for the next run.
        let again = ContainerConfig { restarts: 1, ..shared(&image, "main", "sleep 1234") };
        runtime.start(again).await.unwrap();
        let second = keeper();
        assert_ne!(second, first);
        assert_eq!(exec_in(runtime, "main", "cat /proc/1/comm").await, (0, "pause\n".into()));
        let _ = config;
        runtime.remove(&name("one")).await.unwrap();
        assert!(!Path::new(&format!("/proc/{second}/ns")).exists(), "it is gone with the pod");
        assert_eq!(run("pgrep -fc '^/paus[e]' || true"), "0");
    });
}

#[test]
fn who_has_the_nodes_processes_ends_alone() {
    with_image(async |_, runtime, image| {
        let on_node = |container: &str, line: &str| {
            let config = shell(&image, container, line);
            ContainerConfig { processes: Processes::Node, messages: Messages::Node, ..config }
        };
        let own = std::process::id();
        fs::write("/dev/shm/roadstead-test", "the node's\n").unwrap();
        let line = format!(
            "cat /proc/{own}/comm; readlink /proc/self/ns/ipc; cat /dev/shm/roadstead-test"
        );
        let (code, seen) = result(runtime, on_node("look", &line)).await;
        fs::remove_file("/dev/shm/roadstead-test").unwrap();
        let comm = fs::read_to_string("/proc/self/comm").unwrap();
        let messages = run("readlink /proc/self/ns/ipc");
        assert_eq!((code, seen), (0, format!("{comm}{messages}\nthe node's\n")));

        // What it leaves running ends with it, by its group.
        let (code, _) = result(runtime, on_node("leave", "sleep 778 & exit 3")).await;
        assert_eq!(code, 3);
        assert_eq!(run("pgrep -fc 'sleep [7]78' || true"), "0");
        let mut built_in = container_config("one", "main", &["sleep", "779"]);
        built_in.processes = Processes::Node;
        runtime.start(built_in).await.unwrap();
        assert_eq!(run("pgrep -fc '^/bin/sleep [7]79'"), "1");
        // Even if nobody is left who could tell.
        run(&format!("kill -9 {}", pid("one", "monitor")));
        assert_eq!(runtime.wait(&name("one"), "main").await.code, 137);
        let began = Instant::now();
        while run("pgrep -fc '^/bin/sleep [7]79' || true") != "0" {
            assert!(began.elapsed() < Duration::from_secs(20), "it goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

//! Containers of OCI images: put together from layers, run by the machine's OCI runtime.

use std::os::unix::fs::PermissionsExt;

use roadstead_images::archive;
use roadstead_images::store::ImageStore;
use roadstead_node::images::StoredImages;
use roadstead_node::runtime::Images;
use roadstead_pod::image::ImageContent;
use serde_json::json;

use roadstead_testkit::netns::laboratory_of_users;

use super::*;

/// What `scripts/test` leaves out where a machine has no OCI runtime.
const LAYER: &str = "images";

/// Loads an image of two layers as `docker save` would have written it: busybox, and a change on top.
fn load_busybox(config: &Config) {
    for needed in ["busybox", "runc"] {
        let found = try_run(&format!("command -v {needed}")).status.success();
        assert!(found, "{needed} is missing (set ROADSTEAD_SKIP={LAYER} to leave these tests out)");
    }
    let place = Path::new("/run/saved");
    run("mkdir -p /run/saved/one/bin /run/saved/one/etc /run/saved/one/srv /run/saved/two/srv
         cp $(command -v busybox) /run/saved/one/bin/busybox
         ldd /run/saved/one/bin/busybox 2>/dev/null | grep -o '/[^ ]*' | while read library; do
             mkdir -p /run/saved/one$(dirname $library) && cp -L $library /run/saved/one$library
         done
         for name in sh cat echo env grep id nc readlink sleep stty httpd ls touch true tty hostname; do
             ln -s busybox /run/saved/one/bin/$name
         done
         echo old > /run/saved/one/srv/old
         printf 'root:x:0:0::/root:/bin/sh\\nweb:x:101:33::/srv:/bin/sh\\n' > /run/saved/one/etc/passwd
         echo new > /run/saved/two/srv/index.html
         touch /run/saved/two/srv/.wh.old
         cd /run/saved
         for layer in one two; do tar -cf $layer.tar -C $layer .; rm -r $layer; done");
    let digest = |name: &str| run(&format!("sha256sum /run/saved/{name} | cut -d' ' -f1"));
    let configuration = json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": ["/bin/sh", "-c"], "Cmd": ["sleep 60"], "WorkingDir": "/srv",
                   "Env": ["PATH=/bin", "FROM_IMAGE=yes"], "StopSignal": "SIGINT"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest("one.tar")),
                                                   format!("sha256:{}", digest("two.tar"))]},
    });
    fs::write(place.join("config.json"), configuration.to_string()).unwrap();
    let list = json!([{"Config": "config.json", "RepoTags": ["busybox:test"],
                       "Layers": ["one.tar", "two.tar"]}]);
    fs::write(place.join("manifest.json"), list.to_string()).unwrap();
    let store = ImageStore::open(&config.image_dir).unwrap();
    archive::load(&store, place, None).unwrap();
}

async fn facts(config: &Config) -> ImageFacts {
    let images = StoredImages::open(config).unwrap();
    assert_eq!(images.find("busybox:other").await.unwrap(), None);
    images.find("busybox:test").await.unwrap().expect("it was loaded")
}

/// A container that runs a line of the image's shell.
pub(super) fn shell(image: &ImageFacts, container: &str, line: &str) -> ContainerConfig {
    ContainerConfig {
        image: image.clone(),
        environment: [("PATH", "/bin"), ("HOME", "/root"), ("OWN", "1")]
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        ..container_config("one", container, &[line])
    }
}

/// Runs it to its end; returns its exit code and what it printed.
pub(super) async fn result(runtime: &BuiltinRuntime, config: ContainerConfig) -> (i32, String) {
    let container = config.container.clone();
    runtime.start(config).await.unwrap();
    let exit = runtime.wait(&name("one"), &container).await;
    (exit.code, log("one", &container))
}

pub(super) fn with_image(body: impl AsyncFnOnce(&Config, &Arc<BuiltinRuntime>, ImageFacts)) {
    laboratory_of(LAYER, || block_on(around(body)));
}

/// The same where there are more users than root.
pub(super) fn with_image_of_users(
    body: impl AsyncFnOnce(&Config, &Arc<BuiltinRuntime>, ImageFacts),
) {
    laboratory_of_users(LAYER, || block_on(around(body)));
}

fn around(
    body: impl AsyncFnOnce(&Config, &Arc<BuiltinRuntime>, ImageFacts),
) -> impl AsyncFnOnce(Config) {
    async |config| {
        load_busybox(&config);
        let image = facts(&config).await;
        let before = groups();
        let runtime = Arc::new(BuiltinRuntime::start(&config, executable()).await.unwrap());
        runtime.create_sandbox(&name("one"), NetworkMode::Own.into()).await.unwrap();
        body(&config, &runtime, image).await;
        drop(runtime);
        cleanup(&config).await.unwrap();
        assert_eq!(run("grep -c '/run/state' /proc/self/mounts || true"), "0");
        assert_eq!(run("ls /run/state | wc -l"), "0");
        // Namespaces take the numbers of earlier ones, and somebody else's groups may go meanwhile.
        assert!(groups() <= before, "no group is left");
    }
}

/// How many control groups of this laboratory's agents there are.
fn groups() -> usize {
    let network = run("readlink /proc/self/ns/net | tr -dc 0-9");
    let found = run(&format!("find /sys/fs/cgroup -type d -name 'roadstead-{network}*' | wc -l"));
    found.parse().unwrap()
}

#[test]
fn an_image_runs_as_it_says() {
    with_image(async |_, runtime, image| {
        let ImageContent::Layers(layered) = &image.content else { panic!("{image:?}") };
        assert_eq!(layered.layers.len(), 2);
        assert!(image.id.starts_with("docker.io/library/busybox@sha256:"), "{}", image.id);
        let line = "cat /proc/1/comm; id -u; pwd; hostname; echo $OWN; ls; \
                    cat /etc/resolv.conf; echo oops >&2; touch /x; ls /x; exit 7";
        let (code, text) = result(runtime, shell(&image, "main", line)).await;
        let want = "sh\n0\n/srv\none\n1\nindex.html\nsearch default.svc.cluster.local\n\
                    nameserver 10.96.0.10\n";
        // What goes to two pipes has no order.
        assert!(text.replace("oops\n", "").starts_with(want), "{text}");
        assert!(text.contains("oops\n") && text.contains("/x\n"), "{text}");
        assert_eq!(code, 7);
        // What a run wrote is gone with it.
        let again = ContainerConfig { restarts: 1, ..shell(&image, "main", "ls /x") };
        assert_eq!(result(runtime, again).await.0, 1);

        // The image is a server as well.
        let server = shell(&image, "web", "exec httpd -f -p 8080 -h /srv");
        runtime.start(server).await.unwrap();
        assert_eq!(fetch([10, 244, 0, 2].into(), "/"), "new\n");
    });
}

#[test]
fn an_image_is_as_confined_as_the_built_in_one() {
    with_image(async |_, runtime, image| {
        let status = "cat /proc/self/status";
        let (_, text) = result(runtime, shell(&image, "plain", status)).await;
        let line = |text: &str, name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
            found.unwrap_or_default().trim().to_owned()
        };
        for (name, want) in [
            ("CapInh", "0000000000000000"),
            ("CapEff", "00000000a80425fb"),
            ("CapBnd", "00000000a80425fb"),
            ("CapAmb", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            assert_eq!(line(&text, name), want, "{name}");
        }
        for (name, command) in [
            ("masked", "cat /proc/timer_list | head -c1 | grep -q ."),
            ("read-only parameters", "echo 1 > /proc/sys/kernel/printk_ratelimit_burst"),
            ("read-only groups", "mkdir /sys/fs/cgroup/memory/x"),
            ("system calls", "busybox unshare -U true"),
            ("mounts", "busybox mount -t tmpfs tmpfs /srv"),
        ] {
            let container = name.replace(' ', "-");
            let (code, text) = result(runtime, shell(&image, &container, command)).await;
            assert_ne!(code, 0, "{name}: {text}");
        }
        let mut read_only = shell(&image, "fixed", "touch /x; touch /dev/shm/y && echo written");
        read_only.confinement.read_only_root = true;
        let (_, text) = result(runtime, read_only).await;
        assert!(text.contains("Read-only file system") && text.contains("written\n"), "{text}");

        // What the image calls its volumes can be written to all the same, and is as new in each run.
        let mut image = image;
        let ImageContent::Layers(layers) = &mut image.content else { panic!("{image:?}") };
        layers.volumes = vec!["/srv".into(), "/var/new".into()];
        for restarts in 0..2 {
            let line = "cat /srv/index.html; ls /srv /var/new; \
                        touch /srv/x /var/new/y && echo written; touch /x 2>/dev/null || echo refused";
            let mut volumes = ContainerConfig { restarts, ..shell(&image, "volumes", line) };
            volumes.confinement.read_only_root = true;
            let (_, text) = result(runtime, volumes).await;
            let want = "new\n/srv:\nindex.html\n\n/var/new:\nwritten\nrefused\n";
            assert_eq!(text, want);
        }

        let volume = empty_directory("disk", Medium::Disk);
        let mut mounted = shell(&image, "mounted", "echo kept > /data/x");
        mounted.mounts = vec![super::mounted(volume, "/data")];
        assert_eq!(result(runtime, mounted).await.0, 0);
        assert_eq!(run("cat /run/state/pods/uid-of-one/.volumes/disk/x"), "kept");
    });
}

#[test]
fn containers_of_a_pod_share_memory_and_those_of_others_do_not() {
    with_image(async |_, runtime, image| {
        runtime.create_sandbox(&name("two"), NetworkMode::Own.into()).await.unwrap();
        let stays = "echo from one > /dev/shm/x; readlink /proc/self/ns/ipc; sleep 60";
        runtime.start(shell(&image, "first", stays)).await.unwrap();
        while log("one", "first").is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let look = "cat /dev/shm/x; readlink /proc/self/ns/ipc; touch /dev/shm/y";
        let (code, text) = result(runtime, shell(&image, "second", look)).await;
        assert_eq!((code, text), (0, format!("from one\n{}", log("one", "first"))));
        let other = shell(&image, "main", "ls /dev/shm; readlink /proc/self/ns/ipc");
        runtime.start(ContainerConfig { pod: name("two"), ..other }).await.unwrap();
        assert_eq!(runtime.wait(&name("two"), "main").await.code, 0);
        let other = log("two", "main");
        assert!(other.starts_with("ipc:") && other != log("one", "first"), "{other}");

        // A built-in image, which no other runtime runs, is no exception.
        let namespace = |init: &str| run(&format!("readlink /proc/{init}/ns/ipc"));
        runtime.start(container_config("one", "main", &[])).await.unwrap();
        assert_eq!(namespace(&pid("one", "init")), log("one", "first").trim());
        let files = run(&format!("ls /proc/{}/root/dev/shm", pid("one", "init")));
        assert_eq!(files, "x\ny");
    });
}

#[test]
fn images_end_as_they_are_told_and_survive_their_agent() {
    with_image(async |config, runtime, image| {
        let trap = "trap 'exit 9' INT; while true; do sleep 0.05; done";
        runtime.start(shell(&image, "polite", trap)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        runtime.stop(&name("one"), "polite", Stop::Gracefully);
        assert_eq!(runtime.wait(&name("one"), "polite").await.code, 9, "its own stop signal");
        runtime.start(shell(&image, "deaf", "sleep 60")).await.unwrap();
        runtime.stop(&name("one"), "deaf", Stop::Now);
        assert_eq!(runtime.wait(&name("one"), "deaf").await.code, 137);

        // Its monitor is killed: the container goes, too, and nothing of it stays.
        runtime.start(shell(&image, "main", "sleep 61")).await.unwrap();
        run(&format!("kill -9 {}", pid("one", "monitor")));
        let exit = runtime.wait(&name("one"), "main").await;
        assert_eq!((exit.code, exit.reason.as_str()), (137, "Error"));
        assert!(!try_run("ps ax | grep -v grep | grep -q 'sleep 61'").status.success());

        let error = runtime.start(shell(&image, "wrong", "x")).await.map(|_| ());
        assert!(error.is_ok(), "the shell is there: {error:?}");
        let mut wrong = shell(&image, "missing", "x");
        wrong.command = vec!["nonesuch".into()];
        let error = runtime.start(wrong).await.unwrap_err().to_string();
        assert!(
            error.contains("exec: \"nonesuch\": executable file not found in $PATH"),
            "{error}"
        );
        let _ = config;
        assert_eq!(run("ls /run/state/oci"), "", "the runtime has forgotten all of them");
    });
}

#[test]
fn what_an_agent_was_starting_when_it_was_killed_runs_once() {
    laboratory_of(LAYER, || {
        block_on(async |mut config| {
            load_busybox(&config);
            let image = facts(&config).await;
            let slow = "#!/bin/sh\ncase \"$*\" in *create*) sleep 0.7 ;; esac\nexec runc \"$@\"\n";
            fs::write("/run/slow", slow).unwrap();
            fs::set_permissions("/run/slow", fs::Permissions::from_mode(0o755)).unwrap();
            config.oci_runtime = Some("/run/slow".into());
            let first = Arc::new(BuiltinRuntime::start(&config, executable()).await.unwrap());
            first.create_sandbox(&name("one"), NetworkMode::Own.into()).await.unwrap();
            let starting = tokio::spawn({
                let line = shell(&image, "main", "echo ran; sleep 1; exit 5");
                let first = first.clone();
                async move { first.start(line).await }
            });
            tokio::time::sleep(Duration::from_millis(300)).await;
            starting.abort();
            let _ = starting.await;
            drop(first);
            let second = BuiltinRuntime::start(&config, executable()).await.unwrap();
            let recovered = second.recovered();
            let state = &recovered[0].containers["main"].state;
            assert!(matches!(state, RecoveredState::Running(_)), "{state:?}");
            assert_eq!(second.wait(&name("one"), "main").await.code, 5);
            assert_eq!(log("one", "main"), "ran\n");
            drop(second);
            cleanup(&config).await.unwrap();
        });
    });
}

#[test]
fn hostile_links_in_an_image_lead_nowhere() {
    with_image(async |config, runtime, image| {
        let ImageContent::Layers(layered) = &image.content else { panic!("{image:?}") };
        let _ = config;
        // An image whose /etc is a link to the node's, and whose /proc is one to its own /srv.
        let place = Path::new("/run/hostile");
        run("mkdir -p /run/hostile /run/victim && ln -s /run/victim /run/hostile/etc
             ln -s /srv /run/hostile/proc");
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
        let mut hostile = layered.as_ref().clone();
        hostile.layers.push(place.to_owned());
        let image =
            ImageFacts { content: ImageContent::Layers(Box::new(hostile)), ..image.clone() };
        // Its root is not made: process information cannot go where a link is.
        let refused =
            runtime.start(shell(&image, "main", "ls /etc")).await.unwrap_err().to_string();
        assert!(refused.contains("/proc"), "{refused}");
        assert_eq!(run("ls /run/victim | wc -l"), "0", "nothing was written outside");
        assert_eq!(run("ls /run/state/oci"), "", "the runtime has forgotten it");
        // Without that link it runs, and what is put into its /etc is put where the link leads in the image.
        run("rm /run/hostile/proc");
        let (code, seen) = result(runtime, shell(&image, "main", "ls /etc /run/victim")).await;
        assert_eq!((code, seen), (0, "/etc:\nresolv.conf\n\n/run/victim:\nresolv.conf\n".into()));
        assert_eq!(run("ls /run/victim | wc -l"), "0", "nothing was written outside");
    });
}

#[test]
fn a_container_beside_another_sees_its_processes_and_ends_with_its_own() {
    with_image(async |_, runtime, image| {
        runtime.start(shell(&image, "main", "exec sleep 1000")).await.unwrap();
        let beside = |container: &str, line: &str| {
            let config = shell(&image, container, line);
            ContainerConfig { processes: Processes::Beside("main".into()), ..config }
        };
        let (code, seen) = result(runtime, beside("look", "cat /proc/1/cmdline")).await;
        assert_eq!((code, seen.as_str()), (0, "sleep\x001000\0\n"));
        // What it leaves running holds its output, and would be a child of the other's process 1.
        let began = Instant::now();
        let (code, _) = result(runtime, beside("leave", "sleep 777 & exit 3")).await;
        assert_eq!(code, 3);
        assert!(began.elapsed() < Duration::from_secs(20));
        assert_eq!(run("pgrep -fc 'sleep [7]77' || true"), "0");
        let mut lost = shell(&image, "lost", "true");
        lost.processes = Processes::Beside("nobody".into());
        let refusal = runtime.start(lost).await.unwrap_err().to_string();
        assert_eq!(refusal, "CreateContainerError: container \"nobody\" does not run");
        runtime.stop(&name("one"), "main", Stop::Now);
        runtime.wait(&name("one"), "main").await;
    });
}

#[test]
fn a_container_is_asked_to_end_by_the_signal_that_it_wants() {
    with_image(async |_, runtime, image| {
        let line = "trap 'exit 9' USR1; trap 'exit 8' INT; touch /tmp/ready; while true; do sleep 0.05; done";
        for (signal, code) in [(Some("SIGUSR1"), 9), (None, 8)] {
            let mut config = shell(&image, "main", line);
            config.stop_signal = signal.map(str::to_owned);
            runtime.start(config).await.unwrap();
            // The shell sets its traps in a moment.
            tokio::time::sleep(Duration::from_millis(300)).await;
            runtime.stop(&name("one"), "main", Stop::Gracefully);
            assert_eq!(runtime.wait(&name("one"), "main").await.code, code, "{signal:?}");
        }
        let mut echo = container_config("one", "built-in", &[]);
        echo.stop_signal = Some("SIGUSR1".into());
        runtime.start(echo).await.unwrap();
        runtime.stop(&name("one"), "built-in", Stop::Gracefully);
        assert_eq!(runtime.wait(&name("one"), "built-in").await.code, 128 + 10);
    });
}

#[test]
fn an_image_that_nobody_uses_can_go() {
    with_image(async |config, runtime, image| {
        let images = StoredImages::open(config).unwrap();
        let all = images.list().await.unwrap();
        let names: Vec<_> = all.iter().flat_map(|image| &image.names).collect();
        assert_eq!((all.len(), names.len()), (1, 2), "{all:?}");
        assert_eq!(names[1], "docker.io/library/busybox:test");
        assert_eq!(*names[0], image.id);
        assert!(all[0].size > 1000 && all[0].digest.starts_with("sha256:"), "{all:?}");

        // The layers of a container that runs stay, whatever becomes of the image's name.
        runtime.start(shell(&image, "main", "sleep 60")).await.unwrap();
        images.remove(&all[0], &Default::default()).await.unwrap();
        assert_eq!(images.find("busybox:test").await.unwrap(), None);
        assert_eq!(images.list().await.unwrap(), []);
        assert_eq!(run("ls /run/images/layers | wc -l"), "2");
        runtime.remove(&name("one")).await.unwrap();
        images.remove(&all[0], &Default::default()).await.unwrap();
        assert_eq!(
            run(
                "ls /run/images/layers /run/images/blobs/sha256 | grep -cE '^[0-9a-f]{64}$' || true"
            ),
            "0"
        );
    });
}

#[test]
fn what_is_written_is_measured() {
    with_image(async |_, runtime, image| {
        let line = "/bin/busybox head -c 3000000 /dev/zero > /big; echo said; sleep 60";
        let mut config = shell(&image, "main", line);
        let volume = empty_directory("v", Medium::Disk);
        config.mounts = vec![mounted(volume, "/v")];
        runtime.start(config).await.unwrap();
        while log("one", "main").is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let used = runtime.disk_usage(&name("one")).await;
        assert!((3_000_000..3_500_000).contains(&used.containers["main"]), "{used:?}");
        assert!(used.volumes["v"] < 100_000, "{used:?}");
        let usage = runtime.usage().await;
        let of_pod = usage.iter().find(|pod| pod.uid == name("one").uid).expect("it runs");
        let (_, main) = &of_pod.containers["main"];
        assert!(main.cpu.is_some_and(|cpu| cpu > 0), "{main:?}");
        assert!(main.memory.is_some_and(|memory| memory.working_set > 0), "{main:?}");
        assert!(main.processes.is_some_and(|count| count > 0), "{main:?}");
    });
}

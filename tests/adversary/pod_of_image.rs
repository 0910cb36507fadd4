//! A pod whose image is the attacker's, too: its files are laid out so that whoever makes the container, or joins
//! it with a command, is led to the node. It is run by runc and joined by our own executor. Nothing outside of it
//! changes, and its neighbour goes on.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};
use serde_json::{Value, json};

use crate::attacks;
use crate::process::Roadstead;

/// What `scripts/test` leaves out where images cannot be run.
const LAYER: &str = "debian-images";
const SECOND: Duration = Duration::from_secs(1);
/// What is the node's. A path that the image has, too, as a link.
const VICTIM: &str = "/run/victim";

/// An image with busybox, and with links to the node wherever something is put or looked for.
const IMAGE: &str = r#"
    set -e; rm -rf /run/made; mkdir -p /run/made/l/bin /run/made/l/etc /run/made/l/tmp /run/made/l/dev/pts
    cd /run/made/l; cp $(command -v busybox) bin/busybox
    ldd bin/busybox 2>/dev/null | grep -o '/[^ ]*' | while read library; do
        mkdir -p .$(dirname $library) && cp -L $library .$library; done
    for name in sh cat ls id head sleep touch tty ln mknod echo rm tr; do ln -s busybox bin/$name; done
    ln -s /run/victim data; ln -s ../../../../../../run/victim up; ln -s /run/victim volume
    ln -s /run/victim/last-words etc/last-words; ln -s /run/victim/ptmx dev/pts/ptmx
    ln -s /run/victim/resolv.conf etc/resolv.conf; ln -s /run/victim/hosts etc/hosts
    printf '#!/proc/self/exe\n' > bin/evil; chmod 0755 bin/evil
    cd ..; tar -cf layer.tar -C l .; digest=$(sha256sum layer.tar | cut -d' ' -f1)
    cat > config.json <<END
    {"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"], "Cmd": ["sleep", "1000"],
     "Volumes": {"/volume": {}, "/up": {}}}, "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
END
    echo '[{"Config": "config.json", "RepoTags": ["hostile:1"], "Layers": ["layer.tar"]}]' > manifest.json
    mkdir -p /run/images && tar -cf /run/images/hostile.tar manifest.json config.json layer.tar
"#;

/// Everything that must be as it was.
fn outside() -> String {
    let binary = env!("CARGO_BIN_EXE_roadstead");
    run(&format!(
        "cd {VICTIM} && find . | sort && cat secret && stat -c '%a %u %g' . secret && \
         sha256sum < {binary}; stat -c '%a %t %T' /dev/null /dev/ptmx"
    ))
}

struct Stage {
    roadstead: Roadstead,
    kubectl: Kubectl,
    before: String,
    neighbour: String,
}

fn container((name, line, more): &(&str, &str, Value)) -> Value {
    let mut container = json!({"name": name, "image": "hostile:1",
        "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", line]});
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    container
}

impl Stage {
    fn new(flags: &str) -> Self {
        for needed in ["busybox", "runc"] {
            let found = try_run(&format!("command -v {needed}")).status.success();
            assert!(found, "{needed} is missing (set ROADSTEAD_SKIP={LAYER} to leave this out)");
        }
        run(IMAGE);
        run(&format!(
            "mkdir -p {VICTIM} && echo of the node > {VICTIM}/secret && chmod 0600 {VICTIM}/secret && \
             echo \"A='of the node'\" > {VICTIM}/env"
        ));
        let roadstead = Roadstead::up_with(format!("--images /run/images {flags}").trim_end());
        let kubectl = roadstead.kubectl();
        kubectl.run("run neighbour --image=roadstead/echo --restart=Always");
        kubectl.run("wait --for=condition=Ready pod/neighbour --timeout=60s");
        let neighbour = kubectl.run("get pod neighbour -o jsonpath='{.status.podIP}'");
        Self { roadstead, kubectl, before: outside(), neighbour }
    }

    /// Makes a pod of the image with these containers; a container is its name, a shell's line and more.
    fn pod(&self, name: &str, containers: &[(&str, &str, Value)], more: Value) {
        let containers: Vec<_> = containers.iter().map(container).collect();
        let mut spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "v", "emptyDir": {}}], "containers": containers});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        let path = self.roadstead.directory().join("pod.json");
        fs::write(&path, pod.to_string()).unwrap();
        self.kubectl.run(&format!("apply -f {}", path.display()));
    }

    /// What became of the containers of a pod, once each has ended, runs, or cannot be made.
    fn settled(&self, pod: &str) -> Vec<Value> {
        let look = || -> Vec<Value> {
            let text = self.kubectl.run(&format!("get pod {pod} -o json"));
            let found: Value = serde_json::from_str(&text).unwrap();
            let states = found["status"]["containerStatuses"].as_array().cloned();
            states.unwrap_or_default().into_iter().map(|one| one["state"].clone()).collect()
        };
        let is_settled = |state: &Value| {
            let reason = state["waiting"]["reason"].as_str().unwrap_or_default();
            state["terminated"].is_object()
                || state["running"].is_object()
                || matches!(reason, "CreateContainerConfigError" | "CreateContainerError")
        };
        eventually(&format!("{pod} is settled"), 60 * SECOND, look, |all| {
            !all.is_empty() && all.iter().all(is_settled)
        })
    }

    /// Waits until a container has ended; returns what it has said.
    fn said(&self, pod: &str, container: &str) -> String {
        let path = format!("{{.status.containerStatuses[?(@.name==\"{container}\")].state}}");
        let state = || self.kubectl.run(&format!("get pod {pod} -o jsonpath='{path}'"));
        eventually(&format!("{pod}/{container} has ended"), 60 * SECOND, state, |state| {
            state.contains("terminated")
        });
        self.kubectl.run(&format!("logs {pod} -c {container}"))
    }

    fn unharmed(&self, after: &str) {
        assert_eq!(outside(), self.before, "after {after}");
        let url = format!("http://{}:8080/", self.neighbour);
        let answer = || String::from_utf8(try_run(&format!("curl -s -m 5 {url}")).stdout).unwrap();
        eventually("the neighbour answers", 30 * SECOND, answer, |text| text == "neighbour\n");
        let path = "{.status.containerStatuses[0].restartCount}";
        assert_eq!(self.kubectl.run(&format!("get pod neighbour -o jsonpath='{path}'")), "0");
    }
}

/// Whether its command has run: one that is not made, or cannot be started, has said nothing.
fn has_begun(state: &Value) -> bool {
    !state["waiting"].is_object() && state["terminated"]["reason"] != "StartError"
}

#[test]
fn files_that_lead_to_the_node() {
    laboratory_of(LAYER, || {
        let stage = Stage::new("");
        let mount = |path: &str| json!({"volumeMounts": [{"name": "v", "mountPath": path}]});
        let read_only = json!({"securityContext": {"readOnlyRootFilesystem": true}});
        let words = json!({"terminationMessagePath": "/etc/last-words"});
        let write = "echo x > /data/x; echo x > /up/x; echo x > /volume/x; echo x > /etc/hosts; cat \
                     /data/secret /up/secret /volume/secret; echo tried";
        let attacks = [
            ("a link where a volume goes", mount("/data")),
            ("a link upwards", mount("/up/deep/er")),
            ("links where the image has volumes", read_only),
            ("a link where last words go", words),
            ("nothing mounted", json!({})),
        ];
        for (number, (what, more)) in attacks.iter().enumerate() {
            let pod = format!("links-{number}");
            stage.pod(&pod, &[("c", write, more.clone())], json!({}));
            // Either it is not made, or it is led to files of its own.
            let state = stage.settled(&pod).remove(0);
            if has_begun(&state) {
                let said = stage.said(&pod, "c");
                assert!(said.contains("tried") && !said.contains("of the node"), "{what}: {said}");
            }
            stage.unharmed(what);
        }
        attacks::refused(attacks.len());

        // A volume whose part is a link by the time that it is mounted.
        let plants = "ln -s /run/victim /v/part; ln -s ../../../../../../../run/victim /v/up";
        let part = |path: &str| json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": path}]});
        let looks = "cat /v/secret; echo x > /v/x";
        stage.pod(
            "parts",
            &[("a", looks, part("part")), ("b", looks, part("up"))],
            json!({"initContainers": [container(&("plants", plants, mount("/v")))]}),
        );
        let is_refused = |state: &Value| state["waiting"]["reason"] == "CreateContainerConfigError";
        let look = || stage.settled("parts");
        let states =
            eventually("parts are refused", 60 * SECOND, look, |all| all.iter().all(is_refused));
        assert!(
            states[0]["waiting"]["message"].as_str().unwrap().contains("subPath"),
            "{states:#?}"
        );
        stage.unharmed("a link as a part");
        attacks::refused(2);

        // Variables from files that lead elsewhere, or are none.
        let plants = "echo \"A='1'\" > /v/env; ln -s env /v/inside; ln -s /run/victim/env /v/link; \
                      ln -s ../../../../../../../run/victim/env /v/up; mknod /v/pipe p; \
                      ln -s /proc/self/root/run/victim/env /v/magic; mknod /v/zero c 1 5 || true";
        let plants = json!({"initContainers": [{"name": "plants", "image": "hostile:1",
            "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", plants],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]});
        let names = ["inside", "link", "up", "magic", "pipe", "zero"];
        let containers = names.map(|path| {
            let key = json!({"volumeName": "v", "path": path, "key": "A"});
            (
                path,
                "echo A is $A",
                json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": key}}]}),
            )
        });
        stage.pod("variables", &containers, plants);
        let states = stage.settled("variables");
        for (name, state) in names.iter().zip(&states).skip(1) {
            let waiting = &state["waiting"];
            assert_eq!(waiting["reason"], "CreateContainerConfigError", "{name}: {state}");
            assert!(!waiting.to_string().contains("of the node"), "{name}: {state}");
        }
        assert_eq!(stage.said("variables", "inside"), "A is 1\n");
        stage.unharmed("variables from files");
        attacks::refused(names.len() - 1);

        // A working directory that whoever makes the container might have left open.
        for number in 3..12 {
            let pod = format!("directory-{number}");
            let look = "ls; cat secret victim/secret run/victim/secret ../run/victim/secret \
                        ../../run/victim/secret ../../../run/victim/secret; echo tried";
            let here = json!({"workingDir": format!("/proc/self/fd/{number}")});
            stage.pod(&pod, &[("c", look, here)], json!({}));
            let state = stage.settled(&pod).remove(0);
            if has_begun(&state) {
                let said = stage.said(&pod, "c");
                assert!(!said.contains("of the node"), "{number}: {said}");
            }
        }
        stage.unharmed("working directories");
        attacks::refused(9);
    });
}

#[test]
fn commands_that_join_it_and_devices_that_it_makes() {
    laboratory_of(LAYER, || {
        let stage = Stage::new("");
        // It writes to the executable of whoever comes, for as long as it lives.
        let lurks = "rm -f /dev/ptmx; ln -s /tmp/ptmx /dev/ptmx; touch /tmp/ptmx
            while true; do for one in /proc/[0-9]*; do (echo x > $one/exe) 2>/dev/null && echo overwritten
                cat $one/root/run/victim/secret 2>/dev/null; done; done";
        stage.pod("lurks", &[("c", lurks, json!({}))], json!({}));
        stage.kubectl.run("wait --for=condition=Ready pod/lurks --timeout=60s");
        for command in ["/bin/evil", "/bin/evil --help", "/proc/self/exe", "sh -c 'exec /bin/evil'"]
        {
            for _ in 0..5 {
                stage.kubectl.try_run(&format!("exec lurks -- {command}"));
            }
        }
        let mut terminal = stage.kubectl.in_terminal("exec -it lurks -- tty");
        // One of its own instance, whatever the link says.
        terminal.shows("/dev/pts/0");
        terminal.ends();
        let logs = stage.kubectl.run("logs lurks");
        assert!(!logs.contains("overwritten") && !logs.contains("of the node"), "{logs}");
        stage.unharmed("commands that join it");
        attacks::refused(21);

        // Many at once, and again and again.
        let begin = || {
            let mut command = stage.kubectl.command("exec lurks -- true");
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        for _ in 0..4 {
            let storm: Vec<_> = (0..16).map(|_| begin()).collect();
            for mut one in storm {
                one.wait().unwrap();
            }
        }
        assert_eq!(stage.kubectl.run("exec lurks -- echo still there"), "still there\n");
        stage.kubectl.run("delete pod lurks --timeout=60s");
        stage.unharmed("a storm of commands");
        attacks::refused(1);

        let devices = "for kind in 'b 7 0' 'b 8 0' 'b 253 0' 'b 254 0' 'c 1 1' 'c 10 229'; do
                mknod /tmp/d $kind; head -c 1 /tmp/d > /dev/null && echo opened $kind; rm -f /tmp/d
            done; echo tried";
        stage.pod("devices", &[("c", devices, json!({}))], json!({}));
        let said = stage.said("devices", "c");
        assert!(said.contains("tried") && !said.contains("opened"), "{said}");
        stage.unharmed("devices");
        attacks::refused(6);
    });
}

#[test]
fn more_than_its_share() {
    laboratory_of(LAYER, || {
        let stage = Stage::new("--pod-pids-limit 100");
        let line = "head -c 67108864 /dev/zero | tr '\\0' x; echo; echo done >&2; sleep 1000";
        stage.pod("talks", &[("c", line, json!({}))], json!({}));
        let last = || {
            let began = Instant::now();
            let said = stage.kubectl.try_run("logs talks --limit-bytes=2000");
            assert!(began.elapsed() < 20 * SECOND, "it is shown in pieces");
            String::from_utf8(said.stdout).unwrap()
        };
        eventually("it is being written", 60 * SECOND, last, |text| text.len() >= 1000);
        stage.unharmed("a line of 64 MiB");
        let logs = stage.roadstead.directory().join("data/node/logs");
        let size =
            || run(&format!("du -sm {} | cut -f1", logs.display())).trim().parse::<u64>().unwrap();
        assert!(size() < 80, "{} MiB of logs", size());
        attacks::refused(1);

        if stage.roadstead.log().contains("no control groups for") {
            eprintln!("NOT RUN: a fork bomb, without control groups");
            return;
        }
        stage.pod("bomb", &[("c", "b() { b | b & }; b; sleep 1000", json!({}))], json!({}));
        stage.settled("bomb");
        std::thread::sleep(3 * SECOND);
        let count = || run("ps ax | grep -c '[b] | b' || true").trim().parse::<u64>().unwrap();
        assert!(count() <= 100, "{} processes", count());
        stage.unharmed("a fork bomb");
        stage.kubectl.run("delete pod bomb --timeout=90s");
        stage.unharmed("the end of a fork bomb");
        attacks::refused(1);
    });
}

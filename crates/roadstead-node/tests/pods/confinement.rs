//! What a container may not do, whatever runs in it.

use super::*;

fn status_of_command(pod: &str, line: &str) -> String {
    let init = pid(pod, "init");
    let child = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", child.trim())).unwrap();
    let found = status.lines().find_map(|text| text.strip_prefix(&format!("{line}:")));
    found.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_container_has_few_privileges() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        start(&runtime, "one", &[]).await;
        for (line, want) in [
            ("CapInh", "0000000000000000"),
            ("CapPrm", "00000000a80425fb"),
            ("CapEff", "00000000a80425fb"),
            ("CapBnd", "00000000a80425fb"),
            ("CapAmb", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            assert_eq!(status_of_command("one", line), want, "{line}");
        }
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn a_container_writes_to_nothing_of_the_node() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        // The server answers with its pod's name: what is written, if it can be, changes nothing.
        let parameter = "/proc/sys/kernel/printk_ratelimit_burst";
        let value = fs::read_to_string(parameter).unwrap().trim().to_owned();
        let address = start(&runtime, &value, &[]).await;
        assert_eq!(fetch(address, "/"), format!("{value}\n"));
        for path in [
            parameter,
            "/proc/self/exe",
            "/proc/1/exe",
            "/proc/1/root/tmp/x",
            "/proc/1/environ",
            "/bin/roadstead",
            "/sys/kernel/profiling",
            "/sys/new",
            "/proc/timer_list/new",
        ] {
            let (code, text) =
                exec(&runtime, &value, &["curl", "-sS", "-o", path, "127.0.0.1:8080"]).await;
            assert_eq!(code, 23, "{path}: {text}");
        }
        let (code, _) =
            exec(&runtime, &value, &["curl", "-s", "-o", "/tmp/x", "127.0.0.1:8080"]).await;
        assert_eq!(code, 0, "what is its own");
        let mounts = fs::read_to_string(format!("/proc/{}/mounts", pid(&value, "init"))).unwrap();
        for path in ["bus", "fs", "irq", "sys", "sysrq-trigger"] {
            let path = format!("/proc/{path}");
            if !Path::new(&path).exists() {
                continue; // Not every kernel has all of them.
            }
            let mount = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some(&path));
            let options = mount.and_then(|line| line.split(' ').nth(3)).unwrap_or_default();
            assert!(options.starts_with("ro,"), "{path} {options}");
        }
        let root = format!("/proc/{}/root", pid(&value, "init"));
        for path in ["proc/keys", "proc/timer_list", "proc/interrupts", "proc/kcore"] {
            if Path::new("/").join(path).exists() {
                assert_eq!(run(&format!("head -c 9 {root}/{path}")), "", "{path}");
            }
        }
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn a_container_runs_as_the_user_it_asks_for_or_not_at_all() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        runtime.create_sandbox(&name("one"), NetworkMode::Own.into()).await.unwrap();
        let mut container_config = container_config("one", "main", &["--port", "80"]);
        container_config.confinement.user = 1000;
        container_config.confinement.group = 1001;
        let users = fs::read_to_string("/proc/self/uid_map").unwrap();
        let has_users = users.split_whitespace().last() != Some("1");
        match (has_users, runtime.start(container_config).await) {
            (true, started) => {
                started.unwrap();
                for (line, want) in [
                    ("Uid", "1000 1000 1000 1000"),
                    ("Gid", "1001 1001 1001 1001"),
                    ("Groups", ""),
                    ("CapEff", "0000000000000000"),
                    ("CapBnd", "00000000a80425fb"),
                ] {
                    assert_eq!(status_of_command("one", line), want, "{line}");
                }
                let served = "curl -s --retry 9 --retry-connrefused http://10.244.0.2:80/";
                assert_eq!(run(served), "one", "every port is its own");
            }
            (false, result) => {
                eprintln!("this laboratory has no other users: only the refusal is tested");
                let refusal = result.unwrap_err().to_string();
                assert!(refusal.contains("user 1000"), "{refusal}");
            }
        }
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn limits_hold() {
    if !is_left_out("cgroups") {
        limits_hold_here();
    }
}

/// The same in a kernel that has them in version two.
#[test]
#[ignore = "needs control groups of version two, see scripts/lab"]
fn limits_hold_in_version_two() {
    assert!(Path::new("/sys/fs/cgroup/cgroup.controllers").exists());
    limits_hold_here();
}

fn limits_hold_here() {
    in_laboratory(async |config| {
        // Groups of other tests may go while they are looked at, and one that was killed may have left
        // some, in a network that had the number of ours.
        let find =
            |name: &str| run(&format!("find /sys/fs/cgroup -name {name} -type d 2>&- || true"));
        let own = format!("roadstead-{}", run("stat -Lc %i /proc/self/ns/net"));
        let stale = find(&own);
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let mut missing = runtime.notes();
        // How we were started is no business of this test.
        missing.retain(|note| note.reason == "MissingControlGroups");
        assert!(
            missing.is_empty(),
            "limits of pods cannot be tested here: {missing:?} (set ROADSTEAD_SKIP=cgroups to leave them out)"
        );
        runtime.create_sandbox(&name("one"), NetworkMode::Own.into()).await.unwrap();
        let mut small = container_config("one", "main", &["sleep", "infinity"]);
        small.resources.of_container.memory = Some(64 << 20);
        small.resources.of_container.cpu = Some(250);
        small.resources.of_container.processes = Some(7);
        small.resources.of_pod.processes = Some(70);
        small.resources.oom_score_adj = 1000;
        let mut resources = small.resources;
        runtime.start(small).await.unwrap();
        let init = pid("one", "init");
        assert_eq!(run(&format!("cat /proc/{init}/oom_score_adj")), "1000");
        let group = |controller: &str| {
            let groups = fs::read_to_string(format!("/proc/{init}/cgroup")).unwrap();
            let mut lines = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
            let own = lines
                .find(|line| line[1].split(',').any(|one| one == controller) || line[1].is_empty());
            let mounts = fs::read_to_string("/proc/mounts").unwrap();
            let mount = mounts.lines().find(|line| {
                let fields: Vec<_> = line.split(' ').collect();
                fields[2] == "cgroup" && fields[3].split(',').any(|one| one == controller)
            });
            let mount = mount.map_or("/sys/fs/cgroup", |line| line.split(' ').nth(1).unwrap());
            format!("{mount}{}", own.unwrap()[2])
        };
        let read = |controller: &str, files: &str| {
            run(&format!("cd {} && cat {files}", group(controller)))
        };
        assert_eq!(
            read("memory", "memory.limit_in_bytes memory.max 2>/dev/null || true"),
            "67108864"
        );
        assert_eq!(read("cpu", "cpu.cfs_quota_us cpu.max 2>/dev/null | cut -d' ' -f1"), "25000");
        assert_eq!(read("pids", "pids.max ../pids.max"), "7\n70");

        // What it may use changes while it runs: more, and then less than at first.
        for (memory, cpu) in [(96_u64 << 20, 500), (32 << 20, 100)] {
            for limits in [&mut resources.of_container, &mut resources.of_pod] {
                (limits.memory, limits.cpu) = (Some(memory), Some(cpu));
            }
            runtime.resize(&name("one"), "main", resources).await.unwrap();
            for place in ["", "../"] {
                let files = format!("{place}memory.limit_in_bytes {place}memory.max");
                let found = read("memory", &format!("{files} 2>/dev/null || true"));
                assert_eq!(found, memory.to_string(), "{place}");
                let files = format!("{place}cpu.cfs_quota_us {place}cpu.max");
                let found = read("cpu", &format!("{files} 2>/dev/null | cut -d' ' -f1"));
                assert_eq!(found, (cpu * 100).to_string(), "{place}");
            }
        }
        assert_eq!(pid("one", "init"), init, "it is the same process");

        // One that wants more memory than it may have, and one that is told to end.
        let address = start(&runtime, "big", &[]).await;
        fetch(address, "/");
        let mut greedy =
            container_config("big", "greedy", &["curl", "-s", "-o", "/dev/null", "127.0.0.1:8080"]);
        greedy.resources.of_container.memory = Some(256 << 10);
        match runtime.start(greedy).await {
            Ok(_) => {
                let exit = runtime.wait(&name("big"), "greedy").await;
                assert_eq!((exit.code, exit.reason.as_str()), (137, "OOMKilled"));
            }
            // It did not even come to the command.
            Err(error) => eprintln!("{error}"),
        }
        let groups = find("poduid-of-big");
        assert!(!groups.is_empty());
        runtime.remove(&name("big")).await.unwrap();
        drop(runtime);
        cleanup(&config).await.unwrap();
        let left = find(&own);
        let new: Vec<_> = left.lines().filter(|path| !stale.contains(path)).collect();
        assert!(new.is_empty(), "{new:?}");
    });
}

#[test]
fn a_container_gets_no_file_that_somebody_left_open() {
    in_laboratory(async |config| {
        // As a shell does it with `exec 5</`.
        let flags = rustix::fs::OFlags::RDONLY;
        let leak = rustix::fs::open("/", flags, rustix::fs::Mode::empty()).unwrap();
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        start(&runtime, "one", &["sleep", "infinity"]).await;
        let init = pid("one", "init");
        let child = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap();
        assert_eq!(run(&format!("ls /proc/{}/fd", child.trim())), "0\n1\n2");
        drop((leak, runtime));
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn a_read_only_root_is_read_only() {
    in_laboratory(async |config| {
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        fetch(start(&runtime, "one", &[]).await, "/");
        for (path, code) in [("/tmp/x", 23), ("/x", 23), ("/dev/shm/x", 0)] {
            let mut container_config =
                container_config("one", "main2", &["curl", "-s", "-o", path, "127.0.0.1:8080"]);
            container_config.confinement.read_only_root = true;
            runtime.start(container_config).await.unwrap();
            assert_eq!(runtime.wait(&name("one"), "main2").await.code, code, "{path}");
        }
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

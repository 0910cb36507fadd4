//! System calls by lists of the operator's, and /proc without masks: for commands of images, for those that
//! join them, and for our own executor.

use roadstead_pod::security::{KernelPaths, Seccomp};

use super::exec::join;
use super::images::{result, shell, with_image};
use super::*;

fn with_list(mut config: ContainerConfig, path: &str) -> ContainerConfig {
    config.confinement.seccomp = Seccomp::Localhost(path.into());
    config
}

#[test]
fn lists_of_the_operator_hold_for_all_of_a_container() {
    with_image(async |config, runtime, image| {
        let profiles = config.state_dir.join("seccomp");
        fs::create_dir_all(profiles.join("deep")).unwrap();
        let rule = r#"{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}"#;
        let list = format!(r#"{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{rule}]}}"#);
        fs::write(profiles.join("deep/no-directories.json"), &list).unwrap();
        fs::write(config.state_dir.parent().unwrap().join("outside.json"), &list).unwrap();
        fs::write(profiles.join("broken.json"), "{}").unwrap();
        std::os::unix::fs::symlink("../../outside.json", profiles.join("link.json")).unwrap();
        std::os::unix::fs::symlink("deep/no-directories.json", profiles.join("in.json")).unwrap();

        let tries = "busybox mkdir /x; busybox unshare -U true && echo makes namespaces";
        for path in ["deep/no-directories.json", "in.json"] {
            let (_, seen) = result(runtime, with_list(shell(&image, "own", tries), path)).await;
            assert!(seen.contains("No space left on device"), "{path}: {seen}");
            assert!(seen.contains("makes namespaces"), "{path}, and no other list: {seen}");
        }
        let main = with_list(shell(&image, "main", "sleep 60"), "in.json");
        runtime.start(main).await.unwrap();
        let (_, seen) = join(runtime, &["sh", "-c", &format!("exec 2>&1; {tries}")]).await;
        let both = seen.contains("No space left") && seen.contains("makes namespaces");
        assert!(both, "a command that joins it: {seen}");
        runtime.stop(&name("one"), "main", Stop::Now);
        runtime.wait(&name("one"), "main").await;

        // Our own executor: a server that must not make sockets.
        let rule = r#"{"names": ["socket"], "action": "SCMP_ACT_KILL_PROCESS"}"#;
        let list = format!(r#"{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{rule}]}}"#);
        fs::write(profiles.join("no-sockets.json"), list).unwrap();
        let fetch = container_config("one", "fetch", &["curl", "-sS", "127.0.0.1:1"]);
        runtime.start(with_list(fetch, "no-sockets.json")).await.unwrap();
        let exit = runtime.wait(&name("one"), "fetch").await;
        assert_eq!(exit.code, 128 + 31, "the kernel's word for a bad system call: {exit:?}");

        for (path, want) in [
            ("none.json", "No such file or directory"),
            ("link.json", "cross-device link"),
            ("broken.json", "missing field `defaultAction`"),
            ("deep", "it is no file"),
        ] {
            for config in [shell(&image, "no", "true"), container_config("one", "no", &[])] {
                let why = runtime.start(with_list(config, path)).await.unwrap_err().to_string();
                let begins = format!(
                    "CreateContainerError: cannot load seccomp profile \"/run/state/seccomp/{path}\": "
                );
                assert!(why.starts_with(&begins), "{why}");
                assert!(why.to_lowercase().contains(&want.to_lowercase()), "{path}: {why}");
            }
        }
        fs::remove_dir_all(&profiles).unwrap();
    });
}

#[test]
fn without_masks_there_are_none_and_no_more_than_that() {
    with_image(async |_, runtime, image| {
        let mut main = shell(&image, "main", "sleep 60");
        main.confinement.kernel_paths = KernelPaths::Unmasked;
        runtime.start(main).await.unwrap();
        let init = pid("one", "init");
        let mounts = fs::read_to_string(format!("/proc/{init}/mounts")).unwrap();
        let places: Vec<_> = mounts.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
        assert!(!places.iter().any(|place| place.starts_with("/proc/")), "{mounts}");
        let line = |place: &str| {
            let found = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some(place));
            found.unwrap().split(' ').nth(3).unwrap().to_owned()
        };
        assert!(line("/proc").starts_with("rw,") && line("/sys").starts_with("ro,"), "{mounts}");
        // A device of the node can be made, and not opened.
        let tries = "busybox mknod /tmp/disk b 7 0 && busybox head -c1 /tmp/disk";
        let (code, _) = join(runtime, &["sh", "-c", tries]).await;
        assert_ne!(code, 0);
    });
}

//! Mounts that come later, images that are volumes, and whose the files of volumes are.

use std::os::unix::fs::MetadataExt;

use roadstead_pod::image::{ImageContent, LayeredImage};
use roadstead_pod::volumes::claimed::{ClaimedVolume, GroupChange};
use roadstead_pod::volumes::{HostPathCheck, Propagation};

use super::exec::join;
use super::images::{result, shell, with_image, with_image_of_users};
use super::*;

fn on_node(path: &str) -> PodVolume {
    let content = VolumeContent::HostPath { path: path.into(), check: HostPathCheck::Directory };
    PodVolume { name: "node".into(), content, group: None }
}

#[test]
fn mounts_come_as_far_as_they_are_wanted() {
    with_image(async |_, runtime, image| {
        run("mkdir -p /run/shared && mount -t tmpfs shared /run/shared && \
             mount --make-shared /run/shared && mkdir /run/shared/later /run/shared/own");
        for built_in in [false, true] {
            for (propagation, sees, is_seen) in [
                (Propagation::None, false, false),
                (Propagation::HostToContainer, true, false),
                (Propagation::Bidirectional, true, true),
            ] {
                let mut main = match built_in {
                    true => container_config("one", "main", &["sleep", "60"]),
                    false => shell(&image, "main", "sleep 60"),
                };
                main.confinement = Confinement {
                    capabilities: roadstead_pod::capabilities::Capabilities::all(),
                    seccomp: roadstead_pod::security::Seccomp::Unconfined,
                    ..Confinement::default()
                };
                main.mounts =
                    vec![VolumeMount { propagation, ..mounted(on_node("/run/shared"), "/m") }];
                runtime.start(main).await.unwrap();
                run("mount -t tmpfs later /run/shared/later && touch /run/shared/later/x");
                let what = format!("{propagation:?}, built in: {built_in}");
                let root = format!("/proc/{}/root", pid("one", "init"));
                let found = Path::new(&root).join("m/later/x").exists();
                assert_eq!(found, sees, "{what}: of the node");
                if !built_in {
                    let mount = "busybox mount -t tmpfs own /m/own && touch /m/own/y";
                    assert_eq!(join(runtime, &["sh", "-c", mount]).await.0, 0, "{what}");
                    let found = Path::new("/run/shared/own/y").exists();
                    assert_eq!(found, is_seen, "{what}: of the container");
                }
                run("umount /run/shared/later; umount /run/shared/own 2>/dev/null || true");
                runtime.stop(&name("one"), "main", Stop::Now);
                runtime.wait(&name("one"), "main").await;
            }
        }
        assert_eq!(run("grep -c /run/shared /proc/self/mounts"), "1", "nothing else stays");
        run("umount /run/shared");
    });
}

/// What a container has mounted for the node in a volume of its pod is not the pod's to remove.
#[test]
fn what_is_mounted_in_a_volume_survives_it() {
    with_image(async |config, runtime, image| {
        run("mkdir -p /run/precious && mount -t tmpfs precious /run/precious && \
             echo kept > /run/precious/file");
        let volume = empty_directory("disk", Medium::Disk);
        let mut plain = shell(&image, "main", "true");
        plain.mounts = vec![mounted(volume, "/data")];
        assert_eq!(result(runtime, plain).await.0, 0);
        let place = "/run/state/pods/uid-of-one/.volumes/disk";
        run(&format!(
            "mkdir -p '{place}/a b/c' && mount --bind /run/precious '{place}/a b/c' && \
             mount -t tmpfs over '{place}/a b'"
        ));
        runtime.remove(&name("one")).await.unwrap();
        assert_eq!(run("cat /run/precious/file"), "kept");
        assert_eq!(run("grep -c /run/state /proc/self/mounts || true"), "0");
        run("umount /run/precious");
        let _ = config;
    });
}

#[test]
fn images_are_read_and_neither_written_nor_run() {
    with_image(async |_, runtime, image| {
        let ImageContent::Layers(layered) = &image.content else { panic!("{image:?}") };
        let image_volume = |layers: &LayeredImage| {
            let content = VolumeContent::Image(layers.layers.clone());
            PodVolume { name: "files".into(), content, group: None }
        };
        // A layer of somebody else's, with links that lead out of it.
        run("mkdir -p /run/hostile/etc && ln -s /run/victim /run/hostile/out && \
             ln -s ../../../../run/victim /run/hostile/up && echo host > /run/victim");
        let mut hostile = layered.as_ref().clone();
        hostile.layers.push("/run/hostile".into());
        let seeing = |container: &str, line: &str, sub_path: Option<&str>| {
            let mut config = shell(&image, container, line);
            config.confinement.escalation = roadstead_pod::security::Escalation::Allowed;
            config.mounts = vec![VolumeMount {
                sub_path: sub_path.map(str::to_owned),
                access: Access::ReadOnly,
                ..mounted(image_volume(&hostile), "/image")
            }];
            config
        };
        let look = "cat /image/srv/index.html; ls /image/srv /image/etc; touch /image/x; \
                    /image/bin/busybox true || echo refused; cat /image/out; \
                    busybox grep ' /image ' /proc/mounts";
        let (_, seen) = result(runtime, seeing("look", look, None)).await;
        // The upper layer hides what is old.
        assert!(seen.contains("new\n") && seen.contains("index.html\n"), "{seen}");
        assert!(!seen.contains("old\n") && !seen.contains("host\n"), "{seen}");
        assert!(seen.contains("Read-only file system") && seen.contains("refused\n"), "{seen}");
        let options = seen.lines().find(|line| line.contains(" /image ")).unwrap_or_default();
        for option in ["ro,", "nosuid", "nodev", "noexec"] {
            assert!(options.contains(option), "{option}: {options}");
        }
        let (_, seen) = result(runtime, seeing("part", "cat /image/index.html", Some("srv"))).await;
        assert_eq!(seen, "new\n");
        for part in ["out", "up", "none", "srv/none"] {
            let refused = runtime.start(seeing("no", "true", Some(part))).await.unwrap_err();
            let text = refused.to_string();
            assert!(text.contains("failed to create subPath directory"), "{part}: {text}");
        }
        // Our own executor has the same.
        let mut built_in = container_config("one", "main", &["sleep", "60"]);
        built_in.mounts = seeing("x", "", None).mounts;
        runtime.start(built_in).await.unwrap();
        let mounts = fs::read_to_string(format!("/proc/{}/mounts", pid("one", "init"))).unwrap();
        let own = mounts.lines().find(|line| line.contains(" /image ")).unwrap_or_default();
        assert!(["ro,", "nosuid", "nodev", "noexec"].iter().all(|o| own.contains(o)), "{own}");
        let links = run("readlink /run/state/pods/uid-of-one/.volumes/.image-files/layers/*");
        let all = hostile.layers.iter().map(|layer| layer.display().to_string());
        assert_eq!(links, all.collect::<Vec<_>>().join("\n"), "the layers are in use");
        assert_eq!(run("cat /run/victim"), "host");
    });
}

#[test]
fn files_of_claims_are_given_to_the_group() {
    with_image_of_users(async |_, runtime, _| {
        let root = "/run/claimed/v";
        let make = || {
            run(&format!(
                "rm -rf {root}; mkdir -p {root}/deep/er && echo x > {root}/deep/er/file && \
                 chmod 0600 {root}/deep/er/file && chmod 0700 {root} {root}/deep {root}/deep/er && \
                 echo out > /run/outside && chmod 0600 /run/outside && \
                 ln -sfn /run/outside {root}/link && chgrp -h 0 {root}/link && mkfifo {root}/pipe && \
                 mkdir {root}/elsewhere && mount -t tmpfs -o mode=700 elsewhere {root}/elsewhere"
            ));
        };
        let shown = |path: &str| run(&format!("stat -c '%g %a' {root}/{path}"));
        let prepare = async |pod: &str, group_change, read_only| {
            let claimed =
                ClaimedVolume { path: root.into(), create: false, read_only, group_change };
            let content = VolumeContent::Claimed(claimed);
            let volume = PodVolume { name: "v".into(), content, group: Some(33) };
            runtime.prepare_volume(&name(pod), volume, None).await.unwrap();
        };
        make();
        prepare("a", GroupChange::Never, false).await;
        prepare("b", GroupChange::Always, true).await;
        assert_eq!([shown("."), shown("deep/er/file")], ["0 700", "0 600"]);
        prepare("c", GroupChange::OnRootMismatch, false).await;
        for (path, want) in [
            (".", "33 2770"),
            ("deep", "33 2770"),
            ("deep/er", "33 2770"),
            ("deep/er/file", "33 660"),
            ("link", "33 777"),
            // What is mounted there is somebody else's.
            ("elsewhere", "0 700"),
        ] {
            assert_eq!(shown(path), want, "{path}");
        }
        assert_eq!(run("stat -c '%g %a' /run/outside"), "0 600", "links are not followed");
        // Once for each pod, and not at all where the directory looks right.
        run(&format!("chgrp 0 {root}/deep/er/file"));
        prepare("c", GroupChange::Always, false).await;
        prepare("d", GroupChange::OnRootMismatch, false).await;
        assert_eq!(fs::metadata(format!("{root}/deep/er/file")).unwrap().gid(), 0);
        prepare("e", GroupChange::Always, false).await;
        assert_eq!(fs::metadata(format!("{root}/deep/er/file")).unwrap().gid(), 33);
        run(&format!("umount {root}/elsewhere"));
        for pod in ["a", "b", "c", "d", "e"] {
            runtime.remove(&name(pod)).await.unwrap();
        }
        assert_eq!(run(&format!("cat {root}/deep/er/file")), "x", "it outlives its pods");
    });
}

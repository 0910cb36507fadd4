//! Volumes whose files come from objects, and parts of volumes, seen from within real containers.

use roadstead_pod::volumes::HostPathCheck;
use roadstead_pod::volumes::payload::{Payload, PayloadFile};

use super::images::{result, shell, with_image};
use super::*;

fn files(text: &str) -> Payload {
    let files = text.split_whitespace().map(|word| {
        let (path, data) = word.split_once('=').unwrap();
        let file = PayloadFile { data: data.as_bytes().to_vec(), mode: 0o440, owner: None };
        (path.to_owned(), file)
    });
    Payload { files: files.collect() }
}

fn secret() -> PodVolume {
    let content = VolumeContent::Files(Medium::Memory { size: None });
    PodVolume { name: "secret".into(), content, group: Some(0) }
}

#[test]
fn files_of_objects_are_seen_change_and_go() {
    with_image(async |config, runtime, image| {
        let one = name("one");
        runtime.prepare_volume(&one, secret(), Some(files("a=1 b/c=2"))).await.unwrap();
        let read = |container: &str, line: &str| {
            let mut config = shell(&image, container, line);
            config.mounts =
                vec![VolumeMount { access: Access::ReadOnly, ..mounted(secret(), "/etc/secret") }];
            config
        };
        let look = "cat /etc/secret/a /etc/secret/b/c; busybox stat -L -c '%a %u %g' /etc/secret/a; \
                    busybox grep -o 'secret tmpfs ro' /proc/mounts; touch /etc/secret/x";
        let (code, text) = result(runtime, read("first", look)).await;
        assert!(text.starts_with("12440 0 0\nsecret tmpfs ro\n"), "{text}");
        assert_ne!(code, 0, "read-only");

        // A container that runs sees the change.
        let wait = "until busybox grep -q new /etc/secret/a; do sleep 0.05; done; ls /etc/secret";
        runtime.start(read("follows", wait)).await.unwrap();
        runtime.prepare_volume(&one, secret(), Some(files("a=new"))).await.unwrap();
        assert_eq!(runtime.wait(&one, "follows").await.code, 0);
        assert_eq!(log("one", "follows"), "a\n");

        // The next agent finds it, and it goes with the pod.
        assert_eq!(run("grep -c .volumes/secret /proc/self/mounts"), "1");
        runtime.remove(&one).await.unwrap();
        assert_eq!(run("grep -c .volumes /proc/self/mounts || true"), "0");
        let _ = config;
    });
}

#[test]
fn parts_of_volumes_lead_nowhere_else() {
    with_image(async |_, runtime, image| {
        run("echo host > /run/victim");
        let disk = || empty_directory("disk", Medium::Disk);
        let part = |container: &str, part: &str, line: &str| {
            let mut config = shell(&image, container, line);
            let sub_path = Some(part.to_owned());
            config.mounts = vec![VolumeMount { sub_path, ..mounted(disk(), "/part") }];
            config
        };
        let (code, _) = result(runtime, part("makes", "deep/er", "echo kept > /part/x")).await;
        assert_eq!(code, 0);
        assert_eq!(run("cat /run/state/pods/uid-of-one/.volumes/disk/deep/er/x"), "kept");
        let (_, text) = result(runtime, part("file", "deep/er/x", "cat /part")).await;
        assert_eq!(text, "kept\n");

        // A container that owns the volume leaves links in it.
        let mut plants = shell(
            &image,
            "plants",
            "cd /data; busybox ln -s /run/victim a; busybox ln -s ../../../../../../run/victim b; \
             busybox ln -s /proc/self/root c; busybox ln -s deep inside",
        );
        plants.mounts = vec![mounted(disk(), "/data")];
        assert_eq!(result(runtime, plants).await.0, 0);
        for hostile in ["a", "b", "c/run/victim", "c/run", "b/new"] {
            let refused = runtime.start(part("hostile", hostile, "cat /part")).await.unwrap_err();
            let text = refused.to_string();
            let want =
                "CreateContainerConfigError: failed to create subPath directory for volumeMount";
            assert!(text.starts_with(want), "{hostile}: {text}");
        }
        let (_, text) = result(runtime, part("inside", "inside/er", "cat /part/x")).await;
        assert_eq!(text, "kept\n", "links within the volume are its own business");
        assert_eq!(run("cat /run/victim; ls /run/victim* | wc -l"), "host\n1");
    });
}

#[test]
fn paths_of_the_node_are_checked() {
    with_image(async |_, runtime, _| {
        run("mkdir /run/there && touch /run/file && ln -s /run/state /run/sneaky");
        for (path, check, want) in [
            ("/run/there", HostPathCheck::Directory, ""),
            ("/run/unchecked/deep", HostPathCheck::Anything, ""),
            ("/run/new/deep", HostPathCheck::DirectoryOrCreate, ""),
            ("/run/new-file", HostPathCheck::FileOrCreate, ""),
            (
                "/run/file",
                HostPathCheck::Directory,
                "hostPath type check failed: /run/file is not a directory, it's a file",
            ),
            (
                "/run/there",
                HostPathCheck::File,
                "hostPath type check failed: /run/there is not a file, it's a directory",
            ),
            (
                "/run/file",
                HostPathCheck::Socket,
                "hostPath type check failed: /run/file is not a socket file",
            ),
            (
                "/run/state/pods",
                HostPathCheck::Anything,
                "hostPath /run/state/pods belongs to the node agent",
            ),
            (
                "/run/state/new",
                HostPathCheck::DirectoryOrCreate,
                "hostPath /run/state/new belongs to the node agent",
            ),
            (
                "/run/sneaky/a/b",
                HostPathCheck::Anything,
                "hostPath /run/sneaky/a/b belongs to the node agent",
            ),
            (
                "/run/sneaky/pods",
                HostPathCheck::Anything,
                "hostPath /run/sneaky/pods belongs to the node agent",
            ),
        ] {
            let content = VolumeContent::HostPath { path: path.into(), check };
            let volume = PodVolume { name: "h".into(), content, group: None };
            let found = runtime.prepare_volume(&name("one"), volume, None).await;
            assert_eq!(found.err().unwrap_or_default(), want, "{path}");
        }
        assert_eq!(
            run("ls -d /run/unchecked/deep /run/state/new /run/state/a || true"),
            "/run/unchecked/deep"
        );
    });
}

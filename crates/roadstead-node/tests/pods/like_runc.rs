//! A command of ours in a container looks, from inside, as one of runc's in the same container: a table
//! of recipes, each tried by both (spec: "differential with runc").

use std::process::{Command, Stdio};

use roadstead_node::runtime::exec::ExecOrder;
use roadstead_pod::capabilities::Capabilities;
use roadstead_pod::image::ImageContent;
use roadstead_pod::resources::Limits;
use roadstead_pod::security::{Escalation, KernelPaths, Seccomp};
use roadstead_pod::termination_message::{Otherwise, TerminationMessage};

use super::exec::{join, order};
use super::images::{shell, with_image_of_users};
use super::*;
use roadstead_testkit::terminal::Typist;

/// Everything that a process can see of what it is and may do, as far as it does not change by itself.
const LOOK: &str = "exec 2>/dev/null; grep -E '^(Umask|Uid|Gid|Groups|Cap|NoNew|Seccomp:|SigBlk)' /proc/self/status
    for kind in cgroup ipc mnt net pid pid_for_children time user uts; do readlink /proc/self/ns/$kind; done
    cat /proc/self/limits /proc/self/mountinfo; readlink /proc/self/cwd; readlink /proc/self/root
    env | grep -v '^SHLVL='; ls /proc/self/fd; tty; id; hostname; ls -ln /dev; ls /; cat /proc/1/cmdline
    for path in / /srv /data /dev/shm /etc/resolv.conf /proc/sys/kernel/hostname /proc/sysrq-trigger \
        /sys/fs/cgroup /sys/kernel /proc/kcore /proc/timer_list; do
        test -r $path && echo reads $path; test -w $path && echo writes $path; done
    busybox unshare -U true && echo makes namespaces; busybox mount -t tmpfs t /mnt && echo mounts
    busybox chroot / true && echo changes roots; busybox nice -n -5 true && echo hurries";

/// What belongs to the whole container: a runtime that did not put its process 1 there knows nothing of it.
const GROUPS: &str = "cat /proc/$P/cgroup /proc/$P/oom_score_adj";

type Recipe = (&'static str, fn(&mut ContainerConfig));

fn capability(name: &str) -> Capabilities {
    Capabilities::one(name).expect(name)
}

fn user(config: &mut ContainerConfig, user: u32, group: u32, groups: &[u32]) {
    config.confinement.user = user;
    config.confinement.group = group;
    config.confinement.groups = groups.to_vec();
}

fn everything(config: &mut ContainerConfig) {
    config.confinement.capabilities = Capabilities::all();
    config.confinement.seccomp = Seccomp::Unconfined;
    config.confinement.kernel_paths = KernelPaths::Open;
}

fn volume(config: &mut ContainerConfig, medium: Medium, path: &str) {
    let name = format!("v{}", config.mounts.len());
    config.mounts.push(mounted(empty_directory(&name, medium), path));
}

const MEMORY: Medium = Medium::Memory { size: None };

/// Who the process is, and what it may do.
const WHO: [Recipe; 22] = [
    ("as it comes", |_| {}),
    ("no escalation", |config| config.confinement.escalation = Escalation::Forbidden),
    ("a user", |config| user(config, 101, 0, &[])),
    ("a group", |config| user(config, 0, 33, &[])),
    ("a user, a group, more groups", |config| user(config, 101, 33, &[7, 8])),
    ("many groups", |config| user(config, 0, 0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 4_000_000])),
    ("a user that the image does not know", |config| user(config, 4711, 4712, &[])),
    ("nobody, without escalation", |config| {
        user(config, 65534, 65534, &[]);
        config.confinement.escalation = Escalation::Forbidden;
    }),
    ("no capability", |config| config.confinement.capabilities = Capabilities::from_bits(0)),
    ("no capability, a user", |config| {
        user(config, 101, 33, &[]);
        config.confinement.capabilities = Capabilities::from_bits(0);
    }),
    ("one more capability", |config| {
        let own = config.confinement.capabilities;
        config.confinement.capabilities = own.with(capability("NET_ADMIN"));
    }),
    ("one more capability, a user", |config| {
        user(config, 101, 33, &[]);
        let own = config.confinement.capabilities;
        config.confinement.capabilities = own.with(capability("NET_ADMIN"));
    }),
    ("one capability less", |config| {
        let own = config.confinement.capabilities;
        config.confinement.capabilities = own.without(capability("CHOWN"));
    }),
    ("one capability alone", |config| {
        config.confinement.capabilities = capability("NET_BIND_SERVICE");
    }),
    ("administration", |config| {
        let own = config.confinement.capabilities;
        config.confinement.capabilities = own.with(capability("SYS_ADMIN"));
    }),
    ("all capabilities", |config| config.confinement.capabilities = Capabilities::all()),
    ("all capabilities, a user", |config| {
        user(config, 101, 33, &[]);
        config.confinement.capabilities = Capabilities::all();
    }),
    ("all system calls", |config| config.confinement.seccomp = Seccomp::Unconfined),
    ("all system calls, a user", |config| {
        user(config, 101, 33, &[]);
        config.confinement.seccomp = Seccomp::Unconfined;
    }),
    ("no mask", |config| config.confinement.kernel_paths = KernelPaths::Open),
    ("privileged", everything),
    ("privileged, a user", |config| {
        everything(config);
        user(config, 101, 33, &[5]);
    }),
];

/// What is around it.
const WHERE: [Recipe; 22] = [
    ("a read-only root", |config| config.confinement.read_only_root = true),
    ("a read-only root, a user", |config| {
        config.confinement.read_only_root = true;
        user(config, 101, 33, &[]);
    }),
    ("a read-only root, privileged", |config| {
        everything(config);
        config.confinement.read_only_root = true;
    }),
    ("the root as working directory", |config| config.working_directory = Some("/".into())),
    ("another working directory", |config| config.working_directory = Some("/etc".into())),
    ("a new working directory", |config| config.working_directory = Some("/made/by/it".into())),
    ("variables", |config| {
        config.environment.push(("EMPTY".into(), String::new()));
        config.environment.push(("LINES".into(), "one\ntwo = three $HOME 'x'".into()));
    }),
    ("another home", |config| {
        config.environment.retain(|(name, _)| name != "HOME");
        config.environment.push(("HOME".into(), "/srv".into()));
    }),
    ("another host name", |config| config.hostname = "somewhere-else".into()),
    ("more files", |config| {
        config.files.insert("/etc/hosts".into(), "127.0.0.1 localhost\n".into());
        config.files.insert("/etc/hostname".into(), "one\n".into());
    }),
    ("little memory", |config| config.resources.of_container.memory = Some(64 << 20)),
    ("little of the processor", |config| config.resources.of_container.cpu = Some(100)),
    ("few processes", |config| config.resources.of_container.processes = Some(64)),
    ("first to go when memory is short", |config| config.resources.oom_score_adj = 1000),
    ("a directory", |config| volume(config, Medium::Disk, "/data")),
    ("a directory in memory", |config| volume(config, MEMORY, "/data")),
    ("a read-only directory", |config| {
        volume(config, Medium::Disk, "/data");
        config.mounts[0].access = Access::ReadOnly;
    }),
    ("a part of a directory", |config| {
        volume(config, Medium::Disk, "/data");
        config.mounts[0].sub_path = Some("some/part".into());
    }),
    ("directories in one another", |config| {
        volume(config, Medium::Disk, "/data");
        volume(config, MEMORY, "/data/inner");
    }),
    ("a directory where it works", |config| volume(config, Medium::Disk, "/srv")),
    ("last words", |config| {
        let path = "/dev/termination-log".into();
        let otherwise = Otherwise::Nothing;
        config.termination_message = Some(TerminationMessage { path, otherwise });
    }),
    // The last one: a pod keeps its limits for life.
    ("limits of the pod", |config| {
        let limits = Limits { memory: Some(128 << 20), cpu: Some(500), ..Limits::default() };
        config.resources.of_pod = limits;
    }),
];

/// What somebody with a terminal sees of it; how large it is says who looks at it, and that comes later.
const LOOK_AT_TERMINAL: &str = "tty; stty -a 2>/dev/null | grep -o -E -- '-?echo |-?icanon|-?opost'
    readlink /proc/self/fd/0; readlink /proc/self/fd/1; readlink /proc/self/fd/2
    busybox stat -c '%a %u %t %T' $(tty) /dev/ptmx; echo $TERM; id";

#[test]
fn a_terminal_is_what_runc_would_make_of_it() {
    with_image_of_users(async |config, runtime, image| {
        for (number, as_user) in [0, 101].into_iter().enumerate() {
            let mut main = shell(&image, "main", "sleep 60");
            main.streams.terminal = true;
            main.environment.push(("TERM".into(), "xterm".into()));
            main.restarts = i32::try_from(number).unwrap();
            user(&mut main, as_user, 0, &[]);
            let started = runtime.start(main).await.unwrap();
            let order = ExecOrder { tty: true, ..order(&["sh", "-c", LOOK_AT_TERMINAL]) };
            let session = runtime.exec(&name("one"), "main", order).await.unwrap();
            let (_, ours) = session.output(1 << 20).await;
            let ours = String::from_utf8(ours).unwrap();
            let state = config.state_dir.join("oci").display().to_string();
            let words = ["--root", &state, "exec", "-t", &started.id, "sh", "-c", LOOK_AT_TERMINAL];
            let mut command = Command::new("runc");
            let mut theirs = Typist::start(command.args(words));
            theirs.ends();
            let theirs = theirs.shown();
            assert!(ours.contains("/dev/pts/") && ours.lines().count() > 7, "{ours}");
            assert_eq!(ours.replace('\r', ""), theirs.replace('\r', ""), "user {as_user}");
            runtime.stop(&name("one"), "main", Stop::Now);
            runtime.wait(&name("one"), "main").await;
        }
    });
}

/// Images whose files lead elsewhere: a command of ours is led no further than one of runc's.
#[test]
fn hostile_images_are_the_same_to_both() {
    with_image_of_users(async |config, runtime, image| {
        let ImageContent::Layers(layered) = &image.content else { panic!("{image:?}") };
        run("mkdir -p /run/victim && echo host > /run/victim/file
             mkdir -p /run/links/dev /run/scripts/bin
             ln -s /run/victim /run/links/etc; ln -s /run/victim /run/links/data
             ln -s ../../../../../run/victim /run/links/srv
             ln -s /proc/1/root /run/links/mnt
             printf '#!/proc/self/exe\\n' > /run/scripts/bin/evil
             printf 'root:x:0:0::/proc/1/root:/bin/evil\\n' > /run/scripts/passwd
             chmod 0755 /run/scripts/bin/evil");
        for (number, layer) in ["/run/links", "/run/scripts"].into_iter().enumerate() {
            let mut hostile = layered.as_ref().clone();
            hostile.layers.push(layer.into());
            hostile.working_dir = "/".into();
            let content = ImageContent::Layers(Box::new(hostile));
            let image = ImageFacts { content, ..image.clone() };
            compare(config, runtime, &image, number, layer, |config| {
                volume(config, Medium::Disk, "/data");
            })
            .await;
            assert_eq!(run("ls /run/victim; cat /run/victim/file"), "file\nhost", "{layer}");
        }
    });
}

#[test]
fn a_command_is_what_runc_would_make_of_it() {
    assert!(WHO.len() + WHERE.len() >= 40);
    with_image_of_users(async |config, runtime, image| {
        for (number, (name, change)) in WHO.iter().chain(&WHERE).enumerate() {
            compare(config, runtime, &image, number, name, *change).await;
        }
    });
}

async fn compare(
    config: &Config,
    runtime: &BuiltinRuntime,
    image: &ImageFacts,
    number: usize,
    recipe: &str,
    change: fn(&mut ContainerConfig),
) {
    let mut main = shell(image, "main", "sleep 60");
    main.confinement.escalation = Escalation::Allowed;
    main.resources.oom_score_adj = 777;
    main.restarts = i32::try_from(number).unwrap();
    change(&mut main);
    let (score, wanted) = (main.resources.oom_score_adj, main.mounts.clone());
    for mount in wanted {
        runtime.prepare_volume(&name("one"), mount.volume, None).await.unwrap();
    }
    let started = runtime.start(main).await.unwrap_or_else(|error| panic!("{recipe}: {error}"));
    let (code, ours) = join(runtime, &["sh", "-c", LOOK]).await;
    let state = config.state_dir.join("oci");
    let theirs = Command::new("runc")
        .args(["--root".as_ref(), state.as_os_str()])
        .args(["exec", &started.id, "sh", "-c", LOOK])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(Some(code), theirs.status.code(), "{recipe}");
    assert!(ours.len() > 2000, "{recipe}: {ours}");
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    let differences: Vec<_> = ours.lines().zip(theirs.lines()).filter(|(a, b)| a != b).collect();
    assert!(ours == theirs, "{recipe}: ours and theirs: {differences:#?}");
    let [own, of_init] = ["self", "1"].map(|process| GROUPS.replace("$P", process));
    let own = join(runtime, &["sh", "-c", &own]).await;
    assert_eq!(own, join(runtime, &["sh", "-c", &of_init]).await, "{recipe}");
    let text = &own.1;
    assert!(text.contains("poduid-of-one") && text.ends_with(&format!("{score}\n")), "{text:?}");
    runtime.stop(&name("one"), "main", Stop::Now);
    runtime.wait(&name("one"), "main").await;
}

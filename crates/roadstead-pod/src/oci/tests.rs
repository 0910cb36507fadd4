//! What a recipe for an OCI runtime says, by the parts of a pod that it comes from.

use super::*;
use crate::container_config::ContainerStreams;
use crate::image::{ImageContent, ImageFacts};
use crate::pod_name::PodName;
use crate::resources::Resources;
use crate::sandbox::{Messages, Processes};
use crate::security::Seccomp;

fn image() -> LayeredImage {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect();
    LayeredImage {
        entrypoint: words("/entry.sh -e"),
        cmd: words("nginx -g"),
        working_dir: "/srv".into(),
        ..LayeredImage::default()
    }
}

fn container() -> ContainerConfig {
    let content = ImageContent::Layers(Box::new(image()));
    ContainerConfig {
        pod: PodName { namespace: "d".into(), name: "web".into(), uid: "u".into() },
        container: "main".into(),
        image: ImageFacts { id: "x".into(), size: 0, content },
        command: vec![],
        args: vec![],
        environment: vec![("A".into(), "b=c".into())],
        working_directory: None,
        hostname: "web".into(),
        files: Default::default(),
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

fn made(config: &ContainerConfig, network: Option<&str>) -> Value {
    made_with(config, network, |_| {})
}

fn made_with(
    config: &ContainerConfig,
    network: Option<&str>,
    change: impl FnOnce(&mut OciContext<'_>),
) -> Value {
    let mut context = OciContext {
        root: Path::new("root"),
        network: network.map(Path::new),
        processes: Namespace::Own,
        shared_memory: None,
        messages: Namespace::Own,
        node_queues: Some(Path::new("/dev/mqueue")),
        cgroups_path: "roadstead-1-id".into(),
        binds: vec![Bind {
            source: "/s".into(),
            path: "/data".into(),
            access: Access::ReadOnly,
            trust: Trust::Data,
            propagation: Propagation::None,
        }],
        seccomp: (config.confinement.seccomp == Seccomp::RuntimeDefault).then(|| json!({"x": 1})),
        available: Capabilities::usual(),
        labels: &NO_LABELS,
    };
    change(&mut context);
    oci_config(config, &image(), &context).unwrap()
}

const NO_LABELS: ProcessLabels = ProcessLabels { app_armor: None, se_linux: None };

#[test]
fn profiles_and_labels() {
    let mut config = container();
    let label = json!({"user": "u", "role": "r", "kind": "t", "level": "s0:c1"});
    config.confinement.mandatory.se_linux = Some(serde_json::from_value(label).unwrap());
    let both =
        ProcessLabels { app_armor: Some("web".into()), se_linux: Some("u:r:t:s0:c1".into()) };
    let both: &'static ProcessLabels = Box::leak(Box::new(both));
    let with = made_with(&config, None, |context| context.labels = both);
    assert_eq!(with["process"]["apparmorProfile"], "web");
    assert_eq!(with["process"]["selinuxLabel"], "u:r:t:s0:c1");
    assert_eq!(with["linux"]["mountLabel"], "u:object_r:container_file_t:s0:c1");
    // What the kernel does not know is not asked of the runtime, which would refuse it.
    let without = made(&config, None);
    assert!(without["process"].get("selinuxLabel").is_none());
    assert!(without["linux"].get("mountLabel").is_none());
}

#[test]
fn command_lines() {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
    for (command, args, want) in [
        ("", "", "/entry.sh -e nginx -g"),
        ("", "-x", "/entry.sh -e -x"),
        ("sh", "", "sh"),
        ("sh", "-c true", "sh -c true"),
    ] {
        let line = command_line(&image(), &words(command), &words(args)).unwrap();
        assert_eq!(line.join(" "), want, "{command} {args}");
    }
    let none = command_line(&LayeredImage::default(), &[], &[]).unwrap_err();
    assert_eq!(none, "no command specified");
}

#[test]
fn parts_of_a_pod() {
    let plain = container();
    let with = |change: fn(&mut ContainerConfig)| {
        let mut config = container();
        change(&mut config);
        config
    };
    let user = with(|config| {
        config.confinement.user = 7;
        config.confinement.group = 8;
        config.confinement.groups = vec![9];
    });
    let privileged = with(|config| {
        config.confinement.kernel_paths = KernelPaths::Open;
        config.confinement.capabilities = Capabilities::all();
        config.confinement.seccomp = Seccomp::Unconfined;
        config.confinement.escalation = Escalation::Allowed;
    });
    let unmasked = with(|config| config.confinement.kernel_paths = KernelPaths::Unmasked);
    let read_only = with(|config| config.confinement.read_only_root = true);
    let elsewhere = with(|config| config.working_directory = Some("/w".into()));
    let usual = json!(Capabilities::usual().names());
    for (name, config, path, want) in [
        ("env", &plain, "/process/env", json!(["A=b=c"])),
        ("cwd of the image", &plain, "/process/cwd", json!("/srv")),
        ("cwd of the pod", &elsewhere, "/process/cwd", json!("/w")),
        ("root", &plain, "/process/user/uid", json!(0)),
        ("root's", &plain, "/process/capabilities/effective", usual.clone()),
        ("user", &user, "/process/user", json!({"uid": 7, "gid": 8, "additionalGids": [9]})),
        ("a user's", &user, "/process/capabilities/effective", json!([])),
        ("a user's bound", &user, "/process/capabilities/bounding", usual.clone()),
        ("what we have", &privileged, "/process/capabilities/bounding", usual),
        ("no new privileges", &plain, "/process/noNewPrivileges", json!(true)),
        ("new privileges", &privileged, "/process/noNewPrivileges", json!(false)),
        ("writable", &plain, "/root", json!({"path": "root", "readonly": false})),
        ("read-only", &read_only, "/root/readonly", json!(true)),
        ("devices", &plain, "/linux/resources/devices/0/allow", json!(false)),
        ("all devices", &privileged, "/linux/resources/devices/0/allow", json!(true)),
        ("masks", &plain, "/linux/maskedPaths/0", json!("/proc/acpi")),
        ("no masks", &privileged, "/linux/maskedPaths", json!([])),
        ("no masks alone", &unmasked, "/linux/maskedPaths", json!([])),
        ("nothing read-only", &unmasked, "/linux/readonlyPaths", json!([])),
        ("no devices all the same", &unmasked, "/linux/resources/devices/0/allow", json!(false)),
        ("nor the rest", &unmasked, "/mounts/4/options/3", json!("ro")),
        ("calls", &plain, "/linux/seccomp", json!({"x": 1})),
        ("all calls", &privileged, "/linux/seccomp", Value::Null),
        ("network", &plain, "/linux/namespaces/5", json!({"type": "network", "path": "/n"})),
        ("ports", &plain, "/linux/sysctl", json!({"net.ipv4.ip_unprivileged_port_start": "0"})),
        (
            "a volume",
            &plain,
            "/mounts/7",
            json!({"destination": "/data", "type": "bind", "source": "/s",
                   "options": ["rbind", "rprivate", "nodev", "ro"]}),
        ),
    ] {
        let made = made(config, Some("/n"));
        assert_eq!(made.pointer(path).unwrap_or(&Value::Null), &want, "{name}");
    }
    let host = made(&plain, None);
    assert_eq!(host["linux"]["namespaces"].as_array().unwrap().len(), 5);
    assert_eq!(host["linux"]["sysctl"], json!({}));
}

#[test]
fn whose_namespaces() {
    let config = container();
    for (namespace, want) in [
        (Namespace::Own, json!([{"type": "pid"}, {"type": "ipc"}])),
        (
            Namespace::At(Path::new("/p")),
            json!([{"type": "pid", "path": "/p"}, {"type": "ipc", "path": "/p"}]),
        ),
        (Namespace::Node, json!([])),
    ] {
        let made = made_with(&config, None, |context| {
            (context.processes, context.messages) = (namespace, namespace);
        });
        let all = made["linux"]["namespaces"].as_array().unwrap();
        let kinds = |one: &&Value| one["type"] == "pid" || one["type"] == "ipc";
        let found: Vec<_> = all.iter().filter(kinds).collect();
        assert_eq!(json!(found), want, "{namespace:?}");
        let mounts = made["mounts"].as_array().unwrap();
        let queues: Vec<_> = mounts.iter().filter(|m| m["destination"] == "/dev/mqueue").collect();
        let kind = if namespace == Namespace::Node { "bind" } else { "mqueue" };
        assert!(queues.len() == 1 && queues[0]["type"] == kind, "{namespace:?}: {queues:?}");
    }
}

#[test]
fn how_volumes_are_mounted() {
    let config = container();
    for (propagation, trust, access, options, root) in [
        (Propagation::None, Trust::Data, Access::ReadWrite, "rbind rprivate nodev rw", None),
        (Propagation::None, Trust::Node, Access::ReadOnly, "rbind rprivate dev ro", None),
        (
            Propagation::None,
            Trust::Image,
            Access::ReadOnly,
            "rbind rprivate nodev nosuid noexec ro",
            None,
        ),
        (
            Propagation::HostToContainer,
            Trust::Node,
            Access::ReadWrite,
            "rbind rslave dev rw",
            Some("rslave"),
        ),
        (
            Propagation::Bidirectional,
            Trust::Data,
            Access::ReadWrite,
            "rbind rshared nodev rw",
            Some("rshared"),
        ),
    ] {
        let made = made_with(&config, None, |context| {
            let path = "/data".to_owned();
            context.binds = vec![Bind { source: "/s".into(), path, access, trust, propagation }];
        });
        let words: Vec<_> = options.split(' ').collect();
        assert_eq!(made["mounts"][7]["options"], json!(words), "{propagation:?} {trust:?}");
        assert_eq!(made["linux"]["rootfsPropagation"], json!(root), "{propagation:?} {trust:?}");
    }
}

#[test]
fn signals() {
    for (text, want) in [
        ("SIGTERM", Some(15)),
        ("QUIT", Some(3)),
        ("9", Some(9)),
        ("SIGWINCH", Some(28)),
        ("SIGRTMIN+3", Some(37)),
        ("RTMAX-1", Some(63)),
        ("", None),
        ("0", None),
        ("SIGNO", None),
    ] {
        assert_eq!(stop_signal(text), want, "{text}");
    }
}

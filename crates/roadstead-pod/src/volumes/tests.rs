use std::collections::BTreeMap;

use super::*;
use crate::image::{ImageContent, ImageFacts, LayeredImage};
use serde_json::{Value, json};

fn pod(volume: Value, mount: Value) -> Pod {
    let with_name = |mut value: Value| {
        value["name"] = value.get("name").cloned().unwrap_or(json!("v"));
        value
    };
    serde_json::from_value(json!({"spec": {
        "securityContext": {"fsGroup": 7},
        "volumes": [with_name(volume), {"name": "unused", "nfs": {"path": "/", "server": "x"}}],
        "containers": [{"name": "a", "volumeMounts": [with_name(mount)]}],
    }}))
    .unwrap()
}

fn at(path: &str) -> Value {
    json!({"mountPath": path})
}

#[test]
fn what_volumes_are() {
    let memory = |size| Medium::Memory { size };
    let empty = VolumeContent::EmptyDirectory;
    let files = VolumeContent::Files;
    let on_node = |check| VolumeContent::HostPath { path: "/x".into(), check };
    let token = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}});
    for (source, want, group) in [
        (json!({"emptyDir": {}}), empty(Medium::Disk), Some(7)),
        (json!({}), empty(Medium::Disk), Some(7)),
        (json!({"emptyDir": {"sizeLimit": "1Mi"}}), empty(Medium::Disk), Some(7)),
        (json!({"emptyDir": {"medium": "Memory"}}), empty(memory(None)), Some(7)),
        (
            json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}),
            empty(memory(Some(1 << 20))),
            Some(7),
        ),
        (json!({"emptyDir": {"medium": "Memory", "sizeLimit": "0"}}), empty(memory(None)), Some(7)),
        (json!({"configMap": {"name": "m"}}), files(Medium::Disk), Some(7)),
        (json!({"secret": {"secretName": "m"}}), files(memory(None)), Some(7)),
        (json!({"downwardAPI": {}}), files(Medium::Disk), Some(7)),
        (token, files(memory(None)), Some(7)),
        (json!({"hostPath": {"path": "/x"}}), on_node(HostPathCheck::Anything), None),
        (
            json!({"hostPath": {"path": "/x", "type": "Socket"}}),
            on_node(HostPathCheck::Socket),
            None,
        ),
    ] {
        let volumes = pod_volumes(&pod(source.clone(), at("/a")), Policy::Privileged);
        assert_eq!(volumes, [Ok(PodVolume { name: "v".into(), content: want, group })], "{source}");
    }
}

#[test]
fn what_cannot_be_had() {
    let failure = |volume: Value, policy| {
        let mut found = pod_volumes(&pod(volume, at("/a")), policy);
        let why = found.pop().unwrap().unwrap_err();
        let prefix = "MountVolume.SetUp failed for volume \"v\" : ";
        why.strip_prefix(prefix).unwrap_or_else(|| panic!("{why}")).to_owned()
    };
    for (volume, policy, want) in [
        (
            json!({"persistentVolumeClaim": {"claimName": "c"}}),
            Policy::Privileged,
            "persistentvolumeclaim \"c\" not found",
        ),
        (
            json!({"hostPath": {"path": "/"}}),
            Policy::Baseline,
            "a hostPath volume is disallowed by cluster policy: `roadstead up --allow-privileged` allows it",
        ),
        (
            json!({"hostPath": {"path": "/x/../y"}}),
            Policy::Privileged,
            "hostPath \"/x/../y\" must be absolute, without '..'",
        ),
        (
            json!({"hostPath": {"path": "/x", "type": "Fifo"}}),
            Policy::Privileged,
            "Fifo is an invalid volume type",
        ),
        (
            json!({"emptyDir": {"medium": "HugePages"}}),
            Policy::Privileged,
            "the medium HugePages is not supported by this node yet",
        ),
    ] {
        assert_eq!(failure(volume.clone(), policy), want, "{volume}");
    }
}

/// Where and how a mount appears, or why not.
fn show(volume: Value, mut mount: Value) -> String {
    let privileged = mount["privileged"].take();
    mount.as_object_mut().unwrap().remove("privileged");
    let mut pod = pod(volume, mount);
    let own = json!({"privileged": privileged == json!(true)});
    pod.spec.as_mut().unwrap().containers[0].security_context =
        serde_json::from_value(own).unwrap();
    let expand = |text: &str| match text {
        "$(NO)" => Err("missing value for \"NO\"".to_owned()),
        text => Ok(text.replace("$(POD)", "web")),
    };
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let layers = vec!["/layers/a".into()];
    let image = LayeredImage { layers, ..LayeredImage::default() };
    let content = ImageContent::Layers(Box::new(image));
    let image = ImageFacts { id: "x".into(), size: 0, content };
    let images = BTreeMap::from([("v".to_owned(), image)]);
    let grants = VolumeGrants { images: &images, ..Policy::Privileged.into() };
    match mounts(&pod, container, grants, expand) {
        Ok(mounts) => {
            let mount = &mounts[0];
            let part = mount.sub_path.as_deref().unwrap_or("-");
            let propagation = match mount.propagation {
                Propagation::None => String::new(),
                other => format!(" {other:?}"),
            };
            format!("{part} {} {:?}{propagation}", mount.path, mount.access)
        }
        Err(why) => why,
    }
}

#[test]
fn where_volumes_are_seen() {
    let empty = || json!({"emptyDir": {}});
    let map = || json!({"configMap": {"name": "m"}});
    let node = || json!({"hostPath": {"path": "/x"}});
    for (volume, mount, want) in [
        (empty(), at("/a//b/"), "- /a/b ReadWrite"),
        (empty(), json!({"mountPath": "/a", "readOnly": true}), "- /a ReadOnly"),
        (map(), at("/a"), "- /a ReadOnly"),
        (
            node(),
            json!({"mountPath": "/a", "readOnly": true, "recursiveReadOnly": "Enabled"}),
            "- /a RecursiveReadOnly",
        ),
        (empty(), json!({"mountPath": "/a", "subPath": "x/./y/"}), "x/y /a ReadWrite"),
        (empty(), json!({"mountPath": "/a", "subPathExpr": "$(POD)/x"}), "web/x /a ReadWrite"),
        (empty(), json!({"mountPath": "/a", "subPathExpr": "$(NO)"}), "missing value for \"NO\""),
        (
            empty(),
            json!({"mountPath": "/a", "subPath": "/x"}),
            "error SubPath `/x` must not be an absolute path",
        ),
        (
            empty(),
            json!({"mountPath": "/a", "subPath": "x/../../y"}),
            "unable to provision SubPath `x/../../y`: must not contain '..'",
        ),
        (empty(), at("/"), "volumeMount \"v\": it cannot be mounted on /"),
        (empty(), at("/./proc/1"), "volumeMount \"v\": it cannot be mounted on /./proc/1"),
        (empty(), at("/a/../b"), "volumeMount \"v\": mountPath \"/a/../b\" must not contain '..'"),
        (
            empty(),
            json!({"mountPath": "/a", "mountPropagation": "HostToContainer"}),
            "- /a ReadWrite HostToContainer",
        ),
        (
            node(),
            json!({"mountPath": "/a", "mountPropagation": "Bidirectional", "privileged": true}),
            "- /a ReadWrite Bidirectional",
        ),
        (
            node(),
            json!({"mountPath": "/a", "mountPropagation": "Bidirectional"}),
            "volumeMount \"v\": Bidirectional mount propagation is available only to privileged containers",
        ),
        (
            empty(),
            json!({"mountPath": "/a", "mountPropagation": "Sideways"}),
            "volumeMount \"v\": mountPropagation Sideways is not supported by this node",
        ),
        (json!({"image": {"reference": "x"}}), at("/a"), "- /a ReadOnly"),
        (
            json!({"image": {"reference": "x"}}),
            json!({"mountPath": "/a", "readOnly": false, "subPath": "etc"}),
            "etc /a ReadOnly",
        ),
        (
            empty(),
            json!({"mountPath": "/a", "name": "w"}),
            "MountVolume.SetUp failed for volume \"w\" : the pod has no such volume",
        ),
    ] {
        assert_eq!(show(volume, mount.clone()), want, "{mount}");
    }
}

#[test]
fn images_that_are_volumes() {
    let image = || json!({"image": {"reference": "x"}});
    assert_eq!(pod_volumes(&pod(image(), at("/a")), Policy::Privileged), [], "they come later");
    let built_in = ImageFacts::built_in("roadstead/echo").unwrap();
    let built_in = BTreeMap::from([("v".to_owned(), built_in)]);
    for (images, want) in
        [(&BTreeMap::new(), "its image is not here"), (&built_in, "a built-in image has no files")]
    {
        let pod = pod(image(), at("/a"));
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let grants = VolumeGrants { images, ..Policy::Privileged.into() };
        let why = mounts(&pod, container, grants, |text| Ok(text.into())).unwrap_err();
        assert_eq!(why, mount_failure("v", want));
    }
}

#[test]
fn what_is_in_memory_counts_as_memory() {
    let size = |limits: &[Option<&str>], asked: Option<&str>| {
        let volume = json!({"emptyDir": {"medium": "Memory", "sizeLimit": asked}});
        let mut pod = pod(volume, at("/v"));
        let spec = pod.spec.as_mut().unwrap();
        let first = spec.containers[0].clone();
        spec.containers = limits
            .iter()
            .map(|limit| {
                let resources = json!({"limits": {"memory": limit.unwrap_or("0")}});
                Container { resources: serde_json::from_value(resources).unwrap(), ..first.clone() }
            })
            .collect();
        let volumes = pod_volumes(&pod, Policy::Baseline);
        match volumes.into_iter().next().unwrap().unwrap().content {
            VolumeContent::EmptyDirectory(Medium::Memory { size }) => size,
            other => panic!("{other:?}"),
        }
    };
    let mib = 1 << 20;
    assert_eq!(size(&[Some("3Mi"), Some("1Mi")], None), Some(4 * mib));
    assert_eq!(size(&[Some("3Mi")], Some("1Mi")), Some(mib));
    assert_eq!(size(&[Some("3Mi")], Some("9Mi")), Some(3 * mib));
    assert_eq!(size(&[Some("3Mi"), None], Some("9Mi")), Some(9 * mib), "not all are limited");
}

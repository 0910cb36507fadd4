//! Kinds that need no code of their own: they are kept, watched and shown, and whoever asked for
//! them to be served acts on them.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, NAME_AND_AGE, age_cell, labels_cell, name_cell, or_none};
use crate::kinds::{deployment, pod_spec};
use crate::look::{Look, child};

/// How a cell comes out of an object.
#[derive(Clone, Copy, Debug)]
enum Cell {
    Name,
    Age,
    /// The text there.
    Text(&'static str),
    /// The number there, 0 if absent.
    Int(&'static str),
    /// The flag there.
    Flag(&'static str),
    /// The texts there, joined.
    Join(&'static str),
    /// `a=b,c=d`.
    Labels(&'static str),
    /// `1/3`: two numbers.
    Ratio(&'static str, &'static str),
}

/// A kind that is only kept.
pub struct Stored {
    info: Info,
    columns: &'static [Column],
    cells: &'static [Cell],
    /// Whether there is a pod template in `spec.template`.
    template: bool,
}

impl Kind for Stored {
    fn info(&self) -> &Info {
        &self.info
    }

    fn default(&self, object: &mut Value) {
        if self.template {
            pod_spec::default(child(child(child(object, "spec"), "template"), "spec"));
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        if self.template && self.info.group == "apps" {
            deployment::validate_workload(object, old, causes);
        }
    }

    fn columns(&self) -> &[Column] {
        self.columns
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.cells.iter().map(|cell| cell.of(object, now)).collect()
    }
}

impl Cell {
    fn of(self, object: &Value, now: Timestamp) -> Value {
        match self {
            Self::Name => name_cell(object),
            Self::Age => age_cell(object, now),
            Self::Text(pointer) => or_none(object.text(pointer)),
            Self::Int(pointer) => json!(object.int(pointer)),
            Self::Flag(pointer) => json!(object.flag(pointer).to_string()),
            Self::Join(pointer) => {
                let texts = object.list(pointer).iter().filter_map(Value::as_str);
                or_none(texts.collect::<Vec<_>>().join(","))
            }
            Self::Labels(pointer) => labels_cell(object, pointer),
            Self::Ratio(part, whole) => {
                json!(format!("{}/{}", object.int(part), object.int(whole)))
            }
        }
    }
}

const fn stored(info: Info) -> Stored {
    Stored { info, columns: NAME_AND_AGE, cells: &[Cell::Name, Cell::Age], template: false }
}

const fn shown(info: Info, columns: &'static [Column], cells: &'static [Cell]) -> Stored {
    Stored { info, columns, cells, template: false }
}

const fn namespaced(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
) -> Info {
    Info::new(group, "v1", kind, plural, singular)
}

const fn cluster(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
) -> Info {
    Info { namespaced: false, ..Info::new(group, "v1", kind, plural, singular) }
}

const NAME: Column = Column::text("Name");
const AGE: Column = Column::text("Age");
const NETWORKING: &str = "networking.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";

/// All of them.
pub static ALL: [Stored; 30] = [
    stored(namespaced("", "LimitRange", "limitranges", "limitrange").short(&["limits"])),
    stored(namespaced("", "PodTemplate", "podtemplates", "podtemplate")),
    stored(
        namespaced("", "ResourceQuota", "resourcequotas", "resourcequota")
            .short(&["quota"])
            .with_status(),
    ),
    shown(
        cluster("", "PersistentVolume", "persistentvolumes", "persistentvolume")
            .short(&["pv"])
            .with_status(),
        &[
            NAME,
            Column::text("Capacity"),
            Column::text("Access Modes"),
            Column::text("Reclaim Policy"),
            Column::text("Status"),
            Column::text("Claim"),
            Column::text("StorageClass"),
            AGE,
        ],
        &[
            Cell::Name,
            Cell::Text("/spec/capacity/storage"),
            Cell::Join("/spec/accessModes"),
            Cell::Text("/spec/persistentVolumeReclaimPolicy"),
            Cell::Text("/status/phase"),
            Cell::Text("/spec/claimRef/name"),
            Cell::Text("/spec/storageClassName"),
            Cell::Age,
        ],
    ),
    shown(
        namespaced("", "PersistentVolumeClaim", "persistentvolumeclaims", "persistentvolumeclaim")
            .short(&["pvc"])
            .with_status(),
        &[
            NAME,
            Column::text("Status"),
            Column::text("Volume"),
            Column::text("Capacity"),
            Column::text("Access Modes"),
            Column::text("StorageClass"),
            AGE,
        ],
        &[
            Cell::Name,
            Cell::Text("/status/phase"),
            Cell::Text("/spec/volumeName"),
            Cell::Text("/status/capacity/storage"),
            Cell::Join("/spec/accessModes"),
            Cell::Text("/spec/storageClassName"),
            Cell::Age,
        ],
    ),
    Stored {
        info: namespaced(
            "",
            "ReplicationController",
            "replicationcontrollers",
            "replicationcontroller",
        )
        .short(&["rc"])
        .with_status()
        .with_scale()
        .in_all(),
        columns: &[
            NAME,
            Column::int("Desired"),
            Column::int("Current"),
            Column::int("Ready"),
            AGE,
            Column::wide("Selector"),
        ],
        cells: &[
            Cell::Name,
            Cell::Int("/spec/replicas"),
            Cell::Int("/status/replicas"),
            Cell::Int("/status/readyReplicas"),
            Cell::Age,
            Cell::Labels("/spec/selector"),
        ],
        template: true,
    },
    Stored {
        info: namespaced("apps", "StatefulSet", "statefulsets", "statefulset")
            .short(&["sts"])
            .with_status()
            .with_scale()
            .in_all(),
        columns: &[NAME, Column::text("Ready"), AGE],
        cells: &[Cell::Name, Cell::Ratio("/status/readyReplicas", "/spec/replicas"), Cell::Age],
        template: true,
    },
    Stored {
        info: namespaced("apps", "DaemonSet", "daemonsets", "daemonset")
            .short(&["ds"])
            .with_status()
            .in_all(),
        columns: &[
            NAME,
            Column::int("Desired"),
            Column::int("Current"),
            Column::int("Ready"),
            Column::int("Up-to-date"),
            Column::int("Available"),
            Column::text("Node Selector"),
            AGE,
        ],
        cells: &[
            Cell::Name,
            Cell::Int("/status/desiredNumberScheduled"),
            Cell::Int("/status/currentNumberScheduled"),
            Cell::Int("/status/numberReady"),
            Cell::Int("/status/updatedNumberScheduled"),
            Cell::Int("/status/numberAvailable"),
            Cell::Labels("/spec/template/spec/nodeSelector"),
            Cell::Age,
        ],
        template: true,
    },
    shown(
        namespaced("apps", "ControllerRevision", "controllerrevisions", "controllerrevision"),
        &[NAME, Column::int("Revision"), AGE],
        &[Cell::Name, Cell::Int("/revision"), Cell::Age],
    ),
    shown(
        cluster(NETWORKING, "ServiceCIDR", "servicecidrs", "servicecidr").with_status(),
        &[NAME, Column::text("CIDRs"), AGE],
        &[Cell::Name, Cell::Join("/spec/cidrs"), Cell::Age],
    ),
    shown(
        namespaced(NETWORKING, "Ingress", "ingresses", "ingress").short(&["ing"]).with_status(),
        &[NAME, Column::text("Class"), AGE],
        &[Cell::Name, Cell::Text("/spec/ingressClassName"), Cell::Age],
    ),
    shown(
        cluster(NETWORKING, "IngressClass", "ingressclasses", "ingressclass"),
        &[NAME, Column::text("Controller"), AGE],
        &[Cell::Name, Cell::Text("/spec/controller"), Cell::Age],
    ),
    shown(
        namespaced(NETWORKING, "NetworkPolicy", "networkpolicies", "networkpolicy")
            .short(&["netpol"]),
        &[NAME, Column::text("Pod-Selector"), AGE],
        &[Cell::Name, Cell::Labels("/spec/podSelector/matchLabels"), Cell::Age],
    ),
    stored(namespaced(RBAC, "Role", "roles", "role").with_path_names()),
    shown(
        namespaced(RBAC, "RoleBinding", "rolebindings", "rolebinding").with_path_names(),
        &[NAME, Column::text("Role"), AGE],
        &[Cell::Name, Cell::Text("/roleRef/name"), Cell::Age],
    ),
    stored(cluster(RBAC, "ClusterRole", "clusterroles", "clusterrole").with_path_names()),
    shown(
        cluster(RBAC, "ClusterRoleBinding", "clusterrolebindings", "clusterrolebinding")
            .with_path_names(),
        &[NAME, Column::text("Role"), AGE],
        &[Cell::Name, Cell::Text("/roleRef/name"), Cell::Age],
    ),
    Stored {
        info: namespaced("batch", "Job", "jobs", "job").with_status().in_all(),
        columns: &[NAME, Column::text("Completions"), AGE],
        cells: &[Cell::Name, Cell::Ratio("/status/succeeded", "/spec/completions"), Cell::Age],
        template: true,
    },
    shown(
        namespaced("batch", "CronJob", "cronjobs", "cronjob").short(&["cj"]).with_status().in_all(),
        &[
            NAME,
            Column::text("Schedule"),
            Column::text("Timezone"),
            Column::text("Suspend"),
            Column::text("Last Schedule"),
            AGE,
        ],
        &[
            Cell::Name,
            Cell::Text("/spec/schedule"),
            Cell::Text("/spec/timeZone"),
            Cell::Flag("/spec/suspend"),
            Cell::Text("/status/lastScheduleTime"),
            Cell::Age,
        ],
    ),
    shown(
        namespaced("policy", "PodDisruptionBudget", "poddisruptionbudgets", "poddisruptionbudget")
            .short(&["pdb"])
            .with_status(),
        &[NAME, Column::int("Allowed Disruptions"), AGE],
        &[Cell::Name, Cell::Int("/status/disruptionsAllowed"), Cell::Age],
    ),
    shown(
        Info {
            version: "v2",
            ..namespaced(
                "autoscaling",
                "HorizontalPodAutoscaler",
                "horizontalpodautoscalers",
                "horizontalpodautoscaler",
            )
        }
        .short(&["hpa"])
        .with_status()
        .in_all(),
        &[
            NAME,
            Column::text("Reference"),
            Column::int("MinPods"),
            Column::int("MaxPods"),
            Column::int("Replicas"),
            AGE,
        ],
        &[
            Cell::Name,
            Cell::Text("/spec/scaleTargetRef/name"),
            Cell::Int("/spec/minReplicas"),
            Cell::Int("/spec/maxReplicas"),
            Cell::Int("/status/currentReplicas"),
            Cell::Age,
        ],
    ),
    shown(
        cluster("scheduling.k8s.io", "PriorityClass", "priorityclasses", "priorityclass")
            .short(&["pc"]),
        &[NAME, Column::int("Value"), Column::text("Global-Default"), AGE],
        &[Cell::Name, Cell::Int("/value"), Cell::Flag("/globalDefault"), Cell::Age],
    ),
    shown(
        cluster(STORAGE, "StorageClass", "storageclasses", "storageclass").short(&["sc"]),
        &[
            NAME,
            Column::text("Provisioner"),
            Column::text("ReclaimPolicy"),
            Column::text("VolumeBindingMode"),
            AGE,
        ],
        &[
            Cell::Name,
            Cell::Text("/provisioner"),
            Cell::Text("/reclaimPolicy"),
            Cell::Text("/volumeBindingMode"),
            Cell::Age,
        ],
    ),
    stored(cluster(STORAGE, "CSIDriver", "csidrivers", "csidriver")),
    stored(cluster(STORAGE, "CSINode", "csinodes", "csinode")),
    stored(namespaced(STORAGE, "CSIStorageCapacity", "csistoragecapacities", "csistoragecapacity")),
    shown(
        cluster(STORAGE, "VolumeAttachment", "volumeattachments", "volumeattachment").with_status(),
        &[NAME, Column::text("Attacher"), Column::text("Node"), AGE],
        &[Cell::Name, Cell::Text("/spec/attacher"), Cell::Text("/spec/nodeName"), Cell::Age],
    ),
    shown(
        cluster(
            "certificates.k8s.io",
            "CertificateSigningRequest",
            "certificatesigningrequests",
            "certificatesigningrequest",
        )
        .short(&["csr"])
        .with_status(),
        &[NAME, AGE, Column::text("SignerName"), Column::text("Requestor")],
        &[Cell::Name, Cell::Age, Cell::Text("/spec/signerName"), Cell::Text("/spec/username")],
    ),
    stored(cluster("node.k8s.io", "RuntimeClass", "runtimeclasses", "runtimeclass")),
    stored(
        cluster(
            STORAGE,
            "VolumeAttributesClass",
            "volumeattributesclasses",
            "volumeattributesclass",
        )
        .short(&["vac"]),
    ),
];

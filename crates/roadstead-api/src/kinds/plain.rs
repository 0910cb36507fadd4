//! Kinds that are a row of a table: they are kept, watched and shown, and whoever asked for them to
//! be served acts on them. Those with rules of their own have a file of their own.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, default_to};
use serde_json::{Value, json};

use crate::kind::{Info, Kind};
use crate::kinds::{cells, pod_spec, workload};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME, NAME_AND_AGE};

/// A kind that is only kept.
pub(super) struct PlainKind {
    pub(super) info: Info,
    pub(super) table: &'static [ColumnCell],
    /// Where the pod template is; empty if there is none.
    pub(super) template: &'static str,
    /// What is filled in.
    pub(super) default: fn(&mut Value),
    /// What the server sets when an object is created.
    pub(super) create: fn(&mut Value),
    /// Which fields a field selector may ask for, with their pointers.
    pub(super) selectable: &'static [(&'static str, &'static str)],
    /// What an update leaves as it was.
    pub(super) update: fn(&Value, &mut Value),
    /// What must be true of it, and of a change.
    pub(super) check: fn(&Value, Option<&Value>, &mut Causes),
    /// What must be true of its status, and of a change of that.
    pub(super) check_status: fn(&Value, &Value, &mut Causes),
}

impl Kind for PlainKind {
    fn info(&self) -> &Info {
        &self.info
    }

    fn default(&self, object: &mut Value) {
        (self.default)(object);
        // The empty pointer would be the object itself.
        let template = (!self.template.is_empty()).then(|| object.pointer_mut(self.template));
        if let Some(template) = template.flatten().filter(|template| template.is_object()) {
            pod_spec::default(child(template, "spec"));
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        (self.create)(object);
    }

    fn prepare_update(&self, old: &Value, new: &mut Value) {
        (self.update)(old, new);
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        if !self.template.is_empty() && self.info.group == "apps" {
            workload::validate(object, old, causes);
        }
        (self.check)(object, old, causes);
    }

    fn validate_status(&self, object: &Value, old: &Value, causes: &mut Causes) {
        self.validate(object, Some(old), causes);
        (self.check_status)(object, old, causes);
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        self.selectable
    }

    fn table(&self) -> &'static [ColumnCell] {
        self.table
    }
}

pub(super) const fn plain(info: Info) -> PlainKind {
    shown(info, NAME_AND_AGE)
}

pub(super) const fn shown(info: Info, table: &'static [ColumnCell]) -> PlainKind {
    PlainKind {
        info,
        table,
        template: "",
        selectable: &[],
        default: |_| {},
        create: |_| {},
        update: |_, _| {},
        check: |_, _, _| {},
        check_status: |_, _, _| {},
    }
}

pub(super) const fn namespaced(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
) -> Info {
    Info::new(group, "v1", kind, plural, singular)
}

pub(super) const fn cluster(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
) -> Info {
    Info { namespaced: false, ..Info::new(group, "v1", kind, plural, singular) }
}

const NETWORKING_GROUP: &str = "networking.k8s.io";
const STORAGE_GROUP: &str = "storage.k8s.io";

/// Of the core group and `apps`.
pub(super) static CORE: [PlainKind; 4] = [
    PlainKind {
        template: "/template",
        ..plain(namespaced("", "PodTemplate", "podtemplates", "podtemplate"))
    },
    PlainKind {
        default: |volume| {
            let spec = child(volume, "spec");
            default_to(spec, "persistentVolumeReclaimPolicy", "Retain");
            default_to(spec, "volumeMode", "Filesystem");
            if let Some(path) = spec.get_mut("hostPath").filter(|path| path.is_object()) {
                default_to(path, "type", "");
            }
        },
        create: |volume| volume["status"] = json!({"phase": "Pending"}),
        ..shown(
            cluster("", "PersistentVolume", "persistentvolumes", "persistentvolume")
                .short(&["pv"])
                .with_status(),
            &[
                NAME,
                (Column::text("Capacity"), Cell::Plain("/spec/capacity/storage")),
                (
                    Column::text("Access Modes"),
                    Cell::Made(|volume| cells::access_modes(volume, "/spec/accessModes")),
                ),
                (
                    Column::text("Reclaim Policy"),
                    Cell::Plain("/spec/persistentVolumeReclaimPolicy"),
                ),
                (Column::text("Status"), Cell::Plain("/status/phase")),
                (Column::text("Claim"), Cell::Made(cells::claim)),
                (Column::text("StorageClass"), Cell::Plain("/spec/storageClassName")),
                (
                    Column::text("VolumeAttributesClass"),
                    Cell::Made(|volume| cells::or_unset(volume, "/spec/volumeAttributesClassName")),
                ),
                (Column::text("Reason"), Cell::Plain("/status/reason")),
                AGE,
                (Column::wide("VolumeMode"), Cell::Plain("/spec/volumeMode")),
            ],
        )
    },
    PlainKind {
        default: |claim| default_to(child(claim, "spec"), "volumeMode", "Filesystem"),
        create: |claim| claim["status"] = json!({"phase": "Pending"}),
        ..shown(
            namespaced(
                "",
                "PersistentVolumeClaim",
                "persistentvolumeclaims",
                "persistentvolumeclaim",
            )
            .short(&["pvc"])
            .with_status(),
            &[
                NAME,
                (Column::text("Status"), Cell::Made(cells::claim_phase)),
                (Column::text("Volume"), Cell::Plain("/spec/volumeName")),
                (Column::text("Capacity"), Cell::Plain("/status/capacity/storage")),
                (
                    Column::text("Access Modes"),
                    Cell::Made(|claim| cells::access_modes(claim, "/status/accessModes")),
                ),
                (Column::text("StorageClass"), Cell::Plain("/spec/storageClassName")),
                (
                    Column::text("VolumeAttributesClass"),
                    Cell::Made(|claim| cells::or_unset(claim, "/spec/volumeAttributesClassName")),
                ),
                AGE,
                (Column::wide("VolumeMode"), Cell::Plain("/spec/volumeMode")),
            ],
        )
    },
    shown(
        namespaced("apps", "ControllerRevision", "controllerrevisions", "controllerrevision"),
        &[NAME, (Column::int("Revision"), Cell::Int("/revision")), AGE],
    ),
];

/// Of `networking.k8s.io`.
pub(super) static NETWORKING: [PlainKind; 2] = [
    shown(
        namespaced(NETWORKING_GROUP, "Ingress", "ingresses", "ingress")
            .short(&["ing"])
            .with_status(),
        &[
            NAME,
            (Column::text("Class"), Cell::Text("/spec/ingressClassName")),
            (Column::text("Hosts"), Cell::Made(cells::hosts)),
            (Column::text("Address"), Cell::Made(cells::addresses)),
            (
                Column::text("Ports"),
                Cell::Made(|ingress| {
                    if ingress.has("/spec/tls") { "80, 443" } else { "80" }.into()
                }),
            ),
            AGE,
        ],
    ),
    PlainKind {
        default: |class| {
            if let Some(parameters) = class.pointer_mut("/spec/parameters") {
                default_to(parameters, "scope", "Cluster");
            }
        },
        ..shown(
            cluster(NETWORKING_GROUP, "IngressClass", "ingressclasses", "ingressclass"),
            &[
                NAME,
                (Column::text("Controller"), Cell::Plain("/spec/controller")),
                (Column::text("Parameters"), Cell::Made(cells::parameters)),
                AGE,
            ],
        )
    },
];

/// Of `policy`.
pub(super) static POLICY: [PlainKind; 1] = [shown(
    namespaced("policy", "PodDisruptionBudget", "poddisruptionbudgets", "poddisruptionbudget")
        .short(&["pdb"])
        .with_status(),
    &[
        NAME,
        (
            Column::text("Min Available"),
            Cell::Made(|budget| cells::amount(budget, "/spec/minAvailable")),
        ),
        (
            Column::text("Max Unavailable"),
            Cell::Made(|budget| cells::amount(budget, "/spec/maxUnavailable")),
        ),
        (Column::int("Allowed Disruptions"), Cell::Int("/status/disruptionsAllowed")),
        AGE,
    ],
)];

/// Of `storage.k8s.io`.
pub(super) static STORAGE: [PlainKind; 6] = [
    PlainKind {
        default: |class| {
            default_to(class, "reclaimPolicy", "Delete");
            default_to(class, "volumeBindingMode", "Immediate");
        },
        ..shown(
            cluster(STORAGE_GROUP, "StorageClass", "storageclasses", "storageclass").short(&["sc"]),
            &[
                (Column::text("Name"), Cell::Made(cells::class_name)),
                (Column::text("Provisioner"), Cell::Plain("/provisioner")),
                (Column::text("ReclaimPolicy"), Cell::Plain("/reclaimPolicy")),
                (Column::text("VolumeBindingMode"), Cell::Plain("/volumeBindingMode")),
                (Column::text("AllowVolumeExpansion"), Cell::Flag("/allowVolumeExpansion")),
                AGE,
            ],
        )
    },
    PlainKind {
        default: |driver| {
            let spec = child(driver, "spec");
            default_to(spec, "attachRequired", true);
            for field in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"]
            {
                default_to(spec, field, false);
            }
            default_to(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
            default_to(spec, "volumeLifecycleModes", json!(["Persistent"]));
        },
        ..plain(cluster(STORAGE_GROUP, "CSIDriver", "csidrivers", "csidriver"))
    },
    plain(cluster(STORAGE_GROUP, "CSINode", "csinodes", "csinode")),
    plain(namespaced(
        STORAGE_GROUP,
        "CSIStorageCapacity",
        "csistoragecapacities",
        "csistoragecapacity",
    )),
    shown(
        cluster(STORAGE_GROUP, "VolumeAttachment", "volumeattachments", "volumeattachment")
            .with_only_status(),
        &[
            NAME,
            (Column::text("Attacher"), Cell::Text("/spec/attacher")),
            (Column::text("Node"), Cell::Text("/spec/nodeName")),
            AGE,
        ],
    ),
    plain(
        cluster(
            STORAGE_GROUP,
            "VolumeAttributesClass",
            "volumeattributesclasses",
            "volumeattributesclass",
        )
        .short(&["vac"]),
    ),
];

/// Of `node.k8s.io`.
pub(super) static NODE: [PlainKind; 1] =
    [plain(cluster("node.k8s.io", "RuntimeClass", "runtimeclasses", "runtimeclass"))];

#[test]
fn only_templates_get_the_defaults_of_pods() {
    let object = json!({"metadata": {"name": "a"}});
    let all = CORE.iter().chain(&NETWORKING).chain(&POLICY).chain(&STORAGE).chain(&NODE);
    for kind in all.filter(|kind| kind.template.is_empty()) {
        let mut new = object.clone();
        kind.default(&mut new);
        assert_eq!(new.pointer("/spec/dnsPolicy"), None, "{}", kind.info().kind);
    }
}

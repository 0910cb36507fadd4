//! Kinds that need no code of their own: they are kept, watched and shown, and whoever asked for
//! them to be served acts on them.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, NAME_AND_AGE, age_cell, labels_cell, name_cell, or_none};
use crate::kinds::{
    cells, certificate_request, deployment, limits, network_policy, pod_spec, rbac,
};
use crate::look::{Look, child, default_to};

/// How a cell comes out of an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell {
    Name,
    Age,
    /// The text there.
    Text(&'static str),
    /// The text there, nothing if absent.
    Plain(&'static str),
    /// The number there, 0 if absent.
    Int(&'static str),
    /// How many elements the list there has.
    Count(&'static str),
    /// The flag there.
    Flag(&'static str),
    /// `a=b,c=d`.
    Labels(&'static str),
    /// `1/3`: two numbers.
    Ratio(&'static str, &'static str),
    /// What a function makes of the object.
    Made(fn(&Value) -> String),
    /// What a function makes of the object at this moment.
    Timed(fn(&Value, Timestamp) -> String),
}

/// A kind that is only kept.
pub struct Stored {
    pub(super) info: Info,
    pub(super) columns: &'static [Column],
    pub(super) cells: &'static [Cell],
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

impl Kind for Stored {
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
            deployment::validate_workload(object, old, causes);
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
            Self::Plain(pointer) => json!(object.text(pointer)),
            Self::Int(pointer) => json!(object.int(pointer)),
            Self::Count(pointer) => json!(object.list(pointer).len()),
            Self::Flag(pointer) => json!(object.flag(pointer).to_string()),
            Self::Labels(pointer) => labels_cell(object, pointer),
            Self::Ratio(part, whole) => {
                json!(format!("{}/{}", object.int(part), object.int(whole)))
            }
            Self::Made(make) => json!(make(object)),
            Self::Timed(make) => json!(make(object, now)),
        }
    }
}

const fn stored(info: Info) -> Stored {
    shown(info, NAME_AND_AGE, &[Cell::Name, Cell::Age])
}

pub(super) const fn shown(
    info: Info,
    columns: &'static [Column],
    cells: &'static [Cell],
) -> Stored {
    Stored {
        info,
        columns,
        cells,
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

const fn cluster(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
) -> Info {
    Info { namespaced: false, ..Info::new(group, "v1", kind, plural, singular) }
}

pub(super) const NAME: Column = Column::text("Name");
pub(super) const AGE: Column = Column::text("Age");
const NETWORKING: &str = "networking.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const RBAC: &str = rbac::GROUP;

const CREATED_AT: &[Column] = &[NAME, Column::text("Created At")];
const CREATED_CELLS: &[Cell] = &[Cell::Name, Cell::Plain("/metadata/creationTimestamp")];
const BINDING: &[Column] = &[
    NAME,
    Column::text("Role"),
    AGE,
    Column::wide("Users"),
    Column::wide("Groups"),
    Column::wide("ServiceAccounts"),
];
const BINDING_CELLS: &[Cell] = &[
    Cell::Name,
    Cell::Made(|binding| {
        format!("{}/{}", binding.text("/roleRef/kind"), binding.text("/roleRef/name"))
    }),
    Cell::Age,
    Cell::Made(|binding| cells::subjects(binding, "User")),
    Cell::Made(|binding| cells::subjects(binding, "Group")),
    Cell::Made(|binding| cells::subjects(binding, "ServiceAccount")),
];

/// All of them.
pub static ALL: [Stored; 23] = [
    Stored {
        default: limits::default,
        ..stored(namespaced("", "LimitRange", "limitranges", "limitrange").short(&["limits"]))
    },
    Stored {
        template: "/template",
        ..stored(namespaced("", "PodTemplate", "podtemplates", "podtemplate"))
    },
    shown(
        namespaced("", "ResourceQuota", "resourcequotas", "resourcequota")
            .short(&["quota"])
            .with_status(),
        &[NAME, Column::text("Request"), Column::text("Limit"), AGE],
        &[
            Cell::Name,
            Cell::Made(|quota| cells::quota(quota, false)),
            Cell::Made(|quota| cells::quota(quota, true)),
            Cell::Age,
        ],
    ),
    Stored {
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
                Column::text("Capacity"),
                Column::text("Access Modes"),
                Column::text("Reclaim Policy"),
                Column::text("Status"),
                Column::text("Claim"),
                Column::text("StorageClass"),
                Column::text("VolumeAttributesClass"),
                Column::text("Reason"),
                AGE,
                Column::wide("VolumeMode"),
            ],
            &[
                Cell::Name,
                Cell::Plain("/spec/capacity/storage"),
                Cell::Made(|volume| cells::access_modes(volume, "/spec/accessModes")),
                Cell::Plain("/spec/persistentVolumeReclaimPolicy"),
                Cell::Plain("/status/phase"),
                Cell::Made(cells::claim),
                Cell::Plain("/spec/storageClassName"),
                Cell::Made(|volume| cells::or_unset(volume, "/spec/volumeAttributesClassName")),
                Cell::Plain("/status/reason"),
                Cell::Age,
                Cell::Plain("/spec/volumeMode"),
            ],
        )
    },
    Stored {
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
                Column::text("Status"),
                Column::text("Volume"),
                Column::text("Capacity"),
                Column::text("Access Modes"),
                Column::text("StorageClass"),
                Column::text("VolumeAttributesClass"),
                AGE,
                Column::wide("VolumeMode"),
            ],
            &[
                Cell::Name,
                Cell::Made(cells::claim_phase),
                Cell::Plain("/spec/volumeName"),
                Cell::Plain("/status/capacity/storage"),
                Cell::Made(|claim| cells::access_modes(claim, "/status/accessModes")),
                Cell::Plain("/spec/storageClassName"),
                Cell::Made(|claim| cells::or_unset(claim, "/spec/volumeAttributesClassName")),
                Cell::Age,
                Cell::Plain("/spec/volumeMode"),
            ],
        )
    },
    shown(
        namespaced("apps", "ControllerRevision", "controllerrevisions", "controllerrevision"),
        &[NAME, Column::int("Revision"), AGE],
        &[Cell::Name, Cell::Int("/revision"), Cell::Age],
    ),
    shown(
        namespaced(NETWORKING, "Ingress", "ingresses", "ingress").short(&["ing"]).with_status(),
        &[
            NAME,
            Column::text("Class"),
            Column::text("Hosts"),
            Column::text("Address"),
            Column::text("Ports"),
            AGE,
        ],
        &[
            Cell::Name,
            Cell::Text("/spec/ingressClassName"),
            Cell::Made(cells::hosts),
            Cell::Made(cells::addresses),
            Cell::Made(|ingress| if ingress.has("/spec/tls") { "80, 443" } else { "80" }.into()),
            Cell::Age,
        ],
    ),
    Stored {
        default: |class| {
            if let Some(parameters) = class.pointer_mut("/spec/parameters") {
                default_to(parameters, "scope", "Cluster");
            }
        },
        ..shown(
            cluster(NETWORKING, "IngressClass", "ingressclasses", "ingressclass"),
            &[NAME, Column::text("Controller"), Column::text("Parameters"), AGE],
            &[
                Cell::Name,
                Cell::Plain("/spec/controller"),
                Cell::Made(cells::parameters),
                Cell::Age,
            ],
        )
    },
    Stored {
        default: network_policy::default,
        check: network_policy::validate,
        ..shown(
            namespaced(NETWORKING, "NetworkPolicy", "networkpolicies", "networkpolicy")
                .short(&["netpol"]),
            &[NAME, Column::text("Pod-Selector"), AGE],
            &[Cell::Name, Cell::Labels("/spec/podSelector/matchLabels"), Cell::Age],
        )
    },
    Stored {
        check: rbac::validate_role,
        ..shown(
            namespaced(RBAC, "Role", "roles", "role").with_path_names(),
            CREATED_AT,
            CREATED_CELLS,
        )
    },
    Stored {
        default: rbac::default_binding,
        check: rbac::validate_role_binding,
        ..shown(
            namespaced(RBAC, "RoleBinding", "rolebindings", "rolebinding").with_path_names(),
            BINDING,
            BINDING_CELLS,
        )
    },
    Stored {
        check: rbac::validate_role,
        ..shown(
            cluster(RBAC, "ClusterRole", "clusterroles", "clusterrole").with_path_names(),
            CREATED_AT,
            CREATED_CELLS,
        )
    },
    Stored {
        default: rbac::default_binding,
        check: rbac::validate_cluster_binding,
        ..shown(
            cluster(RBAC, "ClusterRoleBinding", "clusterrolebindings", "clusterrolebinding")
                .with_path_names(),
            BINDING,
            BINDING_CELLS,
        )
    },
    shown(
        namespaced("policy", "PodDisruptionBudget", "poddisruptionbudgets", "poddisruptionbudget")
            .short(&["pdb"])
            .with_status(),
        &[
            NAME,
            Column::text("Min Available"),
            Column::text("Max Unavailable"),
            Column::int("Allowed Disruptions"),
            AGE,
        ],
        &[
            Cell::Name,
            Cell::Made(|budget| cells::amount(budget, "/spec/minAvailable")),
            Cell::Made(|budget| cells::amount(budget, "/spec/maxUnavailable")),
            Cell::Int("/status/disruptionsAllowed"),
            Cell::Age,
        ],
    ),
    Stored {
        default: |class| {
            default_to(class, "preemptionPolicy", "PreemptLowerPriority");
        },
        check: limits::validate_priority_class,
        ..shown(
            cluster("scheduling.k8s.io", "PriorityClass", "priorityclasses", "priorityclass")
                .short(&["pc"]),
            &[
                NAME,
                Column::int("Value"),
                Column::text("Global-Default"),
                AGE,
                Column::text("PreemptionPolicy"),
            ],
            &[
                Cell::Name,
                Cell::Int("/value"),
                Cell::Flag("/globalDefault"),
                Cell::Age,
                Cell::Plain("/preemptionPolicy"),
            ],
        )
    },
    Stored {
        default: |class| {
            default_to(class, "reclaimPolicy", "Delete");
            default_to(class, "volumeBindingMode", "Immediate");
        },
        ..shown(
            cluster(STORAGE, "StorageClass", "storageclasses", "storageclass").short(&["sc"]),
            &[
                NAME,
                Column::text("Provisioner"),
                Column::text("ReclaimPolicy"),
                Column::text("VolumeBindingMode"),
                Column::text("AllowVolumeExpansion"),
                AGE,
            ],
            &[
                Cell::Made(cells::class_name),
                Cell::Plain("/provisioner"),
                Cell::Plain("/reclaimPolicy"),
                Cell::Plain("/volumeBindingMode"),
                Cell::Flag("/allowVolumeExpansion"),
                Cell::Age,
            ],
        )
    },
    Stored {
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
        ..stored(cluster(STORAGE, "CSIDriver", "csidrivers", "csidriver"))
    },
    stored(cluster(STORAGE, "CSINode", "csinodes", "csinode")),
    stored(namespaced(STORAGE, "CSIStorageCapacity", "csistoragecapacities", "csistoragecapacity")),
    shown(
        cluster(STORAGE, "VolumeAttachment", "volumeattachments", "volumeattachment")
            .with_only_status(),
        &[NAME, Column::text("Attacher"), Column::text("Node"), AGE],
        &[Cell::Name, Cell::Text("/spec/attacher"), Cell::Text("/spec/nodeName"), Cell::Age],
    ),
    Stored {
        selectable: &[("spec.signerName", "/spec/signerName")],
        // Who asked for what does not change once somebody may have approved it.
        update: |old, new| new["spec"] = old["spec"].clone(),
        check: certificate_request::validate,
        check_status: certificate_request::validate_status,
        ..shown(
            cluster(
                "certificates.k8s.io",
                "CertificateSigningRequest",
                "certificatesigningrequests",
                "certificatesigningrequest",
            )
            .short(&["csr"])
            .with_status(),
            certificate_request::COLUMNS,
            certificate_request::CELLS,
        )
    },
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

#[test]
fn only_templates_get_the_defaults_of_pods() {
    let object = json!({"metadata": {"name": "a"}});
    for kind in ALL.iter().filter(|kind| kind.template.is_empty()) {
        let mut new = object.clone();
        kind.default(&mut new);
        assert_eq!(new.pointer("/spec/dnsPolicy"), None, "{}", kind.info().kind);
    }
}

//! Which kinds are served, and under which paths.

use std::collections::HashMap;

use roadstead_api::kind::{Info, Kind};
use roadstead_api::kinds;
use roadstead_api::schema::{Schema, TypeId};
use roadstead_store::entry::Key;

/// A kind together with what the server derives from it.
pub struct Resource {
    /// What objects of this kind mean.
    pub kind: &'static dyn Kind,
    /// Their type in the schema.
    pub type_id: TypeId,
    /// Where the store keeps them.
    pub bucket: String,
}

impl Resource {
    /// Names, scope and shape.
    pub fn info(&self) -> &'static Info {
        self.kind.info()
    }

    /// Where the store keeps one object; the namespace is empty for cluster-scoped kinds.
    pub fn key(&self, namespace: &str, name: &str) -> Key {
        Key::new(self.bucket.as_str(), format!("{namespace}/{name}"))
    }

    /// How the paths of all objects of a namespace begin; all objects, if it is empty.
    pub fn prefix(&self, namespace: &str) -> String {
        match namespace {
            "" => String::new(),
            namespace => format!("{namespace}/"),
        }
    }
}

/// All kinds by path.
pub struct Registry {
    resources: Vec<Resource>,
    by_path: HashMap<(&'static str, &'static str, &'static str), usize>,
}

impl Registry {
    /// The built-in kinds.
    pub fn built_in() -> Self {
        let schema = Schema::kubernetes();
        let resources: Vec<_> = kinds::all()
            .into_iter()
            .map(|kind| {
                let info = kind.info();
                let type_id = schema.of_kind(info.group, info.version, info.kind);
                let type_id = type_id.expect("every kind we serve is in the schema");
                Resource { kind, type_id, bucket: info.resource() }
            })
            .collect();
        let paths = resources.iter().enumerate().map(|(index, resource)| {
            let info = resource.info();
            ((info.group, info.version, info.plural), index)
        });
        let by_path = paths.collect();
        Self { resources, by_path }
    }

    /// The kind served under a group, version and plural.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Resource> {
        self.by_path.get(&(group, version, plural)).map(|&index| &self.resources[index])
    }

    /// A core kind that must exist.
    pub fn core(&self, plural: &str) -> &Resource {
        self.find("", "v1", plural).expect("core kinds are always served")
    }

    /// All kinds in the order of discovery.
    pub fn iter(&self) -> impl Iterator<Item = &Resource> {
        self.resources.iter()
    }

    /// All groups in the order of discovery, each with its versions.
    pub fn groups(&self) -> Vec<(&'static str, &'static str)> {
        let mut groups = Vec::new();
        for resource in &self.resources {
            let group = (resource.info().group, resource.info().version);
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }
}

//! Objects in numbers: what kube-state-metrics would say of them, under its names and labels.
//!
//! Each kind has a table with one row per metric. An object is written down once, when it changes; a page is
//! put together of what was written, so asking for it costs no more than its size.

mod book;
mod deployment;
mod endpoint_slice;
mod endpoints;
mod family;
mod pod;
mod service;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use roadstead_api::key::ObjectKey;

use self::book::Book;
use self::family::header;

/// How many bytes of text are kept at most: about 40,000 pods with one container each.
const ROOM: usize = 128 << 20;

/// All objects of a cluster, in numbers.
#[derive(Debug)]
pub struct Objects {
    services: Book<Service>,
    endpoints: Book<Endpoints>,
    slices: Book<EndpointSlice>,
    pods: Book<Pod>,
    deployments: Book<Deployment>,
    room: usize,
}

impl Default for Objects {
    fn default() -> Self {
        Self::with_room(ROOM)
    }
}

/// One of the kinds that are measured.
#[derive(Debug)]
pub enum Object {
    /// A Service.
    Service(Service),
    /// Addresses of a Service, in the old form.
    Endpoints(Endpoints),
    /// Addresses of a Service.
    Slice(EndpointSlice),
    /// A Pod.
    Pod(Pod),
    /// A Deployment.
    Deployment(Deployment),
}

/// The kinds that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeasuredKind {
    /// A Service.
    Service,
    /// Addresses of a Service, in the old form.
    Endpoints,
    /// Addresses of a Service.
    Slice,
    /// A Pod.
    Pod,
    /// A Deployment.
    Deployment,
}

impl MeasuredKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Service, Self::Endpoints, Self::Slice, Self::Pod, Self::Deployment];
}

impl Objects {
    /// None yet; no more than so many bytes are kept.
    fn with_room(room: usize) -> Self {
        Self {
            services: Book::default(),
            endpoints: Book::default(),
            slices: Book::default(),
            pods: Book::default(),
            deployments: Book::default(),
            room,
        }
    }

    /// Takes in an object as it is now.
    pub fn observe(&mut self, key: &ObjectKey, object: &Object) {
        let room = self.room.saturating_sub(self.bytes());
        match object {
            Object::Service(object) => self.services.set(key, object, room),
            Object::Endpoints(object) => self.endpoints.set(key, object, room),
            Object::Slice(object) => self.slices.set(key, object, room),
            Object::Pod(object) => self.pods.set(key, object, room),
            Object::Deployment(object) => self.deployments.set(key, object, room),
        }
    }

    /// Forgets an object.
    pub fn forget(&mut self, kind: MeasuredKind, key: &ObjectKey) {
        match kind {
            MeasuredKind::Service => self.services.remove(key),
            MeasuredKind::Endpoints => self.endpoints.remove(key),
            MeasuredKind::Slice => self.slices.remove(key),
            MeasuredKind::Pod => self.pods.remove(key),
            MeasuredKind::Deployment => self.deployments.remove(key),
        }
    }

    /// How much text is kept.
    pub fn bytes(&self) -> usize {
        self.counts().iter().map(|(_, count)| count.bytes).sum()
    }

    fn counts(&self) -> [(&'static str, book::Count); 5] {
        [
            ("services", self.services.count()),
            ("endpoints", self.endpoints.count()),
            ("endpointslices", self.slices.count()),
            ("pods", self.pods.count()),
            ("deployments", self.deployments.count()),
        ]
    }

    /// The page, in the text format that Prometheus reads.
    pub fn text(&self) -> String {
        let mut page = String::with_capacity(self.bytes() + (16 << 10));
        self.services.write(&mut page);
        self.endpoints.write(&mut page);
        self.slices.write(&mut page);
        self.pods.write(&mut page);
        self.deployments.write(&mut page);
        self.write_own(&mut page);
        page
    }

    /// What this page itself needs, and whether something is missing on it.
    fn write_own(&self, page: &mut String) {
        let mut write = |name: &str, help: &str, value: fn(&book::Count) -> usize| {
            header(page, name, help, "gauge");
            for (resource, count) in self.counts() {
                page.push_str(&format!("{name}{{resource=\"{resource}\"}} {}\n", value(&count)));
            }
        };
        write("roadstead_object_metrics_objects", "Objects on this page", |count| count.objects);
        write("roadstead_object_metrics_bytes", "Bytes kept for them", |count| count.bytes);
        write("roadstead_object_metrics_left_out", "Objects without room", |count| count.left_out);
    }
}

#[cfg(test)]
mod tests;

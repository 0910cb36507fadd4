//! What a whole etcd holds, and what would become of it here: which kinds are not served, which objects
//! cannot be read or would not stay what they are, and what a kube-apiserver does with them that this
//! server does not. Pure; nothing is changed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use roadstead_api::kinds;
use roadstead_schema::json::Pointer;
use roadstead_store::entry::Key;
use roadstead_store::layout::KeyLayout;
use serde_json::Value;

use super::{ENCRYPTED, KubernetesLayout, OWN, PLAIN, WITH_GROUP, node_ports, read, unreadable};
use crate::kinds::custom_resource_definition::DEFINITIONS;
use crate::kinds::node;
use crate::reading::object;
use crate::servers;

/// How many objects are named of each kind.
const NAMED: usize = 5;
/// Kinds by which others have a say about what is written, and what that is called.
const HAVE_A_SAY: [(&str, &str); 6] = [
    ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
    ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
    ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
    ("mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
    ("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
];
/// Where the aggregation layer keeps who serves what.
const SERVICES_OF_APIS: &str = "apiregistration.k8s.io/apiservices";

/// What has been looked at so far.
#[derive(Debug)]
pub struct Survey {
    layout: KubernetesLayout,
    /// Where the store has what this server serves, and in which versions; none means any.
    known: BTreeMap<String, BTreeSet<String>>,
    /// The custom kinds that there are.
    defined: BTreeSet<String>,
    rows: BTreeMap<String, Row>,
    unenforced: Vec<String>,
}

/// What there is of one kind.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Where its objects are, below the prefix.
    pub place: String,
    /// How many there are,
    pub objects: usize,
    /// with so many bytes.
    pub bytes: usize,
    /// How many of them were written by kube-apiserver, or something else than this server.
    pub foreign: usize,
    /// Whether this server serves the kind.
    pub served: bool,
    /// How many are encrypted.
    pub encrypted: usize,
    /// How many cannot be read for another reason; some of them, with the reason.
    pub unreadable: (usize, Vec<String>),
    /// How many would not be the same any more when they have been written again; some of them.
    pub changed: (usize, Vec<String>),
    /// Where the store has them; empty if the key is none of a kind that could be served.
    bucket: String,
}

/// Everything that there is to say.
#[derive(Debug)]
pub struct Findings {
    /// By place.
    pub rows: Vec<Row>,
    /// What kube-apiserver enforces or serves by other servers, and this server does not.
    pub unenforced: Vec<String>,
}

impl Findings {
    /// Whether something cannot be read or kept as it is, or would not be enforced.
    pub fn is_harmful(&self) -> bool {
        let harmful = |row: &Row| row.encrypted + row.unreadable.0 + row.changed.0 > 0;
        !self.unenforced.is_empty() || self.rows.iter().any(harmful)
    }
}

impl Survey {
    /// Of what is below a prefix.
    pub fn new(prefix: &str) -> Self {
        let beside = [node_ports::ROWS, node_ports::RANGES, node::BLOCKS, servers::BUCKET];
        let beside = beside.into_iter().map(|bucket| (bucket.to_owned(), BTreeSet::new()));
        let mut known: BTreeMap<_, BTreeSet<_>> = beside.collect();
        for kind in kinds::all() {
            let info = kind.info();
            known.entry(info.bucket()).or_default().insert(info.stored_api_version());
        }
        Self {
            layout: KubernetesLayout::new(prefix),
            known,
            defined: BTreeSet::new(),
            rows: BTreeMap::new(),
            unenforced: Vec::new(),
        }
    }

    /// Below which keys it looks.
    pub fn prefix(&self) -> &str {
        self.layout.prefix()
    }

    /// Looks at one key.
    pub fn add(&mut self, key: &[u8], value: &Bytes) {
        let place = String::from_utf8_lossy(key);
        let Some(below) = place.strip_prefix(self.layout.prefix()) else { return };
        let known = self.layout.key(&place);
        let directory = directory(below, known.as_ref(), &self.layout);
        let row = self.rows.entry(directory.clone()).or_default();
        row.place.clone_from(&directory);
        row.objects += 1;
        row.bytes += value.len();
        if let Some((_, kind)) = HAVE_A_SAY.iter().find(|(place, _)| **place == directory) {
            let name = below.rsplit('/').next().unwrap_or_default();
            self.unenforced.push(format!("{kind} {name}"));
        }
        let Some(key) = known else {
            self.unenforced.extend(served_elsewhere(&directory, value));
            return;
        };
        row.bucket = key.bucket.to_string();
        if PLAIN.contains(&&*key.bucket) {
            return;
        }
        let none = BTreeSet::new();
        let versions = self.known.get(&row.bucket).unwrap_or(&none);
        judge(row, &self.layout, (&key, value), versions);
        if *key.bucket == *DEFINITIONS {
            let name = key.path.trim_start_matches('/').to_owned();
            let definition = object::parse(&self.layout.value(&key, value.clone()));
            if definition.text("/spec/conversion/strategy") == "Webhook" {
                self.unenforced
                    .push(format!("CustomResourceDefinition {name}: its conversion webhook"));
            }
            self.defined.insert(name);
        } else {
            self.unenforced.extend(served_elsewhere(&directory, value));
        }
    }

    /// All that was found.
    pub fn finish(mut self) -> Findings {
        for row in self.rows.values_mut() {
            row.served = self.known.contains_key(&row.bucket) || self.defined.contains(&row.bucket);
        }
        self.unenforced.sort();
        Findings { rows: self.rows.into_values().collect(), unenforced: self.unenforced }
    }
}

/// Where the objects are that a key is one of.
fn directory(below: &str, key: Option<&Key>, layout: &KubernetesLayout) -> String {
    let parts: Vec<_> = below.split('/').collect();
    if let Some(key) = key {
        // The place of an object without its names.
        let names = key.path.trim_start_matches('/').len();
        let place = layout.place(key);
        let end = place.len().saturating_sub(names + 1).max(layout.prefix().len());
        return place[layout.prefix().len()..end].to_owned();
    }
    let grouped = parts[0].contains('.') || WITH_GROUP.contains(&parts[0]);
    match grouped || parts[0] == "services" {
        true => parts.iter().take(2).copied().collect::<Vec<_>>().join("/"),
        false => parts[0].to_owned(),
    }
}

/// The server of an APIService, if it is not kube-apiserver itself.
fn served_elsewhere(directory: &str, value: &[u8]) -> Option<String> {
    let object = (directory == SERVICES_OF_APIS).then(|| read(value).ok())??;
    let service = &object["spec"]["service"];
    service.is_object().then(|| {
        let (namespace, name) = (service.text("/namespace"), service.text("/name"));
        let api = object.text("/metadata/name");
        format!("APIService {api}: served by the Service {namespace}/{name}")
    })
}

fn judge(
    row: &mut Row,
    layout: &KubernetesLayout,
    (key, stored): (&Key, &Bytes),
    versions: &BTreeSet<String>,
) {
    let note = |(count, some): &mut (usize, Vec<String>), what: String| {
        *count += 1;
        if some.len() < NAMED {
            some.push(what);
        }
    };
    let ours = layout.value(key, stored.clone());
    row.foreign += usize::from(ours != *stored);
    let name = key.path.trim_start_matches('/');
    if stored.starts_with(ENCRYPTED) {
        row.encrypted += 1;
    } else if let Some(why) = read(&ours).err().or_else(|| unreadable(&ours)) {
        note(&mut row.unreadable, format!("{name}: {why}"));
    } else if let Some(number) = changed_number(stored) {
        note(&mut row.changed, format!("{name}: the number {number} cannot be kept"));
    } else if let Some(version) = other_version(&ours, versions) {
        let known = versions.iter().cloned().collect::<Vec<_>>().join(", ");
        note(&mut row.changed, format!("{name}: it is stored as {version}, and known as {known}"));
    }
}

/// In which version a readable object is stored, if that is none that this server knows of its kind.
fn other_version<'a>(value: &'a [u8], versions: &BTreeSet<String>) -> Option<&'a str> {
    let rest = value.strip_prefix(OWN)?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    let version = str::from_utf8(&rest[..end]).ok()?;
    (!versions.is_empty() && !versions.contains(version)).then_some(version)
}

/// A number in JSON that would be another one when it is written again.
fn changed_number(stored: &[u8]) -> Option<String> {
    if !stored.starts_with(b"{") {
        return None;
    }
    let text = str::from_utf8(stored).ok()?;
    numbers(text)
        .find(|number| {
            let kept = serde_json::from_str::<Value>(number).map(|value| value.to_string());
            let is_same = |kept: &String| {
                kept == number
                    || kept.parse::<f64>().ok() == number.parse().ok() && !is_whole(number)
            };
            !kept.is_ok_and(|kept| is_same(&kept))
        })
        .map(str::to_owned)
}

fn is_whole(number: &str) -> bool {
    !number.contains(['.', 'e', 'E'])
}

/// The numbers in a JSON text, outside of its strings.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let start = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit())?;
            rest = &rest[start..];
            if let Some(inside) = rest.strip_prefix('"') {
                rest = &inside[end_of_string(inside)..];
                continue;
            }
            let part = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
            let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
            let number = &rest[..end];
            rest = &rest[end..];
            return Some(number);
        }
    })
}

/// Where a string ends that has begun before this text.
fn end_of_string(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn survey(all: &[(&str, String)]) -> Findings {
        let mut survey = Survey::new("/registry");
        for (place, value) in all {
            survey.add(format!("/registry/{place}").as_bytes(), &value.clone().into());
        }
        survey.finish()
    }

    fn named(kind: &str, name: &str) -> String {
        json!({"kind": kind, "apiVersion": "v1", "metadata": {"name": name}}).to_string()
    }

    /// `place: objects`, with `!` if it is not served, `?` for what cannot be read, `#` for what is encrypted,
    /// `~` for what would change.
    fn text(findings: &Findings) -> String {
        let line = |row: &Row| {
            let mark = |mark: &str, times: usize| mark.repeat(times);
            let served = if row.served { "" } else { "!" };
            format!(
                "{}: {}{served}{}{}{}",
                row.place,
                row.objects,
                mark("?", row.unreadable.0),
                mark("#", row.encrypted),
                mark("~", row.changed.0)
            )
        };
        findings.rows.iter().map(line).collect::<Vec<_>>().join(", ")
    }

    /// A name, keys and values, [`text`], and what is not enforced.
    type Case<'a> = (&'a str, &'a [(&'a str, String)], &'a str, &'a [&'a str]);

    #[test]
    fn what_would_become_of_it() {
        let encrypted = "k8s:enc:aescbc:v1:key:x".to_owned();
        let definition = |name: &str, strategy: &str| {
            json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
                "metadata": {"name": name}, "spec": {"conversion": {"strategy": strategy}}})
            .to_string()
        };
        let api = |name: &str, service: Value| {
            json!({"kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1",
                "metadata": {"name": name}, "spec": {"service": service}})
            .to_string()
        };
        let crds = "apiextensions.k8s.io/customresourcedefinitions";
        let cases: [Case<'_>; 6] = [
            (
                "what is served",
                &[
                    ("configmaps/shop/a", named("ConfigMap", "a")),
                    ("configmaps/shop/b", named("ConfigMap", "b")),
                    ("services/specs/shop/a", named("Service", "a")),
                    ("minions/n1", named("Node", "n1")),
                    ("ranges/servicenodeports", named("RangeAllocation", "")),
                    ("masterleases/10.0.0.1", named("Endpoints", "")),
                ],
                "configmaps: 2, masterleases: 1, minions: 1, ranges: 1, services/specs: 1",
                &[],
            ),
            (
                "what is not",
                &[
                    ("devicetaintrules/n1", named("DeviceTaintRule", "n1")),
                    ("resourceslices/a", named("ResourceSlice", "a")),
                    ("ranges/serviceips", named("RangeAllocation", "")),
                ],
                "devicetaintrules: 1!, ranges: 1!, resourceslices: 1!",
                &[],
            ),
            (
                "custom kinds, with and without a definition",
                &[
                    ("example.com/bells/shop/big", named("Bell", "big")),
                    ("example.com/towers/high", named("Tower", "high")),
                    (&format!("{crds}/bells.example.com"), definition("bells.example.com", "None")),
                ],
                "apiextensions.k8s.io/customresourcedefinitions: 1, example.com/bells: 1, \
                example.com/towers: 1!",
                &[],
            ),
            (
                "what cannot be read or kept",
                &[
                    ("secrets/shop/a", encrypted),
                    ("configmaps/shop/a", "k8s\0damaged".into()),
                    (
                        "configmaps/shop/b",
                        named("ConfigMap", "b").replace("\"name\"", "\"x\":1e400,\"name\""),
                    ),
                    (
                        "pods/shop/a",
                        named("Pod", "a")
                            .replace("\"name\"", "\"x\":123456789012345678901,\"name\""),
                    ),
                    (
                        "horizontalpodautoscalers/shop/a",
                        named("HorizontalPodAutoscaler", "a")
                            .replace("\"v1\"", "\"autoscaling/v2beta1\""),
                    ),
                    (
                        "pods/shop/b",
                        named("Pod", "b")
                            .replace("\"name\"", "\"x\":[1,-2,1.50,\"9e9\\\"9e999\"],\"name\""),
                    ),
                ],
                "configmaps: 2??, horizontalpodautoscalers: 1~, pods: 2~, secrets: 1#",
                &[],
            ),
            (
                "who else has a say",
                &[
                    (
                        "validatingwebhookconfigurations/guard",
                        named("ValidatingWebhookConfiguration", "guard"),
                    ),
                    ("validatingadmissionpolicies/p", named("ValidatingAdmissionPolicy", "p")),
                    (
                        &format!("{crds}/bells.example.com"),
                        definition("bells.example.com", "Webhook"),
                    ),
                ],
                "apiextensions.k8s.io/customresourcedefinitions: 1, validatingadmissionpolicies: 1!, \
                validatingwebhookconfigurations: 1!",
                &[
                    "CustomResourceDefinition bells.example.com: its conversion webhook",
                    "ValidatingAdmissionPolicy p",
                    "ValidatingWebhookConfiguration guard",
                ],
            ),
            (
                "who else serves",
                &[
                    (&format!("{SERVICES_OF_APIS}/v1."), api("v1.", Value::Null)),
                    (
                        &format!("{SERVICES_OF_APIS}/v1.metrics"),
                        api("v1.metrics", json!({"namespace": "kube-system", "name": "m"})),
                    ),
                ],
                "apiregistration.k8s.io/apiservices: 2!",
                &["APIService v1.metrics: served by the Service kube-system/m"],
            ),
        ];
        for (name, all, want, unenforced) in cases {
            let found = survey(all);
            assert_eq!(text(&found), want, "{name}");
            assert_eq!(found.unenforced, unenforced, "{name}");
            let harmful = want.contains(['?', '#', '~']) || !unenforced.is_empty();
            assert_eq!(found.is_harmful(), harmful, "{name}");
        }
    }
}

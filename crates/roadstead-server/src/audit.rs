//! Who did what, one JSON line per request.

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use roadstead_api::look::Look;
use serde_json::{Value, json};
use tracing::warn;
use uuid::Uuid;

use crate::about::About;
use crate::api::User;

/// How much is written about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    None,
    /// Who, what, when and with which result.
    Metadata,
    /// The body of the request too.
    Request,
}

/// Which requests are written at which level: the first rule that matches decides.
#[derive(Clone, Debug, Default)]
pub struct Policy(Vec<Value>);

impl Policy {
    /// Reads an `audit.k8s.io/v1` Policy. `RequestResponse` is treated as `Request`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let policy: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        if policy.text("/kind") != "Policy" {
            return Err("this is not an audit Policy: kind must be Policy".into());
        }
        Ok(Self(policy.list("/rules").to_vec()))
    }

    /// The level for a request; without rules everything is written at the level Metadata.
    pub fn level(&self, user: &User, about: &About) -> Level {
        let rule = self.0.iter().find(|rule| applies(rule, user, about));
        match (rule.map(|rule| rule.text("/level")), self.0.is_empty()) {
            (Some("None"), _) | (None, false) => Level::None,
            (Some("Request" | "RequestResponse"), _) => Level::Request,
            _ => Level::Metadata,
        }
    }
}

fn applies(rule: &Value, user: &User, about: &About) -> bool {
    let any = |field: &str, test: &dyn Fn(&str) -> bool| {
        let list = rule.list(field);
        list.is_empty() || list.iter().filter_map(Value::as_str).any(test)
    };
    let resource = match &about.subresource[..] {
        "" => about.resource.clone(),
        subresource => format!("{}/{subresource}", about.resource),
    };
    let resources = rule.list("/resources");
    let about_resources = resources.iter().any(|entry| {
        let names = entry.list("/resources");
        entry.text("/group") == about.group
            && (names.is_empty() || names.iter().any(|name| name == &resource || name == "*"))
    });
    let paths = rule.list("/nonResourceURLs");
    let about_paths = paths.iter().filter_map(Value::as_str).any(|pattern| {
        about.resource.is_empty()
            && match pattern.strip_suffix('*') {
                Some(prefix) => about.uri.starts_with(prefix),
                None => about.uri == pattern,
            }
    });
    any("/users", &|name| name == user.name)
        && any("/userGroups", &|group| user.groups.iter().any(|own| own == group))
        && any("/verbs", &|verb| verb == about.verb)
        && any("/namespaces", &|namespace| namespace == about.namespace)
        && (resources.is_empty() && paths.is_empty() || about_resources || about_paths)
}

/// Where the lines go.
pub struct Audit {
    policy: Policy,
    file: Mutex<File>,
}

impl Audit {
    /// Appends to a file.
    pub fn new(policy: Policy, file: File) -> Self {
        Self { policy, file: Mutex::new(file) }
    }

    /// The level for a request.
    pub fn level(&self, user: &User, about: &About) -> Level {
        self.policy.level(user, about)
    }

    /// Writes one line.
    pub fn write(&self, line: Line<'_>) {
        let level = self.level(line.user, line.about);
        if level == Level::None {
            return;
        }
        let about = line.about;
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "stage": "ResponseComplete",
            "level": format!("{level:?}"), "auditID": Uuid::new_v4().to_string(),
            "requestURI": about.uri, "verb": about.verb,
            "user": {"username": line.user.name, "groups": line.user.groups},
            "responseStatus": {"code": line.code},
            "requestReceivedTimestamp": format!("{:.6}", line.received),
            "stageTimestamp": format!("{:.6}", Timestamp::now()),
        });
        if !about.resource.is_empty() {
            event["objectRef"] = json!({"resource": about.resource, "namespace": about.namespace,
                "name": about.name, "apiGroup": about.group, "apiVersion": about.version,
                "subresource": about.subresource});
        }
        if let Some(address) = line.source {
            event["sourceIPs"] = json!([address.to_string()]);
        }
        if level >= Level::Request && !line.body.is_empty() {
            event["requestObject"] = serde_json::from_slice(line.body).unwrap_or_default();
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writeln!(file, "{event}") {
            warn!(%error, "cannot write the audit log");
        }
    }
}

/// What one line is made of.
pub struct Line<'a> {
    /// Who asked.
    pub user: &'a User,
    /// For what.
    pub about: &'a About,
    /// The body of the request.
    pub body: &'a [u8],
    /// The status of the answer.
    pub code: u16,
    /// When the request arrived.
    pub received: Timestamp,
    /// From where.
    pub source: Option<IpAddr>,
}

#[test]
fn the_first_rule_that_matches_decides() {
    let policy = Policy::parse(
        "apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: None, users: [system:kube-proxy], verbs: [watch]}
- {level: None, nonResourceURLs: [/healthz*]}
- {level: Request, resources: [{group: '', resources: [secrets]}]}
- {level: Metadata, resources: [{group: apps}]}
",
    )
    .unwrap();
    // user verb group/resource or path
    let cases = [
        ("system:kube-proxy watch -/services", Level::None),
        ("jane get /healthz/ping", Level::None),
        ("jane create -/secrets", Level::Request),
        ("jane list apps/deployments", Level::Metadata),
        ("jane list -/pods", Level::None),
    ];
    for (text, want) in cases {
        let words: Vec<_> = text.split(' ').collect();
        let user = User { name: words[0].into(), groups: vec![] };
        let mut about = About { verb: words[1].into(), uri: words[2].into(), ..About::default() };
        if let Some((group, resource)) =
            words[2].split_once('/').filter(|(group, _)| !group.is_empty())
        {
            about.group = group.trim_matches('-').into();
            about.resource = resource.into();
        }
        assert_eq!(policy.level(&user, &about), want, "{text}");
    }
    assert!(Policy::parse("kind: Pod").is_err());
}

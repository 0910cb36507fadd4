//! Who did what, one JSON line per request; a watch has one when it starts and one when it ends.

use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::identity::user::User;
use crate::kinds::private;
use crate::request::RequestInfo;

mod log;

pub use log::Audit;
pub(crate) use log::{Request, answered};

/// What is written besides: goes with an answer.
#[derive(Clone, Debug)]
pub(crate) struct Annotations(pub(crate) Vec<(&'static str, String)>);

/// How much is written about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Nothing.
    None,
    /// Who, what, when and with which result.
    Metadata,
    /// The body of the request too.
    Request,
    /// The body of the answer too.
    RequestResponse,
}

/// Which requests are written at which level: the first rule that matches decides.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<Value>,
    omitted: Vec<Value>,
}

impl Policy {
    /// Reads an `audit.k8s.io/v1` Policy.
    pub fn parse(text: &str) -> Result<Self, String> {
        let policy: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        if policy.text("/kind") != "Policy" {
            return Err("this is not an audit Policy: kind must be Policy".into());
        }
        let list = |pointer| policy.list(pointer).to_vec();
        Ok(Self { rules: list("/rules"), omitted: list("/omitStages") })
    }

    /// The level for a request; without rules everything is written at the level Metadata, and
    /// about Secrets and tokens never more than that.
    pub(crate) fn level(&self, user: &User, info: &RequestInfo) -> Level {
        let rule = self.rules.iter().find(|rule| applies(rule, user, info));
        let wanted = match (rule.map(|rule| rule.text("/level")), self.rules.is_empty()) {
            (Some("None"), _) | (None, false) => Level::None,
            (Some("Request"), _) => Level::Request,
            (Some("RequestResponse"), _) => Level::RequestResponse,
            _ => Level::Metadata,
        };
        let named = rule.is_some_and(|rule| names(rule, &info.resource().plural));
        wanted.min(private::most(info.resource(), named))
    }

    /// Whether nothing is written about a request at this stage.
    pub(crate) fn omits(&self, user: &User, info: &RequestInfo, stage: &str) -> bool {
        let rule = self.rules.iter().find(|rule| applies(rule, user, info));
        let own = rule.map_or(&[][..], |rule| rule.list("/omitStages"));
        own.iter().chain(&self.omitted).any(|omitted| omitted == stage)
    }
}

/// Whether a rule is about this resource by its name.
fn names(rule: &Value, resource: &str) -> bool {
    let entries = rule.list("/resources").iter();
    entries.flat_map(|entry| entry.list("/resources")).any(|name| name == resource)
}

fn applies(rule: &Value, user: &User, info: &RequestInfo) -> bool {
    let any = |field: &str, test: &dyn Fn(&str) -> bool| {
        let list = rule.list(field);
        list.is_empty() || list.iter().filter_map(Value::as_str).any(test)
    };
    let path = info.resource();
    let resource = match &path.subresource[..] {
        "" => path.plural.clone(),
        subresource => format!("{}/{subresource}", path.plural),
    };
    let resources = rule.list("/resources");
    let about_resources = resources.iter().any(|entry| {
        let names = entry.list("/resources");
        entry.text("/group") == path.group
            && (names.is_empty() || names.iter().any(|name| name == &resource || name == "*"))
    });
    let paths = rule.list("/nonResourceURLs");
    let about_paths = paths.iter().filter_map(Value::as_str).any(|pattern| {
        info.path.is_none()
            && match pattern.strip_suffix('*') {
                Some(prefix) => info.uri().starts_with(prefix),
                None => info.uri() == pattern,
            }
    });
    any("/users", &|name| name == user.name)
        && any("/userGroups", &|group| user.groups.iter().any(|own| own == group))
        && any("/verbs", &|verb| verb == info.verb)
        && any("/namespaces", &|namespace| namespace == path.namespace)
        && (resources.is_empty() && paths.is_empty() || about_resources || about_paths)
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
- {level: Metadata, resources: [{group: apps}], omitStages: [ResponseStarted]}
- {level: RequestResponse, resources: [{group: batch}]}
- {level: RequestResponse, users: [auditor], resources: [{group: '', resources: [configmaps]}]}
- {level: RequestResponse, users: [bob]}
",
    )
    .unwrap();
    // user verb group/resource or path
    let cases = [
        ("system:kube-proxy watch -/services", Level::None),
        ("jane get /healthz/ping", Level::None),
        ("jane create -/secrets", Level::Metadata),
        ("bob list -/secrets", Level::Metadata),
        ("bob create -/serviceaccounts/token", Level::Metadata),
        ("bob create -/serviceaccounts", Level::RequestResponse),
        ("bob create authentication.k8s.io/tokenreviews", Level::Metadata),
        ("bob create -/pods/proxy", Level::Metadata),
        ("bob create -/configmaps", Level::Metadata),
        ("auditor create -/configmaps", Level::RequestResponse),
        ("jane list apps/deployments", Level::Metadata),
        ("jane list batch/jobs", Level::RequestResponse),
        ("jane list -/pods", Level::None),
    ];
    for (text, want) in cases {
        let words: Vec<_> = text.split(' ').collect();
        let user = User::new(words[0], vec![]);
        let info = RequestInfo::sample(words[1], words[2]);
        assert_eq!(policy.level(&user, &info), want, "{text}");
        let omits = policy.omits(&user, &info, "ResponseStarted");
        assert_eq!(omits, info.resource().group == "apps", "{text}");
    }
    assert!(Policy::parse("kind: Pod").is_err());
}

//! One rule of a role, and what it allows.

use std::borrow::Cow;

use roadstead_schema::json::Pointer;
use serde::Deserialize;
use serde_json::Value;

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributes<'a> {
    /// Such as `list`; for paths the lower-case HTTP method.
    pub verb: &'a str,
    /// Empty for the core group.
    pub group: &'a str,
    /// Such as `pods`, or `pods/log`; empty for paths.
    pub resource: &'a str,
    /// Empty outside of namespaces.
    pub namespace: &'a str,
    /// Empty for lists.
    pub name: &'a str,
    /// The node whose pods alone are asked for; empty for all.
    pub node: &'a str,
    /// A path that is not about objects, such as `/metrics`.
    pub path: &'a str,
}

/// Verbs on resources, or on paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Rule {
    /// `*` is all.
    pub verbs: Vec<String>,
    /// `*` is all.
    #[serde(rename = "apiGroups")]
    pub groups: Vec<String>,
    /// `*` is all, `*/scale` a subresource of all.
    pub resources: Vec<String>,
    /// Empty is all.
    #[serde(rename = "resourceNames")]
    pub names: Vec<String>,
    /// `/healthz/*` is all below.
    #[serde(rename = "nonResourceURLs")]
    pub paths: Vec<String>,
}

/// Reads the `rules` of a role.
pub(crate) fn read(rules: &Value) -> Vec<Rule> {
    let texts = |rule: &Value, field: &str| {
        let list = rule.list(field).iter().filter_map(Value::as_str);
        list.map(str::to_owned).collect()
    };
    let rules = rules.as_array().into_iter().flatten();
    let read = |rule: &Value| Rule {
        verbs: texts(rule, "/verbs"),
        groups: texts(rule, "/apiGroups"),
        resources: texts(rule, "/resources"),
        names: texts(rule, "/resourceNames"),
        paths: texts(rule, "/nonResourceURLs"),
    };
    rules.map(read).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    /// Whether this rule allows the action.
    pub(crate) fn allows(&self, action: &Attributes<'_>) -> bool {
        if !has(&self.verbs, action.verb) {
            return false;
        }
        if action.resource.is_empty() {
            return self.paths.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => action.path.starts_with(prefix),
                None => pattern == action.path,
            });
        }
        let subresource = action.resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
        let resource = has(&self.resources, action.resource)
            || subresource.is_some_and(|any| self.resources.contains(&any));
        let name = self.names.is_empty() || self.names.iter().any(|name| name == action.name);
        has(&self.groups, action.group) && resource && name
    }
}

/// Everything that there is to allow.
pub(crate) fn all() -> Vec<Rule> {
    let every = || vec!["*".to_owned()];
    let resources = Rule { verbs: every(), groups: every(), resources: every(), ..Rule::default() };
    vec![resources, Rule { verbs: every(), paths: every(), ..Rule::default() }]
}

/// The room that a rule, and one item of it, may take in a refusal.
const LINE: usize = 300;

/// A rule as upstream prints it in refusals, cut if it is long.
pub(crate) fn shown(rule: &Rule) -> String {
    let list = |name: &str, items: &[String]| match items {
        [] => String::new(),
        items => format!(
            "{name}:[{}]",
            items.iter().map(|i| format!("{:?}", cut(i, LINE))).collect::<Vec<_>>().join(" ")
        ),
    };
    let parts = [
        list("APIGroups", &rule.groups),
        list("Resources", &rule.resources),
        list("ResourceNames", &rule.names),
        list("NonResourceURLs", &rule.paths),
        list("Verbs", &rule.verbs),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    cut(&format!("{{{}}}", parts.join(", ")), LINE).into_owned()
}

/// A text, or its beginning if it has more bytes than that.
pub(crate) fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.len() > most {
        true => format!("{}…", &text[..text.floor_char_boundary(most)]).into(),
        false => text.into(),
    }
}

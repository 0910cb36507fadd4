//! One rule of a role, and what it allows.

use roadstead_api::look::Look;
use serde_json::Value;

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Action<'a> {
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
    /// A path that is not about objects, such as `/metrics`.
    pub path: &'a str,
}

/// Verbs on resources, or on paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// `*` is all.
    pub verbs: Vec<String>,
    /// `*` is all.
    pub groups: Vec<String>,
    /// `*` is all, `*/scale` a subresource of all.
    pub resources: Vec<String>,
    /// Empty is all.
    pub names: Vec<String>,
    /// `/healthz/*` is all below.
    pub paths: Vec<String>,
}

/// Reads the `rules` of a role.
pub fn read(rules: &Value) -> Vec<Rule> {
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
    pub fn allows(&self, action: &Action<'_>) -> bool {
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

    /// Every single permission in the rule, as rules of one verb each.
    fn atoms(&self) -> Vec<Rule> {
        let mut atoms = Vec::new();
        for verb in &self.verbs {
            let verbs = vec![verb.clone()];
            for path in &self.paths {
                let paths = vec![path.clone()];
                atoms.push(Rule { verbs: verbs.clone(), paths, ..Rule::default() });
            }
            for group in &self.groups {
                for resource in &self.resources {
                    atoms.push(Rule {
                        verbs: verbs.clone(),
                        groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        names: self.names.clone(),
                        paths: Vec::new(),
                    });
                }
            }
        }
        atoms
    }

    /// Whether this rule contains all of an atom.
    fn contains(&self, atom: &Rule) -> bool {
        let one = |list: &[String], wanted: &[String]| wanted.iter().all(|item| has(list, item));
        if !one(&self.verbs, &atom.verbs) {
            return false;
        }
        if let Some(path) = atom.paths.first() {
            return self.paths.iter().any(|own| {
                own == path || own.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
            });
        }
        let names = self.names.is_empty()
            || (!atom.names.is_empty() && atom.names.iter().all(|name| self.names.contains(name)));
        let resource = |wanted: &String| {
            let any = wanted.split_once('/').map(|(_, sub)| format!("*/{sub}"));
            has(&self.resources, wanted) || any.is_some_and(|any| self.resources.contains(&any))
        };
        one(&self.groups, &atom.groups) && atom.resources.iter().all(resource) && names
    }
}

/// Everything that there is to allow.
pub fn all() -> Vec<Rule> {
    let every = || vec!["*".to_owned()];
    let resources = Rule { verbs: every(), groups: every(), resources: every(), ..Rule::default() };
    vec![resources, Rule { verbs: every(), paths: every(), ..Rule::default() }]
}

/// What of `wanted` is not in `held`: nobody may give away what they do not have.
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let atoms = wanted.iter().flat_map(Rule::atoms);
    atoms.filter(|atom| !held.iter().any(|rule| rule.contains(atom))).collect()
}

/// A rule as upstream prints it in refusals.
pub fn shown(rule: &Rule) -> String {
    let list = |name: &str, items: &[String]| match items {
        [] => String::new(),
        items => format!(
            "{name}:[{}]",
            items.iter().map(|i| format!("{i:?}")).collect::<Vec<_>>().join(" ")
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
    format!("{{{}}}", parts.join(", "))
}

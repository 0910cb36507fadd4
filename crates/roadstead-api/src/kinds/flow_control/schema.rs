//! What is wrong with a FlowSchema, in the words of Kubernetes.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use super::bootstrap;
use crate::names;

/// The verbs that rules may name.
const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// What subjects may be, and where each says which one it is.
const SUBJECTS: [(&str, &str); 3] =
    [("Group", "group"), ("ServiceAccount", "serviceAccount"), ("User", "user")];

const NAMESPACES: &str = "each member of this list must be '*' or a DNS-1123 label; ";

/// Says what is wrong with a FlowSchema, but for its status.
pub(super) fn validate(schema: &Value, causes: &mut Causes) {
    let (name, spec) = (schema.text("/metadata/name"), &schema["spec"]);
    let (precedence, at) = (spec.int("/matchingPrecedence"), "spec.matchingPrecedence");
    let mut odd = |why: &str| causes.invalid(at, &spec["matchingPrecedence"], why);
    if precedence <= 0 {
        odd("must be a positive value");
    }
    if precedence > 10_000 {
        odd("must not be greater than 10000");
    }
    if precedence == 1 && name != "exempt" {
        odd("only the schema named 'exempt' may have matchingPrecedence 1");
    }
    let method = &spec["distinguisherMethod"];
    if !method.is_null() && !["ByNamespace", "ByUser"].contains(&method.text("/type")) {
        let known = ["ByNamespace", "ByUser"];
        causes.unsupported("spec.distinguisherMethod.type", &method["type"], &known);
    }
    let at = "spec.priorityLevelConfiguration.name";
    match spec.text("/priorityLevelConfiguration/name") {
        "" => causes.required(at, "must reference a priority level"),
        level => names::check(names::subdomain, at, level, causes),
    }
    for (index, rules) in spec.list("/rules").iter().enumerate() {
        validate_rules(rules, &format!("spec.rules[{index}]"), causes);
    }
    if bootstrap::mandatory_schema(name).is_some_and(|fixed| fixed["spec"] != *spec) {
        causes.invalid("spec", spec, format!("spec of '{name}' must equal the fixed value"));
    }
}

fn validate_rules(rules: &Value, field: &str, causes: &mut Causes) {
    let subjects = rules.list("/subjects");
    if subjects.is_empty() {
        let why = "subjects must contain at least one value";
        causes.required(format!("{field}.subjects"), why);
    }
    for (index, subject) in subjects.iter().enumerate() {
        validate_subject(subject, &format!("{field}.subjects[{index}]"), causes);
    }
    let (objects, paths) = (rules.list("/resourceRules"), rules.list("/nonResourceRules"));
    if objects.is_empty() && paths.is_empty() {
        let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
        causes.required(field, why);
    }
    for (index, rule) in objects.iter().enumerate() {
        validate_object_rule(rule, &format!("{field}.resourceRules[{index}]"), causes);
    }
    for (index, rule) in paths.iter().enumerate() {
        validate_path_rule(rule, &format!("{field}.nonResourceRules[{index}]"), causes);
    }
}

fn validate_subject(subject: &Value, field: &str, causes: &mut Causes) {
    let Some((_, own)) = SUBJECTS.iter().find(|(kind, _)| subject["kind"] == *kind) else {
        let known = SUBJECTS.map(|(kind, _)| kind);
        return causes.unsupported(format!("{field}.kind"), &subject["kind"], &known);
    };
    for (kind, at) in SUBJECTS {
        let (place, given) = (format!("{field}.{at}"), &subject[at]);
        match (at == *own, given.is_null()) {
            (true, true) => {
                causes.required(place, &format!("{at} is required when subject kind is '{kind}'"));
            }
            (true, false) => validate_named(given, at, &place, causes),
            (false, true) => {}
            (false, false) => {
                let why = format!("{at} is forbidden when subject kind is not '{kind}'");
                causes.forbidden(place, &why);
            }
        }
    }
}

fn validate_named(subject: &Value, at: &str, field: &str, causes: &mut Causes) {
    let account = at == "serviceAccount";
    match subject.text("/name") {
        "" => causes.required(format!("{field}.name"), ""),
        "*" => {}
        name if account => names::check(names::subdomain, format!("{field}.name"), name, causes),
        _ => {}
    }
    if account {
        let place = format!("{field}.namespace");
        match subject.text("/namespace") {
            "" => causes.required(place, "must specify namespace for service account"),
            namespace => names::check(names::label, place, namespace, causes),
        }
    }
}

fn validate_object_rule(rule: &Value, field: &str, causes: &mut Causes) {
    validate_verbs(rule, field, causes);
    let needed = [
        ("apiGroups", "resource rules must supply at least one api group", "api groups"),
        ("resources", "resource rules must supply at least one resource", "resources"),
    ];
    for (at, none, others) in needed {
        validate_words(rule, field, &Words { at, none, others }, causes);
    }
    let namespaces = rule.list("/namespaces");
    if namespaces.is_empty() {
        if !rule.flag("/clusterScope") {
            let why =
                "resource rules that are not cluster scoped must supply at least one namespace";
            causes.required(format!("{field}.namespaces"), why);
        }
    } else if !validate_words(
        rule,
        field,
        &Words { at: "namespaces", none: "", others: "namespaces" },
        causes,
    ) {
        for (index, namespace) in namespaces.iter().enumerate() {
            for wrong in names::label(namespace.as_str().unwrap_or("")) {
                let place = format!("{field}.namespaces[{index}]");
                causes.invalid(place, namespace, format!("{NAMESPACES}{wrong}"));
            }
        }
    }
}

fn validate_path_rule(rule: &Value, field: &str, causes: &mut Causes) {
    validate_verbs(rule, field, causes);
    let none = "nonResourceURLs must contain at least one value";
    let words = Words { at: "nonResourceURLs", none, others: "non-resource URLs" };
    if validate_words(rule, field, &words, causes) {
        return;
    }
    for (index, path) in rule.list("/nonResourceURLs").iter().enumerate() {
        if let Some(wrong) = wrong_path(path.as_str().unwrap_or("")) {
            causes.invalid(format!("{field}.nonResourceURLs[{index}]"), path, wrong);
        }
    }
}

fn validate_verbs(rule: &Value, field: &str, causes: &mut Causes) {
    let none = "verbs must contain at least one value";
    let words = Words { at: "verbs", none, others: "verbs" };
    let is_known = |verb: &Value| verb.as_str().is_some_and(|verb| VERBS.contains(&verb));
    if !validate_words(rule, field, &words, causes) && !rule.list("/verbs").iter().all(is_known) {
        causes.unsupported(format!("{field}.verbs"), &rule["verbs"], &VERBS);
    }
}

/// A list of words of which `*` means all.
struct Words<'a> {
    at: &'a str,
    /// What to say if there are none; nothing if they need not be there.
    none: &'a str,
    /// What they are called.
    others: &'a str,
}

/// Whether `*` is among the words. Then it must be alone.
fn validate_words(rule: &Value, field: &str, words: &Words<'_>, causes: &mut Causes) -> bool {
    let (given, place) = (rule[words.at].as_array(), format!("{field}.{}", words.at));
    let given = given.map_or(&[][..], Vec::as_slice);
    if given.is_empty() {
        causes.required(&place, words.none);
    }
    let all = given.iter().any(|word| word == "*");
    if all && given.len() > 1 {
        let why = format!("if '*' is present, must not specify other {}", words.others);
        causes.invalid(place, &rule[words.at], why);
    }
    all
}

fn wrong_path(path: &str) -> Option<&'static str> {
    let stars = path.matches('*').count();
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !path.starts_with('/') => Some("must start with slash"),
        _ if path.contains(' ') => Some("must not contain white-space"),
        _ if path.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || stars == 1 && !path.ends_with("/*") => {
            Some("wildcard can only do suffix matching")
        }
        _ => None,
    }
}

//! What a ResourceQuota allows: what objects cost, whether a quota is about them, and what it says when
//! there is no more (upstream's `quota/v1` and its admission plugin).
//!
//! The API server charges a quota in the transaction that makes an object, and the controller counts
//! everything anew; both ask here, so that they agree.

mod scopes;
mod usage;

use std::collections::BTreeSet;

use roadstead_api::quantity::exact::{Amounts, Quantity, amounts, listed, to_json};
use roadstead_schema::json::Pointer;
use serde_json::Value;

pub use usage::ObjectKind;

/// What a write costs of one quota: its new `status.used`, or `None` if it costs nothing.
///
/// An object that comes has no `old`, one that goes has no `new`.
pub fn charge(
    quota: &Value,
    kind: &ObjectKind<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Result<Option<Value>, String> {
    let hard = amounts(&quota["status"]["hard"]);
    let matching = |object: &&Value| scopes::matches(quota, kind, object);
    let cost = |object: Option<&Value>| {
        object.filter(matching).map(|object| usage::of(kind, object)).unwrap_or_default()
    };
    let name = quota.text("/metadata/name");
    if old.is_none()
        && let Some(new) = new.filter(matching)
        && let Some(missing) = usage::unspecified(kind, new, &hard)
    {
        return Err(format!("failed quota: {name}: must specify {missing}"));
    }
    let (before, after) = (cost(old), cost(new));
    let concerned: BTreeSet<_> =
        before.keys().chain(after.keys()).filter(|name| hard.contains_key(*name)).collect();
    if concerned.is_empty() {
        return Ok(None);
    }
    let mut used = amounts(&quota["status"]["used"]);
    let unknown: Vec<_> = concerned.iter().filter(|name| !used.contains_key(**name)).collect();
    if !unknown.is_empty() && new.is_some() {
        let unknown: Vec<_> = unknown.iter().map(|name| name.as_str()).collect();
        return Err(format!("status unknown for quota: {name}, resources: {}", unknown.join(",")));
    }
    let none = Quantity::default();
    let requested: Amounts = concerned
        .into_iter()
        .map(|name| {
            let amount = |of: &Amounts| of.get(name).copied().unwrap_or(none);
            (name.clone(), amount(&after).minus(amount(&before)))
        })
        .filter(|(_, more)| !more.is_zero())
        .collect();
    let exceeds = |(name, more): &(&String, &Quantity)| {
        **more > none && used.get(*name).copied().unwrap_or(none).plus(**more) > hard[*name]
    };
    let exceeded: BTreeSet<_> =
        requested.iter().filter(exceeds).map(|(name, _)| name.clone()).collect();
    if !exceeded.is_empty() {
        let only = |all: &Amounts| {
            let all = all.iter().filter(|(name, _)| exceeded.contains(*name));
            listed(&all.map(|(name, amount)| (name.clone(), *amount)).collect())
        };
        return Err(format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            only(&requested),
            only(&used),
            only(&hard)
        ));
    }
    for (name, more) in &requested {
        if let Some(own) = used.get_mut(name) {
            // The controller counts, should we ever believe that there are fewer than none.
            *own = own.plus(*more).max(none);
        }
    }
    Ok((!requested.is_empty()).then(|| to_json(&used)))
}

/// Whether a change of an object may change what it costs. Pods take what they were made with.
pub fn follows_changes(kind: &ObjectKind<'_>) -> bool {
    usage::CONTENTS.contains(kind) && *kind != usage::PODS
}

/// Which kinds have to be counted for what a quota names: those whose objects cost by what is in them,
/// and of all others only how many there are.
pub fn looked_into(hard: &Amounts) -> Vec<ObjectKind<'static>> {
    let wanted =
        |kind: &ObjectKind<'_>| hard.keys().any(|name| usage::counts_by_content(kind, name));
    usage::CONTENTS.into_iter().filter(wanted).collect()
}

/// Which kinds only have to be counted: each with the limit on it, its plural and its group.
pub fn counted(hard: &Amounts) -> Vec<(String, String, String)> {
    let into = looked_into(hard);
    let of = |limit: &String| {
        let (plural, group) = match limit.strip_prefix("count/") {
            Some(name) => name.split_once('.').unwrap_or((name, "")),
            None => (usage::BY_NAME.iter().copied().find(|own| own == limit)?, ""),
        };
        let is_counted = !into.iter().any(|kind| (kind.plural, kind.group) == (plural, group));
        is_counted.then(|| (limit.clone(), plural.to_owned(), group.to_owned()))
    };
    hard.keys().filter_map(of).collect()
}

/// What a quota limits, and what of that is used: its whole status.
///
/// `contents` are all objects of the kinds that are looked into, `counted` how many there are of others,
/// by the names that a quota has for them.
pub fn status(
    quota: &Value,
    contents: &[(ObjectKind<'_>, Vec<Value>)],
    counted: &Amounts,
) -> Value {
    let hard = amounts(&quota["spec"]["hard"]);
    let mut used: Amounts = hard.keys().map(|name| (name.clone(), Quantity::default())).collect();
    for (kind, objects) in contents {
        for object in objects.iter().filter(|object| scopes::matches(quota, kind, object)) {
            for (name, amount) in usage::of(kind, object) {
                if let Some(own) = used.get_mut(&name) {
                    *own = own.plus(amount);
                }
            }
        }
    }
    let unscoped = !scopes::has_some(quota);
    for (name, number) in counted.iter().filter(|_| unscoped) {
        if let Some(own) = used.get_mut(name) {
            *own = *number;
        }
    }
    serde_json::json!({"hard": to_json(&hard), "used": to_json(&used)})
}

#[cfg(test)]
mod tests;

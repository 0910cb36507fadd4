//! Admission plugins: rules about what is written that are no single kind's own, one row each.
//!
//! Their names are upstream's, and operators switch them off by these names
//! (`objects/admission_plugins`). Generic code calls the functions here; each asks the rows that are about
//! the kind and are switched on, one after the other.

use futures::future::BoxFuture;
use roadstead_store::transaction::Transaction;
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::{
    Notes, ingress, limit_range, node_restriction, pod, pod_security, resource_quota,
};
use crate::objects::admission_plugins::Plugin;
use crate::objects::delete::Removal;
use crate::objects::write::Context;
use crate::registry::Resource;
use crate::request::handler::Handler;

/// A row in the table of plugins.
pub(crate) struct PluginRow {
    /// As operators and upstream know it.
    pub(crate) name: &'static str,
    pub(crate) plugin: Plugin,
    /// Where the store keeps the kinds that it is about; none means all.
    kinds: &'static [&'static str],
    rules: &'static dyn AdmissionPlugin,
}

/// All plugins, in the order in which they are asked: what completes an object comes before what judges it.
pub(crate) static PLUGINS: [PluginRow; 9] = [
    PluginRow {
        name: "NodeRestriction",
        plugin: Plugin::NodeRestriction,
        kinds: &[],
        rules: &node_restriction::NodeRestriction,
    },
    PluginRow {
        name: "LimitRanger",
        plugin: Plugin::LimitRanger,
        kinds: &["persistentvolumeclaims", "pods"],
        rules: &limit_range::LimitRanger,
    },
    PluginRow {
        name: "ServiceAccount",
        plugin: Plugin::ServiceAccount,
        kinds: &["pods"],
        rules: &pod::account::ServiceAccount,
    },
    PluginRow {
        name: "Priority",
        plugin: Plugin::Priority,
        kinds: &["pods"],
        rules: &pod::priority::Priority,
    },
    PluginRow {
        name: "DefaultTolerationSeconds",
        plugin: Plugin::DefaultTolerationSeconds,
        kinds: &["pods"],
        rules: &pod::DefaultTolerations,
    },
    PluginRow {
        name: "PodSecurity",
        plugin: Plugin::PodSecurity,
        kinds: pod_security::KINDS,
        rules: &pod_security::PodSecurity,
    },
    PluginRow {
        name: "DefaultIngressClass",
        plugin: Plugin::DefaultIngressClass,
        kinds: &["ingresses.networking.k8s.io"],
        rules: &ingress::DefaultIngressClass,
    },
    PluginRow {
        name: "PodResizeValidator",
        plugin: Plugin::PodResizeValidator,
        kinds: &["pods"],
        rules: &pod::resize::PodResizeValidator,
    },
    PluginRow {
        name: "ResourceQuota",
        plugin: Plugin::ResourceQuota,
        kinds: &[],
        rules: &resource_quota::ResourceQuota,
    },
];

/// What is about to happen to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    Create,
    Update,
    /// It gets more, or less, of what is counted.
    Resize,
    Delete,
}

/// The right to write while nobody else does, until it is dropped.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// What a plugin does. Hooks are called in the order in which they stand here; most plugins have one.
pub(crate) trait AdmissionPlugin: Sync {
    /// Refuses a request before anything is done.
    fn check(&self, _handler: &Handler<'_>, _method: &str) -> Result<(), ApiError> {
        Ok(())
    }

    /// Waits until nobody else writes what the plugin writes in the same transaction.
    fn turn<'a>(
        &self,
        _api: &'a Api,
        _resource: &Resource,
        _namespace: &'a str,
        _occasion: Occasion,
    ) -> Option<BoxFuture<'a, Turn>> {
        None
    }

    /// Completes what somebody wants to write, or refuses it. Called for each attempt, before the kind's own
    /// `admit`; `old` is `None` for a new object.
    fn admit(
        &self,
        _context: &Context<'_>,
        _old: Option<&Value>,
        _new: &mut Value,
    ) -> Result<(), ApiError> {
        Ok(())
    }

    /// Completes the transaction that writes a valid object, but for its status, or refuses it.
    fn complete(
        &self,
        _context: &Context<'_>,
        _old: Option<&Value>,
        _new: &Value,
        transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        Ok(transaction)
    }

    /// Says what to tell about a write that will be made.
    fn notes(&self, _context: &Context<'_>, _old: Option<&Value>, _new: &Value) -> Notes {
        Notes::default()
    }

    /// Completes the transaction that removes an object.
    fn remove(&self, _removal: &Removal<'_>, transaction: Transaction) -> Transaction {
        transaction
    }
}

/// The plugins that have a say about a kind.
fn of<'a>(api: &'a Api, bucket: &'a str) -> impl Iterator<Item = &'static dyn AdmissionPlugin> {
    PLUGINS
        .iter()
        .filter(move |row| row.kinds.is_empty() || row.kinds.contains(&bucket))
        .filter(move |row| api.has(row.plugin))
        .map(|row| row.rules)
}

/// See [`AdmissionPlugin::check`].
pub(crate) fn check(handler: &Handler<'_>, method: &str) -> Result<(), ApiError> {
    of(handler.api, &handler.resource.bucket).try_for_each(|plugin| plugin.check(handler, method))
}

/// See [`AdmissionPlugin::turn`]. All of them wait for each other in the same order.
pub(crate) async fn turns(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    occasion: Occasion,
) -> Vec<Turn> {
    let mut turns = Vec::new();
    for plugin in of(api, &resource.bucket) {
        if let Some(turn) = plugin.turn(api, resource, namespace, occasion) {
            turns.push(turn.await);
        }
    }
    turns
}

/// See [`AdmissionPlugin::admit`].
pub(crate) fn admit(
    context: &Context<'_>,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), ApiError> {
    of(context.api, &context.resource.bucket).try_for_each(|plugin| plugin.admit(context, old, new))
}

/// See [`AdmissionPlugin::complete`].
pub(crate) fn complete(
    context: &Context<'_>,
    old: Option<&Value>,
    new: &Value,
    transaction: Transaction,
) -> Result<Transaction, ApiError> {
    of(context.api, &context.resource.bucket).try_fold(transaction, |transaction, plugin| {
        plugin.complete(context, old, new, transaction)
    })
}

/// See [`AdmissionPlugin::notes`].
pub(crate) fn notes(context: &Context<'_>, old: Option<&Value>, new: &Value) -> Notes {
    let all = of(context.api, &context.resource.bucket);
    all.fold(Notes::default(), |notes, plugin| notes.and(plugin.notes(context, old, new)))
}

/// See [`AdmissionPlugin::remove`].
pub(crate) fn remove(removal: &Removal<'_>, transaction: Transaction) -> Transaction {
    of(removal.api, &removal.resource.bucket)
        .fold(transaction, |transaction, plugin| plugin.remove(removal, transaction))
}

#[test]
fn every_row_is_about_kinds_that_there_are() {
    let all = roadstead_api::kinds::all();
    let buckets: Vec<_> = all.into_iter().map(|kind| kind.info().bucket()).collect();
    for PluginRow { name, kinds, .. } in &PLUGINS {
        for kind in *kinds {
            assert!(buckets.iter().any(|known| known == kind), "{name}: {kind}");
        }
        assert!(PLUGINS.iter().filter(|row| row.name == *name).count() == 1, "{name} comes twice");
    }
}

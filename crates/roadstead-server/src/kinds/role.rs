//! Roles and bindings: nobody gives more rights than they have themselves.

use std::sync::Arc;

use roadstead_api::kind::Info;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::api::Api;
use crate::error::ApiError;
use crate::identity::rbac::rule::{self, Attributes, Rule};
use crate::identity::rbac::{GROUP, Rbac, cover};
use crate::identity::user::User;
use crate::kinds::{Afterwards, Strategy};
use crate::objects::write::Context;

/// Roles and ClusterRoles.
pub(super) struct Roles;

impl Strategy for Roles {
    fn admit(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        match Grant::needs_check(context, old, new) {
            Some(grant) => grant.check_role(old, new),
            None => Ok(()),
        }
    }

    fn committed<'a>(&self, api: &'a Api) -> Option<Afterwards<'a>> {
        take_in(&api.identity.rbac)
    }
}

/// RoleBindings and ClusterRoleBindings.
pub(super) struct Bindings;

impl Strategy for Bindings {
    fn admit(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        match Grant::needs_check(context, old, new) {
            Some(grant) => grant.check_binding(new),
            None => Ok(()),
        }
    }

    fn committed<'a>(&self, api: &'a Api) -> Option<Afterwards<'a>> {
        take_in(&api.identity.rbac)
    }
}

/// Whoever changes the rights takes them in, not whoever comes next.
fn take_in<'a>(rbac: &Rbac) -> Option<Afterwards<'a>> {
    rbac.refresh();
    None
}

/// Somebody who gives rights to others.
struct Grant<'a> {
    rbac: &'a Rbac,
    user: &'a User,
    info: &'a Info,
    namespace: &'a str,
}

impl<'a> Grant<'a> {
    /// Whether it has to be looked at what a write gives to others. The server itself, and those who
    /// may do everything, give what they want.
    fn needs_check(context: &Context<'a>, old: Option<&Value>, new: &Value) -> Option<Self> {
        let user = context.user.filter(|user| !user.is_master())?;
        if old.is_some_and(|old| is_housekeeping(old, new)) {
            return None;
        }
        let (rbac, info) = (&context.api.identity.rbac, context.resource.info());
        Some(Self { rbac, user, info, namespace: context.namespace })
    }

    /// `old` is what `role` replaces.
    fn check_role(&self, old: Option<&Value>, role: &Value) -> Result<(), ApiError> {
        let name = role.text("/metadata/name");
        if self.may("escalate", self.info.plural, name) {
            return Ok(());
        }
        let held = self.rbac.roles_of(self.user, self.namespace);
        self.check_held(name, &held, &rule::read(&role["rules"]))?;
        let sums = |role: &Value| !role.list("/aggregationRule/clusterRoleSelectors").is_empty();
        // A sum can gather anything, now or later.
        if (sums(role) || old.is_some_and(sums))
            && !cover::missing(rules(&held), &rule::all()).is_empty()
        {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            return Err(ApiError::forbidden_object(self.info, name, why));
        }
        Ok(())
    }

    fn check_binding(&self, binding: &Value) -> Result<(), ApiError> {
        let (kind, role) = (binding.text("/roleRef/kind"), binding.text("/roleRef/name"));
        let resource = if kind == "Role" { "roles" } else { "clusterroles" };
        if self.may("bind", resource, role) {
            return Ok(());
        }
        // Whoever binds to a role that does not exist yet would have it as soon as it does.
        let Some(rules) = self.rbac.rules_of_role(kind, self.namespace, role) else {
            return Err(ApiError::not_found(&Info::new(GROUP, "v1", "", resource, ""), role));
        };
        let held = self.rbac.roles_of(self.user, self.namespace);
        self.check_held(binding.text("/metadata/name"), &held, &rules)
    }

    /// Whether the user has the right to give rights.
    fn may(&self, verb: &str, resource: &str, name: &str) -> bool {
        let (group, namespace) = (self.info.group, self.namespace);
        let attributes =
            Attributes { verb, group, resource, namespace, name, ..Attributes::default() };
        self.rbac.allows(self.user, &attributes)
    }

    fn check_held(
        &self,
        name: &str,
        held: &[Arc<[Rule]>],
        wanted: &[Rule],
    ) -> Result<(), ApiError> {
        let missing = cover::missing(rules(held), wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let mut lines: Vec<_> = missing.named.iter().map(rule::shown).collect();
        lines.sort();
        match (missing.unsettled, missing.more) {
            (true, _) => lines.push("… and more, of rules that are too many to compare".into()),
            (false, 0) => {}
            (false, more) => lines.push(format!("… and {more} more")),
        }
        let groups = format!("{:?}", self.user.groups);
        let why = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            self.user.name,
            rule::cut(&groups, GROUPS_SHOWN),
            lines.join("\n")
        );
        Err(ApiError::forbidden_object(self.info, name, &why))
    }
}

/// Whether only owners and finalizers change: the garbage collector need not have all rights.
fn is_housekeeping(old: &Value, new: &Value) -> bool {
    let content = |object: &Value| {
        let mut content = object.clone();
        if let Some(metadata) = content.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                metadata.remove(field);
            }
        }
        content
    };
    content(old) == content(new)
}

fn rules(roles: &[Arc<[Rule]>]) -> impl Iterator<Item = &Rule> {
    roles.iter().flat_map(|role| role.iter())
}

/// The groups of a user may be anything that somebody impersonates.
const GROUPS_SHOWN: usize = 1_000;

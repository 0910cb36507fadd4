//! Who has a bootstrap token: a machine that is about to join, and may do little more than ask for a
//! certificate. What makes one is `roadstead_plan::bootstrap_token`.

use std::collections::BTreeMap;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use roadstead_plan::bootstrap_token::{BootstrapToken, NAMESPACE, PREFIX, TokenText};
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::identity::user::User;
use crate::storage::Storage;

/// What is known of a user whose token is good for one node only. Requests for certificates carry it on.
const NODE: &str = "roadstead.dev/bootstrap-node";

/// Whom a text belongs to that has the form of a bootstrap token; `None` if it has not.
///
/// Why a token is good for nothing is for nobody to know who tries one.
pub(crate) fn user(storage: &Storage, text: &str, now: Timestamp) -> Option<Result<User, String>> {
    let text = TokenText::parse(text)?;
    Some(find(storage, text, now).ok_or_else(|| "invalid bootstrap token".to_owned()))
}

fn find(storage: &Storage, text: TokenText<'_>, now: Timestamp) -> Option<User> {
    let registry = storage.registry();
    let name = format!("{PREFIX}{}", text.id);
    let secret = storage.object(registry.core("secrets"), NAMESPACE, &name)?;
    let known = BootstrapToken::read(&name, secret.text("/type"), &data(&secret)).ok()?;
    // In the same time, wherever they differ.
    verify_slices_are_equal(known.secret.as_bytes(), text.secret.as_bytes()).ok()?;
    let is_going = secret.has("/metadata/deletionTimestamp");
    if is_going || known.is_over(now) || !known.authenticates {
        return None;
    }
    let mut groups = known.groups;
    groups.push("system:authenticated".to_owned());
    let extra = known.node.map(|node| (NODE.to_owned(), vec![node]));
    let user = User::new(format!("system:bootstrap:{}", known.id), groups);
    Some(User { extra: extra.into_iter().collect(), ..user })
}

/// The values of a Secret, those that are texts.
fn data(secret: &Value) -> BTreeMap<String, String> {
    let decode = |value: &Value| String::from_utf8(STANDARD.decode(value.as_str()?).ok()?).ok();
    let fields = secret.fields("/data");
    fields.filter_map(|(name, value)| Some((name.to_owned(), decode(value)?))).collect()
}

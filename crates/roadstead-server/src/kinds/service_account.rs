//! Service accounts: tokens for them.

use http::StatusCode;

use crate::kinds::{Access, Answer, GroupVersionKind, Strategy, Subresource, node_restriction};
use crate::reading::{object, read};
use crate::request::handler::Handler;
use crate::transport::response::respond;

pub(super) struct ServiceAccounts;

impl Strategy for ServiceAccounts {
    fn subresources(&self) -> &'static [Subresource] {
        const {
            &[Subresource {
                name: "token",
                kind: Some(GroupVersionKind::new("authentication.k8s.io", "v1", "TokenRequest")),
                verbs: &["create"],
                access: Access::Call(token),
            }]
        }
    }
}

fn token<'a>(handler: &'a Handler<'a>) -> Answer<'a> {
    Box::pin(async move {
        let Handler { api, resource, path, .. } = handler;
        let account = object::value(&*read::entry(&api.storage, resource, path)?);
        let request = handler.typed("io.k8s.api.authentication.v1.TokenRequest")?;
        node_restriction::check_token(handler, &request)?;
        let issued = api.identity.tokens.issue(&api.storage, &account, request)?;
        Ok(respond(StatusCode::CREATED, issued.to_string()))
    })
}

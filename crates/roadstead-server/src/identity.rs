//! Who sends a request, how they prove it, what they may do, and what is written about it.

use std::sync::Arc;

use roadstead_store::kv::Store;

pub mod audit;
pub mod authority;
pub(crate) mod authorize;
mod bootstrap_tokens;
pub(crate) mod impersonate;
pub mod node_request;
pub(crate) mod nodes;
pub(crate) mod parts;
pub(crate) mod rbac;
pub mod secret_file;
pub mod token_file;
pub mod token_keys;
pub mod tokens;
pub mod user;

use audit::Audit;
use rbac::Rbac;
use tokens::Tokens;

/// What the server knows about who sends requests.
pub(crate) struct Identity {
    pub(crate) rbac: Rbac,
    pub(crate) tokens: Tokens,
    pub(crate) audit: Option<Arc<Audit>>,
}

impl Identity {
    pub(crate) fn new(store: Arc<Store>, tokens: Tokens, audit: Option<Audit>) -> Self {
        Self { rbac: Rbac::new(store), tokens, audit: audit.map(Arc::new) }
    }
}

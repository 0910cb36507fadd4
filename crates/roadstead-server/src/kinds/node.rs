//! Nodes: that no two have the same pod addresses, and `nodes/NAME/proxy`, requests that are handed on to the
//! agent of a node, which shows what runs there.

use http::header::UPGRADE;
use http::{Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use ipnet::IpNet;
use roadstead_plan::node_ranges::overlap;
use roadstead_schema::json::Pointer;
use roadstead_store::entry::Key;
use roadstead_store::transaction::Transaction;
use serde_json::Value;

use crate::error::ApiError;
use crate::kinds::proxy::{self, Onward, ProxyName};
use crate::kinds::{Access, Answer, GroupVersionKind, Strategy, Subresource};
use crate::node_agents::PORT;
use crate::objects::write::Context;
use crate::reading::object;
use crate::registry::Resource;
use crate::request::chain::ActiveRequest;
use crate::transport::receive::RequestBody;
use crate::transport::response::Body;

/// Written with every block of pod addresses that a node gets: whoever has looked at what the others have is
/// refused if one of them got another meanwhile.
pub(crate) const BLOCKS: &str = "podcidrs";

pub(super) struct Nodes;

impl Strategy for Nodes {
    fn subresources(&self) -> &'static [Subresource] {
        const {
            &[Subresource {
                name: "proxy",
                kind: Some(GroupVersionKind::new("", "v1", "NodeProxyOptions")),
                verbs: proxy::VERBS,
                access: Access::Connect(to_agent),
            }]
        }
    }

    fn complete(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
        transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        let (before, now) = (old.map(blocks).unwrap_or_default(), blocks(new));
        if now.iter().all(|block| before.contains(block)) {
            return Ok(transaction);
        }
        let (store, key) = (&context.api.storage.store, Key::new(BLOCKS, "last"));
        // First this, then the others: what comes in between is noticed.
        let last = store.get(&key).map(|entry| entry.revision);
        let name = new.text("/metadata/name");
        for entry in store.list(&context.resource.bucket, "", None)?.entries {
            let other = object::value(&entry);
            let other_name = other.text("/metadata/name");
            let taken = blocks(&other);
            let both = now.iter().find(|block| taken.iter().any(|one| overlap(one, block)));
            if let Some(block) = both.filter(|_| other_name != name) {
                let why = format!("pod addresses {block} are those of the node {other_name:?}");
                return Err(ApiError::conflict(context.resource.info(), name, &why));
            }
        }
        let value = name.to_owned().into_bytes().into();
        Ok(transaction.expect(key.clone(), last).put(key, value))
    }
}

/// The addresses that the pods of a node have.
fn blocks(node: &Value) -> Vec<IpNet> {
    let all = node.list("/spec/podCIDRs").iter().chain(node.pointer("/spec/podCIDR"));
    let all = all.filter_map(Value::as_str);
    all.filter_map(|text| text.parse::<IpNet>().ok()).collect()
}

fn to_agent<'a>(request: &'a ActiveRequest, nodes: &'a Resource, body: RequestBody) -> Answer<'a> {
    Box::pin(answer(request, nodes, body))
}

async fn answer(
    request: &ActiveRequest,
    nodes: &Resource,
    body: RequestBody,
) -> Result<Response<Body>, ApiError> {
    let ActiveRequest { api, info, parts, .. } = request;
    let path = info.resource();
    let wrong = || ApiError::bad_request(format!("invalid node request {:?}", path.name));
    let wanted = ProxyName::parse(&path.name).ok_or_else(wrong)?;
    let node = api.storage.object(nodes, "", wanted.name);
    let node = node.ok_or_else(|| ApiError::not_found(nodes.info(), wanted.name))?;
    if !wanted.port.is_empty() && wanted.port != node.int(PORT).to_string() {
        let message = "only requests to the agent of a node are handed on";
        return Err(ApiError::not_implemented(message));
    }
    if path.rest.is_empty() {
        return Ok(proxy::redirect(&format!("{}/", parts.uri.path()), parts.uri.query()));
    }
    let upgrade = parts.extensions.get::<OnUpgrade>().cloned();
    let upgrade = upgrade.filter(|_| parts.headers.contains_key(UPGRADE));
    if upgrade.is_some() {
        // Whoever may only look at a node must not run commands on it, by whichever method he asks.
        request.authorize_creation()?;
    }
    let onward = Onward {
        parts,
        path: &path.rest,
        prefix: parts.uri.path().strip_suffix(&*path.rest).unwrap_or(""),
        address: wanted.name,
    };
    let sent = onward.request(body, upgrade.is_some())?;
    let mut response = proxy::send_to_agent(request, wanted.name, sent).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = upgrade
    {
        return Ok(proxy::relayed(request, client, &mut response));
    }
    Ok(onward.back(response))
}

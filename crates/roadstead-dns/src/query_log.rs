//! Logs queries, if the rules for their names say so.

use std::net::SocketAddr;

use roadstead_dns_core::message::{HEADER_LENGTH, question_type, read_name};
use roadstead_dns_core::setup::{LoggedEnd, Setup};
use roadstead_zone::name::Name;
use tracing::info;

pub(crate) fn log(setup: &Setup, query: &[u8], peer: &SocketAddr, reply: &[u8]) {
    if !setup.logs_some() {
        return;
    }
    let Some((name, _)) = read_name(query, HEADER_LENGTH) else { return };
    let (lower, code) = (name.wire().to_ascii_lowercase(), reply.get(3).map_or(0, |b| b & 0x0f));
    if setup.block(&lower).is_some_and(|block| block.logs(&lower, LoggedEnd::of(reply))) {
        let name = Name::from_wire(name.wire()).map(|name| name.to_string());
        info!(%peer, name = name.unwrap_or_default(), kind = question_type(query), code, "query");
    }
}

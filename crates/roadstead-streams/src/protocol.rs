//! Which protocol an upgrade ends in.

use crate::channel::Encoding;

/// What carries the streams of `exec` and `attach` in a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelProtocol {
    /// 1 to 5; there never was a 2 or 3 of messages.
    pub version: u8,
    /// How a message is written.
    pub encoding: Encoding,
}

/// The subprotocols of a WebSocket that carries `exec` or `attach`, newest first.
const CHANNELS: [(&str, ChannelProtocol); 5] = [
    ("v5.channel.k8s.io", ChannelProtocol { version: 5, encoding: Encoding::Binary }),
    ("v4.channel.k8s.io", ChannelProtocol { version: 4, encoding: Encoding::Binary }),
    ("v4.base64.channel.k8s.io", ChannelProtocol { version: 4, encoding: Encoding::Base64 }),
    ("channel.k8s.io", ChannelProtocol { version: 1, encoding: Encoding::Binary }),
    ("base64.channel.k8s.io", ChannelProtocol { version: 1, encoding: Encoding::Base64 }),
];

/// A SPDY connection inside a WebSocket: what newer clients use for `port-forward`.
const FORWARD_TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// The protocol of `port-forward` over SPDY.
pub const FORWARD: &str = "portforward.k8s.io";

/// What carries the connections of `port-forward` in a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardProtocol {
    /// SPDY.
    Tunnel,
    /// Two channels for each port that the query names.
    Channels(Encoding),
}

const FORWARDS: [(&str, ForwardProtocol); 3] = [
    (FORWARD_TUNNEL, ForwardProtocol::Tunnel),
    ("v4.channel.k8s.io", ForwardProtocol::Channels(Encoding::Binary)),
    ("v4.base64.channel.k8s.io", ForwardProtocol::Channels(Encoding::Base64)),
];

/// Picks the first subprotocol of the client's list that we speak, as [`choose_channel`] does.
pub fn choose_forward(asked: &[&str]) -> Option<(Option<&'static str>, ForwardProtocol)> {
    if asked.is_empty() {
        return Some((None, ForwardProtocol::Channels(Encoding::Binary)));
    }
    asked.iter().find_map(|name| {
        let known = FORWARDS.iter().find(|(known, _)| known == name)?;
        Some((Some(known.0), known.1))
    })
}

/// Those of `exec` and `attach` over SPDY, newest first.
const COMMANDS: [(&str, u8); 4] = [
    ("v4.channel.k8s.io", 4),
    ("v3.channel.k8s.io", 3),
    ("v2.channel.k8s.io", 2),
    ("channel.k8s.io", 1),
];

/// Picks the first subprotocol of the client's list that we speak. A client that asks for none
/// gets the oldest, without a name; one that asks only for strange ones gets nothing.
pub fn choose_channel(asked: &[&str]) -> Option<(Option<&'static str>, ChannelProtocol)> {
    if asked.is_empty() {
        return Some((None, ChannelProtocol { version: 1, encoding: Encoding::Binary }));
    }
    asked.iter().find_map(|name| {
        let known = CHANNELS.iter().find(|(known, _)| known == name)?;
        Some((Some(known.0), known.1))
    })
}

/// Picks the version of `exec` or `attach` over SPDY: ours in our order, if the client has it.
pub fn choose_command(asked: &[&str]) -> Option<(&'static str, u8)> {
    COMMANDS.into_iter().find(|(known, _)| asked.contains(known))
}

/// What to tell a client whose versions are all unknown.
pub fn commands() -> impl Iterator<Item = &'static str> {
    COMMANDS.into_iter().map(|(name, _)| name)
}

/// Splits the values of headers such as `Sec-WebSocket-Protocol` at their commas.
pub fn listed<'a>(values: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let parts = values.into_iter().flat_map(|value| value.split(','));
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels() {
        let cases = [
            ("kubectl today", "v5.channel.k8s.io, v4.channel.k8s.io", Some("v5.channel.k8s.io")),
            (
                "the client's order counts",
                "v4.channel.k8s.io,v5.channel.k8s.io",
                Some("v4.channel.k8s.io"),
            ),
            ("a browser", "v4.base64.channel.k8s.io", Some("v4.base64.channel.k8s.io")),
            ("strange ones are passed over", "v9.x, channel.k8s.io", Some("channel.k8s.io")),
            ("only strange ones", "v9.x", None),
        ];
        for (name, asked, want) in cases {
            let chosen = choose_channel(&listed([asked]));
            assert_eq!(chosen.and_then(|(name, _)| name), want, "{name}");
        }
        let (name, protocol) = choose_channel(&[]).unwrap();
        assert_eq!((name, protocol.version), (None, 1));
    }

    #[test]
    fn forwards() {
        let binary = ForwardProtocol::Channels(Encoding::Binary);
        let tunnel = Some((Some(FORWARD_TUNNEL), ForwardProtocol::Tunnel));
        assert_eq!(choose_forward(&[FORWARD_TUNNEL]), tunnel);
        assert_eq!(
            choose_forward(&["x", "v4.channel.k8s.io"]),
            Some((Some("v4.channel.k8s.io"), binary))
        );
        assert_eq!(choose_forward(&[]), Some((None, binary)));
        assert_eq!(choose_forward(&["v5.channel.k8s.io"]), None);
    }

    #[test]
    fn commands_over_spdy() {
        let asked = listed(["v4.channel.k8s.io", "v3.channel.k8s.io, channel.k8s.io"]);
        assert_eq!(choose_command(&asked), Some(("v4.channel.k8s.io", 4)));
        assert_eq!(choose_command(&["channel.k8s.io"]), Some(("channel.k8s.io", 1)));
        assert_eq!(choose_command(&["v9"]), None);
    }
}

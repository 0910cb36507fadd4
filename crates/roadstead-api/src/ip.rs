//! Addresses and networks as they are written in objects: which spellings are accepted, which
//! only tolerated, and what Kubernetes says about the others.
//!
//! Fields that are older than strict parsing (KEP-4858) accept every spelling of an IPv6 address,
//! and whatever an object already contains; newer fields want the canonical form.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use roadstead_schema::invalid::Causes;
use serde_json::{Value, json};

const ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NETWORK: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// The two kinds of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// 10.0.0.1
    V4,
    /// fd00::1
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The family that objects call by this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "IPv4" => Some(Self::V4),
            "IPv6" => Some(Self::V6),
            _ => None,
        }
    }

    /// How objects call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

/// The address behind any spelling that Kubernetes has ever accepted: with zeros before the
/// numbers of IPv4, and IPv4 dressed as IPv6.
pub fn parse(text: &str) -> Option<IpAddr> {
    match text.parse::<IpAddr>() {
        Ok(address) => Some(address.to_canonical()),
        Err(_) => padded(text).map(IpAddr::V4),
    }
}

/// `010.000.0.1`, read as decimal.
fn padded(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let digits = !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
        let significant = part.trim_start_matches('0');
        *octet = match (digits, significant) {
            (false, _) => return None,
            (true, "") => 0,
            (true, number) => number.parse().ok()?,
        };
    }
    parts.next().is_none().then(|| octets.into())
}

/// Checks an address in a field that is older than strict parsing; `known` are the values the
/// object had before, which stay good. False if something is wrong.
pub fn check(field: &str, text: &str, known: &[Value], causes: &mut Causes) -> bool {
    if known.iter().any(|old| old == text) {
        return true;
    }
    let wrong = match (parse(text), text.parse::<IpAddr>()) {
        (None, _) => ADDRESS,
        (Some(_), Err(_)) => "must not have leading 0s",
        (Some(_), Ok(IpAddr::V6(v6))) if v6.to_ipv4_mapped().is_some() => {
            "must not be an IPv4-mapped IPv6 address"
        }
        _ => return true,
    };
    causes.invalid(field, &json!(text), wrong);
    false
}

/// Checks an address that must be written in the one canonical way. False if it is not.
pub(crate) fn check_canonical(field: &str, text: &str, causes: &mut Causes) -> bool {
    if !check(field, text, &[], causes) {
        return false;
    }
    let canonical = parse(text).map(|address| address.to_string()).unwrap_or_default();
    if canonical != text {
        let wrong = format!("must be in canonical form ({canonical:?})");
        causes.invalid(field, &json!(text), wrong);
    }
    canonical == text
}

/// Checks that traffic to an address can reach another machine. What is not an address at all is
/// wrong here too.
pub(crate) fn check_reachable(field: &str, text: &str, causes: &mut Causes) {
    let mut wrong = |why: &str| causes.invalid(field, &json!(text), why);
    let Some(address) = parse(text) else {
        wrong("must be a valid IP address");
        return;
    };
    if address.is_unspecified() {
        wrong(&format!("may not be unspecified ({text})"));
    }
    if address.is_loopback() {
        wrong("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (link_local, link_local_multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02),
    };
    if link_local {
        wrong("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if link_local_multicast {
        wrong("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// The network behind any spelling that Kubernetes has ever accepted, as it was written: the
/// address may have bits beyond the prefix.
pub fn parse_network(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let dressed = address.contains(':');
    let digits = !length.is_empty() && length.bytes().all(|c| c.is_ascii_digit());
    let length: u8 = digits.then(|| length.parse().ok()).flatten()?;
    let address = parse(address)?;
    // IPv4 dressed as IPv6 counts its prefix from the beginning of the IPv6 address.
    let length = if dressed && address.is_ipv4() { length.checked_sub(96)? } else { length };
    IpNet::new(address, length).ok()
}

/// Checks a network in a field that is older than strict parsing.
pub(crate) fn check_network(field: &str, text: &str, known: &[&str], causes: &mut Causes) -> bool {
    if known.contains(&text) {
        return true;
    }
    let strict = strict_network(text);
    let wrong = match (parse_network(text), strict) {
        (None, _) => NETWORK,
        (Some(_), None) => "must not have leading 0s in IP or prefix length",
        (Some(_), Some(IpNet::V6(v6))) if v6.addr().to_ipv4_mapped().is_some() => {
            "must not have an IPv4-mapped IPv6 address"
        }
        (Some(_), Some(net)) if net.addr() != net.network() => {
            "must not have bits set beyond the prefix length"
        }
        _ => return true,
    };
    causes.invalid(field, &json!(text), wrong);
    false
}

/// Checks a network that must be written in the one canonical way.
pub(crate) fn check_canonical_network(field: &str, text: &str, causes: &mut Causes) {
    if !check_network(field, text, &[], causes) {
        return;
    }
    let canonical = parse_network(text).map(|net| net.to_string()).unwrap_or_default();
    if canonical != text {
        let wrong = format!("must be in canonical form ({canonical:?})");
        causes.invalid(field, &json!(text), wrong);
    }
}

/// The network, if no number in it begins with a superfluous zero.
fn strict_network(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let padded = length.len() > 1 && length.starts_with('0');
    let address: IpAddr = address.parse().ok()?;
    IpNet::new(address, length.parse().ok()?).ok().filter(|_| !padded)
}

/// What to tell the author of an address that is accepted, but written in an unusual way.
pub fn warning(field: &str, text: &str) -> Option<String> {
    let address = parse(text)?;
    let canonical = address.to_string();
    if canonical == text {
        return None;
    }
    Some(match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_none() => format!(
            "{field}: IPv6 address {text:?} should be in RFC 5952 canonical format ({canonical:?})"
        ),
        _ => format!("{field}: non-standard IP address {text:?} is invalid: use {canonical:?}"),
    })
}

/// What to tell the author of a network that is accepted, but written in an unusual way.
pub(crate) fn network_warnings(field: &str, text: &str) -> Vec<String> {
    let Some(net) = parse_network(text) else { return Vec::new() };
    let mut all = Vec::new();
    let plain = net.trunc();
    if net.addr() != plain.addr() {
        let single = format!("{}/{}", net.addr(), net.max_prefix_len());
        all.push(format!(
            "{field}: CIDR value {text:?} is ambiguous in this context (should be \"{plain}\" or \
             {single:?}?)"
        ));
    }
    let strict = strict_network(text);
    let dressed = matches!(strict, Some(IpNet::V6(v6)) if v6.addr().to_ipv4_mapped().is_some());
    if strict.is_none() || dressed {
        all.push(format!("{field}: non-standard CIDR value {text:?} is invalid: use \"{plain}\""));
    }
    if all.is_empty() && net.to_string() != text {
        all.push(format!(
            "{field}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{net}\")"
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<T>(check: impl Fn(&mut Causes) -> T) -> String {
        let mut causes = Causes::default();
        check(&mut causes);
        causes.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn addresses() {
        let invalid = |text: &str, why: &str| format!("f: Invalid value: {text:?}: {why}");
        for (text, want) in [
            ("10.96.0.9", ""),
            ("FD00:0::1", ""),
            ("fd00::1", ""),
            ("", ADDRESS),
            ("none", ADDRESS),
            ("10.96.0", ADDRESS),
            ("10.96.0.256", ADDRESS),
            ("10.96.123.456", ADDRESS),
            ("fe80::1%eth0", ADDRESS),
            ("010.96.0.9", "must not have leading 0s"),
            ("::ffff:1.2.3.4", "must not be an IPv4-mapped IPv6 address"),
        ] {
            let want = if want.is_empty() { String::new() } else { invalid(text, want) };
            assert_eq!(said(|causes| check("f", text, &[], causes)), want, "{text}");
            // What was there before stays good.
            assert_eq!(said(|causes| check("f", text, &[json!(text)], causes)), "", "{text}");
        }
        let canonical = invalid("FD00:0::1", "must be in canonical form (\"fd00::1\")");
        assert_eq!(said(|causes| check_canonical("f", "FD00:0::1", causes)), canonical);
    }

    #[test]
    fn addresses_that_lead_nowhere() {
        for (text, want) in [
            ("10.0.0.1", ""),
            ("224.0.1.1", ""),
            ("web.example", "must be a valid IP address"),
            ("0.0.0.0", "may not be unspecified (0.0.0.0)"),
            ("::", "may not be unspecified (::)"),
            ("127.0.0.1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
            ("::1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
            ("169.254.1.1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
            ("fe80::1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
            ("224.0.0.9", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
            ("ff02::9", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
        ] {
            let want = match want {
                "" => String::new(),
                why => format!("f: Invalid value: {text:?}: {why}"),
            };
            assert_eq!(said(|causes| check_reachable("f", text, causes)), want, "{text}");
        }
    }

    #[test]
    fn networks() {
        for (text, want) in [
            ("10.0.0.0/8", ""),
            ("FD00::/64", ""),
            ("1.2.3.4", NETWORK),
            ("10.0.0.0/33", NETWORK),
            ("10.0.0.0/", NETWORK),
            ("010.0.0.0/8", "must not have leading 0s in IP or prefix length"),
            ("10.0.0.0/08", "must not have leading 0s in IP or prefix length"),
            ("::ffff:10.0.0.0/104", "must not have an IPv4-mapped IPv6 address"),
            ("10.0.0.1/8", "must not have bits set beyond the prefix length"),
        ] {
            let want = match want {
                "" => String::new(),
                why => format!("f: Invalid value: {text:?}: {why}"),
            };
            assert_eq!(said(|causes| check_network("f", text, &[], causes)), want, "{text}");
        }
        assert_eq!(
            said(|causes| check_canonical_network("f", "FD00::/64", causes)),
            "f: Invalid value: \"FD00::/64\": must be in canonical form (\"fd00::/64\")"
        );
    }

    #[test]
    fn unusual_spellings_are_worth_a_warning() {
        for (text, want) in [
            ("10.0.0.1", None),
            ("fd00::1", None),
            (
                "FD00:0::1",
                Some(
                    "f: IPv6 address \"FD00:0::1\" should be in RFC 5952 canonical format \
                     (\"fd00::1\")",
                ),
            ),
            (
                "010.0.0.1",
                Some("f: non-standard IP address \"010.0.0.1\" is invalid: use \"10.0.0.1\""),
            ),
            (
                "::ffff:1.2.3.4",
                Some("f: non-standard IP address \"::ffff:1.2.3.4\" is invalid: use \"1.2.3.4\""),
            ),
        ] {
            assert_eq!(warning("f", text).as_deref(), want, "{text}");
        }
        for (text, want) in [
            ("10.0.0.0/8", ""),
            (
                "10.0.0.1/8",
                "f: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \
                 \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
            ),
            (
                "010.0.0.0/8",
                "f: non-standard CIDR value \"010.0.0.0/8\" is invalid: use \"10.0.0.0/8\"",
            ),
            (
                "FD00::/64",
                "f: IPv6 CIDR value \"FD00::/64\" should be in RFC 5952 canonical format \
                 (\"fd00::/64\")",
            ),
        ] {
            assert_eq!(network_warnings("f", text).join("\n"), want, "{text}");
        }
    }
}

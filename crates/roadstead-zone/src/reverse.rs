//! The names below `in-addr.arpa` and `ip6.arpa`.

use std::net::IpAddr;

use crate::name::{find_suffix, labels};

const V4: &[u8] = b"\x07in-addr\x04arpa\0";
const V6: &[u8] = b"\x03ip6\x04arpa\0";

/// Where the reverse zone begins within a name, if it is in one.
pub(crate) fn zone_at(name: &[u8]) -> Option<usize> {
    find_suffix(name, V4).or_else(|| find_suffix(name, V6))
}

/// The address that a name below `in-addr.arpa` or `ip6.arpa` stands for.
pub fn address(name: &[u8]) -> Option<IpAddr> {
    let number = |label: &[u8], radix| {
        let canonical = label.len() == 1 || label[0] != b'0';
        let digits = label.iter().all(u8::is_ascii_alphanumeric) && canonical;
        u8::from_str_radix(str::from_utf8(label).ok().filter(|_| digits)?, radix).ok()
    };
    if let Some(at) = find_suffix(name, V4) {
        let mut octets = [0; 4];
        let mut labels = labels(&name[..at]);
        for octet in octets.iter_mut().rev() {
            *octet = number(labels.next()?, 10)?;
        }
        return labels.next().is_none().then(|| octets.into());
    }
    let at = find_suffix(name, V6)?;
    let mut octets = [0; 16];
    let mut labels = labels(&name[..at]);
    for octet in octets.iter_mut().rev() {
        let (low, high) = (labels.next()?, labels.next()?);
        if low.len() != 1 || high.len() != 1 {
            return None;
        }
        *octet = (number(high, 16)? << 4) | number(low, 16)?;
    }
    labels.next().is_none().then(|| octets.into())
}

//! The names below `in-addr.arpa` and `ip6.arpa`.

use std::net::IpAddr;

use crate::name::{find_suffix, labels};
use crate::prefixes::Prefix;

const V4: &[u8] = b"\x07in-addr\x04arpa\0";
const V6: &[u8] = b"\x03ip6\x04arpa\0";

/// Where the reverse zone begins within a name, if it is in one.
pub(crate) fn zone_at(name: &[u8]) -> Option<usize> {
    find_suffix(name, V4).or_else(|| find_suffix(name, V6))
}

/// The address that a name below `in-addr.arpa` or `ip6.arpa` stands for.
pub fn address(name: &[u8]) -> Option<IpAddr> {
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
        *octet = (number(high, 16)? << 4) | number(low, 16)?;
    }
    labels.next().is_none().then(|| octets.into())
}

/// The beginning of addresses that a name below `in-addr.arpa` or `ip6.arpa` stands for.
pub(crate) fn prefix(name: &[u8]) -> Option<Prefix> {
    let v4 = find_suffix(name, V4);
    let at = v4.or_else(|| find_suffix(name, V6))?;
    let (radix, longest) = if v4.is_some() { (10, 3) } else { (16, 31) };
    // From right to left, because that is how an address begins.
    let mut parts = [0; 31];
    let mut count = 0;
    for label in labels(&name[..at]) {
        *parts.get_mut(count).filter(|_| count < longest)? = number(label, radix)?;
        count += 1;
    }
    let parts = parts[..count].iter().rev();
    Some(parts.fold(Prefix::none(v4.is_some()), |prefix, part| prefix.with(*part)))
}

/// One part of an address, as it is written: an octet, or half of one.
fn number(label: &[u8], radix: u32) -> Option<u8> {
    let canonical = label.len() == 1 || (radix == 10 && label[0] != b'0');
    let digits = label.iter().all(u8::is_ascii_alphanumeric) && canonical;
    u8::from_str_radix(str::from_utf8(label).ok().filter(|_| digits)?, radix).ok()
}

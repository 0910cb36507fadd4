//! The formats of strings that CustomResourceDefinitions may ask for; others are not checked.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether a text is of a format.
pub(super) fn is_valid(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => is_duration(text),
        "byte" => is_base64(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => text.parse::<ipnet::IpNet>().is_ok(),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text),
        "uri" => is_uri(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        _ => true,
    }
}

/// Numbers with units, as Go reads them: `1h30m`, `1.5s`, `-2ms`.
fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 15] = [
        "ns", "us", "µs", "ms", "s", "m", "h", "d", "w", "sec", "min", "hr", "hour", "day", "week",
    ];
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let mut parts = 0;
    while !rest.is_empty() {
        let number = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let digits = &rest[..rest.len() - number.len()];
        let after = number.trim_start_matches(char::is_alphabetic);
        let unit = &number[..number.len() - after.len()];
        if digits.parse::<f64>().is_err() || !UNITS.contains(&unit) {
            return false;
        }
        rest = after;
        parts += 1;
    }
    parts > 0
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    text.len().is_multiple_of(4) && text.len() - body.len() <= 2 && body.bytes().all(letter)
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_mac(text: &str) -> bool {
    let separator = if text.contains('-') { '-' } else { ':' };
    let parts: Vec<_> = text.split(separator).collect();
    matches!(parts.len(), 6 | 8 | 20) && parts.iter().all(|part| part.len() == 2 && is_hex(part))
}

fn is_uuid(text: &str) -> bool {
    let lengths = [8, 4, 4, 4, 12];
    let parts: Vec<_> = text.split('-').collect();
    parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, length)| part.len() == length && is_hex(part))
}

/// An absolute URI or an absolute path.
fn is_uri(text: &str) -> bool {
    let plain = |c: char| !c.is_whitespace() && !c.is_control();
    let scheme_letter = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let absolute = text.split_once(':').is_some_and(|(scheme, rest)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(scheme_letter)
            && !rest.is_empty()
    });
    text.chars().all(plain) && (absolute || text.starts_with('/'))
}

fn is_email(text: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && !part.contains(char::is_whitespace);
    text.rsplit_once('@').is_some_and(|(user, host)| plain(user) && is_hostname(host))
}

fn is_hostname(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(|c| c.is_alphanumeric() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 255 && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

#[test]
fn formats() {
    let cases = [
        ("date-time", "2026-01-01T00:00:00Z 2026-01-01T00:00:00.5+02:00", "2026-01-01 x"),
        ("date", "2026-01-31", "2026-02-30 20260101"),
        ("duration", "1h30m 1.5s -2ms 0", "1 h 1x 1h-"),
        ("byte", "YQ== YWI= YWJj", "YQ= Y Y*=="),
        ("ipv4", "10.0.0.1", "10.0.0 ::1"),
        ("ipv6", "::1", "10.0.0.1 :"),
        ("cidr", "10.0.0.0/8 fd00::/8", "10.0.0.0 10.0.0.0/33"),
        ("mac", "00:1a:2B:3c:4d:5e", "00:1a:2B:3c:4d 00-1a:2b:3c:4d:5e"),
        ("uuid", "5f8a2a0e-7a52-4a52-9d1c-3f3d9b9d6a11", "5f8a2a0e7a524a529d1c3f3d9b9d6a11 x"),
        ("uri", "http://a/b /a urn:x", "a http: 1:b"),
        ("email", "a@b.c", "a @b a@-"),
        ("hostname", "a a.b-c.d", "-a a..b a_b"),
        ("anything", "x", ""),
    ];
    for (format, valid, invalid) in cases {
        for text in valid.split_whitespace() {
            assert!(is_valid(format, text), "{format} {text}");
        }
        for text in invalid.split_whitespace() {
            assert!(!is_valid(format, text), "{format} {text}");
        }
    }
}

//! Domain names in wire form: a length before each label, and a zero at the end.

use std::fmt;

/// The longest name the protocol allows.
pub const MAX_LENGTH: usize = 255;
const MAX_LABEL: usize = 63;

/// A complete domain name that owns its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Name {
    wire: Box<[u8]>,
}

impl Name {
    /// Whether both are the same name, whatever the case of their letters.
    pub fn is(&self, other: &Self) -> bool {
        self.wire().eq_ignore_ascii_case(other.wire())
    }

    /// Reads dotted text; the dot at the end is optional. Letters keep their case.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let mut wire = Vec::with_capacity(text.len() + 2);
        for label in text.split('.').filter(|_| !text.is_empty()) {
            if label.is_empty() || label.len() > MAX_LABEL {
                return None;
            }
            wire.push(u8::try_from(label.len()).ok()?);
            wire.extend(label.as_bytes());
        }
        wire.push(0);
        (wire.len() <= MAX_LENGTH).then(|| Self { wire: wire.into() })
    }

    /// Takes a name in wire form, with the zero at the end.
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let length: usize = labels(wire).map(|label| label.len() + 1).sum();
        let complete = length + 1 == wire.len() && wire.last() == Some(&0);
        (complete && wire.len() <= MAX_LENGTH).then(|| Self { wire: wire.into() })
    }

    /// The same name with small letters, for comparing.
    pub fn to_lowercase(&self) -> Self {
        Self { wire: self.wire.to_ascii_lowercase().into() }
    }

    /// The bytes, with the zero at the end.
    pub fn wire(&self) -> &[u8] {
        &self.wire
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for label in labels(&self.wire) {
            write!(f, "{}.", String::from_utf8_lossy(label))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The labels of a name in wire form, from left to right. Stops at the end or at nonsense.
pub fn labels(wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = wire;
    std::iter::from_fn(move || {
        let (length, tail) = rest.split_first()?;
        let length = usize::from(*length);
        if length == 0 || length > MAX_LABEL {
            return None;
        }
        let (label, tail) = tail.split_at_checked(length)?;
        rest = tail;
        Some(label)
    })
}

/// Where `suffix` begins within `name`, if `name` is it or below it. Both in small letters.
pub fn find_suffix(name: &[u8], suffix: &[u8]) -> Option<usize> {
    let at = name.len().checked_sub(suffix.len())?;
    if name[at..] != *suffix {
        return None;
    }
    // Everything is below the root.
    if suffix.len() == 1 {
        return Some(at);
    }
    // The bytes are the same, but they may begin in the middle of a label.
    let mut start = 0;
    while start < at {
        start += 1 + usize::from(*name.get(start)?);
    }
    (start == at).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes() {
        let cases = [
            ("a.cluster.local", "cluster.local", Some(2)),
            ("cluster.local", "cluster.local", Some(0)),
            ("xcluster.local", "cluster.local", None),
            ("local", "cluster.local", None),
            ("a.b.c", "", Some(6)),
        ];
        for (name, suffix, want) in cases {
            let (name, suffix) = (Name::parse(name).unwrap(), Name::parse(suffix).unwrap());
            assert_eq!(find_suffix(name.wire(), suffix.wire()), want, "{name} {suffix}");
        }
    }

    #[test]
    fn text() {
        assert_eq!(Name::parse("a.B.").unwrap().to_string(), "a.B.");
        assert_eq!(Name::parse("").unwrap().wire(), [0]);
        for bad in ["a..b", ".a", &"x".repeat(64), &"abc.".repeat(64)] {
            assert!(Name::parse(bad).is_none(), "{bad}");
        }
    }
}

//! DNS messages, as far as a small client needs them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What to ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    A = 1,
    Ptr = 12,
    Aaaa = 28,
}

const CNAME: u16 = 5;

/// One record of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    Address(IpAddr),
    Alias(String),
    Pointer(String),
}

/// What a server said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reply {
    /// 0 is success, 3 that there is no such name.
    pub(super) code: u8,
    pub(super) truncated: bool,
    pub(super) records: Vec<(String, Data)>,
}

/// Writes a question.
pub(super) fn question(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let mut message = Vec::with_capacity(32 + name.len());
    message.extend(id.to_be_bytes());
    // Recursion desired; one question.
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..64).contains(length))?;
        message.push(length);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend((kind as u16).to_be_bytes());
    message.extend(1u16.to_be_bytes());
    Some(message)
}

/// Reads a reply to the question with this id; `None` if it is not one.
pub(super) fn parse(id: u16, message: &[u8]) -> Option<Reply> {
    let mut at = Cursor { message, at: 0 };
    let (got, flags) = (at.number()?, at.number()?);
    if got != id || flags & 0x8000 == 0 {
        return None;
    }
    let (questions, answers) = (at.number()?, at.number()?);
    at.skip(4)?;
    for _ in 0..questions {
        at.name()?;
        at.skip(4)?;
    }
    let mut reply =
        Reply { code: (flags & 0xf) as u8, truncated: flags & 0x0200 != 0, records: Vec::new() };
    for _ in 0..answers {
        // A truncated message may end within a record: what came before it counts.
        let Some(record) = at.record() else { break };
        reply.records.extend(record);
    }
    Some(reply)
}

struct Cursor<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn skip(&mut self, count: usize) -> Option<&'a [u8]> {
        let bytes = self.message.get(self.at..self.at + count)?;
        self.at += count;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u16> {
        self.skip(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a name, following pointers to earlier parts of the message.
    fn name(&mut self) -> Option<String> {
        let mut labels = Vec::new();
        let mut after = None;
        for _ in 0..128 {
            let length = usize::from(self.skip(1)?[0]);
            if length & 0xc0 == 0xc0 {
                let low = usize::from(self.skip(1)?[0]);
                after.get_or_insert(self.at);
                self.at = (length & 0x3f) << 8 | low;
            } else if length == 0 {
                self.at = after.unwrap_or(self.at);
                return Some(labels.join("."));
            } else {
                labels.push(String::from_utf8_lossy(self.skip(length)?).into_owned());
            }
        }
        None
    }

    /// Reads a record; the inner `None` is one of a kind that we do not know.
    fn record(&mut self) -> Option<Option<(String, Data)>> {
        let name = self.name()?;
        let kind = self.number()?;
        self.skip(6)?;
        let length = usize::from(self.number()?);
        let end = self.at + length;
        let data = match kind {
            1 => {
                let bytes: [u8; 4] = self.skip(4)?.try_into().ok()?;
                Some(Data::Address(Ipv4Addr::from(bytes).into()))
            }
            28 => {
                let bytes: [u8; 16] = self.skip(16)?.try_into().ok()?;
                Some(Data::Address(Ipv6Addr::from(bytes).into()))
            }
            12 => Some(Data::Pointer(self.name()?)),
            CNAME => Some(Data::Alias(self.name()?)),
            _ => None,
        };
        self.at = end;
        Some(data.map(|data| (name, data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_with_pointers() {
        let mut message = question(7, "web.example", Kind::A).unwrap();
        assert!(parse(7, &message).is_none(), "a question is not a reply");
        message[2] = 0x81;
        message[7] = 2;
        // An alias to `www.example`, then its address; both names point back into the message.
        let question_name = [0xc0, 12];
        message.extend(question_name);
        message.extend([0, 5, 0, 1, 0, 0, 0, 5, 0, 6, 3, b'w', b'w', b'w', 0xc0, 16]);
        let alias = (message.len() - 6) as u8;
        message.extend([0xc0, alias, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 192, 0, 2, 1]);
        let reply = parse(7, &message).unwrap();
        let want = [
            ("web.example".to_owned(), Data::Alias("www.example".into())),
            ("www.example".to_owned(), Data::Address([192, 0, 2, 1].into())),
        ];
        assert_eq!((reply.code, reply.records.as_slice()), (0, want.as_slice()));
        assert!(parse(8, &message).is_none(), "somebody else's reply");
        for cut in 0..message.len() {
            let _ = parse(7, &message[..cut]);
        }
    }

    #[test]
    fn names_that_cannot_be_asked_for() {
        for name in ["", "a..b", &"x".repeat(64)] {
            assert!(question(1, name, Kind::A).is_none(), "{name:?}");
        }
    }
}

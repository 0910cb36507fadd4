//! Capital letters in the names that we ask for, by chance. A server repeats them, and an impostor has
//! to guess them besides the identifier and the port (draft-vixie-dnsext-dns0x20).

use crate::message::{HEADER_LENGTH, Query};

/// A question with letters chosen by chance.
#[derive(Debug)]
pub struct SpelledQuestion {
    /// As it was meant.
    pub plain: Vec<u8>,
    /// As it is sent.
    pub spelled: Vec<u8>,
    /// Where its name ends.
    end: usize,
}

impl SpelledQuestion {
    /// Chooses letters; `chance` gives sixteen bits at a time.
    pub fn new(plain: Vec<u8>, mut chance: impl FnMut() -> u16) -> Self {
        let end = Query::parse(&plain).map_or(HEADER_LENGTH, |query| query.question_end - 4);
        let mut spelled = plain.clone();
        let (mut bits, mut left) = (0, 0);
        // The lengths of labels are too small to be letters.
        for byte in spelled[HEADER_LENGTH..end].iter_mut().filter(|byte| byte.is_ascii_lowercase())
        {
            if left == 0 {
                (bits, left) = (chance(), u16::BITS);
            }
            if bits & 1 == 1 {
                byte.make_ascii_uppercase();
            }
            (bits, left) = (bits >> 1, left - 1);
        }
        Self { plain, spelled, end }
    }

    /// Whether a reply that belongs to the question repeats its letters.
    pub fn is_repeated(&self, reply: &[u8]) -> bool {
        reply.get(HEADER_LENGTH..self.end) == self.spelled.get(HEADER_LENGTH..self.end)
    }

    /// A reply to it, with the letters that were meant.
    pub fn restored(&self, mut reply: Vec<u8>) -> Vec<u8> {
        if let Some(name) = reply.get_mut(HEADER_LENGTH..self.end) {
            name.copy_from_slice(&self.plain[HEADER_LENGTH..self.end]);
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::QuestionKey;
    use crate::upstream::question::query;
    use roadstead_zone::name::Name;

    #[test]
    fn letters_come_and_go() {
        let name = Name::parse("www.a-1.example.org").unwrap().wire().into();
        let plain = query(&QuestionKey { name, kind: 1, dnssec: false, unchecked: false }, 7);
        let question = SpelledQuestion::new(plain.clone(), || 0b0101_0101_0101_0101);
        let text = Name::from_wire(&question.spelled[HEADER_LENGTH..question.end]).unwrap();
        assert_eq!(text.to_string(), "WwW.a-1.ExAmPlE.oRg.");
        assert_eq!(question.spelled[question.end..], plain[question.end..]);
        assert!(question.is_repeated(&question.spelled) && !question.is_repeated(&plain));
        assert_eq!(question.restored(question.spelled.clone()), plain);
    }
}

//! What is given to a machine that joins: a token, and by what it knows the cluster's authority.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use roadstead_plan::bootstrap_token::TokenText;

/// How texts begin that have both in them.
const VERSION: &str = "rt1";
/// How kubeadm writes the authority.
const ALGORITHM: &str = "sha256:";

/// The SHA-256 of the public key info of an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin(pub(crate) [u8; 32]);

/// A token, and the pin if it comes with one. Not shown: its secret is one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct JoinToken {
    /// `id.secret`.
    pub token: String,
    pub pin: Option<Pin>,
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("pin", &self.pin).finish_non_exhaustive()
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ALGORITHM)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not {ALGORITHM} and 64 hexadecimal digits");
        let digits = text.strip_prefix(ALGORITHM).ok_or_else(wrong)?;
        if digits.len() != 64 || !digits.is_ascii() {
            return Err(wrong());
        }
        let mut hash = [0; 32];
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(hash))
    }
}

impl JoinToken {
    /// The text for somebody who has nothing else.
    pub(crate) fn to_text(&self) -> String {
        match self.pin {
            Some(Pin(hash)) => format!("{VERSION}.{}.{}", URL_SAFE_NO_PAD.encode(hash), self.token),
            None => self.token.clone(),
        }
    }
}

impl FromStr for JoinToken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // What is wrong with a secret is not repeated.
        let wrong =
            || "this is no token: it is rt1.…, or ID.SECRET of 6 and 16 characters".to_owned();
        let text = text.trim();
        let (pin, token) = match text.strip_prefix(VERSION).and_then(|rest| rest.strip_prefix('.'))
        {
            Some(rest) => {
                let (hash, token) = rest.split_once('.').ok_or_else(wrong)?;
                let hash = URL_SAFE_NO_PAD.decode(hash).map_err(|_| wrong())?;
                (Some(Pin(hash.try_into().map_err(|_| wrong())?)), token)
            }
            None => (None, text),
        };
        TokenText::parse(token).ok_or_else(wrong)?;
        Ok(Self { token: token.to_owned(), pin })
    }
}

#[test]
fn texts() {
    let both = JoinToken { token: "abc123.0123456789abcdef".into(), pin: Some(Pin([0xfb; 32])) };
    let text = both.to_text();
    assert!(text.starts_with("rt1.-_v7-") && text.ends_with(".abc123.0123456789abcdef"), "{text}");
    assert_eq!(text.parse(), Ok(both.clone()));
    let pin = both.pin.unwrap();
    assert_eq!(pin.to_string().parse(), Ok(pin));
    let alone: JoinToken = "abc123.0123456789abcdef".parse().unwrap();
    assert_eq!(alone.pin, None);
    assert!(!format!("{alone:?}").contains("0123"), "{alone:?}");
    for wrong in ["", "rt1", "rt1.x.abc123.0123456789abcdef", "rt2.abc", "abc123.short"] {
        assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
    }
    for wrong in ["", "sha256:00", "md5:00", &format!("sha256:{}", "é".repeat(32))] {
        assert!(wrong.parse::<Pin>().is_err(), "{wrong}");
    }
}

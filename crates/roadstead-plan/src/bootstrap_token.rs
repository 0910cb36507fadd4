//! Bootstrap tokens: with which a machine that has no certificate yet asks for one. They are Secrets, as
//! upstream keeps them (`k8s.io/docs/reference/access-authn-authz/bootstrap-tokens`).

use std::collections::BTreeMap;

use jiff::Timestamp;

/// The namespace of their Secrets.
pub const NAMESPACE: &str = "kube-system";
/// The type of their Secrets.
pub const TYPE: &str = "bootstrap.kubernetes.io/token";
/// How the names of their Secrets begin; what follows is the token's id.
pub const PREFIX: &str = "bootstrap-token-";
/// The group of everybody who has one.
pub const GROUP: &str = "system:bootstrappers";

const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
/// No group is longer.
const LONGEST_GROUP: usize = 256;

/// A token as it is given to somebody: `id.secret`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenText<'a> {
    /// What everybody may know.
    pub id: &'a str,
    /// What nobody may know.
    pub secret: &'a str,
}

impl<'a> TokenText<'a> {
    /// Takes a text apart that has the form of a token.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (id, secret) = text.split_once('.')?;
        let is_plain = |text: &str, length: usize| {
            text.len() == length
                && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        (is_plain(id, ID_LENGTH) && is_plain(secret, SECRET_LENGTH)).then_some(Self { id, secret })
    }
}

/// What a Secret says of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapToken {
    /// What everybody may know.
    pub id: String,
    /// What nobody may know.
    pub secret: String,
    /// From when on it is good for nothing; `None` is never.
    pub end: Option<Timestamp>,
    /// Whether one is somebody by it.
    pub authenticates: bool,
    /// Whether what strangers are told about the cluster is signed with it.
    pub signs: bool,
    /// The groups of who has it.
    pub groups: Vec<String>,
    /// The only node that may be joined with it, if it is bound to one.
    pub node: Option<String>,
    /// What it is for, in words.
    pub description: String,
}

impl BootstrapToken {
    /// Reads a Secret of that name and type, whose values are decoded. `Err` says why it is no token.
    pub fn read(name: &str, kind: &str, data: &BTreeMap<String, String>) -> Result<Self, String> {
        let field = |name: &str| data.get(name).map_or("", String::as_str);
        if kind != TYPE {
            return Err(format!("its type is not {TYPE}"));
        }
        let text = format!("{}.{}", field("token-id"), field("token-secret"));
        if TokenText::parse(&text).is_none() {
            return Err("token-id or token-secret has not the form of one".to_owned());
        }
        if name.strip_prefix(PREFIX) != Some(field("token-id")) {
            return Err(format!("its name is not {PREFIX} and its token-id"));
        }
        let end = match field("expiration") {
            "" => None,
            // What cannot be read must not last for ever.
            text => Some(text.parse().unwrap_or(Timestamp::MIN)),
        };
        let more = field("auth-extra-groups").split(',').map(str::trim);
        let more = more.filter(|group| !group.is_empty());
        let mut groups = vec![GROUP.to_owned()];
        for group in more {
            if !is_group(group) {
                return Err(format!("auth-extra-groups has {group:?}, which is not below {GROUP}"));
            }
            groups.push(group.to_owned());
        }
        let is = |name: &str| field(name) == "true";
        Ok(Self {
            id: field("token-id").to_owned(),
            secret: field("token-secret").to_owned(),
            end,
            authenticates: is("usage-bootstrap-authentication"),
            signs: is("usage-bootstrap-signing"),
            groups,
            node: Some(field("node-name")).filter(|node| !node.is_empty()).map(str::to_owned),
            description: field("description").to_owned(),
        })
    }

    /// Whether it is good for nothing any more.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.end.is_some_and(|end| end <= now)
    }

    /// The name of its Secret.
    pub fn secret_name(&self) -> String {
        format!("{PREFIX}{}", self.id)
    }

    /// What its Secret says.
    pub fn data(&self) -> BTreeMap<String, String> {
        let bool = |is: bool| is.to_string();
        let all = [
            ("token-id", self.id.clone()),
            ("token-secret", self.secret.clone()),
            ("expiration", self.end.map_or_else(String::new, |end| end.to_string())),
            ("usage-bootstrap-authentication", bool(self.authenticates)),
            ("usage-bootstrap-signing", bool(self.signs)),
            (
                "auth-extra-groups",
                self.groups.iter().skip(1).cloned().collect::<Vec<_>>().join(","),
            ),
            ("node-name", self.node.clone().unwrap_or_default()),
            ("description", self.description.clone()),
        ];
        let all = all.into_iter().filter(|(_, value)| !value.is_empty());
        all.map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Nobody becomes anybody else by a Secret than somebody who joins.
fn is_group(group: &str) -> bool {
    let below = group.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':'));
    let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    group.len() <= LONGEST_GROUP
        && below.is_some_and(|below| {
            below.bytes().all(|byte| is_known(byte) || matches!(byte, b':' | b'-'))
                && below.bytes().last().is_some_and(is_known)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_tokens() {
        let good = TokenText::parse("abc123.0123456789abcdef").unwrap();
        assert_eq!((good.id, good.secret), ("abc123", "0123456789abcdef"));
        for wrong in [
            "",
            "abc123",
            "abc123.0123456789abcde",
            "abc123.0123456789abcdefg",
            "ABC123.0123456789abcdef",
            "abc12.0123456789abcdef",
            "abc123.0123456789abcde.",
            "eyJhbGciOi.eyJpc3MiOi.c2ln",
        ] {
            assert_eq!(TokenText::parse(wrong), None, "{wrong}");
        }
    }

    /// Reads `field=value;…`, with what a token needs at least.
    fn read(name: &str, kind: &str, more: &str) -> Result<BootstrapToken, String> {
        let least = "token-id=abc123;token-secret=0123456789abcdef;";
        let all = format!("{least}{more}");
        let fields = all.split(';').filter_map(|field| field.split_once('='));
        let data = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        BootstrapToken::read(name, kind, &data)
    }

    #[test]
    fn what_secrets_say() {
        let own = "bootstrap-token-abc123";
        for (name, kind, more, want) in [
            (own, "Opaque", "", "its type is not bootstrap.kubernetes.io/token"),
            (
                "bootstrap-token-other1",
                TYPE,
                "",
                "its name is not bootstrap-token- and its token-id",
            ),
            (own, TYPE, "token-secret=short", "token-id or token-secret has not the form of one"),
            (
                own,
                TYPE,
                "auth-extra-groups=system:masters",
                "auth-extra-groups has \"system:masters\", which is not below system:bootstrappers",
            ),
            (
                own,
                TYPE,
                "auth-extra-groups=system:bootstrappersx",
                "auth-extra-groups has \"system:bootstrappersx\", which is not below \
                 system:bootstrappers",
            ),
        ] {
            assert_eq!(read(name, kind, more).unwrap_err(), want, "{more}");
        }
        let token = read(own, TYPE, "auth-extra-groups=system:bootstrappers:a:b-c;node-name=n1");
        let token = token.unwrap();
        assert_eq!(token.groups, [GROUP, "system:bootstrappers:a:b-c"]);
        assert_eq!((token.node.as_deref(), token.authenticates), (Some("n1"), false));
        let again = BootstrapToken::read(own, TYPE, &token.data()).unwrap();
        assert_eq!(again.groups, token.groups);
    }

    #[test]
    fn tokens_end() {
        let now: Timestamp = "2026-11-19T12:00:00Z".parse().unwrap();
        for (end, want) in [
            ("", false),
            ("expiration=2026-11-19T12:00:01Z", false),
            ("expiration=2026-11-19T12:00:00Z", true),
            ("expiration=tomorrow", true),
        ] {
            let token = read("bootstrap-token-abc123", TYPE, end).unwrap();
            assert_eq!(token.is_over(now), want, "{end}");
        }
    }
}

//! What a registry says when it wants to know who asks.

use std::collections::BTreeMap;

/// A `WWW-Authenticate` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// Name and password with every request.
    Basic,
    /// A token from elsewhere.
    Bearer {
        /// Where tokens are had.
        realm: String,
        /// For which service.
        service: Option<String>,
        /// For what.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Reads a header; `None` if it is of a kind that we do not know.
    pub(super) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut parameters = parameters(rest);
        Some(Self::Bearer {
            realm: parameters.remove("realm")?,
            service: parameters.remove("service"),
            scope: parameters.remove("scope"),
        })
    }
}

/// `a="x, y",b=z`: values may be quoted, and then have commas and escaped quotes.
fn parameters(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = text.trim_start();
    while let Some((name, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        found.insert(name.trim().to_ascii_lowercase(), value);
        rest = after.trim_start().trim_start_matches(',').trim_start();
    }
    found
}

fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, &text[at + 1..]),
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        };
        let cases = [
            ("Basic realm=\"r\"", Some(Challenge::Basic)),
            (
                "Bearer realm=\"https://auth.example/token\",service=\"registry.example\",scope=\"repository:a/b:pull,push\"",
                Some(bearer(
                    "https://auth.example/token",
                    Some("registry.example"),
                    Some("repository:a/b:pull,push"),
                )),
            ),
            ("bearer realm=https://a/t, service=s", Some(bearer("https://a/t", Some("s"), None))),
            ("Bearer realm=\"a \\\"b\\\"\"", Some(bearer("a \"b\"", None, None))),
            ("Bearer service=x", None),
            ("Negotiate", None),
            ("", None),
            ("Bearer realm=\"unclosed", Some(bearer("unclosed", None, None))),
        ];
        for (header, want) in cases {
            assert_eq!(Challenge::parse(header), want, "{header}");
        }
    }
}

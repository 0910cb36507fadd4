//! What comes after the question mark.

use std::str::FromStr;

use hyper::Uri;

use super::Refusal;

/// The names and values of a query, in their order.
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn of(uri: &Uri) -> Self {
        let text = uri.query().unwrap_or_default();
        Self(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether a flag is set: `1` or `true`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some_and(|value| matches!(value, "1" | "true" | "True"))
    }

    /// The value, if there is one; an error if it cannot be read.
    pub(super) fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        let Some(value) = self.all(name).next().filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let wrong = |_| Refusal::bad(format!("invalid value {value:?} of {name}"));
        value.parse().map(Some).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let uri: Uri = "/x?command=a%20b&command=%2Fc&tty=1&stdin=true&input=0&tailLines=7&since="
            .parse()
            .unwrap();
        let query = Query::of(&uri);
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["a b", "/c"]);
        let flags = ["tty", "stdin", "input", "output"].map(|name| query.has(name));
        assert_eq!(flags, [true, true, false, false]);
        assert_eq!(query.parsed::<u64>("tailLines").unwrap(), Some(7));
        assert_eq!(query.parsed::<u64>("since").unwrap(), None);
        let refusal = query.parsed::<u64>("command").unwrap_err();
        assert_eq!(refusal.1, "invalid value \"a b\" of command");
    }
}

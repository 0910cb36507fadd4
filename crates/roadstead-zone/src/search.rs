//! How a client's resolver turns what a program asks for into questions.
//!
//! A resolver with a search list tries one name after the other until one exists. Whoever knows
//! the list and sees the first try can tell what will be tried next, and so where it will end.
//! Here is only which names those are; what they hold is for others to find out.

use crate::name::{MAX_LENGTH, Name, find_suffix, labels};
use crate::zone::Zone;

/// The root, which is put behind a name that is tried as it is.
const ROOT: &[u8] = &[0];

/// A search list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchList {
    /// What is put behind a name, in small letters; never empty.
    domains: Vec<Name>,
    /// A name with so many dots is tried as it is first.
    dots: usize,
}

impl SearchList {
    /// Reads a list; `None` if it is empty or one of its domains is no name.
    pub fn new(domains: &[String], dots: usize) -> Option<Self> {
        let domains = domains.iter().map(|domain| Some(Name::parse(domain)?.to_lowercase()));
        let domains: Vec<_> = domains.collect::<Option<_>>()?;
        (!domains.is_empty()).then_some(Self { domains, dots })
    }

    /// Where the first domain of the list begins within a name, if there is something before it.
    pub fn first_try(&self, name: &[u8]) -> Option<usize> {
        find_suffix(name, self.domains[0].wire()).filter(|at| *at > 0)
    }

    /// What is put behind `base` after the first try, in order; `None` if the list does not come
    /// first for such a name, or a try would be too long for a name.
    pub fn rest<'a>(&'a self, base: &[u8]) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
        let dots = labels(base).count().saturating_sub(1);
        let longest = self.domains.iter().map(|domain| domain.wire().len()).max()?;
        let fits = base.len() + longest <= MAX_LENGTH;
        (fits && dots < self.dots).then(|| self.behind())
    }

    fn behind(&self) -> impl Iterator<Item = &[u8]> {
        self.domains[1..].iter().map(Name::wire).chain([ROOT])
    }

    /// The longer names whose later tries are the first try of `base`. Both look the same, so it
    /// takes memory to tell them apart: the first try of the longer name came shortly before.
    pub fn longer<'a>(&'a self, base: &'a [u8]) -> impl Iterator<Item = Vec<u8>> + 'a {
        let first = [base, self.domains[0].wire()].concat();
        self.behind().filter_map(move |domain| {
            let at = find_suffix(&first, domain).filter(|at| *at > base.len())?;
            Some(first[..at].to_vec())
        })
    }

    /// Whether a later try for `base` looks like the first try of a shorter name of at least two
    /// labels.
    pub fn is_ambiguous(&self, base: &[u8]) -> bool {
        let mut buffer = [0; 2 * MAX_LENGTH];
        self.behind().any(|domain| {
            let length = base.len() + domain.len();
            let Some(name) = buffer.get_mut(..length) else { return false };
            name[..base.len()].copy_from_slice(base);
            name[base.len()..].copy_from_slice(domain);
            self.first_try(name).is_some_and(|at| labels(&name[..at]).count() > 1)
        })
    }
}

impl Zone {
    /// Whether what comes before the namespace in `name`, which begins at `base`, can only come from
    /// a search list: in full it would be the name of nothing in that namespace.
    ///
    /// One label may be a Service that does not exist yet. More may be something below a Service,
    /// so there must be no such Service; and with underscores they may be a port of it.
    pub fn is_out_of_place(&self, name: &[u8], base: usize) -> bool {
        let Some(before) = name.get(..base) else { return false };
        let (mut at, mut service, mut count) = (0, 0, 0);
        for label in labels(before) {
            if label.starts_with(b"_") {
                return false;
            }
            (service, at, count) = (at, at + 1 + label.len(), count + 1);
        }
        let namespace = name.get(base).map_or(0, |length| usize::from(*length) + 1);
        let key = name.get(service..base + namespace);
        let exists = key.and_then(|key| self.entry(key)).is_some_and(|entry| entry.exists());
        count > 1 && !exists
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;
    use crate::settings::ZoneSettings;
    use crate::zone::Keeper;
    use serde_json::json;

    fn search() -> SearchList {
        let domains = ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp"];
        SearchList::new(&domains.map(str::to_owned), 5).unwrap()
    }

    fn wire(text: &str) -> Vec<u8> {
        Name::parse(text).unwrap().wire().to_vec()
    }

    fn text(wire: &[u8]) -> String {
        Name::from_wire(wire).unwrap().to_string()
    }

    #[test]
    fn the_tries_that_follow() {
        let search = search();
        let rest = "svc.cluster.local. cluster.local. corp. ";
        let cases = [
            ("www.example.com.shop.svc.cluster.local", Some(("www.example.com.", Some(rest)))),
            ("web.shop.svc.cluster.local", Some(("web.", Some(rest)))),
            ("a.b.c.d.e.shop.svc.cluster.local", Some(("a.b.c.d.e.", Some(rest)))),
            ("a.b.c.d.e.f.shop.svc.cluster.local", Some(("a.b.c.d.e.f.", None))),
            ("www.example.com.svc.cluster.local", None),
            ("www.example.com.other.svc.cluster.local", None),
            ("shop.svc.cluster.local", None),
        ];
        for (name, want) in cases {
            let name = wire(name);
            let got = search.first_try(&name).map(|at| {
                let rest = search.rest(&name[..at]);
                let rest = rest.map(|rest| rest.map(|domain| text(domain) + " ").collect());
                (text(&[&name[..at], ROOT].concat()), rest)
            });
            let want = want
                .map(|(base, rest)| (base.to_owned(), rest.map(|rest: &str| format!("{rest} "))));
            assert_eq!(got, want, "{}", text(&name));
        }
    }

    #[test]
    fn too_long_to_try() {
        let search = search();
        let long = wire(&format!("{}.{}", ["abcdefghi"; 22].join("."), "ab"));
        let base = &long[..long.len() - 1];
        assert!(search.rest(base).is_none());
        assert!(SearchList::new(&["a..b".into()], 5).is_none());
        assert!(SearchList::new(&[], 5).is_none());
    }

    #[test]
    fn names_that_look_like_others() {
        let search = search();
        let cases = [
            ("www.example.com", false),
            ("web.shop", false),
            ("www.example.com.shop", true),
            ("www.example.com.shop.svc", true),
            ("www.example.com.shop.svc.cluster.local", true),
        ];
        for (name, want) in cases {
            let base = wire(name);
            let base = &base[..base.len() - 1];
            assert_eq!(search.is_ambiguous(base), want, "{name}");
        }
        let base = wire("www.example.com");
        let longer = search.longer(&base[..base.len() - 1]);
        let longer: Vec<_> = longer.map(|name| text(&[&name, ROOT].concat())).collect();
        let all = ["", "svc.", "svc.cluster.local."];
        assert_eq!(longer, all.map(|more| format!("www.example.com.shop.{more}")));
    }

    #[test]
    fn names_that_are_out_of_place() {
        let mut keeper =
            Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1, Seed::new(1));
        let db = json!({"metadata": {"namespace": "shop", "name": "db"}, "spec": {"clusterIPs": ["None"]}});
        keeper.observe_service(&serde_json::from_value(db).unwrap());
        keeper.set_synced();
        let cases = [
            ("www.example.com", true),
            ("example.com", true),
            ("db-0.db", false),
            ("db-0.other", true),
            ("a.b.db", false),
            ("redis", false),
            ("_http._tcp.db", false),
            ("zone.pin._zone.db", false),
        ];
        for (base, want) in cases {
            let name = wire(&format!("{base}.shop.svc.cluster.local"));
            assert_eq!(keeper.zone().is_out_of_place(&name, base.len() + 1), want, "{base}");
        }
    }
}

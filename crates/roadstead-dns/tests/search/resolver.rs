//! Resolvers as programs have them, rebuilt from what they do: which names they try, what they
//! send for each, and when they stop.

use std::collections::BTreeSet;

/// Whose resolver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Goes on after a name without data; tries the list after a name with many dots, too. Go and
    /// c-ares do the same.
    Glibc,
    /// Stops at a name that exists; does not use the list for a name with many dots.
    Musl,
}

/// What a reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Addresses(BTreeSet<String>),
    NoData,
    NoName,
}

/// What a program gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Addresses(BTreeSet<String>),
    NoData,
    NoName,
}

pub const SEARCHES: [&str; 4] =
    ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp"];
pub const DOTS: usize = 5;

/// The names that are tried, in order.
fn tries(style: Style, name: &str) -> Vec<String> {
    if let Some(full) = name.strip_suffix('.') {
        return vec![full.into()];
    }
    let searched = SEARCHES.iter().map(|domain| format!("{name}.{domain}"));
    let many = name.matches('.').count() >= DOTS;
    let as_it_is = [name.to_owned()];
    match (many, style) {
        (true, Style::Musl) => as_it_is.into(),
        (true, Style::Glibc) => as_it_is.into_iter().chain(searched).collect(),
        (false, _) => searched.chain(as_it_is).collect(),
    }
}

/// Looks a name up; returns what the program gets, and how many names were asked about.
pub fn look_up(
    style: Style,
    kinds: &[u16],
    name: &str,
    mut ask: impl FnMut(&str, u16) -> Said,
) -> (Outcome, usize) {
    let mut no_data = false;
    let tries = tries(style, name);
    for (at, one) in tries.iter().enumerate() {
        let said: Vec<Said> = kinds.iter().map(|kind| ask(one, *kind)).collect();
        let mut found = BTreeSet::new();
        for said in &said {
            if let Said::Addresses(addresses) = said {
                found.extend(addresses.iter().cloned());
            }
        }
        if !found.is_empty() {
            return (Outcome::Addresses(found), at + 1);
        }
        // Musl looks at the first reply only.
        if style == Style::Musl && said[0] == Said::NoData {
            return (Outcome::NoData, at + 1);
        }
        no_data |= said.contains(&Said::NoData);
    }
    (if no_data { Outcome::NoData } else { Outcome::NoName }, tries.len())
}

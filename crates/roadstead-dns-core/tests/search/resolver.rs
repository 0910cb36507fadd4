//! Resolvers as programs have them, rebuilt from what they do: which names they try, what they
//! send for each, and when they stop.

use std::collections::BTreeSet;

/// Whose resolver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Goes on after a name without data, but not after an alias without data; tries the list after a
    /// name with many dots, too. Go and c-ares do the same.
    Glibc,
    /// Stops at a name that exists; does not use the list for a name with many dots.
    Musl,
    /// From version 1.2.4 on: goes on if the name does not exist in one of the families.
    NewMusl,
}

pub(crate) const STYLES: [Style; 3] = [Style::Glibc, Style::Musl, Style::NewMusl];

/// What a reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Addresses(BTreeSet<String>),
    /// Only that it is an alias.
    Alias,
    NoData,
    NoName,
}

/// What a program gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Addresses(BTreeSet<String>),
    NoData,
    NoName,
}

pub(crate) const SEARCHES: [&str; 4] =
    ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp"];
pub(crate) const DOTS: usize = 5;

/// The names that are tried, in order.
fn tries(style: Style, name: &str) -> Vec<String> {
    if let Some(full) = name.strip_suffix('.') {
        return vec![full.into()];
    }
    let searched = SEARCHES.iter().map(|domain| format!("{name}.{domain}"));
    let many = name.matches('.').count() >= DOTS;
    let as_it_is = [name.to_owned()];
    match (many, style) {
        (true, Style::Musl | Style::NewMusl) => as_it_is.into(),
        (true, Style::Glibc) => as_it_is.into_iter().chain(searched).collect(),
        (false, _) => searched.chain(as_it_is).collect(),
    }
}

/// Looks a name up; returns what the program gets, and how many names were asked about.
pub(crate) fn look_up(
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
        let missing = style == Style::NewMusl && said.contains(&Said::NoName);
        if !found.is_empty() && !missing {
            return (Outcome::Addresses(found), at + 1);
        }
        let no_data_here = |said: &Said| matches!(said, Said::NoData | Said::Alias);
        let stops = match style {
            Style::Glibc => said.contains(&Said::Alias),
            // It looks at the first reply only.
            Style::Musl => no_data_here(&said[0]),
            Style::NewMusl => !missing,
        };
        if stops {
            return (Outcome::NoData, at + 1);
        }
        no_data |= said.iter().any(no_data_here);
    }
    // Musl tells only what it knows of the last one.
    let no_data = no_data && style == Style::Glibc;
    (if no_data { Outcome::NoData } else { Outcome::NoName }, tries.len())
}

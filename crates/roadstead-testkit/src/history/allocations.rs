//! Addresses and ports: at every revision each is held by one, and what is held is what is taken.
//!
//! It is judged from the events of two watches, of those who hold and of what is taken. A store that
//! writes both in one revision must never show one without the other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Fault, Revision};

/// What only one may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// Of a Service; that it is taken is an object of its own.
    Address(IpAddr),
    /// On every node; nobody is shown that it is taken.
    Port(u16),
}

/// From a revision on somebody holds this, and nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct Holding {
    /// From when.
    pub revision: Revision,
    /// Who.
    pub holder: String,
    /// What; nothing if the holder is gone.
    pub items: BTreeSet<Item>,
}

/// From a revision on an address is taken, or free again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// From when.
    pub revision: Revision,
    /// Which.
    pub address: IpAddr,
    /// Whether it is taken.
    pub is_taken: bool,
}

#[derive(Debug, Default)]
struct Now<'a> {
    holders: BTreeMap<Item, &'a str>,
    items: BTreeMap<&'a str, &'a BTreeSet<Item>>,
    taken: BTreeSet<IpAddr>,
}

/// Judges what two watches told that began when nothing was held, up to a revision that both have passed.
/// Returns at how many revisions something changed.
pub fn check(held: &[Holding], taken: &[Taken], until: Revision) -> Result<usize, Fault> {
    let mut changes: BTreeMap<Revision, (Vec<&Holding>, Vec<&Taken>)> = BTreeMap::new();
    for one in held.iter().filter(|one| one.revision <= until) {
        changes.entry(one.revision).or_default().0.push(one);
    }
    for one in taken.iter().filter(|one| one.revision <= until) {
        changes.entry(one.revision).or_default().1.push(one);
    }
    let mut now = Now::default();
    for (revision, (held, taken)) in &changes {
        now.change(held, taken).map_err(|what| Fault::Allocation(*revision, what))?;
    }
    Ok(changes.len())
}

impl<'a> Now<'a> {
    /// The cost is that of the change.
    fn change(&mut self, held: &[&'a Holding], taken: &[&'a Taken]) -> Result<(), String> {
        let mut touched = BTreeSet::new();
        // What one gives back another may have in the same revision.
        for one in held {
            for item in self.items.remove(one.holder.as_str()).into_iter().flatten() {
                self.holders.remove(item);
                touched.insert(*item);
            }
        }
        for one in held {
            for item in &one.items {
                touched.insert(*item);
                if let Some(other) = self.holders.insert(*item, &one.holder) {
                    return Err(format!("{other} and {} both hold {item:?}", one.holder));
                }
            }
            self.items.insert(&one.holder, &one.items);
        }
        for Taken { address, is_taken, .. } in taken {
            let changed = match is_taken {
                true => self.taken.insert(*address),
                false => self.taken.remove(address),
            };
            if !changed && !is_taken {
                return Err(format!("{address} is free again, and was not taken"));
            }
            touched.insert(Item::Address(*address));
        }
        self.agree(&touched)
    }

    /// Of what has changed, what is held is taken, and what is taken is held.
    fn agree(&self, touched: &BTreeSet<Item>) -> Result<(), String> {
        for item in touched {
            let Item::Address(address) = item else { continue };
            match (self.holders.get(item), self.taken.contains(address)) {
                (Some(holder), false) => {
                    return Err(format!("{holder} holds {address}, which is not taken"));
                }
                (None, true) => return Err(format!("{address} is taken, and nobody holds it")),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `5 a: 1 p80`: at revision 5 the Service a holds 10.0.0.1 and port 80; `5 +1`: the address is taken;
    /// `5 -1`: free.
    fn parse(text: &str) -> (Vec<Holding>, Vec<Taken>) {
        let (mut held, mut taken) = (Vec::new(), Vec::new());
        for line in text.split(';').map(str::trim) {
            let (revision, rest) = line.split_once(' ').unwrap();
            let revision = revision.parse().unwrap();
            let address = |text: &str| IpAddr::from([10, 0, 0, text.parse().unwrap()]);
            if let Some(number) = rest.strip_prefix(['+', '-']) {
                let (address, is_taken) = (address(number), rest.starts_with('+'));
                taken.push(Taken { revision, address, is_taken });
                continue;
            }
            let (holder, items) = rest.split_once(':').unwrap();
            let item = |word: &str| match word.strip_prefix('p') {
                Some(port) => Item::Port(port.parse().unwrap()),
                None => Item::Address(address(word)),
            };
            let items = items.split_whitespace().map(item).collect();
            held.push(Holding { revision, holder: holder.to_owned(), items });
        }
        (held, taken)
    }

    #[test]
    fn each_is_held_by_one() {
        let cases = [
            ("each its own", "5 a: 1; 5 +1; 6 b: 2 p80; 6 +2", ""),
            ("given back, then another's", "5 a: 1 p80; 5 +1; 6 a:; 6 -1; 7 b: 1 p80; 7 +1", ""),
            ("another's in one revision", "5 a: 1; 5 +1; 6 a:; 6 b: 1", ""),
            ("two at one address", "5 a: 1; 5 +1; 6 b: 1", "a and b both hold Address(10.0.0.1)"),
            ("two at one port", "5 a: p80; 6 b: p80", "a and b both hold Port(80)"),
            ("not taken", "5 a: 1", "a holds 10.0.0.1, which is not taken"),
            ("taken too late", "5 a: 1; 6 +1", "a holds 10.0.0.1, which is not taken"),
            ("not given back", "5 a: 1; 5 +1; 6 a:", "10.0.0.1 is taken, and nobody holds it"),
            ("too late", "5 a: 1; 5 +1; 6 a:; 7 -1", "10.0.0.1 is taken, and nobody holds it"),
            ("never taken", "5 -1", "10.0.0.1 is free again, and was not taken"),
        ];
        for (name, text, want) in cases {
            let (held, taken) = parse(text);
            let found = match check(&held, &taken, 100) {
                Ok(_) => String::new(),
                Err(Fault::Allocation(_, what)) => what,
                Err(other) => panic!("{other}"),
            };
            assert_eq!(found, want, "{name}");
        }
        let (held, taken) = parse("5 a: 1; 5 +1; 9 b: 1");
        assert_eq!(check(&held, &taken, 8), Ok(1), "later ones are not judged");
    }
}

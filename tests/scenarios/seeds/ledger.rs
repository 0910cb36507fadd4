//! Which rows of the documents' table were typed, and what came of them.

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::time::Instant;

use super::typing::Reader;

/// The sections of the table, with what they are and how many rows they have.
pub(super) const SECTIONS: [(char, &str, usize); 4] = [
    ('A', "kubectl", 33),
    ('B', "host and pods", 7),
    ('C', "manifests", 51),
    ('D', "statements", 19),
];

/// What came of a row.
#[derive(Debug, PartialEq)]
enum Outcome {
    Passed,
    /// What this machine cannot show, and who shows it instead.
    Elsewhere(String),
    Failed(String),
}

/// The reader on the way through all rows. What fails is noted, and the way goes on.
pub(super) struct Story {
    pub reader: Reader,
    began: Instant,
    rows: BTreeMap<(char, usize), Outcome>,
}

impl Story {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, began: Instant::now(), rows: BTreeMap::new() }
    }

    /// Does what a row tells, for the first time or for another part of it.
    pub(super) fn row(&mut self, name: &str, body: impl FnOnce(&Reader)) {
        let (section, number) = name.split_at(1);
        let section = section.chars().next().expect("a row has a name");
        let row = (section, number.parse().expect("a row has a number"));
        let reader = &self.reader;
        let came = panic::catch_unwind(AssertUnwindSafe(|| body(reader)));
        let before = self.rows.entry(row).or_insert(Outcome::Passed);
        if let Err(why) = came {
            let text = why.downcast_ref::<String>().cloned();
            let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            eprintln!("{name} FAILED at {:?}", self.began.elapsed());
            *before = Outcome::Failed(text.unwrap_or_default());
        }
    }

    /// Says that a row cannot be shown here, and who shows it.
    pub(super) fn elsewhere(&mut self, row: (char, usize), who: &str) {
        self.rows.entry(row).or_insert_with(|| Outcome::Elsewhere(who.to_owned()));
    }

    /// Prints the table; all rows must have been typed, and none may have failed.
    pub(super) fn ends(self, title: &str) {
        eprintln!("\n{title}: {} s\n{:<16}  passed  elsewhere", self.began.elapsed().as_secs(), "");
        let mut missing = Vec::new();
        for (section, name, rows) in SECTIONS {
            let of = |wanted: fn(&Outcome) -> bool| {
                let own = self.rows.iter().filter(|((own, _), _)| *own == section);
                own.filter(|(_, outcome)| wanted(outcome)).count()
            };
            let passed = of(|outcome| *outcome == Outcome::Passed);
            let elsewhere = of(|outcome| matches!(outcome, Outcome::Elsewhere(_)));
            eprintln!("{section} {name:<14}  {:>6}  {elsewhere}", format!("{passed}/{rows}"));
            let rows = (1..=rows).map(|number| (section, number));
            missing.extend(rows.filter(|row| !self.rows.contains_key(row)));
        }
        let mut failed = Vec::new();
        for ((section, number), outcome) in self.rows {
            match outcome {
                Outcome::Passed => {}
                Outcome::Elsewhere(who) => eprintln!("NOT RUN here: {section}{number}: {who}"),
                Outcome::Failed(why) => failed.push(format!("{section}{number}: {why}")),
            }
        }
        assert!(missing.is_empty(), "rows that nobody typed: {missing:?}");
        assert!(failed.is_empty(), "{} rows failed:\n{}", failed.len(), failed.join("\n"));
    }
}

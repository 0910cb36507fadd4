//! What the files of a log hold, and whether it is all that they once held. Pure.
//!
//! The last record may be there in part: the power went while it was written, nobody was told of
//! it, and it is dropped. A record that was acknowledged looks the same when its bytes rot. What
//! tells them apart is evidence from elsewhere that a revision was acknowledged: the mark, a record
//! behind it, the header of the file that was used next, the tables. See
//! docs/adr/0024-torn-or-damaged.md.

use std::path::PathBuf;

use super::file::{Reading, START};
use super::mark::Mark;
use crate::damage::Damage;
use crate::entry::Revision;
use crate::log::disk::contents::Redo;

/// All that was found.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    /// Where the files of the log are, and the mark.
    pub(super) paths: &'a [PathBuf; 3],
    /// `None`: there is no such file.
    pub(super) logs: [Option<&'a Reading>; 2],
    /// The mark; in words why there is none.
    pub(super) mark: Result<Mark, &'static str>,
    /// The use of a file that the tables know of.
    pub(super) generation: u64,
    /// What the tables hold.
    pub(super) checkpointed: Revision,
}

/// What it means.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// What is damaged.
    pub(super) damage: Vec<Damage>,
    /// What the tables lack, in order; without gaps if nothing is damaged.
    pub(super) rest: Vec<Redo>,
    /// Everything up to and including this revision was acknowledged.
    pub(super) proven: Revision,
    /// Records that are not whole and need not be: a file, and the byte where it begins.
    pub(super) torn: Vec<(PathBuf, usize)>,
}

impl Evidence<'_> {
    pub(super) fn examine(&self) -> Verdict {
        let mut damage = self.check_files();
        let proven = self.proven();
        let records = || self.readings().flat_map(|(_, reading)| &reading.scan.records);
        let groups = records().map(|record| &record.group);
        let mut rest: Vec<_> = groups.filter(|group| group.last() > self.checkpointed).collect();
        rest.sort_by_key(|group| group.last());
        let mut reached = self.checkpointed;
        for group in &rest {
            let first = Revision(group.last().0 + 1 - group.changes.len() as u64);
            if first.0 > reached.0 + 1 {
                damage.push(self.gap(reached, Revision(first.0 - 1)));
            }
            reached = group.last();
        }
        if proven > reached {
            damage.push(self.gap(reached, proven));
        }
        let torn = |(index, reading): (usize, &Reading)| {
            let at = START + reading.scan.remains?;
            Some((self.paths[index].clone(), at))
        };
        let torn = self.readings().filter_map(torn).collect();
        Verdict { damage, rest: rest.into_iter().cloned().collect(), proven, torn }
    }

    /// The files of the log that can be read.
    fn readings(&self) -> impl Iterator<Item = (usize, &Reading)> {
        let all = self.logs.iter().enumerate();
        all.filter_map(|(index, log)| Some((index, (*log)?))).filter(|(_, log)| log.header.is_ok())
    }

    /// What is missing or not ours.
    fn check_files(&self) -> Vec<Damage> {
        let mut damage = Vec::new();
        let affected = format!(
            "writes after revision {} were acknowledged from it, if there were any",
            self.checkpointed
        );
        for (index, log) in self.logs.iter().enumerate() {
            let path = &self.paths[index];
            match log.map(|log| &log.header) {
                None => {
                    damage.push(Damage::new(path, "the file", format!("it is missing; {affected}")))
                }
                Some(Err(why)) if !self.is_being_made(index) => {
                    damage.push(Damage::new(path, "byte 0", format!("{why}; {affected}")));
                }
                _ => {}
            }
        }
        for (index, log) in self.readings() {
            if log.header.is_ok_and(|header| file_of(header.generation) != index) {
                let what = format!("it is the other file of the log; {affected}");
                damage.push(Damage::new(&self.paths[index], "byte 0", what));
            }
        }
        let newest =
            self.readings().filter_map(|(_, log)| log.header.ok()).map(|h| h.generation).max();
        let expected = self.mark.map_or(0, |mark| mark.generation - u64::from(mark.rotating));
        let expected = expected.max(self.generation);
        if let Some(newest) = newest.filter(|newest| *newest < expected && damage.is_empty()) {
            let path = &self.paths[file_of(expected)];
            let what = format!(
                "it is of an earlier time (use {newest} instead of {expected}); {affected}"
            );
            damage.push(Damage::new(path, "byte 0", what));
        }
        if let Err(why) = self.mark {
            let what = format!("{why}; without it nobody can tell whether the log is complete");
            damage.push(Damage::new(&self.paths[2], "the mark", what));
        }
        damage
    }

    /// Whether the file was about to be used anew: its header may be there in part.
    fn is_being_made(&self, index: usize) -> bool {
        self.mark.is_ok_and(|mark| mark.rotating && file_of(mark.generation) == index)
    }

    /// Up to where everything was acknowledged, as far as can be known.
    fn proven(&self) -> Revision {
        let marked = self.mark.map_or(Revision(0), |mark| mark.acknowledged);
        let begun = self.readings().filter_map(|(_, log)| Some(log.header.ok()?.since));
        // Nobody writes a record before the one ahead of it is durable.
        let records = self.readings().flat_map(|(_, log)| &log.scan.records);
        let before = records.map(|record| {
            Revision(record.group.last().0.saturating_sub(record.group.changes.len() as u64))
        });
        [self.checkpointed, marked].into_iter().chain(begun).chain(before).max().unwrap_or_default()
    }

    /// Revisions that should be there: after one that is, up to another.
    fn gap(&self, after: Revision, upto: Revision) -> Damage {
        let ends = self.readings().find_map(|(index, log)| {
            let record = log.scan.records.iter().find(|record| record.group.last() == after)?;
            Some((index, START + record.end))
        });
        let begins = || {
            let begins = |log: &Reading| log.header.is_ok_and(|header| header.since <= after);
            let mut all: Vec<_> = self.readings().filter(|(_, log)| begins(log)).collect();
            all.sort_by_key(|(_, log)| log.header.map_or(0, |header| header.generation));
            all.last().map(|(index, _)| (*index, START))
        };
        let (index, at) = ends.or_else(begins).unwrap_or((file_of(self.generation), START));
        let what = match after.0 + 1 == upto.0 {
            true => format!("revision {upto} cannot be read, and was acknowledged"),
            false => {
                format!("revisions {} to {upto} cannot be read, and were acknowledged", after.0 + 1)
            }
        };
        let what = format!("{what} (which keys they wrote is not known)");
        Damage::new(&self.paths[index], format!("byte {at}"), what)
    }
}

/// Which of the files a use is of.
pub(super) fn file_of(generation: u64) -> usize {
    usize::from(generation % 2 == 1)
}

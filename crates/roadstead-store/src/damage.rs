//! What is wrong with the files of a store: which file, where in it, what is affected.

use std::fmt;
use std::path::PathBuf;

/// One thing that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Where in the file: a byte, or a row of a table.
    pub place: String,
    /// What is affected by it.
    pub what: String,
}

impl Damage {
    pub(crate) fn new(
        file: impl Into<PathBuf>,
        place: impl Into<String>,
        what: impl Into<String>,
    ) -> Self {
        Self { file: file.into(), place: place.into(), what: what.into() }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: {}", self.file.display(), self.place, self.what)
    }
}

/// How many are named one by one in a message.
const NAMED: usize = 20;

/// All of them, a line each.
pub(crate) fn lines(all: &[Damage]) -> String {
    let mut text: Vec<_> = all.iter().take(NAMED).map(|damage| format!("  {damage}")).collect();
    if all.len() > NAMED {
        text.push(format!("  and {} more", all.len() - NAMED));
    }
    text.join("\n")
}

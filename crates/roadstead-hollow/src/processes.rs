//! What processes have spent, as the kernel counts.

use std::fs;

/// A process at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Spent {
    pub(crate) name: String,
    /// Of one processor.
    pub(crate) seconds: f64,
    pub(crate) resident_mib: f64,
}

/// What a process has spent so far; `None` if there is none.
pub(crate) fn spent(pid: u32) -> Option<Spent> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything; 11 fields after it come user and system time, in
    // hundredths of a second, and 10 after these the resident pages.
    let fields: Vec<_> = stat.rsplit(')').next()?.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words =
        line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let words: Vec<_> = words.filter(|word| !word.starts_with('-')).take(2).collect();
    let program = words.first()?.rsplit('/').next()?.to_owned();
    let name = match words.get(1) {
        Some(command) if !command.contains('/') => format!("{program} {command}"),
        _ => program,
    };
    let seconds = (number(11)? + number(12)?) / 100.0;
    Some(Spent { name, seconds, resident_mib: number(21)? * 4.0 / 1024.0 })
}

#[test]
fn this_process_has_spent_something() {
    let found = spent(std::process::id()).expect("it is there");
    assert!(found.resident_mib > 1.0 && found.seconds >= 0.0, "{found:?}");
    assert!(spent(u32::MAX).is_none());
}

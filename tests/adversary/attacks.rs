//! How many attacks were tried and refused: each test writes its own number into a file, so that a test that is
//! run again counts once, and says the sum of what is there.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};
use std::thread;

/// One file for each test.
fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("attacks")
}

/// Notes that so many more attacks were refused, or did nothing, in the test that runs on this thread.
#[track_caller]
pub(crate) fn refused(count: usize) {
    static COUNTS: LazyLock<Mutex<HashMap<String, usize>>> = LazyLock::new(Mutex::default);
    let test = thread::current().name().expect("tests run on named threads").to_owned();
    let mut counts = COUNTS.lock().unwrap();
    let own = counts.entry(test.clone()).or_default();
    *own += count;
    fs::create_dir_all(directory()).unwrap();
    fs::write(directory().join(test.replace("::", ".")), format!("{own}\n")).unwrap();
    let all = fs::read_dir(directory()).unwrap().flatten();
    let numbers: Vec<usize> =
        all.filter_map(|file| fs::read_to_string(file.path()).ok()?.trim().parse().ok()).collect();
    let (sum, tests) = (numbers.iter().sum::<usize>(), numbers.len());
    eprintln!("attacks tried and refused: {own} in {test}; {sum} in {tests} tests");
}

//! What the fuzzers found worth keeping (`fuzz/corpus`), once more: no input breaks anything, takes
//! long, or becomes much. `scripts/fuzz` looks for more.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::cost::Measure;
use crate::entries::{ENTRIES, LARGEST, find};

/// No input takes longer on a processor, at its fastest.
const LONGEST: Duration = Duration::from_millis(100);
/// Nor does it need more memory at once.
const MOST: usize = 64 << 20;

#[test]
fn corpus() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let (mut bytes, mut inputs, mut slowest) = (0, 0, (Duration::ZERO, String::new()));
    for directory in fs::read_dir(&root).unwrap() {
        let name = directory.unwrap().file_name().into_string().unwrap();
        assert!(find(&name).is_some(), "fuzz/corpus/{name} is of no target");
    }
    for (name, entry) in ENTRIES {
        let mut files: Vec<_> =
            fs::read_dir(root.join(name)).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        assert!(files.len() > 3, "{name} has {} inputs", files.len());
        // What is made once for all inputs is not theirs.
        entry(b"");
        for file in files {
            let input = fs::read(&file).unwrap();
            let try_once = || {
                let cost = Measure::begin();
                let (size, most, took) = (entry(&input), cost.memory(), cost.time());
                assert!(size <= LARGEST, "{}: {size} bytes", file.display());
                assert!(most < MOST, "{}: {most} bytes of memory", file.display());
                took
            };
            let mut took = try_once();
            for _ in 0..4 {
                if took > LONGEST {
                    took = took.min(try_once());
                }
            }
            assert!(took < LONGEST, "{}: {took:?}", file.display());
            (bytes, inputs) = (bytes + input.len(), inputs + 1);
            slowest = slowest.max((took, file.display().to_string()));
        }
    }
    eprintln!("{inputs} inputs of {} targets, {bytes} bytes; slowest {slowest:?}", ENTRIES.len());
    assert!(bytes < 1 << 20, "a corpus of {bytes} bytes is too much for a repository");
}

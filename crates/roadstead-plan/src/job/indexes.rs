//! Sets of indexes as text: `0-2,5`.

use std::collections::BTreeSet;

/// The text of a set.
pub(super) fn text(indexes: &BTreeSet<i32>) -> String {
    let mut ranges: Vec<(i32, i32)> = Vec::new();
    for &index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(index) => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    let word = |(first, last): &(i32, i32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(word).collect::<Vec<_>>().join(",")
}

/// The set that a text means, of indexes below `end`; what makes no sense is left out.
pub(super) fn read(text: &str, end: i32) -> BTreeSet<i32> {
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some(first.parse::<i32>().ok()?.max(0)..=last.parse::<i32>().ok()?.min(end - 1))
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[test]
fn there_and_back() {
    for (text_of, want) in [
        ("", ""),
        ("3", "3"),
        ("0,1", "0,1"),
        ("0-2,5,7-9", "0-2,5,7-9"),
        ("1-99", "1-9"),
        ("x", ""),
    ] {
        assert_eq!(text(&read(text_of, 10)), want, "{text_of}");
    }
}

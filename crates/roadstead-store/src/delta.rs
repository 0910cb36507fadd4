//! One state of an object as the difference from another: two versions of the same object have
//! most of their bytes in common. Pure.
//!
//! A difference is a sequence of steps. Each says how many bytes of the base are left out, how many
//! are copied after that, and which new bytes follow. Numbers have seven bits in each byte, the
//! lowest first; the highest bit tells that another byte follows.

use bytes::Bytes;

/// How far apart two versions may be until they are the same again.
const WINDOW: usize = 96;
/// So many equal bytes are no coincidence.
const ANCHOR: usize = 12;

/// What it takes to make `target` of `base`.
pub(crate) fn encode(base: &[u8], target: &[u8]) -> Box<[u8]> {
    let mut out = Vec::new();
    let (mut base, mut target, mut skip) = (base, target, 0);
    while !target.is_empty() {
        let copy = common(base, target);
        (base, target) = (&base[copy..], &target[copy..]);
        let (next, literal) = until_same(base, target);
        for value in [skip, copy, literal] {
            put_number(&mut out, value);
        }
        out.extend_from_slice(&target[..literal]);
        (base, target, skip) = (&base[next..], &target[literal..], next);
    }
    out.into()
}

/// Makes of `base` what [`encode`] was given.
pub(crate) fn decode(base: &[u8], delta: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(base.len());
    let (mut base, mut delta) = (base, delta);
    while !delta.is_empty() {
        let [skip, copy, literal] = [(); 3].map(|()| take_number(&mut delta));
        out.extend_from_slice(&base[skip..skip + copy]);
        base = &base[skip + copy..];
        out.extend_from_slice(&delta[..literal]);
        delta = &delta[literal..];
    }
    Bytes::copy_from_slice(&out)
}

/// How many bytes are the same at the beginning.
fn common(one: &[u8], other: &[u8]) -> usize {
    let blocks = one.chunks_exact(32).zip(other.chunks_exact(32));
    let same = 32 * blocks.take_while(|(one, other)| one == other).count();
    let rest = one[same..].iter().zip(&other[same..]);
    same + rest.take_while(|(one, other)| one == other).count()
}

/// How much of both is not the same before they are: at a place nearby or, if there is none, at
/// their ends.
fn until_same(base: &[u8], target: &[u8]) -> (usize, usize) {
    let is_same = |skip: usize, literal: usize| {
        let one = base.get(skip..skip + ANCHOR);
        one.is_some() && one == target.get(literal..literal + ANCHOR)
    };
    for distance in 1..=WINDOW {
        let mut near = (0..=distance).map(|skip| (skip, distance - skip));
        if let Some(found) = near.find(|&(skip, literal)| is_same(skip, literal)) {
            return found;
        }
    }
    let ends = base.iter().rev().zip(target.iter().rev());
    let same = ends.take_while(|(one, other)| one == other).count();
    (base.len() - same, target.len() - same)
}

fn put_number(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_number(bytes: &mut &[u8]) -> usize {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (&byte, rest) = bytes.split_first().expect("a difference that we have made is whole");
        *bytes = rest;
        value |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_of_an_object_differ_by_little() {
        let object = |time: &str, value: &str| {
            format!(
                "{{\"metadata\":{{\"name\":\"a\",\"managedFields\":[{{\"time\":\"{time}\",\"fields\":\
                 \"{}\"}}]}},\"data\":{{\"filler\":\"{}\",\"value\":\"{value}\"}}}}",
                "f".repeat(300),
                "x".repeat(600)
            )
        };
        let cases = [
            ("the same", object("10:00:00", "1"), object("10:00:00", "1"), 4),
            ("another time", object("10:00:00", "1"), object("11:30:59", "1"), 20),
            ("time and value", object("10:00:00", "1"), object("10:00:09", "1234"), 30),
            ("nothing in common", "a".repeat(500), "b".repeat(500), 510),
            ("from nothing", String::new(), "b".repeat(500), 510),
            ("to nothing", "b".repeat(500), String::new(), 0),
        ];
        for (name, base, target, most) in cases {
            let delta = encode(base.as_bytes(), target.as_bytes());
            assert!(delta.len() <= most, "{name}: {} bytes", delta.len());
            assert_eq!(decode(base.as_bytes(), &delta), target.as_bytes(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_difference_can_be_undone(base in "[ab]{0,300}", target in "[ab]{0,300}", cut in 0usize..300) {
            let cut = cut.min(base.len());
            let mixed = [&base[cut..], &target, &base[..cut]].concat();
            for target in [&target, &mixed] {
                let delta = encode(base.as_bytes(), target.as_bytes());
                prop_assert_eq!(decode(base.as_bytes(), &delta), target.as_bytes());
            }
        }
    }
}

//! A little notation for messages of other servers, for tests only.

use std::time::Duration;

/// A reply about `example.org A`: words like `answer TTL`, `soa TTL MINIMUM`, `nxdomain`,
/// `servfail`, `tc`, `cut BYTES`, `claim RECORDS`, separated by commas.
pub(crate) fn message(words: &str) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend(b"\x07example\x03org\0\0\x01\0\x01");
    for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let mut parts = word.split(' ');
        let what = parts.next().unwrap();
        let mut number = || parts.next().and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        match what {
            "answer" => {
                bytes[7] += 1;
                bytes.extend([0xc0, 12, 0, 1, 0, 1]);
                bytes.extend(number().to_be_bytes());
                bytes.extend([0, 4, 192, 0, 2, bytes[7]]);
            }
            "soa" => {
                bytes[9] += 1;
                bytes.extend([0xc0, 12, 0, 6, 0, 1]);
                bytes.extend(number().to_be_bytes());
                bytes.extend([0, 22, 0, 0]);
                bytes.extend([0; 16]);
                bytes.extend(number().to_be_bytes());
            }
            "nxdomain" => bytes[3] |= 3,
            "servfail" => bytes[3] |= 2,
            "tc" => bytes[2] |= 2,
            "cut" => bytes.truncate(bytes.len() - usize::try_from(number()).unwrap()),
            "claim" => bytes[7] += u8::try_from(number()).unwrap(),
            other => panic!("cannot read {other}"),
        }
    }
    bytes
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

//! As much of DER, the encoding of certificates, as it takes to write one.

/// A value with its tag and its length.
pub(crate) fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    match content.len() {
        short @ ..0x80 => bytes.push(u8::try_from(short).expect("less than 128")),
        long => {
            let digits = long.to_be_bytes();
            let digits = &digits[digits.iter().take_while(|digit| **digit == 0).count()..];
            bytes.push(0x80 | u8::try_from(digits.len()).expect("at most 8"));
            bytes.extend_from_slice(digits);
        }
    }
    bytes.extend_from_slice(content);
    bytes
}

/// Values one after the other.
pub(super) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tagged(0x30, &parts.concat())
}

/// Whole bytes.
pub(super) fn bits(content: &[u8]) -> Vec<u8> {
    tagged(0x03, &[&[0][..], content].concat())
}

/// A value inside of a value that does not look into it.
pub(super) fn octets(content: &[u8]) -> Vec<u8> {
    tagged(0x04, content)
}

/// A number that is not negative.
pub(super) fn integer(bytes: &[u8]) -> Vec<u8> {
    let digits = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    match digits.first() {
        None => tagged(0x02, &[0]),
        Some(0x80..) => tagged(0x02, &[&[0][..], digits].concat()),
        Some(_) => tagged(0x02, digits),
    }
}

/// A moment: two digits of the year until 2049, and four from then on.
pub(super) fn time(moment: jiff::Timestamp) -> Vec<u8> {
    let long = moment.strftime("%Y%m%d%H%M%SZ").to_string();
    match &long[..4] < "2050" {
        true => tagged(0x17, &long.as_bytes()[2..]),
        false => tagged(0x18, long.as_bytes()),
    }
}

#[test]
fn encodings() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(integer(&[])), "020100");
    assert_eq!(hex(integer(&[0, 5])), "020105");
    assert_eq!(hex(integer(&[0x80])), "02020080");
    assert_eq!(hex(sequence(&[&[5, 0], &[5, 0]])), "300405000500");
    assert_eq!(hex(bits(&[0xff])), "030200ff");
    assert_eq!(hex(octets(&[1; 0x7f]))[..4], *"047f");
    assert_eq!(hex(octets(&[1; 0x80]))[..6], *"048180");
    assert_eq!(hex(octets(&[1; 0x1234]))[..8], *"04821234");
    let moment = |text: &str| time(text.parse().unwrap());
    assert_eq!(moment("2049-12-31T23:59:59Z"), b"\x17\x0d491231235959Z");
    assert_eq!(moment("2050-01-01T00:00:00Z"), b"\x18\x0f20500101000000Z");
}

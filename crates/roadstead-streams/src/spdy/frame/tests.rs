use proptest::prelude::*;

use super::*;

/// Two streams as zlib itself compresses their headers, the second with what went before.
const OF_ZLIB: [&str; 2] = [
    "80030001000000280000000100000000000078bbe3c6a7c202a62346703a2b294a4dcc851625aca9a08006000000ffff",
    "800300010000001700000003000000000000c22e555c02cc2e00000000ffff",
];

#[test]
fn the_headers_of_other_implementations_are_read() {
    let mut decoder = Decoder::default();
    for (text, stream, kind) in [(OF_ZLIB[0], 1, "error"), (OF_ZLIB[1], 3, "stdin")] {
        let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        let bytes: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        decoder.push(&bytes);
        let headers = headers(&[("streamtype", kind)]);
        let want = Frame::SynStream { stream, fin: false, headers };
        assert_eq!(decoder.next_frame(), Ok(Some(want)));
    }
}

fn headers(pairs: &[(&str, &str)]) -> Headers {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn all(decoder: &mut Decoder) -> Vec<Frame> {
    std::iter::from_fn(|| decoder.next_frame().expect("these frames are right")).collect()
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let stream = 1u32..0x7fff_ffff;
    let headers = prop::collection::btree_map("[a-z]{1,12}", "[ -~]{0,40}", 0..6);
    prop_oneof![
        (stream.clone(), any::<bool>(), headers.clone())
            .prop_map(|(stream, fin, headers)| Frame::SynStream { stream, fin, headers }),
        (stream.clone(), any::<bool>(), headers.clone())
            .prop_map(|(stream, fin, headers)| Frame::SynReply { stream, fin, headers }),
        (stream.clone(), any::<bool>(), headers)
            .prop_map(|(stream, fin, headers)| Frame::Headers { stream, fin, headers }),
        (stream.clone(), any::<u32>()).prop_map(|(stream, reason)| Frame::Reset { stream, reason }),
        stream.clone().prop_map(|id| Frame::Ping { id }),
        stream.clone().prop_map(|last| Frame::GoAway { last }),
        (stream, any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(
            |(stream, fin, payload)| Frame::Data { stream, fin, payload: payload.into() }
        ),
    ]
}

/// Puts the pieces of one data frame together again.
fn joined(frames: Vec<Frame>) -> Vec<(u32, bool, Vec<u8>)> {
    let mut all: Vec<(u32, bool, Vec<u8>)> = Vec::new();
    for frame in frames {
        let Frame::Data { stream, fin, payload } = frame else { continue };
        match all.last_mut() {
            Some(last) if last.0 == stream && !last.1 => {
                last.1 = fin;
                last.2.extend_from_slice(&payload);
            }
            _ => all.push((stream, fin, payload.to_vec())),
        }
    }
    all
}

proptest! {
    #[test]
    fn what_is_written_is_read_however_it_is_cut(
        frames in prop::collection::vec(any_frame(), 1..12), piece in 1usize..400,
    ) {
        let mut encoder = Encoder::default();
        let mut bytes = BytesMut::new();
        for frame in &frames {
            encoder.encode(frame, &mut bytes);
        }
        let mut decoder = Decoder::default();
        let mut read = Vec::new();
        for part in bytes.chunks(piece) {
            decoder.push(part);
            read.extend(all(&mut decoder));
        }
        let is_control = |frame: &&Frame| !matches!(frame, Frame::Data { .. });
        prop_assert_eq!(
            read.iter().filter(is_control).collect::<Vec<_>>(),
            frames.iter().filter(is_control).collect::<Vec<_>>()
        );
        prop_assert_eq!(joined(read), joined(frames));
    }

    #[test]
    fn damaged_bytes_are_refused_and_nothing_else(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        for _ in 0..600 {
            if !matches!(decoder.next_frame(), Ok(Some(_))) {
                break;
            }
        }
    }

    #[test]
    fn damaged_headers_are_refused_and_nothing_else(at in 8usize..60, to in any::<u8>()) {
        let frame = Frame::SynStream {
            stream: 1, fin: false, headers: headers(&[("streamtype", "stdout"), ("port", "8080")]),
        };
        let mut bytes = BytesMut::new();
        Encoder::default().encode(&frame, &mut bytes);
        if at < bytes.len() {
            bytes[at] = to;
        }
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        let _ = decoder.next_frame();
    }
}

#[test]
fn a_header_bomb_is_refused() {
    let huge = "x".repeat(1 << 20);
    let mut bytes = BytesMut::new();
    let frame =
        Frame::SynStream { stream: 1, fin: false, headers: headers(&[("streamtype", &huge)]) };
    Encoder::default().encode(&frame, &mut bytes);
    assert!(bytes.len() < 64 * 1024, "it is small on the wire");
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    assert_eq!(decoder.next_frame(), Err(FrameError::Headers("there are too many")));
}

#[test]
fn wrong_frames() {
    let cases: [(&str, &[u8], FrameError); 3] = [
        ("another version", &[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1], FrameError::Version(2)),
        ("too long", &[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff], FrameError::TooLong(0xff_ffff)),
        ("too short", &[0x80, 3, 0, 3, 0, 0, 0, 2, 0, 0], FrameError::TooShort(3)),
    ];
    for (name, bytes, want) in cases {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        assert_eq!(decoder.next_frame(), Err(want), "{name}");
    }
}

#[test]
fn a_long_frame_is_handed_out_as_it_arrives() {
    let mut decoder = Decoder::default();
    decoder.push(&[0, 0, 0, 5, 1, 0, 0, 6]);
    assert_eq!(decoder.next_frame(), Ok(None));
    decoder.push(b"abc");
    let data = |fin, payload: &'static [u8]| Frame::Data {
        stream: 5,
        fin,
        payload: Bytes::from_static(payload),
    };
    assert_eq!(decoder.next_frame(), Ok(Some(data(false, b"abc"))));
    assert_eq!(decoder.next_frame(), Ok(None));
    decoder.push(b"def");
    assert_eq!(decoder.next_frame(), Ok(Some(data(true, b"def"))));
}

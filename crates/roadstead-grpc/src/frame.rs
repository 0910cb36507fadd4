//! A message between its peers: a byte that says whether it is compressed, four of length, and it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::status::{Code, Status};

const HEAD: usize = 5;

/// The bytes of a question.
pub(crate) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(HEAD + length);
    out.put_u8(0);
    // Nobody asks in gigabytes.
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode(&mut out).expect("the buffer grows");
    out.freeze()
}

/// The message of an answer, whose bytes are all there.
pub(crate) fn decode<A: Message + Default>(mut bytes: Bytes) -> Result<A, Status> {
    let wrong = |why: &str| Status::new(Code::Internal, why);
    if bytes.len() < HEAD {
        return Err(wrong("the answer has no message"));
    }
    let (compressed, length) = (bytes.get_u8(), bytes.get_u32());
    if compressed != 0 {
        return Err(wrong("the answer is compressed, which was not asked for"));
    }
    if bytes.len() != length as usize {
        return Err(wrong("the answer is not one message"));
    }
    message(bytes)
}

/// What an answer says, without its head.
pub(crate) fn message<A: Message + Default>(bytes: Bytes) -> Result<A, Status> {
    let unreadable = |error| format!("the answer cannot be read: {error}");
    A::decode(bytes).map_err(|error| Status::new(Code::Internal, unreadable(error)))
}

/// Takes the first of several answers without its head, if all of it has come.
pub(crate) fn take(bytes: &mut BytesMut, longest: usize) -> Result<Option<Bytes>, Status> {
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let [compressed, length @ ..] = *head;
    let length = u32::from_be_bytes(length) as usize;
    if compressed != 0 {
        return Err(Status::new(
            Code::Internal,
            "the answer is compressed, which was not asked for",
        ));
    }
    if length > longest {
        return Err(Status::too_long());
    }
    if bytes.len() < HEAD + length {
        return Ok(None);
    }
    bytes.advance(HEAD);
    Ok(Some(bytes.split_to(length).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_what_is_none() {
        let text = "hello".to_owned();
        let bytes = encode(&text);
        assert_eq!(&bytes[..5], b"\0\0\0\0\x07");
        assert_eq!(decode::<String>(bytes), Ok(text));
        for (bytes, want) in [
            (&b""[..], "the answer has no message"),
            (b"\x01\0\0\0\0", "the answer is compressed, which was not asked for"),
            (b"\0\0\0\0\x05x", "the answer is not one message"),
            (b"\0\0\0\0\0\0", "the answer is not one message"),
            (b"\0\0\0\0\x02\x0a\xff", "the answer cannot be read"),
        ] {
            let found = decode::<String>(Bytes::from_static(bytes)).unwrap_err();
            assert!(found.message.starts_with(want), "{found}");
        }
    }

    #[test]
    fn several_answers_in_pieces() {
        let all = [encode(&"one".to_owned()), encode(&String::new()), encode(&"three".to_owned())];
        let all = all.concat();
        for piece in [1, 2, 7, 100] {
            let (mut bytes, mut found) = (BytesMut::new(), Vec::new());
            for piece in all.chunks(piece) {
                bytes.extend_from_slice(piece);
                while let Some(one) = take(&mut bytes, 10).unwrap() {
                    found.push(message::<String>(one).unwrap());
                }
            }
            assert_eq!(found, ["one", "", "three"], "{piece} at a time");
        }
        let said = |bytes: &[u8]| take(&mut bytes.into(), 10).unwrap_err().message;
        assert_eq!(said(b"\0\0\0\0\x0b"), "the answer is too long");
        assert!(said(b"\x01\0\0\0\x01").contains("compressed"));
    }
}

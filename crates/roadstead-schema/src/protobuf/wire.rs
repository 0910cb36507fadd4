//! The wire format of protobuf: numbered fields, one after the other.

/// The content of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire<'a> {
    /// A whole number.
    Varint(u64),
    /// Eight bytes.
    Fixed64(u64),
    /// Four bytes.
    Fixed32(u32),
    /// Text, bytes or another message.
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    /// The bytes, if it has any.
    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub(super) fn text(self) -> Result<String, String> {
        let bytes = self.bytes().ok_or("proto: wrong wireType for a string")?;
        let text = std::str::from_utf8(bytes).map_err(|_| "proto: invalid UTF-8 string")?;
        Ok(text.to_owned())
    }
}

/// Goes through the fields of a message; stops after the first error.
pub(super) struct Reader<'a>(Option<&'a [u8]>);

impl<'a> Reader<'a> {
    /// At the beginning of a message.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(Some(bytes))
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<(u32, Wire<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = self.0.take().filter(|rest| !rest.is_empty())?;
        let field = field(&mut rest).ok_or_else(|| "unexpected EOF".to_owned());
        if field.is_ok() {
            self.0 = Some(rest);
        }
        Some(field)
    }
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<(u32, Wire<'a>)> {
    let tag = varint(rest)?;
    let number = u32::try_from(tag >> 3).ok()?;
    let wire = match tag & 7 {
        0 => Wire::Varint(varint(rest)?),
        1 => Wire::Fixed64(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?)),
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            Wire::Bytes(take(rest, length)?)
        }
        5 => Wire::Fixed32(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?)),
        _ => return None,
    };
    Some((number, wire))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}

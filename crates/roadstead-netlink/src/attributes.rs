//! The attributes that messages are made of: a length, a number and a value each.

use std::net::IpAddr;

/// Marks an attribute that consists of attributes.
const NESTED: u16 = 0x8000;
/// Marks an attribute whose number is in network order.
pub const NETWORK_ORDER: u16 = 0x4000;

/// Writes the attributes of a message, or of a nest within one.
#[derive(Debug)]
pub struct Attributes<'a> {
    bytes: &'a mut Vec<u8>,
}

impl<'a> Attributes<'a> {
    /// Appends to a message that has been begun.
    pub(crate) fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Appends raw bytes.
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).expect("attributes are short");
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad();
    }

    /// Appends attributes that are encoded already.
    pub fn raw(&mut self, attributes: &[u8]) {
        self.bytes.extend(attributes);
        self.pad();
    }

    /// Appends a number, in network order as all of netfilter.
    pub fn number(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_be_bytes());
    }

    /// Appends a text with its closing zero.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.bytes.extend(u16::try_from(5 + value.len()).expect("names are short").to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// Appends a nest; `fill` writes what is inside.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend((NESTED | kind).to_ne_bytes());
        fill(&mut Attributes { bytes: self.bytes });
        let length = u16::try_from(self.bytes.len() - start).expect("nests are cut in time");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// How many bytes have been written, to measure a nest.
    pub fn written(&self) -> usize {
        self.bytes.len()
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The attributes in a message or a nest: their numbers and what they hold.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & !NESTED & !NETWORK_ORDER;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The attribute of that number, if it is there.
pub fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// A text, without its closing zero.
pub fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned()
}

/// An address of either family, by its length.
pub fn address_of(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => Some(<[u8; 4]>::try_from(octets).ok()?.into()),
        _ => Some(<[u8; 16]>::try_from(octets).ok()?.into()),
    }
}

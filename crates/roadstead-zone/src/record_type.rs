//! The numbers that stand for types of records, as far as the zone has any of them.

/// The types of records that we can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Another name for the same thing.
    Cname,
    /// The name of an address.
    Ptr,
    /// Where a named port is served.
    Srv,
    /// Texts.
    Txt,
    /// About the zone itself.
    Soa,
    /// The servers of the zone.
    Ns,
    /// Whatever there is; we give one kind (RFC 8482).
    Any,
    /// A type of which we never have any.
    Other,
}

impl RecordType {
    /// Reads the number in a question.
    pub fn from_number(number: u16) -> Self {
        match number {
            1 => RecordType::A,
            2 => RecordType::Ns,
            5 => RecordType::Cname,
            6 => RecordType::Soa,
            12 => RecordType::Ptr,
            16 => RecordType::Txt,
            28 => RecordType::Aaaa,
            33 => RecordType::Srv,
            255 => RecordType::Any,
            _ => RecordType::Other,
        }
    }
}

//! Netlink: how the kernel is asked and told about its networks.
//!
//! Every message is a header of netlink, a header of the service it is for, and attributes.
//! [`socket::Socket`] asks for one object or for all of a kind, and gives orders; nftables takes
//! orders in a [`batch::Batch`], as a whole or not at all. What goes into the messages is up to
//! the caller.

pub mod attributes;
pub mod batch;
pub mod error;
pub mod nftables;
pub mod socket;

/// Asks the kernel to say that it is done.
const ACKNOWLEDGE: u16 = 0x4;
/// Every message that is not an answer.
const REQUEST: u16 = 0x1;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER_LENGTH: usize = 16;

/// Asks for all objects instead of one.
pub const DUMP: u16 = 0x300;
/// Refuses to create an object that is there.
pub const EXCLUSIVE: u16 = 0x200;
/// Creates the object if it is not there.
pub const CREATE: u16 = 0x400;
/// Adds at the end of the list.
pub(crate) const APPEND: u16 = 0x800;

/// nftables among the subsystems of netfilter.
pub const NFTABLES: u8 = 10;

/// The type of a message for a subsystem of netfilter.
pub const fn netfilter(subsystem: u8, message: u8) -> u16 {
    u16::from_be_bytes([subsystem, message])
}

//! Attacks on the real binary, one file per attacker. Each test tries what the attacker would, and
//! shows that it is refused, and that nobody else notices. `docs/security.md` says what is promised
//! to whom.

#[path = "../process.rs"]
mod process;

mod attacks;
mod careless_operator;
mod client;
mod damaged_disk;
mod namespace_admin;
mod namespace_editor;
mod node;
mod pod;
mod pod_of_image;
mod pod_user;
mod reader;
mod stranger;

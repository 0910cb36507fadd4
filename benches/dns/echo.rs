//! The least that a server of datagrams costs on this machine: every query is sent back, as long as
//! a usual reply, without a look at it.
//!
//! usage: echo one|many ADDRESS
//!
//! `one` receives and sends one datagram per system call, as most servers do; `many` does it as our
//! server does.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use roadstead_dns::udp::batch::DatagramBatch;

/// About as long as an answer with one address, or one that says that there is none.
const REPLY: usize = 96;
const HEADER: usize = 12;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, mode, address] = arguments.as_slice() else {
        return Err(io::Error::other("usage: echo one|many ADDRESS"));
    };
    let socket = UdpSocket::bind(address.as_str())?;
    match mode.as_str() {
        "one" => one_by_one(&socket),
        "many" => many(&socket),
        other => Err(io::Error::other(format!("{other}: neither one nor many"))),
    }
}

fn one_by_one(socket: &UdpSocket) -> io::Result<()> {
    let mut buffer = [0; 2048];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer)?;
        if length >= HEADER {
            buffer[2] |= 0x80;
            socket.send_to(&buffer[..REPLY], peer)?;
        }
    }
}

fn many(socket: &UdpSocket) -> io::Result<()> {
    let mut batch = DatagramBatch::default();
    loop {
        for slot in 0..batch.receive(socket.as_fd())? {
            let (query, _, reply) = batch.slot(slot);
            let length = query.len().min(REPLY);
            if length >= HEADER {
                reply[..length].copy_from_slice(&query[..length]);
                reply[2] |= 0x80;
                batch.reply(slot, REPLY);
            }
        }
        batch.send(socket.as_fd());
    }
}

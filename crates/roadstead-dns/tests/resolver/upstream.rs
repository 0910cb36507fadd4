//! Other servers that do what a test wants: answer, wait, lie, or say nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};

/// What a server does with a query; the number counts its queries from 0.
pub(crate) type Behaviour = fn(&Message, usize) -> Vec<Vec<u8>>;

/// A server on loopback that lives as long as the test.
pub(crate) struct Upstream {
    pub address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Upstream {
    pub(crate) fn start(behaviour: Behaviour) -> Self {
        Self::start_with(behaviour, |query| query)
    }

    /// One that knows no capital letters.
    pub(crate) fn start_folding() -> Self {
        Self::start_with(folds, in_small_letters)
    }

    /// What it takes a query over TCP for does not depend on its behaviour.
    fn start_with(behaviour: Behaviour, over_tcp: fn(Message) -> Message) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = udp.recv_from(&mut buffer) {
                let query = Message::from_vec(&buffer[..length]).unwrap();
                // Our guard against loops asks too.
                let guard = query.queries[0].query_type() == RecordType::HINFO;
                let number = if guard { 0 } else { count.fetch_add(1, Ordering::SeqCst) };
                for reply in behaviour(&query, number) {
                    let _ = udp.send_to(&reply, peer);
                }
            }
        });
        thread::spawn(move || {
            for stream in tcp.incoming() {
                let mut stream = stream.unwrap();
                let mut length = [0; 2];
                if stream.read_exact(&mut length).is_ok() {
                    let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
                    stream.read_exact(&mut query).unwrap();
                    let query = over_tcp(Message::from_vec(&query).unwrap());
                    let reply = answer(&query, &["192.0.2.200"; 200], 60);
                    stream.write_all(&u16::try_from(reply.len()).unwrap().to_be_bytes()).unwrap();
                    stream.write_all(&reply).unwrap();
                }
            }
        });
        Self { address, asked }
    }

    /// How often it was asked over UDP, less the guard.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// A reply with addresses; equal ones count up.
pub(crate) fn answer(query: &Message, addresses: &[&str], lifetime: u32) -> Vec<u8> {
    let mut reply = query.clone().into_response();
    let name = query.queries[0].name().clone();
    for (at, address) in addresses.iter().enumerate() {
        let address: std::net::Ipv4Addr = address.parse().unwrap();
        let [a, b, c, d] = address.octets();
        let last = d.wrapping_add(u8::try_from(at).unwrap());
        let data = RData::A(A::new(a, b, c, last));
        reply.add_answer(Record::from_rdata(name.clone(), lifetime, data));
    }
    reply.to_vec().unwrap()
}

/// A reply that says that there is no such name.
pub(crate) fn missing(query: &Message) -> Vec<u8> {
    let mut reply = query.clone().into_response();
    reply.metadata.response_code = ResponseCode::NXDomain;
    let name = Name::from_ascii("org.").unwrap();
    let soa = SOA::new(name.clone(), name.clone(), 1, 1, 1, 1, 60);
    reply.add_authority(Record::from_rdata(name, 60, RData::SOA(soa)));
    reply.to_vec().unwrap()
}

pub(crate) fn works(query: &Message, _: usize) -> Vec<Vec<u8>> {
    vec![answer(query, &["192.0.2.1"], 60)]
}

fn in_small_letters(mut query: Message) -> Message {
    let name = query.queries[0].name().to_string().to_lowercase();
    query.queries[0].set_name(Name::from_ascii(name).unwrap());
    query
}

/// Right, but in small letters.
fn folds(query: &Message, _: usize) -> Vec<Vec<u8>> {
    vec![answer(&in_small_letters(query.clone()), &["192.0.2.1"], 60)]
}

/// An impostor who knows everything but the letters is quicker.
pub(crate) fn forges(query: &Message, number: usize) -> Vec<Vec<u8>> {
    let forged = answer(&in_small_letters(query.clone()), &["203.0.113.1"], 60);
    [vec![forged], works(query, number)].concat()
}

pub(crate) fn silent(_: &Message, _: usize) -> Vec<Vec<u8>> {
    Vec::new()
}

/// Knows only what every server knows.
pub(crate) fn knows_only_the_root(query: &Message, number: usize) -> Vec<Vec<u8>> {
    if query.queries[0].name().is_root() { works(query, number) } else { Vec::new() }
}

pub(crate) fn fails(query: &Message, _: usize) -> Vec<Vec<u8>> {
    let mut reply = query.clone().into_response();
    reply.metadata.response_code = ResponseCode::ServFail;
    vec![reply.to_vec().unwrap()]
}

pub(crate) fn denies(query: &Message, _: usize) -> Vec<Vec<u8>> {
    vec![missing(query)]
}

pub(crate) fn slow(query: &Message, _: usize) -> Vec<Vec<u8>> {
    thread::sleep(Duration::from_millis(150));
    vec![answer(query, &["192.0.2.1"], 60)]
}

/// Knows at once that there is no IPv6 address, and takes long to find the other one.
pub(crate) fn hesitates(query: &Message, number: usize) -> Vec<Vec<u8>> {
    if query.queries[0].query_type() == RecordType::A {
        thread::sleep(Duration::from_millis(1500));
        return works(query, number);
    }
    let mut reply = Message::from_vec(&missing(query)).unwrap();
    reply.metadata.response_code = ResponseCode::NoError;
    vec![reply.to_vec().unwrap()]
}

/// Silent once, as if the query had been lost.
pub(crate) fn misses(query: &Message, number: usize) -> Vec<Vec<u8>> {
    if number == 0 { Vec::new() } else { works(query, number) }
}

/// Right once, for a second; then silent.
pub(crate) fn dies(query: &Message, number: usize) -> Vec<Vec<u8>> {
    if number == 0 { vec![answer(query, &["192.0.2.1"], 1)] } else { Vec::new() }
}

pub(crate) fn cuts(query: &Message, _: usize) -> Vec<Vec<u8>> {
    let mut reply = query.clone().into_response();
    reply.metadata.truncation = true;
    vec![reply.to_vec().unwrap()]
}

/// Everything that an impostor could try, and then the truth.
pub(crate) fn lies(query: &Message, _: usize) -> Vec<Vec<u8>> {
    let truth = answer(query, &["192.0.2.1"], 60);
    let mut identifier = answer(query, &["203.0.113.1"], 60);
    identifier[0] ^= 1;
    let mut question = answer(query, &["203.0.113.2"], 60);
    question[13] ^= 1;
    let mut counts = answer(query, &["203.0.113.3"], 60);
    counts[7] = 200;
    let mut pointer = answer(query, &["203.0.113.4"], 60);
    let length = pointer.len();
    pointer[length - 16..length - 14].copy_from_slice(&[0xff, 0xff]);
    let query_back = query.to_vec().unwrap();
    let short = truth[..truth.len() - 3].to_vec();
    vec![vec![], vec![0; 5], identifier, question, counts, pointer, query_back, short, truth]
}

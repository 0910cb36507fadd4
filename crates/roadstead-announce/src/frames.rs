//! The Ethernet frames by which machines of one network find each other: ARP and NDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An Ethernet address.
pub(crate) type Hardware = [u8; 6];

const BROADCAST: Hardware = [0xff; 6];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ICMP6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Somebody asks who has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The address.
    pub about: IpAddr,
    /// Who asks; `None` for one who has no address yet.
    pub asker: Option<IpAddr>,
    /// Where the answer goes.
    pub hardware: Hardware,
}

/// Reads a frame; `None` if it asks nothing.
pub(crate) fn question(frame: &[u8]) -> Option<Question> {
    let kind: [u8; 2] = frame.get(12..14)?.try_into().ok()?;
    match kind {
        ARP => arp_question(frame.get(14..)?),
        IPV6 => solicitation(frame),
        _ => None,
    }
}

fn arp_question(body: &[u8]) -> Option<Question> {
    // Ethernet, IPv4, the lengths of their addresses, a request.
    if body.get(..8)? != [0, 1, 8, 0, 6, 4, 0, 1] {
        return None;
    }
    let address = |at: usize| -> Option<Ipv4Addr> {
        Some(<[u8; 4]>::try_from(body.get(at..at + 4)?).ok()?.into())
    };
    let asker = address(14)?;
    Some(Question {
        about: address(24)?.into(),
        asker: (!asker.is_unspecified()).then_some(asker.into()),
        hardware: body.get(8..14)?.try_into().ok()?,
    })
}

fn solicitation(frame: &[u8]) -> Option<Question> {
    let packet = frame.get(14..)?;
    let (next, hops) = (*packet.get(6)?, *packet.get(7)?);
    // Whoever is not on this network cannot make the number of hops 255.
    if next != ICMP6 || hops != 255 || packet.get(40..42)? != [SOLICITATION, 0] {
        return None;
    }
    let address = |at: usize| -> Option<Ipv6Addr> {
        Some(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?.into())
    };
    let asker = address(8)?;
    Some(Question {
        about: address(48)?.into(),
        asker: (!asker.is_unspecified()).then_some(asker.into()),
        hardware: frame.get(6..12)?.try_into().ok()?,
    })
}

/// The answer to a question: the address is ours.
pub(crate) fn answer(question: &Question, own: Hardware) -> Vec<u8> {
    match (question.about, question.asker) {
        (IpAddr::V4(about), asker) => {
            let asker = match asker {
                Some(IpAddr::V4(asker)) => asker,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            arp(2, (own, about), (question.hardware, asker), question.hardware)
        }
        (IpAddr::V6(about), Some(IpAddr::V6(asker))) => {
            const SOLICITED: u8 = 0x40;
            advertisement(about, own, (question.hardware, asker), SOLICITED)
        }
        (IpAddr::V6(about), _) => to_all(about, own),
    }
}

/// Tells everybody, unasked, that the address is ours now: two forms of ARP, because some listen
/// only to one; or an advertisement that overrides.
pub(crate) fn unasked(about: IpAddr, own: Hardware) -> Vec<Vec<u8>> {
    match about {
        IpAddr::V4(about) => [1, 2]
            .map(|operation| arp(operation, (own, about), (BROADCAST, about), BROADCAST))
            .into(),
        IpAddr::V6(about) => vec![to_all(about, own)],
    }
}

/// The group that whoever has the address must listen to.
pub(crate) fn group_of(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let mut group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).octets();
    group[13..].copy_from_slice(&[a, b, c]);
    group.into()
}

fn arp(
    operation: u8,
    (own, sender): (Hardware, Ipv4Addr),
    (hardware, target): (Hardware, Ipv4Addr),
    to: Hardware,
) -> Vec<u8> {
    let mut frame = header(to, own, ARP);
    frame.extend([0, 1]);
    frame.extend(IPV4);
    frame.extend([6, 4, 0, operation]);
    frame.extend(own);
    frame.extend(sender.octets());
    frame.extend(hardware);
    frame.extend(target.octets());
    frame
}

fn to_all(about: Ipv6Addr, own: Hardware) -> Vec<u8> {
    advertisement(about, own, ([0x33, 0x33, 0, 0, 0, 1], ALL_NODES), 0)
}

fn advertisement(
    about: Ipv6Addr,
    own: Hardware,
    (hardware, to): (Hardware, Ipv6Addr),
    flags: u8,
) -> Vec<u8> {
    const OVERRIDE: u8 = 0x20;
    let mut body = vec![ADVERTISEMENT, 0, 0, 0, flags | OVERRIDE, 0, 0, 0];
    body.extend(about.octets());
    body.extend([2, 1]);
    body.extend(own);
    let sum = checksum(about, to, &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = header(hardware, own, IPV6);
    frame.extend([0x60, 0, 0, 0]);
    let length = u16::try_from(body.len()).expect("it is short");
    frame.extend(length.to_be_bytes());
    frame.extend([ICMP6, 255]);
    frame.extend(about.octets());
    frame.extend(to.octets());
    frame.extend(body);
    frame
}

fn header(to: Hardware, from: Hardware, kind: [u8; 2]) -> Vec<u8> {
    [&to[..], &from, &kind].concat()
}

/// The sum that ICMPv6 has over its body and the addresses.
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, body: &[u8]) -> u16 {
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    let words = body.chunks(2).map(|pair| match pair {
        [high, low] => u16::from_be_bytes([*high, *low]),
        rest => u16::from_be_bytes([rest[0], 0]),
    });
    let addresses = source.segments().into_iter().chain(destination.segments());
    let all = addresses.chain([length, ICMP6.into()]).chain(words);
    let mut sum: u32 = all.map(u32::from).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("the loop has seen to it")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Hardware = [2, 0, 0, 0, 0, 1];
    const THEIRS: Hardware = [2, 0, 0, 0, 0, 2];

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<_> = text.split_whitespace().collect();
        digits.iter().map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    #[test]
    fn arp_as_on_the_wire() {
        let asked = bytes(
            "ff ff ff ff ff ff 02 00 00 00 00 02 08 06 00 01 08 00 06 04 00 01 \
             02 00 00 00 00 02 c0 a8 07 02 00 00 00 00 00 00 c0 a8 07 64",
        );
        let question = question(&asked).unwrap();
        let want = Question {
            about: [192, 168, 7, 100].into(),
            asker: Some([192, 168, 7, 2].into()),
            hardware: THEIRS,
        };
        assert_eq!(question, want);
        let want = bytes(
            "02 00 00 00 00 02 02 00 00 00 00 01 08 06 00 01 08 00 06 04 00 02 \
             02 00 00 00 00 01 c0 a8 07 64 02 00 00 00 00 02 c0 a8 07 02",
        );
        assert_eq!(answer(&question, OURS), want);
        assert_eq!(super::question(&want), None, "an answer is no question");
    }

    fn solicitation_of(asker: &str, hops: u8) -> Vec<u8> {
        let mut frame = header([0x33, 0x33, 0xff, 0, 0, 0x64], THEIRS, IPV6);
        frame.extend([0x60, 0, 0, 0, 0, 24, ICMP6, hops]);
        frame.extend(asker.parse::<Ipv6Addr>().unwrap().octets());
        frame.extend("ff02::1:ff00:64".parse::<Ipv6Addr>().unwrap().octets());
        frame.extend([SOLICITATION, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend("fd00:7::64".parse::<Ipv6Addr>().unwrap().octets());
        frame
    }

    #[test]
    fn solicitations() {
        let about: IpAddr = "fd00:7::64".parse().unwrap();
        let cases = [
            ("a neighbour", "fd00:7::2", 255, Some(("fd00:7::2", 0x60))),
            ("one who has no address yet", "::", 255, Some(("ff02::1", 0x20))),
            ("one from far away", "fd00:7::2", 254, None),
        ];
        for (name, asker, hops, want) in cases {
            let question = question(&solicitation_of(asker, hops));
            assert_eq!(question.is_some(), want.is_some(), "{name}");
            let (Some(question), Some((to, flags))) = (question, want) else { continue };
            assert_eq!(question.about, about, "{name}");
            let frame = answer(&question, OURS);
            assert_eq!(frame[38..54], to.parse::<Ipv6Addr>().unwrap().octets(), "{name}");
            assert_eq!((frame[54], frame[58], frame[21]), (ADVERTISEMENT, flags, 255), "{name}");
            let (from, to) = ("fd00:7::64".parse().unwrap(), to.parse().unwrap());
            assert_eq!(checksum(from, to, &frame[54..]), 0, "{name}: the sum is right");
        }
    }

    #[test]
    fn short_and_foreign_frames_ask_nothing() {
        let whole = solicitation_of("fd00:7::2", 255);
        for length in 0..78 {
            assert_eq!(question(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(group_of("fd00:7::12:3456".parse().unwrap()).to_string(), "ff02::1:ff12:3456");
        assert_eq!(unasked([192, 168, 7, 100].into(), OURS).len(), 2);
    }
}

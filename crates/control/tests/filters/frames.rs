//! Random rules, and random frames that they match or nearly match.

use crate::{MAC, RULES};
use bm_filter::{Action, AnyPrefix, Rule};
use std::net::Ipv6Addr;

/// Pseudo-random numbers, the same each time.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(sides)) >> 32) as u32
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len() as u32) as usize]
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll(256) as u8).collect()
    }
}

const SOURCES: [[u8; 4]; 9] = [
    [192, 0, 2, 1],
    [192, 0, 2, 200],
    [192, 0, 3, 1],
    [198, 51, 100, 1],
    [203, 0, 113, 9],
    [10, 0, 0, 1],
    [0, 0, 0, 0],
    [127, 0, 0, 1],
    [192, 0, 2, 254],
];
const DESTINATIONS: [[u8; 4]; 8] = [
    [198, 51, 100, 7],
    [198, 51, 101, 7],
    [192, 0, 2, 254],
    [192, 0, 2, 9],
    [224, 0, 0, 5],
    [255, 255, 255, 255],
    [240, 1, 2, 3],
    [10, 9, 9, 9],
];
const SOURCES6: [&str; 6] =
    ["2001:db8:1::1", "2001:db8:1::ffff", "2001:db8:2::1", "fe80::1", "::", "2001:db8:9::1"];
const DESTINATIONS6: [&str; 5] =
    ["2001:db8:2::7", "2001:db8:1::fe", "ff02::1", "fe80::9", "2001:db8:2:0:1::7"];
const PREFIXES: [&str; 10] = [
    "192.0.2.0/24",
    "192.0.2.128/25",
    "192.0.2.1",
    "0.0.0.0/0",
    "198.51.100.0/23",
    "240.0.0.0/4",
    "2001:db8:1::/48",
    "2001:db8:2::7",
    "2001:db8::/32",
    "::/0",
];
const PROTOCOLS: [u8; 14] = [6, 6, 17, 17, 1, 58, 132, 33, 136, 50, 47, 44, 51, 253];
const PORTS: [u16; 6] = [53, 80, 1024, 65_535, 0, 4000];

/// Rules, each with the interface that it is limited to.
pub fn rules(dice: &mut Dice) -> Vec<(Rule, Option<u16>)> {
    let count = dice.roll(u32::from(RULES) + 1);
    let prefix = |dice: &mut Dice| (dice.roll(2) == 0).then(|| dice.one_of(&PREFIXES).parse().unwrap());
    let ports = |dice: &mut Dice| {
        let (first, last) = (dice.one_of(&PORTS), dice.one_of(&PORTS));
        (dice.roll(3) == 0).then(|| first.min(last)..=first.max(last))
    };
    let rule = |dice: &mut Dice| {
        let source: Option<AnyPrefix> = prefix(dice);
        let destination = prefix(dice)
            .filter(|to: &AnyPrefix| source.is_none_or(|from: AnyPrefix| from.is_ipv6() == to.is_ipv6()));
        let rule = Rule {
            action: dice.one_of(&[Action::Accept, Action::Drop]),
            source,
            destination,
            protocol: (dice.roll(2) == 0).then(|| dice.one_of(&PROTOCOLS)),
            source_ports: ports(dice),
            destination_ports: ports(dice),
            ..Rule::default()
        };
        (rule, (dice.roll(6) == 0).then(|| dice.one_of(&[0, 2])))
    };
    (0..count).map(|_| rule(dice)).collect()
}

/// A frame of any kind. `number` is the identification of IPv4 and the flow label of IPv6.
pub fn frame(dice: &mut Dice, number: u16) -> Vec<u8> {
    let mut frame = if dice.roll(12) == 0 { vec![2, 0, 0, 0, 0, 9] } else { MAC.to_vec() };
    frame.extend([2, 0, 0, 0, 9, 9]);
    for _ in 0..[0, 0, 0, 0, 1, 1, 2, 3][dice.roll(8) as usize] {
        frame.extend(dice.one_of(&[[0x81, 0], [0x81, 0], [0x88, 0xa8]]));
        frame.extend([0x20, dice.one_of(&[0, 7, 7, 8])]);
    }
    if dice.roll(2) == 0 {
        frame.extend([8, 0]);
        frame.extend(packet4(dice, number));
    } else {
        frame.extend([0x86, 0xdd]);
        frame.extend(packet6(dice, number));
    }
    if dice.roll(10) == 0 {
        let cut = 14 + dice.roll(frame.len() as u32 - 14) as usize;
        frame.truncate(cut);
    }
    if dice.roll(20) == 0 {
        let at = dice.roll(frame.len() as u32) as usize;
        frame[at] = dice.roll(256) as u8;
    }
    frame
}

/// The part after the IP headers: ports that rules match, and a random part of the rest.
fn payload(dice: &mut Dice) -> Vec<u8> {
    let length = dice.one_of(&[0, 3, 4, 7, 8, 15, 16, 19, 20, 40]);
    let ports = [dice.one_of(&PORTS), dice.one_of(&PORTS)].map(u16::to_be_bytes).concat();
    [ports, dice.bytes(36)].concat()[..length].to_vec()
}

fn packet4(dice: &mut Dice, number: u16) -> Vec<u8> {
    let (options, payload) = (dice.one_of(&[0, 0, 0, 4, 12]), payload(dice));
    let length = 20 + options + payload.len();
    let length = if dice.roll(12) == 0 { dice.roll(64) as usize } else { length };
    let fragment = dice.one_of(&[0u16, 0, 0, 0x4000, 0x2000, 0x2001, 1, 2, 0x1fff]);
    let mut packet = vec![0x45 + (options / 4) as u8, 0, 0, length as u8];
    packet.extend(number.to_be_bytes());
    packet.extend(fragment.to_be_bytes());
    packet.extend([2, dice.one_of(&PROTOCOLS), 0, 0]);
    packet.extend(dice.one_of(&SOURCES));
    packet.extend(dice.one_of(&DESTINATIONS));
    let sum = bm_wire::checksum::checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(vec![1; options]);
    packet.extend(payload);
    packet
}

fn packet6(dice: &mut Dice, number: u16) -> Vec<u8> {
    let mut chain: Vec<u8> = (0..dice.one_of(&[0, 0, 0, 1, 1, 2, 3, 8, 9]))
        .map(|_| dice.one_of(&[0, 43, 60, 44, 44, 51]))
        .collect();
    chain.push(dice.one_of(&PROTOCOLS));
    let mut rest = Vec::new();
    for pair in chain.windows(2) {
        let [this, next] = pair else { continue };
        match this {
            44 => rest.extend([*next, 0, dice.one_of(&[0, 0, 0, 1]), dice.one_of(&[0, 1, 1, 8]), 0, 0, 0, 1]),
            51 => rest.extend([vec![*next, 1], vec![0; 10]].concat()),
            _ => {
                let units = dice.one_of(&[0u8, 0, 1, 30]);
                let size = 6 + if units == 30 { 8 } else { 8 * usize::from(units) };
                rest.extend([*next, units]);
                rest.extend(vec![0; size]);
            }
        }
    }
    rest.extend(payload(dice));
    let length = if dice.roll(12) == 0 { dice.roll(64) as usize } else { rest.len() };
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    let mut packet = vec![0x60, 0];
    packet.extend(number.to_be_bytes());
    packet.extend([0, length as u8, chain[0], 2]);
    packet.extend(address(dice.one_of(&SOURCES6)));
    packet.extend(address(dice.one_of(&DESTINATIONS6)));
    packet.extend(rest);
    packet
}

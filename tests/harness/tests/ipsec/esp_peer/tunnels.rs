//! The SAs of the tests: as brickmoon's configuration has them, and as the peer is told.

use serde_json::{Value, json};
use std::fmt::Write as _;

/// Each with the bytes of its keys, for encryption and for integrity.
const KEYS: [(&str, usize, usize); 7] = [
    ("aes128gcm16", 20, 0),
    ("aes256gcm16", 36, 0),
    ("chacha20poly1305", 36, 0),
    ("aes128-sha256", 16, 32),
    ("aes256-sha256", 32, 32),
    ("aes128-sha1", 16, 20),
    ("aes256-sha1", 32, 20),
];

/// All suites.
pub fn suites() -> impl Iterator<Item = &'static str> {
    KEYS.into_iter().map(|(suite, ..)| suite)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Tunnel,
    Transport,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Transport => "transport",
        }
    }
}

/// A pair of SAs, for the network behind the router and a network of its own at the far end.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// Which network it is: 10.2.N.0/24 and 2001:db8:2:N::/64.
    pub n: u8,
    pub mode: Mode,
    /// Of the outer header.
    pub family: u8,
    pub suite: &'static str,
    pub esn: bool,
    pub udp: bool,
    pub window: u32,
    /// Whether the inbound SA has selectors.
    pub selectors: bool,
    /// The last number that was sent before, where that can be said.
    pub begin: u32,
}

/// One of both SAs.
pub struct End {
    pub direction: &'static str,
    pub spi: u32,
    pub source: String,
    pub destination: String,
    /// In hexadecimal.
    pub encryption: String,
    pub integrity: String,
}

impl Tunnel {
    pub fn new(n: u8, mode: Mode, family: u8, suite: &'static str) -> Self {
        Self { n, mode, family, suite, esn: false, udp: false, window: 64, selectors: false, begin: 0 }
    }

    /// Every suite, mode and family, with ESN and UDP or without.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for suite in suites() {
            for (mode, family) in
                [(Mode::Tunnel, 4), (Mode::Tunnel, 6), (Mode::Transport, 4), (Mode::Transport, 6)]
            {
                for (esn, udp) in [(false, false), (false, true), (true, false), (true, true)] {
                    let n = all.len() as u8 + 1;
                    all.push(Self { esn, udp, ..Self::new(n, mode, family, suite) });
                }
            }
        }
        all
    }

    fn name(&self) -> String {
        let Self { n, mode, family, suite, esn, udp, .. } = self;
        let mode = mode.name();
        let also = |is_so: bool, what: &'static str| if is_so { what } else { "" };
        format!("{n}-{suite}-{mode}{family}{}{}", also(*esn, "-esn"), also(*udp, "-udp"))
    }

    /// The networks on both sides, of each family that it takes.
    pub fn networks(&self) -> Vec<[String; 2]> {
        let all = [
            (4, ["10.1.0.0/24".to_owned(), format!("10.2.{}.0/24", self.n)]),
            (6, ["2001:db8:1::/64".to_owned(), format!("2001:db8:2:{:x}::/64", self.n)]),
        ];
        let mut taken = Vec::new();
        for (family, networks) in all {
            if self.mode == Mode::Tunnel || family == self.family {
                taken.push(networks);
            }
        }
        taken
    }

    /// The SA that brickmoon encrypts with, and the one that it decrypts with.
    pub fn ends(&self) -> [End; 2] {
        let (_, encryption, integrity) =
            KEYS.into_iter().find(|(name, ..)| *name == self.suite).expect("a suite");
        let [own, peer] = match (self.mode, self.family) {
            (Mode::Tunnel, 4) => ["192.0.2.1".to_owned(), "198.51.100.1".to_owned()],
            (Mode::Tunnel, _) => ["2001:db8:f::1".to_owned(), "2001:db8:e::1".to_owned()],
            (Mode::Transport, 4) => ["10.1.0.2".to_owned(), format!("10.2.{}.2", self.n)],
            (Mode::Transport, _) => ["2001:db8:1::2".to_owned(), format!("2001:db8:2:{:x}::2", self.n)],
        };
        let end = |direction, number: u32, source: &String, destination: &String| {
            // An odd multiplier, so that SPIs of any two SAs differ in many bits.
            let spi = (number + 1).wrapping_mul(0x9e37_79b1) | 0x0100_0000;
            End {
                direction,
                spi,
                source: source.clone(),
                destination: destination.clone(),
                encryption: key(spi, encryption),
                integrity: key(!spi, integrity),
            }
        };
        let number = 2 * u32::from(self.n);
        [end("out", number, &own, &peer), end("in", number + 1, &peer, &own)]
    }

    /// SAs and policies in brickmoon's configuration; `more` is added to each SA.
    pub fn config(&self, more: &str) -> String {
        let name = self.name();
        let on = |is_on: bool| if is_on { "on" } else { "off" };
        let mode = self.mode.name();
        let mut config = String::new();
        for End { direction, spi, source, destination, encryption, integrity } in self.ends() {
            config += &format!(
                "[[ipsec.sa]]\nname = '{name}-{direction}'\ndirection = '{direction}'\nspi = {spi}\nsource = '{source}'\n\
                 destination = '{destination}'\nsuite = '{}'\nmode = '{mode}'\nesn = '{}'\nudp_encapsulation = '{}'\n\
                 replay_window = {}\nencryption_key = '0x{encryption}'\n{more}\n",
                self.suite,
                on(self.esn),
                on(self.udp),
                self.window,
            );
            if !integrity.is_empty() {
                config += &format!("integrity_key = '0x{integrity}'\n");
            }
            let sides = |[near, far]: [String; 2]| {
                let [from, to] = if direction == "out" { [near, far] } else { [far, near] };
                format!("source = '{from}'\ndestination = '{to}'\n")
            };
            if self.selectors && direction == "in" {
                for networks in self.networks() {
                    config += &format!("[[ipsec.sa.selector]]\n{}", sides(networks));
                }
            }
            for networks in self.networks() {
                config += &format!(
                    "[[ipsec.policy]]\ndirection = '{direction}'\naction = 'protect'\nsa = '{name}-{direction}'\n{}",
                    sides(networks)
                );
            }
        }
        config
    }

    /// What the peer is told.
    pub fn described(&self) -> Value {
        let host = |network: &String, host: &str| {
            let network = network.split('/').next().expect("a network");
            let network = if network.contains(':') { network } else { network.trim_end_matches('0') };
            format!("{network}{host}")
        };
        let mut hosts = serde_json::Map::new();
        for [near, far] in self.networks() {
            let family = if near.contains(':') { "6" } else { "4" };
            hosts.insert(family.to_owned(), json!([host(&near, "2"), host(&far, "2")]));
        }
        let [out, inbound] = self.ends().map(|end| {
            json!({
                "spi": end.spi, "source": end.source, "destination": end.destination,
                "encryption": end.encryption, "integrity": end.integrity,
            })
        });
        json!({
            "name": self.name(),
            "mode": self.mode.name(),
            "suite": self.suite, "esn": self.esn, "udp": self.udp, "window": self.window,
            "selectors": self.selectors, "begin": self.begin, "hosts": hosts, "out": out, "in": inbound,
        })
    }
}

/// A key of this many bytes, in hexadecimal; another one for each seed.
fn key(seed: u32, length: usize) -> String {
    let mut text = String::new();
    for at in 0..length as u32 {
        let byte = seed.wrapping_add(at).wrapping_mul(0x85eb_ca6b) >> 24;
        write!(text, "{byte:02x}").expect("memory");
    }
    text
}

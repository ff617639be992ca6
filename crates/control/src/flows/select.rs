//! The filter of `show flows`: words of tcpdump's language.

use std::net::IpAddr;

use bm_api::{Error, Flow, FlowTuple};
use bm_filter::AnyPrefix;
use bm_wire::prefix::Prefix;

/// TCP and UDP by their numbers.
const PROTOCOLS: [&str; 2] = ["tcp", "udp"];
const HINT: &str = "write for example `tcp and src net 10.0.0.0/8 and not port 22`, or `in eth0`";

/// Which flows are shown: those that all conditions match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection(Vec<Condition>);

/// A condition, or its contrary.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    not: bool,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// An address within a prefix.
    Net(Side, AnyPrefix),
    Port(Side, u16),
    Protocol(&'static str),
    Ipv6(bool),
    /// Interfaces by their names.
    In(String),
    Out(String),
}

/// Which ends of packets a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
    Either,
}

impl Side {
    fn of<T>(self, source: T, destination: T, matches: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => matches(source),
            Self::Destination => matches(destination),
            Self::Either => matches(source) || matches(destination),
        }
    }
}

impl Selection {
    /// Reads a filter.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut words = text.split_whitespace().peekable();
        let mut conditions = Vec::new();
        while words.peek().is_some() {
            if !conditions.is_empty() {
                words.next_if(|word| ["and", "&&"].contains(word));
            }
            let not = words.next_if(|word| ["not", "!"].contains(word)).is_some();
            let what = What::parse(&mut words)?;
            conditions.push(Condition { not, what });
        }
        Ok(Self(conditions))
    }

    /// Whether a flow is shown.
    pub fn matches(&self, flow: &Flow) -> bool {
        self.0.iter().all(|condition| condition.what.matches(flow) != condition.not)
    }
}

impl What {
    fn parse<'t>(words: &mut impl Iterator<Item = &'t str>) -> Result<Self, Error> {
        let mut word = next(words)?;
        let side = match word {
            "src" => Side::Source,
            "dst" => Side::Destination,
            _ => Side::Either,
        };
        if side != Side::Either {
            word = next(words)?;
        }
        Ok(match word {
            "host" | "net" => Self::Net(side, prefix(next(words)?)?),
            "port" => Self::Port(side, port(next(words)?)?),
            "tcp" | "udp" | "ip" | "ip6" | "in" | "out" if side != Side::Either => {
                return Err(unknown(word));
            }
            "tcp" => Self::Protocol(PROTOCOLS[0]),
            "udp" => Self::Protocol(PROTOCOLS[1]),
            "ip" | "ip6" => Self::Ipv6(word == "ip6"),
            "in" => Self::In(next(words)?.into()),
            "out" => Self::Out(next(words)?.into()),
            // As in tcpdump, an address alone is a host.
            address => Self::Net(side, prefix(address)?),
        })
    }

    fn matches(&self, flow: &Flow) -> bool {
        match self {
            Self::Protocol(name) => flow.protocol == *name,
            Self::Ipv6(ipv6) => flow.arrives.source.is_ipv6() == *ipv6,
            Self::In(name) => flow.input == *name,
            Self::Out(name) => flow.output == *name,
            Self::Net(side, prefix) => either(flow, |tuple| {
                side.of(tuple.source, tuple.destination, |address| contains(prefix, address))
            }),
            Self::Port(side, port) => either(flow, |tuple| {
                side.of(tuple.source_port, tuple.destination_port, |other| other == *port)
            }),
        }
    }
}

/// Whether packets match as they arrive or as they leave.
fn either(flow: &Flow, matches: impl Fn(&FlowTuple) -> bool) -> bool {
    matches(&flow.arrives) || flow.leaves.as_ref().is_some_and(matches)
}

fn contains(prefix: &AnyPrefix, address: IpAddr) -> bool {
    match (prefix, address) {
        (AnyPrefix::V4(prefix), IpAddr::V4(address)) => {
            Prefix::containing(u32::from(address), prefix.length()) == Some(*prefix)
        }
        (AnyPrefix::V6(prefix), IpAddr::V6(address)) => {
            Prefix::containing(u128::from(address), prefix.length()) == Some(*prefix)
        }
        _ => false,
    }
}

fn next<'t>(words: &mut impl Iterator<Item = &'t str>) -> Result<&'t str, Error> {
    words.next().ok_or_else(|| Error::new("the filter ends too early").hint(HINT))
}

fn prefix(word: &str) -> Result<AnyPrefix, Error> {
    word.parse().map_err(|_| unknown(word))
}

fn port(word: &str) -> Result<u16, Error> {
    word.parse().map_err(|_| Error::new(format_args!("{word:?} is no port number")).hint(HINT))
}

fn unknown(word: &str) -> Error {
    Error::new(format_args!("the filter of flows does not know {word:?}")).hint(HINT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        let tuple = |source: &str, source_port| FlowTuple {
            source: source.parse().unwrap(),
            source_port,
            destination: "192.0.2.1".parse().unwrap(),
            destination_port: 443,
        };
        Flow {
            protocol: "tcp".into(),
            input: "eth0".into(),
            output: "eth1".into(),
            arrives: tuple("10.0.0.2", 4000),
            leaves: Some(tuple("198.51.100.1", 62_000)),
            packets: 0,
            bytes: 0,
            age_s: 0,
            idle_s: 0,
            ended: false,
        }
    }

    #[test]
    fn conditions_are_about_packets_as_they_arrive_and_as_they_leave() {
        let flow = flow();
        for matching in [
            "",
            "tcp",
            "ip and in eth0 and out eth1",
            "host 10.0.0.2",
            "src host 198.51.100.1 and dst port 443",
            "tcp src port 62000",
            "net 10.0.0.0/8 and not port 22",
            "192.0.2.1",
            "! udp",
        ] {
            assert!(Selection::parse(matching).unwrap().matches(&flow), "{matching}");
        }
        for other in ["udp", "ip6", "dst host 10.0.0.2", "in eth1", "port 22", "not tcp", "net 2001:db8::/32"]
        {
            assert!(!Selection::parse(other).unwrap().matches(&flow), "{other}");
        }
    }

    #[test]
    fn what_is_unknown_is_named() {
        let refused = |text: &str| Selection::parse(text).unwrap_err().to_string();
        assert!(refused("tcp and vlan 7").contains("\"vlan\""), "{}", refused("tcp and vlan 7"));
        assert!(refused("port http").contains("\"http\""));
        assert!(refused("src").contains("ends too early"));
        assert!(refused("src tcp").contains("\"tcp\""));
    }
}

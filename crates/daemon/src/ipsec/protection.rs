//! What IPsec does with one packet, for `explain`: the policy and SA are looked up, nothing is encrypted or counted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_api::Fate;
use bm_forward::if_id_of;
use bm_ipsec::{Action, Direction, Located, Policy, Sa, SaId, SaList, key, locate};
use bm_stats::Reason;
use bm_wire::ethernet::Ethernet;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;

use super::{Ipsec, direction};

/// What IPsec does with a packet.
pub struct Protection {
    /// The policy or SA, in words.
    pub text: String,
    /// Whether the packet is ESP.
    pub is_esp: bool,
    /// The end of the packet's way in its present form, unless IPsec lets it pass: fate, reason, and both in words.
    pub result: Option<(Fate, Option<String>, String)>,
}

impl Protection {
    fn passes(text: String) -> Self {
        Self { text, is_esp: false, result: None }
    }

    fn dropped(text: String, reason: Reason) -> Self {
        let result = format!("dropped: {} ({})", reason.meaning(), reason.name());
        Self { text, is_esp: false, result: Some((Fate::Dropped, Some(reason.name().into()), result)) }
    }
}

impl Ipsec {
    /// What happens to a frame that arrives, ahead of the router; `None` if IPsec is not concerned.
    pub fn on_arrival(&self, frame: &[u8]) -> Option<Protection> {
        let packet = packet(frame)?;
        if let Ok(Located::Esp(esp)) = locate(packet) {
            if let Some(sa) = self.sa(esp.id(packet)).filter(|sa| sa.direction == Direction::In) {
                let text = format!("ESP of the inbound SA {}", self.name_of_sa(sa));
                let arrives = match sa.if_id {
                    0 => String::new(),
                    if_id => format!("arrives on {} and ", self.interface_name(if_id)),
                };
                let result = format!("decrypted; what comes out {arrives}is routed anew");
                return Some(Protection {
                    text,
                    is_esp: true,
                    result: Some((Fate::Decrypted, None, result)),
                });
            }
            // Others are Linux's where SAs are the kernel's.
            if !self.config.kernel && self.receives_at(packet) {
                let text = format!("ESP with SPI {:#010x}, for which there is no SA", esp.spi(packet));
                return Some(Protection { is_esp: true, ..Protection::dropped(text, Reason::IpsecNoSa) });
            }
        }
        let policy = self.policy_for(Direction::In, packet, 0)?;
        let text = self.policy_line(&policy);
        Some(match policy.action {
            Action::Bypass => Protection::passes(text),
            Action::Discard => Protection::dropped(text, Reason::IpsecPolicy),
            Action::Protect(_) | Action::OneOf(_) | Action::Template(..) => {
                Protection::dropped(format!("{text}, but the packet arrives in clear"), Reason::IpsecPolicy)
            }
        })
    }

    /// What happens to a frame that the router sends, by an IPsec interface if there is one with this name.
    pub fn on_departure(&self, frame: &[u8], out: &str) -> Option<Protection> {
        let if_id = if self.is_interface(out) { if_id_of(frame) } else { 0 };
        let policy = self.policy_for(Direction::Out, packet(frame)?, if_id);
        if policy.is_none() && if_id != 0 {
            return Some(Protection::dropped(format!("no policy of {out} is for it"), Reason::IpsecPolicy));
        }
        let policy = policy?;
        let text = self.policy_line(&policy);
        let sas = match policy.action {
            Action::Bypass if if_id != 0 => return Some(Protection::dropped(text, Reason::IpsecPolicy)),
            Action::Bypass => return Some(Protection::passes(text)),
            Action::Discard => return Some(Protection::dropped(text, Reason::IpsecPolicy)),
            Action::Protect(id) => SaList::of(Some(id)),
            Action::OneOf(list) => {
                SaList::in_order(self.config.lists.get(list as usize).cloned().unwrap_or_default())
            }
            Action::Template(at, _) => self.live.current.get(at as usize).cloned().unwrap_or_default(),
        };
        let fallback = sas.fallback.iter().filter(|id| !sas.own.contains(id));
        let all: Vec<&Sa> = sas.own.iter().chain(fallback).filter_map(|id| self.sa(*id)).collect();
        let by = match &all[..] {
            [] => return Some(Protection::dropped(format!("{text}, which has no SA"), Reason::IpsecNoSa)),
            [one] => format!("SA {}", self.name_of_sa(one)),
            several => {
                let names: Vec<_> = several.iter().map(|sa| self.name_of_sa(sa)).collect();
                format!("the SA of the worker that receives it, one of {}", names.join(", "))
            }
        };
        let result = format!("encrypted by {by}, and sent by the route to {}", all[0].destination);
        Some(Protection { text, is_esp: false, result: Some((Fate::Encrypted, None, result)) })
    }

    /// The first policy of an interface, or of none, that matches a packet, as workers find it.
    fn policy_for(&self, direction: Direction, packet: &[u8], if_id: u32) -> Option<Policy> {
        let all = self.all_policies().ok()?;
        let of = if if_id == 0 { &*all } else { all.of_interface(if_id)? };
        of.find(direction, &key(packet)?).cloned()
    }

    fn policy_line(&self, policy: &Policy) -> String {
        let shown = self.policy(policy);
        let sa = if shown.sa.is_empty() { String::new() } else { format!(" by SA {}", shown.sa) };
        let (source, destination) = (shown.source, shown.destination);
        let (which, priority) = (direction(policy.direction), policy.priority);
        let of = if shown.interface.is_empty() { String::new() } else { format!(" of {}", shown.interface) };
        format!("policy {which}{of}, priority {priority}: {source} > {destination}: {}{sa}", shown.action)
    }

    fn sas_now(&self) -> impl Iterator<Item = &Sa> {
        self.config.sas.iter().chain(self.live.sas.iter().map(|live| &live.sa))
    }

    fn sa(&self, id: SaId) -> Option<&Sa> {
        self.sas_now().find(|sa| sa.id() == id)
    }

    fn name_of_sa(&self, sa: &Sa) -> String {
        let configured = self.config.sas.iter().position(|other| other.id() == sa.id());
        let name = configured.and_then(|at| self.config.names.get(at)).cloned();
        format!("{} (SPI {:#010x})", name.unwrap_or_else(|| super::name_of(sa.reqid)), sa.spi)
    }

    /// Whether a packet is for an address of an inbound SA.
    fn receives_at(&self, packet: &[u8]) -> bool {
        let destination: Option<IpAddr> = match (Ipv4::parse(packet), Ipv6::parse(packet)) {
            (Ok(ip), _) => Some(Ipv4Addr::from(ip.destination()).into()),
            (_, Ok(ip)) => Some(Ipv6Addr::from(ip.destination()).into()),
            _ => None,
        };
        self.sas_now().any(|sa| sa.direction == Direction::In && Some(sa.destination) == destination)
    }
}

/// The IP packet in a frame.
fn packet(frame: &[u8]) -> Option<&[u8]> {
    let network = Ethernet::parse(frame).ok()?.network().ok()?;
    frame.get(network.offset..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_control::config::Config;
    use std::path::Path;

    fn ipsec() -> Ipsec {
        let sa = |name: &str, direction: &str, spi: u32, source: &str, destination: &str| {
            format!(
                "[[ipsec.sa]]\nname = '{name}'\ndirection = '{direction}'\nspi = {spi}\nsource = '{source}'\n\
                 destination = '{destination}'\nsuite = 'aes128gcm16'\n\
                 encryption_key = '0x000102030405060708090a0b0c0d0e0f10111213'\n"
            )
        };
        let policy =
            |direction: &str, lines: &str| format!("[[ipsec.policy]]\ndirection = '{direction}'\n{lines}\n");
        let text = [
            sa("to-b", "out", 4097, "192.0.2.1", "198.51.100.1"),
            sa("from-b", "in", 4098, "198.51.100.1", "192.0.2.1"),
            policy("out", "action = 'protect'\nsa = 'to-b'\ndestination = '10.2.0.0/16'"),
            policy("out", "action = 'discard'\ndestination = '10.3.0.0/16'"),
            policy("in", "action = 'protect'\nsa = 'from-b'\nsource = '10.2.0.0/16'"),
        ];
        let config = Config::parse(Path::new("test.toml"), &text.concat()).expect("a configuration");
        Ipsec { config: config.ipsec, ..Ipsec::default() }
    }

    fn frame(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header = bm_wire::ipv4::Ipv4Header {
            total_len: 20 + payload.len() as u16,
            ttl: 64,
            protocol,
            source: u32::from_be_bytes(source),
            destination: u32::from_be_bytes(destination),
            ..bm_wire::ipv4::Ipv4Header::default()
        };
        let mut packet = vec![0; 20];
        header.emit(&mut packet).expect("room");
        [&[2; 12][..], &[8, 0], &packet, payload].concat()
    }

    fn end(protection: Option<Protection>) -> Option<(Fate, String)> {
        protection.map(|protection| match protection.result {
            Some((fate, _, _)) => (fate, protection.text),
            None => (Fate::Sent, protection.text),
        })
    }

    #[test]
    fn a_packet_that_leaves_has_the_policy_and_sa_that_workers_find() {
        let ipsec = ipsec();
        let to =
            |destination| end(ipsec.on_departure(&frame([10, 1, 0, 2], destination, 17, &[0; 8]), "wan"));
        let (fate, text) = to([10, 2, 0, 1]).expect("a policy");
        assert_eq!(fate, Fate::Encrypted);
        assert!(text.ends_with("any > 10.2.0.0/16: protect by SA to-b"), "{text}");
        assert_eq!(to([10, 3, 0, 1]).map(|(fate, _)| fate), Some(Fate::Dropped));
        assert_eq!(to([10, 4, 0, 1]), None);
    }

    #[test]
    fn what_arrives_is_decrypted_or_dropped_if_it_should_be_encrypted() {
        let ipsec = ipsec();
        let clear = end(ipsec.on_arrival(&frame([10, 2, 0, 1], [10, 1, 0, 2], 17, &[0; 8])));
        assert!(
            clear.is_some_and(|(fate, text)| fate == Fate::Dropped && text.ends_with("arrives in clear"))
        );
        let esp = |spi: u32| {
            let payload = [&spi.to_be_bytes()[..], &[0; 60]].concat();
            end(ipsec.on_arrival(&frame([198, 51, 100, 1], [192, 0, 2, 1], 50, &payload)))
        };
        assert_eq!(
            esp(4098),
            Some((Fate::Decrypted, "ESP of the inbound SA from-b (SPI 0x00001002)".into()))
        );
        assert_eq!(esp(99).map(|(fate, _)| fate), Some(Fate::Dropped));
        assert_eq!(end(ipsec.on_arrival(&frame([10, 9, 0, 1], [10, 1, 0, 2], 17, &[0; 8]))), None);
    }
}

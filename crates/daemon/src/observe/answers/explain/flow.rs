//! The flow of a packet that Linux's firewall has a say in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_api::{Explanation, Flow, FlowQuery, FlowTuple};
use bm_wire::ethernet::{Ethernet, ethertype};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use bm_wire::protocol;
use bm_wire::tcp::{Tcp, flag};
use bm_wire::udp::Udp;

use super::step;

/// A segment or datagram of a connection.
pub(super) struct OfConnection {
    protocol: &'static str,
    tuple: FlowTuple,
    /// Whether it goes by flow if its connection has one.
    is_plain: bool,
}

impl OfConnection {
    /// What a frame without tags contains; `None` for others than TCP and UDP.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let ethernet = Ethernet::parse(frame).ok()?;
        let packet = ethernet.payload();
        match ethernet.ethertype() {
            ethertype::IPV4 => {
                let packet = Ipv4::parse(packet).ok()?;
                let ends = [packet.source(), packet.destination()].map(|end| Ipv4Addr::from(end).into());
                Self::of(ends, packet.protocol(), packet.payload())
            }
            ethertype::IPV6 => {
                let packet = Ipv6::parse(packet).ok()?;
                let ends = [packet.source(), packet.destination()].map(|end| Ipv6Addr::from(end).into());
                Self::of(ends, packet.next_header(), packet.payload())
            }
            _ => None,
        }
    }

    fn of([source, destination]: [IpAddr; 2], number: u8, payload: &[u8]) -> Option<Self> {
        let (protocol, source_port, destination_port, is_plain) = match number {
            protocol::TCP => {
                let segment = Tcp::parse(payload).ok()?;
                let told = segment.flags() & (flag::SYN | flag::FIN | flag::RST | flag::ACK | flag::URG);
                ("tcp", segment.source_port(), segment.destination_port(), told == flag::ACK)
            }
            protocol::UDP => {
                let datagram = Udp::parse(payload).ok()?;
                ("udp", datagram.source_port(), datagram.destination_port(), true)
            }
            _ => return None,
        };
        Some(Self {
            protocol,
            tuple: FlowTuple { source, source_port, destination, destination_port },
            is_plain,
        })
    }

    /// Asks for its flow.
    pub fn query(&self) -> FlowQuery {
        let FlowTuple { source, source_port, destination, destination_port } = self.tuple;
        let filter = format!(
            "{} and src host {source} and src port {source_port} and dst host {destination} and dst port {destination_port}",
            self.protocol
        );
        FlowQuery { filter: Some(filter), ..FlowQuery::default() }
    }

    /// Says how its connection goes, if it is one of these: addresses match as they leave, too. Returns whether it is sent.
    pub fn explain(&self, flows: &[Flow], explained: &mut Explanation) -> bool {
        let mut of_interface = flows.iter().filter(|flow| flow.input == explained.interface);
        let Some(flow) = of_interface.find(|flow| flow.arrives == self.tuple) else { return false };
        let before_result = explained.steps.len().saturating_sub(1);
        explained.steps.insert(before_result, step("flow", in_words(flow)));
        let is_sent = self.is_plain && !flow.ended && explained.reason.as_deref() == Some("firewall");
        if let Some(result) = explained.steps.last_mut().filter(|_| is_sent) {
            result.text = format!("sent out of {} by its flow", flow.output);
            explained.reason = None;
        }
        is_sent
    }
}

fn in_words(flow: &Flow) -> String {
    if flow.ended {
        return "the connection's flow has ended by FIN or RST: Linux decides".into();
    }
    let leaves = flow.leaves.map_or_else(String::new, |leaves| {
        let [from, to] = [(leaves.source, leaves.source_port), (leaves.destination, leaves.destination_port)]
            .map(std::net::SocketAddr::from);
        format!(" as {from} > {to}")
    });
    format!(
        "plain packets of this connection leave by {}{leaves}, as Linux has sent the first ones: since {} s, {} so far",
        flow.output, flow.age_s, flow.packets
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: &str =
        "020000000001020000000002 0800 4500001c 00000000 4011 0000 c0000207 0a090909 1000 0035 0008 0000";

    fn flow(ended: bool) -> Flow {
        let end = |text: &str| text.parse::<IpAddr>().unwrap();
        let arrives = FlowTuple {
            source: end("192.0.2.7"),
            source_port: 4096,
            destination: end("10.9.9.9"),
            destination_port: 53,
        };
        let leaves = Some(FlowTuple { source: end("198.51.100.1"), ..arrives });
        let [protocol, input, output] = ["udp", "r0", "r1"].map(String::from);
        Flow { protocol, input, output, arrives, leaves, packets: 9, bytes: 900, age_s: 12, idle_s: 0, ended }
    }

    /// What is said of a datagram of that connection which arrives on an interface, and whether it is sent.
    fn explained(interface: &str, flow: Flow) -> (Vec<String>, bool) {
        let of = OfConnection::read(&super::super::bytes(UDP)).unwrap();
        assert_eq!(
            of.query().filter.unwrap(),
            "udp and src host 192.0.2.7 and src port 4096 and dst host 10.9.9.9 and dst port 53"
        );
        let mut explained = Explanation {
            interface: interface.into(),
            steps: vec![step("result", "left to Linux".into())],
            reason: Some("firewall".into()),
            ..Explanation::default()
        };
        let is_sent = of.explain(&[flow], &mut explained);
        assert_eq!(explained.reason.is_none(), is_sent);
        (explained.steps.into_iter().map(|step| step.text).collect(), is_sent)
    }

    #[test]
    fn a_plain_packet_of_a_flow_is_sent() {
        let said = "plain packets of this connection leave by r1 as 198.51.100.1:4096 > 10.9.9.9:53, as Linux has sent the first \
                    ones: since 12 s, 9 so far";
        let steps = vec![said.to_owned(), "sent out of r1 by its flow".to_owned()];
        assert_eq!(explained("r0", flow(false)), (steps, true));
    }

    #[test]
    fn an_ended_flow_and_one_of_another_interface_send_nothing() {
        let (ended, is_sent) = explained("r0", flow(true));
        assert!(ended.len() == 2 && !is_sent, "{ended:?}");
        assert_eq!(explained("r1", flow(false)), (vec!["left to Linux".into()], false));
    }
}

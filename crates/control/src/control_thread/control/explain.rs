//! `explain`: what becomes of one packet, by the tables as they are now.
//!
//! ```text
//! query ─► packet ─► DryRun (crates/forward) ─► steps, in words ─► Explanation
//!                        kernel path: what its program leaves to Linux ─┘
//! ```
//!
//! On the control thread, so that the mirror, the tables and the trial are of the same moment. Nothing is changed: the
//! trial has copies of what it would mark or count.

mod kernel_path;
mod packet;
mod steering;

use std::net::IpAddr;

use bm_api::request::ExplainQuery;
use bm_api::{Error, Explanation, Fate, Mac, Route, SentFrame, Step, Vlan};
use bm_fastpath::LEFT_TO_LINUX;
use bm_forward::tables::Interface;
use bm_forward::{Disposition, DryRun, Now, Outcome, RouteInfo, Verdict, if_id_of};
use bm_graph::clock_ns;
use bm_stats::Reason;

use super::super::linux_only::About;
use super::Control;
use super::steering::is_linuxs;
use crate::compile::show::explain::{TrialResult as Packet, neighbor, neighbor_address, route_line};
use crate::compile::show::vrf_name;
use packet::{address, from_hex, to_hex};

/// The packet that is explained.
struct Input {
    /// Index of the port, and Linux's of the interface.
    port: u16,
    ifindex: u32,
    frame: Vec<u8>,
}

/// The end of a packet's way, with the reason and both in words.
type End = (Fate, Option<String>, String);

impl Control {
    pub fn explain(&mut self, query: &ExplainQuery) -> Result<Explanation, Error> {
        let input = self.input(query)?;
        let mut trial = match self.trial.take() {
            Some(trial) => trial,
            None => DryRun::new().map_err(Error::new)?,
        };
        let now = Now { monotonic_ns: clock_ns(), ..Now::default() };
        let mirror = self.watch.mirror();
        let tried = self.compiler.try_frame(mirror, &mut trial, input.port, &input.frame, now);
        self.trial = Some(trial);
        self.explained(&input, &tried?)
    }

    /// The packet of a query, and where it arrives.
    fn input(&self, query: &ExplainQuery) -> Result<Input, Error> {
        if let Some(hex) = &query.frame {
            let Some(port) = &query.port else {
                return Err(Error::new("the frame arrives on no port").hint(self.choose_port()));
            };
            let (own, frame) = (self.interface_called(port)?, from_hex(hex)?);
            return Ok(Input { port: own.port, ifindex: own.ifindex, frame });
        }
        let Some(to) = &query.to else {
            return Err(Error::new("no packet to explain").hint("give a destination address, or a frame"));
        };
        let to = address("to", to)?;
        let from = query.from.as_deref().map(|from| address("from", from)).transpose()?;
        if let Some(from) = from.filter(|from| from.is_ipv4() != to.is_ipv4()) {
            return Err(Error::new(format_args!("{from} and {to} are not of the same family")));
        }
        let own = match (&query.port, from) {
            (Some(port), _) => self.interface_called(port)?,
            (None, Some(from)) => self.interface_towards(from, query.vrf.as_deref())?,
            (None, None) => self.interface_beside(to, query.vrf.as_deref())?,
        };
        let source = from.or_else(|| neighbor_address(own, to.is_ipv6())).ok_or_else(|| {
            Error::new(format_args!("{} has no network from which a packet to {to} may come", own.name))
                .hint("give its source with --from")
        })?;
        let known = self.watch.mirror().neighbor(own.ifindex, source).and_then(|neighbor| neighbor.mac);
        let packet = packet::packet(query, source, to)?;
        // The router does not look at the source MAC.
        let frame = packet::frame(own.mac, known.unwrap_or([2, 0, 0, 0, 0, 0]), own.vlan, &packet);
        Ok(Input { port: own.port, ifindex: own.ifindex, frame })
    }

    /// All our interfaces that exist.
    fn own_interfaces(&self) -> impl Iterator<Item = &Interface> {
        let ports = 0..self.ports.len() as u16;
        ports.flat_map(|port| self.compiler.interfaces().of_port(port).map(|(_, own)| own))
    }

    fn choose_port(&self) -> String {
        let names: Vec<&str> = self.ports.iter().map(|port| port.name.as_str()).collect();
        if names.is_empty() {
            "there are no ports".into()
        } else {
            format!("use --in with one of {}", names.join(", "))
        }
    }

    /// The interface with this name, or that of the port with this name.
    fn interface_called(&self, name: &str) -> Result<&Interface, Error> {
        if let Some(own) = self.own_interfaces().find(|own| own.name == name) {
            return Ok(own);
        }
        let Some(port) = self.ports.iter().position(|port| port.name == name) else {
            return Err(Error::new(format_args!("no port is called {name:?}")).hint(self.choose_port()));
        };
        let own = self.compiler.interfaces().of_port(port as u16).map(|(_, own)| own).next();
        own.ok_or_else(|| {
            Error::new(format_args!(
                "port {name} has no interface that routes now: Linux gets what arrives there"
            ))
        })
    }

    /// Whether an interface is in the VRF that was requested; without one, in the main table.
    fn is_in(&self, own: &Interface, vrf: Option<&str>) -> bool {
        let mirror = self.watch.mirror();
        vrf_name(mirror, mirror.table_of(own.ifindex)).as_deref() == vrf
    }

    fn in_vrf(vrf: Option<&str>) -> String {
        vrf.map_or_else(String::new, |vrf| format!(" in VRF {vrf}"))
    }

    /// The interface on the way to an address: where packets from it arrive.
    fn interface_towards(&self, from: IpAddr, vrf: Option<&str>) -> Result<&Interface, Error> {
        let in_vrf = self.own_interfaces().find(|own| self.is_in(own, vrf));
        let route =
            in_vrf.map(|own| self.compiler.route_to(self.watch.mirror(), own.ifindex, from)).transpose()?;
        let out = route.flatten().and_then(|route| route.hops.first().map(|hop| hop.ifindex));
        out.and_then(|out| self.compiler.interfaces().by_ifindex(out)).ok_or_else(|| {
            let where_ = Self::in_vrf(vrf);
            Error::new(format_args!(
                "no route to {from} leaves by a port{where_}, so its packets may arrive on any"
            ))
            .hint(self.choose_port())
        })
    }

    /// An interface other than that on the way to an address.
    fn interface_beside(&self, to: IpAddr, vrf: Option<&str>) -> Result<&Interface, Error> {
        let leaves = self.interface_towards(to, vrf).ok().map(|own| own.ifindex);
        let up = self.own_interfaces().filter(|own| own.up && self.is_in(own, vrf));
        let fitting: Vec<_> = up.filter(|own| neighbor_address(own, to.is_ipv6()).is_some()).collect();
        let other = fitting.iter().find(|own| Some(own.ifindex) != leaves);
        other.or(fitting.first()).copied().ok_or_else(|| {
            let where_ = Self::in_vrf(vrf);
            Error::new(format_args!("no port{where_} has a network from which a packet to {to} may come"))
                .hint(self.choose_port())
        })
    }

    fn explained(&self, input: &Input, tried: &Packet) -> Result<Explanation, Error> {
        if let Some((cause, why)) = self.left_by_steering(input) {
            // Nothing else sees it.
            let steps =
                vec![step("result", format!("given to Linux by the program on the port: {why} ({cause})"))];
            return Ok(Explanation {
                fate: Fate::Linux,
                reason: Some(cause.into()),
                steps,
                ..self.arrived(input)
            });
        }
        let mirror = self.watch.mirror();
        let Packet { outcome, tables } = tried;
        let port = self.ports.get(usize::from(input.port));
        let claim = self.compiler.claim_on(outcome).filter(|_| port.is_some_and(|port| port.in_kernel));
        let in_kernel = claim.is_none() && port.is_some_and(|port| port.in_kernel);
        let is_dropped = matches!(outcome.filtered, Some(bm_forward::filter::FilterVerdict::Drop(_)));
        let mut steps = vec![step("filters", self.compiler.filters_on(outcome))];
        steps.extend(claim.map(|claim| step("claim", claim)));
        let mut route = None;
        if !is_dropped {
            steps.push(step("linux", self.linux_rules(input, tried)));
        }
        let is_routed = !is_dropped && outcome.verdict != Some(Verdict::LinuxOnly);
        if let Some(routed) = outcome.routed.as_ref().filter(|_| is_routed) {
            route = self.compiler.route_to(mirror, input.ifindex, routed.destination)?;
            if let Some(route) = &route {
                steps.push(step("route", route_line(mirror, route, routed.destination)));
                let member = self.compiler.member(mirror, routed, route);
                steps.extend(member.map(|member| step("next hop", member)));
            }
            steps.extend(neighbor(mirror, tables, routed).map(|neighbor| step("neighbor", neighbor)));
            steps.extend(self.compiler.mtu_of(tried, routed).map(|mtu| step("mtu", mtu)));
        }
        let cause = if in_kernel && !is_dropped { self.left_by_kernel(input, outcome) } else { None };
        let sent: Vec<SentFrame> = match cause {
            Some(_) => Vec::new(),
            None => outcome.sent.iter().map(|(port, frame)| self.sent(*port, frame)).collect(),
        };
        let (fate, reason, result) = match cause {
            Some(cause) => left_to_linux(cause),
            None => self.end_of(outcome, route.as_ref(), &sent),
        };
        steps.push(step("result", result));
        let path = if in_kernel { "kernel" } else { "user" }.into();
        Ok(Explanation { path, steps, route, fate, reason, sent, ..self.arrived(input) })
    }

    /// A packet of workers, and where it arrives.
    fn arrived(&self, input: &Input) -> Explanation {
        let link = self.watch.mirror().link(input.ifindex);
        Explanation {
            frame: to_hex(&input.frame),
            port: self.ports.get(usize::from(input.port)).map_or_else(String::new, |port| port.name.clone()),
            interface: link.map_or_else(String::new, |link| link.name.to_string()),
            path: "user".into(),
            ..Explanation::default()
        }
    }

    /// Why the program on a port of workers leaves a packet to Linux.
    fn left_by_steering(&self, input: &Input) -> Option<(&'static str, &'static str)> {
        let port = self.ports.get(usize::from(input.port))?;
        if port.in_kernel || !port.steering.has_kernel_program() {
            return None;
        }
        if !self.active || self.workers_rest {
            return Some(("inactive", "its workers are being started"));
        }
        let macs: Vec<_> = self.compiler.interfaces().of_port(input.port).map(|(_, own)| own.mac).collect();
        let routes = self.last_steering.as_ref().map_or(&[][..], |last| last.routes());
        steering::cause(&input.frame, &macs, |to| self.is_steered_local(to), |to| is_linuxs(routes, to))
    }

    /// Whether steering programs leave packets to an address to Linux, since it is one of this machine. With IPsec policies
    /// for what arrives they do not: workers look these up for such packets, too.
    fn is_steered_local(&self, to: IpAddr) -> bool {
        !self.checks_arrivals && self.watch.mirror().all_addresses().any(|address| address.local == to)
    }

    /// Whether only Linux may handle the packet.
    fn linux_rules(&self, input: &Input, tried: &Packet) -> String {
        let Packet { outcome, tables } = tried;
        if self.leases.has_reasons() || !tables.lease.is_valid(clock_ns()) {
            return "all packets are left to Linux until the tables are up to date".into();
        }
        let out = outcome.routed.and_then(|routed| routed.neighbor).map(|(out, _)| usize::from(out));
        let out = out.and_then(|out| tables.interfaces.get(out)).map(|out| out.ifindex);
        let network = bm_wire::ethernet::Ethernet::parse(&input.frame[..]).ok();
        let network = network.and_then(|ethernet| ethernet.network().ok()).map(|network| network.offset);
        let packet = network.and_then(|network| input.frame.get(network..)).unwrap_or(&[]);
        let said = self.linux_only.about_packet(self.watch.mirror(), packet, input.ifindex, out);
        match (said, outcome.verdict) {
            (Some(About::Applies(said)), _) => said,
            (_, Some(Verdict::LinuxOnly)) => "only Linux may handle it".into(),
            (Some(About::Bypassed(said)), _) => said,
            (None, _) => "no firewall rule, IPsec policy or traffic control concerns it".into(),
        }
    }

    /// Why the kernel path leaves a packet to Linux.
    fn left_by_kernel(&self, input: &Input, outcome: &Outcome) -> Option<&'static str> {
        let action = outcome.routed.map(|routed: RouteInfo| self.compiler.action_of(&routed));
        let kernel = self.kernel.as_ref()?;
        kernel_path::cause(&kernel_path::Input {
            outcome,
            frame: &input.frame,
            action: action.unwrap_or(bm_fib::next_hop::Action::None),
            interfaces: kernel.interfaces(),
            unattended: self.leases.has_reasons(),
        })
    }

    fn sent(&self, port: u16, frame: &[u8]) -> SentFrame {
        let [to, from] =
            [0, 6].map(|at| frame.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default());
        let tag = bm_wire::ethernet::Ethernet::parse(frame).ok().and_then(|ethernet| ethernet.tag());
        let name = match self.ports.get(usize::from(port)) {
            Some(port) => port.name.clone(),
            None => self.ipsec_interface(port, frame).unwrap_or_default(),
        };
        SentFrame {
            port: name,
            to: Mac(to),
            from: Mac(from),
            vlan: tag.map(|tag| Vlan { protocol: tag.protocol, id: tag.vid }),
            frame: to_hex(frame),
        }
    }

    /// The name of the IPsec interface by which a frame leaves, if it leaves by one.
    fn ipsec_interface(&self, port: u16, frame: &[u8]) -> Option<String> {
        let if_id = if_id_of(frame);
        let own = self.compiler.ipsec_interfaces().find(|own| own.port == port && own.if_id == if_id);
        own.map(|own| own.name.clone())
    }

    /// What the router does with a packet in the end.
    fn end_of(&self, outcome: &Outcome, route: Option<&Route>, sent: &[SentFrame]) -> End {
        let error = sent.first().map_or_else(String::new, |sent| {
            format!("; an ICMP error about it is sent out of {}", sent.port)
        });
        match outcome.fate {
            Disposition::Sent => {
                let by = outcome.sent.first().and_then(|(port, frame)| self.ipsec_interface(*port, frame));
                let text = by.map(|by| format!("sent by the IPsec interface {by}"));
                (Fate::Sent, None, text.unwrap_or_else(|| sent_line(sent)))
            }
            Disposition::Linux => {
                (Fate::Linux, None, format!("given to Linux: {}", why_linux(outcome, route)))
            }
            Disposition::Held { ifindex, neighbor } => {
                let link = self.watch.mirror().link(ifindex);
                let on = link.map_or_else(String::new, |link| format!(" on {}", link.name));
                let text = format!(
                    "held until {neighbor}{on} answers, then sent; dropped after 3 seconds without an answer"
                );
                (Fate::Held, None, text)
            }
            Disposition::Dropped(Reason::Filter) => {
                (Fate::Dropped, Some(reason_name(Reason::Filter)), "dropped by a filter (filter)".into())
            }
            Disposition::Dropped(reason) => {
                let text = format!("dropped: {} ({}){error}", reason.meaning(), reason.name());
                (Fate::Dropped, Some(reason_name(reason)), text)
            }
        }
    }
}

fn reason_name(reason: Reason) -> String {
    reason.name().into()
}

fn step(step: &str, text: String) -> Step {
    Step { step: step.into(), text }
}

fn left_to_linux(cause: &'static str) -> End {
    let meaning = LEFT_TO_LINUX.iter().find(|(name, _)| *name == cause).map_or(cause, |(_, meaning)| meaning);
    (Fate::Linux, Some(cause.into()), format!("left to Linux: {meaning} ({cause})"))
}

fn sent_line(sent: &[SentFrame]) -> String {
    let Some(SentFrame { port, to, from, vlan, .. }) = sent.first() else { return "sent".into() };
    let vlan = vlan.map_or_else(String::new, |vlan| format!(", with VLAN {}", vlan.id));
    let pieces = if sent.len() > 1 { format!(" in {} fragments", sent.len()) } else { String::new() };
    format!("sent out of {port}{pieces} to {to}, from {from}{vlan}")
}

/// Why workers give a packet to Linux.
fn why_linux(outcome: &Outcome, route: Option<&Route>) -> String {
    match (outcome.verdict, route) {
        (Some(Verdict::LinuxOnly), _) => "only Linux may handle it".into(),
        (_, Some(Route { reason: Some(reason), .. })) => reason.clone(),
        (_, Some(Route { kind, .. })) if kind == "local" => "it is to this machine".into(),
        (_, Some(Route { kind, action: bm_api::Action::Host, .. })) => format!("its route is of type {kind}"),
        (Some(Verdict::Host | Verdict::LinkGroup), _) => {
            "it is for a group, is not IP, has an unknown VLAN, or arrives where forwarding is off".into()
        }
        (Some(Verdict::Options | Verdict::HopByHop), _) => {
            "it has an option for Linux, such as a Router Alert".into()
        }
        (Some(Verdict::SourceScope), _) => "its source is only valid on its own link".into(),
        _ => "it sends the ICMP error, which its firewall may change or drop".into(),
    }
}

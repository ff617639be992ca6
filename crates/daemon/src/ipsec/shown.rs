//! What `show sas` and `show policies` say.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bm_api::{IpsecPolicies, IpsecPolicy, Sas};
use bm_forward::SaStatus;
use bm_graph::clock_ns;
use bm_ipsec::{Action, Direction, Expiry, Mark, Mode, Numbers, Policy, Sa, SaId};

use super::Ipsec;
use super::live::LiveSa;

/// The state of an SA without a sequence number left.
const EXHAUSTED: &str = "exhausted";

impl Ipsec {
    /// The name of the interface with this number, as it is shown.
    pub(super) fn interface_name(&self, if_id: u32) -> String {
        if if_id == 0 {
            return String::new();
        }
        let configured = self.config.interface(if_id).map(|own| own.device.clone());
        let named = configured.or_else(|| self.xfrm_interfaces.get(&if_id).cloned());
        named.unwrap_or_else(|| format!("if_id:{if_id}"))
    }

    /// Whether an interface is one of IPsec.
    pub(super) fn is_interface(&self, name: &str) -> bool {
        self.config.interfaces.iter().any(|own| own.device == name)
            || self.xfrm_interfaces.values().any(|own| own == name)
    }

    /// Notes the names of XFRM interfaces, by their numbers.
    pub fn name_interfaces(&mut self, xfrm_interfaces: BTreeMap<u32, String>) {
        self.xfrm_interfaces = xfrm_interfaces;
    }

    /// The SAs, for `show sas`.
    pub fn sas(&self) -> Sas {
        let sas = self.config.sas.iter().zip(&self.config.names).zip(&self.known);
        let shown = |sa: &Sa, name: &str, worker, status: &SaStatus| bm_api::Sa {
            interface: self.interface_name(sa.if_id),
            ..shown(sa, name, worker, status)
        };
        let configured = sas.map(|((sa, name), known)| {
            let mut sa = shown(sa, name, known.worker, &known.status);
            if known.is_spare && sa.packets == 0 && sa.state == "valid" {
                sa.state = "idle".into();
            }
            sa
        });
        let live = self
            .live
            .sas
            .iter()
            .map(|LiveSa { sa, worker, status, .. }| shown(sa, &name_of(sa.reqid), *worker, status));
        Sas { sas: configured.chain(live).collect() }
    }

    /// The policies, for `show policies`, in the order of their priorities.
    pub fn policies(&self) -> IpsecPolicies {
        let mut policies: Vec<&Policy> =
            self.config.policies.iter().chain(self.live.policies.values()).collect();
        policies.sort_by_key(|policy| (policy.direction as u8, policy.priority));
        IpsecPolicies { policies: policies.into_iter().map(|policy| self.policy(policy)).collect() }
    }

    pub(super) fn policy(&self, policy: &Policy) -> IpsecPolicy {
        let selector = &policy.selector;
        let action = match policy.action {
            Action::Discard => "discard",
            Action::Bypass => "bypass",
            Action::Protect(_) | Action::OneOf(_) | Action::Template(..) => "protect",
        };
        let sas = match policy.action {
            Action::Discard | Action::Bypass => Vec::new(),
            Action::Protect(id) => vec![self.name_of_configured(id)],
            Action::OneOf(list) => {
                let list = self.config.lists.get(list as usize);
                list.into_iter().flatten().map(|id| self.name_of_configured(*id)).collect()
            }
            Action::Template(_, template) => vec![name_of(template.reqid)],
        };
        IpsecPolicy {
            direction: direction(policy.direction).into(),
            priority: policy.priority,
            interface: self.interface_name(policy.if_id),
            source: selector.source.map_or_else(|| "any".into(), |prefix| prefix.to_string()),
            destination: selector.destination.map_or_else(|| "any".into(), |prefix| prefix.to_string()),
            protocol: selector.protocol,
            source_ports: port_range(selector.source_ports.as_ref()),
            destination_ports: port_range(selector.destination_ports.as_ref()),
            action: action.into(),
            sa: sas.first().cloned().unwrap_or_default(),
            sas,
            mark: (selector.mark != Mark::default()).then(|| selector.mark.to_string()),
        }
    }

    /// The outbound SAs without a sequence number left, a note about each.
    pub fn exhausted(&self) -> Vec<String> {
        let sas = self.sas().sas.into_iter().filter(|sa| sa.state == EXHAUSTED);
        sas.map(|sa| {
            format!(
                "SA {} (SPI {:#010x} to {}) has used all of its sequence numbers, so it sends nothing: give it new keys on both ends",
                sa.name, sa.spi, sa.destination
            )
        })
        .collect()
    }

    /// The name of an SA of the configuration.
    pub(super) fn name_of_configured(&self, id: SaId) -> String {
        let at = self.config.sas.iter().position(|sa| sa.id() == id);
        at.and_then(|at| self.config.names.get(at)).cloned().unwrap_or_default()
    }
}

pub fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Out => "out",
        Direction::In => "in",
    }
}

/// The name of SAs and policies that a program has added with this number.
pub fn name_of(reqid: u32) -> String {
    format!("reqid:{reqid}")
}

fn shown(sa: &Sa, name: &str, worker: usize, status: &SaStatus) -> bm_api::Sa {
    let path_mtu = Some(status.path_mtu(clock_ns())).filter(|mtu| *mtu < u16::MAX);
    let status = status.read();
    bm_api::Sa {
        name: name.into(),
        direction: direction(sa.direction).into(),
        spi: sa.spi,
        source: sa.source.to_string(),
        destination: sa.destination.to_string(),
        mode: if sa.mode == Mode::Tunnel { "tunnel" } else { "transport" }.into(),
        interface: String::new(),
        suite: sa.suite.name().into(),
        library: bm_ipsec::library(sa.suite, sa.direction),
        worker: worker as u32,
        cpu: sa.cpu,
        handed: status.handed,
        packets: status.used.packets,
        bytes: status.used.bytes,
        failures: status.failures,
        sequence: status.number,
        path_mtu,
        age_s: status.used.age_ns(clock_ns()) / 1_000_000_000,
        state: match status.expiry {
            Some(Expiry::Hard) => "expired",
            _ if is_used_up(sa, status.number) => EXHAUSTED,
            Some(Expiry::Soft) => "expiring",
            None => "valid",
        }
        .into(),
    }
}

/// Whether there is no sequence number left, where `next` is the next one.
fn is_used_up(sa: &Sa, next: u64) -> bool {
    sa.direction == Direction::Out && Numbers::is_past_last(next, sa.esn)
}

/// A range of ports as `FIRST-LAST`; empty for all ports.
fn port_range(ports: Option<&RangeInclusive<u16>>) -> String {
    ports.map_or(String::new(), |ports| format!("{}-{}", ports.start(), ports.end()))
}

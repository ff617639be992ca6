//! IPsec interfaces: the links to which workers send by encrypting, and on which arrives what they decrypt.
//!
//! They are those of the configuration (TUN or dummy devices) and XFRM interfaces. All have one port without a
//! device, which comes after all others. A link that cannot be used is left to Linux, with the reason.

use std::collections::BTreeSet;
use std::fmt;

use bm_forward::tables::{Interface, PortInterfaces, ipsec_mac};
use bm_netlink::route::TABLE_MAIN;
use bm_netlink::{Kind, Link, Mirror};
use bm_wire::Vlan;

use super::Compiler;
use super::interfaces::{Interfaces, interface, is_of_port, is_routed};
use crate::config::Config;

/// Tags by which the router tells what arrives on which interface; one interface has none.
const TAG_PROTOCOLS: [u16; 2] = [0x8100, 0x88a8];
const TAG_MAX: u16 = 4094;

/// Which links are IPsec interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpsecDevices {
    /// As in the configuration, by name, each with its number.
    pub configured: Vec<(String, u32)>,
}

impl IpsecDevices {
    /// As a configuration says; `None` without IPsec.
    pub fn of(config: &Config) -> Option<Self> {
        let configured = config.ipsec.interfaces.iter().map(|own| (own.device.clone(), own.if_id));
        (!config.ipsec.is_empty()).then(|| Self { configured: configured.collect() })
    }
}

/// Why a link is no IPsec interface, or none that packets can be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IpsecFault {
    name: String,
    why: String,
    /// It is an interface, and will send when it is up: a TUN device has carrier once the daemon has opened it.
    pub is_down: bool,
}

impl fmt::Display for IpsecFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPsec interface {}: {}", self.name, self.why)
    }
}

/// The links that are, with their numbers, and why others are not.
#[derive(Default)]
pub(super) struct IpsecLinks<'m> {
    pub links: Vec<(&'m Link, u32)>,
    faults: Vec<IpsecFault>,
}

impl<'m> IpsecLinks<'m> {
    fn add(&mut self, mirror: &Mirror, link: &'m Link, if_id: u32, is_port: &dyn Fn(u32) -> bool) {
        let same = self.links.iter().find(|(_, other)| *other == if_id).map(|(other, _)| &other.name);
        match unfit(mirror, link, if_id, is_port) {
            Some(why) => self.add_fault(&link.name, why),
            None => match same {
                Some(same) => self.add_fault(
                    &link.name,
                    format!(
                        "{same} has the same if_id {if_id}, and comes first: its packets are left to Linux"
                    ),
                ),
                None => self.links.push((link, if_id)),
            },
        }
    }

    fn add_fault(&mut self, name: &str, why: impl Into<String>) {
        self.faults.push(IpsecFault { name: name.into(), why: why.into(), is_down: false });
    }
}

impl IpsecDevices {
    /// Those that exist; `is_port` says which links are ports, or VLANs on ports.
    pub(super) fn find<'m>(&self, mirror: &'m Mirror, is_port: &dyn Fn(u32) -> bool) -> IpsecLinks<'m> {
        let mut found = IpsecLinks::default();
        for (name, if_id) in &self.configured {
            match mirror.link_named(name) {
                Some(link) => found.add(mirror, link, *if_id, is_port),
                None => found.add_fault(
                    name,
                    format!("there is no interface of this name: `ip tuntap add {name} mode tun` makes one"),
                ),
            }
        }
        for link in mirror.links() {
            let is_configured = self.configured.iter().any(|(name, _)| **name == *link.name);
            if let Kind::Xfrm { if_id: if_id @ 1.. } = link.kind
                && !is_configured
            {
                found.add(mirror, link, if_id, is_port);
            }
        }
        found
    }
}

/// Why a link cannot be the IPsec interface with this number.
fn unfit(mirror: &Mirror, link: &Link, if_id: u32, is_port: &dyn Fn(u32) -> bool) -> Option<String> {
    let lower = link.lower.and_then(|lower| mirror.link(lower));
    Some(match &link.kind {
        _ if is_port(link.ifindex) => "it is a port, or a VLAN on one: use an interface of its own".into(),
        _ if link.loopback() => "it is the loopback: use an interface of its own".into(),
        Kind::Vrf { .. } | Kind::Bridge => format!("it is a {}: use an interface of its own", link.kind),
        _ if !is_routed(mirror, link) => "it is in a bridge or a bond: take it out".into(),
        Kind::Xfrm { if_id: own } if *own != if_id => {
            format!("it has if_id {own}, the configuration says {if_id}: its packets are left to Linux")
        }
        Kind::Xfrm { .. } if link.lower_namespace.is_some() => {
            "its SAs are in another network namespace: its packets are left to Linux".into()
        }
        Kind::Xfrm { .. } if lower.is_some_and(|lower| mirror.table_of(lower.ifindex) != TABLE_MAIN) => {
            "its ESP packets leave in a VRF: its packets are left to Linux".into()
        }
        Kind::Xfrm { .. } => return None,
        // What Linux sends by these is dropped, or the daemon gets it.
        Kind::Other(kind) if ["tun", "dummy"].contains(&&**kind) => return None,
        other => format!(
            "it is of kind {other}, by which Linux sends packets in clear: use an XFRM interface or a TUN device (ip tuntap add {} mode tun)",
            link.name
        ),
    })
}

/// Why nothing can be sent to a link now.
fn silent(link: &Link) -> Option<&'static str> {
    match (link.up(), link.carrier()) {
        (true, true) => None,
        (true, false) => Some("it has no carrier"),
        (false, _) => Some("it is down"),
    }
}

impl Interfaces {
    /// Adds the IPsec interfaces, with their port. `before` has their indexes and tags, `free` indexes that are free.
    pub(super) fn add_ipsec(
        &mut self,
        before: &Self,
        mirror: &Mirror,
        links: &[(&Link, u32)],
        free: &mut Vec<u16>,
        vrf_of: impl Fn(u32) -> u16,
    ) {
        let port = self.ports.len() as u16;
        let known = before.ports.get(usize::from(port));
        // A tag that was released in this round may still be on its way.
        let mut tags: BTreeSet<Option<Vlan>> =
            known.iter().flat_map(|known| known.tagged.iter().map(|(tag, _)| Some(*tag))).collect();
        tags.extend(known.and_then(|known| known.untagged).map(|_| None));
        let mut of_port = PortInterfaces::default();
        for (link, if_id) in links {
            let own = before.by_ifindex(link.ifindex);
            let tag = own.filter(|own| own.if_id == *if_id && own.port == port).map(|own| own.vlan);
            let Some(tag) = tag.or_else(|| free_tag(&tags)) else { continue };
            let vrf = vrf_of(mirror.table_of(link.ifindex));
            let new = Interface {
                vlan: tag,
                if_id: *if_id,
                mac: ipsec_mac(*if_id),
                ..interface(mirror, link, port, vrf)
            };
            let Some(at) = self.place(before, link.ifindex, new, free) else { continue };
            tags.insert(tag);
            match tag {
                Some(tag) => of_port.tagged.push((tag, at)),
                None => of_port.untagged = Some(at),
            }
        }
        self.ports.push(of_port);
    }
}

/// A tag that no interface has; the first one has none.
fn free_tag(used: &BTreeSet<Option<Vlan>>) -> Option<Option<Vlan>> {
    let tags = TAG_PROTOCOLS
        .into_iter()
        .flat_map(|protocol| (1..=TAG_MAX).map(move |id| Some(Vlan { protocol, id })));
    std::iter::once(None).chain(tags).find(|tag| !used.contains(tag))
}

impl Compiler {
    /// Sets which links are IPsec interfaces; `None` without IPsec. Takes effect with the next [`Self::apply`].
    pub fn set_ipsec(&mut self, devices: Option<IpsecDevices>) {
        self.reshape |= self.ipsec != devices;
        self.ipsec = devices;
    }

    /// Whether there is a port for IPsec interfaces.
    pub fn has_ipsec(&self) -> bool {
        self.ipsec.is_some()
    }

    /// What keeps links from being IPsec interfaces, or from sending.
    pub(crate) fn ipsec_faults(&self, mirror: &Mirror) -> Vec<IpsecFault> {
        let Some(devices) = &self.ipsec else { return Vec::new() };
        let mut found = devices.find(mirror, &|ifindex| is_of_port(mirror, &self.ports, ifindex));
        for (link, _) in std::mem::take(&mut found.links) {
            match self.interfaces().by_ifindex(link.ifindex) {
                Some(_) => found.faults.extend(silent(link).map(|why| {
                    let (name, why) = (link.name.as_ref().into(), why.into());
                    IpsecFault { name, why, is_down: true }
                })),
                None => found.add_fault(&link.name, "there are too many: its packets are left to Linux"),
            }
        }
        found.faults
    }

    /// The links of IPsec interfaces, with their numbers; `None` without IPsec.
    pub(super) fn ipsec_links<'m>(&self, mirror: &'m Mirror) -> Option<Vec<(&'m Link, u32)>> {
        let devices = self.ipsec.as_ref()?;
        Some(devices.find(mirror, &|ifindex| is_of_port(mirror, &self.ports, ifindex)).links)
    }

    /// Those that packets can be sent to or arrive on, whether they are up or not.
    pub(crate) fn ipsec_interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces().list.iter().filter(|own| own.if_id != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_interface_has_no_tag_and_tags_are_not_used_twice() {
        let mut used = BTreeSet::new();
        for number in 0..2 * usize::from(TAG_MAX) + 1 {
            let tag = free_tag(&used).unwrap();
            assert_eq!(tag.is_none(), number == 0);
            assert!(used.insert(tag));
        }
        assert_eq!(free_tag(&used), None);
    }
}

//! The interfaces of this network namespace, as rules name them.

use bm_netlink::link::{Kind, Link};
use bm_netlink::message::Message;
use std::collections::BTreeMap;

/// How a rule names an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Device {
    /// By its number.
    Index(u32),
    /// By its full name.
    Name(Box<str>),
}

/// What such a name currently refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedInterface {
    /// This interface.
    Index(u32),
    /// No interface: nothing comes in or leaves there.
    Nothing,
    /// More than one interface: a VRF, under whose name the packets of all its members appear.
    Several,
}

/// The interfaces.
#[derive(Debug, Default)]
pub(super) struct Names {
    links: BTreeMap<u32, Link>,
    by_name: BTreeMap<Box<str>, u32>,
}

impl Names {
    /// Takes in an event or a piece of a dump. Returns whether anything changed that matters here.
    pub fn apply(&mut self, message: Message) -> bool {
        match message {
            Message::Link(link) => self.put(link),
            Message::LinkGone(ifindex) => self.remove(ifindex),
            _ => false,
        }
    }

    fn put(&mut self, link: Link) -> bool {
        let is_same = self.links.get(&link.ifindex).is_some_and(|old| {
            (&old.name, &old.kind, old.master, old.lower, old.lower_namespace)
                == (&link.name, &link.kind, link.master, link.lower, link.lower_namespace)
        });
        if is_same {
            return false;
        }
        self.remove(link.ifindex);
        self.by_name.insert(link.name.clone(), link.ifindex);
        self.links.insert(link.ifindex, link);
        true
    }

    fn remove(&mut self, ifindex: u32) -> bool {
        let Some(link) = self.links.remove(&ifindex) else { return false };
        if self.by_name.get(&link.name) == Some(&ifindex) {
            self.by_name.remove(&link.name);
        }
        true
    }

    /// What an interface name in a rule refers to.
    pub fn find(&self, device: &Device) -> NamedInterface {
        let ifindex = match device {
            Device::Index(ifindex) => Some(*ifindex),
            Device::Name(name) => self.by_name.get(name).copied(),
        };
        match ifindex.and_then(|ifindex| self.links.get(&ifindex)) {
            None => NamedInterface::Nothing,
            Some(link) if matches!(link.kind, Kind::Vrf { .. }) => NamedInterface::Several,
            Some(link) => NamedInterface::Index(link.ifindex),
        }
    }

    /// The name of an interface, or its number where it has none any more.
    pub fn name(&self, ifindex: u32) -> String {
        self.links
            .get(&ifindex)
            .map_or_else(|| format!("interface {ifindex}"), |link| String::from(&*link.name))
    }

    /// The XFRM interfaces with this number.
    pub(crate) fn with_if_id(&self, if_id: u32) -> impl Iterator<Item = u32> + '_ {
        self.links.values().filter(move |link| link.kind == Kind::Xfrm { if_id }).map(|link| link.ifindex)
    }

    /// Whether there is such an interface.
    pub fn has(&self, ifindex: u32) -> bool {
        self.links.contains_key(&ifindex)
    }

    /// The interfaces with greater numbers than this, in order.
    pub fn after(&self, ifindex: u32) -> impl Iterator<Item = u32> + '_ {
        self.links.range(ifindex + 1..).map(|(&ifindex, _)| ifindex)
    }

    /// An interface, and those whose packets pass through it: VLANs on it, its bond or bridge, and so on upwards.
    pub(crate) fn with_uppers(&self, ifindex: u32) -> Vec<u32> {
        let mut found = vec![ifindex];
        let mut next = 0;
        while let Some(&lower) = found.get(next) {
            next += 1;
            let mut uppers: Vec<u32> = self
                .links
                .values()
                .filter(|link| {
                    link.lower == Some(lower) && link.lower_namespace.is_none() && link.kind != Kind::Veth
                })
                .map(|link| link.ifindex)
                .collect();
            let master = self.links.get(&lower).and_then(|link| link.master);
            uppers.extend(master.filter(|master| {
                self.links.get(master).is_none_or(|link| !matches!(link.kind, Kind::Vrf { .. }))
            }));
            uppers.retain(|upper| !found.contains(upper));
            found.append(&mut uppers);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(ifindex: u32, name: &str, kind: Kind) -> Link {
        Link { ifindex, name: name.into(), kind, ..Link::default() }
    }

    fn names(links: impl IntoIterator<Item = Link>) -> Names {
        let mut names = Names::default();
        for link in links {
            assert!(names.apply(Message::Link(link)));
        }
        names
    }

    #[test]
    fn names_are_found_until_changed_or_removed() {
        let mut names = names([link(1, "lo", Kind::Device), link(2, "r0", Kind::Veth)]);
        let r0 = Device::Name("r0".into());
        assert_eq!(names.find(&r0), NamedInterface::Index(2));
        assert!(!names.apply(Message::Link(Link { mtu: 9000, ..link(2, "r0", Kind::Veth) })));
        assert!(names.apply(Message::Link(link(2, "r9", Kind::Veth))));
        assert_eq!(names.find(&r0), NamedInterface::Nothing);
        assert_eq!(names.find(&Device::Name("r9".into())), NamedInterface::Index(2));
        assert!(names.apply(Message::LinkGone(2)) && !names.apply(Message::LinkGone(2)));
        assert_eq!(names.find(&Device::Index(2)), NamedInterface::Nothing);
    }

    #[test]
    fn two_interfaces_may_swap_names() {
        let mut names = names([link(2, "a", Kind::Veth), link(3, "b", Kind::Veth)]);
        for step in [link(2, "c", Kind::Veth), link(3, "a", Kind::Veth), link(2, "b", Kind::Veth)] {
            names.apply(Message::Link(step));
        }
        assert_eq!(names.find(&Device::Name("a".into())), NamedInterface::Index(3));
        assert_eq!(names.find(&Device::Name("b".into())), NamedInterface::Index(2));
        assert_eq!(names.find(&Device::Name("c".into())), NamedInterface::Nothing);
    }

    #[test]
    fn a_vrf_matches_its_members() {
        let names = names([link(5, "red", Kind::Vrf { table: 10 })]);
        assert_eq!(names.find(&Device::Name("red".into())), NamedInterface::Several);
    }

    #[test]
    fn packets_of_vlans_bonds_and_bridges_pass_through_the_interfaces_below() {
        let vlan = Kind::Vlan { id: 5, protocol: 0x8100 };
        let names = names([
            Link { master: Some(7), ..link(2, "e0", Kind::Device) },
            Link { master: Some(8), ..link(3, "e1", Kind::Device) },
            Link { lower: Some(2), ..link(4, "v", Kind::Veth) },
            Link { lower: Some(2), lower_namespace: Some(0), ..link(5, "far", vlan.clone()) },
            link(7, "bond0", Kind::Other("bond".into())),
            link(8, "red", Kind::Vrf { table: 10 }),
            Link { lower: Some(7), ..link(9, "bond0.5", vlan) },
        ]);
        assert_eq!(names.with_uppers(2), [2, 7, 9]);
        assert_eq!(names.with_uppers(3), [3]);
        assert_eq!(names.with_uppers(9), [9]);
    }
}

//! Traffic control: configured queueing disciplines, and filters and BPF programs at an interface's ingress and
//! egress.
//!
//! A root qdisc that the kernel created by itself has no handle and does not matter, nor does `noqueue`, whoever created
//! it (libvirt does for TAP devices); any other delays or drops packets that leave. `clsact` and `ingress` have an effect
//! only if they have a filter.

use super::Feature;
use super::entries::Entries;
use super::names::Names;
use super::part::{Part, Unreadable};
use bm_netlink::attribute::{self, Attributes};
use bm_netlink::dump::{self, Dumped};
use bm_netlink::error::{Error, Malformed};
use bm_netlink::message::Raw;
use bm_netlink::socket::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

/// Attribute with the name of a kind.
const KIND: u16 = 1;
/// Fixed part of a message: `struct tcmsg`.
const HEADER: usize = 20;
/// Handle of `clsact` and `ingress`, and where their filters hang.
const CLSACT: u32 = 0xffff_fff1;
const INGRESS_FILTERS: u32 = 0xffff_fff2;
const EGRESS_FILTERS: u32 = 0xffff_fff3;

/// Whether a message is about a change of a qdisc or a filter.
pub(super) fn is_event(raw: &Raw<'_>) -> bool {
    (libc::RTM_NEWQDISC..=libc::RTM_GETTFILTER).contains(&raw.kind)
}

/// A qdisc or a filter.
#[derive(Debug, PartialEq, Eq)]
struct Object {
    ifindex: u32,
    handle: u32,
    parent: u32,
    kind: Box<str>,
}

impl Object {
    fn read(raw: &Raw<'_>) -> Result<Self, Malformed> {
        let number = |at: usize| raw.body.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let kind = Attributes::after_header(raw.body, HEADER).find(KIND)?.unwrap_or_default();
        let (Some(ifindex), Some(handle), Some(parent)) = (number(4), number(8), number(12)) else {
            return Err(Malformed::Header { kind: raw.kind, length: raw.body.len() });
        };
        Ok(Self { ifindex, handle, parent, kind: attribute::text(kind) })
    }

    /// Whether it was configured, and affects packets that leave.
    fn shapes(&self) -> bool {
        self.parent != CLSACT && self.handle != 0 && &*self.kind != "noqueue"
    }
}

/// Something that can drop, delay or change packets.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    feature: Feature,
    ifindex: u32,
    /// Whether it sees packets that arrive.
    incoming: bool,
    what: String,
}

/// Qdiscs and filters.
#[derive(Debug, Default)]
pub(super) struct Tc {
    socket: Option<Socket>,
    settings: Vec<Setting>,
}

impl Part for Tc {
    fn feature(&self) -> Feature {
        Feature::Shaping
    }

    fn title(&self) -> &'static str {
        "the list of qdiscs and tc filters"
    }

    fn read(&mut self, _: &Names) -> Result<bool, Unreadable> {
        let socket = self.socket.take().map_or_else(|| dump::open(NETLINK_ROUTE), |socket| Ok(Some(socket)));
        let Some(mut socket) = socket? else { return Ok(false) };
        self.settings = read(&mut socket)?.ok_or(Unreadable::Restless)?;
        self.socket = Some(socket);
        Ok(true)
    }

    fn analyse(&self, names: &Names, entries: &mut Entries) {
        for Setting { feature, ifindex, incoming, what } in &self.settings {
            entries.add_at(*feature, names, *ifindex, *incoming, || {
                format!("{what} on {}", names.name(*ifindex))
            });
        }
    }
}

/// Adds the packets that the qdiscs in these messages affect.
pub(super) fn from_messages(
    messages: &[Raw<'_>],
    names: &Names,
    entries: &mut Entries,
) -> Result<(), Malformed> {
    let mut tc = Tc::default();
    for raw in messages {
        let object = Object::read(raw)?;
        tc.settings.extend(object.shapes().then(|| shaping(&object)));
    }
    tc.analyse(names, entries);
    Ok(())
}

/// How often a list is read again because it changed meanwhile.
const PASSES: u32 = 5;

fn read(socket: &mut Socket) -> Result<Option<Vec<Setting>>, Error> {
    for _ in 0..PASSES {
        let mut objects = Vec::new();
        let dumped = dump::dump(socket, "list qdiscs", libc::RTM_GETQDISC, &[0; HEADER], |raw| {
            objects.push(Object::read(raw)?);
            Ok(())
        })?;
        let mut settings: Vec<_> = objects.iter().filter(|object| object.shapes()).map(shaping).collect();
        for object in objects.iter().filter(|object| object.parent == CLSACT) {
            settings.extend(filter(socket, object, INGRESS_FILTERS)?);
            // `ingress` has that side only, and answers for both.
            if &*object.kind == "clsact" {
                settings.extend(filter(socket, object, EGRESS_FILTERS)?);
            }
        }
        if dumped == Dumped::Whole {
            return Ok(Some(settings));
        }
    }
    Ok(None)
}

fn shaping(qdisc: &Object) -> Setting {
    let what = format!("tc qdisc {}", qdisc.kind);
    Setting { feature: Feature::Shaping, ifindex: qdisc.ifindex, incoming: false, what }
}

/// The first filter at one side of a `clsact` or `ingress`.
fn filter(socket: &mut Socket, qdisc: &Object, parent: u32) -> Result<Option<Setting>, Error> {
    let incoming = parent == INGRESS_FILTERS;
    let mut body = [0; HEADER];
    body[4..8].copy_from_slice(&qdisc.ifindex.to_ne_bytes());
    body[12..16].copy_from_slice(&parent.to_ne_bytes());
    let mut kind = None;
    let dumped = dump::dump(socket, "list tc filters", libc::RTM_GETTFILTER, &body, |raw| {
        kind.get_or_insert(Object::read(raw)?.kind);
        Ok(())
    });
    match dumped {
        // The interface, the qdisc or that side of it is not there (any more).
        Err(error) if matches!(error.errno(), Some(libc::ENODEV | libc::EINVAL | libc::ENOENT)) => Ok(None),
        Err(error) => Err(error),
        Ok(_) => Ok(kind.map(|kind| {
            let side = if incoming { "ingress" } else { "egress" };
            let what = format!("tc filter {kind} at {side}");
            Setting { feature: Feature::TcFilter, ifindex: qdisc.ifindex, incoming, what }
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tc qdisc add dev r2 root tbf rate 1mbit burst 10k latency 50ms`
    const SHAPER: &str = "
        000000000200000000000880ffffffff0300000008000100746266002c00020028000100000100000000000048e8
        01000000000000000000000000006a400000008813000000000005000c0000000000300007001400010000000000
        0000000000000000000000001800030000000000000000000000000000000000000000002c000300000000000000
        00000000000000000000000000000000000000000000000000000000000000000000";
    /// `tc qdisc add dev r clsact`
    const CLSACT_QDISC: &str = "
        00000000030000000000fffff1ffffff010000000b000100636c7361637400000400020005000c00000000003000
        07001400010000000000000000000000000000000000180003000000000000000000000000000000000000000000
        2c00030000000000000000000000000000000000000000000000000000000000000000000000000000000000";
    /// What the kernel gave an interface by itself.
    const DEFAULT: &str = "
        000000000300000000000000ffffffff020000000c0001006e6f71756575650005000c0000000000300007001400
        0100000000000000000000000000000000001800030000000000000000000000000000000000000000002c000300
        00000000000000000000000000000000000000000000000000000000000000000000000000000000";

    fn read(hex: &str) -> Object {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let body: Vec<u8> = digits.chunks(2).map(pair).collect();
        Object::read(&Raw { kind: libc::RTM_NEWQDISC, flags: 0, sequence: 1, port: 0, body: &body }).unwrap()
    }

    #[test]
    fn only_configured_qdiscs_count() {
        let shaper = read(SHAPER);
        assert_eq!((&*shaper.kind, shaper.shapes()), ("tbf", true));
        assert_eq!(shaping(&shaper).what, "tc qdisc tbf");
        let clsact = read(CLSACT_QDISC);
        assert_eq!((clsact.parent, &*clsact.kind, clsact.shapes()), (CLSACT, "clsact", false));
        assert!(!read(DEFAULT).shapes());
        // `tc qdisc add dev r root noqueue`
        let noqueue = Object { handle: 0x8001_0000, ..read(DEFAULT) };
        assert_eq!((&*noqueue.kind, noqueue.shapes()), ("noqueue", false));
    }

    #[test]
    fn truncated_messages_are_malformed() {
        let raw = Raw { kind: libc::RTM_NEWQDISC, flags: 0, sequence: 1, port: 0, body: &[0; 12] };
        assert!(Object::read(&raw).is_err());
    }
}

//! Links: the machine's interfaces.

mod change;
mod list;

pub use change::{LinkEvents, make_veth, remove};

use crate::attribute::{self, Attributes};
use crate::error::Malformed;
use std::fmt;

/// Fixed part of a message: `struct ifinfomsg`.
const HEADER: usize = 16;
/// Attribute types (`IFLA_*`).
mod ifla {
    pub const ADDRESS: u16 = 1;
    pub(crate) const IFNAME: u16 = 3;
    pub const MTU: u16 = 4;
    pub const LINK: u16 = 5;
    pub(crate) const MASTER: u16 = 10;
    pub(crate) const OPERSTATE: u16 = 16;
    pub(crate) const LINKINFO: u16 = 18;
    pub(crate) const NUM_RX_QUEUES: u16 = 32;
    pub(crate) const LINK_NETNSID: u16 = 37;
    pub(crate) const INFO_KIND: u16 = 1;
    pub(crate) const INFO_DATA: u16 = 2;
    pub(crate) const VLAN_ID: u16 = 1;
    pub(crate) const VLAN_EGRESS_QOS: u16 = 3;
    pub(crate) const VLAN_PROTOCOL: u16 = 5;
    pub(crate) const MACVLAN_MODE: u16 = 1;
    pub(crate) const HSR_SLAVE1: u16 = 1;
    pub(crate) const HSR_SLAVE2: u16 = 2;
    pub(crate) const VRF_TABLE: u16 = 1;
    pub(crate) const XFRM_IF_ID: u16 = 2;
}
/// Interface flags (`IFF_*`).
mod iff {
    pub const UP: u32 = 1;
    pub const LOOPBACK: u32 = 8;
    pub(crate) const RUNNING: u32 = 0x40;
    pub const LOWER_UP: u32 = 0x1_0000;
    pub const DORMANT: u32 = 0x2_0000;
}

/// The kind of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A device with its own driver: hardware, or the loopback.
    #[default]
    Device,
    /// One end of a veth pair.
    Veth,
    /// A VLAN on another interface ([`Link::lower`]).
    Vlan {
        /// VLAN number.
        id: u16,
        /// Ethertype of its tag: 0x8100 or 0x88a8.
        protocol: u16,
    },
    /// A VRF, which gives its members a routing table.
    Vrf {
        table: u32,
    },
    Bridge,
    /// An XFRM interface: IPsec policies and SAs with this number are for its packets.
    Xfrm {
        if_id: u32,
    },
    /// Another, by the kernel's name (`dummy`, `bond`, `vxlan`, `tun`, ...).
    Other(Box<str>),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => f.write_str("device"),
            Self::Veth => f.write_str("veth"),
            Self::Vlan { id, protocol } => write!(f, "vlan {id} protocol {protocol:#06x}"),
            Self::Vrf { table } => write!(f, "vrf table {table}"),
            Self::Bridge => f.write_str("bridge"),
            Self::Xfrm { if_id } => write!(f, "xfrm if_id {if_id:#x}"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// Its number in this network namespace.
    pub ifindex: u32,
    pub name: Box<str>,
    /// Hardware type (`ARPHRD_*`); 1 is Ethernet.
    pub hardware: u16,
    /// Ethernet address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Greatest packet.
    pub mtu: u32,
    /// The kernel's flags (`IFF_*`).
    pub flags: u32,
    /// Operational state (`IF_OPER_*`); 6 is up.
    pub oper_state: u8,
    pub kind: Kind,
    /// The bridge, bond or VRF that it belongs to.
    pub master: Option<u32>,
    /// The mode of a macvlan or macvtap (`MACVLAN_MODE_*`).
    pub macvlan_mode: Option<u32>,
    /// Interfaces whose frames it takes besides those of `lower`.
    pub takes_from: Vec<u32>,
    /// Whether it maps priorities of packets to those of VLAN tags.
    pub maps_priorities: bool,
    /// The underlying interface, as for a VLAN. Not a veth's other end, which the kernel does not report when the
    /// pair is created, and later only without an event.
    pub lower: Option<u32>,
    /// The namespace of `lower`, as the kernel's local ID, if it is not this one.
    pub lower_namespace: Option<i32>,
    /// Receive queues.
    pub rx_queues: u32,
}

/// An interface on top of another one that is in another network namespace, such as a container's macvlan on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upper {
    /// Its number there.
    pub ifindex: u32,
    /// The number of that namespace (`stat -L -c %i /proc/PID/ns/net`).
    pub namespace: u32,
    /// The kernel's name of its kind.
    pub kind: Box<str>,
    /// The mode of a macvlan or macvtap (`MACVLAN_MODE_*`).
    pub macvlan_mode: Option<u32>,
    /// Whether it has the MAC address of the interface below.
    pub same_mac: bool,
}

impl Link {
    /// Whether it is switched on.
    pub fn up(&self) -> bool {
        self.flags & iff::UP != 0
    }

    /// Whether it has carrier, as the kernel's routes see it.
    pub fn carrier(&self) -> bool {
        self.flags & (iff::RUNNING | iff::LOWER_UP) != 0
    }

    /// Whether packets may be sent: switched on, and with carrier. Linux also forwards before `IFF_RUNNING` is set, which
    /// can be up to a second after the carrier.
    pub fn running(&self) -> bool {
        self.up() && self.carrier()
    }

    /// Whether it is operational (RFC 2863), which IPv6 waits for.
    pub fn operational(&self) -> bool {
        self.up() && self.flags & iff::RUNNING != 0
    }

    /// Whether it leads back to this machine.
    pub fn loopback(&self) -> bool {
        self.flags & iff::LOOPBACK != 0
    }

    /// The link without the flags that follow the carrier.
    pub(crate) fn settled(&self) -> Self {
        let flags = self.flags & !(iff::RUNNING | iff::LOWER_UP | iff::DORMANT);
        Self { flags, oper_state: 0, ..self.clone() }
    }

    /// Reads the part after the netlink header. `None` for a bridge's message about one of its ports, which has the
    /// same message type: its deletion is not that of the link.
    pub(crate) fn read(message: &[u8]) -> Result<Option<Self>, Malformed> {
        if message.len() < HEADER {
            return Err(Malformed::Header { kind: libc::RTM_NEWLINK, length: message.len() });
        }
        if i32::from(message[0]) != libc::AF_UNSPEC {
            return Ok(None);
        }
        let mut link = Self {
            hardware: attribute::number_u16(0, &message[2..4])?,
            ifindex: attribute::number_u32(0, &message[4..8])?,
            flags: attribute::number_u32(0, &message[8..12])?,
            ..Self::default()
        };
        for attribute in Attributes::after_header(message, HEADER) {
            let (kind, value) = attribute?;
            link.take(kind, value)?;
        }
        if link.kind == Kind::Veth {
            (link.lower, link.lower_namespace) = (None, None);
        }
        Ok(Some(link))
    }

    fn take(&mut self, kind: u16, value: &[u8]) -> Result<(), Malformed> {
        match kind {
            ifla::IFNAME => self.name = attribute::text(value),
            ifla::ADDRESS => self.mac = value.try_into().ok(),
            ifla::MTU => self.mtu = attribute::number_u32(kind, value)?,
            ifla::LINK => self.lower = Some(attribute::number_u32(kind, value)?).filter(|&lower| lower != 0),
            ifla::LINK_NETNSID => self.lower_namespace = Some(attribute::number_i32(kind, value)?),
            ifla::MASTER => self.master = Some(attribute::number_u32(kind, value)?),
            ifla::OPERSTATE => self.oper_state = attribute::number_u8(kind, value)?,
            ifla::NUM_RX_QUEUES => self.rx_queues = attribute::number_u32(kind, value)?,
            ifla::LINKINFO => {
                self.kind = read_kind(value)?;
                self.take_details(value)?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Link {
    /// Reads what matters of some kinds.
    fn take_details(&mut self, info: &[u8]) -> Result<(), Malformed> {
        let data = Attributes::new(info).find(ifla::INFO_DATA)?.unwrap_or_default();
        for attribute in Attributes::new(data) {
            match (&self.kind, attribute?) {
                (Kind::Vlan { .. }, (ifla::VLAN_EGRESS_QOS, map)) => self.maps_priorities = !map.is_empty(),
                (Kind::Other(kind), (ifla::MACVLAN_MODE, mode))
                    if matches!(&**kind, "macvlan" | "macvtap") =>
                {
                    self.macvlan_mode = Some(attribute::number_u32(ifla::MACVLAN_MODE, mode)?);
                }
                (Kind::Other(kind), (number @ (ifla::HSR_SLAVE1 | ifla::HSR_SLAVE2), slave))
                    if &**kind == "hsr" =>
                {
                    self.takes_from.push(attribute::number_u32(number, slave)?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The kind in `IFLA_LINKINFO`.
fn read_kind(info: &[u8]) -> Result<Kind, Malformed> {
    let info = Attributes::new(info);
    let Some(name) = info.find(ifla::INFO_KIND)? else { return Ok(Kind::Device) };
    let data = Attributes::new(info.find(ifla::INFO_DATA)?.unwrap_or_default());
    Ok(match &*attribute::text(name) {
        "veth" => Kind::Veth,
        "bridge" => Kind::Bridge,
        "vlan" => Kind::Vlan {
            id: attribute::number_u16(
                ifla::VLAN_ID,
                data.find(ifla::VLAN_ID)?.ok_or(Malformed::Missing { kind: ifla::VLAN_ID })?,
            )?,
            // The only number of these lists in network order.
            protocol: match data.find(ifla::VLAN_PROTOCOL)? {
                Some(value) => u16::from_be(attribute::number_u16(ifla::VLAN_PROTOCOL, value)?),
                None => 0x8100,
            },
        },
        "vrf" => Kind::Vrf {
            table: attribute::number_u32(
                ifla::VRF_TABLE,
                data.find(ifla::VRF_TABLE)?.ok_or(Malformed::Missing { kind: ifla::VRF_TABLE })?,
            )?,
        },
        // Without a number, packets name it themselves.
        other => match data.find(ifla::XFRM_IF_ID)?.filter(|_| other == "xfrm") {
            Some(value) => Kind::Xfrm { if_id: attribute::number_u32(ifla::XFRM_IF_ID, value)? },
            None => Kind::Other(other.into()),
        },
    })
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) {} mtu {}", self.name, self.ifindex, self.kind, self.mtu)?;
        if let Some([a, b, c, d, e, g]) = self.mac {
            write!(f, " mac {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")?;
        }
        f.write_str(if self.up() { " up" } else { " down" })?;
        f.write_str(if self.carrier() { " carrier" } else { " no-carrier" })?;
        if let Some(master) = self.master {
            write!(f, " master {master}")?;
        }
        if let Some(lower) = self.lower {
            write!(f, " on {lower}")?;
        }
        Ok(())
    }
}

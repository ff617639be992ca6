//! IPsec interfaces: how a frame shows within a worker which of them it leaves by, or arrives on.
//!
//! ```text
//! router ─► to the MAC address of the interface, on the port of IPsec ─► Encryption: policies of this number only
//! Decryption ─► to the same address, with the tag of the interface ─► router, as received there
//! ```
//!
//! To the router, an IPsec interface is one like any other: a next hop is a MAC address and an interface, with an MTU and a
//! port. So routing to it costs nothing more, and groups, fragments and ICMP errors need no code of their own. All of them
//! have one port, which has no device.

use std::sync::Arc;

use bm_fib::published::{Published, ReaderHandle};
use bm_frame::Frame;
use bm_stats::Reason;
use bm_wire::ethernet::{HEADER_LEN, TAG_LEN, Tag, ethertype};

use crate::compiled::IpsecInterface;
use crate::interface::ipsec_mac;
use crate::tables::{Tables, Vlan};

/// The name of the port of all IPsec interfaces.
pub const IPSEC_PORT: &str = "ipsec";

/// The number of the interface by which a frame on the port of IPsec leaves, or on which it arrives.
pub fn if_id_of(frame: &[u8]) -> u32 {
    let bytes = frame.get(2..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// What a worker needs to let packets arrive on interfaces.
pub(super) struct ArrivesOn {
    published: Arc<Published<Tables>>,
    reader: ReaderHandle,
    /// The port of all of them.
    pub port: usize,
}

impl ArrivesOn {
    /// Of these ports, that of IPsec is called [`IPSEC_PORT`].
    pub fn new(published: Arc<Published<Tables>>, reader: ReaderHandle, ports: &[String]) -> Self {
        let port = ports.iter().position(|port| port == IPSEC_PORT).unwrap_or(ports.len());
        Self { published, reader, port }
    }

    /// Gives the packet at `network` the link header of one that arrives on the interface with this number.
    pub fn arrives(&self, frame: &mut Frame, network: usize, if_id: u32) -> Result<(), Reason> {
        let tables = self.published.load(&self.reader);
        let found = tables.compiled.ipsec_interface(if_id).ok_or(Reason::IpsecNoInterface)?;
        write_header(frame, network, found).ok_or(Reason::IpsecNoHeadroom)
    }

    /// No table is in use until the next packet.
    pub fn quiescent(&mut self) {
        self.reader.quiescent();
    }

    pub fn before_sleep(&mut self) {
        self.reader.offline();
    }

    pub fn after_sleep(&mut self) {
        self.reader.online();
    }
}

/// `None` if there is no room.
fn write_header(frame: &mut Frame, network: usize, of: &IpsecInterface) -> Option<()> {
    let header = HEADER_LEN + if of.tag.is_some() { TAG_LEN } else { 0 };
    if header > network {
        frame.prepend(header - network).ok()?;
    } else {
        frame.trim_front(network - header);
    }
    let data = frame.data_mut();
    let kind = if data.get(header)? >> 4 == 6 { ethertype::IPV6 } else { ethertype::IPV4 };
    data[..6].copy_from_slice(&ipsec_mac(of.if_id));
    data[6..12].fill(0);
    if let Some(Vlan { protocol, id }) = of.tag {
        data[12..14].copy_from_slice(&protocol.to_be_bytes());
        data[14..16].copy_from_slice(&Tag::vlan(id).control().to_be_bytes());
    }
    data[header - 2..header].copy_from_slice(&kind.to_be_bytes());
    Some(())
}

//! Connections as the kernel tells them: in listings, in answers and in events.

use crate::Tuple;
use crate::layout::{BE_LIBERAL, HEADER, attribute as kinds, info, message};
use crate::tuple::read_u16;
use bm_netlink::Malformed;
use bm_netlink::attribute::{self, Attributes};

/// Bits of a connection's status (`IPS_*` of `include/uapi/linux/netfilter/nf_conntrack_common.h`).
pub mod status {
    /// Packets were seen in both directions.
    pub const SEEN_REPLY: u32 = 1 << 1;
    /// Not removed early when the table is full.
    pub const ASSURED: u32 = 1 << 2;
    /// Its first packet has passed all hooks.
    pub const CONFIRMED: u32 = 1 << 3;
    /// NAT changes lengths of payloads, so sequence numbers are adjusted.
    pub const SEQ_ADJUST: u32 = 1 << 6;
    /// Is being removed.
    pub const DYING: u32 = 1 << 9;
    /// The timeout cannot be changed.
    pub const FIXED_TIMEOUT: u32 = 1 << 10;
}

/// A tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Packets of the direction in which it was opened, as they arrive.
    pub original: Tuple,
    /// Packets of the other direction, as they arrive: with NAT, not the reverse of `original`.
    pub reply: Tuple,
    /// Zones of the two directions; 0 is the default.
    pub zones: [u16; 2],
    /// Distinguishes it from an earlier connection with the same tuples.
    pub id: u32,
    /// Bits of [`status`].
    pub status: u32,
    pub mark: u32,
    /// Seconds until it is removed; none where the kernel does not say: with flowtables, and in some events.
    pub timeout_s: Option<u32>,
    /// `enum tcp_conntrack` of `include/uapi/linux/netfilter/nf_conntrack_tcp.h`: 3 is ESTABLISHED. None for other
    /// protocols, and where the kernel does not say.
    pub tcp_state: Option<u8>,
    /// Whether packets of neither direction are compared with TCP windows. None where the kernel does not say, as in events
    /// of removals.
    pub liberal: Option<bool>,
    /// Its payload is read by a helper, for FTP for example. Events of removals do not say.
    pub has_helper: bool,
}

impl Connection {
    /// Reads a message without its netlink header.
    pub(crate) fn read(body: &[u8]) -> Result<Self, Malformed> {
        if body.len() < HEADER {
            return Err(Malformed::Header { kind: message::NEW, length: body.len() });
        }
        let (mut original, mut reply, mut zone, mut id, mut status) = (None, None, 0, None, None);
        let (mut mark, mut timeout_s, mut tcp, mut has_helper) = (0, None, Tcp::default(), false);
        for attribute in Attributes::after_header(body, HEADER) {
            let (kind, value) = attribute?;
            match kind {
                kinds::TUPLE_ORIGINAL => original = Some(Tuple::read(value)?),
                kinds::TUPLE_REPLY => reply = Some(Tuple::read(value)?),
                kinds::ZONE => zone = read_u16(kind, value)?,
                kinds::ID => id = Some(read_u32(kind, value)?),
                kinds::STATUS => status = Some(read_u32(kind, value)?),
                kinds::MARK => mark = read_u32(kind, value)?,
                kinds::TIMEOUT => timeout_s = Some(read_u32(kind, value)?),
                kinds::PROTOCOL_INFO => tcp = Tcp::read(value)?,
                kinds::HELP => has_helper = true,
                _ => {}
            }
        }
        let missing = |kind| move || Malformed::Missing { kind };
        let (original, zone_original) = original.ok_or_else(missing(kinds::TUPLE_ORIGINAL))?;
        let (reply, zone_reply) = reply.ok_or_else(missing(kinds::TUPLE_REPLY))?;
        Ok(Self {
            original,
            reply,
            zones: [zone_original.unwrap_or(zone), zone_reply.unwrap_or(zone)],
            id: id.ok_or_else(missing(kinds::ID))?,
            status: status.ok_or_else(missing(kinds::STATUS))?,
            mark,
            timeout_s,
            tcp_state: tcp.state,
            liberal: tcp.liberal,
            has_helper,
        })
    }
}

fn read_u32(kind: u16, value: &[u8]) -> Result<u32, Malformed> {
    attribute::number_u32(kind, value).map(u32::from_be)
}

/// What is known of a TCP connection.
#[derive(Default)]
struct Tcp {
    state: Option<u8>,
    liberal: Option<bool>,
}

impl Tcp {
    /// Reads what a protocol knows of a connection; nothing if that is not TCP.
    fn read(value: &[u8]) -> Result<Self, Malformed> {
        let Some(list) = Attributes::new(value).find(info::TCP)? else { return Ok(Self::default()) };
        let mut tcp = Self::default();
        for attribute in Attributes::new(list) {
            let (kind, value) = attribute?;
            match kind {
                info::TCP_STATE => tcp.state = Some(attribute::number_u8(kind, value)?),
                info::TCP_FLAGS_ORIGINAL | info::TCP_FLAGS_REPLY => {
                    // Flags, then a mask that is for requests.
                    let [flags, _] = attribute::number_u16(kind, value)?.to_ne_bytes();
                    tcp.liberal = Some(tcp.liberal.unwrap_or(true) && flags & BE_LIBERAL != 0);
                }
                _ => {}
            }
        }
        Ok(tcp)
    }
}

#[cfg(test)]
mod tests;

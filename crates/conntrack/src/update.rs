//! Changes of connections.

use crate::Tuple;
use crate::layout::{BE_LIBERAL, MAXACK_SET, attribute, header, info};
use bm_netlink::attribute::{NESTED, put, put_nested};

/// What to change of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// Which connection.
    pub original: Tuple,
    /// Zone of the original direction ([`crate::Connection::zones`]).
    pub zone: u16,
    /// Time until it is removed, in seconds, from now on.
    pub timeout_s: Option<u32>,
    /// TCP packets of both directions are no longer compared with windows, nor an RST with the last acknowledgement, until
    /// Linux sees another one: that would be invalid after 2 GiB that Linux has not seen.
    pub liberal: bool,
    /// The bits of [`crate::status`] that it has, and in addition `SEEN_REPLY`, `ASSURED` or `FIXED_TIMEOUT`. The kernel does
    /// not clear these, ignores NAT's, and refuses (`EBUSY`) if `IPS_EXPECTED`, `CONFIRMED` or `DYING` differ. The timeout
    /// has been changed then.
    pub status: Option<u32>,
}

impl Update {
    /// Appends it to a message that has only a netlink header.
    pub(crate) fn write(&self, message: &mut Vec<u8>) {
        message.extend_from_slice(&header(&self.original.source));
        self.original.write(attribute::TUPLE_ORIGINAL, message);
        if self.zone != 0 {
            put(message, attribute::ZONE, &self.zone.to_be_bytes());
        }
        if let Some(timeout) = self.timeout_s {
            put(message, attribute::TIMEOUT, &timeout.to_be_bytes());
        }
        if let Some(status) = self.status {
            put(message, attribute::STATUS, &status.to_be_bytes());
        }
        if self.liberal {
            put_nested(message, attribute::PROTOCOL_INFO | NESTED, |list| {
                put_nested(list, info::TCP | NESTED, |list| {
                    // `struct nf_ct_tcp_flags`: flags, then which of them are changed.
                    let flags = [BE_LIBERAL, BE_LIBERAL | MAXACK_SET];
                    put(list, info::TCP_FLAGS_ORIGINAL, &flags);
                    put(list, info::TCP_FLAGS_REPLY, &flags);
                });
            });
        }
    }
}

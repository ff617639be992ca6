//! Templates: which SAs may protect the packets of a policy, where an IKE daemon adds and replaces them.

use std::net::IpAddr;

use crate::sa::{Mode, Sa};

/// What an SA must have. A request id or SPI of 0, or no address, matches any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    pub source: Option<IpAddr>,
    pub destination: Option<IpAddr>,
    pub mode: Mode,
    /// The number that an IKE daemon gives to a policy and its SAs.
    pub reqid: u32,
    /// charon names the SA of an outbound policy.
    pub spi: u32,
    /// The interface of the SA, which must be that of the policy; 0 for none.
    pub if_id: u32,
}

impl Template {
    /// Everything about an SA that templates ask for.
    pub fn of(sa: &Sa) -> Self {
        let (source, destination) = (Some(sa.source), Some(sa.destination));
        Self { source, destination, mode: sa.mode, reqid: sa.reqid, spi: sa.spi, if_id: sa.if_id }
    }

    /// Whether an SA about which `sa` says everything may be used.
    #[inline]
    pub fn takes(&self, sa: &Self) -> bool {
        (self.reqid == 0 || self.reqid == sa.reqid)
            && (self.spi == 0 || self.spi == sa.spi)
            && self.mode == sa.mode
            && self.if_id == sa.if_id
            && (self.source.is_none() || self.source == sa.source)
            && (self.destination.is_none() || self.destination == sa.destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, SaId, Suite};

    #[test]
    fn takes_sas_that_have_what_it_asks_for() {
        let id = SaId { spi: 256, destination: [192, 0, 2, 2].into() };
        let mut sa = Sa::new(Direction::Out, id, [192, 0, 2, 1].into(), Suite::Aes128Gcm);
        sa.reqid = 7;
        let whole = Template::of(&sa);
        let any =
            Template { source: None, destination: None, mode: Mode::Tunnel, reqid: 0, spi: 0, if_id: 0 };
        assert!(whole.takes(&whole) && any.takes(&whole));
        for other in [
            Template { reqid: 8, ..any },
            Template { spi: 257, ..any },
            Template { mode: Mode::Transport, ..any },
            Template { if_id: 1, ..any },
            Template { source: Some([192, 0, 2, 3].into()), ..any },
            Template { destination: Some([192, 0, 2, 3].into()), ..any },
        ] {
            assert!(!other.takes(&whole), "{other:?}");
        }
    }
}

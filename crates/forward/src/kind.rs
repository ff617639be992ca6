//! IPv4 or IPv6, as read from a frame.

/// The routable protocols that a frame may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ipv4,
    Ipv6,
}

impl Kind {
    /// The other one.
    pub fn other(self) -> Self {
        if self == Self::Ipv4 { Self::Ipv6 } else { Self::Ipv4 }
    }
}

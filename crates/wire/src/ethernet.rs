//! Ethernet frames and the tags of 802.1Q and 802.1ad.
//!
//! ```text
//!    0            6            12    14                  untagged
//!    ├ destination ┼─ source ──┼ type ┤ payload
//!    ├ destination ┼─ source ──┼ 8100 ┼ tci ┼ type ┤     tagged; a second tag (QinQ) begins with 88a8
//! ```
//!
//! Preamble and frame check sequence are never visible here. Forwarding between them is the switch's task.

use crate::bytes::be16;
use crate::malformed::Malformed;
use std::fmt;
use std::str::FromStr;

mod at {
    use std::ops::Range;
    pub const DESTINATION: Range<usize> = 0..6;
    pub const SOURCE: Range<usize> = 6..12;
    pub const TYPE: Range<usize> = 12..14;
    pub const PAYLOAD: usize = 14;
}

/// Bytes of a header without tags.
pub const HEADER_LEN: usize = at::PAYLOAD;
/// Length of one tag in bytes.
pub const TAG_LEN: usize = 4;

/// What the type field says about the payload.
pub mod ethertype {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    /// An 802.1Q tag follows.
    pub const VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
    /// An 802.1ad service tag follows: the outer one of QinQ.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    pub const LLDP: u16 = 0x88cc;
    /// Least value that is a type; below, the field is an 802.3 length.
    pub const LEAST: u16 = 0x0600;
}

/// A MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it is a multicast address, which includes the broadcast address.
    #[inline]
    pub fn is_multicast(&self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Whether it is the broadcast address.
    #[inline]
    pub fn is_broadcast(&self) -> bool {
        *self == Self::BROADCAST
    }

    /// Whether it can be the address of one host: not multicast, not zero.
    pub fn is_host(&self) -> bool {
        !self.is_multicast() && self.0 != [0; 6]
    }

    /// The group that an IPv4 multicast address is sent to (RFC 1112 6.4).
    pub fn of_ipv4_group(group: u32) -> Self {
        let [_, b, c, d] = group.to_be_bytes();
        Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }

    /// The group that an IPv6 multicast address is sent to (RFC 2464 7).
    pub fn of_ipv6_group(group: u128) -> Self {
        let [a, b, c, d] = (group as u32).to_be_bytes();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// Reads the first six bytes; the caller has checked that they are there.
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Self {
        Self([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAMac;

impl fmt::Display for NotAMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not six bytes in hexadecimal with colons, such as 02:00:5e:00:53:01")
    }
}

impl std::error::Error for NotAMac {}

impl FromStr for Mac {
    type Err = NotAMac;
    fn from_str(text: &str) -> Result<Self, NotAMac> {
        let mut mac = Self::default();
        let mut parts = text.split(':');
        for byte in &mut mac.0 {
            let part = parts.next().ok_or(NotAMac)?;
            // from_str_radix by itself would accept a sign.
            if !(1..=2).contains(&part.len()) || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(NotAMac);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| NotAMac)?;
        }
        if parts.next().is_some() { Err(NotAMac) } else { Ok(mac) }
    }
}

impl TryFrom<String> for Mac {
    type Error = NotAMac;
    fn try_from(text: String) -> Result<Self, NotAMac> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

/// A VLAN tag without its priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Vlan {
    /// Ethertype of the tag: 33024 (0x8100) or 34984 (0x88a8).
    pub protocol: u16,
    /// VLAN ID, 1 to 4094.
    pub id: u16,
}

/// A tag: which virtual LAN, and how urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// `ethertype::VLAN` or `ethertype::SERVICE_VLAN`.
    pub protocol: u16,
    /// Priority code point, 0 to 7.
    pub pcp: u8,
    /// Drop eligible.
    pub dei: bool,
    /// VLAN ID, 0 to 4095; 0 is a tag that only carries a priority.
    pub vid: u16,
}

impl Tag {
    /// An 802.1Q tag without priority.
    pub fn vlan(vid: u16) -> Self {
        Self { protocol: ethertype::VLAN, pcp: 0, dei: false, vid }
    }

    /// Whether an EtherType is that of a VLAN tag.
    #[inline]
    pub(crate) fn is_protocol(ethertype: u16) -> bool {
        matches!(ethertype, ethertype::VLAN | ethertype::SERVICE_VLAN)
    }

    fn from_control(protocol: u16, tci: u16) -> Self {
        Self { protocol, pcp: (tci >> 13) as u8, dei: tci & 0x1000 != 0, vid: tci & 0x0fff }
    }

    /// The two bytes of tag control information.
    pub fn control(&self) -> u16 {
        u16::from(self.pcp & 7) << 13 | u16::from(self.dei) << 12 | self.vid & 0x0fff
    }
}

/// An Ethernet frame. Its existence proves that the untagged header is complete.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<B>(B);

/// What follows a frame's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Outermost tag, if there is one.
    pub outer: Option<Tag>,
    /// Second tag, if there is one.
    pub inner: Option<Tag>,
    /// EtherType of the payload.
    pub ethertype: u16,
    /// Where the payload begins, from the frame's first byte.
    pub offset: usize,
}

impl<B: AsRef<[u8]>> Ethernet<B> {
    /// Checks that both addresses and the type are there.
    #[inline]
    pub fn parse(frame: B) -> Result<Self, Malformed> {
        if frame.as_ref().len() < HEADER_LEN { Err(Malformed::Short) } else { Ok(Self(frame)) }
    }

    /// Destination MAC address.
    #[inline]
    pub fn destination(&self) -> Mac {
        Mac::read(&self.0.as_ref()[at::DESTINATION])
    }

    /// Source MAC address.
    #[inline]
    pub fn source(&self) -> Mac {
        Mac::read(&self.0.as_ref()[at::SOURCE])
    }

    /// The first type field, which is a tag's where the frame is tagged.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        be16(&self.0.as_ref()[at::TYPE])
    }

    /// What follows the first type field.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[at::PAYLOAD..]
    }

    /// The outermost tag; `None` where the frame has none, or is cut within it.
    pub fn tag(&self) -> Option<Tag> {
        self.network().ok()?.outer
    }

    /// Reads up to two tags and what follows them. A third tag is returned as EtherType.
    #[inline]
    pub fn network(&self) -> Result<Network, Malformed> {
        let mut found =
            Network { outer: None, inner: None, ethertype: self.ethertype(), offset: at::PAYLOAD };
        while found.inner.is_none() && Tag::is_protocol(found.ethertype) {
            let rest = &self.0.as_ref()[found.offset..];
            if rest.len() < TAG_LEN {
                return Err(Malformed::Truncated);
            }
            let tag = Some(Tag::from_control(found.ethertype, be16(rest)));
            *(if found.outer.is_none() { &mut found.outer } else { &mut found.inner }) = tag;
            found.ethertype = be16(&rest[2..]);
            found.offset += TAG_LEN;
        }
        Ok(found)
    }

    /// The bytes viewed.
    #[inline]
    pub fn into_inner(self) -> B {
        self.0
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Ethernet<B> {
    /// Sets the destination MAC address.
    #[inline]
    pub fn set_destination(&mut self, mac: Mac) {
        self.0.as_mut()[at::DESTINATION].copy_from_slice(&mac.0);
    }

    /// Sets the source MAC address.
    #[inline]
    pub fn set_source(&mut self, mac: Mac) {
        self.0.as_mut()[at::SOURCE].copy_from_slice(&mac.0);
    }

    /// What follows the first type field.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.0.as_mut()[at::PAYLOAD..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 02:00:5e:00:53:01 > 02:00:5e:00:53:02, IPv4, two bytes.
    const PLAIN: [u8; 16] = [2, 0, 0x5e, 0, 0x53, 2, 2, 0, 0x5e, 0, 0x53, 1, 8, 0, 0x45, 0];
    /// The same in VLAN 100 with priority 5.
    const TAGGED: [u8; 20] =
        [2, 0, 0x5e, 0, 0x53, 2, 2, 0, 0x5e, 0, 0x53, 1, 0x81, 0, 0xa0, 100, 8, 0, 0x45, 0];
    /// The same in service VLAN 0x123, drop eligible.
    const DOUBLE: [u8; 24] = [
        2, 0, 0x5e, 0, 0x53, 2, 2, 0, 0x5e, 0, 0x53, 1, 0x88, 0xa8, 0x11, 0x23, 0x81, 0, 0xa0, 100, 8, 0,
        0x45, 0,
    ];
    const VLAN_100: Tag = Tag { protocol: ethertype::VLAN, pcp: 5, dei: false, vid: 100 };
    const SERVICE: Tag = Tag { protocol: ethertype::SERVICE_VLAN, pcp: 0, dei: true, vid: 0x123 };

    #[test]
    fn reads_addresses_and_type() {
        let frame = Ethernet::parse(&PLAIN).unwrap();
        assert_eq!(frame.destination().to_string(), "02:00:5e:00:53:02");
        assert_eq!(frame.source(), "02:0:5E:00:53:01".parse().unwrap());
        assert_eq!((frame.ethertype(), frame.payload(), frame.tag()), (0x0800, &[0x45, 0][..], None));
        assert_eq!(Ethernet::parse(&PLAIN[..13]).err(), Some(Malformed::Short));
    }

    #[test]
    fn payload_is_written_behind_the_type() {
        let mut bytes = PLAIN;
        let mut frame = Ethernet::parse(&mut bytes).unwrap();
        frame.payload_mut().copy_from_slice(&[0x60, 1]);
        assert_eq!((&bytes[..14], &bytes[14..]), (&PLAIN[..14], &[0x60, 1][..]));
    }

    #[test]
    fn reads_two_tags() {
        let network = |bytes: &[u8]| Ethernet::parse(bytes).unwrap().network();
        let found = |outer, inner, offset| Ok(Network { outer, inner, ethertype: ethertype::IPV4, offset });
        assert_eq!(network(&PLAIN), found(None, None, 14));
        assert_eq!(network(&TAGGED), found(Some(VLAN_100), None, 18));
        assert_eq!(network(&DOUBLE), found(Some(SERVICE), Some(VLAN_100), 22));
        assert_eq!(network(&DOUBLE[..21]), Err(Malformed::Truncated));
        assert_eq!(network(&TAGGED[..14]), Err(Malformed::Truncated));
    }

    #[test]
    fn recognizes_group_addresses() {
        assert!(Mac::BROADCAST.is_broadcast() && Mac::BROADCAST.is_multicast());
        let all_nodes = Mac::of_ipv6_group(0xff02 << 112 | 1);
        assert_eq!(all_nodes.to_string(), "33:33:00:00:00:01");
        assert!(all_nodes.is_multicast() && !all_nodes.is_broadcast() && !all_nodes.is_host());
        // 224.129.1.2: the high bit of its second byte is lost.
        assert_eq!(Mac::of_ipv4_group(0xe081_0102).to_string(), "01:00:5e:01:01:02");
        assert!(!Mac::default().is_host());
    }

    #[test]
    fn rejects_invalid_addresses() {
        for text in ["", "02:00:5e:00:53", "02:00:5e:00:53:01:02", "02:00:5e:00:53:+1", "02:00:5e:00:53:001"]
        {
            assert_eq!(text.parse::<Mac>(), Err(NotAMac), "{text}");
        }
    }
}

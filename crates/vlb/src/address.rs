//! What the two MAC addresses of a frame between servers say.
//!
//! ```text
//!               47       42 40 39    32 31         21 20  16 15                0
//! destination   | mark   |kind|  epoch |  output node | port |     neighbor     |
//!               47       42 41 40 39          29 28          18 17  10 9       0
//! source        | mark   |s |0|    input node   | intermediate | flow | sequence|
//! ```
//!
//! Bits 41 and 40 of an Ethernet address are the lowest of its first octet: local (always 1) and group (always 0). They
//! are within the first octet, so the mark is in its four highest bits and `kind`, or `s` with a zero, is in the next
//! two. The reasons for this layout are in docs/decisions/0029-fabric-addresses.md.
//!
//! The intermediate is the node that the frame still has to visit; that node removes it. So a frame visits at most one
//! intermediate, and a node that gets a frame without one for another output knows that something is wrong.

use bm_wire::ethernet::Mac;

use crate::epoch::Epoch;

/// The four highest bits of both addresses.
const MARK: u64 = 0b1011;
const MARK_AT: u32 = 44;
/// Locally administered, and not a group.
const LOCAL: u64 = 0b10 << 40;
const KIND_AT: u32 = 42;
const EPOCH_AT: u32 = 32;
const OUTPUT_AT: u32 = 21;
const PORT_AT: u32 = 16;
const SAMPLED_AT: u32 = 43;
const INPUT_AT: u32 = 29;
const VIA_AT: u32 = 18;
const FLOW_AT: u32 = 10;
const NODE_BITS: u64 = 0x7ff;
const PORT_BITS: u64 = 0x1f;
const SEQUENCE_BITS: u64 = 0x3ff;
/// In place of an intermediate: none.
const NO_NODE: u64 = NODE_BITS;

/// A server of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(u16);

impl Node {
    /// How many nodes there can be.
    pub const COUNT: u16 = 2047;

    /// The node with this number, which is below [`Node::COUNT`].
    pub const fn new(number: u16) -> Option<Self> {
        if number < Self::COUNT { Some(Self(number)) } else { None }
    }

    #[inline]
    pub fn number(self) -> u16 {
        self.0
    }

    /// Its number, as an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// An external port of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(u8);

impl Port {
    /// How many external ports a node can have.
    pub const COUNT: u8 = 32;

    /// The port with this number, which is below [`Port::COUNT`].
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::COUNT { Some(Self(number)) } else { None }
    }

    pub fn number(self) -> u8 {
        self.0
    }
}

/// What the output node does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum To {
    /// Sends it to the neighbor with this index in the output node's table.
    Neighbor(u16),
    /// Resolves the neighbor of the IP destination first.
    Resolve,
    /// Hands it to its Linux: the packet is for an address of the node itself.
    Host,
    /// Reads it: heartbeats and other messages between nodes.
    Control,
}

impl To {
    fn kind(self) -> (u64, u64) {
        match self {
            Self::Neighbor(index) => (0, index.into()),
            Self::Resolve => (1, 0),
            Self::Host => (2, 0),
            Self::Control => (3, 0),
        }
    }

    fn of(kind: u64, index: u16) -> Result<Self, NotFabric> {
        match (kind, index) {
            (0, index) => Ok(Self::Neighbor(index)),
            (1, 0) => Ok(Self::Resolve),
            (2, 0) => Ok(Self::Host),
            (3, 0) => Ok(Self::Control),
            _ => Err(NotFabric::Reserved),
        }
    }
}

/// Why an address is not one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFabric {
    #[error("not a locally administered unicast address")]
    NotLocal,
    #[error("a locally administered address, but not of this cluster's format")]
    NoMark,
    #[error("has reserved bits set")]
    Reserved,
}

/// The destination address of a frame between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The membership under which the other fields were chosen.
    pub epoch: Epoch,
    /// The node whose external port the packet leaves by.
    pub output: Node,
    pub port: Port,
    /// What the output node does with it.
    pub to: To,
}

impl Destination {
    /// As an address.
    #[inline]
    pub fn mac(&self) -> Mac {
        let (kind, index) = self.to.kind();
        let fields = kind << KIND_AT
            | u64::from(self.epoch.number()) << EPOCH_AT
            | u64::from(self.output.0) << OUTPUT_AT
            | u64::from(self.port.0) << PORT_AT
            | index;
        to_mac(fields)
    }

    /// Reads an address, and refuses those that are not ours.
    #[inline]
    pub fn parse(mac: Mac) -> Result<Self, NotFabric> {
        let bits = marked(mac)?;
        let output = Node::new((bits >> OUTPUT_AT & NODE_BITS) as u16).ok_or(NotFabric::Reserved)?;
        Ok(Self {
            epoch: Epoch::new((bits >> EPOCH_AT) as u8),
            output,
            port: Port((bits >> PORT_AT & PORT_BITS) as u8),
            to: To::of(bits >> KIND_AT & 3, bits as u16)?,
        })
    }
}

/// Where a packet is in its flow, for counting reordered packets at the output node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// Which of the sampled flows of the input node.
    pub flow: u8,
    /// Its place in this flow, modulo [`Sample::SEQUENCES`].
    pub sequence: u16,
}

impl Sample {
    /// How many sequence numbers there are.
    pub(crate) const SEQUENCES: u16 = 1024;
}

/// The source address of a frame between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The node by whose external port the packet came in.
    pub input: Node,
    /// The intermediate that the frame has yet to visit.
    pub via: Option<Node>,
    /// Only for sampled flows.
    pub sample: Option<Sample>,
}

impl Source {
    /// As an address.
    #[inline]
    pub fn mac(&self) -> Mac {
        let sample = self.sample.map_or(0, |sample| {
            1 << SAMPLED_AT | u64::from(sample.flow) << FLOW_AT | u64::from(sample.sequence) & SEQUENCE_BITS
        });
        let via = self.via.map_or(NO_NODE, |node| node.0.into());
        to_mac(u64::from(self.input.0) << INPUT_AT | via << VIA_AT | sample)
    }

    /// Reads an address, and refuses those that are not ours.
    #[inline]
    pub fn parse(mac: Mac) -> Result<Self, NotFabric> {
        let bits = marked(mac)?;
        let (flow, sequence) = ((bits >> FLOW_AT) as u8, (bits & SEQUENCE_BITS) as u16);
        let sample = match (bits >> KIND_AT & 3, flow, sequence) {
            (0b10, flow, sequence) => Some(Sample { flow, sequence }),
            (0, 0, 0) => None,
            _ => return Err(NotFabric::Reserved),
        };
        let input = Node::new((bits >> INPUT_AT & NODE_BITS) as u16).ok_or(NotFabric::Reserved)?;
        Ok(Self { input, via: Node::new((bits >> VIA_AT & NODE_BITS) as u16), sample })
    }

    /// The source address after `node` has handled the frame: without intermediate if that was `node`.
    #[inline]
    pub fn arrived(self, node: Node) -> Self {
        Self { via: self.via.filter(|via| *via != node), ..self }
    }
}

/// The address with our mark and these fields.
#[inline]
fn to_mac(fields: u64) -> Mac {
    let bytes = (fields | MARK << MARK_AT | LOCAL).to_be_bytes();
    Mac([bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// All 48 bits of an address that has our mark.
#[inline]
fn marked(mac: Mac) -> Result<u64, NotFabric> {
    let [a, b, c, d, e, f] = mac.0;
    let bits = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    if bits & 0b11 << 40 != LOCAL {
        return Err(NotFabric::NotLocal);
    }
    if bits >> MARK_AT != MARK {
        return Err(NotFabric::NoMark);
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(number: u16) -> Node {
        Node::new(number).expect("a small number")
    }

    fn nodes() -> impl Strategy<Value = Node> {
        (0..Node::COUNT).prop_map(node)
    }

    #[test]
    fn the_bits_are_where_the_decision_says() {
        let destination = Destination {
            epoch: Epoch::new(0x12),
            output: node(0x2a),
            port: Port::new(3).expect("a port"),
            to: To::Neighbor(0x0708),
        };
        assert_eq!(destination.mac(), Mac([0xb2, 0x12, 0x05, 0x43, 0x07, 0x08]));
        let host = Destination { to: To::Host, ..destination };
        assert_eq!(host.mac(), Mac([0xba, 0x12, 0x05, 0x43, 0x00, 0x00]));
        let source = Source { input: node(1), via: None, sample: None };
        assert_eq!(source.mac(), Mac([0xb2, 0x00, 0x3f, 0xfc, 0x00, 0x00]));
        let sampled =
            Source { input: node(1), via: Some(node(2)), sample: Some(Sample { flow: 0xff, sequence: 5 }) };
        assert_eq!(sampled.mac(), Mac([0xba, 0x00, 0x20, 0x0b, 0xfc, 0x05]));
    }

    #[test]
    fn refuses_foreign_addresses() {
        let cases = [
            ([0xff; 6], NotFabric::NotLocal),
            ([0x00, 0x1b, 0x21, 0, 0, 1], NotFabric::NotLocal),
            ([0xb3, 0, 0, 0, 0, 0], NotFabric::NotLocal),
            ([0x02, 0x42, 0xac, 0x11, 0, 2], NotFabric::NoMark),
            ([0x52, 0x54, 0, 1, 2, 3], NotFabric::NoMark),
            ([0xb6, 0, 0, 0, 0, 1], NotFabric::Reserved),
            ([0xb2, 0, 0xff, 0xe0, 0, 0], NotFabric::Reserved),
        ];
        for (bytes, why) in cases {
            assert_eq!(Destination::parse(Mac(bytes)), Err(why), "{bytes:02x?}");
        }
        // A sample without its flag, and the bit that must be zero.
        assert_eq!(Source::parse(Mac([0xb2, 0, 0, 0, 0, 1])), Err(NotFabric::Reserved));
        assert_eq!(Source::parse(Mac([0xb6, 0, 0, 0, 0, 0])), Err(NotFabric::Reserved));
    }

    #[test]
    fn only_the_intermediate_removes_itself() {
        let source = Source { input: node(1), via: Some(node(2)), sample: None };
        assert_eq!(source.arrived(node(3)), source);
        assert_eq!(source.arrived(node(2)).via, None);
    }

    proptest! {
        #[test]
        fn destinations_survive(epoch: u8, output in nodes(), port in 0..Port::COUNT, index: u16, kind in 0..4u8) {
            let to = [To::Neighbor(index), To::Resolve, To::Host, To::Control][usize::from(kind)];
            let port = Port::new(port).expect("a port");
            let destination = Destination { epoch: Epoch::new(epoch), output, port, to };
            let mac = destination.mac();
            prop_assert!(mac.is_host() && mac.0[0] & 2 != 0);
            prop_assert_eq!(Destination::parse(mac), Ok(destination));
        }

        #[test]
        fn sources_survive(input in nodes(), via in proptest::option::of(nodes()), sample: Option<(u8, u16)>) {
            let sample = sample.map(|(flow, sequence)| Sample { flow, sequence: sequence % Sample::SEQUENCES });
            let source = Source { input, via, sample };
            prop_assert!(source.mac().is_host());
            prop_assert_eq!(Source::parse(source.mac()), Ok(source));
        }

        /// What is accepted means exactly its bits: no two addresses are read alike.
        #[test]
        fn what_is_read_is_written_back(bytes: [u8; 6], ours: bool) {
            let mut bytes = bytes;
            if ours {
                bytes[0] = 0xb2 | bytes[0] & 0x0c;
            }
            if let Ok(destination) = Destination::parse(Mac(bytes)) {
                prop_assert_eq!(destination.mac(), Mac(bytes));
            }
            if let Ok(source) = Source::parse(Mac(bytes)) {
                prop_assert_eq!(source.mac(), Mac(bytes));
            }
        }
    }
}

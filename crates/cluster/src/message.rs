//! Messages between two nodes over the link that connects them.
//!
//! ```text
//! 0         6         12     14    18  19   20    21 22     24       26          34          42         50          n-16
//! | to      | from    | type |magic| v|kind|epoch|d |sender |receiver| own nonce | peer nonce | sequence | contents | tag |
//! ```
//!
//! *d* says how many epochs ago the other one was whose frames the sender accepts; 0: there is none.
//!
//! The tag is the first half of an HMAC-SHA-256 over everything from the magic on, with the key that all members share.
//! *Own nonce* is a random number that the sender has drawn for this session, *peer nonce* the one that the receiver has; 0
//! if the sender offers its own (`session.rs`).
//!
//! All numbers are in network byte order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_vlb::address::{Destination, Node, Port, To};
use bm_vlb::membership::Epoch;
use bm_wire::ethernet::Mac as MacAddress;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::layout::PORT_MESSAGE;
use crate::neighbor::Index;

/// IEEE 802 local experimental.
pub const ETHERTYPE: u16 = 0x88b5;
/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;
const MAGIC: [u8; 4] = *b"bmcl";
const VERSION: u8 = 3;
/// Length of the message header, after the Ethernet header.
const HEADER: usize = 36;
const TAG: usize = 16;
/// Longest contents of a message, so that a frame fits into 1,280 bytes.
const CONTENTS: usize = 1200;
/// Longest form of an entry.
const ENTRY: usize = 6 + 16;
/// Entries of one message; they fit even if all are of the longest form.
pub const ENTRIES: usize = (CONTENTS - 12) / ENTRY;
/// Bytes of a part of an answer, and of the path of a question.
pub const BYTES: usize = CONTENTS - 12;

/// The key that all members share.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl Key {
    /// From the contents of a file, without white space at both ends.
    pub fn new(text: &[u8]) -> Self {
        let key = text.trim_ascii();
        Self(Hmac::new_from_slice(key).expect("HMAC takes keys of any length"))
    }

    /// The tag of a message.
    pub fn tag(&self, message: &[u8]) -> [u8; TAG] {
        let mut mac = self.0.clone();
        mac.update(message);
        let whole = mac.finalize().into_bytes();
        std::array::from_fn(|at| whole[at])
    }

    /// The tag of a text, in hexadecimal digits.
    pub fn sign(&self, text: &[u8]) -> String {
        self.tag(text).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether this is the tag of a text.
    pub(crate) fn is_signed(&self, text: &[u8], tag: &str) -> bool {
        let bytes: Option<Vec<u8>> =
            (0..TAG).map(|at| u8::from_str_radix(tag.get(2 * at..2 * at + 2)?, 16).ok()).collect();
        let mut mac = self.0.clone();
        mac.update(text);
        tag.len() == 2 * TAG && bytes.is_some_and(|bytes| mac.verify_truncated_left(&bytes).is_ok())
    }

    /// Appends the tag of the message that begins at `from`.
    pub(crate) fn append_tag(&self, message: &mut Vec<u8>, from: usize) {
        let tag = self.tag(&message[from..]);
        message.extend_from_slice(&tag);
    }

    /// The message without its tag, if that is valid.
    pub fn verify<'m>(&self, message: &'m [u8]) -> Option<&'m [u8]> {
        let (message, tag) = message.split_last_chunk::<TAG>()?;
        let mut mac = self.0.clone();
        mac.update(message);
        mac.verify_truncated_left(tag).ok()?;
        Some(message)
    }
}

/// An entry of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// An external port, with its MTU.
    Port(u8, u16),
    /// A prefix on the link of an external port.
    Prefix(u8, IpAddr, u8),
    /// An address of the node itself.
    Own(IpAddr),
    /// A neighbor of an external port, with its index.
    Neighbor(u8, IpAddr, Index),
    /// A node to which it has no link that works.
    NoLink(u16),
    /// The sender must not be used as intermediate.
    Drained,
    /// A neighbor of another node has answered at a port of the sender: that node has to ask for it.
    Claim(IpAddr),
    /// A neighbor of the sender that an administrator has added: no other node has it.
    Bound(IpAddr),
}

/// The contents of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Sent at every tick.
    Hello {
        /// The version of the sender's announcement.
        version: u64,
        /// The version of the receiver's announcement that the sender has; 0: none.
        has: u64,
        /// The sender's name.
        name: String,
    },
    /// A part of the sender's announcement.
    Part {
        /// The version to which it belongs.
        version: u64,
        /// Its number, from 0.
        part: u16,
        /// How many there are.
        parts: u16,
        entries: Vec<Entry>,
    },
    /// How many frames the sender's interface had sent when this one was written.
    Sent(u64),
    /// Asks for what the receiver's control socket answers to a GET request, from this part on.
    Ask { id: u64, first: u16, path: String },
    /// A part of the answer.
    Answer { id: u64, part: u16, parts: u16, bytes: Vec<u8> },
}

/// The epochs whose frames a node accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs {
    /// Its own.
    pub now: Epoch,
    /// The one that it had before.
    pub before: Option<Epoch>,
}

impl Epochs {
    /// A node that has had no other epoch.
    #[cfg(test)]
    pub fn only(now: Epoch) -> Self {
        Self { now, before: None }
    }

    /// After the change to another epoch.
    pub fn change(self, now: Epoch) -> Self {
        if now == self.now { self } else { Self { now, before: Some(self.now) } }
    }

    /// Whether two nodes accept frames of the same epoch: each can send what the other one accepts.
    pub fn overlap(self, other: Self) -> bool {
        self.all().any(|one| other.all().any(|two| one == two))
    }

    fn all(self) -> impl Iterator<Item = Epoch> {
        [Some(self.now), self.before].into_iter().flatten()
    }

    fn bytes(self) -> [u8; 2] {
        let now = self.now.number();
        [now, self.before.map_or(0, |before| now.wrapping_sub(before.number()))]
    }

    fn from_bytes([now, distance]: [u8; 2]) -> Self {
        let before = (distance != 0).then(|| Epoch::new(now.wrapping_sub(distance)));
        Self { now: Epoch::new(now), before }
    }
}

/// The header of a message, and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The epochs that the sender accepts.
    pub epochs: Epochs,
    /// Number of the node that sends it.
    pub sender: u16,
    /// Number of the node that it is for.
    pub receiver: u16,
    /// The sender's nonce.
    pub own_nonce: u64,
    /// The receiver's nonce as the sender knows it; 0: unknown.
    pub peer_nonce: u64,
    /// Counts the messages of the sender.
    pub sequence: u64,
    pub contents: Contents,
}

/// Why a message is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// It is not a message of this protocol version, or it is malformed.
    Malformed,
    /// It was authenticated with another key.
    Key,
}

/// The frame of a message.
pub fn frame(message: &Message, key: &Key, from: MacAddress, to: Node) -> Vec<u8> {
    let mut frame = Vec::with_capacity(1280);
    begin(&mut frame, message.epochs.now, from, to, PORT_MESSAGE, ETHERTYPE);
    let kind = match message.contents {
        Contents::Hello { .. } => 1,
        Contents::Part { .. } => 2,
        Contents::Sent(_) => 3,
        Contents::Ask { .. } => 4,
        Contents::Answer { .. } => 5,
    };
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&[VERSION, kind]);
    frame.extend_from_slice(&message.epochs.bytes());
    frame.extend_from_slice(&message.sender.to_be_bytes());
    frame.extend_from_slice(&message.receiver.to_be_bytes());
    for number in [message.own_nonce, message.peer_nonce, message.sequence] {
        frame.extend_from_slice(&number.to_be_bytes());
    }
    match &message.contents {
        Contents::Hello { version, has, name } => {
            frame.extend_from_slice(&version.to_be_bytes());
            frame.extend_from_slice(&has.to_be_bytes());
            frame.extend_from_slice(name.as_bytes());
        }
        Contents::Part { version, part, parts, entries } => {
            frame.extend_from_slice(&version.to_be_bytes());
            frame.extend_from_slice(&part.to_be_bytes());
            frame.extend_from_slice(&parts.to_be_bytes());
            entries.iter().for_each(|entry| write(entry, &mut frame));
        }
        Contents::Sent(frames) => frame.extend_from_slice(&frames.to_be_bytes()),
        Contents::Ask { id, first, path } => {
            frame.extend_from_slice(&id.to_be_bytes());
            frame.extend_from_slice(&first.to_be_bytes());
            frame.extend_from_slice(path.as_bytes());
        }
        Contents::Answer { id, part, parts, bytes } => {
            frame.extend_from_slice(&id.to_be_bytes());
            frame.extend_from_slice(&part.to_be_bytes());
            frame.extend_from_slice(&parts.to_be_bytes());
            frame.extend_from_slice(bytes);
        }
    }
    key.append_tag(&mut frame, ETHERNET);
    frame
}

/// The Ethernet header of a message or probe.
pub fn begin(frame: &mut Vec<u8>, epoch: Epoch, from: MacAddress, to: Node, port: u8, ethertype: u16) {
    let port = Port::new(port).expect("a small constant");
    let to = Destination { epoch, output: to, port, to: To::Control };
    frame.extend_from_slice(&to.mac().0);
    frame.extend_from_slice(&from.0);
    frame.extend_from_slice(&ethertype.to_be_bytes());
}

/// Reads a message, given without its Ethernet header.
pub fn read(body: &[u8], key: &Key) -> Result<Message, MessageError> {
    if body.len() < HEADER + TAG || body[..4] != MAGIC || body[4] != VERSION {
        return Err(MessageError::Malformed);
    }
    let body = key.verify(body).ok_or(MessageError::Key)?;
    let mut bytes = Bytes(&body[5..]);
    read_contents(&mut bytes).ok_or(MessageError::Malformed)
}

fn read_contents(bytes: &mut Bytes<'_>) -> Option<Message> {
    let kind = bytes.number::<1>()?;
    let epochs = Epochs::from_bytes(*bytes.take::<2>()?);
    let (sender, receiver) = (bytes.number::<2>()? as u16, bytes.number::<2>()? as u16);
    let (own_nonce, peer_nonce, sequence) =
        (bytes.number::<8>()?, bytes.number::<8>()?, bytes.number::<8>()?);
    let version = bytes.number::<8>()?;
    let contents = match kind {
        1 => Contents::Hello { version, has: bytes.number::<8>()?, name: bytes.text()? },
        2 => {
            let (part, parts) = (bytes.number::<2>()? as u16, bytes.number::<2>()? as u16);
            let mut entries = Vec::new();
            while !bytes.0.is_empty() {
                entries.push(read_entry(bytes)?);
            }
            Contents::Part { version, part, parts, entries }
        }
        3 => Contents::Sent(version),
        4 => Contents::Ask { id: version, first: bytes.number::<2>()? as u16, path: bytes.text()? },
        5 => {
            let (part, parts) = (bytes.number::<2>()? as u16, bytes.number::<2>()? as u16);
            Contents::Answer { id: version, part, parts, bytes: std::mem::take(&mut bytes.0).to_vec() }
        }
        _ => return None,
    };
    Some(Message { epochs, sender, receiver, own_nonce, peer_nonce, sequence, contents })
}

/// An entry: kind, port, prefix length or check of an index, length of the address, a number, the address.
fn write(entry: &Entry, to: &mut Vec<u8>) {
    let (kind, port, length, number, address) = match *entry {
        Entry::Port(port, mtu) => (1, port, 0, mtu, None),
        Entry::Prefix(port, address, length) => (2, port, length, 0, Some(address)),
        Entry::Own(address) => (3, 0, 0, 0, Some(address)),
        Entry::Neighbor(port, address, index) => (4, port, index.check, index.number, Some(address)),
        Entry::NoLink(node) => (5, 0, 0, node, None),
        Entry::Drained => (6, 0, 0, 0, None),
        Entry::Claim(address) => (7, 0, 0, 0, Some(address)),
        Entry::Bound(address) => (8, 0, 0, 0, Some(address)),
    };
    let (four, six);
    let address: &[u8] = match address {
        None => &[],
        Some(IpAddr::V4(address)) => {
            four = address.octets();
            &four
        }
        Some(IpAddr::V6(address)) => {
            six = address.octets();
            &six
        }
    };
    to.extend_from_slice(&[kind, port, length, address.len() as u8]);
    to.extend_from_slice(&number.to_be_bytes());
    to.extend_from_slice(address);
}

fn read_entry(bytes: &mut Bytes<'_>) -> Option<Entry> {
    let [kind, port, length, of_address] = *bytes.take::<4>()?;
    let number = bytes.number::<2>()? as u16;
    let address = match of_address {
        0 => None,
        4 => Some(IpAddr::from(Ipv4Addr::from(*bytes.take::<4>()?))),
        16 => Some(IpAddr::from(Ipv6Addr::from(*bytes.take::<16>()?))),
        _ => return None,
    };
    let longest = address.map_or(0, |address| if address.is_ipv4() { 32 } else { 128 });
    match (kind, address) {
        _ if port >= Port::COUNT || length > longest => None,
        (1, None) => Some(Entry::Port(port, number)),
        (2, Some(address)) => Some(Entry::Prefix(port, address, length)),
        (3, Some(address)) => Some(Entry::Own(address)),
        (4, Some(address)) if length < Port::COUNT => {
            Some(Entry::Neighbor(port, address, Index { number, check: length }))
        }
        (5, None) => Node::new(number).map(|node| Entry::NoLink(node.number())),
        (6, None) => Some(Entry::Drained),
        (7, Some(address)) => Some(Entry::Claim(address)),
        (8, Some(address)) => Some(Entry::Bound(address)),
        _ => None,
    }
}

/// The bytes that have not been read yet.
struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take<const N: usize>(&mut self) -> Option<&'b [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(taken)
    }

    /// All that are left.
    fn text(&mut self) -> Option<String> {
        String::from_utf8(std::mem::take(&mut self.0).to_vec()).ok()
    }

    /// A number of up to eight bytes.
    fn number<const N: usize>(&mut self) -> Option<u64> {
        Some(self.take::<N>()?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_vlb::address::Source;

    fn key() -> Key {
        Key::new(b" 0123456789abcdef0123456789abcdef\n")
    }

    fn message(contents: Contents) -> Message {
        Message {
            epochs: Epochs { now: Epoch::new(7), before: Some(Epoch::new(5)) },
            sender: 1,
            receiver: 2,
            own_nonce: 0x0102,
            peer_nonce: u64::MAX,
            sequence: 9,
            contents,
        }
    }

    fn own() -> MacAddress {
        Source { input: Node::new(1).expect("small"), via: None, sample: None }.mac()
    }

    fn framed(message: &Message) -> Vec<u8> {
        frame(message, &key(), own(), Node::new(2).expect("small"))
    }

    #[test]
    fn encodes_a_hello() {
        let hello = message(Contents::Hello { version: 3, has: 4, name: "b".into() });
        let frame = framed(&hello);
        let mut expected = vec![0xbe, 7, 0, 0x40, 0, 0, 0xb2, 0, 0x3f, 0xfc, 0, 0, 0x88, 0xb5];
        expected.extend(b"bmcl\x03\x01\x07\x02\0\x01\0\x02");
        expected.extend([0, 0, 0, 0, 0, 0, 1, 2]);
        expected.extend([0xff; 8]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 9]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 3]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 4]);
        expected.extend(b"b");
        assert_eq!(frame[..frame.len() - TAG], expected);
        assert_eq!(read(&frame[ETHERNET..], &key()), Ok(hello));
    }

    #[test]
    fn epochs_overlap_that_differ_by_one_change() {
        let epochs =
            |now, before: Option<u8>| Epochs { now: Epoch::new(now), before: before.map(Epoch::new) };
        let seven = Epochs::only(Epoch::new(7));
        let eight = seven.change(Epoch::new(8));
        assert_eq!((eight, seven.change(Epoch::new(7))), (epochs(8, Some(7)), seven));
        assert!(seven.overlap(eight) && eight.overlap(seven) && eight.overlap(eight.change(Epoch::new(9))));
        assert!(!seven.overlap(eight.change(Epoch::new(9))) && !seven.overlap(Epochs::only(Epoch::new(8))));
        for epochs in [seven, eight, epochs(0, Some(255)), epochs(255, Some(0))] {
            assert_eq!(Epochs::from_bytes(epochs.bytes()), epochs);
        }
    }

    #[test]
    fn parts_round_trip_and_fit_into_a_frame() {
        let six = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 9]);
        let entries = vec![
            Entry::Port(31, 9000),
            Entry::Prefix(1, IpAddr::from([192, 0, 2, 0]), 24),
            Entry::Own(six),
            Entry::Neighbor(1, IpAddr::from([192, 0, 2, 9]), Index { number: 0xffff, check: 31 }),
            Entry::Claim(six),
            Entry::Bound(six),
            Entry::NoLink(2046),
            Entry::Drained,
        ];
        let part = message(Contents::Part { version: 1, part: 0, parts: 1, entries });
        assert_eq!(read(&framed(&part)[ETHERNET..], &key()), Ok(part));
        let entries = vec![Entry::Neighbor(0, six, Index { number: 1, check: 2 }); ENTRIES];
        let full = framed(&message(Contents::Part { version: 1, part: 0, parts: 1, entries }));
        assert!(full.len() <= 1280, "{}", full.len());
    }

    #[test]
    fn questions_and_answers_round_trip_and_fit_into_a_frame() {
        let path = "/v1/routes?address=192.0.2.1".to_string();
        let bytes = vec![0xa5; BYTES];
        for contents in [
            Contents::Sent(u64::MAX),
            Contents::Ask { id: 1 << 63, first: 513, path: path.clone() },
            Contents::Answer { id: 9, part: 1, parts: 2, bytes },
        ] {
            let message = message(contents);
            let frame = framed(&message);
            assert!(frame.len() <= 1280, "{}", frame.len());
            assert_eq!(read(&frame[ETHERNET..], &key()), Ok(message));
        }
        let ask = framed(&message(Contents::Ask { id: 258, first: 3, path }));
        let at = ETHERNET + HEADER;
        assert_eq!(ask[at..at + 13], [&[0, 0, 0, 0, 0, 0, 1, 2, 0, 3][..], b"/v1"].concat());
    }

    #[test]
    fn rejects_modified_messages() {
        let frame = framed(&message(Contents::Hello { version: 3, has: 4, name: "b".into() }));
        let body = &frame[ETHERNET..];
        for at in 0..body.len() {
            let mut changed = body.to_vec();
            changed[at] ^= 1;
            let expected = if at < 5 { MessageError::Malformed } else { MessageError::Key };
            assert_eq!(read(&changed, &key()), Err(expected), "byte {at}");
        }
        assert_eq!(read(body, &Key::new(b"another")), Err(MessageError::Key));
        for length in 0..body.len() {
            assert!(read(&body[..length], &key()).is_err());
        }
    }

    #[test]
    fn rejects_invalid_entries() {
        let entry = |bytes: &[u8]| read_entry(&mut Bytes(bytes));
        assert_eq!(entry(&[1, 0, 0, 0, 5, 220]), Some(Entry::Port(0, 1500)));
        for odd in [
            &[9u8, 0, 0, 0, 0, 0][..],
            &[1, 32, 0, 0, 0, 0],
            &[5, 0, 0, 0, 7, 255],
            &[2, 0, 33, 4, 0, 0, 1, 2, 3, 4],
            &[3, 0, 0, 5, 0, 0, 1, 2, 3, 4, 5],
            &[4, 0, 0, 4, 0, 0, 1, 2, 3],
        ] {
            assert_eq!(entry(odd), None, "{odd:?}");
        }
    }
}

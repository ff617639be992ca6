//! The messages of a batch (`include/uapi/linux/netfilter/nf_tables.h`).

use super::{Chain, Family, Hook, Match, Rule, Table, Value, Verdict};
use crate::attribute::{NESTED, put as attribute, put_nested};
use crate::message::{begin, end};
use crate::socket::flag;

/// Part of netfilter that message types begin with.
const SUBSYSTEM: u16 = 10;
/// Before connection tracking has packets, and before it reassembles fragments.
const PRIORITY: i32 = -450;
/// Of chains in owned tables.
const PRIORITY_OWNED: i32 = PRIORITY - 10;
/// The longest comment that nft shows.
const COMMENT_MAX: usize = 120;
/// The userdata of each rule begins with this: a type that nft does not know and ignores, the length, a text.
const MARK: [u8; 11] = *b"\xb3\x09brickmoon";
/// Where values are stored for comparisons, and where verdicts go.
const REGISTER: u32 = 1;
const VERDICT: u32 = 0;

/// Messages.
mod message {
    pub const BEGIN: u16 = 0x10;
    pub const END: u16 = 0x11;
    pub const NEW_TABLE: u16 = 0;
    pub const GET_TABLE: u16 = 1;
    pub(crate) const DELETE_TABLE: u16 = 2;
    pub const NEW_CHAIN: u16 = 3;
    pub const NEW_RULE: u16 = 6;
}
/// Appends a rule after existing ones.
const APPEND: u16 = 0x800;
/// Flag of a table (`NFT_TABLE_F_OWNER`): it ends with its socket.
const OWNER: u32 = 2;
/// Key of the meta expression (`NFT_META_PRIORITY`).
const META_PRIORITY: u32 = 2;

/// Writes messages, each with its own sequence number.
struct Batch<F> {
    bytes: Vec<u8>,
    next: F,
    family: u8,
    /// The start of the last message that is acknowledged, and its sequence number.
    last: (usize, u32),
}

impl<F: FnMut() -> u32> Batch<F> {
    /// Starts a batch; returns the sequence number of its first message.
    fn begin(family: Family, next: F) -> (Self, u32) {
        let family = match family {
            Family::Inet => 1,
            Family::Netdev => 5,
            Family::Bridge => 7,
        };
        let mut batch = Self { bytes: Vec::with_capacity(4096), next, family, last: (0, 0) };
        let first = batch.marker(message::BEGIN);
        (batch, first)
    }

    /// The message that begins the batch or ends it.
    fn marker(&mut self, kind: u16) -> u32 {
        let sequence = (self.next)();
        let start = begin(&mut self.bytes, kind, flag::REQUEST, sequence);
        let [high, low] = SUBSYSTEM.to_be_bytes();
        self.bytes.extend_from_slice(&[0, 0, high, low]);
        end(&mut self.bytes, start);
        sequence
    }

    fn add(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Vec<u8>)) {
        let sequence = (self.next)();
        let flags = flag::REQUEST | flags;
        let start = begin(&mut self.bytes, SUBSYSTEM << 8 | kind, flags, sequence);
        self.last = (start, sequence);
        self.bytes.extend_from_slice(&[self.family, 0, 0, 0]);
        body(&mut self.bytes);
        end(&mut self.bytes, start);
    }

    fn table(&mut self, kind: u16, flags: u16, name: &str) {
        self.add(kind, flags, |body| text(body, 1, name));
    }

    fn new_table(&mut self, table: &Table) {
        self.add(message::NEW_TABLE, flag::CREATE, |body| {
            text(body, 1, &table.name);
            if table.owned {
                attribute(body, 2, &OWNER.to_be_bytes());
            }
        });
    }

    /// Requests an answer to the last message. Others are answered only if they are rejected.
    fn answered(&mut self) -> u32 {
        let (start, sequence) = self.last;
        // The flags are the two bytes after length and type.
        let flags = &mut self.bytes[start + 6..start + 8];
        let asked = u16::from_ne_bytes([flags[0], flags[1]]) | flag::ACK;
        flags.copy_from_slice(&asked.to_ne_bytes());
        sequence
    }

    fn finish(mut self, first: u32) -> Request {
        let last = self.answered();
        self.marker(message::END);
        Request { bytes: self.bytes, first, last }
    }
}

/// Messages to send, and how their answers are recognized.
pub struct Request {
    /// The messages.
    pub bytes: Vec<u8>,
    /// Sequence number of the first message.
    pub first: u32,
    /// Sequence number of the last message that is acknowledged.
    pub last: u32,
}

/// A batch that replaces the table of that name.
pub fn put(table: &Table, next: impl FnMut() -> u32) -> Request {
    let (mut batch, first) = Batch::begin(table.family, next);
    // A table must exist to be deleted.
    batch.new_table(table);
    batch.table(message::DELETE_TABLE, 0, &table.name);
    batch.new_table(table);
    for chain in &table.chains {
        batch.add(message::NEW_CHAIN, flag::CREATE, |body| write_chain(body, table, chain));
    }
    for chain in &table.chains {
        for rule in &chain.rules {
            batch.add(message::NEW_RULE, flag::CREATE | APPEND, |body| {
                write_rule(body, &table.name, &chain.name, rule);
            });
        }
    }
    batch.finish(first)
}

/// A batch that removes a table.
pub fn remove(family: Family, name: &str, next: impl FnMut() -> u32) -> Request {
    let (mut batch, first) = Batch::begin(family, next);
    batch.table(message::DELETE_TABLE, 0, name);
    batch.finish(first)
}

/// A request for a table.
pub fn ask(family: Family, name: &str, sequence: u32) -> Request {
    let (mut batch, _) = Batch::begin(family, || sequence);
    batch.bytes.clear();
    batch.table(message::GET_TABLE, 0, name);
    batch.answered();
    Request { bytes: batch.bytes, first: sequence, last: sequence }
}

fn write_chain(body: &mut Vec<u8>, table: &Table, chain: &Chain) {
    text(body, 1, &table.name);
    text(body, 3, &chain.name);
    if chain.hook == Hook::Nowhere {
        return;
    }
    put_nested(body, 4 | NESTED, |hook| {
        // Prerouting and ingress bear the same number.
        attribute(hook, 1, &0u32.to_be_bytes());
        let priority = if table.owned { PRIORITY_OWNED } else { PRIORITY };
        attribute(hook, 2, &priority.to_be_bytes());
        if let Hook::Ingress(interface) = &chain.hook {
            text(hook, 3, interface);
        }
    });
    // Policy accept.
    attribute(body, 5, &1u32.to_be_bytes());
    text(body, 7, "filter");
}

fn write_rule(body: &mut Vec<u8>, table: &str, chain: &str, rule: &Rule) {
    text(body, 1, table);
    text(body, 2, chain);
    put_nested(body, 4 | NESTED, |list| {
        for asked in &rule.matches {
            write_match(list, asked);
        }
        if rule.verdict == Verdict::Drop {
            expression(list, "counter", |_| {});
        }
        match &rule.verdict {
            Verdict::Mark(bit) => set_priority(list, *bit, *bit),
            Verdict::AcceptUnmarked(bit) => set_priority(list, *bit, 0),
            Verdict::Accept | Verdict::Drop | Verdict::Goto(_) => {}
        }
        expression(list, "immediate", |data| write_verdict(data, &rule.verdict));
    });
    let mut userdata = MARK.to_vec();
    if !rule.comment.is_empty() {
        userdata.extend(comment(&rule.comment));
    }
    attribute(body, 7, &userdata);
}

/// Whether the userdata of a rule begins with our mark.
pub fn is_marked(userdata: &[u8]) -> bool {
    userdata.starts_with(&MARK)
}

/// A comment as nft stores it: type, length, text with a zero byte.
fn comment(text: &str) -> Vec<u8> {
    let mut end = text.len().min(COMMENT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text.as_bytes()[..end];
    let mut bytes = vec![0, text.len() as u8 + 1];
    bytes.extend_from_slice(text);
    bytes.push(0);
    bytes
}

fn write_match(list: &mut Vec<u8>, asked: &Match) {
    let (value, mask) = match asked {
        Match::Is(value, _, mask) | Match::IsNot(value, _, mask) => (value, mask.as_ref()),
        Match::Within(value, ..) => (value, None),
    };
    write_load(list, *value);
    if let Some(mask) = mask {
        write_bitwise(list, mask, &vec![0; mask.len()]);
    }
    match asked {
        Match::Is(_, data, _) => write_compare(list, true, data),
        Match::IsNot(_, data, _) => write_compare(list, false, data),
        Match::Within(_, first, last) => expression(list, "range", |fields| {
            attribute(fields, 1, &REGISTER.to_be_bytes());
            attribute(fields, 2, &0u32.to_be_bytes());
            literal(fields, 3, first);
            literal(fields, 4, last);
        }),
    }
}

fn write_compare(list: &mut Vec<u8>, equal: bool, data: &[u8]) {
    expression(list, "cmp", |fields| {
        attribute(fields, 1, &REGISTER.to_be_bytes());
        attribute(fields, 2, &u32::from(!equal).to_be_bytes());
        literal(fields, 3, data);
    });
}

/// Keeps the bits of the register that are in the mask, and inverts those of `inverted`.
fn write_bitwise(list: &mut Vec<u8>, mask: &[u8], inverted: &[u8]) {
    expression(list, "bitwise", |data| {
        attribute(data, 1, &REGISTER.to_be_bytes());
        attribute(data, 2, &REGISTER.to_be_bytes());
        attribute(data, 3, &(mask.len() as u32).to_be_bytes());
        literal(data, 4, mask);
        literal(data, 5, inverted);
    });
}

/// Sets a bit of the packet's priority to that of `to`.
fn set_priority(list: &mut Vec<u8>, bit: u32, to: u32) {
    write_meta(list, META_PRIORITY);
    write_bitwise(list, &(!bit).to_ne_bytes(), &to.to_ne_bytes());
    expression(list, "meta", |data| {
        attribute(data, 2, &META_PRIORITY.to_be_bytes());
        attribute(data, 3, &REGISTER.to_be_bytes());
    });
}

/// Loads a value into the register.
fn write_load(list: &mut Vec<u8>, value: Value) {
    match value {
        Value::Protocol => write_meta(list, 1),
        Value::Priority => write_meta(list, META_PRIORITY),
        Value::Interface => write_meta(list, 4),
        Value::InterfaceName => write_meta(list, 6),
        Value::Transport => write_meta(list, 16),
        Value::Link(offset, length) => write_payload(list, 0, offset, length),
        Value::Network(offset, length) => write_payload(list, 1, offset, length),
        Value::Ports(offset, length) => write_payload(list, 2, offset, length),
        Value::Fragment(offset, length) => expression(list, "exthdr", |data| {
            attribute(data, 1, &REGISTER.to_be_bytes());
            attribute(data, 2, &[44]);
            attribute(data, 3, &offset.to_be_bytes());
            attribute(data, 4, &length.to_be_bytes());
        }),
        Value::DestinationType => write_fib(list, 2),
        Value::DestinationTypeHere => write_fib(list, 2 | 8),
    }
}

fn write_meta(list: &mut Vec<u8>, key: u32) {
    expression(list, "meta", |data| {
        attribute(data, 1, &REGISTER.to_be_bytes());
        attribute(data, 2, &key.to_be_bytes());
    });
}

fn write_payload(list: &mut Vec<u8>, base: u32, offset: u32, length: u32) {
    expression(list, "payload", |data| {
        for (kind, value) in (1..).zip([REGISTER, base, offset, length]) {
            attribute(data, kind, &value.to_be_bytes());
        }
    });
}

/// A lookup of an address's type in the routing tables.
fn write_fib(list: &mut Vec<u8>, flags: u32) {
    expression(list, "fib", |data| {
        for (kind, value) in (1..).zip([REGISTER, 3, flags]) {
            attribute(data, kind, &value.to_be_bytes());
        }
    });
}

fn write_verdict(data: &mut Vec<u8>, verdict: &Verdict) {
    attribute(data, 1, &VERDICT.to_be_bytes());
    put_nested(data, 2 | NESTED, |value| {
        put_nested(value, 2 | NESTED, |fields| {
            let code: i32 = match verdict {
                Verdict::Drop => 0,
                Verdict::Accept | Verdict::AcceptUnmarked(_) => 1,
                // Goes on with the next rule (`NFT_CONTINUE`).
                Verdict::Mark(_) => -1,
                Verdict::Goto(_) => -4,
            };
            attribute(fields, 1, &code.to_be_bytes());
            if let Verdict::Goto(chain) = verdict {
                text(fields, 2, chain);
            }
        });
    });
}

fn expression(list: &mut Vec<u8>, name: &str, data: impl FnOnce(&mut Vec<u8>)) {
    put_nested(list, 1 | NESTED, |element| {
        text(element, 1, name);
        put_nested(element, 2 | NESTED, data);
    });
}

/// A value to compare with.
fn literal(fields: &mut Vec<u8>, kind: u16, value: &[u8]) {
    put_nested(fields, kind | NESTED, |data| attribute(data, 1, value));
}

fn text(body: &mut Vec<u8>, kind: u16, text: &str) {
    attribute(body, kind, &[text.as_bytes(), &[0]].concat());
}

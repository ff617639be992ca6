//! Sets and maps, and what their elements do with packets that look them up.
//!
//! ```text
//! tcp dport vmap @m ─► m: 80 : jump web, 81 : drop    ─► leads to the chain web, drops
//! ip saddr @s accept ─► s: 10.0.0.1 counter           ─► counts
//! ```
//!
//! All elements of a set count as one: which of them a packet finds is not asked.

use super::attributes::{number, some};
use super::verdict::{Object, Verdict};
use bm_netlink::attribute::{self, Attributes};
use bm_netlink::error::Malformed;
use std::collections::BTreeSet;

/// Attributes.
mod nfta {
    /// Table, name, flags, length of its keys, type of its data, type of its objects, handle; then one expression and
    /// several.
    pub const SET: [u16; 9] = [1, 2, 3, 5, 6, 15, 16, 17, 18];
    /// Table, set, elements.
    pub const LIST: [u16; 3] = [1, 2, 3];
    /// Data, one expression, several.
    pub(crate) const ELEMENT: [u16; 3] = [2, 7, 11];
    /// A key, and the last one of a range.
    pub const KEY: [u16; 2] = [1, 10];
    pub(crate) const DATA_VALUE: u16 = 1;
    pub(crate) const DATA_VERDICT: u16 = 2;
    pub(crate) const EXPR_NAME: u16 = 1;
}
/// The type of data that is a verdict.
const VERDICT: u32 = 0xffff_ff00;
/// The expression that counts connections.
const COUNT: &str = "connlimit";
/// The most keys that are kept, and their greatest length in bytes.
const KEYS_MAX: usize = 16;
const KEY_LENGTH_MAX: usize = 4;

/// Flags of sets (`NFT_SET_*`).
mod flag {
    pub(crate) const CONSTANT: u32 = 0x2;
    pub const INTERVAL: u32 = 0x4;
    pub const TIMEOUT: u32 = 0x10;
    pub(crate) const EVAL: u32 = 0x20;
}

/// A set or a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Whether it maps to verdicts.
    pub verdicts: bool,
    /// What the objects are that it maps to.
    pub object: Option<Object>,
    /// Distinguishes it from others that have had its name.
    pub handle: u64,
    pub flags: u32,
    /// Bytes of a key.
    pub key_length: Option<u32>,
    pub elements: Elements,
    pub keys: Keys,
}

/// The keys of elements as far as they are few and short, with the verdicts of those in a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    list: Vec<Mapping>,
    /// There are others.
    more: bool,
}

/// A key, and the verdict of its element in a map of verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub key: Box<[u8]>,
    pub verdict: Option<Verdict>,
}

/// What the elements of a set do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements {
    /// The verdicts that they have, each once.
    pub verdicts: BTreeSet<Verdict>,
    /// The first effect on packets that find one.
    pub effect: Option<Box<str>>,
    /// What about them does not depend only on the packet.
    pub stateful: Option<Box<str>>,
    /// Whether they count connections.
    pub tracks: bool,
    /// Whether they do something to each packet besides counting it.
    pub each_packet: bool,
    /// Whether they count packets.
    pub counts: bool,
}

/// What a set is called.
pub struct Names {
    pub table: Box<str>,
    pub set: Box<str>,
}

impl Set {
    /// The names of a set, and what is known without its elements.
    pub fn read(list: Attributes<'_>) -> Result<Option<(Names, Self)>, Malformed> {
        let [Some(table), Some(name), flags, length, data, object, handle, one, several] =
            some(list, nfta::SET)?
        else {
            return Ok(None);
        };
        let mut set = Self {
            verdicts: data.and_then(number) == Some(VERDICT),
            object: object.and_then(number).map(Object::of),
            handle: handle.and_then(|value| value.try_into().ok()).map_or(0, u64::from_be_bytes),
            flags: flags.and_then(number).unwrap_or_default(),
            key_length: length.and_then(number),
            ..Self::default()
        };
        set.elements.add_expressions([one, several])?;
        Ok(Some((Names { table: attribute::text(table), set: attribute::text(name) }, set)))
    }
}

impl Set {
    /// Whether elements come and go without a commit: by rules, or as their time is up.
    pub(crate) fn changes_by_itself(&self) -> bool {
        self.flags & (flag::TIMEOUT | flag::EVAL) != 0
    }

    /// All keys of this length, each of which stands for itself; none if they are not known, or may change unnoticed.
    pub(crate) fn keys(&self, length: u32) -> Option<&[Mapping]> {
        // Without verdicts, elements of a set that is not constant change without an event that matters.
        let kept = self.verdicts || self.flags & flag::CONSTANT != 0;
        let exact = self.flags & flag::INTERVAL == 0 && !self.changes_by_itself() && !self.keys.more;
        (kept && exact && self.key_length == Some(length)).then_some(&self.keys.list)
    }

    /// Adds the elements in a message.
    pub(crate) fn add(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        self.elements.add(list)?;
        self.keys.add(list)
    }
}

impl Keys {
    fn add(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let [_, _, elements] = some(list, nfta::LIST)?;
        for element in Attributes::new(elements.unwrap_or_default()) {
            if self.more {
                return Ok(());
            }
            let element = Attributes::new(element?.1);
            let [key, end] = some(element, nfta::KEY)?;
            let key = Attributes::new(key.unwrap_or_default()).find(nfta::DATA_VALUE)?;
            let fits = key.is_some_and(|key| key.len() <= KEY_LENGTH_MAX) && self.list.len() < KEYS_MAX;
            let (Some(key), true, None) = (key, fits, end) else {
                self.more = true;
                continue;
            };
            let [data, ..] = some(element, nfta::ELEMENT)?;
            self.list.push(Mapping { key: key.into(), verdict: verdict(data)? });
        }
        Ok(())
    }
}

fn verdict(data: Option<&[u8]>) -> Result<Option<Verdict>, Malformed> {
    let found = Attributes::new(data.unwrap_or_default()).find(nfta::DATA_VERDICT)?;
    found.map(|found| Verdict::read(Attributes::new(found))).transpose()
}

impl Elements {
    /// Whether they do anything.
    pub(crate) fn act(&self) -> bool {
        *self != Self::default()
    }

    /// Adds the elements in a message.
    fn add(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let [_, _, elements] = some(list, nfta::LIST)?;
        for element in Attributes::new(elements.unwrap_or_default()) {
            let [data, one, several] = some(Attributes::new(element?.1), nfta::ELEMENT)?;
            self.add_expressions([one, several])?;
            if let Some(verdict) = verdict(data)? {
                self.add_verdict(verdict);
            }
        }
        Ok(())
    }

    fn add_verdict(&mut self, verdict: Verdict) {
        match verdict.effect() {
            Some(what) if verdict == Verdict::Queue => self.has_side_effect(what),
            Some(what) => self.acts(what),
            None => {}
        }
        self.verdicts.insert(verdict);
    }

    /// Adds one expression that is evaluated for each packet that finds the element, and several.
    fn add_expressions(&mut self, [one, several]: [Option<&[u8]>; 2]) -> Result<(), Malformed> {
        for name in names([one, several])? {
            match &*name {
                "counter" | "last" => self.counts = true,
                _ => self.each_packet = true,
            }
            match &*name {
                "counter" | "limit" | "quota" | "last" => self.acts(&name),
                COUNT => {
                    self.tracks = true;
                    self.has_side_effect("ct count");
                }
                _ => self.has_side_effect(&name),
            }
        }
        Ok(())
    }

    fn acts(&mut self, what: &str) {
        self.effect.get_or_insert_with(|| what.into());
    }

    fn has_side_effect(&mut self, what: &str) {
        self.acts(what);
        self.stateful.get_or_insert_with(|| what.into());
    }
}

/// The table and the set that elements in a message are of.
pub(crate) fn set_of(list: Attributes<'_>) -> Result<Option<Names>, Malformed> {
    let [table, set, _] = some(list, nfta::LIST)?.map(|value| value.map(attribute::text));
    Ok(table.zip(set).map(|(table, set)| Names { table, set }))
}

/// Whether elements in a message do anything: verdicts and expressions do. What cannot be read may.
pub(crate) fn may_act(list: Attributes<'_>) -> bool {
    acts(list).unwrap_or(true)
}

fn acts(list: Attributes<'_>) -> Result<bool, Malformed> {
    let [_, _, elements] = some(list, nfta::LIST)?;
    for element in Attributes::new(elements.unwrap_or_default()) {
        let [data, one, several] = some(Attributes::new(element?.1), nfta::ELEMENT)?;
        let data = Attributes::new(data.unwrap_or_default());
        if one.is_some() || several.is_some() || data.find(nfta::DATA_VERDICT)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an expression, or one of several, counts connections.
pub(crate) fn counts_connections(expressions: [Option<&[u8]>; 2]) -> Result<bool, Malformed> {
    Ok(names(expressions)?.iter().any(|name| &**name == COUNT))
}

/// The names of one expression and of several.
fn names([one, several]: [Option<&[u8]>; 2]) -> Result<Vec<Box<str>>, Malformed> {
    let mut expressions: Vec<&[u8]> = one.into_iter().collect();
    for element in Attributes::new(several.unwrap_or_default()) {
        expressions.push(element?.1);
    }
    let mut names = Vec::new();
    for expression in expressions {
        names.push(attribute::text(Attributes::new(expression).find(nfta::EXPR_NAME)?.unwrap_or_default()));
    }
    Ok(names)
}

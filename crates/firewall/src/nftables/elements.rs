//! Sets and maps, and what their elements do with packets that look them up.
//!
//! ```text
//! tcp dport vmap @m ─► m: 80 : jump web, 81 : drop    ─► leads to the chain web, drops
//! ip saddr @s accept ─► s: 10.0.0.1 counter           ─► counts
//! ```
//!
//! All elements of a set count as one: which of them a packet finds is not asked.

use super::expression::{number, some};
use super::verdict::{Object, Verdict};
use bm_netlink::attribute::{self, Attributes};
use bm_netlink::error::Malformed;
use std::collections::BTreeSet;

/// Attributes.
mod nfta {
    /// Table, name, type of its data, type of its objects, handle; then one expression and several.
    pub const SET: [u16; 7] = [1, 2, 6, 15, 16, 17, 18];
    /// Table, set, elements.
    pub const LIST: [u16; 3] = [1, 2, 3];
    /// Data, one expression, several.
    pub(crate) const ELEMENT: [u16; 3] = [2, 7, 11];
    pub(crate) const DATA_VERDICT: u16 = 2;
    pub(crate) const EXPR_NAME: u16 = 1;
}
/// The type of data that is a verdict.
const VERDICT: u32 = 0xffff_ff00;
/// The expression that counts connections.
const COUNT: &str = "connlimit";

/// A set or a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Whether it maps to verdicts.
    pub verdicts: bool,
    /// What the objects are that it maps to.
    pub object: Option<Object>,
    /// Distinguishes it from others that have had its name.
    pub handle: u64,
    pub elements: Elements,
}

/// What the elements of a set do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements {
    /// The chains that they lead to.
    pub chains: BTreeSet<Box<str>>,
    /// The first effect on packets that find one.
    pub effect: Option<Box<str>>,
    /// What about them does not depend only on the packet.
    pub stateful: Option<Box<str>>,
    /// Whether they count connections.
    pub tracks: bool,
}

/// What a set is called.
pub struct Names {
    pub table: Box<str>,
    pub set: Box<str>,
}

impl Set {
    /// The names of a set, and what is known without its elements.
    pub fn read(list: Attributes<'_>) -> Result<Option<(Names, Self)>, Malformed> {
        let [Some(table), Some(name), data, object, handle, one, several] = some(list, nfta::SET)? else {
            return Ok(None);
        };
        let mut set = Self {
            verdicts: data.and_then(number) == Some(VERDICT),
            object: object.and_then(number).map(Object::of),
            handle: handle.and_then(|value| value.try_into().ok()).map_or(0, u64::from_be_bytes),
            elements: Elements::default(),
        };
        set.elements.add_expressions([one, several])?;
        Ok(Some((Names { table: attribute::text(table), set: attribute::text(name) }, set)))
    }
}

impl Elements {
    /// Adds the elements in a message.
    pub fn add(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let [_, _, elements] = some(list, nfta::LIST)?;
        for element in Attributes::new(elements.unwrap_or_default()) {
            let [data, one, several] = some(Attributes::new(element?.1), nfta::ELEMENT)?;
            self.add_expressions([one, several])?;
            let verdict = Attributes::new(data.unwrap_or_default()).find(nfta::DATA_VERDICT)?;
            if let Some(verdict) = verdict {
                self.add_verdict(Verdict::read(Attributes::new(verdict))?);
            }
        }
        Ok(())
    }

    fn add_verdict(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Goes => {}
            Verdict::Acts(what) => self.acts(what),
            Verdict::Queue => self.has_side_effect("queue"),
            Verdict::Chain(chain) => {
                self.chains.insert(chain);
            }
        }
    }

    /// Adds one expression that is evaluated for each packet that finds the element, and several.
    fn add_expressions(&mut self, [one, several]: [Option<&[u8]>; 2]) -> Result<(), Malformed> {
        for name in names([one, several])? {
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

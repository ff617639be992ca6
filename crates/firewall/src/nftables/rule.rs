//! A rule of the ruleset, read.

use super::elements::counts_connections;
use super::expression::{Registers, bitwise, compare, load_header, load_meta, number, range, some};
use super::verdict::{Object, Verdict};
use super::{Lookup, LookupKind, Rule};
use crate::condition::Condition;
use crate::xt;
use bm_netlink::attribute::{self, Attributes};
use bm_netlink::error::Malformed;

/// Attributes.
mod nfta {
    pub(crate) const RULE_HANDLE: u16 = 3;
    pub(crate) const RULE_EXPRESSIONS: u16 = 4;
    pub(crate) const EXPR: [u16; 2] = [1, 2];
    pub(crate) const IMMEDIATE: [u16; 2] = [1, 2];
    pub(crate) const DATA_VERDICT: u16 = 2;
    pub(crate) const LOOKUP: [u16; 2] = [1, 3];
    pub(crate) const DREG_1: u16 = 1;
    pub(crate) const DREG_2: u16 = 2;
    pub(crate) const CT_DREG: u16 = 1;
    pub(crate) const NAT_TYPE: u16 = 1;
    pub(crate) const OBJREF: [u16; 2] = [1, 4];
    pub(crate) const DYNSET: [u16; 2] = [7, 10];
    pub(crate) const XT_NAME: u16 = 1;
    pub(crate) const XT_INFO: u16 = 3;
}

/// The state of reading a rule.
#[derive(Default)]
struct Reading {
    rule: Rule,
    registers: Registers,
    /// Matches before the rule's first effect; later ones do not undo that.
    settled: Option<Condition>,
}

/// Reads the attributes of a rule.
pub(super) fn read(list: Attributes<'_>) -> Result<Rule, Malformed> {
    let [handle, expressions] = some(list, [nfta::RULE_HANDLE, nfta::RULE_EXPRESSIONS])?;
    let mut reading = Reading::default();
    reading.rule.handle = handle.and_then(|value| value.try_into().ok()).map_or(0, u64::from_be_bytes);
    for element in Attributes::new(expressions.unwrap_or_default()) {
        let [name, data] = some(Attributes::new(element?.1), nfta::EXPR)?;
        let name = attribute::text(name.unwrap_or_default());
        reading.expression(&name, Attributes::new(data.unwrap_or_default()))?;
    }
    let Reading { mut rule, settled, .. } = reading;
    rule.condition = settled.unwrap_or(rule.condition);
    Ok(rule)
}

impl Reading {
    fn expression(&mut self, name: &str, list: Attributes<'_>) -> Result<(), Malformed> {
        let Self { rule, registers, .. } = self;
        match name {
            "cmp" => compare(registers, list, &mut rule.condition)?,
            "range" => range(registers, list, &mut rule.condition)?,
            "bitwise" => bitwise(registers, list)?,
            "meta" if load_meta(registers, list)? => {}
            "payload" if load_header(registers, list)? => {}
            "lookup" => self.lookup(list)?,
            // Other loads and matches: what they mean for the packet is ignored.
            "byteorder" | "hash" | "socket" | "tunnel" => {
                self.forget(list, nfta::DREG_2)?;
                if name == "socket" {
                    self.tracks(name);
                }
            }
            "fib" | "exthdr" | "rt" | "osf" | "xfrm" => {
                self.forget(list, nfta::DREG_1)?;
                // An option that is written or taken out of the packet.
                if name == "exthdr" && list.find(nfta::DREG_1)?.is_none() {
                    self.acts("option set");
                }
            }
            "immediate" => self.immediate(list)?,
            "match" => self.xt_match(list)?,
            "target" => self.xt_target(list)?,
            "objref" => self.object(list)?,
            "ct" => {
                let sets = list.find(nfta::CT_DREG)?.is_none();
                self.matches_connections(if sets { "ct set" } else { "a match by ct" });
            }
            "nat" => {
                let is_source = list.find(nfta::NAT_TYPE)?.and_then(number) == Some(0);
                self.matches_connections(if is_source { "snat" } else { "dnat" });
            }
            "masq" => self.matches_connections("masquerade"),
            "redir" => self.matches_connections("redirect"),
            "flow_offload" => self.matches_connections("flow add"),
            "connlimit" => self.matches_connections("ct count"),
            "notrack" | "dup" | "fwd" | "queue" => self.has_side_effect(name),
            "tproxy" | "synproxy" => self.matches_connections(name),
            "dynset" => {
                if counts_connections(some(list, nfta::DYNSET)?)? {
                    self.tracks("ct count");
                }
                self.acts(name);
            }
            "meta" | "payload" => self.acts(&format!("{name} set")),
            other => self.acts(other),
        }
        Ok(())
    }

    /// The rule has an effect on packets that have got this far.
    fn acts(&mut self, what: &str) {
        self.settled.get_or_insert_with(|| self.rule.condition.clone());
        self.rule.effect.get_or_insert_with(|| what.into());
    }

    fn matches_connections(&mut self, what: &str) {
        self.tracks(what);
        self.has_side_effect(what);
    }

    /// The rule has an effect that does not depend only on what it matches.
    fn has_side_effect(&mut self, what: &str) {
        self.rule.stateful.get_or_insert_with(|| what.into());
        self.acts(what);
    }

    /// The rule requires connection tracking, or the reassembly that belongs to it.
    fn tracks(&mut self, what: &str) {
        self.rule.tracks.get_or_insert_with(|| what.into());
    }

    fn forget(&mut self, list: Attributes<'_>, register: u16) -> Result<(), Malformed> {
        if let Some(register) = list.find(register)?.and_then(number) {
            self.registers.forget(register);
        }
        Ok(())
    }

    /// A set does not narrow. What its elements do is known once all sets have been read.
    fn lookup(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let [set, register] = some(list, nfta::LOOKUP)?;
        let register = register.and_then(number);
        register.filter(|register| *register != 0).into_iter().for_each(|register| {
            self.registers.forget(register);
        });
        self.looks_up(set, if register == Some(0) { LookupKind::Verdict } else { LookupKind::Value });
        Ok(())
    }

    fn looks_up(&mut self, set: Option<&[u8]>, kind: LookupKind) {
        let set = attribute::text(set.unwrap_or_default());
        let condition = self.settled.clone().unwrap_or_else(|| self.rule.condition.clone());
        self.rule.lookups.push(Lookup { set, condition, kind });
    }

    fn immediate(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let [register, data] = some(list, nfta::IMMEDIATE)?;
        let register = register.and_then(number).unwrap_or_default();
        if register != 0 {
            self.registers.forget(register);
            return Ok(());
        }
        let found = Attributes::new(data.unwrap_or_default()).find(nfta::DATA_VERDICT)?.unwrap_or_default();
        match Verdict::read(Attributes::new(found))? {
            Verdict::Goes => {}
            Verdict::Acts(what) => self.acts(what),
            Verdict::Queue => self.has_side_effect("queue"),
            Verdict::Chain(chain) => {
                self.settled.get_or_insert_with(|| self.rule.condition.clone());
                self.rule.targets.push(chain);
            }
        }
        Ok(())
    }

    fn object(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let [kind, map] = some(list, nfta::OBJREF)?;
        match (kind.and_then(number).map(Object::of), map) {
            (Some(object), _) => self.object_acts(object),
            (None, Some(_)) => self.looks_up(map, LookupKind::Object),
            (None, None) => self.has_side_effect("a named object"),
        }
        Ok(())
    }

    fn object_acts(&mut self, object: Object) {
        match object {
            Object::Plain(what) => self.acts(what),
            Object::Tracked(what) => self.matches_connections(what),
            Object::Unknown => self.has_side_effect("a named object"),
        }
    }

    fn xt_match(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let [name, info] = some(list, [nfta::XT_NAME, nfta::XT_INFO])?;
        let name = attribute::text(name.unwrap_or_default());
        match xt::read_match(&name, info.unwrap_or_default(), &mut self.rule.condition) {
            xt::Sort::Plain => {}
            xt::Sort::Acts => self.acts(&format!("match {name}")),
            xt::Sort::Stateful => self.has_side_effect(&format!("match {name}")),
        }
        if xt::match_may_track(&name) {
            self.tracks(&format!("match {name}"));
        }
        Ok(())
    }

    fn xt_target(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let name = attribute::text(list.find(nfta::XT_NAME)?.unwrap_or_default());
        if xt::is_stateful_target(&name) {
            self.has_side_effect(&name);
        } else {
            self.acts(&name);
        }
        if xt::target_may_track(&name) {
            self.tracks(&name);
        }
        Ok(())
    }
}

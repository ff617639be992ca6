//! A rule of the ruleset, read.

use super::attributes::{number, some};
use super::elements::counts_connections;
use super::expression::{
    Registers, bitwise, compare, load_ct, load_header, load_meta, load_option, range, reorder,
};
use super::field::Field;
use super::plain::{Packet, ct};
use super::step::{Key, States, Step, Target};
use super::verdict::{Object, Verdict};
use super::{Lookup, LookupKind, Rule, compat};
use crate::condition::Condition;
use crate::xt;
use bm_netlink::attribute::{self, Attributes};
use bm_netlink::error::Malformed;
use bm_wire::Family;

/// Attributes.
mod nfta {
    pub(crate) const RULE_HANDLE: u16 = 3;
    pub(crate) const RULE_EXPRESSIONS: u16 = 4;
    pub(crate) const EXPR: [u16; 2] = [1, 2];
    pub(crate) const IMMEDIATE: [u16; 2] = [1, 2];
    pub(crate) const DATA_VERDICT: u16 = 2;
    /// Set, key, destination, flags.
    pub(crate) const LOOKUP: [u16; 4] = [1, 2, 3, 5];
    pub(crate) const DREG_1: u16 = 1;
    pub(crate) const DREG_2: u16 = 2;
    /// Key, register.
    pub(crate) const SET_META: [u16; 2] = [2, 3];
    pub(crate) const SET_CT: [u16; 2] = [2, 4];
    pub(crate) const NAT_TYPE: u16 = 1;
    /// Type; key and name of a map.
    pub(crate) const OBJREF: [u16; 3] = [1, 3, 4];
    pub(crate) const DYNSET: [u16; 2] = [7, 10];
    pub(crate) const XT: [u16; 3] = [1, 2, 3];
}
/// The flag of a lookup that must not find anything.
const INVERTED: u32 = 1;
/// Keys of `meta set` and `ct set` with which all packets of a flow fare alike: marks, labels, event masks, zones.
const META_MARK: u32 = 3;
const CT_ZONE: u32 = 17;
const CT_SAME: [u32; 4] = [ct::MARK, ct::LABELS, CT_ZONE, 18];

/// The state of reading a rule.
#[derive(Default)]
struct Reading {
    rule: Rule,
    registers: Registers,
    /// Family of the table.
    family: Option<Family>,
    /// Matches before the rule's first effect; later ones do not undo that.
    settled: Option<Condition>,
}

/// Reads the attributes of a rule in a table of a family; none for both.
pub(super) fn read(family: Option<Family>, list: Attributes<'_>) -> Result<Rule, Malformed> {
    let [handle, expressions] = some(list, [nfta::RULE_HANDLE, nfta::RULE_EXPRESSIONS])?;
    let mut reading = Reading { family, ..Reading::default() };
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
        match name {
            "cmp" | "range" | "bitwise" | "byteorder" | "meta" | "payload" | "exthdr" | "fib" | "rt"
            | "hash" | "socket" | "tunnel" | "osf" | "xfrm" => self.matching(name, list)?,
            "lookup" => self.lookup(list)?,
            "immediate" => self.immediate(list)?,
            "match" => self.xt_match(list)?,
            "target" => self.xt_target(list)?,
            "objref" => self.object(list)?,
            "ct" => self.ct(list)?,
            name => self.statement(name, list)?,
        }
        Ok(())
    }

    /// What is known about packets that get this far.
    fn packet(&self) -> Packet {
        let condition = &self.rule.condition;
        let family = condition.family.or(self.family);
        Packet { family, protocol: condition.protocol(family) }
    }

    /// Something that a packet is loaded from or compared with, or that is written to it.
    fn matching(&mut self, name: &str, list: Attributes<'_>) -> Result<(), Malformed> {
        let packet = self.packet();
        let Self { rule, registers, .. } = self;
        let step = match name {
            "cmp" => compare(registers, list, packet, &mut rule.condition)?,
            "range" => range(registers, list, packet, &mut rule.condition)?,
            "bitwise" => return bitwise(registers, list, packet),
            "byteorder" => return reorder(registers, list, packet),
            "meta" if load_meta(registers, list)? => Step::SOME,
            "meta" => self.set_mark("meta set", list)?,
            "payload" if load_header(registers, list)? => Step::SOME,
            "payload" => {
                self.acts("payload set");
                Step::EachPacket
            }
            // An option that is written or taken out of the packet has no register.
            "exthdr" => {
                let step = load_option(registers, list)?;
                if step == Step::EachPacket {
                    self.acts("option set");
                }
                step
            }
            "fib" | "rt" => {
                if let Some(register) = list.find(nfta::DREG_1)?.and_then(number) {
                    registers.replace(register, Field::Same);
                }
                rule.steps.push(Step::Routes);
                Step::SOME
            }
            // Other loads and matches: what they mean for the packet is ignored.
            "osf" | "xfrm" => {
                self.forget(list, nfta::DREG_1)?;
                Step::Varies
            }
            _ => {
                self.forget(list, nfta::DREG_2)?;
                if name == "socket" {
                    self.tracks(name);
                }
                Step::Varies
            }
        };
        self.rule.steps.push(step);
        Ok(())
    }

    /// `meta set`. All packets of a flow get the mark that one of them got, if it is made of the same.
    fn set_mark(&mut self, what: &str, list: Attributes<'_>) -> Result<Step, Malformed> {
        self.acts(what);
        let [key, register] = some(list, nfta::SET_META)?.map(|value| value.and_then(number));
        let settled = register.is_some_and(|from| self.registers.is_settled(from, self.packet()));
        Ok(if settled && key == Some(META_MARK) { Step::Acts } else { Step::EachPacket })
    }

    fn ct(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        if let Some(key) = load_ct(&mut self.registers, list)? {
            self.matches_connections("a match by ct");
            if key != ct::STATE {
                self.rule.steps.push(Step::within(States::TRACKED));
            }
            return Ok(());
        }
        self.matches_connections("ct set");
        let [key, register] = some(list, nfta::SET_CT)?.map(|value| value.and_then(number));
        let settled = register.is_some_and(|from| self.registers.is_settled(from, self.packet()));
        let same = settled && key.is_some_and(|key| CT_SAME.contains(&key));
        self.rule.steps.push(if same { Step::Acts } else { Step::EachPacket });
        if key == Some(CT_ZONE) {
            self.rule.steps.push(Step::Retracks);
        }
        Ok(())
    }

    /// A statement, or something unknown.
    fn statement(&mut self, name: &str, list: Attributes<'_>) -> Result<(), Malformed> {
        match name {
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
            other => self.acts(other),
        }
        match name {
            "counter" | "last" => self.rule.steps.push(Step::Counts),
            "log" => self.rule.steps.push(Step::Logs),
            "nat" | "masq" | "redir" => self.rule.steps.extend([Step::Acts, Step::SOME]),
            "notrack" => self.rule.steps.extend([Step::Acts, Step::Retracks]),
            "reject" => self.rule.steps.push(Step::Verdict(Verdict::Drop)),
            _ => {
                // It may have loaded something, too.
                self.registers.clear();
                self.rule.steps.push(Step::EachPacket);
            }
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
        let [set, source, register, flags] = some(list, nfta::LOOKUP)?;
        let [source, register, flags] = [source, register, flags].map(|value| value.and_then(number));
        let inverted = flags.unwrap_or_default() & INVERTED != 0;
        let kind = if register == Some(0) { LookupKind::Verdict } else { LookupKind::Value };
        self.looks_up(set, source, kind, inverted);
        if let Some(register) = register.filter(|register| *register != 0) {
            let mapped = source.map_or(Field::Unknown, |from| self.registers.mapped(from, self.packet()));
            self.registers.replace(register, mapped);
        }
        Ok(())
    }

    fn looks_up(&mut self, set: Option<&[u8]>, source: Option<u32>, kind: LookupKind, inverted: bool) {
        let set = attribute::text(set.unwrap_or_default());
        let condition = self.settled.clone().unwrap_or_else(|| self.rule.condition.clone());
        let key = source.map_or(Key::Varies, |from| self.registers.key(from, self.packet()));
        self.rule.steps.push(Step::Lookup(self.rule.lookups.len()));
        self.rule.lookups.push(Lookup { set, condition, kind, key, inverted });
    }

    fn immediate(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let [register, data] = some(list, nfta::IMMEDIATE)?;
        let register = register.and_then(number).unwrap_or_default();
        if register != 0 {
            self.registers.replace(register, Field::Same);
            return Ok(());
        }
        let found = Attributes::new(data.unwrap_or_default()).find(nfta::DATA_VERDICT)?.unwrap_or_default();
        let verdict = Verdict::read(Attributes::new(found))?;
        match verdict.effect() {
            Some(what) if verdict == Verdict::Queue => self.has_side_effect(what),
            Some(what) => self.acts(what),
            None => {}
        }
        if let Some(chain) = verdict.chain() {
            self.settled.get_or_insert_with(|| self.rule.condition.clone());
            self.rule.targets.push(Target::anyhow(chain));
        }
        self.rule.steps.push(Step::Verdict(verdict));
        Ok(())
    }

    fn object(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let [kind, source, map] = some(list, nfta::OBJREF)?;
        match (kind.and_then(number).map(Object::of), map) {
            (Some(object), _) => self.object_acts(object),
            (None, Some(_)) => self.looks_up(map, source.and_then(number), LookupKind::Object, false),
            (None, None) => self.object_acts(Object::Unknown),
        }
        Ok(())
    }

    fn object_acts(&mut self, object: Object) {
        match object {
            Object::Plain(what) => self.acts(what),
            Object::Tracked(what) => self.matches_connections(what),
            Object::Unknown => self.has_side_effect("a named object"),
        }
        self.rule.steps.push(Step::Object(object));
    }

    fn xt_match(&mut self, list: Attributes<'_>) -> Result<(), Malformed> {
        let [name, _, info] = some(list, nfta::XT)?;
        let (name, info) = (attribute::text(name.unwrap_or_default()), info.unwrap_or_default());
        compat::add_match(&name, info, &mut self.rule.steps);
        match xt::read_match(&name, info, &mut self.rule.condition) {
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
        let [name, revision, info] = some(list, nfta::XT)?;
        let (name, info) = (attribute::text(name.unwrap_or_default()), info.unwrap_or_default());
        let revision = revision.and_then(number).unwrap_or_default();
        compat::add_target(&name, revision, info, &mut self.rule.steps);
        self.rule.has_timeout |= compat::sets_timeout(&name, revision, info);
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

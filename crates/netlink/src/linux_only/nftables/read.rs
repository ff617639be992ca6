//! Lists the ruleset, all of one generation.

use super::{Base, DeviceName, Place, Ruleset, TableName, hook, nfproto, rule, tracking};
use crate::attribute::{self, Attributes};
use crate::error::{Error, Malformed};
use crate::linux_only::condition::Families;
use crate::linux_only::dump::{Dumped, dump, is_absent, request};
use crate::message::Raw;
use crate::nft::OURS;
use crate::socket::Socket;
use bm_wire::Family;
use std::collections::{BTreeMap, BTreeSet};

use super::expression::{number, some};

/// Group of the events.
pub const GROUP: u32 = 7;
/// Part of netfilter that message types begin with.
const SUBSYSTEM: u16 = 10;
/// Fixed part of a message: `struct nfgenmsg`.
const HEADER: usize = 4;
/// Times that a dump is begun again because the ruleset has changed under it.
const PASSES: u32 = 5;

/// Messages.
mod message {
    pub const NEW_TABLE: u16 = 0;
    pub const GET_TABLE: u16 = 1;
    pub const NEW_CHAIN: u16 = 3;
    pub const GET_CHAIN: u16 = 4;
    pub const NEW_RULE: u16 = 6;
    pub const GET_RULE: u16 = 7;
    pub const NEW_SET: u16 = 9;
    pub const GET_SET: u16 = 10;
    pub const DELETE_SET: u16 = 11;
    pub const NEW_OBJECT: u16 = 18;
    pub const GET_OBJECT: u16 = 19;
    pub const DELETE_OBJECT: u16 = 20;
    pub const DELETE_RULE: u16 = 8;
    pub const GET_GENERATION: u16 = 16;
}
/// Attributes.
mod nfta {
    pub const TABLE: [u16; 2] = [1, 2];
    pub const CHAIN: [u16; 4] = [1, 3, 4, 5];
    pub const HOOK: [u16; 3] = [1, 3, 4];
    pub const RULE: [u16; 2] = [1, 2];
    pub const RULE_TABLE: u16 = 1;
    pub const DEVICE_NAME: u16 = 1;
    pub const GENERATION_ID: u16 = 1;
}
/// A table whose chains are all switched off.
const DORMANT: u32 = 1;

const fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

/// Whether a message is about a change of a table, a chain, a rule, a set or a named object. Elements of sets do not
/// matter.
pub fn is_event(raw: &Raw<'_>) -> bool {
    let others = [message::NEW_SET, message::DELETE_SET, message::NEW_OBJECT, message::DELETE_OBJECT];
    let message = raw.kind & 0xff;
    raw.kind >> 8 == SUBSYSTEM && (message <= message::DELETE_RULE || others.contains(&message))
}

/// Reads the ruleset. None if it kept changing; empty where the kernel has no nftables.
pub fn read(socket: &mut Socket) -> Result<Option<Ruleset>, Error> {
    for _ in 0..PASSES {
        let before = match generation(socket) {
            Ok(before) => before,
            Err(error) if is_absent(&error) => return Ok(Some(Ruleset::default())),
            Err(error) => return Err(error),
        };
        let read = read_once(socket);
        if generation(socket)? != before {
            // A table that went away in the middle is an error of no interest.
            continue;
        }
        if let Some(ruleset) = read? {
            return Ok(Some(ruleset));
        }
    }
    Ok(None)
}

/// Counts the changes of the ruleset.
fn generation(socket: &mut Socket) -> Result<Option<u32>, Error> {
    let mut id = None;
    request(
        socket,
        "get the generation of the nftables ruleset",
        kind(message::GET_GENERATION),
        &header(0),
        |raw| {
            id = attributes(raw).find(nfta::GENERATION_ID)?.and_then(number).or(id);
            Ok(())
        },
    )?;
    Ok(id)
}

/// The fixed part of a request about tables of a family; 0 for all.
fn header(family: u8) -> Vec<u8> {
    vec![family, 0, 0, 0]
}

fn attributes<'a>(raw: &Raw<'a>) -> Attributes<'a> {
    Attributes::after_header(raw.body, HEADER)
}

fn family(raw: &Raw<'_>) -> u8 {
    raw.body.first().copied().unwrap_or_default()
}

/// One pass; `None` if something changed meanwhile.
fn read_once(socket: &mut Socket) -> Result<Option<Ruleset>, Error> {
    let mut tables = BTreeMap::new();
    let whole = dump(socket, "list nftables tables", kind(message::GET_TABLE), &header(0), |raw| {
        tables.extend(table(raw)?);
        Ok(())
    })?;
    let mut ruleset = Ruleset::default();
    let chains = dump(socket, "list nftables chains", kind(message::GET_CHAIN), &header(0), |raw| {
        ruleset.bases.extend(chain(raw, &tables)?);
        Ok(())
    })?;
    if [whole, chains].contains(&Dumped::Interrupted) {
        return Ok(None);
    }
    let with_bases: BTreeSet<_> = ruleset.bases.iter().map(|base| &base.table).collect();
    let matters = |table: &&TableName| table.may_track() || with_bases.contains(table);
    let wanted: Vec<_> = tables.keys().filter(matters).cloned().collect();
    for table in wanted {
        if rules(socket, &table, &mut ruleset)? == Dumped::Interrupted {
            return Ok(None);
        }
    }
    let tracked = sets_and_objects(socket, &mut ruleset)?;
    Ok((tracked == Dumped::Whole).then_some(ruleset))
}

/// What requires connection tracking besides rules: sets that count connections, and named objects.
fn sets_and_objects(socket: &mut Socket, ruleset: &mut Ruleset) -> Result<Dumped, Error> {
    let sets = dump(socket, "list nftables sets", kind(message::GET_SET), &header(0), |raw| {
        named(raw, tracking::of_set(attributes(raw))?, ruleset);
        Ok(())
    })?;
    let objects = dump(socket, "list nftables objects", kind(message::GET_OBJECT), &header(0), |raw| {
        named(raw, tracking::of_object(attributes(raw))?, ruleset);
        Ok(())
    })?;
    Ok(if sets == Dumped::Whole { objects } else { sets })
}

/// Records what in the table of a message requires connection tracking.
fn named(raw: &Raw<'_>, found: Option<(Box<str>, String)>, ruleset: &mut Ruleset) {
    let found = found.map(|(name, what)| (TableName { family: family(raw), name }, what));
    ruleset.tracking.extend(found);
}

/// A table, and whether it is in use.
fn table(raw: &Raw<'_>) -> Result<Option<(TableName, bool)>, Malformed> {
    let [name, flags] = some(attributes(raw), nfta::TABLE)?;
    let Some(name) = name else { return Ok(None) };
    let name = attribute::text(name);
    // What brickmoon's own tables drop, its filters drop as well.
    let in_use = flags.and_then(number).unwrap_or_default() & DORMANT == 0 && !name.starts_with(OURS);
    Ok(Some((TableName { family: family(raw), name }, in_use)))
}

/// A base chain in the way of routed packets, or of ICMP errors about them.
fn chain(raw: &Raw<'_>, tables: &BTreeMap<TableName, bool>) -> Result<Option<Base>, Malformed> {
    let [table, name, hooked, policy] = some(attributes(raw), nfta::CHAIN)?;
    let (Some(table), Some(name), Some(hooked)) = (table, name, hooked) else { return Ok(None) };
    let table = TableName { family: family(raw), name: attribute::text(table) };
    let Some(place) = place(table.family, Attributes::new(hooked))? else { return Ok(None) };
    if tables.get(&table) == Some(&false) {
        return Ok(None);
    }
    let drops = policy.and_then(number) == Some(0);
    Ok(Some(Base { table, name: attribute::text(name), place, drops }))
}

fn place(family: u8, hooked: Attributes<'_>) -> Result<Option<Place>, Malformed> {
    let [at, ..] = some(hooked, nfta::HOOK)?;
    let families = match family {
        nfproto::INET => Families::BOTH,
        nfproto::IPV4 => Families::only(Family::V4),
        nfproto::IPV6 => Families::only(Family::V6),
        nfproto::NETDEV => Families { ipv4: false, ipv6: false },
        _ => return Ok(None),
    };
    Ok(match (family, at.and_then(number)) {
        (nfproto::NETDEV, Some(hook::NETDEV_INGRESS)) | (nfproto::INET, Some(hook::INGRESS)) => {
            Some(Place::Ingress(devices(hooked)?))
        }
        (nfproto::NETDEV, Some(hook::NETDEV_EGRESS)) => Some(Place::Egress(devices(hooked)?)),
        (nfproto::NETDEV, _) => None,
        (_, Some(hook::PREROUTING | hook::FORWARD | hook::POSTROUTING)) => Some(Place::Ip(families)),
        (_, Some(hook::OUTPUT)) => Some(Place::Output(families)),
        _ => None,
    })
}

/// The interfaces of a chain: one, or a list.
fn devices(hooked: Attributes<'_>) -> Result<Vec<DeviceName>, Malformed> {
    let [_, one, list] = some(hooked, nfta::HOOK)?;
    let mut devices = Vec::new();
    for element in Attributes::new(list.unwrap_or_default()) {
        let (kind, name) = element?;
        let name = attribute::text(name);
        // Anything but a full name matches more than one interface.
        let exact = kind == nfta::DEVICE_NAME;
        devices.push(if exact { DeviceName::Exactly(name) } else { DeviceName::Prefix(name) });
    }
    if let (true, Some(name)) = (devices.is_empty(), one) {
        devices.push(DeviceName::Exactly(attribute::text(name)));
    }
    Ok(devices)
}

/// The rules of a table.
fn rules(socket: &mut Socket, table: &TableName, ruleset: &mut Ruleset) -> Result<Dumped, Error> {
    let mut body = header(table.family);
    let mut name = table.name.as_bytes().to_vec();
    name.push(0);
    attribute::put(&mut body, nfta::RULE_TABLE, &name);
    dump(socket, "list nftables rules", kind(message::GET_RULE), &body, |raw| {
        if let Some(chain) = chain_of(raw)?.filter(|(of, _)| of == table) {
            let read = rule::read(attributes(raw))?;
            ruleset.chains.entry(chain).or_default().push(read);
        }
        Ok(())
    })
}

/// The chain that a rule is in.
fn chain_of(raw: &Raw<'_>) -> Result<Option<(TableName, Box<str>)>, Malformed> {
    let [table, chain] = some(attributes(raw), nfta::RULE)?.map(|value| value.map(attribute::text));
    Ok(table.zip(chain).map(|(name, chain)| (TableName { family: family(raw), name }, chain)))
}

/// The ruleset in messages that are at hand, in the order in which the kernel lists them.
pub fn read_messages(messages: &[Raw<'_>]) -> Result<Ruleset, Malformed> {
    let (mut tables, mut ruleset) = (BTreeMap::new(), Ruleset::default());
    for raw in messages.iter().filter(|raw| raw.kind >> 8 == SUBSYSTEM) {
        match raw.kind & 0xff {
            message::NEW_TABLE => tables.extend(table(raw)?),
            message::NEW_CHAIN => ruleset.bases.extend(chain(raw, &tables)?),
            message::NEW_RULE => {
                if let Some(chain) = chain_of(raw)? {
                    ruleset.chains.entry(chain).or_default().push(rule::read(attributes(raw))?);
                }
            }
            message::NEW_SET => named(raw, tracking::of_set(attributes(raw))?, &mut ruleset),
            message::NEW_OBJECT => named(raw, tracking::of_object(attributes(raw))?, &mut ruleset),
            _ => {}
        }
    }
    Ok(ruleset)
}

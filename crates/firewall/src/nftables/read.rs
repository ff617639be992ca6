//! Lists the ruleset, all of one generation.
//!
//! ```text
//! tables ─► chains ─► rules ─► sets ─► objects, flowtables ─► elements of the sets that rules look up ─► resolve
//! ```

use super::attributes::{attributes, family, number, some};
use super::elements::{self, Keys, Set};
use super::resolve::resolve;
use super::step::States;
use super::table::{Table, Tables, table};
use super::{
    Base, DeviceName, Flowtable, LookupKind, Place, Ruleset, TableName, hook, nfproto, rule, tracking,
};
use crate::condition::Families;
use bm_netlink::attribute::{self, Attributes};
use bm_netlink::dump::{Dumped, dump, is_absent, request};
use bm_netlink::error::{Error, Malformed};
use bm_netlink::message::Raw;
use bm_netlink::nft::{is_marked, is_of};
use bm_netlink::socket::Socket;
use bm_wire::Family;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Group of the events.
pub const GROUP: u32 = 7;
/// Part of netfilter that message types begin with.
const SUBSYSTEM: u16 = 10;
/// Times that a dump is begun again because the ruleset has changed under it.
const PASSES: u32 = 5;

/// Messages.
mod message {
    pub const NEW_TABLE: u16 = 0;
    pub const GET_TABLE: u16 = 1;
    pub const NEW_CHAIN: u16 = 3;
    pub(crate) const GET_CHAIN: u16 = 4;
    pub const NEW_RULE: u16 = 6;
    pub(crate) const GET_RULE: u16 = 7;
    pub(crate) const NEW_SET: u16 = 9;
    pub(crate) const GET_SET: u16 = 10;
    pub(crate) const DELETE_SET: u16 = 11;
    pub(crate) const NEW_OBJECT: u16 = 18;
    pub(crate) const GET_OBJECT: u16 = 19;
    pub(crate) const DELETE_OBJECT: u16 = 20;
    pub(crate) const NEW_ELEMENTS: u16 = 12;
    pub(crate) const GET_ELEMENTS: u16 = 13;
    pub(crate) const DELETE_ELEMENTS: u16 = 14;
    pub(crate) const DELETE_RULE: u16 = 8;
    pub(crate) const NEW_GENERATION: u16 = 15;
    pub(crate) const GET_GENERATION: u16 = 16;
    pub(crate) const NEW_FLOWTABLE: u16 = 22;
    pub(crate) const GET_FLOWTABLE: u16 = 23;
    pub(crate) const DELETE_FLOWTABLE: u16 = 24;
}
/// Attributes.
mod nfta {
    /// Table, name, hook, policy, type.
    pub const CHAIN: [u16; 5] = [1, 3, 4, 5, 7];
    /// Number, priority, interface, list of interfaces.
    pub const HOOK: [u16; 4] = [1, 2, 3, 4];
    /// Table, chain, userdata.
    pub const RULE: [u16; 3] = [1, 2, 7];
    pub(crate) const RULE_TABLE: u16 = 1;
    /// Table, name, hook.
    pub(crate) const FLOWTABLE: [u16; 3] = [1, 2, 3];
    /// Of a request for elements.
    pub(crate) const ELEMENTS_TABLE: u16 = 1;
    pub(crate) const ELEMENTS_SET: u16 = 2;
    pub(crate) const DEVICE_NAME: u16 = 1;
    pub(crate) const GENERATION_ID: u16 = 1;
}
/// At prerouting, connections are looked up at this priority.
const TRACKS_AT: i32 = -200;

const fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

/// Whether a message is about a change of a table, a chain, a rule, a set, a named object or a flowtable, or of elements
/// that do something, or is the end of a commit. Other elements do not matter.
pub(crate) fn is_event(raw: &Raw<'_>) -> bool {
    if raw.kind >> 8 != SUBSYSTEM {
        return false;
    }
    match raw.kind & 0xff {
        message::NEW_ELEMENTS | message::DELETE_ELEMENTS => elements::may_act(attributes(raw)),
        message::NEW_SET
        | message::DELETE_SET
        | message::NEW_OBJECT
        | message::DELETE_OBJECT
        | message::NEW_FLOWTABLE
        | message::DELETE_FLOWTABLE
        | message::NEW_GENERATION => true,
        message => message <= message::DELETE_RULE,
    }
}

/// The generation that a commit has made, if a message is the end of one.
pub(crate) fn committed(raw: &Raw<'_>) -> Option<u32> {
    if raw.kind != kind(message::NEW_GENERATION) {
        return None;
    }
    attributes(raw).find(nfta::GENERATION_ID).ok().flatten().and_then(number)
}

/// The set to which elements that do something are added, if a message is about that.
pub(crate) fn acting_set(raw: &Raw<'_>) -> Option<SetName> {
    if raw.kind != kind(message::NEW_ELEMENTS) {
        return None;
    }
    let names = elements::set_of(attributes(raw)).ok().flatten()?;
    Some((TableName { family: family(raw), name: names.table }, names.set))
}

/// A set by its table and name.
pub(crate) type SetName = (TableName, Box<str>);

/// What tells a set from all others: handles of sets are numbers within a table, and begin anew in one that is made again.
#[derive(Debug, PartialEq, Eq, Hash)]
struct SetId {
    name: SetName,
    /// The table's handle.
    table: u64,
    handle: u64,
}

/// What is known from one reading to the next.
#[derive(Debug, Default)]
pub struct LastReading {
    /// The name of the tables that this daemon creates.
    own_tables: Box<str>,
    /// Generation and tables of the last reading.
    last: Option<(u32, Tables)>,
    /// Sets whose elements do nothing, and the keys of these. An event says when that changes, so they are not read again.
    idle: HashMap<SetId, Keys>,
}

impl LastReading {
    /// Nothing yet.
    pub fn new(own_tables: &str) -> Self {
        Self { own_tables: own_tables.into(), ..Self::default() }
    }

    /// Forgets everything that events may have changed.
    pub fn forget(&mut self) {
        self.last = None;
        self.idle.clear();
    }

    /// Elements that do something are added to a set.
    pub(crate) fn forget_set(&mut self, name: &SetName) {
        self.last = None;
        self.idle.retain(|idle, _| idle.name != *name);
    }

    /// The generation of the last reading.
    pub(crate) fn generation(&self) -> Option<u32> {
        self.last.as_ref().map(|(generation, _)| *generation)
    }

    /// What the last reading found is also that of this later generation.
    pub(crate) fn pass(&mut self, later: u32) {
        if let Some((generation, _)) = &mut self.last {
            *generation = later;
        }
    }

    /// Whether there is a table that goes away with its owner, of which the kernel tells nobody.
    pub(crate) fn has_owners(&self) -> bool {
        self.last.as_ref().is_some_and(|(_, tables)| tables.values().any(Table::has_owner))
    }
}

/// What a reading found.
pub enum Reading {
    Ruleset(Box<Ruleset>),
    /// What the last reading found.
    Same,
    /// It kept changing.
    Restless,
}

/// Reads the ruleset, which is empty where the kernel has no nftables.
pub fn read(socket: &mut Socket, known: &mut LastReading) -> Result<Reading, Error> {
    for _ in 0..PASSES {
        let before = match generation(socket) {
            Ok(before) => before,
            Err(error) if is_absent(&error) => return Ok(Reading::Ruleset(Box::default())),
            Err(error) => return Err(error),
        };
        let read = read_once(socket, before, known);
        if generation(socket)? != before {
            // A table that went away in the middle is an error of no interest.
            continue;
        }
        if let Some(reading) = read? {
            return Ok(reading);
        }
    }
    Ok(Reading::Restless)
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

/// One pass; `None` if something changed meanwhile.
fn read_once(
    socket: &mut Socket,
    generation: Option<u32>,
    known: &mut LastReading,
) -> Result<Option<Reading>, Error> {
    let mut tables = BTreeMap::new();
    let whole = dump(socket, "list nftables tables", kind(message::GET_TABLE), &header(0), |raw| {
        tables.extend(table(raw)?);
        Ok(())
    })?;
    if whole == Dumped::Interrupted {
        return Ok(None);
    }
    let now = generation.map(|generation| (generation, tables.clone()));
    if now.is_some() && known.last == now {
        return Ok(Some(Reading::Same));
    }
    let mut ruleset = Ruleset::default();
    let chains = dump(socket, "list nftables chains", kind(message::GET_CHAIN), &header(0), |raw| {
        ruleset.bases.extend(chain(raw, &tables)?);
        Ok(())
    })?;
    if chains == Dumped::Interrupted {
        return Ok(None);
    }
    let with_bases: BTreeSet<_> = ruleset.bases.iter().map(|base| &base.table).collect();
    let wanted: Vec<_> =
        tables.keys().filter(|table| table.may_track() || with_bases.contains(table)).cloned().collect();
    for table in wanted {
        if rules(socket, &table, &known.own_tables, &mut ruleset)? == Dumped::Interrupted {
            return Ok(None);
        }
    }
    let objects = [sets(socket, &mut ruleset)?, objects(socket, &mut ruleset)?];
    if objects.contains(&Dumped::Interrupted)
        || elements(socket, &tables, &mut ruleset, known)? == Dumped::Interrupted
    {
        return Ok(None);
    }
    resolve(&mut ruleset);
    known.last = now;
    Ok(Some(Reading::Ruleset(Box::new(ruleset))))
}

fn sets(socket: &mut Socket, ruleset: &mut Ruleset) -> Result<Dumped, Error> {
    dump(socket, "list nftables sets", kind(message::GET_SET), &header(0), |raw| {
        ruleset.sets.extend(set(raw)?);
        Ok(())
    })
}

/// Named objects that require connection tracking, and flowtables.
fn objects(socket: &mut Socket, ruleset: &mut Ruleset) -> Result<Dumped, Error> {
    let objects = dump(socket, "list nftables objects", kind(message::GET_OBJECT), &header(0), |raw| {
        add_object(raw, ruleset)?;
        Ok(())
    })?;
    let listed = dump(socket, "list nftables flowtables", kind(message::GET_FLOWTABLE), &header(0), |raw| {
        ruleset.flowtables.extend(flowtable(raw)?);
        Ok(())
    });
    match listed {
        Err(error) if is_absent(&error) => Ok(objects),
        listed => Ok(if objects == Dumped::Whole { listed? } else { objects }),
    }
}

/// The elements of sets that rules look up.
fn elements(
    socket: &mut Socket,
    tables: &Tables,
    ruleset: &mut Ruleset,
    known: &mut LastReading,
) -> Result<Dumped, Error> {
    let mut wanted = BTreeSet::<SetName>::new();
    for ((table, _), rules) in &ruleset.chains {
        let lookups = rules.iter().flat_map(|rule| &rule.lookups);
        // What a map of objects does, its type says.
        let sets = lookups.filter(|lookup| lookup.kind != LookupKind::Object);
        wanted.extend(sets.map(|lookup| (table.clone(), lookup.set.clone())));
    }
    let mut idle = HashMap::new();
    for name in wanted {
        let Some(set) = ruleset.sets.get_mut(&name) else { continue };
        let in_table = tables.get(&name.0).copied().unwrap_or_default();
        let id = SetId { name, table: in_table.handle, handle: set.handle };
        if let Some(keys) = known.idle.get(&id) {
            set.keys = keys.clone();
            idle.insert(id, keys.clone());
            continue;
        }
        let (table, set_name) = &id.name;
        let mut body = header(table.family);
        attribute::put(&mut body, nfta::ELEMENTS_TABLE, &terminated(&table.name));
        attribute::put(&mut body, nfta::ELEMENTS_SET, &terminated(set_name));
        let request = kind(message::GET_ELEMENTS);
        let dumped =
            dump(socket, "list elements of an nftables set", request, &body, |raw| set.add(attributes(raw)))?;
        if dumped == Dumped::Interrupted {
            return Ok(dumped);
        }
        if !set.verdicts && !set.elements.act() {
            idle.insert(id, set.keys.clone());
        }
    }
    known.idle = idle;
    Ok(Dumped::Whole)
}

fn terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// A set or a map.
fn set(raw: &Raw<'_>) -> Result<Option<(SetName, Set)>, Malformed> {
    let read = Set::read(attributes(raw))?;
    Ok(read.map(|(names, set)| ((TableName { family: family(raw), name: names.table }, names.set), set)))
}

/// Adds a named object that requires connection tracking.
fn add_object(raw: &Raw<'_>, ruleset: &mut Ruleset) -> Result<(), Malformed> {
    let found = tracking::of_object(attributes(raw))?;
    ruleset.tracking.extend(found.map(|(name, what)| (TableName { family: family(raw), name }, what)));
    ruleset.has_timeouts |= tracking::is_timeout(attributes(raw))?;
    Ok(())
}

fn flowtable(raw: &Raw<'_>) -> Result<Option<Flowtable>, Malformed> {
    let [table, name, hooked] = some(attributes(raw), nfta::FLOWTABLE)?;
    let (Some(table), Some(name)) = (table, name) else { return Ok(None) };
    let table = TableName { family: family(raw), name: attribute::text(table) };
    let devices = devices(Attributes::new(hooked.unwrap_or_default()))?;
    Ok(Some(Flowtable { table, name: attribute::text(name), devices }))
}

/// A base chain of type nat, or one in the way of routed packets or of ICMP errors about them.
fn chain(raw: &Raw<'_>, tables: &Tables) -> Result<Option<Base>, Malformed> {
    let [table, name, hooked, policy, kind] = some(attributes(raw), nfta::CHAIN)?;
    let (Some(table), Some(name), Some(hooked)) = (table, name, hooked) else { return Ok(None) };
    let table = TableName { family: family(raw), name: attribute::text(table) };
    let is_nat = kind.map(attribute::text).is_some_and(|kind| &*kind == "nat");
    let Some(place) = place(table.family, is_nat, Attributes::new(hooked))? else { return Ok(None) };
    if tables.get(&table).is_some_and(Table::is_dormant) {
        return Ok(None);
    }
    let drops = policy.and_then(number) == Some(0);
    // Only the first packets of connections pass one of type nat.
    let states = if is_nat { States::NONE } else { states_at(Attributes::new(hooked))? };
    Ok(Some(Base { table, name: attribute::text(name), place, drops, is_nat, states }))
}

/// States in which packets of flows pass a hook of IP, by its priority.
fn states_at(hooked: Attributes<'_>) -> Result<States, Malformed> {
    let [at, priority, ..] = some(hooked, nfta::HOOK)?.map(|value| value.and_then(number));
    let early =
        at == Some(hook::PREROUTING) && priority.is_none_or(|priority| priority.cast_signed() <= TRACKS_AT);
    Ok(if early { States::ALL } else { States::OF_FLOWS })
}

fn place(family: u8, is_nat: bool, hooked: Attributes<'_>) -> Result<Option<Place>, Malformed> {
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
        (_, Some(hook::INPUT)) if is_nat => Some(Place::Input(families)),
        _ => None,
    })
}

/// The interfaces of a chain: one, or a list.
fn devices(hooked: Attributes<'_>) -> Result<Vec<DeviceName>, Malformed> {
    let [_, _, one, list] = some(hooked, nfta::HOOK)?;
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

/// The rules of a table, without those that this daemon has written: what they drop, its filters drop as well.
fn rules(socket: &mut Socket, table: &TableName, own: &str, ruleset: &mut Ruleset) -> Result<Dumped, Error> {
    let mut body = header(table.family);
    attribute::put(&mut body, nfta::RULE_TABLE, &terminated(&table.name));
    let own = is_of(own, &table.name);
    dump(socket, "list nftables rules", kind(message::GET_RULE), &body, |raw| {
        let [_, _, userdata] = some(attributes(raw), nfta::RULE)?;
        if own && userdata.is_some_and(is_marked) {
            return Ok(());
        }
        if let Some(chain) = chain_of(raw)?.filter(|(of, _)| of == table) {
            let read = rule::read(table.single_family(), attributes(raw))?;
            ruleset.chains.entry(chain).or_default().push(read);
        }
        Ok(())
    })
}

/// The chain that a rule is in.
fn chain_of(raw: &Raw<'_>) -> Result<Option<(TableName, Box<str>)>, Malformed> {
    let [table, chain, _] = some(attributes(raw), nfta::RULE)?;
    let table = table.map(|name| TableName { family: family(raw), name: attribute::text(name) });
    Ok(table.zip(chain.map(attribute::text)))
}

/// The ruleset in messages that are at hand, in the order in which the kernel lists them.
pub(crate) fn read_messages(messages: &[Raw<'_>]) -> Result<Ruleset, Malformed> {
    let (mut tables, mut ruleset) = (BTreeMap::new(), Ruleset::default());
    for raw in messages.iter().filter(|raw| raw.kind >> 8 == SUBSYSTEM) {
        match raw.kind & 0xff {
            message::NEW_TABLE => tables.extend(table(raw)?),
            message::NEW_CHAIN => ruleset.bases.extend(chain(raw, &tables)?),
            message::NEW_RULE => {
                if let Some(chain) = chain_of(raw)? {
                    let rule = rule::read(chain.0.single_family(), attributes(raw))?;
                    ruleset.chains.entry(chain).or_default().push(rule);
                }
            }
            message::NEW_SET => ruleset.sets.extend(set(raw)?),
            message::NEW_ELEMENTS => {
                let set = acting_set(raw).and_then(|name| ruleset.sets.get_mut(&name));
                set.map_or(Ok(()), |set| set.add(attributes(raw)))?;
            }
            message::NEW_OBJECT => add_object(raw, &mut ruleset)?,
            message::NEW_FLOWTABLE => ruleset.flowtables.extend(flowtable(raw)?),
            _ => {}
        }
    }
    resolve(&mut ruleset);
    Ok(ruleset)
}

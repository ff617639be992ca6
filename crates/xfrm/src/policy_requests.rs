//! What requests do with policies, which SAs these use, and packets that wait for one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use bm_filter::Key;
use bm_ipsec::{Direction, Mark, Sa, SaId, SaList, Template};

use crate::database::{Answer, Change, Context, Database, SaKey};
use crate::entry::{Entry, PolicyEntry};
use crate::layout::{errno, group, kind, policy as at};
use crate::message::Raw;
use crate::policies::not_found;
use crate::policy::{NewPolicy, PolicyDirection, PolicyKey};
use crate::request_error::RequestError;
use crate::{selector as addresses, write};

/// The most policies.
const POLICIES_MAX: usize = u16::MAX as usize / 2;
/// A policy asks for an SA at most this often.
const ACQUIRE_EVERY_NS: u64 = 10_000_000_000;
/// What is forwarded comes first where priorities are equal: that is what workers do. Others have this bit.
const NOT_FORWARDED: u64 = 1 << 62;

/// The number of a policy for workers.
fn order(stored: &PolicyEntry) -> u64 {
    let bit = if stored.new.direction == PolicyDirection::Forward { 0 } else { NOT_FORWARDED };
    bit | u64::from(stored.new.index() >> 3)
}

impl Database {
    pub(crate) fn add_policy(
        &mut self,
        mut new: NewPolicy,
        is_update: bool,
        context: &Context<'_>,
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        if new.policy.if_id != 0 && new.mark() != Mark::default() {
            return Err(RequestError::new(
                errno::NOT_SUPPORTED,
                "policies with a mark for an interface: marks of packets that this machine sends are not known",
            ));
        }
        let key = new.key();
        let known = self.policies.keys.get(&key).copied();
        let before = known.and_then(|index| self.policies.all.get(&index)).map(PolicyEntry::policy);
        if known.is_some() && !is_update {
            return Err(RequestError::new(
                errno::EXISTS,
                "there is a policy with this direction, selector, mark and if_id",
            ));
        }
        let is_full = known.is_none() && self.policies.all.len() >= POLICIES_MAX;
        if is_full || !(context.has_room)(&new.policy, before.as_ref()) {
            return Err(RequestError::new(errno::NO_SPACE, "too many policies"));
        }
        let index = known.unwrap_or_else(|| self.policies.free_index(new.direction));
        new.info[at::INDEX..][..4].copy_from_slice(&index.to_ne_bytes());
        let is_outbound = new.policy.direction == Direction::Out;
        let sas = new.template.filter(|_| is_outbound);
        let sas = sas.map_or_else(SaList::default, |template| list(&self.sas, &template, new.asks()));
        let template = new.template.map(|_| self.policies.number(index));
        let (added_s, asked_ns) = (context.now.epoch_s, BTreeMap::new());
        let stored = PolicyEntry { new, added_s, asked_ns, template, sas: sas.clone() };
        let event = Raw { kind: kind::NEW_POLICY, flags: 0, sequence: 0, port: 0, body: &[] };
        answer.events.push((group::POLICY, write::policy(&event, &stored)));
        let policy = Box::new(stored.policy());
        answer.changes.push(Change::AddPolicy { order: order(&stored), policy, sas });
        self.policies.keys.insert(key, index);
        let before = self.policies.all.insert(index, stored);
        self.policies.release(before.and_then(|before| before.template));
        Ok(())
    }

    pub(crate) fn remove_policy(&mut self, of: &PolicyKey, answer: &mut Answer) -> Result<(), RequestError> {
        let index = self.policies.index(of).ok_or_else(not_found)?;
        let stored = self.policies.all.remove(&index).ok_or_else(not_found)?;
        self.policies.keys.remove(&stored.new.key());
        self.policies.release(stored.template);
        answer.events.push((group::POLICY, write::policy_gone(&stored)));
        answer.changes.push(Change::RemovePolicy { order: order(&stored) });
        Ok(())
    }

    /// Templates that take a new outbound SA use it from now on.
    pub(crate) fn use_new(&mut self, new: &Sa, answer: &mut Answer) {
        if new.direction != Direction::Out {
            return;
        }
        let about = Template::of(new);
        let Self { sas, policies, .. } = self;
        for stored in policies.all.values_mut().filter(|stored| stored.sends()) {
            if let Some(template) = stored.new.template.filter(|of| of.takes(&about)) {
                stored.sas = list(sas, &template, stored.new.asks());
                stored.asked_ns.clear();
                answer.changes.extend(current(stored));
            }
        }
    }

    /// Templates that have used an SA use another one, if there is one.
    pub(crate) fn replace_old(&mut self, old: SaId, answer: &mut Answer) {
        let users: Vec<u32> = self
            .policies
            .all
            .iter()
            .filter(|(_, stored)| stored.sas.has(old))
            .map(|(index, _)| *index)
            .collect();
        for index in users {
            let Some(stored) = self.policies.all.get_mut(&index) else { continue };
            if let Some(template) = stored.new.template {
                stored.sas = list(&self.sas, &template, stored.new.asks());
                answer.changes.extend(current(stored));
            }
        }
    }

    /// A packet matches a policy whose template has no SA, or none for this CPU: IKE daemons are asked for one.
    pub fn acquire(
        &mut self,
        template: u32,
        cpu: Option<u32>,
        packet: &Key,
        context: &Context<'_>,
    ) -> Answer {
        let mut answer = Answer::default();
        let Self { sas, policies, .. } = self;
        let Some(stored) = policies.of_template(template) else { return answer };
        let is_missing = match cpu {
            None => stored.sas.fallback.is_none(),
            Some(cpu) => {
                stored.sas.asks
                    && !sas
                        .values()
                        .filter_map(|entry| entry.sa.as_ref())
                        .any(|sa| sa.cpu == Some(cpu) && stored.sas.own.contains(&sa.id()))
            }
        };
        let asked = stored.asked_ns.get(&cpu);
        let is_due = asked.is_none_or(|asked| context.now.ns.saturating_sub(*asked) >= ACQUIRE_EVERY_NS);
        if is_missing && is_due {
            stored.asked_ns.insert(cpu, context.now.ns);
            let event = write::acquire(stored, &addresses::of_packet(packet), cpu);
            answer.events.push((group::ACQUIRE, event));
        }
        answer
    }
}

/// The SAs that a template takes: for each CPU the one that was added last, and of those without a CPU.
fn list(sas: &BTreeMap<SaKey, Entry>, template: &Template, asks: bool) -> SaList {
    let of_workers = sas.iter().filter(|(key, _)| key.is_of_workers());
    let mut taken: Vec<(u64, &Sa)> =
        of_workers.filter_map(|(_, entry)| Some((entry.order, entry.sa.as_ref()?))).collect();
    taken.retain(|(_, sa)| sa.direction == Direction::Out && template.takes(&Template::of(sa)));
    taken.sort_by_key(|(order, _)| Reverse(*order));
    newest_of_each(taken.into_iter().map(|(_, sa)| (sa.cpu, sa.id())), asks)
}

/// Of SAs with their CPUs, the newest first, one for each CPU.
pub(crate) fn newest_of_each(sas: impl Iterator<Item = (Option<u32>, SaId)>, asks: bool) -> SaList {
    let (mut found, mut cpus) = (SaList { asks, ..SaList::default() }, BTreeSet::new());
    for (cpu, id) in sas {
        match cpu {
            None => found.fallback = found.fallback.or(Some(id)),
            Some(cpu) if cpus.insert(cpu) => found.own.push(id),
            Some(_) => {}
        }
    }
    found
}

/// Which SAs the template of a policy uses now.
fn current(stored: &PolicyEntry) -> Option<Change> {
    stored.template.map(|template| Change::Current { template, sas: stored.sas.clone() })
}

//! What requests do with policies, which SAs these use, and packets that wait for one.

use bm_filter::Key;
use bm_ipsec::{Direction, Sa, SaId, Template};

use crate::database::{Answer, Change, Context, Database};
use crate::entry::Stored;
use crate::layout::{errno, group, kind, policy as at};
use crate::message::Raw;
use crate::policies::not_found;
use crate::policy::{NewPolicy, PolicyDirection, PolicyKey};
use crate::refused::Refused;
use crate::{selector as addresses, write};

/// The most policies.
const POLICIES_MAX: usize = u16::MAX as usize / 2;
/// A policy asks for an SA at most this often.
const ACQUIRE_EVERY_NS: u64 = 10_000_000_000;
/// What is forwarded comes first where priorities are equal: that is what workers do. Others have this bit.
const NOT_FORWARDED: u64 = 1 << 62;

/// The number of a policy for workers.
fn order(stored: &Stored) -> u64 {
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
    ) -> Result<(), Refused> {
        let key = new.key();
        let known = self.policies.keys.get(&key).copied();
        let before = known.and_then(|index| self.policies.all.get(&index)).map(Stored::policy);
        if known.is_some() && !is_update {
            return Err(Refused::new(
                errno::EXISTS,
                "there is a policy with this direction, selector and if_id",
            ));
        }
        let is_full = known.is_none() && self.policies.all.len() >= POLICIES_MAX;
        if is_full || !(context.has_room)(&new.policy, before.as_ref()) {
            return Err(Refused::new(errno::NO_SPACE, "too many policies"));
        }
        let index = known.unwrap_or_else(|| self.policies.free_index(new.direction));
        new.info[at::INDEX..][..4].copy_from_slice(&index.to_ne_bytes());
        let is_outbound = new.policy.direction == Direction::Out;
        let sa = new.template.filter(|_| is_outbound).and_then(|template| self.newest(&template));
        let template = new.template.map(|_| self.policies.number(index));
        let stored = Stored { new, added_s: context.now.epoch_s, asked_ns: None, template, sa };
        let event = Raw { kind: kind::NEW_POLICY, flags: 0, sequence: 0, port: 0, body: &[] };
        answer.events.push((group::POLICY, write::policy(&event, &stored)));
        let policy = Box::new(stored.policy());
        answer.changes.push(Change::AddPolicy { order: order(&stored), policy, sa });
        self.policies.keys.insert(key, index);
        let before = self.policies.all.insert(index, stored);
        self.policies.release(before.and_then(|before| before.template));
        Ok(())
    }

    pub(crate) fn remove_policy(&mut self, of: &PolicyKey, answer: &mut Answer) -> Result<(), Refused> {
        let index = self.policies.index(of).ok_or_else(not_found)?;
        let stored = self.policies.all.remove(&index).ok_or_else(not_found)?;
        self.policies.keys.remove(&stored.new.key());
        self.policies.release(stored.template);
        answer.events.push((group::POLICY, write::policy_gone(&stored)));
        answer.changes.push(Change::RemovePolicy { order: order(&stored) });
        Ok(())
    }

    /// The outbound SA that was added last, of those that a template takes.
    fn newest(&self, template: &Template) -> Option<SaId> {
        let outbound = self.sas.values().filter_map(|entry| Some((entry.order, entry.sa.as_ref()?)));
        let taken =
            outbound.filter(|(_, sa)| sa.direction == Direction::Out && template.takes(&Template::of(sa)));
        taken.max_by_key(|(order, _)| *order).map(|(_, sa)| sa.id())
    }

    /// Templates that take a new outbound SA use it from now on.
    pub(crate) fn use_new(&mut self, new: &Sa, answer: &mut Answer) {
        if new.direction != Direction::Out {
            return;
        }
        let about = Template::of(new);
        for stored in self.policies.all.values_mut().filter(|stored| stored.sends()) {
            if stored.new.template.is_some_and(|of| of.takes(&about)) {
                (stored.sa, stored.asked_ns) = (Some(new.id()), None);
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
            .filter(|(_, stored)| stored.sa == Some(old))
            .map(|(index, _)| *index)
            .collect();
        for index in users {
            let template = self.policies.all.get(&index).and_then(|stored| stored.new.template);
            let sa = template.and_then(|template| self.newest(&template));
            if let Some(stored) = self.policies.all.get_mut(&index) {
                stored.sa = sa;
                answer.changes.extend(current(stored));
            }
        }
    }

    /// A packet matches a policy whose template has no SA: IKE daemons are asked for one.
    pub fn acquire(&mut self, template: u32, packet: &Key, context: &Context<'_>) -> Answer {
        let mut answer = Answer::default();
        let Some(stored) = self.policies.of_template(template) else { return answer };
        let is_due = stored.sa.is_none()
            && stored.asked_ns.is_none_or(|asked| context.now.ns.saturating_sub(asked) >= ACQUIRE_EVERY_NS);
        if is_due {
            stored.asked_ns = Some(context.now.ns);
            answer.events.push((group::ACQUIRE, write::acquire(stored, &addresses::of_packet(packet))));
        }
        answer
    }
}

/// Which SA the template of a policy uses now.
fn current(stored: &Stored) -> Option<Change> {
    stored.template.map(|template| Change::Current { template, sa: stored.sa })
}

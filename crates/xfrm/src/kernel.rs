//! The kernel's own SAs and policies, for workers: which of them workers use, and what changes when they are read again.
//!
//! ```text
//! messages of a dump ─► Listing ─► KernelTables::update ─► changes for workers, policies that they apply
//!                                        └─ what is left to Linux, and why
//! ```
//!
//! Workers use the SAs in tunnel mode that they support. They apply a policy with a template if such an SA is there for
//! it, and leave its packets to Linux otherwise, which then asks for an SA. They use no policy for what is for this
//! machine (`in`): Linux gets it as it came. In doubt, Linux.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use bm_filter::Key;
use bm_ipsec::{Action, Direction, Limit, Limits, Mode, Policy, Sa, SaId, SaList, Template};

use crate::database::Change;
use crate::layout::{attribute, policy as policy_at, sa as sa_at, selector as selector_at};
use crate::message::{Bytes, attributes, big_u32, number};
use crate::policy::{NewPolicy, PolicyDirection};
use crate::policy_requests::newest_of_each;
use crate::request_error::RequestError;
use crate::sa::NewSa;
use crate::selector::{self as addresses, address};
use crate::write;

/// Where `struct xfrm_lifetime_cur` has bytes, packets, and when the SA was added.
const BYTES: usize = sa_at::USED;
const PACKETS: usize = sa_at::USED + 8;
const ADDED: usize = sa_at::USED + 16;

/// The kernel's tables, as they were read.
#[derive(Default)]
pub struct Listing {
    sas: Vec<ListedSa>,
    policies: Vec<Result<NewPolicy, RequestError>>,
}

/// An SA in the kernel.
struct ListedSa {
    /// `None` if not even that is known.
    id: Option<SaId>,
    read: Result<NewSa, RequestError>,
}

impl Listing {
    /// Adds an SA: `struct xfrm_usersa_info` and attributes. One without algorithms is only a reserved SPI, or waits for IKE.
    pub fn add_sa(&mut self, body: &[u8]) {
        let algorithms = [attribute::AEAD, attribute::CRYPT, attribute::AUTH, attribute::AUTH_TRUNCATED];
        if attributes(body, sa_at::LENGTH)
            .is_ok_and(|found| !found.iter().any(|(kind, _)| algorithms.contains(kind)))
        {
            return;
        }
        let id = body.get(..sa_at::LENGTH).and_then(|info| {
            let destination = address(info, sa_at::DESTINATION, number(info, sa_at::FAMILY)).ok()?;
            Some(SaId { spi: big_u32(info, sa_at::SPI), destination })
        });
        self.sas.push(ListedSa { id, read: NewSa::read(body) });
    }

    /// Adds a policy: `struct xfrm_userpolicy_info` and attributes.
    pub fn add_policy(&mut self, body: &[u8]) {
        let direction = body.get(policy_at::DIRECTION).copied().unwrap_or_default();
        // Behind the three directions are those of sockets.
        if direction <= PolicyDirection::Forward as u8 {
            self.policies.push(NewPolicy::read(body));
        }
    }
}

/// An SA that workers can use.
struct Usable {
    sa: Sa,
    sent: u64,
    received: u64,
    /// Later ones replace earlier ones.
    order: (u64, usize),
    /// The address family of packets inside; 0 for both.
    family: u16,
}

/// An SA that workers use, and when it was added: one that was added again is another one.
struct WorkerSa {
    sa: Sa,
    added_s: u64,
}

/// An SA for templates, the earliest first.
struct Candidate {
    properties: Template,
    direction: Direction,
    family: u16,
    cpu: Option<u32>,
    id: SaId,
}

/// What workers, and whoever leaves packets to Linux, must do; in this order.
#[derive(Default)]
pub struct Update {
    /// New SAs, other policies, SAs that are gone.
    pub changes: Vec<Change>,
    /// SAs that have been found to be left to Linux, with the reason.
    pub left: Vec<(SaId, String)>,
}

impl Update {
    fn add_policy(&mut self, order: u64, policy: &Policy, sas: SaList) {
        self.changes.push(Change::AddPolicy { order, policy: policy.clone().into(), sas });
    }
}

/// Which SAs and policies of the kernel workers use.
#[derive(Default)]
pub struct KernelTables {
    used: BTreeMap<SaId, WorkerSa>,
    left: BTreeMap<SaId, String>,
    /// SAs on which Linux sends: workers do not use them again.
    excluded: BTreeMap<SaId, String>,
    /// Policies that workers have, by their indexes in the kernel.
    policies: BTreeMap<u32, WorkerPolicy>,
    /// The order of all policies of the kernel, by their indexes, and the last one that was given.
    orders: BTreeMap<u32, u64>,
    last_order: u64,
    /// Numbers of templates that are free, the oldest first, and how many there are.
    free_numbers: VecDeque<u32>,
    numbers: u32,
}

/// A policy that workers have.
struct WorkerPolicy {
    order: u64,
    /// Of its template.
    number: Option<u32>,
    policy: Policy,
    /// The SAs of an outbound one.
    sas: SaList,
    /// As the kernel has it.
    info: [u8; policy_at::LENGTH],
    templates: Vec<u8>,
}

impl KernelTables {
    /// Compares with what was read before.
    pub fn update(&mut self, listing: Listing, is_local: &dyn Fn(IpAddr) -> bool) -> Update {
        let Listing { sas, policies } = listing;
        let mut update = Update::default();
        let present: BTreeSet<SaId> = sas.iter().filter_map(|listed| listed.id).collect();
        self.excluded.retain(|id, _| present.contains(id));
        let (wanted, left) = self.wanted(sas, is_local);
        let news = left.iter().filter(|(key, why)| self.left.get(*key) != Some(*why));
        update.left = news.map(|(id, why)| (*id, why.clone())).collect();
        self.left = left;
        let candidates = candidates(&wanted);
        // One that is gone stays until no policy uses it; one that has changed goes before it comes again.
        let gone: Vec<SaId> = self.used.keys().filter(|key| !wanted.contains_key(*key)).copied().collect();
        let mut changed = BTreeSet::new();
        for (key, Usable { sa, sent, received, order: (added_s, _), .. }) in wanted {
            match self.used.get(&key) {
                Some(used) if used.added_s == added_s && without_limits(&used.sa) == without_limits(&sa) => {
                    continue;
                }
                Some(_) => {
                    changed.insert(key);
                    update.changes.push(Change::RemoveSa(key));
                }
                None => {}
            }
            update.changes.push(Change::AddSa { sa: sa.clone().into(), sent, received, used: None });
            self.used.insert(key, WorkerSa { sa, added_s });
        }
        self.update_policies(policies, &candidates, &changed, &mut update);
        for key in gone {
            update.changes.push(Change::RemoveSa(key));
            self.used.remove(&key);
        }
        update
    }

    /// The SAs that workers can use, and why they cannot use the others.
    fn wanted(
        &self,
        sas: Vec<ListedSa>,
        is_local: &dyn Fn(IpAddr) -> bool,
    ) -> (BTreeMap<SaId, Usable>, BTreeMap<SaId, String>) {
        let (mut wanted, mut left, mut keys) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        // The kernel lists the last one first.
        for (at, ListedSa { id, read }) in sas.into_iter().rev().enumerate() {
            let Some(key) = id else { continue };
            let read = read.map_err(|refused| refused.why.into_owned()).and_then(|new| self.usable(new));
            match read {
                Ok(NewSa { mut sa, direction, about, sent, received, .. }) => {
                    let found = if is_local(sa.id().destination) {
                        Some(Direction::In)
                    } else if is_local(sa.source) {
                        Some(Direction::Out)
                    } else {
                        // The address may be gone for a moment.
                        self.used.get(&key).map(|used| used.sa.direction)
                    };
                    let Some(direction) = direction.or(found) else {
                        left.insert(key, "this machine has none of its addresses".into());
                        continue;
                    };
                    sa.direction = direction;
                    if let Some(why) = why_not_send(&sa, &mut keys) {
                        left.insert(key, why);
                        continue;
                    }
                    let value = |at| number::<u64>(&about.info, at);
                    sa.limits = remaining(sa.limits, value(BYTES), value(PACKETS));
                    wanted.insert(
                        key,
                        Usable {
                            sa,
                            sent,
                            received,
                            order: (value(ADDED), at),
                            family: number(&about.info, selector_at::FAMILY),
                        },
                    );
                }
                Err(why) => drop(left.insert(key, why)),
            }
        }
        (wanted, left)
    }

    fn usable(&self, new: NewSa) -> Result<NewSa, String> {
        if !new.mark.matches_unmarked() {
            return Err(format!(
                "its mark {} is not that of packets that workers handle, which is 0",
                new.mark
            ));
        }
        if new.sa.mode != Mode::Tunnel {
            return Err("it is in transport mode, for packets of this machine".into());
        }
        self.excluded.get(&new.sa.id()).map_or(Ok(new), |why| Err(why.clone()))
    }

    fn update_policies(
        &mut self,
        listed: Vec<Result<NewPolicy, RequestError>>,
        candidates: &[Candidate],
        changed: &BTreeSet<SaId>,
        update: &mut Update,
    ) {
        let mut before = std::mem::take(&mut self.policies);
        let mut orders = std::mem::take(&mut self.orders);
        // The kernel lists the last one first; of those with the same priority, the first one decides.
        for new in listed.into_iter().rev().flatten().filter(|new| new.mark().matches_unmarked()) {
            let (index, direction) = (new.index(), new.policy.direction);
            let order = orders.remove(&index).unwrap_or_else(|| {
                self.last_order += 1;
                self.last_order
            });
            self.orders.insert(index, order);
            let sas = new.template.map(|template| sas_for(&template, &new, candidates));
            // Without an SA, its packets are Linux's, which needs no policy of ours.
            if new.direction == PolicyDirection::In
                || sas.as_ref().is_some_and(|sas| sas.own.is_empty() && sas.fallback.is_none())
            {
                continue;
            }
            let sas = sas.filter(|_| direction == Direction::Out).unwrap_or_default();
            let known = before.remove(&index);
            let number = known.as_ref().and_then(|known| known.number);
            let number = new.template.map(|_| number.unwrap_or_else(|| self.free_number()));
            let (info, templates) = (new.info, new.templates);
            let mut policy = new.policy;
            if let (Some(number), Some(template)) = (number, new.template) {
                policy.action = Action::Template(number, template);
            }
            match (known, number) {
                (Some(known), _) if known.policy != policy => update.add_policy(order, &policy, sas.clone()),
                (None, _) => update.add_policy(order, &policy, sas.clone()),
                // Workers choose anew among SAs of which one has come again.
                (Some(known), Some(template))
                    if known.sas != sas
                        || sas.own.iter().chain(&sas.fallback).any(|sa| changed.contains(sa)) =>
                {
                    update.changes.push(Change::Current { template, sas: sas.clone() });
                }
                _ => {}
            }
            self.policies.insert(index, WorkerPolicy { order, number, policy, sas, info, templates });
        }
        for WorkerPolicy { order, number, .. } in before.into_values() {
            update.changes.push(Change::RemovePolicy { order });
            self.free_numbers.extend(number);
        }
    }

    /// A number for a template that no other one has.
    fn free_number(&mut self) -> u32 {
        self.free_numbers.pop_front().unwrap_or_else(|| {
            self.numbers += 1;
            self.numbers - 1
        })
    }

    /// A message with which the kernel asks IKE for an SA, as it does itself for packets that it handles: workers with this
    /// template have none for `packet`, or none for this CPU.
    pub fn acquire(&self, template: u32, packet: &Key, cpu: Option<u32>) -> Option<Vec<u8>> {
        let policy = self.policies.values().find(|policy| policy.number == Some(template))?;
        let WorkerPolicy { info, templates, policy, .. } = policy;
        let mut body = Bytes::default();
        let policy = write::RawPolicy { info, templates, mark: policy.selector.mark, if_id: policy.if_id };
        write::put_acquire(&mut body, &policy, &addresses::of_packet(packet), cpu);
        Some(body.to_vec())
    }

    /// Leaves an SA to Linux until it is gone, from the next [`Self::update`] on.
    pub fn exclude(&mut self, sa: SaId, why: String) {
        self.excluded.insert(sa, why);
    }

    /// The indexes of the policies that workers apply in place of Linux.
    pub fn applied(&self) -> BTreeSet<u32> {
        let with_template = self.policies.iter().filter(|(_, policy)| policy.number.is_some());
        with_template.map(|(index, _)| *index).collect()
    }

    /// The SAs that workers use.
    pub fn used(&self) -> impl Iterator<Item = &Sa> {
        self.used.values().map(|used| &used.sa)
    }
}

/// Why workers must not send on an SA; `keys` are the fingerprints of those on which they send.
fn why_not_send(sa: &Sa, keys: &mut BTreeSet<u128>) -> Option<String> {
    if sa.direction == Direction::In {
        return None;
    }
    if !sa.selectors.is_empty() {
        return Some("it has a selector, by which Linux chooses among SAs, and workers do not".into());
    }
    let is_new = keys.insert(sa.fingerprint());
    (!is_new).then(|| "another SA has the same keys, and would use the same sequence numbers".into())
}

/// The SAs that a policy with this template uses.
fn sas_for(template: &Template, new: &NewPolicy, candidates: &[Candidate]) -> SaList {
    let family = number(&new.info, selector_at::FAMILY);
    let suitable = candidates.iter().rev().filter(|sa| {
        sa.direction == new.policy.direction
            && [0, family].contains(&sa.family)
            && template.takes(&sa.properties)
    });
    newest_of_each(suitable.map(|sa| (sa.cpu, sa.id)), new.asks())
}

fn candidates(wanted: &BTreeMap<SaId, Usable>) -> Vec<Candidate> {
    let mut all: Vec<_> = wanted.values().collect();
    all.sort_by_key(|wanted| wanted.order);
    all.into_iter()
        .map(|Usable { sa, family, .. }| Candidate {
            properties: Template::of(sa),
            direction: sa.direction,
            family: *family,
            cpu: sa.cpu,
            id: sa.id(),
        })
        .collect()
}

/// An SA as it is compared: what is left of its limits changes.
fn without_limits(sa: &Sa) -> Sa {
    Sa { limits: Limits::default(), ..sa.clone() }
}

/// What is left of limits. The kernel itself looks after those of time.
fn remaining(limits: Limits, bytes: u64, packets: u64) -> Limits {
    Limits {
        bytes: remaining_limit(limits.bytes, bytes),
        packets: remaining_limit(limits.packets, packets),
        ..Limits::default()
    }
}

fn remaining_limit(limit: Limit, used: u64) -> Limit {
    // One that is over is reached with the next packet.
    let [soft, hard] =
        [limit.soft, limit.hard].map(|limit| limit.map(|limit| limit.saturating_sub(used).max(1)));
    Limit { soft: soft.filter(|soft| hard.is_none_or(|hard| *soft < hard)), hard }
}

#[cfg(test)]
mod tests;

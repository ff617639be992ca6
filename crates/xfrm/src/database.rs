//! SAs, policies and reserved SPIs, as the kernel would have them. Requests change them; the changes are then carried out on
//! workers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bm_filter::Key;
use bm_ipsec::{Action, Direction, Policy, Sa, SaId, Template};

use crate::entry::{Entry, Now, Stored, Usage};
use crate::layout::{errno, flag, group, kind, policy as policy_at, sa as sa_at};
use crate::message::{Bytes, Raw};
use crate::policy::{NewPolicy, PolicyDirection};
use crate::read::{PolicyKey, Request, SpiRequest};
use crate::refused::Refused;
use crate::sa::{About, NewSa};
use crate::{selector as addresses, write};

/// The most SAs and reserved SPIs.
const SAS_MAX: usize = 1 << 16;
/// How many random SPIs are tried before none counts as free.
const DRAWS: usize = 100;
/// Dumps are sent in pieces of about this many bytes.
const PIECE: usize = 8192;
/// A policy asks for an SA at most this often.
const ACQUIRE_EVERY_NS: u64 = 10_000_000_000;

/// What the database cannot know by itself.
pub struct Context<'a> {
    pub now: Now,
    pub usage: &'a dyn Fn(SaId) -> Usage,
    /// Whether this machine has an address.
    pub is_local: &'a dyn Fn(IpAddr) -> bool,
    /// Whether the configuration has an SA: workers find SAs by SPI and destination, so a second one would never be used.
    pub is_configured: &'a dyn Fn(SaId) -> bool,
    /// Whether workers can use these policies beside those of the configuration.
    pub has_room: &'a dyn Fn(&[Policy]) -> bool,
    pub random: &'a dyn Fn() -> u32,
}

/// A connected program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Client {
    /// Who may see keys again: the process that has added them.
    pub process: u32,
    /// The program's netlink port.
    pub port: u32,
    /// Whether errors come with texts.
    pub texts: bool,
    /// The multicast groups that it has joined, as bits.
    pub groups: u32,
}

/// What workers must do, in order.
pub enum Change {
    /// Use a new SA; sequence numbers up to `sent` have been used, and up to `received` received.
    AddSa { sa: Box<Sa>, sent: u64, received: u64 },
    /// Forget an SA.
    RemoveSa(SaId),
    /// Use these policies in place of all others, and for each template this SA.
    Policies { policies: Vec<Policy>, templates: Vec<Template>, current: Vec<Option<SaId>> },
    /// Use another SA for a template, by its index; without one, packets are dropped.
    Current { template: u32, sa: Option<SaId> },
}

/// What a request has led to.
#[derive(Default)]
pub struct Answer {
    /// For the program that asked, each a datagram.
    pub replies: Vec<Bytes>,
    pub changes: Vec<Change>,
    /// For all programs that have joined a group: its number, and a datagram.
    pub events: Vec<(u32, Bytes)>,
}

impl Answer {
    /// The policies that workers get.
    fn policies(&self) -> Option<&[Policy]> {
        self.changes.iter().find_map(|change| match change {
            Change::Policies { policies, .. } => Some(&policies[..]),
            _ => None,
        })
    }
}

/// Everything that programs have added.
#[derive(Default)]
pub struct Database {
    pub(crate) sas: BTreeMap<(u32, IpAddr), Entry>,
    pub(crate) policies: Vec<Stored>,
    /// For each template its policy.
    templates: Vec<usize>,
    added: u64,
    indexes: u32,
}

fn key(id: SaId) -> (u32, IpAddr) {
    (id.spi, id.destination)
}

fn no_sa(id: SaId) -> Refused {
    Refused::new(errno::NO_PROCESS, format!("there is no SA with {id}"))
}

impl Database {
    /// Carries out a request of a program.
    pub fn handle(&mut self, client: &mut Client, raw: &Raw<'_>, context: &Context<'_>) -> Answer {
        let mut answer = Answer::default();
        let done =
            Request::read(raw).and_then(|request| self.carry_out(client, raw, request, context, &mut answer));
        let Client { port, texts, .. } = *client;
        match done {
            Ok(()) if raw.flags & flag::ACK != 0 && raw.flags & flag::DUMP != flag::DUMP => {
                answer.replies.push(write::error(raw, port, None));
            }
            Ok(()) => {}
            Err(refused) => {
                let text = if texts { &*refused.why } else { "" };
                answer.replies.push(write::error(raw, port, Some((refused.errno, text))));
            }
        }
        answer
    }

    fn carry_out(
        &mut self,
        client: &mut Client,
        raw: &Raw<'_>,
        request: Request,
        context: &Context<'_>,
        answer: &mut Answer,
    ) -> Result<(), Refused> {
        match request {
            Request::Hello { groups, port, texts } => {
                (client.groups, client.port, client.texts) = (groups, port, texts);
            }
            Request::NewSa(new) => self.add_sa(*new, false, client.process, context, answer)?,
            Request::UpdateSa(new) => self.add_sa(*new, true, client.process, context, answer)?,
            Request::DeleteSa(id) => self.remove_sa(id, context, answer)?,
            Request::FlushSas(of_esp) => {
                let all: Vec<_> = self.sas.keys().filter(|_| of_esp).copied().collect();
                for (spi, destination) in all {
                    self.remove_sa(SaId { spi, destination }, context, answer)?;
                }
            }
            Request::AllocateSpi(request) => {
                let spi = self.allocate_spi(&request, client.process, context)?;
                answer.replies.push(write::spi(raw, client.port, &request.info, spi));
            }
            Request::NewPolicy(new) => self.add_policy(*new, false, context, answer)?,
            Request::UpdatePolicy(new) => self.add_policy(*new, true, context, answer)?,
            Request::DeletePolicy(key) => {
                let at = self.find_policy(&key)?;
                let stored = self.policies.remove(at);
                answer.events.push((group::POLICY, write::policy_gone(&stored)));
                self.policies_changed(answer);
            }
            Request::FlushPolicies => {
                self.policies.clear();
                self.policies_changed(answer);
            }
            other => self.query(client, raw, &other, context, answer)?,
        }
        Ok(())
    }

    /// Answers a request that changes nothing.
    fn query(
        &self,
        client: &Client,
        raw: &Raw<'_>,
        request: &Request,
        context: &Context<'_>,
        answer: &mut Answer,
    ) -> Result<(), Refused> {
        let reply = |kind| Raw { kind, flags: 0, port: client.port, ..*raw };
        match request {
            Request::GetSa(id) => {
                let entry = self.sas.get(&key(*id)).ok_or_else(|| no_sa(*id))?;
                let reveal = entry.owner == client.process;
                answer.replies.push(write::sa(&reply(kind::NEW_SA), entry, (context.usage)(*id), reveal));
            }
            Request::DumpSas => {
                let all = self.sas.iter().map(|((spi, destination), entry)| {
                    let id = SaId { spi: *spi, destination: *destination };
                    let raw = Raw { flags: flag::MULTI, ..reply(kind::NEW_SA) };
                    write::sa(&raw, entry, (context.usage)(id), false)
                });
                answer.replies = pieces(all, &reply(kind::DONE));
            }
            Request::GetPolicy(of) => {
                let stored = &self.policies[self.find_policy(of)?];
                answer.replies.push(write::policy(&reply(kind::NEW_POLICY), stored));
            }
            Request::DumpPolicies => {
                let raw = Raw { flags: flag::MULTI, ..reply(kind::NEW_POLICY) };
                let all = self.policies.iter().map(|stored| write::policy(&raw, stored));
                answer.replies = pieces(all, &reply(kind::DONE));
            }
            Request::GetAe(id) => {
                let entry = self.sas.get(&key(*id)).ok_or_else(|| no_sa(*id))?;
                answer.replies.push(write::replay(&reply(kind::NEW_AE), entry, (context.usage)(*id)));
            }
            Request::SaInfo => {
                answer.replies.push(write::sa_info(&reply(kind::NEW_SA_INFO), self.sas.len()));
            }
            Request::PolicyInfo => {
                let of = |direction| self.policies.iter().filter(|at| at.new.direction == direction).count();
                let counts = [PolicyDirection::In, PolicyDirection::Out, PolicyDirection::Forward].map(of);
                answer.replies.push(write::policy_info(&reply(kind::NEW_POLICY_INFO), counts));
            }
            _ => answer.replies.push(write::default(&reply(kind::GET_DEFAULT))),
        }
        Ok(())
    }

    fn add_sa(
        &mut self,
        new: NewSa,
        is_update: bool,
        owner: u32,
        context: &Context<'_>,
        answer: &mut Answer,
    ) -> Result<(), Refused> {
        let NewSa { mut sa, direction, about, sent, received } = new;
        let id = sa.id();
        let reserved = self.sas.get(&key(id)).map(|entry| entry.sa.is_none());
        match (is_update, reserved) {
            (true, None) => return Err(no_sa(id)),
            (true, Some(false)) => {
                let why = "a running SA cannot be changed: delete it, and add another one";
                return Err(Refused::new(errno::NOT_SUPPORTED, why));
            }
            (false, Some(_)) => return Err(Refused::new(errno::EXISTS, format!("there is an SA with {id}"))),
            (false, None) if self.sas.len() >= SAS_MAX => {
                return Err(Refused::new(
                    errno::NO_SPACE,
                    format!("there are {SAS_MAX} SAs already, the most that are supported"),
                ));
            }
            _ => {}
        }
        if (context.is_configured)(id) {
            let why = format!("[ipsec] of the configuration has an SA with {id}");
            return Err(Refused::new(errno::EXISTS, why));
        }
        let is_inbound = reserved.is_some() || (context.is_local)(id.destination);
        let found = if is_inbound { Direction::In } else { Direction::Out };
        sa.direction = direction.unwrap_or(found);
        // Two senders with the same keys would use the same sequence numbers.
        let fingerprint = (sa.direction == Direction::Out).then(|| sa.fingerprint());
        let same = |entry: &&Entry| entry.fingerprint.is_some() && entry.fingerprint == fingerprint;
        if let Some(other) = self.sas.values().find(same).and_then(|entry| entry.sa.as_ref()) {
            let why = format!("the SA with {} has the same keys: each outbound SA needs its own", other.id());
            return Err(Refused::new(errno::EXISTS, why));
        }
        self.added += 1;
        let (added, order) = (context.now, self.added);
        let entry = Entry { sa: Some(sa.clone()), fingerprint, order, ..Entry::new(about, owner, added) };
        let event = Raw { kind: kind::NEW_SA, flags: 0, sequence: 0, port: 0, body: &[] };
        answer.events.push((group::SA, write::sa(&event, &entry, Usage::default(), false)));
        self.sas.insert(key(id), entry);
        let new = Box::new(sa);
        answer.changes.push(Change::AddSa { sa: new.clone(), sent, received });
        self.use_new(&new, answer);
        Ok(())
    }

    pub(crate) fn remove_sa(
        &mut self,
        id: SaId,
        context: &Context<'_>,
        answer: &mut Answer,
    ) -> Result<(), Refused> {
        let entry = self.sas.remove(&key(id)).ok_or_else(|| no_sa(id))?;
        answer.events.push((group::SA, write::sa_gone(&entry, (context.usage)(id))));
        if entry.sa.is_some() {
            self.replace_old(id, answer);
            answer.changes.push(Change::RemoveSa(id));
        }
        Ok(())
    }

    fn allocate_spi(
        &mut self,
        request: &SpiRequest,
        owner: u32,
        context: &Context<'_>,
    ) -> Result<u32, Refused> {
        let SpiRequest { info, destination, least, most } = request;
        if self.sas.len() >= SAS_MAX {
            return Err(Refused::new(
                errno::NO_SPACE,
                format!("there are {SAS_MAX} SAs already, the most that are supported"),
            ));
        }
        let range = u64::from(most - least) + 1;
        let draw = || (u64::from(*least) + u64::from((context.random)()) % range) as u32;
        let free = |spi: &u32| {
            let id = SaId { spi: *spi, destination: *destination };
            !self.sas.contains_key(&key(id)) && !(context.is_configured)(id)
        };
        let spi = std::iter::repeat_with(draw).take(DRAWS).find(free);
        let spi = spi.ok_or_else(|| {
            Refused::new(errno::NO_ENTRY, format!("no SPI from {least:#x} to {most:#x} is free"))
        })?;
        let mut info = *info;
        info[sa_at::SPI..][..4].copy_from_slice(&spi.to_be_bytes());
        let about = About { info, algorithms: Vec::new(), attributes: Vec::new() };
        self.sas.insert((spi, *destination), Entry::new(about, owner, context.now));
        Ok(spi)
    }

    fn add_policy(
        &mut self,
        mut new: NewPolicy,
        is_update: bool,
        context: &Context<'_>,
        answer: &mut Answer,
    ) -> Result<(), Refused> {
        let same = |stored: &Stored| {
            stored.new.direction == new.direction && stored.new.selector() == new.selector()
        };
        let at = self.policies.iter().position(same);
        if at.is_some() && !is_update {
            return Err(Refused::new(errno::EXISTS, "there is a policy with this direction and selector"));
        }
        if at.is_none() && self.policies.len() >= usize::from(u16::MAX / 2) {
            return Err(Refused::new(errno::NO_SPACE, "too many policies"));
        }
        let index = at.map_or_else(
            || {
                self.indexes = self.indexes.wrapping_add(8).max(8);
                self.indexes | new.direction as u32
            },
            |at| self.policies[at].new.index(),
        );
        new.info[policy_at::INDEX..][..4].copy_from_slice(&index.to_ne_bytes());
        let is_outbound = new.policy.direction == Direction::Out;
        let sa = new.template.filter(|_| is_outbound).and_then(|template| self.newest(&template));
        let stored = Stored { new, added_s: context.now.epoch_s, asked_ns: None, sa };
        let event = Raw { kind: kind::NEW_POLICY, flags: 0, sequence: 0, port: 0, body: &[] };
        let event = (group::POLICY, write::policy(&event, &stored));
        let before = match at {
            Some(at) => Some(std::mem::replace(&mut self.policies[at], stored)),
            None => {
                self.policies.push(stored);
                None
            }
        };
        self.policies_changed(answer);
        if answer.policies().is_some_and(|policies| !(context.has_room)(policies)) {
            match at.zip(before) {
                Some((at, before)) => self.policies[at] = before,
                None => drop(self.policies.pop()),
            }
            self.policies_changed(answer);
            return Err(Refused::new(errno::NO_SPACE, "too many policies"));
        }
        answer.events.push(event);
        Ok(())
    }

    fn find_policy(&self, of: &PolicyKey) -> Result<usize, Refused> {
        let matches = |stored: &Stored| {
            stored.new.direction == of.direction
                && if of.index != 0 {
                    stored.new.index() == of.index
                } else {
                    stored.new.selector() == of.selector
                }
        };
        self.policies.iter().position(matches).ok_or_else(|| {
            Refused::new(errno::NO_ENTRY, "there is no policy with this direction and selector")
        })
    }

    /// Sends workers all policies.
    fn policies_changed(&mut self, answer: &mut Answer) {
        self.templates.clear();
        let mut templates = Vec::new();
        let mut policies = Vec::new();
        // What is forwarded first: where both of them match, that is what workers do.
        let mut order: Vec<usize> = (0..self.policies.len()).collect();
        order.sort_by_key(|at| self.policies[*at].new.direction != PolicyDirection::Forward);
        for at in order {
            let NewPolicy { policy, template, .. } = &self.policies[at].new;
            let mut policy = policy.clone();
            if let Some(template) = template {
                policy.action = Action::Template(templates.len() as u32);
                templates.push(*template);
                self.templates.push(at);
            }
            policies.push(policy);
        }
        let current = self.templates.iter().map(|at| self.policies[*at].sa).collect();
        // Each change has all policies, so only the last one counts.
        answer.changes.retain(|change| !matches!(change, Change::Policies { .. }));
        answer.changes.push(Change::Policies { policies, templates, current });
    }

    /// The outbound SA that was added last, of those that a template takes.
    fn newest(&self, template: &Template) -> Option<SaId> {
        let outbound = self.sas.values().filter_map(|entry| Some((entry.order, entry.sa.as_ref()?)));
        let taken =
            outbound.filter(|(_, sa)| sa.direction == Direction::Out && template.takes(&Template::of(sa)));
        taken.max_by_key(|(order, _)| *order).map(|(_, sa)| sa.id())
    }

    /// Templates that take a new outbound SA use it from now on.
    fn use_new(&mut self, new: &Sa, answer: &mut Answer) {
        let about = Template::of(new);
        for (template, at) in (0..).zip(&self.templates) {
            let stored = &mut self.policies[*at];
            let takes = |of: Template| stored.new.policy.direction == Direction::Out && of.takes(&about);
            if new.direction == Direction::Out && stored.new.template.is_some_and(takes) {
                (stored.sa, stored.asked_ns) = (Some(new.id()), None);
                answer.changes.push(Change::Current { template, sa: stored.sa });
            }
        }
    }

    /// Templates that have used an SA use another one, if there is one.
    fn replace_old(&mut self, old: SaId, answer: &mut Answer) {
        for (template, at) in (0..).zip(self.templates.clone()) {
            if self.policies[at].sa == Some(old) {
                let sa = self.policies[at].new.template.and_then(|template| self.newest(&template));
                self.policies[at].sa = sa;
                answer.changes.push(Change::Current { template, sa });
            }
        }
    }

    /// A packet matches a policy whose template has no SA: IKE daemons are asked for one.
    pub fn acquire(&mut self, template: u32, packet: &Key, context: &Context<'_>) -> Answer {
        let mut answer = Answer::default();
        let Some(policy) = self.templates.get(template as usize) else { return answer };
        let stored = &mut self.policies[*policy];
        let is_due = stored.sa.is_none()
            && stored.asked_ns.is_none_or(|asked| context.now.ns.saturating_sub(asked) >= ACQUIRE_EVERY_NS);
        if is_due {
            stored.asked_ns = Some(context.now.ns);
            answer.events.push((group::ACQUIRE, write::acquire(stored, &addresses::of_packet(packet))));
        }
        answer
    }
}

/// Messages in datagrams of some size, with the message that ends a dump.
fn pieces(all: impl Iterator<Item = Bytes>, done: &Raw<'_>) -> Vec<Bytes> {
    let mut pieces = vec![Bytes::default()];
    for message in all.chain([write::done(done)]) {
        if pieces.last().is_none_or(|last| last.len() + message.len() > PIECE) {
            pieces.push(Bytes::default());
        }
        if let Some(last) = pieces.last_mut() {
            last.extend_from_slice(&message);
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

//! SAs, policies and reserved SPIs, as the kernel would have them. Requests change them; the changes are then carried out on
//! workers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bm_ipsec::{Direction, Mark, Policy, Sa, SaId, SaList, SaUsage};

use crate::entry::Entry;
use crate::layout::{attribute, errno, flag, group, kind, sa as sa_at};
use crate::message::{Bytes, Raw};
use crate::policies::StoredPolicies;
use crate::policy::PolicyDirection;
use crate::read::{Request, SaQuery, SpiRequest};
use crate::request_error::RequestError;
use crate::sa::{About, NewSa};
use crate::usage::{Now, Usage, UsageReading};
use crate::write;

/// The most SAs and reserved SPIs.
const SAS_MAX: usize = 1 << 16;
/// How many random SPIs are tried before none counts as free.
const DRAWS: usize = 100;
/// Dumps are sent in pieces of about this many bytes.
const PIECE: usize = 8192;
/// How often programs are told that packets of an SA come from elsewhere.
const MAPPING_EVERY_NS: u64 = 1_000_000_000;

/// What the database cannot know by itself.
pub struct Context<'a> {
    pub now: Now,
    pub usage: &'a dyn Fn(SaId) -> Usage,
    /// Whether this machine has an address.
    pub is_local: &'a dyn Fn(IpAddr) -> bool,
    /// Whether the configuration has an SA: workers find SAs by SPI and destination, so a second one would never be used.
    pub is_configured: &'a dyn Fn(SaId) -> bool,
    /// Whether workers can use a policy beside all others, if the other one is removed.
    pub has_room: &'a dyn Fn(&Policy, Option<&Policy>) -> bool,
    pub random: &'a dyn Fn() -> u32,
}

impl Context<'_> {
    /// What an SA was used for: nothing, if it is not for packets of workers.
    pub(crate) fn usage_of(&self, key: SaKey) -> UsageReading {
        let usage = if key.is_of_workers() { (self.usage)(key.id) } else { Usage::default() };
        UsageReading { usage, now: self.now }
    }
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
    /// Use a new SA; sequence numbers up to `sent` have been used, and up to `received` received. One that was moved was
    /// used before.
    AddSa {
        sa: Box<Sa>,
        sent: u64,
        received: u64,
        used: Option<SaUsage>,
    },
    /// Forget an SA.
    RemoveSa(SaId),
    /// Workers have no use for an SA, and why.
    LeaveSa(SaId, String),
    /// Use a policy, in place of the one with the same number if there is one. Where priorities are equal, lower numbers
    /// decide. An outbound template has these SAs.
    AddPolicy {
        order: u64,
        policy: Box<Policy>,
        sas: SaList,
    },
    RemovePolicy {
        order: u64,
    },
    RemoveAllPolicies,
    /// Use other SAs for a template, by its number; without one, packets are dropped.
    Current {
        template: u32,
        sas: SaList,
    },
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

/// Everything that programs have added.
#[derive(Default)]
pub struct Database {
    pub(crate) sas: BTreeMap<SaKey, Entry>,
    pub(crate) policies: StoredPolicies,
    added: u64,
}

/// There can be several SAs with an SPI and destination, for packets with different marks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SaKey {
    id: SaId,
    mark: Mark,
}

impl SaKey {
    pub(crate) fn is_of_workers(self) -> bool {
        self.mark.matches_unmarked()
    }
}

fn no_sa(id: SaId) -> RequestError {
    RequestError::new(errno::NO_PROCESS, format!("there is no SA with {id}"))
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
    ) -> Result<(), RequestError> {
        match request {
            Request::Hello { groups, port, texts } => {
                (client.groups, client.port, client.texts) = (groups, port, texts);
            }
            Request::NewSa(new) => self.add_sa(*new, false, client.process, context, answer)?,
            Request::UpdateSa(new) => self.add_sa(*new, true, client.process, context, answer)?,
            Request::DeleteSa(of) => self.remove_sa(self.find(of)?, context, answer)?,
            Request::FlushSas(of_esp) => {
                let all: Vec<_> = self.sas.keys().filter(|_| of_esp).copied().collect();
                for key in all {
                    self.remove_sa(key, context, answer)?;
                }
            }
            Request::AllocateSpi(request) => {
                let spi = self.allocate_spi(&request, client.process, context)?;
                answer.replies.push(write::spi(raw, client.port, &request.info, spi));
            }
            Request::NewPolicy(new) => self.add_policy(*new, false, context, answer)?,
            Request::UpdatePolicy(new) => self.add_policy(*new, true, context, answer)?,
            Request::DeletePolicy(key) => self.remove_policy(&key, answer)?,
            Request::FlushPolicies => {
                self.policies.clear();
                answer.changes.push(Change::RemoveAllPolicies);
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
    ) -> Result<(), RequestError> {
        let reply = |kind| Raw { kind, flags: 0, port: client.port, ..*raw };
        match request {
            Request::GetSa(of) => {
                let key = self.find(*of)?;
                let entry = &self.sas[&key];
                let reveal = entry.owner == client.process;
                answer.replies.push(write::sa(&reply(kind::NEW_SA), entry, context.usage_of(key), reveal));
            }
            Request::DumpSas => {
                let all = self.sas.iter().map(|(key, entry)| {
                    let raw = Raw { flags: flag::MULTI, ..reply(kind::NEW_SA) };
                    write::sa(&raw, entry, context.usage_of(*key), false)
                });
                answer.replies = pieces(all, &reply(kind::DONE));
            }
            Request::GetPolicy(of) => {
                let stored = self.policies.find(of)?;
                answer.replies.push(write::policy(&reply(kind::NEW_POLICY), stored));
            }
            Request::DumpPolicies => {
                let raw = Raw { flags: flag::MULTI, ..reply(kind::NEW_POLICY) };
                let all = self.policies.all().map(|stored| write::policy(&raw, stored));
                answer.replies = pieces(all, &reply(kind::DONE));
            }
            Request::GetAe(of) => {
                let key = self.find(*of)?;
                let entry = &self.sas[&key];
                answer.replies.push(write::replay(&reply(kind::NEW_AE), entry, context.usage_of(key)));
            }
            Request::SaInfo => {
                answer.replies.push(write::sa_info(&reply(kind::NEW_SA_INFO), self.sas.len()));
            }
            Request::PolicyInfo => {
                let counts = [PolicyDirection::In, PolicyDirection::Out, PolicyDirection::Forward]
                    .map(|direction| self.policies.all().filter(|at| at.new.direction == direction).count());
                answer.replies.push(write::policy_info(&reply(kind::NEW_POLICY_INFO), counts));
            }
            _ => answer.replies.push(write::default(&reply(kind::GET_DEFAULT))),
        }
        Ok(())
    }

    /// All SAs with an SPI and destination.
    fn with_id(&self, id: SaId) -> impl Iterator<Item = SaKey> {
        let most = Mark { value: u32::MAX, mask: u32::MAX };
        self.sas.range(SaKey { id, mark: Mark::default() }..=SaKey { id, mark: most }).map(|(key, _)| *key)
    }

    fn find(&self, SaQuery { id, mark }: SaQuery) -> Result<SaKey, RequestError> {
        self.with_id(id).find(|key| key.mark.matches(mark)).ok_or_else(|| no_sa(id))
    }

    fn add_sa(
        &mut self,
        new: NewSa,
        is_update: bool,
        owner: u32,
        context: &Context<'_>,
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        let NewSa { mut sa, direction, mark, about, sent, received, before } = new;
        let id = sa.id();
        let new_key = SaKey { id, mark };
        let known = self.find(SaQuery { id, mark: mark.lookup() }).ok();
        let reserved = known.map(|known| self.sas[&known].sa.is_none());
        match (is_update, reserved) {
            (true, None) => return Err(no_sa(id)),
            (true, Some(false)) => {
                let why = "a running SA cannot be changed: delete it, and add another one";
                return Err(RequestError::new(errno::NOT_SUPPORTED, why));
            }
            (false, Some(_)) => {
                return Err(RequestError::new(errno::EXISTS, format!("there is an SA with {id}")));
            }
            (false, None) if self.sas.len() >= SAS_MAX => {
                return Err(RequestError::new(
                    errno::NO_SPACE,
                    format!("there are {SAS_MAX} SAs already, the most that are supported"),
                ));
            }
            _ => {}
        }
        if new_key.is_of_workers() && (context.is_configured)(id) {
            let why = format!("[ipsec] of the configuration has an SA with {id}");
            return Err(RequestError::new(errno::EXISTS, why));
        }
        let is_inbound = reserved.is_some() || (context.is_local)(id.destination);
        let found = if is_inbound { Direction::In } else { Direction::Out };
        sa.direction = direction.unwrap_or(found);
        if let Some(problem) = bm_ipsec::problems(std::slice::from_ref(&sa), &[], &[]).first() {
            return Err(RequestError::new(errno::INVALID, problem.to_string()));
        }
        // Two senders with the same keys would use the same sequence numbers.
        let fingerprint = (sa.direction == Direction::Out).then(|| sa.fingerprint());
        let same = self.sas.values().find(|entry| fingerprint.is_some() && entry.fingerprint == fingerprint);
        if let Some(other) = same.and_then(|entry| entry.sa.as_ref()) {
            let why = format!("the SA with {} has the same keys: each outbound SA needs its own", other.id());
            return Err(RequestError::new(errno::EXISTS, why));
        }
        self.added += 1;
        let (now, order) = (context.now, self.added);
        let added = before.map_or(now, |before| before.added(now));
        let entry = Entry { sa: Some(sa.clone()), fingerprint, order, ..Entry::new(about, owner, added) };
        let event = Raw { kind: kind::NEW_SA, flags: 0, sequence: 0, port: 0, body: &[] };
        let usage = before.map_or_else(Usage::default, |before| before.usage(now));
        known.and_then(|known| self.sas.remove(&known));
        answer.events.push((group::SA, write::sa(&event, &entry, UsageReading { usage, now }, false)));
        self.sas.insert(new_key, entry);
        if !new_key.is_of_workers() {
            let why = format!("its mark {mark} is not that of packets that workers handle, which is 0");
            answer.changes.push(Change::LeaveSa(id, why));
            return Ok(());
        }
        let new = Box::new(sa);
        let Usage { bytes, packets, first_ns, .. } = usage;
        let used = before.map(|_| SaUsage { bytes, packets, added_ns: added.ns, first_ns });
        answer.changes.push(Change::AddSa { sa: new.clone(), sent, received, used });
        self.use_new(&new, answer);
        Ok(())
    }

    pub(crate) fn remove_sa(
        &mut self,
        key: SaKey,
        context: &Context<'_>,
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        let entry = self.sas.remove(&key).ok_or_else(|| no_sa(key.id))?;
        answer.events.push((group::SA, write::sa_gone(&entry, context.usage_of(key))));
        if entry.sa.is_some() && key.is_of_workers() {
            self.replace_old(key.id, answer);
            answer.changes.push(Change::RemoveSa(key.id));
        }
        Ok(())
    }

    fn allocate_spi(
        &mut self,
        request: &SpiRequest,
        owner: u32,
        context: &Context<'_>,
    ) -> Result<u32, RequestError> {
        let SpiRequest { info, destination, mark, least, most } = request;
        if self.sas.len() >= SAS_MAX {
            return Err(RequestError::new(
                errno::NO_SPACE,
                format!("there are {SAS_MAX} SAs already, the most that are supported"),
            ));
        }
        let range = u64::from(most - least) + 1;
        let mut draws =
            std::iter::repeat_with(|| (u64::from(*least) + u64::from((context.random)()) % range) as u32)
                .take(DRAWS);
        let spi = draws.find(|spi| {
            let id = SaId { spi: *spi, destination: *destination };
            self.with_id(id).next().is_none() && !(context.is_configured)(id)
        });
        let spi = spi.ok_or_else(|| {
            RequestError::new(errno::NO_ENTRY, format!("no SPI from {least:#x} to {most:#x} is free"))
        })?;
        let mut info = *info;
        info[sa_at::SPI..][..4].copy_from_slice(&spi.to_be_bytes());
        let attributes = crate::mark::bytes(*mark).map(|bytes| (attribute::MARK, bytes.to_vec()));
        let about = About { info, algorithms: Vec::new(), attributes: attributes.into_iter().collect() };
        let key = SaKey { id: SaId { spi, destination: *destination }, mark: *mark };
        self.sas.insert(key, Entry::new(about, owner, context.now));
        Ok(spi)
    }
}

impl Database {
    /// Authentic packets of an inbound SA come from this address and UDP port: IKE daemons hear of it, if the SA has
    /// others.
    pub fn mapping(&mut self, id: SaId, sender: (IpAddr, u16), context: &Context<'_>) -> Answer {
        let mut answer = Answer::default();
        let Some(key) = self.with_id(id).find(|key| key.is_of_workers()) else { return answer };
        let Some(entry) = self.sas.get_mut(&key) else { return answer };
        let has_moved = entry.sa.as_ref().is_some_and(|sa| {
            // Any port is right for an SA with port 0.
            sa.direction == Direction::In
                && sa.udp.is_some_and(|udp| sa.source != sender.0 || ![0, sender.1].contains(&udp.source))
        });
        let now_ns = context.now.ns;
        let is_due = entry.moved_ns.is_none_or(|moved| now_ns.saturating_sub(moved) >= MAPPING_EVERY_NS);
        if has_moved && is_due {
            entry.moved_ns = Some(now_ns);
            answer.events.push((group::MAPPING, write::mapping(entry, sender.0, sender.1)));
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

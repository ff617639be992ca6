//! Which SA of a policy a worker encrypts with, where the policy has several (RFC 9611).
//!
//! ```text
//! own: an SA of this worker ─► fallback: of another one, through its ring ─► any SA that has not ended
//! ```
//!
//! An SA has ended when a lifetime or its sequence numbers have. Its owner finds that out with a packet, and marks the SA
//! before the packet goes to another worker. So a packet that is handed on meets one SA fewer each time, and is dropped in
//! the end.

use std::sync::Arc;

use bm_ipsec::{Action, SaId, SaTable};

use super::{Owner, SaStatus};

/// How often a worker asks for an SA of its own, while it uses that of another one.
const ASKS_EVERY_NS: u64 = 1_000_000_000;

/// An SA with what it has done.
pub type Member = (SaId, Arc<SaStatus>);

/// The SAs of a policy for packets to the peer, as in [`bm_ipsec::SaList`].
#[derive(Clone, Debug, Default)]
pub struct PolicySas {
    pub own: Vec<Member>,
    pub fallback: Option<Member>,
    pub asks: bool,
}

/// Which SAs packets of an action can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// The one that the policy names.
    One,
    /// The list of the configuration with this number.
    Configured(u32),
    /// The SAs of the template with this number.
    Template(u32),
}

impl List {
    #[inline]
    pub fn of(action: Action) -> Self {
        match action {
            Action::OneOf(at) => Self::Configured(at),
            Action::Template(at, _) => Self::Template(at),
            Action::Protect(_) | Action::Bypass | Action::Discard => Self::One,
        }
    }
}

/// Which SA the daemon should ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wants {
    #[default]
    Nothing,
    /// One for this worker.
    Own,
    /// One for all workers.
    Fallback,
}

/// The SA of a list that this worker uses.
#[derive(Default)]
struct Choice {
    now: Option<SaId>,
    wants: Wants,
    of: PolicySas,
    asked_ns: Option<u64>,
}

impl Choice {
    fn choose(&mut self, owners: &SaTable<Owner>) {
        let PolicySas { own, fallback, asks } = &self.of;
        // In order of preference: the first of this worker's SAs, the fallback, the first of all.
        let (mut alive, mut any) = ([None; 3], [None; 3]);
        let members = own.iter().map(|member| (member, false));
        for (member, is_fallback) in members.chain(fallback.iter().map(|member| (member, true))) {
            let places: &[usize] = match owners.get(member.0) {
                None => &[],
                Some(_) if is_fallback => &[1],
                Some(Owner::Mine(_)) => &[0, 2],
                Some(Owner::Other(_)) => &[2],
            };
            for &place in places {
                any[place] = any[place].or(Some(member));
                if !member.1.has_ended() {
                    alive[place] = alive[place].or(Some(member));
                }
            }
        }
        // If all have ended, packets are dropped for that reason.
        self.now = alive.into_iter().chain(any).flatten().next().map(|member| member.0);
        self.wants = match alive {
            [Some(_), ..] => Wants::Nothing,
            [None, Some(_), _] if *asks => Wants::Own,
            [None, Some(_), _] => Wants::Nothing,
            [None, None, _] => Wants::Fallback,
        };
    }
}

/// The choices of a worker.
#[derive(Default)]
pub(super) struct Choices {
    configured: Vec<Choice>,
    templates: Vec<Choice>,
}

fn undecided(lists: &[PolicySas]) -> Vec<Choice> {
    lists.iter().map(|of| Choice { of: of.clone(), ..Choice::default() }).collect()
}

impl Choices {
    pub fn new(configured: &[PolicySas], templates: &[PolicySas], owners: &SaTable<Owner>) -> Self {
        let mut new = Self { configured: undecided(configured), templates: undecided(templates) };
        new.choose(owners);
        new
    }

    /// Chooses anew in all lists, after an SA has ended.
    #[cold]
    pub fn choose(&mut self, owners: &SaTable<Owner>) {
        self.configured.iter_mut().chain(&mut self.templates).for_each(|choice| choice.choose(owners));
    }

    /// Replaces the SAs of a template.
    pub fn set(&mut self, template: u32, of: PolicySas, owners: &SaTable<Owner>) {
        let at = template as usize;
        if self.templates.len() <= at {
            self.templates.resize_with(at + 1, Choice::default);
        }
        let choice = &mut self.templates[at];
        // What was asked for may be what has come.
        let wanted = choice.wants;
        choice.of = of;
        choice.choose(owners);
        if choice.wants != wanted {
            choice.asked_ns = None;
        }
    }

    fn at(&self, list: List) -> Option<&Choice> {
        match list {
            List::One => None,
            List::Configured(at) => self.configured.get(at as usize),
            List::Template(at) => self.templates.get(at as usize),
        }
    }

    /// The SA that packets of a list use now.
    #[inline]
    pub fn now(&self, list: List) -> Option<SaId> {
        self.at(list)?.now
    }

    /// What is to be asked for.
    #[inline]
    pub fn wants(&self, list: List) -> Wants {
        self.at(list).map_or(Wants::Fallback, |choice| choice.wants)
    }

    /// Whether to ask now for what a template wants, though it has an SA.
    pub fn is_due(&mut self, template: u32, now_ns: u64) -> bool {
        let Some(choice) = self.templates.get_mut(template as usize) else { return false };
        let is_due = choice.asked_ns.is_none_or(|asked| now_ns.saturating_sub(asked) >= ASKS_EVERY_NS);
        if is_due {
            choice.asked_ns = Some(now_ns);
        }
        is_due
    }
}

#[cfg(test)]
mod tests;

//! The policy database (RFC 4301 4.4.1): which packets are discarded, bypass IPsec, or are protected, by which SA.
//!
//! As in Linux, the policy with the lowest priority that matches decides, and packets that no policy matches are not
//! concerned. RFC 4301 discards these: add a policy for everything with the action `Discard`.

use bm_filter::{Flat, Key, ROOM_RULES, TooMany, Tree};

use crate::sa::{Direction, SaId};
use crate::selector::{LaterFragments, Selector};
use crate::template::Template;

/// What happens to packets of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// They are dropped.
    Discard,
    /// They pass as they are.
    Bypass,
    /// Outbound: they are encrypted with this SA. Inbound: they must have come out of it.
    Protect(SaId),
    /// The same with any SA that a template of [`Policies::templates`] takes, whose index this is.
    Template(u32),
}

/// What happens to the packets that a selector matches (RFC 4301 4.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Where it is configured, for errors: whatever the caller uses, such as an offset in a file.
    pub at: usize,
    /// Which packets it is compared with.
    pub direction: Direction,
    /// Lower ones are compared first.
    pub priority: u32,
    /// Which packets it is for.
    pub selector: Selector,
    /// What happens to them.
    pub action: Action,
}

/// All policies, as they are looked up.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// By [`Direction`].
    trees: [Tree; 2],
    policies: Vec<Policy>,
    templates: Vec<Template>,
}

impl Policies {
    /// The database of these policies, whose [`problems`](crate::problems()) have been checked.
    ///
    /// # Errors
    /// [`TooMany`] for more than the tree of `bm-filter` can hold.
    pub fn new(mut policies: Vec<Policy>) -> Result<Self, TooMany> {
        policies.sort_by_key(|policy| policy.priority);
        if policies.len() > usize::from(u16::MAX) {
            return Err(TooMany { rules: policies.len() });
        }
        let tree = |direction| Tree::grow(flat(&policies, direction));
        let trees = [tree(Direction::Out)?, tree(Direction::In)?];
        Ok(Self { trees, policies, templates: Vec::new() })
    }

    /// Whether [`new`](Self::new) can hold these policies together.
    pub fn have_room(policies: &[&[Policy]]) -> bool {
        let all = || policies.iter().copied().flatten();
        let rules = |direction| {
            let of_direction = all().filter(|policy| policy.direction == direction);
            of_direction.map(|policy| flat(std::slice::from_ref(policy), direction).len()).sum::<usize>()
        };
        all().count() <= usize::from(u16::MAX)
            && [Direction::Out, Direction::In].map(rules).into_iter().all(|rules| rules <= ROOM_RULES)
    }

    /// The policies with the templates that they name.
    #[must_use]
    pub fn with_templates(self, templates: Vec<Template>) -> Self {
        Self { templates, ..self }
    }

    /// What [`Action::Template`] names.
    pub fn templates(&self) -> &[Template] {
        &self.templates
    }

    /// The policy for a packet; `None` if no policy matches.
    #[inline]
    pub fn find(&self, direction: Direction, key: &Key) -> Option<&Policy> {
        let found = self.trees[direction as usize].find(key)?;
        self.policies.get(usize::from(found.counter))
    }

    /// All policies, by priority.
    pub fn all(&self) -> &[Policy] {
        &self.policies
    }
}

fn flat(policies: &[Policy], direction: Direction) -> Vec<Flat> {
    let of_direction = policies.iter().enumerate().filter(|(_, policy)| policy.direction == direction);
    let flat = of_direction.flat_map(|(index, policy)| {
        let later = match policy.action {
            Action::Bypass => LaterFragments::Differ,
            Action::Discard | Action::Protect(_) | Action::Template(_) => LaterFragments::Match,
        };
        policy.selector.flat(index as u16, later)
    });
    flat.collect()
}

#[cfg(test)]
mod tests;

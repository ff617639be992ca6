//! Policies as they are stored: how one is found, and the numbers of their templates.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::entry::PolicyEntry;
use crate::layout::errno;
use crate::policy::{PolicyDirection, PolicyKey};
use crate::request_error::RequestError;

/// Policies in the order in which they were added, and how to find one.
#[derive(Default)]
pub(crate) struct StoredPolicies {
    pub all: BTreeMap<u32, PolicyEntry>,
    /// By direction, selector, mark and interface; the index in the key is 0.
    pub keys: HashMap<PolicyKey, u32>,
    /// For each number of a template its policy.
    templates: Vec<Option<u32>>,
    /// Numbers that are not used any more, the oldest first.
    free: VecDeque<u32>,
    /// The index that was given last, without direction.
    last: u32,
}

pub(crate) fn not_found() -> RequestError {
    RequestError::new(errno::NO_ENTRY, "there is no policy with this direction, selector, mark and if_id")
}

impl StoredPolicies {
    pub fn all(&self) -> impl Iterator<Item = &PolicyEntry> {
        self.all.values()
    }

    pub fn find(&self, of: &PolicyKey) -> Result<&PolicyEntry, RequestError> {
        self.index(of).and_then(|index| self.all.get(&index)).ok_or_else(not_found)
    }

    pub fn index(&self, of: &PolicyKey) -> Option<u32> {
        match of.index {
            0 => self.keys.get(of).copied(),
            index => self
                .all
                .get(&index)
                .filter(|stored| {
                    let key = stored.new.key();
                    (key.direction, key.mark, key.if_id) == (of.direction, of.mark, of.if_id)
                })
                .map(|_| index),
        }
    }

    pub fn clear(&mut self) {
        // Indexes are not used again soon.
        *self = Self { last: self.last, ..Self::default() };
    }

    /// An index that no policy has: a number in the upper bits, and the direction, as Linux has them.
    pub(crate) fn free_index(&mut self, direction: PolicyDirection) -> u32 {
        loop {
            self.last = self.last.wrapping_add(8).max(8);
            let index = self.last | direction as u32;
            if !self.all.contains_key(&index) {
                return index;
            }
        }
    }

    /// A number for the template of a policy.
    pub fn number(&mut self, index: u32) -> u32 {
        let number = self.free.pop_front().unwrap_or_else(|| {
            self.templates.push(None);
            self.templates.len() as u32 - 1
        });
        self.templates[number as usize] = Some(index);
        number
    }

    pub fn release(&mut self, number: Option<u32>) {
        if let Some(number) = number {
            self.templates[number as usize] = None;
            self.free.push_back(number);
        }
    }

    pub(crate) fn of_template(&mut self, number: u32) -> Option<&mut PolicyEntry> {
        let index = self.templates.get(number as usize).copied().flatten()?;
        self.all.get_mut(&index)
    }
}

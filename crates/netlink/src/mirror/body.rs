//! Route bodies, each kept once and named by a number.

use crate::hash::Map;
use crate::route::RouteBody;
use std::sync::Arc;

/// A body's ID within one family. It is valid while any route has that body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct BodyId(pub(crate) u32);

impl BodyId {
    /// As an index, for tables next to the mirror: IDs are small and reused.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
struct Slot {
    body: Arc<RouteBody>,
    /// The number of routes that have it; 0 marks a free slot.
    routes: u32,
}

/// The bodies of a family's routes.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    slots: Vec<Slot>,
    free: Vec<u32>,
    index: Map<Arc<RouteBody>, u32>,
    /// The one used last: in a dump the next route often has the same.
    last: u32,
}

impl Bodies {
    /// The ID of this body, with one more route that uses it.
    #[inline]
    pub(crate) fn intern(&mut self, body: RouteBody) -> BodyId {
        if let Some(slot) = self.slots.get_mut(self.last as usize)
            && slot.routes > 0
            && *slot.body == body
        {
            slot.routes += 1;
            return BodyId(self.last);
        }
        self.last = match self.index.get(&body) {
            Some(&id) => {
                self.slots[id as usize].routes += 1;
                id
            }
            None => self.insert(body),
        };
        BodyId(self.last)
    }

    fn insert(&mut self, body: RouteBody) -> u32 {
        let body = Arc::new(body);
        let slot = Slot { body: Arc::clone(&body), routes: 1 };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.index.insert(body, id);
        id
    }

    /// Counts one more route that uses it.
    pub fn retain(&mut self, id: BodyId) {
        self.slots[id.index()].routes += 1;
    }

    /// Counts one route less; `true` if that was the last, and the ID is free.
    pub fn release(&mut self, id: BodyId) -> bool {
        let slot = &mut self.slots[id.index()];
        slot.routes -= 1;
        if slot.routes > 0 {
            return false;
        }
        let body = std::mem::take(&mut slot.body);
        self.forget(&body, id);
        self.free.push(id.0);
        true
    }

    /// Replaces the body `id` for all its routes at once. The new body may then have two IDs, which only costs a
    /// slot: code that compares bodies must compare their content.
    pub fn change(&mut self, id: BodyId, body: RouteBody) {
        let body = Arc::new(body);
        let before = std::mem::replace(&mut self.slots[id.index()].body, Arc::clone(&body));
        self.forget(&before, id);
        self.index.entry(body).or_insert(id.0);
    }

    fn forget(&mut self, body: &Arc<RouteBody>, id: BodyId) {
        if self.index.get(body) == Some(&id.0) {
            self.index.remove(body);
        }
    }

    #[inline]
    pub fn get(&self, id: BodyId) -> Option<&RouteBody> {
        self.slots.get(id.index()).filter(|slot| slot.routes > 0).map(|slot| &*slot.body)
    }

    /// The body of an ID that a route has.
    #[inline]
    pub fn body(&self, id: BodyId) -> &RouteBody {
        &self.slots[id.index()].body
    }

    /// All that are in use.
    pub fn iter(&self) -> impl Iterator<Item = (BodyId, &RouteBody)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.routes > 0)
            .map(|(id, slot)| (BodyId(id as u32), &*slot.body))
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// One more than the greatest ID.
    pub fn bound(&self) -> usize {
        self.slots.len()
    }

    /// Approximate memory use in bytes.
    pub fn memory(&self) -> usize {
        let hops: usize = self.iter().map(|(_, body)| size_of_val(body.via.hops())).sum();
        self.slots.capacity() * (size_of::<Slot>() + size_of::<RouteBody>() + 16)
            + self.index.capacity() * (size_of::<(Arc<RouteBody>, u32)>() + 1)
            + hops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(priority: u32) -> RouteBody {
        RouteBody { priority, ..RouteBody::default() }
    }

    #[test]
    fn stores_each_body_once_and_reuses_numbers() {
        let mut bodies = Bodies::default();
        let (one, two) = (bodies.intern(body(1)), bodies.intern(body(2)));
        assert_eq!((bodies.intern(body(1)), bodies.intern(body(2))), (one, two));
        assert!(!bodies.release(one) && bodies.release(one));
        assert_eq!(bodies.get(one), None);
        assert_eq!(bodies.intern(body(3)), one);
        assert_eq!(bodies.len(), 2);
    }

    #[test]
    fn a_change_may_split_a_body_without_losing_either() {
        let mut bodies = Bodies::default();
        let (one, two) = (bodies.intern(body(1)), bodies.intern(body(2)));
        bodies.change(two, body(1));
        assert_eq!(bodies.body(one), bodies.body(two));
        assert!(bodies.release(two));
        assert_eq!(bodies.intern(body(1)), one, "the first is still found");
        assert!(!bodies.release(one) && bodies.release(one));
        assert_eq!(bodies.len(), 0);
    }
}

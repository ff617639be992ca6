//! Published tables: one writer, many readers, no locks.
//!
//! ```text
//! control: build -> publish ----> [ current ] <---- read, once per burst :workers
//!                      `- wait until each worker has begun a later burst, then free the old
//! ```
//!
//! Quiescent states: a worker announces once per burst that it no longer uses anything it found before. The writer
//! makes what it wants to free unreachable, begins a new *epoch*, and frees it when every reader has been quiescent in that
//! epoch: then the grace period is over. Tables that change in place (DIR-24-8's groups, next hops) put their free blocks
//! into the same [`Retired`] queue as whole tables.
//!
//! Readers never wait or allocate; it costs them one load and one store in cache lines of their own. The writer may
//! wait as long as one burst takes, so a reader that sleeps announces that first ([`offline`]).
//!
//! [`offline`]: ReaderHandle::offline
//!
//! Why this is correct. *A reader that continues:* the writer's unlinking comes before its `epoch` (release), which
//! the reader loads (acquire) before it stores it as seen; so after that store it cannot find what was unlinked, and
//! by release and acquire on `seen` all its earlier reads come before the writer frees. *A reader that wakes:* it
//! stores `seen`, fence, then reads tables; the writer unlinks, fence, then reads `seen`. One of the two fences comes
//! first: either the writer sees the reader awake, or the reader sees the unlinking.

use crate::sync::{Arc, AtomicPtr, AtomicU64, Mutex, MutexGuard, Ordering, fence};
use std::collections::VecDeque;
use std::fmt;

/// The value of `seen` while its reader sleeps: it is past everything.
const OFFLINE: u64 = u64::MAX;

/// The readers of the tables. Cheap to clone; all clones are the same registry.
#[derive(Clone)]
pub struct Readers(Arc<Registry>);

struct Registry {
    /// The current epoch, which increases by one whenever something is retired. Alone in its cache line: workers load it
    /// once per burst.
    epoch: Line,
    /// Only registration, its end and the writer take this lock.
    seen: Mutex<Vec<Arc<Line>>>,
}

/// A counter alone in its cache line (two lines, since they are fetched in pairs).
#[repr(align(128))]
struct Line(AtomicU64);

/// The time between two retirements, by its number. What was retired when an epoch began is freed once every reader has
/// been quiescent in it, or later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

impl Readers {
    /// A registry without readers.
    #[allow(clippy::new_without_default)] // two registries where one was meant are a bug
    pub fn new() -> Self {
        let epoch = Line(AtomicU64::new(0));
        Self(Arc::new(Registry { epoch, seen: Mutex::new(Vec::new()) }))
    }

    /// A new reader, online. Takes a lock: call it as a worker starts.
    pub fn register(&self) -> ReaderHandle {
        let seen = Arc::new(Line(AtomicU64::new(OFFLINE)));
        self.all_seen().push(seen.clone());
        let mut handle = ReaderHandle { readers: self.clone(), seen };
        handle.online();
        handle
    }

    /// Begins an epoch: what the writer has just unlinked waits until all readers have reached it.
    pub fn begin_epoch(&self) -> Epoch {
        fence(Ordering::SeqCst);
        Epoch(self.0.epoch.0.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// The current epoch. It does not cover what is retired later.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.0.epoch.0.load(Ordering::Acquire))
    }

    /// Whether every reader has reached `epoch`.
    pub fn passed(&self, epoch: Epoch) -> bool {
        self.oldest() >= epoch
    }

    /// The latest epoch that every reader has reached.
    fn oldest(&self) -> Epoch {
        let all = self.all_seen();
        Epoch(all.iter().map(|seen| seen.0.load(Ordering::Acquire)).min().unwrap_or(OFFLINE))
    }

    fn all_seen(&self) -> MutexGuard<'_, Vec<Arc<Line>>> {
        // A panic while the lock was held cannot leave the list half-changed.
        self.0.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Readers of {}", self.all_seen().len())
    }
}

/// One reader: belongs to one thread at a time.
pub struct ReaderHandle {
    readers: Readers,
    seen: Arc<Line>,
}

impl ReaderHandle {
    /// Announces that this reader no longer uses anything it found before: once per burst, between bursts.
    ///
    /// `&mut`, so that the compiler refuses a table kept from before the call.
    #[inline]
    pub fn quiescent(&mut self) {
        debug_assert!(self.is_online());
        let epoch = self.readers.0.epoch.0.load(Ordering::Acquire);
        self.seen.0.store(epoch, Ordering::Release);
    }

    /// The current epoch, for [`Self::quiescent_at`]. As long as it stays the same, so do published tables as a
    /// whole and each next hop's word and MTU, as read since the reader was last quiescent. This does not apply to
    /// what is stored in place: the next hop of a route, and the members of a group in its old row.
    pub fn epoch(&self) -> Epoch {
        self.readers.epoch()
    }

    /// Announces that this reader no longer uses anything it found before `epoch` began: for one that represents others,
    /// and learns later that they have moved on.
    pub fn quiescent_at(&mut self, epoch: Epoch) {
        debug_assert!(self.is_online());
        self.seen.0.store(epoch.0, Ordering::Release);
    }

    /// Announces that this reader will not read until [`Self::online`]: before it sleeps.
    pub fn offline(&mut self) {
        self.seen.0.store(OFFLINE, Ordering::Release);
    }

    /// Announces that this reader reads again. A full barrier: not for every burst.
    pub fn online(&mut self) {
        let epoch = self.readers.0.epoch.0.load(Ordering::Acquire);
        // Release: the writer may find only this, and must still see what was read before sleeping.
        self.seen.0.store(epoch, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Whether it may read now.
    #[inline]
    pub(crate) fn is_online(&self) -> bool {
        self.seen.0.load(Ordering::Relaxed) != OFFLINE
    }

    /// The registry that it belongs to.
    pub fn readers(&self) -> &Readers {
        &self.readers
    }
}

impl Drop for ReaderHandle {
    fn drop(&mut self) {
        // This reader's accesses come before the writer's, which finds the list without it under the same lock.
        self.readers.all_seen().retain(|seen| !Arc::ptr_eq(seen, &self.seen));
    }
}

impl fmt::Debug for ReaderHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_online() { "ReaderHandle online" } else { "ReaderHandle offline" })
    }
}

/// Unreachable items, in the order of their retirement, until their grace periods have ended.
pub struct Retired<T> {
    readers: Readers,
    waiting: VecDeque<(Epoch, T)>,
}

impl<T> Retired<T> {
    /// An empty queue.
    pub fn new(readers: &Readers) -> Self {
        Self { readers: readers.clone(), waiting: VecDeque::new() }
    }

    /// Queues an item that no reader can find any more, although one may still use it.
    pub fn push(&mut self, item: T) {
        let epoch = self.readers.begin_epoch();
        self.waiting.push_back((epoch, item));
    }

    /// Queues several items that became unreachable together, at the cost of one.
    pub fn extend(&mut self, items: impl IntoIterator<Item = T>) {
        let mut items = items.into_iter().peekable();
        if items.peek().is_some() {
            let epoch = self.readers.begin_epoch();
            self.waiting.extend(items.map(|item| (epoch, item)));
        }
    }

    /// Returns, oldest first, all items whose grace period has ended.
    pub fn take_passed(&mut self) -> impl Iterator<Item = T> + '_ {
        let oldest = if self.waiting.is_empty() { Epoch(0) } else { self.readers.oldest() };
        let passed = self.waiting.partition_point(|(epoch, _)| *epoch <= oldest);
        self.waiting.drain(..passed).map(|(_, item)| item)
    }

    /// Tells readers that something which they may have cached since their last quiescent state is out of date: their
    /// [`epoch`](ReaderHandle::epoch) changes.
    pub(crate) fn outdate(&self) {
        self.readers.begin_epoch();
    }

    /// Number of items that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl<T> fmt::Debug for Retired<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Retired of {}", self.waiting.len())
    }
}

/// A value that is replaced as a whole: a reader sees the old one or the new one, and nothing in between.
pub struct Published<T> {
    current: AtomicPtr<T>,
    readers: Readers,
    /// The writers' side; readers do not come near this lock.
    retired: Mutex<Retired<Box<T>>>,
}

// SAFETY: it owns its values (`Send`), hands out `&T` on many threads (`Sync`), and drops values on
// whichever thread publishes (`Send`).
unsafe impl<T: Send + Sync> Sync for Published<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Published<T> {}

impl<T> Published<T> {
    /// Publishes a first value to `readers`.
    pub fn new(value: T, readers: &Readers) -> Self {
        Self {
            current: AtomicPtr::new(Box::into_raw(Box::new(value))),
            readers: readers.clone(),
            retired: Mutex::new(Retired::new(readers)),
        }
    }

    /// The value now, until the reader is quiescent next.
    ///
    /// # Panics
    /// If the reader sleeps or belongs to another registry: the writer would not wait for it.
    #[inline]
    pub fn load<'a>(&'a self, reader: &'a ReaderHandle) -> &'a T {
        assert!(reader.is_online() && Arc::ptr_eq(&reader.readers.0, &self.readers.0));
        // SAFETY: the pointer came from a Box that is freed by `reclaim` only after this reader was
        // quiescent, which takes `&mut reader`, or by our own drop; `'a` ends before both.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Replaces the value; frees earlier ones that all readers have moved past.
    pub fn publish(&self, value: T) {
        let mut retired = self.retired();
        let old = self.current.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel);
        // SAFETY: `old` came from a Box, and the swap took the only copy of it that could be found.
        retired.push(unsafe { Box::from_raw(old) });
        retired.take_passed().for_each(drop);
    }

    /// Frees what all readers have moved past; returns how many values are still waiting.
    pub fn reclaim(&self) -> usize {
        let mut retired = self.retired();
        retired.take_passed().for_each(drop);
        retired.len()
    }

    fn retired(&self) -> MutexGuard<'_, Retired<Box<T>>> {
        // A panic in a value's drop leaves the queue consistent.
        self.retired.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        // Those that wait are dropped with the queue: `load` borrowed from us, so no reader holds one.
        // SAFETY: from a Box, and ours alone now.
        drop(unsafe { Box::from_raw(self.current.load(Ordering::Relaxed)) });
    }
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Published")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    #[test]
    fn nothing_is_freed_before_all_have_moved_on() {
        let readers = Readers::new();
        let (mut one, mut two) = (readers.register(), readers.register());
        let epoch = readers.begin_epoch();
        assert!(!readers.passed(epoch));
        one.quiescent();
        assert!(!readers.passed(epoch));
        two.quiescent();
        assert!(readers.passed(epoch));
    }

    #[test]
    fn a_stand_in_passes_what_its_grace_began_after() {
        let readers = Readers::new();
        let mut kernel = readers.register();
        let before = readers.begin_epoch();
        let begun = kernel.epoch();
        let within = readers.begin_epoch();
        assert!(!readers.passed(before));
        kernel.quiescent_at(begun);
        assert!(readers.passed(before) && !readers.passed(within));
    }

    #[test]
    fn readers_see_what_was_published_last() {
        let readers = Readers::new();
        let published = Published::new(1, &readers);
        let mut reader = readers.register();
        assert_eq!(*published.load(&reader), 1);
        published.publish(2);
        assert_eq!((*published.load(&reader), published.reclaim()), (2, 1));
        reader.quiescent();
        published.publish(3);
        assert_eq!((*published.load(&reader), published.reclaim()), (3, 1));
        reader.quiescent();
        assert_eq!(published.reclaim(), 0);
    }

    #[test]
    fn sleeping_and_departed_readers_delay_nothing() {
        let readers = Readers::new();
        let (mut sleeper, leaver) = (readers.register(), readers.register());
        let epoch = readers.begin_epoch();
        sleeper.offline();
        drop(leaver);
        assert!(readers.passed(epoch));
        sleeper.online();
        assert!(readers.passed(epoch), "it woke after the epoch began");
        assert!(!readers.passed(readers.begin_epoch()));
    }

    #[test]
    fn hands_out_in_order_what_has_passed() {
        let readers = Readers::new();
        let mut retired = Retired::new(&readers);
        let mut reader = readers.register();
        retired.push(1);
        retired.extend([2, 3]);
        assert_eq!(retired.take_passed().count(), 0);
        reader.quiescent();
        retired.push(4);
        assert_eq!(retired.take_passed().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(retired.len(), 1);
    }

    #[test]
    #[should_panic]
    fn refuses_a_sleeping_reader() {
        let readers = Readers::new();
        let table = Published::new(1, &readers);
        let mut reader = readers.register();
        reader.offline();
        table.load(&reader);
    }

    /// A value that shows whether it was dropped while somebody looked.
    struct Canary {
        alive: AtomicBool,
        number: usize,
        dropped: Arc<AtomicUsize>,
    }

    impl Drop for Canary {
        fn drop(&mut self) {
            self.alive.store(false, Ordering::SeqCst);
            self.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn readers_see_live_values_in_order_while_the_writer_publishes() {
        let (readers, dropped) = (Readers::new(), Arc::new(AtomicUsize::new(0)));
        let canary = |number| Canary { alive: AtomicBool::new(true), number, dropped: dropped.clone() };
        let (table, stop) = (Published::new(canary(0), &readers), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for sleeps in [false, true, false] {
                let (table, stop, mut reader) = (&table, &stop, readers.register());
                scope.spawn(move || {
                    let mut last = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let value = table.load(&reader);
                        assert!(value.number >= last);
                        last = value.number;
                        std::thread::yield_now();
                        assert!(value.alive.load(Ordering::SeqCst));
                        if sleeps {
                            reader.offline();
                            reader.online();
                        }
                        reader.quiescent();
                    }
                });
            }
            (1..20_000).for_each(|number| table.publish(canary(number)));
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(table.reclaim(), 0);
        drop(table);
        assert_eq!(dropped.load(Ordering::SeqCst), 20_000);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;

    /// Every interleaving of a reader that goes through `steps` and a writer that frees: the reader
    /// reads a cell that the writer overwrites once it is past; loom reports any overlap.
    fn check(steps: fn(&mut ReaderHandle)) {
        loom::model(move || {
            let readers = Readers::new();
            let cells = Arc::new([UnsafeCell::new(1), UnsafeCell::new(2)]);
            let current = Arc::new(AtomicU64::new(0));
            let mut reader = readers.register();
            let (seen_cells, seen_current) = (cells.clone(), current.clone());
            let worker = thread::spawn(move || {
                let read = || {
                    let index = seen_current.load(Ordering::Acquire) as usize;
                    // SAFETY: what is being modelled.
                    seen_cells[index].with(|cell| assert_eq!(unsafe { *cell }, index + 1));
                };
                read();
                steps(&mut reader);
                read();
                reader.quiescent();
            });
            current.store(1, Ordering::Release);
            let epoch = readers.begin_epoch();
            if readers.passed(epoch) {
                // SAFETY: what is being modelled.
                cells[0].with_mut(|cell| unsafe { *cell = 0 });
            }
            worker.join().unwrap();
            assert!(readers.passed(epoch));
        });
    }

    #[test]
    fn model_quiescent() {
        check(ReaderHandle::quiescent);
    }

    #[test]
    fn model_quiescent_at() {
        check(|reader| {
            let epoch = reader.epoch();
            reader.quiescent_at(epoch);
        });
    }

    /// A value whose drop writes to what its readers read: loom reports the two if nothing keeps them apart.
    struct WatchedCell(UnsafeCell<u32>);

    impl WatchedCell {
        fn look(&self) -> u32 {
            // SAFETY: what is being modelled.
            self.0.with(|cell| unsafe { *cell })
        }
    }

    impl Drop for WatchedCell {
        fn drop(&mut self) {
            // SAFETY: what is being modelled.
            self.0.with_mut(|cell| unsafe { *cell = 0 });
        }
    }

    /// Every order of a reader that loads the value twice and a writer that replaces it, and frees what it may: the
    /// reader sees whole values, never one before the other, and none that is freed.
    #[test]
    fn model_published() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let readers = Readers::new();
            let table = Arc::new(Published::new(WatchedCell(UnsafeCell::new(1)), &readers));
            let (mut reader, theirs) = (readers.register(), table.clone());
            let worker = thread::spawn(move || {
                let first = theirs.load(&reader).look();
                reader.quiescent();
                let second = theirs.load(&reader).look();
                assert!(first > 0 && second >= first, "{first} then {second}");
                reader.offline();
            });
            table.publish(WatchedCell(UnsafeCell::new(2)));
            table.reclaim();
            worker.join().unwrap();
            assert_eq!(table.reclaim(), 0);
        });
    }

    #[test]
    fn model_sleep_and_wake() {
        check(|reader| {
            reader.offline();
            reader.online();
        });
    }
}

//! A lane's ring: many producers, many cursors, no locks; the oldest goes first.
//!
//! It is not a queue: nothing is taken out by reading, and nobody waits for a reader. A producer claims a position with one `fetch_add`
//! and puts its block there; a reader asks for a position and is told what became of it. What keeps the slow from losing anything is
//! the acknowledgement gate ([`super::gate`]), not the ring. Only a producer that a whole round of the ring separates from one that has
//! claimed and not yet published waits for that one: what is not there cannot be given up.
//!
//! Invariants:
//! - A slot holds a block of exactly the positions `p` with `p % slots == slot`, and only ever a higher one than before.
//! - `tail` only grows, over blocks that were published. Before it moves over one, the block is told ([`Entry::retire`]); only then does
//!   the block leave its slot. So a reader that finds its block gone finds itself below the tail, and what the block held is recorded
//!   as lost by then.
//! - `appended_bytes` less `trimmed_bytes` are the bytes held: each block is added and taken off exactly once.
//!
//! Positions begin at 1 or, in a log that goes on, above all that were used: a sequence made of one is never 0.

use std::sync::Arc;

use super::sync::{AtomicU64, Ordering, Slot, spin};

/// What a ring holds.
pub(super) trait Entry {
    /// Where the block belongs; claimed before the block was made.
    fn position(&self) -> u64;
    /// What it counts against the bound in bytes.
    fn bytes(&self) -> usize;
    /// The ring is about to forget the block. May be called more than once.
    fn retire(&self);
}

/// What became of a position.
#[derive(Debug)]
pub(super) enum Read<T> {
    /// It is there.
    Block(Arc<T>),
    /// It is claimed, or not even that: wait.
    NotYet,
    /// It has been overwritten or trimmed: go on at [`Ring::tail`].
    Lapped,
}

/// A counter that many threads write gets a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

#[derive(Debug)]
pub(super) struct Ring<T> {
    slots: Box<[Slot<T>]>,
    bytes_max: u64,
    /// The position that the next producer claims.
    next: Apart,
    /// Nothing below it is promised to be there.
    tail: Apart,
    appended_bytes: Apart,
    trimmed_bytes: Apart,
}

impl<T: Entry> Ring<T> {
    /// A ring of `slots` blocks and `bytes_max` bytes, whose positions begin at `first`. The newest block stays, however large it is.
    pub(super) fn new(slots: usize, bytes_max: usize, first: u64) -> Self {
        Self {
            slots: (0..slots.max(1)).map(|_| Slot::default()).collect(),
            bytes_max: bytes_max as u64,
            next: Apart(AtomicU64::new(first)),
            tail: Apart(AtomicU64::new(first)),
            appended_bytes: Apart::default(),
            trimmed_bytes: Apart::default(),
        }
    }

    /// Takes the next position. Whoever claims must [`publish`](Self::publish) at once: readers wait there.
    pub(super) fn claim(&self) -> u64 {
        self.next.0.fetch_add(1, Ordering::AcqRel)
    }

    /// Puts `block` at its position, and trims what is then above the bounds.
    pub(super) fn publish(&self, block: impl Into<Arc<T>>) {
        let block = block.into();
        let (position, bytes) = (block.position(), block.bytes() as u64);
        let Some(slot) = self.slot(position) else { return };
        while self.tail() + self.slots() <= position {
            if !self.trim_one(|_| true) {
                spin();
            }
        }
        let block = Some(block);
        loop {
            // Empty, or held by the block of one round ago, which somebody has just trimmed and not yet taken out.
            let current = slot.load();
            if slot.replace(&current, block.clone()) {
                self.count_trimmed(&current);
                break;
            }
        }
        self.appended_bytes.0.fetch_add(bytes, Ordering::AcqRel);
        self.trim_to_bytes();
    }

    /// Puts `block`, which says more and is no smaller, in the place of the one at its position, if that is still there. Two may not do so for one
    /// position at once.
    pub(super) fn replace(&self, block: &Arc<T>) {
        let Some(slot) = self.slot(block.position()) else { return };
        let current = slot.load();
        let held: &Option<Arc<T>> = &current;
        let Some(bytes_before) = held.as_ref().filter(|held| held.position() == block.position()).map(|held| held.bytes()) else {
            return;
        };
        if slot.replace(&current, Some(Arc::clone(block))) {
            self.appended_bytes.0.fetch_add(block.bytes().saturating_sub(bytes_before) as u64, Ordering::AcqRel);
            self.trim_to_bytes();
        }
    }

    fn trim_to_bytes(&self) {
        while self.held_bytes() > self.bytes_max && self.tail() + 1 < self.next() && self.trim_one(|_| true) {}
    }

    /// What is at `position`.
    pub(super) fn read(&self, position: u64) -> Read<T> {
        let Some(slot) = self.slot(position) else { return Read::NotYet };
        if let Some(block) = slot.load_full() {
            match block.position().cmp(&position) {
                std::cmp::Ordering::Equal => return Read::Block(block),
                std::cmp::Ordering::Greater => return Read::Lapped,
                std::cmp::Ordering::Less => {}
            }
        }
        if position < self.tail() { Read::Lapped } else { Read::NotYet }
    }

    /// Forgets blocks from the tail on, as long as `goes` says so.
    pub(super) fn trim_while(&self, goes: impl Fn(&T) -> bool) {
        while self.trim_one(&goes) {}
    }

    /// The oldest position that may still be there.
    pub(super) fn tail(&self) -> u64 {
        self.tail.0.load(Ordering::Acquire)
    }

    /// The position that the next producer will claim.
    pub(super) fn next(&self) -> u64 {
        self.next.0.load(Ordering::Acquire)
    }

    /// Blocks that fit.
    pub(super) fn slots(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Bytes that fit.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes of all blocks ever published.
    pub(super) fn appended_bytes(&self) -> u64 {
        self.appended_bytes.0.load(Ordering::Acquire)
    }

    /// Bytes of all blocks that are gone.
    pub(super) fn trimmed_bytes(&self) -> u64 {
        self.trimmed_bytes.0.load(Ordering::Acquire)
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> u64 {
        self.appended_bytes().saturating_sub(self.trimmed_bytes())
    }

    fn slot(&self, position: u64) -> Option<&Slot<T>> {
        self.slots.get((position % self.slots.len() as u64) as usize)
    }

    /// Forgets the block at the tail if it is published and `goes`. False if that did not move the tail, and nobody else did.
    fn trim_one(&self, goes: impl Fn(&T) -> bool) -> bool {
        let tail = self.tail();
        let Some(slot) = self.slot(tail) else { return false };
        let current = slot.load();
        let held: &Option<Arc<T>> = &current;
        let Some(block) = held.as_ref().filter(|block| block.position() == tail && goes(block)) else {
            // Another producer is about to publish there, or somebody else has trimmed it: then the tail has moved.
            return self.tail() != tail;
        };
        block.retire();
        if self.tail.0.compare_exchange(tail, tail + 1, Ordering::AcqRel, Ordering::Acquire).is_ok() && slot.replace(&current, None)
        {
            self.count_trimmed(&current);
        }
        true
    }

    /// Called by the one who has taken `block` out of its slot.
    fn count_trimmed(&self, block: &Option<Arc<T>>) {
        if let Some(block) = block {
            self.trimmed_bytes.0.fetch_add(block.bytes() as u64, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use super::*;

    /// Kept apart from the model's atomics: writing here is no step of its own.
    type Positions = Mutex<BTreeSet<u64>>;

    #[derive(Debug)]
    struct Numbered {
        position: u64,
        bytes: usize,
        retired: Arc<Positions>,
    }

    impl Entry for Numbered {
        fn position(&self) -> u64 {
            self.position
        }

        fn bytes(&self) -> usize {
            self.bytes
        }

        fn retire(&self) {
            self.retired.lock().unwrap().insert(self.position);
        }
    }

    struct Fixture {
        ring: Ring<Numbered>,
        retired: Arc<Positions>,
    }

    impl Fixture {
        fn new(slots: usize, bytes_max: usize) -> Self {
            Self { ring: Ring::new(slots, bytes_max, 1), retired: Arc::default() }
        }

        fn block(&self, position: u64, bytes: usize) -> Numbered {
            Numbered { position, bytes, retired: Arc::clone(&self.retired) }
        }

        fn append(&self, bytes: usize) {
            self.ring.publish(self.block(self.ring.claim(), bytes));
        }

        #[cfg(not(loom))]
        fn retired(&self) -> Vec<u64> {
            self.retired.lock().unwrap().iter().copied().collect()
        }

        /// What the ring holds adds up to what it says.
        fn check_bytes(&self) {
            let held = (1..self.ring.next()).filter_map(|position| match self.ring.read(position) {
                Read::Block(block) => Some(block.bytes as u64),
                _ => None,
            });
            assert_eq!(held.sum::<u64>(), self.ring.held_bytes());
        }
    }

    /// A cursor that keeps account.
    #[derive(Default)]
    struct Reader {
        position: u64,
        met: BTreeSet<u64>,
    }

    impl Reader {
        /// False where there is nothing to read yet.
        fn step(&mut self, fixture: &Fixture) -> bool {
            self.position = self.position.max(1);
            match fixture.ring.read(self.position) {
                Read::Block(block) => {
                    assert_eq!(block.position, self.position);
                    self.met.insert(self.position);
                    self.position += 1;
                }
                Read::NotYet => return false,
                Read::Lapped => {
                    let tail = fixture.ring.tail();
                    assert!(tail > self.position, "lapped at {}, tail {tail}", self.position);
                    let retired = fixture.retired.lock().unwrap();
                    assert!((self.position..tail).all(|position| retired.contains(&position)), "skipped and not recorded as lost");
                    self.position = tail;
                }
            }
            true
        }

        /// Whether each of `blocks` blocks was met or is lost.
        fn has_all(&self, fixture: &Fixture, blocks: usize) -> bool {
            self.met.union(&fixture.retired.lock().unwrap()).count() >= blocks
        }
    }

    #[cfg(not(loom))]
    mod real {
        use super::*;

        /// What is read at each position from 1 to the next one: `.` not yet, `-` lapped, `#` there.
        fn picture(fixture: &Fixture) -> String {
            (1..=fixture.ring.next())
                .map(|position| match fixture.ring.read(position) {
                    Read::Block(block) => {
                        assert_eq!(block.position, position);
                        '#'
                    }
                    Read::NotYet => '.',
                    Read::Lapped => '-',
                })
                .collect()
        }

        #[test]
        fn the_oldest_goes_first_by_slots() {
            let fixture = Fixture::new(3, 1_000);
            assert_eq!(picture(&fixture), ".");
            for expected in ["#.", "##.", "###.", "-###.", "--###."] {
                fixture.append(10);
                assert_eq!(picture(&fixture), expected);
            }
            assert_eq!((fixture.retired(), fixture.ring.tail(), fixture.ring.held_bytes()), (vec![1, 2], 3, 30));
        }

        #[test]
        fn the_oldest_goes_first_by_bytes_and_the_newest_stays() {
            let fixture = Fixture::new(8, 100);
            for (bytes, expected) in [(40, "#."), (40, "##."), (40, "-##."), (100, "---#."), (500, "----#."), (1, "-----#.")] {
                fixture.append(bytes);
                assert_eq!(picture(&fixture), expected);
            }
            assert_eq!((fixture.retired(), fixture.ring.tail(), fixture.ring.held_bytes()), (vec![1, 2, 3, 4, 5], 6, 1));
        }

        #[test]
        fn readers_wait_where_a_producer_has_claimed_and_not_published() {
            let fixture = Fixture::new(4, 20);
            let late = fixture.ring.claim();
            fixture.append(30);
            fixture.append(30);
            assert_eq!(picture(&fixture), ".##.", "nothing is trimmed past the one that is awaited");
            fixture.ring.publish(fixture.block(late, 1));
            assert_eq!(picture(&fixture), "--#.");
            assert_eq!(fixture.ring.held_bytes(), 30);
        }

        #[test]
        fn a_producer_waits_for_the_one_it_would_overtake() {
            let fixture = Fixture::new(2, 1_000);
            let late = fixture.ring.claim();
            fixture.append(1);
            std::thread::scope(|scope| {
                let overtaking = scope.spawn(|| fixture.append(1));
                while fixture.ring.next() < 4 {
                    std::thread::yield_now();
                }
                assert!(!overtaking.is_finished());
                fixture.ring.publish(fixture.block(late, 1));
            });
            assert_eq!((picture(&fixture).as_str(), fixture.retired(), fixture.ring.held_bytes()), ("-##.", vec![1], 2));
        }

        #[test]
        fn what_is_trimmed_by_age_is_trimmed_in_order() {
            let fixture = Fixture::new(8, 1_000);
            (0..5).for_each(|_| fixture.append(10));
            fixture.ring.trim_while(|block| block.position != 3);
            assert_eq!((picture(&fixture).as_str(), fixture.ring.held_bytes()), ("--###.", 30));
            fixture.ring.trim_while(|_| true);
            assert_eq!((picture(&fixture).as_str(), fixture.ring.held_bytes()), ("-----.", 0));
        }

        /// Every block is met exactly once or lost, and what is lost is recorded when it is missed.
        #[test]
        fn many_producers_and_many_readers_agree() {
            const PRODUCERS: usize = 3;
            const EACH: usize = 10_000;
            let fixture = Fixture::new(64, 64 * 10);
            std::thread::scope(|scope| {
                for producer in 0..PRODUCERS {
                    let fixture = &fixture;
                    scope.spawn(move || (0..EACH).for_each(|n| fixture.append(1 + (n + producer) % 30)));
                }
                for _ in 0..2 {
                    scope.spawn(|| {
                        let mut reader = Reader::default();
                        while reader.step(&fixture) || !reader.has_all(&fixture, PRODUCERS * EACH) {
                            std::thread::yield_now();
                        }
                    });
                }
            });
            fixture.check_bytes();
        }
    }

    /// Every interleaving of a few steps. Run with `RUSTFLAGS="--cfg loom" cargo test --manifest-path loom/Cargo.toml --release`.
    #[cfg(loom)]
    mod loom_models {
        use std::future::poll_fn;
        use std::task::Poll;

        use loom::thread;

        use super::*;
        use crate::replication::wake::Sleeper;

        /// Two producers append a block each while a reader follows. It sleeps where there is nothing; a wake-up that gets lost is a
        /// deadlock of the model.
        fn follow_two_producers(slots: usize, bytes_max: usize, bytes: usize, earlier: usize) {
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(2);
            builder.check(move || {
                let shared = Arc::new((Fixture::new(slots, bytes_max), Sleeper::default()));
                (0..earlier).for_each(|_| shared.0.append(bytes));
                let producers = [(); 2].map(|()| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        shared.0.append(bytes);
                        shared.1.wake();
                    })
                });
                let (fixture, sleeper) = &*shared;
                let mut reader = Reader::default();
                loom::future::block_on(poll_fn(|context| {
                    while reader.step(fixture) {}
                    sleeper.arm(context.waker());
                    while reader.step(fixture) {}
                    if !reader.has_all(fixture, earlier + 2) {
                        return Poll::Pending;
                    }
                    sleeper.disarm();
                    Poll::Ready(())
                }));
                producers.into_iter().for_each(|producer| producer.join().unwrap());
                fixture.check_bytes();
            });
        }

        #[test]
        fn loom_a_reader_meets_every_block_and_sleeps_through_none() {
            follow_two_producers(2, 100, 1, 0);
        }

        #[test]
        fn loom_a_lapped_reader_finds_out() {
            follow_two_producers(1, 100, 1, 0);
        }

        #[test]
        fn loom_trimming_by_bytes_counts_every_block_once() {
            follow_two_producers(2, 10, 6, 1);
        }
    }
}

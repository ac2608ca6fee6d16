//! What all clients of a run have counted so far, and how long messages took.
//!
//! Clients add once a batch, so that counting costs next to nothing a message.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::{AdditionError, CreationError, Histogram};

use crate::clock;
use crate::usage::Usage;

/// The longest latency told apart from longer ones: one hour, in nanoseconds.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

/// Digits of a latency that are kept.
const LATENCY_DIGITS: u8 = 3;

/// Latencies, in nanoseconds.
pub(crate) type Latencies = Histogram<u64>;

/// How long messages took: all of them, and those since the last look.
#[derive(Debug)]
pub(crate) struct Recorder {
    all: Latencies,
    recent: Recent,
}

/// How long the messages of some time took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recent {
    pub(crate) count: u64,
    pub(crate) sum_ns: u64,
    pub(crate) max_ns: u64,
}

impl Recorder {
    /// So many messages took so long.
    #[inline]
    pub(crate) fn record(&mut self, latency_ns: u64, messages: u64) {
        self.all.saturating_record_n(latency_ns, messages);
        self.recent = self.recent.and(&Recent { count: messages, sum_ns: latency_ns.saturating_mul(messages), max_ns: latency_ns });
    }
}

impl Recent {
    /// Both times together.
    pub(crate) fn and(self, more: &Self) -> Self {
        Self {
            count: self.count + more.count,
            sum_ns: self.sum_ns.saturating_add(more.sum_ns),
            max_ns: self.max_ns.max(more.max_ns),
        }
    }

    /// `None` where there was nothing.
    pub(crate) fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }
}

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Connections that brokers have accepted, of a run that only connects.
    pub(crate) connected: Counter,
    pub(crate) sent: Counter,
    /// QoS 1 and 2: messages the broker has taken.
    pub(crate) acknowledged: Counter,
    /// MQTT 5: messages the broker has answered with an error.
    pub(crate) refused: Counter,
    /// First copies, in order or not.
    pub(crate) delivered: Counter,
    /// Reads of subscribers' sockets that brought first copies.
    pub(crate) reads: Counter,
    pub(crate) duplicated: Counter,
    pub(crate) reordered: Counter,
    /// Messages whose topic, stamp or filler is not what was sent.
    pub(crate) corrupted: Counter,
    /// Messages that no publisher of this run (for `sub`: no `loadtest`) has sent.
    pub(crate) foreign: Counter,
    /// Publishers that have finished: nothing more to send, nothing owed.
    pub(crate) finished: Counter,
    /// Messages due earlier are counted but not measured.
    measured_from_ns: AtomicU64,
    latencies: Mutex<Recorder>,
    /// One for each thread after the first, so that threads need not wait for each other.
    more_latencies: Vec<Mutex<Recorder>>,
    /// How late the pacer woke.
    lateness: Mutex<Latencies>,
}

impl Tally {
    /// For a run on `threads` threads that does not measure yet.
    ///
    /// # Errors
    /// When the histogram's bounds are impossible, which they are not.
    pub(crate) fn new(threads: usize) -> Result<Self, CreationError> {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_MAX_NS, LATENCY_DIGITS);
        let recorder = || histogram().map(|all| Mutex::new(Recorder { all, recent: Recent::default() }));
        Ok(Self {
            connected: Counter::default(),
            sent: Counter::default(),
            acknowledged: Counter::default(),
            refused: Counter::default(),
            delivered: Counter::default(),
            reads: Counter::default(),
            duplicated: Counter::default(),
            reordered: Counter::default(),
            corrupted: Counter::default(),
            foreign: Counter::default(),
            finished: Counter::default(),
            measured_from_ns: AtomicU64::new(u64::MAX),
            latencies: recorder()?,
            more_latencies: (1..threads).map(|_| recorder()).collect::<Result<_, _>>()?,
            lateness: Mutex::new(histogram()?),
        })
    }

    /// Measures messages due from `moment_ns` on.
    pub(crate) fn measure_from(&self, moment_ns: u64) {
        self.measured_from_ns.store(moment_ns, Ordering::Relaxed);
    }

    pub(crate) fn measured_from_ns(&self) -> u64 {
        self.measured_from_ns.load(Ordering::Relaxed)
    }

    /// The histogram for the client of this number; clients of different threads seldom share one.
    pub(crate) fn latencies_of(&self, client: u32) -> MutexGuard<'_, Recorder> {
        let shard = client as usize % (self.more_latencies.len() + 1);
        lock(shard.checked_sub(1).and_then(|more| self.more_latencies.get(more)).unwrap_or(&self.latencies))
    }

    /// The pacer woke so much later than it wanted to.
    pub(crate) fn record_lateness(&self, late_ns: u64) {
        lock(&self.lateness).saturating_record(late_ns);
    }

    /// All latencies so far.
    ///
    /// # Errors
    /// When two histograms do not fit each other, which they do.
    pub(crate) fn latencies(&self) -> Result<Latencies, AdditionError> {
        let mut all = lock(&self.latencies).all.clone();
        for more in &self.more_latencies {
            all.add(&lock(more).all)?;
        }
        Ok(all)
    }

    /// How long messages took since this was asked last.
    pub(crate) fn take_recent(&self) -> Recent {
        let recorders = std::iter::once(&self.latencies).chain(&self.more_latencies);
        recorders.fold(Recent::default(), |sum, recorder| sum.and(&std::mem::take(&mut lock(recorder).recent)))
    }

    /// All the pacer's latenesses so far.
    pub(crate) fn lateness(&self) -> Latencies {
        lock(&self.lateness).clone()
    }

    /// All counts at this moment.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            at_ns: clock::now_ns(),
            processor_time: clock::processor_time(),
            broker: None,
            connected: self.connected.value(),
            sent: self.sent.value(),
            acknowledged: self.acknowledged.value(),
            refused: self.refused.value(),
            delivered: self.delivered.value(),
            reads: self.reads.value(),
            duplicated: self.duplicated.value(),
            reordered: self.reordered.value(),
            corrupted: self.corrupted.value(),
            foreign: self.foreign.value(),
            finished: self.finished.value(),
        }
    }
}

/// A histogram is whole between any two operations, whoever panicked.
fn lock<T>(histogram: &Mutex<T>) -> MutexGuard<'_, T> {
    histogram.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) at_ns: u64,
    /// Processor time `loadtest` has used.
    pub(crate) processor_time: Duration,
    /// What the brokers' processes have used, where they are watched.
    pub(crate) broker: Option<Usage>,
    pub(crate) connected: u64,
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    pub(crate) refused: u64,
    pub(crate) delivered: u64,
    pub(crate) reads: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupted: u64,
    pub(crate) foreign: u64,
    pub(crate) finished: u64,
}

impl Snapshot {
    /// Grows with everything a broker does for us: if it does not grow, the broker does nothing.
    pub(crate) fn progress(&self) -> u64 {
        self.acknowledged + self.refused + self.delivered + self.duplicated + self.corrupted + self.finished
    }
}

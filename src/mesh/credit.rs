//! Credit of a link's lanes: how many bytes may be on their way, written and not yet consumed at the far side, over all lanes together.
//!
//! QUIC's `send_window` is one budget for all streams of a connection, and writers that block on it are woken last in, first out: lanes that
//! filled it would starve one another, and a CLOSE, for ever (`limits::SEND_WINDOW_BYTES` and this module keep them from it). The limit follows the path: twice its bandwidth times its shortest round trip, so that a fast path is kept full and on a slow
//! one no more than that stands in queues.
//!
//! [`Credit`] is the sender's half, [`Reports`] the receiver's. Reports are running totals: one that is late does no harm.

use std::time::{Duration, Instant};

use crate::ids::LaneId;
use crate::limits::{CREDIT_BYTES_MAX, CREDIT_BYTES_MIN};

/// A lane is reported at once when so much of it was consumed since the last report.
const REPORT_NOW_BYTES: u64 = 64 * 1024;
/// All lanes are reported soon when so much was consumed of them together.
const REPORT_SOON_BYTES: u64 = 4 * 1024;
/// How soon that is.
const REPORT_SOON: Duration = Duration::from_millis(5);
/// Less than that can wait: the least credit there is outlasts it, and a trickle of messages shall not double its packets.
const REPORT_LATER: Duration = Duration::from_millis(50);
/// The bandwidth is the best of this long, at least, and twice as long at most.
const BANDWIDTH_MEMORY: Duration = Duration::from_secs(5);
/// The bandwidth is measured over at least this long.
const SAMPLE_MIN: Duration = Duration::from_millis(20);

/// The far side reported what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    /// A lane that the link does not have.
    #[error("credit for lane {0}, which the link does not have")]
    Lane(u8),
    /// More than was ever written.
    #[error("lane {lane}: {consumed} bytes reported consumed, {written} written")]
    Beyond {
        /// Which lane.
        lane: u8,
        /// What was reported.
        consumed: u64,
        /// What was written.
        written: u64,
    },
}

/// The sender's half.
#[derive(Debug)]
pub(super) struct Credit {
    lanes: Vec<Account>,
    outstanding: u64,
    limit: u64,
    bandwidth: Bandwidth,
    progress_at: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    written: u64,
    consumed: u64,
}

impl Credit {
    pub(super) fn new(lanes: usize, now: Instant) -> Self {
        Self {
            lanes: vec![Account::default(); lanes],
            outstanding: 0,
            limit: CREDIT_BYTES_MIN as u64,
            bandwidth: Bandwidth::new(now),
            progress_at: now,
        }
    }

    /// Bytes that may be written now.
    pub(super) fn available(&self) -> usize {
        usize::try_from(self.limit.saturating_sub(self.outstanding)).unwrap_or(usize::MAX)
    }

    /// Bytes that are on their way, written and not known to be consumed.
    pub(super) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// `bytes` are about to be written to `lane`.
    pub(super) fn writes(&mut self, lane: LaneId, bytes: usize, now: Instant) {
        if self.outstanding == 0 {
            self.progress_at = now;
        }
        if let Some(account) = self.lanes.get_mut(lane.index()) {
            account.written += bytes as u64;
            self.outstanding += bytes as u64;
        }
    }

    /// The far side has consumed `total` bytes of `lane` since the link came up.
    pub(super) fn consumed(&mut self, lane: LaneId, total: u64, rtt_min: Duration, now: Instant) -> Result<(), CreditError> {
        let account = self.lanes.get_mut(lane.index()).ok_or(CreditError::Lane(lane.0))?;
        if total > account.written {
            return Err(CreditError::Beyond { lane: lane.0, consumed: total, written: account.written });
        }
        let news = total.saturating_sub(account.consumed);
        if news == 0 {
            return Ok(());
        }
        account.consumed = total;
        self.outstanding = self.outstanding.saturating_sub(news);
        self.progress_at = now;
        self.bandwidth.delivered(news, rtt_min.max(SAMPLE_MIN), now);
        let wanted = 2.0 * self.bandwidth.best() * rtt_min.as_secs_f64();
        // A saturating cast: the clamp below bounds whatever was measured.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let wanted = wanted as u64;
        self.limit = wanted.clamp(CREDIT_BYTES_MIN as u64, CREDIT_BYTES_MAX as u64);
        Ok(())
    }

    /// For how long the far side has consumed nothing although it had something to consume.
    pub(super) fn stalled(&self, now: Instant) -> Duration {
        if self.outstanding == 0 { Duration::ZERO } else { now.saturating_duration_since(self.progress_at) }
    }
}

/// Windowed maximum of the rate at which the far side consumes, bytes a second.
#[derive(Debug)]
struct Bandwidth {
    sample_started: Instant,
    sample_bytes: u64,
    epoch_started: Instant,
    /// Best of the present and of the last epoch.
    best: [f64; 2],
}

impl Bandwidth {
    fn new(now: Instant) -> Self {
        Self { sample_started: now, sample_bytes: 0, epoch_started: now, best: [0.0; 2] }
    }

    fn delivered(&mut self, bytes: u64, sample_length: Duration, now: Instant) {
        self.sample_bytes += bytes;
        let elapsed = now.saturating_duration_since(self.sample_started);
        if elapsed < sample_length {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let rate = self.sample_bytes as f64 / elapsed.as_secs_f64();
        (self.sample_started, self.sample_bytes) = (now, 0);
        let [present, last] = &mut self.best;
        if now.saturating_duration_since(self.epoch_started) >= BANDWIDTH_MEMORY {
            (*last, *present, self.epoch_started) = (*present, rate, now);
        } else {
            *present = present.max(rate);
        }
    }

    fn best(&self) -> f64 {
        let [present, last] = self.best;
        present.max(last)
    }
}

/// The receiver's half: running totals of all lanes, and when to report them.
#[derive(Debug)]
pub(super) struct Reports {
    lanes: Vec<Consumption>,
    urgency: Urgency,
}

#[derive(Clone, Copy, Debug, Default)]
struct Consumption {
    total: u64,
    reported: u64,
}

impl Consumption {
    fn unreported(&self) -> u64 {
        self.total - self.reported
    }
}

/// How soon a report is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Nothing was consumed.
    Never,
    Later,
    Soon,
    Now,
}

impl Urgency {
    /// How long a report may wait from now on.
    pub(super) fn delay(self) -> Option<Duration> {
        match self {
            Self::Never => None,
            Self::Later => Some(REPORT_LATER),
            Self::Soon => Some(REPORT_SOON),
            Self::Now => Some(Duration::ZERO),
        }
    }
}

impl Reports {
    pub(super) fn new(lanes: usize) -> Self {
        Self { lanes: vec![Consumption::default(); lanes], urgency: Urgency::Never }
    }

    /// Counts `bytes` of `lane`; says whether a report has become more urgent.
    pub(super) fn consumed(&mut self, lane: LaneId, bytes: usize) -> bool {
        let Some(consumption) = self.lanes.get_mut(lane.index()) else { return false };
        consumption.total += bytes as u64;
        let of_lane = consumption.unreported();
        let urgency = if of_lane >= REPORT_NOW_BYTES {
            Urgency::Now
        } else if self.lanes.iter().map(Consumption::unreported).sum::<u64>() >= REPORT_SOON_BYTES {
            Urgency::Soon
        } else {
            Urgency::Later
        };
        let more = urgency > self.urgency;
        self.urgency = urgency.max(self.urgency);
        more
    }

    /// How soon a report is due.
    pub(super) fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// The totals that have not been reported; they count as reported now.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (LaneId, u64)> {
        self.urgency = Urgency::Never;
        let news = |(lane, id): (&mut Consumption, u8)| {
            let news = lane.unreported() > 0;
            lane.reported = lane.total;
            news.then_some((LaneId(id), lane.total))
        };
        self.lanes.iter_mut().zip(0..).filter_map(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const LANE: LaneId = LaneId(1);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_is_on_its_way_is_bounded_and_reports_free_it() {
        let now = clock::now();
        let mut credit = Credit::new(2, now);
        assert_eq!(credit.available(), CREDIT_BYTES_MIN);
        credit.writes(LANE, CREDIT_BYTES_MIN - 10, now);
        credit.writes(LaneId(0), 20, now);
        assert_eq!(credit.available(), 0);
        assert_eq!(credit.consumed(LANE, 1_000, MS, now), Ok(()));
        assert_eq!(credit.available(), 990);
        // An older total changes nothing.
        assert_eq!(credit.consumed(LANE, 900, MS, now), Ok(()));
        assert_eq!(credit.available(), 990);
    }

    #[test]
    fn reports_that_cannot_be_are_refused() {
        let now = clock::now();
        let mut credit = Credit::new(2, now);
        credit.writes(LANE, 10, now);
        assert_eq!(credit.consumed(LANE, 11, MS, now), Err(CreditError::Beyond { lane: 1, consumed: 11, written: 10 }));
        assert_eq!(credit.consumed(LaneId(2), 1, MS, now), Err(CreditError::Lane(2)));
    }

    /// A path of `rate` bytes a second and `rtt`, driven for `seconds` by a sender that always has something to say.
    fn settle(rate: f64, rtt: Duration, seconds: f64) -> usize {
        let start = clock::now();
        let mut credit = Credit::new(2, start);
        let (mut written, mut time) = (0_u64, 0.0);
        let mut on_the_way = std::collections::VecDeque::new();
        let mut free_at = 0.0;
        while time < seconds {
            let now = start + Duration::from_secs_f64(time);
            while on_the_way.front().is_some_and(|&(at, _)| at <= time) {
                let (_, total) = on_the_way.pop_front().unwrap();
                credit.consumed(LANE, total, rtt, now).unwrap();
            }
            while credit.available() >= 16_384 {
                credit.writes(LANE, 16_384, now);
                written += 16_384;
                free_at = f64::max(free_at, time) + 16_384.0 / rate;
                on_the_way.push_back((free_at + rtt.as_secs_f64(), written));
            }
            time += 0.001;
        }
        usize::try_from(credit.limit).unwrap()
    }

    #[test]
    fn the_limit_follows_the_path() {
        // 10 MB/s over 40 ms: twice the product is 800 kB.
        let fast = settle(10e6, 40 * MS, 5.0);
        assert!((700_000..1_000_000).contains(&fast), "{fast}");
        // 1.25 MB/s over 40 ms: 100 kB, the least there is.
        assert_eq!(settle(1.25e6, 40 * MS, 5.0), CREDIT_BYTES_MIN);
        // More than anybody needs.
        assert_eq!(settle(1e9, 100 * MS, 5.0), CREDIT_BYTES_MAX);
    }

    #[test]
    fn a_stall_needs_something_unconsumed() {
        let start = clock::now();
        let mut credit = Credit::new(2, start);
        assert_eq!(credit.stalled(start + 50 * MS), Duration::ZERO);
        credit.writes(LANE, 10, start + 50 * MS);
        assert_eq!(credit.stalled(start + 60 * MS), 10 * MS);
        credit.consumed(LANE, 4, MS, start + 70 * MS).unwrap();
        assert_eq!(credit.stalled(start + 80 * MS), 10 * MS);
        credit.consumed(LANE, 10, MS, start + 80 * MS).unwrap();
        assert_eq!(credit.stalled(start + 900 * MS), Duration::ZERO);
    }

    #[test]
    fn much_is_reported_at_once_and_a_trickle_later() {
        let mut reports = Reports::new(3);
        assert_eq!(reports.urgency(), Urgency::Never);
        for (lane, bytes, more, urgency) in [
            (0, 100, true, Urgency::Later),
            (1, 100, false, Urgency::Later),
            (0, 4_000, true, Urgency::Soon),
            (0, 60_000, false, Urgency::Soon),
            (0, 2_000, true, Urgency::Now),
            (1, 100, false, Urgency::Now),
        ] {
            assert_eq!(reports.consumed(LaneId(lane), bytes), more);
            assert_eq!(reports.urgency(), urgency);
        }
        assert_eq!(reports.take().collect::<Vec<_>>(), [(LaneId(0), 66_100), (LaneId(1), 200)]);
        assert_eq!((reports.urgency(), reports.take().count()), (Urgency::Never, 0));
        assert!(reports.consumed(LaneId(2), 1));
        assert_eq!(reports.take().collect::<Vec<_>>(), [(LaneId(2), 1)]);
    }
}

//! When a retained message was written, on a clock that all brokers of the mesh have in common: hybrid logical time.
//!
//! A [`Stamp`] is the wall clock's time, or one more than the greatest stamp that was seen, whichever is later. So whoever knows of a
//! write writes later, whatever his clock says; only of two that know nothing of each other do the clocks decide, and then chance.
//!
//! **Mesh time** is the most advanced clock of the mesh: neighbours tell each other theirs, and one that is more than [`TOLERANCE_MS`] behind
//! adds the difference to its own ([`StampClock::hear`]). So a broker whose clock stands in 1970 writes stamps like everybody, and one that is ahead
//! takes the others along instead of being refused. What is still [`SKEW_MAX_MS`] ahead of that is nobody's clock: it is not taken ([`StampClock::accepts`]), for it
//! would win against all that is written later. Nor is a clock believed that is [`OFFSET_MAX_MS`] ahead: stamps would run out.
//!
//! It knows no clock: the wall clock's time is given to it, once a second or so ([`StampClock::set`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ids::Stamp;

/// By how much clocks may differ before anything follows from it, milliseconds.
const TOLERANCE_MS: u64 = 60_000;
/// A stamp further ahead of mesh time than that is refused, milliseconds.
const SKEW_MAX_MS: u64 = 3_600_000;
/// A clock further ahead of our own than that is not believed, milliseconds: a hundred years, so that a clock which begins in 1970 is put right.
const OFFSET_MAX_MS: u64 = 100 * 365 * 86_400_000;

/// What became of a neighbour's word of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockWord {
    /// Ours is not behind.
    Fine,
    /// Ours was behind by so much: mesh time is now the neighbour's.
    Behind(Duration),
    /// So far ahead of ours that it is not believed.
    Absurd(Duration),
}

/// See the module's page.
#[derive(Debug)]
pub struct StampClock {
    /// See [`Stamp::writer`].
    writer: u64,
    /// Zero of `unix_us`.
    started_at: Instant,
    /// The wall clock at `started_at`, as far as one can tell now, microseconds since the Unix epoch: of two things that one after the other happened at two
    /// brokers within a millisecond the later has the later stamp, as well as their clocks agree.
    unix_us: AtomicU64,
    /// What mesh time is ahead of it, milliseconds.
    offset_ms: AtomicU64,
    /// [`Stamp::time`] of the greatest stamp that was given or seen.
    last: AtomicU64,
}

impl StampClock {
    /// The clock of a life of a broker, `writer` ([`Stamp::writer`]); `unix` is the wall clock's time since the Unix epoch at `now`.
    #[must_use]
    pub fn new(writer: u64, unix: Duration, now: Instant) -> Self {
        Self {
            writer,
            started_at: now,
            unix_us: AtomicU64::new(micros(unix)),
            offset_ms: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    /// See [`Stamp::writer`].
    #[must_use]
    pub fn writer(&self) -> u64 {
        self.writer
    }

    /// The wall clock was set, or a machine has slept.
    pub fn set(&self, unix: Duration, now: Instant) {
        let elapsed = micros(now.saturating_duration_since(self.started_at));
        self.unix_us.store(micros(unix).saturating_sub(elapsed), Ordering::Relaxed);
    }

    /// The stamp of a write that happens now: greater than all that were given or seen.
    #[must_use]
    pub fn tick(&self, now: Instant) -> Stamp {
        // In range: less than a millisecond.
        let within = ((self.wall_us(now) % 1_000) << Stamp::COUNTER_BITS) / 1_000;
        let present = (self.mesh_ms(now) << Stamp::COUNTER_BITS) + within;
        let next = |last: u64| Some(present.max(last.saturating_add(1)));
        // It always succeeds: `next` is never none.
        let last = self.last.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).unwrap_or_default();
        Stamp { time: present.max(last.saturating_add(1)), writer: self.writer }
    }

    /// Whether a stamp of another broker may be taken; if so, ours are later from now on.
    #[must_use]
    pub fn accepts(&self, stamp: Stamp, now: Instant) -> bool {
        let accepts = stamp.millis() <= self.mesh_ms(now).saturating_add(SKEW_MAX_MS);
        if accepts {
            self.last.fetch_max(stamp.time, Ordering::AcqRel);
        }
        accepts
    }

    /// A stamp that this broker has given or taken in its former life.
    pub fn restore(&self, stamp: Stamp, now: Instant) {
        self.last.fetch_max(stamp.time, Ordering::AcqRel);
        let _ = self.hear(stamp.millis(), now);
    }

    /// What neighbours are told: mesh time as this broker has it, milliseconds since the Unix epoch.
    #[must_use]
    pub fn say(&self, now: Instant) -> u64 {
        self.mesh_ms(now).max(self.last.load(Ordering::Acquire) >> Stamp::COUNTER_BITS)
    }

    /// A neighbour says what mesh time is there.
    pub fn hear(&self, theirs_ms: u64, now: Instant) -> ClockWord {
        let ahead = theirs_ms.saturating_sub(self.mesh_ms(now));
        let offset = theirs_ms.saturating_sub(self.wall_ms(now));
        if ahead <= TOLERANCE_MS {
            return ClockWord::Fine;
        }
        if offset > OFFSET_MAX_MS {
            return ClockWord::Absurd(Duration::from_millis(ahead));
        }
        self.offset_ms.fetch_max(offset, Ordering::AcqRel);
        ClockWord::Behind(Duration::from_millis(ahead))
    }

    /// Mesh time, milliseconds since the Unix epoch.
    #[must_use]
    pub fn mesh_ms(&self, now: Instant) -> u64 {
        self.wall_ms(now).saturating_add(self.offset_ms.load(Ordering::Acquire))
    }

    fn wall_ms(&self, now: Instant) -> u64 {
        (self.wall_us(now) / 1_000).min(MILLIS_MAX)
    }

    fn wall_us(&self, now: Instant) -> u64 {
        let elapsed = micros(now.saturating_duration_since(self.started_at));
        self.unix_us.load(Ordering::Relaxed).saturating_add(elapsed)
    }
}

/// What a stamp has room for.
const MILLIS_MAX: u64 = u64::MAX >> (Stamp::COUNTER_BITS + 1);

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
    fn any_instant() -> Instant {
        Instant::now()
    }

    fn clock(id: u64, unix: Duration, now: Instant) -> StampClock {
        StampClock::new(id, unix, now)
    }

    #[test]
    fn who_knows_of_a_write_writes_later_whatever_the_clocks_say() {
        let now = any_instant();
        let (ahead, behind) = (clock(1, 50 * YEAR + HOUR / 2, now), clock(2, 50 * YEAR, now));
        let first = ahead.tick(now);
        assert!(behind.tick(now) < first, "it does not know");
        assert!(behind.accepts(first, now));
        let second = behind.tick(now);
        assert!(second > first && ahead.accepts(second, now) && ahead.tick(now) > second);
        let many: Vec<_> = (0..100_000).map(|_| behind.tick(now)).collect();
        assert!(many.is_sorted() && many.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn clocks_far_apart_agree_on_the_later_one_and_nobody_runs_out_of_stamps() {
        let now = any_instant();
        let (epoch, today) = (clock(1, Duration::ZERO, now), clock(2, 56 * YEAR, now));
        let stamp = today.tick(now);
        assert!(!epoch.accepts(stamp, now), "nobody has told it yet");
        assert!(matches!(epoch.hear(today.say(now), now), ClockWord::Behind(by) if by > 55 * YEAR));
        assert!(epoch.accepts(stamp, now) && epoch.tick(now) > stamp);
        assert_eq!((epoch.hear(today.say(now), now), today.hear(epoch.say(now), now)), (ClockWord::Fine, ClockWord::Fine));
        // A clock that cannot be, and stamps by it.
        let liar = clock(3, 5_000 * YEAR, now);
        assert!(matches!(today.hear(liar.say(now), now), ClockWord::Absurd(_)));
        assert!(!today.accepts(liar.tick(now), now));
        assert!(!today.accepts(Stamp { time: u64::MAX, writer: 3 }, now));
        // As far ahead as it may lie it harms nobody: all go on from there, for as long as there is.
        let liar = clock(3, 150 * YEAR, now);
        assert!(matches!(today.hear(liar.say(now), now), ClockWord::Behind(_)));
        assert!(today.accepts(liar.tick(now), now));
        let later = now + 100 * YEAR;
        assert!(matches!(epoch.hear(today.say(later), later), ClockWord::Absurd(_)), "of one whose own clock is wrong as well");
        assert!(clock(4, 56 * YEAR, now).hear(today.say(later), later) != ClockWord::Fine);
        assert!(today.tick(later).time < u64::MAX / 4);
    }

    #[test]
    fn a_restart_with_a_clock_that_went_back_writes_later_all_the_same() {
        let now = any_instant();
        let before = clock(1, 56 * YEAR, now).tick(now);
        let restarted = clock(1, Duration::ZERO, now);
        restarted.restore(before, now);
        let after = restarted.tick(now);
        assert!(after > before);
        let fresh = clock(2, Duration::ZERO, now);
        let _ = fresh.hear(restarted.say(now), now);
        assert!(fresh.accepts(after, now));
        // The wall clock is put right.
        restarted.set(57 * YEAR, now + HOUR);
        assert!(restarted.tick(now + HOUR).millis() >= u64::try_from((57 * YEAR).as_millis()).unwrap());
    }
}

//! Whether the far side of a link is alive, adapted to the link (`ARCHITECTURE.md`, "The mesh").
//!
//! Any packet that its keys protect is a sign of life; what anybody can send is none. Each end says hello in a rhythm that it announced in
//! the handshake; a hello echoes the number of the last one heard, so that a cut in one direction is noticed at both ends. A link is dead
//! after the longest of three hellos, as many hellos as are lost together once in a million, and round trip + deviations + probe time-out.
//! Of a link about which little is known yet, some loss is assumed. And where hellos come late, because they wait for their turn on a path
//! that is full and loses packets, a link is given twice what they were late by of late.
//!
//! Silence is added up from tick to tick, and no tick adds more than it should have lasted: while our own thread does not run, nobody else
//! is to blame.

use std::time::{Duration, Instant};

use crate::limits::{HELLO_TIME_MAX, HELLO_TIME_MIN};

/// Hellos in a row that may be lost on a link without loss.
const HELLOS_MIN: f64 = 3.0;
/// The chance of taking a living peer for dead because of lost hellos.
const FALSE_ALARM: f64 = 1e-6;
/// Loss is the mean of about this many hellos, or packets of ours.
const LOSS_WINDOW: f64 = 32.0;
/// As if so many had come before and none been lost.
const PACKETS_BEFORE: f64 = 4.0;
/// Beyond this a link is as good as cut.
const LOSS_MAX: f64 = 0.5;
/// What a QUIC peer may hold an acknowledgement back for (RFC 9000 section 18.2, max_ack_delay).
const ACK_DELAY: Duration = Duration::from_millis(25);
/// A link may be silent for so many times what it was silent for before, and went on.
const PATIENCE: u32 = 2;
/// And no longer than this for that reason.
const PATIENCE_MAX: Duration = Duration::from_secs(3);
/// After this long half of it is forgotten.
const FORGET_HALF: Duration = Duration::from_secs(30);
/// The jitter of hellos is smoothed by this (RFC 3550 section 6.4.1).
const JITTER_GAIN: u32 = 16;

/// Why a link counts as dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Death {
    /// Nothing came.
    #[error("silent for {} ms", .0.as_millis())]
    Silent(Duration),
    /// Packets come, and say that ours do not arrive.
    #[error("deaf for {} ms: it hears none of our hellos", .0.as_millis())]
    Deaf(Duration),
}

/// What QUIC measured on the path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// The shortest that was seen.
    pub rtt_min: Duration,
    /// QUIC frames received so far, each in a packet that proved to be the peer's.
    pub frames: u64,
    /// QUIC packets sent so far.
    pub sent: u64,
    /// Those of them that were lost.
    pub lost: u64,
}

/// What came of the peer's hellos so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hellos {
    /// Those that came.
    pub heard: u64,
    /// Those that later ones overtook or that were lost.
    pub missed: u64,
}

/// The share of packets that are lost one way: at first of all, later of about the last [`LOSS_WINDOW`].
#[derive(Debug, Default)]
struct Loss {
    share: f64,
    seen: f64,
}

impl Loss {
    fn count(&mut self, lost: f64, of: f64) {
        if of > 0.0 {
            self.seen += of;
            let weight = of / (self.seen + PACKETS_BEFORE).min(LOSS_WINDOW.max(of));
            self.share += ((lost / of).min(1.0) - self.share) * weight;
        }
    }
}

/// Time without news.
#[derive(Debug, Default)]
struct Lapse {
    present: Duration,
    /// The longest after which there was news all the same, lately.
    longest: Duration,
}

impl Lapse {
    fn end(&mut self) {
        self.longest = self.longest.max(std::mem::take(&mut self.present));
    }

    fn forget(&mut self, elapsed: Duration) {
        let half_lives = elapsed.as_secs_f64() / FORGET_HALF.as_secs_f64();
        self.longest = self.longest.mul_f64(0.5_f64.powf(half_lives));
    }

    fn patience(&self) -> Duration {
        (self.longest * PATIENCE).min(PATIENCE_MAX)
    }
}

/// One link's detector.
#[derive(Debug)]
pub struct Detection {
    /// The peer's rhythm, and ours.
    peer_hello: Duration,
    own_hello: Duration,
    tick: Duration,
    last_tick: Instant,
    path: Path,
    silence: Lapse,
    /// How long the echo has stood still.
    deafness: Lapse,
    heard: u64,
    heard_at: Instant,
    hellos: Hellos,
    jitter: Duration,
    echoed: u64,
    said: u64,
    /// Of the peer's hellos.
    loss_in: Loss,
    /// Of our packets.
    loss_out: Loss,
}

impl Detection {
    /// A link that has just been heard of. `tick` is how often [`Detection::tick`] will be called. Whatever rhythm a peer announces, it is
    /// taken for one that an operator could have set: it cannot ask to be waited for without end.
    #[must_use]
    pub fn new(own_hello: Duration, peer_hello: Duration, tick: Duration, now: Instant) -> Self {
        Self {
            peer_hello: peer_hello.clamp(HELLO_TIME_MIN, HELLO_TIME_MAX),
            own_hello,
            tick,
            last_tick: now,
            path: Path::default(),
            silence: Lapse::default(),
            deafness: Lapse::default(),
            heard: 0,
            heard_at: now,
            hellos: Hellos::default(),
            jitter: Duration::ZERO,
            echoed: 0,
            said: 0,
            loss_in: Loss::default(),
            loss_out: Loss::default(),
        }
    }

    /// Number and echo of the hello to be sent now.
    pub fn say(&mut self) -> (u64, u64) {
        self.said += 1;
        (self.said, self.heard)
    }

    /// A hello came. One that was overtaken by a later one says nothing new.
    pub fn hear(&mut self, number: u64, echo: u64, now: Instant) {
        if number <= self.heard {
            return;
        }
        if self.heard > 0 {
            // No gap counts for more than would have killed the link.
            let missed = u32::try_from(number - self.heard - 1).unwrap_or(u32::MAX).min(64);
            self.hellos.missed += u64::from(missed);
            self.loss_in.count(missed.into(), f64::from(missed) + 1.0);
            let apart = now.saturating_duration_since(self.heard_at);
            let late = apart.abs_diff(self.peer_hello * (missed + 1));
            self.jitter = self.jitter - self.jitter / JITTER_GAIN + late / JITTER_GAIN;
        }
        (self.heard, self.heard_at) = (number, now);
        self.hellos.heard += 1;
        if echo > self.echoed && echo <= self.said {
            self.echoed = echo;
            self.deafness.end();
        }
    }

    /// Time went on.
    ///
    /// # Errors
    /// Why the link counts as dead.
    pub fn tick(&mut self, now: Instant, path: Path) -> Result<(), Death> {
        let elapsed = now.saturating_duration_since(self.last_tick).min(self.tick * 3 / 2);
        self.last_tick = now;
        self.silence.forget(elapsed);
        self.deafness.forget(elapsed);
        if path.frames == self.path.frames {
            self.silence.present += elapsed;
        } else {
            self.silence.end();
        }
        if self.said > self.echoed {
            self.deafness.present += elapsed;
        }
        self.sent(path);
        self.path = path;
        // An echo is as old as a round trip and waits for the peer's next hello.
        let echo = self.timeout(self.own_hello.max(self.peer_hello)).max(self.silence.patience()) + self.peer_hello + path.rtt;
        if self.silence.present > self.detection_time() {
            Err(Death::Silent(self.silence.present))
        } else if self.deafness.present > echo.max(self.deafness.patience()) {
            Err(Death::Deaf(self.deafness.present))
        } else {
            Ok(())
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn sent(&mut self, path: Path) {
        let sent = path.sent.saturating_sub(self.path.sent) as f64;
        let lost = path.lost.saturating_sub(self.path.lost) as f64;
        self.loss_out.count(lost, sent);
    }

    /// Share of packets that were lost lately, in the worse of the two directions.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.loss_in.share.max(self.loss_out.share)
    }

    /// What came of the peer's hellos so far.
    #[must_use]
    pub fn hellos(&self) -> Hellos {
        self.hellos
    }

    /// By how much the peer's hellos come out of their rhythm lately, on average.
    #[must_use]
    pub fn hello_jitter(&self) -> Duration {
        self.jitter
    }

    /// How long the peer may be silent.
    #[must_use]
    pub fn detection_time(&self) -> Duration {
        self.timeout(self.peer_hello).max(self.silence.patience())
    }

    fn timeout(&self, rhythm: Duration) -> Duration {
        // Of n packets none was lost: that is no less likely than not where one in 2n is.
        let unknown = 0.5 / (1.0 + self.loss_in.seen + self.loss_out.seen);
        let loss = self.loss().max(unknown).clamp(f64::MIN_POSITIVE, LOSS_MAX);
        let hellos = (FALSE_ALARM.ln() / loss.ln()).ceil().max(HELLOS_MIN);
        // QUIC does not tell the deviation; what the smoothed value has above the shortest one stands for it.
        let deviation = self.path.rtt.saturating_sub(self.path.rtt_min);
        let probe = self.path.rtt + 4 * deviation + ACK_DELAY;
        rhythm.mul_f64(hellos).max(self.path.rtt + 4 * deviation + probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any moment will do: the tests count from it")]
    fn now() -> Instant {
        Instant::now()
    }

    const HELLO: Duration = Duration::from_millis(100);
    const TICK: Duration = Duration::from_millis(25);
    const LAN: Path = Path { rtt: Duration::from_micros(300), rtt_min: Duration::from_micros(200), frames: 1, sent: 100, lost: 0 };

    fn detection(now: Instant) -> Detection {
        let mut detection = Detection::new(HELLO, HELLO, TICK, now);
        detection.hear(1, 0, now);
        detection.tick(now, LAN).unwrap();
        detection
    }

    /// Ticks until it dies; a hello is said in time, its echo comes if `echo`.
    fn dies_after(detection: &mut Detection, start: Instant, mut path: Path, packets: bool) -> (Duration, Death) {
        for n in 1..400_u32 {
            path.frames += u64::from(packets);
            if n % 4 == 0 {
                detection.say();
            }
            if let Err(death) = detection.tick(start + TICK * n, path) {
                return (TICK * n, death);
            }
        }
        unreachable!("it lives for ever");
    }

    #[test]
    fn a_silent_peer_is_dead_after_three_hellos_on_a_clean_lan() {
        let start = now();
        let (after, death) = dies_after(&mut detection(start), start, LAN, false);
        assert_eq!(after, 3 * HELLO + TICK);
        assert!(matches!(death, Death::Silent(_)));
    }

    #[test]
    fn loss_and_round_trip_make_it_patient() {
        let start = now();
        let mut lossy = detection(start);
        for n in 1..2_000_u64 {
            if n % 5 != 0 {
                lossy.hear(n, 0, start);
            }
        }
        assert!((0.15..0.25).contains(&lossy.loss()), "{}", lossy.loss());
        let (after, _) = dies_after(&mut lossy, start, LAN, false);
        assert!((800..=1_100).contains(&after.as_millis()), "{after:?}");

        // What is lost on the way out may be hellos that the far side would have echoed.
        let mut deaf = detection(start);
        deaf.tick(start, Path { sent: LAN.sent + 100, lost: 20, ..LAN }).unwrap();
        assert!((0.15..0.25).contains(&deaf.loss()), "{}", deaf.loss());

        let far = Path { rtt: Duration::from_millis(200), rtt_min: Duration::from_millis(150), frames: 1, sent: 100, lost: 0 };
        let mut distant = detection(start);
        distant.tick(start, far).unwrap();
        assert_eq!(distant.detection_time(), 2 * (far.rtt + 4 * (far.rtt - far.rtt_min)) + ACK_DELAY);
    }

    #[test]
    fn any_packet_is_a_sign_of_life_but_not_of_being_heard() {
        let start = now();
        let mut detection = detection(start);
        let (after, death) = dies_after(&mut detection, start, LAN, true);
        assert!(matches!(death, Death::Deaf(_)), "{death:?}");
        assert!(after <= 6 * HELLO, "{after:?}");
    }

    #[test]
    fn echoes_keep_it_and_forged_ones_do_not() {
        let start = now();
        for (forged, lives) in [(0, true), (1_000_000, false)] {
            let mut detection = detection(start);
            let mut path = LAN;
            let alive = (1..400_u32).all(|n| {
                path.frames += 1;
                if n % 4 == 0 {
                    let (said, _) = detection.say();
                    detection.hear(u64::from(n), said + forged, start);
                }
                detection.tick(start + TICK * n, path).is_ok()
            });
            assert_eq!(alive, lives);
        }
    }

    #[test]
    fn a_link_that_is_often_late_is_given_more_time_and_not_for_ever() {
        let start = now();
        let mut at = start;
        let mut detection = detection(start);
        let mut path = LAN;
        let mut quiet_for = |detection: &mut Detection, ticks: u32| {
            for _ in 0..ticks {
                at += TICK;
                detection.tick(at, path).unwrap();
            }
            path.frames += 1;
            at += TICK;
            detection.tick(at, path).unwrap();
        };
        // A hiccup within what a clean LAN allows.
        quiet_for(&mut detection, 10);
        assert!((480..=500).contains(&detection.detection_time().as_millis()), "{:?}", detection.detection_time());
        quiet_for(&mut detection, 18);
        assert!((880..=900).contains(&detection.detection_time().as_millis()), "{:?}", detection.detection_time());
        for _ in 0..800 {
            quiet_for(&mut detection, 2);
        }
        assert_eq!(detection.detection_time(), 3 * HELLO, "a minute later");
        // However late it dares to be.
        for _ in 0..20 {
            let ticks = detection.detection_time().as_millis() * 9 / 10 / TICK.as_millis();
            quiet_for(&mut detection, u32::try_from(ticks).unwrap());
        }
        assert!(detection.detection_time() <= PATIENCE_MAX);
    }

    #[test]
    fn little_knowledge_makes_it_patient_and_wears_off() {
        let start = now();
        let mut fresh = Detection::new(HELLO, HELLO, TICK, start);
        fresh.tick(start, Path { sent: 8, ..LAN }).unwrap();
        assert!(fresh.detection_time() >= 5 * HELLO, "{:?}", fresh.detection_time());
        for n in 1..=50 {
            fresh.hear(n, 0, start);
        }
        assert_eq!(fresh.detection_time(), 3 * HELLO);
        // Loss shows within a second: nobody waits for a whole window to see it.
        let mut lossy = Detection::new(HELLO, HELLO, TICK, start);
        [1, 2, 3, 5, 6, 7, 8, 10].into_iter().for_each(|n| lossy.hear(n, 0, start));
        assert!((0.1..0.25).contains(&lossy.loss()), "{}", lossy.loss());
        assert_eq!(lossy.hellos(), Hellos { heard: 8, missed: 2 });
    }

    #[test]
    fn no_rhythm_is_believed_that_no_operator_could_set() {
        for (announced, taken) in [(Duration::from_secs(u64::from(u32::MAX)), HELLO_TIME_MAX), (Duration::ZERO, HELLO_TIME_MIN)] {
            let start = now();
            let mut detection = Detection::new(HELLO, announced, TICK, start);
            (1..=100).for_each(|n| detection.hear(n, 0, start));
            detection.tick(start, Path { rtt: Duration::ZERO, ..LAN }).unwrap();
            assert_eq!(detection.detection_time(), (3 * taken).max(ACK_DELAY));
        }
    }

    #[test]
    fn jitter_is_what_hellos_come_out_of_step() {
        let start = now();
        let mut even = Detection::new(HELLO, HELLO, TICK, start);
        // A lost one on the way is no jitter.
        (1..=100).filter(|n| n % 10 != 0).for_each(|n: u32| even.hear(n.into(), 0, start + HELLO * n));
        assert_eq!(even.hello_jitter(), Duration::ZERO);
        let mut uneven = Detection::new(HELLO, HELLO, TICK, start);
        (1..=200_u32).for_each(|n| uneven.hear(n.into(), 0, start + HELLO * n + Duration::from_millis((n % 2 * 10).into())));
        assert!((9..=10).contains(&uneven.hello_jitter().as_millis()), "{:?}", uneven.hello_jitter());
    }

    #[test]
    fn a_stall_of_our_own_kills_nobody() {
        let start = now();
        let mut detection = detection(start);
        assert_eq!(detection.tick(start + Duration::from_secs(60), LAN), Ok(()));
        assert_eq!(detection.silence.present, TICK * 3 / 2);
    }
}

//! What a link does to what is sent over it: delay, jitter, loss alone and in bursts (Gilbert and Elliott's two states), reordering,
//! duplication.
//!
//! A datagram that is lost is gone. A piece of a stream that is lost comes a probe time-out later, and the stream waits for it: that part
//! is in [`Link`](super::link::Link).

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

/// Both directions of a link are of one kind; what happens in them is independent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// One way, at least.
    pub delay: Duration,
    /// On top, uniform.
    pub jitter: Duration,
    /// One packet in 16 takes up to this much longer, so that others overtake it.
    pub spike: Duration,
    pub loss: Loss,
    /// Share of packets that come twice.
    pub duplicates: f64,
}

/// Loss in two states; without bursts `to_bad` is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Share of packets lost in the good state.
    pub good: f64,
    /// Share of packets lost in the bad state.
    pub bad: f64,
    /// Chance that a packet finds the state changed to bad.
    pub to_bad: f64,
    /// Chance that a packet finds the state changed back.
    pub to_good: f64,
}

impl Loss {
    pub const NONE: Self = Self::uniform(0.0);

    pub const fn uniform(share: f64) -> Self {
        Self { good: share, bad: share, to_bad: 0.0, to_good: 1.0 }
    }
}

impl Path {
    /// Everything within the same few milliseconds, so that it overtakes.
    pub const HASTY: Self = Self {
        delay: Duration::from_micros(100),
        jitter: Duration::from_micros(2_900),
        spike: Duration::from_millis(30),
        loss: Loss::NONE,
        duplicates: 0.0,
    };
    /// A quiet network of 1 ms: what convergence costs is counted here.
    pub const CALM: Self = Self {
        delay: Duration::from_micros(900),
        jitter: Duration::from_micros(200),
        spike: Duration::ZERO,
        loss: Loss::NONE,
        duplicates: 0.0,
    };

    /// A quiet network with this one way delay.
    pub fn calm(delay: Duration) -> Self {
        Self { delay, jitter: delay / 10, ..Self::CALM }
    }

    /// One way of one packet.
    pub fn draw_delay(&self, rng: &mut SmallRng) -> Duration {
        let delay = self.delay + self.jitter.mul_f64(rng.random());
        if self.spike.is_zero() || rng.random_range(0..16) != 0 { delay } else { delay + self.spike.mul_f64(rng.random()) }
    }

    /// The mean round trip.
    pub fn rtt(&self) -> Duration {
        2 * self.delay + self.jitter
    }

    /// Until a sender sends again what was not acknowledged (RFC 9002 section 6.2.1, and max_ack_delay).
    pub fn probe_timeout(&self) -> Duration {
        self.rtt() + 2 * self.jitter + Duration::from_millis(25)
    }
}

/// One direction of a link: in which of the two states its loss is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direction {
    is_bad: bool,
}

impl Direction {
    /// Whether the next packet is lost.
    pub fn loses(&mut self, loss: &Loss, rng: &mut SmallRng) -> bool {
        if *loss == Loss::NONE {
            return false;
        }
        self.is_bad = if self.is_bad { !rng.random_bool(loss.to_good) } else { rng.random_bool(loss.to_bad) };
        rng.random_bool(if self.is_bad { loss.bad } else { loss.good })
    }
}

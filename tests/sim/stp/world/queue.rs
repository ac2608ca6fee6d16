//! Virtual time, and what is still to happen in it. Events of one moment happen in the order in which they were scheduled, so that a run
//! follows from its seed alone.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use mqtt_st_quic::ids::OpenNumber;
use mqtt_st_quic::stp::Input;

use super::fault::Fault;
use super::lanes::Frame;

#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The handshake of a link is over at one end.
    LinkUp {
        link: usize,
        generation: u64,
        end: usize,
    },
    /// One end notices, or is told, that the link is dead.
    LinkDown {
        link: usize,
        generation: u64,
        end: usize,
    },
    /// A piece of a stream arrives at `end`; `number` is its place in the stream.
    Arrive {
        link: usize,
        generation: u64,
        end: usize,
        stream: usize,
        number: u64,
        frame: Frame,
    },
    /// A frame that was taken already comes a second time.
    Again {
        link: usize,
        generation: u64,
        end: usize,
        frame: Frame,
    },
    /// All lane writers of a port have written their CLOSE.
    Written {
        link: usize,
        generation: u64,
        end: usize,
        number: OpenNumber,
    },
    /// The broker's [`Stp::poll_timeout`](mqtt_st_quic::stp::Stp::poll_timeout).
    Timeout {
        broker: usize,
    },
    Fault(Fault),
    /// A client publishes a message.
    Publish {
        broker: usize,
    },
    Inject {
        broker: usize,
        input: Input,
    },
    /// One end of a link looks at what it measured, and says hello in its rhythm.
    Tick {
        link: usize,
        generation: u64,
        end: usize,
    },
    /// A hello arrives.
    Hello {
        link: usize,
        generation: u64,
        end: usize,
        number: u64,
        echo: u64,
    },
    /// Somebody dials.
    Dial {
        link: usize,
    },
}

impl Event {
    /// What goes on for ever in a mesh at rest.
    fn is_background(&self) -> bool {
        matches!(self, Self::Tick { .. } | Self::Hello { .. })
    }
}

struct Scheduled {
    at: Instant,
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

pub struct Queue {
    start: Instant,
    now: Instant,
    waiting: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    /// Waiting events that are not background.
    work: usize,
}

impl Queue {
    #[expect(clippy::disallowed_methods, reason = "virtual time has to begin somewhere; no later reading is taken")]
    pub fn new() -> Self {
        let start = Instant::now();
        Self { start, now: start, waiting: BinaryHeap::new(), scheduled: 0, work: 0 }
    }

    pub fn now(&self) -> Instant {
        self.now
    }

    /// Since the world began.
    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    pub fn schedule(&mut self, at: Instant, event: Event) {
        self.scheduled += 1;
        self.work += usize::from(!event.is_background());
        self.waiting.push(Reverse(Scheduled { at, order: self.scheduled, event }));
    }

    /// Whether only background is still to come.
    pub fn has_work(&self) -> bool {
        self.work > 0
    }

    pub fn next_at(&self) -> Option<Duration> {
        self.waiting.peek().map(|Reverse(next)| next.at - self.start)
    }

    /// The next event; its moment is now.
    pub fn pop(&mut self) -> Option<Event> {
        let Reverse(next) = self.waiting.pop()?;
        self.now = next.at;
        self.work -= usize::from(!next.event.is_background());
        Some(next.event)
    }

    /// Lets time pass in which nothing happens.
    pub fn pass_until(&mut self, elapsed: Duration) {
        self.now = self.now.max(self.start + elapsed);
    }
}

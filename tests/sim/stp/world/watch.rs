//! What one end of a link measures of it, with the broker's own code: [`Detection`] is fed with the hellos and packets that arrive, and
//! [`Cost`] with round trips. A one-way cut, a link that loses much, a round trip that changed are noticed as in the broker, and a false
//! alarm is one here too.
//!
//! Not modelled: acknowledgements, which in QUIC are packets and so signs of life.

use std::time::{Duration, Instant};

use mqtt_st_quic::link::{Cost, Detection, Path};
use mqtt_st_quic::stp::Input;
use rand::RngExt;

use super::World;
use super::queue::Event;

/// As in `mesh::link`.
const TICKS_PER_HELLO: u32 = 4;
/// Until whoever lost a link dials again.
const REDIAL_MAX: Duration = Duration::from_millis(100);

pub(super) struct Watch {
    detection: Detection,
    cost: Cost,
    path: Path,
    ticks: u32,
}

impl Watch {
    fn new(hello: Duration, rtt: Duration, now: Instant) -> Self {
        let path = Path { rtt, rtt_min: rtt, ..Path::default() };
        Self {
            detection: Detection::new(hello, hello, hello / TICKS_PER_HELLO, now),
            cost: Cost::new(rtt, None, now),
            path,
            ticks: 0,
        }
    }

    pub(super) fn received(&mut self) {
        self.path.frames += 1;
    }

    pub(super) fn sent(&mut self, is_lost: bool) {
        self.path.sent += 1;
        self.path.lost += u64::from(is_lost);
    }

    /// RFC 9002 section 5.
    fn measure(&mut self, rtt: Duration, now: Instant) -> bool {
        self.path.rtt = (7 * self.path.rtt + rtt) / 8;
        self.path.rtt_min = self.path.rtt_min.min(rtt);
        self.cost.measure(self.path, self.detection.hellos(), false, now)
    }
}

impl World {
    /// An end whose link has come up begins to watch it.
    pub(super) fn watch(&mut self, link: usize, generation: u64, end: usize) {
        let rtt = self.draw_delay(link) + self.draw_delay(link);
        let now = self.queue.now();
        let watch = Watch::new(self.settings.hello, rtt, now);
        self.links[link].costs[end] = watch.cost.cost().get();
        self.links[link].watches[end] = Some(watch);
        let first_at = now + self.up_to(self.settings.hello / TICKS_PER_HELLO);
        self.queue.schedule(first_at, Event::Tick { link, generation, end });
    }

    pub(super) fn tick(&mut self, link: usize, generation: u64, end: usize) {
        if self.links[link].generation != Some(generation) {
            return;
        }
        let now = self.queue.now();
        let rtt = self.draw_delay(link) + self.draw_delay(link);
        let Some(watch) = &mut self.links[link].watches[end] else { return };
        if watch.detection.tick(now, watch.path).is_err() {
            self.give_up(link, generation, end);
            return;
        }
        let is_window_over = watch.measure(rtt, now);
        let (cost, rtt) = (watch.cost.cost(), watch.cost.rtt());
        let hello = watch.ticks.is_multiple_of(TICKS_PER_HELLO).then(|| watch.detection.say());
        watch.ticks += 1;
        self.queue.schedule(now + self.settings.hello / TICKS_PER_HELLO, Event::Tick { link, generation, end });
        if let Some((number, echo)) = hello {
            self.say_hello(link, generation, 1 - end, number, echo);
        }
        if is_window_over {
            if self.links[link].costs[end] != cost.get() {
                self.links[link].costs[end] = cost.get();
                self.is_disturbed = true;
            }
            let (broker, port) = self.port_at(link, end, generation);
            self.feed(broker, Input::Cost { port, cost, rtt });
        }
    }

    fn say_hello(&mut self, link: usize, generation: u64, end: usize, number: u64, echo: u64) {
        self.counts.hellos += 1;
        let copies = 1 + usize::from(self.rng.random_bool(self.links[link].path.duplicates));
        for _ in 0..copies {
            if !self.loses(link, end) {
                let at = self.queue.now() + self.draw_delay(link);
                self.queue.schedule(at, Event::Hello { link, generation, end, number, echo });
            }
        }
    }

    pub(super) fn hear_hello(&mut self, link: usize, generation: u64, end: usize, number: u64, echo: u64) {
        let now = self.queue.now();
        let to = &mut self.links[link];
        if to.generation == Some(generation)
            && !to.is_cut[end]
            && let Some(watch) = &mut to.watches[end]
        {
            watch.received();
            watch.detection.hear(number, echo, now);
        }
    }

    /// Takes the link for dead, says so to the other end, and dials again.
    fn give_up(&mut self, link: usize, generation: u64, end: usize) {
        self.is_disturbed = true;
        self.counts.detections += 1;
        self.counts.false_alarms += u64::from(self.is_passable(link));
        if self.links[link].is_up[1 - end] && !self.loses(link, 1 - end) {
            let at = self.queue.now() + self.draw_delay(link);
            self.queue.schedule(at, Event::LinkDown { link, generation, end: 1 - end });
        }
        let redial = self.up_to(REDIAL_MAX);
        self.dial_after(link, redial);
        self.link_down(link, generation, end);
    }
}

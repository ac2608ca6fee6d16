//! A mesh under virtual time: brokers that run the real [`Stp`], links that delay, lose, cut and come back, lane writers that take their
//! time. Everything follows from the seed and what is scheduled.
//!
//! | file | duty |
//! |---|---|
//! | `queue` | virtual time and what is to happen in it |
//! | `path` | what a link does to packets |
//! | `link` | the life of links, streams on them |
//! | `watch` | detection and cost of a link, by the broker's own code |
//! | `lanes` | ports, lane writers, messages |
//! | `broker` | lives of brokers, and the outputs of their machines |
//! | `fault` | what can go wrong |
//! | `impostor` | a member that lies |
//! | `check` | what must hold at every instant, and at rest |
//!
//! Who uses it: the simulations of `tests/sim/stp`, its text scenarios, and `examples/stp_sim`.

pub mod check;

mod broker;
mod fault;
mod impostor;
mod lanes;
mod link;
mod path;
mod queue;
mod watch;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use mqtt_st_quic::ids::{BrokerId, Incarnation, RootClaim, TreeId};
use mqtt_st_quic::limits::HOP_MAX;
use mqtt_st_quic::stp::{Input, Output, Role, Stp};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub use broker::Broker;
pub use fault::Fault;
pub use impostor::Lie;
pub use link::Link;
pub use path::{Loss, Path};
use queue::{Event, Queue};

/// How the ends of a link learn that it is up or dead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Notice {
    /// They are told, each within this time. A link that is down stays down until [`Fault::Up`].
    Told { within: Duration },
    /// By the broker's own detection, fed with hellos; costs are measured. They dial again whenever there is a way.
    Watched,
}

/// What holds for a whole world.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub seed: u64,
    pub hop_max: u8,
    /// Time between two hellos; an OPEN is repeated no sooner.
    pub hello: Duration,
    pub epoch_interval: Duration,
    /// Of links that are given no other.
    pub path: Path,
    /// Until a lane writer gets to write.
    pub write_max: Duration,
    pub notice: Notice,
}

impl Settings {
    /// Everything within the same few milliseconds, so that it overtakes.
    pub fn hasty(seed: u64) -> Self {
        Self {
            path: Path::HASTY,
            write_max: Duration::from_millis(4),
            notice: Notice::Told { within: Duration::from_millis(5) },
            ..Self::calm(seed)
        }
    }

    /// A quiet network of 1 ms, where ends are told at once: what convergence itself costs is counted here.
    pub fn calm(seed: u64) -> Self {
        Self {
            seed,
            hop_max: HOP_MAX,
            hello: Duration::from_millis(10),
            epoch_interval: Duration::from_millis(50),
            path: Path::CALM,
            write_max: Duration::from_micros(100),
            notice: Notice::Told { within: Duration::from_micros(100) },
        }
    }

    /// A broker's defaults on a quiet network of 1 ms.
    pub fn broker(seed: u64) -> Self {
        Self {
            hello: Duration::from_millis(100),
            epoch_interval: Duration::from_secs(1),
            notice: Notice::Watched,
            ..Self::calm(seed)
        }
    }
}

/// What happened since the world began or [`World::reset_counts`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub events: u64,
    pub bpdus: u64,
    pub hellos: u64,
    pub opens: u64,
    /// A broker's tree became another.
    pub trees: u64,
    /// Of these: it opened the epoch itself.
    pub epochs: u64,
    /// A broker took another parent, became the root, or ceased to be.
    pub moves: u64,
    /// Ends that took their link for dead by themselves, and those of them that were wrong.
    pub detections: u64,
    pub false_alarms: u64,
    /// Links closed for what the peer said.
    pub refusals: u64,
    /// BPDUs without a signature.
    pub forgeries: u64,
    /// Brokers that settled on an incarnation above their own clock and disk, and those that stopped as cloned.
    pub raised: u64,
    pub clones: u64,
    /// Messages that arrived, and those of them that had been there before.
    pub messages: u64,
    pub duplicates: u64,
    /// When a port last changed its role or state, from the world's beginning.
    pub settled_at: Duration,
}

pub struct World {
    pub settings: Settings,
    pub rng: SmallRng,
    pub brokers: Vec<Broker>,
    pub links: Vec<Link>,
    /// The links of each broker.
    pub links_of: Vec<Vec<usize>>,
    pub counts: Counts,
    queue: Queue,
    index_of: HashMap<BrokerId, usize>,
    link_of_generation: Vec<usize>,
    /// Links whose ends have yet to notice what they are.
    unsettled: usize,
    /// Whether anything has happened since the world was last at rest.
    is_disturbed: bool,
    /// Tree ids that their roots have opened.
    signed: HashSet<TreeId>,
    has_lied: bool,
    /// Brokers from which data can go up, and how their number went since the counts were reset.
    ways: usize,
    ways_since: Vec<(Duration, usize)>,
    published: u32,
    /// Kept for its capacity.
    outputs: Vec<Output>,
}

impl World {
    /// `count` brokers of random identity and rank, up, with no links.
    pub fn new(settings: Settings, count: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(settings.seed);
        let claims = (0..count).map(|_| RootClaim {
            priority: rng.random_range(0..3),
            capacity: rng.random_range(0..3),
            id: BrokerId(rng.random()),
            incarnation: Incarnation(rng.random_range(1..100)),
        });
        let claims: Vec<RootClaim> = claims.collect();
        Self::with_claims(settings, &claims)
    }

    /// Brokers that would be roots with these claims, up, with no links. The incarnation is what the wall clock shows now.
    pub fn with_claims(settings: Settings, claims: &[RootClaim]) -> Self {
        let index_of: HashMap<_, _> = claims.iter().enumerate().map(|(index, claim)| (claim.id, index)).collect();
        assert_eq!(index_of.len(), claims.len(), "two brokers of one identity");
        let mut world = Self {
            settings,
            // Not the claims' own sequence.
            rng: SmallRng::seed_from_u64(!settings.seed),
            brokers: claims.iter().copied().map(Broker::new).collect(),
            links: Vec::new(),
            links_of: vec![Vec::new(); claims.len()],
            counts: Counts::default(),
            queue: Queue::new(),
            index_of,
            link_of_generation: vec![usize::MAX],
            unsettled: 0,
            is_disturbed: true,
            signed: HashSet::new(),
            has_lied: false,
            ways: 0,
            ways_since: Vec::new(),
            published: 0,
            outputs: Vec::new(),
        };
        for broker in 0..claims.len() {
            world.start_broker(broker);
        }
        world
    }

    /// Since the world began.
    pub fn elapsed(&self) -> Duration {
        self.queue.elapsed()
    }

    pub fn now(&self) -> Instant {
        self.queue.now()
    }

    pub fn reset_counts(&mut self) {
        self.counts = Counts { settled_at: self.elapsed(), ..Counts::default() };
        self.ways_since = vec![(self.elapsed(), self.ways)];
    }

    /// Schedules a fault.
    pub fn fault_after(&mut self, delay: Duration, fault: Fault) {
        self.queue.schedule(self.queue.now() + delay, Event::Fault(fault));
    }

    /// Schedules an input to one broker's machine, as if something had happened to it.
    pub fn inject_after(&mut self, delay: Duration, broker: usize, input: Input) {
        self.queue.schedule(self.queue.now() + delay, Event::Inject { broker, input });
    }

    /// Schedules a message that a client publishes.
    pub fn publish_after(&mut self, delay: Duration, broker: usize) {
        self.queue.schedule(self.queue.now() + delay, Event::Publish { broker });
    }

    /// Whether nothing is left to happen but hellos, and both ends of every link know what it is.
    pub fn is_at_rest(&self) -> bool {
        !self.queue.has_work() && self.unsettled == 0
    }

    /// Runs until the mesh is at rest.
    ///
    /// # Panics
    /// If that takes more than `events_max` events, or an invariant is broken.
    pub fn run(&mut self, events_max: u64) {
        let events_max = self.counts.events + events_max;
        while !self.is_at_rest() {
            assert!(self.counts.events < events_max, "the mesh does not come to rest in {events_max} events: {:?}", self.counts);
            let Some(event) = self.queue.pop() else { break };
            self.happen(event);
        }
        self.is_disturbed = false;
    }

    /// Runs until this much time has passed since the world began, at rest or not.
    pub fn run_until(&mut self, elapsed: Duration) {
        while self.queue.next_at().is_some_and(|at| at <= elapsed) {
            if let Some(event) = self.queue.pop() {
                self.happen(event);
            }
        }
        self.queue.pass_until(elapsed);
    }

    /// At rest: when, since what happened at the moment at which the counts were reset, there first were as many links that carry data as
    /// there are now. Parents form no cycle, so that from then on everybody who could be reached was reached.
    pub fn healed_at(&self) -> Duration {
        let begun_at = self.ways_since.first().map_or(Duration::ZERO, |(at, _)| *at);
        let after = self.ways_since.iter().rposition(|(at, _)| *at == begun_at).unwrap_or(0);
        self.ways_since.iter().skip(after).find(|(_, ways)| *ways >= self.ways).map_or(Duration::ZERO, |(at, _)| *at)
    }

    /// Whether an impostor has said anything.
    pub fn has_lied(&self) -> bool {
        self.has_lied
    }

    /// The machine of a broker; `None` if it is down.
    pub fn stp(&self, broker: usize) -> Option<&Stp> {
        self.brokers[broker].stp.as_ref()
    }

    /// The broker that this one takes for the root.
    pub fn root(&self, broker: usize) -> Option<usize> {
        self.index_of.get(&self.stp(broker)?.tree().root.id).copied()
    }

    /// The broker below which this one hangs.
    pub fn parent(&self, broker: usize) -> Option<usize> {
        self.peer(broker, self.stp(broker)?.root_port()?)
    }

    /// Role and state of the port at one end of a link; Disabled if that end does not hold it for alive.
    pub fn port_state(&self, link: usize, end: usize) -> (Role, bool) {
        let view = self.port(link, end).and_then(|port| self.brokers[self.links[link].ends[end]].ports.get(&port));
        view.map_or((Role::Disabled, false), |view| view.state)
    }

    /// The broker that should be the root, were all up and linked.
    pub fn best(&self) -> usize {
        (0..self.brokers.len()).max_by_key(|&broker| self.brokers[broker].claim).expect("there are brokers")
    }

    fn up_to(&mut self, max: Duration) -> Duration {
        max.mul_f64(self.rng.random())
    }

    fn happen(&mut self, event: Event) {
        self.counts.events += 1;
        match event {
            Event::Fault(fault) => {
                self.is_disturbed = true;
                self.fault(fault);
            }
            Event::Inject { broker, input } => {
                self.is_disturbed = true;
                self.feed(broker, input);
            }
            Event::Publish { broker } => {
                self.publish(broker);
            }
            Event::Timeout { broker } => self.timeout(broker),
            Event::LinkUp { link, generation, end } => self.link_up(link, generation, end),
            Event::LinkDown { link, generation, end } => self.link_down(link, generation, end),
            Event::Arrive { link, generation, end, stream, number, frame } => {
                self.arrive(link, generation, end, stream, number, frame);
            }
            Event::Again { link, generation, end, frame } => self.take_again(link, generation, end, frame),
            Event::Written { link, generation, end, number } => self.written(link, generation, end, number),
            Event::Tick { link, generation, end } => self.tick(link, generation, end),
            Event::Hello { link, generation, end, number, echo } => self.hear_hello(link, generation, end, number, echo),
            Event::Dial { link } => self.dial(link),
        }
    }
}

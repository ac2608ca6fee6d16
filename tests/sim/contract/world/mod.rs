//! Whole brokers without sockets, clocks and tasks: tree, replication, registers, interest, router, sessions and a disk each, under virtual time, joined
//! by links that delay, cut and come back, and clients that come and go. What `mesh`, `connection` and `store` do with the world, this does with a
//! queue of events. Everything follows from the seed.

macro_rules! say {
    ($world:expr, $($text:tt)*) => {
        if $world.is_loud {
            println!("{:>9.4} {}", ($world.now - $world.begin).as_secs_f64(), format!($($text)*));
        }
    };
}

mod callers;
mod links;
mod lives;
mod mesh;
mod script;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mqtt_st_quic::auth::{Identity, Place, Policy};
use mqtt_st_quic::codec::{self, Disconnect, DisconnectProperties, Packet, QoS, ReasonCode};
use mqtt_st_quic::config::SharedStrategy;
use mqtt_st_quic::ids::{BrokerId, Incarnation, LogId, MessageId, OpenNumber, OriginLane, PortId, RootClaim, ShareId};
use mqtt_st_quic::interest::{Echoes, Interest, Mode, Neighbourhood, Rules, Told};
use mqtt_st_quic::limits::{PULL_REPEAT, REGISTER_FILTERS_MAX};
use mqtt_st_quic::metrics::Metrics;
use mqtt_st_quic::replication::{Deliver, LaneEvent, LaneReceiver, MeshMessage, Picks, Port, Replication, ReplicationConfig};
use mqtt_st_quic::router::{Batch, Farewell, Fetch, LinkDelivery, Router, RouterLimits, Verdict};
use mqtt_st_quic::session::{Change, Journal, OutboundLimits, RestoredLog};
use mqtt_st_quic::shared::register::{self, DeltaHead, Follow, Judgement, Key, Registers, Say};
use mqtt_st_quic::shared::{Carry, ClockWord, Post, Signature, StampClock};
use mqtt_st_quic::stp::{Bpdu, Input, Output, Stp, StpConfig};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub(super) use script::Scripted;

use super::account::{Account, Message, NUMBER_BYTES, SENT_MAX, TOPICS, topic_name};
use super::client::{Client, Surroundings, VERSION, put};
use super::disk::Disk;
use super::service::{Caller, Service};
use crate::replication::wire::LaneLedger;

const LANES_PER_CLASS: u8 = 2;
/// Longer than any run: what is given up is what the rings have given up.
const PATIENCE: Duration = Duration::from_secs(600);
const MEMBER_TIMEOUT: Duration = Duration::from_secs(900);
/// How often a coin is tossed at each broker at the latest.
const TOSS_MAX_US: u64 = 200_000;
/// What changes of who is behind whom is told after this time.
const TELL_DELAY: Duration = Duration::from_millis(5);
/// By how much brokers' clocks are ahead, seconds: of a few brokers some by more than a stamp may be that is believed.
const CLOCKS_S: [u64; 4] = [0, 3_700, 7, 1_800];
/// A word of the clock arrives after that time.
const CLOCK_DELAY: Duration = Duration::from_millis(3);
/// What a reader that brings too much waits at most before it says so.
const TRANSIT_PATIENCE: Duration = Duration::from_millis(500);

/// What a world is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) brokers: usize,
    /// Clients at each.
    pub(super) clients: usize,
    /// Of how many brokers in ten the disks outlive them; the others have none.
    pub(super) disks_of_ten: u32,
    /// Brokers crash, and come back.
    pub(super) crashes: bool,
    /// So often one dies for a while, and its clients go elsewhere: sessions have replicas.
    pub(super) deaths: usize,
    /// Sessions have replicas, also where brokers die without anybody's waiting until these are whole.
    pub(super) replicas: bool,
    /// Between deaths the mesh falls into two parts for a while.
    pub(super) parts: bool,
    /// The brokers' clocks differ.
    pub(super) clocks: bool,
    /// Nothing happens but what somebody says, and what it takes is about the same each time.
    pub(super) scripted: bool,
    /// Some of those that crash have lost their disk.
    pub(super) loses_disks: bool,
    /// Disks take their time now and then, and fail.
    pub(super) slow_disks: bool,
    /// Ports are told of interest what a coin says.
    pub(super) coin: bool,
    pub(super) ring_blocks: usize,
    pub(super) ring_bytes: usize,
    pub(super) ring_age: Duration,
    /// Clients go to other brokers, and their sessions follow them.
    pub(super) wanders: bool,
    /// Some clients are members of share groups.
    pub(super) shares: bool,
    /// Bytes that a lane takes in a second.
    pub(super) lane_rate: u64,
    /// Bytes of a lane that may be on their way.
    pub(super) credit: usize,
    /// What lanes carry stands still now and then, for longer than a crash lasts.
    pub(super) stalls: bool,
    /// The clients begin when nobody is new to the mesh any more.
    pub(super) founded: bool,
    /// Actions of clients.
    pub(super) acts: usize,
    /// Cuts, or crashes.
    pub(super) faults: usize,
}

/// One broker from a start to a crash.
struct Broker {
    life: Incarnation,
    router: Arc<Router>,
    replication: Arc<Replication>,
    registers: Arc<Registers>,
    journal: Option<Arc<Journal>>,
    neighbourhood: Neighbourhood,
    stp: Stp,
    ports: BTreeMap<PortId, End>,
    timeout: Option<Instant>,
    /// What waits for messages that were asked for is delivered with this.
    delivery: LinkDelivery,
    batch: Batch,
    services: BTreeMap<u64, Service>,
    post: Arc<Post>,
    /// Brings letters; the post has no hold on it.
    _carrier: Arc<Carrier>,
    /// Connections whose sessions are fetched.
    fetching: BTreeMap<u64, (Fetch, String)>,
    /// When sessions on the move are looked at next.
    moves_at: Option<Instant>,
    /// Changes that are being written, and the number of the last.
    writing: Option<(u64, Vec<Change>)>,
    is_to_write: bool,
    /// What clients were told while the disk failed is safe with this change.
    promised: u64,
    is_to_tell: bool,
    is_to_tell_behind: bool,
}

/// One end of a link.
struct End {
    port: Arc<Port>,
    receivers: Vec<LaneReceiver>,
    deliveries: Vec<LinkDelivery>,
    /// What each lane writer wrote.
    ledgers: Vec<LaneLedger>,
    /// Bytes of each lane that were written and are not consumed.
    on_the_way: Vec<usize>,
    /// Lanes that have not yet written the CLOSE they were told to.
    closing: Vec<(OpenNumber, usize)>,
}

struct Link {
    ends: [usize; 2],
    generation: Option<u64>,
    /// This end hears nothing any more, and the link is about to be found dead.
    deaf: Option<usize>,
    /// By receiving end and stream: when the last piece arrives.
    arrivals: BTreeMap<(usize, usize), Instant>,
}

/// A client's connection, as the network knows it.
struct Pipe {
    client: usize,
    broker: usize,
    life: Incarnation,
    to_broker: Instant,
    to_client: Instant,
    /// It is to have a turn.
    turns: bool,
}

enum Event {
    Arrive {
        link: usize,
        generation: u64,
        end: usize,
        stream: Stream,
    },
    Consumed {
        link: usize,
        generation: u64,
        end: usize,
        lane: usize,
        bytes: usize,
        patience: Instant,
    },
    Send(Writer),
    LinkDown {
        link: usize,
        generation: u64,
        end: usize,
    },
    Timeout {
        broker: usize,
    },
    /// Once a second.
    Tick {
        broker: usize,
        life: Incarnation,
    },
    Tell {
        broker: usize,
        life: Incarnation,
    },
    TellBehind {
        broker: usize,
        life: Incarnation,
    },
    Toss {
        broker: usize,
        life: Incarnation,
    },
    Write {
        broker: usize,
        life: Incarnation,
    },
    Sync {
        broker: usize,
        life: Incarnation,
    },
    FailDisk {
        broker: usize,
    },
    MendDisk {
        broker: usize,
    },
    /// A neighbour says what time it is there.
    Clock {
        link: usize,
        generation: u64,
        end: usize,
        unix_ms: u64,
    },
    /// A client does something.
    Act {
        client: usize,
    },
    Publish {
        client: usize,
    },
    Connect {
        client: usize,
    },
    Hello {
        connection: u64,
    },
    ToBroker {
        connection: u64,
        bytes: Vec<u8>,
    },
    ToClient {
        connection: u64,
        bytes: Vec<u8>,
    },
    /// The broker hears that its client is gone.
    Left {
        connection: u64,
    },
    /// The client hears that the broker is.
    Dropped {
        connection: u64,
    },
    Turn {
        connection: u64,
    },
    /// Sessions on the move are looked at.
    Moves {
        broker: usize,
        life: Incarnation,
    },
    Letter {
        from: usize,
        to: BrokerId,
        body: Vec<u8>,
    },
    Flip {
        link: usize,
    },
    Cut {
        link: usize,
    },
    Mend {
        link: usize,
    },
    Die {
        link: usize,
        generation: u64,
    },
    Crash {
        broker: usize,
    },
    Start {
        broker: usize,
    },
}

enum Stream {
    Control(Word),
    Lane(usize, Vec<u8>),
}

enum Word {
    Bpdu(Bpdu),
    Behind(Told),
    Register(Say),
}

/// A lane writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Writer {
    link: usize,
    broker: usize,
    port: PortId,
    lane: usize,
}

/// Who is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sleeper {
    Writer(Writer),
    Connection(u64),
}

/// Puts a sleeper on the list of those that are to run.
struct Alarm {
    sleeper: Sleeper,
    woken: Arc<Mutex<Vec<Sleeper>>>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push(self.sleeper);
    }
}

/// Letters that were posted: from whom, to whom.
type Letters = Arc<Mutex<Vec<(usize, BrokerId, Vec<u8>)>>>;
/// Who is connected with whom.
type Ways = Arc<Mutex<BTreeSet<(usize, BrokerId)>>>;
/// Who was, and until when.
type Lost = Arc<Mutex<BTreeMap<(usize, BrokerId), Instant>>>;

/// Takes a broker's letters on their way.
struct Carrier {
    broker: usize,
    letters: Letters,
    ways: Ways,
    lost: Lost,
    begun: Instant,
}

impl Carry for Carrier {
    fn carry(&self, to: BrokerId, body: &[u8]) -> bool {
        if !self.ways.lock().unwrap().contains(&(self.broker, to)) {
            return false;
        }
        self.letters.lock().unwrap().push((self.broker, to, body.to_vec()));
        true
    }

    fn lost_since(&self, to: BrokerId) -> Option<Instant> {
        let has_way = self.ways.lock().unwrap().contains(&(self.broker, to));
        let lost = self.lost.lock().unwrap().get(&(self.broker, to)).copied();
        (!has_way).then(|| lost.map_or(self.begun, |at| at.max(self.begun)))
    }

    fn reached(&self) -> Vec<BrokerId> {
        let ways = self.ways.lock().unwrap();
        ways.iter().filter(|(from, _)| *from == self.broker).map(|(_, to)| *to).collect()
    }
}

/// Writes down who the members are, as the server does.
struct Roster(Arc<Journal>);

impl Follow for Roster {
    fn joined(&self, member: BrokerId) {
        self.0.push(Change::Member(member));
    }

    fn known(&self, _: BrokerId) {}

    fn changed(&self, _: BrokerId, _: &[register::Change]) {}

    fn left(&self, member: BrokerId) {
        self.0.push(Change::MemberGone(member));
    }
}

/// What comes over a link, for the sessions.
struct Local<'a> {
    delivery: &'a mut LinkDelivery,
    now: Instant,
}

impl Deliver for Local<'_> {
    fn deliver(&mut self, message: &MeshMessage<'_>, id: MessageId) {
        self.delivery.deliver(message, id, self.now);
    }

    fn catch_up(&mut self, message: &MeshMessage<'_>, id: MessageId) {
        self.delivery.catch_up(message, id, self.now);
    }

    fn wants(&mut self, topic: &str, picks: Picks<'_>) -> bool {
        self.delivery.wants(topic, picks)
    }

    fn pick_again(&mut self, message: &MeshMessage<'_>, broker: BrokerId, may_be_same: bool) -> usize {
        self.delivery.pick_again(message, broker, may_be_same, self.now)
    }

    fn share_late(&mut self, message: &MeshMessage<'_>, is_new: &mut dyn FnMut(ShareId) -> bool) {
        self.delivery.share_late(message, is_new, self.now);
    }

    fn decided(&mut self, topic: &str) {
        self.delivery.decided(topic, self.now);
    }

    fn covered(&mut self, stream: OriginLane, cover: u64) {
        self.delivery.covered(stream, cover);
    }

    fn flush(&mut self) {
        self.delivery.flush(self.now);
    }
}

/// What brokers have counted, also those that are no more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) gaps: u64,
    pub(super) payloads_lost: u64,
    pub(super) pulled: u64,
    pub(super) dropped: u64,
    pub(super) subacks_early: u64,
    /// Blocks that were fetched for a neighbour, as a ring had lost them.
    pub(super) filled: u64,
    /// Sessions that went on from their replicas.
    pub(super) promoted: u64,
    /// Sessions that ended because another broker had a newer claim.
    pub(super) yielded: u64,
}

impl Counts {
    fn add(&mut self, broker: &Broker) {
        let (counters, metrics) = (broker.replication.counters(), broker.router.metrics());
        self.gaps += counters.gaps_received.value();
        self.payloads_lost += counters.payloads_lost.value();
        self.pulled += counters.payloads_received.value();
        self.filled += counters.blocks_filled.value();
        self.promoted += metrics.sessions_promoted.value();
        self.yielded += metrics.sessions_yielded.value();
        self.dropped += metrics.dropped_qos0.value() + metrics.dropped_queue_full.value();
        self.subacks_early += broker.replication.interest().echoes().map_or(0, |echoes| echoes.missed.value());
    }
}

pub(super) struct World {
    pub(super) account: Account,
    pub(super) events: u64,
    /// Messages that lane writers wrote.
    pub(super) sent: u64,
    counts: Counts,
    plan: Plan,
    rng: SmallRng,
    policy: Policy,
    brokers: Vec<Option<Broker>>,
    has_disk: Vec<bool>,
    disks: Vec<Disk>,
    is_failing: Vec<bool>,
    /// Blocks of each broker's rings.
    rings: Vec<usize>,
    /// The disk takes nothing, and does not say so.
    stands: Vec<bool>,
    clients: Vec<Client>,
    /// Whose session was lost with its broker.
    bereft: BTreeSet<usize>,
    links: Vec<Link>,
    claims: Vec<RootClaim>,
    pipes: BTreeMap<u64, Pipe>,
    begin: Instant,
    now: Instant,
    /// When there was a fault last.
    fault_at: Instant,
    /// The mesh is in two parts, or was a moment ago.
    is_parted: bool,
    queue: BinaryHeap<Reverse<(Instant, u64)>>,
    scheduled: BTreeMap<u64, Event>,
    order: u64,
    generations: u64,
    connections: u64,
    woken: Arc<Mutex<Vec<Sleeper>>>,
    letters: Letters,
    ways: Ways,
    lost: Lost,
    is_loud: bool,
}

/// After so long without faults everything is as it should be.
const CALM: Duration = Duration::from_secs(5);

impl World {
    /// Brokers, all up, linked each with each, and their clients.
    pub(super) fn new(seed: u64, plan: Plan) -> Self {
        let count = plan.brokers;
        let links = (0..count).flat_map(|b| (0..b).map(move |a| [a, b]));
        let homes = (0..count * plan.clients).map(|number| (number % count, number >= count && number.is_multiple_of(3)));
        let mut world = Self::build(seed, plan, links, homes);
        say!(world, "{plan:?}, disks {:?}", world.has_disk);
        for broker in 0..count {
            world.start(broker);
        }
        for link in 0..world.links.len() {
            world.within(50_000, Event::Flip { link });
        }
        for client in 0..world.clients.len() {
            world.within(400_000, Event::Connect { client });
        }
        world
    }

    /// Brokers, all down, and clients: where they are at home, and whether their sessions end with their connections.
    #[expect(clippy::disallowed_methods, reason = "virtual time has to begin somewhere; no later reading is taken")]
    fn build(seed: u64, plan: Plan, links: impl Iterator<Item = [usize; 2]>, clients: impl Iterator<Item = (usize, bool)>) -> Self {
        let begin = Instant::now();
        let count = plan.brokers;
        let mut rng = SmallRng::seed_from_u64(seed);
        let claim =
            |id: usize| RootClaim { priority: 32_768, capacity: 10, id: BrokerId(id as u64 + 1), incarnation: Incarnation(0) };
        let client = |(number, (home, is_passing))| Client::new(number, home, is_passing);
        let clients: Vec<_> = clients.enumerate().map(client).collect();
        let mut world = Self {
            account: Account::new(clients.len()),
            events: 0,
            sent: 0,
            counts: Counts::default(),
            plan,
            policy: Policy::new(Place { index: Some(0), bind: "here".into() }, true, None, None),
            brokers: (0..count).map(|_| None).collect(),
            has_disk: (0..count).map(|_| rng.random_range(0..10) < plan.disks_of_ten).collect(),
            disks: (0..count).map(|_| Disk::default()).collect(),
            is_failing: vec![false; count],
            rings: vec![plan.ring_blocks; count],
            stands: vec![false; count],
            clients,
            bereft: BTreeSet::new(),
            links: links.map(|ends| Link { ends, generation: None, deaf: None, arrivals: BTreeMap::new() }).collect(),
            claims: (0..count).map(claim).collect(),
            pipes: BTreeMap::new(),
            begin,
            now: begin,
            fault_at: begin,
            is_parted: false,
            queue: BinaryHeap::new(),
            scheduled: BTreeMap::new(),
            order: 0,
            generations: 0,
            connections: 0,
            woken: Arc::default(),
            letters: Arc::default(),
            ways: Arc::default(),
            lost: Arc::default(),
            is_loud: std::env::var("LOUD").is_ok(),
            rng,
        };
        world.account.wanders = plan.wanders;
        world
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Spreads acts and faults over `span`.
    pub(super) fn plan(&mut self, span: Duration, acts: usize, faults: usize) {
        let span_us = span.as_micros() as u64;
        for _ in 0..acts {
            let client = self.rng.random_range(0..self.clients.len());
            self.within(span_us, Event::Act { client });
        }
        for _ in 0..faults {
            let broker = self.rng.random_range(0..self.brokers.len());
            if self.plan.crashes && self.rng.random_bool(0.3) {
                self.within(span_us, Event::Crash { broker });
            } else if self.plan.slow_disks && self.rng.random_bool(0.2) {
                self.within(span_us, Event::FailDisk { broker });
            } else {
                let link = self.rng.random_range(0..self.links.len());
                self.within(span_us, Event::Flip { link });
            }
        }
    }

    /// Spreads messages over `span`.
    pub(super) fn plan_messages(&mut self, span: Duration, count: usize) {
        for _ in 0..count {
            let client = self.rng.random_range(0..self.clients.len());
            self.within(span.as_micros() as u64, Event::Publish { client });
        }
    }

    /// Everybody is up, and so are all links.
    pub(super) fn heal(&mut self) {
        self.fault_at = self.now;
        self.plan.stalls = false;
        for broker in 0..self.brokers.len() {
            self.is_failing[broker] = false;
            self.start(broker);
        }
        for link in 0..self.links.len() {
            self.up(link);
        }
    }

    /// From now on all subscriptions count that were made.
    pub(super) fn all_known(&mut self) {
        self.account.all_known(self.now);
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = self.counts;
        self.brokers.iter().flatten().for_each(|broker| counts.add(broker));
        counts
    }

    /// When all is quiet: nothing waits anywhere, and everybody knows what everybody wants.
    pub(super) fn check_rest(&self) {
        for client in &self.clients {
            assert!(client.is_up() && client.is_done(), "{} waits: {}", client.name(), client.state());
        }
        for (number, broker) in self.brokers.iter().enumerate().filter_map(|(number, broker)| Some((number, broker.as_ref()?))) {
            assert!(!broker.replication.lagging(), "broker {number} lags");
            for service in broker.services.values() {
                assert!(!service.is_busy(), "at broker {number} something waits for client {}", service.client);
            }
            let members = broker.registers.members();
            assert_eq!(members.len(), self.brokers.len() - 1, "members known to broker {number}: {members:?}");
            assert!(members.iter().all(|(_, is_known)| *is_known), "not all is known to broker {number}: {members:?}");
        }
        // Wherever clients were, and whatever was cut: each has one session.
        let sessions = |broker: &Broker| broker.router.metrics().sessions.value();
        let kept: Vec<_> = self.brokers.iter().flatten().map(sessions).collect();
        assert_eq!(kept.iter().sum::<i64>(), self.clients.len() as i64, "sessions at the brokers: {kept:?}");
        // What somebody wants is what all others have been told.
        let filters: BTreeSet<String> =
            ["#".to_owned(), "topic/#".to_owned()].into_iter().chain((0..TOPICS).map(topic_name)).collect();
        for filter in &filters {
            let key = Key::Filter(filter.as_str().into());
            for (number, broker) in self.brokers.iter().enumerate() {
                let broker = broker.as_ref().unwrap();
                let told: BTreeSet<_> = broker.registers.look_up(&key).into_iter().map(|(member, _)| member).collect();
                let wants = |other: usize| self.clients.iter().any(|client| client.home == other && client.wants(filter));
                let wanted = (0..self.brokers.len()).filter(|other| *other != number && wants(*other));
                let wanted: BTreeSet<_> = wanted.map(|other| self.claims[other].id).collect();
                // A session's filters stay behind where its new broker has crashed before all knew what it wants.
                // And a replica wants what its session wants.
                let may_be_more = self.plan.deaths > 0 || self.plan.replicas || (self.plan.wanders && self.plan.faults > 0);
                let is_as_it_should = told == wanted || (may_be_more && told.is_superset(&wanted));
                assert!(is_as_it_should, "{filter} at broker {number}: {told:?}, and it is {wanted:?}");
            }
        }
    }

    pub(super) fn run(&mut self, span: Duration) {
        let until = self.now + span;
        self.run_woken();
        while let Some(&Reverse((at, order))) = self.queue.peek().filter(|Reverse((at, _))| *at <= until) {
            self.queue.pop();
            self.now = at;
            self.events += 1;
            let event = self.scheduled.remove(&order).unwrap();
            self.event(event);
            self.run_woken();
        }
        self.now = until;
    }

    /// What happens now and then, but in no script.
    fn chance(&mut self, share: f64) -> bool {
        !self.plan.scripted && self.rng.random_bool(share)
    }

    fn within(&mut self, span_us: u64, event: Event) {
        let at = self.now + Duration::from_micros(self.rng.random_range(0..=span_us));
        self.at(at, event);
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order)));
        self.scheduled.insert(self.order, event);
    }

    fn run_woken(&mut self) {
        let mut woken = std::mem::take(&mut *self.woken.lock().unwrap());
        // Who waits for the same thing is woken in no order.
        woken.sort_unstable();
        woken.dedup();
        for sleeper in woken {
            match sleeper {
                Sleeper::Writer(writer) => self.within(2_000, Event::Send(writer)),
                Sleeper::Connection(connection) => self.turn_soon(connection),
            }
        }
        for broker in 0..self.brokers.len() {
            self.look_after(broker);
        }
        let letters = std::mem::take(&mut *self.letters.lock().unwrap());
        for (from, to, body) in letters {
            // One is lost, one comes twice.
            let copies = if self.plan.scripted { 1 } else { [1, 1, 1, 1, 1, 1, 1, 1, 0, 2][self.rng.random_range(0..10)] };
            for _ in 0..copies {
                let slow_us = if self.chance(0.1) { 300_000 } else { 5_000 };
                self.within(slow_us, Event::Letter { from, to, body: body.clone() });
            }
        }
    }

    /// What a broker's own tasks are woken for.
    fn look_after(&mut self, number: usize) {
        let now = self.now;
        let Some(broker) = self.brokers[number].as_mut() else { return };
        let life = broker.life;
        if !broker.is_to_tell
            && let Some(due) = broker.registers.tell_due(now)
        {
            broker.is_to_tell = true;
            self.at(due.max(now), Event::Tell { broker: number, life });
        }
        let Some(broker) = self.brokers[number].as_mut() else { return };
        let mut context = Context::from_waker(Waker::noop());
        let has_news = broker.post.poll_received(&mut context).is_ready()
            || broker.router.poll_claims(&mut context).is_ready()
            || broker.router.poll_fetches(&mut context).is_ready()
            || broker.router.poll_replicas(&mut context).is_ready();
        let soon = now + Duration::from_millis(1);
        if has_news && broker.moves_at.is_none_or(|at| at > soon) {
            broker.moves_at = Some(soon);
            self.at(soon, Event::Moves { broker: number, life });
        }
        let Some(broker) = self.brokers[number].as_mut() else { return };
        let has_changes = broker.journal.as_ref().is_some_and(|journal| journal.last() > journal.committed());
        if has_changes && broker.writing.is_none() && !std::mem::replace(&mut broker.is_to_write, true) {
            self.within(1_000, Event::Write { broker: number, life });
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Arrive { link, generation, end, stream } => {
                if self.links[link].generation == Some(generation) && self.links[link].deaf != Some(end) {
                    self.arrive(link, generation, end, stream);
                }
            }
            Event::Consumed { link, generation, end, lane, bytes, patience } => {
                self.consumed(link, generation, end, lane, bytes, patience);
            }
            Event::Send(writer) => self.send_lane(writer),
            Event::LinkDown { link, generation, end } => self.link_down(link, generation, end),
            Event::Timeout { broker } => {
                if self.brokers[broker].as_ref().is_some_and(|it| it.timeout == Some(self.now)) {
                    self.input(broker, Input::Timeout);
                }
            }
            Event::Tick { broker, life } => self.tick(broker, life),
            Event::Tell { broker, life } => self.tell(broker, life),
            Event::TellBehind { broker, life } => self.tell_behind(broker, life),
            Event::Toss { broker, life } => self.toss(broker, life),
            Event::Write { broker, life } => self.write(broker, life),
            Event::Sync { broker, life } => self.sync(broker, life),
            Event::FailDisk { broker } => {
                self.is_failing[broker] = true;
                self.within(2_000_000, Event::MendDisk { broker });
            }
            Event::MendDisk { broker } => self.is_failing[broker] = false,
            Event::Clock { link, generation, end, unix_ms } => self.hear_clock(link, generation, end, unix_ms),
            Event::Act { client } => self.act(client),
            Event::Publish { client } => {
                let mut out = Vec::new();
                self.publish(client, &mut out);
                if let Some(connection) = self.clients[client].connection.filter(|_| !out.is_empty()) {
                    self.send_to_broker(connection, out);
                }
            }
            Event::Connect { client } => self.connect(client),
            Event::Hello { connection } => self.hello(connection),
            Event::ToBroker { connection, bytes } => self.read(connection, &bytes),
            Event::ToClient { connection, bytes } => self.hear(connection, &bytes),
            Event::Left { connection } => self.close(connection, Farewell::Lost),
            Event::Dropped { connection } => self.dropped(connection),
            Event::Turn { connection } => self.turn(connection),
            Event::Moves { broker, life } => self.move_sessions(broker, life),
            Event::Letter { from, to, body } => self.letter(from, to, &body),
            Event::Flip { link } if self.links[link].generation.is_some() => self.cut(link),
            Event::Flip { link } => self.up(link),
            Event::Cut { link } => self.cut(link),
            Event::Mend { link } => {
                // Where one end hears nothing as yet the other has noticed.
                if self.links[link].deaf.is_some() {
                    self.down(link);
                }
                self.up(link);
            }
            Event::Die { link, generation } => {
                if self.links[link].generation == Some(generation) {
                    self.down(link);
                }
            }
            Event::Crash { broker } => self.crash(broker),
            Event::Start { broker } => {
                self.start(broker);
                for link in 0..self.links.len() {
                    let link_is_mine = self.links[link].ends.contains(&broker) && self.links[link].generation.is_none();
                    if link_is_mine && (self.plan.deaths > 0 || self.rng.random_bool(0.7)) {
                        self.within(100_000, Event::Flip { link });
                    }
                }
            }
        }
    }
}

//! Three brokers in a line, with real lanes, registers and routers; letters that are lost, come twice or late; a client that goes from one to the other
//! while others publish everywhere.

mod replicas;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use super::*;
use crate::auth::{Access, Identity, Place, Standing};
use crate::codec::{self, Packet, PacketId, ProtocolVersion, QoS, RetainHandling};
use crate::config::SharedStrategy;
use crate::ids::{Incarnation, LogId, MessageId, OpenMark, OpenNumber, OriginLane, PortId, RootClaim, TreeId};
use crate::interest::{Interest, Mode, Rules};
use crate::limits::{NEWCOMER_TIME, REGISTER_FILTERS_MAX};
use crate::metrics::Metrics;
use crate::replication::{Deliver, LaneReceiver, MeshMessage, Picks, Port, ReplicationConfig};
use crate::router::deadlines::Due;
use crate::router::{
    Census, ConnectRequest, Connection, Farewell, Ingress, LinkDelivery, Passing, RouteCache, RouterLimits, Subscribe,
};
use crate::session::{
    Connected, Drained, Journal, Message, MovedContent, OutboundLimits, SessionExpiry, SubscriptionOptions, Will,
};
use crate::shared::register::{Claim, DeltaHead, Follow, Judgement, Key, Registers, Say, Value};
use crate::shared::{Carry, Signature, SignedRecord, StampClock};

const STEP: Duration = Duration::from_millis(5);
const HOUR: SessionExpiry = SessionExpiry::After(Duration::from_secs(3_600));
/// Who is linked with whom.
const LINKS: [(usize, usize); 2] = [(0, 1), (0, 2)];

fn id(node: usize) -> BrokerId {
    BrokerId(node as u64 + 1)
}

/// What becomes of one letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lost,
    Twice,
    Late,
}

/// A letter that arrives after so many steps.
type OnItsWay = (usize, BrokerId, BrokerId, Vec<u8>);

#[derive(Default)]
struct Net {
    letters: Mutex<VecDeque<OnItsWay>>,
    sent: AtomicUsize,
    /// Of the letter with that number.
    fate: Mutex<Option<(usize, Fate)>>,
    /// And since when.
    dead: Mutex<BTreeMap<BrokerId, Instant>>,
    /// Lanes and registers do not reach the dead.
    is_cut: AtomicBool,
    /// Of what this one writes nothing arrives.
    mute: Mutex<Option<BrokerId>>,
    /// What is published goes over no link.
    is_still: AtomicBool,
}

impl Net {
    fn cuts(&self, one: usize, other: usize) -> bool {
        let dead = self.dead.lock();
        self.is_cut.load(Ordering::Relaxed) && (dead.contains_key(&id(one)) || dead.contains_key(&id(other)))
    }
}

struct Carrier(Arc<Net>, BrokerId);

impl Carry for Carrier {
    fn carry(&self, to: BrokerId, body: &[u8]) -> bool {
        let dead = self.0.dead.lock();
        if dead.contains_key(&to) || dead.contains_key(&self.1) {
            return false;
        }
        if *self.0.mute.lock() == Some(self.1) {
            return true;
        }
        let number = self.0.sent.fetch_add(1, Ordering::Relaxed);
        let fate = self.0.fate.lock().filter(|(fated, _)| *fated == number).map(|(_, fate)| fate);
        let (copies, delay) = match fate {
            None => (1, 1),
            Some(Fate::Lost) => (0, 0),
            Some(Fate::Twice) => (2, 1),
            Some(Fate::Late) => (1, 60),
        };
        (0..copies).for_each(|_| self.0.letters.lock().push_back((delay, self.1, to, body.to_vec())));
        true
    }

    fn lost_since(&self, to: BrokerId) -> Option<Instant> {
        let dead = self.0.dead.lock();
        dead.get(&to).or(dead.get(&self.1)).copied()
    }

    fn reached(&self) -> Vec<BrokerId> {
        (0..3).map(id).filter(|to| *to != self.1 && self.lost_since(*to).is_none()).collect()
    }
}

/// The time for the core's deliveries.
struct Clocked(LinkDelivery, Instant);

impl Deliver for Clocked {
    fn deliver(&mut self, message: &MeshMessage<'_>, id: MessageId) {
        self.0.deliver(message, id, self.1);
    }

    fn wants(&mut self, topic: &str, picks: Picks<'_>) -> bool {
        self.0.wants(topic, picks)
    }

    fn covered(&mut self, stream: OriginLane, cover: u64) {
        self.0.covered(stream, cover);
    }

    fn flush(&mut self) {
        self.0.flush(self.1);
    }
}

struct Node {
    router: Arc<Router>,
    replication: Arc<Replication>,
    registers: Arc<Registers>,
    post: Arc<Post>,
    journal: Arc<Journal>,
    deliver: Clocked,
    batch: Batch,
    routes: RouteCache,
    publisher: Connection,
    _carrier: Arc<dyn Carry>,
}

struct End {
    port: Arc<Port>,
    receivers: Vec<LaneReceiver>,
}

struct World {
    now: Instant,
    net: Arc<Net>,
    nodes: Vec<Node>,
    /// Of each link.
    ends: Vec<[End; 2]>,
    published: usize,
    /// What was not, for its publisher's broker was dead: that and the number.
    skipped: BTreeSet<(usize, usize)>,
    /// Messages of each publisher in one batch.
    burst: usize,
    /// What the registers of this one say and are told comes later.
    silent: Option<usize>,
    kept: VecDeque<(usize, usize, Say)>,
    /// For other threads.
    clock: Arc<Mutex<Instant>>,
}

fn connect(router: &Router, batch: &mut Batch, client_id: &str, expiry: SessionExpiry, now: Instant) -> (Connection, bool) {
    // Else what another broker has of it would have to be asked for first.
    connect_as(router, batch, client_id, (expiry == SessionExpiry::WithConnection, expiry), now)
}

fn connect_as(
    router: &Router,
    batch: &mut Batch,
    client_id: &str,
    (clean_start, expiry): (bool, SessionExpiry),
    now: Instant,
) -> (Connection, bool) {
    let request = ConnectRequest {
        client_id,
        clean_start,
        expiry,
        silence_max: None,
        will: None,
        connected: Connected { version: ProtocolVersion::V5, window: 20, packet_bytes_max: usize::MAX, topic_alias_max: 0 },
        address: None,
        access: None,
    };
    let present = std::cell::Cell::new(false);
    let connack = |session_present| {
        present.set(session_present);
        Vec::new()
    };
    let connection = router.connect(batch, request, connack, now).unwrap();
    router.finish(batch, now);
    (connection, present.get())
}

impl Node {
    fn new(node: usize, net: &Arc<Net>, now: Instant) -> Self {
        let outbound = OutboundLimits {
            inflight_max: 20,
            inflight_bytes_max: 1_000_000,
            queued_messages_max: 100_000,
            queued_bytes_max: 100_000_000,
            drop_oldest: false,
            queue_qos0: false,
        };
        let journal = Journal::new();
        let limits = RouterLimits { outbound, shared: SharedStrategy::default() };
        let router = Arc::new(Router::new(limits, Arc::new(Metrics::default()), Some(Arc::clone(&journal)), now));
        router.share_retained(StampClock::new(node as u64 + 1, Duration::from_secs(1_800_000_000), now), Duration::from_secs(60));
        let registers = Registers::new(id(node), Duration::from_secs(900), REGISTER_FILTERS_MAX);
        router.join_registers(Arc::clone(&registers));
        let interest = Arc::new(Interest::new(id(node), Rules::new(Mode::Interest, [])));
        registers.follow(Arc::clone(&interest) as Arc<dyn Follow>);
        let config = ReplicationConfig {
            origin: id(node),
            log: LogId(100 + node as u64),
            lanes_per_class: 2,
            ring_blocks: 1 << 14,
            ring_bytes: 1 << 24,
            ring_age: Duration::from_secs(600),
            slows_publishers: true,
            hop_max: 255,
            message_bytes_max: 1_000_000,
        };
        let replication = Replication::with_interest(config, interest, now);
        router.join_mesh(Arc::clone(&replication));
        let post = Arc::<Post>::default();
        let carrier: Arc<dyn Carry> = Arc::new(Carrier(Arc::clone(net), id(node)));
        post.open(Arc::downgrade(&carrier));
        router.join_post(Arc::clone(&post));
        registers.begin(Incarnation(1));
        let (deliver, mut batch) = (Clocked(LinkDelivery::new(Arc::clone(&router)), now), Batch::default());
        let name = format!("publisher {node}");
        let (publisher, _) = connect(&router, &mut batch, &name, SessionExpiry::WithConnection, now);
        let routes = RouteCache::default();
        Self { router, replication, registers, post, journal, deliver, batch, routes, publisher, _carrier: carrier }
    }
}

impl World {
    fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
        let now = Instant::now();
        let net = Arc::<Net>::default();
        let nodes: Vec<_> = (0..3).map(|node| Node::new(node, &net, now)).collect();
        let end = |node: usize, peer: usize| {
            let port = nodes[node].replication.add_port(PortId { peer: id(peer), generation: 1 });
            let receivers = port.lanes().iter().map(LaneReceiver::new).collect();
            End { port, receivers }
        };
        let ends = LINKS.iter().map(|(parent, child)| [end(*parent, *child), end(*child, *parent)]).collect();
        let clock = Arc::new(Mutex::new(now + NEWCOMER_TIME));
        let mut world = Self {
            now: now + NEWCOMER_TIME,
            net,
            nodes,
            ends,
            published: 0,
            skipped: BTreeSet::new(),
            burst: 1,
            silent: None,
            kept: VecDeque::new(),
            clock,
        };
        for (link, (_, child)) in LINKS.iter().enumerate() {
            let incarnation = Incarnation(1);
            let root = RootClaim { priority: 0, capacity: 0, id: id(0), incarnation };
            let number = OpenNumber { count: 1, child: id(*child), incarnation };
            let mark = OpenMark { tree: TreeId { epoch: 1, root }, number };
            world.ends[link][1].port.open(&mark, world.now);
            world.flow();
            world.ends[link][0].port.answer(&mark, world.now);
            world.flow();
        }
        let mut out = Vec::new();
        for (node, peer) in (0..3).flat_map(|node| (0..3).map(move |peer| (node, peer))).filter(|(node, peer)| node != peer) {
            world.nodes[node].registers.met(id(peer), world.now);
            world.nodes[node].registers.port_up(PortId { peer: id(peer), generation: 1 }, world.now, &mut out);
            world.say(node, &mut out);
        }
        (0..20).for_each(|_| world.step());
        world
    }

    fn flow(&mut self) {
        for (link, (parent, child)) in LINKS.into_iter().enumerate() {
            if self.net.cuts(parent, child) || self.net.is_still.load(Ordering::Relaxed) {
                continue;
            }
            for (from, to, node) in [(0, 1, child), (1, 0, parent)] {
                for lane in 0..4 {
                    let mut out = Vec::new();
                    let mut context = Context::from_waker(Waker::noop());
                    let port = Arc::clone(&self.ends[link][from].port);
                    while port.lanes()[lane].poll(&mut context, self.now, 100_000, &mut out).is_ready() {}
                    let deliver = &mut self.nodes[node].deliver;
                    deliver.1 = self.now;
                    let receiver = &mut self.ends[link][to].receivers[lane];
                    receiver.receive(&out.concat(), self.now, deliver, &mut Vec::new()).unwrap();
                }
            }
        }
    }

    /// What a register wants said is heard at once.
    fn say(&mut self, from: usize, out: &mut Vec<(PortId, Say)>) {
        let mut waiting: VecDeque<_> = out.drain(..).map(|(port, say)| (from, port.peer.0 as usize - 1, say)).collect();
        while let Some((from, to, say)) = waiting.pop_front() {
            if self.silent == Some(from) || self.silent == Some(to) {
                self.kept.push_back((from, to, say));
                continue;
            }
            if self.net.cuts(from, to) {
                continue;
            }
            let (port, registers, mut out) = (PortId { peer: id(from), generation: 1 }, &self.nodes[to].registers, Vec::new());
            match say {
                Say::Delta(mode, signed) => {
                    let head = DeltaHead::read(&signed.wire).unwrap();
                    if registers.judge(port, &head, mode, self.now) == Judgement::Check {
                        registers.take(port, mode, SignedRecord::clone(&signed), self.now, &mut out).unwrap();
                    }
                }
                Say::Have(haves) => registers.hear_have(port, &haves, self.now, &mut out),
                Say::Want(want) => registers.hear_want(port, want, self.now, &mut out),
                Say::End(end) => drop(registers.hear_end(port, end, self.now, &mut out)),
            }
            waiting.extend(out.into_iter().map(|(port, say)| (to, port.peer.0 as usize - 1, say)));
        }
    }

    /// What was kept back is heard.
    fn speak(&mut self) {
        self.silent = None;
        for (from, to, say) in std::mem::take(&mut self.kept) {
            self.say(from, &mut vec![(PortId { peer: id(to), generation: 1 }, say)]);
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        *self.clock.lock() = self.now;
        self.flow();
        for node in 0..self.nodes.len() {
            let mut out = Vec::new();
            let registers = Arc::clone(&self.nodes[node].registers);
            if registers.tell_due(self.now).is_some_and(|due| due <= self.now) {
                let sign = |_: &[u8]| Some(Signature { chain: Default::default(), scheme: 0, bytes: Default::default() });
                registers.tell(self.now, sign, &mut out);
            }
            registers.tick(self.now, &mut out);
            self.say(node, &mut out);
        }
        let letters = std::mem::take(&mut *self.net.letters.lock());
        for (delay, from, to, body) in letters {
            if delay > 1 {
                self.net.letters.lock().push_back((delay - 1, from, to, body));
            } else if !self.net.dead.lock().contains_key(&to) {
                self.nodes[to.0 as usize - 1].post.deliver(from, &body);
            }
        }
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if self.net.dead.lock().contains_key(&id(number)) {
                continue;
            }
            let _ = node.router.drive_moves(&mut node.batch, node.post.receive(), self.now);
            node.router.expire(&mut node.batch, self.now);
            node.router.finish(&mut node.batch, self.now);
            // The disk: what was written by the last step is safe.
            if let Some(written) = node.journal.take(&mut Vec::new(), Duration::ZERO) {
                node.journal.commit(written);
            }
        }
    }

    /// A message of each of QoS 1 and 2 at each broker, or more of them in one batch.
    fn publish(&mut self) {
        let first = self.published;
        self.published += self.burst;
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if self.net.is_cut.load(Ordering::Relaxed) && self.net.dead.lock().contains_key(&id(at)) {
                self.skipped.extend((first..self.published).map(|number| (at, number)));
                continue;
            }
            for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
                let topic = format!("t/{at}/{}", qos as u8);
                for number in first..self.published {
                    let payload = number.to_string();
                    let payload = payload.as_bytes();
                    let message = Message { topic: &topic, payload, qos, retain: false, expires_at: None, properties: &[] };
                    let from = Ingress::Session(&node.publisher.subscriber);
                    node.router.publish(&mut node.batch, &mut node.routes, &message, from, self.now);
                }
                node.router.finish(&mut node.batch, self.now);
            }
        }
    }

    /// How many brokers have a session of the client's.
    fn sessions(&self) -> Vec<usize> {
        (0..3).filter(|node| self.nodes[*node].router.registry.contains_key("mover")).collect()
    }
}

/// A client that keeps to the rules.
struct Client {
    at: usize,
    connection: Option<Connection>,
    open: BTreeSet<PacketId>,
    got: Vec<(String, usize)>,
}

impl Client {
    /// Has its session at the first broker, and leaves.
    fn begin(world: &mut World) -> Self {
        let node = &mut world.nodes[0];
        let (connection, _) = connect(&node.router, &mut node.batch, "mover", HOUR, world.now);
        let options =
            SubscriptionOptions { qos: QoS::ExactlyOnce, no_local: false, retain_as_published: false, subscription_id: None };
        let request = Subscribe { filter: "t/#", options, retain_handling: RetainHandling::DoNotSend };
        node.router.subscribe(&connection, &request).unwrap();
        let mut client = Self { at: 0, connection: Some(connection), open: BTreeSet::new(), got: Vec::new() };
        (0..10).for_each(|_| world.step());
        client.leave(world);
        client
    }

    fn leave(&mut self, world: &mut World) {
        if let Some(connection) = self.connection.take() {
            let node = &mut world.nodes[self.at];
            node.router.disconnect(&mut node.batch, &connection, Farewell::Normal, None, world.now);
            node.router.finish(&mut node.batch, world.now);
        }
    }

    fn ask(world: &World, at: usize) -> Option<Fetch> {
        world.nodes[at].router.fetch_session("mover", false, None, world.now)
    }

    /// Comes in at a broker, again and again until it is let in. Says whether its session was there.
    fn come(&mut self, world: &mut World, at: usize) -> bool {
        for _ in 0..20 {
            let fetch = Self::ask(world, at);
            let verdict = fetch.map_or(Verdict::Proceed, |fetch| self.wait(world, &fetch));
            if verdict == Verdict::Proceed {
                let node = &mut world.nodes[at];
                let (connection, present) = connect(&node.router, &mut node.batch, "mover", HOUR, world.now);
                (self.at, self.connection) = (at, Some(connection));
                return present;
            }
        }
        let seen: Vec<_> = world.nodes.iter().map(|node| format!("{:?}", node.router.handover.machine.lock())).collect();
        panic!("it is never let in at {at}: {seen:#?}");
    }

    fn wait(&mut self, world: &mut World, fetch: &Fetch) -> Verdict {
        for step in 0..4_000 {
            if let Poll::Ready(verdict) = fetch.poll(&mut Context::from_waker(Waker::noop())) {
                return verdict;
            }
            if step % 8 == 0 && world.published < 4_000 * world.burst {
                world.publish();
            }
            world.step();
        }
        panic!("the client waits without end");
    }

    /// Takes what is there, as far as it goes without waiting, and acknowledges it.
    fn take(&mut self, world: &mut World) {
        let Some(connection) = &self.connection else { return };
        let node = &mut world.nodes[self.at];
        node.router.pump(&mut node.batch, connection, world.now);
        let mut drained = Drained::default();
        connection.subscriber.lock().outbox.take(&mut drained);
        let bytes: Vec<u8> = drained.segments.iter().flat_map(|segment| segment.bytes().to_vec()).chain(drained.tail).collect();
        let (mut rest, mut state) = (&*bytes, connection.subscriber.lock());
        while let Some((packet, length)) = codec::decode(rest, ProtocolVersion::V5, 1_000_000).unwrap() {
            rest = &rest[length..];
            match packet {
                Packet::Publish(publish) => {
                    let packet_id = publish.packet_id.unwrap();
                    if publish.qos == QoS::AtLeastOnce || self.open.insert(packet_id) {
                        let number = std::str::from_utf8(publish.payload).unwrap().parse().unwrap();
                        self.got.push((publish.topic.to_owned(), number));
                    }
                    match publish.qos {
                        QoS::AtLeastOnce => state.puback(packet_id).unwrap(),
                        _ => drop(state.pubrec(packet_id, false).unwrap()),
                    }
                    // PUBREL is not waited for: it comes again with the next connection if this one ends before.
                    if publish.qos == QoS::ExactlyOnce && packet_id.get() % 3 > 0 {
                        state.pubcomp(packet_id).unwrap();
                        self.open.remove(&packet_id);
                    }
                }
                Packet::PubRel(ack) => {
                    state.pubcomp(ack.packet_id).unwrap();
                    self.open.remove(&ack.packet_id);
                }
                _ => {}
            }
        }
    }

    fn take_all(&mut self, world: &mut World) {
        for _ in 0..400 {
            self.take(world);
            // What was released is asked for again.
            let Some(connection) = &self.connection else { return };
            assert!(connection.subscriber.is_latest(connection.epoch), "it is still connected");
            let mut state = connection.subscriber.lock();
            self.open.retain(|packet_id| state.pubcomp(*packet_id).is_err());
            drop(state);
            world.step();
        }
    }

    /// Each message of QoS 2 once, of QoS 1 at least once, all of one publisher in their order.
    fn check(&self, world: &World, what: &str) {
        for at in 0..3 {
            for qos in 1..=2 {
                let topic = format!("t/{at}/{qos}");
                let mut got: Vec<usize> = self.got.iter().filter(|(its, _)| *its == topic).map(|(_, number)| *number).collect();
                if qos == 1 {
                    let mut most = None;
                    got.retain(|number| most.is_none_or(|most| *number > most) && most.replace(*number) != Some(*number));
                }
                let expected: Vec<usize> = (0..world.published).filter(|number| !world.skipped.contains(&(at, *number))).collect();
                let place =
                    got.iter().zip(&expected).position(|(one, other)| one != other).unwrap_or(got.len().min(expected.len()));
                assert!(
                    got == expected,
                    "{what}: of {topic} {} of {} came, other from {place} on: {:?}",
                    got.len(),
                    expected.len(),
                    &got[place.saturating_sub(2)..got.len().min(place + 5)]
                );
            }
        }
    }
}

#[test]
fn a_session_goes_with_its_client_and_nothing_is_lost_or_comes_twice() {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    for _ in 0..200 {
        world.publish();
        world.step();
    }
    for turn in [1, 2, 0, 1, 0, 2, 1] {
        assert!(client.come(&mut world, turn), "to {turn}");
        for _ in 0..10 {
            world.publish();
            world.step();
            client.take(&mut world);
        }
        if turn != 2 {
            client.leave(&mut world);
        }
    }
    assert!(client.come(&mut world, 1));
    client.take_all(&mut world);
    client.check(&world, "hops");
    assert_eq!(world.sessions(), [1]);
    let fetched: u64 = world.nodes.iter().map(|node| node.router.metrics().sessions_fetched.value()).sum();
    let yielded: u64 = world.nodes.iter().map(|node| node.router.metrics().sessions_yielded.value()).sum();
    assert_eq!((fetched, yielded), (7, 0));
    // What was left for the sake of others is gone once these know.
    (0..1_000).for_each(|_| world.step());
    for node in &world.nodes {
        let machine = node.router.handover.machine.lock();
        let left = (machine.ghosts.len(), machine.finished.len(), machine.leaving.len(), machine.coming.len());
        assert_eq!(left, (0, 0, 0, 0));
    }
    let filters: Vec<i64> = world.nodes.iter().map(|node| node.router.metrics().subscriptions.value()).collect();
    assert_eq!(filters, [0, 1, 0]);
}

/// An old broker that is down for long is told that the session has gone when it is back, and keeps nothing of it.
#[test]
fn an_old_broker_that_was_away_for_long_hears_what_became_of_the_session() {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    (0..30).for_each(|_| world.publish());
    assert!(client.come(&mut world, 1));
    // The new one has just written that it has all of it.
    world.net.dead.lock().insert(id(0), world.now);
    (0..20).for_each(|_| world.step());
    world.now += Duration::from_secs(300);
    (0..200).for_each(|_| world.step());
    world.net.dead.lock().remove(&id(0));
    (0..1_000).for_each(|_| world.step());
    client.take_all(&mut world);
    client.check(&world, "away for long");
    assert_eq!(world.sessions(), [1]);
    for node in &world.nodes {
        let machine = node.router.handover.machine.lock();
        assert_eq!((machine.ghosts.len(), machine.finished.len(), machine.leaving.len()), (0, 0, 0));
    }
}

/// Two clients with one name at two brokers: each throws the other out, and in the end both are slowed.
#[test]
fn who_fights_over_a_name_from_two_brokers_waits() {
    let mut world = World::new();
    let mut waits = Vec::new();
    for round in 0..60 {
        let at = round % 2;
        let node = &mut world.nodes[at];
        let (connection, _) = connect(&node.router, &mut node.batch, "fighter", SessionExpiry::WithConnection, world.now);
        waits.push(connection.wait);
        (0..20).for_each(|_| world.step());
        let other = &world.nodes[1 - at].router;
        assert!(!other.is_connected("fighter"), "round {round}");
    }
    assert!(waits[..10].iter().all(Duration::is_zero), "now and then is free: {waits:?}");
    assert!(waits[50..].iter().all(|wait| !wait.is_zero()), "{waits:?}");
    // A name that nobody fights over, and this one when all is forgotten.
    world.now += Duration::from_secs(60);
    for name in ["other", "fighter"] {
        let node = &mut world.nodes[2];
        let (connection, _) = connect(&node.router, &mut node.batch, name, SessionExpiry::WithConnection, world.now);
        assert!(connection.wait.is_zero(), "{name}");
        world.step();
    }
}

/// How many letters a move takes where all goes well.
fn letters_of_a_move() -> usize {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    world.publish();
    world.net.sent.store(0, Ordering::Relaxed);
    assert!(client.come(&mut world, 1));
    (0..400).for_each(|_| world.step());
    world.net.sent.load(Ordering::Relaxed)
}

#[test]
fn whatever_letter_is_lost_or_comes_twice_or_late_the_session_goes_with_its_client() {
    let letters = letters_of_a_move();
    assert!(letters >= 8, "{letters}");
    for number in 0..letters {
        for fate in [Fate::Lost, Fate::Twice, Fate::Late] {
            let what = format!("letter {number} {fate:?}");
            let mut world = World::new();
            let mut client = Client::begin(&mut world);
            (0..30).for_each(|_| world.publish());
            world.net.sent.store(0, Ordering::Relaxed);
            *world.net.fate.lock() = Some((number, fate));
            assert!(client.come(&mut world, 1), "{what}");
            client.take(&mut world);
            (0..200).for_each(|_| world.step());
            client.leave(&mut world);
            assert!(client.come(&mut world, 2), "{what}");
            client.take_all(&mut world);
            client.check(&world, &what);
            (0..400).for_each(|_| world.step());
            assert_eq!(world.sessions(), [2], "{what}");
        }
    }
}

#[test]
fn a_client_may_change_its_mind_at_any_time() {
    for steps in 0..24 {
        for second in [0, 2] {
            let what = format!("after {steps} steps to {second}");
            let mut world = World::new();
            let mut client = Client::begin(&mut world);
            (0..30).for_each(|_| world.publish());
            let first = Client::ask(&world, 1);
            for _ in 0..steps {
                world.publish();
                world.step();
            }
            // The first attempt may have become a connection by then.
            let node = &mut world.nodes[1];
            if steps % 2 == 0 && node.router.registry.contains_key("mover") && Client::ask(&world, 1).is_none() {
                assert!(client.come(&mut world, 1), "{what}");
                client.take(&mut world);
            }
            drop(first);
            assert!(client.come(&mut world, second), "{what}");
            client.take_all(&mut world);
            client.check(&world, &what);
            (0..400).for_each(|_| world.step());
            assert_eq!(world.sessions(), [second], "{what}");
        }
    }
}

#[test]
fn a_new_broker_that_dies_costs_nothing_before_it_has_the_session() {
    let mut gone_too_far = 0;
    for steps in 0..30 {
        let what = format!("dies after {steps} steps");
        let mut world = World::new();
        let mut client = Client::begin(&mut world);
        (0..30).for_each(|_| world.publish());
        let fetch = Client::ask(&world, 1).unwrap();
        (0..steps).for_each(|_| world.step());
        if fetch.poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            // It had it, on its disk: from there it comes back.
            gone_too_far += 1;
            continue;
        }
        drop(fetch);
        world.net.dead.lock().insert(id(1), world.now);
        world.nodes[1].router.registry.clear();
        assert!(client.come(&mut world, 0), "{what}");
        client.take_all(&mut world);
        client.check(&world, &what);
        assert_eq!(world.sessions(), [0], "{what}");
    }
    assert!((1..25).contains(&gone_too_far), "{gone_too_far}");
}

#[test]
fn an_old_broker_that_cannot_be_reached_is_given_up_and_yields_when_it_is_back() {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    (0..30).for_each(|_| world.publish());
    world.net.dead.lock().insert(id(0), world.now);
    assert!(!client.come(&mut world, 1), "a new session");
    assert_eq!(world.nodes[1].router.metrics().sessions_unreachable.value(), 1);
    // Registers come all the same here.
    world.net.dead.lock().clear();
    (0..20).for_each(|_| world.step());
    assert_eq!(world.sessions(), [1]);
    let metrics = world.nodes[0].router.metrics();
    assert_eq!(metrics.sessions_yielded.value(), 1);
    assert!(metrics.dropped_yielded.value() >= 180, "what waited is counted: {}", metrics.dropped_yielded.value());
}

/// Ends a thread however its scope ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Links and moves are different threads' work.
#[test]
fn what_is_being_delivered_while_a_session_settles_is_in_it_once() {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    world.burst = 60;
    for turn in 0..10 {
        let at = 1 - turn % 2;
        let (router, post) = (Arc::clone(&world.nodes[at].router), Arc::clone(&world.nodes[at].post));
        let (clock, is_over) = (Arc::clone(&world.clock), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut batch = Batch::default();
                while !is_over.load(Ordering::Relaxed) {
                    let now = *clock.lock();
                    let _ = router.drive_moves(&mut batch, post.receive(), now);
                    router.finish(&mut batch, now);
                }
            });
            let _over = Over(&is_over);
            assert!(client.come(&mut world, at), "turn {turn}");
        });
        client.take_all(&mut world);
        client.leave(&mut world);
    }
    assert!(client.come(&mut world, 2));
    while client.got.len() < 6 * world.published {
        let before = client.got.len();
        client.take_all(&mut world);
        if client.got.len() == before {
            break;
        }
    }
    client.check(&world, "two threads");
}

#[test]
fn a_broker_that_is_cut_off_for_a_moment_is_waited_for() {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    (0..30).for_each(|_| world.publish());
    world.net.dead.lock().insert(id(0), world.now);
    let fetch = Client::ask(&world, 1).unwrap();
    (0..500).for_each(|_| world.step());
    assert!(fetch.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    world.net.dead.lock().clear();
    assert_eq!(client.wait(&mut world, &fetch), Verdict::Proceed);
    assert!(client.come(&mut world, 1));
    client.take_all(&mut world);
    client.check(&world, "cut off");
    assert_eq!(world.sessions(), [1]);
}

#[test]
fn of_two_connections_of_a_client_that_wait_the_newer_is_served() {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    let first = Client::ask(&world, 1).unwrap();
    (0..2).for_each(|_| world.step());
    let second = Client::ask(&world, 1).unwrap();
    assert_eq!(client.wait(&mut world, &second), Verdict::Proceed);
    assert_eq!(client.wait(&mut world, &first), Verdict::Refused);
}

#[test]
fn two_brokers_that_ask_each_other_both_come_to_an_end() {
    let mut world = World::new();
    let mut client = Client { at: 0, connection: None, open: BTreeSet::new(), got: Vec::new() };
    for (node, other) in [(1, 2), (2, 1)] {
        let went = (id(other), world.now);
        world.nodes[node].router.handover.forwarded.insert(Arc::from("mover"), went);
    }
    let (first, second) = (Client::ask(&world, 1).unwrap(), Client::ask(&world, 2).unwrap());
    let verdicts = [client.wait(&mut world, &first), client.wait(&mut world, &second)];
    assert!(verdicts.contains(&Verdict::Proceed), "{verdicts:?}");
    assert!(!client.come(&mut world, 1), "there was none");
}

#[test]
fn who_has_just_begun_asks_nobody_anew_before_it_knows_what_others_have() {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    // What is known of the first broker is void.
    let claims = &world.nodes[1].router.claims;
    claims.joined(id(0));
    let fetch = Client::ask(&world, 1).unwrap();
    (0..100).for_each(|_| world.step());
    assert!(fetch.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let claimed = world.nodes[2].router.newest_claim("mover", world.now).unwrap();
    let claims = &world.nodes[1].router.claims;
    let claim = Value::Claim(Claim { stamp: claimed.0 });
    claims.changed(id(0), &[(Key::Session(Arc::from("mover")), Some(claim))]);
    claims.known(id(0));
    assert_eq!(client.wait(&mut world, &fetch), Verdict::Proceed);
    assert!(client.come(&mut world, 1), "its session has come");
    // A claim that comes to light between the two looks.
    client.leave(&mut world);
    let router = &world.nodes[0].router;
    let theirs = router.newest_claim("mover", world.now).unwrap();
    assert_eq!(theirs.1, id(1));
    assert!(router.is_elsewhere("mover", None, world.now), "it is not to be begun anew");
}

#[test]
fn a_session_of_many_pages_comes_whole() {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    world.burst = 60;
    for _ in 0..40 {
        world.publish();
        world.step();
    }
    let (content, mut bytes) = (MovedContent::of(&world.nodes[0].router.session("mover").unwrap().lock()), Vec::new());
    content.encode(world.now, &mut bytes);
    let bytes = bytes.len();
    assert!(bytes > 2 * crate::limits::HANDOVER_PAGES_AT_ONCE * crate::limits::HANDOVER_PAGE_BYTES, "{bytes}");
    assert!(client.come(&mut world, 1));
    client.take_all(&mut world);
    while client.got.len() < 6 * world.published {
        let before = client.got.len();
        client.take_all(&mut world);
        assert!(client.got.len() > before, "{before} of {}", 6 * world.published);
    }
    client.check(&world, "many pages");
}

/// The first broker is to be empty; steps until it is, or fails.
fn empty(world: &mut World, what: &str) {
    world.nodes[0].router.refuse_clients(true);
    world.nodes[0].router.give_sessions_away(true);
    for step in 0..4_000 {
        if step % 8 == 0 && world.published < 4_000 {
            world.publish();
        }
        world.step();
        if world.nodes[0].router.census() == (Census { clients: 1, sessions: 1 }) {
            return;
        }
    }
    panic!("{what}: it is never empty: {:?}", world.nodes[0].router.handover.machine.lock());
}

#[test]
fn whatever_letter_is_lost_or_comes_twice_or_late_a_session_leaves_without_its_client() {
    let letters = letters_of_a_move() + 1;
    for number in 0..letters {
        for fate in [Fate::Lost, Fate::Twice, Fate::Late] {
            let what = format!("letter {number} {fate:?}");
            let mut world = World::new();
            let mut client = Client::begin(&mut world);
            (0..30).for_each(|_| world.publish());
            world.net.sent.store(0, Ordering::Relaxed);
            *world.net.fate.lock() = Some((number, fate));
            empty(&mut world, &what);
            (0..400).for_each(|_| world.step());
            assert_eq!(world.nodes[0].router.leaving(), 0, "{what}");
            let has_it = world.sessions();
            assert!(has_it == [1] || has_it == [2], "{what}: {has_it:?}");
            // It comes where it is, or is fetched from there.
            assert!(client.come(&mut world, 1 + number % 2), "{what}");
            client.take_all(&mut world);
            client.check(&world, &what);
            let yielded: u64 = world.nodes.iter().map(|node| node.router.metrics().sessions_yielded.value()).sum();
            assert_eq!(yielded, 0, "{what}");
        }
    }
}

#[test]
fn a_client_that_comes_while_its_session_leaves_without_it_finds_it() {
    for (steps, at) in (0..24).step_by(2).flat_map(|steps| (0..3).map(move |at| (steps, at))) {
        let what = format!("after {steps} steps at {at}");
        let mut world = World::new();
        let mut client = Client::begin(&mut world);
        (0..30).for_each(|_| world.publish());
        world.nodes[0].router.give_sessions_away(true);
        for _ in 0..steps {
            world.publish();
            world.step();
        }
        assert!(client.come(&mut world, at), "{what}");
        world.nodes[0].router.give_sessions_away(false);
        client.take_all(&mut world);
        client.check(&world, &what);
        (0..400).for_each(|_| world.step());
        assert_eq!(world.sessions(), [at], "{what}");
    }
}

#[test]
fn a_session_that_leaves_without_its_client_does_not_win_against_one_with_it() {
    // The client has begun anew at a third broker, of which the others hear after so many steps.
    for steps in (0..60).step_by(4) {
        let what = format!("heard after {steps} steps");
        let mut world = World::new();
        let client = Client::begin(&mut world);
        (0..30).for_each(|_| world.publish());
        world.silent = Some(2);
        let node = &mut world.nodes[2];
        let (connection, _) = connect_as(&node.router, &mut node.batch, "mover", (true, HOUR), world.now);
        drop(client);
        world.step();
        world.nodes[0].router.refuse_clients(true);
        world.nodes[0].router.give_sessions_away(true);
        (0..steps).for_each(|_| world.step());
        if steps == 56 {
            assert_eq!(world.sessions(), [1, 2], "{what}: it is a test of nothing otherwise");
        }
        world.speak();
        (0..400).for_each(|_| world.step());
        assert_eq!(world.sessions(), [2], "{what}");
        assert!(connection.subscriber.is_latest(connection.epoch), "{what}: its connection was closed");
    }
}

#[test]
fn who_lets_nobody_in_any_more_takes_no_session_that_was_on_its_way() {
    let (mut came, mut stayed) = (0, 0);
    for steps in (0..30).step_by(3) {
        let what = format!("after {steps} steps");
        let mut world = World::new();
        let mut client = Client::begin(&mut world);
        (0..30).for_each(|_| world.publish());
        let fetch = Client::ask(&world, 1).unwrap();
        (0..steps).for_each(|_| world.step());
        world.nodes[1].router.refuse_clients(true);
        match client.wait(&mut world, &fetch) {
            Verdict::Proceed => came += 1,
            Verdict::Refused => stayed += 1,
        }
        (0..400).for_each(|_| world.step());
        assert_eq!(world.nodes[1].router.coming(), 0, "{what}");
        assert!(client.come(&mut world, 2), "{what}");
        client.take_all(&mut world);
        client.check(&world, &what);
    }
    assert!(came > 0 && stayed > 0, "{came} {stayed}");
}

#[test]
fn who_takes_nobody_in_gets_no_session_and_the_next_one_does_at_once() {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    (0..30).for_each(|_| world.publish());
    // One of the two takes nobody in, and says so.
    world.nodes[1].router.refuse_clients(true);
    let begun = world.now;
    empty(&mut world, "one takes nothing");
    assert_eq!(world.sessions(), [2]);
    let took = world.now.saturating_duration_since(begun);
    assert!(took < Duration::from_millis(1_900), "it was waited for: {took:?}");
    world.nodes[1].router.refuse_clients(false);
    assert!(client.come(&mut world, 1));
    client.take_all(&mut world);
    client.check(&world, "the next one");
}

#[test]
fn a_session_of_whom_nobody_can_tell_what_he_may_do_stays_where_it_is() {
    for (node, standing) in [(1, Standing::Unsure as fn(_) -> _), (2, Standing::Gone)] {
        let mut world = World::new();
        Client::begin(&mut world);
        let access = Access::new(Identity::Anonymous, Place { index: Some(0), bind: "192.0.2.1:1884".into() }, None);
        world.nodes[0].router.session("mover").unwrap().set_access(Some(Arc::new(access)));
        // The other one is not asked.
        world.nodes[3 - node].router.refuse_clients(true);
        world.nodes[node].router.judge_by(Box::new(move |access| standing(Arc::new(access.shut_out()))));
        world.nodes[0].router.give_sessions_away(true);
        (0..1_000).for_each(|_| world.step());
        assert_eq!(world.sessions(), [0], "{node}");
        assert_eq!(world.nodes[0].router.session("mover").unwrap().lock().expiry, HOUR, "offers take nothing of its time");
    }
}

#[test]
fn who_is_to_leave_itself_is_offered_nothing() {
    let mut world = World::new();
    Client::begin(&mut world);
    world.nodes[1].router.set_leaving(true);
    (0..100).for_each(|_| world.step());
    assert_eq!(world.nodes[0].router.takers(), [id(2)]);
    world.nodes[2].router.set_leaving(true);
    (0..100).for_each(|_| world.step());
    world.nodes[0].router.give_sessions_away(true);
    (0..1_000).for_each(|_| world.step());
    assert_eq!((world.nodes[0].router.takers(), world.sessions()), (vec![], vec![0]));
    world.nodes[1].router.set_leaving(false);
    empty(&mut world, "one takes sessions again");
    assert_eq!(world.sessions(), [1]);
}

#[test]
fn what_is_left_of_a_sessions_time_goes_along_and_a_will_that_waits_holds_it_back() {
    let mut world = World::new();
    Client::begin(&mut world);
    let begun = world.now;
    let node = &mut world.nodes[0];
    let subscriber = node.router.session("mover").unwrap();
    let (payload, properties) = (bytes::Bytes::from_static(b"w"), bytes::Bytes::new());
    let message = StoredMessage { topic: "w".into(), payload, qos: QoS::AtLeastOnce, retain: false, expires_at: None, properties };
    let delay = Duration::from_secs(3);
    subscriber.lock().will = Some(Box::new(Will { message, message_expiry: None, delay }));
    let epoch = subscriber.lock().epoch;
    node.router.add_deadline(world.now + delay, Due::Will, &subscriber, epoch);
    empty(&mut world, "a will");
    let waited = world.now.saturating_duration_since(begun);
    assert!((Duration::from_secs(3)..Duration::from_secs(10)).contains(&waited), "{waited:?}");
    let at = world.sessions()[0];
    let SessionExpiry::After(left) = world.nodes[at].router.session("mover").unwrap().lock().expiry else { panic!("for ever") };
    let gone = Duration::from_secs(3_600).saturating_sub(left);
    assert!(gone >= Duration::from_secs(3) && gone <= waited + Duration::from_secs(1), "{gone:?}");
}

#[test]
fn the_session_of_a_bridge_goes_where_it_is_passed_and_is_taken_by_nobody_else() {
    let mut world = World::new();
    let mut client = Client::begin(&mut world);
    (0..30).for_each(|_| world.publish());
    let identity = Identity::Bridge { client_id: "mover".into() };
    let bridge = Arc::new(Access::new(identity, Place::default(), None));
    let subscriber = world.nodes[0].router.session("mover").unwrap();
    subscriber.set_access(Some(Arc::clone(&bridge)));
    // Those of bridges are not claimed.
    world.nodes[0].router.release(&Arc::from("mover"));
    for node in &world.nodes {
        let bridge = Arc::clone(&bridge);
        node.router.judge_by(Box::new(move |access| match access.identity() == bridge.identity() {
            true => Standing::Good(Arc::clone(&bridge)),
            false => Standing::Good(Arc::new(access.shut_out())),
        }));
    }
    world.nodes[0].router.give_sessions_away(true);
    for (from, to) in [
        (None, None),
        (Some(Passing::To(id(1))), None),
        (None, Some(Passing::From(id(0)))),
        (Some(Passing::To(id(1))), Some(Passing::From(id(2)))),
        (Some(Passing::To(id(2))), Some(Passing::From(id(0)))),
    ] {
        world.nodes[0].router.pass_bridge("mover", from);
        world.nodes[1].router.pass_bridge("mover", to);
        (0..500).for_each(|_| world.step());
        assert_eq!(world.sessions(), [0], "{from:?} {to:?}");
    }
    // A session that is waited for is the bridge's own, and the bridge's comes under its own name only.
    let router = Arc::clone(&world.nodes[1].router);
    for (client_id, owner, is_good) in
        [("mover", &*bridge.owner(), true), ("mover", "a@0::", false), ("other", &*bridge.owner(), false)]
    {
        assert_eq!(router.judge_owner(client_id, owner).is_ok(), is_good, "{client_id} {owner}");
    }
    world.nodes[0].router.pass_bridge("mover", Some(Passing::To(id(1))));
    for step in 0..2_000 {
        if step % 8 == 0 {
            world.publish();
        }
        world.step();
        if world.sessions() == [1] {
            break;
        }
    }
    assert_eq!(world.sessions(), [1]);
    let node = &mut world.nodes[1];
    let request = ConnectRequest {
        client_id: "mover",
        clean_start: false,
        expiry: HOUR,
        silence_max: None,
        will: None,
        connected: Connected { version: ProtocolVersion::V5, window: 20, packet_bytes_max: usize::MAX, topic_alias_max: 0 },
        address: None,
        access: Some(Arc::clone(&bridge)),
    };
    let connection = node.router.connect(&mut node.batch, request, |present| vec![u8::from(present)], world.now).unwrap();
    node.router.finish(&mut node.batch, world.now);
    // In place of the CONNACK.
    let mut drained = Drained::default();
    connection.subscriber.lock().outbox.take(&mut drained);
    let connack = drained.segments.iter().flat_map(|segment| segment.bytes().to_vec()).chain(drained.tail).next();
    assert_eq!(connack, Some(1), "its session is there");
    (client.at, client.connection) = (1, Some(connection));
    client.take_all(&mut world);
    client.check(&world, "a bridge");
}

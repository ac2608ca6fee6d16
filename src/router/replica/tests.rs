//! One broker, with its letters: what it says to another that is only heard, and what it makes of what that one says.

mod wills;

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::keeper::{Keepers, Promotion};
use super::owner::Owner;
use super::word::{Item, Letter};
use super::{encode_copy, encode_head, left_of};
use crate::codec::{PacketId, ProtocolVersion, QoS, RetainHandling};
use crate::config::SharedStrategy;
use crate::frame::Reader;
use crate::ids::{BrokerId, LaneId, LogId, MessageId, OriginLane};
use crate::interest::{Interest, Mode, Rules};
use crate::limits::{REGISTER_FILTERS_MAX, REPLICA_COPIES_BYTES, REPLICA_LETTER_BYTES};
use crate::metrics::Metrics;
use crate::replication::{Covers, MeshMessage, Picks, Replication, ReplicationConfig};
use crate::router::handover::{Turn, put_covers};
use crate::router::{Batch, ConnectRequest, Connection, Farewell, LinkDelivery, Router, RouterLimits, Subscribe};
use crate::session::{
    Awaited, Connected, Copy, Journal, NextToSend, OutboundLimits, SessionExpiry, Stage, Subscriber, SubscriberId,
    SubscriptionOptions, Will,
};
use crate::shared::register::{Follow as _, Key, Registers, Value};
use crate::shared::{Carry, Post, StampClock};

const OWN: BrokerId = BrokerId(1);
pub(super) const OTHER: BrokerId = BrokerId(2);
const HOUR: SessionExpiry = SessionExpiry::After(Duration::from_secs(3_600));
const LIMITS: OutboundLimits = OutboundLimits {
    inflight_max: 20,
    inflight_bytes_max: 1_000_000,
    queued_messages_max: 1_000,
    queued_bytes_max: 1_000_000,
    drop_oldest: false,
    queue_qos0: false,
};

/// Takes all letters, and brings them nowhere.
#[derive(Default)]
struct Wire {
    letters: Mutex<Vec<Vec<u8>>>,
    lost: Mutex<Option<(BrokerId, Instant)>>,
}

impl Carry for Wire {
    fn carry(&self, _: BrokerId, body: &[u8]) -> bool {
        self.letters.lock().push(body.to_vec());
        true
    }

    fn lost_since(&self, to: BrokerId) -> Option<Instant> {
        self.lost.lock().filter(|(lost, _)| *lost == to).map(|(_, since)| since)
    }

    fn reached(&self) -> Vec<BrokerId> {
        vec![OTHER]
    }
}

pub(super) struct Rig {
    pub(super) now: Instant,
    pub(super) router: Arc<Router>,
    pub(super) journal: Arc<Journal>,
    mesh: Arc<Replication>,
    post: Arc<Post>,
    wire: Arc<Wire>,
    batch: Batch,
    _carrier: Arc<dyn Carry>,
}

impl Rig {
    pub(super) fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
        let now = Instant::now();
        let journal = Journal::new();
        let limits = RouterLimits { outbound: LIMITS, shared: SharedStrategy::default() };
        let router = Arc::new(Router::new(limits, Arc::new(Metrics::default()), Some(Arc::clone(&journal)), now));
        router.share_retained(StampClock::new(OWN.0, Duration::from_secs(1_800_000_000), now), Duration::from_secs(60));
        router.join_registers(Registers::new(OWN, Duration::from_secs(900), REGISTER_FILTERS_MAX));
        router.claims.joined(OTHER);
        router.claims.known(OTHER);
        let config = ReplicationConfig {
            origin: OWN,
            log: LogId(100),
            lanes_per_class: 2,
            ring_blocks: 1 << 10,
            ring_bytes: 1 << 20,
            ring_age: Duration::from_secs(600),
            slows_publishers: true,
            hop_max: 255,
            message_bytes_max: 1_000_000,
        };
        let interest = Arc::new(Interest::new(OWN, Rules::new(Mode::Interest, [])));
        let mesh = Replication::with_interest(config, interest, now);
        router.join_mesh(Arc::clone(&mesh));
        let (wire, post) = (Arc::<Wire>::default(), Arc::<Post>::default());
        let carrier: Arc<dyn Carry> = Arc::clone(&wire) as Arc<dyn Carry>;
        post.open(Arc::downgrade(&carrier));
        router.join_post(Arc::clone(&post));
        Self { now, router, journal, mesh, post, wire, batch: Batch::default(), _carrier: carrier }
    }

    pub(super) fn with<T>(&mut self, act: impl FnOnce(&mut Turn<'_>) -> T) -> T {
        let Self { now, router, mesh, post, batch, .. } = self;
        let done = act(&mut Turn { router, mesh, post, own: OWN, batch, now: *now });
        router.finish(batch, *now);
        done
    }

    /// The disk.
    pub(super) fn commit(&self) {
        if let Some(number) = self.journal.take(&mut Vec::new(), Duration::ZERO) {
            self.journal.commit(number);
        }
    }

    /// What was sent since this was asked last.
    pub(super) fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.wire.letters.lock())
    }

    /// That broker cannot be reached any more.
    fn lose(&self, broker: BrokerId) {
        *self.wire.lost.lock() = Some((broker, self.now));
    }

    /// There is a way to all.
    fn find(&self) {
        *self.wire.lost.lock() = None;
    }

    /// That broker says that its replicas are here.
    fn named_by(&self, broker: BrokerId) {
        self.router.claims.changed(broker, &[(Key::Replica, Some(Value::Replica(OWN)))]);
    }

    /// A message of the other broker comes by a lane.
    fn arrive(&self, topic: &str, sequence: u64, qos: QoS) {
        self.arrive_with(topic, sequence, qos, b"x");
    }

    fn arrive_with(&self, topic: &str, sequence: u64, qos: QoS, payload: &[u8]) {
        let (picks, properties) = (Picks::NONE, b"".as_slice());
        let message = MeshMessage { topic, payload, qos, retain: false, expiry_seconds: None, properties, stamp: None, picks };
        let mut delivery = LinkDelivery::new(Arc::clone(&self.router));
        delivery.deliver(&message, id(sequence), self.now);
        delivery.flush(self.now);
    }

    /// A client is here, with a new session that outlives its connection.
    pub(super) fn connect(&mut self, client_id: &str) -> Connection {
        self.connect_to(client_id, true)
    }

    /// It comes once more.
    fn resume(&mut self, client_id: &str) -> Connection {
        self.connect_to(client_id, false)
    }

    fn disconnect(&mut self, connection: &Connection) {
        self.router.disconnect(&mut self.batch, connection, Farewell::Normal, None, self.now);
        self.router.finish(&mut self.batch, self.now);
    }

    fn connect_to(&mut self, client_id: &str, clean_start: bool) -> Connection {
        self.connect_with(client_id, (clean_start, HOUR), None)
    }

    /// The task that reads letters and claims has a turn.
    fn drive_moves(&mut self) {
        self.router.drive_moves(&mut self.batch, [], self.now);
        self.router.finish(&mut self.batch, self.now);
    }

    /// After that time all is done that is due.
    fn expire(&mut self, after: Duration) {
        self.now += after;
        self.router.expire(&mut self.batch, self.now);
        self.router.finish(&mut self.batch, self.now);
    }

    fn connect_with(&mut self, client_id: &str, (clean_start, expiry): (bool, SessionExpiry), will: Option<Will>) -> Connection {
        let request = ConnectRequest {
            client_id,
            clean_start,
            expiry,
            silence_max: None,
            will,
            connected: Connected { version: ProtocolVersion::V5, window: 20, packet_bytes_max: usize::MAX, topic_alias_max: 0 },
            address: None,
            access: None,
        };
        let connection = self.router.connect(&mut self.batch, request, |_| Vec::new(), self.now).unwrap();
        self.router.finish(&mut self.batch, self.now);
        connection
    }

    pub(super) fn subscribe(&self, connection: &Connection, filter: &str) {
        let request = Subscribe { filter, options: options(), retain_handling: RetainHandling::DoNotSend };
        self.router.subscribe(connection, &request).unwrap();
    }
}

fn options() -> SubscriptionOptions {
    SubscriptionOptions { qos: QoS::ExactlyOnce, no_local: false, retain_as_published: false, subscription_id: None }
}

fn id(sequence: u64) -> MessageId {
    MessageId { origin_lane: lane(), sequence }
}

fn lane() -> OriginLane {
    OriginLane { origin: OTHER, log: LogId(7), lane: LaneId(2) }
}

fn encode(items: &[Item<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    items.iter().for_each(|item| item.encode(&mut out));
    out
}

/// A session of another broker's, subscribed to `t`, whose client leaves now.
fn head(client_id: &str, claim: u64, expiry: SessionExpiry) -> Vec<u8> {
    head_left(client_id, claim, expiry, Duration::ZERO)
}

/// Likewise, whose client left so long ago.
fn head_left(client_id: &str, claim: u64, expiry: SessionExpiry, left: Duration) -> Vec<u8> {
    let subscriber = Subscriber::new(SubscriberId(1), Arc::from(client_id), LIMITS, None);
    let mut state = subscriber.lock();
    (state.claimed, state.expiry) = (claim, expiry);
    state.subscriptions.insert("t".into(), options());
    encode_head(&subscriber, &state, Some(left))
}

/// The replicas that a broker has of others' sessions, and how many letters it has had of each of these.
struct Kept {
    rig: Rig,
    keepers: Keepers,
    numbers: std::collections::BTreeMap<BrokerId, u64>,
}

impl Kept {
    fn new() -> Self {
        Self { rig: Rig::new(), keepers: Keepers::default(), numbers: Default::default() }
    }

    /// A letter of that broker's, in its only stream.
    fn hear(&mut self, from: BrokerId, items: &[Item<'_>]) {
        let number = self.numbers.entry(from).or_default();
        *number += 1;
        let Self { rig, keepers, .. } = self;
        rig.with(|turn| keepers.items(turn, (from, 1), *number, &encode(items)));
    }

    /// That broker has a session with a whole replica here.
    fn guard(&mut self, from: BrokerId, session: u64, head: &[u8]) {
        let mut covers = Vec::new();
        put_covers(&mut covers, &Covers::new());
        let copy = encode_copy(&Copy::default(), self.rig.now);
        self.hear(from, &[Item::Head { session, bytes: head }, Item::Round { round: session }]);
        let copied = Item::Copied { round: session, covers: &covers };
        self.hear(from, &[Item::Copy { session, bytes: &copy }, copied, Item::Guarded { session }]);
    }

    /// That broker is there, and has nothing new.
    fn ping(&mut self, from: BrokerId) {
        let Self { rig, keepers, .. } = self;
        rig.with(|turn| keepers.items(turn, (from, 1), 0, &[]));
    }

    /// One turn; what the broker has said since the last.
    fn turn(&mut self) -> Vec<Said> {
        let Self { rig, keepers, .. } = self;
        rig.with(|turn| keepers.drive(turn));
        let said = |letter: Vec<u8>| match Letter::decode(&letter) {
            Ok((_, Letter::Answer { known, held })) => Some(Said::Answer { known, held }),
            Ok((_, Letter::Lost { session })) => Some(Said::Lost(session)),
            _ => None,
        };
        rig.sent().into_iter().filter_map(said).collect()
    }

    fn wait(&mut self, time: Duration) {
        self.rig.now += time;
    }
}

/// The sessions of a broker of which another has replicas.
struct Owned {
    rig: Rig,
    owner: Owner,
    stream: u64,
    /// The last letter.
    last: u64,
    /// What was sent since the other broker answered last, bytes.
    bytes: usize,
    rounds: u64,
}

/// What an item is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Head,
    Round(u64),
    Copy,
    Copied,
    Session { claim: u64, is_connected: bool },
    Guarded,
    Ended(u64),
    Will { session: u64, is_away: bool, is_durable: bool },
    WillGone(u64),
    Word,
}

impl Owned {
    fn new() -> Self {
        Self { rig: Rig::new(), owner: Owner::default(), stream: 0, last: 0, bytes: 0, rounds: 0 }
    }

    /// One turn after that time; what is told in it that was not before.
    fn turn(&mut self, time: Duration) -> Vec<Told> {
        self.rig.now += time;
        self.rig.commit();
        let Self { rig, owner, .. } = self;
        rig.with(|turn| owner.drive(turn));
        let mut told = Vec::new();
        for letter in self.rig.sent() {
            let Ok((stream, Letter::Items { number, items })) = Letter::decode(&letter) else { continue };
            // Others are repeats.
            if (stream, number) <= (self.stream, self.last) {
                continue;
            }
            (self.stream, self.last) = (stream, number);
            self.bytes += items.len();
            let mut reader = Reader::new(items);
            while !reader.is_empty() {
                told.push(match Item::read(&mut reader).unwrap() {
                    Item::Head { .. } => Told::Head,
                    Item::Round { round } => Told::Round(round),
                    Item::Copy { .. } => Told::Copy,
                    Item::Copied { .. } => Told::Copied,
                    Item::Session { claim, left, .. } => Told::Session { claim, is_connected: left.is_none() },
                    Item::Guarded { .. } => Told::Guarded,
                    Item::Ended { session } => Told::Ended(session),
                    Item::Will { session, left, is_durable, .. } => Told::Will { session, is_away: left.is_some(), is_durable },
                    Item::WillGone { session } => Told::WillGone(session),
                    _ => Told::Word,
                });
            }
        }
        told
    }

    /// The other broker says that it knows all, and has all up to that letter.
    fn answer(&mut self, held: u64) {
        self.bytes = 0;
        self.owner.answered((OTHER, self.stream), (self.last, held), self.rig.now);
    }

    /// Until a round begins.
    fn begin_round(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        for _ in 0..10 {
            told.append(&mut self.turn(Duration::from_millis(60)));
            self.answer(self.last);
            let number = told.iter().find_map(|told| if let Told::Round(number) = told { Some(*number) } else { None });
            if let Some(number) = number.filter(|number| *number > self.rounds) {
                self.rounds = number;
                return told;
            }
        }
        panic!("no round begins: {told:?}");
    }

    /// The other broker has begun to take in itself what is published; what it is told of the sessions then.
    fn cut(&mut self) -> Vec<Told> {
        self.owner.cut((OTHER, self.stream), self.rounds, (0, 1), Covers::new());
        // What is copied is safe a turn later.
        let mut told = self.turn(Duration::from_millis(5));
        told.append(&mut self.turn(Duration::from_millis(5)));
        self.answer(self.last);
        told
    }

    /// It has all of it.
    fn whole(&mut self) {
        let (line, round) = ((OTHER, self.stream), self.rounds);
        let Self { rig, owner, .. } = self;
        rig.with(|turn| owner.whole(turn, line, round));
        assert_eq!(self.turn(Duration::from_millis(5)), [Told::Guarded]);
        self.answer(self.last);
        self.turn(Duration::from_millis(5));
    }

    /// A client is here whose session has a replica.
    fn guarded(client_id: &str) -> (Self, Connection) {
        let mut owned = Self::new();
        let connection = owned.rig.connect(client_id);
        owned.rig.subscribe(&connection, "t");
        owned.begin_round();
        owned.cut();
        owned.whole();
        (owned, connection)
    }

    /// What the client waits for.
    fn awaited(connection: &Connection) -> Awaited {
        match connection.subscriber.lock().next_to_send() {
            NextToSend::After(awaited) => awaited,
            other => panic!("{other:?}"),
        }
    }

    fn given_up(&self) -> u64 {
        self.rig.router.metrics().replicas_given_up.value()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Said {
    Answer { known: u64, held: u64 },
    Lost(u64),
}

#[test]
fn a_message_that_was_sent_before_its_placing_was_told_is_awaited_too() {
    let mut kept = Kept::new();
    kept.guard(OTHER, 1, &head("c", 1, HOUR));
    assert_eq!(kept.turn(), [Said::Answer { known: 2, held: 2 }]);
    let placed = Item::Placed { session: 1, order: 1, sequence: 5, qos: QoS::ExactlyOnce, stage: Stage::Queued };
    let staged = Item::Staged { session: 1, order: 1, stage: Stage::Published(0) };
    kept.hear(OTHER, &[staged, Item::Lane(lane()), placed]);
    assert_eq!(kept.turn(), [Said::Answer { known: 3, held: 2 }], "the message has not arrived");
    kept.rig.arrive("t", 5, QoS::ExactlyOnce);
    assert_eq!(kept.turn(), [Said::Answer { known: 3, held: 3 }]);
}

#[test]
fn letters_that_come_before_their_turn_are_known_when_the_one_before_them_has_come() {
    let mut kept = Kept::new();
    kept.guard(OTHER, 1, &head("c", 1, HOUR));
    kept.turn();
    let mut say = |number| {
        let staged = encode(&[Item::Staged { session: 1, order: number, stage: Stage::Queued }]);
        let Kept { rig, keepers, .. } = &mut kept;
        rig.with(|turn| keepers.items(turn, (OTHER, 1), number, &staged));
        kept.turn().pop()
    };
    let known = |known| Some(Said::Answer { known, held: known });
    assert_eq!([5, 4, 5, 3].map(&mut say), [known(2), known(2), known(2), known(5)]);
    assert_eq!([4, 7, 6].map(say), [known(5), known(5), known(7)]);
}

/// Of others all goes on: it is given up by itself, and holds up nobody.
#[test]
fn a_replica_whose_message_does_not_arrive_is_over_after_a_second() {
    let mut kept = Kept::new();
    kept.guard(OTHER, 1, &head("late", 1, HOUR));
    kept.guard(OTHER, 2, &head("other", 1, HOUR));
    let placed = |session, sequence, qos| Item::Placed { session, order: 1, sequence, qos, stage: Stage::Published(0) };
    kept.hear(OTHER, &[Item::Lane(lane()), placed(1, 5, QoS::ExactlyOnce)]);
    kept.hear(OTHER, &[Item::Lane(lane()), placed(2, 6, QoS::AtLeastOnce)]);
    assert_eq!(kept.turn(), [Said::Answer { known: 6, held: 4 }]);
    kept.wait(Duration::from_millis(900));
    kept.ping(OTHER);
    assert_eq!(kept.turn(), [Said::Answer { known: 6, held: 4 }]);
    kept.wait(Duration::from_millis(100));
    assert_eq!(kept.turn(), [], "nobody asks any more");
    kept.ping(OTHER);
    let said = kept.turn();
    assert!(said.contains(&Said::Answer { known: 6, held: 6 }), "{said:?}");
    kept.wait(Duration::from_millis(250));
    assert_eq!(kept.turn(), [Said::Lost(1)], "the other one is as it was");
    kept.rig.arrive("t", 7, QoS::AtLeastOnce);
    assert_eq!(kept.rig.router.metrics().dropped_queue_full.value(), 0, "what comes for a replica that is over is not lost");
}

/// Who dies before its message has come to the replica has not sent it.
#[test]
fn a_replica_whose_message_does_not_arrive_because_its_broker_has_died_goes_on() {
    let mut kept = Kept::new();
    kept.guard(OTHER, 1, &head("c", 1, HOUR));
    let stage = Stage::Published(0);
    kept.hear(OTHER, &[Item::Lane(lane()), Item::Placed { session: 1, order: 1, sequence: 5, qos: QoS::ExactlyOnce, stage }]);
    kept.turn();
    kept.rig.lose(OTHER);
    kept.rig.named_by(OTHER);
    for _ in 0..12 {
        kept.wait(Duration::from_millis(250));
        kept.turn();
    }
    let Kept { rig, keepers, .. } = &mut kept;
    assert_eq!(rig.with(|turn| keepers.promote(turn, &Arc::from("c"), 9, true)), Promotion::Done);
}

/// Nor is it over when they have not heard of each other for a while.
#[test]
fn a_message_is_waited_for_anew_when_there_is_a_way_again() {
    let mut kept = Kept::new();
    kept.guard(OTHER, 1, &head("c", 1, HOUR));
    let stage = Stage::Published(0);
    kept.hear(OTHER, &[Item::Lane(lane()), Item::Placed { session: 1, order: 1, sequence: 5, qos: QoS::ExactlyOnce, stage }]);
    kept.wait(Duration::from_secs(3));
    kept.ping(OTHER);
    assert_eq!(kept.turn(), [Said::Answer { known: 3, held: 2 }]);
    kept.wait(Duration::from_millis(500));
    kept.rig.arrive("t", 5, QoS::ExactlyOnce);
    assert_eq!(kept.turn(), [Said::Answer { known: 3, held: 3 }]);
}

#[test]
fn nobody_waits_longer_than_two_seconds_for_one_word_while_others_go_on() {
    let (mut owned, connection) = Owned::guarded("c");
    owned.rig.arrive("t", 1, QoS::ExactlyOnce);
    let before = owned.last;
    assert_ne!(owned.turn(Duration::from_millis(5)), []);
    let awaited = Owned::awaited(&connection);
    let mut waiter = owned.rig.journal.waiter();
    assert!(waiter.poll_for(awaited, &mut Context::from_waker(Waker::noop())).is_pending());
    for sequence in 0..19 {
        owned.rig.arrive("t", 2 + sequence, QoS::AtLeastOnce);
        owned.turn(Duration::from_millis(100));
        owned.answer(before);
    }
    assert!(owned.given_up() == 0 && !owned.rig.journal.has(awaited));
    owned.rig.arrive("t", 30, QoS::AtLeastOnce);
    owned.turn(Duration::from_millis(100));
    assert!(owned.given_up() == 1 && owned.rig.journal.has(awaited));
    assert_eq!(connection.subscriber.lock().next_to_send(), NextToSend::Now);
}

#[test]
fn what_was_lost_is_said_again_also_where_there_is_always_more_to_say() {
    let (mut owned, _connection) = Owned::guarded("c");
    let lost = owned.last + 1;
    let mut said = Vec::new();
    for sequence in 1..=60 {
        owned.rig.arrive("t", sequence, QoS::AtLeastOnce);
        owned.rig.now += Duration::from_millis(5);
        owned.rig.commit();
        let Owned { rig, owner, .. } = &mut owned;
        rig.with(|turn| owner.drive(turn));
        said.extend(rig.sent().iter().filter_map(|letter| match Letter::decode(letter) {
            Ok((_, Letter::Items { number, .. })) => Some(number),
            _ => None,
        }));
    }
    assert_eq!(said.iter().filter(|number| **number == lost).count(), 2, "within 300 ms: {said:?}");
}

/// Nobody waits for it while it cannot be reached; it is told what happened meanwhile, and need not be copied.
#[test]
fn a_link_that_is_lost_for_a_moment_costs_no_replica() {
    let (mut owned, connection) = Owned::guarded("c");
    owned.rig.lose(OTHER);
    owned.rig.arrive("t", 1, QoS::ExactlyOnce);
    assert_eq!(owned.turn(Duration::from_millis(5)), [Told::Word; 2]);
    let awaited = Owned::awaited(&connection);
    owned.turn(Duration::from_millis(200));
    assert!(!owned.rig.journal.has(awaited));
    owned.turn(Duration::from_millis(100));
    assert!(owned.rig.journal.has(awaited), "after a third of a second");
    let unreplicated = |owned: &Owned| owned.rig.router.metrics().sessions_unreplicated.value();
    assert_eq!(unreplicated(&owned), 1);
    owned.turn(Duration::from_secs(2));
    owned.rig.find();
    owned.rig.arrive("t", 2, QoS::AtLeastOnce);
    assert_eq!(owned.turn(Duration::from_millis(5)), [Told::Word; 2], "it is told all the same, and nothing else");
    owned.answer(owned.last);
    assert_eq!(owned.turn(Duration::from_millis(5)), []);
    assert_eq!((unreplicated(&owned), owned.given_up()), (0, 0));
    // And its client waits for it again.
    let Ok((true, Some(known))) = connection.subscriber.lock().pubrec(PacketId::MIN, false) else { panic!("it was not sent") };
    owned.turn(Duration::from_millis(5));
    assert!(!owned.rig.journal.has(known));
    owned.answer(owned.last);
    owned.turn(Duration::from_millis(5));
    assert!(owned.rig.journal.has(known));
}

#[test]
fn who_is_not_back_after_some_seconds_is_given_up() {
    let (mut owned, _connection) = Owned::guarded("c");
    owned.rig.lose(OTHER);
    for _ in 0..52 {
        owned.turn(Duration::from_millis(100));
    }
    assert_eq!(owned.given_up(), 0);
    owned.turn(Duration::from_millis(100));
    assert_eq!(owned.given_up(), 1);
}

/// That one session is to be copied anew says nothing of how long copying takes.
#[test]
fn who_is_given_up_while_one_session_has_no_replica_is_replaced_soon() {
    let (mut owned, connection) = Owned::guarded("c");
    for _ in 0..200 {
        owned.turn(Duration::from_millis(100));
        owned.answer(owned.last);
    }
    owned.rig.subscribe(&connection, "u");
    owned.rig.lose(OTHER);
    for _ in 0..60 {
        owned.turn(Duration::from_millis(100));
    }
    assert_eq!(owned.given_up(), 1);
    owned.rig.find();
    let given_up = owned.stream;
    for _ in 0..20 {
        owned.turn(Duration::from_millis(100));
    }
    assert!(owned.stream > given_up, "another stream begins");
}

#[test]
fn a_session_expires_so_long_after_its_client_left_wherever_it_is() {
    let hour = Duration::from_secs(3_600);
    for (left, is_there) in [(hour - Duration::from_secs(60), false), (hour - Duration::from_secs(90), true)] {
        let mut kept = Kept::new();
        kept.guard(OTHER, 1, &head_left("c", 5, HOUR, left));
        kept.turn();
        kept.rig.lose(OTHER);
        kept.rig.named_by(OTHER);
        kept.wait(Duration::from_secs(60));
        let Kept { rig, keepers, .. } = &mut kept;
        let promotion = rig.with(|turn| keepers.promote(turn, &Arc::from("c"), 9, true));
        assert_eq!(promotion == Promotion::Done, is_there, "{left:?}: {promotion:?}");
        let Some(session) = rig.router.session("c") else { continue };
        // So do its broker's disk, and a replica of it, have it.
        assert_eq!(left_of(&session.lock(), rig.now), Some(left + Duration::from_secs(60)));
    }
}

#[test]
fn what_changes_of_a_session_while_its_round_is_under_way_is_told_with_its_copy() {
    let mut owned = Owned::new();
    let first = owned.rig.connect("c");
    owned.rig.subscribe(&first, "t");
    assert!(owned.begin_round().contains(&Told::Head));
    // It is taken over, which is another claim, and leaves.
    let connection = owned.rig.resume("c");
    let claim = connection.subscriber.lock().claimed;
    owned.rig.disconnect(&connection);
    owned.turn(Duration::from_millis(5));
    let told = owned.cut();
    assert_eq!(told.last(), Some(&Told::Copied));
    assert!(told.contains(&Told::Session { claim, is_connected: false }), "{told:?}");
}

#[test]
fn what_is_told_goes_before_a_large_copy() {
    let (mut owned, connection) = Owned::guarded("c");
    let large = owned.rig.connect("large");
    owned.rig.subscribe(&large, "large");
    owned.rig.disconnect(&large);
    for sequence in 0..9 {
        owned.rig.arrive_with("large", 100 + sequence, QoS::AtLeastOnce, &[0; 100_000]);
    }
    owned.begin_round();
    // Nothing is answered from here on.
    owned.owner.cut((OTHER, owned.stream), owned.rounds, (0, 1), Covers::new());
    let mut told = Vec::new();
    (0..10).for_each(|_| told.append(&mut owned.turn(Duration::from_millis(5))));
    assert!(owned.bytes > 0 && !told.contains(&Told::Copy), "it is under way: {told:?}");
    owned.rig.arrive("t", 1, QoS::ExactlyOnce);
    // Of the one that is copied, too: behind its copy.
    owned.rig.arrive("large", 200, QoS::AtLeastOnce);
    let told = owned.turn(Duration::from_millis(5));
    assert!(owned.bytes <= REPLICA_COPIES_BYTES + 2 * REPLICA_LETTER_BYTES, "{} bytes", owned.bytes);
    assert_eq!(told, [Told::Word; 2], "a lane, and what was placed");
    let awaited = Owned::awaited(&connection);
    owned.answer(owned.last);
    // Its number is confirmed in a turn: the copy is far from its end.
    let mut told = owned.turn(Duration::from_millis(5));
    assert!(owned.rig.journal.has(awaited) && !told.contains(&Told::Copy));
    for _ in 0..100 {
        owned.answer(owned.last);
        told.append(&mut owned.turn(Duration::from_millis(5)));
    }
    let place = |what| told.iter().position(|told| *told == what);
    let (copy, copied) = (place(Told::Copy), place(Told::Copied));
    assert!(copy.is_some() && copy < copied && copied == Some(told.len() - 1), "{told:?}");
    let behind: Vec<_> = told.iter().skip(copy.unwrap_or_default() + 2).take(2).collect();
    assert_eq!(behind, [&Told::Word; 2], "what was placed meanwhile");
    owned.whole();
    assert_eq!(owned.given_up(), 0);
}

/// Who has a replica keeps it.
#[test]
fn a_round_that_comes_no_further_is_given_up_by_itself() {
    let (mut owned, connection) = Owned::guarded("c");
    let other = owned.rig.connect("other");
    owned.begin_round();
    let mut told = Vec::new();
    for _ in 0..160 {
        told.append(&mut owned.turn(Duration::from_millis(100)));
        owned.answer(owned.last);
    }
    assert_eq!((told, owned.given_up()), (vec![Told::Ended(other.subscriber.id.0)], 0));
    owned.rig.arrive("t", 1, QoS::ExactlyOnce);
    assert_eq!(owned.turn(Duration::from_millis(5)), [Told::Word; 2]);
    let awaited = Owned::awaited(&connection);
    assert!(!owned.rig.journal.has(awaited), "its client waits for the replica still");
    owned.answer(owned.last);
    // The third in a row: that broker does not come as far.
    for _ in 0..500 {
        owned.turn(Duration::from_millis(100));
        owned.answer(owned.last);
    }
    assert_eq!(owned.given_up(), 1);
}

#[test]
fn a_replica_that_expires_leaves_that_of_the_same_client_by_another_broker() {
    let mut kept = Kept::new();
    let newer = BrokerId(3);
    kept.guard(OTHER, 1, &head("c", 1, HOUR));
    kept.guard(newer, 9, &head("c", 2, SessionExpiry::Never));
    kept.turn();
    kept.rig.lose(OTHER);
    kept.wait(Duration::from_secs(3_600));
    kept.ping(newer);
    kept.turn();
    let shadowed = |kept: &Kept| kept.rig.router.metrics().sessions_shadowed.value();
    assert_eq!(shadowed(&kept), 1);
    // What is said of the one that is here is taken in, of the other not.
    let staged = |session| Item::Staged { session, order: 1, stage: Stage::Queued };
    kept.hear(newer, &[staged(9)]);
    assert_eq!(kept.turn(), [Said::Answer { known: 3, held: 3 }]);
    kept.hear(OTHER, &[staged(1), staged(1)]);
    assert_eq!(kept.turn(), [Said::Lost(1), Said::Answer { known: 3, held: 3 }]);
    // And the right one goes on when its broker dies.
    kept.rig.lose(newer);
    kept.wait(Duration::from_secs(1));
    let Kept { rig, keepers, .. } = &mut kept;
    rig.named_by(newer);
    assert_eq!(rig.with(|turn| keepers.promote(turn, &Arc::from("c"), 3, true)), Promotion::Done);
}

#[test]
fn a_replica_takes_its_sessions_place_where_it_is_named_and_for_a_client_that_came_later() {
    let mut kept = Kept::new();
    kept.guard(OTHER, 1, &head("c", 5, HOUR));
    kept.turn();
    let promote = |kept: &mut Kept, stamp| {
        let Kept { rig, keepers, .. } = kept;
        rig.with(|turn| keepers.promote(turn, &Arc::from("c"), stamp, false))
    };
    assert_eq!(promote(&mut kept, 9), Promotion::Reached(OTHER), "its broker can be reached");
    kept.rig.lose(OTHER);
    kept.wait(Duration::from_secs(1));
    assert_eq!(promote(&mut kept, 9), Promotion::NotHere, "by its word its replicas are elsewhere");
    kept.rig.named_by(OTHER);
    assert_eq!(promote(&mut kept, 5), Promotion::Newer(5));
    assert_eq!(promote(&mut kept, 9), Promotion::Done);
    // Whoever asked is the session's next broker.
    assert_eq!(kept.rig.router.session("c").unwrap().lock().claimed, 8);
}

#[test]
fn a_client_that_has_come_to_the_replicas_broker_itself_and_left_again_has_no_replica() {
    let mut kept = Kept::new();
    kept.guard(OTHER, 1, &head("c", 5, HOUR));
    kept.turn();
    kept.rig.lose(OTHER);
    kept.rig.named_by(OTHER);
    kept.wait(Duration::from_secs(1));
    kept.rig.connect("c");
    for (client_id, claimed) in kept.rig.router.claims.take_heard() {
        let Kept { rig, keepers, .. } = &mut kept;
        rig.with(|turn| keepers.follow_claim(turn, &client_id, claimed));
    }
    kept.rig.router.registry.clear();
    let Kept { rig, keepers, .. } = &mut kept;
    assert_eq!(rig.with(|turn| keepers.promote(turn, &Arc::from("c"), u64::MAX, false)), Promotion::NotHere);
}

#[test]
fn a_copy_in_parts_is_one_whatever_comes_between_and_one_that_is_left_off_is_none() {
    let mut kept = Kept::new();
    kept.guard(OTHER, 1, &head("c", 1, HOUR));
    let (whole, left_off) = (head("parts", 1, HOUR), [0; 10]);
    let (first, rest) = whole.split_at(5);
    let placed = Item::Placed { session: 1, order: 1, sequence: 5, qos: QoS::AtLeastOnce, stage: Stage::Queued };
    kept.hear(OTHER, &[Item::CopyPart { session: 3, bytes: &left_off }, Item::Ended { session: 3 }]);
    kept.hear(OTHER, &[Item::CopyPart { session: 4, bytes: &left_off }]);
    kept.hear(OTHER, &[Item::CopyPart { session: 2, bytes: first }, Item::Lane(lane()), placed]);
    kept.hear(OTHER, &[Item::Head { session: 2, bytes: rest }, Item::Round { round: 2 }]);
    assert_eq!(kept.turn(), [Said::Answer { known: 6, held: 6 }]);
    assert_eq!(kept.rig.router.metrics().sessions_shadowed.value(), 2);
}

//! The router by itself: sessions without sockets, time that does not pass by itself.

mod gathered;
mod shares;

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::*;
use crate::auth::{Access, Identity, Place, Rules, Standing};
use crate::codec::{PacketId, ProtocolVersion, QoS, ReasonCode, RetainHandling};
use crate::ids::{BrokerId, LaneId, LogId, MessageId, OriginLane};
use crate::session::{Change, Connected, Drained, Message, SessionExpiry, StoredMessage, SubscriptionOptions, Will};

struct Bench {
    router: Router,
    batch: Batch,
    routes: RouteCache,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self::with_journal(None)
    }

    #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
    fn with_journal(journal: Option<Arc<Journal>>) -> Self {
        let outbound = OutboundLimits {
            inflight_max: 10,
            inflight_bytes_max: 1_000,
            queued_messages_max: 10,
            queued_bytes_max: 1_000,
            drop_oldest: false,
            queue_qos0: false,
        };
        let now = Instant::now();
        let router =
            Router::new(RouterLimits { outbound, shared: SharedStrategy::default() }, Arc::new(Metrics::default()), journal, now);
        Self { router, batch: Batch::default(), routes: RouteCache::default(), now }
    }

    fn connect(&mut self, client_id: &str, clean_start: bool, expiry: SessionExpiry, will: Option<Will>) -> (Connection, bool) {
        self.try_connect(client_id, clean_start, expiry, will).unwrap()
    }

    fn try_connect(
        &mut self,
        client_id: &str,
        clean_start: bool,
        expiry: SessionExpiry,
        will: Option<Will>,
    ) -> Result<(Connection, bool), NoSession> {
        let request = ConnectRequest {
            client_id,
            clean_start,
            expiry,
            silence_max: Some(Duration::from_secs(90)),
            will,
            connected: Connected { version: ProtocolVersion::V5, window: 10, packet_bytes_max: usize::MAX, topic_alias_max: 0 },
            address: None,
            access: None,
        };
        let present = std::cell::Cell::new(false);
        let connack = |session_present| {
            present.set(session_present);
            Vec::new()
        };
        let connection = self.router.connect(&mut self.batch, request, connack, self.now)?;
        Ok((connection, present.get()))
    }

    fn disconnect(&mut self, connection: &Connection) {
        self.router.disconnect(&mut self.batch, connection, Farewell::Lost, None, self.now);
    }

    fn subscribe(&self, connection: &Connection, filter: &str) {
        let options =
            SubscriptionOptions { qos: QoS::AtLeastOnce, no_local: false, retain_as_published: false, subscription_id: None };
        let request = Subscribe { filter, options, retain_handling: RetainHandling::Send };
        self.router.subscribe(connection, &request).unwrap();
    }

    fn retain(&mut self, topic: &str, payload: &[u8]) {
        let message = Message { topic, payload, qos: QoS::AtMostOnce, retain: true, expires_at: None, properties: &[] };
        self.router.publish(&mut self.batch, &mut self.routes, &message, Ingress::System, self.now);
        self.router.finish(&mut self.batch, self.now);
    }

    fn publish(&mut self, topic: &str, payload: &[u8], qos: QoS) -> Routed {
        let message = Message { topic, payload, qos, retain: false, expires_at: None, properties: &[] };
        let routed = self.router.publish(&mut self.batch, &mut self.routes, &message, Ingress::System, self.now);
        self.router.finish(&mut self.batch, self.now);
        routed
    }

    fn expire(&mut self, after: Duration) {
        self.now += after;
        self.router.expire(&mut self.batch, self.now);
    }
}

/// How many bytes wait for the client.
fn waiting(connection: &Connection) -> usize {
    connection.subscriber.lock().outbox.len()
}

fn will(delay: Duration) -> Will {
    let message = StoredMessage {
        topic: "will".into(),
        payload: Bytes::from_static(b"gone"),
        qos: QoS::AtMostOnce,
        retain: false,
        expires_at: None,
        properties: Bytes::new(),
    };
    Will { message, message_expiry: None, delay }
}

const HOUR: SessionExpiry = SessionExpiry::After(Duration::from_secs(3_600));

/// Only what a session is given that was read from the disk, or leaves, may have to go to another member.
#[test]
fn what_a_group_gives_to_a_session_that_is_here_is_not_remembered_for_others() {
    let mut bench = Bench::with_journal(Some(Journal::new()));
    let (member, _) = bench.connect("m", true, HOUR, None);
    bench.subscribe(&member, "$share/g/t");
    bench.publish("t", b"1", QoS::AtLeastOnce);
    assert_eq!(member.subscriber.lock().outbound.owed().0, 1);
    assert!(member.subscriber.lock().take_given_by_groups().is_empty());
    bench.disconnect(&member);
    bench.publish("t", b"2", QoS::AtLeastOnce);
    assert_eq!(member.subscriber.lock().outbound.owed().0, 2);
    assert!(member.subscriber.lock().take_given_by_groups().is_empty());
}

#[test]
fn a_session_that_ends_with_its_connection_is_not_resumed() {
    let mut bench = Bench::new();
    let (first, _) = bench.connect("c", true, SessionExpiry::WithConnection, None);
    bench.subscribe(&first, "t");
    // Between the end of the connection and that of the session a client may be quick.
    first.subscriber.lock().connected = None;
    let (second, present) = bench.connect("c", false, HOUR, None);
    assert!(!present);
    assert_eq!(bench.publish("t", b"x", QoS::AtMostOnce), Routed::Unmatched);
    assert_eq!((waiting(&first), waiting(&second)), (0, 0));
}

#[test]
fn a_kept_session_gets_what_came_while_it_was_away() {
    let mut bench = Bench::new();
    let (first, _) = bench.connect("c", true, HOUR, None);
    bench.subscribe(&first, "t");
    bench.disconnect(&first);
    assert_eq!(bench.publish("t", b"one", QoS::AtLeastOnce), Routed::Done);
    bench.publish("t", b"not kept", QoS::AtMostOnce);
    let (second, present) = bench.connect("c", false, HOUR, None);
    assert!(present);
    assert!(!bench.router.pump(&mut bench.batch, &second, bench.now));
    let mut drained = Drained::default();
    assert!(second.subscriber.lock().outbox.take(&mut drained));
    assert_eq!(drained.tail, b"\x32\x09\x00\x01t\x00\x01\x00one");
}

#[test]
fn an_older_connection_says_nothing_any_more() {
    let mut bench = Bench::new();
    let (first, _) = bench.connect("c", true, HOUR, None);
    let (second, present) = bench.connect("c", false, HOUR, None);
    assert!(present && first.subscriber.id == second.subscriber.id);
    assert!(!first.subscriber.is_latest(first.epoch) && second.subscriber.is_latest(second.epoch));
    bench.disconnect(&first);
    assert!(second.subscriber.lock().connected.is_some());
    let (_third, _) = bench.connect("c", true, HOUR, None);
    assert!(!second.subscriber.is_latest(second.epoch));
    assert_eq!(second.subscriber.lock().outbox.closing(), Some(ReasonCode::SessionTakenOver));
}

#[test]
fn wills_fire_once_or_not_at_all() {
    let mut bench = Bench::new();
    let (watcher, _) = bench.connect("watcher", true, SessionExpiry::WithConnection, None);
    bench.subscribe(&watcher, "will");
    let fired = |bench: &mut Bench, expected: usize, what: &str| {
        bench.router.finish(&mut bench.batch, bench.now);
        let mut drained = Drained::default();
        watcher.subscriber.lock().outbox.take(&mut drained);
        assert_eq!(drained.tail.windows(4).filter(|bytes| bytes == b"gone").count(), expected, "{what}");
    };
    let delay = Duration::from_secs(10);

    let (client, _) = bench.connect("c", true, HOUR, Some(will(Duration::ZERO)));
    bench.disconnect(&client);
    fired(&mut bench, 1, "at once");
    bench.expire(delay);
    fired(&mut bench, 0, "not again");

    let (client, _) = bench.connect("c", true, HOUR, Some(will(delay)));
    bench.disconnect(&client);
    let (client, _) = bench.connect("c", false, HOUR, Some(will(delay)));
    bench.expire(delay);
    fired(&mut bench, 0, "cancelled by the resume");
    bench.disconnect(&client);
    bench.expire(delay);
    fired(&mut bench, 1, "after its delay");

    let (client, _) = bench.connect("c", true, SessionExpiry::After(delay / 2), Some(will(delay)));
    bench.disconnect(&client);
    bench.expire(delay / 2);
    fired(&mut bench, 1, "the session's end comes first");
    bench.expire(delay);
    fired(&mut bench, 0, "and only once");

    let (old, _) = bench.connect("c", true, HOUR, Some(will(delay)));
    let (_new, _) = bench.connect("c", true, HOUR, None);
    fired(&mut bench, 0, "the old connection may have a good-bye that was not heard yet");
    bench.disconnect(&old);
    fired(&mut bench, 1, "a clean start ends the old session");
}

#[test]
fn clients_that_come_and_go_leave_no_deadlines_behind() {
    let mut bench = Bench::new();
    for _ in 0..20_000 {
        let (client, _) = bench.connect("c", false, HOUR, None);
        bench.disconnect(&client);
    }
    assert!(bench.router.deadlines.len() < 4_096, "{}", bench.router.deadlines.len());
    bench.expire(Duration::from_secs(3_600));
    assert_eq!(bench.router.metrics().sessions.value(), 0, "the last expiry still counts");
}

#[test]
fn a_group_shares_and_passes_a_member_by_that_takes_nothing() {
    let mut bench = Bench::new();
    let members: Vec<Connection> =
        (0..3).map(|n| bench.connect(&format!("m{n}"), true, SessionExpiry::WithConnection, None).0).collect();
    for member in &members {
        bench.subscribe(member, "$share/g/t");
    }
    for _ in 0..30 {
        bench.publish("t", b"x", QoS::AtMostOnce);
    }
    let one = waiting(&members[0]) / 10;
    assert!(one > 0 && members.iter().all(|member| waiting(member) == 10 * one));

    members[0].subscriber.lock().outbox.tail().resize(crate::limits::OUTBOX_COPIED_BYTES_MAX, 0);
    let before = waiting(&members[0]);
    for _ in 0..30 {
        bench.publish("t", b"x", QoS::AtMostOnce);
    }
    assert_eq!(waiting(&members[0]), before);
    assert_eq!(waiting(&members[1]) + waiting(&members[2]), 50 * one, "none is lost beside free members");
    assert_eq!(bench.router.metrics().dropped_qos0.value(), 0);
}

#[test]
fn a_silent_client_is_closed_and_a_heard_one_is_not() {
    let mut bench = Bench::new();
    let (client, _) = bench.connect("c", true, SessionExpiry::WithConnection, None);
    client.subscriber.lock().outbox.arm(Waker::noop());
    bench.now += Duration::from_secs(60);
    client.subscriber.heard(bench.router.millis(bench.now));
    bench.expire(Duration::from_secs(31));
    assert_eq!(client.subscriber.lock().outbox.closing(), None);
    bench.expire(Duration::from_secs(60));
    assert_eq!(client.subscriber.lock().outbox.closing(), Some(ReasonCode::KeepAliveTimeout));
}

#[test]
fn a_client_that_is_not_read_from_is_not_silent_before_that_is_over() {
    let mut bench = Bench::new();
    let (client, _) = bench.connect("c", true, SessionExpiry::WithConnection, None);
    client.subscriber.lock().outbox.arm(Waker::noop());
    // Paused until then; what happens meanwhile is no news of the client.
    client.subscriber.heard(bench.router.millis(bench.now + Duration::from_secs(30)));
    client.subscriber.heard(bench.router.millis(bench.now));
    bench.expire(Duration::from_secs(110));
    assert_eq!(client.subscriber.lock().outbox.closing(), None);
    bench.expire(Duration::from_secs(11));
    assert_eq!(client.subscriber.lock().outbox.closing(), Some(ReasonCode::KeepAliveTimeout));
}

#[test]
fn what_clients_say_of_themselves_is_bounded_and_goes_with_their_sessions() {
    let mut bench = Bench::new();
    bench.router.reserve_state("ours");
    let now = bench.now;
    let say = |bench: &mut Bench, client: &Connection| {
        let is_said = bench.router.publish_state(&mut bench.batch, &client.subscriber, b"1", true, now);
        bench.router.finish(&mut bench.batch, now);
        is_said
    };
    let (thief, _) = bench.connect("ours", true, SessionExpiry::WithConnection, None);
    assert!(!say(&mut bench, &thief));
    let states = |bench: &Bench| bench.router.system.matching("$SYS/broker/connection/+/state", now).len();
    assert_eq!(states(&bench), 0);
    let clients: Vec<_> = (0..crate::limits::CLIENT_STATES_MAX + 5)
        .map(|n| {
            let (client, _) = bench.connect(&n.to_string(), true, SessionExpiry::WithConnection, None);
            assert!(say(&mut bench, &client) && say(&mut bench, &client));
            client
        })
        .collect();
    // One place is the broker's own.
    assert_eq!(states(&bench), crate::limits::CLIENT_STATES_MAX - 1);
    clients.iter().take(10).for_each(|client| bench.disconnect(client));
    assert_eq!(states(&bench), crate::limits::CLIENT_STATES_MAX - 11);
    // What the last word of a client is, is said, but nobody forgets it.
    assert!(say(&mut bench, &clients[0]));
    assert_eq!(states(&bench), crate::limits::CLIENT_STATES_MAX - 11);
    assert!(say(&mut bench, clients.last().unwrap()));
    assert_eq!(states(&bench), crate::limits::CLIENT_STATES_MAX - 10);
}

#[test]
fn what_the_broker_says_of_itself_is_for_its_own_clients_and_apart_from_what_they_retain() {
    let mut bench = Bench::new();
    let (all, _) = bench.connect("all", true, SessionExpiry::WithConnection, None);
    let (system, _) = bench.connect("system", true, SessionExpiry::WithConnection, None);
    bench.subscribe(&all, "#");
    bench.subscribe(&system, "$SYS/#");
    let now = bench.now;
    let tell = |bench: &mut Bench, payload: &[u8]| {
        bench.router.publish_system(&mut bench.batch, "$SYS/mesh/role", payload, true, now);
        bench.router.finish(&mut bench.batch, now);
    };
    tell(&mut bench, b"root");
    assert_eq!(waiting(&all), 0);
    let told = waiting(&system);
    assert!(told > 0);
    assert_eq!((bench.router.retained().count(), bench.router.retained().bytes()), (0, 0));

    // Who comes later gets it as it stands; once it is cleared, nothing.
    let (late, _) = bench.connect("late", true, SessionExpiry::WithConnection, None);
    bench.subscribe(&late, "$SYS/mesh/+");
    bench.router.pump(&mut bench.batch, &late, now);
    assert_eq!(waiting(&late), told);
    tell(&mut bench, b"");
    let (last, _) = bench.connect("last", true, SessionExpiry::WithConnection, None);
    bench.subscribe(&last, "$SYS/mesh/+");
    bench.router.pump(&mut bench.batch, &last, now);
    assert_eq!(waiting(&last), 0);
}

#[test]
fn what_a_peer_says_below_sys_is_not_of_this_broker() {
    let mut bench = Bench::new();
    let (client, _) = bench.connect("c", true, SessionExpiry::WithConnection, None);
    bench.subscribe(&client, "$SYS/#");
    bench.subscribe(&client, "$SYSTEM/#");
    let now = bench.now;
    let mut link = LinkDelivery::new(Arc::new(bench.router));
    for (topic, arrives) in [("$SYS/mesh/role", false), ("$SYS", false), ("$SYSTEM/x", true)] {
        let message = crate::replication::MeshMessage {
            topic,
            payload: b"forged",
            qos: QoS::AtMostOnce,
            retain: true,
            expiry_seconds: None,
            properties: &[],
            stamp: None,
            picks: Default::default(),
        };
        let origin_lane = OriginLane { origin: BrokerId(1), log: LogId(1), lane: LaneId(0) };
        link.deliver(&message, MessageId { origin_lane, sequence: 1 }, now);
        link.flush(now);
        assert_eq!(waiting(&client) > 0, arrives, "{topic}");
    }
}

#[test]
fn without_memory_what_would_wait_is_refused_and_who_has_a_session_gets_in() {
    let mut bench = Bench::new();
    let (away, _) = bench.connect("away", true, HOUR, None);
    bench.subscribe(&away, "kept");
    bench.disconnect(&away);
    let (reader, _) = bench.connect("reader", true, HOUR, None);
    bench.subscribe(&reader, "live");
    let from = Ingress::Session(&reader.subscriber);
    let publish = |bench: &mut Bench, topic, qos, retain| {
        let message = Message { topic, payload: b"x", qos, retain, expires_at: None, properties: &[] };
        bench.router.publish(&mut bench.batch, &mut bench.routes, &message, from, bench.now)
    };
    bench.router.pressure().measured(100, 100);
    assert_eq!(publish(&mut bench, "kept", QoS::AtLeastOnce, false), Routed::NoMemory);
    assert_eq!(publish(&mut bench, "kept", QoS::AtMostOnce, false), Routed::Done);
    assert_eq!(publish(&mut bench, "live", QoS::AtLeastOnce, false), Routed::Done, "it waits for nobody");
    assert_eq!(publish(&mut bench, "live", QoS::AtMostOnce, true), Routed::NotRetained);
    // From elsewhere: it was acknowledged there.
    assert_eq!(bench.publish("kept", b"x", QoS::AtLeastOnce), Routed::Done);
    assert_eq!(bench.router.metrics().dropped_queue_full.value(), 1);
    assert!(bench.try_connect("new", true, HOUR, None).is_err());
    let options = SubscriptionOptions { qos: QoS::AtLeastOnce, no_local: false, retain_as_published: false, subscription_id: None };
    let more = Subscribe { filter: "more", options, retain_handling: RetainHandling::Send };
    assert_eq!(bench.router.subscribe(&reader, &more).map_err(|error| error.reason()), Err(ReasonCode::QuotaExceeded));
    assert!(bench.connect("away", false, HOUR, None).1, "what waits for it is what takes the memory");
    bench.router.pressure().measured(0, 100);
    assert_eq!(publish(&mut bench, "kept", QoS::AtLeastOnce, true), Routed::Done);
    assert!(bench.try_connect("new", true, HOUR, None).is_ok());
}

#[test]
fn while_the_store_is_behind_what_may_be_lost_is_not_retained() {
    let journal = Journal::new();
    let mut bench = Bench::with_journal(Some(Arc::clone(&journal)));
    let (client, _) = bench.connect("c", true, HOUR, None);
    let payload = Bytes::from(vec![0; 256 * 1024]);
    for topic in 0..300 {
        let (topic, payload, properties) = (topic.to_string().into(), payload.clone(), Bytes::new());
        let message = StoredMessage { topic, payload, qos: QoS::AtLeastOnce, retain: true, expires_at: None, properties };
        journal.push(Change::Retained(Arc::new(message), None));
    }
    let publish = |bench: &mut Bench, qos| {
        let message = Message { topic: "t", payload: b"x", qos, retain: true, expires_at: None, properties: &[] };
        let from = Ingress::Session(&client.subscriber);
        let routed = bench.router.publish(&mut bench.batch, &mut bench.routes, &message, from, bench.now);
        bench.router.finish(&mut bench.batch, bench.now);
        routed
    };
    assert_eq!(publish(&mut bench, QoS::AtMostOnce), Routed::NotRetained);
    assert_eq!((bench.router.retained().count(), bench.router.metrics().dropped_retained_full.value()), (0, 1));
    assert_ne!(publish(&mut bench, QoS::AtLeastOnce), Routed::NotRetained, "whoever sent it waits for its acknowledgement");
    journal.take(&mut Vec::new(), Duration::ZERO);
    assert_ne!(publish(&mut bench, QoS::AtMostOnce), Routed::NotRetained);
}

#[test]
fn who_says_again_what_is_not_safe_yet_is_acknowledged_when_it_is() {
    let journal = Journal::new();
    let mut bench = Bench::with_journal(Some(Arc::clone(&journal)));
    let (client, _) = bench.connect("c", true, HOUR, None);
    let id = PacketId::new(7).unwrap();
    client.subscriber.lock().receive(bench.batch.writes(), id, 10).unwrap();
    assert!(client.subscriber.lock().pubrel(bench.batch.writes(), id));
    bench.router.finish(&mut bench.batch, bench.now);
    let last = bench.batch.writes().take_number();
    assert!(last > 0 && last == journal.last());
    // On the next connection, say.
    assert!(!client.subscriber.lock().pubrel(bench.batch.writes(), id));
    assert_eq!(bench.batch.writes().take_number(), last, "the identifier must not be used again before that");

    let options = SubscriptionOptions { qos: QoS::AtLeastOnce, no_local: false, retain_as_published: false, subscription_id: None };
    let request = Subscribe { filter: "f", options, retain_handling: RetainHandling::Send };
    let first = bench.router.subscribe(&client, &request).unwrap();
    assert_eq!((bench.router.subscribe(&client, &request).unwrap(), first), (first, Some(last + 1)));
    let gone = bench.router.unsubscribe(&client, "f").unwrap();
    assert_eq!((gone, bench.router.unsubscribe(&client, "f").unwrap()), ((true, Some(last + 2)), (false, Some(last + 2))));
    assert_eq!(bench.router.retained().remove("t", None, bench.now), Some(last + 2));
}

#[test]
fn while_memory_is_tight_a_slow_reader_is_sent_less() {
    let mut bench = Bench::new();
    let (reader, _) = bench.connect("reader", true, HOUR, None);
    bench.subscribe(&reader, "t");
    for (used, least, most) in [(90, 60_000, 70_000), (0, 900_000, 1_200_000)] {
        bench.router.pressure().measured(used, 100);
        for _ in 0..2_000 {
            bench.publish("t", &[0; 1_000], QoS::AtMostOnce);
        }
        assert!((least..most).contains(&waiting(&reader)), "{} at {used} %", waiting(&reader));
    }
    assert!(bench.router.metrics().dropped_qos0.value() > 0);
}

#[test]
fn messages_that_had_to_wait_are_told_from_those_that_went() {
    let mut bench = Bench::new();
    let (away, _) = bench.connect("away", true, HOUR, None);
    bench.subscribe(&away, "t");
    bench.publish("t", b"x", QoS::AtLeastOnce);
    bench.disconnect(&away);
    let message = Message { topic: "t", payload: b"x", qos: QoS::AtLeastOnce, retain: false, expires_at: None, properties: &[] };
    for (count, queued) in [(0, false), (1, true)] {
        for _ in 0..count {
            bench.router.publish(&mut bench.batch, &mut bench.routes, &message, Ingress::System, bench.now);
        }
        assert_eq!(bench.batch.has_queued(), queued);
    }
    bench.router.finish(&mut bench.batch, bench.now);
    assert!(!bench.batch.has_queued());
}

/// What the client cannot take fills nothing: all the same it is not looked through in one go, under the session's lock.
#[test]
fn retained_messages_that_cannot_be_sent_are_looked_at_in_turns() {
    let mut bench = Bench::new();
    for number in 0..2_500 {
        bench.retain(&format!("t/{number}"), b"more than it takes");
    }
    let (connection, _) = bench.connect("client", true, SessionExpiry::WithConnection, None);
    connection.subscriber.lock().connected.as_mut().unwrap().packet_bytes_max = 10;
    bench.subscribe(&connection, "#");
    let mut turns = 1;
    while bench.router.pump(&mut bench.batch, &connection, bench.now) {
        turns += 1;
    }
    assert_eq!((turns, waiting(&connection)), (3, 0));
    assert!(!connection.subscriber.lock().has_backlog());
}

#[test]
fn a_group_is_there_as_long_as_it_has_members() {
    let mut bench = Bench::new();
    let [one, other] = ["one", "other"].map(|id| bench.connect(id, true, SessionExpiry::WithConnection, None).0);
    for connection in [&one, &other, &one] {
        bench.subscribe(connection, "$share/g/a/#");
        bench.subscribe(connection, "$share/h/a/#");
        bench.subscribe(connection, "a/#");
    }
    assert_eq!(bench.router.subscriptions.read().len(), (6, 2));
    bench.router.unsubscribe(&one, "$share/g/a/#").unwrap();
    assert_eq!(bench.router.subscriptions.read().len(), (5, 2));
    bench.router.unsubscribe(&other, "$share/g/a/#").unwrap();
    assert_eq!(bench.router.subscriptions.read().len(), (4, 1));
    bench.disconnect(&one);
    bench.disconnect(&other);
    assert_eq!(bench.router.subscriptions.read().len(), (0, 0));
}

fn access(rules: &str) -> Arc<Access> {
    let rules = Arc::new(Rules::parse(rules.as_bytes()).unwrap());
    Arc::new(Access::new(Identity::Certified { name: "bob".into() }, Place::default(), Some(rules)))
}

#[test]
fn whose_user_is_gone_keeps_no_session_by_a_farewell() {
    let mut bench = Bench::new();
    let (bob, _) = bench.connect("c", true, HOUR, None);
    bob.subscriber.set_access(Some(access("user bob\ntopic #")));
    let judge = |access: &Access| Standing::Gone(Arc::new(access.shut_out()));
    bench.router.judge_anew(&mut bench.batch, judge, bench.now);
    bench.router.disconnect(&mut bench.batch, &bob, Farewell::Normal, Some(HOUR), bench.now);
    assert_eq!(bench.router.metrics().sessions.value(), 0);
}

#[test]
fn who_comes_in_while_rules_change_is_not_judged_by_what_was_before() {
    let mut bench = Bench::new();
    let (bob, _) = bench.connect("c", true, HOUR, None);
    let (old, new) = (access("user bob\ntopic a"), access("user bob\ntopic b"));
    bob.subscriber.set_access(Some(Arc::clone(&old)));
    let judge = |asked: &Access| {
        // He shows his new password just when the old one is found wrong.
        match std::ptr::eq(asked, &*old) {
            true => {
                bob.subscriber.set_access(Some(Arc::clone(&new)));
                Standing::PasswordChanged(Arc::clone(&old))
            }
            false => Standing::Good(Arc::clone(&new)),
        }
    };
    bench.router.judge_one(&mut bench.batch, &bob.subscriber, judge, bench.now);
    assert_eq!(bob.subscriber.lock().outbox.closing(), None);
    assert!(bob.subscriber.may_publish("b") && !bob.subscriber.may_publish("a"));
}

#[test]
fn a_retained_will_is_forgotten_with_the_right_to_it() {
    let mut bench = Bench::new();
    let mut last = will(Duration::ZERO);
    last.message.retain = true;
    let (bob, _) = bench.connect("c", true, HOUR, Some(last));
    bob.subscriber.set_access(Some(access("user bob\ntopic will")));
    bench.disconnect(&bob);
    assert_eq!(bench.router.retained().count(), 1);
    let judge = |_: &Access| Standing::Good(access("user bob\ntopic b"));
    bench.router.judge_anew(&mut bench.batch, judge, bench.now);
    assert_eq!(bench.router.retained().count(), 0);
}

#[test]
fn the_will_of_a_user_of_whom_nothing_is_known_yet_waits_for_that() {
    let mut bench = Bench::new();
    let (watcher, _) = bench.connect("watcher", true, HOUR, None);
    bench.subscribe(&watcher, "will");
    let fired = |bench: &mut Bench| {
        bench.router.finish(&mut bench.batch, bench.now);
        let mut drained = Drained::default();
        watcher.subscriber.lock().outbox.take(&mut drained);
        drained.tail.windows(4).filter(|bytes| bytes == b"gone").count()
    };
    let delay = Duration::from_secs(10);
    let identity = Access::of_owner("s@0:bob").identity().clone();
    for (expiry, rules, expected) in [
        (HOUR, "user bob\ntopic will", 1),
        (HOUR, "user bob\ntopic b", 0),
        (SessionExpiry::After(2 * delay), "user bob\ntopic will", 1),
    ] {
        let (bob, _) = bench.connect("c", true, expiry, Some(will(delay)));
        bob.subscriber.set_access(Some(Arc::new(Access::awaited(identity.clone(), Place::default()))));
        bench.disconnect(&bob);
        bench.expire(3 * delay);
        assert_eq!(fired(&mut bench), 0, "{rules}");
        bob.subscriber.set_access(Some(access(rules)));
        bench.expire(connect::RECHECK);
        assert_eq!(fired(&mut bench), expected, "{rules}");
    }
}

/// A route that was found before the rules changed retains nothing behind the back of who looked through what is retained.
#[test]
fn what_is_retained_by_an_older_route_is_taken_back() {
    let mut bench = Bench::new();
    let (bob, _) = bench.connect("c", true, HOUR, None);
    bob.subscriber.set_access(Some(access("user bob\ntopic t")));
    let message = Message { topic: "t", payload: b"x", qos: QoS::AtMostOnce, retain: true, expires_at: None, properties: &[] };
    for (rules, count) in [("user bob\ntopic t", 1), ("user bob\ntopic b", 0)] {
        // Without a word to the router: its routes stand.
        bob.subscriber.set_access(Some(access(rules)));
        let ingress = Ingress::Session(&bob.subscriber);
        bench.router.publish(&mut bench.batch, &mut bench.routes, &message, ingress, bench.now);
        assert_eq!(bench.router.retained().count(), count, "{rules}");
    }
}

#[test]
fn a_session_without_rules_that_is_resumed_voids_no_route() {
    let mut bench = Bench::new();
    let (bob, _) = bench.connect("c", true, HOUR, None);
    let free = |name: &str| Some(Arc::new(Access::new(Identity::Certified { name: name.into() }, Place::default(), None)));
    let generation = || bench.router.generation.load(std::sync::atomic::Ordering::Relaxed);
    let before = generation();
    for access in [free("a"), None, free("b")] {
        bench.router.renew_access(&bob.subscriber, access);
    }
    assert_eq!(generation(), before);
    bench.router.renew_access(&bob.subscriber, Some(access("topic a")));
    assert_ne!(generation(), before);
}

#[test]
fn an_audience_is_who_may_receive_each_subscription_for_itself_and_each_group_once() {
    let mut bench = Bench::new();
    let (one, _) = bench.connect("one", true, HOUR, None);
    let (other, _) = bench.connect("other", true, HOUR, None);
    let (bob, _) = bench.connect("bob", true, HOUR, None);
    for connection in [&one, &other, &bob] {
        for filter in ["+/x", "$share/g/#", "$share/h/a/x", "$SYS/x"] {
            bench.subscribe(connection, filter);
        }
    }
    bench.subscribe(&one, "a/#");
    bob.subscriber.set_access(Some(access("user bob\ntopic b/#")));
    let audience = |subscriptions, groups, group_members| Audience { subscriptions, groups, group_members };
    assert_eq!(bench.router.audience("a/x"), audience(3, 2, 4));
    assert_eq!(bench.router.audience("b/x"), audience(3, 1, 3));
    assert_eq!(bench.router.audience("c"), audience(0, 1, 2));
    assert_eq!(bench.router.audience("$SYS/x"), audience(0, 0, 0), "what each broker says of itself");
}

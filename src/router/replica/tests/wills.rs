//! Wills of clients whose broker dies: who is told of them, and who publishes them.

use bytes::Bytes;

use super::*;
use crate::limits::{ORPHAN_GRACE_DEFAULT as GRACE, ORPHAN_WILL_BYTES_MAX};
use crate::session::{Head, MovedWill, RestoredSession, StoredMessage, Will};
use crate::shared::register::Claim;

const DELAY: Duration = Duration::from_secs(5);
const THIRD: BrokerId = BrokerId(3);

fn will_of(bytes: usize, delay: Duration) -> Will {
    let (topic, payload, qos) = ("will".into(), Bytes::from(vec![b'x'; bytes]), QoS::AtLeastOnce);
    let message = StoredMessage { topic, payload, qos, retain: false, expires_at: None, properties: Bytes::new() };
    Will { message, message_expiry: None, delay }
}

fn moved(client_id: &str, bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    MovedWill { client_id: client_id.into(), owner: Arc::default(), will: will_of(bytes, DELAY) }.encode(&mut out);
    out
}

impl Kept {
    /// In which life that broker is, and a will of a client of its.
    fn tell_will(&mut self, client_id: &str, session: u64, is_durable: bool) {
        let bytes = moved(client_id, 10);
        let will = Item::Will { session, claim: 1, left: None, is_durable, bytes: &bytes };
        self.hear(OTHER, &[Item::Life { incarnation: 1 }, will]);
    }

    /// It dies, and nobody comes for so long.
    fn lose_for(&mut self, time: Duration) {
        self.rig.lose(OTHER);
        self.pass(time);
    }

    fn pass(&mut self, time: Duration) {
        self.wait(time);
        self.turn();
    }

    fn published(&self) -> u64 {
        self.rig.router.metrics().wills_orphaned.value()
    }

    fn has(&self) -> i64 {
        self.rig.router.metrics().wills_kept.value()
    }
}

/// A client here that gets all wills.
fn watcher(rig: &mut Rig) -> Connection {
    let watcher = rig.connect("watcher");
    rig.subscribe(&watcher, "will");
    watcher
}

fn got(watcher: &Connection) -> usize {
    watcher.subscriber.lock().outbound.owed().0
}

#[test]
fn a_will_goes_out_once_when_its_broker_was_away_for_its_delay_and_the_grace() {
    let mut kept = Kept::new();
    let watcher = watcher(&mut kept.rig);
    kept.tell_will("c", 1, false);
    for _ in 0..20 {
        kept.pass(Duration::from_secs(3));
        kept.ping(OTHER);
    }
    assert_eq!((kept.has(), kept.published()), (1, 0), "its broker lives");
    kept.lose_for(DELAY + GRACE - Duration::from_millis(1));
    assert_eq!((kept.published(), got(&watcher)), (0, 0));
    kept.pass(Duration::from_secs(1));
    assert_eq!((kept.published(), got(&watcher), kept.has()), (1, 1, 0));
    kept.pass(Duration::from_secs(3_600));
    assert_eq!((kept.published(), got(&watcher)), (1, 1));
    // A broker that is back and has not heard of it tells of the same will once more.
    kept.rig.find();
    kept.tell_will("c", 1, false);
    kept.lose_for(2 * (DELAY + GRACE));
    assert_eq!((kept.published(), got(&watcher)), (1, 1));
}

#[test]
fn of_a_client_that_has_left_the_delay_counts_from_then() {
    let mut kept = Kept::new();
    let bytes = moved("c", 10);
    let will = |left| Item::Will { session: 1, claim: 1, left, is_durable: true, bytes: &bytes };
    kept.hear(OTHER, &[will(None), will(Some(DELAY))]);
    kept.turn();
    kept.lose_for(GRACE - Duration::from_millis(1));
    assert_eq!(kept.published(), 0);
    kept.pass(Duration::from_secs(1));
    assert_eq!(kept.published(), 1);
}

type Happening<'a> = &'a dyn Fn(&mut Kept, &str);

#[test]
fn no_will_goes_out_whose_client_has_come_to_any_broker_or_that_is_void() {
    let elsewhere = |kept: &mut Kept, client_id: &str| {
        let claim = (Key::Session(client_id.into()), Some(Value::Claim(Claim { stamp: 2 })));
        kept.rig.router.claims.joined(THIRD);
        kept.rig.router.claims.changed(THIRD, &[claim]);
    };
    let here = |kept: &mut Kept, client_id: &str| drop(kept.rig.connect(client_id));
    let left_again = |kept: &mut Kept, client_id: &str| {
        let Kept { rig, keepers, .. } = kept;
        rig.with(|turn| keepers.follow_claim(turn, &Arc::from(client_id), (2, THIRD)));
    };
    let gone = |kept: &mut Kept, _: &str| kept.hear(OTHER, &[Item::WillGone { session: 1 }]);
    let over = |kept: &mut Kept, _: &str| {
        let Kept { rig, keepers, .. } = kept;
        rig.with(|turn| keepers.over(turn, (OTHER, 1)));
    };
    let dealt_with = |kept: &mut Kept, client_id: &str| {
        let settled = (Key::Will(OTHER, client_id.into()), Some(Value::Claim(Claim { stamp: 1 })));
        kept.rig.router.claims.changed(THIRD, &[settled]);
    };
    let told_to_another = |kept: &mut Kept, _: &str| {
        kept.rig.router.claims.changed(OTHER, &[(Key::Replica, Some(Value::Replica(THIRD)))]);
    };
    let nothing = |_: &mut Kept, _: &str| {};
    let cases: [(&str, Happening<'_>, u64); 8] = [
        ("it has come elsewhere", &elsewhere, 0),
        ("it has come here", &here, 0),
        ("it has come elsewhere, and has left", &left_again, 0),
        ("it has said good-bye", &gone, 0),
        ("its broker tells others", &over, 0),
        ("another broker has dealt with it", &dealt_with, 0),
        ("another broker is to deal with it", &told_to_another, 0),
        ("nothing", &nothing, 1),
    ];
    for (what, happens, expected) in cases {
        let mut kept = Kept::new();
        kept.tell_will("c", 1, true);
        kept.turn();
        kept.rig.lose(OTHER);
        kept.pass(Duration::from_secs(1));
        happens(&mut kept, "c");
        kept.pass(DELAY + GRACE);
        assert_eq!(kept.published(), expected, "{what}");
    }
}

/// What is on its disk it publishes itself; of the rest it does not know.
#[test]
fn of_a_broker_that_is_restarted_those_wills_go_out_that_it_cannot_know() {
    for (life, expected) in [(2, 1), (1, 0)] {
        let mut kept = Kept::new();
        kept.tell_will("kept", 1, true);
        kept.tell_will("clean", 2, false);
        kept.turn();
        kept.rig.lose(OTHER);
        kept.pass(Duration::from_secs(2));
        kept.rig.find();
        let Kept { rig, keepers, .. } = &mut kept;
        rig.with(|turn| keepers.items(turn, (OTHER, 2), 1, &encode(&[Item::Begin, Item::Life { incarnation: life }])));
        for second in 0..60 {
            kept.pass(Duration::from_secs(1));
            let Kept { rig, keepers, .. } = &mut kept;
            rig.with(|turn| keepers.items(turn, (OTHER, 2), 0, &[]));
            assert!(kept.published() == 0 || second >= 12, "not before its time");
        }
        assert_eq!((kept.published(), kept.has()), (expected, 0), "life {life}");
    }
}

#[test]
fn a_will_that_is_too_large_is_not_kept() {
    let mut kept = Kept::new();
    let bytes = moved("large", ORPHAN_WILL_BYTES_MAX + 1);
    for part in bytes.chunks(REPLICA_LETTER_BYTES / 2) {
        kept.hear(OTHER, &[Item::Part { bytes: part }]);
    }
    kept.hear(OTHER, &[Item::Will { session: 1, claim: 1, left: None, is_durable: false, bytes: &[] }]);
    kept.tell_will("small", 2, false);
    kept.turn();
    assert_eq!((kept.has(), kept.rig.router.metrics().wills_not_kept.value()), (1, 1));
}

impl Owned {
    fn connect_with(&mut self, client_id: &str, expiry: SessionExpiry, will: Will) -> Connection {
        self.rig.connect_with(client_id, (true, expiry), Some(will))
    }

    /// What is told of wills in a turn, and is known then.
    fn told_of_wills(&mut self) -> Vec<Told> {
        let mut told = self.turn(Duration::from_millis(5));
        self.answer(self.last);
        told.retain(|told| matches!(told, Told::Will { .. } | Told::WillGone(_)));
        told
    }

    fn lose_client(&mut self, connection: &Connection) {
        let Rig { router, batch, now, .. } = &mut self.rig;
        router.disconnect(batch, connection, Farewell::Lost, None, *now);
        router.finish(batch, *now);
    }
}

#[test]
fn wills_are_told_when_they_come_and_when_they_are_void() {
    let mut owned = Owned::new();
    let clean = SessionExpiry::WithConnection;
    let before = owned.connect_with("before", clean, will_of(10, DELAY));
    assert!(owned.rig.router.wills_are_told(), "nobody is to be told");
    let told = |connection: &Connection, is_away, is_durable| {
        vec![Told::Will { session: connection.subscriber.id.0, is_away, is_durable }]
    };
    let gone = |connection: &Connection| vec![Told::WillGone(connection.subscriber.id.0)];
    assert_eq!(owned.told_of_wills(), told(&before, false, false), "also those that were there");
    let after = owned.connect_with("after", HOUR, will_of(10, DELAY));
    assert!(!owned.rig.router.wills_are_told());
    assert_eq!(owned.told_of_wills(), told(&after, false, true));
    assert_eq!(owned.told_of_wills(), []);
    assert!(owned.rig.router.wills_are_told());
    owned.rig.disconnect(&before);
    assert_eq!(owned.told_of_wills(), gone(&before), "it has said good-bye");
    owned.lose_client(&after);
    assert_eq!(owned.told_of_wills(), told(&after, true, true), "it waits for its delay");
    owned.rig.now += DELAY;
    let Rig { router, batch, now, .. } = &mut owned.rig;
    router.expire(batch, *now);
    router.finish(batch, *now);
    assert_eq!(owned.told_of_wills(), gone(&after), "it is published");
    // One that comes and goes between two looks is none.
    let short = owned.connect_with("short", clean, will_of(10, DELAY));
    owned.rig.disconnect(&short);
    let large = owned.connect_with("large", clean, will_of(ORPHAN_WILL_BYTES_MAX, DELAY));
    assert_eq!(owned.told_of_wills(), [], "nor is one that the other broker would not keep");
    // Of a session that is begun anew the older one's is void.
    owned.rig.disconnect(&large);
    let first = owned.connect_with("twice", clean, will_of(10, DELAY));
    assert_eq!(owned.told_of_wills(), told(&first, false, false));
    let second = owned.connect_with("twice", clean, will_of(10, DELAY));
    let told_now = owned.told_of_wills();
    assert!(told_now.len() == 2 && told_now.contains(&gone(&first)[0]), "{told_now:?}");
    assert!(told_now.contains(&told(&second, false, false)[0]), "{told_now:?}");
}

#[test]
fn of_many_wills_no_more_is_told_at_once_than_may_be_ahead_of_what_clients_wait_for() {
    let mut owned = Owned::new();
    let count = 400;
    let clients: Vec<Connection> = (0..count)
        .map(|client| owned.connect_with(&client.to_string(), SessionExpiry::WithConnection, will_of(1_000, DELAY)))
        .collect();
    let mut told = owned.turn(Duration::from_millis(5));
    assert!(owned.bytes > 0 && owned.bytes <= 2 * REPLICA_COPIES_BYTES + REPLICA_LETTER_BYTES, "{}", owned.bytes);
    assert!(!owned.rig.router.wills_are_told());
    for _ in 0..10 {
        owned.answer(owned.last);
        told.append(&mut owned.turn(Duration::from_millis(5)));
    }
    assert_eq!(told.iter().filter(|told| matches!(told, Told::Will { .. })).count(), clients.len());
}

#[test]
fn a_will_with_which_another_broker_has_dealt_is_void_here_for_that_connection() {
    for (ahead, expected) in [(0, 0), (1, 1)] {
        let mut owned = Owned::new();
        let watcher = watcher(&mut owned.rig);
        let client = owned.connect_with("c", HOUR, will_of(10, Duration::ZERO));
        // Of an earlier connection, or of this one.
        let stamp = client.subscriber.lock().claimed - ahead;
        owned.rig.router.claims.changed(OTHER, &[(Key::Will(OWN, "c".into()), Some(Value::Claim(Claim { stamp })))]);
        owned.rig.drive_moves();
        owned.lose_client(&client);
        assert_eq!(got(&watcher), expected, "{ahead}");
    }
}

#[test]
fn wills_that_were_read_from_the_disk_wait_for_what_others_say_of_them() {
    for (is_settled, are_known, wait, expected) in [
        (true, true, Duration::ZERO, 0),
        (false, true, Duration::ZERO, 1),
        (false, false, GRACE - Duration::from_secs(2), 0),
        (false, false, GRACE, 1),
    ] {
        let mut rig = Rig::new();
        let watcher = watcher(&mut rig);
        let head = Head { client_id: "c".into(), owner: Arc::default(), expiry: HOUR, left_at: None, claim: 7 };
        let (subscriptions, entries, received) = (Vec::new(), Vec::new(), Vec::new());
        let will = Some(will_of(10, Duration::ZERO));
        let read = RestoredSession { session: SubscriberId(1_000), head, subscriptions, entries, received, will };
        rig.router.restore_session(read, rig.now);
        rig.router.session("c").unwrap().set_access(None);
        if !are_known {
            rig.router.claims.joined(OTHER);
        }
        rig.expire(Duration::ZERO);
        assert_eq!(got(&watcher), 0, "nobody has been asked");
        if is_settled {
            rig.router.claims.changed(OTHER, &[(Key::Will(OWN, "c".into()), Some(Value::Claim(Claim { stamp: 7 })))]);
        }
        rig.drive_moves();
        rig.now += wait;
        rig.drive_moves();
        rig.expire(Duration::from_secs(1));
        rig.expire(Duration::from_secs(1));
        assert_eq!(got(&watcher), expected, "{is_settled} {are_known} {wait:?}");
    }
}

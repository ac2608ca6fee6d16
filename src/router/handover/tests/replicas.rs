//! Sessions with replicas: their broker dies at any moment, and they go on elsewhere.

use super::*;
use crate::session::Awaited;

/// The session's broker. The first is in the middle.
const OWNER: usize = 1;

/// A client that waits for each PUBREL.
struct Careful {
    client: Client,
    released: Vec<(PacketId, Awaited)>,
}

impl World {
    fn replicated() -> Self {
        let mut world = Self::new();
        world.net.is_cut.store(true, Ordering::Relaxed);
        world.nodes.iter().for_each(|node| node.router.replicate_sessions());
        (0..10).for_each(|_| world.step());
        world
    }

    /// Until the sessions of that broker have replicas.
    fn await_replicas(&mut self, of: usize) -> bool {
        for _ in 0..2_000 {
            self.step();
            let metrics = self.nodes[of].router.metrics();
            let shadows: i64 = self.nodes.iter().map(|node| node.router.metrics().sessions_shadowed.value()).sum();
            if metrics.sessions_unreplicated.value() == 0 && shadows > 0 {
                return true;
            }
        }
        false
    }

    /// It says nothing more, and nobody hears it.
    fn kill(&mut self, node: usize) {
        self.net.dead.lock().insert(id(node), self.now);
        // What it had sent is there or is not: both are tried by the moment.
        self.nodes[node].router.registry.clear();
    }

    fn sum(&self, value: impl Fn(&Metrics) -> u64) -> u64 {
        self.nodes.iter().map(|node| value(node.router.metrics())).sum()
    }
}

impl Careful {
    /// Its session is at the owner, and it is there.
    fn begin(world: &mut World) -> Self {
        let mut client = Client::begin(world);
        assert!(client.come(world, OWNER));
        Self { client, released: Vec::new() }
    }

    fn take(&mut self, world: &mut World) {
        let Client { connection, at, open, got } = &mut self.client;
        let Some(connection) = connection else { return };
        let node = &mut world.nodes[*at];
        node.router.pump(&mut node.batch, connection, world.now);
        node.router.finish(&mut node.batch, world.now);
        let mut drained = Drained::default();
        connection.subscriber.lock().outbox.take(&mut drained);
        let bytes: Vec<u8> = drained.segments.iter().flat_map(|segment| segment.bytes().to_vec()).chain(drained.tail).collect();
        let (mut rest, mut state) = (&*bytes, connection.subscriber.lock());
        self.released.retain(|(packet_id, awaited)| {
            let is_released = node.journal.has(*awaited);
            if is_released {
                state.pubcomp(*packet_id).unwrap();
                open.remove(packet_id);
            }
            !is_released
        });
        while let Some((packet, length)) = codec::decode(rest, ProtocolVersion::V5, 1_000_000).unwrap() {
            rest = &rest[length..];
            match packet {
                Packet::Publish(publish) => {
                    let packet_id = publish.packet_id.unwrap();
                    if publish.qos == QoS::AtLeastOnce || open.insert(packet_id) {
                        let number = std::str::from_utf8(publish.payload).unwrap().parse().unwrap();
                        got.push((publish.topic.to_owned(), number));
                    }
                    match publish.qos {
                        QoS::AtLeastOnce => state.puback(packet_id).unwrap(),
                        _ => {
                            let (_, awaited) = state.pubrec(packet_id, false).unwrap();
                            self.released.push((packet_id, awaited.unwrap()));
                        }
                    }
                }
                Packet::PubRel(ack) => {
                    state.pubcomp(ack.packet_id).unwrap();
                    open.remove(&ack.packet_id);
                }
                _ => {}
            }
        }
    }

    /// Its broker is dead.
    fn fall(&mut self) {
        self.client.connection = None;
        self.released.clear();
    }

    fn take_all(&mut self, world: &mut World) {
        for _ in 0..300 {
            self.take(world);
            world.step();
        }
    }

    fn check(&self, world: &World, what: &str) {
        self.client.check(world, what);
        assert!(self.client.open.is_empty(), "{what}: {:?}", self.client.open);
    }
}

/// A client is served, its broker dies after so many steps, and it comes to that other one.
fn die_after(steps: usize, to: usize, fate: Option<(usize, Fate)>, what: &str) {
    let mut world = World::replicated();
    let mut client = Careful::begin(&mut world);
    world.publish();
    assert!(world.await_replicas(OWNER), "{what}");
    world.net.sent.store(0, Ordering::Relaxed);
    *world.net.fate.lock() = fate;
    for step in 0..steps {
        world.publish();
        world.step();
        if step % 3 != 2 {
            client.take(&mut world);
        }
    }
    world.kill(OWNER);
    client.fall();
    for _ in 0..20 {
        world.publish();
        world.step();
    }
    assert!(client.client.come(&mut world, to), "{what}: its session is there");
    client.take_all(&mut world);
    client.check(&world, what);
    assert_eq!(world.sessions(), [to], "{what}");
    assert_eq!(world.sum(|metrics| metrics.sessions_promoted.value()), 1, "{what}");
}

#[test]
fn a_session_whose_broker_dies_goes_on_from_its_replica() {
    for steps in 0..12 {
        let to = 2 * (steps % 2);
        die_after(steps, to, None, &format!("dies after {steps} steps, to {to}"));
    }
}

#[test]
fn whatever_letter_of_a_replica_is_lost_or_comes_twice_or_late_the_session_goes_on() {
    // With `REPLICA_LETTERS` more of them: at 40 all of the time before the broker dies.
    let letters = std::env::var("REPLICA_LETTERS").map_or(8, |count| count.parse().unwrap());
    for number in 0..letters {
        for (fate, steps) in [(Fate::Lost, 20), (Fate::Twice, 21), (Fate::Late, 27)] {
            die_after(steps, 2 * (number % 2), Some((number, fate)), &format!("letter {number} {fate:?}, {steps} steps"));
        }
    }
}

/// The lanes are late, the letters are not.
#[test]
fn who_waits_for_a_replica_that_does_not_get_the_messages_goes_on_within_two_seconds() {
    let mut world = World::replicated();
    let mut client = Careful::begin(&mut world);
    assert!(world.await_replicas(OWNER));
    world.net.is_still.store(true, Ordering::Relaxed);
    let own = |client: &Careful| client.client.got.iter().filter(|(topic, _)| topic == "t/1/2").count();
    let (mut since, mut most) = (0, 0);
    for step in 0..600 {
        if step % 10 == 0 {
            world.publish();
        }
        let before = own(&client);
        client.take(&mut world);
        since = if own(&client) > before { 0 } else { since + 1 };
        most = most.max(since);
        world.step();
    }
    assert!(own(&client) > 0 && most < 450, "nothing for {most} steps of 5 ms");
    world.net.is_still.store(false, Ordering::Relaxed);
    client.take_all(&mut world);
    client.check(&world, "late lanes");
}

/// Else what the client repeats elsewhere when its broker has died would come twice. (Of the way to other brokers: see the journal's tests.)
#[test]
fn what_a_client_publishes_at_qos_2_comes_to_durable_sessions_when_its_replica_knows_the_identifier() {
    let mut world = World::replicated();
    let mut client = Careful::begin(&mut world);
    assert!(world.await_replicas(OWNER));
    let own = |client: &Careful| client.client.got.iter().filter(|(topic, _)| topic == "t/1/2").count();
    // What came before is over.
    for _ in 0..100 {
        world.step();
        client.take(&mut world);
    }
    let before = own(&client);
    *world.net.mute.lock() = Some(id(OWNER));
    let connection = client.client.connection.as_ref().unwrap();
    let node = &mut world.nodes[OWNER];
    node.router.enter(&mut node.batch);
    let received = connection.subscriber.lock().receive(node.batch.writes(), PacketId::new(7).unwrap(), 100);
    assert_eq!(received, Ok(true));
    let (topic, qos) = ("t/1/2", QoS::ExactlyOnce);
    let message = Message { topic, payload: b"0", qos, retain: false, expires_at: None, properties: &[] };
    node.router.publish(&mut node.batch, &mut node.routes, &message, Ingress::Session(&connection.subscriber), world.now);
    node.router.finish(&mut node.batch, world.now);
    let awaited = node.batch.writes().take_awaited();
    for _ in 0..20 {
        world.step();
        client.take(&mut world);
    }
    assert!(!world.nodes[OWNER].journal.has(awaited), "{awaited:?}");
    assert_eq!(own(&client), before);
    *world.net.mute.lock() = None;
    for _ in 0..150 {
        world.step();
        client.take(&mut world);
    }
    assert!(world.nodes[OWNER].journal.has(awaited));
    // The replica must have it before its client, which is its publisher, is sent it: neither waits for the other.
    assert_eq!((own(&client), world.sum(|metrics| metrics.replicas_given_up.value())), (before + 1, 0));
}

#[test]
fn where_the_task_that_tells_replicas_stands_still_nobody_waits_for_them() {
    let mut world = World::replicated();
    let _client = Careful::begin(&mut world);
    assert!(world.await_replicas(OWNER));
    let is_awaited = |world: &World| world.nodes[OWNER].journal.is_replica_awaited();
    let watch = |world: &World, after: Duration| world.nodes[OWNER].router.watch_replicas(world.now + after);
    assert!(!watch(&world, Duration::from_secs(1)) && is_awaited(&world));
    assert!(watch(&world, Duration::from_millis(2_100)) && !is_awaited(&world));
    // It goes on.
    world.publish();
    (0..40).for_each(|_| world.step());
    assert!(is_awaited(&world) && world.sum(|metrics| metrics.replicas_given_up.value()) == 0);
    assert!(!watch(&world, Duration::from_secs(1)));
}

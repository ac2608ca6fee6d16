//! Several brokers' meshes in one process: real sockets on loopback, real certificates, real time. What is awaited is awaited until it
//! comes or a generous time is over; nothing depends on how fast the machine is.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::TempDir;

use super::pki::{Authority, Validity};
use super::proof::Statement;
use super::tls::{Credentials, Half};
use super::*;
use crate::codec::QoS;
use crate::config::{self, Discovery, HostPort};
use crate::frame::bulk::{BUCKET_COUNT, TopicKey};
use crate::frame::control::{ControlFrame, Seal};
use crate::ids::{LogId, MessageId, Stamp, TreeId};
use crate::limits;
use crate::replication::{LocalBatch, MeshMessage, ReplicationConfig};
use crate::session::Writes;
use crate::shared::register::Key;
use crate::shared::retained::{Taken, Turn};
use crate::shared::trace::{Audience, Subscribed};
use crate::shared::{BrokerRecord, ClockWord, LastChange, LinkRole, LinkState, Mail, Signature, SignedRecord};

mod admission;
mod claims;
mod pairing;

const PATIENCE: Duration = Duration::from_secs(60);
const HELLO: Duration = Duration::from_millis(100);
const LANES: u8 = 2;

/// Waits until `done` says something.
async fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = clock::now() + PATIENCE;
    loop {
        if let Some(found) = done() {
            return found;
        }
        assert!(clock::now() < deadline, "{what}: it does not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What subscribers of one broker were given.
#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<Vec<String>>>);

impl Deliver for Inbox {
    fn deliver(&mut self, message: &MeshMessage<'_>, _: MessageId) {
        self.0.lock().push(String::from_utf8_lossy(message.payload).into_owned());
    }

    fn flush(&mut self) {}
}

/// Nothing is retained.
struct Nothing;

impl RetainedCopies for Nothing {
    fn sums(&self) -> Vec<u64> {
        vec![0; BUCKET_COUNT]
    }

    fn stamps(&self, _: TopicKey, _: TopicKey, _: usize) -> Vec<(TopicKey, Stamp)> {
        Vec::new()
    }

    fn unseen(&self, _: TopicKey, _: TopicKey) -> BTreeSet<TopicKey> {
        BTreeSet::new()
    }

    fn put_messages(&self, keys: &mut BTreeSet<TopicKey>, _: usize, _: &mut Vec<u8>, _: Instant) {
        keys.clear();
    }

    fn take(&self, _: &MeshMessage<'_>, _: Instant) -> Taken {
        Taken::Refused
    }

    fn taken(&self) {}

    fn is_behind(&self) -> bool {
        false
    }

    fn news(&self) -> u64 {
        0
    }

    fn turn(&self) -> &Turn {
        static TURN: Turn = Turn::new();
        &TURN
    }

    fn room(&self) -> usize {
        0
    }

    fn clock_ms(&self, _: Instant) -> u64 {
        0
    }

    fn hear_clock(&self, _: u64, _: Instant) -> ClockWord {
        ClockWord::Fine
    }
}

impl Subscribed for Nothing {
    fn audience(&self, _: &str) -> Audience {
        Audience::default()
    }
}

struct Broker {
    handle: MeshHandle,
    replication: Arc<Replication>,
    registers: Arc<Registers>,
    post: Arc<Post>,
    inbox: Inbox,
    batch: Mutex<LocalBatch>,
    dir: Arc<TempDir>,
}

/// What a broker is started with; the defaults make one that dials nobody.
struct Plan<'a> {
    authority: &'a Authority,
    mesh: &'a str,
    name: &'a str,
    peers: Vec<SocketAddr>,
    listen: &'a str,
    lanes: u8,
    dir: Option<Arc<TempDir>>,
    links_max: usize,
    priority: u16,
    mtu: u16,
}

impl<'a> Plan<'a> {
    fn new(authority: &'a Authority, name: &'a str, peers: &[&Broker]) -> Self {
        let peers = peers.iter().map(|peer| peer.address()).collect();
        Self {
            authority,
            mesh: "m",
            name,
            peers,
            listen: "127.0.0.1:0",
            lanes: LANES,
            dir: None,
            links_max: 8,
            priority: 32_768,
            mtu: limits::MTU_DEFAULT,
        }
    }

    fn config(&self, credentials: Credentials, dir: &TempDir) -> MeshConfig {
        let peers = self.peers.iter().map(|peer| HostPort { host: peer.ip().to_string(), port: peer.port() });
        let mesh = config::Mesh {
            name: self.mesh.to_owned(),
            listen: self.listen.parse().unwrap(),
            peers: peers.collect(),
            discovery: vec![Discovery::Static],
            hello_time: HELLO,
            lanes: self.lanes,
            max_links: self.links_max,
            priority: self.priority,
            mtu: self.mtu,
            ..config::Mesh::default()
        };
        MeshConfig { name: self.name.to_owned(), data_dir: dir.path().to_owned(), mesh, credentials }
    }

    fn credentials(&self, trusts: &Authority) -> Credentials {
        let pair = self.authority.issue_broker(self.mesh, self.name, &[], Validity::days(1)).unwrap();
        Credentials::of_authority(trusts, &pair).unwrap()
    }

    fn start(self) -> Broker {
        let credentials = self.credentials(self.authority);
        self.start_with(credentials)
    }

    fn start_with(self, credentials: Credentials) -> Broker {
        let dir = self.dir.clone().unwrap_or_else(|| Arc::new(tempfile::tempdir().unwrap()));
        let config = self.config(credentials, &dir);
        let replication = Replication::new(
            ReplicationConfig {
                origin: BrokerId::derive(self.mesh, self.name),
                log: LogId(rand::random()),
                lanes_per_class: self.lanes,
                ring_blocks: 1_024,
                ring_bytes: 64 * 1024 * 1024,
                ring_age: Duration::from_secs(600),
                slows_publishers: true,
                hop_max: 255,
                message_bytes_max: 1024 * 1024,
            },
            clock::now(),
        );
        let own = BrokerId::derive(self.mesh, self.name);
        let registers = Registers::new(own, Duration::from_secs(900), limits::REGISTER_FILTERS_MAX);
        let inbox = Inbox::default();
        let deliver = inbox.clone();
        let factory: DeliverFactory = Arc::new(move || Box::new(deliver.clone()));
        let post = Arc::<Post>::default();
        let (replicates, tells) = (Arc::clone(&replication), Arc::clone(&registers));
        let handle =
            super::start(config, replicates, tells, Arc::clone(&post), factory, Arc::new(Nothing), Arc::new(Nothing)).unwrap();
        let batch = Mutex::new(LocalBatch::new());
        Broker { handle, replication, registers, post, inbox, batch, dir }
    }
}

impl Broker {
    fn address(&self) -> SocketAddr {
        self.handle.local_addr()
    }

    fn publish(&self, qos: QoS, payload: &str) {
        let mut batch = self.batch.lock();
        batch.push(
            &self.replication,
            &MeshMessage {
                topic: "t",
                payload: payload.as_bytes(),
                qos,
                retain: false,
                expiry_seconds: None,
                properties: &[],
                stamp: None,
                picks: Default::default(),
            },
        );
        self.replication.publish(&mut batch, &mut Writes::default(), clock::now());
    }

    fn received(&self) -> Vec<String> {
        self.inbox.0.lock().clone()
    }
}

fn authority() -> Authority {
    Authority::create("m", Validity::days(1)).unwrap()
}

/// All brokers draw one topology.
async fn until_agreed(brokers: &[&Broker], links: usize) -> Topology {
    until("one topology", || {
        let drawn: Vec<_> = brokers.iter().map(|broker| broker.handle.topology()).collect();
        let first = drawn.first()?;
        let forwarding = first.links.iter().filter(|link| link.state == LinkState::Forwarding).count();
        let up = first.links.iter().filter(|link| link.state != LinkState::Down).count();
        (drawn.iter().all(|one| one == first) && up == links && forwarding == brokers.len() - 1).then(|| first.clone())
    })
    .await
}

/// The path carries them; what counts is what the lower end takes.
#[tokio::test]
async fn packets_are_as_large_as_both_ends_take_them() {
    let authority = authority();
    let a = Plan { mtu: 9_000, ..Plan::new(&authority, "a", &[]) }.start();
    let b = Plan { mtu: 16_000, ..Plan::new(&authority, "b", &[&a]) }.start();
    let c = Plan::new(&authority, "c", &[&b]).start();
    let mtu_of =
        |broker: &Broker, peer: &str| broker.handle.links().iter().find(|link| link.peer == peer).map(|link| link.mtu_bytes);
    for (broker, peer, least, most) in
        [(&a, "b", 8_900, 9_000), (&b, "a", 8_900, 9_000), (&b, "c", 1_400, 1_472), (&c, "b", 1_400, 1_452)]
    {
        // The search ends within 20 bytes of what is taken.
        until(peer, || mtu_of(broker, peer).filter(|mtu| *mtu >= least)).await;
        assert!(mtu_of(broker, peer).unwrap() <= most);
    }
}

#[tokio::test]
async fn two_brokers_link_and_carry_messages_both_ways() {
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    let b = Plan::new(&authority, "b", &[&a]).start();
    let topology = until_agreed(&[&a, &b], 1).await;
    assert_eq!(topology.brokers.iter().map(|broker| broker.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let link = &topology.links[0];
    let roles = [link.role_a, link.role_b];
    assert!(roles == [LinkRole::Root, LinkRole::Designated] || roles == [LinkRole::Designated, LinkRole::Root], "{roles:?}");
    for (qos, from, to) in [(QoS::AtMostOnce, &a, &b), (QoS::AtLeastOnce, &a, &b), (QoS::ExactlyOnce, &b, &a)] {
        let expected: Vec<_> = (0..500).map(|n| format!("{qos:?} {n}")).collect();
        to.inbox.0.lock().clear();
        expected.iter().for_each(|payload| from.publish(qos, payload));
        until("all messages", || (to.received().len() >= expected.len()).then_some(())).await;
        assert_eq!(to.received(), expected);
    }
    assert_eq!((a.handle.links().len(), b.handle.links().len()), (1, 1));
    b.handle.shutdown().await;
    until("a notices at once", || a.handle.links().is_empty().then_some(())).await;
}

/// Letters go over as many links as it takes, and who cannot be reached is told of.
#[tokio::test]
async fn letters_reach_brokers_with_which_there_is_no_link() {
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    let b = Plan::new(&authority, "b", &[&a]).start();
    let c = Plan::new(&authority, "c", &[&b]).start();
    let id = |name| BrokerId::derive("m", name);
    until_agreed(&[&a, &b, &c], 2).await;
    // The way is found when the records have come; until then it is said that there is none.
    let mut sent = 0;
    until("a letter over two links", || {
        sent += 1;
        a.post.send(id("c"), format!("letter {sent}").as_bytes());
        c.post.receive()
    })
    .await;
    let long = vec![b'x'; limits::LETTER_BYTES_MAX];
    // Nor need c know the way back by now.
    until("the longest one, back", || {
        c.post.send(id("a"), &long);
        match a.post.receive()? {
            Mail::Letter { from, body } => {
                assert!(from == id("c") && body == long);
                Some(())
            }
            Mail::Unreachable(_) => None,
        }
    })
    .await;
    c.handle.abort().await;
    until("word that c cannot be reached", || {
        a.post.send(id("c"), b"are you there");
        a.post.receive().filter(|mail| *mail == Mail::Unreachable(id("c")))
    })
    .await;
    assert_eq!(b.post.receive(), None, "whoever carries letters does not read them");
}

/// Publishes `count` messages at each broker and waits until every broker has those of all others, once each and in order.
async fn exchange(brokers: &[&Broker], qos: QoS, tag: &str, count: usize) {
    let of = |broker: usize| (0..count).map(move |n| format!("{tag} {broker} {n}"));
    brokers.iter().for_each(|broker| broker.inbox.0.lock().clear());
    for n in 0..count {
        for (place, broker) in brokers.iter().enumerate() {
            broker.publish(qos, &format!("{tag} {place} {n}"));
        }
    }
    let expected = count * (brokers.len() - 1);
    for (place, broker) in brokers.iter().enumerate() {
        until("all messages", || (broker.received().len() >= expected).then_some(())).await;
        let received = broker.received();
        for other in (0..brokers.len()).filter(|other| *other != place) {
            let prefix = format!("{tag} {other} ");
            let from_other: Vec<_> = received.iter().filter(|payload| payload.starts_with(&prefix)).cloned().collect();
            assert_eq!(from_other, of(other).collect::<Vec<_>>(), "from {other} at {place}");
        }
        assert_eq!(received.len(), expected, "nothing else at {place}");
    }
}

#[tokio::test]
async fn brokers_that_dial_each_other_keep_one_link() {
    let authority = authority();
    // Ports that are free now; nobody else binds them while the other is tried.
    let [port_a, port_b] = [(); 2].map(|()| endpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap());
    let [at_a, at_b] = [&port_a, &port_b].map(|socket| socket.local_addr().unwrap());
    drop((port_a, port_b));
    let plan = |name, listen: SocketAddr, peer| {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        (Plan { peers: vec![peer], dir: Some(dir), ..Plan::new(&authority, name, &[]) }, listen.to_string())
    };
    let ((plan_a, listen_a), (plan_b, listen_b)) = (plan("a", at_a, at_b), plan("b", at_b, at_a));
    let a = Plan { listen: &listen_a, ..plan_a }.start();
    let b = Plan { listen: &listen_b, ..plan_b }.start();
    until_agreed(&[&a, &b], 1).await;
    exchange(&[&a, &b], QoS::AtLeastOnce, "first", 200).await;
    // It stays one link: no rival ends it.
    tokio::time::sleep(5 * HELLO).await;
    assert_eq!((a.handle.links().len(), b.handle.links().len()), (1, 1));
    exchange(&[&a, &b], QoS::AtMostOnce, "second", 200).await;
}

#[tokio::test]
async fn full_brokers_make_room_for_one_that_nothing_else_leads_to() {
    let authority = authority();
    let plan = |name, peers: &[&Broker]| Plan { links_max: 2, ..Plan::new(&authority, name, peers) };
    let a = plan("a", &[]).start();
    let b = plan("b", &[&a]).start();
    let c = plan("c", &[&a, &b]).start();
    until_agreed(&[&a, &b, &c], 3).await;
    let d = plan("d", &[&a, &b, &c]).start();
    until_agreed(&[&a, &b, &c, &d], 4).await;
    exchange(&[&a, &b, &c, &d], QoS::AtLeastOnce, "four", 50).await;
}

#[tokio::test]
async fn a_cycle_is_a_tree_and_survives_its_root() {
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    let b = Plan::new(&authority, "b", &[&a]).start();
    let c = Plan::new(&authority, "c", &[&a, &b]).start();
    let d = Plan::new(&authority, "d", &[&a, &b, &c]).start();
    let topology = until_agreed(&[&a, &b, &c, &d], 6).await;
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        exchange(&[&a, &b, &c, &d], qos, &format!("{qos:?}"), 200).await;
    }
    let all = [("a", &a), ("b", &b), ("c", &c), ("d", &d)];
    let (root, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| *name == topology.root);
    let rest: Vec<&Broker> = rest.into_iter().map(|(_, broker)| broker).collect();
    root[0].1.handle.abort().await;
    let healed = until_agreed(&rest, 3).await;
    assert_ne!(healed.root, topology.root);
    exchange(&rest, QoS::AtLeastOnce, "healed", 200).await;
    exchange(&rest, QoS::AtMostOnce, "healed", 200).await;

    // It comes back with a later life and what it misses.
    let (name, gone) = root[0];
    let [first, second, third] = rest[..] else { panic!("three are left") };
    let back = Plan { dir: Some(Arc::clone(&gone.dir)), ..Plan::new(&authority, name, &[first, second, third]) }.start();
    let topology = until_agreed(&[&back, first, second, third], 6).await;
    assert_eq!(topology.brokers.len(), 4);
    exchange(&[&back, first, second, third], QoS::ExactlyOnce, "back", 200).await;
}

#[tokio::test]
async fn max_links_bounds_and_disturbs_nobody() {
    let authority = authority();
    let a = Plan { links_max: 1, ..Plan::new(&authority, "a", &[]) }.start();
    let b = Plan::new(&authority, "b", &[&a]).start();
    until_agreed(&[&a, &b], 1).await;
    let c = Plan::new(&authority, "c", &[&a]).start();
    tokio::time::sleep(3 * HELLO).await;
    assert!(c.handle.links().is_empty() && a.handle.links().len() == 1);
    exchange(&[&a, &b], QoS::AtLeastOnce, "still", 50).await;
}

#[tokio::test]
async fn strangers_stay_out_and_the_others_go_on() {
    let (ours, theirs) = (authority(), authority());
    let a = Plan::new(&ours, "a", &[]).start();
    let b = Plan::new(&ours, "b", &[&a]).start();
    until_agreed(&[&a, &b], 1).await;
    // Of another authority, but trusting ours; and of another mesh with a certificate of ours.
    let plan = Plan::new(&theirs, "c", &[&a]);
    let credentials = plan.credentials(&ours);
    let c = plan.start_with(credentials);
    let d = Plan { mesh: "other", ..Plan::new(&ours, "d", &[&a]) }.start();
    tokio::time::sleep(5 * HELLO).await;
    assert!(c.handle.links().is_empty() && d.handle.links().is_empty());
    assert_eq!(until_agreed(&[&a, &b], 1).await.brokers.len(), 2);
    exchange(&[&a, &b], QoS::AtLeastOnce, "still", 50).await;
}

#[tokio::test]
async fn a_name_is_looked_up_and_this_broker_finds_itself_there() {
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    let plan = Plan::new(&authority, "b", &[]);
    let dir = tempfile::tempdir().unwrap();
    let mut config = plan.config(plan.credentials(&authority), &dir);
    let name = HostPort { host: "localhost".to_owned(), port: a.address().port() };
    (config.mesh.discovery, config.mesh.peers) = (vec![Discovery::Dns], vec![name]);
    let replication = Arc::clone(&a.replication);
    let registers = Registers::new(BrokerId::derive("m", "b"), Duration::from_secs(900), limits::REGISTER_FILTERS_MAX);
    let b = super::start(
        config,
        replication,
        registers,
        Arc::default(),
        Arc::new(|| Box::new(Inbox::default())),
        Arc::new(Nothing),
        Arc::new(Nothing),
    )
    .unwrap();
    until("a link", || (b.links().len() == 1).then_some(())).await;
    b.shutdown().await;
}

#[tokio::test]
async fn what_does_not_fit_together_is_named_at_start() {
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    let start = |mesh_name: &str, name: &str, listen: SocketAddr| {
        let plan = Plan::new(&authority, "b", &[]);
        let dir = tempfile::tempdir().unwrap();
        let mut config = plan.config(plan.credentials(&authority), &dir);
        (config.mesh.name, config.name, config.mesh.listen) = (mesh_name.to_owned(), name.to_owned(), listen);
        let deliver: DeliverFactory = Arc::new(|| Box::new(Inbox::default()));
        super::start(
            config,
            Arc::clone(&a.replication),
            Arc::clone(&a.registers),
            Arc::default(),
            deliver,
            Arc::new(Nothing),
            Arc::new(Nothing),
        )
        .unwrap_err()
        .to_string()
    };
    let free = "127.0.0.1:0".parse().unwrap();
    let taken = start("m", "b", a.address());
    assert!(taken.contains(&a.address().to_string()), "{taken}");
    let other = start("m", "c", free);
    assert!(other.contains("certs broker --mesh m --name c"), "{other}");
    let mesh = start("n", "b", free);
    assert!(mesh.contains("\"m\"") && mesh.contains("\"n\""), "{mesh}");
    assert!(start("m", "a b", free).contains("\"a b\""));
}

// ---- handshakes, without a driver ----

fn local(authority: &Authority, mesh: &str, name: &str) -> (Arc<Local>, Credentials) {
    let pair = authority.issue_broker(mesh, name, &[], Validity::days(1)).unwrap();
    let credentials = Credentials::of_authority(authority, &pair).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let shared = Arc::new(arc_swap::ArcSwap::from_pointee(credentials.clone()));
    let identity = Identity::derive(mesh, name).unwrap();
    let local = Local {
        records: Arc::new(RwLock::new(Records::new(identity.id, driver::RECORD_LIFE))),
        identity,
        name: name.to_owned(),
        instance: rand::random(),
        lanes: LANES,
        hello: HELLO,
        costs: std::collections::BTreeMap::new(),
        life: Mutex::new(Life::begin(dir.path(), clock::unix_time()).unwrap()),
        roster: Roster::new(BrokerId::derive(mesh, name), 8, false),
        metrics: Arc::default(),
        keyring: Keyring::new(Arc::clone(&shared)),
        credentials: shared,
    };
    (Arc::new(local), credentials)
}

fn open_endpoint(credentials: &Credentials) -> Gate {
    let socket = endpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let credentials = Arc::new(ArcSwap::from_pointee(credentials.clone()));
    endpoint::open(socket, &credentials, config::Congestion::default(), limits::MTU_DEFAULT).unwrap()
}

async fn dial(from: &Gate, address: SocketAddr, local: &Arc<Local>) -> Result<handshake::Candidate, LinkError> {
    let control = from.connect(address, Half::Control).unwrap().await?;
    handshake::dial(local, from, control).await
}

/// The next connection.
async fn arrival(to: &Gate) -> Result<quinn::Connection, LinkError> {
    Ok(to.accept().await.unwrap().accept()?.await?)
}

/// Accepts a link whose connections are the next two.
async fn accept(to: &Gate, local: &Arc<Local>) -> Result<handshake::Candidate, LinkError> {
    let pairing = Arc::<Pairing>::default();
    let control = arrival(to).await?;
    let second = async {
        let joined = pairing.join(arrival(to).await?).await;
        joined.and(std::future::pending().await)
    };
    tokio::select! {
        accepted = handshake::accept(local, &pairing, control) => accepted,
        failed = second => failed,
    }
}

/// One dials, the other accepts: what each says.
async fn meet(
    dialler: (Arc<Local>, Credentials),
    acceptor: (Arc<Local>, Credentials),
) -> [Result<handshake::Candidate, LinkError>; 2] {
    let (from, to) = (open_endpoint(&dialler.1), open_endpoint(&acceptor.1));
    let dialling = dial(&from, to.endpoint.local_addr().unwrap(), &dialler.0);
    let accepting = async {
        let candidate = accept(&to, &acceptor.0).await?;
        // As a link would.
        let mut settled = Vec::new();
        ControlFrame::Settled { incarnation: acceptor.0.life.lock().incarnation() }.encode(&mut settled);
        let mut candidate = candidate;
        candidate.writer.write_all(&settled).await?;
        Ok(candidate)
    };
    let (dialled, accepted) = tokio::join!(dialling, accepting);
    [dialled, accepted]
}

fn said(ends: &[Result<handshake::Candidate, LinkError>; 2]) -> [String; 2] {
    ends.each_ref()
        .map(|end| end.as_ref().map_or_else(ToString::to_string, |candidate| format!("linked with {}", candidate.peer.name)))
}

#[tokio::test]
async fn both_ends_say_why_there_is_no_link() {
    let (ours, theirs) = (authority(), authority());
    let expired = Validity { not_before: Duration::from_secs(1), not_after: Duration::from_secs(2) };
    let of = |authority: &Authority, trusts: &Authority, validity| {
        let pair = authority.issue_broker("m", "a", &[], validity).unwrap();
        (local(&ours, "m", "a").0, Credentials::of_authority(trusts, &pair).unwrap())
    };
    let today = Validity::days(1);
    let with_lanes = |lanes| {
        let (a, credentials) = local(&ours, "m", "a");
        let mut a = Arc::into_inner(a).unwrap();
        a.lanes = lanes;
        (Arc::new(a), credentials)
    };
    let renamed = {
        let (a, credentials) = local(&ours, "m", "a");
        let mut a = Arc::into_inner(a).unwrap();
        a.name = "z".to_owned();
        (Arc::new(a), credentials)
    };
    let cases = [
        ("good", local(&ours, "m", "a"), "linked with b", "linked with a"),
        (
            "other authority",
            of(&theirs, &ours, today),
            "refused by the peer: our certificate is of an authority",
            "the peer's certificate is of an authority",
        ),
        (
            "trusts another authority",
            of(&ours, &theirs, today),
            "the peer's certificate is of an authority",
            "refused by the peer: our certificate is of an authority",
        ),
        (
            "expired",
            of(&ours, &ours, expired),
            "refused by the peer: our certificate is expired",
            "the peer's certificate is expired",
        ),
        ("other mesh", local(&ours, "n", "a"), "mesh \"m\", this is \"n\"", ""),
        ("other name", renamed, "closed by the peer: the peer calls itself \\\"z\\\"", "the peer calls itself \"z\""),
        ("other lanes", with_lanes(3), "closed by the peer: the peer has mesh.lanes = 3", "mesh.lanes = 3, this broker 2"),
        ("clone", local(&ours, "m", "b"), "another process uses", "another process uses"),
    ];
    for (case, dialler, dialler_says, acceptor_says) in cases {
        let [dialled, accepted] = said(&meet(dialler, local(&ours, "m", "b")).await);
        assert!(dialled.contains(dialler_says), "{case}: the dialler says {dialled:?}");
        assert!(accepted.contains(acceptor_says), "{case}: the acceptor says {accepted:?}");
    }
    let oneself = local(&ours, "m", "b");
    let [dialled, accepted] = said(&meet((Arc::clone(&oneself.0), oneself.1.clone()), oneself).await);
    assert!(dialled.contains("this broker itself") && accepted.contains("this broker itself"), "{dialled} / {accepted}");
}

#[tokio::test]
async fn who_shows_no_certificate_is_refused() {
    let ours = authority();
    let (_, credentials) = local(&ours, "m", "b");
    let (from, to) = (open_endpoint(&credentials), open_endpoint(&credentials));
    let mut roots = rustls::RootCertStore::empty();
    let der = rustls::pki_types::pem::PemObject::from_pem_slice(ours.certificate().as_bytes()).unwrap();
    roots.add(der).unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![Half::Control.protocol().to_vec()];
    let config = quinn::ClientConfig::new(Arc::new(quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap()));
    let connecting = from.endpoint.connect_with(config, to.endpoint.local_addr().unwrap(), identity::DIAL_NAME).unwrap();
    let accepting = async { to.accept().await.unwrap().accept()?.await };
    let (_, accepted) = tokio::join!(connecting, accepting);
    let error = LinkError::from(accepted.unwrap_err()).to_string();
    assert!(error.contains("the peer's certificate is required"), "{error}");
}

#[tokio::test]
async fn a_handshake_raises_an_incarnation_that_a_peer_has_met() {
    let ours = authority();
    let (a, b) = (local(&ours, "m", "a"), local(&ours, "m", "b"));
    let later = crate::ids::Incarnation(a.0.life.lock().incarnation().0 + 1_000_000);
    b.0.roster.met(a.0.identity.id, later);
    let [dialled, accepted] = meet(a.clone(), b.clone()).await;
    let settled = crate::ids::Incarnation(later.0 + 1);
    assert_eq!(accepted.unwrap().peer.incarnation, settled);
    assert_eq!(a.0.life.lock().incarnation(), settled);
    assert_eq!(dialled.unwrap().peer.incarnation, b.0.life.lock().incarnation());
    // Settled by the first link: what somebody says of later lives is only a word.
    assert_eq!(a.0.life.lock().settle(), settled);
    b.0.roster.met(a.0.identity.id, crate::ids::Incarnation(settled.0 + 1));
    let [dialled, accepted] = meet(a.clone(), b.clone()).await;
    assert_eq!((dialled.is_ok(), accepted.unwrap().peer.incarnation), (true, settled));
    // A record that our own key has signed is more than that.
    let tell = |signer: &Local, later: u64| {
        let record = record_of(&a.0.identity, crate::ids::Incarnation(settled.0 + later));
        let wire = record.encode().unwrap();
        let signature = signer.keyring.sign(Statement::Record(&wire)).unwrap();
        b.0.records.write().merge(record, SignedRecord { wire: wire.into(), signature }, clock::now());
    };
    tell(&b.0, 1);
    let [dialled, accepted] = said(&meet(a.clone(), b.clone()).await);
    assert!(dialled.contains("signed by") && accepted.contains("signed by"), "{dialled} / {accepted}");
    assert!(a.0.life.lock().cloned().is_none(), "forged");
    tell(&a.0, 2);
    let [dialled, accepted] = said(&meet(a.clone(), b.clone()).await);
    assert!(dialled.contains("another process") && accepted.contains("another process"), "{dialled} / {accepted}");
    assert!(a.0.life.lock().cloned().is_some());
}

#[tokio::test]
async fn a_handshake_raises_an_incarnation_of_which_a_record_tells() {
    let ours = authority();
    let (a, b) = (local(&ours, "m", "a"), local(&ours, "m", "b"));
    let later = crate::ids::Incarnation(a.0.life.lock().incarnation().0 + 1_000_000);
    let record = record_of(&a.0.identity, later);
    let wire = record.encode().unwrap();
    let signature = a.0.keyring.sign(Statement::Record(&wire)).unwrap();
    b.0.records.write().merge(record, SignedRecord { wire: wire.into(), signature }, clock::now());
    let [_, accepted] = meet(a, b).await;
    assert_eq!(accepted.unwrap().peer.incarnation, crate::ids::Incarnation(later.0 + 1));
}

fn record_of(identity: &Identity, incarnation: crate::ids::Incarnation) -> BrokerRecord {
    BrokerRecord {
        id: identity.id,
        incarnation,
        sequence: 1,
        name: "a".to_owned(),
        addresses: Vec::new(),
        version: String::new(),
        priority: 1,
        capacity: 1,
        root: identity.id,
        epoch: 1,
        changes: 0,
        last_change: LastChange { at: 0, cause: String::new() },
        links: Vec::new(),
        links_max: 0,
        log: None,
    }
}

// ---- control under load ----

/// One end of a link without a driver: what the link tells comes to whoever holds this.
struct Side {
    link: Arc<link::Link>,
    events: mpsc::Receiver<link::Event>,
    replication: Arc<Replication>,
}

impl Side {
    fn start(candidate: handshake::Candidate, local: &Arc<Local>) -> Self {
        let config = ReplicationConfig {
            origin: local.identity.id,
            log: LogId(rand::random()),
            lanes_per_class: LANES,
            ring_blocks: 4_096,
            ring_bytes: 32 * 1024 * 1024,
            ring_age: Duration::from_secs(600),
            slows_publishers: true,
            hop_max: 255,
            message_bytes_max: 1024 * 1024,
        };
        let replication = Replication::new(config, clock::now());
        let id = crate::ids::PortId { peer: candidate.peer.id, generation: 1 };
        let (told, events) = mpsc::channel(driver::EVENTS_MAX);
        let factory: DeliverFactory = Arc::new(|| Box::new(Ignore));
        let port = replication.add_port(id);
        let post = PostOffice::open(local.identity.id, Arc::default(), clock::now());
        let side = link::LocalSide { deliver: factory, retained: Arc::new(Nothing), replication: Arc::clone(&replication), post };
        let (link, _) = link::start(candidate, id, port, local, side, told);
        Self { link, events, replication }
    }
}

/// Two linked ends on the present runtime; one publishes as fast as its lanes take it while BPDUs go there and back.
async fn control_round_trips(count: usize) -> (Vec<Duration>, u64) {
    let ours = authority();
    let [(a, a_shows), (b, b_shows)] = [local(&ours, "m", "a"), local(&ours, "m", "b")];
    let (from, to) = (open_endpoint(&a_shows), open_endpoint(&b_shows));
    let address = to.endpoint.local_addr().unwrap();
    let dialling = async { Side::start(dial(&from, address, &a).await.unwrap(), &a) };
    let accepting = async { Side::start(accept(&to, &b).await.unwrap(), &b) };
    let (Side { link: a, events: mut a_events, replication: publisher }, Side { link: b, events: mut b_events, .. }) =
        tokio::join!(dialling, accepting);
    let claim = RootClaim { priority: 1, capacity: 1, id: BrokerId(1), incarnation: crate::ids::Incarnation(1) };
    let tree = TreeId { epoch: 1, root: claim };
    let number = crate::ids::OpenNumber { count: 1, child: BrokerId(1), incarnation: crate::ids::Incarnation(1) };
    let open = crate::ids::OpenMark { tree, number };
    b.port.open(&open, clock::now());
    a.port.answer(&open, clock::now());

    // The publisher floods its rings; QoS 0 never waits.
    let running = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let flooding = {
        let (running, publisher) = (Arc::clone(&running), Arc::clone(&publisher));
        task::thread("flood", move || {
            let (mut batch, payload) = (LocalBatch::new(), [7; 200]);
            while running.load(std::sync::atomic::Ordering::Relaxed) {
                for n in 0..256_u32 {
                    let topic = format!("t/{}", n % 8);
                    let message = MeshMessage {
                        topic: &topic,
                        payload: &payload,
                        qos: QoS::AtMostOnce,
                        retain: false,
                        expiry_seconds: None,
                        properties: &[],
                        stamp: None,
                        picks: Default::default(),
                    };
                    batch.push(&publisher, &message);
                }
                publisher.publish(&mut batch, &mut Writes::default(), clock::now());
                // More than a hundred megabytes a second: more than the link carries, without taking its processor away.
                std::thread::sleep(Duration::from_micros(300));
            }
        })
        .unwrap()
    };
    let echo = {
        let b = Arc::clone(&b);
        task::spawn("echo", async move {
            while let Some(event) = b_events.recv().await {
                if let link::Event::Bpdu { bpdu, .. } = event {
                    b.send(&ControlFrame::Bpdu(bpdu));
                }
            }
        })
    };
    // Saturated: more has come than the credit ever lets wait.
    until("saturation", || (b.lanes.stats().udp_rx.bytes > crate::limits::CREDIT_BYTES_MAX as u64).then_some(())).await;
    let (before, began) = (b.lanes.stats().udp_rx.bytes, clock::now());
    let mut trips = Vec::new();
    for number in 1.. {
        let carried = b.lanes.stats().udp_rx.bytes - before;
        if trips.len() >= count && carried > 4 * crate::limits::CREDIT_BYTES_MAX as u64 {
            break;
        }
        assert!(clock::now() - began < PATIENCE, "{} trips beside {carried} bytes in {PATIENCE:?}", trips.len());
        let bpdu = crate::stp::Bpdu { number, tree, distance: Some(0), hops: 0, epoch_held: None, request_epoch: false };
        let sent = clock::now();
        a.send(&ControlFrame::Bpdu(bpdu));
        loop {
            match a_events.recv().await.unwrap() {
                link::Event::Bpdu { .. } => break,
                link::Event::Down { error, .. } => panic!("the link went down: {error}"),
                _ => {}
            }
        }
        trips.push(clock::now() - sent);
    }
    let received = b.lanes.stats().udp_rx.bytes - before;
    running.store(false, std::sync::atomic::Ordering::Relaxed);
    flooding.join().unwrap();
    echo.abort();
    trips.sort();
    (trips, received)
}

/// The other end takes packets and never says that it has consumed anything of its lanes.
#[tokio::test]
async fn a_close_does_not_wait_for_a_peer_that_consumes_nothing() {
    let ours = authority();
    let [(mut a, a_shows), (mut b, b_shows)] = [local(&ours, "m", "a"), local(&ours, "m", "b")];
    // So slow that the detection does not come first: the other end says no hellos either.
    for local in [&mut a, &mut b] {
        Arc::get_mut(local).unwrap().hello = crate::limits::HELLO_TIME_MAX;
    }
    let (from, to) = (open_endpoint(&a_shows), open_endpoint(&b_shows));
    let address = to.endpoint.local_addr().unwrap();
    let dialling = async { dial(&from, address, &a).await.unwrap() };
    let accepting = async { Side::start(accept(&to, &b).await.unwrap(), &b) };
    let (wedged, Side { link, mut events, replication }) = tokio::join!(dialling, accepting);
    let claim = RootClaim { priority: 1, capacity: 1, id: BrokerId(1), incarnation: crate::ids::Incarnation(1) };
    let number = crate::ids::OpenNumber { count: 1, child: BrokerId(1), incarnation: crate::ids::Incarnation(1) };
    let open = crate::ids::OpenMark { tree: crate::ids::TreeId { epoch: 1, root: claim }, number };
    link.port.answer(&open, clock::now());
    endpoint::carry_lanes(&wedged.lanes, usize::from(2 * LANES));
    let mut streams = Vec::new();
    for lane in 0..2 * LANES {
        let mut bytes = vec![1, lane];
        crate::frame::lane::put_open(&mut bytes, &open, false, &[]);
        let mut stream = wedged.lanes.open_uni().await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        streams.push(stream);
    }
    let (mut batch, payload) = (LocalBatch::new(), vec![7; 10_000]);
    for n in 0..200 {
        let topic = format!("t/{}", n % 8);
        let (payload, qos) = (&payload[..], QoS::AtLeastOnce);
        batch.push(
            &replication,
            &MeshMessage {
                topic: &topic,
                payload,
                qos,
                retain: false,
                expiry_seconds: None,
                properties: &[],
                stamp: None,
                picks: Default::default(),
            },
        );
        replication.publish(&mut batch, &mut Writes::default(), clock::now());
    }
    let received = || wedged.lanes.stats().udp_rx.bytes;
    until("all credit is used", || (received() > crate::limits::CREDIT_BYTES_MIN as u64).then_some(())).await;
    link.close_lanes(&number);
    loop {
        match tokio::time::timeout(PATIENCE, events.recv()).await.expect("the CLOSE is written").unwrap() {
            link::Event::LanesClosed { number: closed, .. } => break assert_eq!(closed, number),
            link::Event::Down { error, .. } => panic!("the link went down first: {error}"),
            _ => {}
        }
    }
}

struct Ignore;

impl Deliver for Ignore {
    fn deliver(&mut self, _: &MeshMessage<'_>, _: MessageId) {}
    fn flush(&mut self) {}
}

#[test]
#[expect(clippy::print_stdout, reason = "a measurement, shown where it is asked for")]
fn control_does_not_wait_for_saturated_lanes() {
    let runtimes = [
        ("current-thread", tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()),
        ("multi-thread", tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()),
    ];
    for (name, runtime) in runtimes {
        let (trips, bytes) = runtime.block_on(control_round_trips(100));
        let seconds = trips.iter().sum::<Duration>().as_secs_f64();
        let [median, p99, worst] = [trips.len() / 2, trips.len() * 99 / 100, trips.len() - 1].map(|place| trips[place]);
        println!(
            "{name}: control round trip p50 {median:?}, p99 {p99:?}, worst of {} {worst:?}; {:.0} MB in {seconds:.1} s",
            trips.len(),
            bytes as f64 / 1e6
        );
        assert!(median < Duration::from_millis(250), "{name}: {trips:?}");
    }
}

// ---- registers ----

/// What one broker says in its register, all others know: also what it said before they were linked, and over a broker between them.
#[tokio::test(flavor = "multi_thread")]
async fn registers_reach_all_brokers() {
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    (0..2_000).for_each(|n| a.registers.own().add_filter(&format!("before/{n}/{}", "x".repeat(50))));
    let b = Plan::new(&authority, "b", &[&a]).start();
    let c = Plan::new(&authority, "c", &[&b]).start();
    a.registers.own().add_filter("after");
    let key = |filter: &str| Key::Filter(Arc::from(filter));
    for broker in [&b, &c] {
        for filter in ["after".to_owned(), format!("before/1999/{}", "x".repeat(50))] {
            until("a filter", || {
                broker.registers.look_up(&key(&filter)).iter().any(|(id, _)| *id == BrokerId::derive("m", "a")).then_some(())
            })
            .await;
        }
    }
    a.registers.own().remove_filter("after");
    until("its end", || c.registers.look_up(&key("after")).is_empty().then_some(())).await;
    let asked = a.registers.own().ask_echo();
    let version = until("that it is told", || a.registers.own().told(asked)).await;
    until("echoes", || a.registers.is_echoed_by(None, version).then_some(())).await;
    assert!(!a.registers.is_echoed_by(None, version + 1));
}

//! Several brokers' meshes in one process: real sockets on loopback, real certificates, real time. What is awaited is awaited until it
//! comes or a generous time is over; nothing depends on how fast the machine is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;

use super::pki::{Authority, Validity};
use super::tls::Credentials;
use super::*;
use crate::codec::QoS;
use crate::config::{self, Discovery, HostPort};
use crate::ids::LogId;
use crate::replication::{LocalBatch, MeshMessage, ReplicationConfig};
use crate::shared::{LinkRole, LinkState};

const PATIENCE: Duration = Duration::from_secs(20);
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
    fn deliver(&mut self, message: &MeshMessage<'_>) {
        self.0.lock().push(String::from_utf8_lossy(message.payload).into_owned());
    }

    fn flush(&mut self) {}
}

struct Broker {
    handle: MeshHandle,
    replication: Arc<Replication>,
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
}

impl<'a> Plan<'a> {
    fn new(authority: &'a Authority, name: &'a str, peers: &[&Broker]) -> Self {
        let peers = peers.iter().map(|peer| peer.address()).collect();
        Self { authority, mesh: "m", name, peers, listen: "127.0.0.1:0", lanes: LANES, dir: None, links_max: 8 }
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
                hop_max: 255,
                message_bytes_max: 1024 * 1024,
            },
            clock::now(),
        );
        let inbox = Inbox::default();
        let deliver = inbox.clone();
        let factory: DeliverFactory = Arc::new(move || Box::new(deliver.clone()));
        let handle = super::start(config, Arc::clone(&replication), factory).unwrap();
        let batch = Mutex::new(LocalBatch::new());
        Broker { handle, replication, inbox, batch, dir }
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
            &MeshMessage { topic: "t", payload: payload.as_bytes(), qos, retain: false, expiry_seconds: None, properties: &[] },
        );
        self.replication.publish(&mut batch, clock::now());
    }

    fn received(&self) -> Vec<String> {
        self.inbox.0.lock().clone()
    }

    /// Until the broker's topology has `links` links, `forwarding` of which carry messages.
    async fn until_links(&self, links: usize, forwarding: usize) -> Topology {
        until("a topology", || {
            let topology = self.handle.topology();
            let up = topology.links.iter().filter(|link| link.state != LinkState::Down).count();
            let open = topology.links.iter().filter(|link| link.state == LinkState::Forwarding).count();
            (up == links && open == forwarding).then_some(topology)
        })
        .await
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

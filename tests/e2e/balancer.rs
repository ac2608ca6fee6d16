//! HAProxy before three brokers, with the file that `deploy/haproxy.cfg` is: whose address is seen, whose certificate counts, who is not believed; and a broker that is
//! drained under its clients.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use loadtest::mesh::{MeshPlan, MeshRun, Publishing, Subscribing};
use loadtest::{QoS, Version};

use crate::broker::{Broker, PATIENCE, Site, wait_for};
use crate::certificates::{Authority, Pair};
use crate::client::{Client, Connect, Publish};
use crate::drain::{drain, drain_in_background};
use crate::foreign::is_there;
use crate::mesh::settle;
use crate::tunnel::{Tunnel, Way};

/// As it is in the repository.
const CONFIGURATION: &str = include_str!("../../deploy/haproxy.cfg");

const NAMES: [&str; 3] = ["mec-1", "mec-2", "mec-3"];

/// A running HAProxy. Killed when dropped.
struct Balancer {
    child: Child,
    plain: SocketAddr,
    secure: SocketAddr,
    socket: String,
}

impl Balancer {
    /// With the repository's file, but for its addresses and files.
    fn start(site: &Site, authority: &Authority, server: &Pair, brokers: &[Broker]) -> Self {
        let read = |path: &std::path::Path| fs::read_to_string(path).unwrap();
        fs::write(site.file("mqtt.pem"), read(&server.certificate) + &read(&server.key)).unwrap();
        let socket = site.file("haproxy.sock");
        let mut text = CONFIGURATION
            .replace("/etc/haproxy/mqtt.pem", &site.file("mqtt.pem"))
            .replace("/etc/haproxy/clients.pem", authority.file().to_str().unwrap())
            .replace("/run/haproxy/admin.sock", &socket);
        for (number, broker) in (11..).zip(brokers) {
            let (server, health) = (broker.listener(1), broker.address_of("health").port());
            let line = format!("{server} port {health}");
            assert!(text.contains(&format!("192.0.2.{number}:1884")));
            text = text.replace(&format!("192.0.2.{number}:1884"), &line);
        }
        // Another program may take a port between its choice and its use.
        for _ in 0..5 {
            let [plain, secure] = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap());
            let text = text.replace("bind :1883", &format!("bind {plain}")).replace("bind :8883", &format!("bind {secure}"));
            fs::write(site.file("haproxy.cfg"), text).unwrap();
            let log = fs::File::create(site.file("haproxy.log")).unwrap();
            let mut command = Command::new("haproxy");
            command
                .args(["-db", "-f", &site.file("haproxy.cfg")])
                .stdin(Stdio::null())
                .stderr(log.try_clone().unwrap())
                .stdout(log);
            let mut child = command.spawn().unwrap();
            let is_up = wait_for("HAProxy", || match child.try_wait().unwrap() {
                Some(_) => Some(false),
                // Its runtime interface comes last.
                None => (TcpStream::connect(plain).is_ok() && UnixStream::connect(&socket).is_ok()).then_some(true),
            });
            if is_up {
                return Self { child, plain, secure, socket };
            }
        }
        panic!("HAProxy does not start: {}", fs::read_to_string(site.file("haproxy.log")).unwrap());
    }

    /// What its runtime interface answers.
    fn ask(&self, command: &str) -> String {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        writeln!(stream, "{command}").unwrap();
        std::io::read_to_string(stream).unwrap()
    }

    /// Whether it sends clients to that server.
    fn is_up(&self, server: &str) -> bool {
        let page = self.ask("show stat");
        let line = page.lines().find(|line| line.starts_with(&format!("mesh,{server},")));
        line.unwrap_or_else(|| panic!("no {server}: {page}")).contains(",UP,")
    }

    fn wait_until_up(&self, servers: &[&str]) {
        for server in servers {
            wait_for(&format!("HAProxy to use {server}"), || self.is_up(server).then_some(()));
        }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn has_haproxy() -> bool {
    let mut probe = Command::new("haproxy");
    probe.arg("-v");
    is_there("haproxy", probe)
}

/// Brokers of one mesh; each has, beside its own, a listener that HAProxy alone may use.
fn start_brokers(site: &Site, more: &str) -> Vec<Broker> {
    let mut brokers: Vec<Broker> = Vec::new();
    for name in NAMES {
        site.certify("m", name, &[]);
        let peers: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
        let listener = format!(
            "[[listener]]\nbind = \"127.0.0.1:0\"\nallow_anonymous = true\nproxy_protocol = \"v2\"\n\
             trusted_proxies = [\"127.0.0.0/8\"]\nproxy_identity_as_username = true\n{more}"
        );
        brokers.push(site.start(name, &(site.configuration(name, &peers) + &listener)));
    }
    settle(&brokers.iter().collect::<Vec<_>>());
    brokers
}

#[test]
fn clients_are_seen_through_haproxy_as_they_are() {
    if !has_haproxy() {
        return;
    }
    let site = Site::new();
    let authority = Authority::new(&site.path().join("tls"));
    let (server, one, other) = (authority.server(1), authority.client(11, "c-1"), authority.client(12, "c-2"));
    fs::write(site.file("acl"), "topic open/#\nuser c-1\ntopic own/c-1\nuser c-2\ntopic own/c-2\n").unwrap();
    let brokers = start_brokers(&site, &format!("acl_file = {:?}\n[log]\nfilter = \"debug\"\n", site.file("acl")));
    let balancer = Balancer::start(&site, &authority, &server, &brokers);
    balancer.wait_until_up(&NAMES);

    // The address is the client's own, not the balancer's.
    let stream = TcpStream::connect(balancer.plain).unwrap();
    let own = stream.local_addr().unwrap();
    drop(stream);
    let mut plain = Client::connect_at(balancer.plain, &Connect::new(4).id("plain"));
    let seen = wait_for("the client in a log", || {
        let logs = brokers.iter().flat_map(|broker| broker.log().lines().map(str::to_owned).collect::<Vec<_>>());
        logs.into_iter().find(|line| line.contains("client connected") && line.contains("\"plain\""))
    });
    assert!(seen.contains(&format!("peer={}:", own.ip())) && seen.contains("through 127.0.0.1"), "{seen}");
    plain.subscribe(&[("open/x", 1)]);
    plain.say_to_itself("open/x", "hello");

    // Who shows a certificate is whom it names, wherever it comes to.
    for (pair, name, foreign) in [(&one, "c-1", "c-2"), (&other, "c-2", "c-1")] {
        let tunnel = Tunnel::new(Way::Tls(balancer.secure, Arc::new(authority.config(Some(pair)))));
        let mut client = Client::connect_at(tunnel.address, &Connect::new(5));
        let filters = [(&*format!("own/{name}"), 1), (&*format!("own/{foreign}"), 1)];
        assert_eq!(client.try_subscribe(&filters, &[]), [1, 0x87], "{name}");
    }
    // A user name that a client without one says is no user's.
    let tunnel = Tunnel::new(Way::Tls(balancer.secure, Arc::new(authority.config(None))));
    let mut nobody = Client::connect_at(tunnel.address, &Connect { user_name: Some("c-1".to_owned()), ..Connect::new(5) });
    assert_eq!(nobody.try_subscribe(&[("own/c-1", 1), ("open/x", 1)], &[]), [0x87, 1]);

    // Past the balancer, and with a header that is cut off: refused, and told the operator.
    let signature = b"\r\n\r\n\0\r\nQUIT\n";
    let broken = [&signature[..], &[0x21, 0x11, 0, 12], &[9; 5]].concat();
    for header in [Vec::new(), broken, b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n".to_vec()] {
        let tunnel = Tunnel::new(Way::Header(brokers[0].listener(1), header));
        let mut client = Client::open_at(tunnel.address, 5);
        client.send(&Connect::new(5).encode());
        assert!(client.receive_within(PATIENCE).is_some_and(|end| end.is_none()));
    }
    brokers[0].wait_for_log(&["WARN", "connection refused", "PROXY header"]);

    // A broker that is gone is one less to choose from: whoever comes is served by another.
    let mut brokers = brokers;
    brokers.remove(1).kill();
    for _ in 0..6 {
        Client::connect_at(balancer.plain, &Connect::new(4));
    }
    wait_for("HAProxy to see that it is gone", || (!balancer.is_up("mec-2")).then_some(()));
}

/// Starts a broker that has ended where it was before.
fn start_again(site: &Site, broker: &Broker) -> Broker {
    let configuration = fs::read_to_string(site.file(&format!("{}.toml", broker.name))).unwrap();
    // In the order in which they stand there.
    let addresses = [broker.address(), broker.address_of("admin"), broker.address_of("health"), broker.address_of("mesh")];
    let again = addresses
        .into_iter()
        .chain([broker.listener(1)])
        .fold(configuration, |text, address| text.replacen("\"127.0.0.1:0\"", &format!("\"{address}\""), 1));
    site.start(&broker.name, &again)
}

/// The broker of a new version takes the place of the old one, one after the other: each is drained, ends, and is started again, round after round, under clients of all QoS.
/// `ROLL_ROUNDS=10 cargo test --release --test e2e balancer::all -- --ignored --nocapture`
#[test]
#[ignore = "takes 20 s a broker: ROLL_ROUNDS (1) rounds"]
fn all_brokers_are_drained_and_started_again_in_turn() {
    if !has_haproxy() {
        return;
    }
    let rounds = std::env::var("ROLL_ROUNDS").map_or(1, |text| text.parse::<usize>().expect("a number"));
    let site = Site::new();
    let authority = Authority::new(&site.path().join("tls"));
    let mut brokers = start_brokers(&site, "");
    let balancer = Balancer::start(&site, &authority, &authority.server(1), &brokers);
    balancer.wait_until_up(&NAMES);
    let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
    let plan = MeshPlan {
        publishers: (0..30).map(|index| Publishing { at: vec![0], qos: qos[index % 3] }).collect(),
        subscribers: (0..90).map(|index| Subscribing { at: vec![0], hears: Some(vec![index % 30, (index + 7) % 30]) }).collect(),
        rate: Some(10.0),
        ..MeshPlan::everywhere(vec![balancer.plain.to_string()], &qos)
    };
    let load = MeshRun::start(plan).unwrap();
    wait_for("everybody to hear everybody", || load.is_joined().then_some(()));
    load.open_books();
    for place in (0..rounds).flat_map(|_| 0..NAMES.len()) {
        let said = drain(&site, &brokers[place], &["--rate", "50/s", "--notice", "2s"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(brokers[place].wait().code(), Some(0));
        load.note(format!("{} is drained: {}", NAMES[place], said.out.trim_end()));
        brokers[place] = start_again(&site, &brokers[place]);
        settle(&brokers.iter().collect::<Vec<_>>());
        balancer.wait_until_up(&NAMES);
        load.note(format!("{} is there again", NAMES[place]));
    }
    load.stop_publishing();
    wait_for("all that is owed", || load.is_settled().then_some(()));
    let account = load.finish();
    println!("{account}");
    assert_eq!(account.breaches(), Vec::<String>::new());
}

/// 300 clients with sessions that outlive their connections: no message is lost, none of QoS 2 comes twice, nobody sees more than the end of a connection; and whoever was away finds
/// elsewhere what waited for him.
#[test]
fn a_broker_is_drained_under_300_clients_that_see_nothing_but_a_reconnect() {
    const PUBLISHERS: usize = 60;
    const SUBSCRIBERS: usize = 240;
    const AWAY: usize = 20;
    if !has_haproxy() {
        return;
    }
    let site = Site::new();
    let authority = Authority::new(&site.path().join("tls"));
    let brokers = start_brokers(&site, "");
    let balancer = Balancer::start(&site, &authority, &authority.server(1), &brokers);
    balancer.wait_until_up(&NAMES);
    let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce];
    let plan = MeshPlan {
        publishers: (0..PUBLISHERS).map(|index| Publishing { at: vec![0], qos: qos[index % 2] }).collect(),
        subscribers: (0..SUBSCRIBERS)
            .map(|index| Subscribing { at: vec![0], hears: Some(vec![index % PUBLISHERS, (index + 7) % PUBLISHERS]) })
            .collect(),
        version: Version::V3_1_1,
        rate: Some(5.0),
        ..MeshPlan::everywhere(vec![balancer.plain.to_string()], &qos)
    };
    let load = MeshRun::start(plan).unwrap();
    wait_for("everybody to hear everybody", || load.is_joined().then_some(()));
    load.open_books();
    // Those who are away, and what waits for them.
    let away: Vec<Connect> = (0..AWAY).map(|number| Connect::new(5).id(&format!("away-{number}")).resume(3_600)).collect();
    for connect in &away {
        let mut client = Client::connect(&brokers[0], connect);
        client.subscribe(&[(&*format!("for/{}", connect.id), 2)]);
        client.disconnect();
    }
    let mut publisher = Client::new(&brokers[1], 5);
    for connect in &away {
        for payload in ["1", "2", "3"] {
            let topic = format!("for/{}", connect.id);
            assert!(publisher.publish(Publish { topic: &topic, payload, qos: 2, ..Publish::default() }) < 0x80);
        }
    }
    let before = load.account();
    assert_eq!((before.disconnects, before.troubles.len()), (0, 0), "{:?}", before.troubles);

    let (begun, mut brokers) = (Instant::now(), brokers);
    // Nobody is sent away before HAProxy has seen that it is not ready: who came back to it would be refused, and that is another thing to see.
    let begin = drain_in_background(&site, &brokers[0], &["--rate", "100/s", "--notice", "60s", "--json"]);
    wait_for("HAProxy to see that it is not ready", || (!balancer.is_up("mec-1")).then_some(()));
    drop(begin);
    let said = drain(&site, &brokers[0], &["--rate", "100/s", "--notice", "0ms", "--json"]);
    let took = begun.elapsed();
    assert_eq!(said.code, Some(0), "{said:?}");
    let status: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert!(status["clients"] == 0 && status["sessions"] == 0 && status["state"] == "stopping", "{status}");
    assert_eq!(brokers[0].wait().code(), Some(0));
    let sent_away = status["sent_away"].as_u64().unwrap();
    println!("drained in {took:?}: {sent_away} clients sent away; {}", said.err);
    assert!(sent_away > 50, "HAProxy gave it its share of 300: {status}");
    assert!(!balancer.is_up("mec-1"));

    // Traffic goes on without it.
    let heard = |account: &loadtest::mesh::Account| account.flows.iter().map(|flow| flow.delivered).sum::<u64>();
    let so_far = heard(&load.account());
    wait_for("traffic", || (heard(&load.account()) > so_far + 1_000).then_some(()));
    load.stop_publishing();
    wait_for("all that is owed", || load.is_settled().then_some(()));
    let account = load.finish();
    println!("{account}");
    assert_eq!(account.breaches(), Vec::<String>::new());
    assert_eq!(account.sessions_lost(), 0);
    assert_eq!(account.disconnects, sent_away, "each was sent away once: {:?}", account.troubles);
    assert!(account.troubles.iter().all(|(_, what)| what.ends_with("closed the connection")), "{:?}", account.troubles);
    for (number, connect) in away.iter().enumerate() {
        let mut client = Client::connect(&brokers[1 + number % 2], connect);
        assert!(client.connack.session_present, "{}", connect.id);
        assert_eq!(client.take_messages(3), ["1", "2", "3"]);
    }
}

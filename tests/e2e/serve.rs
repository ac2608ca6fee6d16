//! One broker as a service: how it starts, refuses to start, and stops.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixDatagram;

use crate::broker::{Broker, PATIENCE, Site};
use crate::client::Client;

const SERVER_SHUTTING_DOWN: u8 = 0x8b;

pub fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A level that `/metrics` shows.
pub fn gauge(broker: &Broker, name: &str) -> u64 {
    let page = get(broker.address_of("health"), "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("mqtt_st_quic_{name} ")));
    line.unwrap_or_else(|| panic!("no {name}: {page}")).parse::<f64>().unwrap() as u64
}

/// What a broker has counted.
pub fn counter(broker: &Broker, name: &str) -> u64 {
    gauge(broker, &format!("{name}_total"))
}

#[test]
fn a_broker_tells_where_it_is_and_how_it_is() {
    let site = Site::new();
    let broker = site.start("a", &site.alone("a"));
    let mut client = Client::new(&broker, 5);
    client.say("t", "x");
    let health = broker.address_of("health");
    assert!(get(health, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(get(health, "/readyz").ends_with("{\"ready\":true,\"listeners\":1,\"peers\":0}"));
    let metrics = get(health, "/metrics");
    assert!(
        metrics.contains("\nmqtt_st_quic_connections 1.0\n") && metrics.contains("\nmqtt_st_quic_messages_received_total 1\n"),
        "{metrics}"
    );
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    assert!(get(broker.address_of("admin"), "/api/v1/topology").contains("this broker has no [mesh]"));
    assert!(get(health, "/api/v1/topology").starts_with("HTTP/1.1 404"));
    assert!(!broker.log().contains("ERROR"), "{}", broker.log());
}

#[test]
fn an_address_in_use_ends_the_start_and_disturbs_nobody() {
    let site = Site::new();
    site.certify("m", "b", &[]);
    let broker = site.start("a", &site.alone("a"));
    let mut client = Client::subscribed(&broker, 5, "t", 1);
    let taken = broker.address().to_string();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let held_udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (held, held_udp) = (held.local_addr().unwrap().to_string(), (held_udp.local_addr().unwrap().to_string(), held_udp, held));
    let configuration = site.configuration("b", &[]);
    let replaced = |section: &str, key: &str, address: &str| {
        let (before, after) = configuration.split_once(section).unwrap();
        let line = format!("{key} = \"127.0.0.1:0\"");
        format!("{before}{section}{}", after.replacen(&line, &format!("{key} = {address:?}"), 1))
    };
    for (section, key, address) in [
        ("[[listener]]", "bind", &taken),
        ("[admin]", "bind", &held),
        ("[health]", "bind", &held),
        ("[mesh]", "listen", &held_udp.0),
    ] {
        let said = site.fails(&replaced(section, key, address));
        assert_eq!(said.code, Some(1), "{section}: {said:?}");
        assert!(said.err.contains(address.as_str()) && said.err.contains("in use"), "{section}: {said:?}");
    }
    Client::new(&broker, 5).say("t", "still here");
    client.expect_message("still here");
}

#[test]
fn sigterm_and_sigint_say_good_bye_and_end_well() {
    for signal in ["TERM", "INT"] {
        let site = Site::new();
        let mut broker = site.start("a", &site.alone("a"));
        let mut new = Client::subscribed(&broker, 5, "t", 0);
        let mut old = Client::subscribed(&broker, 4, "t", 0);
        broker.signal(signal);
        new.expect_disconnect(&[SERVER_SHUTTING_DOWN]);
        old.expect_disconnect(&[]);
        assert_eq!(broker.wait().code(), Some(0), "SIG{signal}");
    }
}

#[test]
fn sighup_ends_nothing() {
    let site = Site::new();
    let broker = site.start("a", &site.alone("a"));
    let mut client = Client::subscribed(&broker, 5, "t", 1);
    broker.signal("HUP");
    broker.wait_for_log(&["SIGHUP"]);
    Client::new(&broker, 5).say("t", "x");
    client.expect_message("x");
}

#[test]
fn the_service_manager_is_told() {
    let site = Site::new();
    let path = site.path().join("notify");
    hears_of_the_broker(&site, &UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap());
    // In the abstract namespace, whose names are gone with their sockets.
    let name = format!("mqtt-st-quic-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    hears_of_the_broker(&site, &UnixDatagram::bind_addr(&address).unwrap(), &format!("@{name}"));
}

fn hears_of_the_broker(site: &Site, socket: &UnixDatagram, name: &str) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut buffer = [0; 4_096];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let mut broker = Broker::start(site, "a", &site.alone("a"), |command| {
        command.env("NOTIFY_SOCKET", name);
    });
    assert!(heard().lines().any(|line| line == "READY=1"));
    broker.signal("HUP");
    let reloading = heard();
    assert!(reloading.contains("RELOADING=1") && reloading.contains("MONOTONIC_USEC="), "{reloading}");
    assert!(heard().lines().any(|line| line == "READY=1"));
    broker.signal("TERM");
    assert!(heard().lines().any(|line| line == "STOPPING=1"));
    broker.wait();
}

#[test]
fn a_broker_writes_nothing_outside_its_data_directory() {
    let site = Site::new();
    site.certify("m", "a", &[]);
    let home = site.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let mut broker = Broker::start(&site, "a", &site.configuration("a", &[]), |command| {
        command.current_dir(&home).env("HOME", &home).env("TMPDIR", &home);
    });
    broker.signal("TERM");
    broker.wait();
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 0);
    assert!(std::fs::read_dir(site.path().join("a")).unwrap().count() > 0, "the token and the incarnation");
}

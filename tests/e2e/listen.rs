//! Everything on which clients are awaited: TLS, WebSocket, QUIC, unix sockets, the PROXY protocol; what is reloaded, and what stalls nobody.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::TlsConnector;

use crate::broker::{Broker, PATIENCE, Site, wait_for};
use crate::certificates::{Authority, Pair};
use crate::client::{Client, Connect, Publish};
use crate::tunnel::{Tunnel, Way};
use crate::wire::packet;

const NOT_AUTHORIZED: u8 = 0x87;

fn listener(lines: &str) -> String {
    format!("[[listener]]\nbind = \"127.0.0.1:0\"\nallow_anonymous = true\n{lines}\n")
}

fn tls(server: &Pair, more: &str) -> String {
    format!("tls = {{ certfile = {:?}, keyfile = {:?}{more} }}", server.certificate, server.key)
}

/// Both ways, and messages that fill many frames and many reads.
fn carries(address: SocketAddr, broker: &Broker) {
    for version in [3, 4, 5] {
        let mut near = Client::connect_at(address, &Connect::new(version).keep_alive(60));
        near.subscribe(&[("down", 2)]);
        let mut far = Client::subscribed(broker, 5, "up", 2);
        let large = "x".repeat(300_000);
        for payload in ["", "small", &large] {
            assert!(near.publish(Publish { topic: "up", payload, qos: 1, ..Publish::default() }) < 0x80);
            far.expect_message(payload);
            far.say("down", payload);
            near.expect_message(payload);
        }
    }
}

#[test]
fn every_transport_carries_mqtt() {
    let site = Site::new();
    let authority = Authority::new(&site.path().join("tls"));
    let server = authority.server(1);
    let socket = site.path().join("mqtt.sock");
    let configuration = [
        site.alone("a"),
        listener(&tls(&server, "")),
        listener(&format!("protocol = \"quic\"\n{}", tls(&server, ""))),
        format!("[[listener]]\nbind = \"unix:{}\"\nallow_anonymous = true\n", socket.display()),
    ]
    .concat();
    let mut broker = site.start("a", &configuration);
    let config = Arc::new(authority.config(None));
    for way in [
        Way::Tls(broker.listener(1), Arc::clone(&config)),
        Way::Quic(broker.listener(2), Arc::clone(&config), b"mqtt"),
        Way::Unix(socket.clone()),
    ] {
        carries(Tunnel::new(way).address, &broker);
    }
    // Another application protocol is no MQTT.
    let other = Tunnel::new(Way::Quic(broker.listener(2), config, b"h3"));
    assert!(Client::open_at(other.address, 5).receive_within(PATIENCE).is_some_and(|end| end.is_none()));
    broker.signal("TERM");
    assert_eq!(broker.wait().code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn a_message_to_a_client_over_quic_that_is_refused_arrives() {
    let site = Site::new();
    let authority = Authority::new(&site.path().join("tls"));
    let quic = format!("[[listener]]\nbind = \"127.0.0.1:0\"\nprotocol = \"quic\"\n{}\n", tls(&authority.server(1), ""));
    let broker = site.start("a", &format!("{}{quic}", site.alone("a")));
    let tunnel = Tunnel::new(Way::Quic(broker.listener(1), Arc::new(authority.config(None)), b"mqtt"));
    let mut client = Client::open_at(tunnel.address, 5);
    client.send(&Connect::new(5).encode());
    assert_eq!(client.receive().reason, NOT_AUTHORIZED);
}

#[test]
fn certificates_name_users_and_who_is_revoked_is_closed() {
    let site = Site::new();
    let authority = Authority::new(&site.path().join("tls"));
    let (server, one, two) = (authority.server(1), authority.client(11, "c-1"), authority.client(12, "c-2"));
    let crl = authority.revoke(1, &[99]);
    let acl = site.file("acl");
    fs::write(&acl, "user c-1\ntopic own/c-1\nuser c-2\ntopic own/c-2\nuser CN=c-1,O=works\ntopic own/subject\n").unwrap();
    let more = |named: &str| format!(", cafile = {:?}, crlfile = {crl:?}, require_certificate = true, {named}", authority.file());
    let line = |protocol: &str, named: &str| {
        let tls = tls(&server, &more(named));
        format!("[[listener]]\nbind = \"127.0.0.1:0\"\nprotocol = {protocol:?}\nacl_file = {acl:?}\n{tls}\n")
    };
    let configuration = [
        site.alone("a"),
        line("mqtt", "use_identity_as_username = true"),
        line("mqtt", "use_subject_as_username = true"),
        line("quic", "use_identity_as_username = true"),
    ]
    .concat();
    let broker = site.start("a", &configuration);
    let secure = |place: usize, pair: Option<&Pair>| Way::Tls(broker.listener(place), Arc::new(authority.config(pair)));
    let quic = |pair: Option<&Pair>| Way::Quic(broker.listener(3), Arc::new(authority.config(pair)), b"mqtt");

    let stranger = Authority::new(&site.path().join("other")).client(1, "c-1");
    for way in [secure(1, None), secure(1, Some(&stranger)), quic(None), quic(Some(&stranger))] {
        let tunnel = Tunnel::new(way);
        let mut client = Client::open_at(tunnel.address, 5);
        client.send(&Connect::new(5).encode());
        assert!(client.receive_within(PATIENCE).is_some_and(|end| end.is_none()), "no CONNACK");
    }

    let subject = Tunnel::new(secure(2, Some(&one)));
    let mut client = Client::connect_at(subject.address, &Connect::new(5));
    assert_eq!(client.try_subscribe(&[("own/subject", 0), ("own/c-1", 0)], &[]), [0, NOT_AUTHORIZED]);

    let tunnels = [secure(1, Some(&one)), quic(Some(&one)), secure(1, Some(&two)), quic(Some(&two))].map(Tunnel::new);
    let mut clients = tunnels.each_ref().map(|tunnel| Client::connect_at(tunnel.address, &Connect::new(5)));
    for (place, client) in clients.iter_mut().enumerate() {
        let expected = if place < 2 { [0, NOT_AUTHORIZED] } else { [NOT_AUTHORIZED, 0] };
        assert_eq!(client.try_subscribe(&[("own/c-1", 0), ("own/c-2", 0)], &[]), expected);
    }

    authority.revoke(2, &[one.serial]);
    reload(&broker, "reloaded");
    let [mut first, mut second, mut third, mut fourth] = clients;
    first.expect_disconnect(&[NOT_AUTHORIZED]);
    second.expect_disconnect(&[NOT_AUTHORIZED]);
    for tunnel in &tunnels[..2] {
        let mut client = Client::open_at(tunnel.address, 5);
        client.send(&Connect::new(5).encode());
        assert!(client.receive_within(PATIENCE).is_some_and(|end| end.is_none()), "no CONNACK");
    }
    Client::new(&broker, 5).say("own/c-2", "goes on");
    for client in [&mut third, &mut fourth] {
        client.expect_message("goes on");
        client.expect_nothing();
    }
}

/// Sends SIGHUP, and waits until the broker has said `done` once more.
fn reload(broker: &Broker, done: &str) {
    let count = || broker.log().lines().filter(|line| line.contains(done)).count();
    let before = count();
    broker.signal("HUP");
    wait_for(&format!("{done:?} in the log of {}", broker.name), || (count() > before).then_some(()));
}

/// The certificate that is shown.
fn shown(address: SocketAddr, authority: &Authority) -> CertificateDer<'static> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(authority.config(None)));
        let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    })
}

#[test]
fn a_certificate_is_renewed_under_clients_and_a_bad_one_changes_nothing() {
    let site = Site::new();
    let authority = Authority::new(&site.path().join("tls"));
    let server = authority.server(1);
    let broker = site.start("a", &[site.alone("a"), listener(&tls(&server, ""))].concat());
    let address = broker.listener(1);
    let tunnel = Tunnel::new(Way::Tls(address, Arc::new(authority.config(None))));
    let mut client = Client::connect_at(tunnel.address, &Connect::new(5));
    client.subscribe(&[("t", 1)]);
    let before = shown(address, &authority);
    fs::write(&server.certificate, "nothing").unwrap();
    reload(&broker, "not reloaded");
    let said = broker.log();
    let path = server.certificate.display();
    assert!(said.contains(&format!("listener.1.tls.certfile: {path}: no PEM certificate")), "{said}");
    assert_eq!(shown(address, &authority), before);
    authority.server(2);
    reload(&broker, "INFO mqtt_st_quic::cli::serve: reloaded");
    let after = shown(address, &authority);
    assert_eq!(after, CertificateDer::from_pem_file(&server.certificate).unwrap());
    assert_ne!(after, before);
    Client::new(&broker, 5).say("t", "still the same connection");
    client.expect_message("still the same connection");
}

#[test]
fn what_cannot_be_used_stops_the_start_with_key_file_and_remedy() {
    let site = Site::new();
    let authority = Authority::new(&site.path().join("tls"));
    let server = authority.server(1);
    let other = authority.client(2, "other");
    let none = site.path().join("none.pem");
    let encrypted = site.path().join("encrypted.key");
    fs::write(&encrypted, "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n").unwrap();
    let file = |pair: &Pair, key: &std::path::Path| Pair { key: key.to_owned(), ..pair.clone() };
    for (lines, says) in [
        (tls(&Pair { certificate: none.clone(), ..server.clone() }, ""), ["tls.certfile", "none.pem", "cannot be read"]),
        (tls(&file(&server, &none), ""), ["tls.keyfile", "none.pem", "let the broker's user read it"]),
        (tls(&file(&server, &encrypted), ""), ["tls.keyfile", "encrypted.key", "openssl pkey"]),
        (tls(&file(&server, &other.key), ""), ["tls.keyfile", "other.key", "is it the key of"]),
        (tls(&server, &format!(", cafile = {:?}", server.key)), ["tls.cafile", "server.key", "no PEM certificate"]),
        (
            tls(&server, &format!(", cafile = {:?}, crlfile = {:?}", authority.file(), server.key)),
            ["tls.crlfile", "server.key", "no PEM revocation list"],
        ),
        ("tls = { certfile = \"x\" }".to_owned(), ["broken.toml:", "listener.1.tls.keyfile", "is missing"]),
    ] {
        let configuration = [site.alone("a"), listener(&lines)].concat();
        let said = site.fails(&configuration);
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(says.iter().all(|word| said.err.contains(word)), "{says:?} in {}", said.err);
        let checked = crate::broker::run(&["config", "check", &site.file("broken.toml")]);
        assert!(checked.code == Some(1) && says.iter().all(|word| checked.err.contains(word)), "{says:?} in {checked:?}");
    }
}

#[test]
fn proxies_that_are_trusted_are_believed_and_nobody_else() {
    let site = Site::new();
    let acl = site.file("acl");
    fs::write(&acl, "user c-1\ntopic own/c-1\n").unwrap();
    let trusted = "trusted_proxies = [\"127.0.0.0/8\"]";
    let configuration = [
        site.alone("a"),
        listener(&format!("proxy_protocol = \"v1\"\n{trusted}")),
        listener(&format!("proxy_protocol = \"v2\"\n{trusted}\nproxy_identity_as_username = true\nacl_file = {acl:?}")),
        listener("proxy_protocol = \"v2\"\ntrusted_proxies = [\"192.0.2.0/24\"]"),
        "[log]\nfilter = \"debug\"\n".to_owned(),
    ]
    .concat();
    let broker = site.start("a", &configuration);
    let through = |place: usize, header: &[u8]| Tunnel::new(Way::Header(broker.listener(place), header.to_vec()));

    let text = through(1, b"PROXY TCP4 203.0.113.9 127.0.0.1 5555 1883\r\n");
    let mut client = Client::connect_at(text.address, &Connect::new(5).id("by-text"));
    client.say("t", "x");
    broker.wait_for_log(&["client connected", "203.0.113.9:5555 through 127.0.0.1", "by-text"]);

    // As HAProxy sends it, with the name in a certificate that it has verified.
    let field = |kind: u8, value: &[u8]| [&[kind, 0, u8::try_from(value.len()).unwrap()][..], value].concat();
    let name = [&[7, 0, 0, 0, 0][..], &field(0x22, b"c-1")].concat();
    let addresses = [&[203, 0, 113, 8, 127, 0, 0, 1, 0x15, 0xB3, 7, 91][..], &field(0x20, &name)].concat();
    let signature = b"\r\n\r\n\0\r\nQUIT\n";
    let header = [&signature[..], &[0x21, 0x11, 0, u8::try_from(addresses.len()).unwrap()], &addresses].concat();
    let binary = through(2, &header);
    let mut client = Client::connect_at(binary.address, &Connect::new(5).id("by-bytes"));
    assert_eq!(client.try_subscribe(&[("own/c-1", 0), ("own/c-2", 0)], &[]), [0, NOT_AUTHORIZED]);
    broker.wait_for_log(&["client connected", "203.0.113.8:5555 through 127.0.0.1", "by-bytes"]);
    // A health check of the proxy itself.
    let local = through(2, &[&signature[..], &[0x20, 0, 0, 0]].concat());
    Client::connect_at(local.address, &Connect::new(5).id("local"));
    broker.wait_for_log(&["client connected", "peer=127.0.0.1:", "local"]);

    let long = [&signature[..], &[0x21, 0x11, 0x40, 0]].concat();
    for (place, header) in [(0, &header), (1, &header), (2, &Vec::new()), (1, &Vec::new()), (3, &header), (2, &long)] {
        let tunnel = through(place, header);
        let mut client = Client::open_at(tunnel.address, 4);
        client.send(&Connect::new(4).encode());
        let begin = Instant::now();
        assert!(client.receive_within(PATIENCE).is_some_and(|end| end.is_none()), "listener {place}");
        assert!(begin.elapsed() < Duration::from_secs(9), "closed only after {:?}", begin.elapsed());
    }
    broker.wait_for_log(&["WARN", "connection refused", "no PROXY header of this version"]);
    broker.wait_for_log(&["WARN", "connection refused", "it is not from one of trusted_proxies"]);
}

/// A request that opens a WebSocket, but for the changes.
fn request(path: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n{more}\r\n"
    )
}

/// A frame under a mask of zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    [&[first, 0x80 | u8::try_from(payload.len()).unwrap(), 0, 0, 0, 0], payload].concat()
}

/// Sends it all, then reads to the end.
fn answer(address: SocketAddr, parts: &[&[u8]]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&parts.concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

#[test]
fn websockets_are_opened_by_the_rules_and_closed_for_breaking_them() {
    let site = Site::new();
    let rules = "protocol = \"websockets\"\nwebsockets_path = \"/mqtt\"\nwebsockets_origin = [\"https://app.example\"]";
    let broker = site.start("a", &[site.alone("a"), listener(rules)].concat());
    let address = broker.listener(1);
    for (request, status) in [
        (request("/other", ""), "404"),
        (request("/mqtt", "Origin: https://evil.example\r\n"), "403"),
        (request("/mqtt", "").replace("Protocol: mqtt", "Protocol: chat"), "400"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("nothing like HTTP\r\n\r\n".to_owned(), "400"),
    ] {
        let said = answer(address, &[request.as_bytes()]);
        assert!(said.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{}", String::from_utf8_lossy(&said));
    }
    let good = request("/mqtt", "Origin: https://app.example\r\n");
    let connect = Connect::new(4).encode();
    let ping = packet(12, 0, &[]);
    for (last, code) in
        [(frame(0x81, b"text"), 1003_u16), (vec![0x82, 0], 1002), (frame(0xC2, b""), 1002), (frame(0x88, &[3, 0xE8]), 1000)]
    {
        // In one segment with the request: what is behind it counts, and what came before a fault is answered.
        let behind = if code == 1000 { Vec::new() } else { frame(0x82, &ping) };
        let said = answer(address, &[good.as_bytes(), &frame(0x82, &connect), &frame(0x89, b"hi"), &last, &behind]);
        let end = said.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let frames = &said[end..];
        assert!(frames.ends_with(&[&[0x88, 2][..], &code.to_be_bytes()].concat()), "{code}: {frames:02x?}");
        assert!(!frames.windows(2).any(|two| two == [0xD0, 0]), "no PINGRESP: {frames:02x?}");
    }
    // CVE-2026-25627: a length that is announced and never comes is waited for, and costs nothing.
    let mut stream = TcpStream::connect(address).unwrap();
    let short = frame(0x82, &[0x30, 0x80, 0x20, 0, 1, b't']);
    stream.write_all(&[good.as_bytes(), &frame(0x82, &connect), &short].concat()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut said = Vec::new();
    let error = stream.read_to_end(&mut said).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{said:02x?}");
    Client::new(&broker, 5).say("t", "still here");
}

#[test]
fn handshakes_that_stall_stall_nobody_and_end_in_time() {
    const EACH: usize = 40;
    let site = Site::new();
    let authority = Authority::new(&site.path().join("tls"));
    let server = authority.server(1);
    let configuration = [
        site.alone("a"),
        listener(&tls(&server, "")),
        listener("protocol = \"websockets\""),
        listener("proxy_protocol = \"v2\"\ntrusted_proxies = [\"127.0.0.1\"]"),
        listener(&format!("protocol = \"websockets\"\n{}", tls(&server, ""))),
    ]
    .concat();
    let mut broker = site.start("a", &configuration);
    let half: [&[u8]; 5] = [
        &Connect::new(5).encode()[..9],
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /mqtt HTTP/1.1\r\nHost:",
        b"\r\n\r\n\0\r\nQUIT",
        b"",
    ];
    let begin = Instant::now();
    let mut stalled = Vec::new();
    for (place, half) in half.iter().enumerate() {
        for number in 0..EACH {
            let mut stream = TcpStream::connect(broker.listener(place)).unwrap();
            if number % 2 == 0 {
                stream.write_all(half).unwrap();
            }
            stalled.push(stream);
        }
    }
    let tunnel = Tunnel::new(Way::Tls(broker.listener(1), Arc::new(authority.config(None))));
    let asked = Instant::now();
    let mut client = Client::connect_at(tunnel.address, &Connect::new(5));
    assert!(asked.elapsed() < Duration::from_secs(9), "the good client waited for {:?}", asked.elapsed());
    for stream in &mut stalled {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Closed, with or without a word.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let ended = begin.elapsed();
    assert!((Duration::from_secs(9)..PATIENCE).contains(&ended), "they ended after {ended:?}");
    client.say("t", "the good client stays");

    // A handshake that is under way is not waited for at the end.
    let late = TcpStream::connect(broker.listener(1)).unwrap();
    wait_for("a connection", || {
        let metrics = crate::serve::get(broker.address_of("health"), "/metrics");
        metrics.contains("\nmqtt_st_quic_handshakes 1.0\n").then_some(())
    });
    broker.signal("TERM");
    let stopped = Instant::now();
    assert_eq!(broker.wait().code(), Some(0));
    assert!(stopped.elapsed() < Duration::from_secs(9), "it took {:?}", stopped.elapsed());
    drop(late);
}

//! A broker that is drained: it goes where nobody misses it, sends nobody away where there is no other, and can be called off.

use std::fs;
use std::process::{Child, Stdio};

use crate::broker::{Broker, Said, Site, program, run};
use crate::client::{Client, Connect, Publish, Will};
use crate::mesh::settle;
use crate::serve::get;
use crate::wire::{four, kind, property, text};

fn arguments(site: &Site, broker: &Broker, more: &[&str]) -> Vec<String> {
    let (admin, token) = (format!("http://{}", broker.address_of("admin")), site.file(&format!("{}/admin.token", broker.name)));
    let own = ["drain", "--admin", &admin, "--token-file", &token];
    own.iter().chain(more).map(|argument| (*argument).to_owned()).collect()
}

/// `drain` of a broker.
pub fn drain(site: &Site, broker: &Broker, more: &[&str]) -> Said {
    let arguments = arguments(site, broker, more);
    run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A command that is ended when it is dropped: the broker goes on by itself.
pub struct Following(Child);

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same without waiting for its end.
pub fn drain_in_background(site: &Site, broker: &Broker, more: &[&str]) -> Following {
    let mut command = program();
    Following(command.args(arguments(site, broker, more)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

fn is_ready(broker: &Broker) -> bool {
    get(broker.address_of("health"), "/readyz").starts_with("HTTP/1.1 200")
}

#[test]
fn without_another_broker_nobody_is_sent_away_and_with_one_everybody_until_it_is_called_off() {
    let site = Site::new();
    let server_reference = "server_reference = \"elsewhere.example:1883\"\n";
    site.certify("m", "a", &[]);
    let mut a = site.start("a", &(server_reference.to_owned() + &site.configuration("a", &[])));
    let kept = Connect::new(5).id("kept").resume(3_600);
    let mut client = Client::connect(&a, &kept);
    client.subscribe(&[("kept/#", 2)]);
    client.disconnect();
    let mut five = Client::connect(&a, &Connect::new(5).will(Will::new("gone", "five")));
    let mut older = Client::new(&a, 4);

    // Nobody is reached to whom they could go: everybody stays, and is let in.
    let said = drain(&site, &a, &["--notice", "0ms", "--patience", "2s", "--stay"]);
    assert!(said.code == Some(1) && said.err.contains("no other broker can be reached"), "{said:?}");
    assert!(said.err.contains("2 clients and 3 sessions"), "{said:?}");
    assert!(!is_ready(&a));
    five.subscribe(&[("five", 1)]);
    five.say_to_itself("five", "still here");
    Client::new(&a, 3).disconnect();

    // Without the token nobody does that.
    let admin = format!("http://{}", a.address_of("admin"));
    fs::write(site.file("guessed"), "guessed").unwrap();
    let said = run(&["drain", "--admin", &admin, "--token-file", &site.file("guessed")]);
    assert!(said.code == Some(1) && said.err.contains("this is not the admin token"), "{said:?}");
    let said = run(&["drain", "--admin", &admin]);
    assert!(said.code == Some(1) && said.err.contains("data/admin.token"), "{said:?}");

    // As soon as there is one, they go; the first stays, empty.
    let c = {
        site.certify("m", "c", &[]);
        site.start("c", &site.configuration("c", &[a.address_of("mesh")]))
    };
    let reference = text(property::SERVER_REFERENCE, "elsewhere.example:1883");
    let end = five.expect_end();
    assert!(end.reason == Some(0x9C) && end.packets.last().unwrap().properties.contains(&reference), "{end:?}");
    assert_eq!(older.expect_end().reason, None, "3.1.1 knows no DISCONNECT of the server");
    for (version, reason) in [(5, 0x9C), (4, 3), (3, 3)] {
        let mut refused = Client::open(&a, version);
        refused.send(&Connect::new(version).encode());
        let connack = refused.expect(kind::CONNACK);
        assert_eq!(connack.reason, reason, "{version}: {connack:?}");
        assert_eq!(connack.properties.contains(&reference), version == 5, "{connack:?}");
    }
    // Where that does not fit, it is left out [MQTT-3.1.2-24].
    let mut narrow = Client::open(&a, 5);
    narrow.send(&Connect::new(5).with(four(property::MAXIMUM_PACKET_SIZE, 20)).encode());
    assert_eq!(narrow.expect(kind::CONNACK).reason, 0x9C);
    assert!(!is_ready(&a));

    let said = drain(&site, &a, &["--notice", "0ms", "--stay"]);
    assert!(said.code == Some(0) && said.out.contains("empty; 0 clients and 0 sessions"), "{said:?}");
    let mut client = Client::connect(&c, &kept);
    assert!(client.connack.session_present && !is_ready(&a));
    client.say_to_itself("kept/x", "still");
    client.disconnect();

    // Two at once would have nobody to go to.
    let said = drain(&site, &c, &["--notice", "0ms", "--patience", "2s", "--stay"]);
    assert!(said.code == Some(1) && said.err.contains("no other broker can be reached"), "{said:?}");
    Client::new(&c, 5).disconnect();

    // Called off, it is as it was.
    for broker in [&c, &a] {
        let said = drain(&site, broker, &["--cancel"]);
        assert!(said.code == Some(0) && said.out.contains("serving"), "{said:?}");
        assert!(is_ready(broker));
    }
    assert!(Client::connect(&a, &kept).connack.session_present);
    a.signal("TERM");
    assert_eq!(a.wait().code(), Some(0));
}

/// What it has acknowledged would be nowhere: the others have left it out, as they do not want it.
#[test]
fn a_drained_broker_waits_for_a_member_that_is_away_and_needs_what_was_published() {
    let site = Site::new();
    let mut brokers: Vec<Broker> = Vec::new();
    for name in ["a", "b", "c"] {
        site.certify("m", name, &[]);
        let peers: Vec<_> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
        brokers.push(site.start(name, &site.configuration(name, &peers)));
    }
    settle(&brokers.iter().collect::<Vec<_>>());
    let waiting = Connect::new(5).id("waiting").resume(3_600);
    let mut client = Client::connect(&brokers[1], &waiting);
    client.subscribe(&[("t", 1)]);
    client.disconnect();
    brokers.remove(1).kill();
    let mut a = brokers.remove(0);
    let mut publisher = Client::new(&a, 5);
    assert!(publisher.publish(Publish { topic: "t", payload: "1", qos: 1, ..Publish::default() }) < 0x80);
    publisher.disconnect();

    let said = drain(&site, &a, &["--notice", "0ms", "--patience", "3s"]);
    assert!(said.code == Some(1) && said.err.contains("b may not have what was published here"), "{said:?}");
    // It is there again: the broker needs nobody to tell it so.
    let b = site.start("b", &site.configuration("b", &[a.address_of("mesh"), brokers[0].address_of("mesh")]));
    assert_eq!(a.wait().code(), Some(0));
    let mut client = Client::connect(&b, &waiting);
    assert!(client.connack.session_present);
    assert_eq!(client.take_messages(1), ["1"]);
}

/// A member that is down is waited for; one that has left in order is not.
#[test]
fn publishers_that_wait_for_all_members_do_not_wait_for_one_that_was_drained() {
    let site = Site::new();
    let mut brokers: Vec<Broker> = Vec::new();
    for name in ["a", "b"] {
        site.certify("m", name, &[]);
        let peers: Vec<_> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
        let text = site.configuration(name, &peers).replace("subscribe_ack", "publish_ack = \"mesh\"\nsubscribe_ack");
        brokers.push(site.start(name, &text));
    }
    settle(&brokers.iter().collect::<Vec<_>>());
    let mut publisher = Client::new(&brokers[1], 5);
    let publish = |publisher: &mut Client| publisher.publish(Publish { topic: "t", payload: "1", qos: 1, ..Publish::default() });
    assert!(publish(&mut publisher) < 0x80);
    let mut a = brokers.remove(0);
    let said = drain(&site, &a, &["--notice", "0ms"]);
    assert_eq!((said.code, a.wait().code()), (Some(0), Some(0)), "{said:?}");
    assert!(publish(&mut publisher) < 0x80);
}

//! Who may publish and receive what: access files in Mosquitto's words, asked wherever a message goes, and asked anew when they change.

use std::fs;
use std::time::Duration;

use mqtt_st_quic::auth::{Hash, PasswordFile, Record};
use mqtt_st_quic::config::Listener;

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish, Will};
use crate::wire::*;

const NOT_AUTHORIZED: u8 = 0x87;

/// A password file with these users; each one's password is the name with an exclamation mark.
pub fn passwords(users: &[&str]) -> String {
    let mut file = PasswordFile::default();
    for user in users {
        let password = format!("{user}!");
        file.set(user, &Record::new(Hash::Sha512, None, password.as_bytes()).unwrap()).unwrap();
    }
    file.to_string()
}

/// A broker with the users `bob` and `eve`, anonymous clients, and these rules for all of them.
fn ruled(rules: &str) -> Broker {
    Broker::with(|config| {
        let file = |name: &str, text: &str| {
            let path = config.data_dir.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        config.auth.password_file = Some(file("passwd", &passwords(&["bob", "eve"])));
        config.auth.acl_file = Some(file("acl", rules));
    })
}

fn login(broker: &Broker, version: u8, user: &str) -> Client {
    Client::connect(broker, &of(user, version))
}

fn of(user: &str, version: u8) -> Connect {
    Connect::new(version).login(user, &format!("{user}!"))
}

/// The code of a filter that was refused.
fn refused(version: u8) -> u8 {
    if version == 5 { NOT_AUTHORIZED } else { 0x80 }
}

fn publish<'a>(topic: &'a str, payload: &'a str, qos: u8) -> Publish<'a> {
    Publish { topic, payload, qos, ..Publish::default() }
}

#[test]
fn a_subscription_that_could_bring_nothing_is_refused() {
    let broker = ruled("topic read pub/#\nuser bob\ntopic read a/+/c\ntopic write w/#\ntopic deny a/x/c\n");
    for version in [4, 5] {
        let no = refused(version);
        let filters = [("a/b/c", 1), ("a/#", 2), ("#", 0), ("a/x/c", 1), ("w/1", 1), ("pub/x", 1), ("$SYS/#", 0), ("+", 0)];
        let codes = login(&broker, version, "bob").try_subscribe(&filters, &[]);
        assert_eq!(codes, [1, 2, 0, no, no, no, no, no]);
        // A share name opens no door.
        let shared = [("$share/g/a/b/c", 1), ("$share/g/w/1", 1), ("$share/g/$SYS/#", 0), ("$share/a/b/pub/x", 1)];
        assert_eq!(login(&broker, version, "bob").try_subscribe(&shared, &[]), [1, no, no, no]);
        assert_eq!(Client::new(&broker, version).try_subscribe(&[("pub/x", 1), ("a/b/c", 1)], &[]), [1, no]);
        assert_eq!(login(&broker, version, "eve").try_subscribe(&[("#", 1), ("pub/x", 1)], &[]), [no, no], "no line is hers");
    }
}

#[test]
fn mqtt_3_3_5_2_a_publish_without_right_is_refused_or_taken_and_dropped() {
    let broker = ruled("topic read #\nuser bob\ntopic write good/#\ntopic read bad/#\n");
    let mut watcher = Client::subscribed(&broker, 5, "#", 2);
    for version in [4, 5] {
        let mut bob = login(&broker, version, "bob");
        for qos in [0, 1, 2] {
            let code = bob.publish(publish("bad/x", "bad", qos));
            assert_eq!(code, if version == 5 && qos > 0 { NOT_AUTHORIZED } else { 0 }, "version {version}, QoS {qos}");
            bob.publish(publish("good/x", "good", qos));
            assert_eq!(watcher.expect_message("good").topic, "good/x");
        }
        // And is not retained, nor does it delete.
        bob.publish(Publish { retain: true, ..publish("bad/kept", "bad", 1) });
        bob.expect_nothing();
    }
    // The alias of a topic is the topic.
    let mut bob = login(&broker, 5, "bob");
    let alias = [two(property::TOPIC_ALIAS, 1)];
    assert_eq!(bob.publish(Publish { properties: &alias, ..publish("bad/x", "bad", 1) }), NOT_AUTHORIZED);
    assert_eq!(bob.publish(Publish { properties: &alias, ..publish("", "bad", 1) }), NOT_AUTHORIZED);
    watcher.expect_nothing();
    assert_eq!(Client::subscribed(&broker, 5, "#", 1).payloads(), [""; 0]);
}

#[test]
fn a_subscription_brings_what_may_be_read_and_no_more() {
    let broker = ruled("topic write #\nuser bob\ntopic read a/#\ntopic deny a/secret/#\npattern read to/%u\npattern read id/%c\n");
    let mut speaker = Client::new(&broker, 5);
    speaker.retain("a/kept", "kept");
    speaker.retain("a/secret/kept", "secret");
    speaker.retain("b/kept", "not his");
    for version in [4, 5] {
        let mut bob = Client::connect(&broker, &of("bob", version).id("c1"));
        bob.subscribe(&[("#", 1)]);
        assert_eq!(bob.payloads(), ["kept"]);
        bob.subscribe(&[("a/+/#", 0), ("+/+", 2)]);
        assert_eq!(bob.payloads(), ["kept", "kept"], "once for each subscription");
        let said = [
            ("a", 1),
            ("a/x", 1),
            ("a/secret", 0),
            ("a/secret/x", 0),
            ("b", 0),
            ("to/bob", 1),
            ("to/eve", 0),
            ("id/c1", 1),
            ("id/c2", 0),
        ];
        for (topic, _) in said {
            speaker.say(topic, topic);
        }
        let mut expected: Vec<_> = said.iter().filter(|(_, count)| *count == 1).map(|(topic, _)| (*topic).to_owned()).collect();
        let mut heard = bob.take_messages(expected.len());
        expected.sort();
        heard.sort();
        assert_eq!(heard, expected);
        bob.expect_nothing();
    }
}

#[test]
fn a_group_passes_a_member_by_that_may_not_read() {
    let broker = ruled("topic write #\nuser bob\ntopic read #\nuser eve\ntopic read t/eve\n");
    let mut speaker = Client::new(&broker, 5);
    let (mut bob, mut eve) = (login(&broker, 5, "bob"), login(&broker, 5, "eve"));
    for member in [&mut bob, &mut eve] {
        member.subscribe(&[("$share/g/t/#", 1)]);
    }
    for number in 0..10 {
        speaker.say("t/x", &number.to_string());
    }
    assert_eq!(bob.payloads().len(), 10);
    eve.expect_nothing();
    for number in 0..10 {
        speaker.say("t/eve", &number.to_string());
    }
    assert_eq!((bob.payloads().len(), eve.payloads().len()), (5, 5));
}

#[test]
fn a_will_goes_out_if_its_client_may_publish_it() {
    let broker = ruled("topic read #\nuser bob\ntopic write good\n");
    let mut watcher = Client::subscribed(&broker, 5, "#", 1);
    for version in [4, 5] {
        for topic in ["bad", "good"] {
            Client::connect(&broker, &of("bob", version).will(Will { retain: true, ..Will::new(topic, topic) })).lose();
        }
        watcher.expect_message("good");
        watcher.expect_nothing();
    }
    assert_eq!(Client::subscribed(&broker, 5, "#", 1).payloads(), ["good"]);
}

/// CVE-2017-7650, and its like.
#[test]
fn a_name_never_widens_a_pattern() {
    let broker = ruled("topic write #\npattern read devices/%c/#\npattern read home/%u/x\npattern write devices/%c/up\n");
    let mut speaker = Client::new(&broker, 5);
    speaker.retain("devices/a/kept", "kept");
    for version in [4, 5] {
        let no = refused(version);
        for id in ["+", "#", "a/b", "a+", "+/#", "/", "#/", "$share/g/a"] {
            let mut client = Client::connect(&broker, &of("bob", version).id(id));
            let filters =
                ["#", "devices/#", "devices/+/kept", "devices/a/#", "devices/a/b/#", "$share/g/devices/a/#", "devices/%c/#"];
            let codes = client.try_subscribe(&filters.map(|filter| (filter, 1)), &[]);
            // `#` meets the pattern of his user name.
            assert_eq!(codes, [1, no, no, no, no, no, no], "{id}");
            speaker.say("devices/a/x", "not for you");
            client.expect_nothing();
            client.publish(publish("devices/a/up", "x", 1));
        }
        let mut percent = Client::connect(&broker, &Connect::new(version).id("%u"));
        assert_eq!(percent.try_subscribe(&[("devices/%u/#", 1), ("devices/bob/#", 1), ("home/+/x", 1)], &[]), [1, no, no]);
        let mut device = Client::connect(&broker, &Connect::new(version).id("a"));
        device.subscribe(&[("devices/a/#", 1)]);
        device.expect_message("kept");
    }
    // Nobody has a name that is nobody's.
    let mut nameless = Client::connect(&broker, &Connect::new(5).id(""));
    assert_eq!(nameless.try_subscribe(&[("devices//#", 1), ("devices/a/#", 1)], &[]), [NOT_AUTHORIZED, NOT_AUTHORIZED]);
}

/// CVE-2018-20145.
#[test]
fn each_listener_has_its_rules_the_first_one_too() {
    let broker = Broker::with(|config| {
        let file = |name: &str, text: &str| {
            let path = config.data_dir.join(name);
            fs::write(&path, text).unwrap();
            Some(path)
        };
        config.auth.password_file = file("passwd", &passwords(&["bob"]));
        config.auth.acl_file = file("acl", "topic read open/#\nuser bob\ntopic a/#\n");
        let (passwd, acl) = (file("passwd2", &passwords(&["eve"])), file("acl2", "user eve\ntopic b/#\n"));
        let first = config.listeners[0].clone();
        config.listeners.push(Listener { allow_anonymous: Some(false), password_file: passwd, ..first.clone() });
        config.listeners.push(Listener { allow_anonymous: None, acl_file: acl, ..first });
    });
    let filters = [("a/1", 0), ("b/1", 0), ("open/1", 0)];
    let no = NOT_AUTHORIZED;
    for (listener, user, expected) in [
        (0, None, Ok([no, no, 0])),
        (0, Some("bob"), Ok([0, no, no])),
        (0, Some("eve"), Err(0x86)),
        (1, None, Err(no)),
        (1, Some("bob"), Err(0x86)),
        (1, Some("eve"), Ok([no, no, no])),
        (2, None, Err(no)),
        (2, Some("bob"), Ok([no, no, no])),
        (2, Some("eve"), Err(0x86)),
    ] {
        let mut client = Client::open_at(broker.address_of(listener), 5);
        client.send(&user.map_or_else(|| Connect::new(5), |user| of(user, 5)).encode());
        let reason = client.expect(kind::CONNACK).reason;
        let found = if reason == 0 { Ok(client.try_subscribe(&filters, &[])) } else { Err(reason) };
        assert_eq!(found, expected.map(|codes| codes.to_vec()), "listener {listener}, {user:?}");
    }
}

/// CVE-2021-34434.
#[test]
fn a_right_that_is_taken_away_at_reload_is_gone_for_all_that_waits() {
    let broker = ruled("topic write #\nuser bob\ntopic #\n");
    let mut speaker = Client::new(&broker, 5);
    let mut bob = Client::connect(&broker, &of("bob", 5).id("bob").resume(1_000));
    bob.subscribe(&[("a/#", 1), ("b/#", 1)]);
    let mut away = Client::connect(&broker, &of("bob", 4).id("away").resume(1_000));
    away.subscribe(&[("a/#", 1), ("b/#", 1)]);
    // One message of each is in flight when the right goes, two wait.
    speaker.say("a/1", "a1");
    away.expect(kind::PUBLISH);
    bob.expect_message("a1");
    away.lose();
    speaker.say("a/2", "a2");
    speaker.say("b/2", "b2");
    assert_eq!(bob.payloads(), ["a2", "b2"]);
    fs::write(broker.file("acl"), "topic write #\nuser bob\ntopic b/#\n").unwrap();
    assert_eq!(broker.reload().unwrap(), [""; 0]);
    speaker.say("a/3", "a3");
    speaker.say("b/3", "b3");
    assert_eq!(bob.payloads(), ["b3"], "the connection is the same");
    assert_eq!(bob.publish(publish("a/4", "a4", 1)), NOT_AUTHORIZED);
    let mut back = Client::connect(&broker, &of("bob", 4).id("away").resume(1_000));
    assert!(back.connack.session_present);
    assert_eq!(back.payloads(), ["b2", "b3"]);
    // Given back, it is there again.
    fs::write(broker.file("acl"), "topic write #\nuser bob\ntopic #\n").unwrap();
    broker.reload().unwrap();
    speaker.say("a/5", "a5");
    assert_eq!((bob.payloads(), back.payloads()), (vec!["a5".to_owned()], vec!["a5".to_owned()]));
}

/// CVE-2018-12546.
#[test]
fn what_is_retained_does_not_outlive_the_right_to_say_it() {
    let broker = ruled("topic read #\ntopic read $b/#\nuser bob\ntopic write a/#\ntopic write $b/#\nuser eve\ntopic write a/#\n");
    for (user, topic) in [("bob", "a/1"), ("bob", "a/2"), ("bob", "$b/1"), ("eve", "a/3"), ("bob", "a/4"), ("eve", "a/4")] {
        login(&broker, 5, user).retain(topic, user);
    }
    let retained = || {
        let mut client = Client::new(&broker, 5);
        client.subscribe(&[("#", 1), ("$b/#", 1)]);
        let mut topics: Vec<_> = client.messages().into_iter().map(|message| message.topic).collect();
        topics.sort();
        topics
    };
    assert_eq!(retained(), ["$b/1", "a/1", "a/2", "a/3", "a/4"]);
    // That bob is gone takes nothing back.
    let users = fs::read_to_string(broker.file("passwd")).unwrap();
    fs::write(broker.file("passwd"), users.replace("bob:", "bobby:")).unwrap();
    broker.reload().unwrap();
    assert_eq!(retained(), ["$b/1", "a/1", "a/2", "a/3", "a/4"]);
    fs::write(broker.file("acl"), "topic read #\ntopic read $b/#\nuser bob\ntopic write a/1\nuser eve\ntopic write a/#\n").unwrap();
    broker.reload().unwrap();
    assert_eq!(retained(), ["a/1", "a/3", "a/4"], "what eve has said last is hers");
}

#[test]
fn a_user_who_is_gone_is_cut_off_and_his_session_with_him() {
    let broker = ruled("topic #\nuser bob\ntopic #\nuser eve\ntopic #\n");
    let mut watcher = Client::subscribed(&broker, 5, "#", 1);
    let connected: Vec<Client> = [4, 5]
        .map(|version| {
            let will = Will::new("will", "bob is gone");
            let mut bob = Client::connect(&broker, &of("bob", version).id(&format!("bob-{version}")).resume(1_000).will(will));
            bob.subscribe(&[("t", 1)]);
            bob
        })
        .into();
    let mut away = Client::connect(&broker, &of("bob", 5).id("bob-away").resume(1_000));
    away.subscribe(&[("t", 1)]);
    away.lose();
    let mut eve = login(&broker, 5, "eve");
    eve.subscribe(&[("t", 1)]);
    // Nothing has changed: nobody notices.
    for _ in 0..10 {
        broker.reload().unwrap();
    }
    eve.say_to_itself("t", "all are here");
    assert_eq!(watcher.payloads(), ["all are here"]);

    let users = fs::read_to_string(broker.file("passwd")).unwrap();
    let without_bob = users.lines().filter(|line| !line.starts_with("bob:")).collect::<Vec<_>>().join("\n");
    fs::write(broker.file("passwd"), without_bob).unwrap();
    broker.reload().unwrap();
    for mut bob in connected {
        assert_eq!(bob.expect_message("all are here").topic, "t");
        bob.expect_disconnect(&[NOT_AUTHORIZED]);
    }
    eve.say_to_itself("t", "bob is not here");
    assert_eq!(watcher.payloads(), ["bob is not here"], "who may publish nothing any more leaves no will");
    let mut refused = Client::open(&broker, 5);
    refused.send(&of("bob", 5).id("bob-away").resume(1_000).encode());
    assert_eq!(refused.expect_end().reason, Some(0x86));
    // Another of that name gets nothing that was his.
    fs::write(broker.file("passwd"), users).unwrap();
    broker.reload().unwrap();
    for id in ["bob-4", "bob-5", "bob-away"] {
        let mut bob = Client::connect(&broker, &of("bob", 5).id(id).resume(1_000));
        assert!(!bob.connack.session_present, "{id}");
        bob.expect_nothing();
    }
}

#[test]
fn a_user_with_a_new_password_must_show_it_and_finds_his_session() {
    let broker = ruled("topic #\nuser bob\ntopic #\n");
    let mut bob = Client::connect(&broker, &of("bob", 5).id("bob").resume(1_000));
    bob.subscribe(&[("t", 1)]);
    let new = Record::new(Hash::Sha512Pbkdf2, Some(5), b"new").unwrap();
    fs::write(broker.file("passwd"), format!("bob:{new}\n")).unwrap();
    broker.reload().unwrap();
    bob.expect_disconnect(&[NOT_AUTHORIZED]);
    Client::new(&broker, 5).say("t", "for bob");
    // The old one is no longer remembered, either.
    let mut refused = Client::open(&broker, 5);
    refused.send(&of("bob", 5).id("bob").resume(1_000).encode());
    assert_eq!(refused.expect_end().reason, Some(0x86));
    let mut bob = Client::connect(&broker, &Connect::new(5).login("bob", "new").id("bob").resume(1_000));
    assert!(bob.connack.session_present);
    bob.expect_message("for bob");
}

#[test]
fn a_session_is_its_users() {
    let broker = ruled("topic #\nuser bob\ntopic #\nuser eve\ntopic #\n");
    let mut bob = Client::connect(&broker, &of("bob", 5).id("c").resume(1_000));
    bob.subscribe(&[("t", 1)]);
    bob.lose();
    Client::new(&broker, 5).say("t", "for bob");
    for other in [of("eve", 5), Connect::new(5)] {
        let mut other = Client::connect(&broker, &other.id("c").resume(1_000));
        assert!(!other.connack.session_present);
        other.expect_nothing();
        Client::new(&broker, 5).say("t", "nobody's");
        other.expect_nothing();
    }
}

/// What a reload has put in force holds on when a later one finds listeners that it cannot open or close.
#[test]
fn no_reload_brings_older_rules_back() {
    let mut broker = Broker::start();
    Client::new(&broker, 5).expect_nothing();
    broker.edit(|config| config.listeners[0].allow_anonymous = Some(false));
    assert!(broker.reload().unwrap().is_empty());
    let is_refused = |broker: &Broker| {
        let mut client = Client::open(broker, 5);
        client.send(&Connect::new(5).encode());
        assert_eq!(client.expect_end().reason, Some(NOT_AUTHORIZED));
    };
    is_refused(&broker);
    broker.edit(|config| {
        let bind = std::net::SocketAddr::from(([127, 0, 0, 2], 0)).into();
        config.listeners.insert(0, Listener { bind, allow_anonymous: Some(true), ..Listener::default() });
    });
    assert_eq!(broker.reload().unwrap(), ["listener"]);
    is_refused(&broker);
    // What is said of the listeners that there are is taken over all the same, also when one is gone from the file.
    broker.edit(|config| config.listeners[1].allow_anonymous = Some(true));
    broker.reload().unwrap();
    Client::new(&broker, 5).expect_nothing();
    broker.edit(|config| config.listeners[1].allow_anonymous = Some(false));
    broker.reload().unwrap();
    broker.edit(|config| config.listeners.truncate(1));
    broker.reload().unwrap();
    is_refused(&broker);
}

/// CVE-2017-7652, CVE-2018-12550, CVE-2018-12551: what cannot be read or is empty never means "everybody", and never "nobody in particular".
#[test]
fn at_reload_bad_files_change_nothing() {
    let broker = ruled("topic read #\nuser bob\ntopic write a\n");
    let mut bob = login(&broker, 5, "bob");
    let good = |name: &str| fs::read(broker.file(name)).unwrap();
    let (acl, passwd) = (good("acl"), good("passwd"));
    for (name, text, line) in [
        ("acl", "", ""),
        ("acl", "# nothing\n", ""),
        ("acl", "topic #\nallow all\n", ":2"),
        ("passwd", "", ""),
        ("passwd", "\n", ""),
        ("passwd", "bob\n", ":1"),
        ("passwd", "bob:plain\n", ":1"),
    ] {
        fs::write(broker.file(name), text).unwrap();
        let said = broker.reload().unwrap_err().to_string();
        assert!(said.contains(&format!("{}{line}: ", broker.file(name).display())), "{said}");
        fs::write(broker.file("acl"), &acl).unwrap();
        fs::write(broker.file("passwd"), &passwd).unwrap();
    }
    for name in ["acl", "passwd"] {
        fs::rename(broker.file(name), broker.file("aside")).unwrap();
        let said = broker.reload().unwrap_err().to_string();
        assert!(said.contains("_file: cannot read") && said.contains(name), "{said}");
        fs::rename(broker.file("aside"), broker.file(name)).unwrap();
    }
    assert_eq!(bob.publish(publish("b", "x", 1)), NOT_AUTHORIZED);
    assert!(bob.publish(publish("a", "x", 1)) < 0x80);
    login(&broker, 4, "eve").expect_nothing();
    assert_eq!(broker.reload().unwrap(), [""; 0]);
    assert!(bob.receive_within(Duration::ZERO).is_none(), "still connected");
}

//! What outlives a broker's end, however it comes: sessions, what waits in them, retained messages, wills and their times; and what a disk may do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::broker::{Broker, Site, wait_for};
use crate::client::{Client, Connect, Publish, Will};
use crate::serve::get;
use crate::wire::*;

fn files(site: &Site, name: &str, ending: &str) -> Vec<PathBuf> {
    let dir = site.path().join(name).join("sessions");
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_str().unwrap().ends_with(ending));
    files.sort();
    files
}

/// Connects to a session that must be there.
fn resumed(broker: &Broker, connect: &Connect) -> Client {
    let client = Client::connect(broker, connect);
    assert!(client.connack.session_present, "{:?}", client.connack);
    client
}

/// Waits until the disk has all: what is acknowledged to nobody, as a DISCONNECT or a lost connection, may be lost with the broker otherwise.
fn all_is_written(broker: &Broker) {
    wait_for("the disk to have all", || {
        let page = get(broker.address_of("health"), "/metrics");
        let waiting = page.lines().find_map(|line| line.strip_prefix("mqtt_st_quic_store_changes_waiting "))?;
        (waiting.parse::<f64>().unwrap() == 0.0).then_some(())
    });
}

#[test]
fn a_killed_broker_goes_on_with_everything_that_was_to_be_kept() {
    let site = Site::new();
    let configuration = site.alone("a");
    let broker = site.start("a", &configuration);
    let connect = Connect::new(5).id("keeper").resume(3_600);
    let mut keeper = Client::connect(&broker, &connect);
    assert!(!keeper.connack.session_present);
    keeper.subscribe_with(&[("q/#", 1), ("exact/+", 2)], &[variable(property::SUBSCRIPTION_ID, 7)]);
    keeper.subscribe(&[("gone", 1)]);
    keeper.unsubscribe(&["gone"]);
    // A QoS 2 message of its own is half sent.
    let half = Publish { topic: "half", payload: "once", qos: 2, id: 77, ..Publish::default() };
    keeper.send(&half.encode(5));
    assert_eq!(keeper.expect(kind::PUBREC).id, 77);
    // And one to it: it has the message, the broker knows that, and its PUBREL is lost.
    let mut publisher = Client::new(&broker, 5);
    let mut watch = Client::connect(&broker, &Connect::new(4).id("watch").resume(0));
    watch.subscribe(&[("half", 2)]);
    publisher.publish(Publish { topic: "exact/1", payload: "held", qos: 2, ..Publish::default() });
    let held = keeper.expect(kind::PUBLISH);
    keeper.send(&ack(kind::PUBREC, held.id));
    assert_eq!(keeper.expect(kind::PUBREL).id, held.id);
    keeper.lose();
    publisher.say("q/1", "waits");
    publisher.publish(Publish { topic: "exact/2", payload: "waits too", qos: 2, ..Publish::default() });
    publisher.say("gone", "for nobody");
    publisher.retain("kept", "retained");
    publisher.retain("dropped", "retained");
    publisher.retain("dropped", "");
    broker.kill();

    let broker = site.start("a", &configuration);
    let mut keeper = resumed(&broker, &connect);
    assert_eq!((keeper.expect(kind::PUBREL).id, held.id), (held.id, held.id));
    keeper.send(&ack(kind::PUBCOMP, held.id));
    let message = keeper.expect_message("waits");
    assert_eq!(message.number(property::SUBSCRIPTION_ID), Some(7));
    keeper.expect_message("waits too");
    // The broker has it, and takes it no second time.
    keeper.send(&Publish { dup: true, ..half }.encode(5));
    assert_eq!(keeper.expect(kind::PUBREC).reason, 0);
    keeper.send(&ack(kind::PUBREL, 77));
    assert_eq!(keeper.expect(kind::PUBCOMP).reason, 0);
    keeper.expect_nothing();
    Client::new(&broker, 5).say("q/2", "live");
    keeper.expect_message("live");
    let mut watch = resumed(&broker, &Connect::new(4).id("watch").resume(0));
    watch.expect_nothing();
    let mut late = Client::new(&broker, 5);
    late.subscribe(&[("kept", 0), ("dropped", 0)]);
    assert_eq!(late.expect(kind::PUBLISH).text(), "retained");
    late.expect_nothing();

    // It ends when the client says so, also over a restart.
    keeper.disconnect_with(0, &[four(property::SESSION_EXPIRY, 0)]);
    all_is_written(&broker);
    broker.kill();
    let broker = site.start("a", &configuration);
    assert!(!Client::connect(&broker, &connect).connack.session_present);
}

#[test]
fn nothing_is_written_for_what_ends_with_its_connection_and_files_are_nobody_elses() {
    let site = Site::new();
    let broker = site.start("a", &site.alone("a"));
    let mut clean = Client::new(&broker, 4);
    clean.subscribe(&[("#", 2)]);
    let mut publisher = Client::new(&broker, 5);
    publisher.say("x", "1");
    clean.expect_message("1");
    publisher.publish(Publish { topic: "x", payload: "2", qos: 2, ..Publish::default() });
    clean.expect_message("2");
    assert_eq!(files(&site, "a", ".log"), Vec::<PathBuf>::new());
    publisher.retain("x", "3");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let written = files(&site, "a", ".log");
    assert_eq!(written.iter().map(|path| mode(path)).collect::<Vec<_>>(), [0o600]);
    assert_eq!(mode(written[0].parent().unwrap()), 0o700);
    // One process for each directory.
    let said = site.fails(&site.alone("a"));
    assert!(said.code != Some(0) && said.err.contains("another broker uses this data_dir"), "{said:?}");
    drop(broker);
    let off = format!("{}[persistence]\nenabled = false\n", site.alone("b"));
    let broker = site.start("b", &off);
    Client::connect(&broker, &Connect::new(4).id("s").resume(0)).subscribe(&[("t", 1)]);
    assert!(!site.path().join("b/sessions").exists());
}

#[test]
fn times_count_on_while_the_broker_is_down() {
    let site = Site::new();
    let configuration = site.alone("a");
    let broker = site.start("a", &configuration);
    let begun = Instant::now();
    let mut publisher = Client::new(&broker, 5);
    let expiring = |topic, seconds: u32| Publish {
        topic,
        payload: "x",
        qos: 1,
        retain: true,
        properties: Box::leak(Box::new([four(property::MESSAGE_EXPIRY, seconds)])),
        ..Publish::default()
    };
    publisher.publish(expiring("short", 4));
    publisher.publish(expiring("long", 60));
    // Away since before the end, and connected at the end.
    let (away, there) = (Connect::new(5).id("away").resume(4), Connect::new(5).id("there").resume(300));
    Client::connect(&broker, &away).lose();
    let will = |delay| Will {
        qos: 1,
        properties: vec![four(property::WILL_DELAY, delay)],
        ..Will::new("wills", &format!("after {delay}"))
    };
    let mut heir = Client::connect(&broker, &Connect::new(5).id("heir").resume(600));
    heir.subscribe(&[("wills", 1)]);
    heir.lose();
    Client::connect(&broker, &Connect::new(5).id("w1").resume(600).will(will(1))).lose();
    let _there = Client::connect(&broker, &there.clone().will(will(2)));
    let _saved = Client::connect(&broker, &Connect::new(5).id("saved").resume(600).will(will(3_600)));
    let mut normal = Client::connect(&broker, &Connect::new(5).id("normal").resume(600).will(will(0)));
    normal.send(&packet(kind::DISCONNECT, 0, &[]));
    normal.expect_end();
    all_is_written(&broker);
    broker.kill();

    let broker = site.start("a", &configuration);
    let mut heir = resumed(&broker, &Connect::new(5).id("heir").resume(600));
    heir.expect_message("after 1");
    heir.expect_message("after 2");
    drop(resumed(&broker, &Connect::new(5).id("saved").resume(600)));
    let (left, asked) = wait_for("the end of what is short", || {
        let asked = begun.elapsed().as_secs();
        let mut reader = Client::new(&broker, 5);
        reader.subscribe(&[("short", 0), ("long", 0)]);
        let found = reader.messages();
        (found.len() == 1).then(|| (found[0].number(property::MESSAGE_EXPIRY).unwrap(), asked))
    });
    let passed = begun.elapsed().as_secs();
    assert!(passed >= 3 && u64::from(left) + asked <= 62 && left >= 60 - u32::try_from(passed).unwrap() - 1, "{left} {passed}");
    wait_for("the end of the session", || (begun.elapsed() > Duration::from_secs(6)).then_some(()));
    assert!(!Client::connect(&broker, &away).connack.session_present, "away for longer than it may be");
    drop(resumed(&broker, &there));
    heir.expect_nothing();
}

#[test]
fn what_is_damaged_is_put_aside_and_the_rest_is_kept() {
    let site = Site::new();
    let configuration = site.alone("a");
    let broker = site.start("a", &configuration);
    let mut publisher = Client::new(&broker, 5);
    let topics: Vec<_> = (0..50).map(|number| format!("t/{number:02}")).collect();
    topics.iter().for_each(|topic| publisher.retain(topic, topic));
    broker.kill();
    let [log] = &files(&site, "a", ".log")[..] else { panic!("one segment") };
    let mut bytes = fs::read(log).unwrap();
    let at = bytes.windows(4).position(|window| window == b"t/25").unwrap();
    bytes[at] ^= 0x20;
    // And the end is missing, which is no damage.
    bytes.truncate(bytes.len() - 3);
    fs::write(log, &bytes).unwrap();

    for is_first in [true, false] {
        let broker = site.start("a", &configuration);
        let mut reader = Client::new(&broker, 5);
        reader.subscribe(&[("t/+", 0)]);
        let mut found = reader.payloads();
        found.sort();
        let expected: Vec<_> = topics.iter().filter(|topic| !matches!(topic.as_str(), "t/25" | "t/49")).cloned().collect();
        assert_eq!(found, expected);
        if is_first {
            broker.wait_for_log(&["ERROR", "damaged", log.file_name().unwrap().to_str().unwrap()]);
            wait_for("a file put aside", || {
                let names: Vec<_> = files(&site, "a", ".log").iter().map(|it| it.file_name().unwrap().to_owned()).collect();
                names.iter().any(|name| name.to_str().unwrap().starts_with("damaged-20")).then_some(())
            });
            assert!(!log.exists());
        } else {
            assert!(!broker.log().contains("damaged"), "said once");
        }
        broker.kill();
    }
}

#[test]
fn what_a_newer_program_has_written_is_left_alone() {
    let site = Site::new();
    let configuration = site.alone("a");
    let broker = site.start("a", &configuration);
    Client::new(&broker, 5).retain("t", "x");
    broker.kill();
    let [log] = &files(&site, "a", ".log")[..] else { panic!("one segment") };
    let mut bytes = fs::read(log).unwrap();
    bytes[7] += 1;
    fs::write(log, &bytes).unwrap();
    let said = site.fails(&configuration);
    assert!(said.code != Some(0) && said.err.contains("use the newer program"), "{said:?}");
    assert_eq!(fs::read(log).unwrap(), bytes);
}

/// A file system of its own, as large as a disk that is soon full.
struct Mount(PathBuf);

impl Mount {
    fn new(path: &str) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs", path]).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(PathBuf::from(path)))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_what_cannot_be_kept_and_nothing_else() {
    let site = Site::new();
    let Some(mount) = Mount::new(&site.file("a")) else {
        assert!(std::env::var_os("REQUIRE_ALL").is_none(), "needs root, to mount a small file system");
        println!("skipped: needs root, to mount a small file system");
        return;
    };
    let broker = site.start("a", &site.alone("a"));
    let connect = Connect::new(5).id("keeper").resume(600);
    let mut keeper = Client::connect(&broker, &connect);
    keeper.subscribe(&[("q", 1)]);
    let mut clean = Client::subscribed(&broker, 5, "c", 2);
    let mut publisher = Client::new(&broker, 5);
    publisher.say("q", "before");
    keeper.expect_message("before");
    let filler = mount.0.join("filler");
    let fill = || {
        let mut bytes = vec![0; 1 << 20];
        while !bytes.is_empty() && fs::write(&filler, &bytes).is_err() {
            bytes.truncate(bytes.len() - 1_024);
        }
    };
    fill();

    // What was under way when it began waits, and is safe when it is acknowledged.
    let id = publisher.next_id();
    let large = "x".repeat(100_000);
    publisher.send(&Publish { topic: "q", payload: &large, qos: 1, id, ..Publish::default() }.encode(5));
    broker.wait_for_log(&["ERROR", "cannot be written"]);
    let mut other = Client::new(&broker, 5);
    let refused = |qos, retain| Publish { topic: "q", payload: "refused", qos, retain, ..Publish::default() };
    assert_eq!(other.publish(refused(1, false)), 0x97);
    assert_eq!(other.publish(refused(2, false)), 0x97);
    assert_eq!(other.publish(Publish { topic: "r", ..refused(1, true) }), 0x97);
    // Also where the publisher's own session would have to keep the identifier.
    let mut durable = Client::connect(&broker, &Connect::new(5).resume(600));
    assert_eq!(durable.publish(Publish { topic: "nobody", ..refused(2, false) }), 0x97);
    assert_eq!(durable.publish(Publish { topic: "nobody", ..refused(1, false) }), 0x10);
    let mut old = Client::new(&broker, 4);
    old.send(&Publish { id: 1, ..refused(1, false) }.encode(4));
    old.expect_disconnect(&[]);
    for qos in 0..=2 {
        other.publish(Publish { topic: "c", payload: "live", qos, ..Publish::default() });
        clean.expect_message("live");
    }
    // New clients come in, with and without a session that is kept.
    Client::connect(&broker, &Connect::new(5).id("new").resume(600)).subscribe(&[("n", 1)]);
    assert_eq!(broker.log().matches("cannot be written").count(), 1, "once a minute");

    fs::remove_file(&filler).unwrap();
    assert_eq!(publisher.expect(kind::PUBACK).id, id);
    broker.wait_for_log(&["INFO", "can be written again"]);
    other.say("q", "after");
    keeper.expect_message(&large);
    keeper.expect_message("after");
    keeper.lose();
    other.say("q", "kept");
    broker.kill();
    let broker = site.start("a", &site.alone("a"));
    resumed(&broker, &connect).expect_message("kept");
    drop(broker);
}

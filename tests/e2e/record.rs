//! A broker's record of what its tree was told (`--record-stp`), replayed: the machine comes to the same place.

use std::fs;

use serde_json::Value;

use crate::broker::{Broker, Site, wait_for};
use crate::mesh::settle;
use crate::replay::replay;

/// Role and state of a broker's port to each peer, as it tells them itself.
fn told(topology: &Value, name: &str) -> Vec<(String, String, String)> {
    let mut told = Vec::new();
    for link in topology["links"].as_array().unwrap() {
        for (own, peer, role) in [("a", "b", "role_a"), ("b", "a", "role_b")] {
            if link[own] == name && link["state"] != "down" {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                told.push((text(&link[peer]), text(&link[role]), text(&link["state"])));
            }
        }
    }
    told.sort();
    told
}

#[test]
fn a_record_of_real_brokers_replays_to_the_same_tree() {
    let site = Site::new();
    let names = ["a", "b", "c"];
    let record = |name: &str| site.path().join(format!("{name}.record"));
    let mut brokers: Vec<Broker> = Vec::new();
    for name in names {
        site.certify("m", name, &[]);
        let peers: Vec<_> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
        let file = record(name);
        brokers.push(Broker::start(&site, name, &site.configuration(name, &peers), |command| {
            command.arg("--record-stp").arg(&file);
        }));
    }
    let everybody: Vec<&Broker> = brokers.iter().collect();
    let before = settle(&everybody);
    // A broker is killed in the middle of it, so that there is something to see: the root's children lose their way.
    let root = brokers.iter().position(|broker| before["root"] == broker.name.as_str()).unwrap();
    let killed = brokers.remove(root);
    let name_killed = killed.name.clone();
    killed.kill();
    let left: Vec<&Broker> = brokers.iter().collect();
    let topology = settle(&left);
    assert_ne!(topology["root"], before["root"]);

    let ids: Vec<(String, String)> = before["brokers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|broker| (broker["id"].as_str().unwrap().to_owned(), broker["name"].as_str().unwrap().to_owned()))
        .collect();
    let name_of = |id: String| ids.iter().find(|(known, _)| *known == id).unwrap().1.clone();
    for broker in &left {
        // The record may be a moment behind, and the next input a moment ahead of what was asked.
        wait_for("the record says what the broker says", || {
            let text = fs::read_to_string(record(&broker.name)).unwrap();
            let replayed = replay(&text, |_| {}).unwrap();
            assert!(replayed.broken.is_empty(), "{}", replayed.summary());
            assert!(replayed.stp.changes().0 > 0 && replayed.inputs > 5, "{}", replayed.summary());
            let mut ports: Vec<_> = replayed
                .stp
                .ports()
                .map(|(port, role, forwarding)| {
                    let state = if forwarding { "forwarding" } else { "blocked" };
                    (name_of(port.peer.to_string()), format!("{role:?}").to_lowercase(), state.to_owned())
                })
                .collect();
            ports.sort();
            let is_same = ports == told(&broker.topology(), &broker.name)
                && topology["root"] == name_of(replayed.stp.tree().root.id.to_string()).as_str();
            if !is_same {
                println!("{}: {ports:?}, told {:?}\n{}", broker.name, told(&broker.topology(), &broker.name), replayed.summary());
            }
            is_same.then_some(())
        });
    }
    // Of the broker that was killed there is all that it was told, and perhaps half a line.
    let text = fs::read_to_string(record(&name_killed)).unwrap();
    let replayed = replay(&text, |_| {}).unwrap();
    assert!(replayed.broken.is_empty() && replayed.stp.is_root(), "{}", replayed.summary());
}

#[test]
fn a_record_that_cannot_be_written_is_said_at_the_start() {
    let site = Site::new();
    site.certify("m", "a", &[]);
    let configuration = site.configuration("a", &[]).replace("[mesh]\n", "[mesh]\nrecord_stp = \"/nowhere/at/all\"\n");
    let said = site.fails(&configuration);
    assert!(said.err.contains("mesh.record_stp = /nowhere/at/all: cannot write there"), "{}", said.err);
}

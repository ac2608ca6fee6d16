//! What an operator sees of the tree while it changes: metrics, `$SYS/mesh`, the log.

use std::collections::BTreeMap;

use crate::broker::{Broker, Site, run, wait_for};
use crate::client::Client;
use crate::mesh::{settle, start_all};
use crate::serve::get;

/// The value of one sample, by its name without prefix and with its labels.
fn metric(broker: &Broker, sample: &str) -> Option<f64> {
    let text = get(broker.address_of("health"), "/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix("mqtt_st_quic_")?.strip_prefix(sample)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

/// What is retained below `$SYS/mesh`.
fn topics(broker: &Broker) -> BTreeMap<String, String> {
    let messages = Client::subscribed(broker, 5, "$SYS/mesh/#", 0).messages();
    messages.iter().filter(|m| m.retain()).map(|m| (m.topic["$SYS/mesh/".len()..].to_owned(), m.text().to_owned())).collect()
}

fn waits_for_topic(broker: &Broker, topic: &str, value: &str) {
    wait_for(&format!("{topic} = {value}"), || topics(broker).get(topic).is_some_and(|now| now == value).then_some(()));
}

#[test]
fn the_death_of_a_root_is_seen_in_metrics_topics_and_log() {
    let site = Site::new();
    let mut brokers = start_all(&site, &["a", "b", "c"]);
    let before = settle(&brokers.iter().collect::<Vec<_>>());
    let root = before["root"].as_str().unwrap().to_owned();
    for broker in &brokers {
        let shows = |shown: &BTreeMap<String, String>| {
            let is = |topic: &str, value: &str| shown.get(topic).is_some_and(|now| now == value);
            is("name", "m") && is("root/name", &root) && is("brokers", "3") && shown.contains_key("parent") == (broker.name != root)
        };
        wait_for("all of it in the topics", || Some(topics(broker)).filter(shows));
        assert_eq!(metric(broker, "mesh_root"), Some(f64::from(u8::from(broker.name == root))));
        wait_for("a link with each of the others", || (metric(broker, "mesh_links") == Some(2.0)).then_some(()));
        assert!(metric(broker, "mesh_bpdus_received_total") > Some(1.0));
        assert!(metric(broker, "mesh_certificate_expiry_timestamp_seconds") > Some(1e9));
        // Its way may lead over the other one, where a handshake met a busy moment.
        let port = "mesh_link_port{role=\"root\",state=\"forwarding\",";
        wait_for("a Root port that forwards, except at the root", || {
            (get(broker.address_of("health"), "/metrics").contains(port) == (broker.name != root)).then_some(())
        });
    }

    let healed_before: BTreeMap<_, _> = brokers.iter().map(|b| (b.name.clone(), metric(b, "mesh_healing_seconds_count"))).collect();
    let killed = brokers.remove(brokers.iter().position(|broker| broker.name == root).unwrap());
    // Whoever subscribes to everything hears nothing of it; whoever asks for it hears events.
    let mut all = Client::subscribed(&brokers[0], 5, "#", 0);
    let mut watchers: Vec<_> = brokers.iter().map(|broker| Client::subscribed(broker, 5, "$SYS/mesh/events", 0)).collect();
    killed.kill();
    let left: Vec<&Broker> = brokers.iter().collect();
    let after = settle(&left)["root"].as_str().unwrap().to_owned();
    assert_ne!(after, root);
    for (broker, watcher) in left.iter().zip(&mut watchers) {
        let name = |reason: &str| format!("mesh_detection_seconds_count{{reason=\"{reason}\"}}");
        let died = wait_for("a peer that was found dead", || {
            ["silent", "deaf"].into_iter().find(|reason| metric(broker, &name(reason)) > Some(0.0))
        });
        assert!(metric(broker, &format!("mesh_links_closed_total{{reason=\"{died}\"}}")) > Some(0.0));
        let silence = metric(broker, &format!("mesh_detection_seconds_sum{{reason=\"{died}\"}}")).unwrap();
        assert!(silence > 0.1, "{silence}");
        let role = if broker.name == after { "root" } else { "leaf" };
        for (topic, value) in [("root/name", after.as_str()), ("brokers", "2"), ("role", role)] {
            waits_for_topic(broker, topic, value);
        }
        assert_ne!(topics(broker)["changes"], "0");
        waits_for_topic(broker, &format!("links/{root}/state"), "down");
        let mut heard = Vec::new();
        wait_for("the event", || {
            heard.extend(watcher.payloads());
            heard.iter().any(|line| line.contains("\"event\":\"tree_changed\"") && line.contains(&after)).then_some(())
        });
        assert!(heard.iter().any(|line| line.contains("\"event\":\"link_down\"") && line.contains(&root)), "{heard:?}");
        broker.wait_for_log(&["link down", &root, "lived_ms"]);
        broker.wait_for_log(&["tree changed", &format!("root={after}"), &format!("old_root={root}")]);
    }
    // Whoever noticed first had no offer to follow.
    let orphans = left.iter().filter(|b| metric(b, "mesh_tree_changes_total{cause=\"parent_lost\"}") > Some(0.0));
    assert!(orphans.count() > 0);
    // Whoever hung on the root and noticed first healed; the other one may have changed sides before.
    let healed: Vec<_> = left.iter().filter(|b| metric(b, "mesh_healing_seconds_count") > healed_before[&b.name]).collect();
    assert!(!healed.is_empty());
    for broker in healed {
        assert!(metric(broker, "mesh_healing_last_seconds") > Some(0.0));
        wait_for("the healing in the topics", || {
            let shown = topics(broker);
            (shown.get("healing/count")? != "0" && shown.contains_key("healing/last_ms")).then_some(())
        });
        broker.wait_for_log(&["healed", "ms="]);
    }
    all.expect_nothing();
}

#[test]
fn every_form_of_the_topology_tells_of_every_broker() {
    let site = Site::new();
    let brokers = start_all(&site, &["left", "right"]);
    let topology = settle(&brokers.iter().collect::<Vec<_>>());
    let of = |name: &str| topology["brokers"].as_array().unwrap().iter().find(|broker| broker["name"] == name).unwrap();
    let (root, leaf) = if topology["root"] == "left" { ("left", "right") } else { ("right", "left") };
    assert_eq!((&of(root)["parent"], &of(leaf)["parent"]), (&serde_json::Value::Null, &root.into()));
    assert_eq!((of(root)["hops"].as_u64(), of(leaf)["hops"].as_u64()), (Some(0), Some(1)), "{topology}");
    let admin = format!("http://{}", brokers[1].address_of("admin"));
    for (format, begins) in [("text", "mesh m, root "), ("json", "{"), ("dot", "graph \"m\" {"), ("svg", "<svg ")] {
        let said = run(&["topology", "--admin", &admin, "--format", format]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.out.starts_with(begins) && said.out.contains("left") && said.out.contains("right"), "{format}: {said:?}");
    }
}

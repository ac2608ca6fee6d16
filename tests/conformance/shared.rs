//! Which member of a shared subscription gets a message (`shared_subscription_strategy`).

use std::collections::BTreeMap;

use mqtt_st_quic::config::SharedStrategy;

use crate::broker::Broker;
use crate::client::Client;

const MEMBERS: usize = 4;

/// Who of [`MEMBERS`] gets each of the messages that these publishers publish, one after the other, to these topics.
fn receivers(strategy: SharedStrategy, messages: &[(usize, &str)]) -> Vec<usize> {
    let broker = Broker::with(|config| config.shared_subscription_strategy = strategy);
    let mut members: Vec<_> = (0..MEMBERS).map(|_| Client::subscribed(&broker, 5, "$share/g/+", 0)).collect();
    let mut publishers: Vec<_> = (0..8).map(|_| Client::new(&broker, 5)).collect();
    for (number, (publisher, topic)) in messages.iter().enumerate() {
        publishers[*publisher].say(topic, &number.to_string());
    }
    let mut receivers = BTreeMap::new();
    for (member, client) in members.iter_mut().enumerate() {
        for payload in client.payloads() {
            assert_eq!(receivers.insert(payload.parse::<usize>().unwrap(), member), None, "message {payload} came twice");
        }
    }
    assert_eq!(receivers.len(), messages.len(), "messages are lost");
    receivers.into_values().collect()
}

fn all_same(receivers: &[usize]) -> bool {
    receivers.windows(2).all(|pair| pair[0] == pair[1])
}

#[test]
fn in_turn_whoever_publishes() {
    let messages: Vec<_> = (0..12).map(|number| (number % 8, "t")).collect();
    let got = receivers(SharedStrategy::RoundRobin, &messages);
    for (number, member) in got.iter().enumerate() {
        assert_eq!(*member, got[number % MEMBERS], "{got:?}");
    }
    assert!(!all_same(&got[..2]), "{got:?}");
}

#[test]
fn any_member() {
    let got = receivers(SharedStrategy::Random, &[(0, "t"); 200]);
    for member in 0..MEMBERS {
        assert!(got.contains(&member), "one of {MEMBERS} is left out in 200 messages once in 10^24: {got:?}");
    }
    assert!((0..200 - MEMBERS).any(|at| got[at] != got[at + MEMBERS]), "{got:?}");
}

#[test]
fn always_the_same_member() {
    let messages: Vec<_> = (0..8).flat_map(|publisher| [(publisher, "a"), (publisher, "b")]).collect();
    let got = receivers(SharedStrategy::Sticky, &messages);
    assert!(all_same(&got), "{got:?}");
}

#[test]
fn the_same_member_for_one_publisher() {
    let messages: Vec<_> = (0..8).flat_map(|publisher| [(publisher, "a"), (publisher, "b"), (publisher, "c")]).collect();
    let got = receivers(SharedStrategy::HashClientid, &messages);
    assert!(got.chunks(3).all(all_same), "{got:?}");
}

#[test]
fn the_same_member_for_one_topic() {
    let topics = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let messages: Vec<_> = topics.iter().flat_map(|topic| [(0, *topic), (1, *topic), (2, *topic)]).collect();
    let got = receivers(SharedStrategy::HashTopic, &messages);
    assert!(got.chunks(3).all(all_same), "{got:?}");
    assert!(!all_same(&got), "twelve topics all go to one of {MEMBERS} once in 4^11: {got:?}");
}

//! What the broker publishes of itself below `$SYS`, as Mosquitto does: topics that are retained and follow what they show, and events that
//! are not. Each broker tells its own clients of itself; nothing of it goes over the mesh.
//!
//! | file | what it shows |
//! |---|---|
//! | `broker` | `$SYS/broker`: clients, messages, bytes, loads, with Mosquitto's names |
//! | `mesh` | `$SYS/mesh`: the tree, the links, how the mesh heals |
//!
//! Invariants: a topic is published when its value is another, at most once a second (`broker`: once an interval); one that shows nothing any more is cleared; an event
//! is published once, at once.
//!
//! Specification: MQTT 5.0 section 4.7.2; `router::is_system`.

mod broker;
mod mesh;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep_until;

use crate::clock;
use crate::mesh::Watcher;
use crate::router::{Batch, Router};

/// Topics below `$SYS/mesh` follow what they show at most this often.
const INTERVAL: Duration = Duration::from_secs(1);

/// Topics and their values.
type Topics = BTreeMap<String, String>;

/// Shows the broker itself for as long as it runs: now, and every `interval` again.
pub async fn run_broker(router: Arc<Router>, interval: Duration) {
    let (mut shown, mut batch) = (Shown::default(), Batch::default());
    let mut broker = broker::Broker::new(clock::now());
    loop {
        let now = clock::now();
        let retained = router.retained();
        let topics = broker.topics(router.metrics(), retained.count(), retained.bytes(), now);
        for (topic, value) in shown.update(topics) {
            router.publish_system(&mut batch, &topic, value.as_bytes(), true, now);
        }
        router.finish(&mut batch, now);
        sleep_until((now + interval).into()).await;
    }
}

/// Shows the mesh for as long as the broker runs.
pub async fn run(router: Arc<Router>, watcher: Watcher) {
    let (mut shown, mut batch) = (Shown::default(), Batch::default());
    let (mut is_news, mut due) = (true, clock::now());
    loop {
        tokio::select! {
            () = watcher.news() => is_news = true,
            () = sleep_until(due.into()), if is_news => {
                for (topic, value) in shown.update(mesh::topics(&watcher.status())) {
                    router.publish_system(&mut batch, &topic, value.as_bytes(), true, clock::now());
                }
                (is_news, due) = (false, clock::now() + INTERVAL);
            }
        }
        for event in watcher.events() {
            router.publish_system(&mut batch, mesh::EVENTS, event.as_bytes(), false, clock::now());
        }
        router.finish(&mut batch, clock::now());
    }
}

/// What is retained.
#[derive(Debug, Default)]
struct Shown(Topics);

impl Shown {
    /// From now on `topics` are: what is to be published for that. Nothing at a topic clears it.
    fn update(&mut self, topics: Topics) -> Vec<(String, String)> {
        let gone = self.0.keys().filter(|topic| !topics.contains_key(*topic)).map(|topic| (topic.clone(), String::new()));
        let other = topics.iter().filter(|(topic, value)| self.0.get(*topic) != Some(value));
        let news = gone.chain(other.map(|(topic, value)| (topic.clone(), value.clone()))).collect();
        self.0 = topics;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_or_another_is_published_and_what_is_gone_is_cleared() {
        let topics = |pairs: &[(&str, &str)]| -> Topics {
            pairs.iter().map(|(topic, value)| ((*topic).to_owned(), (*value).to_owned())).collect()
        };
        let mut shown = Shown::default();
        let news = |news: Vec<(String, String)>| news.into_iter().map(|(t, v)| format!("{t}={v}")).collect::<Vec<_>>();
        assert_eq!(news(shown.update(topics(&[("a", "1"), ("b", "2")]))), ["a=1", "b=2"]);
        assert_eq!(news(shown.update(topics(&[("b", "3"), ("c", "4")]))), ["a=", "b=3", "c=4"]);
        assert_eq!(news(shown.update(topics(&[("b", "3"), ("c", "4")]))), Vec::<String>::new());
    }
}

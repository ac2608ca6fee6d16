//! Which topics cross a bridge, and what they are called on the other side.
//!
//! Pure. The first line of the configuration that matches counts, in each direction by itself (Mosquitto's `bridge__remap_topic_*`).

use crate::codec::QoS;
use crate::config::{BridgeDirection, BridgeTopic};
use crate::topic;

/// See the module's page.
#[derive(Debug)]
pub(super) struct Topics(Vec<Line>);

#[derive(Debug)]
struct Line {
    direction: BridgeDirection,
    qos: QoS,
    local: Side,
    remote: Side,
}

#[derive(Debug)]
struct Side {
    prefix: Box<str>,
    filter: Box<str>,
}

/// A filter that is subscribed to on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted<'a> {
    pub(super) filter: &'a str,
    pub(super) qos: QoS,
}

impl Topics {
    pub(super) fn new(topics: &[BridgeTopic]) -> Self {
        let line = |topic: &BridgeTopic| Line {
            direction: topic.direction,
            // The configuration has looked at it.
            qos: QoS::try_from(topic.qos).unwrap_or(QoS::AtMostOnce),
            local: Side { prefix: topic.local_prefix.as_str().into(), filter: topic.local().into() },
            remote: Side { prefix: topic.remote_prefix.as_str().into(), filter: topic.remote().into() },
        };
        Self(topics.iter().map(line).collect())
    }

    /// What is subscribed to here, each filter once.
    pub(super) fn local(&self) -> Vec<Wanted<'_>> {
        once(
            self.0.iter().filter(|line| line.direction.goes_out()).map(|line| Wanted { filter: &line.local.filter, qos: line.qos }),
        )
    }

    /// What is subscribed to there, each filter once.
    pub(super) fn remote(&self) -> Vec<Wanted<'_>> {
        once(
            self.0
                .iter()
                .filter(|line| line.direction.comes_in())
                .map(|line| Wanted { filter: &line.remote.filter, qos: line.qos }),
        )
    }

    /// What only goes out: filters that are not subscribed to there, but may have been.
    pub(super) fn remote_unwanted(&self) -> Vec<&str> {
        let wanted = self.remote();
        let only_out = self.0.iter().filter(|line| !line.direction.comes_in()).map(|line| &*line.remote.filter);
        let mut all: Vec<&str> = only_out.filter(|filter| wanted.iter().all(|one| one.filter != *filter)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether something goes both ways.
    pub(super) fn have_both(&self) -> bool {
        self.0.iter().any(|line| line.direction == BridgeDirection::Both)
    }

    /// By how many bytes a topic may be longer there than here.
    pub(super) fn growth_outward(&self) -> usize {
        let grows = |line: &Line| line.remote.prefix.len().saturating_sub(line.local.prefix.len());
        self.0.iter().filter(|line| line.direction.goes_out()).map(grows).max().unwrap_or(0)
    }

    /// What `topic` of this side is called there, written over `into`. Whether it goes there at all.
    pub(super) fn outward(&self, topic: &str, into: &mut String) -> bool {
        let line = self.0.iter().find(|line| line.direction.goes_out() && topic::matches(&line.local.filter, topic));
        line.is_some_and(|line| rename(topic, &line.local, &line.remote, into))
    }

    /// What `topic` of the foreign side is called here, written over `into`. Whether it comes here at all.
    pub(super) fn inward(&self, topic: &str, into: &mut String) -> bool {
        let line = self.0.iter().find(|line| line.direction.comes_in() && topic::matches(&line.remote.filter, topic));
        line.is_some_and(|line| rename(topic, &line.remote, &line.local, into))
    }
}

fn rename(topic: &str, from: &Side, to: &Side, into: &mut String) -> bool {
    into.clear();
    // A filter that begins with the prefix matches nothing else, for it has no wildcard.
    let Some(rest) = topic.strip_prefix(&*from.prefix) else { return false };
    into.push_str(&to.prefix);
    into.push_str(rest);
    topic::check_name(into).is_ok()
}

/// Of several subscriptions to a filter the one with the highest QoS.
fn once<'a>(all: impl Iterator<Item = Wanted<'a>>) -> Vec<Wanted<'a>> {
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|one| (one.filter, std::cmp::Reverse(one.qos)));
    all.dedup_by_key(|one| one.filter);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics(lines: &[&str]) -> Topics {
        Topics::new(&lines.iter().map(|line| line.parse().unwrap()).collect::<Vec<_>>())
    }

    fn out(topics: &Topics, topic: &str) -> Option<String> {
        let mut into = "rest".to_owned();
        topics.outward(topic, &mut into).then_some(into)
    }

    fn come(topics: &Topics, topic: &str) -> Option<String> {
        let mut into = "rest".to_owned();
        topics.inward(topic, &mut into).then_some(into)
    }

    #[test]
    fn prefixes_are_put_on_and_taken_off() {
        let topics = topics(&["a/# out 1 \"\" site1/", "# in 2 here/ there/", "\"\" both 0 mine/t theirs/t", "b/+ both 1 l/ r/"]);
        assert_eq!(out(&topics, "a/b").as_deref(), Some("site1/a/b"));
        assert_eq!(out(&topics, "a").as_deref(), Some("site1/a"));
        assert_eq!(out(&topics, "mine/t").as_deref(), Some("theirs/t"));
        assert_eq!(out(&topics, "l/b/x").as_deref(), Some("r/b/x"));
        assert_eq!((out(&topics, "l/b/x/y"), out(&topics, "x"), out(&topics, "here/x")), (None, None, None));
        assert_eq!(come(&topics, "there/x/y").as_deref(), Some("here/x/y"));
        assert_eq!(come(&topics, "theirs/t").as_deref(), Some("mine/t"));
        assert_eq!(come(&topics, "r/b/x").as_deref(), Some("l/b/x"));
        assert_eq!((come(&topics, "site1/a/b"), come(&topics, "there")), (None, None));
        assert_eq!(come(&topics, "there/").as_deref(), Some("here/"), "`#` matches the empty level behind its prefix");
        assert_eq!(topics.growth_outward(), 6);
    }

    #[test]
    fn what_is_renamed_to_no_topic_does_not_cross() {
        let topics = topics(&["# out 0 a/ \"\""]);
        assert_eq!(out(&topics, "a/b").as_deref(), Some("b"));
        assert_eq!(out(&topics, "a/"), None, "an empty topic");
    }

    #[test]
    fn each_side_is_subscribed_to_once_and_the_first_line_renames() {
        let topics = topics(&["a out 0", "a both 2 \"\" x/", "b in 1", "c out 1"]);
        let wanted = |all: Vec<Wanted<'_>>| all.iter().map(|one| (one.filter.to_owned(), one.qos as u8)).collect::<Vec<_>>();
        assert_eq!(wanted(topics.local()), [("a".to_owned(), 2), ("c".to_owned(), 1)]);
        assert_eq!(wanted(topics.remote()), [("b".to_owned(), 1), ("x/a".to_owned(), 2)]);
        assert_eq!(topics.remote_unwanted(), ["a", "c"]);
        assert_eq!((out(&topics, "a").as_deref(), come(&topics, "x/a").as_deref()), (Some("a"), Some("a")));
        assert!(topics.have_both());
    }
}

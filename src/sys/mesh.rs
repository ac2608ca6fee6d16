//! `$SYS/mesh`: this broker in its mesh. Drawn from what the mesh says of itself; `README.md`, "See the tree", lists the topics.

use super::Topics;
use crate::mesh::Status;
use crate::mesh::identity::check_name;
use crate::shared::{LinkRecord, LinkRole, LinkState};

/// Where events are published, a line of JSON each.
pub(super) const EVENTS: &str = "$SYS/mesh/events";

/// Every retained topic with its value.
pub(super) fn topics(status: &Status) -> Topics {
    let mut topics = Topics::new();
    let mut show = |topic: &str, value: String| topics.insert(format!("$SYS/mesh/{topic}"), value);
    let place = &status.place;
    show("name", status.mesh.clone());
    show("root/name", place.root_name.escape_debug().to_string());
    show("root/id", place.root.to_string());
    show("epoch", place.epoch.to_string());
    show("role", role(status).to_owned());
    if let Some(parent) = &place.parent {
        show("parent", parent.escape_debug().to_string());
    }
    if let Some(distance) = place.distance {
        show("distance", distance.to_string());
    }
    show("brokers", status.brokers.to_string());
    show("changes", status.changes.to_string());
    for (cause, count) in &status.changes_by_cause {
        show(&format!("changes/{}", cause.replace(' ', "_")), count.to_string());
    }
    show("last_change/at", status.last_change.at.to_string());
    show("last_change/cause", status.last_change.cause.clone());
    show("healing/count", status.healings.to_string());
    if status.healings > 0 {
        show("healing/last_ms", format!("{:.1}", status.healing_last.as_secs_f64() * 1_000.0));
    }
    for link in &status.links {
        let peer = peer(link);
        show(&format!("links/{peer}/state"), link.state.as_str().to_owned());
        show(&format!("links/{peer}/role"), link.role.as_str().to_owned());
        show(&format!("links/{peer}/cost"), link.cost.to_string());
        show(&format!("links/{peer}/rtt_us"), link.rtt_us.to_string());
        show(&format!("links/{peer}/loss"), link.loss.to_string());
    }
    topics
}

/// What this broker is in its tree.
fn role(status: &Status) -> &'static str {
    let carries = |link: &LinkRecord| link.role == LinkRole::Designated && link.state == LinkState::Forwarding;
    if status.place.is_root {
        "root"
    } else if status.place.distance.is_none() {
        "detached"
    } else if status.links.iter().any(carries) {
        "branch"
    } else {
        "leaf"
    }
}

/// A link's level in its topics: the name of its peer, its id if the name is none.
fn peer(link: &LinkRecord) -> String {
    if check_name(&link.name).is_ok() { link.name.clone() } else { link.peer.to_string() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ids::BrokerId;
    use crate::mesh::Place;
    use crate::shared::LastChange;

    fn link(name: &str, role: LinkRole, state: LinkState) -> LinkRecord {
        LinkRecord { peer: BrokerId(10), name: name.to_owned(), address: None, role, state, cost: 2, rtt_us: 310, loss: 0.25 }
    }

    fn status() -> Status {
        Status {
            mesh: "m".to_owned(),
            place: Place {
                root: BrokerId(1),
                root_name: "a".to_owned(),
                epoch: 3,
                is_root: false,
                parent: Some("b".to_owned()),
                distance: Some(4),
            },
            links: vec![link("b", LinkRole::Root, LinkState::Forwarding)],
            brokers: 3,
            changes: 5,
            changes_by_cause: vec![("better tree", 4), ("parent lost", 1)],
            last_change: LastChange { at: 1_700_000_000_000, cause: "parent lost".to_owned() },
            healings: 1,
            healing_last: Duration::from_micros(12_300),
        }
    }

    #[test]
    fn a_leaf_shows_all_of_this() {
        let shown: Vec<_> = topics(&status()).into_iter().map(|(topic, value)| format!("{topic} {value}")).collect();
        let expected = [
            "$SYS/mesh/brokers 3",
            "$SYS/mesh/changes 5",
            "$SYS/mesh/changes/better_tree 4",
            "$SYS/mesh/changes/parent_lost 1",
            "$SYS/mesh/distance 4",
            "$SYS/mesh/epoch 3",
            "$SYS/mesh/healing/count 1",
            "$SYS/mesh/healing/last_ms 12.3",
            "$SYS/mesh/last_change/at 1700000000000",
            "$SYS/mesh/last_change/cause parent lost",
            "$SYS/mesh/links/b/cost 2",
            "$SYS/mesh/links/b/loss 0.25",
            "$SYS/mesh/links/b/role root",
            "$SYS/mesh/links/b/rtt_us 310",
            "$SYS/mesh/links/b/state forwarding",
            "$SYS/mesh/name m",
            "$SYS/mesh/parent b",
            "$SYS/mesh/role leaf",
            "$SYS/mesh/root/id 0000000000000001",
            "$SYS/mesh/root/name a",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_root_has_no_parent_and_a_name_that_is_none_is_no_level() {
        let mut status = status();
        status.links = vec![link("../#", LinkRole::Designated, LinkState::Forwarding)];
        assert_eq!(topics(&status)["$SYS/mesh/role"], "branch");
        assert_eq!(topics(&status)["$SYS/mesh/links/000000000000000a/role"], "designated");
        (status.place.is_root, status.place.parent, status.place.distance) = (true, None, Some(0));
        assert_eq!(topics(&status)["$SYS/mesh/role"], "root");
        assert!(!topics(&status).contains_key("$SYS/mesh/parent"));
        (status.place.is_root, status.place.distance) = (false, None);
        assert_eq!(topics(&status)["$SYS/mesh/role"], "detached");
    }
}

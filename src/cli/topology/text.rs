//! A topology in characters: a tree for a terminal of 80 columns.

use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::tree::Tree;
use crate::shared::{LinkRole, LinkState, Topology, TopologyLink};

/// No line is longer, whatever names say; the whole of them is in the other formats.
const COLUMNS: usize = 80;
/// Room for a name behind its branches, and for each of two names on a line.
const NAME_COLUMNS: usize = 40;
const END_COLUMNS: usize = 22;
/// Branches of a tree that is too deep to be drawn whole are cut on the left.
const BRANCH_COLUMNS: usize = 30;

/// A tree for the terminal.
pub(crate) fn as_text(topology: &Topology) -> String {
    let tree = Tree::of(topology);
    let mut lines = headline(topology);
    lines.push(String::new());
    let mut rows = Vec::new();
    for (place, node) in tree.nodes.iter().enumerate() {
        let broker = node.broker;
        let name = cut(&format!("{}{}", branches(&tree, place), clean(&broker.name)), NAME_COLUMNS);
        rows.push(match node.above {
            Some((_, link)) => (name, measures(link)),
            None => (name, format!("root, priority {}, capacity {}", broker.priority, broker.capacity)),
        });
    }
    rows.extend(tree.apart.iter().map(|broker| (cut(&clean(&broker.name), NAME_COLUMNS), "not joined yet".to_owned())));
    lines.extend(in_columns(rows));
    // What is in reserve first, what is lost below it.
    let (lost, spare): (Vec<_>, Vec<_>) = tree.others.iter().copied().partition(|link| link.state == LinkState::Down);
    let rows: Vec<_> = spare.into_iter().chain(lost).map(beside).collect();
    if !rows.is_empty() {
        lines.push(String::new());
    }
    lines.extend(in_columns(rows));
    lines.iter().map(|line| cut(line, COLUMNS)).collect::<Vec<_>>().join("\n")
}

/// The mesh in three lines.
pub(super) fn headline(topology: &Topology) -> Vec<String> {
    let count = |state| topology.links.iter().filter(|link| link.state == state).count();
    vec![
        format!("mesh {}, root {}, epoch {}", clean(&topology.mesh), clean(&topology.root), topology.epoch),
        format!(
            "{} brokers; {} links: {} forwarding, {} blocked, {} down",
            topology.brokers.len(),
            topology.links.len(),
            count(LinkState::Forwarding),
            count(LinkState::Blocked),
            count(LinkState::Down)
        ),
        format!(
            "{} changes, the last {}: {}",
            topology.changes,
            instant(topology.last_change.at),
            clean(&topology.last_change.cause)
        ),
    ]
}

/// A link that is no branch of the tree, and why it is none.
fn beside(link: &TopologyLink) -> (String, String) {
    let [a, b] = [&link.a, &link.b].map(|name| cut(&clean(name), END_COLUMNS));
    let held = match (link.role_a, link.role_b) {
        (LinkRole::Alternate, LinkRole::Alternate) => ", alternate at both ends".to_owned(),
        (LinkRole::Alternate, _) => format!(", alternate at {a}"),
        (_, LinkRole::Alternate) => format!(", alternate at {b}"),
        _ => String::new(),
    };
    let measured = if link.state == LinkState::Down { "lost".to_owned() } else { measures(link) + &held };
    (format!("{:<11}{a} - {b}", link.state.as_str()), measured)
}

/// Rows of two columns, the second one beginning at one place.
fn in_columns(rows: Vec<(String, String)>) -> impl Iterator<Item = String> {
    let width = rows.iter().map(|(first, _)| first.chars().count()).max().unwrap_or_default();
    rows.into_iter().map(move |(first, second)| format!("{first:<width$}  {second}"))
}

/// The lines that lead from the root's column to a name.
fn branches(tree: &Tree<'_>, place: usize) -> String {
    let above = |place: usize| tree.nodes.get(place).and_then(|node| node.above).map(|(above, _)| above);
    let Some(mut at) = above(place) else { return String::new() };
    let mut parts = vec![if tree.is_last_child(place) { "└─ " } else { "├─ " }];
    while let Some(next) = above(at) {
        parts.push(if tree.is_last_child(at) { "   " } else { "│  " });
        at = next;
    }
    parts.reverse();
    let drawn = parts.concat();
    let excess = drawn.chars().count().saturating_sub(BRANCH_COLUMNS);
    if excess == 0 { drawn } else { format!("…{}", drawn.chars().skip(excess + 1).collect::<String>()) }
}

/// Cost, round trip and, where there is any, loss.
pub(super) fn measures(link: &TopologyLink) -> String {
    let loss = if link.loss > 0.0 { format!(", {:.1} % lost", link.loss * 100.0) } else { String::new() };
    format!("cost {}, {}{loss}", link.cost, milliseconds(Duration::from_micros(link.rtt_us)))
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}

/// Names come from other machines: nothing in them may move the cursor or break out of a string.
pub(super) fn clean(text: &str) -> String {
    text.escape_debug().to_string()
}

/// At most so many characters.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

fn instant(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1_000).ok();
    let instant = seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    instant.and_then(|instant| instant.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{unix_ms} ms"))
}

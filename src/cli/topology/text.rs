//! A topology in characters: a tree for a terminal of 80 columns.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::tree::Tree;
use crate::cli::drawing::{COLUMNS, branches, clean, cut, in_columns, milliseconds};
use crate::shared::{LinkRole, LinkState, Topology, TopologyLink};

/// Room for a name behind its branches, and for each of two names on a line.
const NAME_COLUMNS: usize = 40;
const END_COLUMNS: usize = 22;

/// A tree for the terminal.
pub(crate) fn as_text(topology: &Topology) -> String {
    let tree = Tree::of(topology);
    let mut lines = headline(topology);
    lines.push(String::new());
    let above: Vec<_> = tree.nodes.iter().map(|node| node.above.map(|(place, _)| place)).collect();
    let mut rows = Vec::new();
    for (place, node) in tree.nodes.iter().enumerate() {
        let broker = node.broker;
        let name = cut(&format!("{}{}", branches(&above, place), clean(&broker.name)), NAME_COLUMNS);
        rows.push(match node.above {
            Some((_, link)) => (name, measures(link)),
            None => (name, format!("root, priority {}, capacity {}", broker.priority, broker.capacity)),
        });
    }
    rows.extend(tree.apart.iter().map(|broker| (cut(&clean(&broker.name), NAME_COLUMNS), "not joined yet".to_owned())));
    lines.extend(in_columns(rows.into_iter().map(|(first, second)| [first, second])));
    // What is in reserve first, what is lost below it.
    let (lost, spare): (Vec<_>, Vec<_>) = tree.others.iter().copied().partition(|link| link.state == LinkState::Down);
    let rows: Vec<_> = spare.into_iter().chain(lost).map(beside).collect();
    if !rows.is_empty() {
        lines.push(String::new());
    }
    lines.extend(in_columns(rows.into_iter().map(|(first, second)| [first, second])));
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

/// Cost, round trip and, where there is any, loss.
pub(super) fn measures(link: &TopologyLink) -> String {
    let loss = if link.loss > 0.0 { format!(", {:.1} % lost", link.loss * 100.0) } else { String::new() };
    format!("cost {}, {}{loss}", link.cost, milliseconds(link.rtt_us))
}

fn instant(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1_000).ok();
    let instant = seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    instant.and_then(|instant| instant.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{unix_ms} ms"))
}

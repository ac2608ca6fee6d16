//! A topology in characters: a tree for the terminal, and Graphviz.

use std::fmt::Write;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::tree::Tree;
use crate::shared::{LinkState, Topology, TopologyLink};

/// A tree for the terminal.
pub(crate) fn as_text(topology: &Topology) -> String {
    let tree = Tree::of(topology);
    let mut text = format!(
        "mesh {}, root {}: {} brokers, {} links; tree changes: {}, last {}: {}",
        clean(&topology.mesh),
        clean(&topology.root),
        topology.brokers.len(),
        topology.links.len(),
        topology.changes,
        instant(topology.last_change.at),
        clean(&topology.last_change.cause)
    );
    // Writing to a string never fails.
    for (place, node) in tree.nodes.iter().enumerate() {
        let name = clean(&node.broker.name);
        let _ = match node.above {
            Some((_, link)) => write!(text, "\n{}{name}  {}", branches(&tree, place), measures(link)),
            None => write!(text, "\n{name}  root, priority {}, capacity {}", node.broker.priority, node.broker.capacity),
        };
    }
    for broker in &tree.apart {
        let _ = write!(text, "\n{}  not joined yet", clean(&broker.name));
    }
    for link in &tree.others {
        let state = match link.state {
            LinkState::Forwarding => "forwarding",
            LinkState::Blocked => "in reserve",
            LinkState::Down => "down",
        };
        let _ = write!(text, "\n{state}: {} - {}  {}", clean(&link.a), clean(&link.b), measures(link));
    }
    text
}

/// The lines that lead from the root's column to a name.
fn branches(tree: &Tree<'_>, place: usize) -> String {
    let mut parts = vec![if tree.is_last_child(place) { "└─ " } else { "├─ " }];
    let above = |place: usize| tree.nodes.get(place).and_then(|node| node.above).map(|(above, _)| above);
    let mut at = above(place);
    while let Some(place) = at.filter(|place| above(*place).is_some()) {
        parts.push(if tree.is_last_child(place) { "   " } else { "│  " });
        at = above(place);
    }
    parts.reverse();
    parts.concat()
}

/// For Graphviz: `topology --format dot | dot -Tpng`.
pub(super) fn as_dot(topology: &Topology) -> String {
    let mut text = format!("graph {} {{\n  node [shape=box, style=rounded];\n", quoted(&topology.mesh));
    for broker in &topology.brokers {
        let root = if broker.name == topology.root { " [style=\"rounded,bold\"]" } else { "" };
        let _ = writeln!(text, "  {}{root};", quoted(&broker.name));
    }
    for link in &topology.links {
        let style = match link.state {
            LinkState::Forwarding => "solid",
            LinkState::Blocked => "dashed",
            LinkState::Down => "dotted",
        };
        let label = quoted(&measures(link));
        let _ = writeln!(text, "  {} -- {} [style={style}, label={label}];", quoted(&link.a), quoted(&link.b));
    }
    text + "}"
}

/// Cost, round trip and, where there is any, loss.
pub(super) fn measures(link: &TopologyLink) -> String {
    let loss = if link.loss > 0.0 { format!(", {:.1} % lost", link.loss * 100.0) } else { String::new() };
    format!("cost {}, {}{loss}", link.cost, milliseconds(Duration::from_micros(link.rtt_us)))
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}

/// Names come from other machines: nothing in them may move the cursor.
fn clean(text: &str) -> String {
    text.escape_debug().to_string()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", clean(text))
}

fn instant(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1_000).ok();
    let instant = seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    instant.and_then(|instant| instant.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{unix_ms} ms"))
}

//! A topology for Graphviz: `topology --format dot | dot -Tpng`. The tree makes the ranks, the root on top; other links do not pull at it.

use std::fmt::Write;

use super::text::measures;
use super::tree::Tree;
use crate::cli::drawing::clean;
use crate::shared::{LinkState, Topology, TopologyLink};

/// The graph.
pub(super) fn as_dot(topology: &Topology) -> String {
    let tree = Tree::of(topology);
    let mut text = format!("graph {} {{\n  node [shape=box, style=rounded];\n", quoted(&topology.mesh));
    // Writing to a string never fails.
    for broker in &topology.brokers {
        let root = if broker.name == topology.root { " [style=\"rounded,bold\"]" } else { "" };
        let _ = writeln!(text, "  {}{root};", quoted(&broker.name));
    }
    for node in &tree.nodes {
        let parent = node.above.and_then(|(above, link)| Some((tree.nodes.get(above)?.broker, link)));
        if let Some((parent, link)) = parent {
            let _ = writeln!(text, "  {};", edge(&parent.name, &node.broker.name, "color=\"#1166aa\", penwidth=2", link));
        }
    }
    for link in &tree.others {
        let style = match link.state {
            LinkState::Forwarding => "color=\"#1166aa\"",
            LinkState::Blocked => "color=\"#777777\", style=dashed",
            LinkState::Down => "color=\"#bb2222\", style=dotted",
        };
        let _ = writeln!(text, "  {};", edge(&link.a, &link.b, &format!("{style}, constraint=false"), link));
    }
    text + "}"
}

fn edge(from: &str, to: &str, style: &str, link: &TopologyLink) -> String {
    format!("{} -- {} [{style}, fontsize=10, label={}]", quoted(from), quoted(to), quoted(&measures(link)))
}

/// A string of the DOT language, which knows `\"` only; that `\` stands for itself in a label too, it is doubled there.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\'' => out.push('\''),
            '\\' => out.push_str("\\\\"),
            letter => out.push_str(&clean(letter.encode_utf8(&mut [0; 4])).replace('\\', "\\\\")),
        }
    }
    out + "\""
}

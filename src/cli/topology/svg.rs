//! A topology as a picture: the root on top, each broker over the middle of those below it, links in reserve dashed.

use std::fmt::Write;

use super::text::measures;
use super::tree::Tree;
use crate::shared::{LinkState, Topology, TopologyLink};

/// Pixels from one leaf to the next, and from one depth to the next.
const STEP: (usize, usize) = (150, 110);
const BOX: (usize, usize) = (120, 36);
const MARGIN: usize = 30;

/// The picture.
pub(super) fn as_svg(topology: &Topology) -> String {
    let tree = Tree::of(topology);
    let placed = place(&tree);
    let position = |name: &str| placed.iter().find(|(placed, ..)| *placed == name).map(|(_, x, y)| (*x, *y));
    let width = placed.iter().map(|(_, x, _)| x + BOX.0 / 2).max().unwrap_or_default() + MARGIN;
    let height = placed.iter().map(|(_, _, y)| y + BOX.1 / 2).max().unwrap_or_default() + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\" text-anchor=\"middle\">\n<title>{}</title>\n",
        escaped(&topology.mesh)
    );
    // Writing to a string never fails. Links first: boxes lie over their ends.
    for link in &topology.links {
        if let (Some(a), Some(b)) = (position(&link.a), position(&link.b)) {
            draw_link(&mut svg, link, a, b);
        }
    }
    for (name, x, y) in &placed {
        let stroke = if *name == topology.root { 3 } else { 1 };
        let (left, top) = (x - BOX.0 / 2, y - BOX.1 / 2);
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"#fff\" stroke=\"#234\" stroke-width=\"{stroke}\"/>\
             <text x=\"{x}\" y=\"{}\">{}</text>",
            BOX.0,
            BOX.1,
            y + 5,
            escaped(name)
        );
    }
    svg + "</svg>"
}

fn draw_link(svg: &mut String, link: &TopologyLink, a: (usize, usize), b: (usize, usize)) {
    let style = match link.state {
        LinkState::Forwarding => "stroke=\"#16a\" stroke-width=\"2\"",
        LinkState::Blocked => "stroke=\"#888\" stroke-dasharray=\"6 4\"",
        LinkState::Down => "stroke=\"#b22\" stroke-dasharray=\"2 4\"",
    };
    let middle = ((a.0 + b.0) / 2, (a.1 + b.1) / 2);
    // A link between brokers of one depth bends below them, so that it does not run through those between.
    let bend = if a.1 == b.1 { (middle.0, middle.1 + STEP.1 / 2) } else { middle };
    let label = ((middle.0 + bend.0) / 2, (middle.1 + bend.1) / 2);
    let _ = writeln!(
        svg,
        "<path d=\"M{} {} Q{} {} {} {}\" fill=\"none\" {style}/><text x=\"{}\" y=\"{}\" font-size=\"10\" fill=\"#555\">{}</text>",
        a.0,
        a.1,
        bend.0,
        bend.1,
        b.0,
        b.1,
        label.0,
        label.1,
        escaped(&measures(link))
    );
}

/// Every broker with the middle of its box.
fn place<'a>(tree: &Tree<'a>) -> Vec<(&'a str, usize, usize)> {
    // Leaves stand side by side in drawing order; from the last broker to the first, so that all below one are placed before it.
    let mut columns: Vec<Option<(usize, usize)>> = vec![None; tree.nodes.len()];
    let mut leaves = 0;
    for place in (0..tree.nodes.len()).rev() {
        let span = columns.get(place).copied().flatten().unwrap_or_else(|| {
            leaves += 1;
            (leaves, leaves)
        });
        if let Some(slot) = columns.get_mut(place) {
            *slot = Some(span);
        }
        let above = tree.nodes.get(place).and_then(|node| node.above).and_then(|(above, _)| columns.get_mut(above));
        if let Some(above) = above {
            *above = Some(above.map_or(span, |(least, most)| (least.min(span.0), most.max(span.1))));
        }
    }
    let x_of = |(least, most): (usize, usize)| MARGIN + BOX.0 / 2 + (2 * leaves - least - most) * STEP.0 / 2;
    let y_of = |depth: usize| MARGIN + BOX.1 / 2 + depth * STEP.1;
    let mut placed: Vec<_> = tree
        .nodes
        .iter()
        .zip(&columns)
        .map(|(node, span)| (node.broker.name.as_str(), x_of(span.unwrap_or((leaves, leaves))), y_of(node.depth)))
        .collect();
    let bottom = tree.nodes.iter().map(|node| node.depth + 1).max().unwrap_or_default();
    let apart = tree.apart.iter().enumerate();
    placed.extend(apart.map(|(place, broker)| (broker.name.as_str(), MARGIN + BOX.0 / 2 + place * STEP.0, y_of(bottom))));
    placed
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            letter if letter.is_control() => out.push('?'),
            letter => out.push(letter),
        }
    }
    out
}

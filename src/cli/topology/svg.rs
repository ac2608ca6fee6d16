//! A topology as a picture: the root on top, each broker over the middle of those below it, links in reserve dashed. What a link is and
//! measures stands beside it, the rest of it in the tooltip.

use std::fmt::Write;

use super::text::{headline, measures};
use super::tree::Tree;
use crate::cli::drawing::{clean, cut};
use crate::shared::{LinkState, Topology, TopologyLink};

/// Pixels.
const BOX_HEIGHT: usize = 36;
const BOX_WIDTH_MIN: usize = 96;
/// Between boxes side by side, and from one depth to the next.
const GAP: usize = 44;
const DEPTH: usize = 130;
const MARGIN: usize = 24;
const LINE: usize = 18;
const LETTER: usize = 8;
/// Letters of a name in its box, and of a line above the drawing.
const NAME_LETTERS: usize = 24;
const HEAD_LETTERS: usize = 80;

/// The picture.
pub(super) fn as_svg(topology: &Topology) -> String {
    let picture = Picture::of(topology);
    let head: Vec<_> = headline(topology).iter().map(|line| cut(line, HEAD_LETTERS)).collect();
    let (width, height) = picture.size(&head);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<title>{}</title>\n\
         <style>.l{{font-size:10px;fill:#345;text-anchor:middle;paint-order:stroke;stroke:#fff;stroke-width:3px}}\
         .n{{text-anchor:middle;fill:#123}}</style>\n",
        escaped(&topology.mesh)
    );
    // Writing to a string never fails. Links first: boxes lie over their ends.
    let _ = writeln!(svg, "<g fill=\"#fff\"><polygon points=\"0,0 {width},0 {width},{height} 0,{height}\"/></g>");
    for (line, text) in head.iter().enumerate() {
        let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{}\" fill=\"#123\">{}</text>", MARGIN + line * LINE, escaped(text));
    }
    let mut labels = String::new();
    for link in &topology.links {
        if let (Some(a), Some(b)) = (picture.position(&link.a), picture.position(&link.b)) {
            picture.draw_link(&mut svg, &mut labels, link, a, b);
        }
    }
    for (name, x, y) in &picture.places {
        let stroke = if *name == topology.root { 3 } else { 1 };
        let (left, top) = (x - picture.box_width / 2, y - BOX_HEIGHT / 2);
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{BOX_HEIGHT}\" rx=\"6\" fill=\"#eef5fb\" stroke=\"#234\" \
             stroke-width=\"{stroke}\"/><text class=\"n\" x=\"{x}\" y=\"{}\">{}</text>",
            picture.box_width,
            y + 5,
            escaped(&shortened(name))
        );
    }
    let gone = topology.links.iter().filter(|link| picture.position(&link.a).is_none() || picture.position(&link.b).is_none());
    for (line, link) in gone.enumerate() {
        let text = format!("{}: {} - {}", link.state.as_str(), shortened(&link.a), shortened(&link.b));
        let y = picture.bottom() + (line + 1) * LINE;
        let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{y}\" fill=\"#b22\">{}</text>", escaped(&text));
    }
    svg + &labels + "</svg>"
}

/// Where everything is.
struct Picture<'a> {
    /// Every broker with the middle of its box.
    places: Vec<(&'a str, usize, usize)>,
    box_width: usize,
    /// Lines below the drawing.
    lost: usize,
}

impl<'a> Picture<'a> {
    fn of(topology: &'a Topology) -> Self {
        let letters = topology.brokers.iter().map(|broker| shortened(&broker.name).chars().count()).max().unwrap_or_default();
        let box_width = BOX_WIDTH_MIN.max(letters * LETTER + 2 * LETTER);
        let tree = Tree::of(topology);
        let mut picture = Self { places: place(&tree, box_width), box_width, lost: 0 };
        let drawn = |name: &str| picture.position(name).is_some();
        picture.lost = topology.links.iter().filter(|link| !drawn(&link.a) || !drawn(&link.b)).count();
        picture
    }

    fn position(&self, name: &str) -> Option<(usize, usize)> {
        self.places.iter().find(|(placed, ..)| *placed == name).map(|(_, x, y)| (*x, *y))
    }

    /// Below the lowest boxes and the links that bend below them.
    fn bottom(&self) -> usize {
        let lowest = self.places.iter().map(|(_, _, y)| *y).max().unwrap_or(MARGIN);
        let row = self.places.iter().filter(|(_, _, y)| *y == lowest).map(|(_, x, _)| *x);
        let span = row.clone().max().unwrap_or_default() - row.min().unwrap_or_default();
        lowest + BOX_HEIGHT / 2 + self.sag(span) / 2
    }

    /// How deep a link between brokers of one depth bends: those between them are passed below.
    fn sag(&self, distance: usize) -> usize {
        let columns = distance / (self.box_width + GAP);
        if distance == 0 { 0 } else { BOX_HEIGHT + columns * 2 * LINE }
    }

    fn size(&self, head: &[String]) -> (usize, usize) {
        let right = self.places.iter().map(|(_, x, _)| x + self.box_width / 2).max().unwrap_or_default();
        let text = head.iter().map(|line| line.chars().count() * LETTER).max().unwrap_or_default();
        (right.max(text) + MARGIN, self.bottom() + self.lost * LINE + MARGIN)
    }

    fn draw_link(&self, svg: &mut String, labels: &mut String, link: &TopologyLink, a: (usize, usize), b: (usize, usize)) {
        let style = match link.state {
            LinkState::Forwarding => "stroke=\"#16a\" stroke-width=\"3\"",
            LinkState::Blocked => "stroke=\"#888\" stroke-dasharray=\"6 4\"",
            LinkState::Down => "stroke=\"#b22\" stroke-dasharray=\"2 4\"",
        };
        let middle = ((a.0 + b.0) / 2, (a.1 + b.1) / 2);
        let bend = if a.1 == b.1 { (middle.0, middle.1 + self.sag(a.0.abs_diff(b.0))) } else { middle };
        // A branch's label stands near the lower end, where branches have parted; that of a link in reserve near the upper one, away from
        // the branch that it meets; that of a bent link where it bends deepest.
        let (upper, lower) = if a.1 < b.1 { (a, b) } else { (b, a) };
        let label = match link.state {
            _ if a.1 == b.1 => (middle.0, (middle.1 + bend.1) / 2),
            LinkState::Forwarding => ((upper.0 + 3 * lower.0) / 4, (upper.1 + 2 * lower.1) / 3),
            LinkState::Blocked | LinkState::Down => ((3 * upper.0 + lower.0) / 4, (2 * upper.1 + lower.1) / 3),
        };
        let measured = measures(link);
        let tooltip = format!(
            "{} - {}: {}, {} at {}, {} at {}, {measured}",
            link.a,
            link.b,
            link.state.as_str(),
            link.role_a.as_str(),
            link.a,
            link.role_b.as_str(),
            link.b
        );
        let _ = writeln!(
            svg,
            "<path d=\"M{} {} Q{} {} {} {}\" fill=\"none\" {style}><title>{}</title></path>",
            a.0,
            a.1,
            bend.0,
            bend.1,
            b.0,
            b.1,
            escaped(&tooltip)
        );
        let _ = writeln!(labels, "<text class=\"l\" x=\"{}\" y=\"{}\">{}</text>", label.0, label.1 + 4, escaped(&measured));
    }
}

/// Every broker with the middle of its box.
fn place<'a>(tree: &Tree<'a>, box_width: usize) -> Vec<(&'a str, usize, usize)> {
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
    let step = box_width + GAP;
    let left = MARGIN + box_width / 2;
    let x_of = |(least, most): (usize, usize)| left + (2 * leaves - least - most) * step / 2;
    let y_of = |depth: usize| MARGIN + 3 * LINE + BOX_HEIGHT + depth * DEPTH;
    let mut placed: Vec<_> = tree
        .nodes
        .iter()
        .zip(&columns)
        .map(|(node, span)| (node.broker.name.as_str(), x_of(span.unwrap_or((leaves, leaves))), y_of(node.depth)))
        .collect();
    let bottom = tree.nodes.iter().map(|node| node.depth + 1).max().unwrap_or_default();
    let apart = tree.apart.iter().enumerate();
    placed.extend(apart.map(|(place, broker)| (broker.name.as_str(), left + place * step, y_of(bottom))));
    placed
}

/// A name as there is room for it.
fn shortened(name: &str) -> String {
    cut(&clean(name), NAME_LETTERS)
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' | '\\' => out.push(letter),
            letter => out.push_str(&clean(letter.encode_utf8(&mut [0; 4]))),
        }
    }
    out
}

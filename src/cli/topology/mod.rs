//! `topology`: the mesh as one running broker knows it, for people, programs and drawings.

mod dot;
mod svg;
mod text;
mod tree;

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::ask::Where;
use super::output::print;
use crate::shared::Topology;

pub(super) use text::as_text;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// How to draw it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    broker: Where,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A tree for the terminal
    Text,
    /// The document of /api/v1/topology
    Json,
    /// For Graphviz
    Dot,
    /// A picture
    Svg,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let topology: Topology = arguments.broker.ask("/api/v1/topology", None::<&()>)?;
    print(&match arguments.format {
        Format::Text => text::as_text(&topology),
        Format::Json => serde_json::to_string_pretty(&topology)?,
        Format::Dot => dot::as_dot(&topology),
        Format::Svg => svg::as_svg(&topology),
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BrokerId, Incarnation};
    use crate::shared::{LastChange, LinkRole, LinkState, TopologyBroker, TopologyLink};

    fn broker(name: &str) -> TopologyBroker {
        TopologyBroker {
            name: name.to_owned(),
            id: BrokerId::derive("m", name),
            incarnation: Incarnation(1),
            priority: 32_768,
            capacity: 3,
            version: "0.1.0".to_owned(),
            parent: None,
            hops: None,
            distance: None,
        }
    }

    fn link(a: &str, b: &str, state: LinkState) -> TopologyLink {
        let (a, b) = (a.to_owned(), b.to_owned());
        TopologyLink { a, b, state, role_a: LinkRole::Root, role_b: LinkRole::Designated, cost: 2, rtt_us: 310, loss: 0.0 }
    }

    /// b is the root; a and d hang on it, c and e on a; f is not joined; c - d is in reserve.
    fn topology() -> Topology {
        let mut lossy = link("a", "b", LinkState::Forwarding);
        lossy.loss = 0.015;
        Topology {
            mesh: "m".to_owned(),
            root: "b".to_owned(),
            epoch: 3,
            brokers: ["a", "b", "c", "d", "e", "f"].map(broker).into(),
            links: vec![
                lossy,
                link("a", "c", LinkState::Forwarding),
                link("a", "e", LinkState::Forwarding),
                link("b", "d", LinkState::Forwarding),
                TopologyLink { role_a: LinkRole::Designated, role_b: LinkRole::Alternate, ..link("c", "d", LinkState::Blocked) },
                link("e", "f", LinkState::Down),
            ],
            changes: 4,
            last_change: LastChange { at: 1_700_000_000_000, cause: "root \u{1b}[31m lost".to_owned() },
        }
    }

    #[test]
    fn as_text_it_is_a_tree_and_what_is_beside_it() {
        let expected = "mesh m, root b, epoch 3\n\
                        6 brokers; 6 links: 4 forwarding, 1 blocked, 1 down\n\
                        4 changes, the last 2023-11-14T22:13:20Z: root \\u{1b}[31m lost\n\
                        \n\
                        b        root, priority 32768, capacity 3\n\
                        ├─ a     cost 2, 0.31 ms, 1.5 % lost\n\
                        │  ├─ c  cost 2, 0.31 ms\n\
                        │  └─ e  cost 2, 0.31 ms\n\
                        └─ d     cost 2, 0.31 ms\n\
                        f        not joined yet\n\
                        \n\
                        blocked    c - d  cost 2, 0.31 ms, alternate at d\n\
                        down       e - f  lost";
        assert_eq!(text::as_text(&topology()), expected);
    }

    #[test]
    fn for_graphviz_every_broker_and_link_is_named_once() {
        let dot = dot::as_dot(&topology());
        assert_eq!(dot.lines().count(), 1 + 1 + 6 + 6 + 1);
        assert!(dot.contains("  \"b\" [style=\"rounded,bold\"];\n"), "{dot}");
        // From parent to child, so that the root is on top; what is no branch does not pull.
        assert!(dot.contains("  \"b\" -- \"a\" [color=\"#1166aa\", penwidth=2, "), "{dot}");
        let spare =
            "  \"c\" -- \"d\" [color=\"#777777\", style=dashed, constraint=false, fontsize=10, label=\"cost 2, 0.31 ms\"];\n";
        assert!(dot.contains(spare), "{dot}");
    }

    #[test]
    fn as_a_picture_no_two_brokers_share_a_place() {
        let mut topology = topology();
        topology.mesh = "<m & \"n\">".to_owned();
        let svg = svg::as_svg(&topology);
        let boxes: Vec<_> =
            svg.lines().filter(|line| line.starts_with("<rect")).filter_map(|line| line.split(" width").next()).collect();
        let mut distinct = boxes.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!((boxes.len(), distinct.len()), (6, 6), "{svg}");
        assert_eq!(svg.lines().filter(|line| line.starts_with("<path")).count(), 6);
        assert!(svg.contains("<title>c - d: blocked, designated at c, alternate at d, cost 2, 0.31 ms</title>"), "{svg}");
        assert!(svg.contains("<title>&lt;m &amp; &quot;n&quot;&gt;</title>"), "{svg}");
    }

    /// Names come from other machines.
    #[test]
    fn names_break_out_of_no_format() {
        let mut topology = topology();
        let evil = "\"];\\ </svg>&'\n\u{1b}\u{202e}".to_owned() + &"x".repeat(90);
        for name in topology.brokers.iter_mut().map(|broker| &mut broker.name) {
            *name = name.replace('a', &evil);
        }
        for link in &mut topology.links {
            (link.a, link.b) = (link.a.replace('a', &evil), link.b.replace('a', &evil));
        }
        let (text, dot, svg) = (text::as_text(&topology), dot::as_dot(&topology), svg::as_svg(&topology));
        for drawn in [&text, &dot, &svg] {
            assert!(!drawn.chars().any(|letter| letter.is_control() && letter != '\n' || letter == '\u{202e}'), "{drawn}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.lines().count(), text::as_text(&self::topology()).lines().count());
        assert!(dot.contains(r#""\"];\\ </svg>&'\\n\\u{1b}\\u{202e}xxx"#), "{dot}");
        assert_eq!((svg.matches("</svg>").count(), svg.matches("&lt;/svg&gt;&amp;").count() > 0), (1, true), "{svg}");
    }

    #[test]
    fn a_deep_tree_stays_within_the_terminal() {
        let mut topology = topology();
        let names: Vec<_> = (0..64).map(|place| format!("broker-{place}")).collect();
        topology.brokers = names.iter().map(|name| broker(name)).collect();
        topology.links = names.windows(2).map(|pair| link(&pair[0], &pair[1], LinkState::Forwarding)).collect();
        topology.root.clone_from(&names[0]);
        let text = text::as_text(&topology);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("└─ broker-63  cost 2"), "{text}");
    }

    /// What a broker tells while the mesh is changing: links that make a cycle, a root that nobody has, a link to itself.
    #[test]
    fn an_unsettled_document_is_drawn_all_the_same() {
        let mut topology = topology();
        topology.links.extend([
            link("d", "e", LinkState::Forwarding),
            link("a", "a", LinkState::Forwarding),
            link("x", "y", LinkState::Down),
        ]);
        assert_eq!(text::as_text(&topology).lines().filter(|line| line.starts_with("forwarding")).count(), 2);
        topology.root = "nobody".to_owned();
        assert_eq!(text::as_text(&topology).matches("not joined yet").count(), 6);
        assert_eq!(svg::as_svg(&topology).matches("<rect").count(), 6);
        topology.brokers.clear();
        let svg = svg::as_svg(&topology);
        assert!(!svg.contains("<rect") && svg.contains("down: x - y"), "{svg}");
    }
}

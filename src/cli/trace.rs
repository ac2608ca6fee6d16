//! `trace`: which way a message would take from one broker through the mesh, for people and programs.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;

use super::ask::Where;
use super::drawing::{COLUMNS, branches, clean, cut, in_columns, milliseconds};
use super::output::print;
use crate::ids::BrokerId;
use crate::shared::trace::{Arrival, Audience, Trace, TraceBroker, TraceRequest, Why};

/// Room for a name behind its branches.
const NAME_COLUMNS: usize = 30;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The topic to which the message would be published
    topic: String,
    /// Its QoS
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// It is retained
    #[arg(long)]
    retain: bool,
    /// The document of /api/v1/trace
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Where,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let question = TraceRequest { topic: arguments.topic.clone(), qos: arguments.qos, retain: arguments.retain };
    let trace: Trace = arguments.broker.ask("/api/v1/trace", Some(&question))?;
    print(&if arguments.json { serde_json::to_string_pretty(&trace)? } else { as_text(&trace) })?;
    Ok(ExitCode::SUCCESS)
}

/// One line of the tree.
enum Node<'a> {
    Answered(&'a TraceBroker),
    /// A link of the tree leads to it, and it did not answer.
    Silent(&'a str),
}

/// A tree for the terminal.
fn as_text(trace: &Trace) -> String {
    let (nodes, above, drawn) = tree(trace);
    let mut rows = vec![["", "probe (link)", "comes", "subscriptions"].map(str::to_owned)];
    for (place, node) in nodes.iter().enumerate() {
        let name = |name: &str| cut(&format!("{}{}", branches(&above, place), clean(name)), NAME_COLUMNS);
        rows.push(match node {
            Node::Answered(broker) => [name(&broker.name), times(broker), comes(trace, broker), audience(broker)],
            Node::Silent(peer) => [name(peer), "does not answer".to_owned(), String::new(), String::new()],
        });
    }
    let silent = nodes.iter().filter(|node| matches!(node, Node::Silent(_))).count();
    let apart: Vec<_> = trace.silent.iter().filter(|broker| !drawn.contains(&broker.id)).collect();
    let retained = if trace.retain { ", retained" } else { "" };
    let mut lines = vec![
        format!("{}, QoS {}{retained}, published at {}", clean(&trace.topic), trace.qos, clean(&trace.origin)),
        format!("mesh {}: {} brokers answer, {} do not", clean(&trace.mesh), trace.brokers.len(), silent + apart.len()),
        String::new(),
    ];
    lines.extend(in_columns(rows));
    let beside = beside(trace).into_iter();
    let apart = apart.into_iter().map(|broker| ["silent".to_owned(), clean(&broker.name), "its way is not known".to_owned()]);
    let rows: Vec<_> = beside.chain(apart).collect();
    if !rows.is_empty() {
        lines.push(String::new());
    }
    lines.extend(in_columns(rows));
    lines.iter().map(|line| cut(line, COLUMNS)).collect::<Vec<_>>().join("\n")
}

/// The lines of the tree, the place above each, and who is in it.
fn tree(trace: &Trace) -> (Vec<Node<'_>>, Vec<Option<usize>>, BTreeSet<BrokerId>) {
    let (mut nodes, mut above) = (Vec::new(), Vec::new());
    let mut drawn: BTreeSet<BrokerId> = trace.brokers.iter().map(|broker| broker.id).collect();
    for broker in &trace.brokers {
        let is_via = |node: &Node<'_>| matches!(node, Node::Answered(other) if Some(&other.name) == broker.via.as_ref());
        above.push(nodes.iter().position(is_via));
        let place = nodes.len();
        nodes.push(Node::Answered(broker));
        for port in broker.ports.iter().filter(|port| port.why.is_way()) {
            if drawn.insert(port.id) {
                above.push(Some(place));
                nodes.push(Node::Silent(&port.peer));
            }
        }
    }
    (nodes, above, drawn)
}

fn times(broker: &TraceBroker) -> String {
    let ms = |us: u64| format!("{:.2}", us as f64 / 1_000.0);
    let link = broker.link_rtt_us.map(|us| format!(" ({})", ms(us))).unwrap_or_default();
    broker.round_trip_us.map(|us| format!("{}{link} ms", ms(us))).unwrap_or_default()
}

/// How the message comes to a broker, and why so.
fn comes(trace: &Trace, broker: &TraceBroker) -> String {
    let Some(via) = &broker.via else {
        return if trace.leaves { "published here" } else { "published here, stays" }.to_owned();
    };
    if !trace.leaves {
        return "nothing".to_owned();
    }
    let before = trace.brokers.iter().find(|other| other.name == *via);
    let port = before.and_then(|before| before.ports.iter().find(|port| port.id == broker.id));
    let why = match (before.map(|before| before.arrival), port.map(|port| port.why)) {
        // It could not come otherwise.
        (Some(came), Some(Why::Wanted | Why::Retained | Why::Rule | Why::Unknown | Why::Shared))
            if came == broker.arrival && came != Arrival::Whole =>
        {
            "as it came"
        }
        (_, Some(Why::Wanted)) => "wanted",
        (_, Some(Why::Retained)) => "retained",
        (_, Some(Why::Rule)) => "by rule",
        (_, Some(Why::Unknown)) => "interest unknown",
        (_, Some(Why::Shared)) => "if picked",
        (_, Some(Why::Unwanted)) => "unwanted",
        (_, Some(Why::Reserve | Why::HopMax) | None) => "the tree is changing",
    };
    let arrival = match broker.arrival {
        Arrival::Whole => "whole",
        Arrival::Stub => "stub",
        Arrival::Nothing => "nothing",
    };
    format!("{arrival}: {why}")
}

/// Who gets it there.
fn audience(broker: &TraceBroker) -> String {
    let Audience { subscriptions, groups, group_members } = broker.audience;
    let plain = (subscriptions > 0).then(|| subscriptions.to_string());
    let shared = (groups > 0).then(|| format!("{groups} group{} of {group_members}", if groups == 1 { "" } else { "s" }));
    let who: Vec<_> = plain.into_iter().chain(shared).collect();
    let late = match broker.arrival {
        _ if who.is_empty() => return "none".to_owned(),
        // Of a group whoever is picked gets it, here or elsewhere.
        _ if subscriptions == 0 => "",
        Arrival::Whole => "",
        Arrival::Stub => ", who ask for it",
        Arrival::Nothing => ", who miss it",
    };
    who.join(" + ") + late
}

/// Links over which the message does not go, each once.
fn beside(trace: &Trace) -> Vec<[String; 3]> {
    let mut links = BTreeSet::new();
    for (broker, port) in trace.brokers.iter().flat_map(|broker| broker.ports.iter().map(move |port| (broker, port))) {
        let ends = [&broker.name, &port.peer];
        let ends = if broker.name <= port.peer { ends } else { [ends[1], ends[0]] };
        match port.why {
            Why::Reserve => drop(links.insert((ends, "in reserve", port.rtt_us))),
            Why::HopMax => drop(links.insert((ends, "beyond hop_max", port.rtt_us))),
            _ => {}
        }
    }
    let mut shown: Vec<[String; 3]> = Vec::new();
    for ([a, b], why, rtt_us) in links {
        let ends = format!("{} - {}", clean(a), clean(b));
        // Both ends tell of it.
        if shown.last().is_none_or(|[_, last, _]| *last != ends) {
            shown.push([why.to_owned(), ends, milliseconds(rtt_us)]);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::trace::{SilentBroker, TracePort};

    fn id(name: &str) -> BrokerId {
        BrokerId::derive("m", name)
    }

    fn broker(name: &str, via: Option<&str>, arrival: Arrival, audience: [u64; 3], ports: &[(&str, Why)]) -> TraceBroker {
        let [subscriptions, groups, group_members] = audience;
        let port = |&(peer, why): &(&str, Why)| TracePort { peer: peer.to_owned(), id: id(peer), why, rtt_us: 310 };
        TraceBroker {
            name: name.to_owned(),
            id: id(name),
            via: via.map(str::to_owned),
            round_trip_us: via.map(|_| 420),
            link_rtt_us: via.map(|_| 310),
            arrival,
            audience: Audience { subscriptions, groups, group_members },
            ports: ports.iter().map(port).collect(),
        }
    }

    fn trace() -> Trace {
        use Arrival::{Stub, Whole};
        let silent = |name: &str| SilentBroker { name: name.to_owned(), id: id(name) };
        Trace {
            mesh: "m".to_owned(),
            topic: "a/\u{1b}".to_owned(),
            qos: 1,
            retain: false,
            origin: "a".to_owned(),
            leaves: true,
            brokers: vec![
                broker("a", None, Whole, [0; 3], &[("b", Why::Wanted), ("d", Why::Unwanted)]),
                broker("b", Some("a"), Whole, [1, 0, 0], &[("c", Why::Wanted), ("d", Why::Reserve)]),
                broker("c", Some("b"), Whole, [2, 1, 3], &[]),
                broker("d", Some("a"), Stub, [0; 3], &[("b", Why::Reserve), ("e", Why::Unwanted), ("f", Why::Unwanted)]),
                broker("f", Some("d"), Stub, [1, 2, 2], &[]),
            ],
            silent: vec![silent("e"), silent("g")],
        }
    }

    #[test]
    fn it_is_a_tree_that_says_how_the_message_comes_and_for_whom() {
        let expected = "a/\\u{1b}, QoS 1, published at a\n\
                        mesh m: 5 brokers answer, 2 do not\n\
                        \n\
                        \x20        probe (link)     comes           subscriptions\n\
                        a                         published here  none\n\
                        ├─ b     0.42 (0.31) ms   whole: wanted   1\n\
                        │  └─ c  0.42 (0.31) ms   whole: wanted   2 + 1 group of 3\n\
                        └─ d     0.42 (0.31) ms   stub: unwanted  none\n\
                        \x20  ├─ e  does not answer\n\
                        \x20  └─ f  0.42 (0.31) ms   stub: unwanted  1 + 2 groups of 2, who ask for it\n\
                        \n\
                        in reserve  b - d  0.31 ms\n\
                        silent      g      its way is not known";
        assert_eq!(as_text(&trace()), expected);
    }

    #[test]
    fn what_nobody_wants_goes_nowhere() {
        let mut trace = trace();
        (trace.leaves, trace.retain) = (false, true);
        trace.brokers.truncate(2);
        trace.brokers[1].arrival = Arrival::Nothing;
        trace.brokers[0].ports.truncate(1);
        let text = as_text(&trace);
        assert!(text.contains("a     ") && text.contains("published here, stays  none"), "{text}");
        assert!(text.contains("nothing                1, who miss it") && text.contains("QoS 1, retained, "), "{text}");
        (trace.leaves, trace.brokers[0].arrival) = (true, Arrival::Nothing);
        assert!(as_text(&trace).contains("nothing: as it came"));
    }

    /// Names come from other machines, and say what they like.
    #[test]
    fn no_line_leaves_the_terminal() {
        let mut trace = trace();
        let evil = "\u{1b}[2J\n\u{202e}".to_owned() + &"x".repeat(90);
        for broker in &mut trace.brokers {
            broker.name = broker.name.replace('b', &evil);
            broker.via = broker.via.as_ref().map(|name| name.replace('b', &evil));
            broker.ports.iter_mut().for_each(|port| port.peer = port.peer.replace(['b', 'e'], &evil));
        }
        let text = as_text(&trace);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n' || letter == '\u{202e}'), "{text}");
        assert_eq!(text.lines().count(), as_text(&self::trace()).lines().count());
    }
}

//! Replays a broker's record (`serve --record-stp FILE`): the real machine gets the same inputs at the same times, and what it puts out is told
//! and checked. One broker's view: that nobody hangs below himself takes the others'.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use mqtt_st_quic::ids::{BrokerId, OpenNumber, PortId, TreeId};
use mqtt_st_quic::stp::record::{self, RecordError};
use mqtt_st_quic::stp::{Input, Output, Role, Stp};

/// What the record came to.
#[derive(Debug)]
pub struct Replayed {
    pub inputs: usize,
    /// What the recorded broker was at the end of the record.
    pub stp: Stp,
    /// What broke, and when.
    pub broken: Vec<String>,
}

/// Runs a record; `tell` is given a line for each input and each output.
///
/// # Errors
/// Where the record is damaged, or newer than this program.
#[expect(clippy::disallowed_methods, reason = "virtual time has to begin somewhere; no later reading is taken")]
pub fn replay(text: &str, mut tell: impl FnMut(&str)) -> Result<Replayed, RecordError> {
    let record = record::parse(text)?;
    let start = Instant::now();
    let mut stp = Stp::new(record.config);
    let mut check = Check { own: record.config.claim.id, tree: stp.tree(), open: BTreeMap::new(), closing: BTreeMap::new() };
    let (mut outputs, mut broken) = (Vec::new(), Vec::new());
    for &(at, input) in &record.inputs {
        tell(&format!("{:12.6} {input:?}", at.as_secs_f64()));
        check.before(&input);
        stp.handle(input, start + at, &mut outputs);
        for output in outputs.drain(..) {
            tell(&format!("{:12} -> {output:?}", ""));
            check.output(at, &output, &mut broken);
        }
    }
    Ok(Replayed { inputs: record.inputs.len(), stp, broken })
}

/// What must hold of one machine, whatever its peers say.
struct Check {
    own: BrokerId,
    tree: TreeId,
    /// Lanes that are open, or were told to close, by port.
    open: BTreeMap<PortId, OpenNumber>,
    closing: BTreeMap<PortId, OpenNumber>,
}

impl Check {
    fn before(&mut self, input: &Input) {
        match input {
            Input::LinkUp { port, .. } => self.forget(|other| other.peer == port.peer),
            Input::LinkDown { port } => self.forget(|other| other == port),
            Input::LanesClosed { port, number } if self.closing.get(port) == Some(number) => {
                self.closing.remove(port);
            }
            _ => {}
        }
    }

    fn forget(&mut self, is_gone: impl Fn(&PortId) -> bool) {
        self.open.retain(|port, _| !is_gone(port));
        self.closing.retain(|port, _| !is_gone(port));
    }

    fn output(&mut self, at: Duration, output: &Output, broken: &mut Vec<String>) {
        let mut expect = |holds: bool, what: &str| {
            if !holds {
                broken.push(format!("at {:.6} s: {what}: {output:?}", at.as_secs_f64()));
            }
        };
        match *output {
            Output::OpenLanes { port, open } => {
                let is_child = |(&other, number): (&PortId, &OpenNumber)| other != port && number.child == self.own;
                expect(!self.open.iter().chain(&self.closing).any(is_child), "asks while a former port is not closed");
                expect(!self.closing.contains_key(&port), "opens what is not closed");
                let former = self.open.insert(port, open.number);
                expect(former.is_none_or(|former| former == open.number), "opens twice");
            }
            Output::AnswerOpen { port, open } => {
                expect(!self.closing.contains_key(&port), "opens what is not closed");
                expect(self.open.insert(port, open.number).is_none(), "opens twice");
            }
            Output::CloseLanes { port, number } => {
                expect(self.open.remove(&port) == Some(number), "closes what is not open");
                self.closing.insert(port, number);
            }
            Output::TreeChanged { tree, .. } => {
                expect(tree > self.tree, "the tree does not grow");
                self.tree = tree;
            }
            Output::PortState { role, forwarding, .. } => {
                expect(!forwarding || matches!(role, Role::Root | Role::Designated), "forwards");
            }
            Output::SendBpdu { .. } | Output::Refuse { .. } => {}
        }
    }
}

impl Replayed {
    /// The place of the broker at the end, in lines.
    pub fn summary(&self) -> String {
        let tree = self.stp.tree();
        let (changes, cause) = self.stp.changes();
        let mut out = format!("{} inputs; {changes} changes, the last: {}\n", self.inputs, cause.as_str());
        // Writing to a string does not fail.
        let _ = writeln!(out, "epoch {}, root {}, distance {:?}", tree.epoch, tree.root.id, self.stp.distance());
        for (port, role, forwarding) in self.stp.ports() {
            let state = if forwarding { "Forwarding" } else { "Discarding" };
            let _ = writeln!(out, "port to {} (generation {}): {role:?}, {state}", port.peer, port.generation);
        }
        for broken in &self.broken {
            let _ = writeln!(out, "BROKEN {broken}");
        }
        out
    }
}

//! Feeds the spanning tree and does what it asks for.

use std::time::Instant;

use tracing::debug;

use super::Driver;
use crate::clock;
use crate::ids::{BrokerId, PortId};
use crate::mesh::link::Link;
use crate::stp::{Input, Output};

impl Driver {
    pub(super) fn tree(&mut self, input: Input) {
        let now = clock::now();
        let way_lost = matches!(input, Input::LinkDown { port } if self.stp.root_port() == Some(port));
        if let Input::Bpdu { port, bpdu } = input {
            self.heard(port, bpdu.tree);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.record(&input, now);
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        self.stp.handle(input, now, &mut outputs);
        for output in outputs.drain(..) {
            self.output(output, now);
        }
        self.outputs = outputs;
        if let Input::Bpdu { port, .. } = input
            && let Some(entry) = self.links.get_mut(&port.peer).filter(|entry| entry.link.id == port)
        {
            let trees: Vec<_> = self.stp.trees_heard(port).collect();
            entry.words.keep(trees.into_iter());
        }
        self.look(way_lost, now);
    }

    pub(super) fn output(&mut self, output: Output, now: Instant) {
        match output {
            Output::SendBpdu { port, bpdu } => {
                debug!(?port, ?bpdu, "send");
                self.settings.local.metrics.bpdus_sent.add(1);
                self.send_bpdu(port, bpdu);
            }
            Output::OpenLanes { port, open } => self.on_link(port, |link| link.port.open(&open, now)),
            Output::AnswerOpen { port, open } => self.on_link(port, |link| link.port.answer(&open, now)),
            Output::CloseLanes { port, number } => self.on_link(port, |link| link.close_lanes(&number)),
            Output::Refuse { port, error } => self.on_link(port, |link| link.fail(error.into())),
            Output::TreeChanged { tree, is_root, cause } => {
                self.hold_claim(tree);
                let root = self.name_of(tree.root.id);
                debug!(epoch = tree.epoch, %root, is_root, cause = cause.as_str(), "tree");
            }
            Output::PortState { port, role, forwarding } => {
                if let Some(entry) = self.entry(port) {
                    (entry.role, entry.forwarding) = (role, forwarding);
                    debug!(peer = %entry.link.peer.name, ?role, forwarding, "port");
                    self.settings.local.roster.neighbours.lock().set_carries(port.peer, forwarding);
                    self.changed();
                    self.tree_link(port, forwarding);
                }
            }
        }
    }

    pub(super) fn on_link(&mut self, port: PortId, act: impl FnOnce(&Link)) {
        if let Some(entry) = self.entry(port) {
            act(&entry.link);
        }
    }

    pub(super) fn name_of(&self, broker: BrokerId) -> String {
        let local = &self.settings.local;
        if broker == local.identity.id {
            return local.name.clone();
        }
        let linked = self.links.get(&broker).map(|entry| entry.link.peer.name.clone());
        let named = || self.book.records.read().iter().find(|record| record.id == broker).map(|record| record.name.clone());
        linked.or_else(named).unwrap_or_else(|| broker.to_string())
    }
}

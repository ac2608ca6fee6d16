//! Tells neighbours who is behind whom, and the lanes what they were told; and the interest whom messages reach, and at what cost.

use std::time::{Duration, Instant};

use super::Driver;
use crate::clock;
use crate::frame::control::{ControlFrame, Members};
use crate::ids::PortId;
use crate::interest::Told;
use crate::shared::way_costs;

/// What changes together is told together: a tree that re-forms changes at many places.
const TELL_DELAY: Duration = Duration::from_millis(5);

impl Driver {
    /// A link has become a tree link, or is none any more.
    pub(super) fn tree_link(&mut self, port: PortId, is_open: bool) {
        if self.neighbourhood.set_open(port, is_open) && !is_open {
            self.on_link(port, |link| link.port.set_behind(None));
        }
        self.neighbourhood_changed();
    }

    /// A neighbour says who is behind it.
    pub(super) fn behind(&mut self, port: PortId, members: Told) {
        if self.entry(port).is_none() {
            return;
        }
        self.on_link(port, |link| link.port.set_behind(members.clone()));
        self.neighbourhood.hear(port, members);
        self.neighbourhood_changed();
    }

    pub(super) fn not_behind(&mut self, port: PortId) {
        self.neighbourhood.remove(port);
        self.neighbourhood_changed();
    }

    fn neighbourhood_changed(&mut self) {
        self.tell_behind_at.get_or_insert(clock::now() + TELL_DELAY);
        let (interest, reachable) = (self.settings.replication.interest(), self.neighbourhood.reachable());
        if let Some(echoes) = interest.echoes() {
            echoes.set_reachable(reachable.clone());
        }
        interest.set_reachable(reachable);
        self.echoes_progress();
    }

    /// Where share groups have members elsewhere: what the ways there cost. Once a second.
    pub(super) fn tell_costs(&self) {
        let interest = self.settings.replication.interest();
        if interest.has_shares() {
            interest.set_costs(self.book.look(|own, others| way_costs(own, others.iter())));
        }
    }

    /// Those who wait for what other brokers know look again.
    pub(super) fn echoes_progress(&self) {
        if let Some(echoes) = self.settings.replication.interest().echoes() {
            echoes.progress();
        }
    }

    /// Tells what has changed, if it is time.
    pub(super) fn tell_behind(&mut self, now: Instant) {
        if self.tell_behind_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let mut buffer = Vec::new();
        for (port, members) in self.neighbourhood.tell() {
            let members = members.map(|members| Members::new(members, &mut buffer));
            self.on_link(port, |link| link.send(&ControlFrame::Behind { members }));
        }
    }
}

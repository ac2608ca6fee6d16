//! One port: what the neighbour said last, what it was told last, what the link costs (802.1D-2004 17.26 Port Transmit, 17.27 Port
//! Information).

use std::cmp::Reverse;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::agreement::Agreement;
use super::bpdu::Bpdu;
use super::event::Role;
use super::hold::Hold;
use super::selection::{Offer, Place};
use crate::ids::{BrokerId, PortId, TreeId};
use crate::limits;

#[derive(Clone, Debug, Hash)]
pub(super) struct Port {
    cost: NonZeroU32,
    pub(super) rtt: Duration,
    /// portPriority (802.1D-2004 17.19.21) and the number it came with.
    heard: Option<Bpdu>,
    /// Came after it, and names an epoch that is not believed yet.
    waiting: Option<Bpdu>,
    sent: Option<Bpdu>,
    /// [`limits::TX_HOLD_COUNT`]. An honest mesh comes nowhere near; a neighbour that changes its word without end makes us tell nobody
    /// faster than this.
    ///
    /// Deviation: 802.1D holds after 6 and lets one a second follow, which would hold up a mesh that forms.
    transmit_hold: Hold,
    /// Something to tell waits until then.
    held_until: Option<Instant>,
    /// [`limits::BPDUS_HEARD_MAX`]: what no neighbour that keeps to its own hold comes to.
    receive_hold: Hold,
    /// The peer said what no honest peer says; it is not heard any more.
    pub(super) is_refused: bool,
    pub(super) agreement: Agreement,
    /// What was last told of it; nothing at first.
    shown: Option<(Role, bool)>,
}

impl Port {
    pub(super) fn new(cost: NonZeroU32, rtt: Duration) -> Self {
        Self {
            cost,
            rtt,
            heard: None,
            waiting: None,
            sent: None,
            transmit_hold: Hold::per_second(limits::TX_HOLD_COUNT),
            held_until: None,
            receive_hold: Hold::per_second(limits::BPDUS_HEARD_MAX),
            is_refused: false,
            agreement: Agreement::default(),
            shown: None,
        }
    }

    pub(super) fn measured(&mut self, cost: NonZeroU32, rtt: Duration) {
        self.cost = cost;
        self.rtt = rtt;
    }

    /// Counts a BPDU that comes in; false if no honest neighbour sends so many.
    pub(super) fn may_receive(&mut self, now: Instant) -> bool {
        let may = self.receive_hold.free_at(now) <= now;
        if may {
            self.receive_hold.count(now);
        }
        may
    }

    /// Keeps the BPDU, for later if it is not believed yet; false if it is older than what was heard already.
    pub(super) fn receive(&mut self, bpdu: &Bpdu, is_believed: bool) -> bool {
        let is_new = [self.heard, self.waiting].into_iter().flatten().all(|heard| bpdu.number > heard.number);
        if is_new {
            self.waiting = (!is_believed).then_some(*bpdu);
            self.heard = if is_believed { Some(*bpdu) } else { self.heard };
        }
        is_new
    }

    /// What waits to be believed.
    pub(super) fn waiting(&self) -> Option<&Bpdu> {
        self.waiting.as_ref()
    }

    /// The trees of what is in force and of what waits.
    pub(super) fn trees(&self) -> impl Iterator<Item = TreeId> {
        [self.heard, self.waiting].into_iter().flatten().map(|bpdu| bpdu.tree)
    }

    /// Now it is.
    pub(super) fn believe(&mut self) {
        self.heard = self.waiting.take().or(self.heard);
    }

    /// The BPDU to send now, if there is anything that the neighbour has not been told. What is held back is told later, as it is then.
    pub(super) fn transmit(&mut self, place: &Place, epoch_held: Option<u64>, request_epoch: bool, now: Instant) -> Option<Bpdu> {
        let number = self.sent.map_or(0, |sent| sent.number) + 1;
        let bpdu = Bpdu { number, tree: place.tree, distance: place.distance(), hops: place.hops(), epoch_held, request_epoch };
        let told = self.sent.is_some_and(|sent| {
            (sent.tree, sent.distance, sent.hops, sent.epoch_held) == (bpdu.tree, bpdu.distance, bpdu.hops, bpdu.epoch_held)
                && !request_epoch
        });
        if told {
            // What was held back is no longer so.
            self.held_until = None;
            return None;
        }
        let free_at = self.transmit_hold.free_at(now);
        self.held_until = (free_at > now).then_some(free_at);
        if self.held_until.is_some() {
            return None;
        }
        self.transmit_hold.count(now);
        self.sent = Some(bpdu);
        Some(bpdu)
    }

    /// When what is held back may be sent.
    pub(super) fn transmit_due(&self) -> Option<Instant> {
        self.held_until
    }

    /// The way to a root that the neighbour offers, if it has one and its cost can be counted.
    pub(super) fn offer(&self, id: PortId) -> Option<Offer> {
        let heard = self.heard?;
        let distance = heard.distance?;
        let total = distance.checked_add(self.cost.get())?;
        Some(Offer { port: id, tree: heard.tree, distance, total, hops: heard.hops })
    }

    /// The epoch that a broker of our tree holds back below this port.
    pub(super) fn epoch_held(&self, tree: TreeId) -> Option<u64> {
        self.heard.filter(|heard| heard.tree == tree)?.epoch_held
    }

    /// Whether this broker's vector is better than the neighbour's (802.1D-2004 17.6): the port is then Designated.
    pub(super) fn is_behind(&self, place: &Place, own: BrokerId, peer: BrokerId) -> bool {
        let vector = |tree, distance: Option<u32>, id| (tree, Reverse(distance.unwrap_or(u32::MAX)), Reverse(id));
        self.heard.is_none_or(|heard| vector(place.tree, place.distance(), own) > vector(heard.tree, heard.distance, peer))
    }

    /// Remembers what is told of the port; true if it is news.
    pub(super) fn show(&mut self, role: Role, forwarding: bool) -> bool {
        self.shown.replace((role, forwarding)) != Some((role, forwarding))
    }
}

//! One port: what the neighbour said last, what it was told last, what the link costs (802.1D-2004 17.26 Port Transmit, 17.27 Port
//! Information).

use std::cmp::Reverse;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::agreement::Agreement;
use super::bpdu::Bpdu;
use super::event::Role;
use super::selection::{Offer, Place};
use crate::ids::{BrokerId, PortId, TreeId};
use crate::limits;

/// How many BPDUs may go out of a port (802.1D-2004 17.19.44, txCount): [`limits::TX_HOLD_COUNT`] at once, and as many again in each second. An
/// honest mesh comes nowhere near; a neighbour that changes its word without end makes us tell nobody faster than this.
///
/// Deviation: 802.1D holds after 6 and lets one a second follow, which would hold up a mesh that forms.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct TransmitHold {
    /// When all that was sent would have been, one BPDU at a time.
    paid_at: Option<Instant>,
    /// Something waits until then.
    held_until: Option<Instant>,
}

impl TransmitHold {
    const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / limits::TX_HOLD_COUNT as u64);

    /// Whether one may go now.
    fn take(&mut self, now: Instant) -> bool {
        let paid_at = self.paid_at.map_or(now, |paid_at| paid_at.max(now));
        let ahead = paid_at - now;
        let ahead_max = Self::INTERVAL * (limits::TX_HOLD_COUNT - 1);
        if ahead > ahead_max {
            self.held_until = Some(now + (ahead - ahead_max));
            return false;
        }
        self.paid_at = Some(paid_at + Self::INTERVAL);
        self.held_until = None;
        true
    }
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Port {
    cost: NonZeroU32,
    pub(super) rtt: Duration,
    /// portPriority (802.1D-2004 17.19.21) and the number it came with.
    heard: Option<Bpdu>,
    sent: Option<Bpdu>,
    hold: TransmitHold,
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
            sent: None,
            hold: TransmitHold::default(),
            is_refused: false,
            agreement: Agreement::default(),
            shown: None,
        }
    }

    pub(super) fn measured(&mut self, cost: NonZeroU32, rtt: Duration) {
        self.cost = cost;
        self.rtt = rtt;
    }

    /// Keeps the BPDU; false if it is older than what was heard already.
    pub(super) fn receive(&mut self, bpdu: &Bpdu) -> bool {
        let is_new = self.heard.is_none_or(|heard| bpdu.number > heard.number);
        if is_new {
            self.heard = Some(*bpdu);
        }
        is_new
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
            self.hold.held_until = None;
            return None;
        }
        if !self.hold.take(now) {
            return None;
        }
        self.sent = Some(bpdu);
        Some(bpdu)
    }

    /// When what is held back may be sent.
    pub(super) fn transmit_due(&self) -> Option<Instant> {
        self.hold.held_until
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

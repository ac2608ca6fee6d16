//! One port: what the neighbour said last, what it was told last, what the link costs (802.1D-2004 17.26 Port Transmit, 17.27 Port
//! Information).

use std::cmp::Reverse;
use std::num::NonZeroU32;
use std::time::Duration;

use super::agreement::Agreement;
use super::bpdu::Bpdu;
use super::event::Role;
use super::selection::{Offer, Place};
use crate::ids::{BrokerId, PortId, TreeId};

#[derive(Debug)]
pub(super) struct Port {
    cost: NonZeroU32,
    pub(super) rtt: Duration,
    /// portPriority (802.1D-2004 17.19.21) and the number it came with.
    heard: Option<Bpdu>,
    sent: Option<Bpdu>,
    pub(super) agreement: Agreement,
    /// What was last told of it; nothing at first.
    shown: Option<(Role, bool)>,
}

impl Port {
    pub(super) fn new(cost: NonZeroU32, rtt: Duration) -> Self {
        Self { cost, rtt, heard: None, sent: None, agreement: Agreement::default(), shown: None }
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

    /// The BPDU to send now, if there is anything that the neighbour has not been told.
    pub(super) fn transmit(&mut self, place: &Place, epoch_held: Option<u64>, request_epoch: bool) -> Option<Bpdu> {
        let number = self.sent.map_or(0, |sent| sent.number) + 1;
        let bpdu = Bpdu { number, tree: place.tree, distance: place.distance(), hops: place.hops(), epoch_held, request_epoch };
        let told = self.sent.is_some_and(|sent| {
            (sent.tree, sent.distance, sent.hops, sent.epoch_held) == (bpdu.tree, bpdu.distance, bpdu.hops, bpdu.epoch_held)
                && !request_epoch
        });
        if told {
            return None;
        }
        self.sent = Some(bpdu);
        Some(bpdu)
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

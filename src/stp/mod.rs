//! The spanning tree: which links carry data, so that every message has one way to every broker (MQTT-ST; after IEEE 802.1D-2004
//! clause 17, rapid spanning tree over point-to-point links).
//!
//! Sans-IO: [`Stp::handle`] takes what happened and the time, and says what to do; [`Stp::poll_timeout`] says when it wants to be
//! called again. The broker and the simulator in `tests/sim` run the same code. It is not the data plane: it asks for lanes to be
//! opened and closed, and never sees what flows in them.
//!
//! | file | machine | 802.1D-2004 |
//! |---|---|---|
//! | `port` | what was heard and said on a port | 17.26 Port Transmit, 17.27 Port Information |
//! | `selection` | the tree, the way to its root, who may be a parent | 17.28 Port Role Selection |
//! | `agreement` | lanes of a port: OPEN, its answer, CLOSE | 17.29 Port Role Transitions, 17.30 Port State Transition |
//! | `epoch` | when a new epoch is asked for, opened, and followed | none |
//! | `hold` | how fast things may be said, heard and done | 17.13.12 Transmit Hold Count |
//! | `record` | no machine: inputs as lines of text, to be replayed | none |
//!
//! # Invariants
//! 1. A broker's tree id only ever grows; it claims an epoch at most once.
//! 2. Its *bound* is the least (distance, id) that it has had in its present tree, and within that tree only falls.
//! 3. It takes a new parent only in a greater tree, or if what that parent says is below its own bound.
//!
//! Order brokers by tree id, the greater first, and within a tree by bound, the lesser first. A parent's word was true when it was
//! said, and by 1 and 2 its sender has since only moved forward in this order. By 3 everybody is therefore behind its parent, at
//! every instant and however late the words are, so that parent pointers form no cycle. Nothing ages, nothing counts to infinity,
//! and the root that died is left with the tree it named.
//!
//! 4. At most one port has lanes open for an agreement in which this broker is the child. It asks at its Root port only when the lanes
//!    of the former one have confirmed that their CLOSE is written.
//!
//! The lanes follow the parent pointers a little late: a former parent's writers stay open until its child's CLOSE has reached it.
//! For so long a message may meet a broker twice; the replication's covers drop it there.
//!
//! # Who waits
//! A broker that has lost its way opens the next epoch, though it may be the worst root there is. Everybody whose own way is intact
//! leaves that epoch unfollowed and tells its root, which opens the epoch after: so only those move that lost something. Waiting is
//! always safe, it is the same as a slow link; it ends with the way, with a better root, or after [`StpConfig::epoch_interval`].
//!
//! # Bad peers
//! What is said of a link ends that link at most. A word that cannot be true of anybody (an end that is no root at distance 0, more hops than
//! cost, an agreement that we never asked for, an epoch beyond [`limits::EPOCH_MAX`], more words than anybody has) is refused, and its sender is
//! not heard until the link is new. A word that changes without end is passed on no faster than [`limits::TX_HOLD_COUNT`]; for a worse root
//! a new epoch is opened [`limits::ROOT_ANSWERS_MAX`] times at once and then once an interval. An epoch that is further ahead than
//! [`limits::EPOCH_STEP_MAX`] an interval waits (`hold`), and costs nobody a link: honest brokers may have been led there. Whoever is admitted
//! can still lead others, claim to be near the root, or keep them changing roots; no cycle comes of it.
//!
//! # Deviations
//! - An epoch goes before the root's identifier (9.2.5): a broker with no feasible parent opens the next one with itself as root, and
//!   a better broker that hears it the one after. 802.1D lets the information of a dead root age instead (17.19.22, portTimes).
//! - Every port transmits, not only the Designated one, and only when there is something new: the control stream is reliable and
//!   the link has a detection of its own, so that there is no hello and no message age.
//! - The OPEN marker in the lanes replaces the proposal and agreement flags (17.29.2, 17.29.3), and no sync wave runs through the tree
//!   before a port forwards: acyclic parents and the replication's covers make it needless.
//! - No topology change notices (17.31): nothing is learnt from traffic.

mod agreement;
mod bpdu;
mod epoch;
mod event;
mod hold;
mod port;
pub mod record;
mod selection;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

pub use bpdu::Bpdu;
pub use event::{ChangeCause, Input, Output, PeerError, Role, StpConfig};

use crate::ids::{BrokerId, OpenMark, OpenNumber, PortId, TreeId};
use crate::limits;
use epoch::{EpochRequests, Patience};
use hold::{EpochReach, Hold};
use port::Port;
use selection::{Decision, Place, Way};

/// One broker's end of the spanning tree.
#[derive(Clone, Debug, Hash)]
pub struct Stp {
    config: StpConfig,
    place: Place,
    /// The highest epoch that was ever believed or claimed.
    epoch_max: u64,
    epoch_reach: EpochReach,
    /// Epochs opened because a worse root was heard of.
    answers: Hold,
    /// A worse root waits until then.
    answer_at: Option<Instant>,
    requests: EpochRequests,
    patience: Patience,
    /// Whether newer epochs with no better a root are left unfollowed at present.
    is_waiting: bool,
    /// Counts this broker's agreements as a child.
    open_count: u64,
    /// Ordered, so that the same inputs give the same outputs. The shell bounds how many there are (`mesh.max_links`).
    ports: BTreeMap<PortId, Port>,
    changes: u64,
    last_cause: ChangeCause,
}

impl Stp {
    /// A broker that has just started: alone, and the root of its own tree.
    #[must_use]
    pub fn new(config: StpConfig) -> Self {
        let epoch = 1;
        Self {
            config,
            place: Place::root(TreeId { epoch, root: config.claim }),
            epoch_max: epoch,
            epoch_reach: EpochReach::new(epoch, config.epoch_interval),
            answers: Hold::new(limits::ROOT_ANSWERS_MAX, config.epoch_interval),
            answer_at: None,
            requests: EpochRequests::new(config.epoch_interval),
            patience: Patience::new(config.epoch_interval),
            is_waiting: false,
            open_count: 0,
            ports: BTreeMap::new(),
            changes: 0,
            last_cause: ChangeCause::Started,
        }
    }

    /// Takes one input and appends to `out` what is to be done about it. `now` never goes back.
    pub fn handle(&mut self, input: Input, now: Instant, out: &mut Vec<Output>) {
        self.extend_reach(now);
        match input {
            Input::LinkUp { port, cost, rtt } => self.link_up(port, cost, rtt, out),
            Input::LinkDown { port } => self.link_down(port, out),
            Input::Cost { port, cost, rtt } => {
                if let Some(port) = self.ports.get_mut(&port) {
                    port.measured(cost, rtt);
                }
            }
            Input::Bpdu { port, bpdu } => self.bpdu(port, &bpdu, now, out),
            Input::OpenReceived { port, open } => self.open_received(port, open, out),
            Input::CloseReceived { port, number } => self.close_received(port, number, out),
            Input::LanesClosed { port, number } => {
                if let Some(port) = self.ports.get_mut(&port) {
                    port.agreement.lanes_closed(number);
                }
            }
            Input::Timeout => {}
        }
        self.select(now, out);
        let ask_parent = self.request_epoch(now, out);
        self.transmit(ask_parent, now, out);
        self.close_lanes(out);
        self.answer_open(out);
        self.open_lanes(now, out);
        self.show_ports(out);
    }

    /// When [`Input::Timeout`] is due; a moment that has passed means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let patience = self.patience.due().filter(|_| self.is_waiting);
        let repeat = self.root_port().and_then(|root| self.ports.get(&root)).and_then(|port| port.agreement.repeat_at());
        let held = self.ports.values().filter_map(Port::transmit_due).min();
        let reach = self.epoch_reach.due().filter(|_| self.ports.values().any(|port| port.waiting().is_some()));
        [self.requests.due(), patience, repeat, held, reach, self.answer_at].into_iter().flatten().min()
    }

    /// The tree this broker belongs to.
    #[must_use]
    pub fn tree(&self) -> TreeId {
        self.place.tree
    }

    /// Whether this broker is the root of its tree.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.place.way == Way::Root
    }

    /// The cost of the way to the root; `None` without a way (see [`Self::is_out_of_reach`]).
    #[must_use]
    pub fn distance(&self) -> Option<u32> {
        self.place.distance()
    }

    /// The port that leads to the root.
    #[must_use]
    pub fn root_port(&self) -> Option<PortId> {
        self.place.root_port()
    }

    /// Whether a greater tree is heard of, but only from brokers that are `hop_max` links away from its root: this broker stays outside
    /// and says so, because a tree that is too deep would lose messages to the hop limit.
    #[must_use]
    pub fn is_out_of_reach(&self) -> bool {
        self.place.way == Way::None || self.offers().any(|offer| offer.hops >= self.config.hop_max && offer.tree > self.place.tree)
    }

    /// Every port that is up, its role, and whether it forwards.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, Role, bool)> {
        self.ports.iter().map(|(&id, port)| (id, self.role_of(id, port), port.agreement.is_agreed()))
    }

    /// A port's role; [`Role::Disabled`] if it is not up.
    #[must_use]
    pub fn role(&self, port: PortId) -> Role {
        self.ports.get(&port).map_or(Role::Disabled, |found| self.role_of(port, found))
    }

    /// The trees that the peer of a port was heard to speak of and that may still be followed: of its last word that is believed, and of one
    /// that waits to be.
    pub fn trees_heard(&self, port: PortId) -> impl Iterator<Item = TreeId> {
        self.ports.get(&port).into_iter().flat_map(Port::trees)
    }

    /// How often this broker's tree or parent has changed, and why the last time.
    #[must_use]
    pub fn changes(&self) -> (u64, ChangeCause) {
        (self.changes, self.last_cause)
    }

    fn id(&self) -> BrokerId {
        self.config.claim.id
    }

    fn link_up(&mut self, id: PortId, cost: NonZeroU32, rtt: Duration, out: &mut Vec<Output>) {
        let former: Vec<PortId> = self.ports.keys().copied().filter(|port| port.peer == id.peer).collect();
        for port in former {
            self.link_down(port, out);
        }
        self.ports.insert(id, Port::new(cost, rtt));
    }

    fn link_down(&mut self, id: PortId, out: &mut Vec<Output>) {
        if self.ports.remove(&id).is_some() {
            out.push(Output::PortState { port: id, role: Role::Disabled, forwarding: false });
        }
    }

    /// rcvInfo (802.1D-2004 17.21.8).
    fn bpdu(&mut self, id: PortId, bpdu: &Bpdu, now: Instant, out: &mut Vec<Output>) {
        if let Some(error) = contradiction(id.peer, bpdu) {
            self.refuse(id, error, out);
            return;
        }
        let epoch = bpdu.epoch();
        if epoch > limits::EPOCH_MAX {
            self.refuse(id, PeerError::EpochOutOfRange { epoch }, out);
            return;
        }
        let is_believed = self.epoch_reach.believes(epoch);
        let Some(port) = self.heard_port(id) else { return };
        if !port.may_receive(now) {
            self.refuse(id, PeerError::TooManyBpdus, out);
            return;
        }
        if !port.receive(bpdu, is_believed) || !is_believed {
            return;
        }
        self.epoch_max = self.epoch_max.max(epoch);
        if bpdu.request_epoch && bpdu.tree == self.place.tree {
            self.requests.received(now);
        }
    }

    /// Believes what waited, once the reach has come to it.
    fn extend_reach(&mut self, now: Instant) {
        let waits = self.ports.values().any(|port| port.waiting().is_some());
        self.epoch_reach.advance(self.epoch_max, waits, now);
        if !waits {
            return;
        }
        for port in self.ports.values_mut() {
            let epoch = port.waiting().map(Bpdu::epoch).filter(|&epoch| self.epoch_reach.believes(epoch));
            if let Some(epoch) = epoch {
                port.believe();
                self.epoch_max = self.epoch_max.max(epoch);
            }
        }
    }

    fn open_received(&mut self, id: PortId, open: OpenMark, out: &mut Vec<Output>) {
        let is_ours = self.has_asked(open.number);
        let Some(port) = self.heard_port(id) else { return };
        if is_ours {
            port.agreement.receive_answer(open.number);
        } else if open.number.child == id.peer {
            port.agreement.receive_question(open);
        } else {
            self.refuse(id, PeerError::ForeignAgreement { number: open.number }, out);
        }
    }

    fn close_received(&mut self, id: PortId, number: OpenNumber, out: &mut Vec<Output>) {
        let is_ours = self.has_asked(number);
        let Some(port) = self.heard_port(id) else { return };
        if is_ours || number.child == id.peer {
            port.agreement.void(number);
        } else {
            self.refuse(id, PeerError::ForeignAgreement { number }, out);
        }
    }

    /// Whether this broker has asked for the agreement.
    fn has_asked(&self, number: OpenNumber) -> bool {
        let claim = self.config.claim;
        number.child == claim.id && number.incarnation == claim.incarnation && (1..=self.open_count).contains(&number.count)
    }

    /// The port, if its peer is still listened to.
    fn heard_port(&mut self, id: PortId) -> Option<&mut Port> {
        self.ports.get_mut(&id).filter(|port| !port.is_refused)
    }

    fn refuse(&mut self, id: PortId, error: PeerError, out: &mut Vec<Output>) {
        if let Some(port) = self.heard_port(id) {
            port.is_refused = true;
            out.push(Output::Refuse { port: id, error });
        }
    }

    fn offers(&self) -> impl Iterator<Item = selection::Offer> {
        self.ports.iter().filter_map(|(&id, port)| port.offer(id))
    }

    /// updtRolesTree (802.1D-2004 17.21.25).
    fn select(&mut self, now: Instant, out: &mut Vec<Output>) {
        let before = (self.place.tree, self.place.root_port());
        let has_reason =
            self.offers().any(|offer| self.place.can_wait(&offer)) && self.place.is_intact(&self.config, self.offers());
        self.is_waiting = self.patience.waits(has_reason, now);
        self.answer_at = self.answers_worse_roots_at(now);
        let is_held = |offer: &selection::Offer| match self.answer_at {
            Some(_) => self.place.is_worse_root(&self.config, offer),
            None => self.is_waiting && self.place.can_wait(offer),
        };
        let offers = self.offers().filter(|offer| !is_held(offer));
        let epoch_held = if self.answer_at.is_some() { None } else { self.epoch_held() };
        let decision = self.place.decide(&self.config, offers, epoch_held);
        let cause = match decision {
            Decision::Stay => return,
            Decision::Claim(cause) => {
                if cause == ChangeCause::WorseRoot {
                    self.answers.count(now);
                }
                self.claim();
                cause
            }
            Decision::Follow(offer, cause) => {
                self.place.follow(&offer, self.id());
                cause
            }
            Decision::Detach => {
                self.place.detach();
                ChangeCause::ParentLost
            }
        };
        self.changed(before, cause, out);
    }

    /// When this broker, a root that has answered many worse ones lately, answers those that it hears of now; `None`: at once, or there are
    /// none. It loses nothing by waiting.
    fn answers_worse_roots_at(&self, now: Instant) -> Option<Instant> {
        let free_at = self.answers.free_at(now);
        let has_any = || {
            self.offers().any(|offer| self.place.is_worse_root(&self.config, &offer))
                || self.epoch_held() > Some(self.place.tree.epoch)
        };
        (self.is_root() && free_at > now && has_any()).then_some(free_at)
    }

    /// The highest epoch of a worse root that this broker and those below it leave unfollowed; the root is told and opens the next.
    fn epoch_held(&self) -> Option<u64> {
        let tree = self.place.tree;
        let is_held = |offer: &selection::Offer| self.is_waiting && self.place.can_wait(offer) && offer.tree.root < tree.root;
        let own = self.offers().filter(is_held).map(|offer| offer.tree.epoch).max();
        let below = self.ports.values().filter_map(|port| port.epoch_held(tree)).max();
        own.max(below)
    }

    fn claim(&mut self) {
        self.epoch_max = self.epoch_max.saturating_add(1);
        self.place = Place::root(TreeId { epoch: self.epoch_max, root: self.config.claim });
    }

    fn changed(&mut self, before: (TreeId, Option<PortId>), cause: ChangeCause, out: &mut Vec<Output>) {
        let tree = self.place.tree;
        if (tree, self.place.root_port()) == before {
            return;
        }
        self.changes += 1;
        self.last_cause = cause;
        if tree != before.0 {
            self.requests.forget();
            out.push(Output::TreeChanged { tree, is_root: self.is_root(), cause });
        }
    }

    /// Whether a cheaper way is known that this tree forbids.
    fn knows_cheaper_way(&self) -> bool {
        self.offers().any(|offer| self.place.is_cheaper_but_infeasible(&offer, self.config.hop_max))
    }

    /// Opens a new epoch if this broker is the root and was asked to; else says whether to ask the parent now.
    fn request_epoch(&mut self, now: Instant, out: &mut Vec<Output>) -> bool {
        self.requests.wish(self.knows_cheaper_way(), now);
        if !self.requests.take(now) {
            return false;
        }
        let is_root = self.is_root();
        if is_root {
            let before = (self.place.tree, None);
            self.claim();
            self.changed(before, ChangeCause::EpochRequested, out);
        }
        !is_root
    }

    /// Port Transmit (802.1D-2004 17.26).
    fn transmit(&mut self, ask_parent: bool, now: Instant, out: &mut Vec<Output>) {
        let root_port = self.place.root_port();
        let epoch_held = self.epoch_held();
        for (&id, port) in &mut self.ports {
            let request_epoch = ask_parent && root_port == Some(id);
            let epoch_held = epoch_held.filter(|_| root_port == Some(id));
            if let Some(bpdu) = port.transmit(&self.place, epoch_held, request_epoch, now) {
                out.push(Output::SendBpdu { port: id, bpdu });
            }
        }
    }

    /// Closes what the present roles no longer bear: agreements that either end voided, ours as a child on what is no longer the Root
    /// port, ours as a parent on what has become it.
    fn close_lanes(&mut self, out: &mut Vec<Output>) {
        let (own, root_port) = (self.id(), self.place.root_port());
        for (&id, port) in &mut self.ports {
            let Some(number) = port.agreement.open_number() else { continue };
            let is_child = number.child == own;
            if port.agreement.is_void(number) || is_child != (root_port == Some(id)) {
                port.agreement.close(number);
                out.push(Output::CloseLanes { port: id, number });
            }
        }
    }

    /// As a parent, answers children whose question stands and names our tree.
    fn answer_open(&mut self, out: &mut Vec<Output>) {
        let root_port = self.place.root_port();
        for (&id, port) in &mut self.ports {
            if root_port == Some(id) {
                continue;
            }
            if let Some(open) = port.agreement.answer(self.place.tree) {
                out.push(Output::AnswerOpen { port: id, open });
            }
        }
    }

    /// As a child, asks at the Root port once nothing of a former agreement is open; asks again until it is answered.
    fn open_lanes(&mut self, now: Instant, out: &mut Vec<Output>) {
        let (own, tree) = (self.id(), self.place.tree);
        let Some(root_port) = self.place.root_port() else { return };
        let settled = self.ports.iter().all(|(&id, port)| id == root_port || !port.agreement.binds(own));
        let Some(port) = self.ports.get_mut(&root_port) else { return };
        let repeat_at = now + self.config.hello.max(2 * port.rtt);
        let open = if settled && port.agreement.is_closed() {
            self.open_count += 1;
            let number = OpenNumber { count: self.open_count, child: own, incarnation: self.config.claim.incarnation };
            Some(port.agreement.ask(OpenMark { tree, number }, repeat_at))
        } else {
            port.agreement.ask_again(tree, now, repeat_at)
        };
        if let Some(open) = open {
            out.push(Output::OpenLanes { port: root_port, open });
        }
    }

    /// Port roles (802.1D-2004 17.7).
    fn role_of(&self, id: PortId, port: &Port) -> Role {
        if self.place.root_port() == Some(id) {
            Role::Root
        } else if port.agreement.is_agreed() || port.is_behind(&self.place, self.id(), id.peer) {
            Role::Designated
        } else {
            Role::Alternate
        }
    }

    fn show_ports(&mut self, out: &mut Vec<Output>) {
        let shown: Vec<_> = self.ports().collect();
        for ((id, role, forwarding), port) in shown.into_iter().zip(self.ports.values_mut()) {
            if port.show(role, forwarding) {
                out.push(Output::PortState { port: id, role, forwarding });
            }
        }
    }
}

/// What is wrong with the BPDU in itself, whoever's tree it speaks of.
fn contradiction(peer: BrokerId, bpdu: &Bpdu) -> Option<PeerError> {
    let Bpdu { distance, hops, .. } = *bpdu;
    let root = bpdu.tree.root.id;
    let is_sound = match distance {
        None => root != peer,
        Some(0) => root == peer && hops == 0,
        Some(distance) => root != peer && hops > 0 && distance >= u32::from(hops),
    };
    (!is_sound).then_some(PeerError::Contradiction { root, distance, hops })
}

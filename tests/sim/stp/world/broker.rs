//! Brokers: their lives and incarnations, and what they do about the outputs of their [`Stp`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use mqtt_st_quic::ids::{Incarnation, PortId, RootClaim, TreeId};
use mqtt_st_quic::stp::{ChangeCause, Input, Output, Role, Stp, StpConfig};

use super::impostor::Lie;
use super::lanes::{CONTROL, Frame, PortView};
use super::queue::Event;
use super::{Notice, World, check};

/// Until somebody starts a broker again that stopped because it found itself cloned.
const RESTART: Duration = Duration::from_millis(200);

pub struct Broker {
    pub claim: RootClaim,
    /// `None`: down.
    pub stp: Option<Stp>,
    pub ports: BTreeMap<PortId, PortView>,
    /// The port on which this broker's lanes are open as a child, or not yet confirmed closed.
    pub child_port: Option<PortId>,
    /// When its place in the tree or one of its ports last changed, from the world's beginning.
    pub changed_at: Duration,
    pub lie: Option<Lie>,
    /// Whether data can go up: the Root port forwards over a link that is whole.
    pub(super) has_way: bool,
    /// Messages that came or were published here.
    pub seen: HashSet<u32>,
    /// What it said while it lied.
    pub(super) said: Vec<mqtt_st_quic::stp::Bpdu>,
    /// How often it has started.
    pub(super) lives: u64,
    /// What its wall clock showed when the world began.
    pub(super) wall_ms: u64,
    /// The incarnation on its disk.
    pub(super) stored: Option<u64>,
    /// The highest incarnation that it ever had.
    highest: u64,
    /// Whether its clock and disk gave it one that it may have had before: only then is there anything to ask its peers for.
    is_suspect: bool,
    /// Whether a peer has agreed to its incarnation.
    is_settled: bool,
    /// Brokers it has met, and their incarnations.
    met: HashMap<usize, u64>,
    tree: Option<TreeId>,
    wake: Option<std::time::Instant>,
}

impl Broker {
    pub(super) fn new(claim: RootClaim) -> Self {
        Self {
            claim,
            stp: None,
            ports: BTreeMap::new(),
            child_port: None,
            changed_at: Duration::ZERO,
            lie: None,
            has_way: false,
            seen: HashSet::new(),
            said: Vec::new(),
            lives: 0,
            wall_ms: claim.incarnation.0,
            stored: None,
            highest: 0,
            is_suspect: false,
            is_settled: false,
            met: HashMap::new(),
            tree: None,
            wake: None,
        }
    }
}

impl World {
    pub(super) fn crash(&mut self, broker: usize) {
        let down = &mut self.brokers[broker];
        if down.stp.take().is_none() {
            return;
        }
        down.ports.clear();
        down.seen.clear();
        down.met.clear();
        (down.child_port, down.tree, down.wake) = (None, None, None);
        for link in self.links_of[broker].clone() {
            let end = usize::from(self.links[link].ends[1] == broker);
            self.links[link].is_up[end] = false;
            self.links[link].watches[end] = None;
            if let Notice::Told { .. } = self.settings.notice {
                self.links[link].is_cut = [true, true];
            }
            self.tell(link);
            self.resettle(link);
        }
    }

    /// A new life, with nothing of the former but what was stored.
    pub(super) fn start_broker(&mut self, broker: usize) {
        let elapsed_ms = u64::try_from(self.elapsed().as_millis()).expect("the world is young");
        let starting = &mut self.brokers[broker];
        if starting.stp.is_some() {
            return;
        }
        starting.lives += 1;
        let wall_ms = starting.wall_ms + elapsed_ms;
        let incarnation = wall_ms.max(starting.stored.map_or(0, |stored| stored + 1));
        starting.is_suspect = incarnation <= starting.highest;
        self.begin_life(broker, incarnation);
        self.brokers[broker].is_settled = false;
        for link in self.links_of[broker].clone() {
            if self.settings.notice == Notice::Watched {
                self.dial_after(link, Duration::ZERO);
            }
            self.resettle(link);
        }
    }

    fn begin_life(&mut self, broker: usize, incarnation: u64) {
        let Self { settings, brokers, signed, .. } = self;
        let starting = &mut brokers[broker];
        starting.claim.incarnation = Incarnation(incarnation);
        starting.stored = Some(incarnation);
        starting.highest = incarnation.max(starting.highest);
        starting.tree = None;
        let stp = Stp::new(StpConfig {
            claim: starting.claim,
            hop_max: settings.hop_max,
            hello: settings.hello,
            epoch_interval: settings.epoch_interval,
        });
        signed.insert(stp.tree());
        starting.stp = Some(stp);
    }

    /// Settles the incarnation with the first link, before any BPDU: above the highest that anybody over there knows. False: the broker
    /// is known with a higher one than it settled on, takes itself for cloned and stops.
    pub(super) fn settle_incarnation(&mut self, broker: usize, peer: usize) -> bool {
        let own = self.brokers[broker].claim.incarnation.0;
        let known = self.known_of(broker, peer);
        let is_cloned = self.brokers[broker].is_settled && known > own;
        if is_cloned {
            self.counts.clones += 1;
            self.crash(broker);
            self.fault_after(RESTART, super::Fault::Start(broker));
            for link in self.links_of[broker].clone() {
                self.fault_after(RESTART, super::Fault::Up(link));
            }
        } else if !self.brokers[broker].is_settled && known >= own {
            assert!(self.brokers[broker].ports.is_empty(), "a broker with a link is settled");
            self.counts.raised += 1;
            self.begin_life(broker, known + 1);
        }
        if !is_cloned {
            self.brokers[broker].is_settled = true;
            let settled = self.brokers[broker].claim.incarnation.0;
            self.brokers[peer].met.insert(broker, settled);
        }
        !is_cloned
    }

    /// The highest incarnation of `broker` that `peer` knows from its own links and from the records of all whom it reaches.
    fn known_of(&self, broker: usize, peer: usize) -> u64 {
        if !self.brokers[broker].is_suspect {
            return 0;
        }
        let mut reached = HashSet::from([peer, broker]);
        let mut next = vec![peer];
        let mut known = 0;
        while let Some(at) = next.pop() {
            known = known.max(self.brokers[at].met.get(&broker).copied().unwrap_or(0));
            for &link in &self.links_of[at] {
                let far = self.links[link].ends[usize::from(self.links[link].ends[0] == at)];
                if self.links[link].is_up == [true, true] && reached.insert(far) {
                    next.push(far);
                }
            }
        }
        known
    }

    pub(super) fn timeout(&mut self, broker: usize) {
        if self.brokers[broker].wake == Some(self.queue.now()) {
            self.brokers[broker].wake = None;
            self.feed(broker, Input::Timeout);
        }
    }

    /// Hands the input to the broker's machine, does what it asks for, and checks what must hold at every instant.
    pub fn feed(&mut self, broker: usize, input: Input) {
        let now = self.queue.now();
        let Some(stp) = &mut self.brokers[broker].stp else { return };
        let before = (stp.root_port(), stp.is_root());
        let mut outputs = std::mem::take(&mut self.outputs);
        stp.handle(input, now, &mut outputs);
        let has_moved = (stp.root_port(), stp.is_root()) != before;
        if let Some(at) = stp.poll_timeout() {
            assert!(at > now, "a timeout that is due was not served");
            if self.brokers[broker].wake.is_none_or(|wake| at < wake) {
                self.brokers[broker].wake = Some(at);
                self.queue.schedule(at, Event::Timeout { broker });
            }
        }
        if has_moved {
            self.counts.moves += 1;
            self.brokers[broker].changed_at = self.elapsed();
        }
        let mut is_changed = has_moved;
        for output in outputs.drain(..) {
            is_changed |= !matches!(output, Output::SendBpdu { .. });
            self.perform(broker, &input, output);
        }
        self.outputs = outputs;
        if is_changed && self.brokers[broker].lie.is_none() {
            check::no_cycle(self, broker);
        }
    }

    fn perform(&mut self, broker: usize, input: &Input, output: Output) {
        match output {
            Output::SendBpdu { port, bpdu } => {
                self.counts.bpdus += 1;
                let lie = self.brokers[broker].lie;
                let bpdu = lie.map_or(bpdu, |lie| self.twist(broker, port, lie, bpdu));
                let now = self.queue.now();
                self.send(broker, port, CONTROL, now, Frame::Bpdu(bpdu));
            }
            Output::OpenLanes { port, open } => self.open_lanes(broker, port, open),
            Output::AnswerOpen { port, open } => self.answer_open(broker, port, open),
            Output::CloseLanes { port, number } => self.close_lanes(broker, port, number),
            Output::TreeChanged { tree, is_root, cause } => self.tree_changed(broker, input, tree, is_root, cause),
            Output::PortState { port, role, forwarding } => {
                self.counts.settled_at = self.elapsed();
                self.brokers[broker].changed_at = self.elapsed();
                assert!(!forwarding || matches!(role, Role::Root | Role::Designated), "{role:?} forwards");
                if let Some(view) = self.brokers[broker].ports.get_mut(&port) {
                    view.state = (role, forwarding);
                } else {
                    assert_eq!(role, Role::Disabled);
                }
                self.recount_way(broker);
            }
            Output::Refuse { port, error } => {
                let (link, _) = self.end_of(broker, port);
                let is_honest = self.links[link].ends.iter().all(|&end| self.brokers[end].lie.is_none());
                assert!(!is_honest, "{port:?} is honest, but {error}");
                self.refuse(broker, port);
            }
        }
    }

    /// Keeps count of the brokers from which data can go up.
    pub(super) fn recount_way(&mut self, broker: usize) {
        let way = self.stp(broker).and_then(Stp::root_port).filter(|port| {
            let (link, _) = self.end_of(broker, *port);
            self.peer(broker, *port).is_some()
                && self.is_passable(link)
                && self.brokers[broker].ports.get(port).is_some_and(|view| view.state == (Role::Root, true))
        });
        let had_way = std::mem::replace(&mut self.brokers[broker].has_way, way.is_some());
        if had_way != way.is_some() {
            self.ways = self.ways + usize::from(!had_way) - usize::from(had_way);
            self.ways_since.push((self.elapsed(), self.ways));
        }
    }

    /// A tree id grows, and has a cause: something happened to the mesh, and this broker learnt of it by a link, a BPDU or a wait that
    /// ended, never by a marker in a lane.
    fn tree_changed(&mut self, broker: usize, input: &Input, tree: TreeId, is_root: bool, cause: ChangeCause) {
        let former = self.brokers[broker].tree.replace(tree);
        assert!(former.is_none_or(|former| former < tree), "{former:?} did not grow to {tree:?}");
        assert!(self.is_disturbed, "broker {broker}: {cause:?} while nothing had happened");
        let is_cause = !matches!(input, Input::OpenReceived { .. } | Input::CloseReceived { .. } | Input::LanesClosed { .. });
        assert!(is_cause, "broker {broker}: {cause:?} at {input:?}");
        self.brokers[broker].changed_at = self.elapsed();
        self.counts.trees += 1;
        if is_root {
            self.counts.epochs += 1;
            self.signed.insert(tree);
        }
    }
}

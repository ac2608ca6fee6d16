//! Links: their lives, and the streams and datagrams on them.
//!
//! A link carries a control stream and lanes, each first in, first out, and none in step with another. A piece that is lost or late holds up
//! what follows in its stream. Whoever writes to a link that is cut writes into the void, until both ends know, or until the cut is mended
//! and the pieces are sent again.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use mqtt_st_quic::ids::PortId;
use mqtt_st_quic::stp::Input;
use rand::RngExt;

use super::lanes::{CONTROL, Frame, PortView, STREAMS};
use super::path::{Direction, Path};
use super::queue::Event;
use super::watch::Watch;
use super::{Notice, World};

pub struct Link {
    pub ends: [usize; 2],
    /// What each end counts for it.
    pub costs: [u32; 2],
    pub path: Path,
    /// By receiving end: nothing arrives there.
    pub is_cut: [bool; 2],
    /// The present pair of connections; `None`: there is none.
    pub generation: Option<u64>,
    /// Which ends know of `generation` and hold it for alive.
    pub is_up: [bool; 2],
    /// In which of their lives the brokers began `generation`.
    lives: [u64; 2],
    /// Ends that have not finished the handshake of `generation`.
    pub(super) joining: u8,
    pub(super) watches: [Option<Watch>; 2],
    directions: [Direction; 2],
    /// By receiving end.
    streams: [[Stream; STREAMS]; 2],
    /// Whether what the ends hold of the link is not yet what it is.
    is_unsettled: bool,
}

/// One stream in one direction.
#[derive(Default)]
struct Stream {
    sent: u64,
    taken: u64,
    /// What came before its turn.
    early: BTreeMap<u64, Frame>,
}

pub(super) fn cost(cost: u32) -> NonZeroU32 {
    NonZeroU32::new(cost).expect("costs are drawn from 1 on")
}

impl World {
    /// Adds a link, cut at first.
    pub fn add_link(&mut self, a: usize, b: usize, costs: [u32; 2]) -> usize {
        assert_ne!(a, b, "a link has two ends");
        let link = self.links.len();
        self.links.push(Link {
            ends: [a, b],
            costs,
            path: self.settings.path,
            is_cut: [true, true],
            generation: None,
            is_up: [false, false],
            lives: [0, 0],
            joining: 0,
            watches: [None, None],
            directions: [Direction::default(); 2],
            streams: Default::default(),
            is_unsettled: false,
        });
        for broker in [a, b] {
            self.links_of[broker].push(link);
        }
        link
    }

    pub fn link_between(&self, a: usize, b: usize) -> Option<usize> {
        self.links_of[a].iter().copied().find(|&link| self.links[link].ends.contains(&b))
    }

    /// The broker at the other end of a port, if it still lives the life in which the link came up and the link was not replaced.
    pub fn peer(&self, broker: usize, port: PortId) -> Option<usize> {
        let (link, end) = self.end_of(broker, port);
        let Link { generation, ends, lives, .. } = &self.links[link];
        let peer = ends[1 - end];
        (*generation == Some(port.generation) && lives[1 - end] == self.brokers[peer].lives).then_some(peer)
    }

    /// What `peer` calls the port of which `broker` says `port`.
    pub fn other_end(&self, broker: usize, port: PortId) -> PortId {
        PortId { peer: self.brokers[broker].claim.id, generation: port.generation }
    }

    /// The port of one end of a link, if that end holds the link for alive.
    pub fn port(&self, link: usize, end: usize) -> Option<PortId> {
        let generation = self.links[link].generation.filter(|_| self.links[link].is_up[end])?;
        Some(self.port_at(link, end, generation).1)
    }

    /// Whether packets can go both ways.
    pub fn is_passable(&self, link: usize) -> bool {
        let Link { ends, is_cut, .. } = &self.links[link];
        *is_cut == [false, false] && ends.iter().all(|&end| self.brokers[end].stp.is_some())
    }

    pub(super) fn port_at(&self, link: usize, end: usize, generation: u64) -> (usize, PortId) {
        let ends = self.links[link].ends;
        (ends[end], PortId { peer: self.brokers[ends[1 - end]].claim.id, generation })
    }

    pub(super) fn end_of(&self, broker: usize, port: PortId) -> (usize, usize) {
        let link = self.link_of_generation[usize::try_from(port.generation).expect("few generations")];
        (link, usize::from(self.links[link].ends[1] == broker))
    }

    pub(super) fn mend(&mut self, link: usize) {
        self.links[link].is_cut = [false, false];
        match self.settings.notice {
            Notice::Told { .. } => self.connect(link),
            Notice::Watched => self.dial_after(link, Duration::ZERO),
        }
        self.resettle(link);
    }

    pub(super) fn cut(&mut self, link: usize, is_cut: [bool; 2]) {
        self.links[link].is_cut = is_cut;
        self.tell(link);
        self.resettle(link);
    }

    /// Where the ends are told, tells both that the link is dead.
    pub(super) fn tell(&mut self, link: usize) {
        let Notice::Told { within } = self.settings.notice else { return };
        if let Some(generation) = self.links[link].generation.take() {
            for end in [0, 1] {
                let at = self.queue.now() + self.up_to(within);
                self.queue.schedule(at, Event::LinkDown { link, generation, end });
            }
        }
    }

    /// One end closes the connection with a reason; the other one is told by QUIC.
    pub(super) fn refuse(&mut self, broker: usize, port: PortId) {
        self.counts.refusals += 1;
        let (link, end) = self.end_of(broker, port);
        self.links[link].is_cut = [true, true];
        if self.links[link].generation == Some(port.generation) {
            let generation = port.generation;
            let delay = self.draw_delay(link);
            let now = self.queue.now();
            self.queue.schedule(now, Event::LinkDown { link, generation, end });
            self.queue.schedule(now + delay, Event::LinkDown { link, generation, end: 1 - end });
        }
        self.resettle(link);
    }

    pub(super) fn dial_after(&mut self, link: usize, delay: Duration) {
        self.queue.schedule(self.queue.now() + delay, Event::Dial { link });
    }

    pub(super) fn dial(&mut self, link: usize) {
        let Link { is_up, joining, .. } = self.links[link];
        if self.is_passable(link) && joining == 0 && is_up != [true, true] {
            self.links[link].generation = None;
            self.connect(link);
        }
    }

    /// Begins a new generation, if both brokers are up and none is present.
    fn connect(&mut self, link: usize) {
        if self.links[link].generation.is_some() || !self.is_passable(link) {
            return;
        }
        let generation = self.link_of_generation.len() as u64;
        self.link_of_generation.push(link);
        let connecting = &mut self.links[link];
        connecting.generation = Some(generation);
        connecting.is_up = [false, false];
        connecting.joining = 2;
        connecting.lives = connecting.ends.map(|end| self.brokers[end].lives);
        connecting.streams = Default::default();
        for end in [0, 1] {
            let at = self.queue.now() + self.draw_delay(link);
            self.queue.schedule(at, Event::LinkUp { link, generation, end });
        }
    }

    pub(super) fn link_up(&mut self, link: usize, generation: u64, end: usize) {
        if self.links[link].generation != Some(generation) {
            return;
        }
        self.links[link].joining -= 1;
        let (broker, port) = self.port_at(link, end, generation);
        let is_alive = self.brokers[broker].stp.is_some() && self.links[link].lives[end] == self.brokers[broker].lives;
        if !is_alive || !self.settle_incarnation(broker, self.links[link].ends[1 - end]) {
            return;
        }
        // The old link's death may not have been noticed yet.
        self.brokers[broker].ports.retain(|former, _| former.peer != port.peer);
        self.release_child_port(broker, |child| child.peer == port.peer);
        let now = self.queue.now();
        self.brokers[broker].ports.insert(port, PortView::new(now));
        self.links[link].is_up[end] = true;
        let rtt = self.links[link].path.rtt();
        if self.settings.notice == Notice::Watched {
            self.watch(link, generation, end);
        }
        let cost = cost(self.links[link].costs[end]);
        self.resettle(link);
        self.feed(broker, Input::LinkUp { port, cost, rtt });
        for stream in 0..STREAMS {
            self.take_in_turn(link, generation, end, stream);
        }
    }

    pub(super) fn link_down(&mut self, link: usize, generation: u64, end: usize) {
        let (broker, port) = self.port_at(link, end, generation);
        let down = &mut self.links[link];
        if down.generation == Some(generation) {
            down.is_up[end] = false;
            down.watches[end] = None;
            if down.is_up == [false, false] && down.joining == 0 {
                down.generation = None;
            }
            self.resettle(link);
        }
        if self.brokers[broker].ports.remove(&port).is_some() {
            self.release_child_port(broker, |child| child == port);
            self.feed(broker, Input::LinkDown { port });
        }
    }

    pub(super) fn draw_delay(&mut self, link: usize) -> Duration {
        self.links[link].path.draw_delay(&mut self.rng)
    }

    /// Whether the next packet towards `end` is lost.
    pub(super) fn loses(&mut self, link: usize, end: usize) -> bool {
        let to = &mut self.links[link];
        let is_lost = to.directions[end].loses(&to.path.loss, &mut self.rng);
        if let Some(watch) = &mut to.watches[1 - end] {
            // QUIC takes a packet for lost when a later one is acknowledged (RFC 9002 section 6.1): never where nothing arrives.
            watch.sent(is_lost && !to.is_cut[end]);
        }
        is_lost || to.is_cut[end]
    }

    /// Sends a piece of a stream at `at`; what is lost on the way is sent again.
    pub(super) fn send(&mut self, broker: usize, port: PortId, stream: usize, at: Instant, frame: Frame) {
        let (link, from) = self.end_of(broker, port);
        if self.links[link].generation != Some(port.generation) {
            return;
        }
        let (end, generation) = (1 - from, port.generation);
        let mut arrives_at = at + self.draw_delay(link);
        let mut timeout = self.links[link].path.probe_timeout();
        while !self.links[link].is_cut[end] && self.loses(link, end) {
            arrives_at += timeout;
            timeout = (2 * timeout).min(Duration::from_secs(1));
        }
        let to = &mut self.links[link].streams[end][stream];
        let number = to.sent;
        to.sent += 1;
        self.queue.schedule(arrives_at, Event::Arrive { link, generation, end, stream, number, frame });
        let duplicates = self.links[link].path.duplicates;
        if stream == CONTROL && duplicates > 0.0 && self.rng.random_bool(duplicates) {
            let again_at = arrives_at + self.draw_delay(link) * 3;
            self.queue.schedule(again_at, Event::Again { link, generation, end, frame });
        }
    }

    pub(super) fn arrive(&mut self, link: usize, generation: u64, end: usize, stream: usize, number: u64, frame: Frame) {
        let to = &mut self.links[link];
        if to.generation != Some(generation) {
            return;
        }
        if to.is_cut[end] {
            let again_at = self.queue.now() + to.path.probe_timeout();
            self.queue.schedule(again_at, Event::Arrive { link, generation, end, stream, number, frame });
            return;
        }
        if let Some(watch) = &mut to.watches[end] {
            watch.received();
        }
        to.streams[end][stream].early.insert(number, frame);
        self.take_in_turn(link, generation, end, stream);
    }

    fn take_in_turn(&mut self, link: usize, generation: u64, end: usize, stream: usize) {
        loop {
            let from = &mut self.links[link];
            if from.generation != Some(generation) || !from.is_up[end] {
                return;
            }
            let from = &mut from.streams[end][stream];
            let Some(frame) = from.early.remove(&from.taken) else { return };
            from.taken += 1;
            let (broker, port) = self.port_at(link, end, generation);
            self.take(broker, port, stream, frame);
        }
    }

    pub(super) fn take_again(&mut self, link: usize, generation: u64, end: usize, frame: Frame) {
        if let (Some(port), Frame::Bpdu(bpdu)) = (self.port(link, end), frame)
            && port.generation == generation
        {
            let broker = self.links[link].ends[end];
            self.feed(broker, Input::Bpdu { port, bpdu });
        }
    }

    /// Counts the link among those whose ends have yet to notice what it is.
    pub(super) fn resettle(&mut self, link: usize) {
        let is_unsettled = self.settings.notice == Notice::Watched && {
            let Link { ends, is_up, .. } = self.links[link];
            let believed = [0, 1].map(|end| is_up[end] && self.brokers[ends[end]].stp.is_some());
            believed != [self.is_passable(link); 2]
        };
        let was_unsettled = std::mem::replace(&mut self.links[link].is_unsettled, is_unsettled);
        self.unsettled = self.unsettled + usize::from(is_unsettled) - usize::from(was_unsettled);
        for broker in self.links[link].ends {
            self.recount_way(broker);
        }
    }
}

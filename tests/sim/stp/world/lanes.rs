//! A broker's ports as its shell and its lanes have them. Lane writers take their time, and OPEN and CLOSE of different lanes overtake each
//! other.
//!
//! What flows in the lanes is modelled as numbered messages: whoever takes one for the first time passes it on at every other port that is
//! open (replication's own code runs in `tests/sim/replication`).

use std::time::Instant;

use mqtt_st_quic::ids::{OpenMark, OpenNumber, PortId};
use mqtt_st_quic::stp::{Bpdu, Input, Role};

use super::World;
use super::queue::Event;

pub const LANES: usize = 2;
pub(super) const CONTROL: usize = LANES;
pub(super) const STREAMS: usize = LANES + 1;

#[derive(Clone, Copy, Debug)]
pub enum Frame {
    Bpdu(Bpdu),
    Open(OpenMark),
    Close(OpenNumber),
    /// A message of [`World::publish`].
    Message(u32),
}

/// A port as the shell and the lanes have it.
pub struct PortView {
    pub state: (Role, bool),
    /// The number our lanes were last opened with and not told to close.
    pub open: Option<OpenNumber>,
    lanes: [LaneView; LANES],
}

#[derive(Clone, Copy)]
struct LaneView {
    /// The writer has written everything before this.
    written_at: Instant,
    /// The last OPEN that came.
    accepts: Option<OpenNumber>,
    /// An answer that waits for the child's OPEN in this lane.
    answer: Option<OpenMark>,
    /// Whether OPEN was the last marker that we wrote.
    is_open: bool,
}

impl PortView {
    pub(super) fn new(now: Instant) -> Self {
        let lane = LaneView { written_at: now, accepts: None, answer: None, is_open: false };
        Self { state: (Role::Disabled, false), open: None, lanes: [lane; LANES] }
    }
}

impl World {
    fn lane(&mut self, broker: usize, port: PortId, lane: usize) -> &mut LaneView {
        &mut self.view(broker, port).lanes[lane]
    }

    pub(super) fn view(&mut self, broker: usize, port: PortId) -> &mut PortView {
        self.brokers[broker].ports.get_mut(&port).expect("only ports that are up are named")
    }

    /// A frame comes in its turn, at a port that is up.
    pub(super) fn take(&mut self, broker: usize, port: PortId, stream: usize, frame: Frame) {
        let input = match frame {
            Frame::Bpdu(bpdu) if !self.is_signed(&bpdu) => {
                self.counts.forgeries += 1;
                return;
            }
            Frame::Bpdu(bpdu) => Input::Bpdu { port, bpdu },
            Frame::Open(open) => {
                let lane = self.lane(broker, port, stream);
                lane.accepts = Some(open.number);
                if let Some(answer) = lane.answer.take_if(|answer| answer.number == open.number) {
                    self.write(broker, port, stream, Frame::Open(answer));
                }
                Input::OpenReceived { port, open }
            }
            Frame::Close(number) => {
                let lane = self.lane(broker, port, stream);
                lane.accepts = lane.accepts.filter(|&open| open.child != number.child || open > number);
                Input::CloseReceived { port, number }
            }
            Frame::Message(message) => {
                self.counts.messages += 1;
                if self.lane(broker, port, stream).accepts.is_some() {
                    self.append(broker, Some(port), message);
                }
                return;
            }
        };
        self.feed(broker, input);
    }

    /// As a child: opens the lanes of the Root port.
    pub(super) fn open_lanes(&mut self, broker: usize, port: PortId, open: OpenMark) {
        self.counts.opens += 1;
        let child_port = self.brokers[broker].child_port.replace(port);
        assert!(child_port.is_none_or(|former| former == port), "OPEN at {port:?} while {child_port:?} is not closed");
        self.view(broker, port).open = Some(open.number);
        for lane in 0..LANES {
            self.write(broker, port, lane, Frame::Open(open));
        }
    }

    /// As a parent: opens the lanes of a Designated port, each when the child's OPEN has come in it.
    pub(super) fn answer_open(&mut self, broker: usize, port: PortId, open: OpenMark) {
        self.view(broker, port).open = Some(open.number);
        for lane in 0..LANES {
            let view = self.lane(broker, port, lane);
            if view.accepts == Some(open.number) {
                self.write(broker, port, lane, Frame::Open(open));
            } else {
                view.answer = Some(open);
            }
        }
    }

    pub(super) fn close_lanes(&mut self, broker: usize, port: PortId, number: OpenNumber) {
        let view = self.view(broker, port);
        assert_eq!(view.open.take(), Some(number), "CLOSE of what is not open");
        for lane in 0..LANES {
            self.lane(broker, port, lane).answer = None;
            self.write(broker, port, lane, Frame::Close(number));
        }
        let written_at = self.view(broker, port).lanes.iter().map(|lane| lane.written_at).max().expect("there are lanes");
        let (link, end) = self.end_of(broker, port);
        self.queue.schedule(written_at, Event::Written { link, generation: port.generation, end, number });
    }

    pub(super) fn written(&mut self, link: usize, generation: u64, end: usize, number: OpenNumber) {
        let (broker, port) = self.port_at(link, end, generation);
        if !self.brokers[broker].ports.contains_key(&port) {
            return;
        }
        if number.child == self.brokers[broker].claim.id {
            self.release_child_port(broker, |child| child == port);
        }
        self.feed(broker, Input::LanesClosed { port, number });
    }

    pub(super) fn release_child_port(&mut self, broker: usize, matches: impl Fn(PortId) -> bool) {
        let child_port = &mut self.brokers[broker].child_port;
        *child_port = child_port.filter(|&port| !matches(port));
    }

    /// A lane's writer writes as soon as it gets to it, behind what it has to write before.
    fn write(&mut self, broker: usize, port: PortId, lane: usize, frame: Frame) {
        let ready_at = self.queue.now() + self.up_to(self.settings.write_max);
        let view = self.lane(broker, port, lane);
        view.written_at = ready_at.max(view.written_at);
        match frame {
            Frame::Open(_) => view.is_open = true,
            Frame::Close(_) => view.is_open = false,
            Frame::Bpdu(_) | Frame::Message(_) => {}
        }
        let at = view.written_at;
        self.send(broker, port, lane, at, frame);
    }

    /// A client publishes at this broker; returns the message's number.
    pub fn publish(&mut self, broker: usize) -> u32 {
        self.published += 1;
        let message = self.published;
        self.append(broker, None, message);
        message
    }

    /// Takes a message if it is new, and passes it on at every other port whose lane is open.
    fn append(&mut self, broker: usize, from: Option<PortId>, message: u32) {
        if self.brokers[broker].stp.is_none() {
            return;
        }
        if !self.brokers[broker].seen.insert(message) {
            self.counts.duplicates += 1;
            return;
        }
        let lane = message as usize % LANES;
        let open: Vec<PortId> = self.brokers[broker]
            .ports
            .iter()
            .filter(|&(&port, view)| from != Some(port) && view.lanes[lane].is_open)
            .map(|(&port, _)| port)
            .collect();
        for port in open {
            self.write(broker, port, lane, Frame::Message(message));
        }
    }
}

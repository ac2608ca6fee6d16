//! A member of the mesh that lies. What it says of others must be signed by them, and is dropped at the gate otherwise, as `mesh` does; what
//! it says of itself nobody can check.

use mqtt_st_quic::ids::{BrokerId, OpenNumber, PortId, RootClaim};
use mqtt_st_quic::limits;
use mqtt_st_quic::stp::Bpdu;
use rand::RngExt;

use super::World;
use super::lanes::{Frame, LANES};

/// Old BPDUs that an impostor keeps.
const SAID_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// It is next to the root, wherever it is.
    Near,
    /// Numbers that cannot be, in every field that is its own to fill in.
    Absurd,
    /// There is always a newer epoch somewhere below it.
    HoldEpochs,
    /// There is always a cheaper way below it.
    RequestEpochs,
    /// Others are roots of epochs that they never opened; it cannot sign that.
    Forge,
    /// What it said long ago is true again.
    Replay,
    /// Agreements that nobody made, and the end of others.
    Markers,
}

impl Lie {
    pub const ALL: [Self; 7] =
        [Self::Near, Self::Absurd, Self::HoldEpochs, Self::RequestEpochs, Self::Forge, Self::Replay, Self::Markers];
}

impl World {
    /// Whether the root of the tree that the BPDU names has opened it: what a verified signature says.
    pub(super) fn is_signed(&self, bpdu: &Bpdu) -> bool {
        !self.has_lied || self.signed.contains(&bpdu.tree)
    }

    /// What the impostor says where an honest broker would say `bpdu`.
    pub(super) fn twist(&mut self, broker: usize, port: PortId, lie: Lie, bpdu: Bpdu) -> Bpdu {
        self.has_lied = true;
        let said = &mut self.brokers[broker].said;
        said.push(bpdu);
        if said.len() > SAID_MAX {
            said.remove(0);
        }
        let old = said[self.rng.random_range(0..said.len())];
        match lie {
            Lie::Near => Bpdu { distance: Some(0), hops: 0, ..bpdu },
            Lie::Absurd => self.absurd(bpdu),
            Lie::HoldEpochs => Bpdu { epoch_held: Some(bpdu.tree.epoch + 1), ..bpdu },
            Lie::RequestEpochs => Bpdu { request_epoch: true, ..bpdu },
            Lie::Forge => {
                let victim = self.brokers[self.rng.random_range(0..self.brokers.len())].claim;
                let root = RootClaim { priority: 0, ..victim };
                let epoch = bpdu.tree.epoch + self.rng.random_range(1..1_000);
                Bpdu { tree: mqtt_st_quic::ids::TreeId { epoch, root }, distance: Some(0), ..bpdu }
            }
            Lie::Replay => Bpdu { number: bpdu.number, ..old },
            Lie::Markers => {
                self.write_false_marker(broker, port);
                bpdu
            }
        }
    }

    fn absurd(&mut self, bpdu: Bpdu) -> Bpdu {
        let rng = &mut self.rng;
        let epoch = rng.random_range(0..limits::EPOCH_MAX);
        Bpdu {
            number: if rng.random_bool(0.1) { rng.random() } else { bpdu.number },
            tree: bpdu.tree,
            distance: if rng.random_bool(0.2) { None } else { Some(rng.random()) },
            hops: rng.random(),
            epoch_held: rng.random_bool(0.2).then_some(epoch),
            request_epoch: rng.random(),
        }
    }

    fn write_false_marker(&mut self, broker: usize, port: PortId) {
        let own = self.brokers[broker].claim;
        let rng = &mut self.rng;
        let child = [own.id, port.peer, port.peer, BrokerId(rng.random())][rng.random_range(0..4)];
        let number = OpenNumber { count: rng.random_range(0..20), child, incarnation: own.incarnation };
        let tree = self.brokers[broker].stp.as_ref().expect("who speaks is alive").tree();
        let is_open = self.rng.random();
        let lane = self.rng.random_range(0..LANES);
        let mark = mqtt_st_quic::ids::OpenMark { tree, number };
        let now = self.queue.now();
        self.send(broker, port, lane, now, if is_open { Frame::Open(mark) } else { Frame::Close(number) });
    }
}

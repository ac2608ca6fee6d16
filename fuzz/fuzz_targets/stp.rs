//! Lists of operations on the spanning tree: up to five honest brokers and up to two forgers on a handful of links. Whatever is delivered,
//! confirmed, cut, crashed, measured and forged, and in whatever order: nothing panics, tree ids only grow, nobody asks before its
//! former port is closed, and no honest broker hangs below itself. Without forgers, what comes to rest is the reference tree.

#![no_main]

// What is asserted is asserted in there; the simulator explores the same model.
#[path = "../../tests/sim/stp/model.rs"]
#[allow(dead_code, reason = "the simulator uses the rest")]
mod model;

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use model::{Forgery, Model, Seed, Step};
use mqtt_st_quic::ids::{BrokerId, Incarnation, OpenMark, OpenNumber, RootClaim, TreeId};
use mqtt_st_quic::limits;
use mqtt_st_quic::stp::Bpdu;

/// The bytes, and zeros when they have run out.
struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.next()) % bound
    }
}

fn build(bytes: &mut Bytes<'_>) -> (Model, usize, Vec<(usize, usize, u32)>, u8) {
    let (honest, forgers) = (1 + bytes.below(5), bytes.below(3));
    let ranks = bytes.next();
    let count = honest + forgers;
    let seeds: Vec<Seed> =
        (0..count).map(|broker| Seed { priority: u16::from(ranks >> (broker % 8) & 1), is_forger: broker >= honest }).collect();
    let mut links = Vec::new();
    for a in 0..honest {
        for b in a + 1..count {
            // Honest neighbours in the order of their ids are always linked; the rest as the bytes will.
            let choice = bytes.next();
            if b == a + 1 && b < honest || choice & 1 == 1 {
                links.push((a, b, 1 + u32::from(choice >> 1) % 4));
            }
        }
    }
    let hop_max = if bytes.next() & 7 == 0 { 1 + bytes.next() % 4 } else { u8::MAX };
    (Model::new(&seeds, &links, hop_max), honest, links, hop_max)
}

/// Near to what the broker could believe, or wild.
fn epoch(model: &Model, broker: usize, bytes: &mut Bytes<'_>) -> u64 {
    let present = model.tree(broker).map_or(1, |tree| tree.epoch);
    match bytes.next() {
        choice @ 0..200 => (present + u64::from(choice % 8)).saturating_sub(3),
        200..220 => present + limits::EPOCH_STEP_MAX,
        220..240 => limits::EPOCH_MAX,
        _ => u64::from_be_bytes([0; 8].map(|_: u8| bytes.next())),
    }
}

fn claim(model: &Model, peer: usize, brokers: usize, bytes: &mut Bytes<'_>) -> RootClaim {
    let choice = bytes.next();
    let of = if choice & 1 == 0 { peer } else { usize::from(choice >> 1) % brokers };
    let claim = model.claim(of);
    match bytes.next() {
        0..160 => claim,
        160..200 => RootClaim { priority: 0, ..claim },
        200..230 => RootClaim { incarnation: Incarnation(u64::from(bytes.next())), ..claim },
        _ => RootClaim { capacity: bytes.next(), id: BrokerId(bytes.next().into()), ..claim },
    }
}

fn forgery(model: &Model, link: usize, ends: (usize, usize), end: usize, brokers: usize, bytes: &mut Bytes<'_>) -> Forgery {
    let (broker, peer) = if end == 0 { ends } else { (ends.1, ends.0) };
    let number = |bytes: &mut Bytes<'_>| {
        let choice = bytes.next();
        let open = model.open_number(link, end).filter(|_| choice & 1 == 0);
        open.unwrap_or_else(|| {
            let child = model.claim(if choice & 2 == 0 { peer } else { broker });
            OpenNumber { count: u64::from(bytes.next() % 8), child: child.id, incarnation: child.incarnation }
        })
    };
    match bytes.next() {
        choice @ 0..140 => {
            let tree = TreeId { epoch: epoch(model, broker, bytes), root: claim(model, peer, brokers, bytes) };
            let is_own = tree.root.id == model.claim(peer).id;
            let (distance, hops) = match choice % 8 {
                0 => (Some(u32::MAX - u32::from(bytes.next())), 1 + bytes.next() % 255),
                1 => (Some(u32::from(bytes.next())), bytes.next()),
                2 => (None, bytes.next()),
                _ if is_own => (Some(0), 0),
                _ => (Some(1 + u32::from(bytes.next() % 8)), 1),
            };
            let held = bytes.next();
            let epoch_held = (held & 3 == 3).then(|| epoch(model, broker, bytes));
            // The number orders what one peer says; it counts up unless the bytes will it otherwise.
            let number = if held & 0xF0 == 0xF0 { u64::from(bytes.next()) << 56 } else { (1 << 32) - bytes.0.len() as u64 };
            Forgery::Bpdu(Bpdu { number, tree, distance, hops, epoch_held, request_epoch: held & 4 == 4 })
        }
        140..200 => {
            let tree = model.tree(broker).filter(|_| bytes.next() & 1 == 0);
            let tree = tree.unwrap_or_else(|| TreeId { epoch: epoch(model, broker, bytes), root: model.claim(peer) });
            Forgery::Open(OpenMark { tree, number: number(bytes) })
        }
        _ => Forgery::Close(number(bytes)),
    }
}

fuzz_target!(|input: &[u8]| {
    let mut bytes = Bytes(input.iter());
    let (mut model, honest, links, hop_max) = build(&mut bytes);
    let is_honest = links.iter().all(|&(_, b, _)| b < honest);
    let brokers = links.iter().map(|&(_, b, _)| b + 1).max().unwrap_or(1).max(honest);
    let mut steps = Vec::new();
    while !bytes.0.as_slice().is_empty() {
        let operation = bytes.next();
        steps.clear();
        match operation {
            0..176 => {
                model.own_steps(&mut steps);
                if let Some(&step) = steps.get(usize::from(operation) % steps.len().max(1)) {
                    model.take(step);
                }
            }
            176..192 => {
                model.faults(&mut steps);
                if let Some(&step) = steps.get(bytes.below(steps.len().max(1))) {
                    model.take(step);
                }
            }
            192..200 if !links.is_empty() => {
                let (link, cost) = (bytes.below(links.len()), 1 + u32::from(bytes.next() % 8));
                model.take(Step::Cost { link, cost });
            }
            200..208 => model.wake(bytes.below(honest), Duration::from_millis(bytes.next().into())),
            _ if !is_honest => {
                let link = bytes.below(links.len());
                let (a, b, _) = links[link];
                let forgery = forgery(&model, link, (a, b), 0, brokers, &mut bytes);
                model.forge(link, 0, forgery);
            }
            _ => {}
        }
    }
    if is_honest {
        // Whether it rests in the reference tree depends on the hop limit; that it rests does not.
        for _ in 0..4_000 {
            steps.clear();
            model.own_steps(&mut steps);
            let Some(&step) = steps.first() else { break };
            model.take(step);
        }
        assert!(steps.is_empty(), "the mesh does not come to rest");
        if hop_max == u8::MAX {
            model.assert_at_rest();
        }
    }
});

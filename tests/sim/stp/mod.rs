//! The spanning tree under faults: N real state machines in one world of virtual time.

mod check;
mod world;

use std::time::Duration;

use rand::RngExt;
use rand::seq::IndexedRandom;
use world::{Fault, Pace, World};

use mqtt_st_quic::limits::HOP_MAX;

const EVENTS_MAX: u64 = 100_000;
const MS: Duration = Duration::from_millis(1);

/// Runs the world until it rests, checks every instant and the end.
fn settle(world: &mut World) {
    world.run(EVENTS_MAX, check::no_cycle);
    check::at_rest(world);
}

/// A connected mesh: a random tree and as many links again.
fn random_mesh(seed: u64, count: usize, pace: Pace) -> World {
    let mut world = World::new(seed, count, pace, HOP_MAX);
    let mut pairs = std::collections::BTreeSet::new();
    for broker in 1..count {
        pairs.insert((world.rng.random_range(0..broker), broker));
    }
    for _ in 0..count {
        let (a, b) = (world.rng.random_range(0..count), world.rng.random_range(0..count));
        if a != b {
            pairs.insert((a.min(b), a.max(b)));
        }
    }
    for (a, b) in pairs {
        let costs = random_costs(&mut world, 9);
        world.add_link(a, b, costs);
    }
    world
}

/// Two ends that measure the same link much, but not quite, alike.
fn random_costs(world: &mut World, max: u32) -> [u32; 2] {
    let cost = world.rng.random_range(1..=max);
    [cost, cost + world.rng.random_range(0..2)]
}

fn connect_all(world: &mut World, within: Duration) {
    for link in 0..world.links.len() {
        let delay = within.mul_f64(world.rng.random());
        world.fault_after(delay, Fault::Up(link));
    }
}

/// Faults that overlap each other and the mesh's answer to them.
fn random_faults(world: &mut World, count: u32) {
    let mut at = Duration::ZERO;
    for _ in 0..count {
        at += (MS * 8).mul_f64(world.rng.random());
        let link = world.rng.random_range(0..world.links.len());
        let broker = world.rng.random_range(0..world.brokers.len());
        match world.rng.random_range(0..10) {
            0..4 => {
                let costs = random_costs(world, 30);
                world.fault_after(at, Fault::Cost(link, costs));
            }
            4..6 => world.fault_after(at, Fault::Down(link)),
            6..8 => world.fault_after(at, Fault::Up(link)),
            8 => crash_and_return(world, at, broker),
            _ => partition(world, at),
        }
    }
}

fn crash_and_return(world: &mut World, at: Duration, broker: usize) {
    world.fault_after(at, Fault::Crash(broker));
    let back_at = at + (MS * 15).mul_f64(world.rng.random());
    world.fault_after(back_at, Fault::Start(broker));
    for link in 0..world.links.len() {
        if world.links[link].ends.contains(&broker) {
            let up_at = back_at + (MS * 15).mul_f64(world.rng.random());
            world.fault_after(up_at, Fault::Up(link));
        }
    }
}

/// Cuts every link between two random halves, and heals most of the cut a little later.
fn partition(world: &mut World, at: Duration) {
    let sides: Vec<bool> = world.brokers.iter().map(|_| false).collect();
    let sides: Vec<bool> = sides.into_iter().map(|_| world.rng.random()).collect();
    let healed_at = at + (MS * 40).mul_f64(world.rng.random());
    for link in 0..world.links.len() {
        let [a, b] = world.links[link].ends;
        if sides[a] != sides[b] {
            world.fault_after(at, Fault::Down(link));
            if world.rng.random_bool(0.8) {
                world.fault_after(healed_at, Fault::Up(link));
            }
        }
    }
}

/// Links as pairs, all of one cost and up at once.
fn regular_mesh(seed: u64, count: usize, hop_max: u8, pairs: impl IntoIterator<Item = (usize, usize)>) -> World {
    let mut world = World::new(seed, count, Pace::CALM, hop_max);
    for (a, b) in pairs {
        let link = world.add_link(a, b, [1, 1]);
        world.fault_after(Duration::ZERO, Fault::Up(link));
    }
    world
}

fn all_pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(|b| (0..b).map(move |a| (a, b)))
}

fn chain(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (1..count).map(|b| (b - 1, b))
}

fn cycle(count: usize) -> impl Iterator<Item = (usize, usize)> {
    chain(count).chain([(0, count - 1)])
}

fn root(world: &World) -> usize {
    world.brokers.iter().position(|broker| broker.stp.as_ref().is_some_and(|stp| stp.is_root())).expect("there is a root")
}

/// How long the last change took to settle, with what it cost.
fn settle_and_tell(world: &mut World, what: &str) -> Duration {
    let begun_at = world.elapsed();
    world.reset_counts();
    settle(world);
    let took = world.counts.settled_at - begun_at;
    println!("{what}: settled in {took:.1?}, {:?}", world.counts);
    took
}

fn run_faults(seed: u64) -> World {
    let count = *[4, 6, 9, 16].choose(&mut World::new(seed, 1, Pace::HASTY, HOP_MAX).rng).expect("not empty");
    let mut world = random_mesh(seed, count, Pace::HASTY);
    connect_all(&mut world, MS * 10);
    random_faults(&mut world, 25);
    settle(&mut world);
    for broker in 0..count {
        world.fault_after(Duration::ZERO, Fault::Start(broker));
    }
    connect_all(&mut world, MS);
    settle(&mut world);
    assert_eq!(check::components(&world).len(), 1);
    world
}

#[test]
fn faults_make_no_cycle_and_end_in_the_best_tree() {
    let fresh = std::env::var("STP_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().expect("STP_SEED is a number"));
    println!("fresh seed: STP_SEED={fresh}");
    for seed in (0..1_000).chain([fresh]) {
        println!("seed {seed}");
        let world = run_faults(seed);
        println!("seed {seed}: {} brokers, {:?}", world.brokers.len(), world.counts);
    }
}

#[test]
fn meshes_form_and_heal() {
    let shapes: [(&str, usize, Vec<(usize, usize)>); 5] = [
        ("full mesh of 5", 5, all_pairs(5).collect()),
        ("cycle of 4", 4, cycle(4).collect()),
        ("cycle of 9", 9, cycle(9).collect()),
        ("chain of 16", 16, chain(16).collect()),
        ("full mesh of 16", 16, all_pairs(16).collect()),
    ];
    for (shape, count, pairs) in shapes {
        for seed in 0..20 {
            let mut world = regular_mesh(seed, count, HOP_MAX, pairs.clone());
            settle_and_tell(&mut world, &format!("{shape}: cold start"));
            let link = world.rng.random_range(0..world.links.len());
            world.fault_after(Duration::ZERO, Fault::Down(link));
            settle_and_tell(&mut world, &format!("{shape}: link lost"));
            world.fault_after(Duration::ZERO, Fault::Up(link));
            settle_and_tell(&mut world, &format!("{shape}: link back"));
            let dead = root(&world);
            world.fault_after(Duration::ZERO, Fault::Crash(dead));
            settle_and_tell(&mut world, &format!("{shape}: root lost"));
            let links = world
                .links
                .iter()
                .enumerate()
                .filter(|(_, link)| link.ends.contains(&dead))
                .map(|(link, _)| link)
                .collect::<Vec<_>>();
            world.fault_after(Duration::ZERO, Fault::Start(dead));
            for link in links {
                world.fault_after(Duration::ZERO, Fault::Up(link));
            }
            settle_and_tell(&mut world, &format!("{shape}: root back"));
        }
    }
    for seed in 0..5 {
        let mut world = random_mesh(seed, 200, Pace::CALM);
        connect_all(&mut world, MS);
        settle_and_tell(&mut world, "random 200: cold start");
        for _ in 0..5 {
            let link = world.rng.random_range(0..world.links.len());
            world.fault_after(Duration::ZERO, Fault::Down(link));
            settle_and_tell(&mut world, "random 200: link lost");
            world.fault_after(Duration::ZERO, Fault::Up(link));
            settle_and_tell(&mut world, "random 200: link back");
        }
        let dead = root(&world);
        world.fault_after(Duration::ZERO, Fault::Crash(dead));
        settle_and_tell(&mut world, "random 200: root lost");
    }
}

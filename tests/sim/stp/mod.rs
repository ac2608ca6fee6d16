//! The spanning tree under faults: N real state machines in one world of virtual time. `STP_SEED=n` in the environment runs that seed.

#[allow(dead_code, unused_imports, reason = "the example and the text scenarios use the rest")]
pub mod world;

use std::time::Duration;

use mqtt_st_quic::limits::HOP_MAX;
use mqtt_st_quic::stp::Stp;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use world::{Counts, Fault, Settings, World, check};

const EVENTS_MAX: u64 = 100_000;
const MS: Duration = Duration::from_millis(1);

/// Runs the world until it rests, checks every instant and the end.
fn settle(world: &mut World) {
    world.run(EVENTS_MAX);
    check::at_rest(world);
}

/// A connected mesh: a random tree and as many links again.
fn random_mesh(settings: Settings, count: usize) -> World {
    let mut world = World::new(settings, count);
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
    let sides: Vec<bool> = (0..world.brokers.len()).map(|_| world.rng.random()).collect();
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
    let mut world = World::new(Settings { hop_max, ..Settings::calm(seed) }, count);
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

/// Runs until the mesh rests again, and prints how long that took and what it cost.
fn settle_and_tell(world: &mut World, what: &str) -> (Duration, Counts) {
    let begun_at = world.elapsed();
    world.reset_counts();
    settle(world);
    let took = world.counts.settled_at - begun_at;
    println!("{what}: settled in {took:.1?}, {:?}", world.counts);
    (took, world.counts)
}

fn run_faults(seed: u64) -> World {
    let count = *[4, 6, 9, 16].choose(&mut SmallRng::seed_from_u64(seed)).expect("not empty");
    let mut world = random_mesh(Settings::hasty(seed), count);
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
    for seed in (0..1_000).chain([fresh]) {
        println!("STP_SEED={seed}");
        let world = run_faults(seed);
        println!("{} brokers, {:?}", world.brokers.len(), world.counts);
    }
}

/// Every shape forms from cold, loses a link and its root, and gets them back. Bounds are in link delays of 1 ms, and wide: what is
/// measured is printed.
#[test]
fn meshes_form_and_heal() {
    let shapes = [
        ("full mesh of 5", 5, all_pairs(5).collect::<Vec<_>>()),
        ("full mesh of 16", 16, all_pairs(16).collect()),
        ("cycle of 4", 4, cycle(4).collect()),
        ("cycle of 9", 9, cycle(9).collect()),
        ("chain of 16", 16, chain(16).collect()),
    ];
    for (shape, count, pairs) in shapes {
        let settled_max = MS * 10 * u32::try_from(count).expect("few");
        for seed in 0..20 {
            let mut world = regular_mesh(seed, count, HOP_MAX, pairs.clone());
            let mut step = |what: &str, faults: &dyn Fn(&mut World)| {
                faults(&mut world);
                let (took, _) = settle_and_tell(&mut world, &format!("{shape}, seed {seed}: {what}"));
                assert!(took < settled_max, "{took:?}");
            };
            step("cold start", &|_| {});
            step("a link lost", &|world| world.fault_after(Duration::ZERO, Fault::Down(0)));
            step("the link back", &|world| world.fault_after(Duration::ZERO, Fault::Up(0)));
            step("the root lost", &|world| world.fault_after(Duration::ZERO, Fault::Crash(world.best())));
            step("the root back", &|world| {
                world.fault_after(Duration::ZERO, Fault::Start(world.best()));
                connect_all(world, Duration::ZERO);
            });
        }
    }
}

/// The loss of one link is nothing to those who had another way, however large the mesh: the mean over many links moves few brokers.
#[test]
fn a_lost_link_moves_only_those_that_lose_their_way() {
    const BROKERS: usize = 200;
    let mut moves = Vec::new();
    for seed in 0..5 {
        let mut world = random_mesh(Settings::calm(seed), BROKERS);
        connect_all(&mut world, MS);
        settle_and_tell(&mut world, &format!("random {BROKERS}, seed {seed}: cold start"));
        for _ in 0..10 {
            let link = world.rng.random_range(0..world.links.len());
            world.fault_after(Duration::ZERO, Fault::Down(link));
            let (_, counts) = settle_and_tell(&mut world, "a link lost");
            moves.push(counts.moves);
            world.fault_after(Duration::ZERO, Fault::Up(link));
            settle_and_tell(&mut world, "the link back");
        }
        world.fault_after(Duration::ZERO, Fault::Crash(world.best()));
        settle_and_tell(&mut world, "the root lost");
    }
    let mean = moves.iter().sum::<u64>() / moves.len() as u64;
    assert!(mean < BROKERS as u64 / 10, "{moves:?}");
}

/// A chain that is longer than the hop limit falls into trees of their own, and opens no epoch over it; a short cut joins them.
#[test]
fn brokers_beyond_the_hop_limit_stay_outside_until_a_shorter_way_comes() {
    for seed in 0..50 {
        let mut world = regular_mesh(seed, 8, 2, chain(8));
        world.run(EVENTS_MAX);
        let outside = |world: &World| world.brokers.iter().filter_map(|broker| broker.stp.as_ref()).any(Stp::is_out_of_reach);
        assert!(outside(&world), "seed {seed}");
        let root = world.best();
        for broker in 0..8 {
            if root.abs_diff(broker) > 1 {
                let link = world.add_link(root, broker, [1, 1]);
                world.fault_after(Duration::ZERO, Fault::Up(link));
            }
        }
        settle(&mut world);
        assert!(!outside(&world), "seed {seed}");
    }
}

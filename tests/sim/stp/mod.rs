//! The spanning tree under faults: N real state machines in one world of virtual time. `STP_SEED=n` in the environment runs that seed alone.

pub mod course;
mod explore;
#[allow(dead_code, reason = "the fuzz target uses the rest")]
mod model;
pub mod phases;
pub(crate) mod scenario;
pub mod topology;
#[allow(dead_code, unused_imports, reason = "the example and the text scenarios use the rest")]
pub mod world;

use std::time::Duration;

use course::{EVENTS_MAX, Plan, connect_all};
use mqtt_st_quic::ids::{BrokerId, Incarnation, RootClaim};
use mqtt_st_quic::limits::HOP_MAX;
use mqtt_st_quic::stp::{Role, Stp};
use phases::Phase;
use rand::RngExt;
use topology::{Shape, mesh};
use world::{Counts, Fault, Lie, Loss, Notice, Path, Settings, World, check};

const MS: Duration = Duration::from_millis(1);
/// Seeds that nobody has seen.
const FRESH_RUNS: u64 = 300;

/// Runs the world until it rests, checks every instant and the end.
fn settle(world: &mut World) {
    world.run(EVENTS_MAX);
    check::at_rest(world);
}

/// Links as pairs, all of one cost and up at once.
fn regular_mesh(settings: Settings, count: usize, pairs: impl IntoIterator<Item = (usize, usize)>) -> World {
    let mut world = World::new(settings, count);
    for (a, b) in pairs {
        let link = world.add_link(a, b, [1, 1]);
        world.fault_after(Duration::ZERO, Fault::Up(link));
    }
    world
}

/// Brokers of which the lower index is the better root.
fn ranked(settings: Settings, count: u16) -> World {
    let claim = |n: u16| RootClaim { priority: n, capacity: 0, id: BrokerId(u64::from(n) + 1), incarnation: Incarnation(1_000) };
    World::with_claims(settings, &(0..count).map(claim).collect::<Vec<_>>())
}

fn chain(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (1..count).map(|b| (b - 1, b))
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

#[test]
fn faults_make_no_cycle_and_end_in_the_best_tree() {
    let plan = Plan { faults: 25, ..Plan::default() };
    let run = |seed: u64| {
        println!("STP_SEED={seed}");
        let world = course::run(seed, &plan);
        println!("{} brokers, {} links, {:?}", world.brokers.len(), world.links.len(), world.counts);
    };
    match std::env::var("STP_SEED") {
        Ok(seed) => run(seed.parse().expect("STP_SEED is a number")),
        Err(_) => (0..FRESH_RUNS).for_each(|_| run(rand::random())),
    }
}

/// Every shape forms from cold, loses a link and its root, gets them back, falls into two parts and is joined. Bounds are wide: what is
/// measured is printed.
#[test]
fn meshes_form_and_heal() {
    for shape in Shape::ALL {
        for (count, seed) in [(4, 1), (9, 2), (16, 3), (40, 4)] {
            for settings in [Settings::calm(seed), Settings::broker(seed)] {
                let detection = if settings.notice == Notice::Watched { settings.hello * 10 } else { Duration::ZERO };
                for measured in phases::run(settings, shape, count) {
                    let (name, took, counts) = (measured.phase.name(), measured.convergence, measured.counts);
                    println!("{shape} of {count}, seed {seed}, {name}: healed in {:.1?}, {took:.1?}, {counts:?}", measured.healing);
                    let is_quiet_loss = settings.notice == Notice::Watched
                        && measured.phase == Phase::LinkLost
                        && matches!(shape, Shape::Cycle | Shape::Full);
                    let noticed_after = if is_quiet_loss { 2 * settings.hello } else { Duration::ZERO };
                    assert!((noticed_after..=took).contains(&measured.healing), "{name}: {:?} of {took:?}", measured.healing);
                    assert!(
                        measured.settled.len() == count && measured.settled.last() >= Some(&took),
                        "ports change with their brokers"
                    );
                    let bound = MS * 20 * u32::try_from(count).expect("few") + detection + 4 * settings.epoch_interval;
                    assert!(took < bound, "{shape} of {count}, seed {seed}, {name}: {took:.1?}");
                }
            }
        }
    }
}

/// The loss of one link is nothing to those who had another way, however large the mesh: the mean over many links moves few brokers.
#[test]
fn a_lost_link_moves_only_those_that_lose_their_way() {
    const BROKERS: usize = 200;
    let mut moves = Vec::new();
    for seed in 0..5 {
        let mut world = mesh(Settings::calm(seed), Shape::Random, BROKERS);
        connect_all(&mut world, MS);
        settle_and_tell(&mut world, &format!("random {BROKERS}, seed {seed}: cold start"));
        for _ in 0..10 {
            let link = world.rng.random_range(0..world.links.len());
            let carried = world.port_state(link, 0).1;
            world.fault_after(Duration::ZERO, Fault::Down(link));
            let (_, counts) = settle_and_tell(&mut world, "a link lost");
            assert!(carried || (counts.moves, counts.trees) == (0, 0), "a link that carried nothing moved {counts:?}");
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
        let mut world = regular_mesh(Settings { hop_max: 2, ..Settings::calm(seed) }, 8, chain(8));
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

/// The longest chain that the hop limit allows forms one tree.
#[test]
fn the_longest_ways_are_lines_of_256() {
    let mut world = ranked(Settings::calm(7), u16::from(HOP_MAX) + 1);
    for (a, b) in chain(world.brokers.len()) {
        let link = world.add_link(a, b, [1, 1]);
        world.fault_after(Duration::ZERO, Fault::Up(link));
    }
    settle_and_tell(&mut world, "a line of 256");
    assert_eq!(check::components(&world).len(), 1);
}

/// A cut in one direction alone is noticed at both ends, and data goes the other way round.
#[test]
fn a_one_way_cut_is_noticed_at_both_ends() {
    for end in [0, 1] {
        let mut world = ranked(Settings::broker(11), 3);
        for (a, b) in [(0, 1), (1, 2), (0, 2)] {
            let link = world.add_link(a, b, [1, 1]);
            world.fault_after(Duration::ZERO, Fault::Up(link));
        }
        settle_and_tell(&mut world, "three brokers");
        assert_eq!((world.parent(1), world.port_state(0, 0)), (Some(0), (Role::Designated, true)));
        world.fault_after(Duration::ZERO, Fault::CutFrom(0, end));
        let (took, counts) = settle_and_tell(&mut world, &format!("cut from end {end}"));
        assert_eq!(
            (world.parent(1), world.port_state(0, 0).0, world.port_state(0, 1).0),
            (Some(2), Role::Disabled, Role::Disabled)
        );
        assert!(counts.detections > 0 && counts.false_alarms == 0 && took < 15 * world.settings.hello, "{took:?}, {counts:?}");
    }
}

/// Links that lose every fifth packet or are far away raise no false alarm in a minute, so that nothing moves.
#[test]
fn bad_links_do_not_flap() {
    let far = Path { spike: 30 * MS, ..Path::calm(150 * MS) };
    let lossy = Path { loss: Loss::uniform(0.2), duplicates: 0.05, ..Path::calm(MS) };
    for (what, path) in [("20 % loss", lossy), ("300 ms RTT", far)] {
        let mut world = mesh(Settings { path, ..Settings::broker(rand::random()) }, Shape::Cycle, 5);
        println!("{what}: seed {}", world.settings.seed);
        connect_all(&mut world, MS);
        settle_and_tell(&mut world, what);
        // Until loss has been measured, a detector knows nothing of it.
        world.run_until(Duration::from_secs(10));
        world.run(EVENTS_MAX);
        world.reset_counts();
        world.run_until(Duration::from_secs(70));
        println!("{what}: {:?}", world.counts);
        assert_eq!(world.counts.false_alarms, 0, "{what}");
    }
}

/// A round trip that changes changes the cost of its link, and with it the way.
#[test]
fn a_way_that_becomes_long_is_left() {
    let mut world = ranked(Settings::broker(5), 3);
    for (a, b) in [(0, 1), (1, 2), (0, 2)] {
        let link = world.add_link(a, b, [1, 1]);
        world.fault_after(Duration::ZERO, Fault::Up(link));
    }
    settle(&mut world);
    assert_eq!(world.parent(2), Some(0));
    world.fault_after(Duration::ZERO, Fault::Path(2, Path::calm(40 * MS)));
    world.run_until(world.elapsed() + Duration::from_secs(25));
    settle_and_tell(&mut world, "80 ms where there were 2");
    assert_eq!((world.parent(2), world.counts.false_alarms), (Some(1), 0));
}

/// A broker that lost its disk, and whose clock went back, learns from its peers what it has been; its former claims bind nobody.
#[test]
fn a_clock_that_went_back_makes_no_ghost() {
    for (clock, disk) in [(true, true), (true, false), (false, true)] {
        let mut world = ranked(Settings::calm(3), 4);
        let links: Vec<usize> = [(0, 1), (1, 2), (2, 3), (0, 3)].map(|(a, b)| world.add_link(a, b, [1, 1])).into();
        connect_all(&mut world, MS);
        settle(&mut world);
        let former = world.brokers[0].claim.incarnation;
        world.fault_after(MS, Fault::Crash(0));
        if clock {
            world.fault_after(MS, Fault::ClockBack(0, MS * 500));
        }
        if disk {
            world.fault_after(MS, Fault::LoseDisk(0));
        }
        world.fault_after(MS * 2, Fault::Start(0));
        for &link in &links {
            world.fault_after(MS * 3, Fault::Up(link));
        }
        settle(&mut world);
        assert!(world.brokers[0].claim.incarnation > former, "clock back {clock}, disk lost {disk}");
        assert_eq!(world.counts.raised, u64::from(clock && disk));
        assert_eq!((0..4).map(|broker| world.root(broker)).collect::<Vec<_>>(), [Some(0); 4]);
    }
}

/// A member that lies about what only it can know makes no cycle among the others; those whose way does not lead through it stay in the tree
/// of the best root; what it says of others is dropped.
#[test]
fn an_impostor_harms_only_those_below_it() {
    for lie in Lie::ALL {
        for seed in (0..8).chain([rand::random()]) {
            let shape = Shape::ALL[usize::try_from(seed % 7).expect("small")];
            println!("{lie:?} in {shape}, seed {seed}");
            let mut world = mesh(Settings { epoch_interval: Duration::from_secs(1), ..Settings::hasty(seed) }, shape, 12);
            let liar = (0..12).min_by_key(|&broker| world.brokers[broker].claim).expect("there are brokers");
            world.fault_after(Duration::ZERO, Fault::Lie(liar, Some(lie)));
            connect_all(&mut world, MS * 10);
            course::faults(&mut world, 10, MS * 8);
            world.run_until(Duration::from_secs(3));
            check::honest(&world);
            println!("{:?}", world.counts);
            assert!(lie != Lie::Forge || world.counts.forgeries > 0);
        }
    }
}

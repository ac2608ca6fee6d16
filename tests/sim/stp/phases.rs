//! What is measured of a mesh: it forms, loses a link and its root, gets the root back, falls into two parts and is joined again; between any
//! two of these it comes to rest, and is checked.

use std::time::Duration;

use rand::RngExt;
use rand::seq::IndexedRandom;

use super::course::EVENTS_MAX;
use super::topology::{Shape, mesh};
use super::world::{Counts, Fault, Notice, Settings, World, check};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// All brokers and links come up within a hello time.
    ColdStart,
    /// A link of the tree is cut.
    LinkLost,
    /// The root is killed.
    RootLost,
    RootBack,
    /// About half of the mesh is cut off.
    Partition,
    Merge,
}

impl Phase {
    pub const ALL: [Self; 6] = [Self::ColdStart, Self::LinkLost, Self::RootLost, Self::RootBack, Self::Partition, Self::Merge];

    pub fn name(self) -> &'static str {
        match self {
            Self::ColdStart => "cold start",
            Self::LinkLost => "link lost",
            Self::RootLost => "root lost",
            Self::RootBack => "root back",
            Self::Partition => "partition",
            Self::Merge => "merge",
        }
    }
}

/// What one phase took.
#[derive(Clone, Debug)]
pub struct Measured {
    pub phase: Phase,
    /// From what happened until data reached everybody again: with detection, where ends detect by themselves.
    pub healing: Duration,
    /// Until the last change of a port's role or state: a cheaper way that only a new epoch allows is taken an interval later.
    pub convergence: Duration,
    pub counts: Counts,
    /// When each broker changed for the last time, in order.
    pub settled: Vec<Duration>,
}

/// Takes a mesh through all phases.
pub fn run(settings: Settings, shape: Shape, count: usize) -> Vec<Measured> {
    let mut world = mesh(settings, shape, count);
    let mut lost = None;
    let mut crossing = Vec::new();
    let measure = |phase: Phase| {
        match phase {
            Phase::ColdStart => {
                for link in 0..world.links.len() {
                    let delay = settings.hello.mul_f64(world.rng.random());
                    world.fault_after(delay, Fault::Up(link));
                }
            }
            Phase::LinkLost => {
                // A link about which little is known is waited for longer.
                let known_at = world.elapsed() + 50 * settings.hello;
                world.run_until(known_at);
                world.run(EVENTS_MAX);
                let link = tree_link(&mut world);
                world.fault_after(Duration::ZERO, Fault::Down(link));
                lost = Some(link);
            }
            Phase::RootLost => {
                lost.into_iter().for_each(|link| world.fault_after(Duration::ZERO, Fault::Up(link)));
                world.run(EVENTS_MAX);
                world.fault_after(Duration::ZERO, Fault::Crash(world.best()));
            }
            Phase::RootBack => {
                let root = world.best();
                world.fault_after(Duration::ZERO, Fault::Start(root));
                for link in world.links_of[root].clone() {
                    world.fault_after(Duration::ZERO, Fault::Up(link));
                }
            }
            Phase::Partition => {
                let inside = half(&mut world);
                crossing = world.partition_after(Duration::ZERO, |broker| inside[broker]);
            }
            Phase::Merge => {
                for link in std::mem::take(&mut crossing) {
                    world.fault_after(Duration::ZERO, Fault::Up(link));
                }
            }
        }
        settle(&mut world, phase)
    };
    Phase::ALL.map(measure).into()
}

fn settle(world: &mut World, phase: Phase) -> Measured {
    let begun_at = world.elapsed();
    world.reset_counts();
    world.run(EVENTS_MAX);
    check::at_rest(world);
    let (counts, healed_at) = (world.counts, world.healed_at());
    check_calm(world, phase);
    let mut settled: Vec<Duration> = world.brokers.iter().map(|broker| broker.changed_at.saturating_sub(begun_at)).collect();
    settled.sort_unstable();
    check::messages(world, EVENTS_MAX);
    if world.settings.notice == Notice::Watched {
        check::stays_at_rest(world, 10 * world.settings.hello);
    }
    Measured { phase, healing: healed_at.saturating_sub(begun_at), convergence: counts.settled_at - begun_at, counts, settled }
}

/// No storm: what a change costs is bounded by the links and by how often brokers can change their mind.
fn check_calm(world: &World, phase: Phase) {
    let (links, changes) = (world.links.len() as u64, world.counts.trees + world.counts.moves);
    let degree_max = world.links_of.iter().map(Vec::len).max().unwrap_or(0) as u64;
    let bound = 4 * links + 8 * (changes + 1) * degree_max.max(2);
    assert!(world.counts.bpdus <= bound, "{}: {} BPDUs on {links} links, {:?}", phase.name(), world.counts.bpdus, world.counts);
}

/// A link that carries data.
fn tree_link(world: &mut World) -> usize {
    let forwarding: Vec<usize> = (0..world.links.len()).filter(|&link| world.port_state(link, 0).1).collect();
    *forwarding.choose(&mut world.rng).expect("a mesh has a tree")
}

/// About half of the brokers, linked with each other as far as the mesh allows.
fn half(world: &mut World) -> Vec<bool> {
    let count = world.brokers.len();
    let mut is_inside = vec![false; count];
    let mut border = vec![world.rng.random_range(0..count)];
    let mut inside = 0;
    while inside < count / 2 {
        let at = border.swap_remove(world.rng.random_range(0..border.len()));
        if std::mem::replace(&mut is_inside[at], true) {
            continue;
        }
        inside += 1;
        border.extend(world.links_of[at].iter().map(|&link| world.links[link].ends[usize::from(world.links[link].ends[0] == at)]));
    }
    is_inside
}

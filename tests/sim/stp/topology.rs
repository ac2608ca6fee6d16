//! Shapes of meshes.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use rand::rngs::SmallRng;

use super::world::{Settings, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    Line,
    Cycle,
    Grid,
    Star,
    Full,
    /// A random tree and as many links again.
    Random,
    /// Everybody who comes links with two that have many links already (Barabási and Albert).
    ScaleFree,
}

impl Shape {
    pub const ALL: [Self; 7] = [Self::Line, Self::Cycle, Self::Grid, Self::Star, Self::Full, Self::Random, Self::ScaleFree];

    pub fn name(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::Cycle => "cycle",
            Self::Grid => "grid",
            Self::Star => "star",
            Self::Full => "full",
            Self::Random => "random",
            Self::ScaleFree => "scale-free",
        }
    }

    /// As large as it is simulated: a way may be 255 links long, and full meshes are small (`mesh.max_links`).
    pub fn brokers_max(self) -> usize {
        match self {
            Self::Line | Self::Cycle => 200,
            Self::Full => 64,
            Self::Grid | Self::Star | Self::Random | Self::ScaleFree => 1_000,
        }
    }

    pub fn pairs(self, count: usize, rng: &mut SmallRng) -> Vec<(usize, usize)> {
        match self {
            Self::Line => (1..count).map(|b| (b - 1, b)).collect(),
            Self::Cycle if count > 2 => (1..count).map(|b| (b - 1, b)).chain([(0, count - 1)]).collect(),
            Self::Cycle => Self::Line.pairs(count, rng),
            Self::Grid => grid(count),
            Self::Star => (1..count).map(|b| (0, b)).collect(),
            Self::Full => (0..count).flat_map(|b| (0..b).map(move |a| (a, b))).collect(),
            Self::Random => random(count, rng),
            Self::ScaleFree => scale_free(count, rng),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|shape| shape.name() == text)
            .ok_or_else(|| format!("no topology {text:?}: there are {}", names()))
    }
}

fn grid(count: usize) -> Vec<(usize, usize)> {
    let width = (1..).find(|width| width * width >= count).expect("numbers go on");
    let across = (0..count).filter(|b| b % width > 0).map(|b| (b - 1, b));
    across.chain((width..count).map(|b| (b - width, b))).collect()
}

fn random(count: usize, rng: &mut SmallRng) -> Vec<(usize, usize)> {
    let mut pairs: BTreeSet<_> = (1..count).map(|broker| (rng.random_range(0..broker), broker)).collect();
    for _ in 0..count {
        let (a, b) = (rng.random_range(0..count), rng.random_range(0..count));
        if a != b {
            pairs.insert((a.min(b), a.max(b)));
        }
    }
    pairs.into_iter().collect()
}

fn scale_free(count: usize, rng: &mut SmallRng) -> Vec<(usize, usize)> {
    let mut pairs: Vec<(usize, usize)> = if count > 1 { vec![(0, 1)] } else { Vec::new() };
    for broker in 2..count {
        let mut chosen = BTreeSet::new();
        while chosen.len() < 2 {
            let (a, b) = pairs[rng.random_range(0..pairs.len())];
            chosen.insert(if rng.random() { a } else { b });
        }
        pairs.extend(chosen.into_iter().map(|former| (former, broker)));
    }
    pairs
}

/// A mesh of this shape, all links cut, of costs up to 9.
pub fn mesh(settings: Settings, shape: Shape, count: usize) -> World {
    let mut world = World::new(settings, count);
    for (a, b) in shape.pairs(count, &mut world.rng) {
        let costs = random_costs(&mut world, 9);
        world.add_link(a, b, costs);
    }
    world
}

/// Two ends that measure the same link much, but not quite, alike.
pub fn random_costs(world: &mut World, max: u32) -> [u32; 2] {
    let cost = world.rng.random_range(1..=max);
    [cost, cost + world.rng.random_range(0..2)]
}

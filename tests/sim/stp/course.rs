//! A random course: a mesh of some shape forms, suffers faults that overlap each other and its answers to them, and is mended. Everything
//! follows from the seed.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::topology::{Shape, mesh, random_costs};
use super::world::{Fault, Lie, Loss, Notice, Path, Settings, World, check};

/// A run that takes more is taken for one without end.
pub const EVENTS_MAX: u64 = 20_000_000;

/// What a course is made of; what is not said is drawn from the seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    pub shape: Option<Shape>,
    /// Least and greatest number of brokers.
    pub brokers: Option<(usize, usize)>,
    pub faults: u32,
}

/// Runs a course, checks every instant, every rest and the end.
pub fn run(seed: u64, plan: &Plan) -> World {
    // Not the sequence that the world draws from.
    let mut rng = SmallRng::seed_from_u64(seed.rotate_left(32));
    let shape = plan.shape.unwrap_or_else(|| *Shape::ALL.choose(&mut rng).expect("there are shapes"));
    let (least, most) = plan.brokers.unwrap_or((3, 64));
    // As many small meshes as large ones.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a random number")]
    let count = ((least as f64) * (most as f64 / least as f64).powf(rng.random())).round() as usize;
    let count = count.min(shape.brokers_max());
    let is_watched = rng.random_bool(0.25);
    let settings =
        if is_watched { Settings { path: random_path(&mut rng), ..Settings::broker(seed) } } else { Settings::hasty(seed) };
    let mut world = mesh(settings, shape, count);
    // Where faults are as quick as the mesh's answers, or as its detection.
    let pace = if is_watched { Duration::from_millis(200) } else { Duration::from_millis(8) };
    connect_all(&mut world, pace);
    if rng.random_bool(0.1) {
        lie_for_a_while(&mut world, pace);
    }
    faults(&mut world, plan.faults, pace);
    if !is_watched || rng.random() {
        world.run(EVENTS_MAX);
        check::at_rest(&world);
    } else {
        // All faults have happened, and not all are noticed.
        let until = world.elapsed() + pace * (plan.faults + 10);
        world.run_until(until);
    }
    mend_all(&mut world, pace);
    check::messages(&mut world, EVENTS_MAX);
    assert_eq!(check::components(&world).len(), 1);
    world
}

/// Everybody starts, everything is linked, and nobody lies or loses packets any more.
fn mend_all(world: &mut World, within: Duration) {
    for broker in 0..world.brokers.len() {
        world.fault_after(Duration::ZERO, Fault::Start(broker));
    }
    for link in 0..world.links.len() {
        let path = Path { loss: Loss::NONE, ..world.links[link].path };
        world.fault_after(Duration::ZERO, Fault::Path(link, path));
    }
    connect_all(world, within);
    world.run(EVENTS_MAX);
    check::at_rest(world);
}

pub fn connect_all(world: &mut World, within: Duration) {
    for link in 0..world.links.len() {
        let delay = within.mul_f64(world.rng.random());
        world.fault_after(delay, Fault::Up(link));
    }
}

fn random_path(rng: &mut SmallRng) -> Path {
    let path = Path::calm(Duration::from_micros(rng.random_range(100..40_000)));
    let bursts = Loss { good: 0.0, bad: 0.5, to_bad: 0.01, to_good: 0.2 };
    let loss = *[Loss::NONE, Loss::uniform(0.01), Loss::uniform(0.2), bursts].choose(rng).expect("not empty");
    let duplicates = if rng.random() { 0.05 } else { 0.0 };
    let spike = if rng.random() { path.delay * 3 } else { Duration::ZERO };
    Path { loss, duplicates, spike, ..path }
}

/// Schedules faults, each a random while after the one before.
pub fn faults(world: &mut World, count: u32, pace: Duration) {
    let mut at = Duration::ZERO;
    for _ in 0..count {
        at += pace.mul_f64(world.rng.random());
        let link = world.rng.random_range(0..world.links.len());
        let broker = world.rng.random_range(0..world.brokers.len());
        match world.rng.random_range(0..20) {
            0..6 => {
                let costs = random_costs(world, 30);
                world.fault_after(at, Fault::Cost(link, costs));
            }
            6..9 => world.fault_after(at, Fault::Down(link)),
            9..12 => world.fault_after(at, Fault::Up(link)),
            12 => world.fault_after(at, Fault::CutFrom(link, broker % 2)),
            13 => flap(world, at, link, pace),
            14 => world.publish_after(at, broker),
            15 => change_path(world, at, link),
            16..19 => crash_and_return(world, at, broker, pace),
            _ => partition(world, at, pace),
        }
        world.publish_after(at, broker);
    }
}

fn flap(world: &mut World, at: Duration, link: usize, pace: Duration) {
    for n in 0..6 {
        let fault = if n % 2 == 0 { Fault::Down(link) } else { Fault::Up(link) };
        world.fault_after(at + pace * n / 2, fault);
    }
}

fn change_path(world: &mut World, at: Duration, link: usize) {
    let path = if world.settings.notice == Notice::Watched {
        random_path(&mut world.rng)
    } else {
        Path { duplicates: 0.3, ..Path::HASTY }
    };
    world.fault_after(at, Fault::Path(link, path));
}

fn crash_and_return(world: &mut World, at: Duration, broker: usize, pace: Duration) {
    world.fault_after(at, Fault::Crash(broker));
    match world.rng.random_range(0..4) {
        0 => world.fault_after(at, Fault::ClockBack(broker, Duration::from_secs(5))),
        1 => world.fault_after(at, Fault::LoseDisk(broker)),
        2 => {
            world.fault_after(at, Fault::ClockBack(broker, Duration::from_millis(20)));
            world.fault_after(at, Fault::LoseDisk(broker));
        }
        _ => {}
    }
    let back_at = at + (pace * 2).mul_f64(world.rng.random());
    world.fault_after(back_at, Fault::Start(broker));
    for link in world.links_of[broker].clone() {
        let up_at = back_at + (pace * 2).mul_f64(world.rng.random());
        world.fault_after(up_at, Fault::Up(link));
    }
}

/// Cuts every link between two random halves, and heals most of the cut a little later.
fn partition(world: &mut World, at: Duration, pace: Duration) {
    let sides: Vec<bool> = (0..world.brokers.len()).map(|_| world.rng.random()).collect();
    let healed_at = at + (pace * 5).mul_f64(world.rng.random());
    for link in world.partition_after(at, |broker| sides[broker]) {
        if world.rng.random_bool(0.8) {
            world.fault_after(healed_at, Fault::Up(link));
        }
    }
}

/// One broker lies while faults go on; then it is started anew, by somebody who knows better.
fn lie_for_a_while(world: &mut World, pace: Duration) {
    let liar = world.rng.random_range(0..world.brokers.len());
    let lie = *Lie::ALL.choose(&mut world.rng).expect("there are lies");
    world.fault_after(Duration::ZERO, Fault::Lie(liar, Some(lie)));
    faults(world, 10, pace);
    let until = world.elapsed() + pace * 20;
    world.run_until(until);
    world.fault_after(Duration::ZERO, Fault::Crash(liar));
    world.fault_after(Duration::ZERO, Fault::Lie(liar, None));
}

//! All interleavings of small meshes: every choice of what happens next is tried, states that were met before are not entered again.
//!
//! A *depth* is a number of steps from the beginning; every state that so many steps lead to is reached and checked. Faults, and timeouts that
//! come before what is on its way, are bounded by number, because each could come without end. CI goes as deep as takes some seconds;
//! `STP_EXPLORE=states` in the environment goes on until so many states were met (100,000 take up to 1 GB), best in release:
//!
//! ```text
//! STP_EXPLORE=1000000 cargo test --release --no-default-features --test sim explore -- --nocapture
//! ```

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use super::model::{Model, Seed, Step};

/// What the world may still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Budget {
    faults: u8,
    /// Timeouts while something is on its way.
    early: u8,
}

/// The steps that led somewhere, the last first.
struct Path {
    step: Step,
    before: Option<Rc<Path>>,
}

impl Drop for Path {
    /// Without recursion: paths are long.
    fn drop(&mut self) {
        let mut before = self.before.take();
        while let Some(mut path) = before.and_then(Rc::into_inner) {
            before = path.before.take();
        }
    }
}

/// Tells how a failure was reached.
struct Trail<'a> {
    what: &'a str,
    path: Option<&'a Path>,
    step: Option<Step>,
}

impl Drop for Trail<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut steps: Vec<Step> = self.step.into_iter().collect();
            let mut path = self.path;
            while let Some(Path { step, before }) = path {
                steps.push(*step);
                path = before.as_deref();
            }
            steps.reverse();
            println!("{}: after {steps:#?}", self.what);
        }
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed")
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

struct State {
    model: Model,
    budget: Budget,
    path: Option<Rc<Path>>,
}

/// What an exploration came to.
#[derive(Debug)]
struct Reached {
    states: usize,
    /// Every state so many steps away was met.
    depth: usize,
    /// States at rest, each compared with the reference tree.
    at_rest: usize,
    /// Nothing is left that was not met.
    is_complete: bool,
}

/// Goes on, one depth after the other, until there is nothing new or `states_max` were met.
fn explore(what: &str, model: Model, budget: Budget, states_max: usize) -> Reached {
    let mut met: HashSet<u64, BuildHasherDefault<Identity>> = HashSet::default();
    let mut reached = Reached { states: 0, depth: 0, at_rest: 0, is_complete: false };
    let mut level = vec![State { model, budget, path: None }];
    let mut steps = Vec::new();
    while reached.states < states_max && !level.is_empty() {
        let mut next = Vec::new();
        for State { model, budget, path } in level {
            steps.clear();
            let is_busy = model.own_steps(&mut steps);
            if steps.is_empty() {
                let _trail = Trail { what, path: path.as_deref(), step: None };
                model.assert_at_rest();
                reached.at_rest += 1;
            }
            if budget.faults > 0 {
                model.faults(&mut steps);
            }
            for &step in &steps {
                let mut budget = budget;
                match step {
                    Step::Timeout { .. } if is_busy && budget.early == 0 => continue,
                    Step::Timeout { .. } if is_busy => budget.early -= 1,
                    step if !step.is_own() => budget.faults -= 1,
                    _ => {}
                }
                let _trail = Trail { what, path: path.as_deref(), step: Some(step) };
                let mut model = model.clone();
                model.take(step);
                if met.insert(model.fingerprint((budget.faults, budget.early))) {
                    next.push(State { model, budget, path: Some(Rc::new(Path { step, before: path.clone() })) });
                }
            }
        }
        reached.depth += 1;
        reached.states += next.len();
        level = next;
    }
    reached.is_complete = level.is_empty();
    println!("{what}, {budget:?}: {reached:?}");
    reached
}

/// The mesh after everything came one after the other.
fn settled(mut model: Model) -> Model {
    let mut steps = Vec::new();
    loop {
        steps.clear();
        model.own_steps(&mut steps);
        let Some(&step) = steps.first() else { return model };
        model.take(step);
    }
}

fn honest(priorities: &[u16]) -> Vec<Seed> {
    priorities.iter().map(|&priority| Seed { priority, is_forger: false }).collect()
}

/// A triangle whose dearest side is not used.
fn triangle() -> Model {
    Model::new(&honest(&[0, 0, 0]), &[(0, 1, 1), (1, 2, 1), (0, 2, 3)], u8::MAX)
}

/// A square with one diagonal; the best broker is neither end of it.
fn square() -> Model {
    Model::new(&honest(&[0, 0, 0, 0]), &[(0, 1, 1), (1, 2, 2), (2, 3, 1), (0, 3, 2), (1, 3, 2)], u8::MAX)
}

fn states_max(default: usize) -> usize {
    std::env::var("STP_EXPLORE").map_or(default, |states| states.parse().expect("STP_EXPLORE is a number"))
}

#[test]
fn every_interleaving_of_three_brokers() {
    let cold = Budget { faults: 0, early: 0 };
    explore("a triangle from cold", triangle(), cold, states_max(120_000));
    explore("a triangle from cold, with a fault", triangle(), Budget { faults: 1, early: 1 }, states_max(120_000));
    let reached = explore("a triangle at rest", settled(triangle()), Budget { faults: 1, early: 1 }, states_max(120_000));
    assert!(reached.at_rest > 0);
    explore("a triangle at rest", settled(triangle()), Budget { faults: 3, early: 0 }, states_max(120_000));
}

#[test]
fn every_interleaving_of_four_brokers() {
    explore("a square from cold", square(), Budget { faults: 0, early: 0 }, states_max(120_000));
    explore("a square at rest", settled(square()), Budget { faults: 1, early: 0 }, states_max(120_000));
    explore("a square at rest", settled(square()), Budget { faults: 2, early: 1 }, states_max(120_000));
}

//! What runs have in common: convergence, BPDUs and moves by phase.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::json;

use crate::ms;
use crate::phases::{Measured, Phase};
use crate::topology::Shape;
use crate::world::World;

#[derive(Default)]
pub struct Report {
    phases: BTreeMap<Phase, Samples>,
    courses: Courses,
}

#[derive(Default)]
struct Samples {
    healing: Vec<Duration>,
    convergence: Vec<Duration>,
    bpdus: Vec<u64>,
    moves: Vec<u64>,
    epochs: Vec<u64>,
    false_alarms: u64,
    events: u64,
}

/// Runs of random faults.
#[derive(Default)]
struct Courses {
    runs: u64,
    brokers: (usize, usize),
    lied: u64,
    events: u64,
    bpdus: u64,
    moves: u64,
    detections: u64,
    false_alarms: u64,
    raised: u64,
    clones: u64,
    refusals: u64,
    forgeries: u64,
    duplicates: u64,
    messages: u64,
}

/// The value that `share` of the samples do not exceed (nearest rank).
fn quantile<T: Copy + Ord + Default>(samples: &[T], share: f64) -> T {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "few samples")]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

fn hellos(time: Duration, hello: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() / hello.as_secs_f64())
}

impl Report {
    pub fn add(&mut self, measured: &Measured) {
        let samples = self.phases.entry(measured.phase).or_default();
        samples.healing.push(measured.healing);
        samples.convergence.push(measured.convergence);
        samples.bpdus.push(measured.counts.bpdus);
        samples.moves.push(measured.counts.moves);
        samples.epochs.push(measured.counts.epochs);
        samples.false_alarms += measured.counts.false_alarms;
        samples.events += measured.counts.events;
    }

    pub fn add_course(&mut self, world: &World) {
        let (courses, counts, brokers) = (&mut self.courses, world.counts, world.brokers.len());
        let (least, most) = if courses.runs == 0 { (brokers, brokers) } else { courses.brokers };
        courses.runs += 1;
        courses.brokers = (least.min(brokers), most.max(brokers));
        courses.lied += u64::from(world.has_lied());
        courses.events += counts.events;
        courses.bpdus += counts.bpdus;
        courses.moves += counts.moves;
        courses.detections += counts.detections;
        courses.false_alarms += counts.false_alarms;
        courses.raised += counts.raised;
        courses.clones += counts.clones;
        courses.refusals += counts.refusals;
        courses.forgeries += counts.forgeries;
        courses.duplicates += counts.duplicates;
        courses.messages += counts.messages;
    }

    pub fn text(&self, hello: Duration) -> String {
        let mut text = String::new();
        if !self.phases.is_empty() {
            let _ = writeln!(
                text,
                "{:<11} {:>26} {:>26} {:>20} {:>8} {:>7} {:>7}",
                "phase", "data flows, ms", "converged, ms", "hello times", "BPDUs", "moves", "epochs"
            );
            let three = |width: usize| ["median", "p99", "max"].map(|figure| format!("{figure:>width$}")).join(" ");
            let _ =
                writeln!(text, "{:<11} {} {} {} {:>8} {:>7} {:>7}", "", three(8), three(8), three(6), "median", "median", "median");
        }
        let three = |samples: &[Duration], width: usize, show: &dyn Fn(Duration) -> String| {
            [0.5, 0.99, 1.0].map(|share| format!("{:>width$}", show(quantile(samples, share)))).join(" ")
        };
        for (phase, samples) in &self.phases {
            let _ = writeln!(
                text,
                "{:<11} {} {} {} {:>8} {:>7} {:>7}",
                phase.name(),
                three(&samples.healing, 8, &ms),
                three(&samples.convergence, 8, &ms),
                three(&samples.convergence, 6, &|time| hellos(time, hello)),
                quantile(&samples.bpdus, 0.5),
                quantile(&samples.moves, 0.5),
                quantile(&samples.epochs, 0.5),
            );
        }
        let false_alarms: u64 = self.phases.values().map(|samples| samples.false_alarms).sum();
        if false_alarms > 0 {
            let _ = writeln!(text, "false alarms: {false_alarms}");
        }
        let courses = &self.courses;
        if courses.runs > 0 {
            let _ = writeln!(
                text,
                "{} runs of {} to {} brokers, {} with an impostor: {} events, {} BPDUs, {} moves, {} links detected as dead ({} of them alive), \
                 {} incarnations raised, {} brokers stopped as cloned, {} links refused, {} forgeries dropped, {} of {} messages met a broker twice",
                courses.runs,
                courses.brokers.0,
                courses.brokers.1,
                courses.lied,
                courses.events,
                courses.bpdus,
                courses.moves,
                courses.detections,
                courses.false_alarms,
                courses.raised,
                courses.clones,
                courses.refusals,
                courses.forgeries,
                courses.duplicates,
                courses.messages,
            );
        }
        text
    }

    pub fn json(&self, seed: u64, runs: u64, commit: &str, hello: Duration) -> serde_json::Value {
        let times = |samples: &[Duration]| {
            let [median, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(samples, share).as_secs_f64() * 1_000.0);
            json!({ "median": median, "p99": p99, "max": max })
        };
        let of = |samples: &Samples| {
            json!({
                "data_flows_ms": times(&samples.healing),
                "converged_ms": times(&samples.convergence),
                "bpdus_median": quantile(&samples.bpdus, 0.5),
                "bpdus_max": quantile(&samples.bpdus, 1.0),
                "moves_median": quantile(&samples.moves, 0.5),
                "epochs_median": quantile(&samples.epochs, 0.5),
                "false_alarms": samples.false_alarms,
                "events": samples.events,
            })
        };
        let phases: serde_json::Map<_, _> =
            self.phases.iter().map(|(phase, samples)| (phase.name().to_owned(), of(samples))).collect();
        let courses = &self.courses;
        let faults = (courses.runs > 0).then(|| {
            json!({
                "brokers_min": courses.brokers.0, "brokers_max": courses.brokers.1, "with_impostor": courses.lied, "events": courses.events,
                "bpdus": courses.bpdus, "moves": courses.moves, "detections": courses.detections, "false_alarms": courses.false_alarms,
                "incarnations_raised": courses.raised, "stopped_as_cloned": courses.clones, "links_refused": courses.refusals,
                "forgeries_dropped": courses.forgeries, "messages": courses.messages, "messages_met_twice": courses.duplicates,
            })
        });
        json!({ "commit": commit, "seed": seed, "runs": runs, "hello_ms": hello.as_secs_f64() * 1_000.0, "phases": phases, "faults": faults })
    }

    /// One row of the table: the three figures of each phase.
    pub fn table_row(&self, shape: Shape, count: usize, hello: Duration, figure: Figure) -> String {
        let mut row = format!("| {shape} | {count} |");
        for phase in Phase::ALL {
            let samples = &self.phases[&phase];
            let samples = if figure == Figure::Healing { &samples.healing } else { &samples.convergence };
            let figures = [0.5, 0.99, 1.0].map(|share| quantile(samples, share));
            let [in_ms, in_hellos] = [figures.map(ms).join(" / "), figures.map(|time| hellos(time, hello)).join(" / ")];
            let _ = write!(row, " {in_ms}<br>{in_hellos} h |");
        }
        row + "\n"
    }
}

/// What a table is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    Healing,
    Convergence,
}

pub fn table_head() -> String {
    let phases = Phase::ALL.map(Phase::name).join(" | ");
    format!("| topology | brokers | {phases} |\n|---|---:|{}\n", "---|".repeat(Phase::ALL.len()))
}

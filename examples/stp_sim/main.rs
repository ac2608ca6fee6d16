//! Simulates the spanning tree: the broker's own state machine in a mesh under virtual time (`tests/sim/stp/world`), checked after every
//! event.
//!
//! ```text
//! cargo run --release --no-default-features --example stp_sim -- --brokers 1000 --seed 7
//! ```
//!
//! Prints what convergence took and cost, by phase. A broken invariant ends it with exit code 1, the seed, the commit, and the command that
//! replays it. It opens no socket and reads no clock but to say how long it took itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    dead_code,
    unused_imports,
    reason = "a simulation fails by panicking and prints what it found; its modules are shared with tests that use the rest"
)]

#[path = "../../tests/sim/stp/course.rs"]
mod course;
#[path = "../../tests/sim/stp/phases.rs"]
mod phases;
mod plot;
#[path = "../../tests/sim/stp/replay.rs"]
mod replay;
mod report;
#[path = "../../tests/sim/stp/topology.rs"]
mod topology;
#[path = "../../tests/sim/stp/world/mod.rs"]
mod world;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use report::{Figure, Report};
use topology::Shape;
use world::Settings;

const USAGE: &str = "usage: stp_sim [options]

  --brokers N|A-B   how many brokers, or between how many (default 16; with --faults 3-64)
  --topology T      line, cycle, grid, star, full, random, scale-free (default random; with --faults any)
  --seed N          the first seed (default: a fresh one, printed)
  --runs R          so many runs, each with the next seed (default 1)
  --told            ends are told that a link is up or dead; else they detect it by hellos, as brokers do
  --faults F        instead of phases: F random faults that overlap each other
  --json            the summary as JSON
  --table           convergence by topology and size, as Markdown; --runs seeds each (default 10)
  --plot FILE       how brokers settle over time, as SVG; --runs seeds each (default 10)
  --replay FILE     instead: what one broker recorded (serve --record-stp FILE), input by input and what came of each";

struct Options {
    brokers: Option<(usize, usize)>,
    shape: Option<Shape>,
    seed: u64,
    runs: Option<u64>,
    told: bool,
    faults: Option<u32>,
    json: bool,
    table: bool,
    plot: Option<PathBuf>,
    replay: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let result = if options.table {
        table(&options)
    } else if let Some(file) = &options.plot {
        plot::write(&options, file)
    } else if let Some(file) = &options.replay {
        replay_record(file)
    } else {
        summary(&options)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What a broker was told, and what its machine did about it.
fn replay_record(file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    // Whoever reads may stop reading.
    let mut tell = |line: &str| drop(writeln!(out, "{line}"));
    let replayed = replay::replay(&text, &mut tell).map_err(|error| format!("{}: {error}", file.display()))?;
    tell(replayed.summary().trim_end());
    if replayed.broken.is_empty() {
        Ok(())
    } else {
        Err(format!("{}: {} invariants broken", file.display(), replayed.broken.len()))
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options {
        brokers: None,
        shape: None,
        seed: rand::random::<u64>() >> 32,
        runs: None,
        told: false,
        faults: None,
        json: false,
        table: false,
        plot: None,
        replay: None,
    };
    while let Some(option) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{option} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|error| format!("{option} {text}: {error}"));
        match option.as_str() {
            "--brokers" => {
                let text = value()?;
                let (least, most) = text.split_once('-').unwrap_or((&text, &text));
                let bounds = (number(least.to_owned())? as usize, number(most.to_owned())? as usize);
                if bounds.0 < 2 || bounds.1 < bounds.0 {
                    return Err(format!("--brokers {text}: a mesh has two brokers at least"));
                }
                options.brokers = Some(bounds);
            }
            "--topology" => options.shape = Some(value()?.parse()?),
            "--seed" => options.seed = number(value()?)?,
            "--runs" => options.runs = Some(number(value()?)?),
            "--told" => options.told = true,
            "--faults" => options.faults = Some(number(value()?)? as u32),
            "--json" => options.json = true,
            "--table" => options.table = true,
            "--plot" => options.plot = Some(PathBuf::from(value()?)),
            "--replay" => options.replay = Some(PathBuf::from(value()?)),
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("no option {option}")),
        }
    }
    if let (Some(shape), Some((_, most))) = (options.shape, options.brokers)
        && most > shape.brokers_max()
    {
        return Err(format!("--brokers {most}: {shape} is simulated up to {}", shape.brokers_max()));
    }
    Ok(Some(options))
}

impl Options {
    fn settings(&self, seed: u64) -> Settings {
        let broker = Settings::broker(seed);
        if self.told { Settings { notice: Settings::calm(seed).notice, ..broker } } else { broker }
    }

    /// The command that runs this one seed again.
    fn replay(&self, seed: u64) -> String {
        let mut command = format!("stp_sim --seed {seed}");
        if let Some((least, most)) = self.brokers {
            command += &if least == most { format!(" --brokers {least}") } else { format!(" --brokers {least}-{most}") };
        }
        if let Some(shape) = self.shape {
            command += &format!(" --topology {shape}");
        }
        if let Some(faults) = self.faults {
            command += &format!(" --faults {faults}");
        }
        command + if self.told { " --told" } else { "" }
    }
}

/// Runs one seed; a broken invariant comes back as what to print of it. What was broken has been printed by then.
fn guarded<T>(seed: u64, replay: &str, run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| {
        format!(
            "an invariant is broken: seed {seed}, commit {}\nreplay: cargo run --release --example stp_sim -- {}",
            commit(),
            &replay[8..]
        )
    })
}

fn commit() -> String {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let hash = output
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    hash.unwrap_or_else(|| format!("unknown, of version {}", env!("CARGO_PKG_VERSION")))
}

#[expect(clippy::disallowed_methods, reason = "the run's own duration; nothing in the simulation depends on it")]
fn summary(options: &Options) -> Result<(), String> {
    let begun_at = std::time::Instant::now();
    let runs = options.runs.unwrap_or(1);
    let mut report = Report::default();
    for seed in options.seed..options.seed + runs {
        let replay = options.replay(seed);
        match options.faults {
            Some(faults) => {
                let plan = course::Plan { shape: options.shape, brokers: options.brokers, faults };
                let world = guarded(seed, &replay, || course::run(seed, &plan))?;
                report.add_course(&world);
            }
            None => {
                let (least, most) = options.brokers.unwrap_or((16, 16));
                let shape = options.shape.unwrap_or(Shape::Random);
                let count = least + usize::try_from(seed).unwrap_or(0) % (most - least + 1);
                let settings = options.settings(seed);
                for measured in guarded(seed, &replay, || phases::run(settings, shape, count))? {
                    report.add(&measured);
                }
            }
        }
    }
    let hello = options.settings(0).hello;
    if options.json {
        println!("{}", report.json(options.seed, runs, &commit(), hello));
    } else {
        println!("{runs} runs, seeds {} to {}, commit {}", options.seed, options.seed + runs - 1, commit());
        print!("{}", report.text(hello));
        println!("no invariant broken; took {:.1} s", begun_at.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Sizes of the table.
const SIZES: [usize; 6] = [3, 5, 16, 64, 200, 1_000];

fn table(options: &Options) -> Result<(), String> {
    let runs = options.runs.unwrap_or(10);
    let hello = options.settings(0).hello;
    let noticed = if options.told { "the ends of a link are told" } else { "links are detected by hellos" };
    println!(
        "Commit {}, {runs} seeds from {}; hello time {} ms, links of 1 ms; {noticed}.\n",
        commit(),
        options.seed,
        hello.as_millis()
    );
    println!("Each cell: median / p99 / maximum, in milliseconds and in hello times (h).\n");
    let (mut healing, mut convergence) = (report::table_head(), report::table_head());
    for shape in Shape::ALL {
        for count in SIZES.into_iter().filter(|&count| count <= shape.brokers_max()) {
            let mut report = Report::default();
            for seed in options.seed..options.seed + runs {
                let replay = format!(
                    "stp_sim --seed {seed} --brokers {count} --topology {shape}{}",
                    if options.told { " --told" } else { "" }
                );
                let settings = options.settings(seed);
                for measured in guarded(seed, &replay, || phases::run(settings, shape, count))? {
                    report.add(&measured);
                }
            }
            healing += &report.table_row(shape, count, hello, Figure::Healing);
            convergence += &report.table_row(shape, count, hello, Figure::Convergence);
        }
    }
    println!("Until data reaches everybody who can be reached:\n\n{healing}");
    println!("Until the last port has changed, cheaper ways that wait for a new epoch included:\n\n{convergence}");
    Ok(())
}

/// Milliseconds with as many digits as they deserve.
fn ms(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1_000.0;
    if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}

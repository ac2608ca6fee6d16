//! How brokers settle over time, as SVG: for each phase and mesh the share of brokers that have changed for the last time, against the
//! time since the phase began. A curve is the mean over all seeds; it ends where the last seed has settled.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use crate::phases::Phase;
use crate::topology::Shape;
use crate::{Options, guarded, phases};

const MESHES: [(Shape, usize, &str); 6] = [
    (Shape::Full, 16, "#0072b2"),
    (Shape::Cycle, 16, "#d55e00"),
    (Shape::Grid, 100, "#009e73"),
    (Shape::Random, 200, "#cc79a7"),
    (Shape::ScaleFree, 1_000, "#e69f00"),
    (Shape::Line, 200, "#56b4e9"),
];
const PANEL: (f64, f64) = (400.0, 240.0);
const MARGIN: (f64, f64) = (62.0, 46.0);
const HEAD: f64 = 66.0;

struct Curve {
    label: String,
    colour: &'static str,
    /// Of all seeds, in order, seconds.
    settled: Vec<f64>,
}

pub fn write(options: &Options, file: &Path) -> Result<(), String> {
    let runs = options.runs.unwrap_or(10);
    let mut panels: Vec<Vec<Curve>> = Phase::ALL.iter().map(|_| Vec::new()).collect();
    for (shape, count, colour) in MESHES {
        let mut curves: Vec<Vec<Duration>> = Phase::ALL.iter().map(|_| Vec::new()).collect();
        for seed in options.seed..options.seed + runs {
            let replay =
                format!("stp_sim --seed {seed} --brokers {count} --topology {shape}{}", if options.told { " --told" } else { "" });
            let settings = options.settings(seed);
            for (curve, measured) in curves.iter_mut().zip(guarded(seed, &replay, || phases::run(settings, shape, count))?) {
                curve.extend(measured.settled);
            }
        }
        for (panel, mut curve) in panels.iter_mut().zip(curves) {
            curve.sort_unstable();
            let settled = curve.into_iter().map(|time| time.as_secs_f64()).collect();
            panel.push(Curve { label: format!("{shape}, {count}"), colour, settled });
        }
    }
    let svg = draw(options, runs, &panels);
    std::fs::write(file, svg).map_err(|error| format!("{}: {error}", file.display()))
}

fn draw(options: &Options, runs: u64, panels: &[Vec<Curve>]) -> String {
    let (width, height) = (3.0 * (PANEL.0 + MARGIN.0) + 24.0, HEAD + 2.0 * (PANEL.1 + 2.0 * MARGIN.1) - 20.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let noticed = if options.told { "the ends of a link are told that it is up or dead" } else { "links are detected by hellos" };
    let hello = options.settings(0).hello.as_millis();
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"20\" font-size=\"15\">Share of brokers that have changed their tree, parent or ports for the last time (simulated; {runs} seeds from {}; links of 1 ms, \
         hello time {hello} ms; {noticed})</text>",
        MARGIN.0, options.seed
    );
    for (index, (shape, count, colour)) in MESHES.into_iter().enumerate() {
        let x = MARGIN.0 + 205.0 * index as f64;
        let _ = writeln!(
            svg,
            "<path d=\"M{x} 40h24\" stroke=\"{colour}\" stroke-width=\"2.5\"/><text x=\"{}\" y=\"44\">{shape}, {count} brokers</text>",
            x + 30.0
        );
    }
    for (index, (phase, curves)) in Phase::ALL.into_iter().zip(panels).enumerate() {
        let x = MARGIN.0 + (index % 3) as f64 * (PANEL.0 + MARGIN.0);
        let y = HEAD + 18.0 + (index / 3) as f64 * (PANEL.1 + 2.0 * MARGIN.1);
        panel(&mut svg, phase, curves, x, y);
    }
    svg + "</svg>\n"
}

/// One phase: linear axes from zero, the longest curve fills the width.
fn panel(svg: &mut String, phase: Phase, curves: &[Curve], x: f64, y: f64) {
    let (width, height) = (PANEL.0 - 20.0, PANEL.1);
    let longest = curves.iter().filter_map(|curve| curve.settled.last()).fold(0.001, |max: f64, &time| max.max(time));
    let step = tick_step(longest);
    let span = (longest / step).ceil() * step;
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\" font-size=\"13\" font-weight=\"bold\">{}</text>", y - 6.0, phase.name());
    for percent in [0, 25, 50, 75, 100] {
        let at = y + height * (1.0 - f64::from(percent) / 100.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {at}h{width}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{percent} %</text>",
            x - 6.0,
            at + 4.0
        );
    }
    let mut tick = 0.0;
    while tick <= span * 1.001 {
        let at = x + width * tick / span;
        let _ = writeln!(
            svg,
            "<path d=\"M{at} {}v5\" stroke=\"#333\"/><text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            y + height,
            y + height + 18.0,
            (tick * 1_000.0).round()
        );
        tick += step;
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">ms since the phase began</text>",
        x + width / 2.0,
        y + height + 33.0
    );
    for curve in curves {
        let mut path = format!("M{x} {}", y + height);
        let mut last = (x, y + height);
        for (index, time) in curve.settled.iter().enumerate() {
            let to = (x + width * time / span, y + height * (1.0 - (index + 1) as f64 / curve.settled.len() as f64));
            // What is no wider than half a pixel is one step.
            if to.0 - last.0 > 0.5 || last.1 - to.1 > 1.0 || index + 1 == curve.settled.len() {
                let _ = write!(path, "H{:.1}V{:.1}", to.0, to.1);
                last = to;
            }
        }
        let _ = write!(path, "H{:.1}", x + width);
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"><title>{}</title></path>",
            curve.colour, curve.label
        );
    }
    let _ = writeln!(svg, "<path d=\"M{x} {y}v{height}h{width}\" fill=\"none\" stroke=\"#333\"/>");
}

/// 1, 2 or 5 times a power of ten: five to ten ticks.
fn tick_step(span: f64) -> f64 {
    let power = 10_f64.powf((span / 5.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| span / step <= 8.0).unwrap_or(10.0 * power)
}

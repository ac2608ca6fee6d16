//! `loadtest report`: one page of HTML from the reports of one or more runs, with nothing on it that is fetched from elsewhere.

mod plot;
mod text;

use std::fmt::{self, Write as _};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::plot::{Axis, Line, Plot, Scale, bars};
use self::text::{bytes, escaped, short, time, trimmed, whole};
use crate::merge::merged;
use crate::mesh::Account;
use crate::report::Report;
use crate::series::Span;
use crate::wire::QoS;

const STYLE: &str = include_str!("style.css");

/// Flows of a mesh and faults that are listed.
const LISTED: usize = 20;

/// A run and what it is called on the page.
struct Run {
    name: String,
    report: Report,
}

/// Writes the page of these files to `output`, or to stdout; `together`: what all of them are called as one run.
///
/// # Errors
/// When a file is no report, or the page cannot be written.
pub(crate) fn write(files: &[PathBuf], title: &str, together: Option<&str>, output: Option<&Path>) -> Result<()> {
    let mut runs = files.iter().map(|path| read(path, files)).collect::<Result<Vec<_>>>()?;
    if let Some(name) = together {
        let parts: Vec<_> = runs.iter().map(|run| (run.name.as_str(), &run.report)).collect();
        let all = merged(&parts).map(|report| Run { name: name.to_owned(), report });
        runs.splice(0..0, all);
    }
    let page = page(&runs, title)?;
    match output {
        Some(path) => fs::write(path, page).with_context(|| format!("cannot write --output {}", path.display())),
        None => std::io::stdout().write_all(page.as_bytes()).context("cannot write the page to stdout"),
    }
}

fn read(path: &Path, all: &[PathBuf]) -> Result<Run> {
    let json = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report: Report = serde_json::from_slice(&json).with_context(|| format!("{} is no report of loadtest", path.display()))?;
    ensure!(!report.command.is_empty(), "{} is no report of loadtest (--json FILE)", path.display());
    let is_alone = all.iter().filter(|other| other.file_stem() == path.file_stem()).count() == 1;
    let name = path.file_stem().filter(|_| is_alone).unwrap_or(path.as_os_str());
    Ok(Run { name: name.to_string_lossy().into_owned(), report })
}

fn page(runs: &[Run], title: &str) -> Result<String, fmt::Error> {
    let mut out = String::new();
    writeln!(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">")?;
    writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(out, "<title>{}</title>\n<style>\n{STYLE}</style></head><body>", escaped(title))?;
    writeln!(out, "<h1>{}</h1>", escaped(title))?;
    writeln!(
        out,
        "<p class=\"faint\">loadtest {}. Rates and latencies are of the measured time, the ledger is of the whole run.</p>",
        env!("CARGO_PKG_VERSION")
    )?;
    summary(runs, &mut out)?;
    comparison(runs, &mut out)?;
    for run in runs {
        section(run, runs.len() == 1, &mut out)?;
    }
    writeln!(out, "</body></html>")?;
    Ok(out)
}

/// A column of the summary: its head, and what it says of a run; an empty string is nothing.
type Column = (&'static str, fn(&Report) -> String);

const COLUMNS: [Column; 19] = [
    ("mode", |report| report.command.clone()),
    ("MQTT", |report| report.mqtt.map_or_else(String::new, |version| version.to_string())),
    ("QoS", |report| report.qos.map_or_else(String::new, |qos| qos.to_string())),
    ("clients", clients),
    ("payload B", |report| report.payload_sizes.clone().unwrap_or_default()),
    ("paced by", paced),
    ("sent/s", |report| told(report.sent_per_second.filter(|_| report.connections.is_none()), whole)),
    ("delivered/s", |report| told(report.delivered_per_second.filter(|_| report.subscribers > 0), whole)),
    ("messages a read", |report| told(report.messages_per_read, |messages| trimmed(messages, ""))),
    ("connected/s", |report| told(report.connections.as_ref().and_then(|connections| connections.opened_per_second), whole)),
    ("wrong", wrong),
    ("p50", |report| told(report.latency_us.as_ref().map(|latency| latency.p50), time)),
    ("p99", |report| told(report.latency_us.as_ref().map(|latency| latency.p99), time)),
    ("p99.9", |report| told(report.latency_us.as_ref().map(|latency| latency.p999), time)),
    ("max", |report| told(report.latency_us.as_ref().map(|latency| latency.max), time)),
    ("broker µs each", |report| told(broker_us(report), |us| trimmed(us, ""))),
    ("brokers’ memory", |report| told(report.broker.as_ref().map(|broker| broker.bytes_max as f64), bytes)),
    ("bytes a connection", |report| told(report.connections.as_ref().and_then(|connections| connections.broker_bytes_each), whole)),
    ("loadtest µs each", |report| told(report.loadtest_us_per_message, |us| trimmed(us, ""))),
];

fn told(value: Option<f64>, as_text: fn(f64) -> String) -> String {
    value.map_or_else(String::new, as_text)
}

fn clients(report: &Report) -> String {
    match &report.connections {
        Some(connections) => whole(connections.asked as f64),
        None => format!("{} → {}", whole(report.publishers as f64), whole(report.subscribers as f64)),
    }
}

fn paced(report: &Report) -> String {
    match report.rate {
        Some(rate) => format!("{}/s", short(rate)),
        None if report.window > 0 => format!("window {}", report.window),
        None => String::new(),
    }
}

fn broker_us(report: &Report) -> Option<f64> {
    report.broker.as_ref().and_then(|broker| broker.us_per_message)
}

/// What is not as it should be, in words.
fn wrong(report: &Report) -> String {
    let connections = report.connections.as_ref();
    let counts = [
        (report.lost, "lost"),
        (report.duplicated, "duplicated"),
        (report.reordered, "reordered"),
        (report.corrupted, "corrupted"),
        (report.foreign, "foreign"),
        (report.refused, "refused"),
        (report.unacknowledged, "unacknowledged"),
        (connections.map_or(0, |connections| connections.failed), "failed"),
        (connections.map_or(0, |connections| connections.dropped), "dropped"),
        (report.faults.len() as u64, "faults"),
    ];
    let mut words: Vec<_> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{} {what}", whole(*count as f64))).collect();
    words.extend(report.interrupted.then(|| "interrupted".to_owned()));
    words.extend(report.loadtest_was_the_limit.then(|| "loadtest was the limit".to_owned()));
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

fn summary(runs: &[Run], out: &mut String) -> fmt::Result {
    // What no run has anything to say about is left out.
    let columns: Vec<_> = COLUMNS.iter().filter(|(_, says)| runs.iter().any(|run| !says(&run.report).is_empty())).collect();
    write!(out, "<h2>Summary</h2><div class=\"scroll\"><table><tr><th>run</th>")?;
    columns.iter().try_for_each(|(head, _)| write!(out, "<th>{head}</th>"))?;
    writeln!(out, "</tr>")?;
    for run in runs {
        write!(out, "<tr><td>{}</td>", escaped(&run.name))?;
        for (head, says) in &columns {
            let text = says(&run.report);
            let class = if *head == "wrong" && text != "nothing" { " class=\"bad\"" } else { "" };
            write!(out, "<td{class}>{}</td>", escaped(&text))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table></div>")
}

/// Bars where there are runs to compare, and all latencies in one plot.
fn comparison(runs: &[Run], out: &mut String) -> fmt::Result {
    let values =
        |value: fn(&Report) -> Option<f64>| -> Vec<_> { runs.iter().map(|run| (run.name.clone(), value(&run.report))).collect() };
    writeln!(out, "<div class=\"plots\">")?;
    bars("Messages delivered a second", short, &values(|run| run.delivered_per_second.filter(|&rate| rate > 0.0)), out)?;
    let opened = |run: &Report| run.connections.as_ref().and_then(|connections| connections.opened_per_second);
    bars("Connections opened a second", short, &values(opened), out)?;
    bars("Latency, 99th percentile", time, &values(|run| run.latency_us.as_ref().map(|latency| latency.p99)), out)?;
    let a_message = |run: &Report| broker_us(run).filter(|_| run.connections.is_none());
    bars("Processor time of the brokers a message, µs", short, &values(a_message), out)?;
    let a_connection = |run: &Report| broker_us(run).filter(|_| run.connections.is_some());
    bars("Processor time of the brokers a connection opened, µs", short, &values(a_connection), out)?;
    let each = |run: &Report| run.connections.as_ref().and_then(|connections| connections.broker_bytes_each);
    bars("Memory of the brokers an idle connection", bytes, &values(each), out)?;
    let lines = runs.iter().map(|run| Line { name: run.name.clone(), points: run.report.latency_curve.clone() });
    let percentiles = Axis { label: "percentile", scale: Scale::Percentile, told: |percentile| percentile.to_string() };
    let plot = Plot {
        title: "Latency by percentile",
        x: percentiles,
        y: Axis { label: "latency", scale: Scale::Log, told: time },
        lines: lines.collect(),
        is_wide: true,
    };
    plot.draw(out)?;
    writeln!(out, "</div>")
}

const SECONDS: Axis = Axis { label: "seconds", scale: Scale::Linear, told: short };

/// One run by itself: the plots over time, its account, its faults.
fn section(run: &Run, is_alone: bool, out: &mut String) -> fmt::Result {
    let Run { name, report } = run;
    if !is_alone {
        writeln!(out, "<h2>{}</h2>", escaped(name))?;
    }
    writeln!(out, "<div class=\"plots\">")?;
    over_time(&report.series, out)?;
    writeln!(out, "</div>")?;
    if let Some(account) = &report.mesh {
        mesh(account, out)?;
    }
    if !report.imperfect_flows.is_empty() {
        writeln!(out, "<h3>Flows that are not perfect, the worst first</h3>")?;
        let head = ["publisher", "topic", "subscriber", "delivered", "lost", "duplicated", "reordered"];
        let rows = report.imperfect_flows.iter().map(|flow| {
            let ends = [flow.publisher, flow.topic, flow.subscriber].map(|end| end.to_string());
            let counts = [flow.delivered, flow.lost, flow.duplicated, flow.reordered].map(|count| whole(count as f64));
            ends.into_iter().chain(counts).collect()
        });
        table(&head, rows, out)?;
    }
    if !report.faults.is_empty() {
        writeln!(out, "<h3>Faults</h3>")?;
        report.faults.iter().take(LISTED).try_for_each(|fault| writeln!(out, "<p class=\"bad\">{}</p>", escaped(fault)))?;
        if let Some(untold) = report.faults.len().checked_sub(LISTED).filter(|&untold| untold > 0) {
            writeln!(out, "<p class=\"faint\">and {untold} more</p>")?;
        }
    }
    Ok(())
}

fn over_time(series: &[Span], out: &mut String) -> fmt::Result {
    let line = |name: &str, value: fn(&Span) -> Option<f64>| Line {
        name: name.to_owned(),
        points: series.iter().filter_map(|span| Some((span.seconds, value(span)?))).collect(),
    };
    let moved = |line: Line| line.points.iter().any(|&(_, value)| value > 0.0).then_some(line);
    let plot = |title, y, lines: Vec<Line>| Plot { title, x: SECONDS, y, lines, is_wide: false };
    let axis = |told| Axis { label: "", scale: Scale::Linear, told };
    let rates = [
        line("sent", |span| Some(span.sent_per_second)),
        line("acknowledged", |span| Some(span.acknowledged_per_second)),
        line("delivered", |span| Some(span.delivered_per_second)),
        line("connected", |span| Some(span.connected_per_second)),
    ];
    plot("A second, over time", axis(short), rates.into_iter().filter_map(moved).collect()).draw(out)?;
    let latency = vec![line("mean", |span| span.latency_mean_us), line("most", |span| span.latency_max_us)];
    plot("Latency over time", Axis { label: "", scale: Scale::Log, told: time }, latency).draw(out)?;
    let processors = vec![line("brokers", |span| span.broker_processors), line("loadtest", |span| Some(span.loadtest_processors))];
    plot("Processors kept busy", axis(short), processors.into_iter().filter_map(moved).collect()).draw(out)?;
    let memory = line("brokers", |span| span.broker_bytes.map(|bytes| bytes as f64 / 1048576.0));
    plot("Memory of the brokers, MiB", axis(short), vec![memory]).draw(out)
}

/// The account of a mesh: by quality of service, what was done to it, the flows that are not perfect.
fn mesh(account: &Account, out: &mut String) -> fmt::Result {
    let head = ["QoS", "owed", "delivered", "lost", "duplicated", "redelivered", "reordered", "corrupted", "longest gap"];
    let rows = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce].into_iter().map(|qos| {
        let sum = account.totals(qos);
        let counts = [sum.owed, sum.delivered, sum.lost, sum.duplicated, sum.redelivered, sum.reordered, sum.corrupted];
        let counts = counts.map(|count| whole(count as f64));
        [qos.to_string()].into_iter().chain(counts).chain([time(sum.gap_ms * 1e3)]).collect()
    });
    writeln!(out, "<h3>All flows</h3>")?;
    table(&head, rows, out)?;
    if !account.timetable.is_empty() {
        writeln!(out, "<h3>What was done to the mesh</h3>")?;
        let rows = account.timetable.iter().map(|(seconds, what)| vec![format!("{seconds:.1} s"), what.clone()]);
        table(&["when", "what"], rows, out)?;
    }
    let mut flows: Vec<_> =
        account.flows.iter().filter(|flow| flow.lost + flow.duplicated + flow.reordered + flow.corrupted > 0).collect();
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.lost + flow.duplicated + flow.reordered + flow.corrupted));
    if flows.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h3>Flows that are not perfect, the worst first</h3>")?;
    let at = |name: Option<&String>| name.cloned().unwrap_or_default();
    let rows = flows.iter().take(LISTED).map(|flow| {
        let from = at(account.publishers.get(flow.publisher).map(|publisher| &publisher.at));
        let to = at(account.subscribers.get(flow.subscriber).map(|subscriber| &subscriber.at));
        let counts = [flow.lost, flow.duplicated, flow.reordered, flow.corrupted].map(|count| whole(count as f64));
        [from, to, flow.qos.to_string()].into_iter().chain(counts).collect()
    });
    table(&["from", "to", "QoS", "lost", "duplicated", "reordered", "corrupted"], rows, out)
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>, out: &mut String) -> fmt::Result {
    write!(out, "<div class=\"scroll\"><table><tr>")?;
    head.iter().try_for_each(|name| write!(out, "<th>{name}</th>"))?;
    writeln!(out, "</tr>")?;
    for row in rows {
        write!(out, "<tr>")?;
        for cell in row {
            let class = if cell.parse::<f64>().is_err() && cell.contains(' ') { " class=\"text\"" } else { "" };
            write!(out, "<td{class}>{}</td>", escaped(&cell))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table></div>")
}

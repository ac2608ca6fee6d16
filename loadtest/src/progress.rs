//! Progress on stderr: a bar on a terminal, a plain line a second elsewhere, nothing when asked.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::tally::Snapshot;

/// Between two plain lines, and between two looks at a rate.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Progress {
    face: Face,
    bar: ProgressBar,
    /// The run's time and counts at the last line.
    last: (Duration, Snapshot),
    extent: Extent,
}

/// What a run will have done when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Time(Duration),
    /// So many connections are open.
    Connected(u64),
    /// So many messages have been sent.
    Sent(u64),
    /// So many messages have been delivered.
    Delivered(u64),
    /// It goes on until it is interrupted.
    Unknown,
}

impl Extent {
    fn length(self) -> Option<u64> {
        match self {
            Self::Time(duration) => Some(milliseconds(duration)),
            Self::Connected(count) | Self::Sent(count) | Self::Delivered(count) => Some(count),
            Self::Unknown => None,
        }
    }

    fn position(self, elapsed: Duration, now: &Snapshot) -> u64 {
        match self {
            Self::Time(_) | Self::Unknown => milliseconds(elapsed),
            Self::Connected(_) => now.connected,
            Self::Sent(_) => now.sent,
            Self::Delivered(_) => now.delivered,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Face {
    Bar,
    Lines,
    Quiet,
}

impl Progress {
    /// What fits stderr, unless `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        let face = match (quiet, stderr().is_terminal()) {
            (true, _) => Face::Quiet,
            (false, true) => Face::Bar,
            (false, false) => Face::Lines,
        };
        let bar = if face == Face::Bar { ProgressBar::no_length() } else { ProgressBar::hidden() };
        Self { face, bar, last: Default::default(), extent: Extent::Unknown }
    }

    /// So many clients are about to be opened.
    pub(crate) fn opening(&self, clients: usize) {
        self.line(&format!("connecting {clients} clients"));
        self.style("connecting {wide_bar} {pos}/{len}");
        self.bar.set_length(clients as u64);
    }

    /// One more client is open.
    pub(crate) fn opened(&self) {
        self.bar.inc(1);
    }

    /// The run begins.
    pub(crate) fn running(&mut self, extent: Extent) {
        self.extent = extent;
        self.bar.reset();
        match extent.length() {
            Some(length) => {
                self.style("{wide_bar} {percent} % {msg}");
                self.bar.set_length(length);
            }
            None => {
                self.style("{spinner} {elapsed} {msg}");
                self.bar.unset_length();
            }
        }
    }

    /// The counts after `elapsed`.
    pub(crate) fn update(&mut self, elapsed: Duration, now: &Snapshot) {
        let (then, before) = self.last;
        let since = elapsed.saturating_sub(then);
        if since >= LINE_EVERY {
            let message = rates(since, &before, now);
            self.last = (elapsed, *now);
            self.line(&format!("{:.0} s: {message}", elapsed.as_secs_f64()));
            self.bar.set_message(message);
        }
        self.bar.set_position(self.extent.position(elapsed, now));
    }

    /// The run is over.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn style(&self, template: &str) {
        // The templates are the literals above; one that does not parse would leave the default bar.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
    }

    fn line(&self, line: &str) {
        if self.face == Face::Lines {
            // Nobody may be reading stderr; that is no reason to stop.
            let _ = writeln!(stderr(), "{line}");
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn rates(since: Duration, before: &Snapshot, now: &Snapshot) -> String {
    let rate = |before: u64, now: u64| (now - before) as f64 / since.as_secs_f64();
    let connected = format!("connected {} at {:.0}/s", now.connected, rate(before.connected, now.connected));
    let sent = format!("sent {:.0}/s", rate(before.sent, now.sent));
    let delivered = format!("delivered {:.0}/s", rate(before.delivered, now.delivered));
    let acknowledged = format!("acknowledged {:.0}/s", rate(before.acknowledged, now.acknowledged));
    let flawed = now.duplicated + now.reordered + now.corrupted;
    let parts = [
        (now.connected > 0, connected),
        (now.sent > 0, sent),
        (now.acknowledged > 0, acknowledged),
        (now.delivered > 0, delivered),
        (flawed > 0, format!("duplicated, reordered or corrupted {flawed}")),
    ];
    let parts: Vec<_> = parts.into_iter().filter_map(|(told, part)| told.then_some(part)).collect();
    if parts.is_empty() { "nothing yet".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_tell_what_there_is_to_tell() {
        let before = Snapshot { sent: 100, delivered: 50, ..Snapshot::default() };
        let now = Snapshot { sent: 300, delivered: 150, duplicated: 2, ..before };
        let told = rates(Duration::from_secs(2), &before, &now);
        assert_eq!(told, "sent 100/s, delivered 50/s, duplicated, reordered or corrupted 2");
        assert_eq!(rates(Duration::from_secs(1), &Snapshot::default(), &Snapshot::default()), "nothing yet");
    }
}

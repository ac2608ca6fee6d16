//! Looks at a run from time to time: the counts, what the brokers' processes use, and the series made of both.

use crate::series::{Series, Span};
use crate::tally::{Snapshot, Tally};
use crate::usage::{self, UsageFault};

/// See the module.
pub(crate) struct Watch {
    /// The brokers' processes.
    pids: Vec<u32>,
    series: Series,
    broker_bytes_max: u64,
}

impl Watch {
    /// Begins; also the counts of this moment.
    ///
    /// # Errors
    /// When one of the brokers' processes is not there.
    pub(crate) fn begin(pids: &[u32], tally: &Tally) -> Result<(Self, Snapshot), UsageFault> {
        let broker = if pids.is_empty() { None } else { Some(usage::of(pids)?) };
        let begun = Snapshot { broker, ..tally.snapshot() };
        Ok((Self { pids: pids.to_vec(), series: Series::new(begun), broker_bytes_max: 0 }, begun))
    }

    /// The counts of this moment, and a process that is gone: once, then none is watched any more.
    pub(crate) fn look(&mut self, tally: &Tally) -> (Snapshot, Option<UsageFault>) {
        let usage = if self.pids.is_empty() { Ok(None) } else { usage::of(&self.pids).map(Some) };
        let (broker, fault) = usage.map_or_else(|gone| (None, Some(gone)), |usage| (usage, None));
        if fault.is_some() {
            self.pids.clear();
        }
        let now = Snapshot { broker, ..tally.snapshot() };
        self.broker_bytes_max = self.broker_bytes_max.max(broker.map_or(0, |usage| usage.resident_bytes));
        if self.series.is_due(now.at_ns) {
            self.series.push(now, tally.take_recent());
        }
        (now, fault)
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        self.series.spans()
    }

    /// The most memory the processes had.
    pub(crate) fn broker_bytes_max(&self) -> u64 {
        self.broker_bytes_max
    }
}

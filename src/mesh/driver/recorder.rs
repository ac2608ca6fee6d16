//! Writes down what the tree is told (`--record-stp`), on a thread of its own: a slow disk ends the record, it never holds up the driver. The
//! lines are `stp::record`'s.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::stp::{Input, StpConfig, record};
use crate::{limits, task};

/// Lines that may wait for the disk.
const LINES_MAX: usize = 16 * 1024;
/// A broker that stops waits so long for the disk to take the last of them.
const LAST_LINES: Duration = Duration::from_millis(200);

/// A record that is being written. Dropped, it is complete, unless the disk hangs.
pub(in crate::mesh) struct Recorder {
    begun_at: Instant,
    bytes_left: usize,
    /// The record's first line, until it is written.
    head: Option<String>,
    /// `None`: it has ended.
    lines: Option<SyncSender<String>>,
    /// Closed once the writer has ended.
    ended: Receiver<()>,
}

impl Recorder {
    /// Makes way for a new record in place of the one that `path` holds; it begins with [`Self::begin`].
    pub(in crate::mesh) fn start(path: &Path, config: &StpConfig, now: Instant) -> io::Result<Self> {
        let file = File::create(path)?;
        let (lines, lines_out) = sync_channel(LINES_MAX);
        let (ending, ended) = sync_channel(1);
        task::thread("stp-record", move || {
            // Dropped last, whatever happens.
            let _ending = ending;
            if let Err(error) = write(file, &lines_out) {
                warn!(%error, "--record-stp: the record ends here");
            }
        })?;
        let head = Some(record::head(config));
        Ok(Self { begun_at: now, bytes_left: limits::RECORD_STP_BYTES_MAX, head, lines: Some(lines), ended })
    }

    /// The tree begins as `config` says: nothing that came before counts. The first link settles the incarnation.
    pub(super) fn begin(&mut self, config: &StpConfig) {
        self.head = Some(record::head(config));
    }

    pub(super) fn record(&mut self, input: &Input, now: Instant) {
        let Some(lines) = &self.lines else { return };
        if matches!(input, Input::Timeout) && self.head.is_some() {
            // A broker that has had no link yet is alone, and may begin once more.
            return;
        }
        let mut line = self.head.take().unwrap_or_default();
        line.push_str(&record::line(now.saturating_duration_since(self.begun_at), input));
        if line.len() > self.bytes_left {
            warn!("--record-stp: the record is full and ends here");
            self.lines = None;
            return;
        }
        self.bytes_left -= line.len();
        match lines.try_send(line) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                warn!("--record-stp: the disk is too slow, the record ends here");
                self.lines = None;
            }
            // The writer has said why.
            Err(TrySendError::Disconnected(_)) => self.lines = None,
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let lines = self.lines.take();
        if let (Some(lines), Some(head)) = (&lines, self.head.take()) {
            let _ = lines.try_send(head);
        }
        drop(lines);
        // Ends with the writer, or with a disk that hangs.
        let _ = self.ended.recv_timeout(LAST_LINES);
    }
}

/// Until there is no more to come. What is written is on its way to the disk whenever nothing waits.
fn write(file: File, lines: &Receiver<String>) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    while let Ok(line) = lines.recv() {
        file.write_all(line.as_bytes())?;
        while let Ok(line) = lines.try_recv() {
            file.write_all(line.as_bytes())?;
        }
        file.flush()?;
    }
    Ok(())
}

//! Writes down what the tree is told (`--record-stp`), on a thread of its own: a slow disk ends the record, it never holds up the driver. The
//! lines are `stp::record`'s.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use tracing::warn;

use crate::stp::{Input, StpConfig, record};
use crate::{limits, task};

/// Lines that may wait for the disk.
const LINES_MAX: usize = 16 * 1024;

/// A record that is being written. Dropped, it is complete.
pub(in crate::mesh) struct Recorder {
    begun_at: Instant,
    bytes_left: usize,
    /// `None`: it has ended.
    lines: Option<SyncSender<String>>,
    writer: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Begins a new record in place of the one that `path` holds.
    pub(in crate::mesh) fn start(path: &Path, config: &StpConfig, now: Instant) -> io::Result<Self> {
        let file = File::create(path)?;
        let (lines, lines_out) = sync_channel(LINES_MAX);
        let head = record::head(config);
        let writer = task::thread("stp-record", move || {
            if let Err(error) = write(file, &head, &lines_out) {
                warn!(%error, "--record-stp: the record ends here");
            }
        })?;
        Ok(Self { begun_at: now, bytes_left: limits::RECORD_STP_BYTES_MAX, lines: Some(lines), writer: Some(writer) })
    }

    pub(super) fn record(&mut self, input: &Input, now: Instant) {
        let Some(lines) = &self.lines else { return };
        let line = record::line(now.saturating_duration_since(self.begun_at), input);
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
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Until there is no more to come. What is written is on its way to the disk whenever nothing waits.
fn write(file: File, head: &str, lines: &Receiver<String>) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    file.write_all(head.as_bytes())?;
    file.flush()?;
    while let Ok(line) = lines.recv() {
        file.write_all(line.as_bytes())?;
        while let Ok(line) = lines.try_recv() {
            file.write_all(line.as_bytes())?;
        }
        file.flush()?;
    }
    Ok(())
}

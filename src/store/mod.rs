//! Durable sessions and retained messages on disk, in a log of our own below `data_dir`.
//!
//! One thread takes what the sessions have put into their [`Journal`], all there is at once, brings it to the disk as one commit and says so; then the
//! acknowledgements go. While one commit is being written the next gathers: the busier the broker, the more go together. No worker of the runtime ever waits for a
//! disk.
//!
//! | file | duty |
//! |---|---|
//! | `mirror` | what the disk is to hold, and what of it is not there yet |
//! | `replay` | the part of it that the mesh's logs are |
//! | `log` | segments, frames, commits |
//! | `medium` | files, as the log needs them |
//! | `recover` | what a start reads |
//! | `clocks` | moments of the core's clock and of the wall clock |
//!
//! Invariants: what is acknowledged is in a segment with all that it needs, and on the disk if `sync` says so; a segment goes away only when nothing in it is
//! needed; a commit counts as a whole or not at all; a disk that takes nothing loses nothing that is in memory.
//!
//! Why no database: see `ARCHITECTURE.md`. How records look: `session::record`.

mod clocks;
mod log;
mod medium;
mod mirror;
mod recover;
mod replay;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use time::OffsetDateTime;

pub use self::recover::Restored;

use self::clocks::Clocks;
use self::log::{Failed, Log, Present};
use self::medium::Directory;
use self::mirror::{Mirror, Segment, Standing};
use self::recover::{Damage, Lost, Reading};
use crate::config::SyncMode;
use crate::metrics::{Counter, Sample};
use crate::session::record::RECORD_VERSION;
use crate::session::{Change, Journal};
use crate::{clock, task};

/// Below `data_dir`.
const DIRECTORY: &str = "sessions";
/// What is locked while a broker uses `data_dir`.
const LOCK: &str = "lock";
/// Between two tries while nothing can be written.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Between two lines of the log about it.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);
/// What is written goes to the disk so often with `sync = "interval"`.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// The longest that the thread sleeps.
const IDLE: Duration = Duration::from_secs(3_600);
/// The log may hold so much more than twice what is needed.
const SLACK_BYTES: u64 = 32 * 1024 * 1024;
/// And so many segments, if they are small: each start begins one.
const SEGMENTS_MAX: usize = 16;
/// Of what has to be moved to the newest segment, so much goes with one commit.
const MOVED_BYTES: u64 = 1024 * 1024;

/// A store that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another broker uses the directory.
    #[error("{}: another broker uses this data_dir; give each its own", .0.display())]
    InUse(PathBuf),
    /// It cannot be read, or not be written at all.
    #[error("{path}: {source}; make data_dir readable and writable for the broker, or set persistence.enabled = false", path = .path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A later version of this program has written it.
    #[error(
        "{path}: written in version {version} of its format, and this program knows {RECORD_VERSION}; use the newer program, or another \
         data_dir",
        path = .path.display()
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its version.
        version: u8,
    },
    /// The system gives no thread.
    #[error("no thread for the store: {0}")]
    Thread(io::Error),
}

/// What the store has done, for `/metrics`.
#[derive(Debug, Default)]
struct Counters {
    commits: Counter,
    changes: Counter,
    failures: Counter,
    bytes: AtomicU64,
    is_failing: AtomicBool,
}

/// The store's thread.
#[derive(Debug)]
pub struct Store {
    journal: Arc<Journal>,
    counters: Arc<Counters>,
    thread: JoinHandle<()>,
}

/// A store that was read and is not written yet.
pub struct Opened {
    writer: Writer,
    restored: Restored,
}

impl Opened {
    /// Locks the directory and reads what is in it.
    ///
    /// # Errors
    /// See [`StoreError`]. Damage is none: it is logged, put aside, and what is good is used.
    pub fn open(data_dir: &Path, sync: SyncMode) -> Result<Self, StoreError> {
        let dir = data_dir.join(DIRECTORY);
        let io = |source| StoreError::Io { path: dir.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(io)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(dir.join(LOCK)).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse(data_dir.to_owned())),
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let clocks = Clocks::read();
        let started = clocks.now;
        let mut reading = Reading::new(clocks);
        let (present, damaged) = read_segments(&dir, &mut reading)?;
        // What was written last may be in memory only, and from now on counts as safe.
        if let Some((segment, Present { name, .. })) = present.last_key_value().filter(|_| sync != SyncMode::Os) {
            tracing::trace!(segment, "syncing what the last broker wrote");
            let path = dir.join(name);
            let synced = File::open(&path).and_then(|file| file.sync_all()).and_then(|()| File::open(&dir)?.sync_all());
            match synced {
                Err(source) if sync == SyncMode::Batch => return Err(StoreError::Io { path, source }),
                // Where nothing is promised nothing is refused: some file systems sync no directory.
                Err(error) => tracing::warn!(%error, file = %path.display(), "what the last broker wrote cannot be synced"),
                Ok(()) => {}
            }
        }
        let (mirror, mut restored, lost) = reading.finish();
        restored.log.positions_in_doubt = positions_in_doubt(sync, &damaged);
        tell(&restored, &lost, &present, started);
        let log = Log::new(Box::new(Directory(dir)), sync, present, damaged, format!("damaged-{}-", date(&clocks)));
        let writer = Writer { lock: Some(lock), ..Writer::new(mirror, log, sync, started) };
        Ok(Self { writer, restored })
    }

    /// Starts the thread that writes down what comes into `journal`. Gives what was read.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(self, journal: Arc<Journal>) -> Result<(Store, Restored), StoreError> {
        Ok((Store::start(self.writer, journal)?, self.restored))
    }
}

/// Reads all segments, the oldest first.
fn read_segments(dir: &Path, reading: &mut Reading) -> Result<(BTreeMap<Segment, Present>, BTreeSet<Segment>), StoreError> {
    let io = |source| StoreError::Io { path: dir.to_owned(), source };
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if let Some((segment, marker)) = log::parse_name(&name) {
            found.insert(segment, (name, marker));
        }
    }
    let (mut present, mut damaged) = (BTreeMap::new(), BTreeSet::new());
    for (segment, (name, marker)) in found {
        let path = dir.join(&name);
        let bytes = fs::read(&path).map_err(|source| StoreError::Io { path: path.clone(), source })?;
        if let Some(version) = log::version_of(&bytes).filter(|version| *version > RECORD_VERSION) {
            return Err(StoreError::Newer { path, version });
        }
        let Damage { bytes: lost_bytes, records, unknown, unfinished } = {
            let damage = reading.read(segment, marker, &bytes);
            if damage.is_some() {
                damaged.insert(segment);
            }
            damage
        };
        let file = path.display();
        if damaged.contains(&segment) {
            tracing::error!(%file, lost_bytes, lost_records = records, "damaged: what is good in it is used, the file is put aside");
        }
        if unknown > 0 {
            tracing::warn!(%file, unknown, "records of kinds that this version does not know are left out");
        }
        if unfinished > 0 {
            tracing::debug!(%file, bytes = unfinished, "the end was being written when its broker ended, and was not acknowledged");
        }
        present.insert(segment, Present { name, bytes: bytes.len() as u64 });
    }
    Ok((present, damaged))
}

/// What was written last of the positions in the mesh's logs may be lost: where the disk is damaged, and, should the machine have gone down, where nobody waited
/// for it. No position may be used twice, and there are 2^56: so those are left out that could have been used.
fn positions_in_doubt(sync: SyncMode, damaged: &BTreeSet<Segment>) -> u64 {
    match sync {
        // More than all reservations that fit into a segment.
        _ if !damaged.is_empty() => 1 << 40,
        SyncMode::Batch => 0,
        // More than are used between two writes of the system.
        SyncMode::Interval | SyncMode::Os => 1 << 32,
    }
}

fn tell(restored: &Restored, lost: &Lost, present: &BTreeMap<Segment, Present>, started: Instant) {
    let Lost { sessions, entries, retained } = *lost;
    if *lost != Lost::default() {
        tracing::error!(sessions, messages = entries, retained, "lost: of these only parts were found");
    }
    if !present.is_empty() {
        let waiting = restored.sessions.iter().map(|session| session.entries.len()).sum::<usize>();
        let took_ms = clock::now().saturating_duration_since(started).as_millis();
        let (sessions, retained) = (restored.sessions.len(), restored.retained.len());
        tracing::info!(sessions, waiting, retained, took_ms, "sessions and retained messages read");
    }
}

/// For file names: by this order and without colons.
fn date(clocks: &Clocks) -> String {
    let seconds = i64::try_from(clocks.unix.as_secs()).unwrap_or(i64::MAX);
    let date = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second) = date.to_hms();
    format!("{}-{:02}-{:02}T{hour:02}{minute:02}{second:02}Z", date.year(), u8::from(date.month()), date.day())
}

/// Says that the thread is no more, however it ended.
struct Ending {
    journal: Arc<Journal>,
    counters: Arc<Counters>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.counters.failures.add(1);
            self.counters.is_failing.store(true, Ordering::Relaxed);
            tracing::error!(
                "the store's thread panicked: this is a bug, please report it. Until the broker is started again nothing is kept on disk, and \
                 what should be is refused"
            );
        }
        self.journal.end();
    }
}

impl Store {
    fn start(mut writer: Writer, journal: Arc<Journal>) -> Result<Self, StoreError> {
        let counters = Arc::new(Counters::default());
        let ending = Ending { journal: Arc::clone(&journal), counters: Arc::clone(&counters) };
        let body = move || writer.run(&ending.journal, &ending.counters);
        let thread = task::thread("store", body).map_err(StoreError::Thread)?;
        Ok(Self { journal, counters, thread })
    }

    /// From now on it writes what there is and ends, which takes as long as the disk does. Nothing that comes later is written. Waits for nothing: a disk may
    /// hang, and must not take those along who say this.
    pub fn stop(&self) {
        self.journal.stop();
    }

    /// Whether it has ended, and another may use the directory.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// What is to be seen of it.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let Counters { commits, changes, failures, bytes, is_failing } = &*self.counters;
        let waiting = self.journal.last().saturating_sub(self.journal.committed());
        vec![
            Sample::counter("store_commits", "Commits of durable sessions and retained messages", commits.value()),
            Sample::counter("store_changes", "Changes of durable sessions and retained messages", changes.value()),
            Sample::counter("store_failures", "Commits that could not be written", failures.value()),
            Sample::gauge("store_bytes", "Bytes of the log of durable sessions on disk", bytes.load(Ordering::Relaxed) as f64),
            Sample::gauge(
                "store_failing",
                "Whether nothing can be written at present",
                f64::from(u8::from(is_failing.load(Ordering::Relaxed))),
            ),
            Sample::gauge("store_changes_waiting", "Changes that are not on disk yet", waiting as f64),
        ]
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread owns.
struct Writer {
    mirror: Mirror,
    log: Log,
    sync: SyncMode,
    /// Segments up to here are being emptied.
    cut: Option<Segment>,
    /// What stands in them.
    moving: VecDeque<Standing>,
    synced_at: Instant,
    /// See [`SLACK_BYTES`].
    slack_bytes: u64,
    /// Released with all this, when the thread ends.
    #[expect(dead_code, reason = "it is held, not looked at")]
    lock: Option<File>,
}

impl Writer {
    fn new(mirror: Mirror, log: Log, sync: SyncMode, now: Instant) -> Self {
        let moving = VecDeque::new();
        Self { mirror, log, sync, cut: None, moving, synced_at: now, slack_bytes: SLACK_BYTES, lock: None }
    }

    fn run(&mut self, journal: &Journal, counters: &Counters) {
        let mut changes = Vec::new();
        let mut complained_at: Option<Instant> = None;
        self.clean_up();
        loop {
            let is_failing = counters.is_failing.load(Ordering::Relaxed);
            if is_failing {
                std::thread::sleep(RETRY_INTERVAL);
            }
            let Some(number) = journal.take(&mut changes, if is_failing { Duration::ZERO } else { self.patience() }) else { break };
            counters.changes.add(changes.len() as u64);
            match self.commit(&mut changes) {
                Ok(has_written) => {
                    counters.commits.add(u64::from(has_written));
                    if counters.is_failing.swap(false, Ordering::Relaxed) {
                        tracing::info!("sessions and retained messages can be written again");
                        complained_at = None;
                    }
                    journal.commit(number);
                }
                Err(error) => {
                    counters.failures.add(1);
                    counters.is_failing.store(true, Ordering::Relaxed);
                    journal.fail();
                    let now = clock::now();
                    if complained_at.is_none_or(|at| now.saturating_duration_since(at) >= COMPLAINT_INTERVAL) {
                        complained_at = Some(now);
                        tracing::error!(
                            %error,
                            "sessions and retained messages cannot be written: acknowledgements of what should be kept wait or are \
                             refused, all else goes on"
                        );
                    }
                }
            }
            counters.bytes.store(self.log.bytes(), Ordering::Relaxed);
        }
        if self.mirror.is_dirty() {
            tracing::error!("the last changes of sessions and retained messages could not be written");
        }
        if let Err(error) = self.log.sync_now() {
            tracing::error!(%error, "the last changes of sessions and retained messages may not be on the disk");
        }
    }

    /// How long there is nothing to do if nothing comes.
    fn patience(&self) -> Duration {
        if self.cut.is_some() || self.mirror.is_dirty() {
            return Duration::ZERO;
        }
        match self.sync == SyncMode::Interval && self.log.is_unsynced() {
            true => SYNC_INTERVAL,
            false => IDLE,
        }
    }

    /// Takes in the changes and writes all that is to be written. Says whether there was anything.
    fn commit(&mut self, changes: &mut Vec<Change>) -> io::Result<bool> {
        changes.drain(..).for_each(|change| self.mirror.apply(change));
        let now = clock::now();
        if self.sync == SyncMode::Interval && now.saturating_duration_since(self.synced_at) >= SYNC_INTERVAL {
            self.synced_at = now;
            self.log.sync_now()?;
        }
        if self.log.newest_suspect().is_some_and(|suspect| self.cut.is_none_or(|cut| cut < suspect)) {
            self.clean_up();
        }
        self.move_some();
        let is_dirty = self.mirror.is_dirty();
        if is_dirty {
            let was_sealed = self.log.is_sealed();
            let (mirror, clocks) = (&self.mirror, Clocks::read());
            match self.log.commit(|commit| mirror.write(commit, &clocks)) {
                Ok(segment) => self.mirror.written(segment),
                Err(Failed { error, may_stand }) => {
                    may_stand.into_iter().for_each(|segment| self.mirror.may_stand(segment));
                    return Err(error);
                }
            }
            if was_sealed && self.cut.is_none() {
                self.clean_up();
            }
        }
        if self.moving.is_empty()
            && let Some(cut) = self.cut.take()
        {
            match self.log.drop_up_to(cut) {
                Ok(()) => self.clean_up(),
                // Nothing depends on it but room on the disk: with the next segment it is tried again.
                Err(error) => tracing::warn!(%error, "old segments of the store cannot be removed"),
            }
        }
        Ok(is_dirty)
    }

    /// Makes dirty what is to be moved next.
    fn move_some(&mut self) {
        let Some(cut) = self.cut else { return };
        let mut bytes = 0;
        while bytes < MOVED_BYTES
            && let Some(standing) = self.moving.pop_front()
        {
            bytes += self.mirror.renew(standing, cut);
        }
    }

    /// Decides whether old segments are to be emptied, and begins with it: damaged ones, and those that may not be on the disk, at once; else the oldest where the log is more than twice as large as it
    /// need be, or in many pieces.
    fn clean_up(&mut self) {
        let Some(oldest) = self.log.oldest() else { return };
        let cut = match (self.log.newest_damaged().max(self.log.newest_suspect()), self.log.newest_sealed()) {
            (Some(bad), _) => bad,
            (None, Some(sealed)) if self.log.segments() > SEGMENTS_MAX && self.log.are_small() => sealed,
            (None, Some(sealed)) if sealed >= oldest && self.log.bytes() > 2 * self.mirror.live_bytes() + self.slack_bytes => {
                oldest
            }
            _ => return,
        };
        self.moving = self.mirror.standing(cut).into();
        self.cut = Some(cut);
    }
}

//! The log: segments, one file each, to which commits are appended.
//!
//! A segment's file is named by its number and its *marker*, eight random bytes: `NUMBER-MARKER.log`, in hexadecimal. It begins with eight bytes that
//! say what it is and in which version; then come frames:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | the segment's marker |
//! | 4 | length of the body, big-endian |
//! | 4 | CRC-32 of length, flag and body |
//! | 1 | flag: 1 ends a commit |
//! | | body: records (`session::record`) |
//!
//! By the marker a reader finds the next frame behind damage; it is random so that nobody can make a payload look like a frame. A commit is one frame or
//! several; one without its end has never been acknowledged to anybody and does not count. It never goes over the end of a segment.
//!
//! Segments go away from the oldest on only: what a record says to be gone stands in none that is older.
//!
//! It knows files ([`Medium`]) and no sessions. Each start begins a segment of its own: nothing is ever appended to a file that another process wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::medium::{Medium, Output};
use super::mirror::{Segment, Sink};
use crate::config::SyncMode;
use crate::session::record::{RECORD_VERSION, Record};

/// What a segment begins with; the last byte is the version.
pub(super) const HEADER: [u8; 8] = [b'm', b'q', b's', b't', b'l', b'o', b'g', RECORD_VERSION];
/// A frame's bytes before its body.
pub(super) const FRAME_HEAD_BYTES: usize = 17;
/// The flag of the last frame of a commit.
pub(super) const ENDS: u8 = 1;
/// Bytes of records that are gathered in one frame, unless a single one is larger.
const FRAME_BYTES: usize = 1024 * 1024;
/// From this size on a segment gets nothing more.
const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;

/// The check sum in a frame's head.
pub(super) fn checksum(length: u32, flag: u8, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_be_bytes());
    hasher.update(&[flag]);
    hasher.update(body);
    hasher.finalize()
}

/// In which version a segment was written; none if it does not begin like one.
pub(super) fn version_of(bytes: &[u8]) -> Option<u8> {
    let (version, magic) = bytes.first_chunk::<8>()?.split_last()?;
    HEADER.starts_with(magic).then_some(*version)
}

/// The name of a segment's file.
pub(super) fn file_name(segment: Segment, marker: u64) -> String {
    format!("{segment:016x}-{marker:016x}.log")
}

/// Number and marker of the segment in the file with this name, if it is one.
pub(super) fn parse_name(name: &str) -> Option<(Segment, u64)> {
    let (segment, marker) = name.strip_suffix(".log")?.split_once('-')?;
    let number = |text: &str| if text.len() == 16 { u64::from_str_radix(text, 16).ok() } else { None };
    Some((number(segment)?, number(marker)?)).filter(|(segment, _)| *segment > 0)
}

/// A segment that there is.
#[derive(Clone, Debug)]
pub(super) struct Present {
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// See the module's page.
pub(super) struct Log {
    medium: Box<dyn Medium>,
    sync: SyncMode,
    present: BTreeMap<Segment, Present>,
    /// Not thrown away but put aside under another name.
    damaged: BTreeSet<Segment>,
    /// What the name of a file put aside begins with.
    aside: String,
    /// See [`SEGMENT_BYTES`].
    pub(super) segment_bytes: u64,
    /// The highest number that was given out.
    last: Segment,
    current: Option<Current>,
    is_unsynced: bool,
    /// See [`Log::newest_suspect`].
    suspect: Option<Segment>,
}

/// A commit that could not be written.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: io::Error,
    /// Where it may be read all the same.
    pub(super) may_stand: Option<Segment>,
}

/// The segment that is written.
struct Current {
    segment: Segment,
    marker: u64,
    output: Box<dyn Output>,
    /// Its length with the last commit.
    good: u64,
    /// Its length as far as we know; more than `good` if a commit has failed.
    length: u64,
}

impl Log {
    pub(super) fn new(
        medium: Box<dyn Medium>,
        sync: SyncMode,
        present: BTreeMap<Segment, Present>,
        damaged: BTreeSet<Segment>,
        aside: String,
    ) -> Self {
        let last = present.keys().next_back().copied().unwrap_or(0);
        Self {
            medium,
            sync,
            present,
            damaged,
            aside,
            segment_bytes: SEGMENT_BYTES,
            last,
            current: None,
            is_unsynced: false,
            suspect: None,
        }
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.present.values().map(|present| present.bytes).sum()
    }

    /// How many segments there are.
    pub(super) fn segments(&self) -> usize {
        self.present.len()
    }

    /// Whether the segments are on average less than half as large as they may be.
    pub(super) fn are_small(&self) -> bool {
        self.bytes() < self.segments() as u64 * self.segment_bytes / 2
    }

    /// The newest segment that is not written any more.
    pub(super) fn newest_sealed(&self) -> Option<Segment> {
        let current = self.current.as_ref().map(|current| current.segment);
        self.present.keys().rev().copied().find(|segment| Some(*segment) != current)
    }

    /// The oldest segment.
    pub(super) fn oldest(&self) -> Option<Segment> {
        self.present.keys().next().copied()
    }

    /// The newest damaged segment.
    pub(super) fn newest_damaged(&self) -> Option<Segment> {
        self.damaged.last().copied()
    }

    /// The newest segment that could not be brought to the disk: what stands in it may be in memory only, and that a system says of it later that it is
    /// there means nothing. It and all before it are to be written again and to go. Until they have gone each commit is brought to the disk at once: on
    /// a disk that goes on failing nothing gathers.
    pub(super) fn newest_suspect(&self) -> Option<Segment> {
        self.suspect
    }

    /// Whether the next commit begins a segment.
    pub(super) fn is_sealed(&self) -> bool {
        self.current.as_ref().is_none_or(|current| current.good >= self.segment_bytes)
    }

    /// Writes one commit: `write` puts its records. Returns its segment.
    pub(super) fn commit(&mut self, write: impl FnOnce(&mut Commit<'_>) -> io::Result<()>) -> Result<Segment, Failed> {
        let last = self.last;
        self.try_commit(write).map_err(|error| {
            let may_stand = self.cut_back();
            Failed { error, may_stand: may_stand.filter(|segment| !(*segment > last && self.take_back(*segment))) }
        })
    }

    fn try_commit(&mut self, write: impl FnOnce(&mut Commit<'_>) -> io::Result<()>) -> io::Result<Segment> {
        if self.is_sealed() {
            self.begin_segment()?;
        }
        let Some(current) = &mut self.current else { return Err(io::ErrorKind::NotFound.into()) };
        let mut commit = Commit { frame: vec![0; FRAME_HEAD_BYTES], current };
        write(&mut commit)?;
        commit.flush(ENDS)?;
        if self.sync == SyncMode::Batch || self.suspect.is_some() {
            // Whether anything of it is on the disk is unknown after a failure: the segment is left, and all is written again.
            current.output.sync().inspect_err(|_| current.good = u64::MAX)?;
        } else {
            self.is_unsynced = true;
        }
        current.good = current.length;
        let (segment, bytes) = (current.segment, current.length);
        if let Some(present) = self.present.get_mut(&segment) {
            present.bytes = bytes;
        }
        Ok(segment)
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        self.sync_now()?;
        self.current = None;
        let segment = self.last + 1;
        self.last = segment;
        let marker = rand::random();
        let name = file_name(segment, marker);
        let mut output = self.medium.create(&name)?;
        let begun = output.append(&HEADER).and_then(|()| match self.sync {
            SyncMode::Batch => self.medium.sync_names(),
            SyncMode::Interval | SyncMode::Os => Ok(()),
        });
        if begun.is_err() {
            // A full disk takes names longer than it takes bytes. Should it stay, the next start finds nothing in it.
            let _ = self.medium.remove(&name);
        }
        begun?;
        self.present.insert(segment, Present { name, bytes: HEADER.len() as u64 });
        let length = HEADER.len() as u64;
        self.current = Some(Current { segment, marker, output, good: length, length });
        Ok(())
    }

    /// After a failure: takes back what was written of the commit. Where that cannot be done the segment is left, and named.
    fn cut_back(&mut self) -> Option<Segment> {
        let current = self.current.as_mut()?;
        if current.good <= current.length && current.output.cut(current.good).is_ok() {
            current.length = current.good;
            return None;
        }
        let Current { segment, length, .. } = self.current.take()?;
        if let Some(present) = self.present.get_mut(&segment) {
            present.bytes = length;
        }
        Some(segment)
    }

    /// After a failure that came with the segment's beginning: takes the segment away. So a disk that fails again and again does not fill up with what is
    /// written again and again. True if it will not come back.
    fn take_back(&mut self, segment: Segment) -> bool {
        let Some(present) = self.present.get(&segment) else { return false };
        if self.medium.remove(&present.name).is_err() {
            return false;
        }
        self.present.remove(&segment);
        self.medium.sync_names().is_ok()
    }

    /// Brings everything to the disk that is not there. Where that fails the segment is left: see [`Log::newest_suspect`].
    pub(super) fn sync_now(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_unsynced) {
            return Ok(());
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        let synced = current.output.sync();
        if synced.is_err() {
            self.suspect = Some(current.segment);
            self.current = None;
        }
        synced
    }

    /// Whether something waits to be brought to the disk.
    pub(super) fn is_unsynced(&self) -> bool {
        self.is_unsynced
    }

    /// Nothing that stands in segments up to `cut` is needed any more.
    pub(super) fn drop_up_to(&mut self, cut: Segment) -> io::Result<()> {
        self.sync_now()?;
        while let Some((segment, present)) = self.present.first_key_value().filter(|(segment, _)| **segment <= cut) {
            let segment = *segment;
            let gone = match self.damaged.contains(&segment) {
                true => self.medium.rename(&present.name, &format!("{}{}", self.aside, present.name)),
                false => self.medium.remove(&present.name),
            };
            match gone {
                // Somebody else was quicker.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                gone => gone?,
            }
            // One after the other: should an older one come back, what a newer one said to be gone must be there too.
            self.medium.sync_names()?;
            self.damaged.remove(&segment);
            self.present.remove(&segment);
        }
        self.suspect = self.suspect.filter(|suspect| *suspect > cut);
        Ok(())
    }
}

/// The records of one commit on their way.
pub(super) struct Commit<'a> {
    current: &'a mut Current,
    frame: Vec<u8>,
}

impl Sink for Commit<'_> {
    type Error = io::Error;

    fn put(&mut self, record: &Record<'_>) -> io::Result<()> {
        record.encode(&mut self.frame);
        if self.frame.len() >= FRAME_BYTES { self.flush(0) } else { Ok(()) }
    }
}

impl Commit<'_> {
    fn flush(&mut self, flag: u8) -> io::Result<()> {
        let (head, body) = self.frame.split_at_mut(FRAME_HEAD_BYTES);
        let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let fields =
            [&self.current.marker.to_be_bytes()[..], &length.to_be_bytes(), &checksum(length, flag, body).to_be_bytes(), &[flag]];
        head.copy_from_slice(&fields.concat());
        // As far as we know: a part of it may get there even if this fails.
        self.current.length += self.frame.len() as u64;
        self.current.output.append(&self.frame)?;
        self.frame.truncate(FRAME_HEAD_BYTES);
        if self.frame.capacity() > 4 * FRAME_BYTES {
            self.frame.shrink_to_fit();
        }
        Ok(())
    }
}

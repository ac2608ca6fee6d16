//! Which life of this broker runs: max(wall clock in milliseconds, last stored + 1, highest that any peer knows of us + 1), stored in
//! `data_dir/incarnation` and settled at the first handshake, before any BPDU.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ids::Incarnation;

/// Why the incarnation could not be settled.
#[derive(Debug, thiserror::Error)]
pub enum IncarnationError {
    /// The file in `data_dir`.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something else stands in the file.
    #[error("{path}: {text:?} is no incarnation; if nothing else of this broker's data matters, remove the file")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What stands in it.
        text: String,
    },
    /// A peer knows a later life of this broker than the one that runs.
    #[error(
        "a peer knows incarnation {known} of this broker, this one is {own}: another process uses this broker's name and certificate"
    )]
    Cloned {
        /// What the peer knows.
        known: u64,
        /// What runs here.
        own: u64,
    },
}

/// The present life, and where it is written down.
#[derive(Debug)]
pub(super) struct Life {
    incarnation: Incarnation,
    settled: bool,
    path: PathBuf,
}

impl Life {
    /// Begins a new life; `wall` is the time since the Unix epoch.
    pub(super) fn begin(data_dir: &Path, wall: Duration) -> Result<Self, IncarnationError> {
        let path = data_dir.join("incarnation");
        let stored = match std::fs::read_to_string(&path) {
            Ok(text) => match text.trim().parse::<u64>() {
                Ok(stored) => stored,
                Err(_) => return Err(IncarnationError::Content { path, text: text.chars().take(32).collect() }),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(source) => return Err(IncarnationError::File { path, source }),
        };
        let clock = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        let life = Self { incarnation: Incarnation(clock.max(stored.saturating_add(1))), settled: false, path };
        life.store()?;
        Ok(life)
    }

    /// The number; final once settled.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// A peer knows `known` of us, zero if nothing. The first one settles the number; after that nobody may know a higher one.
    pub(super) fn settle(&mut self, known: Incarnation) -> Result<Incarnation, IncarnationError> {
        if !self.settled {
            self.settled = true;
            if known >= self.incarnation {
                self.incarnation = Incarnation(known.0.saturating_add(1));
                self.store()?;
            }
        } else if known > self.incarnation {
            return Err(IncarnationError::Cloned { known: known.0, own: self.incarnation.0 });
        }
        Ok(self.incarnation)
    }

    /// Whole or not at all, and on disk before anybody is told.
    fn store(&self) -> Result<(), IncarnationError> {
        let write = || {
            if let Some(dir) = self.path.parent() {
                std::fs::create_dir_all(dir)?;
            }
            let fresh = self.path.with_extension("new");
            let mut file = std::fs::File::create(&fresh)?;
            writeln!(file, "{}", self.incarnation.0)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &self.path)
        };
        write().map_err(|source| IncarnationError::File { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Duration = Duration::from_millis(1_000);

    #[test]
    fn each_life_is_later_than_the_last_whatever_the_clock_says() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |wall| Life::begin(dir.path(), wall).unwrap().incarnation().0;
        assert_eq!(begin(WALL), 1_000);
        assert_eq!(begin(WALL), 1_001);
        assert_eq!(begin(WALL / 2), 1_002);
        assert_eq!(begin(WALL * 5), 5_000);
    }

    #[test]
    fn the_first_handshake_settles_it_and_a_clone_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut life = Life::begin(dir.path(), WALL).unwrap();
        assert_eq!(life.settle(Incarnation(7_000)).unwrap(), Incarnation(7_001));
        assert_eq!(life.settle(Incarnation(7_001)).unwrap(), Incarnation(7_001), "our own, heard again");
        assert!(matches!(life.settle(Incarnation(7_002)), Err(IncarnationError::Cloned { known: 7_002, own: 7_001 })));
        assert_eq!(Life::begin(dir.path(), WALL).unwrap().incarnation(), Incarnation(7_002), "what was settled is stored");
    }

    #[test]
    fn a_file_that_is_something_else_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("incarnation"), "abc").unwrap();
        let error = Life::begin(dir.path(), WALL).unwrap_err().to_string();
        assert!(error.contains("incarnation") && error.contains("abc"), "{error}");
    }
}

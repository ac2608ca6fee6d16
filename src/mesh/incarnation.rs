//! Which life of this broker runs: max(wall clock in milliseconds, last stored + 1, highest that any peer has met + 1), stored in
//! `data_dir/incarnation` and settled with the first link, before any BPDU.
//!
//! What a peer says of our lives is only a word: before the number is settled it raises it, so that a broker that lost its data and whose
//! clock went back still lives later than before; after that it does nothing. What stops a broker is proof that another process lives as
//! it does: a later life for which its own key has signed.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ids::Incarnation;

/// So far apart may two clocks be of which incarnations were taken: ten years.
const AHEAD_MAX_MS: u64 = 10 * 365 * 24 * 3_600 * 1_000;

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
    /// Our own key has signed for a later life of this broker than the one that runs, or for more than this one has said.
    #[error(
        "incarnation {known} of this broker is in the mesh, this one is {own}: another process uses this broker's name and certificate \
         (if there is none, but the data directory was lost and the clock went back, start this broker again)"
    )]
    Cloned {
        /// Who signed.
        known: u64,
        /// What runs here.
        own: u64,
    },
    /// A peer says what no clock explains; to count on from there would use the numbers up.
    #[error("a peer says that it has met incarnation {known} of this broker, this one is {own}: that cannot be")]
    Beyond {
        /// What the peer says.
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
    cloned: Option<u64>,
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
        let life = Self { incarnation: Incarnation(clock.max(stored.saturating_add(1))), settled: false, cloned: None, path };
        life.store()?;
        Ok(life)
    }

    /// The number; final once settled.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// A peer says that it knows of `known` of us, zero if of none; `proven` is the later life that it can show. Until the number is settled
    /// it is raised above both; after that nobody may show a later one, and words alone change nothing.
    pub(super) fn raise(&mut self, known: Incarnation, proven: Option<Incarnation>) -> Result<Incarnation, IncarnationError> {
        if self.settled {
            return match proven.and_then(|proven| self.met_later(proven)) {
                Some(error) => Err(error),
                None => Ok(self.incarnation),
            };
        }
        let (own, known) = (self.incarnation.0, known.max(proven.unwrap_or_default()).0);
        if known.saturating_sub(own) > AHEAD_MAX_MS {
            return Err(IncarnationError::Beyond { known, own });
        }
        if known >= own {
            self.incarnation = Incarnation(known.saturating_add(1));
            self.store()?;
        }
        Ok(self.incarnation)
    }

    /// Our own key has signed for `other`, and not this process. Says why this broker may not go on, unless `other` is an earlier life.
    pub(super) fn met_later(&mut self, other: Incarnation) -> Option<IncarnationError> {
        if other >= self.incarnation {
            self.cloned = Some(other.0);
        }
        self.cloned()
    }

    /// The first link is there: the number is final.
    pub(super) fn settle(&mut self) -> Incarnation {
        self.settled = true;
        self.incarnation
    }

    /// Why this broker may not go on: somebody else lives its life.
    pub(super) fn cloned(&self) -> Option<IncarnationError> {
        self.cloned.map(|known| IncarnationError::Cloned { known, own: self.incarnation.0 })
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
    fn peers_raise_it_until_the_first_link_and_proof_of_a_clone_is_noticed_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut life = Life::begin(dir.path(), WALL).unwrap();
        assert_eq!(life.raise(Incarnation(0), None).unwrap(), Incarnation(1_000), "whoever knows nothing settles nothing");
        assert_eq!(life.raise(Incarnation(7_000), None).unwrap(), Incarnation(7_001));
        assert_eq!(life.raise(Incarnation(0), Some(Incarnation(7_500))).unwrap(), Incarnation(7_501));
        assert_eq!(life.settle(), Incarnation(7_501));
        assert_eq!(life.raise(Incarnation(7_501), Some(Incarnation(7_500))).unwrap(), Incarnation(7_501), "our own, heard again");
        assert_eq!(life.raise(Incarnation(9_000), None).unwrap(), Incarnation(7_501), "a word without proof");
        assert!(life.cloned().is_none());
        let later = Some(Incarnation(7_502));
        assert!(matches!(life.raise(Incarnation(7_502), later), Err(IncarnationError::Cloned { known: 7_502, own: 7_501 })));
        assert!(matches!(life.cloned(), Some(IncarnationError::Cloned { known: 7_502, own: 7_501 })));
        assert_eq!(Life::begin(dir.path(), WALL).unwrap().incarnation(), Incarnation(7_502), "what was settled is stored");
    }

    #[test]
    fn what_no_clock_explains_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let mut life = Life::begin(dir.path(), WALL).unwrap();
        for known in [u64::MAX, 1_001 + AHEAD_MAX_MS] {
            assert!(matches!(life.raise(Incarnation(known), None), Err(IncarnationError::Beyond { .. })), "{known}");
        }
        life.settle();
        assert!(life.raise(Incarnation(u64::MAX), None).is_ok() && life.cloned().is_none());
        assert_eq!(life.incarnation(), Incarnation(1_000));
    }

    #[test]
    fn a_file_that_is_something_else_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("incarnation"), "abc").unwrap();
        let error = Life::begin(dir.path(), WALL).unwrap_err().to_string();
        assert!(error.contains("incarnation") && error.contains("abc"), "{error}");
    }
}

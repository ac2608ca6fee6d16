//! Files as the log needs them, behind a trait, so that tests can let a disk be full.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Where segments are.
pub(super) trait Medium: Send {
    /// A file that does not exist yet, and that nobody else may read.
    fn create(&mut self, name: &str) -> io::Result<Box<dyn Output>>;
    /// Takes a file away.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Gives a file another name.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Brings to the disk which files there are.
    fn sync_names(&mut self) -> io::Result<()>;
}

/// A file that is written.
pub(super) trait Output: Send {
    /// Writes all of `bytes` at its end.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Brings it to the disk.
    fn sync(&mut self) -> io::Result<()>;
    /// Takes away what stands behind `length`.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

/// A directory.
#[derive(Debug)]
pub(super) struct Directory(pub(super) PathBuf);

impl Medium for Directory {
    fn create(&mut self, name: &str) -> io::Result<Box<dyn Output>> {
        // Appended to, so that what follows a cut stands where the cut was.
        Ok(Box::new(OpenOptions::new().append(true).create_new(true).mode(0o600).open(self.0.join(name))?))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn sync_names(&mut self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

impl Output for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

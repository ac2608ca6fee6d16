//! Files that appear whole or not at all, and are not written over unless that is what is wanted.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::PkiError;

/// Writes a file that must not be there.
///
/// # Errors
/// [`PkiError::Exists`], or why it cannot be written.
pub fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    create(path, mode)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|source| at_file(path, source, PkiError::Exists(path.to_owned())))
}

fn create(path: &Path, mode: u32) -> std::io::Result<File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)
}

fn at_file(path: &Path, source: std::io::Error, exists: PkiError) -> PkiError {
    match source.kind() {
        std::io::ErrorKind::AlreadyExists => exists,
        _ => PkiError::File { path: path.to_owned(), source },
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// A file that is about to take the place of another, whole. While it is there as `PATH.new`, nobody else replaces the same file.
#[derive(Debug)]
pub struct Replacement {
    path: PathBuf,
    unfinished: PathBuf,
    is_finished: bool,
    file: File,
}

impl Replacement {
    /// Begins to replace `path`, which need not be there.
    ///
    /// # Errors
    /// [`PkiError::Busy`] if somebody else has begun to; why it cannot be written.
    pub fn begin(path: &Path, mode: u32) -> Result<Self, PkiError> {
        let unfinished = beside(path, ".new");
        let file = create(&unfinished, mode).map_err(|source| at_file(&unfinished, source, PkiError::Busy(unfinished.clone())))?;
        Ok(Self { path: path.to_owned(), unfinished, is_finished: false, file })
    }

    /// Keeps what `path` is now as `PATH.old`.
    ///
    /// # Errors
    /// Why it cannot be copied.
    pub fn keep_old(&self) -> Result<(), PkiError> {
        let copied = std::fs::copy(&self.path, beside(&self.path, ".old"));
        copied.map(drop).map_err(|source| PkiError::File { path: self.path.clone(), source })
    }

    /// Puts `text` in the place of `path`.
    ///
    /// # Errors
    /// Why it cannot be written; `path` is what it was then.
    pub fn finish(mut self, text: &str) -> Result<(), PkiError> {
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_all());
        written
            .and_then(|()| std::fs::rename(&self.unfinished, &self.path))
            .map_err(|source| PkiError::File { path: self.path.clone(), source })?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // Of one that was finished nothing is left, and what has its name by now is somebody else's.
        if !self.is_finished {
            let _ = std::fs::remove_file(&self.unfinished);
        }
    }
}

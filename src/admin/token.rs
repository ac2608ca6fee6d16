//! The admin token: whoever can read its file may speak to the admin interface through a proxy or under another name.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use rand::Rng;
use sha2::{Digest, Sha256};

use super::AdminError;

/// Bytes of a token that we make, before they are written as hexadecimal digits.
const TOKEN_BYTES: usize = 32;

/// A secret that is compared, never shown.
pub(super) struct Token {
    digest: [u8; 32],
}

impl Token {
    fn new(text: &str) -> Self {
        Self { digest: Sha256::digest(text.trim().as_bytes()).into() }
    }

    /// Whether `text` is this token. Digests are compared, so that the time it takes tells nothing of the token.
    pub(super) fn is(&self, text: &str) -> bool {
        self.digest == Self::new(text).digest
    }
}

/// Reads the token from `path`; makes it, for its owner's eyes only, if there is none.
pub(super) fn open_or_create(path: &Path) -> Result<Token, AdminError> {
    let error = |source| AdminError::Token { path: path.to_owned(), source };
    match create(path) {
        Ok(token) => Ok(token),
        Err(exists) if exists.kind() == io::ErrorKind::AlreadyExists => {
            let text = read(path).map_err(error)?;
            warn_if_others_read(path);
            Ok(Token::new(&text))
        }
        Err(source) => Err(error(source)),
    }
}

fn create(path: &Path) -> io::Result<Token> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    let mut secret = [0_u8; TOKEN_BYTES];
    rand::rng().fill_bytes(&mut secret);
    let text: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(file, "{text}")?;
    tracing::info!(path = %path.display(), "made the admin token");
    Ok(Token::new(&text))
}

/// The token that a broker wrote to `path`.
///
/// # Errors
/// When the file cannot be read or is empty.
pub fn read(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty; remove it, and the next start makes a token"));
    }
    Ok(token.to_owned())
}

fn warn_if_others_read(path: &Path) {
    #[cfg(unix)]
    if let Ok(metadata) = fs::metadata(path) {
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
        if mode & 0o077 != 0 {
            tracing::warn!(path = %path.display(), mode = format!("{:o}", mode & 0o777), "others can read the admin token; chmod 600");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_for_its_owner_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("below").join("admin.token");
        let made = open_or_create(&path).expect("made");
        let text = read(&path).expect("readable");
        assert_eq!(text.len(), 2 * TOKEN_BYTES);
        assert!(made.is(&text) && made.is(&format!("{text}\n")) && !made.is("") && !made.is(&text.to_uppercase()));
        #[cfg(unix)]
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).expect("metadata").permissions()) & 0o777, 0o600);
        assert!(open_or_create(&path).expect("read again").is(&text));
        fs::write(&path, "\n").expect("written");
        assert!(matches!(open_or_create(&path), Err(AdminError::Token { .. })), "an empty token would let everybody in");
    }
}

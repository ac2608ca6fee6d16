//! Password files: lines of `NAME:HASH`; those that are empty or begin with `#` say nothing.
//!
//! [`Users`] is what a broker makes of one. `Deviation:` Mosquitto passes over lines that it does not understand, and once made users of them
//! (CVE-2018-12551); here the file is refused.

use std::collections::HashMap;
use std::sync::Arc;

use super::acl::lines;
use super::error::{FileError, Problem};
use super::password::{Record, Unusable};

/// As long as MQTT's strings may be, bytes.
const NAME_BYTES_MAX: usize = 65_535;

/// A name that no line of a password file can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserNameError {
    /// None at all.
    #[error("an empty user name")]
    Empty,
    /// The separator, a comment's sign in front, or spaces around, which are not part of the name when the file is read.
    #[error("the user name {0:?} has a `:` in it, a `#` in front or spaces around it")]
    Sign(Box<str>),
    /// Among them the line's end.
    #[error("the user name {0:?} has control characters in it")]
    Control(Box<str>),
    /// Longer than MQTT allows.
    #[error("a user name of {0} bytes, at most {NAME_BYTES_MAX} can be sent")]
    TooLong(usize),
}

/// Checks a name for a password file.
///
/// # Errors
/// See [`UserNameError`].
pub fn check_user_name(name: &str) -> Result<(), UserNameError> {
    match name {
        "" => Err(UserNameError::Empty),
        _ if name.len() > NAME_BYTES_MAX => Err(UserNameError::TooLong(name.len())),
        _ if name.contains(char::is_control) => Err(UserNameError::Control(super::error::excerpt(name))),
        _ if name.contains(':') || name.starts_with('#') || name.trim() != name => {
            Err(UserNameError::Sign(super::error::excerpt(name)))
        }
        _ => Ok(()),
    }
}

/// The users of one password file.
#[derive(Debug, Default)]
pub struct Users {
    by_name: HashMap<Arc<str>, Arc<Record>, ahash::RandomState>,
}

impl Users {
    /// Reads a password file.
    ///
    /// # Errors
    /// The first line that is not understood, or that there is no user at all.
    pub fn parse(text: &[u8]) -> Result<Self, FileError> {
        let mut by_name: HashMap<Arc<str>, Arc<Record>, ahash::RandomState> = HashMap::default();
        let mut line_of: HashMap<&str, usize, ahash::RandomState> = HashMap::default();
        for (number, line) in lines(text) {
            let at = |problem| FileError::at(number, problem);
            let (name, hash) = line.map_err(at)?.split_once(':').ok_or_else(|| at(Problem::NoColon))?;
            check_user_name(name).map_err(|error| at(error.into()))?;
            let user = || super::error::excerpt(name);
            if let Some(first) = line_of.insert(name, number) {
                return Err(at(Problem::Twice { user: user(), first }));
            }
            let record = Record::parse(hash).map_err(|why| match why {
                Unusable::Unknown => at(Problem::Plain { user: user() }),
                why => at(Problem::Hash { user: user(), why }),
            })?;
            by_name.insert(name.into(), Arc::new(record));
        }
        if by_name.is_empty() { Err(FileError::whole(Problem::NoUsers)) } else { Ok(Self { by_name }) }
    }

    /// A user's name, as it is kept, and password.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(&Arc<str>, &Arc<Record>)> {
        self.by_name.get_key_value(name)
    }

    /// Whether any user can log in with SCRAM.
    #[must_use]
    pub fn have_scram(&self) -> bool {
        self.by_name.values().any(|record| record.scram().is_some())
    }
}

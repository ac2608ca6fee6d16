//! Password files: lines of `NAME:HASH`; those that are empty or begin with `#` say nothing.
//!
//! [`Users`] is what a broker makes of one, [`PasswordFile`] what a command changes. `Deviation:` Mosquitto passes over lines that it does not understand, and once made users of them
//! (CVE-2018-12551); here the file is refused.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::acl::lines;
use super::error::{FileError, Problem};
use super::password::{Cost, Record, Unusable};

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

fn check_user_name(name: &str) -> Result<(), UserNameError> {
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
#[derive(Debug, PartialEq, Eq)]
pub struct Users {
    by_name: HashMap<Arc<str>, Arc<Record>, ahash::RandomState>,
    decoy: Arc<Record>,
    scram_decoy: Option<Arc<Record>>,
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
        let scram_decoy = most_frequent(by_name.values().filter(|record| record.scram().is_some()));
        match most_frequent(by_name.values()) {
            Some(decoy) => Ok(Self { by_name, decoy, scram_decoy }),
            None => Err(FileError::whole(Problem::NoUsers)),
        }
    }

    /// Like most of the records: what is checked of who is no user.
    #[must_use]
    pub fn decoy(&self) -> &Arc<Record> {
        &self.decoy
    }

    /// Like most of those for SCRAM, if there are any.
    pub(super) fn scram_decoy(&self) -> Option<&Record> {
        self.scram_decoy.as_deref()
    }

    /// A user's name, as it is kept, and password.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(&Arc<str>, &Arc<Record>)> {
        self.by_name.get_key_value(name)
    }

    /// Whether any user can log in with SCRAM.
    #[must_use]
    pub fn have_scram(&self) -> bool {
        self.scram_decoy.is_some()
    }
}

/// One of those of whose cost there are most; the same from the same file.
fn most_frequent<'a>(records: impl Iterator<Item = &'a Arc<Record>>) -> Option<Arc<Record>> {
    let mut counts: HashMap<Cost, (usize, &Arc<Record>), ahash::RandomState> = HashMap::default();
    for record in records {
        let (count, one) = counts.entry(record.cost()).or_insert((0, record));
        *count += 1;
        if record.to_string() < one.to_string() {
            *one = record;
        }
    }
    let most = counts.into_iter().max_by_key(|(cost, (count, _))| (*count, *cost));
    most.map(|(_, (_, record))| Arc::clone(record))
}

/// A password file as text, to be changed line by line: comments and order stay as they are.
#[derive(Clone, Debug, Default)]
pub struct PasswordFile {
    lines: Vec<String>,
}

impl PasswordFile {
    /// Takes any text: what is not understood stays where it is.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { lines: text.lines().map(str::to_owned).collect() }
    }

    /// Sets the password of a user, who may be new.
    ///
    /// # Errors
    /// When no line can hold the name.
    pub fn set(&mut self, name: &str, record: &Record) -> Result<(), UserNameError> {
        check_user_name(name)?;
        let line = format!("{name}:{record}");
        match self.lines.iter_mut().find(|line| is_of(line, name)) {
            Some(place) => *place = line,
            None => self.lines.push(line),
        }
        Ok(())
    }

    /// Removes a user. False if there was none.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.lines.len();
        self.lines.retain(|line| !is_of(line, name));
        self.lines.len() < before
    }

    /// Hashes plain passwords; what is hashed already stays as it is. Returns how many they were.
    ///
    /// # Errors
    /// A line that is no user and password, or a password that cannot be hashed that way.
    pub fn hash_plain(&mut self, hash: impl Fn(&[u8]) -> Result<Record, Unusable>) -> Result<usize, FileError> {
        let mut count = 0;
        for (line, number) in self.lines.iter_mut().zip(1..) {
            let text = line.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let at = |problem| FileError::at(number, problem);
            let (name, password) = text.split_once(':').ok_or_else(|| at(Problem::NoColon))?;
            check_user_name(name).map_err(|error| at(error.into()))?;
            if Record::parse(password).is_ok() {
                continue;
            }
            let user = || super::error::excerpt(name);
            let record = hash(password.as_bytes()).map_err(|why| at(Problem::Hash { user: user(), why }))?;
            *line = format!("{name}:{record}");
            count += 1;
        }
        Ok(count)
    }
}

impl fmt::Display for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Whether a line is the user's, spaces around it apart.
fn is_of(line: &str, name: &str) -> bool {
    line.trim().split_once(':').is_some_and(|(user, _)| user == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOB: &str =
        "bob:$7$101$uun/vuiWTJg2Psdr$6Rtlz/j2XNN5Hd6AlHig5A9BOpORIN5P8WqoHAhRMVejmTLejDVU1bCBJx9GMY3NNI8ys7p+566rMXNquHfDKQ==";
    const OLD: &str =
        "old:$6$G/kCKuRiPHKPU108$eNb/6fTFOXYH11/vdC/qfhzYnVX5iX7b2Sdk2Q96J6iCX5kr4e2TfOzkizAn8P547K49CnCtC64WCCmA8DR84g==";

    #[test]
    fn a_file_of_mosquitto_passwd() {
        let users = Users::parse(format!("\u{feff}# users\r\n\r\n{BOB}\r\n  {OLD}  \n").as_bytes()).unwrap();
        let is_good = |name: &str, password: &str| users.find(name).unwrap().1.verify(password.as_bytes());
        assert!(is_good("bob", "p w:\u{e4}#") && is_good("old", "secret"));
        assert!(!is_good("bob", "p w:") && !is_good("bob", "") && !is_good("old", "Secret") && !is_good("old", "secret "));
        assert!(users.find("eve").is_none() && users.find("").is_none() && users.find("# users").is_none());
        assert!(!users.have_scram());
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        let user = || "x".into();
        for (text, line, problem) in [
            (String::new(), None, Problem::NoUsers),
            ("# nobody\n\n".to_owned(), None, Problem::NoUsers),
            (format!("{BOB}\nbob"), Some(2), Problem::NoColon),
            (format!("\n{BOB}\n:{}", &BOB[4..]), Some(3), Problem::UserName(UserNameError::Empty)),
            (format!("x :{}", &BOB[4..]), Some(1), Problem::UserName(UserNameError::Sign("x ".into()))),
            (format!("{BOB}\n{OLD}\n{BOB}"), Some(3), Problem::Twice { user: "bob".into(), first: 1 }),
            ("x:hunter2".to_owned(), Some(1), Problem::Plain { user: user() }),
            ("x:".to_owned(), Some(1), Problem::Plain { user: user() }),
            ("x:$6$AAAA".to_owned(), Some(1), Problem::Hash { user: user(), why: Unusable::Parts }),
            (format!("x{}x", &BOB[3..]), Some(1), Problem::Hash { user: user(), why: Unusable::Base64 }),
            (format!("{BOB}\0"), Some(1), Problem::ControlCharacter),
        ] {
            let error = Users::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error, FileError { line, problem }, "{text:?}");
            assert!(!error.problem.to_string().contains("hunter2"));
        }
        assert_eq!(Users::parse(b"\xff:x").unwrap_err(), FileError::at(1, Problem::NotUtf8));
    }

    #[test]
    fn a_file_is_changed_line_by_line() {
        let (bob, old) = (Record::parse(&BOB[4..]).unwrap(), Record::parse(&OLD[4..]).unwrap());
        let mut file = PasswordFile::new("# a\n\neve:plain\n");
        file.set("bob", &bob).unwrap();
        file.set("old", &bob).unwrap();
        file.set("old", &old).unwrap();
        assert_eq!(file.to_string(), format!("# a\n\neve:plain\n{BOB}\n{OLD}\n"));
        assert_eq!(file.hash_plain(|_| Ok(old.clone())), Ok(1));
        assert_eq!(file.hash_plain(|_| Err(Unusable::Unknown)), Ok(0), "what is hashed stays");
        assert!(file.remove("bob") && !file.remove("bob") && !file.remove("# a"));
        assert_eq!(file.to_string(), format!("# a\n\neve{}\n{OLD}\n", &OLD[3..]));
        for name in ["", "a:b", "#a", " a", "a\nb", &"x".repeat(65_536)] {
            assert!(file.set(name, &bob).is_err(), "{name:?}");
        }
        assert!(PasswordFile::new("nobody").hash_plain(|_| Ok(old.clone())).is_err());
    }
}

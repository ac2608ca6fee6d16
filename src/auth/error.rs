//! What is wrong with a password file or an access file.

use super::users::UserNameError;
use crate::topic::TopicError;

/// Why a file is refused, as a whole. The caller knows its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Counted from 1; none where the file as a whole is meant.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub problem: Problem,
}

impl FileError {
    pub(super) fn at(line: usize, problem: Problem) -> Self {
        Self { line: Some(line), problem }
    }

    pub(super) fn whole(problem: Problem) -> Self {
        Self { line: None, problem }
    }
}

/// See [`FileError`]. What stands in a line is shown where it is no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The files are UTF-8, as MQTT's strings are.
    #[error("not UTF-8; save the file in that encoding")]
    NotUtf8,
    /// A NUL, a tab or another control character: names and topics with one are never met, and Mosquitto takes a tab for a part of them.
    #[error("a control character; remove it, or put a space in place of a tab")]
    ControlCharacter,
    /// An access file with nothing in it.
    #[error(
        "no rule in it, so that nobody could publish or receive anything; write for example `topic read #`, or leave acl_file out"
    )]
    NoRules,
    /// A line of an access file that begins with none of its words.
    #[error("`{word}` is not one of the words user, topic and pattern with which a line begins")]
    Keyword {
        /// The line's first word, shortened.
        word: Box<str>,
    },
    /// `user` alone.
    #[error("`user` without a name; the lines above the first `user` are for anonymous clients")]
    NoUser,
    /// `topic` or `pattern` alone.
    #[error("no topic; write for example `topic readwrite a/b/#`")]
    NoTopic,
    /// Two words, of which the first is no kind of access.
    #[error("`{word}` is not one of read, write, readwrite and deny; in front of a topic with a space one of them is needed")]
    Kind {
        /// The word, shortened.
        word: Box<str>,
    },
    /// A topic that is no filter.
    #[error("{0}; write a topic or a topic filter as for a subscription")]
    Filter(#[from] TopicError),
    /// A rule about a shared subscription.
    #[error("a rule for a shared subscription; who may read a topic may share it: leave `$share/NAME/` out")]
    Shared,
    /// A pattern in which a name would be part of a level.
    #[error("%u and %c must be the only text of their level; `{level}` has more")]
    PartOfLevel {
        /// The level, shortened.
        level: Box<str>,
    },
    /// A number that says nothing.
    #[error("the access {access} is no sum of 1 (read), 2 (write) and 4 (subscribe)")]
    Access {
        /// The number.
        access: i64,
    },
    /// A password file without users.
    #[error("no user in it, so that nobody could log in; add one with `mqtt-st-quic passwd FILE NAME`, or leave password_file out")]
    NoUsers,
    /// A line of a password file that is no user and password.
    #[error("no `:` between a user name and a hash; remove the line, or put `#` in front")]
    NoColon,
    /// A user name that no client can have.
    #[error("{0}")]
    UserName(#[from] UserNameError),
    /// A user that has a line already.
    #[error("user {user:?} has line {first} already; remove one of them")]
    Twice {
        /// The user.
        user: Box<str>,
        /// The line.
        first: usize,
    },
    /// What follows the user name is no hash that is known. It may be the password itself and is not shown.
    #[error(
        "what follows user {user:?} is no hash ($6$, $7$, $argon2id$, SCRAM-SHA-256$, PBKDF2$ or $2b$); if it is a file of plain passwords, \
         `mqtt-st-quic passwd -U FILE` hashes them"
    )]
    Plain {
        /// The user.
        user: Box<str>,
    },
    /// A hash with something wrong in it.
    #[error("the hash of user {user:?} is not usable: {why}; set the password again with `mqtt-st-quic passwd FILE NAME`")]
    Hash {
        /// The user.
        user: Box<str>,
        /// What is wrong with it.
        why: super::Unusable,
    },
}

/// Enough of a word to find it, too little to flood a log.
pub(super) fn excerpt(word: &str) -> Box<str> {
    word.chars().take(40).collect()
}

//! Files, lines and their values: Mosquitto's grammar, within bounds.

use std::fmt;
use std::sync::Arc;

use toml::Value;

use super::ImportError;
use super::text::Section;
use crate::config::load::try_value;

/// A line that is longer is a mistake, bytes: no value that MQTT knows needs half of it.
const LINE_BYTES_MAX: usize = 256 * 1024;
/// Of what somebody wrote, in an error, letters.
const EXCERPT_LETTERS: usize = 60;
/// As long as MQTT's strings may be, bytes; Mosquitto takes no longer ones either.
const TEXT_BYTES_MAX: usize = 65_535;

/// Where something was said. Shows as `file:line`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) file: Arc<str>,
    /// From 1.
    pub(super) line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.escape_debug(), self.line)
    }
}

/// A variable and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) origin: Origin,
    pub(super) key: String,
    rest: String,
}

/// The lines of a file that say something. Those that begin with `#` are comments.
pub(super) fn parse<'a>(name: &'a Arc<str>, bytes: &'a [u8]) -> impl Iterator<Item = Result<Line, ImportError>> + use<'a> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let numbered = bytes.split(|byte| *byte == b'\n').zip(1..);
    numbered.filter_map(move |(line, number)| {
        let origin = Origin { file: Arc::clone(name), line: number };
        let wrong = |problem: String| Some(Err(ImportError::Line { place: origin.to_string(), problem }));
        if line.len() > LINE_BYTES_MAX {
            return wrong(format!("the line has {} bytes, and {LINE_BYTES_MAX} may be; is this a configuration?", line.len()));
        }
        let line = line.trim_ascii_end();
        if line.starts_with(b"#") || line.is_empty() {
            return None;
        }
        let Ok(line) = std::str::from_utf8(line) else {
            return wrong("the line is not UTF-8; write it anew in an editor that says UTF-8".to_owned());
        };
        if line.contains(|letter: char| letter.is_control() && letter != '\t') {
            return wrong("the line has control characters; take them away".to_owned());
        }
        let line = line.trim_start();
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(Ok(Line { origin: origin.clone(), key: key.to_owned(), rest: rest.trim().to_owned() }))
    })
}

/// What somebody wrote, so that it can be shown.
pub(super) fn excerpt(text: &str) -> String {
    let shown: String = text.chars().take(EXCERPT_LETTERS).collect();
    let more = if shown.len() < text.len() { "..." } else { "" };
    format!("{}{more}", shown.escape_debug())
}

impl Line {
    /// An error at this line.
    pub(super) fn wrong(&self, problem: &str) -> ImportError {
        let said = match self.rest.is_empty() || self.key.contains("password") {
            true => excerpt(&self.key),
            false => format!("{} {}", excerpt(&self.key), excerpt(&self.rest)),
        };
        ImportError::Line { place: self.origin.to_string(), problem: format!("`{said}`: {problem}") }
    }

    /// Everything behind the variable.
    pub(super) fn text(&self) -> Result<&str, ImportError> {
        match self.rest.as_str() {
            "" => Err(self.wrong("has no value; write one, or take the line away")),
            text if text.len() > TEXT_BYTES_MAX => Err(self.wrong(&format!("has more than {TEXT_BYTES_MAX} bytes"))),
            text => Ok(text),
        }
    }

    /// The words behind it, without a comment at the end.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        self.rest.split([' ', '\t']).filter(|word| !word.is_empty())
    }

    /// The first of them.
    pub(super) fn word(&self) -> Result<&str, ImportError> {
        self.text()?;
        self.words().next().ok_or_else(|| self.wrong("has no value"))
    }

    /// A truth value.
    pub(super) fn boolean(&self) -> Result<bool, ImportError> {
        match self.word()? {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(self.wrong("is neither true nor false; write one of these")),
        }
    }

    /// A whole number, written as C writes them.
    pub(super) fn integer(&self) -> Result<i64, ImportError> {
        let word = self.word()?;
        let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
        let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(hex) => i64::from_str_radix(hex, 16),
            None if digits.len() > 1 && digits.starts_with('0') => i64::from_str_radix(digits, 8),
            None => digits.parse(),
        };
        // A second sign may hide behind `0x`.
        let number = parsed.ok().filter(|number| *number >= 0 && digits.starts_with(|first: char| first.is_ascii_digit()));
        number.map(|number| number * sign).ok_or_else(|| self.wrong("is no whole number; write one"))
    }

    /// A number from `least` to `most`.
    pub(super) fn between(&self, least: i64, most: i64) -> Result<i64, ImportError> {
        let number = self.integer()?;
        let is_within = (least..=most).contains(&number);
        if is_within { Ok(number) } else { Err(self.wrong(&format!("is out of range; it must be from {least} to {most}"))) }
    }

    /// Sets the key at `path`, dotted, of our configuration in its table, which is `section`: if the key takes the value.
    pub(super) fn put(&self, section: &mut Section, path: &str, value: Value) -> Result<(), ImportError> {
        self.fits(path, &value)?;
        let key = path.rsplit('.').next().unwrap_or(path);
        section.set(key, value, &self.origin);
        Ok(())
    }

    /// Whether the key at `path`, dotted, takes the value.
    pub(super) fn fits(&self, path: &str, value: &Value) -> Result<(), ImportError> {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        try_value(&path, value).map_err(|problem| self.wrong(&problem.replace('\n', "; ")))
    }
}

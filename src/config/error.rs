//! What is wrong with a configuration, where, and what to do about it.

use std::fmt;
use std::ops::Range;

use thiserror::Error;

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The file is not TOML, has a key that does not exist or a value that its key cannot take.
    #[error("{place}: {key}{problem}{remedy}\n{excerpt}", key = Prefix(.key), remedy = Remedy(.remedy), excerpt = .place.excerpt)]
    File {
        /// Where.
        place: Box<Place>,
        /// The key in which it is, dotted; empty outside any.
        key: String,
        /// What is wrong there.
        problem: String,
        /// What to do, where that is known.
        remedy: Option<String>,
    },
    /// An environment variable or a flag names a key that does not exist, or a value that its key cannot take.
    #[error("{origin} = \"{value}\": {problem}{remedy}", remedy = Remedy(.remedy))]
    Override {
        /// The variable or flag.
        origin: String,
        /// What it was set to.
        value: String,
        /// What is wrong with it.
        problem: String,
        /// What to do, where that is known.
        remedy: Option<String>,
    },
    /// Each key is right by itself, but not all of them together.
    #[error("{place}{key}: {problem}", place = Prefix(.place))]
    Rule {
        /// The file with line and column, or the variable or flag that said it; empty for what nobody said.
        place: String,
        /// The key, dotted.
        key: String,
        /// What is wrong, and what to do.
        problem: String,
    },
}

struct Prefix<'a>(&'a str);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

struct Remedy<'a>(&'a Option<String>);

impl fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

/// A place in a configuration file. Shows as `file:line:column`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file as it was named to us.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The line itself, with carets below what is meant.
    pub excerpt: String,
}

impl Place {
    /// The place of the bytes `span` of `text`.
    pub(super) fn new(file: &str, text: &str, span: &Range<usize>) -> Self {
        let start = (0..=span.start.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        let (before, after) = text.split_at_checked(start).unwrap_or((text, ""));
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.matches('\n').count() + 1;
        let head = before.get(line_start..).unwrap_or_default();
        let tail = after.lines().next().unwrap_or_default();
        let marked = tail.get(..span.len().min(tail.len())).map_or(1, |marked| marked.chars().count()).max(1);
        let margin = line.to_string();
        let blank: String = head.chars().map(|letter| if letter == '\t' { '\t' } else { ' ' }).collect();
        let excerpt = format!(
            "  {margin} | {head}{tail}\n  {empty} | {blank}{carets}",
            empty = " ".repeat(margin.len()),
            carets = "^".repeat(marked)
        );
        Self { file: file.to_owned(), line, column: head.chars().count() + 1, excerpt }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// For serde's "unknown field `x`, expected one of `a`, `b`": the known name that `x` was probably meant to be.
pub(super) fn suggestion(problem: &str) -> Option<String> {
    let mut names = problem.strip_prefix("unknown ")?.split('`').skip(1).step_by(2);
    let unknown = names.next()?;
    let (distance, name) = names.map(|name| (edit_distance(unknown, name), name)).min()?;
    (distance <= unknown.len().div_ceil(3)).then(|| format!("did you mean `{name}`?"))
}

/// Letters to insert, remove or replace to make `b` of `a` (Levenshtein).
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut left = i + 1;
        let mut diagonal = i;
        for (to, cell) in b.chars().zip(row.iter_mut().skip(1)) {
            let up = *cell;
            left = (diagonal + usize::from(from != to)).min(up + 1).min(left + 1);
            diagonal = up;
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_lines_and_characters() {
        let text = "a = 1\n\u{e4}\u{f6} = \"x\"\r\n\tlast";
        for (span, line, column) in [(0..1, 1, 1), (4..5, 1, 5), (6..8, 2, 1), (13..16, 2, 6), (19..23, 3, 2), (99..120, 3, 6)] {
            let place = Place::new("f", text, &span);
            assert_eq!((place.line, place.column), (line, column), "{span:?}");
        }
        assert_eq!(Place::new("f", text, &(13..16)).excerpt, "  2 | \u{e4}\u{f6} = \"x\"\n    |      ^^^");
    }

    #[test]
    fn distances_are_levenshteins() {
        for (a, b, distance) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("lisen", "listen", 1), ("flaw", "lawn", 2)]
        {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
        }
    }

    #[test]
    fn only_near_names_are_suggested() {
        assert_eq!(
            suggestion("unknown field `lisen`, expected one of `name`, `listen`").as_deref(),
            Some("did you mean `listen`?")
        );
        assert_eq!(suggestion("unknown field `zzzzzz`, expected one of `name`, `listen`"), None);
        assert_eq!(suggestion("invalid type: integer `1`"), None);
    }
}

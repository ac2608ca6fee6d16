//! The rules of one user, as a backend gives them: topic filters, and what may be done with each. Bounded, whoever gives them.

use serde_json::Value;

use crate::auth::{MAY_READ, MAY_SUBSCRIBE, MAY_WRITE, Rules};

/// Rules that a user may have.
const ROWS_MAX: usize = 1_000;
/// Bytes of topic filters in them.
const BYTES_MAX: usize = 64 * 1_024;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Rows {
    all: Vec<(String, i64)>,
    bytes: usize,
}

impl Rows {
    /// One more. The error is for the log: the user has too many.
    pub(super) fn add(&mut self, topic: String, access: i64) -> Result<(), String> {
        self.bytes += topic.len();
        if self.all.len() >= ROWS_MAX || self.bytes > BYTES_MAX {
            return Err(format!("a user has more than {ROWS_MAX} rules or {BYTES_MAX} bytes of topic filters; join some of them"));
        }
        self.all.push((topic, access));
        Ok(())
    }

    /// Of a list of `{"topic": ..., "access": ...}`, or of lists of topic filters by what may be done with them, `{"pub": [...], "sub": [...], "all": [...]}`.
    pub(super) fn of_json(value: &Value) -> Result<Self, String> {
        let mut rows = Self::default();
        let wrong = || {
            "rules are neither a list of {\"topic\", \"access\"} nor {\"pub\", \"sub\", \"all\"} with lists of topic filters"
                .to_owned()
        };
        match value {
            Value::Array(all) => {
                for one in all {
                    let topic = one.get("topic").and_then(Value::as_str).ok_or_else(wrong)?;
                    let access = one.get("access").and_then(Value::as_i64).ok_or_else(wrong)?;
                    rows.add(topic.to_owned(), access)?;
                }
            }
            Value::Object(all) => {
                for (kind, topics) in all {
                    let access = match kind.as_str() {
                        "pub" => MAY_WRITE,
                        "sub" => MAY_READ | MAY_SUBSCRIBE,
                        "all" => MAY_READ | MAY_WRITE | MAY_SUBSCRIBE,
                        _ => return Err(wrong()),
                    };
                    for topic in topics.as_array().ok_or_else(wrong)? {
                        rows.add(topic.as_str().ok_or_else(wrong)?.to_owned(), access)?;
                    }
                }
            }
            _ => return Err(wrong()),
        }
        Ok(rows)
    }

    /// What they grant. A row that is no rule grants nothing; the first is named in the log, by the key that brought it.
    pub(super) fn rules(&self, key: &str, user: &str) -> Rules {
        let (rules, left_out) = Rules::of_rows(self.all.iter().map(|(filter, access)| (filter.as_str(), *access)));
        if let Some(problem) = left_out {
            tracing::warn!(key, user = ?super::excerpt(user), %problem, "a rule is not understood, and grants nothing");
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_in_both_forms_and_anything_else_is_an_error() {
        let of = |text: &str| Rows::of_json(&serde_json::from_str(text).unwrap()).map(|rows| rows.all);
        let row = |topic: &str, access| (topic.to_owned(), access);
        assert_eq!(of(r#"[{"topic": "a/#", "access": 5}, {"topic": "b", "access": 2}]"#), Ok(vec![row("a/#", 5), row("b", 2)]));
        let mut all = of(r#"{"pub": ["a"], "sub": ["b", "c"], "all": ["d"]}"#).unwrap();
        all.sort();
        assert_eq!(all, [row("a", 2), row("b", 5), row("c", 5), row("d", 7)]);
        assert_eq!((of("[]"), of("{}")), (Ok(vec![]), Ok(vec![])));
        for text in [
            "\"#\"",
            "7",
            "true",
            "null",
            "[\"#\"]",
            "[{\"topic\": \"#\"}]",
            "{\"all\": \"#\"}",
            "{\"deny\": [\"a\"]}",
            "{\"pub\": [1]}",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn they_are_bounded() {
        let mut rows = Rows::default();
        assert!((0..ROWS_MAX).all(|_| rows.add("t".to_owned(), 7).is_ok()) && rows.add("t".to_owned(), 7).is_err());
        assert!(Rows::default().add("t".repeat(BYTES_MAX + 1), 7).is_err());
    }
}

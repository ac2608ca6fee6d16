//! Topic names, topic filters, and the tries that find the filters that match a name and the names that match a filter.
//!
//! It is: MQTT's grammar of names and filters, and matching. It is not: who may publish or subscribe (`auth`), what `$SYS` or `$share`
//! mean to a session (`router`), nor the rules of UTF-8 strings and their length, which `codec` has enforced before a string comes here
//! [MQTT-1.5.4-1, 1.5.4-2, 4.7.3-2, 4.7.3-3].
//!
//! Invariants: names and filters are compared byte by byte, without normalisation or folding [MQTT-4.7.3-4]; an empty level is a level
//! (`a//b` has three, `/a` two); [`matches()`], [`SubscriptionTrie`] and [`NameTrie`] agree on every name and filter.
//!
//! Specification: MQTT 5.0, sections 4.7 (names and filters) and 4.8.2 (shared subscriptions); statements are cited by its numbers.

mod name_trie;
mod small_map;
mod subscription_trie;

pub use name_trie::NameTrie;
pub use subscription_trie::SubscriptionTrie;

use crate::limits::TOPIC_LEVELS_MAX;

/// Stands between two levels.
const SEPARATOR: char = '/';
/// A level of a filter that matches any one level [MQTT-4.7.1-2].
const ANY_LEVEL: &str = "+";
/// The last level of a filter that matches the parent and everything below it [MQTT-4.7.1-1].
const ALL_BELOW: &str = "#";
/// What a shared subscription's filter begins with.
const SHARE_PREFIX: &str = "$share/";
/// Characters of an offending name or filter that an error keeps: enough to find it, too little to flood a log.
const EXCERPT_CHARS: usize = 80;

/// Why a topic name or topic filter is refused. A refused name is reason code 0x90, a refused filter 0x8F.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// Names and filters have at least one character [MQTT-4.7.3-1].
    #[error("topic name or filter is empty")]
    Empty,
    /// A bound of ours, as section 4.7 allows: deep hierarchies cost memory and time by a client's say-so.
    #[error("topic name or filter has {levels} levels, at most {TOPIC_LEVELS_MAX} are allowed")]
    TooManyLevels {
        /// How many it has.
        levels: usize,
    },
    /// Names have no wildcards [MQTT-4.7.0-1, 3.3.2-2].
    #[error("topic name {name:?} contains a wildcard")]
    WildcardInName {
        /// The beginning of the name.
        name: Box<str>,
    },
    /// A wildcard fills a level by itself, and `#` is the last level [MQTT-4.7.1-1, 4.7.1-2].
    #[error("topic filter {filter:?} has a misplaced wildcard in level {level:?}")]
    MisplacedWildcard {
        /// The beginning of the filter.
        filter: Box<str>,
        /// The beginning of the first level that is wrong.
        level: Box<str>,
    },
    /// `$share/` is followed by a share name without wildcards, a separator and a filter [MQTT-4.8.2-1, 4.8.2-2].
    #[error("shared subscription {filter:?} is not of the form $share/NAME/FILTER")]
    MalformedShare {
        /// The beginning of the filter.
        filter: Box<str>,
    },
}

/// Checks a topic name: what a PUBLISH, a will or a response topic may name.
///
/// # Errors
/// When it is empty, has too many levels or contains a wildcard.
pub fn check_name(name: &str) -> Result<(), TopicError> {
    // One pass without an early exit, which the compiler turns into vector instructions.
    let (mut separators, mut wildcards) = (0, 0);
    for byte in name.bytes() {
        separators += usize::from(byte == b'/');
        wildcards += usize::from(byte == b'+' || byte == b'#');
    }
    if name.is_empty() {
        return Err(TopicError::Empty);
    }
    if wildcards > 0 {
        return Err(TopicError::WildcardInName { name: excerpt(name) });
    }
    check_levels(separators)
}

/// Checks a topic name that came in a packet: that it has no wildcard the decoder has seen. For each PUBLISH.
///
/// # Errors
/// When it is empty or has too many levels.
#[inline]
pub fn check_decoded_name(name: &str) -> Result<(), TopicError> {
    match name.len() {
        0 => Err(TopicError::Empty),
        // Each level but the first has a separator before it.
        1..TOPIC_LEVELS_MAX => Ok(()),
        _ => check_levels(name.bytes().filter(|byte| *byte == b'/').count()),
    }
}

/// A topic filter that has been checked, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter<'a> {
    /// The share name of a shared subscription.
    pub share: Option<&'a str>,
    /// What names are matched against: the whole filter, or what follows `$share/NAME/`.
    pub levels: &'a str,
}

/// Checks a topic filter and takes it apart.
///
/// # Errors
/// When it is empty, has too many levels, has a wildcard where none may be, or is a shared subscription with a wrong share name or
/// without a filter.
pub fn parse_filter(text: &str) -> Result<Filter<'_>, TopicError> {
    let filter = match text.strip_prefix(SHARE_PREFIX) {
        None => Filter { share: None, levels: text },
        Some(rest) => match rest.split_once(SEPARATOR) {
            Some((share, levels)) if !share.is_empty() && !share.contains(['+', '#']) && !levels.is_empty() => {
                Filter { share: Some(share), levels }
            }
            _ => return Err(TopicError::MalformedShare { filter: excerpt(text) }),
        },
    };
    if filter.levels.is_empty() {
        return Err(TopicError::Empty);
    }
    check_levels(filter.levels.bytes().filter(|byte| *byte == b'/').count())?;
    let mut levels = filter.levels.split(SEPARATOR).peekable();
    while let Some(level) = levels.next() {
        let well_placed = match level {
            ANY_LEVEL => true,
            ALL_BELOW => levels.peek().is_none(),
            _ => !level.contains(['+', '#']),
        };
        if !well_placed {
            return Err(TopicError::MisplacedWildcard { filter: excerpt(text), level: excerpt(level) });
        }
    }
    Ok(filter)
}

/// Whether a filter is of a share group.
#[must_use]
pub fn is_shared(filter: &str) -> bool {
    filter.starts_with(SHARE_PREFIX)
}

/// Whether `filter` (checked, without a share name) matches the topic name `name`.
#[must_use]
pub fn matches(filter: &str, name: &str) -> bool {
    if is_reserved(name) && (filter.starts_with(ANY_LEVEL) || filter.starts_with(ALL_BELOW)) {
        return false;
    }
    let mut name_levels = name.split(SEPARATOR);
    for filter_level in filter.split(SEPARATOR) {
        if filter_level == ALL_BELOW {
            return true; // also where the name has ended: `a/#` matches `a` (section 4.7.1.2)
        }
        match name_levels.next() {
            Some(name_level) if filter_level == ANY_LEVEL || filter_level == name_level => {}
            _ => return false,
        }
    }
    name_levels.next().is_none()
}

/// Whether a filter that begins with a wildcard must not match this name [MQTT-4.7.2-1].
fn is_reserved(name: &str) -> bool {
    name.starts_with('$')
}

fn check_levels(separators: usize) -> Result<(), TopicError> {
    let levels = separators.saturating_add(1);
    if levels > TOPIC_LEVELS_MAX { Err(TopicError::TooManyLevels { levels }) } else { Ok(()) }
}

fn excerpt(text: &str) -> Box<str> {
    text.chars().take(EXCERPT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names() {
        let deepest = vec!["l"; TOPIC_LEVELS_MAX].join("/");
        for good in ["a", "/", "//", "/a", "a/", "a//b", " ", "$SYS/x", "$share/g/t", "sport/tennis", "é/\u{feff}", &deepest] {
            assert_eq!((check_name(good), check_decoded_name(good)), (Ok(()), Ok(())), "{good:?}");
        }
        let too_deep = format!("{deepest}/");
        for name in [&too_deep, "", &"/".repeat(TOPIC_LEVELS_MAX - 1), &"/".repeat(TOPIC_LEVELS_MAX)] {
            assert_eq!(check_decoded_name(name), check_name(name), "{name:?}");
        }
        assert_eq!(check_name(&too_deep), Err(TopicError::TooManyLevels { levels: TOPIC_LEVELS_MAX + 1 }));
        assert_eq!(check_name(""), Err(TopicError::Empty));
        for wild in ["+", "#", "a/+", "a/#", "a+", "#a", "a/b+c/d"] {
            assert_eq!(check_name(wild), Err(TopicError::WildcardInName { name: wild.into() }));
        }
    }

    #[test]
    fn filters() {
        for plain in
            ["a", "/", "+", "#", "+/+", "a/#", "/#", "+/#", "a//+", "$SYS/#", "$share", "$shared/g/t", "$SHARE/g/t", "a/$share/b"]
        {
            assert_eq!(parse_filter(plain), Ok(Filter { share: None, levels: plain }), "{plain:?}");
        }
        for (text, share, levels) in [
            ("$share/g/t", "g", "t"),
            ("$share/g/#", "g", "#"),
            ("$share/g//", "g", "/"),
            ("$share/$g/+/t", "$g", "+/t"),
            ("$share/g/$share/h/t", "g", "$share/h/t"),
        ] {
            assert_eq!(parse_filter(text), Ok(Filter { share: Some(share), levels }), "{text:?}");
        }
        assert_eq!(parse_filter(""), Err(TopicError::Empty));
        for (text, level) in [
            ("a#", "a#"),
            ("#a", "#a"),
            ("a/#/b", "#"),
            ("#/", "#"),
            ("##", "##"),
            ("a+/b", "a+"),
            ("a/+b", "+b"),
            ("++", "++"),
            ("+#", "+#"),
            ("$share/g/a+", "a+"),
            ("$share/g/#/a", "#"),
        ] {
            assert_eq!(parse_filter(text), Err(TopicError::MisplacedWildcard { filter: text.into(), level: level.into() }));
        }
        for text in
            ["$share/", "$share//", "$share//t", "$share/g", "$share/g/", "$share/+/t", "$share/#/t", "$share/a+/t", "$share/g#/t"]
        {
            assert_eq!(parse_filter(text), Err(TopicError::MalformedShare { filter: text.into() }));
        }
        let deepest = vec!["+"; TOPIC_LEVELS_MAX].join("/");
        assert!(parse_filter(&deepest).is_ok());
        assert!(parse_filter(&format!("$share/g/{deepest}")).is_ok(), "the share name is not a level of the filter");
        assert_eq!(parse_filter(&format!("{deepest}/#")), Err(TopicError::TooManyLevels { levels: TOPIC_LEVELS_MAX + 1 }));
    }

    /// The examples of sections 4.7.1 to 4.7.3, and the mistakes of other brokers.
    pub(super) const MATCHES: &[(&str, &str, bool)] = &[
        ("sport/tennis/player1/#", "sport/tennis/player1", true),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", true),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true),
        ("sport/tennis/player1/#", "sport/tennis/player10", false),
        ("sport/#", "sport", true),
        ("sport/#", "sport/", true),
        ("#", "sport", true),
        ("#", "/", true),
        ("sport/tennis/+", "sport/tennis/player1", true),
        ("sport/tennis/+", "sport/tennis/player1/ranking", false),
        ("sport/+", "sport", false),
        ("sport/+", "sport/", true),
        ("+/tennis/#", "sport/tennis", true),
        ("+/tennis/#", "tennis", false),
        ("+/+", "/finance", true),
        ("/+", "/finance", true),
        ("+", "/finance", false),
        ("+/#", "a", true),
        ("+/+/#", "a", false),
        ("#", "$SYS/x", false),
        ("+/monitor/Clients", "$SYS/monitor/Clients", false),
        ("+", "$SYS", false),
        ("$SYS/#", "$SYS/x", true),
        ("$SYS/#", "$SYS", true),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", true),
        ("a/#", "a/$b", true),
        ("a/+", "a/$b", true),
        ("ACCOUNTS", "Accounts", false),
        ("/finance", "finance", false),
        ("a", "a/", false),
        ("a/", "a", false),
        ("a//b", "a//b", true),
        ("a/+/b", "a//b", true),
        ("a/b", "a//b", false),
        ("é/+", "é/x", true),
    ];

    /// Few levels of few letters, so that names meet filters.
    pub(super) fn filter() -> impl Strategy<Value = String> {
        ("(a|b|\\+||\\$s)(/(a|b|\\+|)){0,3}(/#)?|#").prop_filter("empty", |filter| !filter.is_empty())
    }

    pub(super) fn name() -> impl Strategy<Value = String> {
        ("(a|b||\\$s)(/(a|b|c|)){0,4}").prop_filter("empty", |name| !name.is_empty())
    }

    #[test]
    fn matching() {
        for &(filter, name, expected) in MATCHES {
            assert_eq!(matches(filter, name), expected, "{filter:?} against {name:?}");
        }
    }

    #[test]
    fn errors_keep_no_more_than_an_excerpt() {
        let long = "é".repeat(10_000) + "#";
        let Err(TopicError::WildcardInName { name }) = check_name(&long) else { panic!("a wildcard in a name is refused") };
        assert_eq!(name.chars().count(), EXCERPT_CHARS);
    }
}

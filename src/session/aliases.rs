//! Topic aliases towards one client on one connection (MQTT 5.0 section 3.3.2.3.4): the first topics that are long enough to gain by it get one, as
//! many as the client takes and we give [MQTT-3.1.2-26], and keep it until the connection ends [MQTT-3.3.2-7].
//!
//! They belong to the outbox: an alias is set with the packet that is appended, so whatever stands behind it there may rely on it.

use std::collections::HashMap;
use std::num::NonZeroU16;

/// An alias takes three bytes of its own: a topic that is no longer gains nothing.
const TOPIC_BYTES_LEAST: usize = 4;

/// What stands for a topic in one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alias {
    /// The topic itself.
    None,
    /// The topic, which has this alias from here on.
    New(NonZeroU16),
    /// The alias alone.
    Known(NonZeroU16),
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Aliases {
    max: u16,
    by_topic: HashMap<Box<str>, NonZeroU16, ahash::RandomState>,
}

impl Aliases {
    /// Up to `max` aliases, none set.
    pub(super) fn new(max: u16) -> Self {
        Self { max, by_topic: HashMap::default() }
    }

    /// What may stand for `topic` in the next packet. [`Alias::New`] holds once [`Aliases::set`] was called.
    pub(super) fn look_up(&self, topic: &str) -> Alias {
        if topic.len() < TOPIC_BYTES_LEAST {
            return Alias::None;
        }
        if let Some(alias) = self.by_topic.get(topic) {
            return Alias::Known(*alias);
        }
        let next = u16::try_from(self.by_topic.len() + 1).ok().filter(|next| *next <= self.max);
        next.and_then(NonZeroU16::new).map_or(Alias::None, Alias::New)
    }

    /// The packet with the new alias is on its way.
    pub(super) fn set(&mut self, topic: &str, alias: NonZeroU16) {
        self.by_topic.insert(topic.into(), alias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_topics_as_allowed_get_an_alias_and_keep_it() {
        let mut aliases = Aliases::new(2);
        let alias = |number| NonZeroU16::new(number).unwrap();
        assert_eq!(aliases.look_up("first"), Alias::New(alias(1)));
        assert_eq!(aliases.look_up("other"), Alias::New(alias(1)), "nothing holds until it is set");
        aliases.set("first", alias(1));
        assert_eq!(aliases.look_up("other"), Alias::New(alias(2)));
        aliases.set("other", alias(2));
        assert_eq!(aliases.look_up("first"), Alias::Known(alias(1)));
        assert_eq!(aliases.look_up("third"), Alias::None);
        assert_eq!(aliases.look_up("t/1"), Alias::None, "no longer than its alias would be");
    }
}

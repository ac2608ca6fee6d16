//! Retained messages that new subscriptions of one session are still to get; they go as fast as the outbox empties.
//!
//! The messages are held weakly: what is deleted or replaced meanwhile is not sent, and a client that does not read pins nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::message::StoredMessage;
use super::subscriber::SubscriptionOptions;

/// Subscriptions in their order, the first one's messages looked up already. Empty, it owns no memory.
#[derive(Debug, Default)]
pub(crate) struct RetainedBacklog(Option<Box<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    /// Filters whose messages are to be looked up. May name some that are no longer in `options`.
    order: VecDeque<Box<str>>,
    options: HashMap<Box<str>, SubscriptionOptions, ahash::RandomState>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    filter: Box<str>,
    options: SubscriptionOptions,
    messages: std::vec::IntoIter<Weak<StoredMessage>>,
}

impl RetainedBacklog {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|waiting| waiting.is_empty())
    }

    /// All that matches `filter` is to be sent, from the beginning.
    pub(crate) fn add(&mut self, filter: &str, options: SubscriptionOptions) {
        self.remove(filter);
        let waiting = self.0.get_or_insert_default();
        waiting.order.push_back(filter.into());
        waiting.options.insert(filter.into(), options);
    }

    /// Nothing more is to be sent for `filter`.
    pub(crate) fn remove(&mut self, filter: &str) {
        let Some(waiting) = &mut self.0 else { return };
        waiting.options.remove(filter);
        waiting.current.take_if(|current| *current.filter == *filter);
        self.tidy();
    }

    /// The next message that is still there, and how it is to be sent. `None`: the next filter must be looked up first.
    pub(crate) fn next(&mut self) -> Option<(Arc<StoredMessage>, SubscriptionOptions)> {
        let waiting = self.0.as_mut()?;
        let current = waiting.current.as_mut()?;
        let found = current.messages.find_map(|message| message.upgrade()).map(|message| (message, current.options.clone()));
        if found.is_none() {
            waiting.current = None;
            self.tidy();
        }
        found
    }

    /// The next filter to look up.
    pub(crate) fn next_filter(&mut self) -> Option<(Box<str>, SubscriptionOptions)> {
        let waiting = self.0.as_mut()?;
        loop {
            let filter = waiting.order.pop_front()?;
            if let Some(options) = waiting.options.remove(&filter) {
                return Some((filter, options));
            }
        }
    }

    /// What was found for a filter from [`Self::next_filter`].
    pub(crate) fn found(&mut self, filter: Box<str>, options: SubscriptionOptions, messages: &[Arc<StoredMessage>]) {
        let messages: Vec<_> = messages.iter().map(Arc::downgrade).collect();
        self.0.get_or_insert_default().current = Some(Current { filter, options, messages: messages.into_iter() });
    }

    fn tidy(&mut self) {
        self.0.take_if(|waiting| waiting.is_empty());
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.current.is_none() && self.options.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::codec::QoS;

    fn options(qos: QoS) -> SubscriptionOptions {
        SubscriptionOptions { qos, no_local: false, retain_as_published: false, subscription_id: None }
    }

    fn message(topic: &str) -> Arc<StoredMessage> {
        Arc::new(StoredMessage {
            topic: topic.into(),
            payload: Bytes::new(),
            qos: QoS::AtMostOnce,
            retain: true,
            expires_at: None,
            properties: Bytes::new(),
        })
    }

    #[test]
    fn what_is_gone_or_no_longer_wanted_is_not_sent() {
        let mut backlog = RetainedBacklog::default();
        backlog.add("a/#", options(QoS::AtMostOnce));
        backlog.add("b/#", options(QoS::AtMostOnce));
        backlog.add("a/#", options(QoS::AtLeastOnce));
        backlog.remove("b/#");
        let (filter, wanted) = backlog.next_filter().unwrap();
        assert_eq!((&*filter, wanted.qos), ("a/#", QoS::AtLeastOnce));
        let (kept, deleted) = (message("a/1"), message("a/2"));
        backlog.found(filter, wanted, &[Arc::clone(&deleted), Arc::clone(&kept), message("a/3")]);
        drop(deleted);
        assert_eq!(*backlog.next().unwrap().0.topic, *"a/1");
        assert!(!backlog.is_empty());
        assert!(backlog.next().is_none() && backlog.next_filter().is_none() && backlog.is_empty());
        assert!(backlog.0.is_none(), "a session that is idle pays for it no more");
        backlog.add("c", options(QoS::AtMostOnce));
        let (filter, wanted) = backlog.next_filter().unwrap();
        backlog.found(filter, wanted, &[kept]);
        backlog.remove("c");
        assert!(backlog.is_empty());
    }
}

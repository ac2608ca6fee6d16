//! Subscriptions and what is retained for them (MQTT 5.0 sections 3.8, 3.10).

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use super::route::{Group, Subscription, SubscriptionKey};
use super::{Batch, Connection, Router};
use crate::codec::{ReasonCode, RetainHandling};
use crate::session::{RetainedBacklog, SubscriptionOptions};
use crate::topic::{self, TopicError};

/// One filter of a SUBSCRIBE.
#[derive(Clone, Debug)]
pub struct Subscribe<'a> {
    /// As the client wrote it.
    pub filter: &'a str,
    /// What the client asks for.
    pub options: SubscriptionOptions,
    /// Of retained messages.
    pub retain_handling: RetainHandling,
}

/// Why a filter was not subscribed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// The filter breaks the rules of MQTT 5.0 section 4.7 or 4.8.2.
    #[error("bad topic filter: {0}")]
    Filter(#[from] TopicError),
    /// No Local with a shared subscription is a protocol error [MQTT-3.8.3-4]: the connection is to end.
    #[error("No Local on a shared subscription")]
    SharedNoLocal,
}

impl SubscribeError {
    /// The reason code of SUBACK, or of DISCONNECT.
    #[must_use]
    pub fn reason(&self) -> ReasonCode {
        match self {
            Self::Filter(_) => ReasonCode::TopicFilterInvalid,
            Self::SharedNoLocal => ReasonCode::ProtocolError,
        }
    }
}

impl Router {
    /// Adds or replaces one subscription of the connection's session [MQTT-3.8.4-3]. What is retained for it goes out with
    /// [`Router::pump`], behind the SUBACK.
    ///
    /// # Errors
    /// See [`SubscribeError`].
    pub fn subscribe(&self, connection: &Connection, request: &Subscribe<'_>) -> Result<(), SubscribeError> {
        let filter = topic::parse_filter(request.filter)?;
        if filter.share.is_some() && request.options.no_local {
            return Err(SubscribeError::SharedNoLocal);
        }
        let subscriber = &connection.subscriber;
        // The trie's lock is held across the session's, so that a session that ends meanwhile leaves nothing behind.
        let mut subscriptions = self.subscriptions.write();
        let mut state = subscriber.lock();
        if state.epoch != connection.epoch || state.ended {
            return Ok(());
        }
        let is_new = match state.subscriptions.entry(request.filter.into()) {
            Entry::Vacant(vacant) => {
                vacant.insert(request.options.clone());
                true
            }
            Entry::Occupied(mut occupied) => {
                occupied.insert(request.options.clone());
                false
            }
        };
        let send_retained = match request.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => is_new,
            RetainHandling::DoNotSend => false,
        };
        // No retained messages for shared subscriptions (MQTT 5.0 section 4.8.2).
        if send_retained && filter.share.is_none() {
            state.retained.retain(|waiting| *waiting.filter != *filter.levels);
            state.retained.push_back(RetainedBacklog { filter: filter.levels.into(), options: request.options.clone() });
        }
        drop(state);
        let share: Option<Arc<str>> = filter.share.map(Arc::from);
        let group = share.clone().map(|share| Group { share, filter: Arc::from(filter.levels) });
        let subscription = Subscription { subscriber: Arc::clone(subscriber), options: request.options.clone(), group };
        subscriptions.insert(filter.levels, SubscriptionKey { subscriber: subscriber.id, share }, subscription);
        drop(subscriptions);
        self.subscriptions_changed(i64::from(is_new));
        Ok(())
    }

    /// Removes one subscription [MQTT-3.10.4-1]. False if there was none.
    ///
    /// # Errors
    /// When the filter is not one.
    pub fn unsubscribe(&self, connection: &Connection, text: &str) -> Result<bool, SubscribeError> {
        let filter = topic::parse_filter(text)?;
        let mut subscriptions = self.subscriptions.write();
        let mut state = connection.subscriber.lock();
        if state.epoch != connection.epoch || state.ended {
            return Ok(false);
        }
        let existed = state.subscriptions.remove(text).is_some();
        state.retained.retain(|waiting| *waiting.filter != *filter.levels);
        drop(state);
        if existed {
            let key = SubscriptionKey { subscriber: connection.subscriber.id, share: filter.share.map(Arc::from) };
            subscriptions.remove(filter.levels, &key);
            drop(subscriptions);
            self.subscriptions_changed(-1);
        }
        Ok(existed)
    }

    /// Fills the connection's outbox from what waits: redelivery, the session's queue, retained messages. Called by the connection
    /// itself, when it has written and after acknowledgements.
    pub fn pump(&self, batch: &mut Batch, connection: &Connection, now: Instant) {
        let mut state = connection.subscriber.lock();
        if state.epoch != connection.epoch || state.connected.is_none() || !state.has_backlog() {
            return;
        }
        let pumped = state.pump(batch.variants(), now);
        batch.count_pumped(pumped);
        while state.has_retained_backlog() && !state.outbox.is_full() && state.outbound.queue_len() == 0 {
            let Some(message) = state.retained_now.next() else {
                let Some(backlog) = state.retained.pop_front() else { break };
                // Retained messages are looked up outside of the session's lock: the store has its own.
                drop(state);
                let found = self.retained.matching(&backlog.filter, now);
                state = connection.subscriber.lock();
                if state.epoch != connection.epoch || state.connected.is_none() {
                    return;
                }
                state.retained_now = found.into_iter();
                state.retained_options = Some(backlog.options);
                continue;
            };
            // What was replaced meanwhile has gone out live: an older value must not follow it.
            if !self.retained.holds(&message) || message.expires_at.is_some_and(|at| at <= now) {
                continue;
            }
            let Some(options) = state.retained_options.clone() else { continue };
            let outcome = state.deliver_retained(batch.variants(), &message, &options, now);
            batch.count(outcome);
        }
    }
}

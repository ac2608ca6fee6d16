//! Subscriptions and what is retained for them (MQTT 5.0 sections 3.8, 3.10).

use std::time::Instant;

use super::{Batch, Connection, Router};
use crate::codec::{ReasonCode, RetainHandling};
use crate::interest::{EchoWait, Echoes};
use crate::limits::{SUBSCRIPTION_OVERHEAD_BYTES, SUBSCRIPTIONS_BYTES_MAX};
use crate::pressure::Level;
use crate::session::SubscriptionOptions;
use crate::topic::{self, TopicError};

/// Filters whose retained messages are looked up in one turn: each may have to walk through all of them.
const RETAINED_LOOK_UPS_PER_TURN: usize = 8;

/// Retained messages that are looked at in one turn: the client may get none of them, and then none fills its outbox.
const RETAINED_PER_TURN: usize = 1_024;

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
    /// The client may receive nothing that the filter matches.
    #[error("the client may not receive anything of it")]
    NotAllowed,
    /// The session has as many subscriptions as it may have, or as memory allows, or this broker as many share groups as others can be told of.
    #[error("the session's subscriptions take more than {SUBSCRIPTIONS_BYTES_MAX} bytes, or memory is full")]
    TooMany,
}

impl SubscribeError {
    /// The reason code of SUBACK, or of DISCONNECT where SUBACK has none like it: a filter that is none is no matter of SUBACK, whose 0x8F is for
    /// filters that are correctly formed (MQTT 5.0 section 3.9.3).
    #[must_use]
    pub fn reason(&self) -> ReasonCode {
        match self {
            // Well-formed, and not taken by this server.
            Self::Filter(TopicError::TooManyLevels { .. }) => ReasonCode::TopicFilterInvalid,
            Self::Filter(_) => ReasonCode::MalformedPacket,
            Self::SharedNoLocal => ReasonCode::ProtocolError,
            Self::NotAllowed => ReasonCode::NotAuthorized,
            Self::TooMany => ReasonCode::QuotaExceeded,
        }
    }
}

impl Router {
    /// Adds or replaces one subscription of the connection's session [MQTT-3.8.4-3]. What is retained for it goes out with
    /// [`Router::pump`], behind the SUBACK. Gives the number of the change that is to be safe before the SUBACK, where one is.
    ///
    /// # Errors
    /// See [`SubscribeError`].
    pub fn subscribe(&self, connection: &Connection, request: &Subscribe<'_>) -> Result<Option<u64>, SubscribeError> {
        let filter = topic::parse_filter(request.filter)?;
        if filter.share.is_some() && request.options.no_local {
            return Err(SubscribeError::SharedNoLocal);
        }
        let subscriber = &connection.subscriber;
        if !subscriber.may_subscribe(filter.levels) {
            self.metrics.subscribes_denied.add(1);
            return Err(SubscribeError::NotAllowed);
        }
        // The trie's lock is held across the session's, so that a session that ends meanwhile leaves nothing behind.
        let mut subscriptions = self.subscriptions.write();
        let mut state = subscriber.lock();
        if state.epoch != connection.epoch || state.ended {
            return Ok(None);
        }
        let before = state.subscriptions.get(request.filter);
        let (is_new, is_same) = (before.is_none(), before == Some(&request.options));
        if is_new {
            let bytes = state.subscriptions_bytes + request.filter.len() + SUBSCRIPTION_OVERHEAD_BYTES;
            if bytes > SUBSCRIPTIONS_BYTES_MAX || self.pressure.level() == Level::Full {
                return Err(SubscribeError::TooMany);
            }
            // Others would not know of the group, and give it nothing.
            if filter.share.is_some() && self.registers().is_some_and(|registers| !registers.own().takes_share(request.filter)) {
                self.metrics.subscribes_untold.add(1);
                return Err(SubscribeError::TooMany);
            }
            state.subscriptions_bytes = bytes;
        }
        let send_retained = match request.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => is_new,
            RetainHandling::DoNotSend => false,
        };
        // No retained messages for shared subscriptions (MQTT 5.0 section 4.8.2).
        if send_retained && filter.share.is_none() {
            state.retained.add(filter.levels, request.options.clone());
        }
        // A client that says again what it said before every route would else be void each time.
        if is_same {
            return Ok(state.as_before());
        }
        state.subscriptions.insert(request.filter.into(), request.options.clone());
        let number = state.subscribed(request.filter, &request.options);
        if is_new {
            self.tell_filter(&mut state, request.filter, true);
        }
        drop(state);
        self.metrics.shared_subscriptions.change(i64::from(is_new && filter.share.is_some()));
        subscriptions.insert(filter.levels, filter.share, subscriber, request.options.clone());
        drop(subscriptions);
        self.subscriptions_changed(i64::from(is_new));
        Ok(number)
    }

    /// What a SUBACK waits for until other brokers know of the subscriptions made so far; none where it does not wait for them.
    #[must_use]
    pub fn ask_echo(&self) -> Option<EchoWait> {
        self.mesh()?.interest().echoes().map(Echoes::ask)
    }

    /// Removes one subscription [MQTT-3.10.4-1]. Whether there was one, and the number of the change as in [`Self::subscribe`].
    ///
    /// # Errors
    /// When the filter is not one.
    pub fn unsubscribe(&self, connection: &Connection, text: &str) -> Result<(bool, Option<u64>), SubscribeError> {
        let filter = topic::parse_filter(text)?;
        let mut subscriptions = self.subscriptions.write();
        let mut state = connection.subscriber.lock();
        if state.epoch != connection.epoch || state.ended {
            return Ok((false, None));
        }
        let existed = state.subscriptions.remove(text).is_some();
        if existed {
            state.subscriptions_bytes -= text.len() + SUBSCRIPTION_OVERHEAD_BYTES;
        }
        if filter.share.is_none() {
            state.retained.remove(filter.levels);
        }
        let number = if existed { state.unsubscribed(text) } else { state.as_before() };
        if existed {
            self.tell_filter(&mut state, text, false);
        }
        drop(state);
        if existed {
            subscriptions.remove(filter.levels, filter.share, connection.subscriber.id);
            drop(subscriptions);
            self.metrics.shared_subscriptions.change(-i64::from(filter.share.is_some()));
            self.subscriptions_changed(-1);
        }
        Ok((existed, number))
    }

    /// Fills the connection's outbox from what waits: redelivery, the session's queue, retained messages. Called by the connection
    /// itself, when it has written and after acknowledgements. True if there is more to look up: call again after the others.
    pub fn pump(&self, batch: &mut Batch, connection: &Connection, now: Instant) -> bool {
        let may_receive = |topic: &str| connection.subscriber.may_receive(topic);
        let mut state = connection.subscriber.lock();
        if state.epoch != connection.epoch || state.connected.is_none() || !state.has_backlog() {
            return false;
        }
        let memory = self.pressure.level();
        batch.variants().0.memory = memory;
        let pumped = state.pump(batch.variants().0, may_receive, now);
        batch.count_pumped(pumped);
        let (mut look_ups, mut looked_at) = (0, 0);
        while !state.retained.is_empty() && !state.outbox.is_full(memory) && state.outbound.queue_len() == 0 {
            if looked_at == RETAINED_PER_TURN {
                return true;
            }
            if let Some((message, options)) = state.retained.next() {
                looked_at += 1;
                // What was replaced meanwhile has gone out live: an older value must not follow it.
                let is_still_said =
                    self.retained_for(&message.topic).holds(&message) && message.expires_at.is_none_or(|at| at > now);
                if is_still_said && may_receive(&message.topic) {
                    let (variants, writes) = batch.variants();
                    let outcome = state.deliver_retained(variants, writes, &message, &options, now);
                    batch.count(outcome, message.payload.len());
                }
                continue;
            }
            // One subscription is served after the other; many of them not in one go.
            if look_ups == RETAINED_LOOK_UPS_PER_TURN {
                return true;
            }
            look_ups += 1;
            let Some((filter, options)) = state.retained.next_filter() else { break };
            // The store has a lock of its own, and many readers.
            drop(state);
            let found = self.retained_for(&filter).matching(&filter, now);
            state = connection.subscriber.lock();
            if state.epoch != connection.epoch || state.connected.is_none() {
                return false;
            }
            state.retained.found(filter, options, &found);
        }
        false
    }
}

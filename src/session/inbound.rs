//! QoS 2 towards the broker: the packet identifiers between PUBREC and PUBCOMP (MQTT 5.0 section 4.3.3, method B: the message is passed on
//! when it first arrives, the identifier kept until PUBREL).

use std::collections::HashSet;

use crate::codec::PacketId;

/// The client sent more than it was allowed to have open: DISCONNECT 0x93 [MQTT-3.3.4-7, -8].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaExceeded;

/// Identifiers of QoS 2 messages that were received and not yet released. Empty, it owns no memory.
#[derive(Debug, Default)]
pub struct Inbound {
    #[expect(clippy::box_collection, reason = "nearly no session has any, and each would have room for the set's head")]
    received: Option<Box<HashSet<PacketId, ahash::RandomState>>>,
    /// How many were open when the present connection began: the quota counts anew with each (MQTT 5.0 section 4.9).
    carried: usize,
}

impl Inbound {
    /// A QoS 2 PUBLISH arrived. `Ok(true)` if it is new, `Ok(false)` if it repeats one that is open [MQTT-4.3.3-10].
    ///
    /// # Errors
    /// When `maximum` messages are open already.
    pub fn receive(&mut self, id: PacketId, maximum: usize) -> Result<bool, QuotaExceeded> {
        let received = self.received.get_or_insert_default();
        if received.contains(&id) {
            return Ok(false);
        }
        if received.len() >= maximum.saturating_add(self.carried) {
            return Err(QuotaExceeded);
        }
        received.insert(id);
        Ok(true)
    }

    /// Whether the message with this identifier was received and not released.
    #[must_use]
    pub fn is_open(&self, id: PacketId) -> bool {
        self.received.as_ref().is_some_and(|received| received.contains(&id))
    }

    /// All that are open; none is any more.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = PacketId> + use<> {
        self.carried = 0;
        self.received.take().into_iter().flat_map(|received| *received)
    }

    /// All that were received and not released.
    pub(super) fn open(&self) -> impl Iterator<Item = PacketId> {
        self.received.iter().flat_map(|received| received.iter().copied())
    }

    /// A new connection resumes the session.
    pub(super) fn resume(&mut self) {
        self.carried = self.received.as_ref().map_or(0, |received| received.len());
    }

    /// A restarted broker has read that the identifier is open.
    pub(super) fn restore(&mut self, id: PacketId) {
        self.received.get_or_insert_default().insert(id);
    }

    /// PUBREL arrived. Says whether the identifier was open (else PUBCOMP carries 0x92).
    pub fn release(&mut self, id: PacketId) -> bool {
        self.received.as_mut().is_some_and(|received| received.remove(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u16) -> PacketId {
        PacketId::new(n).unwrap()
    }

    #[test]
    fn a_repeat_is_not_new_until_it_was_released() {
        let mut inbound = Inbound::default();
        assert_eq!(inbound.receive(id(7), 2), Ok(true));
        assert_eq!(inbound.receive(id(7), 2), Ok(false));
        assert!(inbound.release(id(7)) && !inbound.release(id(7)));
        assert_eq!(inbound.receive(id(7), 2), Ok(true));
    }

    #[test]
    fn the_quota_counts_open_messages_and_lets_repeats_pass() {
        let mut inbound = Inbound::default();
        assert_eq!(inbound.receive(id(1), 1), Ok(true));
        assert_eq!(inbound.receive(id(2), 1), Err(QuotaExceeded));
        assert_eq!(inbound.receive(id(1), 1), Ok(false));
        inbound.release(id(1));
        assert_eq!(inbound.receive(id(2), 1), Ok(true));
        inbound.resume();
        assert_eq!(inbound.receive(id(3), 1), Ok(true), "what an earlier connection left open does not count");
        assert_eq!(inbound.receive(id(4), 1), Err(QuotaExceeded));
    }
}

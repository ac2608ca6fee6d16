//! What other brokers are told of the sessions here: their filters, and of share groups how many members are connected and how many are away.
//!
//! Told under the session's lock, so that the counts are those of the sessions, whatever happens at once; the register's own lock is a leaf.

use super::Router;
use crate::session::State;
use crate::topic;

impl Router {
    /// The session, whose locked state is `state`, has subscribed to a filter that it did not have, or no longer has one that it had.
    pub(super) fn tell_filter(&self, state: &mut State, filter: &str, is_there: bool) {
        if topic::is_shared(filter) {
            let count = &mut state.shared_subscriptions;
            *count = if is_there { *count + 1 } else { count.saturating_sub(1) };
        }
        self.tell_filter_of(state.connected.is_some(), filter, is_there);
    }

    /// The same of a session that is over or has not begun, which was connected or not.
    pub(super) fn tell_filter_of(&self, is_connected: bool, filter: &str, is_there: bool) {
        let Some(registers) = self.registers() else { return };
        let by = if is_there { 1 } else { -1 };
        match (topic::is_shared(filter), is_there) {
            (true, _) if is_connected => registers.own().share_members(filter, by, 0),
            (true, _) => registers.own().share_members(filter, 0, by),
            (false, true) => registers.own().add_filter(filter),
            (false, false) => registers.own().remove_filter(filter),
        }
    }

    /// The session, whose locked state is `state`, was connected or not, and is what it is now.
    pub(super) fn tell_presence(&self, state: &State, was_connected: bool) {
        let is_connected = state.connected.is_some();
        if state.shared_subscriptions == 0 || was_connected == is_connected {
            return;
        }
        let Some(registers) = self.registers() else { return };
        let came = if is_connected { 1 } else { -1 };
        for filter in state.subscriptions.keys().filter(|filter| topic::is_shared(filter)) {
            registers.own().share_members(filter, came, -came);
        }
    }
}

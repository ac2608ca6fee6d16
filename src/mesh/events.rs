//! What happens in the mesh, line by line: each event is one line of the log at `info` and one line of JSON for whoever watches
//! (`$SYS/mesh/events`). A mesh that converges is told once it rests for a moment, not step by step: see `driver::sight`.
//!
//! Invariants: names, not ids; words of peers are escaped; what nobody takes is bounded, and the oldest goes.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;

/// Events that are kept for a watcher.
const EVENTS_KEPT_MAX: usize = 256;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum MeshEvent {
    /// A link came up.
    LinkUp { peer: String, address: String },
    /// A link went down.
    LinkDown { peer: String, reason: String, lived_ms: u64 },
    /// The tree, or this broker's parent in it, is another. `changes`: since the last time that this was told.
    TreeChanged { root: String, old_root: String, epoch: u64, parent: Option<String>, cause: &'static str, changes: u64 },
    /// A link is something else to the tree.
    Port { peer: String, role: &'static str, state: &'static str },
    /// The way to the root, lost before, is there again.
    Healed { ms: u64 },
}

/// The lines that wait for a watcher, and its bell.
#[derive(Debug, Default)]
pub(super) struct Events {
    lines: Mutex<VecDeque<String>>,
    /// Rung when there is a line, or something else to be seen has changed.
    news: Notify,
}

impl Events {
    /// Adds the line of an event that happened `at`, in milliseconds since the Unix epoch.
    pub(super) fn push(&self, at: u64, event: &MeshEvent) {
        #[derive(Serialize)]
        struct Line<'a> {
            at: u64,
            #[serde(flatten)]
            event: &'a MeshEvent,
        }
        let Ok(line) = serde_json::to_string(&Line { at, event }) else { return };
        let mut lines = self.lines.lock();
        if lines.len() == EVENTS_KEPT_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
        drop(lines);
        self.ring();
    }

    /// Something to be seen has changed.
    pub(super) fn ring(&self) {
        self.news.notify_one();
    }

    /// Waits until something has changed since it last returned.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Takes all lines.
    pub(super) fn take(&self) -> Vec<String> {
        self.lines.lock().drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_of_json_and_the_oldest_go() {
        let events = Events::default();
        for ms in 0..=EVENTS_KEPT_MAX as u64 {
            events.push(5, &MeshEvent::Healed { ms });
        }
        let lines = events.take();
        assert_eq!((lines.len(), lines[0].as_str()), (EVENTS_KEPT_MAX, r#"{"at":5,"event":"healed","ms":1}"#));
        assert!(events.take().is_empty());
    }
}

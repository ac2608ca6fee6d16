//! Acknowledgements that wait: for the store, until what they acknowledge is safe, and for the mesh, until it no longer lags.
//!
//! They go out in the order in which they came. While nothing waits it owns no memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::replication;
use crate::router::Router;
use crate::session::{Journal, Waiter};

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Held(Option<Box<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// For each batch, the change that must be safe and how many bytes that sets free.
    batches: VecDeque<(u64, usize)>,
    /// What the connection is woken by.
    store: Option<Waiter>,
    mesh: Option<replication::Waiter>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |waiting| waiting.bytes.len())
    }

    /// Puts one batch's acknowledgements behind the others; change `number` must be safe before they go.
    pub(super) fn hold(&mut self, acknowledgements: &mut Vec<u8>, number: u64) {
        if acknowledgements.is_empty() {
            return;
        }
        let Waiting { bytes, batches, .. } = &mut **self.0.get_or_insert_default();
        match batches.back_mut() {
            Some((last, count)) if *last >= number => *count += acknowledgements.len(),
            _ => batches.push_back((number, acknowledgements.len())),
        }
        bytes.append(acknowledgements);
    }

    /// Gives `send` what may go, and how many bytes are left; if something is left, the task is woken when that may be so.
    pub(super) fn poll_release(&mut self, router: &Router, context: &mut Context<'_>, send: impl FnOnce(&[u8], usize)) {
        let Some(waiting) = &mut self.0 else { return };
        let Waiting { bytes, batches, store, mesh } = &mut **waiting;
        if let Some(replication) = router.mesh()
            && mesh.get_or_insert_with(|| replication.waiter()).poll(context).is_pending()
        {
            return;
        }
        let mut free = 0;
        while let Some((number, count)) = batches.front() {
            if let Some(journal) = router.journal()
                && store.get_or_insert_with(|| journal.waiter()).poll(*number, context).is_pending()
            {
                break;
            }
            free += count;
            batches.pop_front();
        }
        if free > 0 {
            send(bytes.get(..free).unwrap_or_default(), bytes.len().saturating_sub(free));
            bytes.drain(..free.min(bytes.len()));
        }
        if bytes.is_empty() {
            self.0 = None;
        }
    }
}

/// What a connection waits for before it writes anything at all: what CONNACK, SUBACK and UNSUBACK say of a durable session is to be safe. Unlike an
/// acknowledged message it is said all the same while the store fails.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    number: u64,
    waiter: Option<Box<Waiter>>,
}

impl Barrier {
    /// Change `number` must be safe.
    pub(super) fn raise(&mut self, number: u64) {
        self.number = self.number.max(number);
    }

    /// Ready when nothing is to be waited for; else the task is woken then.
    pub(super) fn poll(&mut self, journal: Option<&Arc<Journal>>, context: &mut Context<'_>) -> Poll<()> {
        let Some(journal) = journal.filter(|_| self.number > 0) else { return Poll::Ready(()) };
        let waiter = self.waiter.get_or_insert_with(|| Box::new(journal.waiter()));
        if waiter.poll(self.number, context).is_pending() && !journal.is_failing() {
            return Poll::Pending;
        }
        *self = Self::default();
        Poll::Ready(())
    }
}

//! One client's life: it connects, does its work until the connection ends, and connects again.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::sleep;

use super::books::Books;
use crate::client::{Connection, Fault, Gate, Phase};

/// Between the end of a connection and the next attempt.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// What a client does on a connection. It keeps what outlives it.
pub(super) trait Role {
    /// A connection is up.
    ///
    /// # Errors
    /// When the broker does not allow what is asked of it.
    fn begin(&mut self, connection: &mut Connection) -> Result<(), Fault>;

    /// Ready without an error when the run closes.
    fn poll(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> Poll<Result<(), Fault>>;
}

/// Who a client is.
pub(super) struct Identity {
    /// 'p' or 's'.
    pub(super) role: char,
    pub(super) index: usize,
    /// Brokers in the order in which it tries them.
    pub(super) at: Vec<usize>,
    pub(super) gate: Arc<Gate>,
}

/// Lives until the run closes.
pub(super) async fn live(who: Identity, mut role: impl Role, books: Arc<Books>) {
    let name = format!("{} {}", if who.role == 'p' { "publisher" } else { "subscriber" }, who.index);
    for turn in 0.. {
        let plan = books.plan.connection(books.run, who.role, who.index, &who.at, turn);
        let Some(opened) = unless_closed(&books, &who.gate, Connection::open(&plan)).await else { return };
        let ended = match opened {
            Ok(mut connection) => {
                let mut ended = role.begin(&mut connection);
                if ended.is_ok() {
                    ended = poll_fn(|cx| role.poll(&mut connection, cx)).await;
                }
                if ended.is_ok() {
                    ended = connection.close().await;
                }
                ended
            }
            Err(fault) => Err(fault),
        };
        if let Err(fault) = ended.as_ref() {
            books.trouble(&name, &plan.broker.address, fault);
        }
        if ended.is_ok() || unless_closed(&books, &who.gate, sleep(RETRY_AFTER)).await.is_none() {
            return;
        }
    }
}

/// What comes of it; `None` if the run closes before.
async fn unless_closed<T>(books: &Books, gate: &Gate, future: impl Future<Output = T>) -> Option<T> {
    let closed = poll_fn(|cx| {
        gate.register(cx.waker());
        if books.phase.now() == Phase::Close { Poll::Ready(()) } else { Poll::Pending }
    });
    tokio::select! {
        () = closed => None,
        done = future => Some(done),
    }
}

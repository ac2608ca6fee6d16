//! A run under way, as whoever started it sees it: when everybody hears everybody, when all is there, what came of it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::task::JoinSet;

use super::account::Account;
use super::books::Books;
use super::client::{Identity, live};
use super::plan::MeshPlan;
use super::publisher::Publisher;
use super::subscriber::Subscriber;
use crate::client::Phase;
use crate::clock::now_ns;

/// Clients at work, on a thread of their own. They end when this is dropped.
pub struct MeshRun {
    books: Arc<Books>,
    thread: Option<JoinHandle<()>>,
    /// What was said of the run meanwhile, and when, nanoseconds.
    timetable: Mutex<Vec<(u64, String)>>,
}

impl MeshRun {
    /// Starts all clients; they connect, and greet each other with a message now and then until the books are opened.
    ///
    /// # Errors
    /// When there is no thread or no runtime to be had.
    #[expect(clippy::disallowed_methods, reason = "the one thread that carries the clients of a library's user")]
    pub fn start(plan: MeshPlan) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let books = Arc::new(Books::new(plan, crate::plan::random_run()));
        let clients = Arc::clone(&books);
        let thread = std::thread::Builder::new().name("loadtest-mesh".to_owned()).spawn(move || {
            runtime.block_on(live_all(clients));
            // A name that is still being looked up is not worth waiting for.
            runtime.shutdown_background();
        })?;
        Ok(Self { books, thread: Some(thread), timetable: Mutex::default() })
    }

    /// Whether every subscriber has heard something of each publisher that it hears.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.books.subscribers().all(|book| book.flows.iter().flatten().all(|flow| flow.delivered > 0))
    }

    /// From now on what is published is owed to all who hear it. To be called once, when all subscriptions are where they are
    /// needed: see [`Self::is_joined`].
    pub fn open_books(&self) {
        self.books.open();
    }

    /// Notes for the report what happens now.
    pub fn note(&self, what: impl Into<String>) {
        self.timetable.lock().unwrap_or_else(PoisonError::into_inner).push((now_ns(), what.into()));
    }

    /// Whether all publishers have sent their [`MeshPlan::count`].
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.books
            .plan
            .count
            .is_some_and(|count| self.books.publishers().all(|book| (book.owed().end - book.owed().start) >= count))
    }

    /// No publisher begins a message from now on; what is under way goes on.
    pub fn stop_publishing(&self) {
        self.books.advance(Phase::Finish);
    }

    /// Whether all that was sent at QoS 1 and 2 is acknowledged, and all that is owed at these has come.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.books.publishers().all(|book| book.in_flight == 0) && self.books.owes_nothing()
    }

    /// Whether of QoS 0, too, nothing can be expected any more: the last message of each publisher has come to all who hear it.
    #[must_use]
    pub fn has_heard_the_last(&self) -> bool {
        self.books.has_heard_the_last()
    }

    /// How long no message has arrived anywhere that was not there before.
    #[must_use]
    pub fn quiet_for(&self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.books.moved_at_ns()))
    }

    /// The account so far.
    #[must_use]
    pub fn account(&self) -> Account {
        let timetable = self.timetable.lock().unwrap_or_else(PoisonError::into_inner);
        Account::new(&self.books, &timetable)
    }

    /// Ends all clients in order; the account.
    #[must_use]
    pub fn finish(mut self) -> Account {
        self.close();
        self.account()
    }

    fn close(&mut self) {
        self.books.advance(Phase::Close);
        // A thread that panicked has said so; what it had booked is still there.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for MeshRun {
    fn drop(&mut self) {
        self.close();
    }
}

async fn live_all(books: Arc<Books>) {
    let mut clients = JoinSet::new();
    let mut gates = books.gates().iter();
    let mut identity =
        |role, index, at: &[usize]| gates.next().map(|gate| Identity { role, index, at: at.to_vec(), gate: Arc::clone(gate) });
    for (index, plan) in books.plan.publishers.iter().enumerate() {
        if let Some(who) = identity('p', index, &plan.at) {
            clients.spawn(live(who, Publisher::new(Arc::clone(&books), index, plan.qos), Arc::clone(&books)));
        }
    }
    for (index, plan) in books.plan.subscribers.iter().enumerate() {
        if let Some(who) = identity('s', index, &plan.at) {
            let filters = books.plan.filters(books.run, plan);
            clients.spawn(live(who, Subscriber::new(Arc::clone(&books), index, filters), Arc::clone(&books)));
        }
    }
    while clients.join_next().await.is_some() {}
}

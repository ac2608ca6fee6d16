//! A broker leaves in order: it is not ready any more, then its clients are sent elsewhere at a rate, then the sessions of those who are away are given to other brokers, and
//! when nothing is left that anybody could miss, it ends or stays empty. Until it has ended all can be called off.
//!
//! This is the order of things and what is told of it; the [`router`](crate::router) does each. Nobody loses anything on the way: clients find their sessions where they
//! come next, and a session is where it was until another broker has it on its disk.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::pace::Bucket;
use crate::router::{Batch, Census, Router};
use crate::session::Subscriber;
use crate::{clock, task};

/// Between two turns.
const TURN_INTERVAL: Duration = Duration::from_millis(50);
/// What there is still is looked at so often, and with many sessions, of which each is looked at, less often.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
const LOOK_INTERVAL_LARGE: Duration = Duration::from_secs(2);
/// From here on sessions are many.
const LARGE: i64 = 10_000;
/// Clients that were sent away have so long to come elsewhere before their sessions are given away without them.
const RETURN_TIME: Duration = Duration::from_secs(5);
/// What is left when no session is, that members do not know of all moves yet, is waited for so long.
const LAST_PATIENCE: Duration = Duration::from_secs(10);
/// Clients a second, unless it is said.
const RATE: u32 = 100;
/// A balancer that looks each second has noticed by then.
const NOTICE: Duration = Duration::from_secs(3);

/// How a broker is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrainRequest {
    /// Clients that are sent away a second.
    pub rate: NonZeroU32,
    /// So long clients are still let in after `/readyz` has begun to say no: until balancers have noticed. Milliseconds.
    pub notice_ms: u32,
    /// When nothing is left it ends; else it stays, empty.
    pub ends: bool,
}

impl Default for DrainRequest {
    fn default() -> Self {
        Self {
            rate: NonZeroU32::new(RATE).unwrap_or(NonZeroU32::MIN),
            notice_ms: u32::try_from(NOTICE.as_millis()).unwrap_or(u32::MAX),
            ends: false,
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainState {
    /// It is not drained at all.
    Serving,
    /// It says that it is not ready, and serves.
    Waiting,
    /// Clients are refused, and those who are there are sent away.
    Sending,
    /// Sessions are given to other brokers.
    Giving,
    /// Nothing is left.
    Empty,
    /// The broker stops.
    Stopping,
}

/// How far it is, in numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainStatus {
    /// How far it is.
    pub state: DrainState,
    /// Clients that are still here.
    pub clients: u64,
    /// Sessions that are still here, those of clients among them; those of bridges apart.
    pub sessions: u64,
    /// Clients that were sent away.
    pub sent_away: u64,
    /// Other brokers that can be reached.
    pub others: usize,
    /// It ends when nothing is left.
    pub ends: bool,
    /// Since it began.
    pub seconds: f64,
}

/// See the module's page.
pub struct Drain {
    router: Arc<Router>,
    /// How many others can be reached.
    others: Box<dyn Fn() -> usize + Send + Sync>,
    course: Mutex<Course>,
    ended: watch::Sender<bool>,
}

/// Under way, or not.
#[derive(Debug)]
struct Course {
    state: DrainState,
    request: DrainRequest,
    begun: Instant,
    bucket: Bucket,
    /// They are to be sent away.
    queue: Vec<Arc<Subscriber>>,
    census: Census,
    looked_at: Option<Instant>,
    /// Since when there is no client, and since when no session.
    quiet_since: Option<Instant>,
    bare_since: Option<Instant>,
    sent_away: u64,
    /// Counts beginnings: who drove an earlier one ends.
    number: u64,
}

impl Course {
    fn new(state: DrainState, request: DrainRequest, number: u64, now: Instant) -> Self {
        Self {
            state,
            request,
            begun: now,
            bucket: Bucket::new(request.rate.into()),
            queue: Vec::new(),
            census: Census::default(),
            looked_at: None,
            quiet_since: None,
            bare_since: None,
            sent_away: 0,
            number,
        }
    }
}

impl std::fmt::Debug for Drain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain").field("course", &self.course).finish_non_exhaustive()
    }
}

impl Drain {
    /// Of a broker that serves.
    #[must_use]
    pub fn new(router: Arc<Router>, others: Box<dyn Fn() -> usize + Send + Sync>, now: Instant) -> Self {
        let course = Course::new(DrainState::Serving, DrainRequest::default(), 0, now);
        Self { router, others, course: Mutex::new(course), ended: watch::Sender::new(false) }
    }

    /// Whether new clients are welcome.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.course.lock().state == DrainState::Serving
    }

    /// Begins, or goes on in another way.
    pub fn begin(self: &Arc<Self>, request: DrainRequest) -> DrainStatus {
        if let Some(number) = self.start(request, clock::now()) {
            tracing::info!(rate = request.rate, ends = request.ends, "draining: not ready any more");
            task::spawn("drain", Arc::clone(self).run(number));
        }
        self.status()
    }

    /// The number of what has begun; none where it was under way.
    fn start(&self, request: DrainRequest, now: Instant) -> Option<u64> {
        let mut course = self.course.lock();
        if course.state != DrainState::Serving {
            if course.state != DrainState::Stopping {
                (course.request, course.bucket) = (request, Bucket::new(request.rate.into()));
            }
            return None;
        }
        let number = course.number + 1;
        *course = Course::new(DrainState::Waiting, request, number, now);
        if let Some(mesh) = self.router.mesh() {
            mesh.set_leaving(true);
        }
        Some(number)
    }

    /// Calls it off: clients are welcome again. What has gone is not called back.
    pub fn cancel(&self) -> DrainStatus {
        let mut course = self.course.lock();
        if !matches!(course.state, DrainState::Serving | DrainState::Stopping) {
            course.number += 1;
            (course.state, course.queue) = (DrainState::Serving, Vec::new());
            self.router.refuse_clients(false);
            self.router.give_sessions_away(false);
            if let Some(mesh) = self.router.mesh() {
                mesh.set_leaving(false);
            }
            tracing::info!("no longer drained: ready again");
        }
        drop(course);
        self.status()
    }

    /// The broker stops, drained or not: it is not ready any more.
    pub fn stop(&self) {
        let mut course = self.course.lock();
        (course.state, course.number) = (DrainState::Stopping, course.number + 1);
    }

    /// How far it is.
    #[must_use]
    pub fn status(&self) -> DrainStatus {
        let others = (self.others)();
        let now = clock::now();
        let mut course = self.course.lock();
        course.look(&self.router, now);
        DrainStatus {
            state: course.state,
            clients: course.census.clients,
            sessions: course.census.sessions,
            sent_away: course.sent_away,
            others,
            ends: course.request.ends,
            seconds: now.saturating_duration_since(course.begun).as_secs_f64(),
        }
    }

    /// Ready when the broker is empty and was asked to end then.
    pub async fn ended(&self) {
        // The sender lives as long as this.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    async fn run(self: Arc<Self>, number: u64) {
        let mut batch = Batch::default();
        loop {
            let now = clock::now();
            let goes_on = self.turn(number, &mut batch, now);
            self.router.finish(&mut batch, now);
            if !goes_on {
                return;
            }
            tokio::time::sleep(TURN_INTERVAL).await;
        }
    }

    /// Does what is to be done by now. Whether there may be more.
    fn turn(&self, number: u64, batch: &mut Batch, now: Instant) -> bool {
        let mut course = self.course.lock();
        if course.number != number {
            return false;
        }
        if course.state == DrainState::Waiting {
            let notice = Duration::from_millis(course.request.notice_ms.into());
            if now.saturating_duration_since(course.begun) < notice {
                course.look(&self.router, now);
                return true;
            }
            course.state = DrainState::Sending;
            self.router.refuse_clients(true);
            tracing::info!("draining: clients are sent to other brokers");
        }
        course.send(&self.router, batch, now);
        course.look(&self.router, now);
        let (clients, sessions) = (course.census.clients, course.census.sessions);
        course.quiet_since = (clients == 0).then(|| course.quiet_since.unwrap_or(now));
        course.bare_since = (sessions == 0).then(|| course.bare_since.unwrap_or(now));
        let for_time = |since: Option<Instant>| since.map(|since| now.saturating_duration_since(since));
        let has_returned = |time| course.sent_away == 0 || sessions == 0 || time >= RETURN_TIME;
        if course.state == DrainState::Sending && for_time(course.quiet_since).is_some_and(has_returned) {
            course.state = DrainState::Giving;
            self.router.give_sessions_away(true);
            tracing::info!(sessions, sent_away = course.sent_away, "draining: sessions are given to other brokers");
        }
        if course.state == DrainState::Giving
            && for_time(course.bare_since).is_some_and(|time| time >= LAST_PATIENCE || self.has_nothing())
        {
            course.state = DrainState::Empty;
            let seconds = now.saturating_duration_since(course.begun).as_secs_f64();
            tracing::info!(seconds, ends = course.request.ends, "drained: nothing is left");
        }
        if course.state == DrainState::Empty && course.request.ends {
            self.ended.send_replace(true);
            return false;
        }
        true
    }

    /// Whether all others know of all moves, and have dealt with all that was published here.
    fn has_nothing(&self) -> bool {
        self.router.leaving() == 0 && self.router.mesh().is_none_or(|mesh| mesh.is_dealt_with())
    }
}

impl Course {
    /// Sends away as many clients as the rate has it.
    fn send(&mut self, router: &Router, batch: &mut Batch, now: Instant) {
        if self.queue.is_empty() && self.census.clients > 0 {
            self.queue = router.connected();
        }
        let per_turn = u64::from(self.request.rate.get()) * TURN_INTERVAL.as_millis() as u64 / 1_000 + 1;
        for _ in 0..self.bucket.tokens(now).min(per_turn) {
            let Some(subscriber) = self.queue.pop() else { return };
            if router.send_away(batch, &subscriber) {
                self.bucket.charge(1, now);
                self.sent_away += 1;
            }
        }
    }

    /// Looks at what there is, if it is time.
    fn look(&mut self, router: &Router, now: Instant) {
        let interval = if router.metrics().sessions.value() < LARGE { LOOK_INTERVAL } else { LOOK_INTERVAL_LARGE };
        if self.looked_at.is_none_or(|at| now.saturating_duration_since(at) >= interval) {
            (self.census, self.looked_at) = (router.census(), Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{ProtocolVersion, ReasonCode};
    use crate::config::SharedStrategy;
    use crate::metrics::Metrics;
    use crate::router::{ConnectRequest, Connection, Farewell, RouterLimits};
    use crate::session::{Connected, OutboundLimits, SessionExpiry};

    fn router(now: Instant) -> Arc<Router> {
        let outbound = OutboundLimits {
            inflight_max: 20,
            inflight_bytes_max: 1_000_000,
            queued_messages_max: 1_000,
            queued_bytes_max: 1_000_000,
            drop_oldest: false,
            queue_qos0: false,
        };
        let limits = RouterLimits { outbound, shared: SharedStrategy::default() };
        Arc::new(Router::new(limits, Arc::new(Metrics::default()), None, now))
    }

    fn connect(router: &Router, client_id: &str, expiry: SessionExpiry, now: Instant) -> Connection {
        let connected = Connected { version: ProtocolVersion::V5, window: 20, packet_bytes_max: usize::MAX, topic_alias_max: 0 };
        let request = ConnectRequest {
            client_id,
            clean_start: false,
            expiry,
            silence_max: None,
            will: None,
            connected,
            address: None,
            access: None,
        };
        router.connect(&mut Batch::default(), request, |_| Vec::new(), now).unwrap()
    }

    /// A course under virtual time.
    struct World {
        drain: Drain,
        router: Arc<Router>,
        clients: Vec<Connection>,
        now: Instant,
        number: u64,
    }

    impl World {
        fn new(clients: usize, request: DrainRequest) -> Self {
            let now = clock::now();
            let router = router(now);
            let drain = Drain::new(Arc::clone(&router), Box::new(|| 0), now);
            let clients = (0..clients).map(|number| connect(&router, &format!("c{number}"), SessionExpiry::WithConnection, now));
            let clients = clients.collect();
            let number = drain.start(request, now).unwrap();
            assert_eq!(drain.start(request, now), None, "it is under way");
            Self { drain, router, clients, now, number }
        }

        /// One turn; clients that were told to go have gone before the next. Says how many there were, and whether it goes on.
        fn turn(&mut self) -> (usize, bool) {
            let mut batch = Batch::default();
            let goes_on = self.drain.turn(self.number, &mut batch, self.now);
            let is_told = |client: &mut Connection| {
                let reason = client.subscriber.lock().outbox.closing();
                assert!(reason.is_none_or(|reason| reason == ReasonCode::UseAnotherServer), "{reason:?}");
                reason.is_some()
            };
            let told: Vec<Connection> = self.clients.extract_if(.., is_told).collect();
            for client in &told {
                self.router.disconnect(&mut batch, client, Farewell::Lost, None, self.now);
            }
            self.router.finish(&mut batch, self.now);
            self.now += TURN_INTERVAL;
            (told.len(), goes_on)
        }

        fn state(&self) -> DrainState {
            self.drain.course.lock().state
        }
    }

    #[test]
    fn clients_are_served_while_balancers_notice_and_then_sent_away_at_the_rate() {
        let request = DrainRequest { rate: NonZeroU32::new(40).unwrap(), notice_ms: 500, ends: true };
        let mut world = World::new(200, request);
        for _ in 0..10 {
            assert_eq!((world.turn(), world.state()), ((0, true), DrainState::Waiting));
            assert!(!world.router.refuses_clients() && !world.drain.is_serving());
        }
        let mut seconds = Vec::new();
        while !world.clients.is_empty() {
            seconds.push((0..20).map(|_| world.turn().0).sum::<usize>());
            assert!(world.router.refuses_clients());
        }
        // What may be sent at once within a rate comes beside it.
        let mut told = 0;
        let is_kept = |(second, count): (usize, &usize)| {
            told += count;
            told <= 40 * (second + 2)
        };
        assert!(seconds.iter().enumerate().all(is_kept), "{seconds:?}");
        assert!(seconds.len() >= 4, "{seconds:?}");
        let turns = (0..100).take_while(|_| world.turn().1).count();
        assert!(turns < 20 && world.state() == DrainState::Empty && *world.drain.ended.borrow(), "{turns}");
    }

    #[test]
    fn what_is_left_ends_nothing_and_all_can_be_called_off() {
        let request = DrainRequest { notice_ms: 0, ends: true, ..DrainRequest::default() };
        let mut world = World::new(3, request);
        let kept = connect(&world.router, "kept", SessionExpiry::Never, world.now);
        world.clients.push(kept);
        while !world.clients.is_empty() {
            world.turn();
        }
        let until = world.now + RETURN_TIME + Duration::from_secs(1);
        while world.now < until {
            assert!(world.turn().1);
        }
        assert_eq!(world.state(), DrainState::Giving);
        (0..1_000).for_each(|_| assert!(world.turn().1));
        let status = world.drain.status();
        assert_eq!((status.state, status.clients, status.sessions, status.sent_away), (DrainState::Giving, 0, 1, 4));
        assert_eq!(world.drain.cancel().state, DrainState::Serving);
        assert!(world.drain.is_serving() && !world.router.refuses_clients() && !world.turn().1);
        world.drain.stop();
        assert_eq!((world.drain.start(request, world.now), world.drain.is_serving()), (None, false));
    }
}

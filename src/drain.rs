//! A broker leaves in order: it is not ready any more, then its clients are sent elsewhere at a rate, then the sessions of those who are away are given to other brokers, and
//! when nothing is left that anybody who is known could miss, it ends or stays empty. Until it has ended all can be called off.
//!
//! This is the order of things and what is told of it; the [`router`](crate::router) does each. Clients find their sessions where they come next, and a session is where it was until
//! another broker has it on its disk. Where there is no other broker to go to nobody is sent away: it serves, though it says that it is not ready, until there is one. It does not end while a
//! member has not dealt with what was published here, or may not have: whoever wants it to go all the same stops it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
/// That all members know of all moves is waited for so long, when no session is left: until then messages go a way round.
const MOVES_PATIENCE: Duration = Duration::from_secs(10);
/// It has been empty for so long when it ends, and whoever follows it has seen that, or has not looked for so long.
const LAST_LOOK: Duration = Duration::from_millis(500);
const UNSEEN: Duration = Duration::from_secs(5);
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
    /// No session is left; others have still to deal with what was published here.
    Settling,
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
    /// Other brokers that can be reached and are not to leave themselves.
    pub others: usize,
    /// Names of brokers that have not dealt with all that was published here, as far as they have said, once no session is left.
    #[serde(default)]
    pub waiting_for: Vec<String>,
    /// It ends when nothing is left.
    pub ends: bool,
    /// Since it began.
    pub seconds: f64,
}

/// What a broker that leaves asks and tells others, beside what its router does.
pub trait Others: Send + Sync {
    /// How many can be reached and take clients and sessions.
    fn takers(&self) -> usize;

    /// Names of those that have not dealt with all that was published here, as far as they have said.
    fn behind(&self) -> Vec<String>;

    /// This broker serves no bridge any more, or may again.
    fn leave_bridges(&self, leaves: bool);

    /// Whether it serves one still.
    fn serves_bridges(&self) -> bool;
}

/// See the module's page.
pub struct Drain {
    router: Arc<Router>,
    others: Box<dyn Others>,
    /// Not under way: asked without waiting for anything.
    is_serving: AtomicBool,
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
    filled_at: Option<Instant>,
    census: Census,
    looked_at: Option<Instant>,
    /// Since when there is no client, since when no session, and since when nothing at all.
    quiet_since: Option<Instant>,
    bare_since: Option<Instant>,
    empty_since: Option<Instant>,
    /// Somebody has been told that it is empty.
    is_seen: bool,
    sent_away: u64,
    others: usize,
    waiting_for: Vec<String>,
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
            filled_at: None,
            census: Census::default(),
            looked_at: None,
            quiet_since: None,
            bare_since: None,
            empty_since: None,
            is_seen: false,
            sent_away: 0,
            others: 0,
            waiting_for: Vec::new(),
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
    pub fn new(router: Arc<Router>, others: Box<dyn Others>, now: Instant) -> Self {
        let course = Course::new(DrainState::Serving, DrainRequest::default(), 0, now);
        Self { router, others, is_serving: AtomicBool::new(true), course: Mutex::new(course), ended: watch::Sender::new(false) }
    }

    /// Whether the broker is neither drained nor stops.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.is_serving.load(Ordering::Acquire)
    }

    /// Begins, or goes on in another way.
    pub fn begin(self: &Arc<Self>, request: DrainRequest) -> DrainStatus {
        let now = clock::now();
        if let Some(number) = self.start(request, now) {
            task::spawn("drain", Arc::clone(self).run(number));
        }
        self.status_at(now)
    }

    /// The number of a course that is to be driven, if there was none.
    fn start(&self, request: DrainRequest, now: Instant) -> Option<u64> {
        let mut course = self.course.lock();
        match course.state {
            DrainState::Stopping => None,
            DrainState::Serving => {
                let number = course.number + 1;
                *course = Course::new(DrainState::Waiting, request, number, now);
                self.is_serving.store(false, Ordering::Release);
                tracing::info!(rate = request.rate, ends = request.ends, "draining: not ready any more");
                self.router.set_leaving(true);
                Some(number)
            }
            _ => {
                (course.request, course.bucket) = (request, Bucket::new(request.rate.into()));
                None
            }
        }
    }

    /// Calls it off: clients are welcome again. What has gone is not called back.
    pub fn cancel(&self) -> DrainStatus {
        let mut course = self.course.lock();
        if !matches!(course.state, DrainState::Serving | DrainState::Stopping) {
            course.number += 1;
            self.serve_again(&mut course, DrainState::Serving);
            self.router.set_leaving(false);
            self.is_serving.store(true, Ordering::Release);
            tracing::info!("no longer drained: ready again");
        }
        drop(course);
        self.status_at(clock::now())
    }

    /// The broker stops, drained or not: it is not ready any more.
    pub fn stop(&self) {
        let mut course = self.course.lock();
        self.is_serving.store(false, Ordering::Release);
        (course.state, course.number) = (DrainState::Stopping, course.number + 1);
    }

    /// How far it is.
    #[must_use]
    pub fn status(&self) -> DrainStatus {
        self.status_at(clock::now())
    }

    fn status_at(&self, now: Instant) -> DrainStatus {
        let mut course = self.course.lock();
        // Whoever drives it looks by itself.
        if matches!(course.state, DrainState::Serving | DrainState::Stopping) {
            course.others = self.others.takers();
            course.look(&self.router, now);
        }
        course.is_seen |= course.state == DrainState::Empty;
        DrainStatus {
            state: course.state,
            clients: course.census.clients,
            sessions: course.census.sessions,
            sent_away: course.sent_away,
            others: course.others,
            waiting_for: course.waiting_for.clone(),
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
        let others = self.others.takers();
        let mut guard = self.course.lock();
        let course = &mut *guard;
        if course.number != number {
            return false;
        }
        course.others = others;
        let is_new = course.look(&self.router, now);
        let for_time = |since: Option<Instant>| since.map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        if others == 0 && !matches!(course.state, DrainState::Waiting | DrainState::Empty) {
            tracing::warn!(
                "draining: there is no other broker any more to which clients could go: they are welcome here until there is one"
            );
            self.serve_again(course, DrainState::Waiting);
        }
        if course.state == DrainState::Waiting {
            let notice = Duration::from_millis(course.request.notice_ms.into());
            if others == 0 || now.saturating_duration_since(course.begun) < notice {
                return true;
            }
            course.state = DrainState::Sending;
            self.router.refuse_clients(true);
            tracing::info!("draining: clients are sent to other brokers");
        }
        course.send(&self.router, batch, now);
        let Census { clients, sessions } = course.census;
        course.quiet_since = (clients == 0).then(|| course.quiet_since.unwrap_or(now));
        course.bare_since = (sessions == 0).then(|| course.bare_since.unwrap_or(now));
        if course.state == DrainState::Sending && clients == 0 {
            let has_returned = course.sent_away == 0 || sessions == 0 || for_time(course.quiet_since) >= RETURN_TIME;
            if has_returned {
                course.state = DrainState::Giving;
                self.router.give_sessions_away(true);
                tracing::info!(sessions, sent_away = course.sent_away, "draining: sessions are given to other brokers");
            }
        }
        if course.state == DrainState::Giving && sessions == 0 {
            course.state = DrainState::Settling;
            self.others.leave_bridges(true);
        }
        if is_new && matches!(course.state, DrainState::Settling | DrainState::Empty) {
            self.settle(course, now);
        }
        if course.state == DrainState::Empty && course.request.ends {
            let time = for_time(course.empty_since);
            if time >= UNSEEN || (time >= LAST_LOOK && course.is_seen) {
                course.state = DrainState::Stopping;
                self.ended.send_replace(true);
                return false;
            }
        }
        true
    }

    /// Finds out what is left when no session seems to be.
    fn settle(&self, course: &mut Course, now: Instant) {
        course.waiting_for = self.others.behind();
        // Since it was looked for last one may have come in.
        course.census = self.router.census();
        let is_bare = course.census.sessions == 0 && self.router.coming() == 0;
        let bare_time = course.bare_since.map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        let is_known = self.router.leaving() == 0 || bare_time >= MOVES_PATIENCE;
        let is_settled = is_bare && is_known && !self.others.serves_bridges() && course.waiting_for.is_empty();
        match (course.state, is_settled) {
            (state, _) if course.census.sessions > 0 => {
                if state == DrainState::Empty {
                    self.router.set_empty(false);
                }
                course.state = DrainState::Giving;
            }
            (DrainState::Settling, true) => {
                (course.state, course.empty_since) = (DrainState::Empty, Some(now));
                self.router.set_empty(true);
                let seconds = now.saturating_duration_since(course.begun).as_secs_f64();
                tracing::info!(seconds, ends = course.request.ends, "drained: nothing is left");
            }
            // It is to end, and something has come.
            (DrainState::Empty, false) if course.request.ends => {
                self.router.set_empty(false);
                course.state = DrainState::Settling;
            }
            _ => {}
        }
    }

    /// Clients are welcome, and nothing is given away.
    fn serve_again(&self, course: &mut Course, state: DrainState) {
        (course.state, course.queue, course.waiting_for) = (state, Vec::new(), Vec::new());
        (course.quiet_since, course.bare_since) = (None, None);
        self.router.refuse_clients(false);
        self.router.give_sessions_away(false);
        self.others.leave_bridges(false);
    }
}

impl Course {
    /// Sends away as many clients as the rate has it.
    fn send(&mut self, router: &Router, batch: &mut Batch, now: Instant) {
        // All sessions are looked at for that: once for each census.
        if self.queue.is_empty() && self.census.clients > 0 && self.filled_at < self.looked_at {
            (self.queue, self.filled_at) = (router.connected(), self.looked_at);
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

    /// Looks at what there is, if it is time. Whether it was.
    fn look(&mut self, router: &Router, now: Instant) -> bool {
        let interval = if router.metrics().sessions.value() < LARGE { LOOK_INTERVAL } else { LOOK_INTERVAL_LARGE };
        let is_due = self.looked_at.is_none_or(|at| now.saturating_duration_since(at) >= interval);
        if is_due {
            (self.census, self.looked_at) = (router.census(), Some(now));
        }
        is_due
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

    #[derive(Default)]
    struct Known {
        takers: usize,
        behind: Vec<String>,
        bridges_leave: bool,
        serves_bridges: bool,
    }

    struct Fake(Arc<Mutex<Known>>);

    impl Others for Fake {
        fn takers(&self) -> usize {
            self.0.lock().takers
        }

        fn behind(&self) -> Vec<String> {
            self.0.lock().behind.clone()
        }

        fn leave_bridges(&self, leaves: bool) {
            self.0.lock().bridges_leave = leaves;
        }

        fn serves_bridges(&self) -> bool {
            self.0.lock().serves_bridges
        }
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

    struct Bench {
        now: Instant,
        router: Arc<Router>,
        known: Arc<Mutex<Known>>,
        drain: Drain,
        batch: Batch,
        number: u64,
    }

    impl Bench {
        fn new(takers: usize) -> Self {
            let now = clock::now();
            let outbound = OutboundLimits {
                inflight_max: 20,
                inflight_bytes_max: 1_000,
                queued_messages_max: 10,
                queued_bytes_max: 1_000,
                drop_oldest: false,
                queue_qos0: false,
            };
            let limits = RouterLimits { outbound, shared: SharedStrategy::default() };
            let router = Arc::new(Router::new(limits, Arc::new(Metrics::default()), None, now));
            let known = Arc::new(Mutex::new(Known { takers, ..Known::default() }));
            let drain = Drain::new(Arc::clone(&router), Box::new(Fake(Arc::clone(&known))), now);
            Self { now, router, known, drain, batch: Batch::default(), number: 0 }
        }

        fn begin(&mut self, ends: bool) {
            let request = DrainRequest { notice_ms: 1_000, ends, ..DrainRequest::default() };
            self.number = self.drain.start(request, self.now).unwrap();
        }

        fn connect(&self, client_id: &str) -> Connection {
            connect(&self.router, client_id, SessionExpiry::After(Duration::from_secs(3_600)), self.now)
        }

        fn leave(&mut self, connection: &Connection, expiry: Option<SessionExpiry>) {
            self.router.disconnect(&mut self.batch, connection, Farewell::Normal, expiry, self.now);
        }

        /// What it says after that time. Who looks may be somebody who follows it.
        fn after(&mut self, time: Duration) -> DrainState {
            let until = self.now + time;
            while self.now < until {
                self.now += TURN_INTERVAL;
                self.drain.turn(self.number, &mut self.batch, self.now);
                self.router.finish(&mut self.batch, self.now);
            }
            self.drain.course.lock().state
        }

        fn has_ended(&self) -> bool {
            *self.drain.ended.borrow()
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nobody_is_sent_away_where_there_is_no_other_broker() {
        let mut bench = Bench::new(0);
        let connection = bench.connect("c");
        bench.begin(true);
        assert_eq!(bench.after(60 * SECOND), DrainState::Waiting);
        assert!(!bench.router.refuses_clients() && !bench.drain.is_serving());
        assert_eq!(connection.subscriber.lock().outbox.closing(), None);
        // One comes, and goes again.
        bench.known.lock().takers = 1;
        assert_eq!(bench.after(SECOND), DrainState::Sending);
        assert!(bench.router.refuses_clients() && connection.subscriber.lock().outbox.closing().is_some());
        bench.leave(&connection, None);
        assert_eq!(bench.after(RETURN_TIME + SECOND), DrainState::Giving);
        bench.known.lock().takers = 0;
        assert_eq!(bench.after(SECOND), DrainState::Waiting);
        assert!(!bench.router.refuses_clients(), "clients are welcome again");
        bench.known.lock().takers = 1;
        let _ = bench.after(SECOND);
        assert!(bench.router.refuses_clients());
        assert!(bench.drain.cancel().state == DrainState::Serving && !bench.router.refuses_clients() && bench.drain.is_serving());
    }

    #[test]
    fn it_does_not_end_before_others_have_what_was_published_and_no_bridge_brings_more() {
        let mut bench = Bench::new(1);
        (bench.known.lock().behind, bench.known.lock().serves_bridges) = (vec!["b".to_owned()], true);
        bench.begin(true);
        assert_eq!(bench.after(1_000 * SECOND), DrainState::Settling);
        assert!(bench.drain.status_at(bench.now).waiting_for == ["b"] && bench.known.lock().bridges_leave);
        bench.known.lock().behind.clear();
        assert_eq!(bench.after(SECOND), DrainState::Settling, "the bridge");
        bench.known.lock().serves_bridges = false;
        assert_eq!(bench.after(SECOND), DrainState::Empty);
        // Something more was published before the end.
        bench.known.lock().behind.push("c".to_owned());
        assert_eq!(bench.after(SECOND), DrainState::Settling);
        bench.known.lock().behind.clear();
        assert_eq!(bench.after(SECOND), DrainState::Empty);
        assert!(!bench.has_ended(), "whoever follows it has not seen that");
        assert_eq!(bench.drain.status_at(bench.now).state, DrainState::Empty);
        assert_eq!(bench.after(SECOND), DrainState::Stopping);
        assert!(bench.has_ended());
        assert_eq!(bench.drain.cancel().state, DrainState::Stopping, "too late");
    }

    #[test]
    fn a_session_that_came_in_at_the_last_moment_is_given_away_as_well() {
        let mut bench = Bench::new(1);
        bench.known.lock().behind = vec!["b".to_owned()];
        bench.begin(true);
        assert_eq!(bench.after(5 * SECOND), DrainState::Settling);
        // Its CONNECT was let in before.
        let connection = bench.connect("late");
        bench.known.lock().behind.clear();
        assert_eq!(bench.after(SECOND), DrainState::Giving);
        assert!(connection.subscriber.lock().outbox.closing().is_some(), "and is sent away");
        bench.leave(&connection, Some(SessionExpiry::WithConnection));
        assert_eq!(bench.after(SECOND), DrainState::Empty);
        let _ = bench.after(UNSEEN);
        assert!(bench.has_ended());
    }

    #[test]
    fn who_is_to_stay_stays_empty() {
        let mut bench = Bench::new(1);
        bench.begin(false);
        assert_eq!(bench.after(60 * SECOND), DrainState::Empty);
        bench.known.lock().takers = 0;
        assert_eq!(bench.after(SECOND), DrainState::Empty);
        assert!(!bench.has_ended() && bench.router.refuses_clients());
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
            let Bench { now, router, drain, .. } = Bench::new(1);
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
        // Nobody follows it.
        let turns = (0..200).take_while(|_| world.turn().1).count();
        assert!(turns < 150 && world.state() == DrainState::Stopping && *world.drain.ended.borrow(), "{turns}");
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

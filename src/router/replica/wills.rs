//! Wills of clients whose broker dies. See the [module's page](super).
//!
//! A broker tells the one that has its replicas of the wills of all its clients, whether their sessions outlive them or not: what comes with a CONNECT, and that it is gone. It says how things
//! are, not what happened: a will that has come and gone between two looks is none. Where it cannot be reached for the grace, the other publishes what is left of them,
//! each when its delay is over, too, unless its client has come to any broker meanwhile, and says so in its register, under the claim with which the client brought it. By that the client's own broker
//! knows, when it is back, and whoever else has heard of that will.
//!
//! A broker that was restarted knows of the wills that are on its disk, and deals with them itself; of the others only who was told. That its life is another says its register.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::outgoing::Outgoing;
use super::word::Item;
use super::{REPEAT, left_of};
use crate::frame::FrameError;
use crate::ids::BrokerId;
use crate::limits::{ORPHAN_WILL_BYTES_MAX, ORPHAN_WILLS_BYTES_MAX, SESSIONS_MAX, WILLS_SETTLED_MAX};
use crate::pressure::Level;
use crate::router::claims::Claimed;
use crate::router::handover::Turn;
use crate::router::orphans::Changed;
use crate::router::{Router, is_system};
use crate::session::{MovedWill, SessionExpiry, State, Subscriber, SubscriberId, Will};
use crate::shared::register::Claim;

/// What a will takes beside what it says, bytes.
const WILL_OVERHEAD_BYTES: usize = 256;
/// Wills that are published at a time.
const PUBLISHED_MAX: usize = 1_024;
/// A broker that can be reached, is in the same life as ever, and has told nothing more of its wills for so long, tells others.
const ELSEWHERE: Duration = Duration::from_secs(10);
/// Between two looks at what others need not know any more.
const SETTLED_SWEEP: Duration = Duration::from_secs(10);
/// A broker that could be reached for so long has heard what became of its clients' wills.
const SETTLED_TOLD: Duration = Duration::from_secs(60);
/// One that stays away for longer is not told any more.
const SETTLED_KEPT: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Of the broker that has the clients: what the other was told of.
#[derive(Debug, Default)]
pub(super) struct ToldWills {
    told: HashMap<SubscriberId, Standing, ahash::RandomState>,
    /// To be looked at.
    due: Changed,
}

/// How a session's will stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    epoch: u64,
    is_away: bool,
    delay: Duration,
}

impl ToldWills {
    /// All that there are at the beginning.
    pub(super) fn all(router: &Router) -> Self {
        // From now on what changes is noted.
        router.orphans.follow(true);
        let all = router.registry.iter().map(|held| Arc::clone(held.value()));
        let with_will = |subscriber: Arc<Subscriber>| {
            let has_will = subscriber.lock().will.is_some();
            has_will.then(|| (subscriber.id, subscriber))
        };
        Self { told: HashMap::default(), due: all.filter_map(with_will).collect() }
    }

    /// How many are to be looked at still.
    pub(super) fn due(&self) -> usize {
        self.due.len()
    }

    /// Says what has changed, as far as there is room.
    pub(super) fn tell(&mut self, turn: &Turn<'_>, out: &mut Outgoing) {
        self.due.extend(turn.router.orphans.take());
        while out.may_tell_wills()
            && let Some(id) = self.due.keys().next().copied()
            && let Some(subscriber) = self.due.remove(&id)
        {
            self.tell_one(turn, &subscriber, out);
        }
    }

    fn tell_one(&mut self, turn: &Turn<'_>, subscriber: &Subscriber, out: &mut Outgoing) {
        let (id, state) = (subscriber.id, subscriber.lock());
        let Some((standing, will)) = standing_of(subscriber, &state) else {
            drop(state);
            if self.told.remove(&id).is_some() {
                out.words().put(&Item::WillGone { session: id.0 });
            }
            return;
        };
        if self.told.get(&id) == Some(&standing) {
            return;
        }
        let (claim, left, is_durable) = (state.claimed, left_of(&state, turn.now), state.is_durable());
        let owner = subscriber.access().map(|access| access.owner()).unwrap_or_default();
        let will = Will { delay: standing.delay, ..will.clone() };
        drop(state);
        let mut bytes = Vec::new();
        MovedWill { client_id: Arc::clone(&subscriber.client_id), owner, will }.encode(&mut bytes);
        self.told.insert(id, standing);
        out.words().put_long(&bytes, |bytes| Item::Will { session: id.0, claim, left, is_durable, bytes });
    }
}

/// None where nobody else is to publish it.
fn standing_of<'a>(subscriber: &Subscriber, state: &'a State) -> Option<(Standing, &'a Will)> {
    let will = state.will.as_deref().filter(|_| !state.ended)?;
    let topic = &*will.message.topic;
    // What a bridge says of itself is its broker's to show.
    let is_ours = Router::is_claimed(subscriber.access().as_deref()) && !is_system(topic);
    if !is_ours || !subscriber.may_publish(topic) || will.message.bytes() > ORPHAN_WILL_BYTES_MAX {
        return None;
    }
    // With its session's end it goes out at the latest [MQTT-3.1.3-9].
    let delay = match state.expiry {
        SessionExpiry::WithConnection => Duration::ZERO,
        SessionExpiry::After(rest) => will.delay.min(rest),
        SessionExpiry::Never => will.delay,
    };
    Some((Standing { epoch: state.epoch, is_away: state.connected.is_none(), delay }, will))
}

/// Of the broker that was told: others' wills.
#[derive(Debug, Default)]
pub(super) struct KeptWills {
    streams: BTreeMap<(BrokerId, u64), Stream>,
    /// What became of those with which this broker has dealt: the claim, and when.
    settled: BTreeMap<(BrokerId, Arc<str>), (u64, Instant)>,
    /// Since when brokers can be reached of which something is settled.
    back: HashMap<BrokerId, Instant>,
    looked_at: Option<Instant>,
    swept_at: Option<Instant>,
}

/// Wills of which one stream has told.
#[derive(Debug, Default)]
struct Stream {
    /// Of its broker; 0: that has not said.
    life: u64,
    /// By client: of two of the same client the one told last counts.
    wills: HashMap<Arc<str>, KeptWill, ahash::RandomState>,
    sessions: HashMap<u64, Arc<str>, ahash::RandomState>,
    bytes: usize,
    /// Nothing more comes of it, though nobody has said that it is over.
    ended_at: Option<Instant>,
    /// Its broker cannot be reached, since then.
    lost: Option<Instant>,
    /// Its broker could not be reached, and can now.
    found_at: Option<Instant>,
    /// Its broker has begun another life: whatever the clients were connected to is gone, since then.
    restarted: Option<Instant>,
}

#[derive(Debug)]
struct KeptWill {
    session: u64,
    claim: u64,
    owner: Arc<str>,
    /// It is on its broker's disk, too.
    is_durable: bool,
    /// Since when its client is not connected, as far as is known here.
    left_at: Option<Instant>,
    will: Will,
}

impl KeptWill {
    fn bytes(&self) -> usize {
        self.will.message.bytes() + self.owner.len() + WILL_OVERHEAD_BYTES
    }

    /// Whether it is to be published, whose client has had no broker since `lost`.
    fn is_due(&self, lost: Instant, grace: Duration, now: Instant) -> bool {
        let has_waited = |since: Instant, time: Duration| now.saturating_duration_since(since) >= time;
        has_waited(lost, grace) && has_waited(self.left_at.unwrap_or(lost), self.will.delay.saturating_add(grace))
    }
}

impl Stream {
    fn remove(&mut self, client_id: &str) -> Option<KeptWill> {
        let kept = self.wills.remove(client_id)?;
        self.sessions.remove(&kept.session);
        self.bytes -= kept.bytes();
        Some(kept)
    }

    fn remove_session(&mut self, session: u64) {
        let Some(client_id) = self.sessions.remove(&session) else { return };
        if self.wills.get(&client_id).is_some_and(|kept| kept.session == session) {
            self.remove(&client_id);
        }
    }
}

impl KeptWills {
    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// A stream of a broker in that life.
    pub(super) fn begin(&mut self, line: (BrokerId, u64), life: u64) {
        self.streams.entry(line).or_default().life = life;
    }

    /// There is a will.
    pub(super) fn keep(
        &mut self,
        turn: &Turn<'_>,
        line: (BrokerId, u64),
        (session, claim): (u64, u64),
        (left_at, is_durable): (Option<Instant>, bool),
        bytes: &[u8],
    ) -> Result<(), FrameError> {
        let MovedWill { client_id, owner, will } = MovedWill::decode(bytes).map_err(|_| FrameError::Text("will"))?;
        let stream = self.streams.entry(line).or_default();
        stream.remove_session(session);
        stream.remove(&client_id);
        let kept = KeptWill { session, claim, owner, is_durable, left_at, will };
        let is_too_much = stream.bytes + kept.bytes() > ORPHAN_WILLS_BYTES_MAX || stream.wills.len() as i64 >= SESSIONS_MAX;
        if is_too_much || kept.will.message.bytes() > ORPHAN_WILL_BYTES_MAX {
            turn.router.metrics.wills_not_kept.add(1);
            return Ok(());
        }
        // Its broker has not heard of that yet.
        if self.settled.get(&(line.0, Arc::clone(&client_id))).is_some_and(|(settled, _)| *settled >= claim) {
            return Ok(());
        }
        stream.bytes += kept.bytes();
        stream.sessions.insert(session, Arc::clone(&client_id));
        stream.wills.insert(client_id, kept);
        // From now on claims of clients that come here are looked at.
        turn.router.metrics.wills_kept.set(turn.router.metrics.wills_kept.value().max(1));
        Ok(())
    }

    /// It is published, or void.
    pub(super) fn gone(&mut self, line: (BrokerId, u64), session: u64) {
        if let Some(stream) = self.streams.get_mut(&line) {
            stream.remove_session(session);
        }
    }

    /// The broker tells others of its wills from now on.
    pub(super) fn over(&mut self, line: (BrokerId, u64)) {
        self.streams.remove(&line);
    }

    /// Nothing more comes of the stream: its broker may have died, or may tell others.
    pub(super) fn ended(&mut self, line: (BrokerId, u64), now: Instant) {
        if let Some(stream) = self.streams.get_mut(&line) {
            stream.ended_at = Some(now);
        }
    }

    /// A client has come to a broker: its older will is void.
    pub(super) fn follow_claim(&mut self, turn: &Turn<'_>, client_id: &Arc<str>, theirs: Claimed) {
        let mut void = Vec::new();
        for ((of, _), stream) in &mut self.streams {
            if stream.wills.get(client_id).is_some_and(|kept| (kept.claim, *of) < theirs)
                && let Some(kept) = stream.remove(client_id)
            {
                void.push((*of, kept));
            }
        }
        for (of, kept) in void {
            // Where it lives it hears of the claim itself.
            if kept.is_durable && theirs.1 != of && turn.post.lost_since(of).is_some() {
                self.settle(turn, of, client_id, kept.claim);
            }
        }
    }

    pub(super) fn drive(&mut self, turn: &mut Turn<'_>) {
        if self.looked_at.is_some_and(|at| turn.since(at) < REPEAT) {
            return;
        }
        self.looked_at = Some(turn.now);
        let due = self.look(turn);
        let has_due = !due.is_empty();
        for (of, client_id, kept) in due {
            self.deal(turn, of, &client_id, kept);
        }
        if has_due {
            turn.router.finish(turn.batch, turn.now);
        }
        self.forget_settled(turn);
        let kept: usize = self.streams.values().map(|stream| stream.wills.len()).sum();
        turn.router.metrics.wills_kept.set(kept as i64);
    }

    /// Looks after whose brokers are there, and gives what is to be published.
    fn look(&mut self, turn: &Turn<'_>) -> Vec<(BrokerId, Arc<str>, KeptWill)> {
        let grace = turn.router.orphans.grace();
        let is_full = turn.router.pressure.level() == Level::Full;
        let mut lives: HashMap<BrokerId, u64> = HashMap::new();
        for ((of, _), Stream { life, .. }) in &self.streams {
            let known = turn.router.registers().and_then(|registers| registers.life_of(*of)).map_or(0, |life| life.0);
            let newest = lives.entry(*of).or_default();
            *newest = (*newest).max(known).max(*life);
        }
        let mut due = Vec::new();
        self.streams.retain(|(of, _), stream| {
            let lost = turn.post.lost_since(*of);
            let is_restarted = stream.life > 0 && lives.get(of).is_some_and(|life| *life > stream.life);
            if is_restarted {
                stream.restarted.get_or_insert(stream.lost.unwrap_or(turn.now));
                // These it has read from its disk.
                stream.wills.retain(|_, kept| !kept.is_durable);
                stream.bytes = stream.wills.values().map(KeptWill::bytes).sum();
                stream.sessions = stream.wills.iter().map(|(client_id, kept)| (kept.session, Arc::clone(client_id))).collect();
            } else {
                if stream.lost.is_some() && lost.is_none() {
                    stream.found_at = Some(turn.now);
                }
                stream.lost = lost;
                let there_since = stream.ended_at.max(stream.found_at);
                let is_elsewhere = stream.ended_at.is_some() && there_since.is_some_and(|since| turn.since(since) >= ELSEWHERE);
                if lost.is_none() && (is_elsewhere || (is_full && stream.ended_at.is_some())) {
                    return false;
                }
                // By its last word others are told.
                if turn.router.claims.replica_of(*of).is_some_and(|replica| replica != turn.own) {
                    return true;
                }
            }
            let Some(lost) = stream.restarted.or(stream.lost) else { return true };
            let is_due = |kept: &KeptWill| kept.is_due(lost, grace, turn.now);
            let clients: Vec<Arc<str>> = stream
                .wills
                .iter()
                .filter(|(_, kept)| is_due(kept))
                .map(|(client_id, _)| Arc::clone(client_id))
                .take(PUBLISHED_MAX.saturating_sub(due.len()))
                .collect();
            due.extend(clients.into_iter().filter_map(|client_id| stream.remove(&client_id).map(|kept| (*of, client_id, kept))));
            !(stream.wills.is_empty() && (is_restarted || stream.ended_at.is_some()))
        });
        due
    }

    /// The will's time has come.
    fn deal(&mut self, turn: &mut Turn<'_>, of: BrokerId, client_id: &Arc<str>, kept: KeptWill) {
        let router = turn.router;
        let claimed = (kept.claim, of);
        // Another was told of it before.
        if router.claims.is_will_settled(of, client_id, kept.claim) {
            return;
        }
        let has_come_here = || {
            let here = router.session(client_id);
            here.is_some_and(|subscriber| (subscriber.lock().claimed, turn.own) > claimed)
        };
        let has_come = router.newest_claim(client_id, turn.now).is_some_and(|newest| newest > claimed) || has_come_here();
        if !has_come || kept.is_durable {
            self.settle(turn, of, client_id, kept.claim);
        }
        if has_come {
            return;
        }
        router.metrics.wills_orphaned.add(1);
        if let Some(left_out) = router.log_rate.permit("will orphaned", turn.now) {
            tracing::info!(client = ?client_id, broker = %of, left_out, "the will of another broker's client is published: that broker cannot be reached");
        }
        router.publish_orphaned(turn.batch, client_id, &kept.owner, kept.will, turn.now);
    }

    /// Tells all that the will is dealt with.
    fn settle(&mut self, turn: &Turn<'_>, of: BrokerId, client_id: &Arc<str>, claim: u64) {
        let Some(registers) = turn.router.registers() else { return };
        if self.settled.len() >= WILLS_SETTLED_MAX
            && let Some(((of, client_id), _)) = self.settled.pop_first()
        {
            registers.own().tell_will(of, &client_id, None);
        }
        self.settled.insert((of, Arc::clone(client_id)), (claim, turn.now));
        registers.own().tell_will(of, client_id, Some(Claim { stamp: claim }));
    }

    /// What a broker has heard, or will not hear any more, need not be told.
    fn forget_settled(&mut self, turn: &Turn<'_>) {
        if self.swept_at.is_some_and(|at| turn.since(at) < SETTLED_SWEEP) {
            return;
        }
        self.swept_at = Some(turn.now);
        let members = turn.router.claims.members();
        let brokers: std::collections::BTreeSet<BrokerId> = self.settled.keys().map(|(of, _)| *of).collect();
        self.back.retain(|broker, _| brokers.contains(broker));
        for broker in brokers {
            if turn.post.lost_since(broker).is_none() && members.get(&broker) == Some(&true) {
                self.back.entry(broker).or_insert(turn.now);
            } else {
                self.back.remove(&broker);
            }
        }
        let Some(registers) = turn.router.registers() else { return };
        self.settled.retain(|(of, client_id), (_, at)| {
            let has_heard = self.back.get(of).is_some_and(|since| turn.since((*since).max(*at)) >= SETTLED_TOLD);
            let is_over = has_heard || turn.since(*at) >= SETTLED_KEPT;
            if is_over {
                registers.own().tell_will(*of, client_id, None);
            }
            !is_over
        });
    }
}

//! The account: what was published, who was subscribed to it, and who got it. It judges by the contract (`ARCHITECTURE.md`, "The delivery contract")
//! what one publisher's messages may do at one subscriber.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use mqtt_st_quic::codec::QoS;
use mqtt_st_quic::ids::Incarnation;
use mqtt_st_quic::topic;

/// Topics on which clients publish.
pub(super) const TOPICS: usize = 6;

/// The digits of a message's number, with which its payload begins.
pub(super) const NUMBER_BYTES: usize = 8;

/// Messages that a broker lets a client have in flight.
pub(super) const SENT_MAX: u16 = 20;

/// The name of the share group of a filter, if it has one, and the rest.
fn split(filter: &str) -> (Option<&str>, &str) {
    match filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/')) {
        Some((group, rest)) => (Some(group), rest),
        None => (None, filter),
    }
}

pub(super) fn topic_name(topic: usize) -> String {
    format!("topic/{topic}")
}

/// A message as its publisher sent it first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// Client.
    pub(super) by: usize,
    /// Which of the times in which messages of this client have an order among them.
    pub(super) stay: u64,
    pub(super) broker: usize,
    pub(super) life: Incarnation,
    pub(super) topic: usize,
    pub(super) qos: QoS,
    pub(super) bytes: usize,
    pub(super) at: Instant,
    /// The broker has acknowledged it.
    pub(super) is_taken: bool,
    /// The broker has said that it does not take it.
    pub(super) is_refused: bool,
    /// It was sent again.
    pub(super) is_resent: bool,
    /// Its broker has crashed before it was acknowledged.
    pub(super) is_forgotten: bool,
    /// It was sent again to another broker; and its own has crashed before it was acknowledged and is back, which may have it on its disk, or was in another part of the mesh.
    pub(super) is_elsewhere: bool,
    pub(super) is_back: bool,
    /// Its broker lost it: what others have of it they may have or not.
    pub(super) is_orphan: bool,
}

impl Message {
    pub(super) fn payload(&self, number: usize) -> Vec<u8> {
        let mut payload = format!("{number:0NUMBER_BYTES$}").into_bytes();
        payload.resize(self.bytes, b'x');
        payload
    }
}

/// A subscription of a client.
#[derive(Clone, Debug)]
struct Subscription {
    by: usize,
    /// Without the name of its share group.
    filter: String,
    qos: QoS,
    /// Since then it is known wherever anybody publishes.
    from: Option<Instant>,
    /// It was acknowledged.
    is_made: bool,
    /// The client has given it up, or its session is over.
    is_over: bool,
}

/// What a client's broker, and the client, have gone through.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    crashes: u32,
    /// Crashes with which everything was gone.
    losses: u32,
    /// Its client has gone to another broker.
    hops: u32,
    /// While the mesh was in two parts.
    sides: u32,
    /// When its connection began.
    connected_at: Option<Instant>,
}

/// What one client was given, or one share group, whichever of its members it was.
#[derive(Default)]
struct Inbox {
    subscriptions: Vec<Subscription>,
    /// How it got them last, and what its broker had gone through then.
    got: BTreeMap<usize, (QoS, Past)>,
    /// What it had when the client's present connection began.
    past: Past,
    /// What it has by now.
    present: Past,
    /// Copies that came again.
    again: usize,
    /// What came with QoS 1 or 2 since the connection began.
    since_connect: usize,
    /// First copies, in their order, with the QoS with which they came, and what there had been by then.
    order: Vec<(usize, QoS, Past)>,
}

/// See the module's page.
#[derive(Default)]
pub(super) struct Account {
    pub(super) messages: Vec<Message>,
    /// Of the clients, then of the groups.
    inboxes: Vec<Inbox>,
    /// Inboxes of groups, by their names.
    groups: BTreeMap<String, usize>,
    /// Who is a member of a group, with its inbox. It has no other subscriptions.
    members: BTreeMap<usize, usize>,
    clients: usize,
    /// Groups with a member of which there were two sessions: what the one that is over had been given is lost with it.
    torn: BTreeSet<usize>,
    /// Clients go from broker to broker.
    pub(super) wanders: bool,
    /// Copies that were second ones and may be.
    pub(super) repeated: u64,
    /// Those of QoS 1 that said so, and came when more had come on their connection than may be in flight.
    pub(super) marked_behind: u64,
}

/// What is found in the end.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Of QoS 1 and 2, to all subscribers.
    pub(super) owed: usize,
    /// Subscriber and message.
    pub(super) lost: Vec<(usize, usize)>,
    /// Of QoS 0, by who had connections in the end.
    pub(super) lost_qos0: Vec<(usize, usize)>,
}

impl Inbox {
    /// What the client was granted of a message: it was subscribed to it, as everybody knew, when it was published, and is still.
    fn granted(&self, message: &Message) -> Option<QoS> {
        let name = topic_name(message.topic);
        let is_there = |one: &&Subscription| {
            !one.is_over && one.from.is_some_and(|from| from <= message.at) && topic::matches(&one.filter, &name)
        };
        self.subscriptions.iter().filter(is_there).map(|one| one.qos.min(message.qos)).max()
    }
}

impl Account {
    pub(super) fn new(clients: usize) -> Self {
        Self { inboxes: (0..clients).map(|_| Inbox::default()).collect(), clients, ..Self::default() }
    }

    /// Where what the client is given is written down.
    fn place(&self, client: usize) -> usize {
        self.members.get(&client).copied().unwrap_or(client)
    }

    fn inbox(&mut self, client: usize) -> &mut Inbox {
        let place = self.place(client);
        &mut self.inboxes[place]
    }

    /// The client asks for what the filter matches.
    pub(super) fn subscribes(&mut self, client: usize, filter: &str, qos: QoS) {
        self.unsubscribes(client, filter);
        if let (Some(group), _) = split(filter) {
            let next = self.inboxes.len();
            let place = *self.groups.entry(group.to_owned()).or_insert(next);
            self.inboxes.resize_with(next.max(place + 1), Inbox::default);
            self.members.insert(client, place);
        }
        let filter = split(filter).1.to_owned();
        self.inbox(client).subscriptions.push(Subscription { by: client, filter, qos, from: None, is_made: false, is_over: false });
    }

    /// It was told that it gets that, and since `from` that is known everywhere.
    pub(super) fn subscribed(&mut self, client: usize, filter: &str, from: Option<Instant>) {
        for one in self.of(client, filter).filter(|one| !one.is_over) {
            (one.is_made, one.from) = (true, from);
        }
    }

    pub(super) fn unsubscribes(&mut self, client: usize, filter: &str) {
        self.of(client, filter).for_each(|one| one.is_over = true);
    }

    fn of(&mut self, client: usize, filter: &str) -> impl Iterator<Item = &mut Subscription> {
        let filter = split(filter).1.to_owned();
        let all = self.inbox(client).subscriptions.iter_mut();
        all.filter(move |one| one.by == client && one.filter == filter)
    }

    /// The client's session is over, and all that waited in it.
    pub(super) fn forgets(&mut self, client: usize) {
        let all = self.inbox(client).subscriptions.iter_mut();
        all.filter(|one| one.by == client).for_each(|one| one.is_over = true);
    }

    /// By now everybody knows of every subscription.
    pub(super) fn all_known(&mut self, now: Instant) {
        let all = self.inboxes.iter_mut().flat_map(|inbox| &mut inbox.subscriptions);
        all.filter(|one| one.is_made && !one.is_over && one.from.is_none()).for_each(|one| one.from = Some(now));
    }

    /// `broker` has lost its log, and with it whatever of that it had not passed on.
    pub(super) fn orphans(&mut self, broker: usize) {
        self.messages.iter_mut().filter(|message| message.broker == broker).for_each(|message| message.is_orphan = true);
    }

    /// A broker has crashed: what it had not acknowledged it may not know any more.
    pub(super) fn forgets_of(&mut self, broker: usize) {
        let unanswered = self.messages.iter_mut().filter(|message| message.broker == broker && !message.is_taken);
        unanswered.for_each(|message| message.is_forgotten = true);
    }

    /// A broker is back.
    pub(super) fn returns(&mut self, broker: usize) {
        let twice = |message: &&mut Message| message.broker == broker && message.is_forgotten && message.is_elsewhere;
        self.messages.iter_mut().filter(twice).for_each(|message| message.is_back = true);
    }

    /// The client's broker has crashed, and the session is lost with it or not.
    pub(super) fn crashes(&mut self, client: usize, is_lost: bool) {
        let present = &mut self.inbox(client).present;
        present.crashes += 1;
        present.losses += u32::from(is_lost);
    }

    /// The client goes to another broker.
    pub(super) fn moves(&mut self, client: usize) {
        self.inbox(client).present.hops += 1;
    }

    /// Likewise, while the mesh is in two parts.
    pub(super) fn changes_sides(&mut self, client: usize) {
        self.inbox(client).present.sides += 1;
    }

    /// The client has another session.
    pub(super) fn begins_anew(&mut self, client: usize) {
        self.torn.extend(self.members.get(&client).filter(|_| self.wanders));
        let inbox = self.inbox(client);
        inbox.present.losses += 1;
        inbox.past = inbox.present;
    }

    /// The client has a new connection.
    pub(super) fn connects(&mut self, client: usize, now: Instant) {
        let inbox = self.inbox(client);
        inbox.present.connected_at = Some(now);
        inbox.past = inbox.present;
        inbox.since_connect = 0;
    }

    /// A client gets a message.
    pub(super) fn receives(&mut self, client: usize, number: usize, qos: QoS, is_dup: bool) {
        let (message, place) = (self.messages[number], self.place(client));
        let inbox = &mut self.inboxes[place];
        // What one member had another may get, when its broker has crashed: connections of the one say nothing of the other.
        let is_group = place >= self.clients;
        let has_crashed =
            |before: Past, inbox: &Inbox| before.crashes < inbox.past.crashes || (is_group && inbox.present.crashes > 0);
        let name = topic_name(message.topic);
        let asked = inbox.subscriptions.iter().any(|one| topic::matches(&one.filter, &name));
        assert!(asked, "client {client} gets message {number}, for which it never asked");
        assert!(!message.is_refused || message.is_resent, "client {client} gets message {number}, which was refused");
        inbox.since_connect += usize::from(qos != QoS::AtMostOnce);
        let is_behind = inbox.since_connect > usize::from(SENT_MAX);
        let Some((before_qos, before)) = inbox.got.insert(number, (qos, inbox.past)) else {
            return inbox.order.push((number, qos, inbox.past));
        };
        // Whose broker has crashed before it was safe sends it again. To whom it went with QoS 2 it went when it was safe.
        let is_published_twice = message.is_resent && (message.qos == QoS::AtLeastOnce || message.is_forgotten || message.is_back);
        // It is another session, and the broker knows nothing of what the former one had. Where all are new they have everything of each other.
        let is_begun_anew = before.losses < inbox.past.losses;
        // Both sides of a parted mesh go on with a session.
        let has_changed_sides = before.sides < inbox.past.sides;
        let may_repeat = match qos {
            // Nobody at the one broker tells the other what a client had of it.
            QoS::AtMostOnce => is_published_twice || is_begun_anew || self.wanders,
            // What goes with QoS 0 or 1 goes before it is safe: a broker that has crashed does not know it, and says that the client may have had it. One that
            // has the session from another broker does not know of the crash.
            QoS::AtLeastOnce => {
                let is_unmarked = self.wanders && (has_crashed(before, inbox) || has_changed_sides);
                // Who was picked and cannot be reached may have given it to its member all the same.
                is_group || is_dup || is_published_twice || is_begun_anew || is_unmarked
            }
            // See the `Deviation:` of replicas.
            QoS::ExactlyOnce => {
                is_begun_anew || has_changed_sides || message.is_back || (before_qos < qos && has_crashed(before, inbox))
            }
        };
        assert!(may_repeat, "client {client} gets message {number} twice, with {qos:?} and DUP {is_dup}: {message:?}");
        self.inboxes[place].again += 1;
        self.marked_behind += u64::from(is_behind && is_dup && qos == QoS::AtLeastOnce);
        self.repeated += 1;
    }

    /// How many messages the client has got, and how many copies came again.
    pub(super) fn got(&self, client: usize) -> (usize, usize) {
        let inbox = &self.inboxes[self.place(client)];
        (inbox.got.len(), inbox.again)
    }

    /// Every publisher's messages of one topic and QoS class came in order. `is_lossy`: first copies may be lost.
    pub(super) fn check_order(&self, is_lossy: bool) {
        for (client, inbox) in self.inboxes.iter().take(self.clients).enumerate() {
            let mut last = BTreeMap::new();
            for &(number, granted, past) in &inbox.order {
                let message = self.messages[number];
                let is_qos0 = message.qos == QoS::AtMostOnce;
                // A second copy of QoS 1 may be the first to who was not there when it was published.
                // Nor has what comes when its publisher's first broker is back an order with what that published elsewhere meanwhile.
                if message.is_back {
                    continue;
                }
                // Of QoS 2 it is not published again where that broker's session, or its replica, knew the identifier: it comes from the one broker, what follows from the other.
                if message.is_elsewhere && message.qos == QoS::ExactlyOnce {
                    continue;
                }
                // Nor was there who was away then, and is granted QoS 0, which does not wait.
                let was_away = granted == QoS::AtMostOnce && past.connected_at.is_some_and(|at| at > message.at);
                let was_missed = is_lossy || was_away || inbox.granted(&message).is_none();
                if message.is_resent && message.qos == QoS::AtLeastOnce && was_missed {
                    continue;
                }
                // The log of QoS 0 does not outlive its broker.
                let life = is_qos0.then_some(message.life);
                // With QoS 0 they overtake those that wait until they are safe; and what was given so is no part of the session [MQTT 5, 4.1]: another broker,
                // which may not have come as far, knows nothing of it. Each keeps the order in which it receives them [MQTT-4.6.0-5].
                let hops = (granted == QoS::AtMostOnce).then_some(past.hops);
                let way = (is_qos0, hops, life, past.losses);
                let before = last.insert((message.by, message.stay, message.topic, way), number);
                let it = |number: usize| format!("{number}: {:?}", self.messages[number]);
                assert!(before < Some(number), "client {client} got {} after {}", it(number), before.map(it).unwrap_or_default());
            }
        }
    }

    /// Who has not got what it is owed. Of QoS 0 nothing is owed that was published before `calm`.
    pub(super) fn judge(&self, calm: Instant) -> Verdict {
        let mut verdict = Verdict::default();
        for (client, inbox) in self.inboxes.iter().enumerate() {
            let is_torn = self.torn.contains(&client);
            for (number, message) in self.messages.iter().enumerate() {
                let Some(qos) = inbox.granted(message).filter(|_| !is_torn || message.at >= calm) else { continue };
                let got = inbox.got.contains_key(&number);
                if qos == QoS::AtMostOnce {
                    let is_owed = message.at >= calm && (message.qos == QoS::AtMostOnce || message.is_taken);
                    if is_owed && !got {
                        verdict.lost_qos0.push((client, number));
                    }
                } else if message.is_taken && !message.is_orphan {
                    verdict.owed += 1;
                    if !got {
                        verdict.lost.push((client, number));
                    }
                }
            }
        }
        verdict
    }
}

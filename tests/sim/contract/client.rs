//! A client, which publishes and subscribes. It outlives brokers, and keeps to MQTT's rules when it comes back: what is not acknowledged is sent again
//! in its order, and it knows which packet identifiers of QoS 2 it has taken.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Instant;

use mqtt_st_quic::codec::{
    self, Ack, Packet, PacketId, ProtocolVersion, Publish, PublishProperties, QoS, Subscribe, SubscribeFilter, SubscribeProperties,
    Unsubscribe, UnsubscribeProperties,
};

use super::account::{Account, Message, NUMBER_BYTES, topic_name};

pub(super) const VERSION: ProtocolVersion = ProtocolVersion::V5;

/// Messages that are not acknowledged, at most.
const WINDOW: usize = 30;

/// See the module's page.
#[derive(Default)]
pub(super) struct Client {
    pub(super) number: usize,
    /// The broker to which it goes.
    pub(super) home: usize,
    /// Its session ends with its connection.
    pub(super) is_passing: bool,
    pub(super) connection: Option<u64>,
    /// The connection has brought its CONNACK.
    is_up: bool,
    /// It was told that it has a session.
    has_session: bool,
    /// See [`Message::stay`].
    stay: u64,
    in_flight: VecDeque<Flight>,
    unreleased: HashSet<PacketId>,
    last_id: u16,
    /// Filters that it wants.
    wishes: BTreeMap<String, QoS>,
    /// SUBSCRIBEs without SUBACK.
    asked: Vec<(PacketId, String)>,
    /// UNSUBSCRIBEs without UNSUBACK.
    declined: Vec<(PacketId, String)>,
    unread: Vec<u8>,
    /// There may be another session of it, which is older or newer.
    is_forked: bool,
    /// It answers nothing now, and this later.
    pub(super) is_mute: bool,
    pub(super) unsaid: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    id: PacketId,
    number: usize,
    is_released: bool,
}

/// What a client is told beside packets.
pub(super) struct Surroundings<'a> {
    pub(super) account: &'a mut Account,
    /// A subscription that is acknowledged now is known everywhere.
    pub(super) all_is_well: bool,
    /// It may be that there are two of its sessions.
    pub(super) is_torn: bool,
    /// Its session may be gone.
    pub(super) may_forget: bool,
    pub(super) now: Instant,
}

impl Client {
    pub(super) fn new(number: usize, home: usize, is_passing: bool) -> Self {
        Self { number, home, is_passing, ..Self::default() }
    }

    pub(super) fn name(&self) -> String {
        format!("client-{}", self.number)
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up
    }

    pub(super) fn has_wishes(&self) -> bool {
        !self.wishes.is_empty()
    }

    pub(super) fn wants(&self, filter: &str) -> bool {
        self.wishes.contains_key(filter)
    }

    /// Nothing of what it has published waits for an answer.
    pub(super) fn is_done(&self) -> bool {
        self.in_flight.is_empty() && self.asked.is_empty() && self.declined.is_empty()
    }

    pub(super) fn state(&self) -> String {
        format!("up {}, in flight {:?}, asked {:?}", self.is_up, self.in_flight, self.asked)
    }

    /// From now on it goes to another broker.
    pub(super) fn moves(&mut self, home: usize) {
        if home != self.home {
            self.home = home;
            self.stay += 1;
        }
    }

    /// Its broker is dead, or about to be, and it goes to another. What it has in flight has no order with what that broker has of it; and where that lives on in another part of the
    /// mesh (`is_parted`) it may come from both.
    pub(super) fn flees(&mut self, home: usize, is_parted: bool, account: &mut Account) {
        self.moves(home);
        // There it is as it was before, also as to what it is subscribed to.
        self.is_forked |= is_parted;
        for flight in &self.in_flight {
            let message = &mut account.messages[flight.number];
            (message.stay, message.is_elsewhere) = (self.stay, true);
            message.is_back |= is_parted;
        }
    }

    /// What it is subscribed to is what its broker was told, and it knows that.
    pub(super) fn is_settled(&self) -> bool {
        self.asked.is_empty() && self.declined.is_empty()
    }

    /// It begins a connection.
    pub(super) fn connects(&mut self, connection: u64) {
        self.connection = Some(connection);
        self.unsaid.clear();
        self.is_up = false;
        self.unread.clear();
    }

    /// Its connection is over.
    pub(super) fn leaves(&mut self, account: &mut Account) {
        self.connection = None;
        self.is_up = false;
        if self.is_passing {
            self.forget(account);
        }
    }

    fn forget(&mut self, account: &mut Account) {
        account.forgets(self.number);
        self.has_session = false;
        self.stay += 1;
        self.in_flight.clear();
        self.unreleased.clear();
        self.asked.clear();
        self.declined.clear();
    }

    fn next_id(&mut self) -> PacketId {
        loop {
            self.last_id = self.last_id % 5_000 + 1;
            let id = PacketId::new(self.last_id).unwrap();
            if self.in_flight.iter().all(|flight| flight.id != id)
                && self.asked.iter().chain(&self.declined).all(|(asked, _)| *asked != id)
            {
                return id;
            }
        }
    }

    /// Publishes one message, if it may.
    pub(super) fn publish(&mut self, message: Message, account: &mut Account, out: &mut Vec<u8>) {
        if !self.is_up || self.in_flight.len() >= WINDOW {
            return;
        }
        let number = account.messages.len();
        let message = Message { by: self.number, stay: self.stay, ..message };
        account.messages.push(message);
        let id = (message.qos != QoS::AtMostOnce).then(|| self.next_id());
        self.in_flight.extend(id.map(|id| Flight { id, number, is_released: false }));
        put_publish(out, number, &message, id, false);
    }

    /// Asks for what a filter matches.
    pub(super) fn subscribe(&mut self, filter: &str, qos: QoS, account: &mut Account, out: &mut Vec<u8>) {
        // One thing at a time: what is asked for and declined at once comes back in either order.
        if !self.is_up || !self.declined.is_empty() || !self.asked.is_empty() {
            return;
        }
        account.subscribes(self.number, filter, qos);
        self.wishes.insert(filter.to_owned(), qos);
        self.put_subscribe(filter, qos, out);
    }

    fn put_subscribe(&mut self, filter: &str, qos: QoS, out: &mut Vec<u8>) {
        let packet_id = self.next_id();
        self.asked.push((packet_id, filter.to_owned()));
        let filters = vec![SubscribeFilter { filter, options: qos.into() }];
        put(out, &Packet::Subscribe(Subscribe { packet_id, properties: SubscribeProperties::default(), filters }));
    }

    /// Gives up one of its subscriptions; its first one it keeps.
    pub(super) fn unsubscribe(&mut self, nth: usize, account: &mut Account, out: &mut Vec<u8>) {
        if !self.is_up || self.wishes.len() < 2 || !self.asked.is_empty() || !self.declined.is_empty() {
            return;
        }
        let filter = self.wishes.keys().nth(nth % self.wishes.len()).unwrap().clone();
        self.wishes.remove(&filter);
        account.unsubscribes(self.number, &filter);
        self.put_unsubscribe(filter, out);
    }

    fn put_unsubscribe(&mut self, filter: String, out: &mut Vec<u8>) {
        let packet_id = self.next_id();
        let filters = vec![filter.as_str()];
        put(out, &Packet::Unsubscribe(Unsubscribe { packet_id, properties: UnsubscribeProperties::default(), filters }));
        self.declined.push((packet_id, filter));
    }

    /// Takes what the broker has sent, and says what is to be answered.
    pub(super) fn hear(&mut self, bytes: &[u8], around: &mut Surroundings<'_>, out: &mut Vec<u8>) {
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((packet, length)) =
            codec::decode(&unread[at..], VERSION, u32::MAX).expect("a broker writes what can be read")
        {
            at += length;
            self.hear_packet(&packet, around, out);
        }
        unread.drain(..at);
        self.unread = unread;
    }

    fn hear_packet(&mut self, packet: &Packet<'_>, around: &mut Surroundings<'_>, out: &mut Vec<u8>) {
        match packet {
            Packet::ConnAck(connack) => self.connected(connack.session_present, around, out),
            Packet::Publish(publish) => self.receive(publish, around.account, out),
            Packet::PubRel(ack) => {
                self.unreleased.remove(&ack.packet_id);
                put(out, &Packet::PubComp(Ack::success(ack.packet_id)));
            }
            Packet::PubAck(ack) => {
                let flight = self.in_flight.remove(self.flight(ack.packet_id)).unwrap();
                self.answered(flight.number, ack, around.account);
            }
            Packet::PubRec(ack) => {
                let place = self.flight(ack.packet_id);
                let flight = &mut self.in_flight[place];
                flight.is_released = true;
                let number = flight.number;
                self.answered(number, ack, around.account);
                if ack.reason.is_error() {
                    self.in_flight.remove(place);
                } else {
                    put(out, &Packet::PubRel(Ack::success(ack.packet_id)));
                }
            }
            Packet::PubComp(ack) => drop(self.in_flight.remove(self.flight(ack.packet_id))),
            Packet::SubAck(suback) => {
                let place = self.asked.iter().position(|(id, _)| *id == suback.packet_id).expect("a SUBACK answers");
                let (_, filter) = self.asked.remove(place);
                assert!(suback.reasons.iter().all(|reason| !reason.is_error()));
                around.account.subscribed(self.number, &filter, around.all_is_well.then_some(around.now));
            }
            Packet::UnsubAck(unsuback) => self.declined.retain(|(id, _)| *id != unsuback.packet_id),
            Packet::Disconnect(_) => {}
            other => panic!("{} is told {other:?}", self.name()),
        }
    }

    fn flight(&self, id: PacketId) -> usize {
        let found = self.in_flight.iter().position(|flight| flight.id == id);
        found.unwrap_or_else(|| panic!("{}: {id} is answered, and was not sent: {:?}", self.name(), self.in_flight))
    }

    fn answered(&self, number: usize, ack: &Ack<'_>, account: &mut Account) {
        let message = &mut account.messages[number];
        if ack.reason.is_error() {
            message.is_refused = true;
        } else {
            message.is_taken = true;
        }
    }

    fn connected(&mut self, is_present: bool, around: &mut Surroundings<'_>, out: &mut Vec<u8>) {
        self.is_up = true;
        around.account.connects(self.number, around.now);
        if self.has_session && !is_present {
            assert!(around.may_forget, "the session of {} is lost", self.name());
            self.forget(around.account);
            self.is_forked |= around.is_torn;
            around.account.begins_anew(self.number);
        }
        // Which of its sessions it is nobody knows: it says everything again, and what it has in flight may be taken for something else.
        let was_forked = self.is_forked;
        self.is_forked &= around.is_torn;
        if was_forked {
            self.in_flight.iter().for_each(|flight| around.account.messages[flight.number].is_orphan = true);
            around.account.begins_anew(self.number);
        }
        assert!(!(self.is_passing && is_present), "{} asked for a new session", self.name());
        self.has_session = true;
        if is_present {
            for (_, filter) in std::mem::take(&mut self.declined) {
                self.put_unsubscribe(filter, out);
            }
        }
        let asked = std::mem::take(&mut self.asked);
        if was_forked || !is_present {
            for (filter, qos) in self.wishes.clone() {
                around.account.subscribes(self.number, &filter, qos);
                self.put_subscribe(&filter, qos, out);
            }
        } else {
            for (_, filter) in asked {
                if let Some(&qos) = self.wishes.get(&filter) {
                    self.put_subscribe(&filter, qos, out);
                }
            }
        }
        for flight in &self.in_flight {
            if flight.is_released {
                put(out, &Packet::PubRel(Ack::success(flight.id)));
            } else {
                let message = &mut around.account.messages[flight.number];
                message.is_resent = true;
                put_publish(out, flight.number, message, Some(flight.id), true);
            }
        }
    }

    fn receive(&mut self, publish: &Publish<'_>, account: &mut Account, out: &mut Vec<u8>) {
        let digits = std::str::from_utf8(&publish.payload[..NUMBER_BYTES]).unwrap();
        let number: usize = digits.parse().unwrap();
        let message = &account.messages[number];
        assert_eq!((publish.topic, publish.payload.len()), (topic_name(message.topic).as_str(), message.bytes));
        match publish.packet_id {
            Some(id) if publish.qos == QoS::ExactlyOnce => {
                if self.unreleased.insert(id) {
                    account.receives(self.number, number, publish.qos, publish.dup);
                }
                put(out, &Packet::PubRec(Ack::success(id)));
            }
            id => {
                account.receives(self.number, number, publish.qos, publish.dup);
                if let Some(id) = id {
                    put(out, &Packet::PubAck(Ack::success(id)));
                }
            }
        }
    }
}

fn put_publish(out: &mut Vec<u8>, number: usize, message: &Message, packet_id: Option<PacketId>, dup: bool) {
    let (topic, payload, qos) = (topic_name(message.topic), message.payload(number), message.qos);
    let properties = PublishProperties::default();
    put(out, &Packet::Publish(Publish { dup, qos, retain: false, topic: &topic, packet_id, properties, payload: &payload }));
}

pub(super) fn put(out: &mut Vec<u8>, packet: &Packet<'_>) {
    codec::encode(out, VERSION, packet).unwrap();
}

//! A client that says what it is told to say and looks closely at the answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::wire::*;

/// Nothing that is awaited takes this long; it only ends a test that has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// PINGREQs after which the broker has said what it had to: what an acknowledgement before the first sets free may come behind its
/// PINGRESP, but not behind that of the next.
const ROUNDS: usize = 2;

/// What a CONNECT says.
#[derive(Clone, Debug)]
pub struct Connect {
    pub version: u8,
    pub id: String,
    pub clean: bool,
    pub keep_alive: u16,
    pub properties: Vec<Property>,
    pub will: Option<Will>,
    pub user_name: Option<String>,
    pub password: Option<Vec<u8>>,
}

#[derive(Clone, Debug, Default)]
pub struct Will {
    pub topic: String,
    pub payload: String,
    pub qos: u8,
    pub retain: bool,
    pub properties: Vec<Property>,
}

impl Will {
    pub fn new(topic: &str, payload: &str) -> Self {
        Self { topic: topic.to_owned(), payload: payload.to_owned(), ..Self::default() }
    }
}

impl Connect {
    /// A clean session under a name of its own.
    pub fn new(version: u8) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("client-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Self { version, id, clean: true, keep_alive: 0, properties: Vec::new(), will: None, user_name: None, password: None }
    }

    pub fn id(self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self }
    }

    /// Goes on with a session and keeps it for `seconds` (3.1.1: for ever).
    pub fn resume(self, seconds: u32) -> Self {
        let session = Self { clean: false, ..self };
        if session.version == 5 { session.with(four(property::SESSION_EXPIRY, seconds)) } else { session }
    }

    pub fn keep_alive(self, seconds: u16) -> Self {
        Self { keep_alive: seconds, ..self }
    }

    pub fn with(mut self, property: Property) -> Self {
        self.properties.push(property);
        self
    }

    pub fn will(self, will: Will) -> Self {
        Self { will: Some(will), ..self }
    }

    /// With a user name and a password.
    pub fn login(self, user_name: &str, password: &str) -> Self {
        Self { user_name: Some(user_name.to_owned()), password: Some(password.into()), ..self }
    }

    pub fn encode(&self) -> Vec<u8> {
        let login_flags = u8::from(self.user_name.is_some()) << 7 | u8::from(self.password.is_some()) << 6;
        let name = if self.version == 3 { "MQIsdp" } else { "MQTT" };
        let will_flags = self.will.as_ref().map_or(0, |will| 4 | will.qos << 3 | u8::from(will.retain) << 5);
        let mut body = [string(name), vec![self.version, u8::from(self.clean) << 1 | will_flags | login_flags]].concat();
        body.extend(self.keep_alive.to_be_bytes());
        body.extend(properties_of(self.version, &self.properties));
        body.extend(string(&self.id));
        if let Some(will) = &self.will {
            body.extend(properties_of(self.version, &will.properties));
            body.extend([string(&will.topic), string(&will.payload)].concat());
        }
        body.extend(self.user_name.iter().flat_map(string));
        body.extend(self.password.iter().flat_map(string));
        packet(kind::CONNECT, 0, &body)
    }
}

/// What a PUBLISH says.
#[derive(Clone, Debug, Default)]
pub struct Publish<'a> {
    pub topic: &'a str,
    pub payload: &'a str,
    pub qos: u8,
    pub retain: bool,
    pub dup: bool,
    pub id: u16,
    pub properties: &'a [Property],
}

impl Publish<'_> {
    pub fn encode(&self, version: u8) -> Vec<u8> {
        let mut body = string(self.topic);
        if self.qos > 0 {
            body.extend(self.id.to_be_bytes());
        }
        body.extend(properties_of(version, self.properties));
        body.extend(self.payload.as_bytes());
        packet(kind::PUBLISH, u8::from(self.dup) << 3 | self.qos << 1 | u8::from(self.retain), &body)
    }
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// What came before the end.
    pub packets: Vec<Received>,
    /// Of a DISCONNECT or CONNACK before the end.
    pub reason: Option<u8>,
}

pub struct Client {
    pub version: u8,
    stream: TcpStream,
    input: Vec<u8>,
    /// Its last packet identifier.
    last_id: u16,
    /// The broker's CONNACK.
    pub connack: Received,
}

impl Client {
    /// A connection on which nothing has been said.
    pub fn open(broker: &Broker, version: u8) -> Self {
        Self::open_at(broker.address(), version)
    }

    /// The same at an address.
    pub fn open_at(address: SocketAddr, version: u8) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { version, stream, input: Vec::new(), last_id: 0, connack: Received::default() }
    }

    /// Connects with success.
    pub fn connect(broker: &Broker, connect: &Connect) -> Self {
        Self::connect_at(broker.address(), connect)
    }

    /// The same at an address.
    pub fn connect_at(address: SocketAddr, connect: &Connect) -> Self {
        let mut client = Self::open_at(address, connect.version);
        client.send(&connect.encode());
        client.connack = client.expect(kind::CONNACK);
        assert_eq!(client.connack.reason, 0, "{:?}", client.connack);
        client
    }

    /// A clean session.
    pub fn new(broker: &Broker, version: u8) -> Self {
        Self::connect(broker, &Connect::new(version))
    }

    /// A clean session with one subscription.
    pub fn subscribed(broker: &Broker, version: u8, filter: &str, options: u8) -> Self {
        let mut client = Self::new(broker, version);
        client.subscribe(&[(filter, options)]);
        client
    }

    /// Writes `bytes`. That the broker has closed already is for the next read to say.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Writes `bytes`. Says whether the broker took them all, as long as it took any within `time`.
    pub fn send_within(&mut self, bytes: &[u8], time: Duration) -> bool {
        self.stream.set_write_timeout(Some(time)).unwrap();
        let sent = self.stream.write_all(bytes);
        self.stream.set_write_timeout(None).unwrap();
        sent.is_ok()
    }

    /// The next packet.
    pub fn receive(&mut self) -> Received {
        self.receive_within(PATIENCE).expect("the broker sends nothing").expect("the broker has closed the connection")
    }

    /// `None`: nothing came within `time`; `Some(None)`: the end came.
    pub fn receive_within(&mut self, time: Duration) -> Option<Option<Received>> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(received) = Received::take(&mut self.input, self.version) {
                return Some(Some(received));
            }
            let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            self.stream.set_read_timeout(Some(left)).unwrap();
            let mut chunk = [0; 64 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Some(None),
                Ok(count) => self.input.extend(&chunk[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Some(None),
            }
        }
    }

    /// The next packet, which must be of this type.
    pub fn expect(&mut self, kind: u8) -> Received {
        let received = self.receive();
        assert_eq!(received.kind, kind, "{received:?}");
        received
    }

    /// The next packet, which must be a PUBLISH with this payload; it is acknowledged.
    pub fn expect_message(&mut self, payload: &str) -> Received {
        let message = self.expect(kind::PUBLISH);
        assert_eq!(String::from_utf8_lossy(&message.payload), payload, "{message:?}");
        self.acknowledge(&message);
        message
    }

    /// Does what a receiver of `message` does.
    pub fn acknowledge(&mut self, message: &Received) {
        match message.qos() {
            1 => self.send(&ack(kind::PUBACK, message.id)),
            2 => {
                self.send(&ack(kind::PUBREC, message.id));
                assert_eq!(self.expect(kind::PUBREL).id, message.id);
                self.send(&ack(kind::PUBCOMP, message.id));
            }
            _ => {}
        }
    }

    /// Asserts that the broker has nothing to say by now.
    pub fn expect_nothing(&mut self) {
        for _ in 0..ROUNDS {
            self.send(&packet(kind::PINGREQ, 0, &[]));
            self.expect(kind::PINGRESP);
        }
    }

    /// Takes `count` messages of any QoS through to the end of their exchanges, which may overlap; their payloads in order of arrival.
    pub fn take_messages(&mut self, count: usize) -> Vec<String> {
        let (mut payloads, mut open) = (Vec::new(), 0);
        while payloads.len() < count || open > 0 {
            let received = self.receive();
            match (received.kind, received.qos()) {
                (kind::PUBLISH, qos) => {
                    payloads.push(received.text().to_owned());
                    match qos {
                        0 => {}
                        1 => self.send(&ack(kind::PUBACK, received.id)),
                        _ => {
                            open += 1;
                            self.send(&ack(kind::PUBREC, received.id));
                        }
                    }
                }
                (kind::PUBREL, _) => {
                    open -= 1;
                    self.send(&ack(kind::PUBCOMP, received.id));
                }
                _ => panic!("{received:?}"),
            }
        }
        payloads
    }

    /// The messages that the broker has to send by now, in their order, acknowledged at QoS 1.
    pub fn messages(&mut self) -> Vec<Received> {
        let mut messages = Vec::new();
        for _ in 0..ROUNDS {
            self.send(&packet(kind::PINGREQ, 0, &[]));
            loop {
                let received = self.receive();
                match received.kind {
                    kind::PINGRESP => break,
                    kind::PUBLISH => {
                        if received.qos() == 1 {
                            self.send(&ack(kind::PUBACK, received.id));
                        }
                        messages.push(received);
                    }
                    _ => panic!("{received:?}"),
                }
            }
        }
        messages
    }

    /// The payloads of [`Client::messages`].
    pub fn payloads(&mut self) -> Vec<String> {
        self.messages().iter().map(|message| message.text().to_owned()).collect()
    }

    /// Reads until the broker ends the connection, which it must.
    pub fn expect_end(&mut self) -> End {
        let mut end = End { packets: Vec::new(), reason: None };
        loop {
            match self.receive_within(PATIENCE) {
                Some(Some(received)) => {
                    if matches!(received.kind, kind::DISCONNECT | kind::CONNACK) {
                        end.reason = Some(received.reason);
                    }
                    end.packets.push(received);
                }
                Some(None) => return end,
                None => panic!("the broker keeps the connection; it sent {:?}", end.packets),
            }
        }
    }

    /// The broker must end the connection and tell an MQTT 5 client one of `reasons`; a 3.1.1 client is told nothing.
    pub fn expect_disconnect(&mut self, reasons: &[u8]) {
        let end = self.expect_end();
        if self.version == 5 {
            let reason = end.reason.expect("an MQTT 5 client is told why");
            let last = end.packets.last().unwrap();
            assert_eq!(last.kind, kind::DISCONNECT, "nothing comes behind a DISCONNECT [MQTT-3.14.4-1]");
            assert!(last.all(property::SESSION_EXPIRY).is_empty(), "[MQTT-3.14.2-2]: {last:?}");
            assert!(reasons.contains(&reason), "reason {reason:#x}, expected one of {reasons:#x?}");
        } else {
            assert_eq!(end.packets, [], "3.1.1 closes without a word");
        }
    }

    /// Ends the connection as a client that has nothing more to say.
    pub fn disconnect(mut self) {
        self.send(&packet(kind::DISCONNECT, 0, &[]));
        self.expect_end();
    }

    /// DISCONNECT with a reason and properties (MQTT 5).
    pub fn disconnect_with(mut self, reason: u8, list: &[Property]) {
        self.send(&packet(kind::DISCONNECT, 0, &[vec![reason], properties(list)].concat()));
        self.expect_end();
    }

    /// The network is gone, without a DISCONNECT; the broker has noticed when this returns.
    pub fn lose(mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
        while self.receive_within(PATIENCE).expect("the broker keeps a connection that is gone").is_some() {}
    }

    pub fn next_id(&mut self) -> u16 {
        self.last_id = self.last_id.checked_add(1).unwrap_or(1);
        self.last_id
    }

    /// Publishes and goes through the whole exchange of its QoS; the reason of the first answer.
    pub fn publish(&mut self, publish: Publish<'_>) -> u8 {
        let id = if publish.qos > 0 { self.next_id() } else { 0 };
        self.send(&Publish { id, ..publish }.encode(self.version));
        match publish.qos {
            0 => 0,
            1 => {
                let answer = self.expect(kind::PUBACK);
                assert_eq!(answer.id, id);
                answer.reason
            }
            _ => {
                let answer = self.expect(kind::PUBREC);
                assert_eq!(answer.id, id);
                if answer.reason < 0x80 {
                    self.send(&ack(kind::PUBREL, id));
                    let done = self.expect(kind::PUBCOMP);
                    assert_eq!((done.id, done.reason), (id, 0));
                }
                answer.reason
            }
        }
    }

    /// Publishes at QoS 1: when it returns, subscribers have been served.
    pub fn say(&mut self, topic: &str, payload: &str) {
        let reason = self.publish(Publish { topic, payload, qos: 1, ..Publish::default() });
        assert!(reason < 0x80, "refused: {reason:#x}");
    }

    /// Publishes at QoS 1 to a subscription of its own, and takes the message.
    pub fn say_to_itself(&mut self, topic: &str, payload: &str) {
        let id = self.next_id();
        self.send(&Publish { topic, payload, qos: 1, id, ..Publish::default() }.encode(self.version));
        let mut kinds: Vec<u8> = Vec::new();
        while kinds.len() < 2 {
            let received = self.receive();
            kinds.push(received.kind);
            if received.kind == kind::PUBLISH {
                assert_eq!(received.text(), payload);
                self.acknowledge(&received);
            }
        }
        kinds.sort_unstable();
        assert_eq!(kinds, [kind::PUBLISH, kind::PUBACK]);
    }

    /// Publishes a retained message at QoS 1.
    pub fn retain(&mut self, topic: &str, payload: &str) {
        let reason = self.publish(Publish { topic, payload, qos: 1, retain: true, ..Publish::default() });
        assert!(reason < 0x80, "refused: {reason:#x}");
    }

    pub fn encode_subscribe(&mut self, filters: &[(&str, u8)], list: &[Property]) -> (u16, Vec<u8>) {
        let id = self.next_id();
        let mut body = [id.to_be_bytes().to_vec(), properties_of(self.version, list)].concat();
        for (filter, options) in filters {
            body.extend(string(filter));
            body.push(*options);
        }
        (id, packet(kind::SUBSCRIBE, 2, &body))
    }

    /// Subscribes; every filter must be granted.
    pub fn subscribe(&mut self, filters: &[(&str, u8)]) {
        self.subscribe_with(filters, &[]);
    }

    /// See [`Client::subscribe`].
    pub fn subscribe_with(&mut self, filters: &[(&str, u8)], list: &[Property]) {
        let granted: Vec<_> = filters.iter().map(|(_, options)| options & 3).collect();
        assert_eq!(self.try_subscribe(filters, list), granted);
    }

    /// Subscribes; the codes of the answer.
    pub fn try_subscribe(&mut self, filters: &[(&str, u8)], list: &[Property]) -> Vec<u8> {
        let (id, bytes) = self.encode_subscribe(filters, list);
        self.send(&bytes);
        let answer = self.expect(kind::SUBACK);
        assert_eq!(answer.id, id, "[MQTT-3.8.4-2]");
        assert_eq!(answer.codes.len(), filters.len(), "[MQTT-3.8.4-6]");
        answer.codes
    }

    /// Unsubscribes; the codes of the answer.
    pub fn unsubscribe(&mut self, filters: &[&str]) -> Vec<u8> {
        let id = self.next_id();
        let names = filters.iter().flat_map(string);
        let body: Vec<u8> = id.to_be_bytes().into_iter().chain(properties_of(self.version, &[])).chain(names).collect();
        self.send(&packet(kind::UNSUBSCRIBE, 2, &body));
        let answer = self.expect(kind::UNSUBACK);
        assert_eq!(answer.id, id, "[MQTT-3.10.4-4]");
        answer.codes
    }
}

//! A small broker of one thread a client, with good manners or bad ones. Its packets are read by `mqttbytes` and written by
//! hand, so that it shares nothing with the program under test.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use bytes::BytesMut;
use mqttbytes::{v4, v5};

/// How a broker behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manners {
    Honest,
    /// Accepts connections and says nothing.
    Mute,
    /// Closes every connection at once.
    HangUp,
    /// Answers CONNECT with bytes that are not MQTT.
    Gibberish,
    /// Refuses every client as not authorised.
    Refuse,
    RefuseSubscriptions,
    GrantQosZero,
    DeliverAtQosZero,
    NeverAcknowledge,
    /// Acknowledges packet ids nobody has used.
    AcknowledgeOthers,
    /// Closes a publisher's connection after so many messages.
    HangUpAfter(u64),
    /// Reads nothing after CONNECT.
    Deaf,
    /// Acknowledges messages and forwards none.
    Swallow,
    LoseEvery(u64),
    RepeatEvery(u64),
    /// Forwards every so manieth message after the next.
    DelayEvery(u64),
    /// Changes a byte of every so manieth message.
    MangleEvery(u64),
    /// Allows so many messages under way and 4,096 bytes a packet; acknowledges only when they are, and ends the connection of
    /// who sends more.
    ReceiveMaximum(u16),
}

/// One address of a fake broker; its threads end with the test.
pub(crate) struct FakeBroker {
    address: String,
    hub: Arc<Hub>,
    clients: Arc<Mutex<usize>>,
}

impl FakeBroker {
    pub(crate) fn start(manners: Manners) -> Self {
        Self::listen(&Arc::new(Hub { manners, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Two addresses of one honest broker, as a mesh would look from outside.
    pub(crate) fn start_two() -> (Self, Self) {
        let hub = Arc::new(Hub { manners: Manners::Honest, state: Mutex::default(), changed: Condvar::new() });
        (Self::listen(&hub), Self::listen(&hub))
    }

    fn listen(hub: &Arc<Hub>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let broker = Self { address: listener.local_addr().unwrap().to_string(), hub: hub.clone(), clients: Arc::default() };
        let (hub, clients) = (hub.clone(), broker.clients.clone());
        thread(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                *clients.lock().unwrap() += 1;
                let client = Client { hub: hub.clone(), stream, version: 4, published: 0, held: None, unacknowledged: Vec::new() };
                thread(|| client.serve());
            }
        });
        broker
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// Connections so far.
    pub(crate) fn clients(&self) -> usize {
        *self.clients.lock().unwrap()
    }

    /// Connections so far whose sessions were to be kept.
    pub(crate) fn kept(&self) -> usize {
        self.hub.state.lock().unwrap().kept
    }

    pub(crate) fn await_subscriptions(&self, count: usize) {
        self.hub.wait(|state| state.subscriptions.len() >= count);
    }

    pub(crate) fn await_messages(&self, count: u64) {
        self.hub.wait(|state| state.messages >= count);
    }

    /// Publishes a message of the broker's own.
    pub(crate) fn publish(&self, topic: &str, payload: &[u8]) {
        self.hub.forward(&Message { topic: topic.to_owned(), qos: 0, payload: payload.to_vec() });
    }
}

#[expect(clippy::disallowed_methods, reason = "a broker of a test's own needs threads of its own")]
fn thread(body: impl FnOnce() + Send + 'static) {
    std::thread::spawn(body);
}

/// What the clients of a fake broker share.
struct Hub {
    manners: Manners,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    subscriptions: Vec<Subscription>,
    messages: u64,
    /// Connections whose sessions were to be kept.
    kept: usize,
}

struct Subscription {
    filter: String,
    qos: u8,
    version: u8,
    stream: TcpStream,
    next_id: u16,
}

#[derive(Clone)]
struct Message {
    topic: String,
    qos: u8,
    payload: Vec<u8>,
}

impl Hub {
    fn wait(&self, until: impl Fn(&State) -> bool) {
        let guard = self.state.lock().unwrap();
        drop(self.changed.wait_while(guard, |state| !until(state)).unwrap());
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn forward(&self, message: &Message) {
        self.change(|state| {
            state.messages += 1;
            for subscription in &mut state.subscriptions {
                let matches = match subscription.filter.strip_suffix(['#', '+']) {
                    Some(prefix) => message.topic.starts_with(prefix),
                    None => message.topic == subscription.filter,
                };
                if matches {
                    // A subscriber that has gone is no concern of the publisher.
                    let _ = subscription.deliver(message, self.manners);
                }
            }
        });
    }
}

impl Subscription {
    fn deliver(&mut self, message: &Message, manners: Manners) -> io::Result<()> {
        let qos = if manners == Manners::DeliverAtQosZero { 0 } else { message.qos.min(self.qos) };
        let mut body = (message.topic.len() as u16).to_be_bytes().to_vec();
        body.extend_from_slice(message.topic.as_bytes());
        if qos > 0 {
            self.next_id = self.next_id % u16::MAX + 1;
            body.extend_from_slice(&self.next_id.to_be_bytes());
        }
        if self.version == 5 {
            body.push(0);
        }
        body.extend_from_slice(&message.payload);
        self.stream.write_all(&packet(0x30 | qos << 1, &body))
    }
}

/// A packet of these contents.
fn packet(first_byte: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![first_byte];
    let mut left = body.len();
    loop {
        packet.push((left % 128) as u8 | if left > 127 { 0x80 } else { 0 });
        left /= 128;
        if left == 0 {
            break;
        }
    }
    packet.extend_from_slice(body);
    packet
}

/// One client of the broker.
struct Client {
    hub: Arc<Hub>,
    stream: TcpStream,
    version: u8,
    /// Messages it has published.
    published: u64,
    /// A message that is forwarded after the next.
    held: Option<Message>,
    /// Packet ids whose acknowledgement is kept back.
    unacknowledged: Vec<u16>,
}

impl Client {
    fn serve(mut self) {
        // An error is a client that has gone, or one we are to hang up on.
        let _ = self.converse();
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn converse(&mut self) -> io::Result<()> {
        match self.hub.manners {
            Manners::HangUp => return Ok(()),
            Manners::Mute => return self.stream.read_to_end(&mut Vec::new()).map(drop),
            _ => {}
        }
        let connect = self.read_packet()?;
        self.version = connect[8];
        self.hub.change(|state| state.kept += usize::from(connect[9] & 2 == 0));
        match self.hub.manners {
            Manners::Gibberish => return self.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n"),
            Manners::Refuse => {
                self.stream.write_all(if self.version == 5 { b"\x20\x03\0\x87\0" } else { b"\x20\x02\0\x05" })?;
                return Ok(());
            }
            Manners::ReceiveMaximum(maximum) if self.version == 5 => {
                let [high, low] = maximum.to_be_bytes();
                self.stream.write_all(&packet(0x20, &[0, 0, 8, 0x21, high, low, 0x27, 0, 0, 0x10, 0]))?;
            }
            _ => self.stream.write_all(if self.version == 5 { b"\x20\x03\0\0\0" } else { b"\x20\x02\0\0" })?,
        }
        if self.hub.manners == Manners::Deaf {
            self.hub.wait(|_| false);
        }
        loop {
            let packet = self.read_packet()?;
            match packet[0] >> 4 {
                3 => self.published(&packet)?,
                5 => self.stream.write_all(&[0x62, 2, packet[2], packet[3]])?,
                6 => self.stream.write_all(&[0x70, 2, packet[2], packet[3]])?,
                8 => self.subscribe(&packet)?,
                12 => self.stream.write_all(&[0xd0, 0])?,
                14 => return Ok(()),
                _ => {}
            }
        }
    }

    fn read_packet(&mut self) -> io::Result<Vec<u8>> {
        let mut packet = vec![0; 2];
        self.stream.read_exact(&mut packet)?;
        let (mut length, mut shift) = (usize::from(packet[1] & 0x7f), 7);
        while packet.last().is_some_and(|last| last & 0x80 != 0) {
            packet.push(0);
            let last = packet.len() - 1;
            self.stream.read_exact(&mut packet[last..])?;
            length |= usize::from(packet[last] & 0x7f) << shift;
            shift += 7;
        }
        let head = packet.len();
        packet.resize(head + length, 0);
        self.stream.read_exact(&mut packet[head..])?;
        Ok(packet)
    }

    fn subscribe(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut bytes = BytesMut::from(packet);
        let (filter, qos) = if self.version == 5 {
            let Ok(v5::Packet::Subscribe(subscribe)) = v5::read(&mut bytes, usize::MAX) else { panic!("{packet:?}") };
            (subscribe.filters[0].path.clone(), subscribe.filters[0].qos as u8)
        } else {
            let Ok(v4::Packet::Subscribe(subscribe)) = v4::read(&mut bytes, usize::MAX) else { panic!("{packet:?}") };
            (subscribe.filters[0].path.clone(), subscribe.filters[0].qos as u8)
        };
        let granted = match self.hub.manners {
            Manners::RefuseSubscriptions => 0x80,
            Manners::GrantQosZero => 0,
            _ => qos,
        };
        let (id, properties) = (&packet[2..4], if self.version == 5 { &[0][..] } else { &[] });
        let answer = self::packet(0x90, &[id, properties, &[granted]].concat());
        let subscription = Subscription { filter, qos, version: self.version, stream: self.stream.try_clone()?, next_id: 0 };
        let mut written = Ok(());
        self.hub.change(|state| {
            written = self.stream.write_all(&answer);
            state.subscriptions.push(subscription);
        });
        written
    }

    fn published(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut bytes = BytesMut::from(packet);
        let (topic, qos, id, payload) = if self.version == 5 {
            let Ok(v5::Packet::Publish(publish)) = v5::read(&mut bytes, usize::MAX) else { panic!("{packet:?}") };
            (publish.topic, publish.qos as u8, publish.pkid, publish.payload)
        } else {
            let Ok(v4::Packet::Publish(publish)) = v4::read(&mut bytes, usize::MAX) else { panic!("{packet:?}") };
            (publish.topic, publish.qos as u8, publish.pkid, publish.payload)
        };
        self.published += 1;
        self.forward(Message { topic, qos, payload: payload.to_vec() });
        if qos > 0 { self.acknowledge(if qos == 1 { 0x40 } else { 0x50 }, id) } else { Ok(()) }
    }

    fn forward(&mut self, message: Message) {
        let nth = |every: u64| self.published.is_multiple_of(every);
        match self.hub.manners {
            Manners::Swallow => {}
            Manners::LoseEvery(every) if nth(every) => {}
            Manners::RepeatEvery(every) if nth(every) => {
                self.hub.forward(&message);
                self.hub.forward(&message);
            }
            Manners::DelayEvery(every) if nth(every) => self.held = Some(message),
            Manners::MangleEvery(every) if nth(every) => {
                let mut message = message;
                message.payload.iter_mut().last().into_iter().for_each(|byte| *byte ^= 1);
                self.hub.forward(&message);
            }
            _ => {
                self.hub.forward(&message);
                self.held.take().into_iter().for_each(|held| self.hub.forward(&held));
            }
        }
    }

    fn acknowledge(&mut self, first_byte: u8, id: u16) -> io::Result<()> {
        let ids = match self.hub.manners {
            Manners::NeverAcknowledge => Vec::new(),
            Manners::AcknowledgeOthers => vec![60_001],
            Manners::HangUpAfter(messages) if self.published >= messages => return Err(io::ErrorKind::ConnectionAborted.into()),
            Manners::ReceiveMaximum(maximum) => {
                self.unacknowledged.push(id);
                if self.unacknowledged.len() < usize::from(maximum) {
                    return Ok(());
                }
                if self.more_waits()? {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                std::mem::take(&mut self.unacknowledged)
            }
            _ => vec![id],
        };
        ids.into_iter().try_for_each(|id| {
            let [high, low] = id.to_be_bytes();
            self.stream.write_all(&[first_byte, 2, high, low])
        })
    }

    /// Whether the client has sent more than was read.
    fn more_waits(&self) -> io::Result<bool> {
        self.stream.set_nonblocking(true)?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        match peeked {
            Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock => Ok(false),
            peeked => peeked.map(|bytes| bytes > 0),
        }
    }
}

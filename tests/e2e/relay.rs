//! A bad path between two brokers: a relay of UDP datagrams that delays, loses, cuts and throttles them, and changes its address as a NAT
//! does. Whoever shall be reached over it is dialled at the relay's address. Needs no rights and nothing that is installed.
//!
//! What is lost is drawn from a seed, which is printed. One dialler a relay. QUIC connections are told apart by their ids (RFC 8999) on the way
//! out: the dialler keeps to those of the handshake while no address changes; who is dialled goes over to others at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Connection ids as our QUIC makes them, bytes: a packet after the handshake does not say how long its id is.
const ID_BYTES: usize = 8;
/// How often a reader looks whether it shall end.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Datagrams on their way; what comes on top is lost, as in any path.
const WAITING_MAX: usize = 20_000;

/// Of the two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From who dials to who is dialled.
    Out,
    /// Back.
    Back,
}

pub const BOTH: [Way; 2] = [Way::Out, Way::Back];

/// What becomes of datagrams in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    pub delay: Duration,
    /// On top of the delay, evenly spread: what exceeds the distance of two datagrams reorders them.
    pub jitter: Duration,
    /// Share of datagrams lost.
    pub loss: f64,
    /// All are lost.
    pub is_cut: bool,
    /// Larger ones are lost, bytes of UDP payload.
    pub size_max: usize,
    /// Bytes a second.
    pub rate: Option<u32>,
    /// What waits for its turn where there is a rate; what comes on top is lost.
    pub queue_bytes: u32,
    /// They wait until this is over.
    pub is_held: bool,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            is_cut: false,
            size_max: usize::MAX,
            rate: None,
            queue_bytes: 64 * 1024,
            is_held: false,
        }
    }
}

/// What went one way so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub passed: u64,
    pub passed_bytes: u64,
    pub lost: u64,
    /// The largest that passed, bytes.
    pub largest: usize,
}

/// A running relay. Ends when dropped.
pub struct Relay {
    address: SocketAddr,
    path: Arc<Path>,
    threads: Vec<JoinHandle<()>>,
}

struct Path {
    front: UdpSocket,
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

/// When it goes out, its number, where, and what it is.
type Waiting = (Instant, u64, Way, Vec<u8>);

struct State {
    conditions: [Conditions; 2],
    counts: [Count; 2],
    /// When the line is free again.
    free_at: [Instant; 2],
    dialler: Option<SocketAddr>,
    /// As whom the dialler is seen by who is dialled.
    back: Arc<UdpSocket>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// Of either end, and of which connection.
    ids: BTreeMap<Vec<u8>, usize>,
    /// Connections that were dialled so far.
    connections: usize,
    /// Of which every packet from the dialler is lost, whatever the conditions.
    cut_connection: Option<usize>,
    admitted: u64,
    random: u64,
    is_over: bool,
}

impl Relay {
    /// A clean path to `target`.
    pub fn start(target: SocketAddr) -> Self {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        println!("relay to {target}: seed {seed}");
        let front = socket();
        let address = front.local_addr().unwrap();
        let now = Instant::now();
        let state = State {
            conditions: [Conditions::default(); 2],
            counts: [Count::default(); 2],
            free_at: [now; 2],
            dialler: None,
            back: Arc::new(socket()),
            waiting: BinaryHeap::new(),
            ids: BTreeMap::new(),
            connections: 0,
            cut_connection: None,
            admitted: 0,
            random: seed | 1,
            is_over: false,
        };
        let path = Arc::new(Path { front, target, state: Mutex::new(state), changed: Condvar::new() });
        let mut relay = Self { address, path, threads: Vec::new() };
        relay.spawn(Path::read_front);
        relay.spawn(Path::send);
        relay.spawn_back_reader();
        relay
    }

    /// Where the broker behind it is to be dialled.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the conditions of `ways` from now on.
    pub fn set(&self, ways: &[Way], change: impl Fn(&mut Conditions)) {
        let mut state = self.path.lock();
        ways.iter().for_each(|way| change(&mut state.conditions[*way as usize]));
        self.path.changed.notify_all();
    }

    /// How many connections were dialled over it so far.
    pub fn connections(&self) -> usize {
        self.path.lock().connections
    }

    /// From now on nothing passes of what the dialler sends on one connection, by the order in which they were dialled, from 0; all else does.
    pub fn cut_connection(&self, number: usize) {
        self.path.lock().cut_connection = Some(number);
    }

    pub fn count(&self, way: Way) -> Count {
        self.path.lock().counts[way as usize]
    }

    /// As a NAT that has forgotten: from now on the dialler comes from another port, and what is sent to the old one is lost.
    pub fn rebind(&mut self) {
        self.path.lock().back = Arc::new(socket());
        self.spawn_back_reader();
    }

    fn spawn(&mut self, body: impl FnOnce(&Path) + Send + 'static) {
        let path = Arc::clone(&self.path);
        self.threads.push(thread::spawn(move || body(&path)));
    }

    fn spawn_back_reader(&mut self) {
        let back = Arc::clone(&self.path.lock().back);
        self.spawn(move |path| path.read_back(&back));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.path.lock().is_over = true;
        self.path.changed.notify_all();
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        println!("relay to {}: {:?}", self.path.target, self.path.lock().counts);
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(LOOK_INTERVAL)).unwrap();
    socket
}

impl Path {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn read_front(&self) {
        self.read(&self.front, Way::Out, |state, from| {
            state.dialler = Some(from);
            true
        });
    }

    fn read_back(&self, back: &Arc<UdpSocket>) {
        self.read(back, Way::Back, |state, from| from == self.target && Arc::ptr_eq(&state.back, back));
    }

    fn read(&self, socket: &UdpSocket, way: Way, expects: impl Fn(&mut State, SocketAddr) -> bool) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let received = socket.recv_from(&mut buffer);
            let mut state = self.lock();
            if state.is_over {
                return;
            }
            match received {
                Ok((length, from)) if expects(&mut state, from) => {
                    state.admit(way, &buffer[..length], Instant::now());
                    self.changed.notify_all();
                }
                Err(error)
                    if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionRefused) =>
                {
                    panic!("{error}")
                }
                _ => {}
            }
        }
    }

    fn send(&self) {
        let mut state = self.lock();
        while !state.is_over {
            let now = Instant::now();
            let due = state.waiting.peek().map(|Reverse((due, ..))| *due);
            state = match due {
                Some(due) if due <= now => {
                    state.forward_one(&self.front, self.target, now);
                    state
                }
                Some(due) => self.changed.wait_timeout(state, due - now).unwrap().0,
                None => self.changed.wait(state).unwrap(),
            };
        }
    }
}

impl State {
    /// A datagram has come in: it is lost, or gets a time at which it goes out.
    fn admit(&mut self, way: Way, datagram: &[u8], now: Instant) {
        let conditions = self.conditions[way as usize];
        let length = datagram.len();
        let connection = self.connection(way, datagram);
        let is_lost = conditions.is_cut
            || (way == Way::Out && connection.is_some() && connection == self.cut_connection)
            || length > conditions.size_max
            || self.random() < conditions.loss
            || self.waiting.len() >= WAITING_MAX
            || self.is_full(way, length, now);
        if is_lost {
            self.counts[way as usize].lost += 1;
            return;
        }
        let mut leaves = now;
        if let Some(rate) = conditions.rate {
            leaves = self.free_at[way as usize].max(now) + Duration::from_secs_f64(length as f64 / f64::from(rate));
            self.free_at[way as usize] = leaves;
        }
        let due = leaves + conditions.delay + conditions.jitter.mul_f64(self.random());
        self.admitted += 1;
        self.waiting.push(Reverse((due, self.admitted, way, datagram.to_vec())));
    }

    /// Which connection a datagram belongs to, as far as its first packet tells (RFC 8999 section 5).
    fn connection(&mut self, way: Way, datagram: &[u8]) -> Option<usize> {
        let (first, rest) = datagram.split_first()?;
        if first & 0x80 == 0 {
            return self.ids.get(rest.get(..ID_BYTES)?).copied();
        }
        let id_at = |at: usize| rest.get(at + 1..at + 1 + usize::from(*rest.get(at)?));
        let to = id_at(4)?;
        let from = id_at(5 + to.len())?;
        let known = self.ids.get(to).or_else(|| self.ids.get(from)).copied();
        let number = known.unwrap_or(self.connections);
        if known.is_none() {
            assert_eq!(way, Way::Out, "who is dialled begins nothing");
            self.connections += 1;
        }
        self.ids.insert(from.to_vec(), number);
        if way == Way::Out {
            // What the dialler makes up for the first packet is an id like any other.
            self.ids.insert(to.to_vec(), number);
        }
        Some(number)
    }

    fn is_full(&self, way: Way, length: usize, now: Instant) -> bool {
        let conditions = self.conditions[way as usize];
        let waits = self.free_at[way as usize].saturating_duration_since(now).as_secs_f64();
        conditions.rate.is_some_and(|rate| waits * f64::from(rate) + length as f64 > f64::from(conditions.queue_bytes))
    }

    fn forward_one(&mut self, front: &UdpSocket, target: SocketAddr, now: Instant) {
        let Some(Reverse((_, number, way, datagram))) = self.waiting.pop() else { return };
        if self.conditions[way as usize].is_held {
            self.waiting.push(Reverse((now + Duration::from_millis(1), number, way, datagram)));
            return;
        }
        let count = &mut self.counts[way as usize];
        count.passed += 1;
        count.passed_bytes += datagram.len() as u64;
        count.largest = count.largest.max(datagram.len());
        // That nobody is there is for the brokers to find out.
        let _ = match (way, self.dialler) {
            (Way::Out, _) => self.back.send_to(&datagram, target),
            (Way::Back, Some(dialler)) => front.send_to(&datagram, dialler),
            (Way::Back, None) => Ok(0),
        };
    }

    /// From 0 to 1.
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }
}

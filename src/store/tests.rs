//! Histories of changes made by chance, on a disk that may be full, be cut off, or rot: what is read back is what was safe.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::medium::{Medium, Output};
use super::*;
use crate::codec::{PacketId, QoS};
use crate::ids::{BrokerId, LaneId, LogId, OriginLane, Stamp};
use crate::session::{Entry, Head, LogHead, Logged, SessionExpiry, Stage, StoredMessage, SubscriberId, SubscriptionOptions, Will};

/// A disk in memory.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    files: BTreeMap<String, Vec<u8>>,
    /// How much of each is on the platter.
    synced: BTreeMap<String, usize>,
    /// Files of which the platter does not know yet that they are there, and that they are not there any more.
    created: BTreeSet<String>,
    removed: BTreeMap<String, Vec<u8>>,
    /// Bytes that it still takes.
    room: usize,
    syncs: bool,
    /// Files of which a sync has failed: what was not on the platter then never gets there, whatever is said later.
    torn: BTreeSet<String>,
}

impl Default for Inner {
    fn default() -> Self {
        let (files, synced, created, removed, torn) = Default::default();
        Self { files, synced, created, removed, room: usize::MAX, syncs: true, torn }
    }
}

struct InMemory(Disk, String);

impl Medium for Disk {
    fn create(&mut self, name: &str) -> io::Result<Box<dyn Output>> {
        let mut inner = self.0.lock();
        assert!(inner.files.insert(name.to_owned(), Vec::new()).is_none());
        inner.created.insert(name.to_owned());
        Ok(Box::new(InMemory(self.clone(), name.to_owned())))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let mut inner = self.0.lock();
        let mut bytes = inner.files.remove(name).ok_or(io::ErrorKind::NotFound)?;
        bytes.truncate(inner.synced.remove(name).unwrap_or(0));
        if !inner.created.remove(name) {
            inner.removed.insert(name.to_owned(), bytes);
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.0.lock();
        let file = inner.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        inner.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn sync_names(&mut self) -> io::Result<()> {
        let mut inner = self.0.lock();
        if !inner.syncs {
            return Err(io::ErrorKind::Other.into());
        }
        inner.created.clear();
        inner.removed.clear();
        Ok(())
    }
}

impl Output for InMemory {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.0.0.lock();
        let taken = bytes.len().min(inner.room);
        if inner.room != usize::MAX {
            inner.room -= taken;
        }
        inner.files.get_mut(&self.1).unwrap().extend_from_slice(&bytes[..taken]);
        if taken < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut inner = self.0.0.lock();
        if !inner.syncs {
            inner.torn.insert(self.1.clone());
            return Err(io::ErrorKind::Other.into());
        }
        if !inner.torn.contains(&self.1) {
            let length = inner.files.get(&self.1).map_or(0, Vec::len);
            inner.synced.insert(self.1.clone(), length);
        }
        Ok(())
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        let (mut inner, length) = (self.0.0.lock(), usize::try_from(length).unwrap());
        inner.files.get_mut(&self.1).unwrap().truncate(length);
        inner.synced.entry(self.1.clone()).and_modify(|synced| *synced = length.min(*synced));
        Ok(())
    }
}

impl Disk {
    fn segments(&self) -> BTreeMap<Segment, (String, u64, Vec<u8>)> {
        let inner = self.0.lock();
        let named = inner.files.iter().filter_map(|(name, bytes)| log::parse_name(name).map(|found| (name, bytes, found)));
        named.map(|(name, bytes, (segment, marker))| (segment, (name.clone(), marker, bytes.clone()))).collect()
    }

    /// What is there after the power has failed: what was synced, and of the rest whatever chance wants.
    fn power_cut(&self, chance: &mut StdRng) -> Self {
        let inner = self.0.lock();
        let mut files = BTreeMap::new();
        for (name, bytes) in &inner.files {
            if !(inner.created.contains(name) && chance.random()) {
                let synced = inner.synced.get(name).copied().unwrap_or(0);
                files.insert(name.clone(), bytes[..chance.random_range(synced..=bytes.len())].to_vec());
            }
        }
        for (name, bytes) in &inner.removed {
            if chance.random() {
                files.insert(name.clone(), bytes.clone());
            }
        }
        Self(Arc::new(Mutex::new(Inner { files, ..Inner::default() })))
    }

    fn bytes(&self) -> usize {
        self.segments().values().map(|(_, _, bytes)| bytes.len()).sum()
    }

    /// What a start does.
    fn open(&self) -> (Writer, Restored, Lost) {
        self.open_with(SyncMode::Batch)
    }

    fn open_with(&self, sync: SyncMode) -> (Writer, Restored, Lost) {
        let clocks = Clocks::read();
        let mut reading = Reading::new(clocks);
        let (mut present, mut damaged) = (BTreeMap::new(), BTreeSet::new());
        for (segment, (name, marker, bytes)) in self.segments() {
            if reading.read(segment, marker, &bytes).is_some() {
                damaged.insert(segment);
            }
            present.insert(segment, Present { name, bytes: bytes.len() as u64 });
        }
        let (mirror, restored, lost) = reading.finish();
        let mut log = Log::new(Box::new(self.clone()), sync, present, damaged, "damaged-".to_owned());
        log.segment_bytes = 4_000;
        let mut writer = Writer { slack_bytes: 8_000, ..Writer::new(mirror, log, sync, clocks.now) };
        writer.clean_up();
        (writer, restored, lost)
    }
}

/// What there is, as far as tests tell it apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    sessions: BTreeMap<u64, ModelSession>,
    /// What was retained last, or that it was deleted.
    retained: BTreeMap<String, (Option<Bytes>, Option<Stamp>)>,
    logs: BTreeMap<u8, ModelLog>,
    /// By the origin.
    covers: BTreeMap<u64, u64>,
    members: BTreeSet<u64>,
}

/// The broker's own log in one lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ModelLog {
    log: u64,
    reserved: u64,
    floor: u64,
    /// By the first sequence: the last one, and the body.
    blocks: BTreeMap<u64, (u64, Bytes)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ModelSession {
    client_id: String,
    expiry_seconds: u64,
    filters: BTreeMap<String, u8>,
    entries: BTreeMap<u64, (Stage, Option<Bytes>)>,
    received: Vec<u16>,
    will: Option<Bytes>,
}

impl From<&Restored> for Model {
    fn from(restored: &Restored) -> Self {
        let mut model = Self::default();
        for session in &restored.sessions {
            let entry = |entry: &Entry| match entry.stage {
                Stage::Released(_) => (entry.stage, None),
                stage => (stage, Some(entry.message.payload.clone())),
            };
            let mut received: Vec<u16> = session.received.iter().map(|id| id.get()).collect();
            received.sort_unstable();
            let one = ModelSession {
                client_id: session.head.client_id.to_string(),
                expiry_seconds: match session.head.expiry {
                    SessionExpiry::After(rest) => rest.as_secs(),
                    SessionExpiry::Never | SessionExpiry::WithConnection => 0,
                },
                filters: session.subscriptions.iter().map(|(filter, it)| (filter.to_string(), it.qos as u8)).collect(),
                entries: session.entries.iter().map(|(order, it)| (*order, entry(it))).collect(),
                received,
                will: session.will.as_ref().map(|will| will.message.payload.clone()),
            };
            model.sessions.insert(session.session.0, one);
        }
        let retained = restored.retained.iter().map(|(it, stamp)| (it.topic.to_string(), (Some(it.payload.clone()), *stamp)));
        let deleted = restored.deleted.iter().map(|(topic, stamp)| (topic.to_string(), (None, Some(*stamp))));
        model.retained = retained.chain(deleted).collect();
        for head in &restored.log.heads {
            let of_lane = restored.log.blocks.iter().filter(|block| block.lane == head.lane);
            let blocks = of_lane.map(|block| (block.first, (block.last, block.body.clone()))).collect();
            model.logs.insert(head.lane.0, ModelLog { log: head.log.0, reserved: head.reserved, floor: head.floor, blocks });
        }
        model.covers = restored.log.covers.iter().map(|(stream, cover)| (stream.origin.0, *cover)).collect();
        model.members = restored.log.members.iter().map(|member| member.0).collect();
        model
    }
}

fn message(topic: &str, payload: Vec<u8>) -> Arc<StoredMessage> {
    Arc::new(StoredMessage {
        topic: topic.into(),
        payload: payload.into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        expires_at: None,
        properties: Bytes::new(),
    })
}

fn stream(origin: u64) -> OriginLane {
    OriginLane { origin: BrokerId(origin), log: LogId(7), lane: LaneId(5) }
}

/// Makes what may happen, and knows what comes of it.
struct History {
    rng: StdRng,
    model: Model,
    made: u64,
    epoch: u64,
    order: BTreeMap<u64, u64>,
}

impl History {
    fn new(seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), model: Model::default(), made: 0, epoch: 10, order: BTreeMap::new() }
    }

    fn payload(&mut self) -> Vec<u8> {
        let length = self.rng.random_range(0..60);
        (0..length).map(|_| self.rng.random()).collect()
    }

    /// One batch of changes.
    fn batch(&mut self) -> Vec<Change> {
        let count = self.rng.random_range(1..8);
        (0..count).flat_map(|_| self.step()).collect()
    }

    fn step(&mut self) -> Vec<Change> {
        let numbers: Vec<u64> = self.model.sessions.keys().copied().collect();
        let Some(number) = (!numbers.is_empty()).then(|| numbers[self.rng.random_range(0..numbers.len())]) else {
            return self.begin();
        };
        let id = SubscriberId(number);
        let topic = format!("t/{}", self.rng.random_range(0..5));
        match self.rng.random_range(0..24) {
            0 => self.begin(),
            16..=19 => vec![self.log()],
            20 => {
                let origin = self.rng.random_range(0..3);
                // One that is late says nothing new.
                let cover = self.rng.random_range(1..1_000);
                let known = self.model.covers.entry(origin).or_default();
                *known = cover.max(*known);
                vec![Change::Cover(stream(origin), cover)]
            }
            21 => {
                let origin = self.rng.random_range(0..3);
                self.model.covers.remove(&origin);
                vec![Change::CoverGone(stream(origin))]
            }
            22 => {
                let member = self.rng.random_range(0..3);
                self.model.members.insert(member);
                vec![Change::Member(BrokerId(member))]
            }
            23 => {
                let member = self.rng.random_range(0..3);
                self.model.members.remove(&member);
                vec![Change::MemberGone(BrokerId(member))]
            }
            1 => {
                self.model.sessions.remove(&number);
                vec![Change::Ended(id)]
            }
            2 | 3 => {
                let qos = self.rng.random_range(0..3_u8);
                self.session(number).filters.insert(topic.clone(), qos);
                let qos = QoS::try_from(qos).unwrap();
                let options = SubscriptionOptions { qos, no_local: false, retain_as_published: true, subscription_id: Some(3) };
                vec![Change::Subscribed(id, topic.into(), options)]
            }
            4 => match self.session(number).filters.remove(&topic) {
                Some(_) => vec![Change::Unsubscribed(id, topic.into())],
                None => Vec::new(),
            },
            5..=7 => self.publish(&topic),
            8 | 9 => self.forward(number),
            10 => {
                let pid = self.rng.random_range(1..4);
                let received = &mut self.session(number).received;
                let packet_id = PacketId::new(pid).unwrap();
                match received.iter().position(|it| *it == pid) {
                    Some(place) => {
                        received.remove(place);
                        vec![Change::Completed(id, packet_id)]
                    }
                    None => {
                        received.push(pid);
                        received.sort_unstable();
                        vec![Change::Received(id, packet_id)]
                    }
                }
            }
            11 => {
                self.epoch += 1;
                let (epoch, payload) = (self.epoch, self.payload());
                let message = (*message("will", payload.clone())).clone();
                self.session(number).will = Some(payload.into());
                let will = Will { message, message_expiry: None, delay: Duration::from_secs(5) };
                // The end of one that is no more comes late.
                vec![Change::Will(id, epoch, Arc::new(will)), Change::WillGone(id, epoch - 1)]
            }
            12 => {
                let (payload, stamp) = (self.payload(), self.stamp());
                self.model.retained.insert(topic.clone(), (Some(payload.clone().into()), stamp));
                vec![Change::Retained(message(&topic, payload), stamp)]
            }
            // The client leaves, or comes again.
            13 | 14 => {
                let seconds = self.rng.random_range(1..1_000);
                self.session(number).expiry_seconds = seconds;
                let expiry = SessionExpiry::After(Duration::from_secs(seconds));
                let left_at = self.rng.random::<bool>().then(clock::now);
                let client_id = self.session(number).client_id.as_str().into();
                vec![Change::Session(id, Head { client_id, owner: Arc::default(), expiry, left_at, claim: 0 })]
            }
            _ => {
                let stamp = self.stamp();
                match stamp {
                    Some(_) => self.model.retained.insert(topic.clone(), (None, stamp)),
                    None => self.model.retained.remove(&topic),
                };
                vec![Change::Forgotten(topic.into(), stamp)]
            }
        }
    }

    /// Something happens to the broker's own log in the mesh.
    fn log(&mut self) -> Change {
        let lane = LaneId(self.rng.random_range(4..6));
        let what = self.rng.random_range(0..12);
        let Some(own) = self.model.logs.get_mut(&lane.0).filter(|_| what > 0) else {
            if self.model.logs.remove(&lane.0).is_some() {
                return Change::LogGone(lane);
            }
            let log = self.rng.random();
            self.model.logs.insert(lane.0, ModelLog { log, reserved: 1, ..ModelLog::default() });
            return Change::Log(LogHead { lane, log: LogId(log), born: None, reserved: 1, floor: 0 });
        };
        match what {
            1 => own.reserved += 100,
            // Some of the oldest go.
            2..=4 => {
                let count = self.rng.random_range(0..=own.blocks.len());
                for _ in 0..count {
                    own.floor = own.blocks.pop_first().map_or(own.floor, |(_, (last, _))| last);
                }
            }
            _ => {
                let first = (own.blocks.last_key_value().map_or(own.floor, |(_, (last, _))| *last) >> 8 << 8) + 256;
                let last = first + self.rng.random_range(0..256);
                let body = Bytes::from(vec![self.rng.random::<u8>(); self.rng.random_range(0..300)]);
                own.blocks.insert(first, (last, body.clone()));
                return Change::Logged(Logged { lane, first, last, published: clock::now(), body });
            }
        }
        Change::Log(LogHead { lane, log: LogId(own.log), born: None, reserved: own.reserved, floor: own.floor })
    }

    fn stamp(&mut self) -> Option<Stamp> {
        self.rng.random::<bool>().then(|| Stamp { time: self.rng.random(), writer: self.rng.random() })
    }

    fn session(&mut self, number: u64) -> &mut ModelSession {
        self.model.sessions.get_mut(&number).unwrap()
    }

    fn begin(&mut self) -> Vec<Change> {
        self.made += 1;
        let client_id = format!("client {}", self.made);
        self.model.sessions.insert(self.made, ModelSession { client_id: client_id.clone(), ..ModelSession::default() });
        let head =
            Head { client_id: client_id.into(), owner: Arc::default(), expiry: SessionExpiry::Never, left_at: None, claim: 0 };
        vec![Change::Session(SubscriberId(self.made), head)]
    }

    /// One message to several sessions; for some of them the end, or the next stage, comes before the beginning.
    fn publish(&mut self, topic: &str) -> Vec<Change> {
        let payload = self.payload();
        let message = message(topic, payload.clone());
        let (mut early, mut placed) = (Vec::new(), Vec::new());
        for number in self.model.sessions.keys().copied().collect::<Vec<_>>() {
            let order = self.order.entry(number).or_default();
            *order += 1;
            let (order, id) = (*order, SubscriberId(number));
            let mut stage = if self.rng.random() { Stage::Queued } else { Stage::Published(order) };
            let entry = Entry { message: Arc::clone(&message), qos: QoS::ExactlyOnce, retain: true, subscription_ids: None, stage };
            placed.push(Change::Placed(id, order, entry));
            match self.rng.random_range(0..8) {
                0 => {
                    early.push(Change::Removed(id, order));
                    continue;
                }
                1 => {
                    stage = Stage::Published(order + 1);
                    early.push(Change::Staged(id, order, stage));
                }
                _ => {}
            }
            self.session(number).entries.insert(order, (stage, Some(payload.clone().into())));
        }
        early.append(&mut placed);
        early
    }

    /// A kept message comes further.
    fn forward(&mut self, number: u64) -> Vec<Change> {
        let id = SubscriberId(number);
        let is_end = self.rng.random_ratio(1, 2);
        let Some((order, (stage, payload))) = self.session(number).entries.iter_mut().next() else { return Vec::new() };
        let order = *order;
        let next = match *stage {
            _ if is_end => {
                self.session(number).entries.remove(&order);
                return vec![Change::Removed(id, order)];
            }
            Stage::Queued => Stage::Published(order),
            Stage::Published(serial) => {
                *payload = None;
                Stage::Released(serial)
            }
            Stage::Released(_) => return Vec::new(),
        };
        *stage = next;
        vec![Change::Staged(id, order, next)]
    }
}

#[expect(clippy::print_stdout, reason = "a fresh seed is worth nothing if nobody knows it")]
fn seeds() -> Vec<u64> {
    let fresh = rand::random();
    println!("fresh seed {fresh}");
    (0..12).chain([fresh]).collect()
}

#[test]
fn what_is_read_back_is_what_was_there_however_often_it_starts_and_the_log_stays_small() {
    for seed in seeds() {
        let (disk, mut history) = (Disk::default(), History::new(seed));
        let (mut writer, ..) = disk.open();
        for round in 0..600 {
            let mut changes = history.batch();
            writer.commit(&mut changes).unwrap();
            if round % 20 == 0 {
                let (again, restored, lost) = disk.open();
                assert_eq!(Model::from(&restored), history.model, "seed {seed}, round {round}");
                assert_eq!(lost, Lost::default());
                if round % 60 == 0 {
                    writer = again;
                }
            }
        }
        // Whatever is to be moved is moved.
        while writer.cut.is_some() {
            writer.commit(&mut Vec::new()).unwrap();
        }
        let live = usize::try_from(writer.mirror.live_bytes()).unwrap();
        assert!(disk.bytes() < 3 * live + 40_000, "{} bytes for {live}", disk.bytes());
        let (_, restored, _) = disk.open();
        assert_eq!(Model::from(&restored), history.model, "seed {seed}");
    }
}

#[test]
fn a_disk_that_is_full_for_a_while_loses_nothing() {
    for seed in seeds() {
        let (disk, mut history) = (Disk::default(), History::new(seed));
        let mut chance = StdRng::seed_from_u64(!seed);
        let (mut writer, ..) = disk.open();
        // What was safe last, and all that came later.
        let mut possible = vec![Model::default()];
        for round in 0..400 {
            let mut inner = disk.0.lock();
            inner.room = if chance.random_ratio(1, 3) { chance.random_range(0..300) } else { usize::MAX };
            inner.syncs = chance.random_ratio(9, 10);
            drop(inner);
            let mut changes = history.batch();
            if writer.commit(&mut changes).is_ok() {
                possible.clear();
            }
            possible.push(history.model.clone());
            let (_, restored, _) = disk.open();
            // What could not be brought to the disk may be there all the same.
            assert!(possible.contains(&Model::from(&restored)), "seed {seed}, round {round}");
            let (_, restored, _) = disk.power_cut(&mut chance).open();
            assert!(possible.contains(&Model::from(&restored)), "seed {seed}, round {round}, after a power cut");
        }
        let mut inner = disk.0.lock();
        (inner.room, inner.syncs) = (usize::MAX, true);
        drop(inner);
        writer.commit(&mut Vec::new()).unwrap();
        let (_, restored, _) = disk.open();
        assert_eq!(Model::from(&restored), history.model, "seed {seed}");
    }
}

#[test]
fn a_commit_that_was_cut_off_does_not_count_and_one_before_it_does() {
    for seed in seeds() {
        let (disk, mut history) = (Disk::default(), History::new(seed));
        let mut chance = StdRng::seed_from_u64(!seed);
        let (mut writer, ..) = disk.open();
        writer.log.segment_bytes = u64::MAX;
        let mut models = vec![(0, Model::default())];
        for _ in 0..60 {
            writer.commit(&mut history.batch()).unwrap();
            models.push((disk.bytes(), history.model.clone()));
        }
        let (name, _, whole) = disk.segments().remove(&1).unwrap();
        for _ in 0..60 {
            let length = chance.random_range(0..=whole.len());
            disk.0.lock().files.insert(name.clone(), whole[..length].to_vec());
            let (writer, restored, _) = disk.open();
            let (_, expected) = models.iter().rfind(|(bytes, _)| *bytes <= length).unwrap();
            assert_eq!(Model::from(&restored), *expected, "seed {seed}, {length} of {} bytes", whole.len());
            assert_eq!(writer.log.newest_damaged(), None, "that is no damage");
        }
    }
}

#[test]
fn rot_costs_what_it_touches_and_is_put_aside() {
    for seed in seeds() {
        let disk = Disk::default();
        let mut chance = StdRng::seed_from_u64(seed);
        let (mut writer, ..) = disk.open();
        writer.log.segment_bytes = u64::MAX;
        let payload = |number: u32| number.to_be_bytes().repeat(5);
        for number in 0..100 {
            writer.commit(&mut vec![Change::Retained(message(&format!("t/{number}"), payload(number)), None)]).unwrap();
        }
        let (name, _, mut bytes) = disk.segments().remove(&1).unwrap();
        let at = chance.random_range(0..bytes.len() - 100);
        let count = chance.random_range(1..100);
        bytes[at..at + count].iter_mut().for_each(|byte| *byte = !*byte);
        disk.0.lock().files.insert(name.clone(), bytes);
        let (mut writer, restored, _) = disk.open();
        let kept = Model::from(&restored).retained;
        assert!(kept.len() >= 96 - count / 40, "seed {seed}: {} kept, {count} bytes gone at {at}", kept.len());
        for (topic, found) in &kept {
            assert_eq!(found.0.as_deref(), Some(&*payload(topic[2..].parse().unwrap())));
        }
        while writer.cut.is_some() {
            writer.commit(&mut Vec::new()).unwrap();
        }
        assert!(disk.0.lock().files.contains_key(&format!("damaged-{name}")));
        let (writer, restored, _) = disk.open();
        assert_eq!((Model::from(&restored).retained, writer.log.newest_damaged()), (kept, None));
    }
}

#[test]
fn positions_that_may_have_been_used_are_left_out() {
    let damaged = BTreeSet::from([3]);
    let none = BTreeSet::new();
    for (sync, damaged, least) in [
        (SyncMode::Batch, &none, 0),
        (SyncMode::Interval, &none, 1 << 32),
        (SyncMode::Os, &none, 1 << 32),
        (SyncMode::Batch, &damaged, 1 << 40),
        (SyncMode::Os, &damaged, 1 << 40),
    ] {
        assert_eq!(positions_in_doubt(sync, damaged), least);
    }
}

#[test]
fn a_payload_cannot_pass_for_a_frame() {
    let disk = Disk::default();
    let (mut writer, ..) = disk.open();
    writer.commit(&mut vec![Change::Retained(message("a", vec![1]), None)]).unwrap();
    let (_, _, frame) = disk.segments().remove(&1).unwrap();
    // A whole segment of another store, as a payload; then its frame is damaged.
    let other = Disk::default();
    let (mut forger, ..) = other.open();
    forger.commit(&mut vec![Change::Retained(message("forged", vec![2]), None)]).unwrap();
    let (_, _, forged) = other.segments().remove(&1).unwrap();
    writer.commit(&mut vec![Change::Retained(message("b", forged), None)]).unwrap();
    let (name, _, mut bytes) = disk.segments().remove(&1).unwrap();
    bytes[frame.len() + 9] ^= 1;
    disk.0.lock().files.insert(name, bytes);
    let (_, restored, _) = disk.open();
    assert_eq!(Model::from(&restored).retained.into_keys().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn a_list_that_was_shortened_says_the_same() {
    for seed in 0..3 {
        let mut history = History::new(seed);
        let (journal, long) = (Journal::new(), Disk::default());
        let (mut writer, ..) = long.open();
        let mut count = 0;
        while count < 70_000 {
            let changes = history.batch();
            count += changes.len();
            changes.iter().for_each(|change| {
                journal.push(change.clone());
            });
            journal.kick();
        }
        let mut changes = Vec::new();
        assert_eq!(journal.take(&mut changes, Duration::ZERO), Some(count as u64));
        assert!(changes.len() < count, "nothing was taken out");
        writer.commit(&mut changes).unwrap();
        let (_, restored, _) = long.open();
        assert_eq!(Model::from(&restored), history.model, "seed {seed}");
    }
}

#[test]
fn a_disk_that_fails_again_and_again_does_not_fill_up() {
    let (disk, mut history) = (Disk::default(), History::new(1));
    let (mut writer, ..) = disk.open();
    writer.commit(&mut history.batch()).unwrap();
    disk.0.lock().syncs = false;
    for _ in 0..50 {
        assert!(writer.commit(&mut history.batch()).is_err());
    }
    let files = disk.segments().len();
    assert!(files <= 2, "{files} segments");
    disk.0.lock().syncs = true;
    writer.commit(&mut Vec::new()).unwrap();
    let (_, restored, _) = disk.open();
    assert_eq!(Model::from(&restored), history.model);
}

#[test]
fn what_could_not_be_synced_is_written_again_elsewhere() {
    for seed in seeds() {
        let (disk, mut history) = (Disk::default(), History::new(seed));
        let mut chance = StdRng::seed_from_u64(!seed);
        let (mut writer, ..) = disk.open_with(SyncMode::Interval);
        for round in 0..100 {
            let fails = chance.random_ratio(1, 5);
            disk.0.lock().syncs = !fails;
            let is_due = fails || chance.random_ratio(1, 3);
            if is_due {
                writer.synced_at -= SYNC_INTERVAL;
            }
            let must_sync = is_due && writer.log.is_unsynced();
            let committed = writer.commit(&mut history.batch());
            assert!(committed.is_err() || !(fails && must_sync), "seed {seed}, round {round}");
            let bytes = disk.bytes();
            for _ in 0..if fails { 20 } else { 0 } {
                // Again and again, with nothing new.
                let _ = writer.commit(&mut Vec::new());
            }
            assert!(disk.bytes() < 2 * bytes + 20_000, "seed {seed}, round {round}: it fills up");
            if chance.random_ratio(1, 4) {
                disk.0.lock().syncs = true;
                while writer.mirror.is_dirty() || writer.cut.is_some() {
                    writer.commit(&mut Vec::new()).unwrap();
                }
                writer.log.sync_now().unwrap();
                // A file's name is the file system's to keep: that of a new segment is brought to the disk with the removal of older ones.
                disk.0.lock().created.clear();
                let (_, restored, _) = disk.power_cut(&mut chance).open();
                assert_eq!(Model::from(&restored), history.model, "seed {seed}, round {round}");
            }
        }
    }
}

#[test]
fn a_segment_that_somebody_else_has_removed_is_gone() {
    let (disk, mut history) = (Disk::default(), History::new(1));
    let (mut writer, ..) = disk.open();
    for _ in 0..400 {
        writer.commit(&mut history.batch()).unwrap();
        if writer.cut.is_some_and(|cut| writer.log.oldest() == Some(cut)) {
            let (name, ..) = disk.segments().remove(&writer.log.oldest().unwrap()).unwrap();
            disk.0.lock().files.remove(&name);
        }
    }
    while writer.cut.is_some() {
        writer.commit(&mut Vec::new()).unwrap();
    }
    assert_eq!(writer.log.oldest(), disk.segments().into_keys().next());
    let (_, restored, _) = disk.open();
    assert_eq!(Model::from(&restored), history.model);
}

/// A disk that is a bug.
struct Broken;

impl Medium for Broken {
    fn create(&mut self, name: &str) -> io::Result<Box<dyn Output>> {
        panic!("{name}");
    }

    fn remove(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn rename(&mut self, _: &str, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_names(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_thread_that_panics_is_a_disk_that_fails_for_good() {
    let journal = Journal::new();
    let log = Log::new(Box::new(Broken), SyncMode::Batch, BTreeMap::new(), BTreeSet::new(), String::new());
    let writer = Writer::new(Mirror::default(), log, SyncMode::Batch, clock::now());
    let store = Store::start(writer, Arc::clone(&journal)).unwrap();
    let number = journal.push(Change::Retained(message("t", vec![1]), None));
    journal.kick();
    let deadline = clock::now() + Duration::from_secs(60);
    while !store.has_ended() {
        assert!(clock::now() < deadline, "it goes on");
        std::thread::yield_now();
    }
    assert!(journal.is_failing() && journal.committed() < number);
    let counters = &store.counters;
    assert!(counters.is_failing.load(Ordering::Relaxed) && counters.failures.value() == 1);
}

#[test]
fn what_comes_late_of_a_will_that_is_gone_does_not_bring_it_back() {
    let disk = Disk::default();
    let (mut writer, ..) = disk.open();
    let id = SubscriberId(1);
    let head = Head { client_id: "c".into(), owner: Arc::default(), expiry: SessionExpiry::Never, left_at: None, claim: 0 };
    let will = Will { message: (*message("w", vec![])).clone(), message_expiry: None, delay: Duration::ZERO };
    writer.commit(&mut vec![Change::Session(id, head), Change::WillGone(id, 2)]).unwrap();
    writer.commit(&mut vec![Change::Will(id, 2, Arc::new(will))]).unwrap();
    let (_, restored, _) = disk.open();
    assert_eq!(restored.sessions[0].will, None);
}

#[test]
fn a_clock_that_was_ahead_makes_nothing_last_longer() {
    let disk = Disk::default();
    let (mut writer, ..) = disk.open();
    let left_at = Some(clock::now() + Duration::from_secs(1_000_000));
    let head = Head { client_id: "c".into(), owner: Arc::default(), expiry: SessionExpiry::Never, left_at, claim: 0 };
    writer.commit(&mut vec![Change::Session(SubscriberId(1), head)]).unwrap();
    let (_, restored, _) = disk.open();
    assert!(restored.sessions[0].head.left_at.unwrap() <= clock::now());
}

#[test]
fn what_expires_and_what_was_connected_counts_from_the_right_moment() {
    let disk = Disk::default();
    let (mut writer, ..) = disk.open();
    let now = clock::now();
    let head = |name: &str, left_at| Head {
        client_id: name.into(),
        owner: Arc::default(),
        expiry: SessionExpiry::Never,
        left_at,
        claim: 0,
    };
    let expiring = |seconds| {
        let expires_at = Some(now + Duration::from_millis(seconds));
        Arc::new(StoredMessage { expires_at, topic: format!("t/{seconds}").into(), ..(*message("", vec![])).clone() })
    };
    let entry = |message, stage| Entry { message, qos: QoS::AtLeastOnce, retain: false, subscription_ids: None, stage };
    let id = SubscriberId(1);
    let mut changes = vec![
        Change::Session(id, head("left", Some(now - Duration::from_secs(50)))),
        Change::Session(SubscriberId(2), head("there", None)),
        // Over at once, one in flight among them: that exchange is finished whatever its expiry.
        Change::Placed(id, 1, entry(expiring(0), Stage::Queued)),
        Change::Placed(id, 2, entry(expiring(0), Stage::Published(0))),
        Change::Placed(id, 3, entry(expiring(60_000), Stage::Queued)),
        Change::Retained(expiring(0), None),
        Change::Retained(expiring(60_000), None),
    ];
    writer.commit(&mut changes).unwrap();
    let (mut writer, restored, lost) = disk.open();
    assert_eq!(lost, Lost::default());
    let of = |name: &str| restored.sessions.iter().find(|it| *it.head.client_id == *name).unwrap();
    assert_eq!(of("left").entries.iter().map(|(order, _)| *order).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(restored.retained.iter().map(|(it, _)| &*it.topic).collect::<Vec<_>>(), ["t/60000"]);
    let near = |a: Instant, b: Instant| a.max(b).duration_since(a.min(b)) < Duration::from_secs(5);
    assert!(near(of("left").head.left_at.unwrap(), now - Duration::from_secs(50)));
    assert!(near(restored.retained[0].0.expires_at.unwrap(), now + Duration::from_secs(60)));
    let restarted = of("there").head.left_at.unwrap();
    // The next start counts from this one, not anew.
    writer.commit(&mut Vec::new()).unwrap();
    let (_, again, _) = disk.open();
    let again = again.sessions.iter().find(|it| *it.head.client_id == *"there").unwrap().head.left_at.unwrap();
    assert!(again.max(restarted).duration_since(again.min(restarted)) < Duration::from_millis(50));
    assert_eq!(restored.last_session, SubscriberId(2));
}

//! Registers of many brokers under virtual time: links come and go and lose what is on its way, brokers begin new lives, churn. In the end
//! everybody knows what everybody says; at no time does anybody take a part of a register for the whole.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mqtt_st_quic::ids::{BrokerId, Incarnation, PortId};
use mqtt_st_quic::limits::{
    REGISTER_DELTA_BYTES, REGISTER_FILTERS_MAX, REGISTER_ON_THE_WAY_BYTES, REGISTER_PUSHED_BYTES, REGISTER_TAIL_BYTES,
};
use mqtt_st_quic::shared::register::{
    Change, Delta, DeltaHead, DeltaMode, End, Follow, Have, Judgement, Key, Page, RegisterError, Registers, Say, Value, Want,
};
use mqtt_st_quic::shared::{Signature, SignedRecord};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Members leave after this time.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(900);
/// What every broker says from its beginning on in each of its lives.
const BASE: usize = 40;

/// Whether a register is known as a whole, and what is known of it.
type Told = (bool, BTreeMap<Key, Value>);

/// What one broker was told of the others.
#[derive(Default)]
struct Mirror(Mutex<BTreeMap<BrokerId, Told>>);

impl Follow for Mirror {
    fn joined(&self, member: BrokerId) {
        let before = self.0.lock().insert(member, (false, BTreeMap::new()));
        assert!(before.is_none_or(|(is_known, _)| is_known), "{member} joins twice");
    }

    fn known(&self, member: BrokerId) {
        self.0.lock().get_mut(&member).unwrap().0 = true;
    }

    fn changed(&self, member: BrokerId, changes: &[Change]) {
        let mut mirror = self.0.lock();
        let (_, content) = mirror.get_mut(&member).unwrap();
        // What brokers tell of having taken in each other's registers is nobody's wish.
        for (key, value) in changes.iter().filter(|(key, _)| !matches!(key, Key::Echo(_))) {
            let before = match value {
                Some(value) => content.insert(key.clone(), value.clone()),
                None => content.remove(key),
            };
            assert_ne!(before.as_ref(), value.as_ref(), "{key:?} of {member} is no news");
        }
    }

    fn left(&self, member: BrokerId) {
        assert!(self.0.lock().remove(&member).is_some());
    }
}

struct Node {
    life: u64,
    registers: Arc<Registers>,
    mirror: Arc<Mirror>,
    /// What it says at present.
    truth: BTreeMap<Key, Value>,
}

/// One direction of a link.
#[derive(Default)]
struct Pipe {
    /// What is on its way: when it arrives, and its bytes.
    says: VecDeque<(Instant, usize, Say)>,
    bytes: usize,
}

struct World {
    random: SmallRng,
    now: Instant,
    nodes: Vec<Node>,
    /// By who says it and who hears it; both directions of a link have its generation.
    pipes: BTreeMap<(usize, usize), (u64, Pipe)>,
    generation: u64,
    delay_ms: u64,
    /// Bytes that a link takes in a millisecond.
    rate: usize,
    bytes: usize,
    copies: usize,
}

fn wire_bytes(say: &Say) -> usize {
    match say {
        Say::Delta(_, signed) => signed.wire.len(),
        Say::Have(haves) => 24 * haves.len(),
        Say::Want(_) => 32,
        Say::End(end) => 32 + end.page.as_ref().map_or(0, |page| page.encode_entries().len()),
    }
}

fn id(node: usize) -> BrokerId {
    BrokerId(node as u64 + 1)
}

fn filter(text: &str) -> Key {
    Key::Filter(Arc::from(text))
}

impl Node {
    fn new(node: usize, life: u64) -> Self {
        let registers = Registers::new(id(node), MEMBER_TIMEOUT, REGISTER_FILTERS_MAX);
        let mirror = Arc::new(Mirror::default());
        registers.follow(Arc::clone(&mirror) as Arc<dyn Follow>);
        let mut new = Self { life, registers, mirror, truth: BTreeMap::new() };
        (0..BASE).for_each(|n| new.add(&format!("base/{n}/{}", "long".repeat(200))));
        new.registers.begin(Incarnation(life));
        new
    }

    fn add(&mut self, text: &str) {
        if self.truth.insert(filter(text), Value::Present).is_none() {
            self.registers.own().add_filter(text);
        }
    }

    fn remove(&mut self, text: &str) {
        if self.truth.remove(&filter(text)).is_some() {
            self.registers.own().remove_filter(text);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
fn start() -> Instant {
    Instant::now()
}

impl World {
    fn new(seed: u64, count: usize) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let delay_ms = random.random_range(1..80);
        let nodes = (0..count).map(|node| Node::new(node, 1)).collect();
        Self { random, now: start(), nodes, pipes: BTreeMap::new(), generation: 0, delay_ms, rate: 10_000, bytes: 0, copies: 0 }
    }

    fn port(&self, from: usize, to: usize) -> PortId {
        PortId { peer: id(to), generation: self.pipes[&(from, to)].0 }
    }

    fn link(&mut self, a: usize, b: usize) {
        if a == b || self.pipes.contains_key(&(a, b)) {
            return;
        }
        self.generation += 1;
        for (from, to) in [(a, b), (b, a)] {
            self.pipes.insert((from, to), (self.generation, Pipe::default()));
        }
        for (from, to) in [(a, b), (b, a)] {
            let mut out = Vec::new();
            let port = self.port(from, to);
            self.nodes[from].registers.port_up(port, self.now, &mut out);
            self.send(from, out);
        }
    }

    fn cut(&mut self, a: usize, b: usize) {
        if !self.pipes.contains_key(&(a, b)) {
            return;
        }
        for (from, to) in [(a, b), (b, a)] {
            let port = self.port(from, to);
            self.pipes.remove(&(from, to));
            let mut out = Vec::new();
            self.nodes[from].registers.port_down(port, self.now, &mut out);
            self.send(from, out);
        }
    }

    fn restart(&mut self, node: usize) {
        (0..self.nodes.len()).for_each(|other| self.cut(node, other));
        self.nodes[node] = Node::new(node, self.nodes[node].life + 1);
    }

    fn send(&mut self, from: usize, out: Vec<(PortId, Say)>) {
        let delay = Duration::from_millis(self.delay_ms);
        for (port, say) in out {
            let to = port.peer.0 as usize - 1;
            let Some((generation, pipe)) = self.pipes.get_mut(&(from, to)) else { continue };
            if *generation == port.generation {
                match &say {
                    Say::Delta(_, signed) => self.bytes += signed.wire.len(),
                    Say::End(End { page: Some(page), .. }) => {
                        self.bytes += page.encode_entries().len();
                        self.copies += 1;
                    }
                    _ => {}
                }
                // It waits until what is before it has been written.
                let bytes = wire_bytes(&say);
                let written = pipe.says.back().map_or(self.now, |(at, ..)| (*at - delay).max(self.now));
                let takes = Duration::from_micros((1_000 * bytes / self.rate) as u64);
                pipe.bytes += bytes;
                pipe.says.push_back((written + takes + delay, bytes, say));
            }
        }
        // Whatever there is to be told, on a link there is never more than this before a BPDU.
        let bytes_max = REGISTER_PUSHED_BYTES + REGISTER_ON_THE_WAY_BYTES + 2 * REGISTER_DELTA_BYTES;
        for ((_, to), (_, pipe)) in self.pipes.iter().filter(|((one, _), _)| *one == from) {
            assert!(pipe.bytes <= bytes_max, "{} bytes are on the way from {from} to {to}", pipe.bytes);
        }
        for ((_, to), (_, pipe)) in self.pipes.iter().filter(|((one, _), _)| *one == from) {
            let asked = pipe.says.iter().filter_map(|(.., say)| match say {
                Say::Want(Want { bytes, .. }) => Some(*bytes as usize),
                _ => None,
            });
            assert!(asked.sum::<usize>() <= REGISTER_ON_THE_WAY_BYTES, "{from} asks {to} for too much at once");
        }
    }

    /// A tenth of a second in which everybody says what there is to say.
    fn step(&mut self) {
        for _ in 0..10 {
            self.now += Duration::from_millis(10);
            let edges: Vec<_> = self.pipes.keys().copied().collect();
            for (from, to) in edges {
                while let Some(say) = self.arrived(from, to) {
                    self.hear(to, from, say);
                }
            }
            for node in 0..self.nodes.len() {
                let mut out = Vec::new();
                let registers = &self.nodes[node].registers;
                if registers.tell_due(self.now).is_some_and(|due| due <= self.now) {
                    let sign = |_: &[u8]| Some(Signature { chain: Default::default(), scheme: 0, bytes: Default::default() });
                    registers.tell(self.now, sign, &mut out);
                    self.send(node, out);
                }
            }
        }
        for node in 0..self.nodes.len() {
            let mut out = Vec::new();
            self.nodes[node].registers.tick(self.now, &mut out);
            self.send(node, out);
        }
        self.check_wholes();
    }

    fn arrived(&mut self, from: usize, to: usize) -> Option<Say> {
        let now = self.now;
        let (_, pipe) = self.pipes.get_mut(&(from, to))?;
        pipe.says.front().filter(|(at, ..)| *at <= now)?;
        let (_, bytes, say) = pipe.says.pop_front()?;
        pipe.bytes -= bytes;
        Some(say)
    }

    fn hear(&mut self, node: usize, from: usize, say: Say) {
        let port = self.port(node, from);
        let (now, registers) = (self.now, Arc::clone(&self.nodes[node].registers));
        let mut out = Vec::new();
        match say {
            Say::Delta(mode, signed) => {
                let head = DeltaHead::read(&signed.wire).unwrap();
                if registers.judge(port, &head, mode, now) == Judgement::Check {
                    registers.take(port, mode, SignedRecord::clone(&signed), now, &mut out).unwrap();
                }
            }
            Say::Have(haves) => {
                let mut wire = Vec::new();
                Have::encode_all(&haves, &mut wire);
                registers.hear_have(port, &Have::decode_all(&wire).unwrap(), now, &mut out);
            }
            Say::Want(want) => {
                assert_eq!(Want::decode_behind(&want.encode_behind()).unwrap(), want.behind);
                registers.hear_want(port, want, now, &mut out);
            }
            Say::End(end) => {
                let read = end.page.as_ref().map(|page| Page::decode_entries(&page.encode_entries()).unwrap());
                assert_eq!(read, end.page.as_ref().map(|page| page.entries.clone()));
                registers.hear_end(port, end, now, &mut out).unwrap();
            }
        }
        self.send(node, out);
    }

    /// Who knows a register knows all that its broker says from its beginning on.
    fn check_wholes(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            for (member, (is_known, content)) in &*node.mirror.0.lock() {
                let base = content.keys().filter(|key| matches!(key, Key::Filter(text) if text.starts_with("base/"))).count();
                assert!(!is_known || base == BASE, "{number} knows {base} of {member}");
            }
        }
    }

    fn disorder(&mut self) {
        let count = self.nodes.len();
        let (a, b) = (self.random.random_range(0..count), self.random.random_range(0..count));
        match self.random.random_range(0..20) {
            0..7 => self.link(a, b),
            7..11 => self.cut(a, b),
            11 if self.random.random_bool(0.3) => self.restart(a),
            12 => {
                // More at once than anybody keeps for those who are away.
                let from = self.random.random_range(0..1_000);
                (from..from + 3_000).for_each(|n| self.nodes[a].add(&format!("many/{n}/{}", "x".repeat(100))));
            }
            13 => (0..4_000).for_each(|n| self.nodes[a].remove(&format!("many/{n}/{}", "x".repeat(100)))),
            _ => {
                let n = self.random.random_range(0..20);
                if self.random.random_bool(0.5) {
                    self.nodes[a].add(&format!("few/{n}"));
                } else {
                    self.nodes[a].remove(&format!("few/{n}"));
                }
            }
        }
    }

    fn is_agreed(&self) -> bool {
        self.nodes.iter().enumerate().all(|(number, node)| {
            let mirror = node.mirror.0.lock();
            let others: BTreeSet<_> = (0..self.nodes.len()).filter(|other| *other != number).map(id).collect();
            // What they echo of each other is not said by hand.
            let is_said = |(key, _): &(&Key, &Value)| !matches!(key, Key::Echo(_));
            let is_true = |member: &BrokerId, content: &BTreeMap<Key, Value>| {
                content.iter().filter(is_said).eq(&self.nodes[member.0 as usize - 1].truth)
            };
            mirror.keys().copied().collect::<BTreeSet<_>>() == others
                && mirror.iter().all(|(member, (is_known, content))| *is_known && is_true(member, content))
        })
    }
}

fn run(seed: u64, count: usize, steps: usize) -> World {
    println!("seed {seed}, {count} brokers");
    let mut world = World::new(seed, count);
    for _ in 0..steps {
        (0..world.random.random_range(0..4)).for_each(|_| world.disorder());
        world.step();
    }
    // A line, and what there is besides.
    (1..count).for_each(|node| world.link(node - 1, node));
    let mut waited = 0;
    while !world.is_agreed() {
        world.step();
        waited += 1;
        assert!(waited < 3_000, "seed {seed}: no agreement");
    }
    world
}

#[test]
fn in_the_end_everybody_knows_everything() {
    let fresh: u64 = rand::random();
    println!("fresh seeds from {fresh}");
    let mut copies = 0;
    for seed in (0..12).chain(fresh..fresh.saturating_add(4)) {
        copies += run(seed, 3 + (seed % 4) as usize, 60).copies;
    }
    assert!(copies > 0, "nobody was ever away for so long that a copy was needed");
}

#[test]
#[ignore = "long"]
fn in_the_end_everybody_knows_everything_long() {
    let fresh: u64 = rand::random();
    println!("fresh seeds from {fresh}");
    (fresh..fresh.saturating_add(300)).for_each(|seed| drop(run(seed, 3 + (seed % 10) as usize, 150)));
}

/// What is churned for ever takes no more than what there is, and a newcomer gets little more than that.
#[test]
fn a_register_does_not_grow_by_being_changed() {
    let mut world = World::new(1, 3);
    world.link(0, 1);
    (0..2_000).for_each(|n| world.nodes[0].add(&format!("stays/{n}")));
    for round in 0..200 {
        (0..200).for_each(|n| world.nodes[0].add(&format!("comes/{round}/{n}/{}", "x".repeat(50))));
        world.step();
        (0..200).for_each(|n| world.nodes[0].remove(&format!("comes/{round}/{n}/{}", "x".repeat(50))));
        world.step();
    }
    let churned = std::mem::take(&mut world.bytes);
    world.link(1, 2);
    let mut waited = 0;
    while !world.is_agreed() {
        world.step();
        waited += 1;
        assert!(waited < 1_000);
    }
    assert!(churned > 2_000_000 && world.bytes < 1_200_000, "{churned} bytes, then {}", world.bytes);
}

/// Whose register is refused is at no time nobody: who looks in between would find that it wants nothing.
#[test]
fn whose_register_is_refused_is_a_member_of_whom_nothing_is_known() {
    struct Stays;
    impl Follow for Stays {
        fn joined(&self, _: BrokerId) {}
        fn known(&self, _: BrokerId) {}
        fn changed(&self, _: BrokerId, _: &[Change]) {}
        fn left(&self, member: BrokerId) {
            panic!("{member} leaves");
        }
    }
    let mut world = World::new(1, 2);
    world.link(0, 1);
    (0..20).for_each(|_| world.step());
    let state = |world: &World| world.nodes[1].mirror.0.lock().get(&id(0)).map(|(known, content)| (*known, content.len()));
    assert_eq!(state(&world), Some((true, BASE)));
    let registers = Arc::clone(&world.nodes[1].registers);
    registers.follow(Arc::new(Stays));
    let mut out = Vec::new();
    let (port, now) = (world.port(1, 0), world.now);
    registers.port_up(port, now, &mut out);
    let at = out.iter().find_map(|(_, say)| match say {
        Say::Have(haves) => haves.iter().find(|have| have.owner == id(0)).copied(),
        _ => None,
    });
    let Have { owner, incarnation, version, .. } = at.unwrap();
    let (version, entries) = (version + 1, BASE as u64);
    let head = DeltaHead { owner, incarnation, version, whole: true, echo: false, entries, bytes: 0, digest: [0; 32] };
    let wire = Delta { head, changes: vec![(filter("new"), Some(Value::Present))] }.encode();
    let signature = Signature { chain: Default::default(), scheme: 0, bytes: Default::default() };
    let signed = SignedRecord { wire: wire.into(), signature };
    assert!(registers.take(port, DeltaMode::Next, signed, now, &mut out).is_err());
    assert_eq!(state(&world), Some((false, 0)));
}

/// Pages of a copy are signed by nobody: of a neighbour that lies none count, and what is known of the register stays.
#[test]
fn a_copy_that_is_not_what_its_owner_has_signed_is_dropped() {
    let mut world = World::new(1, 2);
    world.link(0, 1);
    (0..20).for_each(|_| world.step());
    world.cut(0, 1);
    ["new/1", "new/2"].iter().for_each(|filter| world.nodes[0].add(filter));
    (0..20).for_each(|_| world.step());
    let (owner, incarnation) = (id(0), Incarnation(1));
    let mut out = Vec::new();
    let all = Want { owner, incarnation, after: 0, behind: None, bytes: u32::MAX };
    let (asker, mut now) = (PortId { peer: id(7), generation: 1 }, world.now);
    world.nodes[0].registers.port_up(asker, now, &mut out);
    world.nodes[0].registers.hear_want(asker, all, now, &mut out);
    let (mut newest, mut version, mut entries) = (None, 0, BTreeMap::new());
    for (_, say) in out.drain(..) {
        let Say::Delta(_, signed) = say else { continue };
        let delta = Delta::decode(&signed.wire).unwrap();
        (newest, version) = (Some(signed), delta.head.version);
        for (key, value) in delta.changes {
            match value {
                Some(value) => entries.insert(key, value),
                None => entries.remove(&key),
            };
        }
    }
    let (newest, good): (_, Vec<_>) = (newest.unwrap(), entries.into_iter().collect());
    let without = |gone: usize| good.iter().enumerate().filter(move |(place, _)| *place != gone).map(|(_, entry)| entry.clone());
    let other = (filter("new/3"), Value::Present);
    let echo = (Key::Echo(id(5)), Value::Present);
    let lies: [(bool, Vec<(Key, Value)>); 4] = [
        (true, without(0).collect()),
        // As many entries of as many bytes.
        (true, without(good.iter().position(|(key, _)| *key == filter("new/2")).unwrap()).chain([other.clone()]).collect()),
        // No end is in sight.
        (false, good.iter().cloned().chain([other, echo]).collect()),
        (false, vec![(filter(&"long".repeat(10_000)), Value::Present)]),
    ];
    let registers = &world.nodes[1].registers;
    let known = || world.nodes[1].mirror.0.lock().get(&owner).map(|(known, content)| (*known, content.len()));
    let liar = PortId { peer: id(8), generation: 1 };
    registers.port_up(liar, now, &mut out);
    registers.hear_have(liar, &[Have { owner, incarnation, version, age: Duration::ZERO }], now, &mut out);
    let mut answer = |last, entries: &[(Key, Value)], says_size: bool| {
        while !out.drain(..).any(|(port, say)| port == liar && matches!(say, Say::Want(want) if want.owner == owner)) {
            now += Duration::from_secs(1);
            registers.hear_have(liar, &[Have { owner, incarnation, version, age: Duration::ZERO }], now, &mut out);
        }
        if says_size {
            registers.take(liar, DeltaMode::Copy, SignedRecord::clone(&newest), now, &mut out).unwrap();
        }
        let page = Some(Page { last, entries: entries.to_vec() });
        registers.hear_end(liar, End { owner, incarnation, version, page }, now, &mut out)
    };
    for (last, entries) in &lies {
        assert!(matches!(answer(*last, entries, true), Err(RegisterError::BadCopy { .. })), "{} entries", entries.len());
        assert_eq!(known(), Some((true, BASE)));
    }
    assert_eq!(answer(true, &good, false), Ok(()));
    assert_eq!(known(), Some((true, BASE)), "nobody said how large it is");
    assert_eq!(answer(true, &good, true), Ok(()));
    assert_eq!(known(), Some((true, BASE + 2)));
}

/// Its filters are told one after the other, each delta whole: who was restarted is told all of these, and at no time takes the first for all there is.
#[test]
fn who_was_restarted_knows_nothing_before_it_knows_all() {
    struct KnowsAll(Mutex<usize>);
    impl Follow for KnowsAll {
        fn joined(&self, _: BrokerId) {}
        fn known(&self, member: BrokerId) {
            assert!(member != id(0) || *self.0.lock() == 30, "{} of its filters are here when it is known", self.0.lock());
        }
        fn changed(&self, _: BrokerId, changes: &[Change]) {
            let is_new = |key: &Key| matches!(key, Key::Filter(text) if text.starts_with("new/"));
            *self.0.lock() += changes.iter().filter(|(key, _)| is_new(key)).count();
        }
        fn left(&self, _: BrokerId) {}
    }
    for seed in 0..4 {
        let mut world = World::new(seed, 3);
        (1..3).for_each(|node| world.link(node - 1, node));
        for n in 0..30 {
            world.nodes[0].add(&format!("new/{n}"));
            world.step();
        }
        world.restart(1);
        world.nodes[1].registers.follow(Arc::new(KnowsAll(Mutex::default())));
        (1..3).for_each(|node| world.link(node - 1, node));
        let mut waited = 0;
        while !world.is_agreed() {
            world.step();
            waited += 1;
            assert!(waited < 100, "seed {seed}");
        }
    }
}

/// Nothing is kept any more for the subscriptions of one who leaves: that is to be told.
#[test]
fn who_leaves_is_told_with_its_filters() {
    let mut world = World::new(1, 2);
    let before = world.nodes[0].truth.len();
    ["x", "y"].iter().for_each(|filter| world.nodes[0].add(filter));
    let filters = before + 2;
    world.link(0, 1);
    (0..20).for_each(|_| world.step());
    world.cut(0, 1);
    let (now, registers) = (world.now, &world.nodes[1].registers);
    let left = [Duration::ZERO, MEMBER_TIMEOUT, 2 * MEMBER_TIMEOUT].map(|time| registers.tick(now + time, &mut Vec::new()));
    assert_eq!(left, [vec![], vec![(id(0), filters)], vec![]]);
}

/// Also a register that is long on its way: that its owner is a member is known at once.
#[test]
fn who_is_named_by_a_neighbour_is_a_member_of_whom_nothing_is_known() {
    let mut world = World::new(1, 3);
    world.link(0, 1);
    (0..20).for_each(|_| world.step());
    world.cut(0, 1);
    world.link(1, 2);
    let state = |world: &World| world.nodes[2].mirror.0.lock().get(&id(0)).map(|(known, _)| *known);
    assert_eq!(state(&world), None);
    let (port, now) = (world.port(2, 1), world.now);
    let dead = Have { owner: id(0), incarnation: Incarnation(1), version: 1, age: MEMBER_TIMEOUT / 2 };
    let mut out = Vec::new();
    world.nodes[2].registers.hear_have(port, &[dead, Have { owner: id(2), ..dead }], now, &mut out);
    assert_eq!(state(&world), Some(false));
    assert_eq!(world.nodes[2].registers.members(), [(id(0), false)], "and not oneself");
    world.send(2, out);
    (0..20).for_each(|_| world.step());
    assert_eq!(state(&world), Some(false), "what it said before may not be all that it said");
    world.link(0, 2);
    (0..20).for_each(|_| world.step());
    assert_eq!(state(&world), Some(true), "it has said it since it knows this broker");
}

/// A broker that is dead is known until it leaves, also to those who come when it is dead; then to nobody, however often they meet.
#[test]
fn the_dead_are_known_until_they_leave_and_do_not_come_back() {
    let mut world = World::new(1, 4);
    world.link(0, 1);
    (0..20).for_each(|_| world.step());
    world.cut(0, 1);
    world.now += MEMBER_TIMEOUT / 2;
    world.link(1, 2);
    (0..20).for_each(|_| world.step());
    let knows =
        |world: &World, node: usize| world.nodes[node].mirror.0.lock().get(&id(0)).is_some_and(|(_, content)| !content.is_empty());
    assert!(knows(&world, 2), "a newcomer is told of the dead");
    world.cut(1, 2);
    world.now += MEMBER_TIMEOUT / 2 - Duration::from_secs(1);
    world.link(1, 2);
    world.link(2, 3);
    (0..8).for_each(|_| world.step());
    world.now += Duration::from_secs(2);
    for _ in 0..5 {
        world.step();
        world.cut(1, 2);
        world.link(1, 2);
        world.link(1, 3);
    }
    assert!((1..4).all(|node| !knows(&world, node)));
}

/// A broker that has much to say, at once and again and again, over links that take a tenth of it: no link ever has more before it than the
/// bound (see `send`), and in the end everybody knows all of it. Who is being given a copy meanwhile gets on with it.
#[test]
fn a_large_register_does_not_hold_up_a_slow_link() {
    for (seed, rate) in [(1, 150), (2, 1_000)] {
        let mut world = World::new(seed, 4);
        world.rate = rate;
        (1..3).for_each(|node| world.link(node - 1, node));
        (0..10_000).for_each(|n| world.nodes[0].add(&format!("many/{n}/{}", "x".repeat(40))));
        for round in 0..20 {
            (0..500).for_each(|n| world.nodes[0].add(&format!("burst/{round}/{n}/{}", "x".repeat(40))));
            world.step();
            if round == 10 {
                world.link(2, 3);
            }
        }
        let mut waited = 0;
        while !world.is_agreed() {
            world.step();
            waited += 1;
            assert!(waited < 3_000, "seed {seed}: no agreement");
        }
        assert!(world.bytes > 4 * REGISTER_TAIL_BYTES && world.copies > 0);
        println!("{} s at {rate} bytes a ms: {} bytes, {} pages", (waited + 20) / 10, world.bytes, world.copies);
    }
}

/// Who asks for the register of a broker that is dead, and who has it, do not keep it alive for each other.
#[test]
fn the_dead_leave_also_where_others_come_later_and_copy_them() {
    for seed in 0..4 {
        let mut world = World::new(seed, 4);
        world.link(0, 1);
        (0..20).for_each(|_| world.step());
        world.cut(0, 1);
        let mut links = vec![(700, 1, 3), (500, 2, 3), (300, 1, 2)];
        for second in 0..2_700 {
            while let Some((_, a, b)) = links.pop_if(|(at, ..)| *at <= second) {
                world.link(a, b);
            }
            // Those who live hear of each other.
            let now = world.now;
            let others = |node| (1..4).filter(move |other| *other != node);
            (1..4).for_each(|node| others(node).for_each(|other| world.nodes[node].registers.met(id(other), now)));
            world.step();
            world.now += Duration::from_millis(907);
            let has = |node: &Node| node.mirror.0.lock().contains_key(&id(0));
            let is_forgotten = !world.nodes.iter().skip(1).any(has);
            assert!(
                is_forgotten == (second >= 900) || (890..910).contains(&second),
                "seed {seed}: {is_forgotten} in second {second}"
            );
        }
    }
}

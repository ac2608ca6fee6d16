//! The delivery contract (`ARCHITECTURE.md`, "The delivery contract"), judged by `loadtest`'s ledger: publishers and subscribers of all QoS at
//! every broker, and faults on a timetable that follows from a seed. What is acknowledged at QoS 1 and 2 arrives, at QoS 0 and 2 nothing comes
//! twice, all comes in order and whole, sessions are there when their clients come back.
//!
//! Short in CI; the long runs are ignored:
//!
//! ```text
//! LEDGER_SECONDS=600 LEDGER_RATE=2000 cargo test --release --test e2e ledger:: -- --ignored --nocapture --test-threads 1 ten_minutes
//! ```
//!
//! | variable | what it says | default |
//! |---|---|---|
//! | `LEDGER_SECONDS` | how long faults come | of each run |
//! | `LEDGER_SEED` | which faults: a run is repeated with the seed that it printed | fresh |
//! | `LEDGER_RATE` | messages a second from every broker | 2000 |
//! | `LEDGER_SHAPE` | `cycle` or `full` | full |
//! | `LEDGER_FAULTS` | some of `kill,stop,cut,one-way,flap,partition,roll` | all |
//! | `LEDGER_QOS` | of Koziolek's publisher | 1 |
//! | `LEDGER_COUNT` | messages of each publisher of the million | 1000000 |

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use loadtest::QoS;
use loadtest::mesh::{Account, MeshPlan, MeshRun, Publishing, Subscribing};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use crate::broker::{Broker, PATIENCE, Site};
use crate::relay::{BOTH, Relay, Way};

const ALL_QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// Between two faults of the long runs.
const FAULT_EVERY: Duration = Duration::from_secs(5);

/// How long a broker that was killed is away.
const DEAD_FOR: Duration = Duration::from_secs(2);

/// How long a broker stands still, or a path is cut: long enough that everybody notices.
const GONE_FOR: Duration = Duration::from_secs(3);

/// At the end of a long run a broker may have many minutes of others' messages to catch up with.
const SETTLING_MAX: Duration = Duration::from_secs(180);

/// What a broker may take, as it is configured.
#[derive(Clone, Copy)]
struct Bounds {
    /// `mesh.replay_log_bytes`.
    replay_log_mib: u64,
    /// `limits.memory_limit`: what bounds the process as a whole, whatever it is taken for.
    memory_mib: u64,
    /// What is needed on the disk for sessions: nobody is away for more than ten seconds (a partition), and of that time's messages there are never more, heads and
    /// what else is written of them included.
    sessions_mib: u64,
}

/// Of runs of seconds.
const SHORT: Bounds = Bounds { replay_log_mib: 16, memory_mib: 256, sessions_mib: 8 };

/// Of those of minutes: the replay log is as large as it is by default.
const LONG: Bounds = Bounds { replay_log_mib: 256, memory_mib: 2_048, sessions_mib: 128 };

impl Bounds {
    fn memory_bytes(self) -> u64 {
        self.memory_mib << 20
    }

    /// The log on the disk holds twice what is needed, and 32 MiB; needed are sessions, and of the replay log, in the minutes after a restart, three times its size.
    fn disk_bytes(self) -> u64 {
        (2 * (3 * self.replay_log_mib + self.sessions_mib) + 32) << 20
    }

    fn configure(self, configuration: &str) -> String {
        let Self { replay_log_mib, memory_mib, .. } = self;
        // What waits for a client that is away must not be what is lost here.
        let limits =
            format!("[limits]\nmax_queued_messages = 5000000\nmax_queued_bytes = \"2GiB\"\nmemory_limit = \"{memory_mib}MiB\"\n");
        let log = format!("replay_log_bytes = \"{replay_log_mib}MiB\"\nsubscribe_ack");
        // Of the largest packets the log must hold some.
        configuration.replacen("subscribe_ack", &log, 1) + &limits + "max_packet_size = \"1MiB\"\n"
    }
}

/// What may happen to a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// `kill -9`, and a start with what is on the disk.
    Kill,
    /// SIGSTOP, and SIGCONT.
    Stop,
    /// Nothing passes between two brokers.
    Cut,
    /// Nothing passes from one to the other.
    OneWay,
    /// A path that is there and not there, at first too shortly to be noticed, then longer.
    Flap,
    /// Two parts with nothing between them.
    Partition,
    /// One after the other is stopped in order and started again.
    Roll,
}

const ALL_FAULTS: [(&str, Fault); 7] = [
    ("kill", Fault::Kill),
    ("stop", Fault::Stop),
    ("cut", Fault::Cut),
    ("one-way", Fault::OneWay),
    ("flap", Fault::Flap),
    ("partition", Fault::Partition),
    ("roll", Fault::Roll),
];

/// What is done at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Kill(usize),
    Terminate(usize),
    Start(usize),
    Stop(usize),
    Continue(usize),
    Cut(usize, Option<Way>),
    Heal(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Full,
    Cycle,
}

/// A broker that may be dead or stand still.
struct Member {
    name: String,
    configuration: String,
    address: SocketAddr,
    broker: Option<Broker>,
    is_stopped: bool,
    /// The most memory that a life of it has taken, KiB.
    resident_max_kib: u64,
}

/// A path between two brokers, over a relay.
struct MeshPath {
    ends: [usize; 2],
    relay: Relay,
}

/// Brokers, the paths between them, and what is to happen to both.
struct Lab {
    members: Vec<Member>,
    paths: Vec<MeshPath>,
    /// By moment and order.
    ahead: BTreeMap<(Instant, usize), Step>,
    bounds: Bounds,
    /// The last, for the others have files in it.
    site: Site,
}

/// A port that is free and that nothing gets by itself, so that a broker finds its own again after it was dead.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    let _ = NEXT.compare_exchange(0, rand::random_range(1..COUNT), Ordering::Relaxed, Ordering::Relaxed);
    loop {
        let port = FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let address = (Ipv4Addr::LOCALHOST, port);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return port;
        }
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

impl Lab {
    fn new(shape: Shape, count: usize, bounds: Bounds) -> Self {
        let site = Site::new();
        let meshes: Vec<SocketAddr> = (0..count).map(|_| local(port())).collect();
        let ends = |dialler: usize| -> Vec<usize> {
            match shape {
                Shape::Full => (0..dialler).collect(),
                Shape::Cycle => {
                    dialler.checked_sub(1).into_iter().chain((dialler + 1 == count && count > 2).then_some(0)).collect()
                }
            }
        };
        let pairs = (0..count).flat_map(|dialler| ends(dialler).into_iter().map(move |end| [dialler, end]));
        let paths: Vec<MeshPath> = pairs.map(|ends| MeshPath { ends, relay: Relay::start(meshes[ends[1]]) }).collect();
        let members = (0..count).map(|place| {
            let name = format!("n{place}");
            site.certify("m", &name, &[]);
            let peers = paths.iter().filter(|path| path.ends[0] == place).map(|path| path.relay.address());
            let address = local(port());
            let configuration = site
                .configuration(&name, &peers.collect::<Vec<_>>())
                .replacen("[[listener]]\nbind = \"127.0.0.1:0\"", &format!("[[listener]]\nbind = \"{address}\""), 1)
                .replacen("listen = \"127.0.0.1:0\"", &format!("listen = \"{}\"", meshes[place]), 1);
            let configuration = bounds.configure(&configuration);
            Member { name, configuration, address, broker: None, is_stopped: false, resident_max_kib: 0 }
        });
        let mut lab = Self { members: members.collect(), paths, site, ahead: BTreeMap::new(), bounds };
        (0..count).for_each(|place| lab.take(Step::Start(place)));
        lab
    }

    fn addresses(&self) -> Vec<String> {
        self.members.iter().map(|member| member.address.to_string()).collect()
    }

    /// Does one thing, unless it is done already.
    fn take(&mut self, step: Step) {
        match step {
            Step::Kill(place) => {
                self.members[place].measure();
                self.members[place].is_stopped = false;
                self.members[place].broker.take().into_iter().for_each(Broker::kill);
            }
            Step::Terminate(place) => {
                self.take(Step::Continue(place));
                self.members[place].measure();
                if let Some(mut broker) = self.members[place].broker.take() {
                    let begun = Instant::now();
                    broker.signal("TERM");
                    assert_eq!(broker.wait().code(), Some(0), "{}: {}", broker.name, broker.log());
                    let took = begun.elapsed();
                    println!("{} stopped in {took:?}", broker.name);
                    assert!(took < Duration::from_secs(5), "{took:?}: {}", broker.log());
                }
            }
            Step::Start(place) => {
                let member = &mut self.members[place];
                if member.broker.is_none() {
                    member.broker = Some(self.site.start(&member.name, &member.configuration));
                }
            }
            Step::Stop(place) => {
                let member = &mut self.members[place];
                member.broker.iter().for_each(|broker| broker.signal("STOP"));
                member.is_stopped = member.broker.is_some();
            }
            Step::Continue(place) => {
                let member = &mut self.members[place];
                member.broker.iter().filter(|_| member.is_stopped).for_each(|broker| broker.signal("CONT"));
                member.is_stopped = false;
            }
            Step::Cut(path, way) => {
                let ways = way.map_or(BOTH.to_vec(), |way| vec![way]);
                self.paths[path].relay.set(&ways, |conditions| conditions.is_cut = true);
            }
            Step::Heal(path) => self.paths[path].relay.set(&BOTH, |conditions| conditions.is_cut = false),
        }
    }

    fn at(&mut self, moment: Instant, step: Step) {
        self.ahead.insert((moment, self.ahead.len()), step);
    }

    /// Puts a fault and its end on the timetable; what it is, for the report. `victims` may be killed and stopped.
    fn plan(&mut self, fault: Fault, begin: Instant, victims: &[usize], rng: &mut StdRng) -> String {
        let place = *victims.choose(rng).unwrap();
        let path = rng.random_range(0..self.paths.len());
        let [from, to] = self.paths[path].ends;
        match fault {
            Fault::Kill => {
                self.at(begin, Step::Kill(place));
                self.at(begin + DEAD_FOR, Step::Start(place));
                format!("kill -9 n{place} for {DEAD_FOR:?}")
            }
            Fault::Stop => {
                self.at(begin, Step::Stop(place));
                self.at(begin + GONE_FOR, Step::Continue(place));
                format!("stop n{place} for {GONE_FOR:?}")
            }
            Fault::Cut => {
                self.at(begin, Step::Cut(path, None));
                self.at(begin + GONE_FOR, Step::Heal(path));
                format!("cut n{from}-n{to} for {GONE_FOR:?}")
            }
            Fault::OneWay => {
                let way = *BOTH.choose(rng).unwrap();
                self.at(begin, Step::Cut(path, Some(way)));
                self.at(begin + GONE_FOR, Step::Heal(path));
                format!("cut n{from}-n{to}, {way:?} only, for {GONE_FOR:?}")
            }
            Fault::Flap => {
                let mut moment = begin;
                for away_ms in [100, 200, 400, 800, 1_200] {
                    let away = Duration::from_millis(away_ms);
                    self.at(moment, Step::Cut(path, None));
                    self.at(moment + away, Step::Heal(path));
                    moment += away + Duration::from_millis(150);
                }
                format!("flap n{from}-n{to}")
            }
            Fault::Partition => self.part(begin, 2 * FAULT_EVERY, rng),
            Fault::Roll => {
                for place in 0..self.members.len() {
                    let moment = begin + DEAD_FOR * place as u32;
                    self.at(moment, Step::Terminate(place));
                    self.at(moment, Step::Start(place));
                }
                "roll all".to_owned()
            }
        }
    }

    /// Two parts, neither of them empty.
    fn part(&mut self, begin: Instant, span: Duration, rng: &mut StdRng) -> String {
        let mut places: Vec<usize> = (0..self.members.len()).collect();
        places.shuffle(rng);
        let part = places.split_off(rng.random_range(1..places.len()));
        for path in 0..self.paths.len() {
            let [a, b] = self.paths[path].ends;
            if part.contains(&a) != part.contains(&b) {
                self.at(begin, Step::Cut(path, None));
                self.at(begin + span, Step::Heal(path));
            }
        }
        format!("part {part:?} from the others for {span:?}")
    }

    /// Does what is due.
    fn proceed(&mut self) {
        while let Some(entry) = self.ahead.first_entry().filter(|entry| entry.key().0 <= Instant::now()) {
            let step = entry.remove();
            self.take(step);
        }
    }

    /// Does all that is ahead and lets time pass until then; then ends whatever is still wrong.
    fn finish(&mut self) {
        while let Some((&(moment, _), _)) = self.ahead.first_key_value() {
            thread::sleep(moment.saturating_duration_since(Instant::now()));
            self.proceed();
        }
        (0..self.paths.len()).for_each(|path| self.take(Step::Heal(path)));
        (0..self.members.len()).for_each(|place| {
            self.take(Step::Continue(place));
            self.take(Step::Start(place));
        });
    }

    /// What the brokers took of the machine, which must be within bounds, and whether they are content with themselves.
    fn report(&mut self) {
        for member in &mut self.members {
            member.measure();
            let log = member.broker.as_ref().unwrap().log();
            let disk_bytes = bytes_below(&self.site.path().join(&member.name));
            println!("{}: at most {} KiB of memory, {} KiB on disk", member.name, member.resident_max_kib, disk_bytes / 1024);
            let (resident_bytes, bounds) = (member.resident_max_kib * 1024, self.bounds);
            assert!((1..=bounds.memory_bytes()).contains(&resident_bytes), "{}: {resident_bytes} bytes of memory", member.name);
            assert!(disk_bytes <= bounds.disk_bytes(), "{}: {disk_bytes} bytes on disk", member.name);
            assert!(!log.contains("panicked"), "{}: {log}", member.name);
        }
    }
}

impl Member {
    fn measure(&mut self) {
        let Some(broker) = &self.broker else { return };
        let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        self.resident_max_kib = self.resident_max_kib.max(peak.unwrap_or_default());
    }
}

/// Of all files below a directory.
fn bytes_below(path: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
        _ => entry.metadata().map_or(0, |data| data.len()),
    });
    sizes.sum()
}

/// Starts the clients, and opens the books when everybody hears everybody.
fn begin(plan: MeshPlan) -> MeshRun {
    let run = MeshRun::start(plan).unwrap();
    let joined = Instant::now() + PATIENCE;
    while !run.is_joined() {
        if Instant::now() > joined {
            let account = run.account();
            let silent = account.flows.iter().filter(|flow| flow.delivered == 0);
            let pairs: Vec<_> = silent.map(|flow| (flow.publisher, flow.subscriber)).collect();
            panic!("not everybody hears everybody, publisher to subscriber: {pairs:?}\n{account}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    run.open_books();
    run
}

/// Ends the run when all is there, or nothing comes any more; the account.
fn end(run: MeshRun, lab: &mut Lab) -> Account {
    run.note("all is well again");
    run.stop_publishing();
    let (stopped, quiet) = (Instant::now(), PATIENCE.min(Duration::from_secs(20)));
    while !run.is_settled() && stopped.elapsed() < SETTLING_MAX && run.quiet_for().min(stopped.elapsed()) < quiet {
        thread::sleep(Duration::from_millis(20));
    }
    run.note("settled, or given up");
    let account = run.finish();
    println!("{account}");
    lab.report();
    account
}

fn assert_contract(account: &Account, seed: u64) {
    assert_eq!(account.breaches(), Vec::<String>::new(), "LEDGER_SEED={seed}");
    assert!(account.flows.iter().all(|flow| flow.owed > 0 && flow.delivered > 0), "somebody was owed nothing: {account}");
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

fn seed() -> u64 {
    let seed = variable("LEDGER_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!("LEDGER_SEED={seed}");
    seed
}

/// Of each of the brokers at `homes` one publisher of each QoS and one subscriber, who hears all or only the publishers of half of the brokers.
fn clients(lab: &Lab, homes: &[usize], rate: f64, hears_half: bool) -> MeshPlan {
    let publishers = homes.iter().flat_map(|&home| ALL_QOS.map(|qos| Publishing { at: vec![home], qos }));
    let subscribers = homes.iter().enumerate().map(|(nth, &home)| {
        let half = (0..homes.len().div_ceil(2)).map(|next| (nth + 1 + next) % homes.len());
        let heard = half.flat_map(|nth| nth * ALL_QOS.len()..(nth + 1) * ALL_QOS.len());
        Subscribing { at: vec![home], hears: hears_half.then(|| heard.collect()) }
    });
    MeshPlan {
        publishers: publishers.collect(),
        subscribers: subscribers.collect(),
        rate: Some(rate / ALL_QOS.len() as f64),
        ..MeshPlan::everywhere(lab.addresses(), &ALL_QOS)
    }
}

/// Traffic, and one fault after the other in this order.
fn endure(lab: &mut Lab, plan: MeshPlan, faults: &[(Fault, Duration)], victims: &[usize], rng: &mut StdRng) -> Account {
    let run = begin(plan);
    for &(fault, span) in faults {
        let begin = Instant::now();
        let what = lab.plan(fault, begin, victims, rng);
        println!("{what}");
        run.note(what);
        while begin.elapsed() < span {
            lab.proceed();
            thread::sleep(Duration::from_millis(5));
        }
    }
    lab.finish();
    end(run, lab)
}

/// Links that fail in every way, a partition, and a broker that stands still: no broker dies.
fn bad_links(shape: Shape, hears_half: bool) {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut lab = Lab::new(shape, 5, SHORT);
    let everybody = [0, 1, 2, 3, 4];
    let plan = clients(&lab, &everybody, 150.0, hears_half);
    let faults = [Fault::OneWay, Fault::Flap, Fault::Cut, Fault::Stop].map(|fault| (fault, Duration::from_secs(2)));
    let account = endure(&mut lab, plan, &faults, &everybody, &mut rng);
    assert_contract(&account, seed);
}

#[test]
fn five_brokers_in_a_cycle_keep_the_contract_while_links_fail() {
    bad_links(Shape::Cycle, false);
}

#[test]
fn five_brokers_in_a_full_mesh_keep_the_contract_while_links_fail() {
    bad_links(Shape::Full, true);
}

#[test]
fn a_partition_that_heals_costs_nothing() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut lab = Lab::new(Shape::Cycle, 4, SHORT);
    let run = begin(clients(&lab, &[0, 1, 2, 3], 150.0, false));
    let what = lab.part(Instant::now(), GONE_FOR, &mut rng);
    run.note(what);
    lab.proceed();
    lab.finish();
    // The parts find each other under traffic.
    thread::sleep(GONE_FOR);
    assert_contract(&end(run, &mut lab), seed);
}

/// Two brokers without clients of their own are killed again and again, roots and leaves as it happens.
#[test]
fn brokers_that_are_killed_on_the_way_cost_nothing() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut lab = Lab::new(Shape::Full, 5, SHORT);
    let plan = clients(&lab, &[1, 3, 4], 150.0, false);
    let faults = [(Fault::Kill, GONE_FOR); 3];
    let account = endure(&mut lab, plan, &faults, &[0, 2], &mut rng);
    assert_contract(&account, seed);
}

/// Five brokers with clients at all of them, a fault every five seconds out of everything.
#[test]
#[ignore = "ten minutes"]
fn ten_minutes_of_faults() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let seconds = variable("LEDGER_SECONDS").unwrap_or(600_u32);
    let shape = match variable::<String>("LEDGER_SHAPE").as_deref() {
        None | Some("full") => Shape::Full,
        Some("cycle") => Shape::Cycle,
        Some(other) => panic!("LEDGER_SHAPE={other}"),
    };
    let named = variable::<String>("LEDGER_FAULTS");
    let is_named = |name| named.as_deref().is_none_or(|named| named.split(',').any(|one| one == name));
    let faults: Vec<Fault> = ALL_FAULTS.into_iter().filter(|(name, _)| is_named(*name)).map(|(_, fault)| fault).collect();
    let timetable: Vec<_> = (0..seconds / 5).map(|_| (*faults.choose(&mut rng).unwrap(), FAULT_EVERY)).collect();
    let everybody = [0, 1, 2, 3, 4];
    let mut lab = Lab::new(shape, everybody.len(), LONG);
    let plan = clients(&lab, &everybody, variable("LEDGER_RATE").unwrap_or(2_000.0), false);
    let account = endure(&mut lab, plan, &timetable, &everybody, &mut rng);
    assert_contract(&account, seed);
}

/// Koziolek et al. 2020: one publisher, two subscribers with sessions that go to any living broker; every broker but the publisher's is killed
/// and brought back, and all that was published must reach both: 36,000 deliveries at full length.
#[test]
#[ignore = "three minutes"]
fn koziolek() {
    let seconds = variable("LEDGER_SECONDS").unwrap_or(180_u32);
    let qos = if variable("LEDGER_QOS").unwrap_or(1_u8) == 1 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
    let mut lab = Lab::new(Shape::Full, 3, LONG);
    let subscribers = [[1, 0, 2], [2, 0, 1]].map(|at| Subscribing { at: at.to_vec(), hears: None });
    let plan = MeshPlan {
        publishers: vec![Publishing { at: vec![0], qos }],
        subscribers: subscribers.to_vec(),
        rate: Some(100.0),
        count: Some(u64::from(seconds) * 100),
        ..MeshPlan::everywhere(lab.addresses(), &[])
    };
    let begun = Instant::now();
    let run = begin(plan);
    for (sixths, step) in [(1, Step::Kill(1)), (2, Step::Start(1)), (3, Step::Kill(2)), (4, Step::Start(2))] {
        lab.at(begun + Duration::from_secs(seconds.into()) * sixths / 6, step);
    }
    while !run.is_sent() {
        if let Some(((moment, _), step)) = lab.ahead.first_key_value().filter(|((moment, _), _)| *moment <= Instant::now()) {
            run.note(format!("{step:?} at {:?}", moment.duration_since(begun)));
        }
        lab.proceed();
        thread::sleep(Duration::from_millis(5));
    }
    let account = end(run, &mut lab);
    assert_contract(&account, 0);
    let owed: u64 = account.flows.iter().map(|flow| flow.owed).sum();
    assert_eq!(owed, u64::from(seconds) * 200, "all of it was acknowledged, and nothing of that is lost");
}

/// As many messages of QoS 2 from each of three brokers to all three, as fast as they go.
#[test]
#[ignore = "minutes"]
fn a_million_messages_of_qos_2_each_way_between_three_brokers() {
    let mut lab = Lab::new(Shape::Full, 3, LONG);
    let plan = MeshPlan {
        count: Some(variable("LEDGER_COUNT").unwrap_or(1_000_000)),
        window: NonZeroU16::new(500).unwrap(),
        ..MeshPlan::everywhere(lab.addresses(), &[QoS::ExactlyOnce])
    };
    let begun = Instant::now();
    let run = begin(plan);
    let mut told = Instant::now();
    while !run.is_sent() {
        assert!(run.quiet_for() < PATIENCE, "nothing moves: {}", run.account());
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            println!("{:?}: {}", begun.elapsed(), run.account());
        }
        thread::sleep(Duration::from_millis(20));
    }
    println!("all sent after {:?}", begun.elapsed());
    assert_contract(&end(run, &mut lab), 0);
}

/// Every broker is stopped in order and started again, one after the other, with clients at all of them.
#[test]
fn a_rolling_restart_costs_nothing() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut lab = Lab::new(Shape::Full, 5, SHORT);
    let everybody = [0, 1, 2, 3, 4];
    let plan = clients(&lab, &everybody, variable("LEDGER_RATE").unwrap_or(150.0), false);
    let account = endure(&mut lab, plan, &[(Fault::Roll, 6 * DEAD_FOR)], &everybody, &mut rng);
    assert_contract(&account, seed);
}

/// Brokers with clients of their own are killed: what was acknowledged is not lost, and nothing of QoS 2 comes twice.
#[test]
fn brokers_with_clients_that_are_killed_lose_nothing() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut lab = Lab::new(Shape::Full, 3, SHORT);
    let plan = clients(&lab, &[0, 1, 2], variable("LEDGER_RATE").unwrap_or(150.0), false);
    let faults = vec![(Fault::Kill, GONE_FOR); variable("LEDGER_SECONDS").unwrap_or(9) / 3];
    let account = endure(&mut lab, plan, &faults, &[0, 1, 2], &mut rng);
    assert_contract(&account, seed);
}

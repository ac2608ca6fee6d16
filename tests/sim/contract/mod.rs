//! The delivery contract, held by whole brokers under faults: links that are cut, also in one direction first, brokers that crash, with their disks and
//! without, disks that are slow, clients that come and go. Nothing that was acknowledged is lost, nothing comes twice that may not, and everything comes in
//! order; when all is quiet, nothing waits anywhere.
//!
//! `SEEDS=2000 cargo test --release --no-default-features --test sim contract::many -- --ignored --nocapture` runs many of each kind, or of the one that `KIND` names; `SEED=n`
//! runs one, and with `LOUD=1` says what happens in it.

mod account;
mod client;
mod disk;
mod scenario;
mod service;
mod world;

use std::time::Duration;

use mqtt_st_quic::limits::NEWCOMER_TIME;

use account::Verdict;
use world::{Counts, Plan, World};

/// Rings that reach.
const AMPLE: Plan = Plan {
    brokers: 3,
    clients: 3,
    disks_of_ten: 10,
    crashes: true,
    deaths: 0,
    replicas: false,
    parts: false,
    clocks: false,
    scripted: false,
    loses_disks: false,
    slow_disks: false,
    coin: false,
    wanders: false,
    shares: false,
    ring_blocks: 4_096,
    ring_bytes: 64 << 20,
    ring_age: Duration::from_secs(600),
    lane_rate: 100_000_000,
    credit: 1 << 20,
    stalls: false,
    founded: false,
    acts: 250,
    faults: 14,
};

#[derive(Debug, Default)]
struct Sum {
    owed: usize,
    lost: usize,
    lost_qos0: usize,
    repeated: u64,
    published: usize,
    taken: usize,
    sent: u64,
    events: u64,
    pulled: u64,
    gaps: u64,
    payloads_lost: u64,
    subacks_early: u64,
    promoted: u64,
    yielded: u64,
}

/// One run: traffic and faults, then healing, then traffic of which everybody gets everything, then quiet.
fn run(seed: u64, plan: Plan) -> (World, Verdict, Counts) {
    let mut world = World::new(seed, plan);
    // Some begin while everybody is new to the mesh, and some when all have founded.
    let begins_new = seed.is_multiple_of(3) && !plan.founded;
    world.run(if begins_new { Duration::from_secs(2) } else { NEWCOMER_TIME + Duration::from_secs(1) });
    if plan.deaths > 0 {
        world.let_die();
    } else {
        world.plan(Duration::from_secs(8), plan.acts, plan.faults);
        world.run(Duration::from_secs(11));
    }
    world.heal();
    world.run(Duration::from_secs(8));
    world.all_known();
    let calm = world.now();
    world.plan_messages(Duration::from_secs(2), plan.acts / 4);
    world.run(Duration::from_secs(12));
    let counts = world.counts();
    // A first copy may be lost, or refused by a disk that fails without its client's hearing of it.
    world.account.check_order(counts.gaps + counts.payloads_lost > 0);
    world.check_rest();
    let verdict = world.account.judge(calm);
    (world, verdict, counts)
}

fn seeds(fixed: u64) -> Vec<u64> {
    if let Ok(seed) = std::env::var("SEED") {
        return vec![seed.parse().expect("SEED is a number")];
    }
    let fresh = rand::random::<u64>() >> 16;
    println!("fresh seeds from {fresh}");
    (0..fixed).chain(fresh..fresh + fixed / 4).collect()
}

fn runs(fixed: u64, kind: (Plan, Check)) {
    run_all(seeds(fixed), kind);
}

fn run_all(seeds: impl IntoIterator<Item = u64>, (plan, check): (Plan, Check)) {
    let mut sum = Sum::default();
    for seed in seeds {
        let (world, verdict, counts) = run_one(seed, (plan, check));
        sum.owed += verdict.owed;
        sum.lost += verdict.lost.len();
        sum.lost_qos0 += verdict.lost_qos0.len();
        sum.repeated += world.account.repeated;
        sum.published += world.account.messages.len();
        sum.taken += world.account.messages.iter().filter(|message| message.is_taken).count();
        sum.sent += world.sent;
        sum.events += world.events;
        sum.pulled += counts.pulled;
        sum.gaps += counts.gaps;
        sum.payloads_lost += counts.payloads_lost;
        sum.subacks_early += counts.subacks_early;
        sum.promoted += counts.promoted;
        sum.yielded += counts.yielded;
    }
    println!("{sum:?}");
    assert!(sum.owed > 0 && sum.sent > 0);
}

/// One run, checked.
fn run_one(seed: u64, (plan, check): (Plan, Check)) -> (World, Verdict, Counts) {
    let plan = Plan { brokers: 2 + (seed % 4) as usize, ..plan };
    println!("seed {seed}");
    let (world, verdict, counts) = run(seed, plan);
    let text = format!("seed {seed}: {plan:?}: {verdict:?}, {counts:?}");
    check(&text, &world, &verdict, &counts);
    (world, verdict, counts)
}

type Check = fn(&str, &World, &Verdict, &Counts);

/// Nothing is lost, and nothing was given up.
fn is_kept(text: &str, world: &World, verdict: &Verdict, counts: &Counts) {
    let of = |&(client, number): &(usize, usize)| format!("client {client}, {number}: {:?}", world.account.messages[number]);
    let lost: Vec<_> = verdict.lost.iter().chain(&verdict.lost_qos0).map(of).collect();
    assert!(lost.is_empty(), "{text} {lost:#?}");
    assert_eq!((counts.gaps, counts.dropped), (0, 0), "{text}");
    // What only a broker had that has lost it, or had not acknowledged it when it crashed, is asked for in vain.
    let is_gone = world.account.messages.iter().any(|message| message.is_orphan || message.is_forgotten);
    assert!(is_gone || counts.payloads_lost == 0, "{text}");
}

/// Likewise, but for QoS 0.
fn is_kept_above_qos0(text: &str, world: &World, verdict: &Verdict, counts: &Counts) {
    is_kept(text, world, &Verdict { lost: verdict.lost.clone(), ..Verdict::default() }, counts);
}

/// Something may be lost, but it is counted.
fn is_counted(text: &str, _: &World, verdict: &Verdict, counts: &Counts) {
    let is_counted = counts.gaps + counts.payloads_lost > 0;
    assert!(is_counted || verdict.lost.is_empty(), "{text}");
    assert_eq!(counts.dropped, 0, "{text}");
}

const ALL_HAVE_DISKS: (Plan, Check) = (AMPLE, is_kept);
/// Whoever crashes without a disk takes with it what it had not passed on, and the sessions of its clients: that is owed to nobody, and all else is.
const SOME_HAVE_NONE: (Plan, Check) = (Plan { disks_of_ten: 5, ..AMPLE }, is_kept);
const DISKS_ARE_LOST: (Plan, Check) = (Plan { loses_disks: true, ..AMPLE }, is_kept);
const DISKS_ARE_SLOW: (Plan, Check) = (Plan { slow_disks: true, ..AMPLE }, is_kept);
/// What takes longer on its way than a broker is away is as old as that when it comes.
const LANES_STAND: (Plan, Check) = (Plan { stalls: true, faults: 20, ..AMPLE }, is_kept);
/// Interest that is wrong costs a question, and never a message of QoS 1 or 2.
const A_COIN: (Plan, Check) = (Plan { coin: true, disks_of_ten: 7, ..AMPLE }, is_kept_above_qos0);
/// Rings that hold little: publishers wait, and nothing goes.
const LINKS_ARE_SLOW: (Plan, Check) =
    (Plan { ring_blocks: 512, ring_bytes: 600_000, lane_rate: 20_000, credit: 4_000, faults: 0, ..AMPLE }, is_kept);
/// Rings that hold very little. (Not counted is what newcomers lack: nobody knows whether that is from before.)
const RINGS_ARE_SMALL: (Plan, Check) = (Plan { ring_blocks: 24, ring_bytes: 40_000, founded: true, ..AMPLE }, is_counted);

/// Some clients are members of share groups, of which each message goes to one.
const SHARED: (Plan, Check) = (Plan { shares: true, clients: 4, ..AMPLE }, is_kept);

/// They go from broker to broker besides.
const SHARED_WANDERING: (Plan, Check) = (Plan { wanders: true, ..SHARED.0 }, is_kept);

/// Clients go from broker to broker, and their sessions follow them, whatever the brokers' clocks say.
const WANDERING: (Plan, Check) = (Plan { wanders: true, clocks: true, ..AMPLE }, is_kept);

/// Sessions have replicas, and go on from these where their brokers are dead.
const REPLICATED: (Plan, Check) = (Plan { wanders: true, deaths: 3, faults: 0, ..AMPLE }, is_kept);

/// Links are cut for a moment besides, also while a broker is dying.
const REPLICATED_CUT: (Plan, Check) = (Plan { faults: 14, ..REPLICATED.0 }, is_kept);

/// The mesh falls into two parts between deaths, for longer than sessions wait for their brokers.
const REPLICATED_PARTED: (Plan, Check) = (Plan { parts: true, ..REPLICATED.0 }, is_kept);

/// All at once, but for share groups.
const EVERYTHING: (Plan, Check) =
    (Plan { wanders: true, clients: 4, coin: true, slow_disks: true, disks_of_ten: 7, clocks: true, ..AMPLE }, is_kept_above_qos0);

/// With them.
const EVERYTHING_SHARED: (Plan, Check) = (Plan { shares: true, ..EVERYTHING.0 }, is_kept_above_qos0);

/// And brokers die at any time while sessions have replicas. Without share groups: what one has given to a session that goes on elsewhere, from a replica that was not told of it, is dropped and counted
/// with that session.
const EVERYTHING_REPLICATED: (Plan, Check) = (Plan { replicas: true, ..EVERYTHING.0 }, is_kept_above_qos0);

/// All kinds of runs.
const KINDS: [(&str, (Plan, Check)); 17] = [
    ("replicated", REPLICATED),
    ("replicated_cut", REPLICATED_CUT),
    ("replicated_parted", REPLICATED_PARTED),
    ("everything", EVERYTHING),
    ("everything_shared", EVERYTHING_SHARED),
    ("everything_replicated", EVERYTHING_REPLICATED),
    ("shared_wandering", SHARED_WANDERING),
    ("wandering", WANDERING),
    ("shared", SHARED),
    ("all_have_disks", ALL_HAVE_DISKS),
    ("some_have_none", SOME_HAVE_NONE),
    ("disks_are_lost", DISKS_ARE_LOST),
    ("disks_are_slow", DISKS_ARE_SLOW),
    ("lanes_stand", LANES_STAND),
    ("a_coin", A_COIN),
    ("links_are_slow", LINKS_ARE_SLOW),
    ("rings_are_small", RINGS_ARE_SMALL),
];

#[test]
fn all_have_disks_and_crash() {
    runs(12, ALL_HAVE_DISKS);
}

/// These once came again without the mark of a duplicate.
#[test]
fn what_was_sent_behind_a_whole_window_before_a_crash_comes_as_a_duplicate() {
    for seed in [249_822_381_960_885, 900_010] {
        let (world, ..) = run_one(seed, ALL_HAVE_DISKS);
        assert!(world.account.marked_behind > 0, "with seed {seed} it is not so any more: take another");
    }
}

#[test]
fn some_have_no_disks() {
    runs(12, SOME_HAVE_NONE);
}

#[test]
fn disks_are_lost() {
    runs(12, DISKS_ARE_LOST);
}

#[test]
fn disks_are_slow_and_fail() {
    runs(12, DISKS_ARE_SLOW);
}

#[test]
fn what_is_longer_on_its_way_than_its_receiver_was_away_comes_once() {
    runs(12, LANES_STAND);
}

#[test]
fn ports_are_told_what_a_coin_says() {
    runs(12, A_COIN);
}

#[test]
fn sessions_follow_their_clients() {
    runs(12, WANDERING);
}

#[test]
fn replicated_sessions_go_on_where_their_brokers_die() {
    runs(12, REPLICATED);
}

#[test]
fn replicated_sessions_go_on_where_links_are_cut_while_brokers_die() {
    runs(6, REPLICATED_CUT);
}

#[test]
#[ignore = "some seeds begin a session anew in a part that has its replica: not traced yet whether they may"]
fn replicated_sessions_outlast_parted_meshes() {
    runs(8, REPLICATED_PARTED);
}

#[test]
fn everything_at_once() {
    runs(6, EVERYTHING);
}

/// Seed 10 loses a message in some of its runs, which is not traced yet; seed 5 with replicas as well.
#[test]
#[ignore = "loses messages of share groups: see README"]
fn everything_at_once_with_share_groups() {
    runs(12, EVERYTHING_SHARED);
}

#[test]
fn everything_at_once_with_replicas() {
    runs(6, EVERYTHING_REPLICATED);
}

/// These once lost messages, and gave some twice: of two brokers with a session one knew from its disk only what the other had not.
#[test]
fn sessions_that_go_wait_for_what_only_a_disk_knows() {
    run_all([325, 353], (Plan { clocks: false, ..WANDERING.0 }, WANDERING.1));
}

#[test]
fn share_groups_get_everything_once() {
    runs(12, SHARED);
}

/// This once lost two messages: they were published while nobody knew the group, and when that was known its member had come here.
#[test]
fn a_group_that_was_not_known_gets_what_was_published_also_if_it_has_come_here_since() {
    run_all([100], SHARED_WANDERING);
}

#[test]
fn members_of_share_groups_go_elsewhere() {
    runs(12, SHARED_WANDERING);
}

/// This lost a message in one run of ten: a broker that was killed when sessions had gone from it gave it to the copy that it read from its disk.
#[test]
fn what_a_group_gives_to_a_session_that_has_gone_goes_to_another_member() {
    run_all([253_754_894_925_392; 30], (Plan { clocks: false, ..SHARED_WANDERING.0 }, SHARED_WANDERING.1));
}

#[test]
fn publishers_wait_for_slow_links() {
    runs(12, LINKS_ARE_SLOW);
}

#[test]
fn what_a_small_ring_loses_is_counted() {
    runs(12, RINGS_ARE_SMALL);
}

/// Seeds that nobody has seen, of every kind, or of the one that `KIND` names; one that is red does not end it.
#[test]
#[ignore = "minutes"]
fn many_seeds() {
    let count = std::env::var("SEEDS").map_or(500, |seeds| seeds.parse().expect("SEEDS is a number"));
    let (mut red, only) = (Vec::new(), std::env::var("KIND").ok());
    let kinds: Vec<_> = KINDS.into_iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)).collect();
    assert!(!kinds.is_empty(), "{only:?} is none of {:?}", KINDS.map(|(name, _)| name));
    for (name, kind) in kinds {
        let fresh = rand::random::<u64>() >> 16;
        let is_red = |seed: &u64| std::panic::catch_unwind(|| run_all([*seed], kind)).is_err();
        red.extend((fresh..fresh + count).filter(is_red).map(|seed| (name, seed)));
        println!("{name}: {count} runs from {fresh}, red so far {red:?}");
    }
    assert!(red.is_empty(), "{red:?}");
}

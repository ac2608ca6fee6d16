//! Interest that is wrong: what the ports are told of who wants what is a coin, tossed again and again, while links are cut and brokers crash.
//! It may cost pulls and bytes, and never a message of QoS 1 or 2.

use super::world::World;
use super::{AMPLE, Bounds, Found, TIGHT, run_in, seeds};

fn runs(fixed: u64, bounds: Bounds, crashes: bool, check: impl Fn(u64, &Found)) {
    let mut sum = Found::default();
    for seed in seeds(fixed) {
        let count = 3 + (seed % 4) as usize;
        println!("seed {seed}");
        let found = run_in(World::with_coin(seed, count, bounds), count, bounds, crashes);
        assert!(found.lost_silently.is_empty(), "seed {seed}: {found:?}");
        check(seed, &found);
        sum.owed += found.owed;
        sum.lost_counted += found.lost_counted;
        sum.events += found.events;
        sum.sent += found.sent;
        sum.pulled += found.pulled;
        sum.pulled_in_vain += found.pulled_in_vain;
    }
    println!("{sum:?}");
    assert!(sum.owed > 0 && sum.pulled > 0);
}

#[test]
fn a_coin_in_place_of_interest_loses_nothing() {
    runs(60, AMPLE, false, |seed, found| {
        assert_eq!((found.lost_counted, found.pulled_in_vain), (0, 0), "seed {seed}: {found:?}");
    });
}

/// What only a broker that crashed had is asked for in vain: its own messages wait behind it, and nobody else's.
#[test]
fn nor_does_it_where_brokers_crash() {
    runs(60, AMPLE, true, |seed, found| assert_eq!(found.lost_counted, 0, "seed {seed}: {found:?}"));
}

#[test]
fn what_a_small_ring_loses_is_counted_all_the_same() {
    runs(40, TIGHT, true, |_, _| {});
}

/// This once lost messages that nobody counted.
#[test]
fn what_a_small_ring_has_lost_of_what_was_asked_for_is_counted() {
    let seed = 62_934_650_588_475;
    let count = 3 + (seed % 4) as usize;
    let found = run_in(World::with_coin(seed, count, TIGHT), count, TIGHT, true);
    assert!(found.lost_silently.is_empty(), "{found:?}");
    assert!(found.lost_counted > 0 && found.pulled_in_vain > 0, "with seed {seed} it is not so any more: take another: {found:?}");
}

/// `SEEDS=5000 cargo test --release --no-default-features --test sim interest:: -- --ignored --nocapture`
#[test]
#[ignore = "minutes"]
fn many_seeds() {
    let fixed = std::env::var("SEEDS").map_or(2_000, |seeds| seeds.parse().expect("SEEDS is a number"));
    runs(fixed, AMPLE, true, |seed, found| assert_eq!(found.lost_counted, 0, "seed {seed}: {found:?}"));
    runs(fixed, AMPLE, false, |seed, found| {
        assert_eq!((found.lost_counted, found.pulled_in_vain), (0, 0), "seed {seed}: {found:?}")
    });
}

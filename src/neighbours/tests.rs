use super::*;

const MS: Duration = Duration::from_millis(1);

#[expect(clippy::disallowed_methods, reason = "any moment will do: the tests count from it")]
fn now() -> Instant {
    Instant::now()
}

fn id(n: u64) -> BrokerId {
    BrokerId(n)
}

fn neighbours(links_max: usize, chooses: bool) -> Neighbours {
    Neighbours::new(Settings { own: id(0), links_max, chooses, seed: 1 })
}

/// The map of these links, each broker with room for `links_max`.
fn map(links_max: usize, edges: &[(u64, u64, u64)]) -> Arc<Map> {
    let mut links: BTreeMap<u64, Vec<(BrokerId, Duration)>> = BTreeMap::new();
    for &(a, b, ms) in edges {
        links.entry(a).or_default().push((id(b), MS * ms as u32));
        links.entry(b).or_default().push((id(a), MS * ms as u32));
    }
    Arc::new(Map::draw(&links.into_iter().map(|(n, links)| Word { id: id(n), links_max, links }).collect::<Vec<_>>()))
}

fn set(ids: impl IntoIterator<Item = u64>) -> BTreeSet<BrokerId> {
    ids.into_iter().map(id).collect()
}

#[test]
fn a_small_mesh_is_fully_linked() {
    let start = now();
    let mut own = neighbours(3, true);
    assert_eq!(own.choose(&set([1, 2, 3]), &set([]), start), [id(1), id(2), id(3)]);
    own.link_up(id(2), MS, start);
    assert_eq!(own.choose(&set([0, 1, 2, 3]), &set([]), start), [id(1), id(3)]);
    assert_eq!(own.judge(id(9), MS, start), Verdict::Admit);
}

#[test]
fn who_is_gone_for_long_does_not_make_a_mesh_large() {
    let start = now();
    let mut own = neighbours(3, true);
    own.link_up(id(1), MS, start);
    let all = set(1..20);
    assert_ne!(own.choose(&all, &set([]), start), [id(2), id(3)], "a large mesh has rings");
    // All that are there are dialled; of the others one now and then, who may be the far side of a partition.
    let mut tried = BTreeSet::new();
    for _ in 0..200 {
        let dialled = own.choose(&all, &set(4..20), start);
        assert!(dialled.contains(&id(2)) && dialled.contains(&id(3)) && dialled.len() <= 5, "{dialled:?}");
        tried.extend(dialled);
    }
    assert!(tried.len() > 5, "{tried:?}");
}

#[test]
fn who_does_not_choose_dials_whom_the_operator_named() {
    let start = now();
    let mut own = neighbours(2, false);
    own.tell(set([1, 2, 3]), false);
    own.learn(map(2, &[(1, 2, 1), (2, 4, 1)]));
    assert_eq!(own.choose(&set([1, 2, 4]), &set([]), start), [id(1), id(2)]);
    own.link_up(id(1), MS * 50, start);
    own.link_up(id(2), MS * 50, start);
    // Full: nobody is let in for being near, or for being named; only who is not reached.
    let later = start + Duration::from_secs(60);
    assert_eq!(own.judge(id(4), MS, later), Verdict::Refuse);
    assert!(matches!(own.judge(id(7), MS, later), Verdict::InPlaceOf(_)));
}

#[test]
fn who_is_not_reached_is_let_in_and_nobody_is_cut_off_for_it() {
    let start = now();
    let mut own = neighbours(2, true);
    own.link_up(id(1), MS, start);
    own.link_up(id(2), MS, start);
    own.set_carries(id(1), true);
    own.learn(map(2, &[(0, 1, 1), (0, 2, 1), (1, 2, 1)]));
    assert_eq!(own.judge(id(9), MS, start), Verdict::Refuse, "both have just come up");
    let later = start + Duration::from_secs(3);
    assert_eq!(own.judge(id(9), MS, later), Verdict::InPlaceOf(id(2)), "it carries nothing");
    // What carries messages goes as well, if the far side is still reached.
    own.set_carries(id(2), true);
    assert!(matches!(own.judge(id(9), MS, later), Verdict::InPlaceOf(_)));
    // A chain is not cut in the middle.
    own.learn(map(2, &[(0, 1, 1), (0, 2, 1)]));
    assert_eq!(own.judge(id(9), MS, later), Verdict::Refuse);
    // But at its end there is room.
    own.link_down(id(2));
    assert_eq!(own.judge(id(9), MS, later), Verdict::Admit);
}

#[test]
fn the_nearer_takes_the_place_of_the_farthest_that_carries_nothing() {
    let start = now();
    let mut own = neighbours(4, true);
    // Everybody is linked with everybody: whatever goes, nobody hangs on a single link.
    let edges: Vec<_> = (0..12).flat_map(|a| (a + 1..12).map(move |b| (a, b, 40))).collect();
    own.learn(map(4, &edges));
    let beside = own.beside(&own.map.blocks(id(0), &[id(1), id(2), id(3), id(4)]));
    let strangers: Vec<_> = (1..12).map(id).filter(|id| !beside.contains(id)).collect();
    for (at, peer) in strangers.iter().take(4).enumerate() {
        own.link_up(*peer, MS * (10 + at as u32), start);
    }
    own.set_carries(strangers[3], true);
    let newcomer = strangers[5];
    assert_eq!(own.judge(newcomer, MS, start), Verdict::Refuse, "they are new");
    let later = start + Duration::from_secs(20);
    assert_eq!(own.judge(newcomer, MS, later), Verdict::InPlaceOf(strangers[2]));
    assert_eq!(own.judge(newcomer, MS * 11, later), Verdict::Refuse, "hardly nearer");
    own.gave_up(later);
    assert_eq!(own.judge(newcomer, MS, later + Duration::from_secs(1)), Verdict::Refuse, "not all at once");
    assert!(matches!(own.judge(beside[0], MS * 90, later), Verdict::InPlaceOf(_)), "the ring does not wait");
    own.tell(strangers.iter().take(4).copied().collect(), true);
    assert_eq!(own.judge(newcomer, MS, later + Duration::from_secs(20)), Verdict::Refuse, "the operator's word holds");
}

#[test]
fn who_refuses_is_left_alone_for_longer_and_longer() {
    let start = now();
    let mut own = neighbours(2, true);
    own.learn(map(2, &[(0, 1, 1), (0, 2, 1), (1, 3, 1), (3, 2, 1), (3, 4, 1)]));
    own.link_up(id(1), MS, start);
    let mut waited = Vec::new();
    for _ in 0..12 {
        own.in_vain(id(4), start);
        waited.push(own.avoided[&id(4)].wait);
        assert!(own.is_avoided(id(4), AVOID_MAX, start) && !own.is_avoided(id(4), AVOID_MAX, start + AVOID_MAX));
        assert!(!own.is_avoided(id(4), AVOID_MISSED_MAX, start + AVOID_MISSED_MAX));
    }
    assert!(waited[0] <= AVOID_MIN.mul_f64(1.5) && *waited.last().unwrap() >= AVOID_MAX / 2, "{waited:?}");
    own.link_up(id(4), MS, start);
    assert!(!own.is_avoided(id(4), AVOID_MAX, start));
}

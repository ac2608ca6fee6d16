//! One machine, told step by step; a whole mesh of them is in `tests/sim/stp`.

use proptest::prelude::*;

use super::*;
use crate::ids::{Incarnation, RootClaim};

const HELLO: Duration = Duration::from_millis(100);
const INTERVAL: Duration = Duration::from_secs(1);
const HOP_MAX: u8 = 16;

/// Lower is better; the machine under test is `claim(5)`.
fn claim(id: u64) -> RootClaim {
    RootClaim { priority: 0, capacity: 0, id: BrokerId(id), incarnation: Incarnation(1) }
}

fn tree(epoch: u64, root: u64) -> TreeId {
    TreeId { epoch, root: claim(root) }
}

fn port(peer: u64) -> PortId {
    PortId { peer: BrokerId(peer), generation: peer }
}

/// A root's own word.
fn root_word(root: u64) -> Bpdu {
    Bpdu { number: 0, tree: tree(1, root), distance: Some(0), hops: 0, epoch_held: None, request_epoch: false }
}

fn number(child: u64, count: u64) -> OpenNumber {
    OpenNumber { count, child: BrokerId(child), incarnation: Incarnation(1) }
}

fn config() -> StpConfig {
    StpConfig { claim: claim(5), hop_max: HOP_MAX, hello: HELLO, epoch_interval: INTERVAL }
}

/// A machine with a clock, and what it last put out.
struct Bench {
    stp: Stp,
    now: Instant,
    numbers: BTreeMap<PortId, u64>,
    out: Vec<Output>,
}

impl Bench {
    /// Broker 5 with links to these peers.
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    fn new(peers: impl IntoIterator<Item = u64>) -> Self {
        let mut bench = Self { stp: Stp::new(config()), now: Instant::now(), numbers: BTreeMap::new(), out: Vec::new() };
        for peer in peers {
            bench.link_up(port(peer));
        }
        bench
    }

    fn link_up(&mut self, port: PortId) {
        self.input(Input::LinkUp { port, cost: NonZeroU32::MIN, rtt: Duration::from_millis(1) });
    }

    fn input(&mut self, input: Input) {
        self.out.clear();
        self.stp.handle(input, self.now, &mut self.out);
        assert!(self.stp.poll_timeout().is_none_or(|at| at > self.now));
    }

    fn refusal(&self) -> Option<PeerError> {
        self.out.iter().find_map(|output| if let Output::Refuse { error, .. } = output { Some(*error) } else { None })
    }

    fn hear(&mut self, peer: u64, tree: TreeId, distance: u32) {
        let hops = u8::try_from(distance).unwrap();
        self.hear_bpdu(peer, Bpdu { number: 0, tree, distance: Some(distance), hops, epoch_held: None, request_epoch: false });
    }

    fn hear_bpdu(&mut self, peer: u64, bpdu: Bpdu) {
        let last = self.numbers.entry(port(peer)).or_default();
        *last += 1;
        let number = *last;
        self.input(Input::Bpdu { port: port(peer), bpdu: Bpdu { number, ..bpdu } });
    }

    fn wait_until_timeout(&mut self) {
        self.now = self.stp.poll_timeout().expect("something to wait for");
        self.input(Input::Timeout);
    }

    /// Hangs the broker below `peer`, the root of `tree`, with open lanes.
    fn settle_below(&mut self, peer: u64, tree: TreeId) -> OpenNumber {
        self.hear(peer, tree, 0);
        let open = self.opened().expect("asked");
        self.input(Input::OpenReceived { port: port(peer), open });
        open.number
    }

    fn opened(&self) -> Option<OpenMark> {
        self.out.iter().find_map(|output| if let Output::OpenLanes { open, .. } = output { Some(*open) } else { None })
    }

    fn answered(&self) -> Option<OpenMark> {
        self.out.iter().find_map(|output| if let Output::AnswerOpen { open, .. } = output { Some(*open) } else { None })
    }

    fn closed(&self) -> Option<(PortId, OpenNumber)> {
        self.out.iter().find_map(
            |output| {
                if let Output::CloseLanes { port, number } = output { Some((*port, *number)) } else { None }
            },
        )
    }

    fn sent(&self, peer: u64) -> Option<Bpdu> {
        self.out.iter().find_map(|output| match output {
            Output::SendBpdu { port: to, bpdu } if *to == port(peer) => Some(*bpdu),
            _ => None,
        })
    }

    fn told(&self, peer: u64) -> Option<(Role, bool)> {
        self.out.iter().find_map(|output| match output {
            Output::PortState { port: of, role, forwarding } if *of == port(peer) => Some((*role, *forwarding)),
            _ => None,
        })
    }
}

#[test]
fn a_lone_broker_is_the_root() {
    let bench = Bench::new([]);
    assert!(bench.stp.is_root());
    assert_eq!((bench.stp.tree(), bench.stp.distance()), (tree(1, 5), Some(0)));
    assert_eq!(bench.stp.changes(), (0, ChangeCause::Started));
    assert_eq!(bench.stp.poll_timeout(), None);
}

#[test]
fn a_new_link_is_told_our_place() {
    let bench = Bench::new([1]);
    let bpdu = Bpdu { number: 1, tree: tree(1, 5), distance: Some(0), hops: 0, epoch_held: None, request_epoch: false };
    assert_eq!(
        bench.out,
        [Output::SendBpdu { port: port(1), bpdu }, Output::PortState { port: port(1), role: Role::Designated, forwarding: false },]
    );
}

#[test]
fn a_better_root_is_followed_and_asked() {
    let mut bench = Bench::new([1]);
    bench.hear(1, tree(1, 1), 0);
    assert_eq!(bench.stp.root_port(), Some(port(1)));
    assert_eq!(bench.opened(), Some(OpenMark { tree: tree(1, 1), number: number(5, 1) }));
    assert_eq!(bench.told(1), Some((Role::Root, false)));
    assert!(bench.out.contains(&Output::TreeChanged { tree: tree(1, 1), is_root: false, cause: ChangeCause::BetterTree }));
    let open = bench.opened().unwrap();
    bench.input(Input::OpenReceived { port: port(1), open });
    assert_eq!(bench.told(1), Some((Role::Root, true)));
    assert_eq!(bench.stp.poll_timeout(), None, "an answered question is not repeated");
}

#[test]
fn a_worse_root_in_a_newer_epoch_is_outbid() {
    let mut bench = Bench::new([9]);
    bench.hear(9, tree(7, 9), 0);
    assert!(bench.stp.is_root());
    assert_eq!(bench.stp.tree(), tree(8, 5));
    assert_eq!(bench.stp.changes(), (1, ChangeCause::WorseRoot));
}

#[test]
fn a_question_is_repeated_until_it_is_answered_and_names_the_tree_of_the_moment() {
    let mut bench = Bench::new([1]);
    bench.hear(1, tree(1, 1), 0);
    let first = bench.opened().unwrap();
    let asked_at = bench.now;
    bench.wait_until_timeout();
    assert_eq!(bench.now, asked_at + HELLO);
    assert_eq!(bench.opened(), Some(first));
    bench.hear(1, tree(2, 1), 0);
    assert_eq!(bench.opened(), Some(OpenMark { tree: tree(2, 1), ..first }));
}

#[test]
fn a_slow_link_is_asked_no_faster_than_it_can_answer() {
    let mut bench = Bench::new([1]);
    bench.input(Input::Cost { port: port(1), cost: NonZeroU32::MIN, rtt: HELLO });
    bench.hear(1, tree(1, 1), 0);
    assert_eq!(bench.stp.poll_timeout(), Some(bench.now + 2 * HELLO));
}

#[test]
fn a_child_that_moves_asks_only_when_its_former_lanes_are_closed() {
    let mut bench = Bench::new([1, 2]);
    let former = bench.settle_below(2, tree(1, 2));
    bench.hear(1, tree(1, 1), 0);
    assert_eq!((bench.closed(), bench.opened()), (Some((port(2), former)), None));
    assert_eq!(bench.stp.root_port(), Some(port(1)));
    bench.input(Input::CloseReceived { port: port(2), number: former });
    assert_eq!(bench.opened(), None, "the parent's CLOSE says nothing about our writers");
    bench.input(Input::LanesClosed { port: port(2), number: former });
    assert_eq!(bench.opened(), Some(OpenMark { tree: tree(1, 1), number: number(5, 2) }));
}

#[test]
fn the_loss_of_the_former_link_is_as_good_as_its_close() {
    let mut bench = Bench::new([1, 2]);
    bench.settle_below(2, tree(1, 2));
    bench.hear(1, tree(1, 1), 0);
    assert_eq!(bench.opened(), None);
    bench.input(Input::LinkDown { port: port(2) });
    assert!(bench.opened().is_some());
    assert_eq!(bench.told(2), Some((Role::Disabled, false)));
    assert_eq!(bench.stp.role(port(2)), Role::Disabled);
}

#[test]
fn a_parent_answers_when_its_tree_is_the_childs() {
    let mut bench = Bench::new([1, 9]);
    bench.settle_below(1, tree(1, 1));
    let open = OpenMark { tree: tree(2, 1), number: number(9, 4) };
    bench.input(Input::OpenReceived { port: port(9), open });
    assert_eq!(bench.answered(), None);
    bench.hear(1, tree(2, 1), 0);
    assert_eq!(bench.answered(), Some(open));
    assert_eq!(bench.told(9), Some((Role::Designated, true)));
    bench.hear(1, tree(3, 1), 0);
    assert_eq!(bench.closed(), None, "an unchanged parent needs no new OPEN for a new tree");
    bench.input(Input::OpenReceived { port: port(9), open: OpenMark { tree: tree(3, 1), ..open } });
    assert_eq!(bench.answered(), None, "it is answered already");
}

#[test]
fn a_parent_closes_after_its_child_and_answers_it_again() {
    let mut bench = Bench::new([9]);
    let open = |count| OpenMark { tree: tree(1, 5), number: number(9, count) };
    bench.input(Input::OpenReceived { port: port(9), open: open(1) });
    assert_eq!(bench.answered(), Some(open(1)));
    bench.input(Input::CloseReceived { port: port(9), number: number(9, 1) });
    assert_eq!(bench.closed(), Some((port(9), number(9, 1))));
    bench.input(Input::OpenReceived { port: port(9), open: open(2) });
    assert_eq!(bench.answered(), None, "our own CLOSE is not written yet");
    bench.input(Input::LanesClosed { port: port(9), number: number(9, 1) });
    assert_eq!(bench.answered(), Some(open(2)));
}

#[test]
fn markers_are_ordered_by_number_wherever_they_overtake_each_other() {
    let mut bench = Bench::new([9]);
    let open = |count| OpenMark { tree: tree(1, 5), number: number(9, count) };
    bench.input(Input::CloseReceived { port: port(9), number: number(9, 3) });
    bench.input(Input::OpenReceived { port: port(9), open: open(3) });
    assert_eq!(bench.answered(), None, "CLOSE(3) voids OPEN(3), which comes later");
    bench.input(Input::OpenReceived { port: port(9), open: open(4) });
    assert_eq!(bench.answered(), Some(open(4)));
    bench.input(Input::OpenReceived { port: port(9), open: open(5) });
    assert_eq!(bench.closed(), Some((port(9), number(9, 4))), "OPEN(5) says that 4 was closed");
    bench.input(Input::CloseReceived { port: port(9), number: number(9, 4) });
    bench.input(Input::LanesClosed { port: port(9), number: number(9, 4) });
    assert_eq!(bench.answered(), Some(open(5)));
    bench.input(Input::OpenReceived { port: port(9), open: open(4) });
    assert_eq!((bench.answered(), bench.closed()), (None, None), "an old OPEN changes nothing");
}

#[test]
fn a_parents_close_makes_the_child_ask_with_a_new_number() {
    let mut bench = Bench::new([1]);
    let number = bench.settle_below(1, tree(1, 1));
    bench.input(Input::CloseReceived { port: port(1), number });
    assert_eq!(bench.closed(), Some((port(1), number)));
    assert_eq!(bench.told(1), Some((Role::Root, false)));
    bench.input(Input::LanesClosed { port: port(1), number });
    assert_eq!(bench.opened().map(|open| open.number.count), Some(number.count + 1));
}

#[test]
fn a_child_that_becomes_the_parent_is_closed_before_it_is_asked() {
    let mut bench = Bench::new([1]);
    let open = OpenMark { tree: tree(1, 5), number: number(1, 1) };
    bench.input(Input::OpenReceived { port: port(1), open });
    assert_eq!(bench.answered(), Some(open));
    bench.hear(1, tree(2, 1), 0);
    assert_eq!((bench.closed(), bench.opened()), (Some((port(1), open.number)), None));
    bench.input(Input::OpenReceived { port: port(1), open: OpenMark { tree: tree(2, 1), number: number(1, 2) } });
    assert_eq!(bench.answered(), None, "a Root port answers nobody");
    bench.input(Input::LanesClosed { port: port(1), number: open.number });
    assert_eq!(bench.opened(), Some(OpenMark { tree: tree(2, 1), number: number(5, 1) }));
}

#[test]
fn only_a_feasible_neighbour_becomes_the_parent_in_the_same_tree() {
    let mut bench = Bench::new([2, 3, 4]);
    bench.hear(2, tree(1, 1), 2);
    bench.hear(3, tree(1, 1), 3);
    bench.hear(4, tree(1, 1), 2);
    assert_eq!(bench.stp.distance(), Some(3));
    assert_eq!([2, 3, 4].map(|peer| bench.stp.role(port(peer))), [Role::Root, Role::Alternate, Role::Alternate]);
    bench.input(Input::LinkDown { port: port(2) });
    assert_eq!(bench.stp.root_port(), Some(port(4)), "the Alternate port takes over at once");
    assert_eq!(bench.stp.changes().1, ChangeCause::ParentLost);
    bench.input(Input::LinkDown { port: port(4) });
    assert_eq!(bench.stp.root_port(), Some(port(3)), "(3, broker 3) is below (3, broker 5)");
    bench.hear(3, tree(1, 1), 9);
    assert_eq!(bench.stp.distance(), Some(10), "the present parent may go away from the root");
}

#[test]
fn a_broker_without_a_feasible_parent_opens_the_next_epoch() {
    let mut bench = Bench::new([2, 3]);
    bench.hear(2, tree(7, 1), 1);
    bench.hear(3, tree(7, 1), 3);
    bench.input(Input::LinkDown { port: port(2) });
    assert_eq!(bench.stp.tree(), tree(8, 5), "broker 3 may well hang below us");
    bench.hear(3, tree(7, 1), 1);
    assert!(bench.stp.is_root(), "an older tree is void");
}

#[test]
fn a_parent_that_has_lost_its_way_is_left() {
    let mut bench = Bench::new([2, 3]);
    bench.hear(2, tree(7, 1), 1);
    bench.hear(3, tree(7, 1), 1);
    bench.hear_bpdu(2, Bpdu { number: 0, tree: tree(7, 1), distance: None, hops: 0, epoch_held: None, request_epoch: false });
    assert_eq!(bench.stp.root_port(), Some(port(3)));
}

#[test]
fn among_equal_ways_the_present_parent_stays_and_a_cheaper_one_wins() {
    let mut bench = Bench::new([2, 3]);
    bench.hear(3, tree(1, 1), 2);
    bench.hear(2, tree(1, 1), 2);
    assert_eq!(bench.stp.root_port(), Some(port(3)));
    bench.hear(2, tree(1, 1), 1);
    assert_eq!(bench.stp.root_port(), Some(port(2)));
    assert_eq!(bench.stp.changes().1, ChangeCause::CheaperWay);
}

#[test]
fn a_longer_way_of_the_same_cost_is_told() {
    let mut bench = Bench::new([1, 9]);
    let bpdu = |hops| Bpdu { number: 0, tree: tree(1, 0), distance: Some(5), hops, epoch_held: None, request_epoch: false };
    bench.hear_bpdu(1, bpdu(2));
    assert_eq!(bench.sent(9).map(|bpdu| (bpdu.distance, bpdu.hops)), Some((Some(6), 3)));
    bench.hear_bpdu(1, bpdu(2));
    assert_eq!(bench.sent(9), None, "nothing new");
    bench.hear_bpdu(1, bpdu(4));
    assert_eq!(bench.sent(9).map(|bpdu| (bpdu.distance, bpdu.hops)), Some((Some(6), 5)));
}

#[test]
fn an_older_bpdu_is_ignored() {
    let mut bench = Bench::new([1]);
    let bpdu = |number, distance| Input::Bpdu {
        port: port(1),
        bpdu: Bpdu { number, tree: tree(1, 0), distance: Some(distance), hops: 1, epoch_held: None, request_epoch: false },
    };
    bench.input(bpdu(2, 3));
    bench.input(bpdu(1, 1));
    bench.input(bpdu(2, 1));
    assert_eq!(bench.stp.distance(), Some(4));
}

#[test]
fn a_cost_that_cannot_be_counted_is_no_offer() {
    let mut bench = Bench::new([1]);
    bench.hear_bpdu(
        1,
        Bpdu { number: 0, tree: tree(1, 0), distance: Some(u32::MAX), hops: 1, epoch_held: None, request_epoch: false },
    );
    assert!(bench.stp.is_root());
}

#[test]
fn a_second_link_of_a_peer_takes_the_place_of_the_first() {
    let mut bench = Bench::new([1]);
    bench.settle_below(1, tree(1, 1));
    let second = PortId { generation: 77, ..port(1) };
    bench.link_up(second);
    assert!(bench.out.contains(&Output::PortState { port: port(1), role: Role::Disabled, forwarding: false }));
    assert_eq!(bench.stp.ports().map(|(port, ..)| port).collect::<Vec<_>>(), [second]);
    assert_eq!(bench.stp.tree(), tree(2, 5));
}

#[test]
fn a_way_that_holds_is_not_left_for_a_worse_root_but_the_root_is_told() {
    let mut bench = Bench::new([1, 9]);
    bench.settle_below(1, tree(1, 1));
    bench.hear(9, tree(2, 9), 0);
    assert_eq!((bench.stp.tree(), bench.sent(1).and_then(|bpdu| bpdu.epoch_held)), (tree(1, 1), Some(2)));
    assert_eq!(bench.sent(9), None, "nobody else is told");
    bench.hear(9, tree(3, 1), 7);
    assert_eq!(bench.stp.tree(), tree(1, 1), "the same root: its word comes down our own way as well");
    bench.hear(1, tree(3, 1), 0);
    assert_eq!((bench.stp.tree(), bench.stp.root_port()), (tree(3, 1), Some(port(1))));
    assert_eq!((bench.closed(), bench.opened()), (None, None), "no lane was disturbed");
}

#[test]
fn what_those_below_hold_back_is_passed_on_and_outbid_by_the_root() {
    let held =
        |tree, distance| Bpdu { number: 0, tree, distance: Some(distance), hops: 1, epoch_held: Some(6), request_epoch: false };
    let mut bench = Bench::new([1, 9]);
    bench.settle_below(1, tree(1, 1));
    bench.hear_bpdu(9, held(tree(1, 1), 2));
    assert_eq!(bench.sent(1).and_then(|bpdu| bpdu.epoch_held), Some(6));
    let mut root = Bench::new([9]);
    root.hear_bpdu(9, held(tree(1, 4), 2));
    assert_eq!(root.stp.tree(), tree(1, 4), "first another root, then it is lost");
    root.input(Input::LinkDown { port: port(9) });
    root.link_up(PortId { generation: 10, ..port(9) });
    assert_eq!(root.stp.tree(), tree(7, 5), "beyond every epoch that was ever named");
    let mut root = Bench::new([9]);
    root.hear_bpdu(9, held(tree(1, 5), 1));
    assert_eq!(root.stp.tree(), tree(7, 5));
}

#[test]
fn waiting_ends_with_the_way_with_a_better_root_or_in_time() {
    let waiting = || {
        let mut bench = Bench::new([2, 9]);
        bench.settle_below(2, tree(1, 2));
        bench.hear(9, tree(2, 3), 1);
        assert_eq!(bench.stp.tree(), tree(1, 2));
        bench
    };
    let mut bench = waiting();
    bench.input(Input::LinkDown { port: port(2) });
    assert_eq!(bench.stp.tree(), tree(2, 3));
    let mut bench = waiting();
    bench.hear(9, tree(2, 1), 1);
    assert_eq!(bench.stp.tree(), tree(2, 1));
    let mut bench = waiting();
    let begun_at = bench.now;
    bench.wait_until_timeout();
    assert_eq!((bench.stp.tree(), bench.now), (tree(2, 3), begun_at + INTERVAL));
}

#[test]
fn a_cheaper_way_that_is_infeasible_is_asked_for_once_an_interval() {
    let mut bench = Bench::new([1, 2]);
    bench.settle_below(1, tree(1, 1));
    bench.hear(2, tree(1, 1), 2);
    bench.input(Input::Cost { port: port(1), cost: NonZeroU32::new(9).unwrap(), rtt: Duration::ZERO });
    assert_eq!(bench.stp.distance(), Some(9));
    assert!(!bench.sent(1).unwrap().request_epoch, "it may be a passing moment");
    for _ in 0..2 {
        let asked_at = bench.now;
        bench.wait_until_timeout();
        assert_eq!(bench.now, asked_at + INTERVAL);
        assert!(bench.sent(1).unwrap().request_epoch);
        assert_eq!(bench.sent(2), None);
    }
    bench.hear(1, tree(2, 1), 0);
    bench.hear(2, tree(2, 1), 2);
    assert_eq!(bench.stp.root_port(), Some(port(2)));
}

#[test]
fn the_root_opens_epochs_on_request_no_faster_than_one_an_interval() {
    let mut bench = Bench::new([9]);
    let request = |tree| Bpdu { number: 0, tree, distance: Some(1), hops: 1, epoch_held: None, request_epoch: true };
    bench.hear_bpdu(9, request(tree(1, 5)));
    assert_eq!(bench.stp.tree(), tree(2, 5));
    assert_eq!(bench.stp.changes(), (1, ChangeCause::EpochRequested));
    bench.hear_bpdu(9, request(tree(1, 5)));
    assert_eq!(bench.stp.poll_timeout(), None, "that one is served");
    bench.hear_bpdu(9, request(tree(2, 5)));
    assert_eq!(bench.stp.tree(), tree(2, 5));
    bench.wait_until_timeout();
    assert_eq!(bench.stp.tree(), tree(3, 5));
}

#[test]
fn whoever_is_too_far_away_stays_outside_and_opens_no_epoch() {
    let mut bench = Bench::new([2, 3]);
    bench.hear(2, tree(7, 1), u32::from(HOP_MAX));
    assert_eq!((bench.stp.tree(), bench.stp.is_out_of_reach()), (tree(1, 5), true));
    bench.hear(3, tree(7, 1), u32::from(HOP_MAX) - 1);
    assert_eq!((bench.stp.root_port(), bench.stp.is_out_of_reach()), (Some(port(3)), false));
    bench.input(Input::LinkDown { port: port(3) });
    assert_eq!((bench.stp.tree(), bench.stp.distance()), (tree(7, 1), None));
    assert!(bench.stp.is_out_of_reach() && !bench.stp.is_root());
    assert_eq!(bench.sent(2).map(|bpdu| bpdu.distance), Some(None), "those below are told");
    bench.hear(2, tree(7, 1), 1);
    assert_eq!((bench.stp.root_port(), bench.stp.changes().1), (Some(port(2)), ChangeCause::InReach));
    bench.input(Input::LinkDown { port: port(2) });
    assert_eq!(bench.stp.tree(), tree(8, 5), "alone, it is its own root");
}

#[test]
fn what_no_honest_peer_says_is_refused_and_changes_nothing() {
    let refused = |input: Input, error: PeerError| {
        let mut bench = Bench::new([1]);
        bench.input(input);
        assert_eq!(bench.out, [Output::Refuse { port: port(1), error }]);
        bench.input(input);
        assert!(bench.out.is_empty(), "once is enough");
    };
    let honest = Bpdu { number: 1, tree: tree(1, 1), distance: Some(0), hops: 0, epoch_held: None, request_epoch: false };
    let epoch = limits::EPOCH_MAX + 1;
    for bpdu in [Bpdu { tree: tree(epoch, 1), ..honest }, Bpdu { epoch_held: Some(epoch), ..honest }] {
        refused(Input::Bpdu { port: port(1), bpdu }, PeerError::EpochOutOfRange { epoch });
    }
    // Root 1 is the peer, root 2 is not.
    let claims = [(1, None, 0), (1, Some(3), 1), (1, Some(0), 1), (2, Some(0), 0), (2, Some(1), 0), (2, Some(4), 5)];
    for (root, distance, hops) in claims {
        let bpdu = Bpdu { tree: tree(1, root), distance, hops, ..honest };
        let error = PeerError::Contradiction { root: BrokerId(root), distance, hops };
        refused(Input::Bpdu { port: port(1), bpdu }, error);
    }
    // A stranger's agreement, and ones of ours that we never asked for.
    for number in [number(3, 1), number(5, 0), number(5, 1), OpenNumber { incarnation: Incarnation(9), ..number(5, 1) }] {
        let error = PeerError::ForeignAgreement { number };
        refused(Input::OpenReceived { port: port(1), open: OpenMark { tree: tree(1, 5), number } }, error);
        refused(Input::CloseReceived { port: port(1), number }, error);
    }
}

#[test]
fn a_former_life_of_this_broker_is_no_root_to_follow() {
    let mut bench = Bench::new([6]);
    let former = RootClaim { priority: 0, incarnation: Incarnation(7), ..claim(5) };
    bench.hear(6, TreeId { epoch: 3, root: former }, 1);
    assert_eq!((bench.stp.tree(), bench.stp.changes().1), (tree(4, 5), ChangeCause::WorseRoot));
}

#[test]
fn a_peer_that_changes_its_word_without_end_makes_us_tell_others_only_so_fast() {
    let mut bench = Bench::new([1, 9]);
    let begun_at = bench.now;
    let (mut told, mut last) = (0, None);
    for count in 0..2_500_u32 {
        bench.now = begun_at + Duration::from_millis(4) * count;
        let distance = Some(1 + count);
        bench.hear_bpdu(1, Bpdu { number: 0, tree: tree(1, 0), distance, hops: 1, epoch_held: None, request_epoch: false });
        if let Some(bpdu) = bench.sent(9) {
            (told, last) = (told + 1, Some(bpdu));
        }
    }
    assert!((10 * limits::TX_HOLD_COUNT..=11 * limits::TX_HOLD_COUNT).contains(&told), "{told}");
    let held = bench.stp.distance();
    assert_ne!(last.and_then(|bpdu| bpdu.distance), held);
    let (now, other) = (bench.now, Input::LinkUp { port: port(7), cost: NonZeroU32::MIN, rtt: Duration::ZERO });
    bench.input(other);
    assert_eq!(bench.sent(7).map(|bpdu| bpdu.distance), Some(held), "no other port is held up");
    while bench.sent(9).is_none() {
        bench.wait_until_timeout();
    }
    assert_eq!(bench.sent(9).map(|bpdu| bpdu.distance), Some(held));
    assert!(bench.now <= now + Duration::from_secs(1) / limits::TX_HOLD_COUNT);
}

#[test]
fn what_was_held_back_and_is_no_longer_so_is_not_waited_for() {
    let mut bench = Bench::new([1, 9]);
    let word =
        |distance| Bpdu { number: 0, tree: tree(1, 0), distance: Some(distance), hops: 1, epoch_held: None, request_epoch: false };
    let mut told = 0;
    while told < 10 * limits::TX_HOLD_COUNT && bench.stp.poll_timeout().is_none_or(|due| due > bench.now + Duration::from_secs(1)) {
        told += 1;
        bench.hear_bpdu(1, word(1 + told));
        if bench.sent(9).is_none() {
            break;
        }
    }
    assert!(told < 10 * limits::TX_HOLD_COUNT, "nothing was ever held back");
    bench.hear_bpdu(1, word(told - 1));
    assert_eq!(bench.sent(9), None, "that is what it knows");
    // It is an OPEN that waits, if anything: [`Bench::input`] holds that no timer is overdue.
    for _ in 0..5 {
        bench.wait_until_timeout();
        assert_eq!(bench.sent(9), None);
    }
}

#[test]
fn an_epoch_far_ahead_waits_and_costs_no_link() {
    let mut bench = Bench::new([1, 2]);
    let step = limits::EPOCH_STEP_MAX;
    bench.hear(2, tree(3, 2), 0);
    let begun_at = bench.now;
    // Broker 2 is led ahead, and we are not yet. It stays our parent, as it was when we believed it last.
    bench.hear(2, tree(1 + 3 * step, 2), 0);
    assert_eq!((bench.stp.tree(), bench.stp.root_port(), bench.refusal()), (tree(3, 2), Some(port(2)), None));
    assert_eq!(bench.stp.trees_heard(port(2)).collect::<Vec<_>>(), [tree(3, 2), tree(1 + 3 * step, 2)]);
    // What is not above the last is not heard.
    bench.input(Input::Bpdu { port: port(2), bpdu: Bpdu { number: 1, tree: tree(9, 2), ..root_word(2) } });
    assert_eq!(bench.stp.trees_heard(port(2)).count(), 2);
    while bench.stp.tree() == tree(3, 2) {
        bench.wait_until_timeout();
        assert_eq!(bench.refusal(), None);
    }
    assert_eq!((bench.stp.tree(), bench.stp.root_port()), (tree(1 + 3 * step, 2), Some(port(2))));
    assert_eq!(bench.stp.trees_heard(port(2)).collect::<Vec<_>>(), [bench.stp.tree()]);
    assert_eq!(bench.now - begun_at, 2 * INTERVAL);
    // Within an interval nobody takes us further, whatever is said how often.
    for ahead in 1..200 {
        bench.hear(1, tree(1 + (3 + ahead) * step, 1), 0);
        bench.hear_bpdu(1, Bpdu { epoch_held: Some(limits::EPOCH_MAX), ..root_word(1) });
    }
    assert_eq!((bench.stp.tree().epoch, bench.refusal()), (1 + 3 * step, None));
    // What is taken back before it was believed never was said.
    bench.hear(1, tree(1, 1), 0);
    for _ in 0..10 {
        bench.wait_until_timeout();
    }
    assert_eq!(bench.stp.tree(), tree(1 + 3 * step, 2));
}

#[test]
fn a_root_answers_worse_ones_only_so_fast() {
    let mut bench = Bench::new([6, 9]);
    let begun_at = bench.now;
    let mut opened = 0;
    for count in 0..2_000_u32 {
        bench.now = begun_at + Duration::from_millis(5) * count;
        let own = bench.stp.tree();
        // By turns a worse root's tree, and a word from below that there is one.
        let word = if count % 2 == 0 { root_word(6) } else { Bpdu { tree: own, distance: Some(1), hops: 1, ..root_word(6) } };
        let word =
            Bpdu { tree: if count % 2 == 0 { tree(own.epoch + 3, 6) } else { own }, epoch_held: Some(own.epoch + 7), ..word };
        bench.hear_bpdu(6, word);
        assert!(bench.stp.is_root() && bench.refusal().is_none());
        opened += u32::from(bench.stp.tree() != own);
    }
    assert!((limits::ROOT_ANSWERS_MAX + 9..=limits::ROOT_ANSWERS_MAX + 11).contains(&opened), "{opened}");
    // What waits is answered by and by, with nobody saying it again.
    let said = tree(bench.stp.tree().epoch + 3, 6);
    bench.hear(6, said, 0);
    while bench.stp.tree() < said {
        bench.wait_until_timeout();
    }
    assert!(bench.stp.is_root());
}

#[test]
fn who_says_more_than_anybody_has_to_say_is_refused() {
    let mut bench = Bench::new([1]);
    for _ in 0..limits::BPDUS_HEARD_MAX {
        bench.hear_bpdu(1, root_word(1));
        assert_eq!(bench.refusal(), None);
    }
    bench.hear_bpdu(1, root_word(1));
    assert_eq!(bench.refusal(), Some(PeerError::TooManyBpdus));
}

fn any_input() -> impl Strategy<Value = Input> {
    let any_port = || (1..5_u64).prop_map(port);
    let any_tree = || (0..6_u64, 1..8_u64).prop_map(|(epoch, root)| tree(epoch, root));
    let any_number = || (1..6_u64, 1..6_u64).prop_map(|(child, count)| number(child, count));
    let link = || (any_port(), 1..5_u32, 0..300_u64);
    prop_oneof![
        2 => link().prop_map(|(port, cost, rtt)| Input::LinkUp {
            port,
            cost: NonZeroU32::new(cost).unwrap(),
            rtt: Duration::from_millis(rtt)
        }),
        1 => any_port().prop_map(|port| Input::LinkDown { port }),
        1 => link().prop_map(|(port, cost, rtt)| Input::Cost {
            port,
            cost: NonZeroU32::new(cost).unwrap(),
            rtt: Duration::from_millis(rtt)
        }),
        8 => (any_port(), 0..50_u64, any_tree(), prop::option::of(0..9_u32), 0..20_u8, prop::option::of(0..9_u64), any::<bool>())
            .prop_map(|(port, number, mut tree, distance, hops, epoch_held, request_epoch)| {
                // Mostly what an honest peer could say, so that it is not refused at once.
                if distance == Some(0) && hops < 19 {
                    tree.root = claim(port.peer.0);
                }
                let hops = distance.map_or(0, |distance| hops.min(u8::try_from(distance).unwrap()));
                Input::Bpdu { port, bpdu: Bpdu { number, tree, distance, hops, epoch_held, request_epoch } }
            }),
        4 => (any_port(), any_tree(), any_number())
            .prop_map(|(port, tree, number)| Input::OpenReceived { port, open: OpenMark { tree, number } }),
        2 => (any_port(), any_number()).prop_map(|(port, number)| Input::CloseReceived { port, number }),
        3 => (any_port(), any_number()).prop_map(|(port, number)| Input::LanesClosed { port, number }),
        2 => Just(Input::Timeout),
    ]
}

proptest! {
    /// Peers may say anything: the tree id only grows, timers lie ahead, lanes open and close in turn, and at most one port is bound
    /// as a child's.
    #[test]
    fn no_peer_breaks_the_machine(inputs in prop::collection::vec((any_input(), 0..400_u64), 0..200)) {
        let mut bench = Bench::new([]);
        let mut open: BTreeMap<PortId, OpenNumber> = BTreeMap::new();
        let mut closing: BTreeMap<PortId, OpenNumber> = BTreeMap::new();
        for (input, later_ms) in inputs {
            bench.now += Duration::from_millis(later_ms);
            let before = bench.stp.tree();
            if let Input::LanesClosed { port, number } = input && closing.get(&port) == Some(&number) {
                closing.remove(&port);
            }
            bench.input(input);
            prop_assert!(bench.stp.tree() >= before);
            for output in &bench.out {
                match *output {
                    Output::OpenLanes { port, open: mark } => {
                        let former = open.insert(port, mark.number);
                        prop_assert!(former.is_none_or(|former| former == mark.number));
                        prop_assert!(!closing.contains_key(&port));
                    }
                    Output::AnswerOpen { port, open: mark } => {
                        prop_assert_eq!(open.insert(port, mark.number), None);
                        prop_assert!(!closing.contains_key(&port));
                    }
                    Output::CloseLanes { port, number } => {
                        prop_assert_eq!(open.remove(&port), Some(number));
                        closing.insert(port, number);
                    }
                    Output::PortState { port, role: Role::Disabled, .. } => {
                        open.remove(&port);
                        closing.remove(&port);
                    }
                    _ => {}
                }
            }
            let bound = open.values().chain(closing.values()).filter(|number| number.child == BrokerId(5)).count();
            prop_assert!(bound <= 1);
        }
    }
}

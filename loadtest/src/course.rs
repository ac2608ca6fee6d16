//! The course of a run: warm up, measure, finish. Decides from counts and moments alone; knows no socket and no clock.

use std::time::Duration;

use thiserror::Error;

use crate::clock::nanoseconds;
use crate::tally::Snapshot;

/// A closed loop in which nothing moves for this long waits for lost messages: they are forgiven.
const STALL_NS: u64 = 1_000_000_000;

/// What the course of a run depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoursePlan {
    /// 0 in a run that only subscribes: it warms up until the first message comes.
    pub(crate) publishers: u64,
    /// Subscribers that get each message; 0 in a run that only publishes.
    pub(crate) subscribers_per_message: u64,
    /// Publishers wait for subscribers.
    pub(crate) closed_loop: bool,
    pub(crate) warm_up: Duration,
    /// Of measuring; `None` where a count ends the run. A run that only subscribes counts it from its beginning.
    pub(crate) duration: Option<Duration>,
    /// Deliveries after which a run that only subscribes is over.
    pub(crate) awaited: Option<u64>,
    /// How long nothing may arrive before what is missing is given up.
    pub(crate) drain: Duration,
    /// How long nothing may move in a closed loop before the run fails.
    pub(crate) timeout: Duration,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Go,
    /// Publishers shall wait for nothing that was sent so far.
    Forgive,
    /// Publishers shall send nothing new.
    Finish,
    /// All is done, or given up.
    Close,
    /// All is in vain.
    Fail(CourseFault),
}

/// Why a run can come to nothing although no client has failed.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum CourseFault {
    #[error("nothing has been delivered for {0:?} (--timeout) although messages are under way")]
    NothingMoves(Duration),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Course {
    plan: CoursePlan,
    begun_at_ns: u64,
    stage: Stage,
    /// The counts when measuring began and ended.
    start: Option<Snapshot>,
    end: Option<Snapshot>,
    progress: u64,
    /// When `progress` last grew.
    moved_at_ns: u64,
    /// When publishers last had reason to go on: progress, or forgiveness.
    stalled_since_ns: u64,
    stalls: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    WarmUp,
    Measure,
    Finish,
}

impl Course {
    /// `begun`: the counts when the publishers were let go.
    pub(crate) fn new(plan: CoursePlan, begun: Snapshot) -> Self {
        let measures = plan.publishers > 0 && plan.warm_up.is_zero();
        Self {
            plan,
            begun_at_ns: begun.at_ns,
            stage: if measures { Stage::Measure } else { Stage::WarmUp },
            start: measures.then_some(begun),
            end: None,
            progress: begun.progress(),
            moved_at_ns: begun.at_ns,
            stalled_since_ns: begun.at_ns,
            stalls: 0,
        }
    }

    /// The counts between which the run was measured; none if it never came to that.
    pub(crate) fn measured(&self) -> Option<(Snapshot, Snapshot)> {
        self.start.zip(self.end)
    }

    /// How often lost messages were forgiven.
    pub(crate) fn stalls(&self) -> u64 {
        self.stalls
    }

    /// How long the run will take from its beginning, if that is known.
    fn expected(&self) -> Option<Duration> {
        let warm_up = if self.plan.publishers > 0 { self.plan.warm_up } else { Duration::ZERO };
        self.plan.duration.map(|duration| warm_up + duration)
    }

    /// How long the run has taken.
    pub(crate) fn elapsed(&self, now: &Snapshot) -> Duration {
        Duration::from_nanos(now.at_ns.saturating_sub(self.begun_at_ns))
    }

    /// Looks at the counts of this moment and decides.
    pub(crate) fn look(&mut self, now: Snapshot) -> Step {
        if now.progress() != self.progress {
            (self.progress, self.moved_at_ns, self.stalled_since_ns) = (now.progress(), now.at_ns, now.at_ns);
        }
        if self.stage == Stage::WarmUp && self.is_warm(&now) {
            (self.stage, self.start) = (Stage::Measure, Some(now));
        }
        match self.stage {
            Stage::Finish => self.finish(&now),
            _ if self.is_over(&now) => {
                self.stop(now);
                Step::Finish
            }
            _ => self.watch(&now),
        }
    }

    /// Ends measuring here, if it has not ended before.
    pub(crate) fn stop(&mut self, now: Snapshot) {
        self.stage = Stage::Finish;
        self.end.get_or_insert(now);
        // What is still under way has its full time to arrive.
        self.moved_at_ns = now.at_ns;
    }

    fn is_warm(&self, now: &Snapshot) -> bool {
        if self.plan.publishers == 0 {
            return now.delivered > 0;
        }
        self.elapsed(now) >= self.plan.warm_up
    }

    fn is_over(&self, now: &Snapshot) -> bool {
        self.expected().is_some_and(|expected| self.elapsed(now) >= expected)
            || self.plan.awaited.is_some_and(|awaited| now.delivered >= awaited)
            || (self.plan.publishers > 0 && now.finished >= self.plan.publishers)
    }

    fn watch(&mut self, now: &Snapshot) -> Step {
        let waits = self.plan.closed_loop && self.plan.subscribers_per_message > 0;
        if !waits || now.at_ns.saturating_sub(self.stalled_since_ns) < STALL_NS {
            return Step::Go;
        }
        if now.at_ns.saturating_sub(self.moved_at_ns) >= nanoseconds(self.plan.timeout) {
            return Step::Fail(CourseFault::NothingMoves(self.plan.timeout));
        }
        self.stalls += 1;
        self.stalled_since_ns = now.at_ns;
        Step::Forgive
    }

    fn finish(&self, now: &Snapshot) -> Step {
        let arrived = now.delivered >= now.sent * self.plan.subscribers_per_message;
        let done = now.finished >= self.plan.publishers && arrived;
        let given_up = now.at_ns.saturating_sub(self.moved_at_ns) >= nanoseconds(self.plan.drain);
        if self.plan.publishers == 0 || done || given_up { Step::Close } else { Step::Go }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    /// Pairs: 2 publishers, one subscriber each; warm-up 1 s, duration 2 s, drain 3 s, timeout 5 s.
    fn plan() -> CoursePlan {
        CoursePlan {
            publishers: 2,
            subscribers_per_message: 1,
            closed_loop: true,
            warm_up: Duration::from_secs(1),
            duration: Some(Duration::from_secs(2)),
            awaited: None,
            drain: Duration::from_secs(3),
            timeout: Duration::from_secs(5),
        }
    }

    fn at(milliseconds: u64, sent: u64, delivered: u64, finished: u64) -> Snapshot {
        Snapshot { at_ns: milliseconds * MILLISECOND, sent, delivered, finished, ..Snapshot::default() }
    }

    #[test]
    fn a_run_by_time_warms_up_measures_and_drains() {
        let mut course = Course::new(plan(), at(0, 0, 0, 0));
        assert_eq!(course.look(at(500, 10, 9, 0)), Step::Go);
        assert_eq!(course.look(at(1_000, 20, 19, 0)), Step::Go);
        assert_eq!(course.look(at(2_999, 50, 40, 0)), Step::Go);
        assert_eq!(course.look(at(3_000, 60, 50, 0)), Step::Finish);
        assert_eq!(course.look(at(3_100, 60, 59, 2)), Step::Go);
        assert_eq!(course.look(at(3_200, 60, 60, 2)), Step::Close);
        let (start, end) = course.measured().unwrap();
        assert_eq!((start.delivered, end.delivered), (19, 50));
    }

    #[test]
    fn a_run_by_count_is_over_when_all_publishers_are() {
        let plan = CoursePlan { duration: None, warm_up: Duration::ZERO, ..plan() };
        let mut course = Course::new(plan, at(0, 0, 0, 0));
        assert_eq!(course.look(at(20, 10, 9, 1)), Step::Go);
        assert_eq!(course.look(at(40, 20, 19, 2)), Step::Finish);
        assert_eq!(course.look(at(60, 20, 20, 2)), Step::Close);
    }

    #[test]
    fn what_does_not_arrive_is_given_up_after_silence() {
        let mut course = Course::new(plan(), at(0, 0, 0, 0));
        assert_eq!(course.look(at(3_000, 60, 50, 0)), Step::Finish);
        assert_eq!(course.look(at(5_900, 60, 51, 2)), Step::Go);
        assert_eq!(course.look(at(8_800, 60, 51, 2)), Step::Go);
        assert_eq!(course.look(at(8_900, 60, 51, 2)), Step::Close);
    }

    #[test]
    fn lost_messages_are_forgiven_until_nothing_moves_at_all() {
        let plan = CoursePlan { duration: None, ..plan() };
        let mut course = Course::new(plan, at(0, 0, 0, 0));
        let seen: Vec<_> = (1..=11).map(|half| course.look(at(half * 500, 100, 50, 0))).collect();
        use Step::{Fail, Forgive, Go};
        let fails = Fail(CourseFault::NothingMoves(Duration::from_secs(5)));
        assert_eq!(seen, [Go, Go, Forgive, Go, Forgive, Go, Forgive, Go, Forgive, Go, fails]);
        assert_eq!(course.stalls(), 4);
    }

    #[test]
    fn an_open_loop_waits_for_nobody() {
        let mut course = Course::new(CoursePlan { closed_loop: false, duration: None, ..plan() }, at(0, 0, 0, 0));
        assert_eq!(course.look(at(60_000, 100, 0, 0)), Step::Go);
    }

    #[test]
    fn one_who_only_subscribes_measures_from_the_first_message() {
        let duration = Some(Duration::from_secs(60));
        let plan = CoursePlan { publishers: 0, subscribers_per_message: 0, awaited: Some(10), duration, ..plan() };
        let mut course = Course::new(plan, at(0, 0, 0, 0));
        assert_eq!(course.look(at(30_000, 0, 0, 0)), Step::Go);
        assert_eq!(course.look(at(30_020, 0, 3, 0)), Step::Go);
        assert_eq!(course.look(at(30_040, 0, 10, 0)), Step::Finish);
        assert_eq!(course.look(at(30_060, 0, 10, 0)), Step::Close);
        assert_eq!(course.measured().map(|(start, _)| start.delivered), Some(3));
        let mut waits_in_vain = Course::new(plan, at(0, 0, 0, 0));
        assert_eq!(waits_in_vain.look(at(60_000, 0, 0, 0)), Step::Finish);
        assert_eq!(waits_in_vain.measured(), None);
    }
}

//! When to ping, and when a broker that owes an answer has been silent for too long. Knows no clock and no socket.

use std::time::Duration;

use crate::clock::nanoseconds;

/// See the module. Looked at every [`Liveness::look_every`], so a verdict may come that much late.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// Silence tolerated while an answer is owed.
    timeout_ns: u64,
    /// Idleness after which a ping is due; `None` where the broker wants no keep alive.
    ping_after_ns: Option<u64>,
    bytes_read: u64,
    bytes_written: u64,
    /// When the last byte had come, or the first answer became owed, whichever is later.
    heard_at_ns: u64,
    /// When the last byte had gone.
    wrote_at_ns: u64,
    /// When the last byte had gone, or the first began to wait, whichever is later.
    moved_at_ns: u64,
    ping_under_way: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    Ping,
    /// The broker owes something and says nothing.
    Silent,
    /// The broker does not read what we send.
    Deaf,
}

/// What a connection has done and what it waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// Since the beginning.
    pub(crate) bytes_read: u64,
    /// Since the beginning.
    pub(crate) bytes_written: u64,
    /// Bytes wait for the socket.
    pub(crate) queued: bool,
    /// The broker owes something besides a PINGRESP.
    pub(crate) owed: bool,
}

impl Liveness {
    pub(crate) fn new(timeout: Duration, keep_alive_seconds: u16, now_ns: u64) -> Self {
        let keep_alive_ns = nanoseconds(Duration::from_secs(keep_alive_seconds.into()));
        Self {
            timeout_ns: nanoseconds(timeout),
            ping_after_ns: Some(keep_alive_ns / 2).filter(|&after| after > 0),
            bytes_read: 0,
            bytes_written: 0,
            heard_at_ns: now_ns,
            wrote_at_ns: now_ns,
            moved_at_ns: now_ns,
            ping_under_way: false,
        }
    }

    pub(crate) fn look_every(&self) -> Duration {
        let shortest_ns = self.ping_after_ns.map_or(self.timeout_ns, |after| after.min(self.timeout_ns));
        Duration::from_nanos(shortest_ns / 4).max(Duration::from_millis(10))
    }

    /// A PINGRESP has come.
    pub(crate) fn pong(&mut self) {
        self.ping_under_way = false;
    }

    /// Compares `traffic` with what it was at the last look.
    pub(crate) fn look(&mut self, now_ns: u64, traffic: Traffic) -> Verdict {
        let Traffic { bytes_read, bytes_written, queued, owed } = traffic;
        if bytes_read != self.bytes_read || !(owed || self.ping_under_way) {
            (self.bytes_read, self.heard_at_ns) = (bytes_read, now_ns);
        }
        if bytes_written != self.bytes_written || !queued {
            self.moved_at_ns = now_ns;
        }
        if bytes_written != self.bytes_written {
            (self.bytes_written, self.wrote_at_ns) = (bytes_written, now_ns);
        }
        if now_ns.saturating_sub(self.heard_at_ns) >= self.timeout_ns {
            return Verdict::Silent;
        }
        if now_ns.saturating_sub(self.moved_at_ns) >= self.timeout_ns {
            return Verdict::Deaf;
        }
        let idle_ns = now_ns.saturating_sub(self.wrote_at_ns);
        if !self.ping_under_way && self.ping_after_ns.is_some_and(|after| idle_ns >= after) {
            self.ping_under_way = true;
            return Verdict::Ping;
        }
        Verdict::Fine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Timeout 10 s, keep alive 60 s: a ping after 30 s.
    fn liveness() -> Liveness {
        Liveness::new(Duration::from_secs(10), 60, 0)
    }

    fn traffic(bytes_read: u64, bytes_written: u64) -> Traffic {
        Traffic { bytes_read, bytes_written, ..Traffic::default() }
    }

    fn owed(bytes_read: u64) -> Traffic {
        Traffic { owed: true, ..traffic(bytes_read, 5) }
    }

    #[test]
    fn nobody_who_owes_nothing_is_silent() {
        let mut liveness = liveness();
        assert_eq!(liveness.look_every(), Duration::from_millis(2_500));
        assert_eq!(liveness.look(29 * SECOND, traffic(5, 5)), Verdict::Fine);
        assert_eq!(liveness.look(38 * SECOND, owed(5)), Verdict::Fine, "owed since 29 s");
        assert_eq!(liveness.look(39 * SECOND, owed(5)), Verdict::Silent);
    }

    #[test]
    fn any_byte_counts_as_an_answer() {
        let mut liveness = liveness();
        for second in 1..30 {
            assert_eq!(liveness.look(second * SECOND, owed(second)), Verdict::Fine);
        }
    }

    #[test]
    fn a_broker_that_does_not_read_is_deaf() {
        let mut liveness = liveness();
        let queued = |bytes_written| Traffic { queued: true, ..traffic(0, bytes_written) };
        assert_eq!(liveness.look(9 * SECOND, queued(5)), Verdict::Fine);
        assert_eq!(liveness.look(18 * SECOND, queued(5)), Verdict::Fine);
        assert_eq!(liveness.look(19 * SECOND, queued(5)), Verdict::Deaf);
        assert_eq!(liveness.look(20 * SECOND, queued(6)), Verdict::Fine);
    }

    #[test]
    fn an_idle_connection_pings_and_then_waits_for_the_answer() {
        let mut liveness = liveness();
        assert_eq!(liveness.look(30 * SECOND, traffic(0, 0)), Verdict::Ping);
        assert_eq!(liveness.look(31 * SECOND, traffic(0, 2)), Verdict::Fine);
        liveness.pong();
        assert_eq!(liveness.look(32 * SECOND, traffic(2, 2)), Verdict::Fine);
        assert_eq!(liveness.look(61 * SECOND, traffic(2, 2)), Verdict::Ping);
        assert_eq!(liveness.look(70 * SECOND, traffic(2, 4)), Verdict::Fine);
        assert_eq!(liveness.look(71 * SECOND, traffic(2, 4)), Verdict::Silent, "no PINGRESP");
    }

    #[test]
    fn no_keep_alive_no_ping() {
        let mut liveness = Liveness::new(Duration::from_secs(10), 0, 0);
        assert_eq!(liveness.look(3_600 * SECOND, traffic(0, 0)), Verdict::Fine);
    }
}

//! A timer with microsecond resolution for the pacer.
//!
//! Tokio's own timers tick once a millisecond, which at 10,000 messages a second would send ten at a time and charge the broker
//! with our lateness. Linux has `timerfd`, which the runtime can wait for like a socket; elsewhere the coarse timer has to do.

use std::io;
use std::time::Duration;

#[cfg(target_os = "linux")]
mod sys {
    use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
    use tokio::net::unix::pipe::Receiver;

    use super::{Duration, io};

    /// See the module. A `timerfd` is read like a pipe, and the runtime has a safe wrapper for these.
    pub(crate) struct Timer(Receiver);

    impl Timer {
        pub(crate) fn new() -> io::Result<Self> {
            let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
            Receiver::from_owned_fd_unchecked(fd).map(Self)
        }

        /// Returns once `wait` has passed.
        pub(crate) async fn sleep(&self, wait: Duration) -> io::Result<()> {
            const NEVER: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
            // Zero would disarm the timer.
            let it_value = Timespec::try_from(wait.max(Duration::from_nanos(1))).map_err(io::Error::other)?;
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: NEVER, it_value })?;
            let mut expirations = [0; 8];
            loop {
                self.0.readable().await?;
                match self.0.try_read(&mut expirations) {
                    Err(again) if again.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read.map(drop),
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod sys {
    use super::{Duration, io};

    /// See the module.
    pub(crate) struct Timer;

    impl Timer {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self)
        }

        /// Returns once `wait` has passed, to the millisecond.
        pub(crate) async fn sleep(&self, wait: Duration) -> io::Result<()> {
            tokio::time::sleep(wait).await;
            Ok(())
        }
    }
}

pub(crate) use sys::Timer;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now_ns;

    #[tokio::test]
    async fn sleeps_at_least_as_long_as_asked_and_can_be_armed_again() {
        let timer = Timer::new().unwrap();
        for wait in [Duration::ZERO, Duration::from_micros(50), Duration::from_micros(1_500)] {
            let before = now_ns();
            timer.sleep(wait).await.unwrap();
            assert!(now_ns() - before >= u64::try_from(wait.as_nanos()).unwrap());
        }
    }
}

//! What processes of brokers use: processor time and memory, from `/proc` (Linux).

use std::fs;
use std::io;
use std::time::Duration;

use rustix::param::{clock_ticks_per_second, page_size};
use thiserror::Error;

/// Fields of `/proc/PID/stat` after the name, from 0: user and system time in ticks, resident pages (proc(5)).
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const RESIDENT_PAGES: usize = 21;

/// What some processes have used so far, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) processor_time: Duration,
    pub(crate) resident_bytes: u64,
}

/// Why there is nothing to tell.
#[derive(Debug, Error)]
pub(crate) enum UsageFault {
    #[error("process {0} (--pid) has ended, or never was")]
    Gone(u32),
    #[error("cannot read /proc/{pid}/stat (--pid): {error}")]
    Unreadable { pid: u32, error: io::Error },
    #[error("/proc/{0}/stat (--pid) is not what it is on Linux")]
    Strange(u32),
}

/// The sum over these processes.
///
/// # Errors
/// When one of them is not there, or this is not Linux.
pub(crate) fn of(pids: &[u32]) -> Result<Usage, UsageFault> {
    let mut sum = Usage::default();
    for &pid in pids {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if cfg!(target_os = "linux") => UsageFault::Gone(pid),
            _ => UsageFault::Unreadable { pid, error },
        })?;
        let usage = read(&text, clock_ticks_per_second(), page_size() as u64).ok_or(UsageFault::Strange(pid))?;
        sum.processor_time += usage.processor_time;
        sum.resident_bytes += usage.resident_bytes;
    }
    Ok(sum)
}

fn read(stat: &str, ticks_per_second: u64, page_bytes: u64) -> Option<Usage> {
    // The name may hold anything, also spaces and brackets.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let ticks = number(USER_TICKS)? + number(SYSTEM_TICKS)?;
    let processor_time = Duration::from_secs_f64(ticks as f64 / ticks_per_second.max(1) as f64);
    Some(Usage { processor_time, resident_bytes: number(RESIDENT_PAGES)? * page_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_is_read_whatever_the_process_is_called() {
        let line = "42 (my (od) d) S 1 42 42 0 -1 4194304 100 0 0 0 250 150 0 0 20 0 3 0 12345 1000000 77 18446744073709551615 1 1";
        let expected = Usage { processor_time: Duration::from_secs(4), resident_bytes: 77 * 4_096 };
        assert_eq!(read(line, 100, 4_096), Some(expected));
        assert_eq!(read("42 (x) S 1 2", 100, 4_096), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn processes_are_added_up_and_missed() {
        let me = std::process::id();
        let (one, two) = (of(&[me]).unwrap(), of(&[me, me]).unwrap());
        assert!(one.resident_bytes > 100_000 && two.resident_bytes > one.resident_bytes);
        assert!(matches!(of(&[me, u32::MAX]), Err(UsageFault::Gone(u32::MAX))));
    }
}

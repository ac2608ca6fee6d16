//! What is done to a mesh, and when: commands of the shell, because who can break a broker or a path is not for us to say.

use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::arguments::duration;

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// From the moment at which everybody hears everybody.
    pub(crate) at: Duration,
    pub(crate) command: String,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (at, command) =
            text.trim().split_once(char::is_whitespace).ok_or("expected a time and a command: '5s kill -9 1234'")?;
        Ok(Self { at: duration(at)?, command: command.trim().to_owned() })
    }
}

/// Commands in the order of their time, and those that were begun.
pub(super) struct Timetable {
    /// The next last.
    ahead: Vec<Fault>,
    running: Vec<(String, Child)>,
}

impl Timetable {
    /// Of these and of the lines of `text`.
    ///
    /// # Errors
    /// When a line is none; its number is said.
    pub(super) fn new(faults: &[Fault], text: &str) -> Result<Self> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
        let parsed = lines.map(|(place, line)| line.parse::<Fault>().map_err(|cause| anyhow!("line {}: {cause}", place + 1)));
        let mut ahead: Vec<Fault> = faults.iter().cloned().map(Ok).chain(parsed).collect::<Result<_>>()?;
        ahead.sort_by_key(|fault| std::cmp::Reverse(fault.at));
        Ok(Self { ahead, running: Vec::new() })
    }

    /// Begins what is due; says what was begun, and what has ended otherwise than well.
    ///
    /// # Errors
    /// When there is no shell.
    pub(super) fn proceed(&mut self, elapsed: Duration) -> Result<Vec<String>> {
        let mut told = Vec::new();
        while let Some(fault) = self.ahead.pop_if(|fault| fault.at <= elapsed) {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(&fault.command).stdin(Stdio::null()).stdout(Stdio::null());
            let child = shell.spawn().with_context(|| format!("cannot run {:?}", fault.command))?;
            told.push(fault.command.clone());
            self.running.push((fault.command, child));
        }
        self.running.retain_mut(|(command, child)| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                if !status.success() {
                    told.push(format!("{status}: {command}"));
                }
                false
            }
            Err(cause) => {
                told.push(format!("{cause}: {command}"));
                false
            }
        });
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_in_the_order_of_their_time_and_say_how_they_end() {
        let fault = "30ms false".parse::<Fault>().unwrap();
        let mut timetable = Timetable::new(&[fault], "# what is done\n\n10ms true\n  1.5s exit 3  \n").unwrap();
        assert_eq!(timetable.proceed(Duration::from_millis(5)).unwrap(), Vec::<String>::new());
        let mut told = timetable.proceed(Duration::from_millis(30)).unwrap();
        assert_eq!(told[..2], ["true", "false"]);
        while !timetable.running.is_empty() {
            told.extend(timetable.proceed(Duration::from_secs(1)).unwrap());
        }
        assert!(told.len() == 3 && told[2].ends_with(": false"), "{told:?}");
        assert_eq!(timetable.ahead, [Fault { at: Duration::from_millis(1_500), command: "exit 3".to_owned() }]);
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let error = Timetable::new(&[], "1s true\nsoon true").err().unwrap();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }
}

//! Which policy holds at which listener: read from the files that the configuration names, at the start and anew at each reload.
//!
//! It reads and hands out; what a policy decides is `auth`'s. All files are read before anything changes: if one of them is missing, empty or
//! not understood, nothing is taken over from any.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::auth::{Access, FileError, Policy, Rules, Standing, Users};
use crate::config::{Auth, Config, Listener};

/// Why the files of a configuration make no policies.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A file that is not there, or that the broker's user may not read.
    #[error("{key}: cannot read {}: {source}; make the file, let the broker's user read it, or name another", path.display())]
    Unreadable {
        /// Which key names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file with something in it that is not understood, or with nothing.
    #[error("{key}: {}{}: {}", path.display(), Line(error.line), error.problem)]
    Bad {
        /// Which key names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Where, and what.
        error: FileError,
    },
}

struct Line(Option<usize>);

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// The policy of one listener, which a reload replaces.
pub type CurrentPolicy = Arc<ArcSwap<Policy>>;

/// See the module's page.
#[derive(Debug)]
pub struct Policies {
    of_listeners: Vec<CurrentPolicy>,
}

impl Policies {
    /// Reads what `config` names, a policy for each listener in their order.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn load(config: &Config) -> Result<Self, PolicyError> {
        let policies = read(config, &config.listeners, &[])?;
        Ok(Self { of_listeners: policies.into_iter().map(|policy| Arc::new(ArcSwap::new(policy))).collect() })
    }

    /// Reads everything anew for the listeners that there are. The result is put in force by [`Policies::replace`].
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn read_anew(&self, config: &Config, listeners: &[Listener]) -> Result<Vec<Arc<Policy>>, PolicyError> {
        read(config, listeners, &self.of_listeners)
    }

    /// What comes in from now on is judged by these.
    pub fn replace(&self, policies: Vec<Arc<Policy>>) {
        self.of_listeners.iter().zip(policies).for_each(|(current, policy)| current.store(policy));
    }

    /// Of all listeners, in their order.
    #[must_use]
    pub fn all(&self) -> &[CurrentPolicy] {
        &self.of_listeners
    }

    /// Judges a client that came in under any earlier policy of its listener.
    #[must_use]
    pub fn judge(&self, access: &Access) -> Standing {
        match self.of_listeners.get(access.listener()) {
            Some(policy) => policy.load().judge(access.identity()),
            None => Standing::Gone(Arc::new(access.shut_out())),
        }
    }

    /// Judges whose session is left of an earlier run. Listeners may stand in another order by now: it goes on if its owner may come in at any.
    #[must_use]
    pub fn judge_restored(&self, access: &Access) -> Standing {
        let others = self.of_listeners.iter().map(|policy| policy.load().judge(access.identity()));
        match self.judge(access) {
            Standing::Gone(gone) => {
                others.into_iter().find(|standing| matches!(standing, Standing::Good(_))).unwrap_or(Standing::Gone(gone))
            }
            standing => standing,
        }
    }
}

/// A file that several listeners name is read once. What says the same as before is what was before: that two sessions have the same rules is seen at a
/// glance then.
fn read(config: &Config, listeners: &[Listener], before: &[CurrentPolicy]) -> Result<Vec<Arc<Policy>>, PolicyError> {
    let before: Vec<Arc<Policy>> = before.iter().map(|policy| policy.load_full()).collect();
    let (users_before, rules_before): (Vec<_>, Vec<_>) =
        before.iter().map(|policy| (policy.shared_users(), policy.shared_rules())).unzip();
    let (mut users, mut rules) = (HashMap::new(), HashMap::new());
    let policy = |(index, listener)| {
        let Auth { allow_anonymous, password_file, acl_file } = config.auth_of(listener);
        let users = password_file.map(|path| file(&mut users, "password_file", path, Users::parse, &users_before)).transpose()?;
        let rules = acl_file.map(|path| file(&mut rules, "acl_file", path, Rules::parse, &rules_before)).transpose()?;
        Ok(Arc::new(Policy::new(index, allow_anonymous, users, rules)))
    };
    listeners.iter().enumerate().map(policy).collect()
}

fn file<T: PartialEq>(
    read: &mut HashMap<PathBuf, Arc<T>>,
    key: &'static str,
    path: PathBuf,
    parse: impl Fn(&[u8]) -> Result<T, FileError>,
    before: &[Option<&Arc<T>>],
) -> Result<Arc<T>, PolicyError> {
    if let Some(known) = read.get(&path) {
        return Ok(Arc::clone(known));
    }
    let text = std::fs::read(&path).map_err(|source| PolicyError::Unreadable { key, path: path.clone(), source })?;
    let parsed = parse(&text).map_err(|error| PolicyError::Bad { key, path: path.clone(), error })?;
    let same = before.iter().flatten().find(|before| ****before == parsed);
    let parsed = same.map_or_else(|| Arc::new(parsed), |before| Arc::clone(before));
    if key == "password_file" {
        warn_if_open(&path);
    }
    read.insert(path, Arc::clone(&parsed));
    Ok(parsed)
}

/// Hashes that everybody on the machine can read are guessed at leisure.
fn warn_if_open(path: &Path) {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(path) {
        use std::os::unix::fs::PermissionsExt;
        if metadata.permissions().mode() & 0o004 != 0 {
            tracing::warn!(file = %path.display(), "everybody on this machine can read the password file; chmod 0640 it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Identity;

    #[test]
    fn who_had_a_session_before_a_restart_needs_one_listener_that_lets_him_in() {
        let rules = |text: &str| Some(Arc::new(Rules::parse(text.as_bytes()).unwrap()));
        let policies = |second: bool| Policies {
            of_listeners: [(false, "topic a"), (second, "topic b")]
                .into_iter()
                .enumerate()
                .map(|(index, (anonymous, text))| Arc::new(ArcSwap::from_pointee(Policy::new(index, anonymous, None, rules(text)))))
                .collect(),
        };
        for listener in [0, 1, 7] {
            let was = Access::of_owner(&Access::new(Identity::Anonymous, listener, None).owner());
            let Standing::Good(access) = policies(true).judge_restored(&was) else { panic!("{listener}") };
            assert!(access.may_receive("c", "b") && !access.may_receive("c", "a"));
            assert!(matches!(policies(false).judge_restored(&was), Standing::Gone(_)), "{listener}");
        }
        assert!(matches!(policies(true).judge_restored(&Access::of_owner("?")), Standing::Gone(_)));
    }

    #[test]
    fn files_that_say_the_same_make_the_same_rules() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acl");
        std::fs::write(&path, "topic a").unwrap();
        let listeners = vec![Listener { acl_file: Some(path.clone()), allow_anonymous: Some(true), ..Listener::default() }];
        let config = Config { listeners, ..Config::default() };
        let policies = Policies::load(&config).unwrap();
        let rules = || policies.all().first().unwrap().load().shared_rules().cloned().unwrap();
        let first = rules();
        for (text, same) in [("# again\ntopic a", true), ("topic b", false)] {
            std::fs::write(&path, text).unwrap();
            policies.replace(policies.read_anew(&config, &config.listeners).unwrap());
            assert_eq!(Arc::ptr_eq(&first, &rules()), same, "{text}");
        }
    }
}

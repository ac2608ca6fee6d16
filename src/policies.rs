//! Which policy holds at which listener: read from the files that the configuration names, at the start and anew at each reload.
//!
//! It reads and hands out; what a policy decides is `auth`'s. All files are read before anything changes: if one of them is missing, empty or
//! not understood, nothing is taken over from any.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::auth::{Access, Accounts, Backend, FileError, Identity, Place, Policy, Rules, Standing, Users};
use crate::config::{Auth, AuthBackend, Bridge, Config, Listener};

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
/// What no client's id may be, or begin with before a dot; a reload replaces it.
pub type ReservedIds = Arc<ArcSwap<Vec<String>>>;

/// See the module's page.
#[derive(Debug)]
pub struct Policies {
    of_listeners: Vec<CurrentPolicy>,
    /// Client ids of bridges' sessions.
    bridges: ArcSwap<HashSet<String>>,
    reserved: ReservedIds,
    asked: Asked,
}

/// Who is asked about users, as it was at the start: a reload does not change it.
#[derive(Clone, Debug)]
struct Asked {
    /// Of each listener.
    backends: Arc<[Arc<[Backend]>]>,
    accounts: Arc<[Arc<Accounts>]>,
    has_tokens_as_names: bool,
}

impl Policies {
    /// Reads what `config` names, a policy for each listener in their order. `accounts` has what is known of users from elsewhere.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn load(config: &Config, accounts: &Arc<[Arc<Accounts>]>) -> Result<Self, PolicyError> {
        let asked = Asked {
            backends: config.listeners.iter().map(|listener| backends(&config.auth_of(listener))).collect(),
            accounts: Arc::clone(accounts),
            has_tokens_as_names: config.auth.jwt.as_ref().is_some_and(|jwt| jwt.in_user_name),
        };
        let policies = read(config, &config.listeners, &[], &[], &asked)?;
        let of_listeners = policies.into_iter().map(|policy| Arc::new(ArcSwap::new(policy))).collect();
        let this = Self { of_listeners, bridges: ArcSwap::default(), reserved: ReservedIds::default(), asked };
        this.set_bridges(config);
        Ok(this)
    }

    /// Reads everything anew for the listeners that there are. Of one that is no longer configured (`is_configured`, in their order) the files that it
    /// named itself are not read: what they said last goes on. The result is put in force by [`Policies::replace`].
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn read_anew(
        &self,
        config: &Config,
        listeners: &[Listener],
        is_configured: &[bool],
    ) -> Result<Vec<Arc<Policy>>, PolicyError> {
        read(config, listeners, is_configured, &self.of_listeners, &self.asked)
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

    /// From now on these are the bridges: the sessions of others end when they are judged, and no client is let in with an id of these.
    pub fn set_bridges(&self, config: &Config) {
        self.reserved.store(Arc::new(config.bridges.iter().map(Bridge::local_client_id).collect()));
        self.bridges.store(Arc::new(config.bridges.iter().map(Bridge::local_client_id).collect()));
    }

    /// The client ids of bridges.
    #[must_use]
    pub fn reserved(&self) -> &ReservedIds {
        &self.reserved
    }

    /// [`Policies::judge`] of users of backends by their names alone: of all others nothing has changed.
    #[must_use]
    pub fn judge_named(&self, names: &HashSet<Arc<str>>, access: &Access) -> Standing {
        match access.identity() {
            Identity::Vouched { name, .. } if names.contains(name) => self.judge(access),
            _ => Standing::Same,
        }
    }

    /// Judges a client that came in under any earlier policy of its listener, or whose session is left of an earlier run: that is judged by the
    /// listener with the same address, or, where there is none, by those with the same port: so it is as well with sessions that come from another broker of the mesh. Where there is none either,
    /// by all that would let its owner in: what they do not agree on he may not do until he comes in again.
    #[must_use]
    pub fn judge(&self, access: &Access) -> Standing {
        if let Identity::Bridge { client_id } = access.identity() {
            // That of a bridge that is configured no more would wait for ever.
            return match self.bridges.load().contains(&**client_id) {
                true => Standing::Good(Policy::of_bridge(client_id).admit(access.identity())),
                false => Standing::Gone(Arc::new(access.shut_out())),
            };
        }
        let place = access.place();
        let all: Vec<Arc<Policy>> = self.of_listeners.iter().map(|policy| policy.load_full()).collect();
        let is_its_own = |policy: &&Arc<Policy>| match (place.index, &*place.bind) {
            (Some(index), "") => policy.place().index == Some(index),
            (Some(_), _) => policy.place() == place,
            (None, bind) => *policy.place().bind == *bind,
        };
        let mut judges: Vec<_> = all.iter().filter(is_its_own).collect();
        if judges.is_empty()
            && let Some(own) = port(&place.bind)
        {
            judges = all.iter().filter(|policy| port(&policy.place().bind) == Some(own)).collect();
        }
        if judges.is_empty() {
            judges = all.iter().collect();
        }
        let mut standings = judges.into_iter().map(|policy| policy.judge(access.identity()));
        let agreed = standings.try_fold(None, |before: Option<Standing>, next| match (before, next) {
            (Some(Standing::Good(one)), Standing::Good(other)) if !one.grants_same(&other) => None,
            (None | Some(Standing::Gone(_)), next) => Some(Some(next)),
            (before, _) => Some(before),
        });
        match agreed {
            Some(standing) => standing.unwrap_or_else(|| Standing::Gone(Arc::new(access.shut_out()))),
            None => Standing::Unsure(Arc::new(access.shut_out())),
        }
    }
}

fn backends(auth: &Auth) -> Arc<[Backend]> {
    let backends = auth.backends_in_force().into_iter().map(|backend| match backend {
        AuthBackend::File => Backend::File,
        AuthBackend::Sql => Backend::Sql,
        AuthBackend::Http => Backend::Http,
        AuthBackend::Jwt => Backend::Jwt,
        AuthBackend::Certificate => Backend::Certificate,
    });
    backends.collect()
}

/// The port of an address as configured; none of a socket in the file system, and where the system chooses it.
fn port(bind: &str) -> Option<&str> {
    let (host, port) = bind.rsplit_once(':')?;
    (host != "unix" && !host.starts_with("unix:") && port != "0").then_some(port)
}

/// A file that several listeners name is read once. What says the same as before is what was before: that two sessions have the same rules is seen at a
/// glance then.
fn read(
    config: &Config,
    listeners: &[Listener],
    is_configured: &[bool],
    before: &[CurrentPolicy],
    asked: &Asked,
) -> Result<Vec<Arc<Policy>>, PolicyError> {
    let before: Vec<Arc<Policy>> = before.iter().map(|policy| policy.load_full()).collect();
    let (users_before, rules_before): (Vec<_>, Vec<_>) =
        before.iter().map(|policy| (policy.shared_users(), policy.shared_rules())).unzip();
    let (mut users, mut rules) = (HashMap::new(), HashMap::new());
    let policy = |(index, listener): (usize, &Listener)| {
        let Auth { allow_anonymous, password_file, acl_file, .. } = config.auth_of(listener);
        let left = before.get(index).filter(|_| is_configured.get(index) == Some(&false));
        let users = match left.filter(|_| listener.password_file.is_some()) {
            Some(left) => left.shared_users().cloned(),
            None => password_file.map(|path| file(&mut users, "password_file", path, Users::parse, &users_before)).transpose()?,
        };
        let rules = match left.filter(|_| listener.acl_file.is_some()) {
            Some(left) => left.shared_rules().cloned(),
            None => acl_file.map(|path| file(&mut rules, "acl_file", path, Rules::parse, &rules_before)).transpose()?,
        };
        let place = Place { index: Some(index), bind: listener.bind.to_string().into() };
        let policy = Policy::new(place, allow_anonymous, users, rules);
        let backends = asked.backends.get(index).cloned().unwrap_or_default();
        let policy = policy.asking(backends, Arc::clone(&asked.accounts));
        Ok(Arc::new(policy.with_tokens_as_names(asked.has_tokens_as_names)))
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

    fn rules(text: &str) -> Option<Arc<Rules>> {
        Some(Arc::new(Rules::parse(text.as_bytes()).unwrap()))
    }

    /// Of listeners with these addresses, that let strangers in or not, under these rules.
    fn policies(all: &[(&str, bool, &Option<Arc<Rules>>)]) -> Policies {
        let policy = |(index, (bind, anonymous, rules)): (usize, &(&str, bool, &Option<Arc<Rules>>))| {
            let place = Place { index: Some(index), bind: (*bind).into() };
            Arc::new(ArcSwap::from_pointee(Policy::new(place, *anonymous, None, (*rules).clone())))
        };
        let asked = Asked { backends: Arc::default(), accounts: Arc::default(), has_tokens_as_names: false };
        Policies {
            of_listeners: all.iter().enumerate().map(policy).collect(),
            bridges: ArcSwap::default(),
            reserved: ReservedIds::default(),
            asked,
        }
    }

    #[test]
    fn who_had_a_session_before_a_restart_is_judged_by_his_own_listener() {
        let (a, b) = (rules("topic a"), rules("topic b"));
        let of = |bind: &str, index| {
            let place = Place { index: Some(index), bind: bind.into() };
            Access::of_owner(&Access::new(Identity::Anonymous, place, None).owner())
        };
        // What he may do there, if he is in.
        let found = |policies: &Policies, access: &Access| match policies.judge(access) {
            Standing::Good(access) | Standing::Unsure(access) => Some(["a", "b"].map(|topic| access.may_receive("c", topic))),
            Standing::Same | Standing::Gone(_) | Standing::PasswordChanged(_) => None,
        };
        let (only_a, only_b, nothing) = (Some([true, false]), Some([false, true]), Some([false, false]));
        // By its address, wherever it stands now; another's word does not count.
        let two = policies(&[("y", true, &b), ("x", true, &a)]);
        for index in [0, 1, 7] {
            assert_eq!((found(&two, &of("x", index)), found(&two, &of("y", index))), (only_a, only_b), "{index}");
        }
        assert_eq!(found(&policies(&[("y", true, &b), ("x", false, &a)]), &of("x", 0)), None);
        // One that is gone: those that would let him in must agree.
        assert_eq!(found(&policies(&[("y", true, &b), ("x", false, &a)]), &of("z", 1)), only_b);
        assert_eq!(found(&policies(&[("y", true, &b), ("x", true, &b)]), &of("z", 1)), only_b);
        assert_eq!(found(&two, &of("z", 1)), nothing);
        assert_eq!(found(&policies(&[("y", false, &b)]), &of("z", 0)), None);
        // As the first versions wrote it: by its place.
        assert_eq!((found(&two, &Access::of_owner("a0:")), found(&two, &Access::of_owner("a1:"))), (only_b, only_a));
        assert_eq!(found(&policies(&[("y", false, &b), ("x", true, &a)]), &Access::of_owner("a0:")), None);
        assert_eq!(found(&two, &Access::of_owner("?")), None);
        // Another broker's, which has the same listeners at its own address: by the port.
        let here = policies(&[("192.0.2.2:1883", true, &a), ("192.0.2.2:1884", true, &b), ("unix:/run/mqtt:1884", true, &a)]);
        for (bind, expected) in [
            ("192.0.2.1:1883", only_a),
            ("[2001:db8::1]:1884", only_b),
            ("192.0.2.1:1885", nothing),
            ("192.0.2.1:0", nothing),
            ("unix:/run/other:1883", nothing),
        ] {
            assert_eq!(found(&here, &of(bind, 0)), expected, "{bind}");
        }
        // Nobody has come in since: a reload judges what is left of him as the start did.
        let Standing::Unsure(shut_out) = two.judge(&of("z", 1)) else { panic!("he is not gone") };
        assert_eq!((found(&two, &shut_out), found(&policies(&[("z", true, &a)]), &shut_out)), (nothing, only_a));
    }

    #[test]
    fn the_files_of_a_listener_that_is_no_longer_configured_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let [own, shared] = ["own", "shared"].map(|name| dir.path().join(name));
        std::fs::write(&own, "topic a").unwrap();
        std::fs::write(&shared, "topic a").unwrap();
        let listener = |acl_file| Listener { acl_file, allow_anonymous: Some(true), ..Listener::default() };
        let listeners = vec![listener(None), listener(Some(own.clone()))];
        let auth = Auth { acl_file: Some(shared.clone()), ..Auth::default() };
        let config = Config { listeners, auth, ..Config::default() };
        let policies = Policies::load(&config, &Arc::default()).unwrap();
        std::fs::remove_file(own).unwrap();
        std::fs::write(&shared, "topic b").unwrap();
        assert!(policies.read_anew(&config, &config.listeners, &[true, true]).is_err());
        let may = |policy: &Arc<Policy>, topic| policy.admit(&Identity::Anonymous).may_receive("c", topic);
        let read = policies.read_anew(&config, &config.listeners, &[true, false]).unwrap();
        assert!(may(&read[0], "b") && !may(&read[0], "a") && may(&read[1], "a") && !may(&read[1], "b"));
        // What it does not say itself is everybody's.
        let read = policies.read_anew(&config, &config.listeners, &[false, false]).unwrap();
        assert!(may(&read[0], "b") && may(&read[1], "a"));
    }

    #[test]
    fn files_that_say_the_same_make_the_same_rules() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acl");
        std::fs::write(&path, "topic a").unwrap();
        let listeners = vec![Listener { acl_file: Some(path.clone()), allow_anonymous: Some(true), ..Listener::default() }];
        let config = Config { listeners, ..Config::default() };
        let policies = Policies::load(&config, &Arc::default()).unwrap();
        let rules = || policies.all().first().unwrap().load().shared_rules().cloned().unwrap();
        let first = rules();
        for (text, same) in [("# again\ntopic a", true), ("topic b", false)] {
            std::fs::write(&path, text).unwrap();
            policies.replace(policies.read_anew(&config, &config.listeners, &[true]).unwrap());
            assert_eq!(Arc::ptr_eq(&first, &rules()), same, "{text}");
        }
    }
}

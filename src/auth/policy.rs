//! What holds at one listener: whether anonymous clients may come in, who its users are, and the rules for all of them.

use std::sync::{Arc, LazyLock};

use super::access::{Access, Identity, Place};
use super::account::{Account, Accounts, Backend, Granted, Known};
use super::acl::Rules;
use super::password::Record;
use super::users::Users;

/// See the module's page. Immutable: a reload makes another.
#[derive(Debug)]
pub struct Policy {
    /// What a client without a user name may do; none: it does not come in.
    anonymous: Option<Arc<Access>>,
    place: Place,
    users: Option<Arc<Users>>,
    rules: Option<Arc<Rules>>,
    /// Who is asked about a user, in this order.
    backends: Arc<[Backend]>,
    /// What those of them have said that are no files.
    accounts: Arc<[Arc<Accounts>]>,
    /// Whether a token stands in the place of the user name, which needs no password.
    has_tokens_as_names: bool,
}

/// What becomes of a client that shows what a CONNECT has room for.
#[derive(Debug)]
pub enum Claim {
    /// It is in.
    Granted(Identity),
    /// It is in if [`Record::verify`] finds the password good, as that user.
    Check {
        /// The user.
        name: Arc<str>,
        /// Of the user's password.
        record: Arc<Record>,
    },
    /// No such user: reason code 0x86, 4 before MQTT 5. Who does not know that must not find it out: a check of `record`, which is another's, takes
    /// as long as one of a user's.
    Nobody {
        /// Of a password like most.
        record: Arc<Record>,
    },
    /// The backends are to be asked, one after the other.
    Ask,
    /// A name without a password: the same reason code, whether or not there is such a user.
    NoPassword,
    /// Reason code 0x87, 5 before MQTT 5.
    NotAllowed,
}

/// What becomes of a client that came in under an older policy.
#[derive(Debug)]
pub enum Standing {
    /// It goes on, with these rights.
    Good(Arc<Access>),
    /// Nobody can tell with which rights, until its client comes in again: it goes on with none.
    Unsure(Arc<Access>),
    /// Its user has another password now, or is not found at present: whoever is connected must show it. The session is still the user's.
    PasswordChanged(Arc<Access>),
    /// Nothing has changed for it.
    Same,
    /// Its user is no more: neither connection nor session goes on. What he could do if he were still here.
    Gone(Arc<Access>),
}

impl Policy {
    /// Of the listener there. Without `users` nobody can show to be one by a password, without `rules` who is in may do everything.
    #[must_use]
    pub fn new(place: Place, allow_anonymous: bool, users: Option<Arc<Users>>, rules: Option<Arc<Rules>>) -> Self {
        let anonymous = allow_anonymous.then(|| Arc::new(Access::new(Identity::Anonymous, place.clone(), rules.clone())));
        let backends = Arc::from([Backend::Certificate, Backend::File]);
        Self { anonymous, place, users, rules, backends, accounts: Arc::default(), has_tokens_as_names: false }
    }

    /// The same, asking these in this order. `accounts` has what is known of those that are no files. Without [`Backend::File`] among them nobody is in a file.
    #[must_use]
    pub fn asking(self, backends: Arc<[Backend]>, accounts: Arc<[Arc<Accounts>]>) -> Self {
        let users = self.users.filter(|_| backends.contains(&Backend::File));
        Self { backends, accounts, users, ..self }
    }

    /// The same where, or where not, a token stands in the place of the user name.
    #[must_use]
    pub fn with_tokens_as_names(self, has_tokens_as_names: bool) -> Self {
        Self { has_tokens_as_names, ..self }
    }

    /// Who is asked about a user, in this order.
    #[must_use]
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// Of a bridge, by the client id of its session: whoever comes in under it is the broker itself, and may do everything.
    #[must_use]
    pub fn of_bridge(client_id: &str) -> Self {
        let identity = Identity::Bridge { client_id: client_id.into() };
        let place = Place::default();
        let anonymous = Some(Arc::new(Access::new(identity, place.clone(), None)));
        let (backends, accounts) = (Arc::default(), Arc::default());
        Self { anonymous, place, users: None, rules: None, backends, accounts, has_tokens_as_names: false }
    }

    /// Of which listener it is.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Who may log in with a password.
    #[must_use]
    pub fn users(&self) -> Option<&Users> {
        self.users.as_deref()
    }

    /// Those of them who may prove it by SCRAM: nobody where a backend comes before the file, for that could not be asked about him.
    #[must_use]
    pub fn users_by_scram(&self) -> Option<&Users> {
        let first = self.backends.iter().find(|by| **by != Backend::Certificate);
        self.users().filter(|_| first == Some(&Backend::File))
    }

    /// Of a password like most: what is checked of who is no user.
    #[must_use]
    pub fn decoy(&self) -> &Arc<Record> {
        static OTHERWISE: LazyLock<Arc<Record>> = LazyLock::new(|| Arc::new(Record::decoy()));
        self.users.as_ref().map_or(&*OTHERWISE, |users| users.decoy())
    }

    /// The users, to be used again where nothing has changed.
    #[must_use]
    pub fn shared_users(&self) -> Option<&Arc<Users>> {
        self.users.as_ref()
    }

    /// The rules, likewise.
    #[must_use]
    pub fn shared_rules(&self) -> Option<&Arc<Rules>> {
        self.rules.as_ref()
    }

    /// Judges a client that named `user_name`, and sent a password or not.
    #[must_use]
    pub fn claim(&self, user_name: Option<&str>, has_password: bool) -> Claim {
        if self.backends.iter().any(|by| self.accounts.iter().any(|accounts| accounts.by() == *by)) {
            match (user_name, has_password) {
                (Some(_), true) => return Claim::Ask,
                (Some(_), false) if self.has_tokens_as_names && self.backends.contains(&Backend::Jwt) => return Claim::Ask,
                (Some(_), false) => return Claim::NoPassword,
                // A token says itself whose it is.
                (None, true) if self.backends.contains(&Backend::Jwt) => return Claim::Ask,
                (None, _) => {}
            }
        }
        match (user_name, &self.users) {
            (Some(name), Some(users)) => match users.find(name) {
                _ if !has_password => Claim::NoPassword,
                Some((name, record)) => Claim::Check { name: Arc::clone(name), record: Arc::clone(record) },
                None => Claim::Nobody { record: Arc::clone(users.decoy()) },
            },
            // A name that nobody can check is worth nothing: no rule about a user of that name holds for it.
            (None, _) | (_, None) => match &self.anonymous {
                Some(access) => Claim::Granted(access.identity().clone()),
                None => Claim::NotAllowed,
            },
        }
    }

    /// What the client may do that came in as that.
    #[must_use]
    pub fn admit(&self, identity: &Identity) -> Arc<Access> {
        match (identity, &self.anonymous) {
            (Identity::Bridge { .. }, _) => Arc::new(Access::new(identity.clone(), Place::default(), None)),
            (Identity::Anonymous, Some(access)) => Arc::clone(access),
            (Identity::Vouched { account: None, .. }, _) => Arc::new(Access::awaited(identity.clone(), self.place.clone())),
            (Identity::Vouched { account: Some(account), .. }, _) => {
                let rules = match account.granted() {
                    Granted::All => None,
                    Granted::AsListener => self.rules.clone(),
                    Granted::AsFile => Some(self.rules.clone().unwrap_or_default()),
                    Granted::Rules(rules) => Some(Arc::clone(rules)),
                };
                Arc::new(Access::new(identity.clone(), self.place.clone(), rules))
            }
            _ => Arc::new(Access::new(identity.clone(), self.place.clone(), self.rules.clone())),
        }
    }

    /// Judges a client that is in already, or whose session waits for it. Bridges have no listener: see [`Policy::of_bridge`].
    #[must_use]
    pub fn judge(&self, identity: &Identity) -> Standing {
        match identity {
            Identity::Unknown => Standing::Gone(self.admit(identity)),
            Identity::Anonymous if self.anonymous.is_none() => Standing::Gone(self.admit(identity)),
            Identity::Anonymous | Identity::Certified { .. } | Identity::Bridge { .. } => Standing::Good(self.admit(identity)),
            Identity::User { name, record } => match self.users.as_ref().and_then(|users| users.find(name)) {
                Some((_, now)) if record.as_ref().is_none_or(|record| record == now) => Standing::Good(self.admit(identity)),
                Some(_) => Standing::PasswordChanged(self.admit(identity)),
                None => Standing::Gone(self.admit(identity)),
            },
            Identity::Vouched { by, name, account } => self.judge_vouched(*by, name, account.as_ref()),
        }
    }

    /// By what its backend has said last. Of whom it has not been asked yet nothing is decided.
    fn judge_vouched(&self, by: Backend, name: &Arc<str>, before: Option<&Arc<Account>>) -> Standing {
        let is_asked = self.backends.contains(&by);
        let Some(accounts) = self.accounts.iter().find(|accounts| is_asked && accounts.by() == by) else {
            return Standing::Gone(Arc::new(Access::new(Identity::Unknown, self.place.clone(), Some(Arc::default()))));
        };
        let (name, known) = accounts.follow(name);
        let admit = |account: Option<&Arc<Account>>| {
            self.admit(&Identity::Vouched { by, name: Arc::clone(&name), account: account.cloned() })
        };
        match known {
            Known::Awaited => Standing::Good(admit(before)),
            Known::Nobody => Standing::Gone(admit(before)),
            // A token that is over was good until now. By all else nobody speaks any more, not by a will either, and what waits, waits.
            Known::Refused if by == Backend::Jwt => Standing::PasswordChanged(admit(before)),
            Known::Refused | Known::Missing => Standing::PasswordChanged(admit(None)),
            Known::Somebody(now) => match before {
                Some(before) if before.record() != now.record() => Standing::PasswordChanged(admit(Some(&now))),
                _ => Standing::Good(admit(Some(&now))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn users(text: &str) -> Option<Arc<Users>> {
        Some(Arc::new(Users::parse(text.as_bytes()).unwrap()))
    }

    const BOB: &str =
        "bob:$6$c2FsdHNhbHQ=$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\n";

    #[test]
    fn who_names_a_user_must_be_one_and_who_names_none_must_be_wanted() {
        for (allow_anonymous, users, name, has_password, expected) in [
            (false, None, None, false, "not allowed"),
            (false, None, Some("bob"), true, "not allowed"),
            (true, None, None, false, "anonymous"),
            (true, None, Some("bob"), true, "anonymous"),
            (false, users(BOB), None, false, "not allowed"),
            (false, users(BOB), None, true, "not allowed"),
            (true, users(BOB), None, false, "anonymous"),
            (false, users(BOB), Some("bob"), true, "check"),
            (true, users(BOB), Some("bob"), false, "no password"),
            (true, users(BOB), Some("eve"), false, "no password"),
            (true, users(BOB), Some("eve"), true, "nobody"),
            (true, users(BOB), Some(""), true, "nobody"),
        ] {
            let case = format!("{allow_anonymous} {users:?} {name:?} {has_password}");
            let found = match Policy::new(Place::default(), allow_anonymous, users, None).claim(name, has_password) {
                Claim::Granted(Identity::Anonymous) => "anonymous",
                Claim::Granted(_) => "somebody",
                Claim::Check { name, .. } if &*name == "bob" => "check",
                Claim::Check { .. } => "check another",
                Claim::Nobody { .. } => "nobody",
                Claim::Ask => "ask",
                Claim::NoPassword => "no password",
                Claim::NotAllowed => "not allowed",
            };
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn who_is_in_stays_as_long_as_nothing_of_it_changes() {
        let policy = |allow_anonymous, users| Policy::new(Place::default(), allow_anonymous, users, None);
        let Claim::Check { name, record } = policy(false, users(BOB)).claim(Some("bob"), true) else { panic!("a user") };
        let bob = Identity::User { name, record: Some(record) };
        let changed = BOB.replace("c2Fs", "c3Fs");
        for (identity, allow_anonymous, users, expected) in [
            (&bob, false, users(&format!("# again\n{BOB}")), "good"),
            (&bob, false, users(&changed), "changed"),
            (&bob, true, users(&BOB.replace("bob", "bobby")), "gone"),
            (&bob, true, None, "gone"),
            (&Identity::Anonymous, true, users(BOB), "good"),
            (&Identity::Anonymous, false, users(BOB), "gone"),
            (&Identity::Certified { name: "bob".into() }, false, None, "good"),
            (&Identity::User { name: "bob".into(), record: None }, false, users(&changed), "good"),
            (&Identity::Unknown, true, None, "gone"),
        ] {
            let found = match policy(allow_anonymous, users).judge(identity) {
                Standing::Good(_) => "good",
                Standing::Same => "same",
                Standing::PasswordChanged(_) => "changed",
                Standing::Gone(_) => "gone",
                Standing::Unsure(_) => "unsure",
            };
            assert_eq!(found, expected, "{identity:?} {allow_anonymous}");
        }
    }

    #[test]
    fn a_token_in_the_place_of_the_name_needs_no_password_and_without_rules_it_may_do_what_is_said() {
        let accounts: Arc<[_]> = [Arc::new(Accounts::new(Backend::Jwt, Duration::MAX, Duration::ZERO))].into();
        let policy = |backends: &[Backend], as_names, rules: Option<&str>| {
            let rules = rules.map(|text| Arc::new(Rules::parse(text.as_bytes()).unwrap()));
            let policy = Policy::new(Place::default(), false, None, rules).asking(backends.into(), Arc::clone(&accounts));
            policy.with_tokens_as_names(as_names)
        };
        for (backends, as_names, name, has_password, is_asked) in [
            (&[Backend::Jwt][..], true, Some("token"), false, true),
            (&[Backend::Jwt], false, Some("token"), false, false),
            (&[Backend::Jwt], false, None, true, true),
            (&[Backend::File], true, Some("token"), false, false),
        ] {
            let claim = policy(backends, as_names, None).claim(name, has_password);
            assert_eq!(matches!(claim, Claim::Ask), is_asked, "{backends:?} {as_names} {name:?}: {claim:?}");
        }
        for (granted, rules, may) in [
            (Granted::AsListener, None, true),
            (Granted::AsFile, None, false),
            (Granted::AsFile, Some("user bob\ntopic t"), true),
            (Granted::AsFile, Some("user eve\ntopic t"), false),
            (Granted::All, Some("user eve\ntopic t"), true),
        ] {
            let account = Some(Arc::new(Account::new(None, granted.clone())));
            let bob = Identity::Vouched { by: Backend::Jwt, name: "bob\0x".into(), account };
            assert_eq!(policy(&[Backend::Jwt], false, rules).admit(&bob).may_publish("c", "t"), may, "{granted:?} {rules:?}");
        }
    }

    #[test]
    fn users_of_a_backend_are_judged_by_its_last_word() {
        #[expect(clippy::disallowed_methods, reason = "any moment will do")]
        let now = Instant::now();
        let accounts = Arc::new(Accounts::new(Backend::Sql, Duration::from_secs(60), Duration::from_secs(60)));
        let rules = |topic| Granted::Rules(Arc::new(Rules::of_rows([(topic, 7)]).0));
        let record = |salt: &str| Record::parse(&BOB.trim_end().trim_start_matches("bob:").replace("c2Fs", salt)).ok();
        let policy = Policy::new(Place::default(), true, None, None).asking([Backend::Sql].into(), [Arc::clone(&accounts)].into());
        for (name, has_password, expected) in
            [(Some("bob"), true, "ask"), (Some("bob"), false, "no password"), (None, true, "granted")]
        {
            let found = match policy.claim(name, has_password) {
                Claim::Ask => "ask",
                Claim::NoPassword => "no password",
                Claim::Granted(_) => "granted",
                _ => "another",
            };
            assert_eq!(found, expected);
        }
        let may = |access: &Access| (access.may_publish("c", "t"), access.may_receive("c", "t"), access.may_subscribe("c", "t"));
        // Of an earlier run: nobody has been asked.
        let restored = Access::of_owner("s@0:bob");
        assert_eq!(restored.owner(), "s@0:bob".into());
        let Standing::Good(awaited) = policy.judge(restored.identity()) else { panic!("not gone") };
        assert!(awaited.is_awaited() && may(&awaited) == (false, true, false), "it is kept for him");
        accounts.learn("bob", Some(Account::new(record("c2Fs"), rules("t"))), now);
        let Standing::Good(known) = policy.judge(awaited.identity()) else { panic!("not gone") };
        assert!(!known.is_awaited() && may(&known) == (true, true, true) && known.identity().is_same_user(restored.identity()));
        accounts.learn("bob", Some(Account::new(record("c2Fs"), rules("u"))), now);
        let Standing::Good(other) = policy.judge(known.identity()) else { panic!("not gone") };
        assert!(may(&other) == (false, false, false) && !other.grants_same(&known));
        accounts.learn("bob", Some(Account::new(record("c3Fs"), Granted::All)), now);
        let Standing::PasswordChanged(changed) = policy.judge(known.identity()) else { panic!("another password") };
        assert_eq!(may(&changed), (true, true, true));
        // Not found any more: nobody speaks for him, and it is kept for him until that is said again.
        accounts.learn("bob", None, now);
        let Standing::PasswordChanged(missing) = policy.judge(known.identity()) else { panic!("his session is kept") };
        assert!(missing.is_awaited() && may(&missing) == (false, true, false));
        accounts.learn("bob", Some(Account::new(record("c2Fs"), rules("t"))), now);
        assert!(matches!(policy.judge(missing.identity()), Standing::Good(access) if may(&access) == (true, true, true)));
        accounts.learn("bob", None, now);
        accounts.learn("bob", None, now + Duration::from_secs(60));
        assert!(matches!(policy.judge(known.identity()), Standing::Gone(_)));
        // At a listener that does not ask that backend he is nobody.
        let elsewhere = Policy::new(Place::default(), true, None, None).asking([Backend::File].into(), [accounts].into());
        assert!(matches!(elsewhere.judge(known.identity()), Standing::Gone(_)));
        assert!(matches!(elsewhere.claim(Some("bob"), true), Claim::Granted(Identity::Anonymous)));
        // Who is in the file is nobody where that is not asked, and proves nothing to it where another is asked before.
        let with_file =
            |backends: &[Backend]| Policy::new(Place::default(), false, users(BOB), None).asking(backends.into(), Arc::default());
        for (backends, is_user, by_scram) in [
            (&[Backend::Certificate][..], false, false),
            (&[Backend::Sql, Backend::File], true, false),
            (&[Backend::File, Backend::Sql], true, true),
            (&[Backend::Certificate, Backend::File], true, true),
        ] {
            let policy = with_file(backends);
            assert_eq!((policy.users().is_some(), policy.users_by_scram().is_some()), (is_user, by_scram), "{backends:?}");
            assert_eq!(matches!(policy.claim(Some("bob"), true), Claim::Check { .. }), is_user, "{backends:?}");
        }
        let without = Policy::new(Place::default(), true, None, None);
        assert!(matches!(without.judge(known.identity()), Standing::Gone(access) if may(&access) == (false, false, false)));
    }
}

//! Log-ins that backends decide, one after the other: the first that knows the user wins. One that cannot be asked ends the search, and lets nobody in.

use std::sync::Arc;
use std::time::Instant;

use super::handshake::{Guest, Refused, WRONG};
use super::login::Found;
use crate::auth::{Account, Backend, Identity, Policy, Record};
use crate::backends::{Answer, Inquiry};
use crate::clock;
use crate::codec::ReasonCode;

impl Guest<'_> {
    /// A client whose certificate says who it is. Where a backend stands in front of that, it must know the user.
    pub(super) async fn certify(&self, policy: &Policy, name: &Arc<str>, since: Instant) -> Result<Identity, Refused> {
        for by in policy.backends() {
            match by {
                Backend::Certificate => return Ok(Identity::Certified { name: Arc::clone(name) }),
                // They know whom they know by a password or a token.
                Backend::File | Backend::Http | Backend::Jwt => {}
                Backend::Sql => match self.look_up(*by, name, false).await {
                    Answer::Somebody { name, account, .. } => {
                        return Ok(Identity::Vouched { by: *by, name, account: Some(account) });
                    }
                    Answer::Nobody | Answer::Refused => {}
                    Answer::Away => return Err(self.away(since).await),
                    Answer::Busy => return Err(self.busy(since).await),
                },
            }
        }
        Err(self.refuse(ReasonCode::NotAuthorized, "a certificate of nobody who is known", since).await)
    }

    /// A client that showed a password, and named a user if that is no token.
    pub(super) async fn ask_backends(&self, policy: &Policy, since: Instant) -> Result<Identity, Refused> {
        let name = self.connect.user_name.unwrap_or_default();
        let has_password = self.connect.password.is_some();
        for by in policy.backends() {
            let checked = match by {
                Backend::Certificate => continue,
                // A token in the place of a name: nobody else takes less than a password.
                Backend::File | Backend::Sql | Backend::Http if !has_password => continue,
                Backend::File => match policy.users().and_then(|users| users.find(name)) {
                    Some((name, record)) => (
                        self.verify(name, true, record).await,
                        Identity::User { name: Arc::clone(name), record: Some(Arc::clone(record)) },
                    ),
                    None => continue,
                },
                Backend::Sql => match self.look_up(*by, name, false).await {
                    Answer::Somebody { name, account, is_new } => self.check(policy, *by, (name, account), is_new).await,
                    Answer::Nobody | Answer::Refused => continue,
                    Answer::Away => return Err(self.away(since).await),
                    Answer::Busy => return Err(self.busy(since).await),
                },
                Backend::Http | Backend::Jwt => match self.show(*by, name).await {
                    Answer::Somebody { name: user, account, .. } => {
                        let identity = Identity::Vouched { by: *by, name: user, account: Some(account) };
                        // A token says who it is: he may be one of a backend that comes first.
                        if *by == Backend::Jwt && self.is_of_another(policy, identity.user().unwrap_or_default(), name).await? {
                            (Found::Wrong, Identity::Anonymous)
                        } else {
                            (Found::Good, identity)
                        }
                    }
                    Answer::Refused => (Found::Wrong, Identity::Anonymous),
                    Answer::Nobody => continue,
                    Answer::Away => return Err(self.away(since).await),
                    Answer::Busy => return Err(self.busy(since).await),
                },
            };
            return match checked {
                (Found::Good, identity) => Ok(identity),
                (Found::Wrong, _) => Err(self.refuse(ReasonCode::BadUserNameOrPassword, WRONG, since).await),
                (Found::Busy, _) => Err(self.busy(since).await),
            };
        }
        Err(match self.verify(name, false, policy.decoy()).await {
            Found::Good | Found::Wrong => self.refuse(ReasonCode::BadUserNameOrPassword, WRONG, since).await,
            Found::Busy => self.busy(since).await,
        })
    }

    /// Whether the user of a token is known to a backend that is asked before tokens are looked at, where the client has named nobody or somebody else.
    async fn is_of_another(&self, policy: &Policy, user: &str, named: &str) -> Result<bool, Refused> {
        if user == named {
            return Ok(false);
        }
        for by in policy.backends().iter().take_while(|by| **by != Backend::Jwt) {
            let is_known = match by {
                Backend::File => policy.users().is_some_and(|users| users.find(user).is_some()),
                Backend::Sql => match self.look_up(*by, user, false).await {
                    Answer::Somebody { .. } => true,
                    Answer::Nobody | Answer::Refused => false,
                    Answer::Away => return Err(self.away(clock::now()).await),
                    Answer::Busy => return Err(self.busy(clock::now()).await),
                },
                // They know nobody by name alone.
                Backend::Certificate | Backend::Http | Backend::Jwt => false,
            };
            if is_known {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the password is the account's. What was remembered may be older than the password: then it is asked once more.
    async fn check(
        &self,
        policy: &Policy,
        by: Backend,
        (name, account): (Arc<str>, Arc<Account>),
        is_new: bool,
    ) -> (Found, Identity) {
        let found = self.verify_by(policy, &name, account.record()).await;
        let old = Identity::Vouched { by, name: Arc::clone(&name), account: Some(Arc::clone(&account)) };
        if found != Found::Wrong || is_new {
            return (found, old);
        }
        match self.look_up(by, &name, true).await {
            Answer::Somebody { name, account: now, .. } if now.record() != account.record() => {
                let found = self.verify_by(policy, &name, now.record()).await;
                (found, Identity::Vouched { by, name, account: Some(now) })
            }
            _ => (found, old),
        }
    }

    /// Nobody has the password of an account that has none, which takes as long.
    async fn verify_by(&self, policy: &Policy, name: &str, record: Option<&Arc<Record>>) -> Found {
        self.verify(name, record.is_some(), record.unwrap_or_else(|| policy.decoy())).await
    }

    async fn look_up(&self, by: Backend, name: &str, is_anew: bool) -> Answer {
        let Some(backends) = &self.terms.backends else { return Answer::Away };
        let question = match backends.look_up(by, name, is_anew) {
            Inquiry::Known(answer) => return answer,
            Inquiry::Open(question) => question,
        };
        // What is found of a name is nothing to guess: a password is looked at later, and has its turn then.
        let Some(_place) = self.terms.logins.place_of(self.peer.address.ip()).await else { return Answer::Busy };
        question.ask().await
    }

    /// Asks who looks at what was shown himself. Guesses from one address have their turns here as well.
    async fn show(&self, by: Backend, name: &str) -> Answer {
        let Some(backends) = &self.terms.backends else { return Answer::Nobody };
        // A password that is no text is none of theirs; where the token is the name it says nothing.
        let password = match str::from_utf8(self.connect.password.unwrap_or_default()) {
            Ok(password) => password,
            Err(_) if by == Backend::Jwt => "",
            Err(_) => return Answer::Nobody,
        };
        // Nothing is to be guessed with what is no token.
        let is_token = |text: &str| text.bytes().filter(|byte| *byte == b'.').count() == 2;
        if by == Backend::Jwt && !is_token(name) && !is_token(password) {
            return Answer::Nobody;
        }
        let address = self.peer.address.ip();
        // Until what is found is counted.
        let mut place = None;
        let answer = if by == Backend::Jwt {
            match self.terms.logins.turn_of(address).await {
                true => backends.read_token(name, password),
                false => return Answer::Busy,
            }
        } else {
            match backends.show(by, name, self.connect.client_id, password) {
                // That was looked at already, and waits for nobody's turn.
                Inquiry::Known(answer @ Answer::Somebody { .. }) => return answer,
                Inquiry::Known(answer) => answer,
                Inquiry::Open(question) => {
                    place = self.terms.logins.place_of(address).await;
                    if place.is_none() || !self.terms.logins.turn_of(address).await {
                        return Answer::Busy;
                    }
                    question.ask().await
                }
            }
        };
        match &answer {
            Answer::Somebody { .. } => self.terms.logins.count_good(address, clock::now()),
            Answer::Refused => self.terms.logins.count_wrong(address, clock::now()),
            Answer::Nobody | Answer::Away | Answer::Busy => {}
        }
        drop(place);
        answer
    }

    async fn away(&self, since: Instant) -> Refused {
        self.refuse(ReasonCode::ServerUnavailable, "whoever knows its user cannot be asked", since).await
    }
}

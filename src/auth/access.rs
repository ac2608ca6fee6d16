//! What one client may do: who it is, and the rules that hold for it.

use std::sync::Arc;

use super::account::{Account, Backend, user_of};
use super::acl::{Asking, Right, Rules};
use super::password::Record;

/// Who a client has shown itself to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Nobody, and nobody asked. A user name without a password file to check it by is worth nothing, either.
    Anonymous,
    /// A user by the password that this record is of.
    User {
        /// The name.
        name: Arc<str>,
        /// By what it was found good. None: that was before a restart.
        record: Option<Arc<Record>>,
    },
    /// A user by the certificate of its TLS connection, or what a proxy in front of us has said of that.
    Certified {
        /// The name.
        name: Arc<str>,
    },
    /// A user of whom a backend outside of this broker knows.
    Vouched {
        /// Which.
        by: Backend,
        /// By which what it says is kept ([`Accounts`](super::Accounts)): it begins with the name.
        name: Arc<str>,
        /// What the backend said when the client came in. None: that was before a restart, and it has not been asked since.
        account: Option<Arc<Account>>,
    },
    /// The broker itself, for one of its bridges. No client is that.
    Bridge {
        /// Of the bridge's session.
        client_id: Arc<str>,
    },
    /// It was written down in no way that is understood. Nobody is the same.
    Unknown,
}

impl Identity {
    /// The user, if there is one.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Anonymous | Self::Bridge { .. } | Self::Unknown => None,
            Self::User { name, .. } | Self::Certified { name } => Some(name),
            Self::Vouched { name, .. } => Some(user_of(name)),
        }
    }

    /// Whether that is the same user, however shown, or nobody as well: then what is the one's is the other's.
    #[must_use]
    pub fn is_same_user(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => false,
            (bridge @ Self::Bridge { .. }, other) | (other, bridge @ Self::Bridge { .. }) => bridge == other,
            _ => self.user() == other.user(),
        }
    }
}

/// Which listener a client came in at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its place in the configuration of this process; none: it was one of an earlier run, which had another.
    pub index: Option<usize>,
    /// Where it is bound, as configured; empty: nobody has written that down.
    pub bind: Arc<str>,
}

/// See the module's page. Immutable and without a client's own name, so that many clients share it; one whose rights change gets another.
#[derive(Debug)]
pub struct Access {
    identity: Identity,
    place: Place,
    rights: Rights,
}

#[derive(Clone, Debug)]
enum Rights {
    /// There are no rules, and everything is allowed.
    All,
    Rules(Arc<Rules>),
    /// Nobody has said yet. What is for a session is kept for it; nobody speaks for it.
    Awaited,
}

impl Access {
    /// Of whoever came in as that at the listener there.
    #[must_use]
    pub fn new(identity: Identity, place: Place, rules: Option<Arc<Rules>>) -> Self {
        Self { identity, place, rights: rules.map_or(Rights::All, Rights::Rules) }
    }

    /// Of a session whose user's backend is still to be asked: messages wait in it for its client, who gets rights of its own when it comes in, by which each of
    /// them is judged again.
    #[must_use]
    pub fn awaited(identity: Identity, place: Place) -> Self {
        Self { identity, place, rights: Rights::Awaited }
    }

    /// Whether it is not known yet what the client may do.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        matches!(self.rights, Rights::Awaited)
    }

    /// Of the same client when it is shut out: it may do nothing.
    #[must_use]
    pub fn shut_out(&self) -> Self {
        Self::new(self.identity.clone(), self.place.clone(), Some(Arc::default()))
    }

    /// The same to be kept with what the client has left here, for longer than its session: it does not hold the name by which its backend is asked about it, nor what
    /// it has shown.
    #[must_use]
    pub fn left_behind(self: &Arc<Self>) -> Arc<Self> {
        let Identity::Vouched { by, name, account } = &self.identity else { return Arc::clone(self) };
        let account = account.as_ref().map(|account| match account.shown() {
            Some(_) => Arc::new(account.without_shown()),
            None => Arc::clone(account),
        });
        let identity = Identity::Vouched { by: *by, name: Arc::from(&**name), account };
        Arc::new(Self { identity, place: self.place.clone(), rights: self.rights.clone() })
    }

    /// Who the client is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// At which listener it came in.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Whose the client's session is, to be written down with it: how he has shown himself, the length of the listener's address, that, and the name.
    #[must_use]
    pub fn owner(&self) -> Arc<str> {
        let (kind, name) = match &self.identity {
            Identity::Anonymous => ('a', ""),
            Identity::User { name, .. } => ('u', &**name),
            Identity::Certified { name } => ('c', &**name),
            Identity::Vouched { by, name, .. } => (by.letter(), user_of(name)),
            Identity::Bridge { client_id } => ('b', &**client_id),
            Identity::Unknown => return Arc::default(),
        };
        format!("{kind}@{}:{}{name}", self.place.bind.len(), self.place.bind).into()
    }

    /// Of whom [`Access::owner`] told before a restart; shut out until it is judged.
    #[must_use]
    pub fn of_owner(owner: &str) -> Self {
        let understood = || {
            let (head, rest) = owner.split_once(':')?;
            let (kind, place) = head.split_at_checked(1)?;
            let (place, name) = match place.strip_prefix('@') {
                Some(length) => {
                    let (bind, name) = rest.split_at_checked(length.parse().ok()?)?;
                    (Place { index: None, bind: bind.into() }, name)
                }
                // As the first versions wrote it.
                None => (Place { index: Some(place.parse().ok()?), bind: Arc::default() }, rest),
            };
            let identity = match kind {
                "a" => Identity::Anonymous,
                "u" => Identity::User { name: name.into(), record: None },
                "c" => Identity::Certified { name: name.into() },
                "b" => Identity::Bridge { client_id: name.into() },
                _ => Identity::Vouched { by: Backend::of_letter(kind)?, name: name.into(), account: None },
            };
            Some((identity, place))
        };
        let (identity, place) = understood().unwrap_or((Identity::Unknown, Place::default()));
        Self::new(identity, place, Some(Arc::default()))
    }

    /// Whether there is anything that the client may not do.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        !matches!(self.rights, Rights::All)
    }

    /// Whether both grant a client the same by the same rules: what was decided with one holds with the other. Rules that were read anew are the same
    /// where nothing in them has changed.
    #[must_use]
    pub fn grants_same(&self, other: &Self) -> bool {
        let same_rules = match (&self.rights, &other.rights) {
            (Rights::All, Rights::All) => return true,
            (Rights::Rules(a), Rights::Rules(b)) => Arc::ptr_eq(a, b),
            (Rights::Awaited, Rights::Awaited) => true,
            _ => false,
        };
        same_rules && self.identity.user() == other.identity.user()
    }

    /// Whether the client may publish to a topic.
    #[must_use]
    pub fn may_publish(&self, client_id: &str, topic: &str) -> bool {
        match &self.rights {
            Rights::All => true,
            Rights::Rules(rules) => rules.allow(self.asking(client_id), Right::Write, topic),
            Rights::Awaited => false,
        }
    }

    /// Whether the client may get what is published to a topic.
    #[must_use]
    pub fn may_receive(&self, client_id: &str, topic: &str) -> bool {
        match &self.rights {
            Rights::All => true,
            Rights::Rules(rules) => rules.allow(self.asking(client_id), Right::Read, topic),
            Rights::Awaited => true,
        }
    }

    /// Whether a subscription could bring the client anything: not if its rules grant none of what `filter` (checked, without a share name)
    /// matches. What of it the client gets is [`Access::may_receive`]'s to say, message by message.
    #[must_use]
    pub fn may_subscribe(&self, client_id: &str, filter: &str) -> bool {
        match &self.rights {
            Rights::All => true,
            Rights::Rules(rules) => rules.allow_some(self.asking(client_id), filter),
            Rights::Awaited => false,
        }
    }

    fn asking<'a>(&'a self, client_id: &'a str) -> Asking<'a> {
        Asking { user: self.identity.user(), client_id }
    }
}

#[cfg(test)]
mod tests {
    use super::super::account::{Granted, Shown};
    use super::*;

    #[test]
    fn without_rules_everything_is_allowed_and_shut_out_nothing() {
        let access = Access::new(Identity::Anonymous, Place::default(), None);
        assert!(access.may_publish("c", "a") && access.may_receive("c", "a") && access.may_subscribe("c", "#"));
        let out = access.shut_out();
        assert!(!out.may_publish("c", "a") && !out.may_receive("c", "a") && !out.may_subscribe("c", "#"));
    }

    #[test]
    fn what_a_client_leaves_behind_keeps_neither_its_password_nor_its_name_in_use() {
        let (name, shown): (Arc<str>, _) = ("bob\0digest".into(), Arc::new(Shown { client_id: "c".into(), password: "p".into() }));
        let account = Some(Arc::new(Account::showing(Arc::clone(&shown), Granted::AsListener)));
        let identity = Identity::Vouched { by: Backend::Http, name: Arc::clone(&name), account };
        let access = Arc::new(Access::new(identity, Place::default(), Some(Arc::default())));
        let left = access.left_behind();
        drop(access);
        assert_eq!((Arc::strong_count(&name), Arc::strong_count(&shown)), (1, 1));
        assert!(matches!(left.identity(), Identity::Vouched { name: left, .. } if *left == name) && !left.may_publish("c", "t"));
        let file = Arc::new(Access::new(Identity::Anonymous, Place::default(), None));
        assert!(Arc::ptr_eq(&file, &file.left_behind()));
    }

    #[test]
    fn owners_are_known_again_and_may_do_nothing_until_they_are_judged() {
        let user = Identity::User { name: "a:b c".into(), record: None };
        let bridge = Identity::Bridge { client_id: "bridge-x".into() };
        let vouched = Identity::Vouched { by: Backend::Sql, name: "bob".into(), account: None };
        let shown = Identity::Vouched { by: Backend::Http, name: "bob\0digest".into(), account: None };
        assert!(shown.is_same_user(&vouched) && &*Access::new(shown, Place::default(), None).owner() == "h@0:bob");
        for identity in [Identity::Anonymous, user, Identity::Certified { name: "".into() }, bridge, vouched] {
            for bind in ["[::1]:1883", "unix:/run/ü:7", ""] {
                let here = Place { index: Some(7), bind: bind.into() };
                let access = Access::of_owner(&Access::new(identity.clone(), here, None).owner());
                assert_eq!((access.identity(), access.place()), (&identity, &Place { index: None, bind: bind.into() }));
            }
            let old = match &identity {
                Identity::Anonymous => "a7:".to_owned(),
                Identity::User { name, .. } => format!("u7:{name}"),
                Identity::Certified { name } => format!("c7:{name}"),
                Identity::Bridge { client_id } => format!("b7:{client_id}"),
                Identity::Vouched { name, .. } => format!("s7:{name}"),
                Identity::Unknown => String::new(),
            };
            let access = Access::of_owner(&old);
            assert_eq!((access.identity(), access.place()), (&identity, &Place { index: Some(7), bind: "".into() }));
            assert!(!access.may_publish("c", "a") && !access.may_receive("c", "a"));
        }
        for owner in ["", "u", "u0", "x0:bob", "u:bob", "ub:bob", ":", "u@:bob", "u@9:bob", "u@1:ü", "u@-1:bob"] {
            let access = Access::of_owner(owner);
            assert!(!access.may_publish("c", "a") && !access.may_receive("c", "a"), "{owner}");
            let is = |other: &Identity| access.identity().is_same_user(other);
            assert!(!is(&Identity::Anonymous) && !is(access.identity()), "{owner} is nobody's, also not an anonymous client's");
        }
    }

    #[test]
    fn a_bridge_is_nobody_else() {
        let bridge = |client_id: &str| Identity::Bridge { client_id: client_id.into() };
        for other in [Identity::Anonymous, Identity::Unknown, Identity::Certified { name: "a".into() }, bridge("b")] {
            assert!(!bridge("a").is_same_user(&other) && !other.is_same_user(&bridge("a")), "{other:?}");
        }
        assert!(bridge("a").is_same_user(&bridge("a")));
    }

    #[test]
    fn the_same_rules_grant_the_same_user_the_same() {
        let rules = Some(Arc::new(Rules::parse(b"topic #").unwrap()));
        let access = |user: Option<&str>, rules: &Option<Arc<Rules>>| {
            let identity = user.map_or(Identity::Anonymous, |name| Identity::Certified { name: name.into() });
            Access::new(identity, Place::default(), rules.clone())
        };
        assert!(access(None, &rules).grants_same(&access(None, &rules)));
        assert!(access(None, &None).grants_same(&access(Some("bob"), &None)));
        let others = Some(Arc::new(Rules::parse(b"topic read #").unwrap()));
        for (user, other) in [(None, &None), (None, &others), (Some("bob"), &rules)] {
            assert!(!access(None, &rules).grants_same(&access(user, other)));
        }
    }
}

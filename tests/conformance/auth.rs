//! Who may come in: user names and passwords, and enhanced authentication (MQTT 5.0 section 4.12) with SCRAM-SHA-256.

use std::fs;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use mqtt_st_quic::auth::{Hash, PasswordFile, Record};
use sha2::{Digest, Sha256};

use crate::broker::Broker;
use crate::client::{Client, Connect, Publish};
use crate::wire::*;

const SCRAM: &str = "SCRAM-SHA-256";
const CONTINUE: u8 = 0x18;
const REAUTHENTICATE: u8 = 0x19;
/// A refusal comes no sooner.
const REFUSAL: Duration = Duration::from_millis(900);

/// A user for each hash, named like it, whose password is `secret`; nobody else.
fn guarded() -> Broker {
    Broker::with(|config| {
        let mut file = PasswordFile::default();
        for (user, hash) in [("sha", Hash::Sha512), ("pbkdf2", Hash::Sha512Pbkdf2), ("scram", Hash::ScramSha256)] {
            file.set(user, &Record::new(hash, None, b"secret").unwrap()).unwrap();
        }
        file.set("argon2", &cheap_argon2("secret")).unwrap();
        let path = config.data_dir.join("passwd");
        fs::write(&path, file.to_string()).unwrap();
        config.auth.password_file = Some(path);
        config.listeners[0].allow_anonymous = None;
    })
}

/// What `passwd` makes takes too much time and memory for a test that tries many passwords at once.
fn cheap_argon2(password: &str) -> Record {
    let mut hash = [0; 32];
    let cost = argon2::Params::new(64, 1, 1, Some(hash.len())).unwrap();
    let argon2 = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, cost);
    argon2.hash_password_into(password.as_bytes(), b"somesalt", &mut hash).unwrap();
    Record::parse(&format!("$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ${}", STANDARD_NO_PAD.encode(hash))).unwrap()
}

fn refusal(broker: &Broker, connect: &Connect) -> Option<u8> {
    let mut client = Client::open(broker, connect.version);
    client.send(&connect.encode());
    let end = client.expect_end();
    assert!(end.packets.len() <= 1, "{end:?}");
    end.reason
}

#[test]
fn every_kind_of_hash_opens_to_its_password_alone() {
    let broker = guarded();
    for version in [3, 4, 5] {
        for user in ["sha", "pbkdf2", "argon2", "scram"] {
            Client::connect(&broker, &Connect::new(version).login(user, "secret")).expect_nothing();
            // Once more: it is remembered.
            Client::connect(&broker, &Connect::new(version).login(user, "secret")).expect_nothing();
        }
    }
    let code = |version: u8| Some(if version == 5 { 0x86 } else { 4 });
    std::thread::scope(|scope| {
        for version in [4, 5] {
            for user in ["sha", "pbkdf2", "argon2", "scram", "nobody", "", "SHA", " sha"] {
                for password in ["Secret", "secret ", "", "\0secret"] {
                    let broker = &broker;
                    scope.spawn(move || {
                        let connect = Connect::new(version).login(user, password);
                        let since = Instant::now();
                        // Many of them from one address are told to wait: that is another test's.
                        let reason = refusal(broker, &connect).expect("a refusal says why");
                        let busy = if version == 5 { 0x89 } else { 3 };
                        assert!([code(version).unwrap(), busy].contains(&reason), "{version} {user:?} {password:?}: {reason:#x}");
                        assert!(since.elapsed() >= REFUSAL, "{user:?} {password:?}");
                    });
                }
            }
        }
    });
}

#[test]
fn who_shows_nothing_is_told_so_by_the_code_of_its_version() {
    let broker = guarded();
    for (version, nobody, wrong) in [(3, 5, 4), (4, 5, 4), (5, 0x87, 0x86)] {
        assert_eq!(refusal(&broker, &Connect::new(version)), Some(nobody));
        let no_password = Connect { user_name: Some("sha".to_owned()), ..Connect::new(version) };
        assert_eq!(refusal(&broker, &no_password), Some(wrong));
        assert_eq!(refusal(&broker, &Connect::new(version).login("nobody", "x")), Some(wrong));
    }
    // MQTT 5 knows passwords without a user name (section 3.1.2.9); here they are nobody's.
    assert_eq!(refusal(&broker, &Connect { password: Some(b"secret".to_vec()), ..Connect::new(5) }), Some(0x87));
}

#[test]
fn anonymous_clients_and_users_side_by_side() {
    let broker = Broker::with(|config| {
        let path = config.data_dir.join("passwd");
        fs::write(&path, crate::access::passwords(&["bob"])).unwrap();
        config.auth.password_file = Some(path);
    });
    for version in [4, 5] {
        Client::new(&broker, version).expect_nothing();
        Client::connect(&broker, &Connect::new(version).login("bob", "bob!")).expect_nothing();
        assert_eq!(refusal(&broker, &Connect::new(version).login("bob", "eve!")), Some(if version == 5 { 0x86 } else { 4 }));
    }
}

/// A name without a password file to check it by is worth nothing: rules about that user do not hold for it.
#[test]
fn a_name_that_nobody_checks_is_nobodys() {
    let broker = Broker::with(|config| {
        let path = config.data_dir.join("acl");
        fs::write(&path, "user bob\ntopic bobs/#\npattern own/%u/#\n").unwrap();
        config.auth.acl_file = Some(path);
    });
    let mut client = Client::connect(&broker, &Connect::new(5).login("bob", "x"));
    assert_eq!(client.try_subscribe(&[("bobs/#", 0), ("own/bob/#", 0)], &[]), [0x87, 0x87]);
}

/// Wrong passwords do not keep anybody waiting who has the right one.
#[test]
fn guessing_is_slow_for_who_guesses_and_for_nobody_else() {
    let broker = guarded();
    // Good once, and remembered.
    Client::connect(&broker, &Connect::new(5).login("argon2", "secret")).disconnect();
    let guess = |count: usize| {
        let guess = |number: usize| {
            let mut guess = Client::open(&broker, 5);
            guess.send(&Connect::new(5).login("sha", &number.to_string()).encode());
            guess
        };
        (0..count).map(guess).collect::<Vec<_>>()
    };
    let reasons = |mut guesses: Vec<Client>| guesses.iter_mut().map(|guess| guess.expect_end().reason).collect::<Vec<_>>();
    let since = Instant::now();
    let first = guess(60);
    let mut good = Client::connect(&broker, &Connect::new(5).login("argon2", "secret"));
    let waited = since.elapsed();
    assert!(first.into_iter().map(|mut guess| guess.expect_end().reason).all(|reason| matches!(reason, Some(0x86 | 0x89))));
    assert!(waited < Duration::from_secs(15), "{waited:?}");
    // Who goes on like that from there is turned away, but for one a second; the good one still comes in.
    let next = reasons(guess(40));
    assert!(next.contains(&Some(0x89)), "{next:x?}");
    Client::connect(&broker, &Connect::new(5).login("argon2", "secret")).expect_nothing();
    good.expect_nothing();
}

/// Nobody finds out by trying who there is, or gets faster by showing a proof: what is no user waits like one, and SCRAM like a password.
#[test]
fn names_and_proofs_are_guessed_as_slowly_as_passwords() {
    let broker = guarded();
    let busy = |guesses: Vec<Client>| {
        let reasons = guesses.into_iter().map(|mut guess| guess.expect_end().reason.expect("a refusal says why"));
        let reasons: Vec<_> = reasons.collect();
        assert!(reasons.iter().all(|reason| [0x86, 0x87, 0x89].contains(reason)), "{reasons:x?}");
        reasons.iter().filter(|reason| **reason == 0x89).count()
    };
    let guess = |user: &str, count: usize| {
        let guess = |number: usize| {
            let mut guess = Client::open(&broker, 5);
            guess.send(&Connect::new(5).login(user, &number.to_string()).encode());
            guess
        };
        (0..count).map(guess).collect::<Vec<_>>()
    };
    busy(guess("sha", 15));
    let prover = Prover::new("scram", "wrong");
    let prove = |_| {
        let mut client = begin(&broker, Connect::new(5), &prover);
        let challenge = client.expect(kind::AUTH);
        client.send(&auth(CONTINUE, &method(&prover.last(&data(&challenge)).0)));
        client
    };
    for guesses in [guess("nobody", 20), guess("sha", 20), (0..20).map(prove).collect()] {
        let busy = busy(guesses);
        assert!(busy >= 10, "{busy}");
    }
}

/// The client's side of the exchange.
struct Prover {
    password: String,
    first: String,
}

impl Prover {
    fn new(user: &str, password: &str) -> Self {
        Self { password: password.to_owned(), first: format!("n={user},r=fyko+d2lbbFgONRv9qkxdawL") }
    }

    fn first(&self) -> String {
        format!("n,,{}", self.first)
    }

    /// The last message, and what the server must say to it.
    fn last(&self, challenge: &str) -> (String, String) {
        let attribute = |name: &str| challenge.split(',').find_map(|part| part.strip_prefix(name)).unwrap();
        let (nonce, salt, iterations) =
            (attribute("r="), STANDARD.decode(attribute("s=")).unwrap(), attribute("i=").parse().unwrap());
        assert!(nonce.starts_with("fyko+d2lbbFgONRv9qkxdawL") && nonce.len() > 40);
        let mut salted = [0; 32];
        pbkdf2::pbkdf2_hmac::<Sha256>(self.password.as_bytes(), &salt, iterations, &mut salted);
        let message = format!("{},{challenge},c=biws,r={nonce}", self.first);
        let client_key = hmac(&salted, b"Client Key");
        let signature = hmac(&Sha256::digest(client_key), message.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(signature).map(|(key, signature)| key ^ signature).collect();
        let verifier = hmac(&hmac(&salted, b"Server Key"), message.as_bytes());
        (format!("c=biws,r={nonce},p={}", STANDARD.encode(proof)), format!("v={}", STANDARD.encode(verifier)))
    }
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn method(data: &str) -> [Property; 2] {
    [text(property::AUTHENTICATION_METHOD, SCRAM), text(property::AUTHENTICATION_DATA, data)]
}

fn auth(reason: u8, list: &[Property]) -> Vec<u8> {
    packet(kind::AUTH, 0, &[vec![reason], properties(list)].concat())
}

fn begin(broker: &Broker, connect: Connect, prover: &Prover) -> Client {
    let mut client = Client::open(broker, 5);
    client.send(&method(&prover.first()).into_iter().fold(connect, Connect::with).encode());
    client
}

fn data(packet: &Received) -> String {
    assert_eq!(packet.all(property::AUTHENTICATION_METHOD), [&Value::Text(SCRAM.into())], "{packet:?}");
    match packet.all(property::AUTHENTICATION_DATA)[..] {
        [Value::Text(data)] => String::from_utf8(data.clone()).unwrap(),
        _ => panic!("{packet:?}"),
    }
}

/// Answers the challenge; gives the packet that follows and what must be in it.
fn answer(client: &mut Client, prover: &Prover) -> (Received, String) {
    let challenge = client.expect(kind::AUTH);
    assert_eq!(challenge.reason, CONTINUE, "[MQTT-4.12.0-2]");
    let (last, verifier) = prover.last(&data(&challenge));
    client.send(&auth(CONTINUE, &method(&last)));
    (client.receive(), verifier)
}

#[test]
fn mqtt_4_12_0_4_scram_proves_both_ends_to_each_other() {
    let broker = guarded();
    let prover = Prover::new("scram", "secret");
    for connect in [Connect::new(5), Connect { user_name: Some("scram".to_owned()), ..Connect::new(5) }] {
        let mut client = begin(&broker, connect, &prover);
        let (connack, verifier) = answer(&mut client, &prover);
        assert_eq!((connack.kind, connack.reason, data(&connack)), (kind::CONNACK, 0, verifier), "[MQTT-4.12.0-5]");
        client.expect_nothing();
    }
}

#[test]
fn scram_refuses_who_proves_nothing() {
    let broker = guarded();
    for (user, password) in [("scram", "Secret"), ("nobody", "secret"), ("sha", "secret")] {
        let prover = Prover::new(user, password);
        let since = Instant::now();
        let mut client = begin(&broker, Connect::new(5), &prover);
        let (refusal, _) = answer(&mut client, &prover);
        assert_eq!((refusal.kind, refusal.reason), (kind::CONNACK, 0x87), "{user}");
        assert!(since.elapsed() >= REFUSAL);
        assert_eq!(client.expect_end().packets, []);
    }
    // Another user name beside it.
    let prover = Prover::new("scram", "secret");
    let mut client = begin(&broker, Connect::new(5).login("sha", "secret"), &prover);
    assert_eq!(answer(&mut client, &prover).0.reason, 0x87);
    for first in ["", "n,,n=scram", "p=tls-unique,,n=scram,r=abc"] {
        let connect = method(first).into_iter().fold(Connect::new(5), Connect::with);
        assert_eq!(refusal(&broker, &connect), Some(0x87), "{first:?}");
    }
    let without_data = Connect::new(5).with(text(property::AUTHENTICATION_METHOD, SCRAM));
    assert_eq!(refusal(&broker, &without_data), Some(0x87));
    // [MQTT-4.12.0-1]
    let other = Connect::new(5).with(text(property::AUTHENTICATION_METHOD, "SCRAM-SHA-1"));
    assert_eq!(refusal(&broker, &other), Some(0x8c));
}

#[test]
fn mqtt_3_1_2_30_nothing_but_auth_comes_before_connack() {
    let broker = guarded();
    let prover = Prover::new("scram", "secret");
    let good = |challenge: &Received| prover.last(&data(challenge)).0;
    type Wrong<'a> = &'a dyn Fn(&Received) -> Vec<u8>;
    let cases: [(&str, Wrong<'_>); 5] = [
        ("PINGREQ", &|_| packet(kind::PINGREQ, 0, &[])),
        ("PUBLISH", &|_| Publish { topic: "t", ..Publish::default() }.encode(5)),
        ("CONNECT", &|_| Connect::new(5).encode()),
        ("a new beginning", &|challenge| auth(REAUTHENTICATE, &method(&good(challenge)))),
        ("another method", &|challenge| {
            let list = [text(property::AUTHENTICATION_METHOD, "PLAIN"), text(property::AUTHENTICATION_DATA, &good(challenge))];
            auth(CONTINUE, &list)
        }),
    ];
    for (what, wrong) in cases {
        let mut client = begin(&broker, Connect::new(5), &prover);
        let challenge = client.expect(kind::AUTH);
        client.send(&wrong(&challenge));
        assert_eq!(client.expect_end().reason, Some(0x82), "{what}");
    }
    // A client may think better of it.
    let mut client = begin(&broker, Connect::new(5), &prover);
    client.expect(kind::AUTH);
    client.send(&packet(kind::DISCONNECT, 0, &[]));
    assert_eq!(client.expect_end().packets, []);
    // What came behind the answer is served when the client is in.
    let mut client = begin(&broker, Connect::new(5), &prover);
    let challenge = client.expect(kind::AUTH);
    client.send(&[auth(CONTINUE, &method(&good(&challenge))), packet(kind::PINGREQ, 0, &[])].concat());
    assert_eq!(client.expect(kind::CONNACK).reason, 0);
    client.expect(kind::PINGRESP);
}

#[test]
fn mqtt_4_12_1_a_client_authenticates_anew_while_it_goes_on() {
    let broker = guarded();
    let prover = Prover::new("scram", "secret");
    let connected = || {
        let mut client = begin(&broker, Connect::new(5), &prover);
        assert_eq!(answer(&mut client, &prover).0.reason, 0);
        client
    };
    let mut client = connected();
    for _ in 0..2 {
        client.send(&auth(REAUTHENTICATE, &method(&prover.first())));
        let challenge = client.expect(kind::AUTH);
        assert_eq!(challenge.reason, CONTINUE);
        client.expect_nothing();
        let (last, verifier) = prover.last(&data(&challenge));
        client.send(&auth(CONTINUE, &method(&last)));
        let done = client.expect(kind::AUTH);
        assert_eq!((done.reason, data(&done)), (0, verifier));
    }
    client.expect_nothing();

    let wrong = Prover::new("scram", "Secret");
    client.send(&auth(REAUTHENTICATE, &method(&wrong.first())));
    let challenge = client.expect(kind::AUTH);
    client.send(&auth(CONTINUE, &method(&wrong.last(&data(&challenge)).0)));
    client.expect_disconnect(&[0x87]); // [MQTT-4.12.1-2]

    // [MQTT-4.12.1-1] and what has no beginning or two.
    let other = [text(property::AUTHENTICATION_METHOD, "PLAIN"), text(property::AUTHENTICATION_DATA, "x")];
    let begun = auth(REAUTHENTICATE, &method(&prover.first()));
    for (what, bytes) in [
        ("another method", auth(REAUTHENTICATE, &other)),
        ("an answer to nothing", auth(CONTINUE, &method("c=biws"))),
        ("success", auth(0, &method(""))),
        ("twice", [begun.clone(), begun].concat()),
    ] {
        let mut client = connected();
        client.send(&bytes);
        assert_eq!(client.expect_end().reason, Some(0x82), "{what}");
    }
    // Who came in without a method has none [MQTT-4.12.0-6].
    let mut plain = Client::connect(&broker, &Connect::new(5).login("scram", "secret"));
    plain.send(&auth(REAUTHENTICATE, &method(&prover.first())));
    plain.expect_disconnect(&[0x82]);
}

#[test]
fn nobody_becomes_another_on_the_way() {
    let broker = Broker::with(|config| {
        let mut file = PasswordFile::default();
        for user in ["a", "b"] {
            file.set(user, &Record::new(Hash::ScramSha256, Some(4_096), user.as_bytes()).unwrap()).unwrap();
        }
        let path = config.data_dir.join("passwd");
        fs::write(&path, file.to_string()).unwrap();
        config.auth.password_file = Some(path);
    });
    let (a, b) = (Prover::new("a", "a"), Prover::new("b", "b"));
    let mut client = begin(&broker, Connect::new(5), &a);
    assert_eq!(answer(&mut client, &a).0.reason, 0);
    client.send(&auth(REAUTHENTICATE, &method(&b.first())));
    let challenge = client.expect(kind::AUTH);
    client.send(&auth(CONTINUE, &method(&b.last(&data(&challenge)).0)));
    client.expect_disconnect(&[0x87]);
}

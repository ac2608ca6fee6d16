//! Users of a service that is asked over HTTP, and users with tokens.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};

use crate::access::refusal;
use crate::auth_sql::{NOT_AUTHORIZED, UNAVAILABLE, WRONG, login, may_publish, may_subscribe};
use crate::broker::{Broker, Site, wait_for};
use crate::client::{Client, Connect, Publish};
use crate::mesh::settle;
use crate::serve::get;

const CACHE_TTL: Duration = Duration::from_secs(2);
const SECRET: &str = "a secret of thirty-two bytes or more";

/// A service that knows users: by name a password and, in JSON, what else is said of them. Clones are the same one.
#[derive(Clone)]
struct Service {
    address: SocketAddr,
    users: Arc<Mutex<HashMap<String, (String, Value)>>>,
    /// What it answers in place of all that: a status, and a body.
    mood: Arc<Mutex<Option<(u16, &'static str)>>>,
    /// How often it was asked whether there is such a user, by name.
    asked: Arc<Mutex<HashMap<String, usize>>>,
    /// Who does not show this (`Authorization`) is refused.
    key: Arc<Mutex<Option<&'static str>>>,
    over: Arc<AtomicBool>,
}

impl Service {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let service = Self {
            address: listener.local_addr().unwrap(),
            users: Arc::default(),
            mood: Arc::default(),
            asked: Arc::default(),
            key: Arc::default(),
            over: Arc::default(),
        };
        let here = service.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if here.over.load(Ordering::Relaxed) {
                    return;
                }
                let here = here.clone();
                std::thread::spawn(move || here.serve(stream.unwrap()));
            }
        });
        service
    }

    fn set(&self, name: &str, password: &str, more: Value) {
        self.users.lock().unwrap().insert(name.to_owned(), (password.to_owned(), more));
    }

    fn turn(&self, mood: Option<(u16, &'static str)>) {
        *self.mood.lock().unwrap() = mood;
    }

    /// `configuration` with users from here.
    fn guard(&self, configuration: &str, more: &str) -> String {
        format!(
            "{}\n[auth.http]\nuser_url = \"http://{}/user\"\ncache_ttl = \"{}s\"\ntimeout = \"2s\"\n{more}",
            configuration.replace("allow_anonymous = true\n", ""),
            self.address,
            CACHE_TTL.as_secs()
        )
    }
}

/// The one that a test has. It ends with the test.
struct Running(Service);

impl Running {
    fn new() -> Self {
        Self(Service::new())
    }
}

impl std::ops::Deref for Running {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Its thread waits for another.
        drop(TcpStream::connect(self.address));
    }
}

impl Service {
    /// Answers until the other side closes.
    fn serve(&self, stream: TcpStream) {
        let Self { users, mood, .. } = self;
        let mut reader = BufReader::new(stream);
        loop {
            let (mut first, mut length, mut is_form, mut key) = (String::new(), 0, false, None);
            if reader.read_line(&mut first).unwrap_or(0) == 0 {
                return;
            }
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                if let Some(value) = line.trim().strip_prefix("authorization: ") {
                    key = Some(value.to_owned());
                }
                let line = line.trim().to_ascii_lowercase();
                if line.is_empty() {
                    break;
                }
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                is_form |= line.starts_with("content-type:") && line.contains("form");
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let asked = |name: &str| -> String {
                if is_form {
                    let text = String::from_utf8(body.clone()).unwrap();
                    let value = text.split('&').find_map(|field| Some(field.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
                    return value.unwrap_or_default();
                }
                let value: Value = serde_json::from_slice(&body).unwrap_or_default();
                value[name].as_str().unwrap_or_default().to_owned()
            };
            let mood = *mood.lock().unwrap();
            if first.starts_with("POST /user") {
                *self.asked.lock().unwrap().entry(asked("username")).or_default() += 1;
            }
            let wanted = *self.key.lock().unwrap();
            let mood = mood.or((wanted != key.as_deref() && wanted.is_some()).then_some((401, "")));
            let (status, answer) = match (mood, users.lock().unwrap().get(&asked("username"))) {
                (Some((status, answer)), _) => (status, answer.to_owned()),
                (None, None) => (404, String::new()),
                (None, Some((_, more))) if first.contains("/super") => {
                    (200, json!({"superuser": more["is_super"] == true}).to_string())
                }
                (None, Some((_, more))) if first.contains("/acl") => (200, more["acl"].to_string()),
                (None, Some((password, _))) if *password != asked("password") => (403, String::new()),
                (None, Some((_, more))) => (200, if first.contains("/bare") { "ok".to_owned() } else { more.to_string() }),
            };
            let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
            if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

#[test]
fn a_service_says_who_comes_in_and_what_he_may_do() {
    let (site, service) = (Site::new(), Running::new());
    service.set("bob", "hello", json!({"acl": {"pub": ["own/%u/%c"], "sub": ["heard/#"]}}));
    service.set("root", "hello", json!({"superuser": true}));
    let asked = "acl_url = \"http://ADDRESS/acl\"\nsuperuser_url = \"http://ADDRESS/super\"\n";
    let forms = [("json", "/user", ""), ("form", "/user", ""), ("json", "/bare", asked)];
    for (number, (format, path, more)) in forms.into_iter().enumerate() {
        let more = format!("format = {format:?}\n{}", more.replace("ADDRESS", &service.address.to_string()));
        let name = format!("b{number}");
        let broker = site.start(&name, &service.guard(&site.alone(&name), &more).replace("/user\"", &format!("{path}\"")));
        let mut bob = Client::connect(&broker, &login("bob", "hello").id("c1"));
        for (topic, may) in [("own/bob/c1", true), ("own/bob/c2", false), ("heard/a", false)] {
            assert_eq!(may_publish(&mut bob, topic), may, "{format} {path} {topic}");
        }
        for (filter, may) in [("heard/+", true), ("own/bob/c1", false), ("#", false)] {
            assert_eq!(may_subscribe(&mut bob, filter), may, "{format} {path} {filter}");
        }
        if path == "/user" {
            let mut root = Client::connect(&broker, &login("root", "hello"));
            root.say("heard/a", "to all who may");
            bob.expect_message("to all who may");
        }
        let hostile = ["' OR 1=1", "bob&password=hello", "\"}", "%62ob", "\\u0062ob"];
        std::thread::scope(|scope| {
            for user in hostile {
                let broker = &broker;
                scope.spawn(move || assert_eq!(refusal(broker, &login(user, "hello")), WRONG, "{user}"));
            }
            scope.spawn(|| assert_eq!(refusal(&broker, &login("bob", "hello&x=y")), WRONG));
        });
        assert!(get(broker.address_of("health"), "/metrics").contains("\nmqtt_st_quic_auth_up{backend=\"http\"} 1.0\n"));
        // One of the names, which are in the log, has the password in it.
        assert!(!broker.log().replace(hostile[1], "").contains("hello"), "{}", broker.log());
    }
}

#[test]
fn what_a_service_takes_back_is_taken_back_at_all_brokers_of_a_mesh() {
    let (site, service) = (Site::new(), Running::new());
    service.set("bob", "hello", json!({"acl": {"all": ["t"]}}));
    service.set("eve", "hello", json!({"acl": {"all": ["t"]}}));
    let mut brokers: Vec<Broker> = Vec::new();
    for name in ["a", "b", "c"] {
        site.certify("m", name, &[]);
        let peers: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
        brokers.push(site.start(name, &service.guard(&site.configuration(name, &peers), "")));
    }
    settle(&brokers.iter().collect::<Vec<_>>());
    let connected =
        |user: &str| -> Vec<Client> { brokers.iter().map(|broker| Client::connect(broker, &login(user, "hello"))).collect() };
    let (mut bobs, mut eves) = (connected("bob"), connected("eve"));
    assert!(bobs.iter_mut().all(|client| may_publish(client, "t") && !may_publish(client, "u")));
    let begin = Instant::now();
    service.set("bob", "hello", json!({"acl": {"all": ["u"]}}));
    for client in &mut bobs {
        wait_for("other rules", || (may_publish(client, "u") && !may_publish(client, "t")).then_some(()));
    }
    let took = begin.elapsed();
    service.set("eve", "other", json!({"ok": true}));
    service.users.lock().unwrap().remove("bob");
    let begin = Instant::now();
    for client in bobs.iter_mut().chain(&mut eves) {
        client.expect_disconnect(&[NOT_AUTHORIZED]);
    }
    println!("other rules after {took:?}, gone after {:?} (cache_ttl {CACHE_TTL:?})", begin.elapsed());
    for broker in &brokers {
        assert_eq!(refusal(broker, &login("bob", "hello")), WRONG);
        Client::connect(broker, &login("eve", "other")).disconnect();
    }
}

#[test]
fn a_service_that_fails_lets_nobody_in_and_throws_nobody_out() {
    let (site, service) = (Site::new(), Running::new());
    for name in ["bob", "eve"] {
        service.set(name, "hello", json!({"acl": {"all": ["t"]}}));
    }
    let broker = site.start("a", &service.guard(&site.alone("a"), ""));
    let health = broker.address_of("health");
    let mut bob = Client::connect(&broker, &login("bob", "hello"));
    // A page of somebody in between, a redirection, a service with a fault, and one that is being restarted.
    for mood in [
        (200, "{}"),
        (200, "{\"result\": \"deny\"}"),
        (200, "<html>log in</html>"),
        (302, ""),
        (500, "{\"ok\": true}"),
        (503, ""),
        (200, "{\"acl\": \"#\"}"),
    ] {
        service.turn(Some(mood));
        assert_eq!(refusal(&broker, &login("eve", "hello")), UNAVAILABLE, "{mood:?}");
        assert!(get(health, "/readyz").contains("\"auth_failing\":[\"http\"]"), "{mood:?}");
        // She has waited for a second, in which it was asked about him again.
        assert!(may_publish(&mut bob, "t"), "{mood:?}");
        service.turn(None);
        wait_for("good news", || (!get(health, "/readyz").contains("auth_failing")).then_some(()));
    }
    Client::connect(&broker, &login("eve", "hello")).disconnect();
    // And what cannot be right is said before the start.
    for (from, to, words) in [
        ("http://", "https://", "auth.http.cafile"),
        ("http://", "ftp://", "auth.http.user_url"),
        ("http://127.0.0.1", "http://192.0.2.7", "plain_http"),
        ("user_url", "acl_url", "auth.http.user_url"),
        ("[auth.http]", "[auth]\nbackends = [\"jwt\"]\n[auth.http]", "no [auth.jwt]"),
    ] {
        let said = site.fails(&service.guard(&site.alone("a"), "").replace(from, to));
        assert!(said.code != Some(0) && said.err.contains(words), "{from} {to}: {said:?}");
    }
}

#[test]
fn what_a_client_has_retained_keeps_nobody_asked_about_and_a_service_may_ask_who_asks() {
    let (site, service) = (Site::new(), Running::new());
    for name in ["bob", "eve"] {
        service.set(name, "hello", json!({"acl": {"all": ["t"]}}));
    }
    *service.key.lock().unwrap() = Some("Bearer it is me");
    let token = site.file("token");
    std::fs::write(&token, "it is me\n").unwrap();
    let broker = site.start("a", &service.guard(&site.alone("a"), &format!("token_file = {token:?}\n")));
    // What is known is known of him at this client id.
    let as_bob = login("bob", "hello").id("bob's");
    let mut bob = Client::connect(&broker, &as_bob);
    assert!(bob.publish(Publish { topic: "t", payload: "x", qos: 1, retain: true, ..Publish::default() }) < 0x80);
    bob.disconnect();
    let mut eve = Client::connect(&broker, &login("eve", "hello"));
    let count = |name: &str| service.asked.lock().unwrap().get(name).copied().unwrap_or(0);
    // His connection may be there for a moment still.
    let wait_for_eve = || {
        let so_far = count("eve");
        wait_for("questions about eve, who is here", || (count("eve") >= so_far + 3).then_some(()));
    };
    wait_for_eve();
    let so_far = count("bob");
    wait_for_eve();
    assert_eq!(count("bob"), so_far, "he has left, with what he has shown");
    eve.subscribe(&[("t", 1)]);
    eve.expect_message("x");
    // Who has left may not say it any more, as soon as that is heard of him.
    service.set("bob", "hello", json!({"acl": {"all": ["u"]}}));
    let mut bob = Client::connect(&broker, &as_bob);
    wait_for("nothing of what he may not say", || {
        let metrics = get(broker.address_of("health"), "/metrics");
        metrics.contains("\nmqtt_st_quic_retained_messages 0.0\n").then_some(())
    });
    assert!(may_publish(&mut bob, "u") && !may_publish(&mut bob, "t"));
    assert!(!broker.log().contains("it is me"));
}

#[test]
fn who_forgets_the_rules_opens_nothing_unless_he_says_so() {
    let (site, service) = (Site::new(), Running::new());
    service.set("bob", "hello", json!({"ok": true}));
    for (name, more, may) in [("a", "", false), ("b", "without_rules = \"allow\"\n", true)] {
        let broker = site.start(name, &service.guard(&site.alone(name), more));
        let mut bob = Client::connect(&broker, &login("bob", "hello"));
        assert_eq!((may_publish(&mut bob, "t"), may_subscribe(&mut bob, "t")), (may, may), "{more}");
    }
}

fn token(claims: &Value, secret: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(&json!({"alg": "HS256"})), part(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

fn in_seconds(seconds: u64) -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + seconds
}

#[test]
fn a_token_opens_the_door_and_shuts_it_when_it_expires() {
    let site = Site::new();
    let secret = site.file("secret");
    std::fs::write(&secret, SECRET).unwrap();
    let configuration = site.alone("a").replace("allow_anonymous = true\n", "");
    let broker = site.start("a", &format!("{configuration}[auth.jwt]\nsecret_file = {secret:?}\n"));
    let acl = json!({"pub": ["own/%u"], "sub": ["heard/#"]});
    let long = token(&json!({"sub": "bob", "exp": in_seconds(600), "acl": acl}), SECRET);
    let mut bob = Client::connect(&broker, &login("bob", &long));
    assert!(may_publish(&mut bob, "own/bob") && !may_publish(&mut bob, "own/eve"));
    assert!(may_subscribe(&mut bob, "heard/a") && !may_subscribe(&mut bob, "#"));
    std::thread::scope(|scope| {
        for (user, password) in [
            ("eve", long.clone()),
            ("bob", "hello".to_owned()),
            ("bob", token(&json!({"sub": "bob", "exp": in_seconds(600)}), "another secret of thirty-two bytes")),
            ("bob", token(&json!({"sub": "bob", "exp": in_seconds(0) - 1}), SECRET)),
        ] {
            let broker = &broker;
            scope.spawn(move || assert_eq!(refusal(broker, &login(user, &password)), WRONG, "{user} {password}"));
        }
    });
    // Whom the password file knows is that file's, whatever a token says of itself.
    let file = site.file("users");
    std::fs::write(
        &file,
        "carol:$6$c2FsdHNhbHQ=$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\n",
    )
    .unwrap();
    let by_both = site.alone("b").replace("allow_anonymous = true\n", "");
    let by_both = site.start(
        "b",
        &format!(
            "{by_both}[[listener]]\nbind = \"127.0.0.1:0\"\nbackends = [\"file\"]\n[auth]\npassword_file = {file:?}\n[auth.jwt]\n\
             secret_file = {secret:?}\nin_user_name = true\n"
        ),
    );
    let of = |user: &str| token(&json!({"sub": user, "exp": in_seconds(600)}), SECRET);
    Client::connect(&by_both, &login(&of("bob"), "x")).disconnect();
    let bare = Connect { user_name: Some(of("bob")), ..Connect::new(5) };
    Client::connect(&by_both, &bare).disconnect();
    let carol = Connect { user_name: Some("carol".to_owned()), ..Connect::new(5) };
    assert_eq!(refusal(&by_both, &carol), WRONG, "only a token needs no password");
    // Where only the file is asked no token opens anything.
    let mut elsewhere = Client::open_at(by_both.listener(1), 5);
    elsewhere.send(&bare.encode());
    assert_eq!(elsewhere.expect_end().reason, Some(WRONG));
    assert_eq!(refusal(&by_both, &login(&of("carol"), "x")), WRONG);
    // One whose token is soon over: the session stays, and its messages wait for a new one.
    let short = || token(&json!({"sub": "eve", "exp": in_seconds(3), "acl": {"sub": ["own/bob"]}}), SECRET);
    let eve = |token: &str| Connect::new(5).id("eve's").login("eve", token).resume(3_600);
    let mut client = Client::connect(&broker, &eve(&short()));
    client.subscribe(&[("own/bob", 1)]);
    client.expect_disconnect(&[NOT_AUTHORIZED]);
    bob.say("own/bob", "meanwhile");
    let mut client =
        Client::connect(&broker, &eve(&token(&json!({"sub": "eve", "exp": in_seconds(600), "acl": {"sub": ["own/bob"]}}), SECRET)));
    client.expect_message("meanwhile");
    // Other keys: the old ones open nothing, and who came in by one of them is out.
    std::fs::write(&secret, "another secret of thirty-two bytes").unwrap();
    broker.signal("HUP");
    wait_for("another secret", || {
        let mut client = Client::open(&broker, 5);
        client.send(
            &login("bob", &token(&json!({"sub": "bob", "exp": in_seconds(600)}), "another secret of thirty-two bytes")).encode(),
        );
        (client.receive().reason == 0).then_some(())
    });
    assert_eq!(refusal(&broker, &login("bob", &long)), WRONG);
    bob.expect_disconnect(&[NOT_AUTHORIZED]);
    assert!(!broker.log().contains(&long));
    std::fs::write(&secret, "short").unwrap();
    let said = site.fails(&format!("{configuration}[auth.jwt]\nsecret_file = {secret:?}\n"));
    assert!(said.code != Some(0) && said.err.contains("auth.jwt.secret_file"), "{said:?}");
}

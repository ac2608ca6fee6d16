//! Users and rules in a database: SQLite always, PostgreSQL and MariaDB of Debian, started here as a user without rights.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, AssertSqlSafe, ConnectOptions, Connection};

use crate::access::refusal;
use crate::broker::{Broker, Site, wait_for};
use crate::client::{Client, Connect, Publish, Will};
use crate::foreign::is_there;
use crate::mesh::settle;
use crate::serve::get;

pub const WRONG: u8 = 0x86;
pub const NOT_AUTHORIZED: u8 = 0x87;
pub const UNAVAILABLE: u8 = 0x88;
/// `[auth.sql]`'s in these tests.
const CACHE_TTL: Duration = Duration::from_secs(2);
/// PBKDF2 as mosquitto-auth-plug wrote it, of `hello`; the salt is the text.
const HELLO: &str = "PBKDF2$sha256$10000$eytf9sEo8EprP9P3$2eO6tROHiqI3bm+gg+vpmWooWMpz1zji";
/// The account `nobody` of any system.
const NOBODY: u32 = 65_534;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Sqlite,
    Postgres,
    MariaDb,
}

/// A database with a table of users and one of rules.
struct Database {
    kind: Kind,
    url: String,
    server: Option<Server>,
}

/// A server of Debian's in a directory of its own.
struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    dir: PathBuf,
    child: Option<Child>,
}

impl Server {
    fn start(&mut self) {
        let log = std::fs::File::create(self.dir.join("../server.log")).unwrap();
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(as_nobody(&mut command).spawn().unwrap());
    }

    /// In order: connections are cut.
    fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let signal = if self.program.ends_with("postgres") { "-INT" } else { "-TERM" };
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A server that answers nobody and closes nothing, as one whose machine has lost its power. It goes on when this is dropped.
struct Frozen(Vec<u32>);

impl Frozen {
    fn new(server: &Server) -> Self {
        let mut frozen = vec![server.child.as_ref().unwrap().id()];
        signal("STOP", &frozen);
        // PostgreSQL has a process for each connection; stopped, it makes no more.
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let parent_of = |pid: &u32| -> Option<u32> {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
        };
        let children: Vec<u32> = processes.filter(|pid: &u32| parent_of(pid) == Some(frozen[0])).collect();
        signal("STOP", &children);
        frozen.extend(children);
        Self(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal("CONT", &self.0);
    }
}

fn signal(name: &str, processes: &[u32]) {
    let processes = processes.iter().map(ToString::to_string);
    // One of them may have ended by itself.
    Command::new("kill").arg(format!("-{name}")).args(processes).stderr(Stdio::null()).status().unwrap();
}

/// Databases do not run as root.
fn as_nobody(command: &mut Command) -> &mut Command {
    if rustix::process::getuid().is_root() { command.uid(NOBODY).gid(NOBODY) } else { command }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn make_dir(site: &Site) -> PathBuf {
    use std::os::unix::fs::{PermissionsExt, chown};
    let dir = site.path().join("db");
    std::fs::create_dir(&dir).unwrap();
    if rustix::process::getuid().is_root() {
        std::fs::set_permissions(site.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    dir.join("data")
}

fn finish(command: &mut Command) {
    let output = as_nobody(command).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn version_of(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("--version");
    command
}

/// Where Debian has PostgreSQL's programs.
fn postgres_programs() -> Option<PathBuf> {
    let mut versions: Vec<_> =
        std::fs::read_dir("/usr/lib/postgresql").ok()?.map(|entry| entry.unwrap().path().join("bin")).collect();
    versions.sort();
    versions.pop()
}

impl Database {
    /// None, with a word why, where its server is not installed.
    fn new(kind: Kind, site: &Site) -> Option<Self> {
        let mut database = match kind {
            Kind::Sqlite => {
                Self { kind, url: format!("sqlite://{}?mode=rwc", site.path().join("users.db").display()), server: None }
            }
            Kind::Postgres => {
                let programs = postgres_programs().unwrap_or_else(|| "/nowhere".into());
                if !is_there("PostgreSQL's server", version_of(&programs.join("postgres"))) {
                    return None;
                }
                let (dir, port) = (make_dir(site), free_port().to_string());
                let secret = dir.with_file_name("secret");
                std::fs::write(&secret, "pass word?").unwrap();
                let mut initdb = Command::new(programs.join("initdb"));
                initdb.args(["-D".as_ref(), dir.as_os_str()]).args([
                    "-U",
                    "mqtt",
                    "-A",
                    "scram-sha-256",
                    "--no-sync",
                    "--no-locale",
                    "-E",
                    "UTF8",
                ]);
                finish(initdb.arg(format!("--pwfile={}", secret.display())));
                let arguments =
                    ["-D", dir.to_str().unwrap(), "-p", &port, "-k", "", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"];
                let arguments = arguments.map(str::to_owned).to_vec();
                let server = Server { program: programs.join("postgres"), arguments, dir, child: None };
                Self { kind, url: format!("postgres://mqtt:pass%20word%3F@127.0.0.1:{port}/postgres"), server: Some(server) }
            }
            Kind::MariaDb => {
                let program = PathBuf::from("/usr/sbin/mariadbd");
                if !is_there("MariaDB's server", version_of(&program)) {
                    return None;
                }
                let (dir, port) = (make_dir(site), free_port().to_string());
                let data = format!("--datadir={}", dir.display());
                let mut install = Command::new("mariadb-install-db");
                install.args(["--no-defaults", &data, "--auth-root-authentication-method=normal", "--skip-test-db"]);
                finish(&mut install);
                let socket = format!("--socket={}", dir.with_file_name("s").display());
                let arguments = ["--no-defaults", &data, &format!("--port={port}"), "--bind-address=127.0.0.1", &socket];
                let arguments = arguments.map(str::to_owned).to_vec();
                let server = Server { program, arguments, dir, child: None };
                Self { kind, url: format!("mysql://root@127.0.0.1:{port}/mysql"), server: Some(server) }
            }
        };
        if let Some(server) = &mut database.server {
            server.start();
        }
        wait_for("the database", || database.try_execute("SELECT 1").ok());
        // No column's kind is one of which there are several: what is given back is text and numbers of 32 bits.
        let letters = if kind == Kind::MariaDb { "CHARACTER SET utf8mb4" } else { "" };
        for columns in [
            "users (name VARCHAR(255) PRIMARY KEY, hash VARCHAR(255), super INT NOT NULL)",
            "rules (name VARCHAR(255) NOT NULL, topic VARCHAR(255) NOT NULL, access INT NOT NULL)",
        ] {
            database.execute(&format!("CREATE TABLE {columns} {letters}"));
        }
        Some(database)
    }

    fn try_execute(&self, text: &str) -> Result<(), sqlx::Error> {
        sqlx::any::install_default_drivers();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options: AnyConnectOptions = self.url.parse()?;
            let mut connection: AnyConnection = options.connect().await?;
            sqlx::query(AssertSqlSafe(text)).execute(&mut connection).await?;
            connection.close().await
        })
    }

    fn execute(&self, text: &str) {
        self.try_execute(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }

    fn add_user(&self, name: &str, hash: &str, is_super: bool) {
        let name = name.replace('\'', "''");
        self.execute(&format!("INSERT INTO users VALUES ('{name}', '{hash}', {})", u8::from(is_super)));
    }

    fn grant(&self, name: &str, topic: &str, access: i32) {
        self.execute(&format!("INSERT INTO rules VALUES ('{name}', '{topic}', {access})"));
    }

    /// `configuration` with users from here.
    fn guard(&self, site: &Site, configuration: &str, more: &str) -> String {
        let dsn = site.file("dsn");
        std::fs::write(&dsn, format!("{}\n", self.url)).unwrap();
        let name = if self.kind == Kind::Postgres { "$1" } else { "?" };
        format!(
            "{}\n[auth.sql]\ndsn_file = {dsn:?}\nuser_query = \"SELECT hash FROM users WHERE name = {name}\"\n\
             acl_query = \"SELECT topic, access FROM rules WHERE name = {name}\"\n\
             superuser_query = \"SELECT super FROM users WHERE name = {name}\"\ncache_ttl = \"{}s\"\ntimeout = \"2s\"\n{more}",
            configuration.replace("allow_anonymous = true\n", ""),
            CACHE_TTL.as_secs()
        )
    }
}

pub fn login(user: &str, password: &str) -> Connect {
    Connect::new(5).login(user, password)
}

/// What the broker says to a publish of this client.
fn publish(client: &mut Client, topic: &str) -> u8 {
    client.publish(Publish { topic, payload: "x", qos: 1, ..Publish::default() })
}

pub fn may_publish(client: &mut Client, topic: &str) -> bool {
    publish(client, topic) < 0x80
}

pub fn may_subscribe(client: &mut Client, filter: &str) -> bool {
    client.try_subscribe(&[(filter, 1)], &[]) == [1]
}

#[test]
fn users_passwords_and_rules_are_the_databases() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::MariaDb] {
        let site = Site::new();
        let Some(database) = Database::new(kind, &site) else { continue };
        let sha256 = "PBKDF2$sha256$1000$c2FsdHNhbHRzYWx0c2FsdA==$xPtC4aQfrHLOSvRtiZU27kFX0pKUApJLNyyiYPHQ6AY=";
        for (name, hash) in [
            ("old", HELLO),
            ("new", sha256),
            ("web", "$2b$04$abcdefghijklmnopqrstuuwHJMEGjfAzmL1lWmUmlphguIbWfjYey"),
            ("broken", "hello"),
            ("+/#", HELLO),
            ("o'' OR 1=1 --", HELLO),
        ] {
            database.add_user(&name.replace("''", "'"), hash, false);
        }
        database.add_user("root", HELLO, true);
        for (topic, access) in [("own/%u/%c", 7), ("read", 1), ("write", 2), ("heard/#", 5), ("wrong/%u-x", 7), ("odd", 9)] {
            for name in ["old", "+/#"] {
                database.grant(name, topic, access);
            }
        }
        let broker = site.start("a", &database.guard(&site, &site.alone("a"), ""));
        // Who may come in.
        for (user, password) in [("old", "hello"), ("new", "hello"), ("web", "hello"), ("o' OR 1=1 --", "hello")] {
            Client::connect(&broker, &login(user, password)).disconnect();
        }
        let long = "x".repeat(60_000);
        let hostile = ["' OR '1'='1", "\" OR 1=1 --", "'; DROP TABLE users; --", "%", "old%", "\\", "日本", &long];
        let refused = [("old", "wrong"), ("broken", "hello"), ("root", "")];
        let all = refused.into_iter().chain(hostile.into_iter().map(|user| (user, "hello")));
        std::thread::scope(|scope| {
            for (user, password) in all {
                let broker = &broker;
                scope.spawn(move || assert_eq!(refusal(broker, &login(user, password)), WRONG, "{kind:?} {user:?}"));
            }
        });
        // What they may do.
        let mut old = Client::connect(&broker, &login("old", "hello").id("c1"));
        for (topic, may) in [
            ("own/old/c1", true),
            ("own/old/c2", false),
            ("own/new/c1", false),
            ("read", false),
            ("write", true),
            ("odd", false),
            ("wrong/old-x", false),
        ] {
            assert_eq!(may_publish(&mut old, topic), may, "{kind:?} {topic}");
        }
        for (filter, may) in [
            ("own/old/c1", true),
            ("own/#", false),
            ("#", false),
            ("read", false),
            ("write", false),
            ("heard/a/+", true),
            ("heard/#", true),
        ] {
            assert_eq!(may_subscribe(&mut old, filter), may, "{kind:?} {filter}");
        }
        let mut root = Client::connect(&broker, &login("root", "hello"));
        root.say("heard/a", "to all who may");
        old.expect_message("to all who may");
        root.say("own/old/c1", "and to one");
        old.expect_message("and to one");
        // A name that is a pattern fills none.
        let mut odd = Client::connect(&broker, &login("+/#", "hello").id("c1"));
        for topic in ["own/old/c1", "own/a/b/c1", "own/+/#/c1"] {
            assert!(topic.contains('#') || !may_publish(&mut odd, topic), "{kind:?} {topic}");
            assert!(!may_subscribe(&mut odd, "own/+/c1"), "{kind:?}");
        }
        let health = broker.address_of("health");
        assert!(get(health, "/metrics").contains("\nmqtt_st_quic_auth_up{backend=\"sql\"} 1.0\n"), "{kind:?}");
        assert!(!broker.log().contains("pass word"), "{}", broker.log());
    }
}

#[test]
fn a_user_comes_changes_and_goes_at_all_brokers_of_a_mesh() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::MariaDb] {
        let site = Site::new();
        let Some(database) = Database::new(kind, &site) else { continue };
        let mut brokers: Vec<Broker> = Vec::new();
        for name in ["a", "b", "c"] {
            site.certify("m", name, &[]);
            let peers: Vec<SocketAddr> = brokers.iter().map(|broker| broker.address_of("mesh")).collect();
            brokers.push(site.start(name, &database.guard(&site, &site.configuration(name, &peers), "")));
        }
        settle(&brokers.iter().collect::<Vec<_>>());
        for broker in &brokers {
            assert_eq!(refusal(broker, &login("bob", "hello")), WRONG, "nobody yet");
        }
        database.add_user("bob", HELLO, false);
        database.grant("bob", "t", 7);
        let mut clients: Vec<Client> = brokers
            .iter()
            .map(|broker| {
                // That nobody is called bob is remembered for a moment.
                wait_for("a new user", || {
                    let mut client = Client::open(broker, 5);
                    client.send(&login("bob", "hello").encode());
                    (client.receive().reason == 0).then_some(client)
                })
            })
            .collect();
        // And one who is away.
        let away = Connect::new(5).id("away").login("bob", "hello").resume(3_600);
        Client::connect(&brokers[0], &away).disconnect();
        assert!(clients.iter_mut().all(|client| may_publish(client, "t") && !may_publish(client, "u")));
        let begin = Instant::now();
        database.execute("UPDATE rules SET topic = 'u' WHERE name = 'bob'");
        for client in &mut clients {
            wait_for("other rules", || (may_publish(client, "u") && !may_publish(client, "t")).then_some(()));
        }
        let took = begin.elapsed();
        let begin = Instant::now();
        database.execute("DELETE FROM users WHERE name = 'bob'");
        for client in &mut clients {
            client.expect_disconnect(&[NOT_AUTHORIZED]);
        }
        println!("{kind:?}: other rules after {took:?}, gone after {:?} (cache_ttl {CACHE_TTL:?})", begin.elapsed());
        // Half of it until it is asked again, an eighth until that is looked at; the rest is this machine's, which does much else.
        assert!(took.max(begin.elapsed()) < 3 * CACHE_TTL, "{kind:?}: {took:?}, {:?}", begin.elapsed());
        for broker in &brokers {
            assert_eq!(refusal(broker, &login("bob", "hello")), WRONG, "{kind:?}");
        }
        wait_for("an end of the session", || {
            get(brokers[0].address_of("health"), "/metrics").contains("\nmqtt_st_quic_sessions 0.0\n").then_some(())
        });
    }
}

/// Ends the load, also where the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client that publishes and never loses its connection, and logins of users who are remembered, until they are told to stop.
fn bear_load<'scope>(scope: &'scope std::thread::Scope<'scope, '_>, broker: &'scope Broker, over: &'scope AtomicBool) {
    scope.spawn(|| {
        let mut client = Client::connect(broker, &login("bob", "hello"));
        while !over.load(Ordering::Relaxed) {
            client.say("t", "x");
        }
    });
    scope.spawn(|| {
        while !over.load(Ordering::Relaxed) {
            Client::connect(broker, &login("bob", "hello")).disconnect();
        }
    });
}

#[test]
fn a_database_that_goes_and_comes_back_costs_nobody_his_connection() {
    for kind in [Kind::Postgres, Kind::MariaDb] {
        let site = Site::new();
        let Some(mut database) = Database::new(kind, &site) else { continue };
        for name in ["bob", "eve"] {
            database.add_user(name, HELLO, false);
            database.grant(name, "t", 7);
        }
        let broker = site.start("a", &database.guard(&site, &site.alone("a"), ""));
        let health = broker.address_of("health");
        assert!(!get(health, "/readyz").contains("auth_failing"));
        let mut idle = Client::connect(&broker, &login("bob", "hello"));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            bear_load(scope, &broker, &over);
            let _over = Over(&over);
            database.server.as_mut().unwrap().stop();
            wait_for("a word of it", || get(health, "/readyz").contains("\"auth_failing\":[\"sql\"]").then_some(()));
            assert!(get(health, "/metrics").contains("\nmqtt_st_quic_auth_up{backend=\"sql\"} 0.0\n"));
            assert!(get(health, "/readyz").contains("\"ready\":true"), "it serves all the same");
            assert_eq!(refusal(&broker, &login("eve", "hello")), UNAVAILABLE, "{kind:?}: not remembered");
            let old = Connect::new(4).login("eve", "hello");
            assert_eq!(refusal(&broker, &old), 3, "{kind:?}: in the words of 3.1.1");
            // Longer than anything is fresh.
            let begin = Instant::now();
            while begin.elapsed() < CACHE_TTL + Duration::from_millis(500) {
                assert!(may_publish(&mut idle, "t"));
                std::thread::sleep(Duration::from_millis(50));
            }
            database.server.as_mut().unwrap().start();
            wait_for("good news", || (!get(health, "/readyz").contains("auth_failing")).then_some(()));
            Client::connect(&broker, &login("eve", "hello")).disconnect();
        });
        assert!(may_publish(&mut idle, "t"));
        database.execute("DELETE FROM users WHERE name = 'bob'");
        idle.expect_disconnect(&[NOT_AUTHORIZED]);
    }
}

#[test]
fn a_database_that_hangs_costs_nobody_his_connection_and_a_slow_user_only_himself() {
    let site = Site::new();
    let Some(database) = Database::new(Kind::Postgres, &site) else { return };
    for name in ["bob", "eve", "slow"] {
        database.add_user(name, HELLO, false);
        database.grant(name, "t", 7);
    }
    let configuration = database.guard(&site, &site.alone("a"), "");
    let slow = "SELECT hash FROM users WHERE name = $1 AND (name <> 'slow' OR pg_sleep(60) IS NOT NULL)";
    let broker = site.start("a", &configuration.replace("SELECT hash FROM users WHERE name = $1", slow));
    let health = broker.address_of("health");
    let metric = |name: &str| {
        let line = format!("\nmqtt_st_quic_{name}{{backend=\"sql\"}} ");
        get(health, "/metrics").split(&line).nth(1).unwrap().lines().next().unwrap().parse::<f64>().unwrap()
    };
    let mut bob = Client::connect(&broker, &login("bob", "hello"));
    std::thread::scope(|scope| {
        let broker = &broker;
        let asked = metric("auth_asked_total");
        let refused = scope.spawn(move || refusal(broker, &login("slow", "hello")));
        wait_for("a question about him", || (metric("auth_asked_total") > asked).then_some(()));
        // The others are let in while that one is under way, and after it.
        for name in ["eve", "bob"] {
            Client::connect(broker, &login(name, "hello").id("other")).disconnect();
        }
        assert_eq!(refusal(broker, &login("nobody", "hello")), WRONG);
        assert_eq!(refused.join().unwrap(), UNAVAILABLE);
    });
    assert!(may_publish(&mut bob, "t"));
    assert!(!broker.log().contains("it cannot be asked"), "one user makes nobody away");
    broker.wait_for_log(&["what was asked of a user has failed", "no answer within 2s"]);

    database.add_user("new", HELLO, false);
    let frozen = Frozen::new(database.server.as_ref().unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        bear_load(scope, &broker, &over);
        let _over = Over(&over);
        let begin = Instant::now();
        assert_eq!(refusal(&broker, &login("new", "hello")), UNAVAILABLE, "not remembered");
        println!("told after {:?}", begin.elapsed());
        wait_for("a word of it", || get(health, "/readyz").contains("\"auth_failing\":[\"sql\"]").then_some(()));
        broker.wait_for_log(&["it cannot be asked"]);
        // Longer than anything is fresh.
        let begin = Instant::now();
        while begin.elapsed() < CACHE_TTL + Duration::from_millis(500) {
            assert!(may_publish(&mut bob, "t"));
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(frozen);
        wait_for("good news", || (!get(health, "/readyz").contains("auth_failing")).then_some(()));
        Client::connect(&broker, &login("new", "hello")).disconnect();
    });
    assert!(may_publish(&mut bob, "t"));
    database.execute("DELETE FROM users WHERE name = 'bob'");
    bob.expect_disconnect(&[NOT_AUTHORIZED]);
}

#[test]
fn a_database_that_stops_the_query_of_one_user_answers_all_others() {
    let site = Site::new();
    let Some(database) = Database::new(Kind::Postgres, &site) else { return };
    for name in ["bob", "eve", "slow"] {
        database.add_user(name, HELLO, false);
        database.grant(name, "t", 7);
    }
    // Before the broker would.
    database.execute("ALTER ROLE mqtt SET statement_timeout = '1s'");
    let configuration = database.guard(&site, &site.alone("a"), "").replace("timeout = \"2s\"", "timeout = \"5s\"");
    let slow = "SELECT hash FROM users WHERE name = $1 AND (name <> 'slow' OR pg_sleep(60) IS NOT NULL)";
    let broker = site.start("a", &configuration.replace("SELECT hash FROM users WHERE name = $1", slow));
    let mut bob = Client::connect(&broker, &login("bob", "hello"));
    assert_eq!(refusal(&broker, &login("slow", "hello")), UNAVAILABLE);
    broker.wait_for_log(&["what was asked of a user has failed", "statement timeout"]);
    // Nobody is let in or kept out by what is remembered.
    assert_eq!(refusal(&broker, &login("nobody", "hello")), WRONG);
    Client::connect(&broker, &login("eve", "hello")).disconnect();
    database.execute("DELETE FROM users WHERE name = 'bob'");
    bob.expect_disconnect(&[NOT_AUTHORIZED]);
    assert!(!broker.log().contains("it cannot be asked"), "{}", broker.log());
}

#[test]
fn a_table_that_is_empty_for_a_moment_ends_no_session_and_the_file_that_says_where_is_read_anew() {
    let site = Site::new();
    let database = Database::new(Kind::Sqlite, &site).unwrap();
    database.add_user("bob", HELLO, false);
    database.add_user("root", HELLO, true);
    database.grant("bob", "t", 7);
    let configuration = database.guard(&site, &site.alone("a"), "");
    // He is back long before he is looked for again, however much else this machine does.
    let patient = configuration.replace("cache_ttl = \"2s\"", "cache_ttl = \"10s\"");
    assert_ne!(patient, configuration);
    let broker = site.start("a", &patient);
    let bob =
        || Connect::new(5).id("bob's").login("bob", "hello").resume(3_600).will(Will { qos: 1, ..Will::new("t", "a last word") });
    let mut client = Client::connect(&broker, &bob());
    client.subscribe(&[("t", 1)]);
    let mut root = Client::connect(&broker, &login("root", "hello"));
    let (taken, given_back) =
        ("UPDATE users SET name = '-' || name WHERE name = 'bob'", "UPDATE users SET name = 'bob' WHERE name = '-bob'");
    database.execute(taken);
    client.expect_disconnect(&[NOT_AUTHORIZED]);
    root.say("t", "meanwhile");
    database.execute(given_back);
    let come_back = |broker: &Broker| {
        wait_for("bob, who is known again", || {
            let mut client = Client::open(broker, 5);
            client.send(&bob().encode());
            let connack = client.receive();
            (connack.reason == 0).then_some((client, connack.session_present))
        })
    };
    let (mut client, is_present) = come_back(&broker);
    assert!(is_present);
    assert_eq!(client.take_messages(1), ["meanwhile"], "and not the last word of one who was shut out");
    // For good.
    broker.kill();
    let broker = site.start("a", &configuration);
    let health = broker.address_of("health");
    let mut root = Client::connect(&broker, &login("root", "hello"));
    let (mut client, is_present) = come_back(&broker);
    assert!(is_present);
    database.execute(taken);
    client.expect_disconnect(&[NOT_AUTHORIZED]);
    wait_for("an end of the session", || get(health, "/metrics").contains("\nmqtt_st_quic_sessions 1.0\n").then_some(()));

    // Another database takes its place, and a file with nothing good in it does not.
    std::fs::copy(site.path().join("users.db"), site.path().join("others.db")).unwrap();
    let others =
        Database { kind: Kind::Sqlite, url: format!("sqlite://{}", site.path().join("others.db").display()), server: None };
    others.execute(given_back);
    std::fs::write(site.file("dsn"), "nonsense\n").unwrap();
    broker.signal("HUP");
    broker.wait_for_log(&["auth.sql.dsn_file"]);
    assert!(may_publish(&mut root, "t"));
    std::fs::write(site.file("dsn"), format!("{}\n", others.url)).unwrap();
    broker.signal("HUP");
    let (_, is_present) = come_back(&broker);
    assert!(!is_present);
}

#[test]
fn a_session_is_its_users_after_a_restart_and_loses_nothing() {
    let site = Site::new();
    let database = Database::new(Kind::Sqlite, &site).unwrap();
    for name in ["bob", "eve"] {
        database.add_user(name, HELLO, name == "eve");
        database.grant(name, "t", 5);
    }
    let configuration = database.guard(&site, &site.alone("a"), "");
    let broker = site.start("a", &configuration);
    let bob = || Connect::new(5).id("bob's").login("bob", "hello").resume(3_600);
    let mut client = Client::connect(&broker, &bob());
    client.subscribe(&[("t", 1)]);
    client.disconnect();
    Client::connect(&broker, &login("eve", "hello")).say("t", "before");
    broker.kill();
    let broker = site.start("a", &configuration);
    // At once: nobody may have asked the database about bob yet.
    Client::connect(&broker, &login("eve", "hello")).say("t", "after");
    let mut client = Client::connect(&broker, &bob());
    client.expect_message("before");
    client.expect_message("after");
    client.disconnect();
    database.execute("DELETE FROM users WHERE name = 'bob'");
    broker.kill();
    let broker = site.start("a", &configuration);
    wait_for("nothing of one who is gone", || {
        get(broker.address_of("health"), "/metrics").contains("\nmqtt_st_quic_sessions 0.0\n").then_some(())
    });
}

#[test]
fn a_wrong_schema_lets_nobody_in_and_is_named() {
    let site = Site::new();
    let database = Database::new(Kind::Sqlite, &site).unwrap();
    database.add_user("bob", HELLO, false);
    let configuration = database.guard(&site, &site.alone("a"), "").replace("FROM rules", "FROM rulez");
    let broker = site.start("a", &configuration);
    assert_eq!(refusal(&broker, &login("bob", "hello")), UNAVAILABLE);
    broker.wait_for_log(&["sql", "acl_query", "rulez"]);
    assert!(get(broker.address_of("health"), "/metrics").contains("\nmqtt_st_quic_auth_up{backend=\"sql\"} 0.0\n"));
    // And what cannot be right is said before the start.
    for (from, to, words) in [
        ("WHERE name = ?\"\nacl", "WHERE name = '%s'\"\nacl", "auth.sql.user_query"),
        ("dsn_file = ", "dsn_file = \"/nowhere\" #", "auth.sql.dsn_file: cannot read /nowhere"),
        ("[auth.sql]", "[auth]\nbackends = [\"file\"]\n[auth.sql]", "auth.sql"),
    ] {
        let said = site.fails(&configuration.replace(from, to));
        assert!(said.code != Some(0) && said.err.contains(words), "{from}: {said:?}");
    }
    std::fs::write(site.file("dsn"), "bob:secret@somewhere").unwrap();
    let said = site.fails(&configuration);
    assert!(said.code != Some(0) && said.err.contains("postgres://") && !said.err.contains("secret"), "{said:?}");
    assert!(Path::new(&site.file("dsn")).exists());
}

#[test]
fn the_file_and_the_database_are_asked_in_their_order_and_rules_may_be_asked_one_by_one() {
    let site = Site::new();
    let database = Database::new(Kind::Sqlite, &site).unwrap();
    let file = site.file("passwd");
    std::fs::write(&file, "").unwrap();
    for name in ["both", "filed"] {
        let said = crate::broker::run(&["passwd", "-H", "sha512", "-b", &file, name, "of the file"]);
        assert_eq!(said.code, Some(0), "{said:?}");
    }
    for name in ["both", "stored"] {
        database.add_user(name, HELLO, false);
        database.grant(name, "t", 6);
    }
    let one_by_one = "SELECT topic FROM rules WHERE name = ? AND access & ? > 0";
    let configuration = database
        .guard(&site, &site.alone("a"), "")
        .replace("SELECT topic, access FROM rules WHERE name = ?", one_by_one)
        .replace("[auth.sql]", &format!("[auth]\npassword_file = {file:?}\n[auth.sql]"));
    let turned = configuration.replace("[auth]\n", "[auth]\nbackends = [\"sql\", \"file\"]\n").replace("\"a\"", "\"b\"");
    for (configuration, of_both, not_of_both) in [(configuration, "of the file", "hello"), (turned, "hello", "of the file")] {
        let broker = site.start(if of_both == "hello" { "b" } else { "a" }, &configuration);
        for (user, password) in [("both", of_both), ("filed", "of the file"), ("stored", "hello")] {
            Client::connect(&broker, &login(user, password)).disconnect();
        }
        assert_eq!(refusal(&broker, &login("both", not_of_both)), WRONG, "the first that knows the user decides");
        let mut client = Client::connect(&broker, &login("stored", "hello"));
        client.subscribe(&[("t", 1)]);
        client.say("t", "it may publish and subscribe");
        client.expect_nothing();
        assert!(!may_publish(&mut client, "u"));
    }
}

//! Programs as a user runs them: one-shot commands, and brokers as processes of their own with a directory of their own.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;

/// Nothing that is awaited takes this long; it only ends a test that has failed.
pub const PATIENCE: Duration = Duration::from_secs(40);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The program, with an environment that says nothing to it.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mqtt-st-quic"));
    command.stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MQTT_ST_QUIC__") {
            command.env_remove(name);
        }
    }
    command
}

/// What a one-shot command said, and its exit code.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Runs a one-shot command to its end.
pub fn run(arguments: &[&str]) -> Said {
    program().args(arguments).output().unwrap().into()
}

/// Asks until there is an answer.
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A directory with the certificates of one mesh and what its brokers write.
pub struct Site {
    dir: TempDir,
}

impl Site {
    /// With an authority for the mesh `m`.
    pub fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().unwrap() };
        site.make(&["ca", "--mesh", "m", "--out", &site.file("pki")]);
        site
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The path of a file here, as an argument.
    pub fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn make(&self, arguments: &[&str]) {
        let said = run(&[&["certs"], arguments].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
    }

    /// Makes a certificate for broker `name` of the mesh `mesh`.
    pub fn certify(&self, mesh: &str, name: &str, more: &[&str]) {
        let pki = self.file("pki");
        self.make(&[&["broker", "--mesh", mesh, "--name", name, "--ca", &pki, "--out", &pki], more].concat());
    }

    /// A configuration for a broker of the mesh with a certificate of its own. Only loopback, only free ports.
    pub fn configuration(&self, name: &str, peers: &[SocketAddr]) -> String {
        let peers: Vec<_> = peers.iter().map(ToString::to_string).collect();
        format!(
            "{}\n[mesh]\nname = \"m\"\nlisten = \"127.0.0.1:0\"\ndiscovery = [\"static\"]\nsubscribe_ack = \"mesh\"\npeers = {peers:?}\n\
             cafile = {:?}\ncertfile = {:?}\nkeyfile = {:?}\n",
            self.alone(name),
            self.file("pki/ca.pem"),
            self.file(&format!("pki/{name}.pem")),
            self.file(&format!("pki/{name}.key"))
        )
    }

    /// A configuration for a broker without a mesh.
    pub fn alone(&self, name: &str) -> String {
        format!(
            "name = {name:?}\ndata_dir = {:?}\n[[listener]]\nbind = \"127.0.0.1:0\"\nallow_anonymous = true\n\
             [admin]\nbind = \"127.0.0.1:0\"\n[health]\nbind = \"127.0.0.1:0\"\n",
            self.file(name)
        )
    }

    /// Starts a broker with this configuration, in whose `name` it must agree.
    pub fn start(&self, name: &str, configuration: &str) -> Broker {
        Broker::start(self, name, configuration, |_| {})
    }

    /// Starts what cannot start, and waits for its end.
    pub fn fails(&self, configuration: &str) -> Said {
        let path = self.file("broken.toml");
        fs::write(&path, configuration).unwrap();
        run(&["serve", "--config", &path])
    }
}

/// Asserts that a message from one client reaches another.
pub fn assert_serves(broker: &Broker) {
    let mut listener = Client::subscribed(broker, 5, "served", 1);
    Client::new(broker, 4).say("served", "yes");
    listener.expect_message("yes");
}

/// A running `serve`. Killed when dropped.
pub struct Broker {
    pub name: String,
    child: Child,
    addresses: Value,
    log: PathBuf,
}

impl Broker {
    pub fn start(site: &Site, name: &str, configuration: &str, change: impl FnOnce(&mut Command)) -> Self {
        let (config, ready, log) =
            (site.file(&format!("{name}.toml")), site.file(&format!("{name}.ready")), site.file(&format!("{name}.log")));
        fs::write(&config, configuration).unwrap();
        let _ = fs::remove_file(&ready);
        let mut command = program();
        command.args(["serve", "--config", &config, "--ready-file", &ready]).stderr(File::create(&log).unwrap());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let log = PathBuf::from(log);
        let addresses = wait_for("a broker that is ready", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("{name} ended with {status}: {}", fs::read_to_string(&log).unwrap_or_default());
            }
            fs::read_to_string(&ready).ok().map(|text| serde_json::from_str(&text).unwrap())
        });
        Self { name: name.to_owned(), child, addresses, log }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.listener(0)
    }

    /// Where it listens for clients, by the listener's place in its configuration.
    pub fn listener(&self, place: usize) -> SocketAddr {
        self.addresses["mqtt"][place].as_str().unwrap().parse().unwrap()
    }

    /// One of `mesh`, `admin`, `health`.
    pub fn address_of(&self, what: &str) -> SocketAddr {
        self.addresses[what].as_str().unwrap().parse().unwrap()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for a line of its log that has all of `words`.
    pub fn wait_for_log(&self, words: &[&str]) -> String {
        wait_for(&format!("{words:?} in the log of {}", self.name), || {
            self.log().lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        })
    }

    /// What `topology --format json` says of it.
    pub fn topology(&self) -> Value {
        let said = run(&["topology", "--format", "json", "--admin", &format!("http://{}", self.address_of("admin"))]);
        assert_eq!(said.code, Some(0), "{said:?}");
        serde_json::from_str(&said.out).unwrap()
    }

    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([format!("-{name}"), self.pid().to_string()]).status().unwrap().success());
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("a process that ends", || self.child.try_wait().unwrap())
    }

    /// Ends it as the kernel does when memory is short.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(9));
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Shown where the test failed.
        println!("--- log of {}:\n{}", self.name, fs::read_to_string(&self.log).unwrap_or_default());
    }
}

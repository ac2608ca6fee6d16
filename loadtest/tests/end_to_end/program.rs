//! Runs `loadtest` and holds it to its word: an exit code, a report, and an end in good time.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// No run of these tests takes nearly as long; one that does hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// A `loadtest` under way.
pub(crate) struct Running {
    child: Child,
    directory: TempDir,
    arguments: String,
    started: Instant,
}

/// A `loadtest` that has ended.
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    report: Option<Value>,
    arguments: String,
    pub(crate) took: Duration,
}

/// Runs `loadtest` with these arguments to its end.
pub(crate) fn loadtest(arguments: &str) -> Finished {
    start(arguments).finish()
}

/// Runs it after a command of the shell in the same process.
#[cfg(unix)]
pub(crate) fn under(command: &str, arguments: &str) -> Finished {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{command} && exec {} \"$@\"", env!("CARGO_BIN_EXE_loadtest"))).arg("loadtest");
    begin(shell, arguments).finish()
}

/// Starts `loadtest` with these arguments, and `--json` unless that is among them or makes no sense.
pub(crate) fn start(arguments: &str) -> Running {
    begin(Command::new(env!("CARGO_BIN_EXE_loadtest")), arguments)
}

#[expect(clippy::disallowed_methods, reason = "a test measures real time")]
fn begin(mut command: Command, arguments: &str) -> Running {
    let directory = TempDir::new().unwrap();
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    if !arguments.contains("--json") && !["report", "keys"].iter().any(|command| arguments.starts_with(command)) {
        command.arg("--json").arg(directory.path().join("report.json"));
    }
    // Files, not pipes: a program that says much must not wait for us to read it.
    let file = |name| std::fs::File::create(directory.path().join(name)).unwrap();
    let child = command.stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap();
    Running { child, directory, arguments: arguments.to_owned(), started: Instant::now() }
}

impl Running {
    /// Sends it what Ctrl-C sends.
    #[cfg(unix)]
    pub(crate) fn interrupt(&self) {
        assert!(Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Finished {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if self.started.elapsed() > HANGS_AFTER {
                self.child.kill().unwrap();
                panic!("loadtest {} hangs", self.arguments);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |name| std::fs::read_to_string(self.directory.path().join(name));
        Finished {
            code: status.code(),
            stdout: read("stdout").unwrap(),
            stderr: read("stderr").unwrap(),
            report: read("report.json").ok().map(|report| serde_json::from_str(&report).unwrap()),
            arguments: self.arguments,
            took: self.started.elapsed(),
        }
    }
}

impl Finished {
    /// The report of a run that must have gone well.
    pub(crate) fn good(&self, what: &str) -> Value {
        assert_eq!(self.code, Some(0), "{what}: loadtest {}\n{}\n{}", self.arguments, self.stdout, self.stderr);
        self.report()
    }

    /// Asserts that the run has failed, and said why.
    pub(crate) fn failed_with(&self, code: i32, complaint: &str) {
        assert_eq!(self.code, Some(code), "loadtest {}\n{}\n{}", self.arguments, self.stdout, self.stderr);
        assert!(self.stderr.contains(complaint), "loadtest {}: no {complaint:?} in\n{}", self.arguments, self.stderr);
    }

    /// The report, however the run went.
    pub(crate) fn report(&self) -> Value {
        assert!(self.stdout.starts_with("loadtest "), "a report for people, too: {}", self.stdout);
        self.report.clone().unwrap_or_else(|| panic!("loadtest {} wrote no report", self.arguments))
    }
}

/// An address that refuses connections as long as what is returned beside it lives: the near end of a connection, which no
/// listener can take.
pub(crate) fn refuse_connections() -> (String, (TcpStream, TcpStream)) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    (near.local_addr().unwrap().to_string(), (near, far))
}

//! `loadtest` against Debian's Mosquitto: the proof that the fake broker is not the only one it understands.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::fields;
use crate::program::loadtest;

/// Debian puts it where only root's PATH looks.
const PROGRAMS: [&str; 2] = ["mosquitto", "/usr/sbin/mosquitto"];

struct Mosquitto {
    child: Child,
    address: String,
    _directory: TempDir,
}

impl Mosquitto {
    /// `None` where it is not installed, unless everything is required.
    fn start() -> Option<Self> {
        let installed = |program: &&&str| Command::new(program).arg("-h").output().is_ok();
        let Some(program) = PROGRAMS.iter().find(installed) else {
            assert!(std::env::var_os("REQUIRE_ALL").is_none(), "needs mosquitto (apt-get install mosquitto)");
            eprintln!("skipped: needs mosquitto");
            return None;
        };
        // Another process may take the free port before Mosquitto does.
        (0..5).find_map(|_| Self::start_once(program)).or_else(|| panic!("{program} does not start"))
    }

    fn start_once(program: &str) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("mosquitto.conf");
        let mut configuration = std::fs::File::create(&path).unwrap();
        // Without a limit on what is queued, nothing may be lost.
        write!(configuration, "listener {} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n", address.port()).unwrap();
        let mut child = Command::new(program).arg("-c").arg(&path).stderr(Stdio::null()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            if TcpStream::connect(address).is_ok() {
                return Some(Self { child, address: address.to_string(), _directory: directory });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).unwrap();
    }
}

#[test]
fn every_version_and_quality_of_service() {
    let Some(mosquitto) = Mosquitto::start() else { return };
    for version in ["3.1.1", "5"] {
        for qos in ["0", "1", "2"] {
            // More than 20 QoS 2 messages under way, and Mosquitto ends the connection (max_inflight_messages).
            let load = "--pairs 5 --subscribers 2 --count 300 --window 20";
            let run = format!("pair --broker {} --mqtt {version} --qos {qos} {load}", mosquitto.address);
            let report = loadtest(&run).good(&format!("MQTT {version}, QoS {qos}"));
            let ledger = fields(&report, ["sent", "delivered", "lost", "duplicated", "reordered", "corrupted", "unacknowledged"]);
            assert_eq!(ledger, [1_500, 3_000, 0, 0, 0, 0, 0], "MQTT {version}, QoS {qos}");
        }
    }
}

#[test]
fn messages_of_several_megabytes() {
    let Some(mosquitto) = Mosquitto::start() else { return };
    let report = loadtest(&format!("pair --broker {} --payload-bytes 3000000 --count 20 --qos 1", mosquitto.address));
    assert_eq!(fields(&report.good("3 MB messages"), ["delivered", "lost", "corrupted"]), [20, 0, 0]);
}

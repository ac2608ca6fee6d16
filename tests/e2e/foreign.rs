//! Other people's clients on a mesh of ours. Skipped where they are not installed, unless `REQUIRE_ALL` is set.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crate::broker::{Broker, Site, wait_for};
use crate::mesh::{settle, start_all};
use crate::serve::get;

pub fn is_there(what: &str, mut probe: Command) -> bool {
    let is_there = probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    assert!(is_there || std::env::var_os("REQUIRE_ALL").is_none(), "{what} is needed, and not there");
    if !is_there {
        println!("skipped: needs {what}");
    }
    is_there
}

fn mosquitto(program: &str, to: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(["-h", &to.ip().to_string(), "-p", &to.port().to_string()]).args(arguments);
    command
}

fn wait_for_subscriptions(broker: &Broker, count: usize) {
    let line = format!("\nmqtt_st_quic_subscriptions {count}.0\n");
    wait_for("a subscription", || get(broker.address_of("health"), "/metrics").contains(&line).then_some(()));
}

#[test]
fn mosquitto_clients_of_both_versions_and_every_qos() {
    let mut probe = Command::new("sh");
    probe.args(["-c", "command -v mosquitto_sub && command -v mosquitto_pub"]);
    if !is_there("mosquitto-clients", probe) {
        return;
    }
    let site = Site::new();
    let brokers = start_all(&site, &["a", "b", "c"]);
    settle(&brokers.iter().collect::<Vec<_>>());
    for version in ["mqttv311", "mqttv5"] {
        for qos in ["0", "1", "2"] {
            let what = format!("{version} QoS {qos}");
            let (topic, kept) = (format!("t/{version}/{qos}"), format!("kept/{version}/{qos}"));
            let listen = ["-V", version, "-q", qos, "-t", &topic, "-C", "1", "-W", "30", "-F", "%q %r %p"];
            let listener = mosquitto("mosquitto_sub", brokers[1].address(), &listen).stdout(Stdio::piped()).spawn().unwrap();
            wait_for_subscriptions(&brokers[1], 1);
            let say = ["-V", version, "-q", qos, "-t", &topic, "-m", "hello"];
            assert!(mosquitto("mosquitto_pub", brokers[2].address(), &say).status().unwrap().success(), "{what}");
            let heard = listener.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&heard.stdout), format!("{qos} 0 hello\n"), "{what}");
            wait_for_subscriptions(&brokers[1], 0);

            let keep = ["-V", version, "-q", qos, "-r", "-t", &kept, "-m", "kept"];
            assert!(mosquitto("mosquitto_pub", brokers[0].address(), &keep).status().unwrap().success(), "{what}");
            let ask = ["-V", version, "-q", qos, "-t", &kept, "-C", "1", "-W", "1", "-F", "%q %r %p"];
            wait_for(&format!("a retained message, {what}"), || {
                let heard = mosquitto("mosquitto_sub", brokers[2].address(), &ask).output().unwrap();
                (heard.stdout == format!("{qos} 1 kept\n").into_bytes()).then_some(())
            });
        }
    }
}

/// Publishes and receives at once, at QoS 2, each at a broker of its own; prints what arrived.
const PAHO: &str = r"
import sys, threading
import paho.mqtt.client as mqtt
version, to_listen, to_speak, count = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
heard, subscribed, done = [], threading.Event(), threading.Event()
def on_message(client, data, message):
    heard.append(message.payload.decode())
    if len(heard) >= count:
        done.set()
listener = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=version)
listener.on_message = on_message
listener.on_connect = lambda client, *_: client.subscribe('paho/#', 2)
listener.on_subscribe = lambda *_: subscribed.set()
listener.connect('127.0.0.1', to_listen)
listener.loop_start()
assert subscribed.wait(20)
speaker = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=version)
speaker.connect('127.0.0.1', to_speak)
speaker.loop_start()
for n in range(count):
    last = speaker.publish('paho/x', str(n), qos=2)
last.wait_for_publish(20)
assert done.wait(20), heard
print(' '.join(heard))
";

#[test]
fn paho_in_both_versions() {
    let mut probe = Command::new("python3");
    probe.args(["-c", "import paho.mqtt.enums"]);
    if !is_there("paho-mqtt 2", probe) {
        return;
    }
    const COUNT: usize = 200;
    let site = Site::new();
    let brokers = start_all(&site, &["a", "b"]);
    settle(&brokers.iter().collect::<Vec<_>>());
    let port = |broker: &Broker| broker.address().port().to_string();
    for version in ["4", "5"] {
        let arguments = ["-c", PAHO, version, &port(&brokers[0]), &port(&brokers[1]), &COUNT.to_string()];
        let said = Command::new("python3").args(arguments).output().unwrap();
        let expected: Vec<_> = (0..COUNT).map(|number| number.to_string()).collect();
        assert_eq!(String::from_utf8_lossy(&said.stdout), expected.join(" ") + "\n", "{}", String::from_utf8_lossy(&said.stderr));
    }
}

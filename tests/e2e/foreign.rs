//! Other people's clients on a mesh of ours. Skipped where they are not installed, unless `REQUIRE_ALL` is set.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rumqttc::{AsyncClient, Event, EventLoop, LastWill, MqttOptions, Packet, Publish, QoS, Transport};

use crate::broker::{Broker, PATIENCE, Site, wait_for};
use crate::certificates::Authority;
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

/// That `broker` knows of so many filters of the others.
fn wait_for_filters_elsewhere(broker: &Broker, count: usize) {
    let line = format!("\nmqtt_st_quic_mesh_interest_filters {count}.0\n");
    wait_for("a filter of another broker", || get(broker.address_of("health"), "/metrics").contains(&line).then_some(()));
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
            wait_for_filters_elsewhere(&brokers[2], 1);
            let say = ["-V", version, "-q", qos, "-t", &topic, "-m", "hello"];
            assert!(mosquitto("mosquitto_pub", brokers[2].address(), &say).status().unwrap().success(), "{what}");
            let heard = listener.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&heard.stdout), format!("{qos} 0 hello\n"), "{what}");
            wait_for_subscriptions(&brokers[1], 0);
            wait_for_filters_elsewhere(&brokers[2], 0);

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

/// One broker with a listener for everything: TCP, TLS, WebSocket, secure WebSocket, QUIC.
struct Everything {
    broker: Broker,
    authority: Authority,
    _site: Site,
}

const TCP: usize = 0;
const TLS: usize = 1;
const WEBSOCKET: usize = 2;
const SECURE_WEBSOCKET: usize = 3;
const QUIC: usize = 4;

impl Everything {
    fn start() -> Self {
        let site = Site::new();
        let authority = Authority::new(&site.path().join("tls"));
        let server = authority.server(1);
        let tls = format!("tls = {{ certfile = {:?}, keyfile = {:?} }}", server.certificate, server.key);
        let listener = |protocol: &str, tls: &str| {
            format!("[[listener]]\nbind = \"127.0.0.1:0\"\nallow_anonymous = true\nprotocol = {protocol:?}\n{tls}\n")
        };
        let configuration = [
            site.alone("a"),
            listener("mqtt", &tls),
            listener("websockets", ""),
            listener("websockets", &tls),
            listener("quic", &tls),
        ]
        .concat();
        Self { broker: site.start("a", &configuration), authority, _site: site }
    }

    fn port(&self, place: usize) -> String {
        self.broker.listener(place).port().to_string()
    }

    fn cafile(&self) -> String {
        self.authority.file().to_str().unwrap().to_owned()
    }
}

/// A program beside this file.
fn program_of_ours(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/foreign").join(name).to_str().unwrap().to_owned()
}

fn assert_all_good(what: &str, command: &mut Command) {
    let said = command.output().unwrap();
    let out = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success(), "{what}: {out}{}", String::from_utf8_lossy(&said.stderr));
    assert_eq!(out.split_whitespace().collect::<Vec<_>>(), ["qos", "retained", "will", "resumed"], "{what}");
}

fn python(arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(arguments);
    command
}

#[test]
fn paho_on_every_transport() {
    if !is_there("paho-mqtt 2", python(&["-c", "import paho.mqtt.enums"])) {
        return;
    }
    let all = Everything::start();
    let client = program_of_ours("paho_client.py");
    for version in ["4", "5"] {
        for (place, transport, cafile) in
            [(TCP, "tcp", ""), (TLS, "tcp", "ca"), (WEBSOCKET, "websockets", ""), (SECURE_WEBSOCKET, "websockets", "ca")]
        {
            let cafile = if cafile.is_empty() { String::new() } else { all.cafile() };
            let what = format!("version {version}, listener {place}");
            assert_all_good(&what, &mut python(&[&client, version, transport, &all.port(place), &cafile]));
        }
    }
}

/// Killed when dropped.
struct Bridge {
    child: Child,
    port: String,
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn paho_over_quic_by_aioquic() {
    if !is_there("paho-mqtt 2 and aioquic", python(&["-c", "import paho.mqtt.enums, aioquic"])) {
        return;
    }
    let all = Everything::start();
    let mut bridge = python(&[&program_of_ours("quic_bridge.py"), &all.port(QUIC), &all.cafile()]);
    let mut child = bridge.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let bridge = Bridge { child, port: port.trim().to_owned() };
    for version in ["4", "5"] {
        let what = format!("version {version} over QUIC");
        assert_all_good(&what, &mut python(&[&program_of_ours("paho_client.py"), version, "tcp", &bridge.port]));
    }
}

#[test]
fn mqtt_js_on_every_transport() {
    // Where it was installed for all: `npm install --global mqtt`.
    let root = Command::new("npm").args(["root", "--global"]).output();
    let root = root.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned()).unwrap_or_default();
    let node = |arguments: &[&str]| {
        let mut command = Command::new("node");
        command.env("NODE_PATH", &root).args(arguments);
        command
    };
    if !is_there("Node.js and MQTT.js", node(&["-e", "require('mqtt')"])) {
        return;
    }
    let all = Everything::start();
    let client = program_of_ours("mqttjs_client.js");
    for version in ["4", "5"] {
        for (place, scheme) in [(TCP, "mqtt"), (TLS, "mqtts"), (WEBSOCKET, "ws"), (SECURE_WEBSOCKET, "wss")] {
            let url = format!("{scheme}://localhost:{}/mqtt", all.port(place)).replace("mqtt://localhost", "mqtt://127.0.0.1");
            let what = format!("version {version} at {url}");
            assert_all_good(&what, &mut node(&[&client, version, &url, &all.cafile()]));
        }
    }
}

#[test]
fn mosquitto_clients_over_tls_with_will_and_session() {
    let mut probe = Command::new("sh");
    probe.args(["-c", "command -v mosquitto_sub && command -v mosquitto_pub"]);
    if !is_there("mosquitto-clients", probe) {
        return;
    }
    let all = Everything::start();
    let cafile = all.cafile();
    let at = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(["-h", "localhost", "-p", &all.port(TLS), "--cafile", &cafile]).args(arguments);
        command
    };
    for version in ["mqttv31", "mqttv311", "mqttv5"] {
        let sub = |more: &[&str]| at("mosquitto_sub", &[&["-V", version, "-W", "30", "-F", "%t %q %p"], more].concat());
        let publish = |more: &[&str]| assert!(at("mosquitto_pub", &[&["-V", version], more].concat()).status().unwrap().success());
        let kept: &[&str] = &["-i", "kept", "-c", "-q", "2", "-t", "missed"];
        let kept = if version == "mqttv5" { [kept, &["-x", "600"]].concat() } else { kept.to_vec() };
        assert!(sub(&[&kept[..], &["-E"]].concat()).status().unwrap().success());
        for qos in ["0", "1", "2"] {
            let listener = sub(&["-q", qos, "-t", "heard", "-C", "1"]).stdout(Stdio::piped()).spawn().unwrap();
            wait_for_subscriptions(&all.broker, 2);
            publish(&["-q", qos, "-t", "heard", "-m", "hello"]);
            let heard = listener.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&heard.stdout), format!("heard {qos} hello\n"), "{version}");
            wait_for_subscriptions(&all.broker, 1);
        }
        publish(&["-q", "2", "-t", "missed", "-m", "while away"]);
        let heard = sub(&[&kept[..], &["-C", "1"]].concat()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&heard.stdout), "missed 2 while away\n", "{version}");
        // Killed: its will is all that is left of it.
        let listener = sub(&["-q", "1", "-t", "will", "-C", "1"]).stdout(Stdio::piped()).spawn().unwrap();
        wait_for_subscriptions(&all.broker, 2);
        let mut dying = sub(&["-t", "dying", "--will-topic", "will", "--will-payload", "gone", "--will-qos", "1"]).spawn().unwrap();
        wait_for_subscriptions(&all.broker, 3);
        dying.kill().unwrap();
        dying.wait().unwrap();
        let heard = listener.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&heard.stdout), "will 1 gone\n", "{version}");
        let mut forget = vec!["-V", version, "-i", "kept", "-q", "2", "-t", "missed", "-E"];
        if version == "mqttv5" {
            forget.extend(["-x", "0"]);
        }
        assert!(at("mosquitto_sub", &forget).status().unwrap().success());
        wait_for_subscriptions(&all.broker, 0);
    }
}

/// rumqttc's client with what came for it.
struct Rumqttc {
    client: AsyncClient,
    messages: tokio::sync::mpsc::UnboundedReceiver<Publish>,
    answers: tokio::sync::mpsc::UnboundedReceiver<Packet>,
    driver: tokio::task::JoinHandle<()>,
}

impl Rumqttc {
    /// Returns whether a session was present as well.
    async fn connect(all: &Everything, name: &str, place: usize, clean: bool, will: Option<LastWill>) -> (Self, bool) {
        let (host, port) = ("localhost", all.broker.listener(place).port());
        let url = format!("{}://localhost:{port}/mqtt", if place == SECURE_WEBSOCKET { "wss" } else { "ws" });
        let is_websocket = [WEBSOCKET, SECURE_WEBSOCKET].contains(&place);
        let mut options = MqttOptions::new(name, if is_websocket { url.as_str() } else { host }, port);
        let tls = || rumqttc::TlsConfiguration::Rustls(Arc::new(all.authority.config(None)));
        options.set_transport(match place {
            TLS => Transport::tls_with_config(tls()),
            WEBSOCKET => Transport::Ws,
            SECURE_WEBSOCKET => Transport::wss_with_config(tls()),
            _ => Transport::Tcp,
        });
        options.set_clean_session(clean).set_keep_alive(Duration::from_secs(30)).set_max_packet_size(1 << 20, 1 << 20);
        if let Some(will) = will {
            options.set_last_will(will);
        }
        let (client, event_loop) = AsyncClient::new(options, 10);
        let (to_messages, messages) = tokio::sync::mpsc::unbounded_channel();
        let (to_answers, mut answers) = tokio::sync::mpsc::unbounded_channel();
        let driver = tokio::spawn(drive(event_loop, to_messages, to_answers));
        let Packet::ConnAck(connack) = within(answers.recv()).await.unwrap() else { panic!("no CONNACK") };
        (Self { client, messages, answers, driver }, connack.session_present)
    }

    async fn answered(&mut self, is_it: impl Fn(&Packet) -> bool) {
        while !is_it(&within(self.answers.recv()).await.unwrap()) {}
    }

    async fn subscribe(&mut self, topic: &str, qos: QoS) {
        self.client.subscribe(topic, qos).await.unwrap();
        self.answered(|answer| matches!(answer, Packet::SubAck(_))).await;
    }

    async fn publish(&mut self, topic: &str, payload: &str, qos: QoS, retain: bool) {
        self.client.publish(topic, qos, retain, payload).await.unwrap();
        match qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.answered(|answer| matches!(answer, Packet::PubAck(_))).await,
            QoS::ExactlyOnce => self.answered(|answer| matches!(answer, Packet::PubComp(_))).await,
        }
    }

    async fn expect(&mut self, topic: &str, payload: &str, qos: QoS, retain: bool) {
        let message = within(self.messages.recv()).await.unwrap();
        assert_eq!(
            (message.topic.as_str(), &message.payload[..], message.qos, message.retain),
            (topic, payload.as_bytes(), qos, retain)
        );
    }

    async fn end(self) {
        self.client.disconnect().await.unwrap();
        within(self.driver).await.unwrap();
    }
}

/// Until the connection ends, or nobody listens.
async fn drive(
    mut event_loop: EventLoop,
    messages: tokio::sync::mpsc::UnboundedSender<Publish>,
    answers: tokio::sync::mpsc::UnboundedSender<Packet>,
) {
    loop {
        match event_loop.poll().await {
            Ok(Event::Incoming(Packet::Publish(message))) => drop(messages.send(message)),
            Ok(Event::Incoming(packet)) => drop(answers.send(packet)),
            Ok(Event::Outgoing(rumqttc::Outgoing::Disconnect)) | Err(_) => return,
            Ok(Event::Outgoing(_)) => {}
        }
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("waited in vain")
}

#[tokio::test]
async fn rumqttc_on_every_transport() {
    let all = Everything::start();
    for place in [TCP, TLS, WEBSOCKET, SECURE_WEBSOCKET] {
        let (mut one, _) = Rumqttc::connect(&all, "one", place, true, None).await;
        let (mut two, _) = Rumqttc::connect(&all, "two", place, true, None).await;
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            one.subscribe("heard", qos).await;
            for payload in ["first", &"x".repeat(100_000), ""] {
                two.publish("heard", payload, qos, false).await;
                one.expect("heard", payload, qos, false).await;
            }
        }
        two.publish("kept", "retained", QoS::AtLeastOnce, true).await;
        one.subscribe("kept", QoS::AtLeastOnce).await;
        one.expect("kept", "retained", QoS::AtLeastOnce, true).await;
        two.publish("kept", "", QoS::AtLeastOnce, true).await;
        one.expect("kept", "", QoS::AtLeastOnce, false).await;
        one.subscribe("will", QoS::AtLeastOnce).await;
        let will = LastWill::new("will", "gone", QoS::AtLeastOnce, false);
        let (dying, _) = Rumqttc::connect(&all, "dying", place, true, Some(will)).await;
        dying.driver.abort();
        one.expect("will", "gone", QoS::AtLeastOnce, false).await;
        let (mut away, was_there) = Rumqttc::connect(&all, "away", place, false, None).await;
        assert!(!was_there);
        away.subscribe("missed", QoS::ExactlyOnce).await;
        away.end().await;
        two.publish("missed", "while away", QoS::ExactlyOnce, false).await;
        let (mut back, was_there) = Rumqttc::connect(&all, "away", place, false, None).await;
        assert!(was_there);
        back.expect("missed", "while away", QoS::ExactlyOnce, false).await;
        back.end().await;
        Rumqttc::connect(&all, "away", place, true, None).await.0.end().await;
        one.end().await;
        two.end().await;
    }
}

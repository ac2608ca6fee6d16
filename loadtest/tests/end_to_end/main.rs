//! The real `loadtest` program against brokers that are honest, faulty, or lie.
//!
//! The brokers are threads of this test ([`fake_broker`]), so that nothing needs to be installed; [`mosquitto`] adds a real
//! one where there is one.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "this is a test, though clippy knows only its #[test] functions as such"
)]

mod fake_broker;
mod gateway;
mod mosquitto;
mod program;

use std::time::Duration;

use fake_broker::{FakeBroker, Manners};
use gateway::{Gateway, Pki, Speaks};
use program::{Finished, loadtest, refuse_connections};
use serde_json::{Value, json};

/// Fields of a report, for comparison.
fn fields<const N: usize>(report: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| report[name].as_u64().unwrap_or_else(|| panic!("{name} in {report:#}")))
}

const LEDGER: [&str; 6] = ["delivered", "lost", "duplicated", "reordered", "corrupted", "foreign"];

#[test]
fn an_honest_broker_gets_a_clean_bill_in_every_version_and_quality_of_service() {
    let broker = FakeBroker::start(Manners::Honest);
    for version in ["3.1.1", "5"] {
        for qos in ["0", "1", "2"] {
            let what = format!("MQTT {version}, QoS {qos}");
            let finished = loadtest(&format!(
                "pair --broker {} --mqtt {version} --qos {qos} --pairs 3 --subscribers 2 --count 200 --window 10",
                broker.address()
            ));
            let report = finished.good(&what);
            assert_eq!(fields(&report, LEDGER), [1_200, 0, 0, 0, 0, 0], "{what}");
            let acknowledged = if qos == "0" { 0 } else { 600 };
            assert_eq!(fields(&report, ["sent", "acknowledged", "unacknowledged"]), [600, acknowledged, 0], "{what}");
            assert_eq!(report["latency_us"]["count"], 1_200, "{what}");
        }
    }
}

#[test]
fn one_to_many_and_many_to_one() {
    let broker = FakeBroker::start(Manners::Honest);
    for (qos, load) in [("0", "--subscribers 20"), ("1", "--subscribers 1")] {
        let report = loadtest(&format!("fanout --broker {} --qos {qos} --count 300 {load}", broker.address())).good(load);
        let subscribers = report["subscribers"].as_u64().unwrap();
        assert_eq!((fields(&report, LEDGER), &report["publishers"]), ([300 * subscribers, 0, 0, 0, 0, 0], &json!(1)), "{load}");
        assert_eq!(report["latency_us"]["count"], 300 * subscribers);
    }
    for qos in ["0", "2"] {
        let report = loadtest(&format!("fanin --broker {} --qos {qos} --publishers 20 --count 100", broker.address())).good(qos);
        assert_eq!((fields(&report, LEDGER), &report["window"]), ([2_000, 0, 0, 0, 0, 0], &json!(20)), "{qos}");
    }
}

#[test]
fn messages_are_spread_over_topics_and_sizes() {
    let broker = FakeBroker::start(Manners::Honest);
    let spread = "--topics 10 --popularity zipf --payload-bytes 32-2000 --count 200";
    for shape in ["pair --pairs 2 --subscribers 2", "fanin --publishers 4", "fanout --subscribers 4"] {
        let report = loadtest(&format!("{shape} --broker {} {spread}", broker.address())).good(shape);
        let delivered =
            report["sent"].as_u64().unwrap() * if shape.starts_with("fanin") { 1 } else { report["subscribers"].as_u64().unwrap() };
        let delivered = if shape.starts_with("pair") { delivered / 2 } else { delivered };
        assert_eq!(fields(&report, LEDGER), [delivered, 0, 0, 0, 0, 0], "{shape}");
        assert_eq!(report["payload_sizes"], "32-2000");
    }
    let losing = FakeBroker::start(Manners::LoseEvery(10));
    let report =
        loadtest(&format!("fanin --broker {} --publishers 2 {spread} --rate 4000 --drain 200ms", losing.address())).good("losing");
    assert_eq!(fields(&report, ["delivered", "lost"]), [360, 40]);
    let lost: u64 = report["imperfect_flows"].as_array().unwrap().iter().map(|flow| flow["lost"].as_u64().unwrap()).sum();
    assert_eq!(lost, 40, "each is missed in the flow of its topic: {report:#}");
    let usage = loadtest("fanout --subscribers 20000 --topics 1000");
    usage.failed_with(2, "loadtest keeps account of at most 10000000 flows");
}

#[test]
fn a_rate_is_kept_and_latency_measured_from_when_a_message_was_due() {
    let broker = FakeBroker::start(Manners::Honest);
    let finished = loadtest(&format!("latency --broker {} --rate 2000 --duration 1s --warm-up 100ms --qos 1", broker.address()));
    let report = finished.good("latency");
    let sent = report["sent"].as_u64().unwrap();
    assert!((2_150..=2_300).contains(&sent), "1.1 s at 2,000/s, and 20 ms to notice the end: {sent}");
    assert_eq!(fields(&report, LEDGER), [sent, 0, 0, 0, 0, 0]);
    let jittered =
        format!("pub --broker {} --publishers 20 --rate 2000 --jitter 1 --duration 500ms --warm-up 0s", broker.address());
    let jittered = loadtest(&jittered).good("jitter")["sent"].as_u64().unwrap();
    assert!((960..=1_080).contains(&jittered), "{jittered}");
    let measured = report["latency_us"]["count"].as_u64().unwrap();
    assert!(measured < sent && measured > 1_900, "{measured} of {sent}: the warm-up is not measured");
}

#[test]
fn publishers_and_subscribers_may_be_different_processes() {
    let broker = FakeBroker::start(Manners::Honest);
    let listener = program::start(&format!("sub --broker {} --subscribers 2 --count 600 --qos 1", broker.address()));
    broker.await_subscriptions(2);
    let publishing = loadtest(&format!("pub --broker {} --publishers 3 --count 100 --qos 1", broker.address()));
    let report = publishing.good("pub");
    assert_eq!(fields(&report, ["sent", "acknowledged", "refused"]), [300, 300, 0]);
    assert_eq!(report["latency_us"]["count"], 300, "time to the acknowledgement");
    assert_eq!(fields(&listener.finish().good("sub"), LEDGER), [600, 0, 0, 0, 0, 0]);
}

#[test]
fn messages_of_others_are_foreign() {
    let broker = FakeBroker::start(Manners::Honest);
    let listener = program::start(&format!("sub --broker {} --count 10", broker.address()));
    broker.await_subscriptions(1);
    broker.publish("loadtest/0", b"hello");
    loadtest(&format!("pub --broker {} --count 10", broker.address())).good("pub");
    assert_eq!(fields(&listener.finish().good("sub"), LEDGER), [10, 0, 0, 0, 0, 1]);
}

/// What a faulty broker does to 1,050 messages of one publisher, and what the ledger says of it.
#[test]
fn the_ledger_names_every_fault() {
    let table = [
        (Manners::LoseEvery(100), [1_040, 10, 0, 0, 0, 0]),
        (Manners::RepeatEvery(100), [1_050, 0, 10, 0, 0, 0]),
        (Manners::DelayEvery(100), [1_050, 0, 0, 10, 0, 0]),
        (Manners::MangleEvery(100), [1_040, 10, 0, 0, 10, 0]),
    ];
    for (manners, expected) in table {
        let broker = FakeBroker::start(manners);
        let run = format!("pair --broker {} --count 1050 --rate 20000 --drain 200ms", broker.address());
        let report = loadtest(&run).good(&format!("{manners:?}"));
        assert_eq!(fields(&report, LEDGER), expected, "{manners:?}");
        let [delivered, lost, duplicated, reordered, ..] = expected;
        let flow = json!({
            "publisher": 0, "topic": 0, "subscriber": 0,
            "delivered": delivered, "lost": lost, "duplicated": duplicated, "reordered": reordered,
        });
        assert_eq!(report["imperfect_flows"], json!([flow]), "{manners:?}");
    }
}

#[test]
fn lost_messages_do_not_stop_a_closed_loop() {
    let broker = FakeBroker::start(Manners::LoseEvery(10));
    // The tenth and the last are lost: a window of 1 waits for the tenth, and must not for ever.
    let report = loadtest(&format!("pair --broker {} --count 20 --window 1 --drain 200ms", broker.address())).good("stalls");
    assert_eq!(fields(&report, ["delivered", "lost", "stalls"]), [18, 2, 1]);
}

#[test]
fn conditions_decide_the_exit_code() {
    let broker = FakeBroker::start(Manners::LoseEvery(10));
    let run = |conditions| {
        let load = "--count 100 --rate 10000 --drain 200ms";
        loadtest(&format!("pair --broker {} {load} --fail-on {conditions}", broker.address()))
    };
    run("lost>10,duplicated>0,p99>1s").good("10 lost are not more than 10");
    run("lost>5").failed_with(1, "--fail-on lost>5: it was 10");
    run("lost>50,max<1s").failed_with(1, "--fail-on max<1s");
}

/// How a broker can misbehave, the run it meets, and what is said of it. No run may hang.
#[test]
fn a_broker_that_fails_is_named_with_what_it_did() {
    let pair = "pair --qos 1 --timeout 1s --duration 30s --drain 200ms";
    let table = [
        (Manners::Mute, pair, "subscriber 0 at {}: no answer within 1s"),
        (Manners::HangUp, pair, "subscriber 0 at {}: the broker closed the connection"),
        (Manners::Gibberish, pair, "subscriber 0 at {}: the broker sent a packet that only a client may send"),
        (Manners::Refuse, pair, "subscriber 0 at {}: the broker refused the connection: NotAuthorized"),
        (Manners::RefuseSubscriptions, pair, "subscriber 0 at {}: the broker refused the subscription to \"loadtest/"),
        (Manners::GrantQosZero, pair, "subscriber 0 at {}: the broker granted QoS 0 where QoS 1 was asked for"),
        (Manners::DeliverAtQosZero, pair, "subscriber 0 at {}: the broker delivered at QoS 0 what was"),
        (Manners::NeverAcknowledge, "pub --qos 1 --timeout 1s --count 1000", "publisher 0 at {}: the broker owes an answer"),
        (Manners::AcknowledgeOthers, pair, "publisher 0 at {}: the broker acknowledged packet id 60001, which"),
        (Manners::HangUpAfter(500), pair, "publisher 0 at {}: the broker closed the connection"),
        (Manners::Deaf, "pub --timeout 1s --count 10000000", "publisher 0 at {}: the broker has read nothing"),
        (Manners::Swallow, "pair --timeout 2s --duration 30s", "nothing has been delivered for 2s"),
    ];
    for (manners, run, complaint) in table {
        let broker = FakeBroker::start(manners);
        let finished = loadtest(&format!("{run} --broker {}", broker.address()));
        finished.failed_with(1, &complaint.replace("{}", &broker.address()));
        assert!(finished.took < Duration::from_secs(15), "{manners:?} took {:?}", finished.took);
    }
}

#[test]
fn a_broker_that_is_not_there_is_named() {
    let (address, _held) = refuse_connections();
    let finished = loadtest(&format!("pair --broker {address}"));
    let complaint = format!("loadtest: subscriber 0 at {address}: cannot connect: Connection refused");
    finished.failed_with(1, &complaint);
    assert_eq!(finished.stderr.matches("refused").count(), 1, "said once: {}", finished.stderr);
    loadtest("pub --broker nowhere.invalid --timeout 5s").failed_with(1, "publisher 0 at nowhere.invalid:1883");
}

#[test]
fn the_limits_of_a_version_5_broker_are_kept() {
    // This broker acknowledges only once 5 messages are under way, and ends the connection at the sixth.
    let broker = FakeBroker::start(Manners::ReceiveMaximum(5));
    let report = loadtest(&format!("pub --broker {} --mqtt 5 --qos 1 --count 50 --window 100", broker.address()));
    assert_eq!(fields(&report.good("receive maximum"), ["sent", "acknowledged"]), [50, 50]);
    let too_large = loadtest(&format!("pub --broker {} --mqtt 5 --payload-bytes 5000", broker.address()));
    too_large.failed_with(1, "the broker takes packets of at most 4096 bytes");
}

#[test]
fn several_brokers_share_the_clients() {
    let (near, far) = FakeBroker::start_two();
    let run = format!("pair --broker {} --subscribe-at {} --pairs 3 --count 100", near.address(), far.address());
    assert_eq!(fields(&loadtest(&run).good("near to far"), LEDGER), [300, 0, 0, 0, 0, 0]);
    assert_eq!((near.clients(), far.clients()), (3, 3));
    let run = format!("pair --broker {} --broker {} --pairs 4 --count 100", near.address(), far.address());
    assert_eq!(fields(&loadtest(&run).good("both ways"), LEDGER), [400, 0, 0, 0, 0, 0]);
    assert_eq!((near.clients(), far.clients()), (3 + 4, 3 + 4));
}

#[test]
fn threads_count_the_same() {
    let broker = FakeBroker::start(Manners::Honest);
    let run = format!("pair --broker {} --threads 3 --pairs 7 --subscribers 2 --count 500 --qos 2", broker.address());
    let report = loadtest(&run).good("three threads");
    assert_eq!(fields(&report, LEDGER), [7_000, 0, 0, 0, 0, 0]);
    assert_eq!(report["latency_us"]["count"], 7_000);
}

#[test]
fn tls_and_websocket_carry_the_same() {
    let (broker, pki) = (FakeBroker::start(Manners::Honest), Pki::new());
    for (speaks, scheme, flags) in [
        (Speaks { tls: true, websocket: false }, "mqtts", "--tls"),
        (Speaks { tls: false, websocket: true }, "ws", "--ws"),
        (Speaks { tls: true, websocket: true }, "wss", "--tls --ws"),
    ] {
        let gateway = Gateway::start(speaks, &pki, broker.address());
        let trust = if speaks.tls { pki.options() } else { String::new() };
        for (to, qos) in [(format!("{} {flags}", gateway.address), 0), (format!("{scheme}://{}", gateway.address), 2)] {
            let load = format!("--pairs 2 --qos {qos} --count 300 --payload-bytes 32-3000 {trust}");
            let report = loadtest(&format!("pair --broker {to} {load}")).good(scheme);
            assert_eq!(fields(&report, LEDGER), [600, 0, 0, 0, 0, 0], "{scheme}");
        }
        let large = format!("pair --broker {scheme}://{} --payload-bytes 400000 --count 5 {trust}", gateway.address);
        assert_eq!(fields(&loadtest(&large).good("large"), ["delivered", "corrupted"]), [5, 0], "{scheme}");
        let mesh = format!("mesh --broker {scheme}://{} --count 100 --drain 5s {trust}", gateway.address);
        assert_eq!(fields(&loadtest(&mesh).good("mesh"), ["lost", "duplicated", "corrupted"]), [0, 0, 0], "{scheme}");
    }
}

#[test]
fn each_client_has_a_certificate_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("keys").display().to_string();
    let made = loadtest(&format!("keys {keys} --count 3 --host localhost"));
    assert_eq!((made.code, made.stdout.as_str()), (Some(0), ""), "{}", made.stderr);
    loadtest(&format!("keys {keys}")).failed_with(1, "ca.pem is there already");
    let broker = FakeBroker::start(Manners::Honest);
    let gateway = Gateway::start(Speaks { tls: true, websocket: false }, &Pki::read(&keys), broker.address());
    let own = format!("--cafile {keys}/ca.pem --cert {keys}/client-%i.pem --key {keys}/client-%i.key");
    let run = format!("--broker mqtts://{} --count 20 {own}", gateway.address);
    assert_eq!(fields(&loadtest(&format!("pair --pairs 3 {run}")).good("own"), LEDGER), [60, 0, 0, 0, 0, 0]);
    assert_eq!(gateway.certificates(), 3, "publisher and subscriber of a number have the same");
    loadtest(&format!("pair --pairs 4 {run}")).failed_with(1, "cannot read --key");
    loadtest(&format!("mesh {run}")).failed_with(2, "the clients of a mesh share a certificate");
}

#[test]
fn a_broker_that_is_not_to_be_trusted_or_trusts_nobody_is_named() {
    let (broker, pki, other) = (FakeBroker::start(Manners::Honest), Pki::new(), Pki::new());
    let tls = Gateway::start(Speaks { tls: true, websocket: false }, &pki, broker.address());
    let websocket = Gateway::start(Speaks { tls: false, websocket: true }, &pki, broker.address());
    let port = tls.address.trim_start_matches("localhost:");
    for (to, complaint) in [
        (format!("mqtts://{} {}", tls.address, other.options()), "name the authority that has signed it with --cafile"),
        (format!("mqtts://127.0.0.1:{port} {}", pki.options()), "the TLS handshake failed: invalid peer certificate"),
        (format!("mqtts://{} --insecure", tls.address), "CertificateRequired"),
        (format!("mqtts://{} {}", broker.address(), pki.options()), ""),
        (format!("ws://{}/nowhere", websocket.address), "the broker does not open a WebSocket: \"HTTP/1.1 404 Not Found\""),
        (format!("ws://{}", tls.address), "the broker does not open a WebSocket"),
        (format!("{} --tls", tls.address), ""),
    ] {
        let finished = loadtest(&format!("pair --timeout 2s --count 1 --broker {to}"));
        finished.failed_with(if to.ends_with("--tls") { 2 } else { 1 }, complaint);
        assert!(finished.took < Duration::from_secs(15), "{to} took {:?}", finished.took);
    }
    let certificate = format!("--cert {} --key {}", pki.path("client.pem").display(), pki.path("client.key").display());
    loadtest(&format!("pair --broker mqtts://127.0.0.1:{port} --insecure {certificate} --count 10")).good("whoever it is");
}

#[test]
fn connections_are_counted_timed_and_kept() {
    let broker = FakeBroker::start(Manners::Honest);
    let connected = |finished: &Finished| {
        let report = finished.good("connect");
        let of = |name: &str| report["connections"][name].as_u64().unwrap();
        assert_eq!(report["latency_us"]["count"], of("opened"));
        [of("asked"), of("opened"), of("failed"), of("dropped")]
    };
    let many = loadtest(&format!("connect --broker {} --connections 200 --connecting 20 --hold 300ms --mqtt 5", broker.address()));
    assert_eq!(connected(&many), [200, 200, 0, 0]);
    assert!(many.took > Duration::from_millis(300));
    // 25 come in the second of the ramp, 25 in the half after it.
    let paced = format!("connect --broker {} --connections 50 --rate 50 --ramp 1s --hold 0s", broker.address());
    let paced = loadtest(&format!("{paced} --fail-on failed>0,connect_rate>45,p50>1s"));
    assert_eq!(connected(&paced), [50, 50, 0, 0]);
    assert!(paced.took > Duration::from_millis(1_400), "{:?}", paced.took);
    assert_eq!(broker.clients(), 250);
}

#[test]
fn connections_that_fail_are_counted_and_the_others_go_on() {
    for (manners, complaint) in [
        (Manners::Refuse, "the broker refused the connection: NotAuthorized"),
        (Manners::HangUp, "the broker closed the connection"),
        (Manners::Mute, "no answer within 500ms"),
    ] {
        let broker = FakeBroker::start(manners);
        let run = format!("connect --broker {} --connections 150 --timeout 500ms --hold 100ms", broker.address());
        let finished = loadtest(&format!("{run} --fail-on failed>100"));
        finished.failed_with(1, complaint);
        finished.failed_with(1, "--fail-on failed>100: it was 150");
        let report = finished.report();
        assert_eq!(report["connections"]["failed"], 150, "{manners:?}");
        assert_eq!(report["faults"].as_array().unwrap().len(), 101, "{manners:?}");
        assert!(finished.took < Duration::from_secs(15), "{manners:?} took {:?}", finished.took);
    }
    let (address, _held) = refuse_connections();
    loadtest(&format!("connect --broker {address} --connections 3 --rate 100")).failed_with(1, "client 0 at");
}

#[test]
fn sessions_that_are_kept_for_a_run_are_ended_after_it() {
    let broker = FakeBroker::start(Manners::Honest);
    let run = format!("pair --broker {} --count 10 --qos 1 --persistent", broker.address());
    assert_eq!(fields(&loadtest(&run).good("kept"), LEDGER), [10, 0, 0, 0, 0, 0]);
    assert_eq!((broker.clients(), broker.kept()), (4, 2), "each once more, to end its session");
    loadtest(&format!("{run} --client-id mine")).good("named");
    assert_eq!((broker.clients(), broker.kept()), (6, 4));
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_is_told_over_time_with_what_the_brokers_process_used() {
    let broker = FakeBroker::start(Manners::Honest);
    let me = std::process::id();
    let run = format!("pair --broker {} --rate 1000 --duration 700ms --warm-up 100ms", broker.address());
    let report = loadtest(&format!("{run} --pid {me} --fail-on broker_us<0.001,broker_bytes<100000")).good("with a process");
    let series = report["series"].as_array().unwrap();
    assert!(series.len() >= 4, "a span is 100 ms: {series:#?}");
    let sent: f64 = series.iter().map(|span| span["sent_per_second"].as_f64().unwrap()).sum();
    assert!((500.0..2_000.0).contains(&(sent / series.len() as f64)), "{series:#?}");
    assert!(series.iter().all(|span| span["broker_bytes"].as_u64() > Some(100_000)), "{series:#?}");
    let curve = report["latency_curve"].as_array().unwrap();
    assert!(curve.len() > 4 && curve.last().unwrap()[0] == 100.0, "{curve:?}");
    let absent = loadtest(&format!("{run} --pid 4294967295"));
    absent.failed_with(1, "process 4294967295 (--pid) has ended, or never was");
}

#[cfg(target_os = "linux")]
#[test]
fn too_many_clients_for_the_system_are_refused_with_what_to_do() {
    let broker = FakeBroker::start(Manners::Honest);
    let finished = program::under("ulimit -n 100", &format!("pair --broker {} --pairs 100", broker.address()));
    finished.failed_with(1, "200 clients need as many open files, and the system allows this process 100 (ulimit -n)");
    let bound = format!("pair --broker {} --bind 127.0.0.2 --bind 127.0.0.3 --pairs 3 --count 10", broker.address());
    assert_eq!(fields(&loadtest(&bound).good("bound"), LEDGER), [30, 0, 0, 0, 0, 0]);
    let elsewhere = loadtest(&format!("pair --broker {} --bind 192.0.2.1 --count 10", broker.address()));
    elsewhere.failed_with(1, "cannot connect: from 192.0.2.1 (--bind): Cannot assign requested address");
}

/// Two publishers of each QoS and two subscribers, at two addresses of one broker.
fn mesh(broker: &FakeBroker, more: &str) -> Finished {
    let address = broker.address();
    loadtest(&format!("mesh --broker {address} --broker {address} --drain 300ms {more}"))
}

#[test]
fn a_mesh_with_nothing_wrong_gets_a_clean_account() {
    let (near, far) = FakeBroker::start_two();
    for version in ["3.1.1", "5"] {
        let run =
            format!("mesh --broker {} --broker {} --mqtt {version} --count 300 --publishers 2", near.address(), far.address());
        let finished = loadtest(&format!("{run} --fail-on lost>0,duplicated>0,reordered>0,sessions_lost>0,gap>50s"));
        let report = finished.good(version);
        let names = ["lost", "duplicated", "reordered", "corrupted", "foreign", "unacknowledged"];
        assert_eq!(fields(&report, names), [0; 6], "{version}");
        let flows = report["mesh"]["flows"].as_array().unwrap();
        assert_eq!(flows.len(), 24, "each of 12 publishers to each of 2 subscribers");
        assert!(flows.iter().all(|flow| flow["owed"] == 300), "{report:#}");
    }
}

#[test]
fn the_account_of_a_mesh_names_every_fault() {
    for (manners, wrong) in [
        (Manners::LoseEvery(100), &["lost"][..]),
        (Manners::RepeatEvery(100), &["duplicated"]),
        (Manners::DelayEvery(100), &["reordered"]),
        (Manners::MangleEvery(100), &["corrupted", "lost"]),
    ] {
        let broker = FakeBroker::start(manners);
        // Not a multiple of 100: what is kept back comes with the next.
        let report = mesh(&broker, "--count 1050").good(&format!("{manners:?}"));
        for name in ["lost", "duplicated", "reordered", "corrupted", "foreign"] {
            let count = report[name].as_u64().unwrap();
            assert_eq!(count > 0, wrong.contains(&name), "{manners:?}: {name} {count}");
        }
    }
}

#[test]
fn a_broker_that_forgets_its_clients_is_found_out() {
    let broker = FakeBroker::start(Manners::HangUpAfter(500));
    let finished = mesh(&broker, "--count 700 --qos 1,2 --fail-on sessions_lost>0,sessions_lost<1");
    finished.failed_with(1, "--fail-on sessions_lost>0");
    let report = finished.report();
    let of = |publisher: &Value| fields(publisher, ["connects", "sessions_lost", "unacknowledged"]);
    for publisher in report["mesh"]["publishers"].as_array().unwrap() {
        assert_eq!(of(publisher), [2, 1, 0], "{publisher}");
        let unknown = publisher["unknown"].as_u64().unwrap();
        assert_eq!(unknown > 0, publisher["qos"] == 2, "what QoS 2 had under way may or may not have been taken: {publisher}");
    }
    assert_eq!(report["lost"], 0);
}

#[test]
fn faults_come_when_they_are_due_and_are_in_the_report() {
    let broker = FakeBroker::start(Manners::Honest);
    let directory = tempfile::tempdir().unwrap();
    let (timetable, trace) = (directory.path().join("timetable"), directory.path().join("trace"));
    let lines = format!("# twice\n200ms echo second >>{0}\n100ms echo first >>{0}\n", trace.display());
    std::fs::write(&timetable, lines).unwrap();
    let report = mesh(&broker, &format!("--rate 100 --duration 600ms --timetable {}", timetable.display())).good("faults");
    assert_eq!(std::fs::read_to_string(&trace).unwrap(), "first\nsecond\n");
    let told = report["mesh"]["timetable"].as_array().unwrap();
    assert!(told.len() == 2 && told[0][1].as_str().unwrap().starts_with("echo first"), "{told:?}");
    mesh(&broker, "--timetable /nowhere").failed_with(1, "cannot read --timetable /nowhere");
}

#[test]
fn a_mesh_that_does_not_join_is_named() {
    let (near, far) = (FakeBroker::start(Manners::Honest), FakeBroker::start(Manners::Honest));
    let finished = loadtest(&format!("mesh --broker {} --broker {} --rate 100 --join 500ms", near.address(), far.address()));
    finished.failed_with(1, &format!("{} hears nothing of {} at QoS 0", near.address(), far.address()));
    let (address, _held) = refuse_connections();
    loadtest(&format!("mesh --broker {address} --join 300ms")).failed_with(1, "cannot connect: Connection refused");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_still_reports() {
    let broker = FakeBroker::start(Manners::Honest);
    let running = program::start(&format!("pair --broker {} --duration 60s --warm-up 0s", broker.address()));
    broker.await_messages(100);
    running.interrupt();
    let finished: Finished = running.finish();
    finished.failed_with(130, "");
    let report = finished.report();
    assert!(report["sent"].as_u64() >= Some(100) && report["interrupted"] == true, "{report:#}");
}

#[test]
fn a_page_tells_of_all_runs_and_needs_nothing_from_elsewhere() {
    let broker = FakeBroker::start(Manners::Honest);
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    loadtest(&format!("fanout --broker {} --subscribers 3 --duration 500ms --json {}", broker.address(), file("good.json")));
    loadtest(&format!("connect --broker {} --connections 20 --hold 300ms --json {}", broker.address(), file("idle.json")));
    let losing = FakeBroker::start(Manners::LoseEvery(10));
    let losing = format!("--broker {} --broker {}", losing.address(), losing.address());
    std::fs::write(directory.path().join("timetable"), "10ms true").unwrap();
    let mesh = format!("mesh {losing} --count 95 --drain 200ms --timetable {} --json {}", file("timetable"), file("mesh.json"));
    assert!(loadtest(&mesh).stdout.contains("lost"));
    std::fs::write(directory.path().join("evil.json"), r#"{"command": "pair", "faults": ["<script>alert(1)</script>"]}"#).unwrap();
    let pages = [file("good.json"), file("idle.json"), file("mesh.json"), file("evil.json")].join(" ");
    let written = loadtest(&format!("report {pages} --output {}", file("page.html")));
    assert_eq!((written.code, written.stdout.as_str()), (Some(0), ""), "{}", written.stderr);
    let page = std::fs::read_to_string(file("page.html")).unwrap();
    for part in [
        "good</td>",
        "fanout",
        "1 \u{2192} 3",
        "<td>20</td>",
        "Latency by percentile",
        "A second, over time",
        "All flows",
        "&lt;script&gt;",
    ] {
        assert!(page.contains(part), "no {part} in {page}");
    }
    for foreign in ["http:", "https:", "src=", "href=", "<script", "@import", "url(", "NaN", "inf"] {
        assert!(!page.contains(foreign), "{foreign} in {page}");
    }
    let two = loadtest(&format!("report {0} {0} --together both", file("good.json"))).stdout;
    assert!(two.starts_with("<!doctype html>") && two.contains("<td>both</td>") && two.contains("2 \u{2192} 6"), "{two}");
    std::fs::write(directory.path().join("other.json"), "{}").unwrap();
    for (what, told) in [("other.json", "is no report of loadtest"), ("absent.json", "cannot read")] {
        loadtest(&format!("report {}", file(what))).failed_with(1, told);
    }
    loadtest("report").failed_with(2, "FILE");
}

#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    let broker = FakeBroker::start(Manners::Honest);
    let finished = loadtest(&format!("pub --broker {} --count 1 --json /nowhere/report.json", broker.address()));
    finished.failed_with(1, "cannot write --json /nowhere/report.json");
}

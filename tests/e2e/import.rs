//! `config import`: what a Mosquitto was told, told to a broker of ours, which then does the same.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::broker::{Broker, Said, Site, assert_serves, run, wait_for};
use crate::client::{Client, Connect, Publish};
use crate::foreign::is_there;
use crate::wire::*;

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn has_mosquitto() -> bool {
    let mut probe = Command::new("sh");
    probe.args(["-c", "command -v mosquitto && command -v mosquitto_passwd"]);
    is_there("mosquitto", probe)
}

/// A file of Debian's package, which may leave out what is documentation.
fn has_file(path: &str) -> bool {
    let mut probe = Command::new("test");
    probe.args(["-f", path]);
    is_there(path, probe)
}

/// A running Mosquitto. Killed when dropped.
struct Mosquitto(Child);

impl Mosquitto {
    fn start(config: &str, waited_for: SocketAddr) -> Self {
        Self::start_with(&["-c", config], waited_for)
    }

    fn start_with(arguments: &[&str], waited_for: SocketAddr) -> Self {
        let child = Command::new("mosquitto").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let this = Self(child);
        wait_for("Mosquitto", || TcpStream::connect(waited_for).ok());
        this
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a broker of ours with what was imported. It writes below the site, and its admin interface is on a free port.
fn start(site: &Site, name: &str, imported: &Said, variables: &[(&str, &str)]) -> Broker {
    Broker::start(site, name, &imported.out, |command| {
        command.envs([("MQTT_ST_QUIC__ADMIN__BIND", "127.0.0.1:0"), ("MQTT_ST_QUIC__DATA_DIR", &site.file(name))]);
        command.envs(variables.iter().copied());
    })
}

/// Imports `text` as a file of the site.
fn import(site: &Site, name: &str, text: &str) -> (String, Said) {
    let path = site.file(&format!("{name}.conf"));
    fs::write(&path, text).unwrap();
    let said = run(&["config", "import", &path]);
    (path, said)
}

#[test]
fn exit_codes_and_places() {
    let site = Site::new();
    let (path, said) = import(&site, "good", "listener 1883\nallow_anonymous true\nset_tcp_nodelay true\n");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains(&format!("{path}:3: set_tcp_nodelay: note: ")) && said.err.contains("3 lines imported, of which 0"));
    assert!(said.out.contains("bind = \"[::]:1883\"") && said.out.contains("allow_anonymous = true"), "{said:?}");
    let toml = site.file("good.toml");
    fs::write(&toml, &said.out).unwrap();
    let checked = run(&["config", "check", &toml]);
    assert_eq!(checked.code, Some(0), "{checked:?}");

    let (path, said) = import(&site, "partly", "listener 1883\npid_file /run/m.pid\n");
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.err.contains(&format!("{path}:2: pid_file: left out: ")), "{said:?}");
    assert!(said.out.contains("[[listener]]"), "{said:?}");

    let (path, said) = import(&site, "bad", "listener 1883\nlisten 1884\n");
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
    assert!(said.err.contains(&format!("{path}:2: `listen 1884`")) && said.err.contains("did you mean `listener`?"), "{said:?}");
    let said = run(&["config", "import", &site.file("none.conf")]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
    assert!(said.err.contains("none.conf"), "{said:?}");
    assert_eq!(run(&["config", "import"]).code, Some(2));
    // A directory that includes itself, and one that is not there.
    let dir = site.file("d");
    fs::create_dir_all(&dir).unwrap();
    let main = format!("{dir}/main.conf");
    fs::write(&main, format!("listener 1\ninclude_dir {dir}\n")).unwrap();
    let said = run(&["config", "import", &main]);
    assert!(said.code == Some(1) && said.err.contains("main.conf:2") && said.err.contains("include itself"), "{said:?}");
    // Who starts with it is told what to do.
    let said = run(&["serve", "-c", &path]);
    assert!(said.code == Some(1) && said.err.contains(&format!("mqtt-st-quic config import {path}")), "{said:?}");
}

/// What Debian's package brings: its own configuration, and the sample that has every variable, as comments.
#[test]
fn debians_files_are_imported_and_serve() {
    let samples = ["/etc/mosquitto/mosquitto.conf", "/usr/share/doc/mosquitto/examples/mosquitto.conf"];
    for (index, sample) in samples.into_iter().enumerate() {
        if !has_file(sample) {
            continue;
        }
        let site = Site::new();
        let said = run(&["config", "import", sample]);
        // A file for the process id, and one for the log.
        assert_eq!((said.code, said.err.matches("left out: ").count()), ([Some(3), Some(0)][index], [2, 0][index]), "{said:?}");
        let broker = start(&site, "imported", &said, &[("MQTT_ST_QUIC__LISTENER__0__BIND", "127.0.0.1:0")]);
        assert_serves(&broker);
    }
}

/// What clients of several names are told and get. A user is `roger` with this password.
fn script(address: SocketAddr, password: &str) -> Vec<String> {
    let logins = [
        ("nobody", None),
        ("roger", Some(("roger", password))),
        ("wrong", Some(("roger", "wrong"))),
        ("stranger", Some(("stranger", "x"))),
    ];
    let connect = |login: Option<(&str, &str)>| {
        login.map_or_else(|| Connect::new(4), |(name, password)| Connect::new(4).login(name, password))
    };
    // All at once, for who guesses waits for the answer.
    let asking: Vec<_> = logins
        .into_iter()
        .map(|(who, login)| {
            let mut listener = Client::open_at(address, 4);
            listener.send(&connect(login).encode());
            (who, login, listener)
        })
        .collect();
    let mut told = Vec::new();
    for (who, login, mut listener) in asking {
        let answer = listener.receive();
        if answer.reason != 0 {
            told.push(format!("{who} is refused"));
            continue;
        }
        told.push(format!("{who} is let in"));
        for filter in ["foo/bar", "foo/+", "state/#"] {
            let _ = listener.try_subscribe(&[(filter, 1)], &[]);
        }
        let mut speaker = Client::connect_at(address, &connect(login));
        for (topic, qos) in [("foo/bar", 0), ("foo/bar", 1), ("foo/bar", 2), ("foo/other", 1), ("state/x", 1), ("other/x", 1)] {
            speaker.publish(Publish { topic, payload: topic, qos, ..Publish::default() });
        }
        let heard: BTreeSet<String> = listener.messages().iter().map(|one| format!("{who} hears {}", one.topic)).collect();
        told.extend(heard);
    }
    told
}

/// The sample that Debian's package brings as it is, and with the sample's users and rules; and what the package installs: each does here what it does in Mosquitto. They are
/// changed in where they write and listen.
#[test]
fn debians_samples_do_as_they_did_in_mosquitto() {
    const EXAMPLES: &str = "/usr/share/doc/mosquitto/examples";
    if !has_mosquitto() || !["mosquitto.conf", "aclfile.example"].iter().all(|name| has_file(&format!("{EXAMPLES}/{name}"))) {
        return;
    }
    let installed = fs::read_to_string("/etc/mosquitto/mosquitto.conf").unwrap();
    let sample = fs::read_to_string(format!("{EXAMPLES}/mosquitto.conf")).unwrap();
    // All variables of 2.0 stand in it as comments.
    let site = Site::new();
    let variables: BTreeSet<&str> = sample
        .lines()
        .filter_map(|line| line.strip_prefix('#')?.split(' ').next())
        .filter(|word| word.starts_with(|letter: char| letter.is_ascii_lowercase()))
        .collect();
    assert!(variables.len() > 80, "{variables:?}");
    for variable in variables {
        let (_, said) = import(&site, "variable", &format!("listener 1883\nconnection c\naddress h\ntopic # out\n{variable} x\n"));
        assert!(!said.err.contains("is no variable"), "{variable}: {said:?}");
    }
    let said = |text: &str, lines: &[(&str, &str)]| {
        lines.iter().fold(text.to_owned(), |text, (name, value)| {
            let comment = text.lines().find(|line| *line == format!("#{name}") || line.starts_with(&format!("#{name} "))).unwrap();
            text.replacen(&format!("\n{comment}\n"), &format!("\n{name} {value}\n"), 1)
        })
    };
    let (users, rules) = (format!("{EXAMPLES}/pwfile.example"), format!("{EXAMPLES}/aclfile.example"));
    for (name, text, has_listener) in [
        ("installed", installed, false),
        ("sample", sample.clone(), false),
        ("guarded", said(&sample, &[("listener", "{A} 127.0.0.1"), ("password_file", &users), ("acl_file", &rules)]), true),
        (
            "open",
            said(
                &sample,
                &[("listener", "{A} 127.0.0.1"), ("allow_anonymous", "true"), ("password_file", &users), ("acl_file", &rules)],
            ),
            true,
        ),
    ] {
        let (site, address) = (Site::new(), free_address());
        let port = address.port().to_string();
        let here = |name: &str| site.file(name) + "/";
        for dir in ["conf.d", "mosquitto"] {
            fs::create_dir(site.file(dir)).unwrap();
        }
        let text = text
            .replace("/etc/mosquitto/conf.d", &here("conf.d"))
            .replace("/var/lib/mosquitto/", &here("mosquitto"))
            .replace("/run/mosquitto/", &here("mosquitto"))
            .replace("/var/log/mosquitto/", &here("mosquitto"))
            .replace("{A}", &port);
        let (path, said) = import(&site, name, &format!("{text}\nuser root\n"));
        assert_eq!(said.code, Some(3), "of `user` at least: {said:?}");
        let theirs = {
            let more: &[&str] = if has_listener { &[] } else { &["-p", &port] };
            let _mosquitto = Mosquitto::start_with(&[&["-c", &path][..], more].concat(), address);
            script(address, "password")
        };
        let bind = if has_listener { vec![] } else { vec![("MQTT_ST_QUIC__LISTENER__0__BIND", address.to_string())] };
        let bind: Vec<_> = bind.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let _ours = start(&site, "ours", &said, &bind);
        assert_eq!(script(address, "password"), theirs, "{name}\n{}", said.out);
        assert!(theirs.contains(&"roger hears foo/bar".to_owned()), "{name}: {theirs:?}");
        assert_eq!(theirs.contains(&"nobody is let in".to_owned()), name != "guarded", "{theirs:?}");
    }
}

/// Configurations as people write them: `listener`s and who may do what there.
const SAMPLES: [&str; 5] = [
    "listener {A} 127.0.0.1\nallow_anonymous true\nlistener {B} 127.0.0.1\n",
    "listener {A} 127.0.0.1\npassword_file {DIR}/passwd\nacl_file {DIR}/acl\nlistener {B} localhost\n",
    "allow_anonymous true\npassword_file {DIR}/passwd\nacl_file {DIR}/acl\nport {A}\nbind_address 127.0.0.1\nlistener {B} 127.0.0.1\n",
    "per_listener_settings true\nlistener {A} 127.0.0.1\nallow_anonymous true\npassword_file {DIR}/passwd\nacl_file {DIR}/acl\nlistener {B} 127.0.0.1\npassword_file {DIR}/passwd\n",
    "include_dir {DIR}/conf.d\n",
];

#[test]
fn an_imported_broker_does_as_mosquitto_did() {
    if !has_mosquitto() {
        return;
    }
    for sample in SAMPLES {
        let site = Site::new();
        let (a, b) = (free_address(), free_address());
        let dir = site.path().to_str().unwrap();
        let fill =
            |text: &str| text.replace("{A}", &a.port().to_string()).replace("{B}", &b.port().to_string()).replace("{DIR}", dir);
        fs::create_dir_all(site.file("conf.d")).unwrap();
        fs::write(site.file("conf.d/a.conf"), fill("listener {A} 127.0.0.1\nallow_anonymous false\npassword_file {DIR}/passwd\n"))
            .unwrap();
        fs::write(site.file("conf.d/b.conf"), fill("listener {B} 127.0.0.1\n")).unwrap();
        // As in Debian's aclfile.example.
        fs::write(
            site.file("acl"),
            "topic read foo/other\nuser roger\ntopic foo/bar\npattern write state/%c\ntopic readwrite state/x\n",
        )
        .unwrap();
        let made = Command::new("mosquitto_passwd").args(["-b", "-c", &site.file("passwd"), "roger", "secret"]).status().unwrap();
        assert!(made.success());
        let (path, said) = import(&site, "sample", &format!("user root\n{}", fill(sample)));
        // `user` alone.
        assert_eq!((said.code, said.err.matches("left out: ").count()), (Some(3), 1), "{sample}: {said:?}");
        let theirs = {
            let _mosquitto = Mosquitto::start(&path, a);
            [script(a, "secret"), script(b, "secret")]
        };
        let _ours = start(&site, "ours", &said, &[]);
        assert_eq!([script(a, "secret"), script(b, "secret")], theirs, "{sample}\n{}", said.out);
        assert!(theirs.iter().flatten().any(|line| line.ends_with("foo/bar")), "{theirs:?}");
    }
}

/// Two edges that hear of each other by way of a hub, as the recipe has it: what is said at A is `A/...` at the hub.
fn cluster(site: &Site, [hub, a, b]: [SocketAddr; 3]) -> [(String, Said); 3] {
    let place = |address: SocketAddr| format!("user root\nlistener {} 127.0.0.1\nallow_anonymous true\n", address.port());
    let edge = |address: SocketAddr, own: &str, other: &str| {
        format!(
            "{}connection edge-{own}\naddress {hub}\ntopic # out 2 \"\" {own}/\ntopic # in 2 \"\" {other}/\nrestart_timeout 1 2\n",
            place(address)
        )
    };
    [import(site, "hub", &place(hub)), import(site, "edge-a", &edge(a, "A", "B")), import(site, "edge-b", &edge(b, "B", "A"))]
}

/// What is heard at each broker: topic, payload, QoS and RETAIN.
fn cross([hub, a, b]: [SocketAddr; 3]) -> Vec<Vec<String>> {
    let at = |address| Client::connect_at(address, &Connect::new(4));
    let mut listeners = [hub, a, b].map(|address| {
        let mut listener = at(address);
        listener.subscribe(&[("#", 2)]);
        listener
    });
    let mut speakers = [hub, a, b].map(at);
    let mut said = |place: usize, topic: &str, payload: &str, qos: u8, retain: bool| {
        speakers[place].publish(Publish { topic, payload, qos, retain, ..Publish::default() });
    };
    // Both bridges carry messages once one has come all the way, in both directions.
    for (from, to) in [(1, 2), (2, 1)] {
        wait_for("the bridges", || {
            said(from, "probe", "probe", 0, false);
            let heard = listeners[to].receive_within(Duration::from_millis(200))??;
            (heard.text() == "probe").then_some(())
        });
    }
    for (place, own) in [(1, "a"), (2, "b")] {
        for qos in 0..=2 {
            said(place, &format!("t/{own}{qos}"), own, qos, false);
        }
        said(place, &format!("kept/{own}"), own, 1, true);
    }
    said(0, "B/for-a", "hub", 2, false);
    said(0, "A/for-b", "hub", 2, false);
    said(0, "for/nobody", "hub", 2, false);
    for place in 0..3 {
        // Behind everything that came from there.
        said(place, ["B/end", "end", "end"][place], ["from hub", "from a", "from b"][place], 2, false);
    }
    said(0, "A/end", "from hub", 2, false);
    let mut all = Vec::new();
    for (place, listener) in listeners.iter_mut().enumerate() {
        let ends = [4, 3, 3][place];
        let (mut heard, mut ended) = (Vec::new(), 0);
        while ended < ends {
            let received = listener.receive();
            if received.kind == kind::PUBREL {
                listener.send(&ack(kind::PUBCOMP, received.id));
                continue;
            }
            assert_eq!(received.kind, kind::PUBLISH, "{received:?}");
            match received.qos() {
                1 => listener.send(&ack(kind::PUBACK, received.id)),
                2 => listener.send(&ack(kind::PUBREC, received.id)),
                _ => {}
            }
            ended += usize::from(received.topic.ends_with("end"));
            if received.text() != "probe" {
                heard.push(format!("{} {} {} {}", received.topic, received.text(), received.qos(), received.retain()));
            }
        }
        heard.sort();
        all.push(heard);
    }
    // Retained messages are retained everywhere.
    let mut late = [(hub, "A/kept/a"), (a, "kept/b"), (b, "kept/a")].map(|(address, topic)| {
        let mut late = at(address);
        late.subscribe(&[(topic, 1)]);
        let received = late.expect(kind::PUBLISH);
        format!("{} {} {}", received.topic, received.text(), received.retain())
    });
    late.sort();
    all.push(late.to_vec());
    all
}

#[test]
fn a_cluster_of_bridges_with_prefixes_is_imported() {
    if !has_mosquitto() {
        return;
    }
    let site = Site::new();
    let addresses = [free_address(), free_address(), free_address()];
    let files = cluster(&site, addresses);
    let theirs = {
        let _running: Vec<Mosquitto> =
            files.iter().zip(addresses).map(|((path, _), address)| Mosquitto::start(path, address)).collect();
        cross(addresses)
    };
    let names = ["hub", "a", "b"];
    let _ours: Vec<Broker> = files
        .iter()
        .zip(names)
        .map(|((_, said), name)| {
            assert_eq!((said.code, said.err.matches("left out: ").count()), (Some(3), 1), "{said:?}");
            start(&site, name, said, &[])
        })
        .collect();
    let ours = cross(addresses);
    assert_eq!(ours, theirs);
    // And that is what should be heard: at B what A said, by its own names.
    for line in ["t/a0 a 0 false", "t/a1 a 1 false", "t/a2 a 2 false", "for-b hub 2 false", "end from a 2 false"] {
        assert!(ours[2].contains(&line.to_owned()), "{line}: {ours:?}");
    }
    assert!(ours[0].contains(&"A/t/a2 a 2 false".to_owned()) && !ours[1].contains(&"A/t/a2 a 2 false".to_owned()), "{ours:?}");
    assert_eq!(ours[3], ["A/kept/a a true", "kept/a a true", "kept/b b true"]);
}

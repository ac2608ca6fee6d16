//! Commands that need no broker: exit codes, stdout and stderr.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::broker::{Said, Site, program, run};

fn assert_refused(said: &Said, code: i32, words: &[&str]) {
    assert_eq!(said.code, Some(code), "{said:?}");
    assert_eq!(said.out, "", "stdout is for data");
    for word in words {
        assert!(said.err.contains(word), "{word:?} is not in {said:?}");
    }
}

#[test]
fn wrong_usage_is_2_and_help_is_0() {
    for arguments in
        [&[][..], &["nonsense"], &["serve", "--nonsense"], &["certs"], &["certs", "ca", "--mesh", "m"], &["demo", "--brokers", "1"]]
    {
        let said = run(arguments);
        assert_eq!(said.code, Some(2), "{arguments:?}: {said:?}");
        assert_eq!(said.out, "", "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["--version"], &["serve", "--help"], &["certs", "broker", "--help"]] {
        let said = run(arguments);
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn certificates_are_made_shown_and_never_overwritten() {
    let site = Site::new();
    let pki = site.file("pki");
    let arguments =
        ["certs", "broker", "--mesh", "m", "--name", "a", "--san", "10.0.0.1", "--san", "a.example", "--ca", &pki, "--out", &pki];
    let (certificate, key) = (site.file("pki/a.pem"), site.file("pki/a.key"));
    let said = run(&arguments);
    assert_eq!((said.code, said.out), (Some(0), format!("{certificate}\n{key}\n")));
    assert_refused(&run(&arguments), 1, &[&certificate, "is there already"]);
    for secret in [&key, &site.file("pki/ca.key")] {
        assert_eq!(fs::metadata(secret).unwrap().permissions().mode() & 0o777, 0o600, "{secret}");
    }

    let said = run(&["certs", "show", "--json", &certificate, &site.file("pki/ca.pem")]);
    let shown: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&shown[0]["mesh"], &shown[0]["authority"], &shown[1]["authority"]), (&"m".into(), &false.into(), &true.into()));
    assert!(shown[0]["sans"].as_array().unwrap().contains(&"IP:10.0.0.1".into()), "{shown}");
    assert!((395..=397).contains(&shown[0]["days_left"].as_i64().unwrap()), "{shown}");
    let said = run(&["certs", "show", &certificate]);
    assert!(said.out.contains("of mesh m") && said.out.contains("DNS:a.example") && said.out.contains("days left"), "{said:?}");
}

#[test]
fn what_is_no_certificate_is_named() {
    let site = Site::new();
    let nothing = site.file("nothing.pem");
    assert_refused(&run(&["certs", "show", &nothing]), 1, &[&nothing, "No such file"]);
    fs::write(&nothing, "nothing").unwrap();
    assert_refused(&run(&["certs", "show", &nothing]), 1, &[&nothing, "no PEM certificate"]);
    let (absent, out) = (site.file("absent"), site.file("pki"));
    let arguments = ["certs", "broker", "--mesh", "m", "--name", "a", "--ca", &absent, "--out", &out];
    assert_refused(&run(&arguments), 1, &["ca.pem", "No such file", "`certs ca` makes one"]);
    assert_refused(&run(&["certs", "ca", "--mesh", "a/b", "--out", &absent]), 1, &["a/b", "is not a name"]);
}

#[test]
fn a_wrong_configuration_is_refused_with_its_place() {
    let site = Site::new();
    site.certify("m", "a", &[]);
    site.certify("other", "b", &[]);
    let good = site.configuration("a", &[]);
    let config = site.file("config.toml");
    let certfile = site.file("pki/a.pem");
    for (text, words) in [
        (good.replace("name = \"m\"", "nme = \"m\""), &["config.toml:", "mesh.nme", "unknown field", "did you mean `name`?"][..]),
        (
            good.replace("allow_anonymous = true", "allow_anonymous = 1"),
            &["config.toml:5:19: listener.0.allow_anonymous", "expected a boolean"],
        ),
        (good.replace(&certfile, "/nonexistent/a.pem"), &["/nonexistent/a.pem", "No such file"]),
        (
            good.replace(&certfile, &site.file("pki/b.pem")).replace("a.key", "b.key"),
            &["mesh.certfile", "certs broker --mesh m --name a"],
        ),
        (good.replace("a.key", "ca.key"), &["ca.key"]),
        (good.replace("a.key", "a.pem"), &["a.pem", "no PEM secret key"]),
        (good.clone() + "[log]\nfilter = \"a=b=c\"\n", &["log.filter", "`a=b=c`"]),
        ("listener 1883\n".to_owned(), &["config.toml:1:", "looks like a mosquitto.conf"]),
    ] {
        fs::write(&config, &text).unwrap();
        assert_refused(&run(&["config", "check", &config]), 1, words);
        assert_refused(&run(&["serve", "--config", &config]), 1, words);
    }
    fs::write(&config, &good).unwrap();
    let said = run(&["config", "check", &config]);
    assert_eq!((said.code, said.out), (Some(0), format!("{config}: good\n")), "{}", said.err);
    let absent = site.file("absent.toml");
    assert_refused(&run(&["serve", "-c", &absent]), 1, &["absent.toml", "No such file"]);
}

#[test]
fn what_config_show_prints_is_a_configuration_that_means_the_same() {
    let site = Site::new();
    let (first, second) = (site.file("first.toml"), site.file("second.toml"));
    let show = |file: &str| {
        let output = program().args(["config", "show", file]).env("MQTT_ST_QUIC__LIMITS__MAX_INFLIGHT_MESSAGES", "7").output();
        let said = Said::from(output.unwrap());
        assert_eq!(said.code, Some(0), "{said:?}");
        said.out
    };
    fs::write(&first, site.configuration("a", &["127.0.0.1:5".parse().unwrap()])).unwrap();
    let shown = show(&first);
    assert!(shown.contains("max_inflight_messages = 7") && shown.contains("peers = [\"127.0.0.1:5\"]"), "{shown}");
    fs::write(&second, &shown).unwrap();
    assert_eq!(show(&second), shown);
}

#[test]
fn the_environment_and_the_flags_are_named_when_they_are_wrong() {
    let output = program().args(["config", "check"]).env("MQTT_ST_QUIC__MESH__LANES", "99").output();
    assert_refused(&output.unwrap().into(), 1, &["MQTT_ST_QUIC__MESH__LANES = \"99\"", "from 1 to 16"]);
    assert_refused(&run(&["serve", "--admin", "0.0.0.0:1"]), 1, &["--admin: admin.bind: 0.0.0.0:1 is not a loopback address"]);
    assert_refused(&run(&["serve", "--peer", "a:b"]), 1, &["--peer = \"a:b\": `a:b` is not a host and port"]);
}

#[test]
fn commands_without_their_broker_say_so() {
    // Bound and not listening: nobody else gets this port, and nobody answers.
    let unused = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{unused}");
    assert_refused(&run(&["topology", "--admin", &url]), 1, &["no broker answers at", &url, "--admin"]);
}

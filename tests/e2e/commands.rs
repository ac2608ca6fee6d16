//! Commands that need no broker: exit codes, stdout and stderr.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use crate::broker::{Said, Site, program, run};
use crate::foreign::is_there;

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
fn certificates_are_renewed_in_place_and_revoked() {
    let site = Site::new();
    let (pki, cert, key, crl) = (site.file("pki"), site.file("pki/a.pem"), site.file("pki/a.key"), site.file("pki/ca.crl"));
    site.certify("m", "a", &["--san", "a.example", "--days", "1"]);
    let show = |file: &str| serde_json::from_str::<Value>(&run(&["certs", "show", "--json", file]).out).unwrap()[0].clone();
    let (first, first_key) = (show(&cert), fs::read_to_string(&key).unwrap());
    // The key is not needed for it.
    fs::remove_file(&key).unwrap();
    let said = run(&["certs", "renew", "--cert", &cert, "--ca", &pki]);
    assert_eq!((said.code, said.out), (Some(0), format!("{cert}\n")), "{}", said.err);
    let second = show(&cert);
    assert_eq!((&second["sans"], &second["broker"], &second["subject"]), (&first["sans"], &first["broker"], &first["subject"]));
    assert_ne!(second["serial"], first["serial"]);
    assert!(second["days_left"].as_i64() > first["days_left"].as_i64());
    assert_eq!(show(&format!("{cert}.old")), {
        let mut old = first.clone();
        old["file"] = format!("{cert}.old").into();
        old
    });
    fs::write(&key, &first_key).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let said = run(&["certs", "renew", "--cert", &cert, "--ca", &pki, "--new-key"]);
    assert_eq!((said.code, said.out), (Some(0), format!("{cert}\n{key}\n")), "{}", said.err);
    assert_eq!(fs::read_to_string(format!("{key}.old")).unwrap(), first_key);
    assert_ne!(fs::read_to_string(&key).unwrap(), first_key);
    for secret in [key.clone(), format!("{key}.old")] {
        assert_eq!(fs::metadata(secret).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let elsewhere = site.file("elsewhere");
    let said = run(&["certs", "renew", "--cert", &cert, "--ca", &pki, "--out", &elsewhere]);
    assert_eq!(said.out, format!("{elsewhere}/a.pem\n"), "{}", said.err);
    assert_refused(&run(&["certs", "renew", "--cert", &cert, "--ca", &pki, "--out", &elsewhere]), 1, &["is there already"]);
    assert_refused(&run(&["certs", "renew", "--cert", &site.file("pki/ca.pem"), "--ca", &pki]), 1, &["ca.pem", "authority"]);
    // An interrupted one leaves a file that tells.
    fs::write(format!("{cert}.new"), "").unwrap();
    assert_refused(&run(&["certs", "renew", "--cert", &cert, "--ca", &pki]), 1, &["a.pem.new", "remove it"]);

    // Nothing is revoked to begin with.
    assert_eq!((&show(&crl)["number"], show(&crl)["revoked"].as_array().unwrap().len()), (&"1".into(), 0));
    let serial = first["serial"].as_str().unwrap();
    for (arguments, number, count) in
        [(&["--serial", serial][..], "2", 1), (&["--serial", serial], "3", 1), (&["--cert", &cert], "4", 2), (&[], "5", 2)]
    {
        let said = run(&[&["certs", "revoke", "--ca", &pki], arguments].concat());
        assert_eq!((said.code, said.out), (Some(0), format!("{crl}\n")), "{}", said.err);
        let shown = show(&crl);
        assert_eq!((&shown["number"], shown["revoked"].as_array().unwrap().len()), (&number.into(), count));
    }
    assert_eq!(show(&crl)["revoked"][0]["serial"], first["serial"]);
    let said = run(&["certs", "show", &crl]);
    assert!(
        said.out.contains("revocation list number 5") && said.out.contains(serial) && said.out.contains("days left"),
        "{said:?}"
    );
    assert_refused(&run(&["certs", "renew", "--cert", &cert, "--ca", &elsewhere]), 1, &["elsewhere", "`certs ca` makes one"]);
    fs::remove_file(format!("{cert}.new")).unwrap();
    assert_refused(&run(&["certs", "renew", "--cert", &cert, "--ca", &pki]), 1, &["is revoked"]);
    assert_refused(&run(&["certs", "revoke", "--serial", "xyz", "--ca", &pki]), 2, &["xyz", "not a serial number"]);

    let other = Site::new();
    other.certify("m", "b", &[]);
    assert_refused(&run(&["certs", "revoke", "--cert", &other.file("pki/b.pem"), "--ca", &pki]), 1, &["b.pem", "it was issued by"]);
    fs::copy(other.file("pki/ca.crl"), &crl).unwrap();
    assert_refused(&run(&["certs", "revoke", "--ca", &pki]), 1, &["ca.crl", "it was issued by"]);
    fs::write(&crl, "nothing").unwrap();
    assert_refused(&run(&["certs", "revoke", "--ca", &pki]), 1, &["ca.crl", "no PEM revocation list"]);
}

#[test]
fn requests_are_signed_for_brokers_of_this_mesh_only() {
    let site = Site::new();
    let (pki, own) = (site.file("pki"), site.file("own"));
    let said = run(&["certs", "csr", "--mesh", "m", "--name", "a", "--san", "10.0.0.1", "--san", "a.example", "--out", &own]);
    assert_eq!((said.code, said.out), (Some(0), format!("{own}/a.csr\n{own}/a.key\n")), "{}", said.err);
    assert_eq!(fs::metadata(site.file("own/a.key")).unwrap().permissions().mode() & 0o777, 0o600);
    let said = run(&["certs", "sign", "--csr", &site.file("own/a.csr"), "--ca", &pki, "--out", &own]);
    assert_eq!((said.code, said.out), (Some(0), format!("{own}/a.pem\n")), "{}", said.err);
    let shown = run(&["certs", "show", &site.file("own/a.pem")]);
    assert!(
        shown.out.contains("of mesh m") && shown.out.contains("DNS:a.example") && shown.out.contains("IP:10.0.0.1"),
        "{shown:?}"
    );
    // It serves: certificate and key belong together.
    let config = site.file("config.toml");
    fs::write(&config, site.configuration("a", &[]).replace("pki/a.", "own/a.")).unwrap();
    assert_eq!(run(&["config", "check", &config]).out, format!("{config}: good\n"));

    let other = site.file("other");
    assert_eq!(run(&["certs", "csr", "--mesh", "n", "--name", "a", "--out", &other]).code, Some(0));
    assert_refused(
        &run(&["certs", "sign", "--csr", &site.file("other/a.csr"), "--ca", &pki, "--out", &other]),
        1,
        &["\"n\"", "\"m\""],
    );
    let certificate = site.file("own/a.pem");
    assert_refused(
        &run(&["certs", "sign", "--csr", &certificate, "--ca", &pki, "--out", &other]),
        1,
        &["no PEM certificate request"],
    );
}

/// `openssl` as a second opinion on what we write; `None`: it is not there.
fn openssl(arguments: &[&str]) -> Option<Said> {
    let mut probe = Command::new("openssl");
    probe.arg("version");
    is_there("openssl", probe).then(|| Command::new("openssl").args(arguments).output().unwrap().into())
}

#[test]
fn openssl_agrees_on_certificates_lists_and_requests() {
    let site = Site::new();
    let (pki, ca, cert, crl) = (site.file("pki"), site.file("pki/ca.pem"), site.file("pki/a.pem"), site.file("pki/ca.crl"));
    site.certify("m", "a", &[]);
    site.certify("m", "b", &[]);
    let verify = |file: &str| openssl(&["verify", "-x509_strict", "-crl_check", "-CAfile", &ca, "-CRLfile", &crl, file]);
    let Some(said) = verify(&cert) else { return };
    assert_eq!((said.code, said.out), (Some(0), format!("{cert}: OK\n")), "{}", said.err);
    assert_eq!(run(&["certs", "revoke", "--cert", &cert, "--ca", &pki]).code, Some(0));
    let said = verify(&cert).unwrap();
    assert!(said.code != Some(0) && said.err.contains("certificate revoked"), "{said:?}");
    assert_eq!(verify(&site.file("pki/b.pem")).unwrap().code, Some(0));
    let said = openssl(&["crl", "-in", &crl, "-noout", "-verify", "-crlnumber", "-CAfile", &ca]).unwrap();
    assert!(said.code == Some(0) && said.err.contains("verify OK") && said.out.trim_end() == "crlNumber=0x02", "{said:?}");
    let serial = openssl(&["x509", "-in", &cert, "-noout", "-serial"]).unwrap();
    let shown = run(&["certs", "show", &cert]);
    assert!(shown.out.contains(&format!("serial   {}\n", serial.out.trim().strip_prefix("serial=").unwrap())), "{shown:?}");

    let own = site.file("own");
    assert_eq!(run(&["certs", "csr", "--mesh", "m", "--name", "c", "--out", &own]).code, Some(0));
    let csr = site.file("own/c.csr");
    let said = openssl(&["req", "-in", &csr, "-noout", "-verify", "-text"]).unwrap();
    assert!(said.code == Some(0) && said.out.contains("mqtt-st://m/broker/"), "{said:?}");
    // A request that openssl made is as good, if it asks for the same; one for more is refused.
    let id = run(&["certs", "show", &cert])
        .out
        .lines()
        .find_map(|line| line.split_once("mqtt-st://m/broker/").map(|(_, id)| id[..16].to_owned()));
    let names = format!("subjectAltName=URI:mqtt-st://m/broker/{},DNS:broker.mqtt-st.internal", id.unwrap());
    let (key, request) = (site.file("own/o.key"), site.file("own/o.csr"));
    for (more, words) in [
        (&[][..], &[][..]),
        (&["-addext", "basicConstraints=critical,CA:TRUE"], &["asks for an authority"]),
        (&["-addext", "keyUsage=keyCertSign"], &["right to sign"]),
        (&["-addext", "extendedKeyUsage=codeSigning"], &["extended key usage"]),
        (&["-addext", "nameConstraints=permitted;DNS:x"], &["no broker's certificate has"]),
    ] {
        let make = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=a"];
        let made = openssl(&[&make, &["-keyout", &key, "-out", &request, "-addext", &names][..], more].concat()).unwrap();
        assert_eq!(made.code, Some(0), "{made:?}");
        let _ = fs::remove_file(site.file("own/a.pem"));
        let said = run(&["certs", "sign", "--csr", &request, "--ca", &pki, "--out", &own]);
        if words.is_empty() {
            assert_eq!(said.code, Some(0), "{said:?}");
            assert_eq!(verify(&site.file("own/a.pem")).unwrap().code, Some(0));
        } else {
            assert_refused(&said, 1, words);
        }
    }
    for (subject, names, words) in [
        ("/CN=b", names.as_str(), "and not mqtt-st://m/broker/"),
        ("/O=x", &names, "no common name"),
        ("/CN=a", "subjectAltName=DNS:broker.mqtt-st.internal", "no URI name"),
        ("/CN=a", &format!("{names},URI:https://x"), "names no broker"),
        ("/CN=a", &format!("{names},email:a@x.example"), "neither a host name nor an address"),
    ] {
        let make = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject];
        let made = openssl(&[&make, &["-keyout", &key, "-out", &request, "-addext", names][..]].concat()).unwrap();
        assert_eq!(made.code, Some(0), "{made:?}");
        assert_refused(&run(&["certs", "sign", "--csr", &request, "--ca", &pki, "--out", &own]), 1, &[words]);
    }
    // An authority that may not sign lists says so.
    let (plain, plain_key) = (site.file("plain/ca.pem"), site.file("plain/ca.key"));
    fs::create_dir(site.file("plain")).unwrap();
    let make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=plain"];
    let made = openssl(&[&make, &["-addext", "keyUsage=critical,keyCertSign", "-keyout", &plain_key, "-out", &plain][..]].concat());
    assert_eq!(made.unwrap().code, Some(0));
    assert_refused(&run(&["certs", "revoke", "--ca", &site.file("plain")]), 1, &["cRLSign", "make a new authority"]);
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
        ("listener 1883\n".to_owned(), &["config.toml:1:", "looks like a mosquitto.conf", "config import"]),
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

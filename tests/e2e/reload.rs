//! SIGHUP: what a running broker takes over, what it refuses, and that nobody notices who need not.

use std::fs;

use crate::broker::{Broker, Said, Site, assert_serves, run, wait_for};
use crate::client::Client;
use crate::mesh::settle;
use crate::serve::get;

fn certs(arguments: &[&str]) -> Said {
    let said = run(&[&["certs"], arguments].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    said
}

/// `configuration` with `lines` at the end of `[mesh]`, which is its last table.
fn with(configuration: &str, lines: &str) -> String {
    format!("{configuration}{lines}\n")
}

/// Sends SIGHUP, and waits until the broker says so many times that it was `done`.
fn reload(broker: &Broker, done: &str) {
    let count = || broker.log().lines().filter(|line| line.contains(done)).count();
    let before = count();
    broker.signal("HUP");
    wait_for(&format!("{done:?} in the log of {}", broker.name), || (count() > before).then_some(()));
}

fn expiry(broker: &Broker) -> f64 {
    metric(broker, "mesh_certificate_expiry_timestamp_seconds")
}

fn metric(broker: &Broker, name: &str) -> f64 {
    let metrics = get(broker.address_of("health"), "/metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("mqtt_st_quic_{name} ")));
    line.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

#[test]
fn a_certificate_is_renewed_and_the_old_one_revoked_under_clients() {
    let site = Site::new();
    for name in ["a", "b"] {
        site.certify("m", name, &[]);
    }
    let crl = format!("crlfile = {:?}", site.file("pki/ca.crl"));
    let a = site.start("a", &with(&site.configuration("a", &[]), &crl));
    let b = site.start("b", &with(&site.configuration("b", &[a.address_of("mesh")]), &crl));
    settle(&[&a, &b]);
    let mut listener = Client::subscribed(&b, 5, "t", 1);
    let mut speaker = Client::new(&a, 4);

    let (pki, cert) = (site.file("pki"), site.file("pki/b.pem"));
    let said = certs(&["renew", "--cert", &cert, "--ca", &pki, "--days", "500"]);
    assert_eq!(said.out, format!("{cert}\n"));
    let before = expiry(&b);
    reload(&b, "reloaded");
    assert!(expiry(&b) > before + 86_400.0);
    speaker.say("t", "after the renewal");
    listener.expect_message("after the renewal");
    assert!(!a.log().contains("link down") && !b.log().contains("link down"), "the link is still the old one");

    // The link was made with a certificate that is no longer good; what is shown when it is made again is.
    certs(&["revoke", "--cert", &site.file("pki/b.pem.old"), "--ca", &pki]);
    reload(&a, "reloaded");
    a.wait_for_log(&["link down", "peer=b", "the certificate is revoked"]);
    wait_for("the link with the new certificate", || {
        (a.log().lines().filter(|line| line.contains("link up")).count() == 2).then_some(())
    });
    settle(&[&a, &b]);
    // The same connections as before.
    speaker.say("t", "after the revocation");
    listener.expect_message("after the revocation");
}

#[test]
fn who_is_revoked_stays_out_and_the_others_do_not_notice() {
    let site = Site::new();
    for name in ["a", "b", "c"] {
        site.certify("m", name, &[]);
    }
    let (pki, crl) = (site.file("pki"), format!("crlfile = {:?}", site.file("pki/ca.crl")));
    let a = site.start("a", &with(&site.configuration("a", &[]), &crl));
    let b = site.start("b", &site.configuration("b", &[a.address_of("mesh")]));
    let c = site.start("c", &site.configuration("c", &[a.address_of("mesh")]));
    wait_for("three brokers", || (a.topology()["brokers"].as_array().unwrap().len() == 3).then_some(()));
    let mut listener = Client::subscribed(&b, 5, "t", 1);
    let mut at_c = Client::new(&c, 5);

    certs(&["revoke", "--cert", &site.file("pki/c.pem"), "--ca", &pki]);
    reload(&a, "reloaded");
    a.wait_for_log(&["link down", "peer=c", "the certificate is revoked"]);
    c.wait_for_log(&["link down", "peer=a", "the certificate is revoked"]);
    // It dials again: refused in the handshake, in plain words at both ends.
    a.wait_for_log(&["refused", "the peer's certificate is revoked"]);
    c.wait_for_log(&["no link", "our certificate is revoked"]);
    assert_eq!((metric(&a, "mesh_links"), metric(&c, "mesh_links")), (1.0, 0.0));
    at_c.say("t", "to nobody");
    assert_serves(&c);
    Client::new(&a, 5).say("t", "still here");
    listener.expect_message("still here");
    let of_b = |line: &&str| line.contains("link down") && line.contains("peer=b");
    assert_eq!(a.log().lines().filter(of_b).count(), 0, "{}", a.log());
}

#[test]
fn an_authority_is_replaced_under_clients() {
    let site = Site::new();
    for name in ["a", "b"] {
        site.certify("m", name, &[]);
    }
    let a = site.start("a", &site.configuration("a", &[]));
    let b = site.start("b", &site.configuration("b", &[a.address_of("mesh")]));
    settle(&[&a, &b]);
    let mut listener = Client::subscribed(&b, 5, "t", 1);
    let mut speaker = Client::new(&a, 4);

    let (next, ca) = (site.file("next"), site.file("pki/ca.pem"));
    certs(&["ca", "--mesh", "m", "--out", &next]);
    let (old, new) = (fs::read_to_string(&ca).unwrap(), fs::read_to_string(site.file("next/ca.pem")).unwrap());
    // Both authorities everywhere; then every certificate by the new one; then the new one alone.
    fs::write(&ca, format!("{old}{new}")).unwrap();
    [&a, &b].into_iter().for_each(|broker| reload(broker, "reloaded"));
    for broker in [&a, &b] {
        certs(&["renew", "--cert", &site.file(&format!("pki/{}.pem", broker.name)), "--ca", &next, "--new-key"]);
        reload(broker, "reloaded");
    }
    assert!(!a.log().contains("link down"), "{}", a.log());
    fs::write(&ca, new).unwrap();
    [&a, &b].into_iter().for_each(|broker| reload(broker, "reloaded"));
    wait_for("the link between new certificates", || {
        (a.log().lines().filter(|line| line.contains("link up")).count() >= 2).then_some(())
    });
    settle(&[&a, &b]);
    speaker.say("t", "still connected");
    listener.expect_message("still connected");
}

#[test]
fn peers_that_are_added_are_dialled() {
    let site = Site::new();
    for name in ["a", "b"] {
        site.certify("m", name, &[]);
    }
    let a = site.start("a", &site.configuration("a", &[]));
    let b = site.start("b", &site.configuration("b", &[]));
    let mut listener = Client::subscribed(&a, 5, "t", 1);
    fs::write(site.file("b.toml"), site.configuration("b", &[a.address_of("mesh")])).unwrap();
    reload(&b, "reloaded");
    settle(&[&a, &b]);
    Client::new(&b, 5).say("t", "joined");
    listener.expect_message("joined");
    assert!(!b.log().contains("needs a restart"), "{}", b.log());
}

#[test]
fn what_cannot_be_taken_over_is_said_and_changes_nothing() {
    let site = Site::new();
    for name in ["a", "b"] {
        site.certify("m", name, &[]);
    }
    let good = site.configuration("a", &[]);
    let a = site.start("a", &good);
    let b = site.start("b", &site.configuration("b", &[a.address_of("mesh")]));
    settle(&[&a, &b]);
    let mut listener = Client::subscribed(&a, 5, "t", 1);
    let (file, nothing) = (site.file("a.toml"), site.file("nothing.crl"));
    fs::write(&nothing, "nothing").unwrap();
    for (configuration, words) in [
        (good.replace("name = \"m\"", "nme = \"m\""), &["a.toml:", "mesh.nme"][..]),
        (good.replace("pki/a.", "pki/b."), &["mesh.certfile is now of broker"]),
        (good.replace("a.key", "b.key"), &["b.key"]),
        (with(&good, &format!("crlfile = {nothing:?}")), &["nothing.crl", "no PEM revocation list"]),
        (with(&good, "[log]\nfilter = \"a=b=c\""), &["log.filter"]),
    ] {
        fs::write(&file, configuration).unwrap();
        a.signal("HUP");
        a.wait_for_log(&[&["ERROR", "not reloaded"], words].concat());
    }
    assert!(!a.log().contains("credentials read anew"), "nothing of it was taken over");

    assert!(!a.log().contains("DEBUG"));
    let changed = good
        .replace("allow_anonymous = true", "allow_anonymous = true\nmax_connections = 9")
        .replace("name = \"m\"", "name = \"m\"\npriority = 1");
    fs::write(&file, with(&changed, "[log]\nfilter = \"debug\"")).unwrap();
    a.signal("HUP");
    a.wait_for_log(&["WARN", "needs a restart", "listener, mesh.priority"]);
    Client::new(&b, 5).say("t", "all the same");
    listener.expect_message("all the same");
    a.wait_for_log(&["DEBUG"]);
    assert!(!a.log().contains("link down"), "{}", a.log());
}

//! Certificates that change or end while brokers run.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::super::pki::PemPair;
use super::*;
use crate::crl::Serial;
use crate::metrics::Value;

/// A broker that trusts, shows and lists what is told.
fn credentials(trusted: &[&Authority], pair: &PemPair, lists: Option<&str>) -> Credentials {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let mesh = config::Mesh {
        cafile: write("ca.pem", &trusted.iter().map(|authority| authority.certificate()).collect::<String>()),
        certfile: write("cert.pem", &pair.certificate),
        keyfile: write("cert.key", &pair.key),
        crlfile: lists.and_then(|lists| write("ca.crl", lists)),
        ..config::Mesh::default()
    };
    Credentials::load(&mesh).unwrap()
}

fn peers_of(broker: &Broker) -> Vec<String> {
    let mut peers: Vec<_> = broker.handle.links().into_iter().map(|link| link.peer).collect();
    peers.sort();
    peers
}

async fn until_linked(a: &Broker, b: &Broker) {
    until("a link", || (peers_of(a).len() == 1 && peers_of(b).len() == 1).then_some(())).await;
}

/// None: it has no link at the moment.
fn serial_shown_to(broker: &Broker) -> Option<Serial> {
    let links = broker.handle.book.links.load();
    let chain = handshake::peer_chain(&links.first()?.control).unwrap();
    Some(serial(&chain[0]))
}

fn serial(certificate: &CertificateDer<'_>) -> Serial {
    Serial::from_bytes(X509Certificate::from_der(certificate).unwrap().1.raw_serial())
}

/// How many handshakes have failed at `broker` over a certificate, as `/metrics` tells it.
fn refusals(broker: &Broker) -> u64 {
    let samples = broker.handle.samples();
    let refused = samples
        .iter()
        .find(|sample| sample.name == "mesh_handshakes_refused" && sample.labels.contains(&("reason", "certificate".to_owned())));
    refused.map_or(0, |sample| match sample.value {
        Value::Counter(count) => count,
        _ => 0,
    })
}

#[tokio::test]
async fn a_new_certificate_is_shown_from_the_next_handshake_on_and_cuts_no_link() {
    let ours = authority();
    let a = Plan::new(&ours, "a", &[]).start();
    let b = Plan::new(&ours, "b", &[&a]).start();
    until_linked(&a, &b).await;
    let before = serial_shown_to(&a);
    let new = ours.issue_broker("m", "b", &[], Validity::days(2)).unwrap();
    let expires = b.handle.certificate_expires();
    b.handle.reload(credentials(&[&ours], &new, None)).unwrap();
    assert!(b.handle.certificate_expires() > expires);
    // A link that was cut would be gone by the time that this has come and gone.
    a.publish(QoS::AtLeastOnce, "still here");
    until("a message", || b.inbox.0.lock().contains(&"still here".to_owned()).then_some(())).await;
    assert_eq!(serial_shown_to(&a), before, "the link is the old one");
    a.handle.book.links.load()[0].fail(LinkError::Timeout(Duration::ZERO));
    until("the new certificate", || {
        (peers_of(&a).len() == 1 && serial_shown_to(&a).is_some_and(|now| Some(now) != before)).then_some(())
    })
    .await;

    let other = ours.issue_broker("m", "c", &[], Validity::days(1)).unwrap();
    let refused = b.handle.reload(credentials(&[&ours], &other, None)).unwrap_err();
    assert!(matches!(refused, MeshError::ChangedIdentity { .. }), "{refused}");
}

#[tokio::test]
async fn an_authority_is_replaced_without_a_stranger_getting_in() {
    let (old, new) = (authority(), authority());
    let pairs = |authority: &Authority| ["a", "b"].map(|name| authority.issue_broker("m", name, &[], Validity::days(1)).unwrap());
    let [a_old, b_old] = pairs(&old);
    let [a_new, b_new] = pairs(&new);
    let a = Plan::new(&old, "a", &[]).start_with(credentials(&[&old], &a_old, None));
    let b = Plan::new(&old, "b", &[&a]).start_with(credentials(&[&old], &b_old, None));
    until_linked(&a, &b).await;
    // Both trust both; then each shows a certificate of the new one; then nobody trusts the old one.
    for broker in [(&a, &a_old), (&b, &b_old)] {
        broker.0.handle.reload(credentials(&[&old, &new], broker.1, None)).unwrap();
    }
    for broker in [(&a, &a_new), (&b, &b_new)] {
        broker.0.handle.reload(credentials(&[&old, &new], broker.1, None)).unwrap();
    }
    assert_eq!((peers_of(&a), peers_of(&b)), (vec!["b".to_owned()], vec!["a".to_owned()]));
    let before = serial_shown_to(&a);
    for broker in [(&a, &a_new), (&b, &b_new)] {
        broker.0.handle.reload(credentials(&[&new], broker.1, None)).unwrap();
    }
    // The link was made with certificates of the old authority: it is made again.
    until("a link with new certificates", || {
        (peers_of(&a).len() == 1 && peers_of(&b).len() == 1 && serial_shown_to(&a).is_some_and(|now| Some(now) != before))
            .then_some(())
    })
    .await;
    let late_pair = old.issue_broker("m", "c", &[], Validity::days(1)).unwrap();
    let late = Plan::new(&old, "c", &[&a]).start_with(credentials(&[&old, &new], &late_pair, None));
    until("the refusal", || (refusals(&a) > 0).then_some(())).await;
    assert_eq!((peers_of(&a), peers_of(&late).len()), (vec!["b".to_owned()], 0));
}

#[tokio::test]
async fn who_is_revoked_is_dropped_and_stays_out_while_others_stay() {
    let ours = authority();
    let a = Plan::new(&ours, "a", &[]).start();
    let b = Plan::new(&ours, "b", &[&a]).start();
    let revoked = ours.issue_broker("m", "c", &[], Validity::days(1)).unwrap();
    let c = Plan::new(&ours, "c", &[&a]).start_with(credentials(&[&ours], &revoked, None));
    until("two links", || (peers_of(&a).len() == 2).then_some(())).await;
    let lived = |broker: &Broker| broker.handle.book.links.load()[0].id;
    let link_of_b = lived(&b);

    let serial = ours.serial_of(&revoked.certificate).unwrap();
    let list = ours.revocation_list(None, &[serial], Validity::days(1)).unwrap();
    let pair = ours.issue_broker("m", "a", &[], Validity::days(1)).unwrap();
    a.handle.reload(credentials(&[&ours], &pair, Some(&list))).unwrap();
    until("the end of its link", || (peers_of(&a) == ["b"]).then_some(())).await;
    // It dials again, and is refused in the handshake.
    until("the refusal", || (refusals(&a) > 1).then_some(())).await;
    assert!(peers_of(&c).is_empty() && lived(&b) == link_of_b);

    // With another certificate of the same name it is one of us again.
    let new = ours.issue_broker("m", "c", &[], Validity::days(1)).unwrap();
    c.handle.reload(credentials(&[&ours], &new, None)).unwrap();
    until("its link", || (peers_of(&a).len() == 2).then_some(())).await;
}

#[tokio::test]
async fn a_link_ends_with_the_certificate_that_it_was_made_with_and_is_made_again_with_the_new_one() {
    let ours = authority();
    let now = clock::unix_time();
    let short = Validity { not_before: now.saturating_sub(Duration::from_secs(60)), not_after: now + Duration::from_secs(8) };
    let a = Plan::new(&ours, "a", &[]).start();
    let expiring = ours.issue_broker("m", "b", &[], short).unwrap();
    let b = Plan::new(&ours, "b", &[&a]).start_with(credentials(&[&ours], &expiring, None));
    until_linked(&a, &b).await;
    let before = serial_shown_to(&a);
    let renewed = ours.issue_broker("m", "b", &[], Validity::days(1)).unwrap();
    b.handle.reload(credentials(&[&ours], &renewed, None)).unwrap();
    until("the link with the new certificate", || {
        (peers_of(&a).len() == 1 && serial_shown_to(&a).is_some_and(|now| Some(now) != before)).then_some(())
    })
    .await;
    assert!(clock::unix_time() >= short.not_after.saturating_sub(Duration::from_secs(1)), "not before the old one had expired");

    // Who does not renew is left out.
    let now = clock::unix_time();
    let short = Validity { not_before: now.saturating_sub(Duration::from_secs(60)), not_after: now + Duration::from_secs(8) };
    let expiring = ours.issue_broker("m", "c", &[], short).unwrap();
    let c = Plan::new(&ours, "c", &[&a]).start_with(credentials(&[&ours], &expiring, None));
    until("the third", || peers_of(&a).contains(&"c".to_owned()).then_some(())).await;
    until("its end", || (peers_of(&a) == ["b"] && peers_of(&c).is_empty()).then_some(())).await;
    assert!(clock::unix_time() >= short.not_after.saturating_sub(Duration::from_secs(1)));
}

//! Peers with a genuine certificate that say what they like, and clones.

use super::*;

/// A link's end without a tree, to a real broker.
struct Fake {
    side: Side,
    local: Arc<Local>,
    _gate: Gate,
}

impl Fake {
    async fn join(authority: &Authority, name: &str, broker: &Broker) -> Self {
        Self::try_join(authority, name, broker).await.unwrap()
    }

    async fn try_join(authority: &Authority, name: &str, broker: &Broker) -> Result<Self, LinkError> {
        let (local, credentials) = local(authority, "m", name);
        let gate = open_endpoint(&credentials);
        let side = Side::start(dial(&gate, broker.address(), &local).await?, &local);
        let fake = Self { side, local, _gate: gate };
        fake.say(&[ControlFrame::Certificate { slot: 0, chain: &fake.local.keyring.chain() }]);
        Ok(fake)
    }

    fn say(&self, frames: &[ControlFrame<'_>]) {
        frames.iter().for_each(|frame| self.side.link.send(frame));
    }

    /// A tree in which it is the root, and the worst that there can be.
    fn tree(&self, epoch: u64) -> TreeId {
        let incarnation = self.local.life.lock().incarnation();
        TreeId { epoch, root: RootClaim { priority: u16::MAX, capacity: 0, id: self.local.identity.id, incarnation } }
    }

    fn signed(&self, statement: Statement<'_>) -> Signature {
        self.local.keyring.sign(statement).unwrap()
    }

    fn claim(&self, tree: TreeId) {
        let signature = self.signed(Statement::Claim(&tree));
        self.say(&[ControlFrame::Claim { tree, seal: seal(0, &signature) }]);
    }

    fn bpdu(&self, number: u64, tree: TreeId) {
        let own = tree.root.id == self.local.identity.id;
        let (distance, hops) = if own { (0, 0) } else { (8, 1) };
        let bpdu = crate::stp::Bpdu { number, tree, distance: Some(distance), hops, epoch_held: None, request_epoch: false };
        self.say(&[ControlFrame::Bpdu(bpdu)]);
    }

    fn record(&self, record: &BrokerRecord) {
        self.record_wire(&record.encode().unwrap());
    }

    fn record_wire(&self, wire: &[u8]) {
        let signature = self.signed(Statement::Record(wire));
        self.say(&[ControlFrame::Record { seal: seal(0, &signature), record: wire }]);
    }

    /// Why its link was closed.
    async fn refused(&mut self) -> String {
        let down = async {
            loop {
                if let link::Event::Down { error, .. } = self.side.events.recv().await.unwrap() {
                    return error.to_string();
                }
            }
        };
        tokio::time::timeout(PATIENCE, down).await.expect("the link is closed")
    }
}

fn seal(slot: u16, signature: &Signature) -> Seal<'_> {
    Seal { slot, scheme: signature.scheme, signature: &signature.bytes }
}

/// What a fake broker says, given another broker's identity.
type Lie = fn(&Fake, &Identity);

/// Two brokers, and what a fake one says to the first: each word must end its own link with the reason, and nothing else.
#[tokio::test]
async fn a_lie_ends_the_link_of_who_tells_it() {
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    let b = Plan::new(&authority, "b", &[&a]).start();
    let before = until_agreed(&[&a, &b], 1).await;
    let others = Identity::derive("m", "b").unwrap();
    let life = |fake: &Fake| fake.local.life.lock().incarnation();
    let lies: [(&str, Lie, &str); 12] = [
        ("no claim", |fake, _| fake.bpdu(1, fake.tree(1)), "no claim to it"),
        (
            "another tree than claimed",
            |fake, _| {
                fake.claim(fake.tree(1));
                fake.bpdu(1, fake.tree(2));
            },
            "no claim to it",
        ),
        (
            "a replay",
            |fake, _| {
                fake.claim(fake.tree(1));
                fake.claim(fake.tree(2));
                fake.bpdu(1, fake.tree(1));
            },
            "goes back",
        ),
        (
            "a claim for somebody else",
            |fake, other| {
                let root = RootClaim { id: other.id, priority: 0, ..fake.tree(1).root };
                fake.claim(TreeId { epoch: 9, root });
            },
            "signed by",
        ),
        (
            "a claim that was altered",
            |fake, _| {
                let signature = fake.signed(Statement::Claim(&fake.tree(7)));
                fake.say(&[ControlFrame::Claim { tree: fake.tree(8), seal: seal(0, &signature) }]);
            },
            "is wrong",
        ),
        (
            "a record's signature under a claim",
            |fake, _| {
                let mut bytes = Vec::new();
                crate::frame::put_tree(&mut bytes, &fake.tree(7));
                let signature = fake.signed(Statement::Record(&bytes));
                fake.say(&[ControlFrame::Claim { tree: fake.tree(7), seal: seal(0, &signature) }]);
            },
            "is wrong",
        ),
        (
            "a certificate that was not shown",
            |fake, _| {
                let signature = fake.signed(Statement::Claim(&fake.tree(7)));
                fake.say(&[ControlFrame::Claim { tree: fake.tree(7), seal: seal(5, &signature) }]);
            },
            "slot 5",
        ),
        (
            "an epoch out of range",
            |fake, _| {
                fake.claim(fake.tree(crate::limits::EPOCH_MAX + 1));
                fake.bpdu(1, fake.tree(crate::limits::EPOCH_MAX + 1));
            },
            "out of range",
        ),
        (
            "a root at a distance from itself",
            |fake, _| {
                let tree = fake.tree(1);
                fake.claim(tree);
                let bpdu = crate::stp::Bpdu { number: 1, tree, distance: Some(3), hops: 1, epoch_held: None, request_epoch: false };
                fake.say(&[ControlFrame::Bpdu(bpdu)]);
            },
            "cannot be",
        ),
        (
            "a record of somebody else",
            |fake, other| fake.record(&BrokerRecord { sequence: 1 << 40, ..record_of(other, crate::ids::Incarnation(1 << 60)) }),
            "signed by",
        ),
        (
            "a record that was altered",
            |fake, _| {
                let record = |sequence| {
                    let record = record_of(&fake.local.identity, fake.local.life.lock().incarnation());
                    BrokerRecord { sequence, ..record }.encode().unwrap()
                };
                let signature = fake.signed(Statement::Record(&record(1)));
                fake.say(&[ControlFrame::Record { seal: seal(0, &signature), record: &record(2) }]);
            },
            "is wrong",
        ),
        (
            "a later life of the listener",
            |fake, _| fake.record(&record_of(&Identity::derive("m", "a").unwrap(), crate::ids::Incarnation(1 << 60))),
            "signed by",
        ),
    ];
    for (number, (lie, tell, reason)) in lies.into_iter().enumerate() {
        let name = format!("f{number}");
        let mut fake = Fake::join(&authority, &name, &a).await;
        tell(&fake, &others);
        let said = fake.refused().await;
        assert!(said.contains("closed by the peer") && said.contains(reason), "{lie}: {said}");
        let again = Fake::try_join(&authority, &name, &a).await.err().map(|error| error.to_string());
        assert!(again.as_ref().is_some_and(|said| said.contains("lately")), "{lie}: {again:?}");
    }
    // Old words of a peer are no lies: they are ignored, and the link stays.
    let fake = Fake::join(&authority, "f", &a).await;
    for sequence in [5, 3, 5, 4] {
        fake.record(&BrokerRecord { sequence, ..record_of(&fake.local.identity, life(&fake)) });
    }
    fake.record(&record_of(&Identity::derive("m", "a").unwrap(), crate::ids::Incarnation(1)));
    let sequence = || a.handle.book.records.read().of(fake.local.identity.id).map(|(record, _)| record.sequence);
    until("the newest record", || (sequence() == Some(5)).then_some(())).await;
    exchange(&[&a, &b], QoS::AtLeastOnce, "unhurt", 50).await;
    let refusals = a.handle.refusals();
    let counts = [&refusals.claims_forged, &refusals.records_forged, &refusals.bpdus_forged].map(crate::metrics::Counter::value);
    assert_eq!(counts, [4, 3, 3]);
    assert_eq!(a.handle.links().len(), 2);
    let after = a.handle.topology();
    assert_eq!(after.root, before.root, "nobody is followed");
    let up_since = |topology: &Topology| topology.links.iter().find(|link| [&link.a, &link.b] == ["a", "b"]).map(|link| link.state);
    assert_eq!(up_since(&after), Some(LinkState::Forwarding));
}

#[tokio::test]
async fn a_claim_that_is_not_acceptable_yet_waits_and_costs_no_link() {
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    let fake = Fake::join(&authority, "f", &a).await;
    let claimant = |validity| {
        let pair = authority.issue_broker("m", "x", &[], validity).unwrap();
        let credentials = Credentials::of_authority(&authority, &pair).unwrap();
        Keyring::new(Arc::new(arc_swap::ArcSwap::from_pointee(credentials)))
    };
    // Better than any measured claim.
    let (id, incarnation) = (BrokerId::derive("m", "x"), crate::ids::Incarnation(1));
    let tree = TreeId { epoch: 50, root: RootClaim { priority: 0, capacity: 9, id, incarnation } };
    let claim = |by: &Keyring, slot| {
        let signature = by.sign(Statement::Claim(&tree)).unwrap();
        let chain = ControlFrame::Certificate { slot, chain: &signature.chain };
        fake.say(&[chain, ControlFrame::Claim { tree, seal: seal(slot, &signature) }]);
    };
    claim(&claimant(Validity { not_before: Duration::from_secs(1), not_after: Duration::from_secs(2) }), 1);
    fake.bpdu(1, tree);
    let refusals = a.handle.refusals();
    until("the BPDU waits", || (refusals.bpdus_waiting.value() == 1).then_some(())).await;
    assert_eq!((refusals.claims_untrusted.value(), refusals.claims_forged.value()), (1, 0));
    assert!(a.handle.watcher().status().place.is_root);
    // The same claim with a certificate that is good: the BPDU that waited counts now.
    claim(&claimant(Validity::days(1)), 2);
    until("the tree", || (a.handle.watcher().status().place.root == id).then_some(())).await;
    assert_eq!((a.handle.links().len(), refusals.bpdus_waiting.value()), (1, 1));
}

#[tokio::test]
async fn a_flood_of_claims_is_slowed_and_the_last_one_counts() {
    const CLAIMS: u64 = 2_000;
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    let fake = Fake::join(&authority, "f", &a).await;
    let trees: Vec<_> = (1..=CLAIMS).map(|epoch| fake.tree(epoch)).collect();
    let signatures: Vec<_> = trees.iter().map(|tree| fake.signed(Statement::Claim(tree))).collect();
    for (tree, signature) in trees.iter().zip(&signatures) {
        fake.say(&[ControlFrame::Claim { tree: *tree, seal: seal(0, signature) }]);
    }
    fake.bpdu(1, trees[trees.len() - 1]);
    // A better root answers a worse one's epoch with the next.
    until("the last claim", || (a.handle.watcher().status().place.epoch > CLAIMS).then_some(())).await;
    assert!(a.handle.refusals().claims_throttled.value() > 0);
    assert_eq!(a.handle.links().len(), 1);
}

#[tokio::test]
async fn a_root_that_renews_its_certificate_claims_its_tree_again() {
    let authority = authority();
    let issue = |name, days| authority.issue_broker("m", name, &[], Validity::days(days)).unwrap();
    let credentials = |days| Credentials::of_authority(&authority, &issue("a", days)).unwrap();
    let a = Plan { priority: 0, ..Plan::new(&authority, "a", &[]) }.start_with(credentials(1));
    let b = Plan::new(&authority, "b", &[&a]).start();
    until_agreed(&[&a, &b], 1).await;
    let fake = Fake::join(&authority, "f", &b).await;
    let mut events = fake.side.events;
    let shown = async |events: &mut mpsc::Receiver<link::Event>| loop {
        if let link::Event::Claim { tree, .. } = events.recv().await.unwrap() {
            return tree;
        }
    };
    let first = tokio::time::timeout(PATIENCE, shown(&mut events)).await.unwrap();
    assert_eq!(first.root.id, BrokerId::derive("m", "a"));
    a.handle.reload(credentials(2)).unwrap();
    let again = tokio::time::timeout(PATIENCE, shown(&mut events)).await.unwrap();
    assert_eq!(again, first, "the same tree, and a certificate that lasts longer");
}

#[tokio::test]
async fn a_renewed_certificate_counts_though_the_former_one_lasts_longer() {
    let authority = authority();
    let now = clock::unix_time();
    let day = Duration::from_secs(86_400);
    let credentials = |validity| {
        let pair = authority.issue_broker("m", "a", &[], validity).unwrap();
        Credentials::of_authority(&authority, &pair).unwrap()
    };
    let former = Validity { not_before: now - day, not_after: now + 8 * day };
    let a = Plan { priority: 0, ..Plan::new(&authority, "a", &[]) }.start_with(credentials(former));
    let b = Plan::new(&authority, "b", &[&a]).start();
    until_agreed(&[&a, &b], 1).await;
    let mut fake = Fake::join(&authority, "f", &b).await;
    claim_shown(&mut fake).await;
    a.handle.reload(credentials(Validity::days(1))).unwrap();
    claim_shown(&mut fake).await;
}

/// The next claim that a fake broker is shown.
async fn claim_shown(fake: &mut Fake) -> TreeId {
    let shown = async {
        loop {
            if let link::Event::Claim { tree, .. } = fake.side.events.recv().await.unwrap() {
                return tree;
            }
        }
    };
    tokio::time::timeout(PATIENCE, shown).await.expect("a claim is shown")
}

/// A relay passes a tree on whose root's certificate is then revoked where it is heard; the root's next certificate is an older one, so that
/// nothing but the reload makes room for it.
#[tokio::test]
async fn a_reload_makes_room_for_the_claim_of_a_certificate_that_admits() {
    let authority = authority();
    let b = Plan::new(&authority, "b", &[]).start();
    let relay = Fake::join(&authority, "f", &b).await;
    let mut listener = Fake::join(&authority, "g", &b).await;
    let now = clock::unix_time();
    let day = Duration::from_secs(86_400);
    let issue = |not_before| authority.issue_broker("m", "x", &[], Validity { not_before, not_after: now + day }).unwrap();
    let (revoked, good) = (issue(now - Duration::from_secs(60)), issue(now - Duration::from_secs(3_600)));
    let (id, incarnation) = (BrokerId::derive("m", "x"), crate::ids::Incarnation(1));
    let tree = TreeId { epoch: 5, root: RootClaim { priority: 0, capacity: 9, id, incarnation } };
    let claim = |pair: &pki::PemPair, slot| {
        let credentials = Credentials::of_authority(&authority, pair).unwrap();
        let signature = Keyring::new(Arc::new(arc_swap::ArcSwap::from_pointee(credentials))).sign(Statement::Claim(&tree)).unwrap();
        let chain = ControlFrame::Certificate { slot, chain: &signature.chain };
        relay.say(&[chain, ControlFrame::Claim { tree, seal: seal(slot, &signature) }]);
    };
    claim(&revoked, 1);
    relay.bpdu(1, tree);
    while claim_shown(&mut listener).await != tree {}

    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = dir.path().join(file);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let own = authority.issue_broker("m", "b", &[], Validity::days(1)).unwrap();
    let serial = authority.serial_of(&revoked.certificate).unwrap();
    let mesh = config::Mesh {
        cafile: write("ca.pem", authority.certificate()),
        certfile: write("cert.pem", &own.certificate),
        keyfile: write("cert.key", &own.key),
        crlfile: write("ca.crl", &authority.revocation_list(None, &[serial], Validity::days(1)).unwrap()),
        ..config::Mesh::default()
    };
    b.handle.reload(Credentials::load(&mesh).unwrap()).unwrap();
    // Again and again: when the reload is done is not seen from here.
    let again = async {
        loop {
            claim(&good, 2);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        shown = claim_shown(&mut listener) => assert_eq!(shown, tree),
        () = again => {}
    }
    assert_eq!(b.handle.links().len(), 2);
}

#[tokio::test]
async fn old_records_count_and_a_record_of_a_newer_version_costs_no_link() {
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    let fake = Fake::join(&authority, "f", &a).await;
    let life = fake.local.life.lock().incarnation();
    let record = |sequence| BrokerRecord { sequence, ..record_of(&fake.local.identity, life) };
    let sequence = || a.handle.book.records.read().of(fake.local.identity.id).map(|(record, _)| record.sequence);
    let newer = String::from_utf8(record(2).encode().unwrap()).unwrap().replacen("\"links\":[", "\"links\":[7", 1);
    fake.record_wire(newer.as_bytes());
    fake.record(&record(1));
    until("the record that is understood", || (sequence() == Some(1)).then_some(())).await;
    let refusals = a.handle.refusals();
    assert_eq!((refusals.records_not_understood.value(), a.handle.links().len()), (1, 1));
    // The same word without end.
    let wire = record(1).encode().unwrap();
    let signature = fake.signed(Statement::Record(&wire));
    for _ in 0..20_000 {
        fake.say(&[ControlFrame::Record { seal: seal(0, &signature), record: &wire }]);
    }
    until("old records are counted", || (refusals.records_throttled.value() > 0).then_some(())).await;
    assert_eq!(a.handle.links().len(), 1);
}

#[tokio::test]
async fn a_broker_that_is_cloned_stops() {
    let authority = authority();
    for far in [false, true] {
        let a = Plan::new(&authority, "a", &[]).start();
        let b = Plan::new(&authority, "b", &[&a]).start();
        let original = Plan::new(&authority, "c", &[&a]).start();
        until_agreed(&[&a, &b, &original], 2).await;
        // The same name and certificate authority, a life of its own, and no data in common; at the same neighbour or elsewhere.
        let clone = Plan::new(&authority, "c", &[if far { &b } else { &a }]).start();
        let ended = tokio::time::timeout(PATIENCE, original.handle.ended()).await.expect("the original stops");
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("another process uses this broker's name and certificate"), "{error}");
        until_agreed(&[&a, &b, &clone], 2).await;
        exchange(&[&a, &b, &clone], QoS::AtLeastOnce, "the clone lives", 20).await;
    }
}

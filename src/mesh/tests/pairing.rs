//! Both connections of a link: that they belong together, and end together.

use super::super::pairing::bond;
use super::*;

/// Two links' ends at once, and whoever else comes: the first connections wait for their second ones.
struct Meeting {
    from: Gate,
    to: Gate,
    dialler: Arc<Local>,
    acceptor: Arc<Local>,
    pairing: Arc<Pairing>,
}

impl Meeting {
    fn new() -> Self {
        let ours = authority();
        let [(dialler, a), (acceptor, b)] = [local(&ours, "m", "a"), local(&ours, "m", "b")];
        Self { from: open_endpoint(&a), to: open_endpoint(&b), dialler, acceptor, pairing: Arc::default() }
    }

    /// Both ends of a new connection.
    async fn connect(&self, half: Half) -> [quinn::Connection; 2] {
        let connecting = self.from.connect(self.to.endpoint.local_addr().unwrap(), half).unwrap();
        let (dialled, accepted) = tokio::join!(connecting, arrival(&self.to));
        [dialled.unwrap(), accepted.unwrap()]
    }

    /// Shows `bond` on a new connection for lanes: what becomes of it at both ends.
    async fn show(&self, bond: impl FnOnce(&quinn::Connection) -> [u8; 32]) -> [Result<(), LinkError>; 2] {
        let [dialled, accepted] = self.connect(Half::Lanes).await;
        let (mut writer, _) = dialled.open_bi().await.unwrap();
        writer.write_all(&bond(&dialled)).await.unwrap();
        let joined = self.pairing.join(accepted).await;
        let refused = if joined.is_err() { Err(dialled.closed().await.into()) } else { Ok(()) };
        [refused, joined]
    }
}

#[tokio::test]
async fn halves_of_two_links_are_not_put_together() {
    let meeting = Meeting::new();
    let ([first_dialled, first], [second_dialled, second]) =
        (meeting.connect(Half::Control).await, meeting.connect(Half::Control).await);
    let (first, second) = (meeting.pairing.expect(&first), meeting.pairing.expect(&second));
    assert_eq!(meeting.pairing.waiting(), 2);
    let [other_lanes, _] = meeting.connect(Half::Lanes).await;
    let stranger = Meeting::new();
    let [strange, _] = stranger.connect(Half::Control).await;
    let bond_of = |control: &quinn::Connection, lanes: &quinn::Connection| bond(control, lanes).unwrap();
    for (what, [refused, joined]) in [
        ("random bytes", meeting.show(|_| rand::random()).await),
        ("of another connection for lanes", meeting.show(|_| bond_of(&first_dialled, &other_lanes)).await),
        ("of nobody here", meeting.show(|_| bond_of(&other_lanes, &other_lanes)).await),
        ("its own and another link", meeting.show(|lanes| bond_of(lanes, &first_dialled)).await),
    ] {
        assert!(matches!(joined, Err(LinkError::Unpaired(_))), "{what}: {joined:?}");
        let told = refused.unwrap_err().to_string();
        assert!(told.contains("no link waits for it"), "{what}: {told}");
    }
    assert!(bond(&strange, &other_lanes).is_err(), "of another broker");
    // The one that belongs there is welcome all the same, and only once.
    for (control, expected) in [(&second_dialled, second), (&first_dialled, first)] {
        let [_, joined] = meeting.show(|lanes| bond_of(control, lanes)).await;
        assert!(joined.is_ok() && expected.lanes().await.is_ok(), "{joined:?}");
        let [_, joined] = meeting.show(|lanes| bond_of(control, lanes)).await;
        assert!(joined.is_err(), "a second time");
    }
    assert_eq!(meeting.pairing.waiting(), 0);
}

#[tokio::test]
async fn a_first_connection_without_a_second_becomes_no_link_and_is_forgotten() {
    let meeting = Meeting::new();
    let [dialled, accepted] = meeting.connect(Half::Control).await;
    let other_end = task::spawn("accept", {
        let (acceptor, pairing) = (Arc::clone(&meeting.acceptor), Arc::clone(&meeting.pairing));
        async move { handshake::accept(&acceptor, &pairing, accepted).await.map(drop) }
    });
    // Nobody accepts the second one.
    let ends = tokio::join!(handshake::dial(&meeting.dialler, &meeting.from, dialled), other_end);
    let (said, heard) = (ends.0.unwrap_err().to_string(), ends.1.unwrap().unwrap_err().to_string());
    assert!(said.contains("within") || heard.contains("within"), "{said} / {heard}");
    assert_eq!(meeting.pairing.waiting(), 0);
}

#[tokio::test]
async fn a_second_connection_has_a_place_once_for_each_first_one() {
    let meeting = Meeting::new();
    let [_, accepted] = meeting.connect(Half::Control).await;
    let address = meeting.from.endpoint.local_addr().unwrap();
    assert!(!meeting.pairing.meets(address), "nothing is expected yet");
    let expected = meeting.pairing.expect(&accepted);
    assert!(meeting.pairing.meets(address) && !meeting.pairing.meets(address));
    drop(expected);
    assert_eq!(meeting.pairing.waiting(), 0);
}

/// Whichever of them is lost.
#[tokio::test]
async fn a_link_ends_with_either_of_its_connections_and_comes_back() {
    let authority = authority();
    let a = Plan::new(&authority, "a", &[]).start();
    let b = Plan::new(&authority, "b", &[&a]).start();
    for half in [Half::Control, Half::Lanes] {
        until_agreed(&[&a, &b], 1).await;
        let links = [&a, &b].map(|broker| Arc::clone(&broker.handle.book.links.load()[0]));
        let connections = links.each_ref().map(|link| [link.control.clone(), link.lanes.clone()]);
        let [[control, lanes], _] = &connections;
        match half {
            Half::Control => control.close(0_u8.into(), b"lost"),
            Half::Lanes => lanes.close(0_u8.into(), b"lost"),
        }
        for connection in connections.iter().flatten() {
            connection.closed().await;
        }
        let ids = links.each_ref().map(|link| link.id);
        until("another link", || {
            let now = [&a, &b].map(|broker| broker.handle.book.links.load().first().map(|link| link.id));
            (now[0].is_some_and(|id| id != ids[0]) && now[1].is_some_and(|id| id != ids[1])).then_some(())
        })
        .await;
        exchange(&[&a, &b], QoS::AtLeastOnce, &format!("{half:?}"), 50).await;
    }
}

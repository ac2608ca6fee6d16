//! The two connections of a link, and how they find each other: control has one of its own, so that no lane stands before it in a congestion
//! window, a pacer or a send window.
//!
//! The dialler makes both, the one for control first, and shows on the other that they belong together: a **bond**, the keying material
//! of the first (RFC 8446 section 7.5) over that of the second. Only who is an end of both can make it, so that nobody puts the halves of two
//! links together; and both must show the same certificates, so that what is found of one half's certificate counts for the link. A
//! connection for lanes without a link that waits for it is refused at once: none of them can pile up.
//!
//! Invariants: a link has both or is none; whatever ends one ends the other ([`super::link`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::Connection;
use quinn::crypto::rustls::HandshakeData;
use tokio::sync::oneshot;

use super::error::LinkError;
use super::gate::Gate;
use super::handshake::{peer_chain, refuse};
use super::tls::Half;

const BOND_BYTES: usize = 32;
/// Of the exporter (RFC 8446 section 7.5).
const BOND_LABEL: &[u8] = b"EXPORTER-mqtt-st lanes";
/// A connection for lanes shows its bond at once.
const BOND_TIMEOUT: Duration = Duration::from_secs(5);

type Bond = [u8; BOND_BYTES];

/// What shows that `control` and `lanes` have the same ends.
pub(super) fn bond(control: &Connection, lanes: &Connection) -> Result<Bond, LinkError> {
    if peer_chain(control)? != peer_chain(lanes)? {
        return Err(LinkError::Unpaired("the peer shows another certificate on it"));
    }
    let (mut inner, mut outer) = (Bond::default(), Bond::default());
    let exported = lanes
        .export_keying_material(&mut inner, BOND_LABEL, &[])
        .and_then(|()| control.export_keying_material(&mut outer, BOND_LABEL, &inner));
    exported.map_err(|_| LinkError::Unpaired("it has no keying material"))?;
    Ok(outer)
}

/// Which half of a link a connection is, by the protocol that its ends have agreed upon.
pub(super) fn half_of(connection: &Connection) -> Half {
    let agreed = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    let protocol = agreed.and_then(|data| data.protocol);
    if protocol.as_deref() == Some(Half::Lanes.protocol()) { Half::Lanes } else { Half::Control }
}

/// Makes the second connection of the link whose first is `control`, which we have dialled.
///
/// # Errors
/// That it does not come about, or that the first one ended meanwhile, which tells more.
pub(super) async fn dial(gate: &Gate, control: &Connection) -> Result<Connection, LinkError> {
    let made = async {
        let connecting = gate.connect(control.remote_address(), Half::Lanes);
        let lanes = connecting.map_err(|_| LinkError::Stream("the address cannot be dialled"))?.await?;
        let (mut writer, _) = lanes.open_bi().await?;
        writer.write_all(&bond(control, &lanes)?).await?;
        Ok(lanes)
    };
    tokio::select! {
        error = control.closed() => Err(error.into()),
        made = made => made,
    }
}

/// Links that wait for their second connection, at the end that was dialled.
#[derive(Debug, Default)]
pub(super) struct Pairing(Mutex<Vec<Waiting>>);

#[derive(Debug)]
struct Waiting {
    control: Connection,
    /// The other one has been let in.
    is_met: bool,
    lanes: oneshot::Sender<Connection>,
}

impl Pairing {
    /// From now on a second connection for `control` is welcome, until what is returned is dropped.
    pub(super) fn expect(self: &Arc<Self>, control: &Connection) -> Expected {
        let (lanes, arrived) = oneshot::channel();
        self.0.lock().push(Waiting { control: control.clone(), is_met: false, lanes });
        Expected { pairing: Arc::clone(self), control: control.clone(), arrived }
    }

    /// Whether who knocks from `address` is likely the second connection of a link: that one has its place already. True once for each.
    pub(super) fn meets(&self, address: SocketAddr) -> bool {
        let mut waiting = self.0.lock();
        let found = waiting.iter_mut().find(|one| !one.is_met && one.control.remote_address() == address);
        found.map(|one| one.is_met = true).is_some()
    }

    /// Hands `lanes` to the link that it shows to belong to.
    ///
    /// # Errors
    /// There is none. The connection is closed then.
    pub(super) async fn join(&self, lanes: Connection) -> Result<(), LinkError> {
        let shown = async {
            let (_, mut reader) = lanes.accept_bi().await?;
            let mut shown = Bond::default();
            reader.read_exact(&mut shown).await.map_err(|_| LinkError::Unpaired("it shows nothing"))?;
            Ok(shown)
        };
        let shown = tokio::time::timeout(BOND_TIMEOUT, shown).await.unwrap_or(Err(LinkError::Timeout(BOND_TIMEOUT)));
        let place = shown.and_then(|shown| self.take(&lanes, &shown));
        place.inspect_err(|error| refuse(&[&lanes], error))?.send(lanes).map_err(|_| LinkError::Unpaired("it is given up"))
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.0.lock().len()
    }

    fn take(&self, lanes: &Connection, shown: &Bond) -> Result<oneshot::Sender<Connection>, LinkError> {
        let mut waiting = self.0.lock();
        let place = waiting.iter().position(|one| bond(&one.control, lanes).is_ok_and(|bond| bond == *shown));
        Ok(waiting.swap_remove(place.ok_or(LinkError::Unpaired("no link waits for it"))?).lanes)
    }
}

/// A link's claim to a second connection.
#[derive(Debug)]
pub(super) struct Expected {
    pairing: Arc<Pairing>,
    control: Connection,
    arrived: oneshot::Receiver<Connection>,
}

impl Expected {
    /// Waits for it.
    ///
    /// # Errors
    /// The first one ended.
    pub(super) async fn lanes(mut self) -> Result<Connection, LinkError> {
        tokio::select! {
            error = self.control.closed() => Err(error.into()),
            arrived = &mut self.arrived => arrived.map_err(|_| LinkError::Shutdown),
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.pairing.0.lock().retain(|one| one.control.stable_id() != self.control.stable_id());
    }
}

//! From a QUIC connection to an authenticated peer: whose certificate it is, the handshake on the control stream (`frame::control`), and
//! the second connection for the lanes ([`super::pairing`]). What it yields is a candidate; whether it becomes the link is for the driver to say ([`super::rivals`]).
//!
//! Every step is bounded in time. A refusal closes the connection with a code and a reason that the peer logs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use quinn::{Connection, SendStream};
use rustls::pki_types::CertificateDer;

use super::control::ControlReader;
use super::error::LinkError;
use super::gate::Gate;
use super::identity::Identity;
use super::incarnation::Life;
use super::metrics::MeshMetrics;
use super::pairing::{self, Pairing};
use super::proof::{Keyring, Statement};
use super::roster::Roster;
use super::tls::SharedCredentials;
use crate::clock;
use crate::frame::control::{ControlFrame, Greeting, VERSION, VERSION_MIN, Witness};
use crate::ids::{BrokerId, Incarnation};
use crate::shared::{RecordHead, Records, Signature, SignedRecord};

/// From the first packet until both lives are settled.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// This broker, as it introduces itself.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) identity: Identity,
    pub(super) name: String,
    /// Random, one a process.
    pub(super) instance: u64,
    pub(super) lanes: u8,
    pub(super) hello: Duration,
    /// What links cost by the operator's word, by the peer's name.
    pub(super) costs: BTreeMap<String, NonZeroU32>,
    pub(super) life: Mutex<Life>,
    pub(super) roster: Roster,
    pub(super) metrics: Arc<MeshMetrics>,
    /// What we show and whom we trust at present.
    pub(super) credentials: SharedCredentials,
    /// Signs what we say and checks what others have signed.
    pub(super) keyring: Keyring,
    /// What other brokers tell of themselves.
    pub(super) records: Arc<RwLock<Records>>,
}

/// The broker at the other end.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) id: BrokerId,
    pub(super) name: String,
    pub(super) incarnation: Incarnation,
    /// How often it says hello.
    pub(super) hello: Duration,
    pub(super) address: SocketAddr,
}

/// A pair of connections whose ends know each other.
pub(super) struct Candidate {
    pub(super) control: Connection,
    pub(super) lanes: Connection,
    pub(super) peer: Peer,
    pub(super) we_dialled: bool,
    pub(super) writer: SendStream,
    pub(super) reader: ControlReader,
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Candidate").field("peer", &self.peer).field("we_dialled", &self.we_dialled).finish_non_exhaustive()
    }
}

/// Which end of a link we are.
#[derive(Clone, Copy)]
enum End<'a> {
    /// Dials the second connection as well.
    Dials(&'a Gate),
    /// Waits for it.
    Accepts(&'a Arc<Pairing>),
}

/// The dialling end: greets first.
pub(super) async fn dial(local: &Arc<Local>, gate: &Gate, control: Connection) -> Result<Candidate, LinkError> {
    introduce(local, control, End::Dials(gate)).await
}

/// The accepting end. The dialler waits for one more word, which [`super::link`] says once the link is admitted.
pub(super) async fn accept(local: &Arc<Local>, pairing: &Arc<Pairing>, control: Connection) -> Result<Candidate, LinkError> {
    introduce(local, control, End::Accepts(pairing)).await
}

async fn introduce(local: &Arc<Local>, control: Connection, end: End<'_>) -> Result<Candidate, LinkError> {
    let we_dialled = matches!(end, End::Dials(_));
    let told = async {
        let certified = certified(&control, &local.identity)?;
        if local.roster.is_shunned(certified, clock::now()) {
            return Err(LinkError::Shunned(certified));
        }
        if we_dialled && certified != local.identity.id && local.roster.is_linked(certified) {
            return Err(LinkError::Linked(certified));
        }
        if we_dialled && certified != local.identity.id {
            // Before the other end makes room for us.
            local.roster.consider(certified, control.rtt())?;
        }
        match end {
            End::Dials(gate) => greet_first(local, gate, &control, certified).await,
            End::Accepts(pairing) => answer(local, pairing, &control, certified).await,
        }
    };
    let told = tokio::time::timeout(HANDSHAKE_TIMEOUT, told).await.unwrap_or(Err(LinkError::Timeout(HANDSHAKE_TIMEOUT)));
    match told {
        Ok(Introduced { peer, lanes, writer, reader }) => Ok(Candidate { control, lanes, peer, we_dialled, writer, reader }),
        Err(error) => {
            refuse(&[&control], &error);
            Err(error)
        }
    }
}

/// Closes connections and tells the peer why.
pub(super) fn refuse(connections: &[&Connection], error: &LinkError) {
    let (code, reason) = (error.code().number(), error.to_string());
    connections.iter().for_each(|connection| connection.close(code, reason.as_bytes()));
}

const NO_CERTIFICATE: &str = "the peer shows no certificate";

/// The certificates that the peer has shown, its own first.
pub(super) fn peer_chain(connection: &Connection) -> Result<Vec<CertificateDer<'static>>, LinkError> {
    let chain = connection.peer_identity().and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    chain.map(|chain| *chain).ok_or(LinkError::Stream(NO_CERTIFICATE))
}

/// Whose certificate the peer has shown. TLS has checked that our authority signed it and that its time is now.
pub(super) fn certified(connection: &Connection, own: &Identity) -> Result<BrokerId, LinkError> {
    let chain = peer_chain(connection)?;
    let identity = Identity::of_certificate(chain.first().ok_or(LinkError::Stream(NO_CERTIFICATE))?)?;
    if identity.mesh == own.mesh {
        Ok(identity.id)
    } else {
        Err(LinkError::OtherMesh { theirs: identity.mesh, ours: own.mesh.clone() })
    }
}

struct Introduced {
    peer: Peer,
    lanes: Connection,
    writer: SendStream,
    reader: ControlReader,
}

async fn greet_first(local: &Arc<Local>, gate: &Gate, control: &Connection, certified: BrokerId) -> Result<Introduced, LinkError> {
    let (mut writer, reader) = control.open_bi().await?;
    let mut reader = ControlReader::new(reader);
    write(&mut writer, &[greeting(local)]).await?;
    let mut peer = read_greeting(local, &mut reader, control, certified).await?;
    let incarnation = hear_known(local, &mut reader).await?;
    write(&mut writer, &[Known::of(local, certified).frame(), ControlFrame::Settled { incarnation }]).await?;
    let lanes = pairing::dial(gate, control).await?;
    peer.incarnation = read_settled(&mut reader).await?;
    Ok(Introduced { peer, lanes, writer, reader })
}

async fn answer(
    local: &Arc<Local>,
    pairing: &Arc<Pairing>,
    control: &Connection,
    certified: BrokerId,
) -> Result<Introduced, LinkError> {
    let (mut writer, reader) = control.accept_bi().await?;
    let mut reader = ControlReader::new(reader);
    let mut peer = read_greeting(local, &mut reader, control, certified).await?;
    // Before the dialler knows that it may.
    let expected = pairing.expect(control);
    write(&mut writer, &[greeting(local), Known::of(local, certified).frame()]).await?;
    hear_known(local, &mut reader).await?;
    peer.incarnation = read_settled(&mut reader).await?;
    let lanes = expected.lanes().await?;
    Ok(Introduced { peer, lanes, writer, reader })
}

fn greeting(local: &Local) -> ControlFrame<'_> {
    ControlFrame::Greeting(Greeting {
        version_min: VERSION_MIN,
        version_max: VERSION,
        features: 0,
        mesh: &local.identity.mesh,
        id: local.identity.id,
        name: &local.name,
        instance: local.instance,
        lanes: local.lanes,
        hello_ms: u32::try_from(local.hello.as_millis()).unwrap_or(u32::MAX).max(1),
    })
}

/// What this broker knows of the peer's lives.
struct Known {
    incarnation: Incarnation,
    record: Option<SignedRecord>,
}

impl Known {
    fn of(local: &Local, peer: BrokerId) -> Self {
        let met = local.roster.life(peer);
        let records = local.records.read();
        let (told, record) = records.of(peer).map(|(record, signed)| (record.incarnation, signed.clone())).unzip();
        Self { incarnation: met.max(told.unwrap_or_default()), record }
    }

    fn frame(&self) -> ControlFrame<'_> {
        let witness = self.record.as_ref().map(|SignedRecord { wire, signature }| Witness {
            chain: &signature.chain,
            scheme: signature.scheme,
            signature: &signature.bytes,
            record: wire,
        });
        ControlFrame::Known { incarnation: self.incarnation, witness }
    }
}

async fn write(writer: &mut SendStream, frames: &[ControlFrame<'_>]) -> Result<(), LinkError> {
    let mut encoded = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut encoded));
    Ok(writer.write_all(&encoded).await?)
}

async fn read_greeting(
    local: &Arc<Local>,
    reader: &mut ControlReader,
    control: &Connection,
    certified: BrokerId,
) -> Result<Peer, LinkError> {
    reader
        .next(|frame| match frame {
            ControlFrame::Greeting(greeting) => {
                check(local, &greeting, certified)?;
                Ok(Peer {
                    id: certified,
                    name: greeting.name.to_owned(),
                    incarnation: Incarnation::default(),
                    hello: Duration::from_millis(u64::from(greeting.hello_ms)),
                    address: control.remote_address(),
                })
            }
            _ => Err(LinkError::Unexpected("no greeting at the beginning")),
        })
        .await
}

fn check(local: &Local, greeting: &Greeting<'_>, certified: BrokerId) -> Result<(), LinkError> {
    if certified == local.identity.id {
        return Err(if greeting.instance == local.instance { LinkError::Oneself } else { LinkError::Clone });
    }
    if greeting.version_min > VERSION || greeting.version_max < VERSION_MIN {
        return Err(LinkError::Version { min: greeting.version_min, max: greeting.version_max });
    }
    if greeting.mesh != local.identity.mesh {
        return Err(LinkError::OtherMesh { theirs: greeting.mesh.to_owned(), ours: local.identity.mesh.clone() });
    }
    if greeting.id != certified || BrokerId::derive(greeting.mesh, greeting.name) != certified {
        return Err(LinkError::OtherBroker { name: greeting.name.to_owned(), certified });
    }
    if greeting.lanes != local.lanes {
        return Err(LinkError::Lanes { theirs: greeting.lanes, ours: local.lanes });
    }
    Ok(())
}

/// Hears whom the peer has met of us, and lives later than that.
async fn hear_known(local: &Arc<Local>, reader: &mut ControlReader) -> Result<Incarnation, LinkError> {
    reader
        .next(|frame| match frame {
            ControlFrame::Known { incarnation, witness } => {
                let proven = witness.map_or(Ok(None), |witness| later_life(local, &witness))?;
                Ok(local.life.lock().raise(incarnation, proven)?)
            }
            _ => Err(LinkError::Unexpected("no word on what is known of us")),
        })
        .await
}

/// The later life of this broker that the witness proves, if it proves one: its own key has signed for it.
fn later_life(local: &Local, witness: &Witness<'_>) -> Result<Option<Incarnation>, LinkError> {
    let record = RecordHead::read(witness.record)?;
    if record.id != local.identity.id {
        return Err(LinkError::Unexpected("a word on another broker's lives"));
    }
    if record.incarnation <= local.life.lock().incarnation() {
        return Ok(None);
    }
    let (chain, bytes) = (Bytes::copy_from_slice(witness.chain), Bytes::copy_from_slice(witness.signature));
    let signature = Signature { chain, scheme: witness.scheme, bytes };
    match local.keyring.check(Statement::Record(witness.record), record.id, &signature, clock::unix_time()) {
        Ok(_) => Ok(Some(record.incarnation)),
        Err(error) if error.is_forged() => Err(error.into()),
        Err(_) => Ok(None),
    }
}

async fn read_settled(reader: &mut ControlReader) -> Result<Incarnation, LinkError> {
    reader
        .next(|frame| match frame {
            ControlFrame::Settled { incarnation } => Ok(incarnation),
            _ => Err(LinkError::Unexpected("no end of the handshake")),
        })
        .await
}

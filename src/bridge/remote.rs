//! The way to a foreign broker: its address, TCP, TLS, CONNECT and CONNACK.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::tls::{self, TlsError};
use crate::codec::{
    self, ConnAck, Connect, ConnectProperties, DecodeError, EncodeError, Packet, ProtocolVersion, QoS, ReasonCode, Will,
    WillProperties,
};
use crate::config::{Bridge, BridgeVersion, HostPort};
use crate::limits::{PACKET_BYTES_MAX, RECEIVE_MAXIMUM};

/// From the name to CONNACK.
const PATIENCE: Duration = Duration::from_secs(20);

/// Before MQTT 5 nobody says how many messages may be in flight. Mosquitto closes the connection for the 21st of QoS 2, unless told otherwise.
const RECEIVE_MAXIMUM_UNSAID: NonZeroU16 = NonZeroU16::MIN.saturating_add(19);

/// Why there is no connection to a foreign broker.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// It took too long.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Late,
    /// Name, TCP or TLS.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A file of `tls`.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A host that no certificate can name.
    #[error("`{0}` is no name that a certificate could have")]
    Name(String),
    /// The file with the password.
    #[error("remote_password_file: {0}")]
    Password(std::io::Error),
    /// A CONNECT that cannot be.
    #[error("CONNECT: {0}")]
    Encode(#[from] EncodeError),
    /// What came is not MQTT.
    #[error("its answer: {0}")]
    Decode(#[from] DecodeError),
    /// Something else than CONNACK.
    #[error("it answered with something else than CONNACK")]
    NoConnAck,
    /// It closed the connection before CONNACK.
    #[error("it closed the connection without a CONNACK")]
    Closed,
    /// CONNACK says no.
    #[error("it refuses the bridge: {0}")]
    Refused(ReasonCode),
}

/// What carries the bytes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A foreign broker that has let the bridge in.
pub(super) struct Remote {
    pub(super) stream: Box<dyn Stream>,
    /// What came behind the CONNACK.
    pub(super) rest: Vec<u8>,
    pub(super) version: ProtocolVersion,
    /// Whether it still had the bridge's session.
    pub(super) session_present: bool,
    /// Messages that it takes at once.
    pub(super) receive_maximum: NonZeroU16,
    /// Bytes of the largest packet that it takes.
    pub(super) packet_bytes_max: u32,
    pub(super) takes_retained: bool,
    pub(super) qos_max: QoS,
    /// Zero: it is never asked whether it is there.
    pub(super) keep_alive: Duration,
    /// Whether it does not give back what comes from the bridge.
    pub(super) is_no_echo: bool,
}

/// How the bridge introduces itself.
#[derive(Debug)]
pub(super) struct Introduction<'a> {
    pub(super) bridge: &'a Bridge,
    pub(super) client_id: &'a str,
    /// Where it is told there whether the bridge is connected.
    pub(super) notification_topic: Option<&'a str>,
    /// Bytes of the largest packet that is taken.
    pub(super) packet_bytes_max: u32,
    /// Whether to say that it is a bridge.
    pub(super) is_private: bool,
    pub(super) will: WillTaken,
}

/// What of a will a foreign broker takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WillTaken {
    pub(super) qos: QoS,
    /// Whether any, as it is retained.
    pub(super) is_there: bool,
}

impl Default for WillTaken {
    fn default() -> Self {
        Self { qos: QoS::AtLeastOnce, is_there: true }
    }
}

impl Introduction<'_> {
    /// Whether there is something to say by the private bit.
    pub(super) fn knows_private(bridge: &Bridge) -> bool {
        bridge.try_private && bridge.protocol_version == BridgeVersion::MqttV311
    }

    /// Connects to the foreign broker at `address`.
    ///
    /// # Errors
    /// See [`DialError`].
    pub(super) async fn dial(&self, address: &HostPort) -> Result<Remote, DialError> {
        tokio::time::timeout(PATIENCE, self.connect(address)).await.map_err(|_| DialError::Late)?
    }

    fn version(&self) -> ProtocolVersion {
        match self.bridge.protocol_version {
            BridgeVersion::MqttV311 => ProtocolVersion::V3_1_1,
            BridgeVersion::MqttV50 => ProtocolVersion::V5,
        }
    }

    async fn connect(&self, address: &HostPort) -> Result<Remote, DialError> {
        let packet = self.packet()?;
        let tcp = TcpStream::connect((address.host.as_str(), address.port)).await?;
        tcp.set_nodelay(true)?;
        let mut stream: Box<dyn Stream> = match &self.bridge.tls {
            None => Box::new(tcp),
            Some(files) => {
                let name = ServerName::try_from(address.host.clone()).map_err(|_| DialError::Name(address.host.clone()))?;
                Box::new(TlsConnector::from(tls::client_config(files)?).connect(name, tcp).await?)
            }
        };
        stream.write_all(&packet).await?;
        stream.flush().await?;
        let mut bytes = Vec::new();
        loop {
            if let Some((packet, length)) = codec::decode(&bytes, self.version(), self.packet_bytes_max)? {
                let Packet::ConnAck(connack) = packet else { return Err(DialError::NoConnAck) };
                let rest = bytes.get(length..).unwrap_or_default().to_vec();
                return self.let_in(stream, &connack, rest);
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Err(DialError::Closed);
            }
        }
    }

    fn let_in(&self, stream: Box<dyn Stream>, connack: &ConnAck<'_>, rest: Vec<u8>) -> Result<Remote, DialError> {
        if connack.reason != ReasonCode::Success {
            return Err(DialError::Refused(connack.reason));
        }
        let said = &connack.properties;
        let keep_alive = said.server_keep_alive_seconds.unwrap_or(self.bridge.keepalive_interval);
        let ours = self.bridge.max_packet_size.unwrap_or(PACKET_BYTES_MAX);
        Ok(Remote {
            stream,
            rest,
            version: self.version(),
            session_present: connack.session_present,
            receive_maximum: match self.version() {
                ProtocolVersion::V5 => said.receive_maximum.unwrap_or(NonZeroU16::MAX),
                _ => RECEIVE_MAXIMUM_UNSAID,
            },
            packet_bytes_max: said.maximum_packet_size.map_or(ours, |theirs| theirs.get().min(ours)),
            takes_retained: said.retain_available.unwrap_or(true),
            qos_max: said.maximum_qos.unwrap_or(QoS::ExactlyOnce),
            keep_alive: Duration::from_secs(keep_alive.into()),
            is_no_echo: self.is_private || self.version() == ProtocolVersion::V5,
        })
    }

    fn packet(&self) -> Result<Vec<u8>, DialError> {
        let bridge = self.bridge;
        let from_file = match &bridge.remote_password_file {
            Some(path) => Some(first_line(&std::fs::read_to_string(path).map_err(DialError::Password)?)),
            None => None,
        };
        let version = self.version();
        let properties = match version {
            ProtocolVersion::V5 => ConnectProperties {
                session_expiry_seconds: (!bridge.cleansession).then_some(u32::MAX),
                receive_maximum: NonZeroU16::new(RECEIVE_MAXIMUM),
                maximum_packet_size: NonZeroU32::new(self.packet_bytes_max),
                ..ConnectProperties::default()
            },
            _ => ConnectProperties::default(),
        };
        let will = self.notification_topic.filter(|_| self.will.is_there).map(|topic| Will {
            topic,
            payload: b"0",
            qos: self.will.qos,
            retain: true,
            properties: WillProperties::default(),
        });
        let connect = Connect {
            version,
            is_bridge: self.is_private,
            clean_start: bridge.cleansession,
            keep_alive_seconds: bridge.keepalive_interval,
            properties,
            client_id: self.client_id,
            will,
            user_name: bridge.remote_username.as_deref(),
            password: from_file.as_deref().or(bridge.remote_password.as_deref()).map(str::as_bytes),
        };
        let mut packet = Vec::new();
        codec::encode(&mut packet, version, &Packet::Connect(Box::new(connect)))?;
        Ok(packet)
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn introduced(bridge: &Bridge, is_private: bool) -> Vec<u8> {
        let introduction = Introduction {
            bridge,
            client_id: "m.b",
            notification_topic: Some("state"),
            packet_bytes_max: 1_000,
            is_private,
            will: WillTaken::default(),
        };
        introduction.packet().unwrap()
    }

    #[test]
    fn the_private_bit_is_all_that_tells_a_bridge_from_a_client() {
        let bridge = Bridge { protocol_version: BridgeVersion::MqttV311, ..Bridge::default() };
        let plain = introduced(&bridge, false);
        let Ok(Some((connect, _))) = codec::decode_connect(&plain, 1_000) else { panic!("a CONNECT") };
        assert_eq!((connect.version, connect.client_id, connect.clean_start), (ProtocolVersion::V3_1_1, "m.b", false));
        assert_eq!(connect.will.map(|will| (will.topic, will.payload, will.retain)), Some(("state", &b"0"[..], true)));
        let mut private = introduced(&bridge, true);
        assert_eq!((plain[8], private[8]), (4, 0x84));
        private[8] = 4;
        assert_eq!(private, plain);
    }

    #[test]
    fn a_password_is_the_first_line_of_its_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "se cret\nrest\n").unwrap();
        let (path, user) = (file.path().to_owned(), Some("me".to_owned()));
        let bridge = Bridge { remote_username: user, remote_password_file: Some(path), cleansession: true, ..Bridge::default() };
        let packet = introduced(&bridge, false);
        let Ok(Some((connect, _))) = codec::decode_connect(&packet, 1_000) else { panic!("a CONNECT") };
        assert_eq!((connect.user_name, connect.password), (Some("me"), Some(&b"se cret"[..])));
        assert!(connect.clean_start && connect.properties.session_expiry_seconds.is_none());
        assert_eq!(connect.properties.receive_maximum, NonZeroU16::new(RECEIVE_MAXIMUM));
    }
}

//! The packets at the beginning of a connection, by `mqttbytes`.
//!
//! Its decoders return `InsufficientBytes` for some malformed packets; they are only ever given one whole frame here, so that
//! every error is what it says: malformed. What it gets wrong (the DISCONNECT of MQTT 5) is read by hand.

use bytes::BytesMut;
use mqttbytes::{v4, v5};

use super::frame::{Frame, PacketKind, WireFault, push_variable_integer};
use super::{QoS, Version};

/// The packet id of the one SUBSCRIBE a connection sends.
const SUBSCRIBE_ID: u16 = 1;

/// Who we say we are.
#[derive(Clone, Debug)]
pub struct Login {
    /// The user name.
    pub username: String,
    /// The password.
    pub password: String,
}

/// What is left of a client at the broker when its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// Nothing, and nothing is there when it comes.
    Clean,
    /// Everything, for ever.
    Kept,
}

/// What a broker that accepts us allows. MQTT 3.1.1 has no limits to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnAck {
    /// QoS 1 and 2 messages we may have under way.
    pub(crate) receive_maximum: u16,
    pub(crate) qos_maximum: QoS,
    /// Bytes of a whole packet.
    pub(crate) packet_bytes_max: u32,
    pub(crate) keep_alive_seconds: Option<u16>,
    /// The broker goes on with a session that it has kept.
    pub(crate) session_present: bool,
}

impl Default for ConnAck {
    fn default() -> Self {
        Self {
            receive_maximum: u16::MAX,
            qos_maximum: QoS::ExactlyOnce,
            packet_bytes_max: u32::MAX,
            keep_alive_seconds: None,
            session_present: false,
        }
    }
}

/// Appends a CONNECT.
///
/// # Errors
/// When `mqttbytes` refuses to write it.
pub(crate) fn connect(
    version: Version,
    client_id: &str,
    session: Session,
    login: Option<&Login>,
    keep_alive_seconds: u16,
    out: &mut Vec<u8>,
) -> Result<(), mqttbytes::Error> {
    let mut packet = BytesMut::new();
    match version {
        Version::V3_1_1 => {
            let mut connect = v4::Connect::new(client_id);
            connect.keep_alive = keep_alive_seconds;
            connect.clean_session = session == Session::Clean;
            connect.login = login.map(|login| v4::Login::new(&login.username, &login.password));
            connect.write(&mut packet)?;
        }
        Version::V5 => {
            let mut connect = v5::Connect::new(client_id);
            connect.keep_alive = keep_alive_seconds;
            if session == Session::Kept {
                (connect.clean_session, connect.properties) = (false, Some(kept()));
            }
            connect.login = login.map(|login| v5::Login::new(&login.username, &login.password));
            connect.write(&mut packet)?;
        }
    }
    out.extend_from_slice(&packet);
    Ok(())
}

/// A session that never expires.
fn kept() -> v5::ConnectProperties {
    v5::ConnectProperties {
        session_expiry_interval: Some(u32::MAX),
        receive_maximum: None,
        max_packet_size: None,
        topic_alias_max: None,
        request_response_info: None,
        request_problem_info: None,
        user_properties: Vec::new(),
        authentication_method: None,
        authentication_data: None,
    }
}

/// Reads a CONNACK: what the broker allows, or the name of its refusal.
///
/// # Errors
/// When it is malformed, or no CONNACK.
pub(crate) fn connack(frame: &Frame<'_>, version: Version) -> Result<Result<ConnAck, String>, WireFault> {
    if frame.kind != PacketKind::ConnAck {
        return Err(WireFault::Unexpected(frame.kind));
    }
    match version {
        Version::V3_1_1 => match read_v4(frame)? {
            v4::Packet::ConnAck(ack) if ack.code == v4::ConnectReturnCode::Success => {
                Ok(Ok(ConnAck { session_present: ack.session_present, ..ConnAck::default() }))
            }
            v4::Packet::ConnAck(ack) => Ok(Err(format!("{:?}", ack.code))),
            _ => Err(WireFault::Malformed(frame.kind)),
        },
        Version::V5 => match read_v5(frame)? {
            v5::Packet::ConnAck(ack) if ack.code == v5::ConnectReturnCode::Success => {
                let allowed = allowed(ack.properties.as_ref()).ok_or(WireFault::Malformed(frame.kind))?;
                Ok(Ok(ConnAck { session_present: ack.session_present, ..allowed }))
            }
            v5::Packet::ConnAck(ack) => Ok(Err(format!("{:?}", ack.code))),
            _ => Err(WireFault::Malformed(frame.kind)),
        },
    }
}

/// `None` when a value is one the specification forbids.
fn allowed(properties: Option<&v5::ConnAckProperties>) -> Option<ConnAck> {
    let default = ConnAck::default();
    let Some(properties) = properties else {
        return Some(default);
    };
    let allowed = ConnAck {
        receive_maximum: properties.receive_max.unwrap_or(default.receive_maximum),
        qos_maximum: properties.max_qos.map_or(Some(default.qos_maximum), QoS::from_number)?,
        packet_bytes_max: properties.max_packet_size.unwrap_or(default.packet_bytes_max),
        keep_alive_seconds: properties.server_keep_alive,
        session_present: default.session_present,
    };
    (allowed.receive_maximum > 0 && allowed.packet_bytes_max > 0).then_some(allowed)
}

/// Appends a SUBSCRIBE to these filters.
///
/// # Errors
/// When `mqttbytes` refuses to write it.
pub(crate) fn subscribe<'a>(
    version: Version,
    filters: impl IntoIterator<Item = &'a str>,
    qos: QoS,
    out: &mut Vec<u8>,
) -> Result<(), mqttbytes::Error> {
    let qos = mqttbytes::qos(qos.number())?;
    let mut packet = BytesMut::new();
    match version {
        Version::V3_1_1 => {
            let filters = filters.into_iter().map(|filter| v4::SubscribeFilter::new(filter.to_owned(), qos));
            let mut subscribe = v4::Subscribe::new_many(filters);
            subscribe.pkid = SUBSCRIBE_ID;
            subscribe.write(&mut packet)?;
        }
        Version::V5 => {
            let filters = filters.into_iter().map(|filter| v5::SubscribeFilter::new(filter.to_owned(), qos));
            let mut subscribe = v5::Subscribe::new_many(filters);
            subscribe.pkid = SUBSCRIBE_ID;
            subscribe.write(&mut packet)?;
        }
    }
    out.extend_from_slice(&packet);
    Ok(())
}

/// Reads the SUBACK of our one SUBSCRIBE to so many filters: the lowest quality of service granted, or the name of a refusal.
///
/// # Errors
/// When it is malformed, or answers something we did not ask.
pub(crate) fn suback(frame: &Frame<'_>, version: Version, filters: usize) -> Result<Result<QoS, String>, WireFault> {
    let (packet_id, granted) = match version {
        Version::V3_1_1 => match read_v4(frame)? {
            v4::Packet::SubAck(ack) => (ack.pkid, all(&ack.return_codes, filters, granted_v4)),
            _ => return Err(WireFault::Malformed(frame.kind)),
        },
        Version::V5 => match read_v5(frame)? {
            v5::Packet::SubAck(ack) => (ack.pkid, all(&ack.return_codes, filters, granted_v5)),
            _ => return Err(WireFault::Malformed(frame.kind)),
        },
    };
    granted.filter(|_| packet_id == SUBSCRIBE_ID).ok_or(WireFault::Malformed(frame.kind))
}

/// The worst answer; `None` unless there is one for each filter.
fn all<C>(codes: &[C], filters: usize, granted: impl Fn(&C) -> Result<QoS, String>) -> Option<Result<QoS, String>> {
    let granted: Result<Vec<_>, _> = codes.iter().map(granted).collect();
    if codes.len() == filters { granted.map(|granted| granted.into_iter().min()).transpose() } else { None }
}

fn granted_v4(code: &v4::SubscribeReasonCode) -> Result<QoS, String> {
    match code {
        v4::SubscribeReasonCode::Success(mqttbytes::QoS::AtMostOnce) => Ok(QoS::AtMostOnce),
        v4::SubscribeReasonCode::Success(mqttbytes::QoS::AtLeastOnce) => Ok(QoS::AtLeastOnce),
        v4::SubscribeReasonCode::Success(mqttbytes::QoS::ExactlyOnce) => Ok(QoS::ExactlyOnce),
        v4::SubscribeReasonCode::Failure => Err("Failure".to_owned()),
    }
}

fn granted_v5(code: &v5::SubscribeReasonCode) -> Result<QoS, String> {
    match code {
        v5::SubscribeReasonCode::QoS0 => Ok(QoS::AtMostOnce),
        v5::SubscribeReasonCode::QoS1 => Ok(QoS::AtLeastOnce),
        v5::SubscribeReasonCode::QoS2 => Ok(QoS::ExactlyOnce),
        refusal => Err(format!("{refusal:?}")),
    }
}

/// The reason code of a DISCONNECT from the broker (MQTT 5 only; 0 where none is given).
pub(crate) fn disconnect_reason(frame: &Frame<'_>) -> u8 {
    frame.body.first().copied().unwrap_or_default()
}

fn read_v4(frame: &Frame<'_>) -> Result<v4::Packet, WireFault> {
    v4::read(&mut packet(frame), usize::MAX).map_err(|cause| WireFault::Control { kind: frame.kind, cause })
}

fn read_v5(frame: &Frame<'_>) -> Result<v5::Packet, WireFault> {
    v5::read(&mut packet(frame), usize::MAX).map_err(|cause| WireFault::Control { kind: frame.kind, cause })
}

/// The frame as `mqttbytes` takes it, from its first byte.
fn packet(frame: &Frame<'_>) -> BytesMut {
    let mut head = vec![frame.first_byte];
    push_variable_integer(&mut head, frame.body.len());
    [head.as_slice(), frame.body].concat().as_slice().into()
}

#[cfg(test)]
mod tests {
    use super::super::split;
    use super::*;

    fn frame(packet: &[u8]) -> Frame<'_> {
        split(packet).unwrap().unwrap().0
    }

    #[test]
    fn connect_says_who_we_are_in_both_versions() {
        let login = Login { username: "u".into(), password: "p".into() };
        let mut out = Vec::new();
        connect(Version::V3_1_1, "me", Session::Clean, Some(&login), 60, &mut out).unwrap();
        assert_eq!(out, b"\x10\x14\0\x04MQTT\x04\xc2\0\x3c\0\x02me\0\x01u\0\x01p");
        out.clear();
        connect(Version::V5, "me", Session::Clean, None, 60, &mut out).unwrap();
        assert_eq!(out, b"\x10\x0f\0\x04MQTT\x05\x02\0\x3c\0\0\x02me");
        out.clear();
        connect(Version::V3_1_1, "me", Session::Kept, None, 60, &mut out).unwrap();
        assert_eq!(out, b"\x10\x0e\0\x04MQTT\x04\0\0\x3c\0\x02me");
        out.clear();
        connect(Version::V5, "me", Session::Kept, None, 60, &mut out).unwrap();
        assert_eq!(out, b"\x10\x14\0\x04MQTT\x05\0\0\x3c\x05\x11\xff\xff\xff\xff\0\x02me");
    }

    #[test]
    fn subscribe_asks_for_its_filters_in_both_versions() {
        let mut out = Vec::new();
        subscribe(Version::V3_1_1, ["a/#"], QoS::ExactlyOnce, &mut out).unwrap();
        assert_eq!(out, b"\x82\x08\0\x01\0\x03a/#\x02");
        out.clear();
        subscribe(Version::V5, ["a/#", "b"], QoS::AtLeastOnce, &mut out).unwrap();
        assert_eq!(out, b"\x82\x0d\0\x01\0\0\x03a/#\x01\0\x01b\x01");
    }

    #[test]
    fn connack_tells_what_is_allowed_or_why_not() {
        let limits = ConnAck {
            receive_maximum: 20,
            qos_maximum: QoS::AtLeastOnce,
            packet_bytes_max: 4096,
            keep_alive_seconds: Some(30),
            session_present: false,
        };
        let with_limits = b"\x20\x10\0\0\x0d\x21\0\x14\x24\x01\x27\0\0\x10\0\x13\0\x1e";
        let table: &[(&[u8], Version, Result<ConnAck, &str>)] = &[
            (b"\x20\x02\0\0", Version::V3_1_1, Ok(ConnAck::default())),
            (b"\x20\x02\x01\0", Version::V3_1_1, Ok(ConnAck { session_present: true, ..ConnAck::default() })),
            (b"\x20\x03\x01\0\0", Version::V5, Ok(ConnAck { session_present: true, ..ConnAck::default() })),
            (b"\x20\x02\0\x05", Version::V3_1_1, Err("NotAuthorized")),
            (b"\x20\x03\0\0\0", Version::V5, Ok(ConnAck::default())),
            (b"\x20\x03\0\x87\0", Version::V5, Err("NotAuthorized")),
            (with_limits, Version::V5, Ok(limits)),
        ];
        for (bytes, version, expected) in table {
            let read = connack(&frame(bytes), *version).unwrap();
            assert_eq!(read, expected.map_err(str::to_owned), "{bytes:?}");
        }
    }

    #[test]
    fn a_lying_connack_is_refused() {
        let table: &[(&[u8], Version)] = &[
            (b"\x20\x01\0", Version::V3_1_1),
            (b"\x20\x02\0\x63", Version::V3_1_1),
            (b"\x20\x02\0\0", Version::V5),
            (b"\x20\x06\0\0\x03\x21\0\0", Version::V5),
            (b"\x20\x05\0\0\x02\x24\x07", Version::V5),
            (b"\x90\x03\0\x01\0", Version::V3_1_1),
        ];
        for (bytes, version) in table {
            assert!(connack(&frame(bytes), *version).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn suback_grants_or_refuses() {
        let table: &[(&[u8], Version, Result<QoS, &str>)] = &[
            (b"\x90\x03\0\x01\x01", Version::V3_1_1, Ok(QoS::AtLeastOnce)),
            (b"\x90\x03\0\x01\x80", Version::V3_1_1, Err("Failure")),
            (b"\x90\x04\0\x01\0\x02", Version::V5, Ok(QoS::ExactlyOnce)),
            (b"\x90\x04\0\x01\0\x87", Version::V5, Err("NotAuthorized")),
        ];
        for (bytes, version, expected) in table {
            assert_eq!(suback(&frame(bytes), *version, 1).unwrap(), expected.map_err(str::to_owned), "{bytes:?}");
        }
        for bytes in [&b"\x90\x03\0\x02\0"[..], b"\x90\x04\0\x01\0\0", b"\x90\x02\0\x01", b"\x90\x03\0\x01\x09"] {
            assert!(suback(&frame(bytes), Version::V3_1_1, 1).is_err(), "{bytes:?}");
        }
        let two = |codes: [u8; 2]| suback(&frame(&[0x90, 4, 0, 1, codes[0], codes[1]]), Version::V3_1_1, 2).unwrap();
        assert_eq!([two([2, 1]), two([1, 0x80])], [Ok(QoS::AtLeastOnce), Err("Failure".to_owned())]);
        assert!(suback(&frame(b"\x90\x03\0\x01\x01"), Version::V3_1_1, 2).is_err(), "one answer to two filters");
    }

    #[test]
    fn disconnect_has_a_reason_where_one_is_given() {
        assert_eq!(disconnect_reason(&frame(b"\xe0\0")), 0);
        assert_eq!(disconnect_reason(&frame(b"\xe0\x01\x8e")), 0x8e);
    }
}

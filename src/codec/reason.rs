//! Reason codes (MQTT 5.0, section 2.4): one type for all packets, which knows what each packet may carry.

use std::fmt;

use super::PacketType;

/// The set of packets that may carry a code, a bit a packet type.
const fn packets(list: &[PacketType]) -> u16 {
    let mut set = 0;
    let mut rest = list;
    while let [first, others @ ..] = rest {
        set |= 1 << *first as u8;
        rest = others;
    }
    set
}

macro_rules! reason_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, [$($packet:ident),+];)+) => {
        /// Why something was done or refused. Codes from 0x80 on are failures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ReasonCode {
            $(#[doc = concat!("`", stringify!($code), "`: ", $text, ".")] $(#[$doc])* $name = $code,)+
        }

        impl ReasonCode {
            /// All codes, in their order.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$name),+];

            /// The code with this number, if there is one.
            #[must_use]
            pub fn from_u8(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)+
                    _ => None,
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// Whether a packet of this type may carry the code (section 2.4, table 2-6).
            #[must_use]
            pub fn is_allowed_in(self, packet: PacketType) -> bool {
                let set = match self {
                    $(Self::$name => const { packets(&[$(PacketType::$packet),+]) },)+
                };
                set & (1 << packet as u8) != 0
            }
        }
    };
}

reason_codes! {
    /// Also "normal disconnection" in DISCONNECT and "granted QoS 0" in SUBACK.
    Success = 0x00, "success", [ConnAck, PubAck, PubRec, PubRel, PubComp, SubAck, UnsubAck, Disconnect, Auth];
    GrantedQoS1 = 0x01, "granted QoS 1", [SubAck];
    GrantedQoS2 = 0x02, "granted QoS 2", [SubAck];
    DisconnectWithWill = 0x04, "disconnect with will message", [Disconnect];
    NoMatchingSubscribers = 0x10, "no matching subscribers", [PubAck, PubRec];
    NoSubscriptionExisted = 0x11, "no subscription existed", [UnsubAck];
    ContinueAuthentication = 0x18, "continue authentication", [Auth];
    ReAuthenticate = 0x19, "re-authenticate", [Auth];
    UnspecifiedError = 0x80, "unspecified error", [ConnAck, PubAck, PubRec, SubAck, UnsubAck, Disconnect];
    MalformedPacket = 0x81, "malformed packet", [ConnAck, Disconnect];
    ProtocolError = 0x82, "protocol error", [ConnAck, Disconnect];
    ImplementationSpecificError = 0x83, "implementation specific error", [ConnAck, PubAck, PubRec, SubAck, UnsubAck, Disconnect];
    UnsupportedProtocolVersion = 0x84, "unsupported protocol version", [ConnAck];
    ClientIdentifierNotValid = 0x85, "client identifier not valid", [ConnAck];
    BadUserNameOrPassword = 0x86, "bad user name or password", [ConnAck];
    NotAuthorized = 0x87, "not authorized", [ConnAck, PubAck, PubRec, SubAck, UnsubAck, Disconnect];
    ServerUnavailable = 0x88, "server unavailable", [ConnAck];
    ServerBusy = 0x89, "server busy", [ConnAck, Disconnect];
    Banned = 0x8a, "banned", [ConnAck];
    ServerShuttingDown = 0x8b, "server shutting down", [Disconnect];
    /// Table 2-6 has it in DISCONNECT, table 3-10 has not; what one of them allows is no reason to end a connection.
    BadAuthenticationMethod = 0x8c, "bad authentication method", [ConnAck, Disconnect];
    KeepAliveTimeout = 0x8d, "keep alive timeout", [Disconnect];
    SessionTakenOver = 0x8e, "session taken over", [Disconnect];
    TopicFilterInvalid = 0x8f, "topic filter invalid", [SubAck, UnsubAck, Disconnect];
    TopicNameInvalid = 0x90, "topic name invalid", [ConnAck, PubAck, PubRec, Disconnect];
    PacketIdentifierInUse = 0x91, "packet identifier in use", [PubAck, PubRec, SubAck, UnsubAck];
    PacketIdentifierNotFound = 0x92, "packet identifier not found", [PubRel, PubComp];
    ReceiveMaximumExceeded = 0x93, "receive maximum exceeded", [Disconnect];
    TopicAliasInvalid = 0x94, "topic alias invalid", [Disconnect];
    PacketTooLarge = 0x95, "packet too large", [ConnAck, Disconnect];
    MessageRateTooHigh = 0x96, "message rate too high", [Disconnect];
    QuotaExceeded = 0x97, "quota exceeded", [ConnAck, PubAck, PubRec, SubAck, Disconnect];
    AdministrativeAction = 0x98, "administrative action", [Disconnect];
    PayloadFormatInvalid = 0x99, "payload format invalid", [ConnAck, PubAck, PubRec, Disconnect];
    RetainNotSupported = 0x9a, "retain not supported", [ConnAck, Disconnect];
    QoSNotSupported = 0x9b, "QoS not supported", [ConnAck, Disconnect];
    UseAnotherServer = 0x9c, "use another server", [ConnAck, Disconnect];
    ServerMoved = 0x9d, "server moved", [ConnAck, Disconnect];
    SharedSubscriptionsNotSupported = 0x9e, "shared subscriptions not supported", [SubAck, Disconnect];
    ConnectionRateExceeded = 0x9f, "connection rate exceeded", [ConnAck, Disconnect];
    MaximumConnectTime = 0xa0, "maximum connect time", [Disconnect];
    SubscriptionIdentifiersNotSupported = 0xa1, "subscription identifiers not supported", [SubAck, Disconnect];
    WildcardSubscriptionsNotSupported = 0xa2, "wildcard subscriptions not supported", [SubAck, Disconnect];
}

impl ReasonCode {
    /// Whether the code says that something was refused or went wrong.
    #[must_use]
    pub fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// The return code of a CONNACK before version 5 (3.1.1, table 3.1). `None`: there is none that fits, the connection is closed without
    /// a CONNACK.
    #[must_use]
    pub fn v3_return_code(self) -> Option<u8> {
        match self {
            Self::Success => Some(0),
            Self::UnsupportedProtocolVersion => Some(1),
            Self::ClientIdentifierNotValid => Some(2),
            Self::ServerUnavailable
            | Self::ServerBusy
            | Self::UseAnotherServer
            | Self::ConnectionRateExceeded
            | Self::QuotaExceeded => Some(3),
            Self::BadUserNameOrPassword => Some(4),
            Self::NotAuthorized | Self::Banned | Self::BadAuthenticationMethod => Some(5),
            _ => None,
        }
    }

    /// The code that says what the return code of a CONNACK before version 5 says.
    pub(super) fn from_v3_return_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Success),
            1 => Some(Self::UnsupportedProtocolVersion),
            2 => Some(Self::ClientIdentifierNotValid),
            3 => Some(Self::ServerUnavailable),
            4 => Some(Self::BadUserNameOrPassword),
            5 => Some(Self::NotAuthorized),
            _ => None,
        }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

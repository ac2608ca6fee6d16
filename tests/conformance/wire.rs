//! MQTT as bytes, written a second time and independently of the broker's codec: what both got wrong alike would otherwise pass.

/// Control packet types, as the upper half of the first byte.
pub mod kind {
    pub const CONNECT: u8 = 1;
    pub const CONNACK: u8 = 2;
    pub const PUBLISH: u8 = 3;
    pub const PUBACK: u8 = 4;
    pub const PUBREC: u8 = 5;
    pub const PUBREL: u8 = 6;
    pub const PUBCOMP: u8 = 7;
    pub const SUBSCRIBE: u8 = 8;
    pub const SUBACK: u8 = 9;
    pub const UNSUBSCRIBE: u8 = 10;
    pub const UNSUBACK: u8 = 11;
    pub const PINGREQ: u8 = 12;
    pub const PINGRESP: u8 = 13;
    pub const DISCONNECT: u8 = 14;
    pub const AUTH: u8 = 15;
}

/// MQTT 5 property identifiers.
pub mod property {
    pub const PAYLOAD_FORMAT: u8 = 0x01;
    pub const MESSAGE_EXPIRY: u8 = 0x02;
    pub const CONTENT_TYPE: u8 = 0x03;
    pub const RESPONSE_TOPIC: u8 = 0x08;
    pub const CORRELATION_DATA: u8 = 0x09;
    pub const SUBSCRIPTION_ID: u8 = 0x0b;
    pub const SESSION_EXPIRY: u8 = 0x11;
    pub const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub const AUTHENTICATION_METHOD: u8 = 0x15;
    pub const AUTHENTICATION_DATA: u8 = 0x16;
    pub const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub const WILL_DELAY: u8 = 0x18;
    pub const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub const SERVER_REFERENCE: u8 = 0x1c;
    pub const REASON_STRING: u8 = 0x1f;
    pub const RECEIVE_MAXIMUM: u8 = 0x21;
    pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub const TOPIC_ALIAS: u8 = 0x23;
    pub const USER_PROPERTY: u8 = 0x26;
    pub const MAXIMUM_PACKET_SIZE: u8 = 0x27;
}

/// The value of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Byte(u8),
    Two(u16),
    Four(u32),
    Variable(u32),
    Text(Vec<u8>),
    Pair(Vec<u8>, Vec<u8>),
}

pub type Property = (u8, Value);

pub fn byte(id: u8, value: u8) -> Property {
    (id, Value::Byte(value))
}

pub fn two(id: u8, value: u16) -> Property {
    (id, Value::Two(value))
}

pub fn four(id: u8, value: u32) -> Property {
    (id, Value::Four(value))
}

pub fn variable(id: u8, value: u32) -> Property {
    (id, Value::Variable(value))
}

/// A string or binary data: both have two bytes of length.
pub fn text(id: u8, value: &str) -> Property {
    (id, Value::Text(value.into()))
}

pub fn user(name: &str, value: &str) -> Property {
    (property::USER_PROPERTY, Value::Pair(name.into(), value.into()))
}

pub fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    let length = u16::try_from(text.len()).unwrap();
    [&length.to_be_bytes(), text].concat()
}

pub fn varint(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        bytes.push(low | if value > 0 { 0x80 } else { 0 });
        if value == 0 {
            return bytes;
        }
    }
}

/// Properties with their length in front.
pub fn properties(list: &[Property]) -> Vec<u8> {
    let mut body = Vec::new();
    for (id, value) in list {
        body.push(*id);
        match value {
            Value::Byte(value) => body.push(*value),
            Value::Two(value) => body.extend(value.to_be_bytes()),
            Value::Four(value) => body.extend(value.to_be_bytes()),
            Value::Variable(value) => body.extend(varint(*value)),
            Value::Text(value) => body.extend(string(value)),
            Value::Pair(name, value) => body.extend([string(name), string(value)].concat()),
        }
    }
    [varint(body.len() as u32), body].concat()
}

/// Properties where the version has them.
pub fn properties_of(version: u8, list: &[Property]) -> Vec<u8> {
    if version == 5 { properties(list) } else { Vec::new() }
}

/// A packet of type `kind` with the flags `flags`.
pub fn packet(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    [&[kind << 4 | flags], varint(body.len() as u32).as_slice(), body].concat()
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP that says success.
pub fn ack(kind: u8, id: u16) -> Vec<u8> {
    packet(kind, if kind == kind::PUBREL { 2 } else { 0 }, &id.to_be_bytes())
}

/// A packet as the broker sent it, taken apart. Whatever is malformed fails the test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub kind: u8,
    pub flags: u8,
    /// CONNACK, DISCONNECT and acknowledgements; 0 where left out.
    pub reason: u8,
    pub session_present: bool,
    /// 0 where there is none.
    pub id: u16,
    pub topic: String,
    pub payload: Vec<u8>,
    pub properties: Vec<Property>,
    /// SUBACK and UNSUBACK.
    pub codes: Vec<u8>,
    /// The whole packet.
    pub bytes: usize,
}

impl Received {
    pub fn qos(&self) -> u8 {
        self.flags >> 1 & 3
    }

    pub fn retain(&self) -> bool {
        self.flags & 1 != 0
    }

    pub fn dup(&self) -> bool {
        self.flags & 8 != 0
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).unwrap()
    }

    pub fn all(&self, id: u8) -> Vec<&Value> {
        self.properties.iter().filter(|(held, _)| *held == id).map(|(_, value)| value).collect()
    }

    /// A number among the properties.
    pub fn number(&self, id: u8) -> Option<u32> {
        self.all(id).first().map(|value| match value {
            Value::Byte(value) => u32::from(*value),
            Value::Two(value) => u32::from(*value),
            Value::Four(value) | Value::Variable(value) => *value,
            other => panic!("property {id:#x} is {other:?}"),
        })
    }

    /// Takes one packet off the front of `input`, if it is all there.
    pub fn take(input: &mut Vec<u8>, version: u8) -> Option<Self> {
        let mut reader = Reader { rest: input.get(1..)?, version };
        let length = reader.try_varint()? as usize;
        let body = reader.rest.get(..length)?;
        let bytes = input.len() - reader.rest.len() + length;
        let received = Self::parse(input[0], body, version, bytes);
        input.drain(..bytes);
        Some(received)
    }

    fn parse(first: u8, body: &[u8], version: u8, bytes: usize) -> Self {
        let mut packet = Self { kind: first >> 4, flags: first & 15, bytes, ..Self::default() };
        let mut reader = Reader { rest: body, version };
        if packet.kind != kind::PUBLISH {
            assert_eq!(packet.flags, if packet.kind == kind::PUBREL { 2 } else { 0 }, "reserved flags [MQTT-2.1.3-1]");
        }
        match packet.kind {
            kind::CONNACK => {
                let flags = reader.byte();
                assert_eq!(flags & !1, 0, "reserved CONNACK flags [MQTT-3.2.2-1]");
                packet.session_present = flags == 1;
                packet.reason = reader.byte();
                packet.properties = reader.properties();
            }
            kind::PUBLISH => {
                assert!(packet.qos() < 3, "[MQTT-3.3.1-4]");
                assert!(packet.qos() > 0 || !packet.dup(), "DUP at QoS 0 [MQTT-3.3.1-2]");
                packet.topic = String::from_utf8(reader.string()).unwrap();
                if packet.qos() > 0 {
                    packet.id = reader.two();
                    assert_ne!(packet.id, 0, "[MQTT-2.2.1-3]");
                }
                packet.properties = reader.properties();
                packet.payload = std::mem::take(&mut reader.rest).to_vec();
            }
            kind::PUBACK | kind::PUBREC | kind::PUBREL | kind::PUBCOMP => {
                packet.id = reader.two();
                if version == 5 && !reader.rest.is_empty() {
                    packet.reason = reader.byte();
                    packet.properties = if reader.rest.is_empty() { Vec::new() } else { reader.properties() };
                }
            }
            kind::SUBACK | kind::UNSUBACK => {
                packet.id = reader.two();
                packet.properties = reader.properties();
                packet.codes = std::mem::take(&mut reader.rest).to_vec();
                assert!(version == 5 || packet.kind == kind::SUBACK || packet.codes.is_empty(), "3.1.1 UNSUBACK has no payload");
            }
            kind::DISCONNECT | kind::AUTH => {
                assert_eq!(version, 5, "a 3.1.1 server sends neither DISCONNECT nor AUTH");
                if !reader.rest.is_empty() {
                    packet.reason = reader.byte();
                    packet.properties = if reader.rest.is_empty() { Vec::new() } else { reader.properties() };
                }
            }
            kind::PINGRESP => {}
            other => panic!("a server sends no packet of type {other}"),
        }
        assert!(reader.rest.is_empty(), "bytes left over in {packet:?}");
        packet
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    version: u8,
}

impl Reader<'_> {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let (taken, rest) = self.rest.split_at_checked(count).expect("a packet ends before its fields do");
        self.rest = rest;
        taken.to_vec()
    }

    fn byte(&mut self) -> u8 {
        self.bytes(1)[0]
    }

    fn two(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes(2).try_into().unwrap())
    }

    fn four(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes(4).try_into().unwrap())
    }

    fn string(&mut self) -> Vec<u8> {
        let length = self.two();
        self.bytes(length.into())
    }

    fn try_varint(&mut self) -> Option<u32> {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        panic!("a variable byte integer of more than four bytes")
    }

    fn properties(&mut self) -> Vec<Property> {
        if self.version != 5 {
            return Vec::new();
        }
        let length = self.try_varint().unwrap() as usize;
        let body = self.bytes(length);
        let mut inner = Reader { rest: &body, version: 5 };
        let mut list: Vec<Property> = Vec::new();
        while !inner.rest.is_empty() {
            let id = inner.byte();
            let value = match id {
                0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => Value::Byte(inner.byte()),
                0x13 | 0x21 | 0x22 | 0x23 => Value::Two(inner.two()),
                0x02 | 0x11 | 0x18 | 0x27 => Value::Four(inner.four()),
                0x0b => Value::Variable(inner.try_varint().unwrap()),
                0x03 | 0x08 | 0x09 | 0x12 | 0x15 | 0x16 | 0x1a | 0x1c | 0x1f => Value::Text(inner.string()),
                0x26 => Value::Pair(inner.string(), inner.string()),
                other => panic!("there is no property {other:#x}"),
            };
            let may_repeat = id == property::USER_PROPERTY || id == property::SUBSCRIPTION_ID;
            assert!(may_repeat || list.iter().all(|(held, _)| *held != id), "property {id:#x} twice");
            list.push((id, value));
        }
        list
    }
}

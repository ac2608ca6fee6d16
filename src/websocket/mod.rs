//! WebSocket, the server's side, without a socket: the opening handshake ([`upgrade`]) and the frames ([`frame`]).
//!
//! * No extension is spoken, and none is offered back: no compression, whose memory strangers would command.
//! * Frames are taken apart where they lie and are never put together: what is held of one is its header, or a control frame of 125 bytes.
//!   So neither its size nor the number of fragments costs memory.
//! * MQTT flows through as bytes: packets may span frames, and frames may hold several [MQTT-6.0.0-2].
//!
//! Specification: RFC 6455; MQTT 5.0 section 6.

pub mod frame;
pub mod upgrade;

//! QUIC endpoint, admission, links.

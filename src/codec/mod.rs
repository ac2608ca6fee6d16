//! Bytes to MQTT control packets and back.

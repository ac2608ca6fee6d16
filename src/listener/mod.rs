//! Accepts clients.

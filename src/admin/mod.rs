//! Health, metrics, REST.

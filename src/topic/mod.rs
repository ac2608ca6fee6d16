//! Topic names and filters.

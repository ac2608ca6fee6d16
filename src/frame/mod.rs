//! The mesh's wire format.

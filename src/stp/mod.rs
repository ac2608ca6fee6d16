//! The spanning tree.

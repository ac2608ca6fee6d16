//! The programs.

//! What is counted.

//! What every broker knows of every other.

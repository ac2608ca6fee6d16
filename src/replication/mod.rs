//! Lane rings, cursors, covers.

//! One client's state.

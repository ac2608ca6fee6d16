//! Who gets a message.

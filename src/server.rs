//! Starts the shell's modules in order, stops them in reverse.

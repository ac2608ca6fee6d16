//! The parts of `replication` whose correctness is one of the order of single steps. Their models stand in their own tests.

#![expect(dead_code, reason = "what no model needs")]

#[path = "../src/replication"]
mod replication {
    mod gate;
    mod ring;
    mod sync;
    mod wake;
}

//! What the mesh counts of words that it did not take from a peer. Each is also logged, the same words about the same broker once a minute.

use crate::metrics::Counter;

/// Words of peers that were not taken, by what was wrong with them.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Root claims that no honest broker passes on: a wrong signature, another broker's certificate. The link was closed.
    pub claims_forged: Counter,
    /// Root claims signed by a broker that is not admitted here at present: expired, revoked, of another authority. They wait.
    pub claims_untrusted: Counter,
    /// Root claims that came faster than they are checked. They wait.
    pub claims_throttled: Counter,
    /// BPDUs that wait for the claim of their tree.
    pub bpdus_waiting: Counter,
    /// BPDUs that no honest broker sends: a tree without a claim, or one that its sender has left behind. The link was closed.
    pub bpdus_forged: Counter,
    /// Broker records that no honest broker passes on. The link was closed.
    pub records_forged: Counter,
    /// Broker records signed by a broker that is not admitted here at present. They were dropped.
    pub records_untrusted: Counter,
    /// Broker records that came faster than they are checked. They were dropped.
    pub records_throttled: Counter,
    /// Broker records of a newer version that this one does not understand. They were dropped.
    pub records_not_understood: Counter,
    /// Deltas of registers that no honest broker passes on. The link was closed.
    pub deltas_forged: Counter,
    /// Deltas of registers signed by a broker that is not admitted here at present. They were dropped.
    pub deltas_untrusted: Counter,
    /// Deltas of registers that came faster than they are checked. They were dropped, and asked for later.
    pub deltas_throttled: Counter,
    /// Deltas that this broker does not understand, that do not add up, or of a register that is too large: nothing is known of it.
    pub deltas_not_understood: Counter,
    /// Copies of registers that are not what their owners have signed. They were dropped, and asked for again.
    pub copies_bad: Counter,
    /// Probes of traces, and answers to them, that came faster than they are followed, or of more traces than are remembered. They were dropped.
    pub traces_throttled: Counter,
}

//! A trace as whoever asks for it sees it: the question goes to the driver, the answers are gathered here until all have come or it is time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout_at;

use super::MeshHandle;
use super::driver::TraceCall;
use crate::clock;
use crate::codec::QoS;
use crate::ids::BrokerId;
use crate::limits::BROKERS_MAX;
use crate::shared::trace::{Trace, TraceError, TraceGround};

/// Who has not answered by then is silent.
const PATIENCE: Duration = Duration::from_secs(2);

impl MeshHandle {
    /// The way that a message of `topic` (a checked name) would take from here. Comes after two seconds at the latest.
    ///
    /// # Errors
    /// [`TraceError::Busy`]; also where the mesh has ended.
    pub async fn trace(&self, topic: &str, qos: QoS, retain: bool) -> Result<Trace, TraceError> {
        let until = tokio::time::Instant::from_std(clock::now() + PATIENCE);
        let (begun, has_begun) = oneshot::channel();
        let (answers, mut heard) = mpsc::channel(BROKERS_MAX);
        let call = TraceCall { topic: topic.into(), qos, retain, begun, answers };
        self.calls.try_send(call).map_err(|_| TraceError::Busy)?;
        let leaves = timeout_at(until, has_begun).await.ok().and_then(Result::ok).ok_or(TraceError::Busy)?;
        let mut ground = self.ground(leaves);
        let mut missing = ground.expected.clone();
        let mut answered = Vec::new();
        while !missing.is_empty()
            && let Ok(Some(answer)) = timeout_at(until, heard.recv()).await
        {
            missing.remove(&answer.broker());
            answered.push(answer);
        }
        // A broker that has come meanwhile has a name by now.
        ground.names.extend(self.names());
        Ok(Trace::of(&ground, topic, qos, retain, &answered))
    }

    fn ground(&self, leaves: bool) -> TraceGround {
        let (origin, topology) = (self.book.look(|own, _| own.id), self.topology());
        let expected = topology.brokers.iter().map(|broker| broker.id).collect();
        TraceGround { mesh: self.mesh.clone(), origin, names: self.names(), expected, leaves }
    }

    /// Of all who are spoken of in records.
    fn names(&self) -> BTreeMap<BrokerId, String> {
        self.book.look(|own, others| {
            let records = || std::iter::once(own).chain(others.iter());
            let linked = records().flat_map(|record| &record.links).map(|link| (link.peer, link.name.clone()));
            linked.chain(records().map(|record| (record.id, record.name.clone()))).collect()
        })
    }
}

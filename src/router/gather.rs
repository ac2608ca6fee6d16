//! Messages of QoS 0 from one publisher to one topic that follow one another in a batch go to their receivers together, as a [`Run`].
//!
//! Packets that differ from one that was gathered in their payload only join it without having been taken apart ([`Router::gather_alike`]).
//!
//! What is gathered is handed on before anything else of the batch is, so each receiver gets all in the order in which it was published. To other brokers each message goes by
//! itself, as ever.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Router;
use super::picks::Offer;
use super::publish::{Batch, Ingress, Routed};
use super::route::{Route, RouteCache, Target};
use crate::codec::{Alike, QoS};
use crate::limits::SHARE_PAYLOAD_BYTES;
use crate::session::{Message, Run, Subscriber, SubscriberId};

/// To whom a run goes.
#[derive(Debug)]
pub(super) struct Gathered {
    route: Arc<Route>,
    /// Under which the route was found.
    generation: u64,
    publisher: Option<SubscriberId>,
}

/// Whether a message is no more than its bytes to whoever receives it: it is of QoS 0, small, and neither retained nor for somebody in particular.
pub(super) fn is_plain(message: &Message<'_>, ingress: &Ingress<'_>) -> bool {
    let is_for_all = match ingress {
        Ingress::Session(_) => true,
        Ingress::Link(arrival) => arrival.picks.is_empty(),
        Ingress::Will(_) | Ingress::LinkAfterAbsence(_) | Ingress::System => false,
    };
    is_for_all && message.qos == QoS::AtMostOnce && !message.retain && message.payload.len() < SHARE_PAYLOAD_BYTES
}

impl Router {
    /// Keeps a plain message of QoS 0, so that its receivers get it together with those before and behind it to the same topic. Its route, if it is to be given to them at
    /// once.
    pub(super) fn gather(
        &self,
        batch: &mut Batch,
        routes: &mut RouteCache,
        message: &Message<'_>,
        publisher: Option<&Subscriber>,
        now: Instant,
    ) -> Result<Routed, Arc<Route>> {
        let (generation, id) = (self.generation.load(Ordering::Acquire), publisher.map(|publisher| publisher.id));
        let goes_on = |gathered: &Gathered| gathered.generation == generation && gathered.publisher == id;
        if !(batch.gathered.as_ref().is_some_and(goes_on) && batch.run.takes(message)) {
            self.deliver_gathered(batch, now);
            let route = self.route(routes, message.topic, publisher);
            // A group gives each to another of its members.
            if !route.may_publish || !route.shared.is_empty() {
                return Err(route);
            }
            batch.gathered = Some(Gathered { route, generation, publisher: id });
            batch.run.begin(message.topic);
        }
        batch.run.push(message);
        let mesh = self.mesh().filter(|_| publisher.is_some());
        let Some(Gathered { route, .. }) = &batch.gathered else { return Ok(Routed::Done) };
        let Some(mesh) = mesh else {
            return Ok(if route.is_empty() { Routed::Unmatched } else { Routed::Done });
        };
        let route = Arc::clone(route);
        batch.picks.clear();
        Ok(self.publish_abroad(batch, &Offer { route: &route, message, publisher, now }, (None, None), mesh))
    }

    /// Publishes what follows the first of `packets`, which is of `first_bytes` bytes, to `topic`, and was published just before by the same client, as far as it is like that
    /// one, if that one was gathered. Gives how many these were, and their bytes.
    pub fn gather_alike(
        &self,
        batch: &mut Batch,
        alike: &Alike<'_>,
        (topic, packets, first_bytes): (&str, &[u8], usize),
        publisher: &Subscriber,
        now: Instant,
    ) -> (usize, usize) {
        let generation = self.generation.load(Ordering::Acquire);
        let goes_on = |gathered: &&Gathered| gathered.generation == generation && gathered.publisher == Some(publisher.id);
        let Some(gathered) = batch.gathered.as_ref().filter(goes_on) else { return (0, 0) };
        // The last packet was not given to the router at all: its topic is the broker's own.
        if batch.run.topic() != topic {
            return (0, 0);
        }
        let (before, payload_bytes) = (batch.run.len(), batch.run.payload_bytes());
        let bytes = batch.run.push_alike(alike, packets, first_bytes);
        let count = batch.run.len() - before;
        if count == 0 {
            return (0, 0);
        }
        if let Some(mesh) = self.mesh() {
            let route = Arc::clone(&gathered.route);
            let elsewhere = route.elsewhere(topic, QoS::AtMostOnce, mesh.interest());
            let run = std::mem::take(&mut batch.run);
            if elsewhere.has_shares {
                for message in run.messages().skip(before) {
                    batch.picks.clear();
                    self.publish_abroad(
                        batch,
                        &Offer { route: &route, message: &message, publisher: Some(publisher), now },
                        (None, None),
                        mesh,
                    );
                }
            } else if elsewhere.is_wanted {
                batch.publish_run(mesh, run.messages().skip(before), now);
            }
            batch.run = run;
        }
        batch.count_received(count, batch.run.payload_bytes() - payload_bytes);
        (count, bytes)
    }

    /// Gives what was gathered to its receivers.
    pub(super) fn deliver_gathered(&self, batch: &mut Batch, now: Instant) {
        let Some(Gathered { route, publisher, .. }) = batch.gathered.take() else { return };
        if route.targets.is_empty() {
            return;
        }
        let mut run = std::mem::take(&mut batch.run);
        run.receivers(route.targets.len());
        batch.begin(self.pressure.level());
        for target in &route.targets {
            if !(target.no_local && publisher == Some(target.subscriber.id)) {
                batch.deliver_run(target, &mut run, now);
            }
        }
        batch.run = run;
    }
}

impl Batch {
    /// All messages of a run to one receiver.
    fn deliver_run(&mut self, target: &Target, run: &mut Run, now: Instant) {
        if target.subscription_ids.is_none() {
            let memory = self.variants().0.memory;
            let taken = target.subscriber.lock().deliver_run(run, memory, now);
            if let Some((is_sent, owner)) = taken {
                self.count_run(is_sent, run);
                self.wake_later(owner);
                return;
            }
        }
        for message in run.messages() {
            self.variants().0.begin();
            let outcome = self.deliver(target, &message, now, true);
            self.count(outcome, message.payload.len());
        }
    }
}

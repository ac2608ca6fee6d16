//! Dials: whom `neighbours` wants, and every place where nobody was met yet, each in a task of its own.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;

use super::gossip::{Gossip, learn};
use super::targets::{Attempt, Known, Targets};
use super::{ADDRESSES_MAX, Found, Place, Source, Surroundings, Target, Ways, fixed};
use crate::clock;
use crate::config::{Discovery, HostPort};
use crate::ids::BrokerId;
use crate::mesh::error::LinkError;
use crate::task;

/// How often the records are looked at anew.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts whose end waits to be noted.
const DONE_MAX: usize = 64;

pub(super) struct Dialler {
    around: Surroundings,
    ways: Ways,
    targets: Targets,
    gossip: Gossip,
    wanted: BTreeSet<BrokerId>,
    linked: watch::Receiver<BTreeSet<BrokerId>>,
    done: mpsc::Sender<Done>,
    done_out: mpsc::Receiver<Done>,
    look_at: Instant,
}

/// How an attempt ended.
#[derive(Debug)]
struct Done {
    target: Target,
    met: Option<BrokerId>,
    /// There is a link now with whom it was about, or was one already.
    linked: bool,
}

impl Dialler {
    pub(super) fn new(around: Surroundings) -> Self {
        let (done, done_out) = mpsc::channel(DONE_MAX);
        let local = &around.connector.local;
        let (targets, linked) = (Targets::new(local.identity.id), local.roster.follow_links());
        let ways = Ways { peers: Vec::new(), discovery: Vec::new() };
        Self {
            around,
            ways,
            targets,
            gossip: Gossip::default(),
            wanted: BTreeSet::new(),
            linked,
            done,
            done_out,
            look_at: clock::now(),
        }
    }

    /// From now on these ways count. What others had found is forgotten; links stay.
    pub(super) fn begin(&mut self, ways: Ways) {
        let names = fixed::names(&ways);
        self.targets.retain_sources(|source| match source {
            Source::Static => true,
            Source::Dns(name) => names.contains(name),
            Source::Mdns => ways.has(Discovery::Mdns),
            Source::Gossip => ways.has(Discovery::Gossip),
        });
        self.targets.hear(fixed::found(&ways), clock::now());
        self.ways = ways;
        self.look();
    }

    /// Dials until dropped.
    pub(super) async fn run(&mut self, mut found: mpsc::Receiver<Found>) {
        loop {
            let now = clock::now();
            self.dial(now);
            let wake = self.targets.next_due(now).map_or(self.look_at, |due| due.min(self.look_at));
            tokio::select! {
                Some(found) = found.recv() => {
                    self.targets.hear(found, clock::now());
                    self.look();
                }
                Some(done) = self.done_out.recv() => self.note(&done),
                Ok(()) = self.linked.changed() => self.look(),
                () = sleep_until(wake.into()) => if self.look_at <= clock::now() { self.look() },
            }
        }
    }

    /// What the records say, whom that makes wanted.
    fn look(&mut self) {
        let now = clock::now();
        self.look_at = now + LOOK_INTERVAL;
        if self.ways.has(Discovery::Gossip) {
            self.gossip.read(&self.around, now);
            self.targets.hear(self.gossip.found(), now);
        }
        self.linked.mark_unchanged();
        let links = self.around.book.links.load();
        self.targets.note_links(&links.iter().map(|link| (link.peer.id, link.peer.address)).collect(), now);
        let told = self.around.book.look(|_, others| others.iter().map(|record| record.id).collect());
        self.targets.note_records(&told, now);
        let Known { dialable, named, gone } = self.targets.known(now);
        let mut neighbours = self.around.connector.local.roster.neighbours.lock();
        learn(&self.around.book, &mut neighbours);
        neighbours.tell(named, self.ways.chooses());
        self.wanted = neighbours.choose(&dialable, &gone, now).into_iter().collect();
    }

    fn dial(&mut self, now: Instant) {
        let local = &self.around.connector.local;
        let attempts = self.targets.due(&self.wanted, |id| local.roster.neighbours.lock().rtt(id), now);
        for attempt in attempts {
            let (around, done) = (self.around.clone(), self.done.clone());
            task::spawn("dial", async move {
                let ended = around.attempt(attempt).await;
                let _ = done.send(ended).await;
            });
        }
    }

    fn note(&mut self, Done { target, met, linked }: &Done) {
        let now = clock::now();
        match self.targets.attempted(target, *met, now) {
            Some(id) if !linked => self.around.connector.local.roster.neighbours.lock().in_vain(id, now),
            _ => {}
        }
        // Who was met may not be wanted, or be another than was thought.
        self.look();
    }
}

impl Surroundings {
    /// Tries the places in their order until a broker answers.
    async fn attempt(&self, Attempt { target, places, patience }: Attempt) -> Done {
        let mut met = None;
        for place in places {
            let addresses = match &place {
                Place::Address(address) => vec![*address],
                Place::Name(name) => match resolve(name).await {
                    Ok(addresses) => addresses,
                    Err(error) => {
                        self.connector.complain_text("cannot look up", &name.to_string(), &error);
                        continue;
                    }
                },
            };
            for address in addresses.into_iter().filter(|address| self.can_dial(*address)) {
                let (there, ended) = match self.linked_at(address) {
                    Some(id) => (Some(id), Err(LinkError::Linked(id))),
                    None => self.connector.dial(address, patience).await,
                };
                met = if matches!(&target, Target::Broker(id) if met == Some(*id)) { met } else { there.or(met) };
                match ended {
                    Ok(()) | Err(LinkError::Linked(_)) if is_end(&target, there) => return Done { target, met, linked: true },
                    Ok(()) | Err(LinkError::Linked(_)) => {}
                    Err(error) => self.connector.complain("no link", &place.to_string(), &address.to_string(), &error),
                }
            }
        }
        Done { target, met, linked: false }
    }
}

/// Whether a link with `there` is what the attempt was for: at an address anybody is right, but where somebody was said to live another may.
fn is_end(target: &Target, there: Option<BrokerId>) -> bool {
    !matches!(target, Target::Broker(id) if there != Some(*id))
}

/// The addresses of a name, as the system knows them, without repetition.
async fn resolve(name: &HostPort) -> Result<Vec<SocketAddr>, String> {
    let found = tokio::time::timeout(LOOK_UP_TIMEOUT, tokio::net::lookup_host((name.host.as_str(), name.port))).await;
    let found = found.map_err(|_| "the name service does not answer".to_owned())?.map_err(|error| error.to_string())?;
    let mut addresses = Vec::new();
    for address in found.take(ADDRESSES_MAX) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_was_looked_for_ends_an_attempt() {
        let (own, other) = (Some(BrokerId(7)), Some(BrokerId(8)));
        let by_id = Target::Broker(BrokerId(7));
        assert!(is_end(&by_id, own) && !is_end(&by_id, other) && !is_end(&by_id, None));
        let place = Target::At(Place::Address(([192, 0, 2, 1], 7883).into()));
        assert!(is_end(&place, own) && is_end(&place, other));
    }
}

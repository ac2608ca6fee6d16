//! The table of links: who is admitted, what takes whose place, what was lost and measured.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use super::claims::words;
use super::records::{link_record, told_loss};
use super::{Driver, Entry, Lost, Probed, RTT_NEWS, Settings};
use crate::ids::{BrokerId, PortId, RootClaim};
use crate::mesh::connect::Proposal;
use crate::mesh::discovery::learn;
use crate::mesh::error::LinkError;
use crate::mesh::events::MeshEvent;
use crate::mesh::handshake::{Candidate, refuse};
use crate::mesh::link::{self, LocalSide, Measured};
use crate::mesh::rivals::{self, Contender, Verdict};
use crate::neighbours;
use crate::shared::{LinkRole, LinkState};
use crate::stp::{Input, Role, Stp};
use crate::{clock, task};

impl Driver {
    pub(super) fn judge(&mut self, proposal: Proposal) {
        let own = self.settings.local.identity.id;
        let Candidate { peer, we_dialled, .. } = &proposal.candidate;
        self.settings.local.roster.met(peer.id, peer.incarnation);
        let newcomer = Contender::new(own, peer.id, peer.incarnation, *we_dialled);
        let present = self.links.get(&peer.id).map(|entry| &entry.link);
        let contender = present.map(|link| Contender::new(own, peer.id, link.peer.incarnation, link.we_dialled));
        match rivals::judge(contender, newcomer) {
            Verdict::Admit => self.admit(proposal),
            Verdict::Stale => reject(proposal, LinkError::Stale),
            Verdict::Probe => {
                let Some(rival) = present.cloned() else { return };
                let probed = self.probed.clone();
                let frames = rival.frames();
                task::spawn("probe", async move {
                    sleep(rival.health().detection_time).await;
                    let _ = probed.send(Probed { proposal, rival: rival.id, frames }).await;
                });
            }
        }
    }

    pub(super) fn judge_probed(&mut self, Probed { proposal, rival, frames }: Probed) {
        let peer = proposal.candidate.peer.id;
        match self.entry(rival) {
            Some(entry) if entry.link.frames() > frames => reject(proposal, LinkError::Linked(peer)),
            // It was silent: the newcomer takes its place.
            Some(_) => self.admit(proposal),
            None => self.judge(proposal),
        }
    }

    pub(super) fn admit(&mut self, Proposal { candidate, answer }: Proposal) {
        let expires = match self.admitted_until(&candidate.control) {
            Ok(expires) => expires,
            Err(error) => return reject(Proposal { candidate, answer }, error),
        };
        let peer = candidate.peer.clone();
        if let Some(entry) = self.links.get(&peer.id) {
            let port = entry.link.id;
            entry.link.fail(LinkError::Superseded);
            self.down(port, &LinkError::Superseded);
        } else if let Err(error) = self.make_room(peer.id, candidate.control.rtt()) {
            return reject(Proposal { candidate, answer }, error);
        }
        self.settle_life();
        self.generation += 1;
        let id = PortId { peer: peer.id, generation: self.generation };
        let port = self.settings.replication.add_port(id);
        let Settings { deliver, retained, replication, office, .. } = &self.settings;
        let local_side = LocalSide {
            deliver: Arc::clone(deliver),
            retained: Arc::clone(retained),
            replication: Arc::clone(replication),
            post: Arc::clone(office),
        };
        let (link, measured) = link::start(candidate, id, port, &self.settings.local, local_side, self.events.clone());
        info!(peer = %peer.name, address = %peer.address, dialled = link.we_dialled, "link up");
        self.settings.local.metrics.links_opened.add(1);
        self.happened(&MeshEvent::LinkUp { peer: peer.name.clone(), address: peer.address.to_string() });
        let entry = Entry {
            link,
            measured,
            told_rtt: measured.rtt,
            role: Role::Disabled,
            forwarding: false,
            shown: None,
            heard: None,
            expires,
            words: words(clock::now()),
            up_since: clock::now(),
        };
        self.links.insert(peer.id, entry);
        self.lost.remove(&peer.id);
        self.settings.local.roster.neighbours.lock().link_up(peer.id, measured.rtt, clock::now());
        self.settings.local.roster.set_linked(peer.id, true);
        self.publish_links();
        let _ = answer.send(Ok(()));
        self.introduce(id);
        self.register_up(id);
        self.tree(Input::LinkUp { port: id, cost: measured.cost, rtt: measured.rtt });
        self.changed();
    }

    /// Gives up a link for `newcomer` if there are as many as there may be, and it is worth that.
    fn make_room(&mut self, newcomer: BrokerId, rtt: Duration) -> Result<(), LinkError> {
        let links_max = self.settings.links_max;
        if self.links.len() < links_max {
            return Ok(());
        }
        let now = clock::now();
        let verdict = {
            let mut neighbours = self.settings.local.roster.neighbours.lock();
            learn(&self.book, &mut neighbours);
            neighbours.measured(newcomer, rtt);
            let verdict = neighbours.judge(newcomer, rtt, now);
            if verdict != neighbours::Verdict::Refuse {
                neighbours.gave_up(now);
            }
            verdict
        };
        let given_up = match verdict {
            neighbours::Verdict::InPlaceOf(peer) => self.links.get(&peer).map(|entry| entry.link.id),
            neighbours::Verdict::Admit | neighbours::Verdict::Refuse => None,
        };
        let port = given_up.ok_or(LinkError::TooManyLinks(links_max))?;
        self.on_link(port, |link| link.fail(LinkError::GivenUp));
        self.down(port, &LinkError::GivenUp);
        Ok(())
    }

    /// Handshakes may have raised our incarnation until now: the tree must not know another one.
    pub(super) fn settle_life(&mut self) {
        let incarnation = self.settings.local.life.lock().settle();
        if self.links.is_empty() && self.settings.tree.claim.incarnation != incarnation && self.generation == 0 {
            self.settings.tree.claim = RootClaim { incarnation, ..self.settings.tree.claim };
            self.stp = Stp::new(self.settings.tree);
            if let Some(recorder) = &mut self.recorder {
                recorder.begin(&self.settings.tree);
            }
        }
    }

    /// Tells a new neighbour of everybody.
    pub(super) fn introduce(&mut self, port: PortId) {
        let own = self.sign_record(&self.book.own.read());
        let records = Arc::clone(&self.book.records);
        let Some(entry) = self.entry(port) else { return };
        own.iter().chain(records.read().signed()).for_each(|signed| entry.send_record(signed));
    }

    pub(super) fn down(&mut self, port: PortId, error: &LinkError) {
        let Some(entry) = self.links.remove(&port.peer) else { return };
        if entry.link.id != port {
            self.links.insert(port.peer, entry);
            return;
        }
        if error.is_lie() {
            self.settings.local.roster.shun(port.peer, clock::now());
        }
        let lived = clock::now().saturating_duration_since(entry.up_since);
        if error.is_ordinary() {
            info!(peer = %entry.link.peer.name, reason = %error, lived_ms = lived.as_millis(), "link down");
        } else {
            warn!(peer = %entry.link.peer.name, reason = %error, lived_ms = lived.as_millis(), "link down");
        }
        self.settings.local.metrics.closed(error);
        let lived_ms = u64::try_from(lived.as_millis()).unwrap_or(u64::MAX);
        self.happened(&MeshEvent::LinkDown { peer: entry.link.peer.name.clone(), reason: error.to_string(), lived_ms });
        let mut record = link_record(&entry);
        (record.role, record.state) = (LinkRole::Disabled, LinkState::Down);
        // What was given up is not missed.
        if !error.is_full() {
            self.lost.insert(port.peer, Lost { record, at: clock::now() });
        }
        self.settings.local.roster.neighbours.lock().link_down(port.peer);
        self.settings.local.roster.set_linked(port.peer, false);
        self.publish_links();
        self.register_down(port);
        // The connection is closed, so that its lanes' tasks write nothing more: the tree may open lanes elsewhere.
        self.tree(Input::LinkDown { port });
        self.not_behind(port);
        self.changed();
    }

    pub(super) fn measured(&mut self, port: PortId, measured: Measured) {
        let Some(entry) = self.entry(port) else { return };
        let news = measured.cost != entry.measured.cost
            || measured.rtt > entry.told_rtt.mul_f64(RTT_NEWS)
            || entry.told_rtt > measured.rtt.mul_f64(RTT_NEWS)
            || told_loss(measured.loss) != told_loss(entry.measured.loss);
        entry.measured = measured;
        let peer = port.peer;
        if news {
            entry.told_rtt = measured.rtt;
            self.changed();
        }
        self.settings.local.roster.neighbours.lock().measured(peer, measured.rtt);
        self.tree(Input::Cost { port, cost: measured.cost, rtt: measured.rtt });
    }

    pub(super) fn publish_links(&mut self) {
        self.book.links.store(Arc::new(self.links.values().map(|entry| Arc::clone(&entry.link)).collect()));
        self.find_ways();
    }

    /// Letters go by the links that there are now.
    pub(super) fn find_ways(&mut self) {
        self.ways_due = None;
        self.settings.office.follow(&self.book.links.load(), self.book.records.read().iter(), clock::now());
    }
}

fn reject(Proposal { candidate, answer }: Proposal, error: LinkError) {
    refuse(&[&candidate.control, &candidate.lanes], &error);
    let _ = answer.send(Err(error));
}

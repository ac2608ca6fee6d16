//! Broker records: what this broker tells of itself and when, and what it passes on of others.

use std::time::Instant;

use bytes::Bytes;
use tracing::{debug, warn};

use super::{Driver, Entry, RECORD_AHEAD, RECORD_DELAY, RECORD_INTERVAL, RECORD_REFRESH, Settings};
use crate::clock;
use crate::frame::control::ControlFrame;
use crate::ids::PortId;
use crate::limits::RECORD_LINKS_MAX;
use crate::mesh::link::Link;
use crate::shared::{BrokerRecord, LastChange, LinkRecord, LinkRole, LinkState, Merge};
use crate::stp::{Role, Stp};

impl Driver {
    pub(super) fn record(&mut self, from: PortId, record: BrokerRecord, wire: Bytes) {
        let (id, incarnation) = (record.id, record.incarnation);
        let merged = self.book.records.write().merge(record, wire.clone(), clock::now());
        match merged {
            Merge::New => {
                self.book.events.ring();
                let others = self.links.values().filter(|entry| entry.link.id != from);
                others.for_each(|entry| entry.link.send(&ControlFrame::Record(&wire)));
            }
            Merge::OfOurselves => {
                // A former life's record may go round. A later life than ours is somebody else's, or a word that anybody can write: what
                // stops us is a peer that has met it.
                let own = self.settings.local.life.lock().incarnation();
                if incarnation > own && self.complaints.is_news("ourselves", "later life", clock::now()) {
                    warn!(incarnation = incarnation.0, own = own.0, "a record tells of a later life of this broker");
                }
            }
            Merge::Known => {}
            Merge::Full => debug!(%id, "no room for a broker's record"),
            Merge::TooOften => debug!(%id, "a broker writes too many records"),
        }
    }

    /// Something that our record tells is no longer so.
    pub(super) fn changed(&mut self) {
        self.untold_since.get_or_insert_with(clock::now);
    }

    /// When our record is to be told next. A change waits a moment for those that come with it.
    pub(super) fn record_due(&self) -> Instant {
        let Some(since) = self.untold_since else { return self.told_at + RECORD_REFRESH };
        let due = since + RECORD_DELAY;
        self.in_step_at.checked_sub(RECORD_AHEAD).map_or(due, |earliest| due.max(earliest))
    }

    pub(super) fn tell_record(&mut self) {
        self.show_changes();
        let (now, sequence) = (clock::now(), self.book.own.read().sequence + 1);
        let lost = self.lost.values().map(|lost| lost.record.clone());
        let links: Vec<_> = self.links.values().map(link_record).chain(lost).take(RECORD_LINKS_MAX).collect();
        let record = own_record(&self.settings, &self.stp, &self.last_change, links, sequence);
        self.links.values().for_each(|entry| send_record(&entry.link, &record));
        *self.book.own.write() = record;
        self.book.events.ring();
        (self.untold_since, self.told_at) = (None, now);
        self.in_step_at = self.in_step_at.max(now) + RECORD_INTERVAL;
    }
}

pub(super) fn send_record(link: &Link, record: &BrokerRecord) {
    match record.encode() {
        Ok(encoded) => link.send(&ControlFrame::Record(&encoded)),
        Err(error) => warn!(%error, "a record cannot be written"),
    }
}

pub(super) fn change_now(cause: &str) -> LastChange {
    let at = u64::try_from(clock::unix_time().as_millis()).unwrap_or(u64::MAX);
    LastChange { at, cause: cause.to_owned() }
}

pub(super) fn own_record(
    settings: &Settings,
    stp: &Stp,
    last_change: &LastChange,
    links: Vec<LinkRecord>,
    sequence: u64,
) -> BrokerRecord {
    let claim = settings.tree.claim;
    BrokerRecord {
        id: claim.id,
        incarnation: claim.incarnation,
        sequence,
        name: settings.local.name.clone(),
        addresses: settings.addresses.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        priority: claim.priority,
        capacity: claim.capacity,
        root: stp.tree().root.id,
        epoch: stp.tree().epoch,
        changes: stp.changes().0,
        last_change: last_change.clone(),
        links,
        links_max: if settings.chooses { u16::try_from(settings.links_max).unwrap_or(u16::MAX) } else { 0 },
    }
}

pub(super) fn link_record(entry: &Entry) -> LinkRecord {
    let (role, state) = link_port(entry);
    LinkRecord {
        peer: entry.link.id.peer,
        name: entry.link.peer.name.clone(),
        role,
        state,
        cost: entry.measured.cost.get(),
        rtt_us: u64::try_from(entry.told_rtt.as_micros()).unwrap_or(u64::MAX),
        loss: told_loss(entry.measured.loss),
        address: Some(entry.link.peer.address),
    }
}

/// What a link that is up is to the tree.
pub(super) fn link_port(entry: &Entry) -> (LinkRole, LinkState) {
    let role = match entry.role {
        Role::Root => LinkRole::Root,
        Role::Designated => LinkRole::Designated,
        Role::Alternate => LinkRole::Alternate,
        Role::Disabled => LinkRole::Disabled,
    };
    (role, if entry.forwarding { LinkState::Forwarding } else { LinkState::Blocked })
}

/// In whole percent: no more is known of 32 packets.
pub(super) fn told_loss(loss: f64) -> f64 {
    (loss * 100.0).round() / 100.0
}

//! Broker records: what this broker tells of itself and when, and what it passes on of others.

use std::time::Instant;

use bytes::Bytes;
use tracing::{debug, warn};

use super::{Driver, Entry, RECORD_AHEAD, RECORD_DELAY, RECORD_INTERVAL, RECORD_REFRESH, Settings, WAYS_DELAY};
use crate::clock;
use crate::ids::{BrokerId, PortId};
use crate::limits::RECORD_LINKS_MAX;
use crate::mesh::link::OwnedSeal;
use crate::mesh::proof::Statement;
use crate::shared::{BrokerRecord, LastChange, LinkRecord, LinkRole, LinkState, Merge, RecordHead, SignedRecord};
use crate::stp::{Role, Stp};

impl Driver {
    /// A peer passes a record on, or tells its own. It is believed, kept and passed on once its signature is checked; of what is no news only
    /// the head is read. What is signed and not understood is of a newer version, and is dropped.
    pub(super) fn record(&mut self, from: PortId, wire: Bytes, seal: &OwnedSeal) {
        let now = clock::now();
        let Some(entry) = self.entry(from) else { return };
        if !entry.words.records.take_many(units(&wire), now) {
            self.book.refusals.records_throttled.add(1);
            return self.complain(from, "records are dropped", &"they come faster than they are checked");
        }
        let head = match RecordHead::read(&wire) {
            Ok(head) => head,
            Err(error) => return entry.link.fail(error.into()),
        };
        let id = head.id;
        let signature = match entry.words.seen(seal.slot) {
            Ok(chain) => seal.signature(chain),
            Err(error) => return entry.link.fail(error.into()),
        };
        let signed = SignedRecord { wire, signature };
        match self.book.records.read().judge(head, &signed, now) {
            Merge::New => {}
            Merge::OfOurselves if self.is_ahead_of_us(head) => {}
            Merge::OfOurselves | Merge::Known => return,
            Merge::Full => return debug!(%id, "no room for a broker's record"),
            Merge::TooOften => return debug!(%id, "a broker writes too many records"),
        }
        if !self.is_proven(from, id, &signed) {
            return;
        }
        if id == self.settings.local.identity.id {
            self.fatal = self.settings.local.life.lock().met_later(head.incarnation);
            return;
        }
        let record = match BrokerRecord::decode(&signed.wire) {
            Ok(record) => record,
            Err(error) => {
                self.book.refusals.records_not_understood.add(1);
                return self.complain(from, "a broker's record is dropped", &error);
            }
        };
        let log = record.log;
        if self.book.records.write().merge(record, signed.clone(), now) == Merge::New {
            self.settings.registers.met(id, now);
            self.ways_due.get_or_insert(now + WAYS_DELAY);
            log.into_iter().for_each(|log| self.settings.replication.log_begun(id, log));
            self.book.events.ring();
            let others = self.links.values_mut().filter(|entry| entry.link.id != from);
            others.for_each(|entry| entry.send_record(&signed));
        }
    }

    /// Whether it tells of this broker what this broker has not said.
    fn is_ahead_of_us(&self, record: RecordHead) -> bool {
        let own = self.book.own.read();
        let life = self.settings.local.life.lock().incarnation();
        (record.incarnation, record.sequence) > (life, own.sequence)
    }

    fn is_proven(&mut self, from: PortId, id: BrokerId, signed: &SignedRecord) -> bool {
        let keyring = &self.settings.local.keyring;
        match keyring.check(Statement::Record(&signed.wire), id, &signed.signature, clock::unix_time()) {
            Ok(_) => true,
            Err(error) if error.is_forged() => {
                self.book.refusals.records_forged.add(1);
                self.on_link(from, |link| link.fail(error.into()));
                false
            }
            Err(error) => {
                self.book.refusals.records_untrusted.add(1);
                self.complain(from, "a broker's record is dropped", &error);
                false
            }
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
        if let Some(signed) = self.sign_record(&record) {
            self.links.values_mut().for_each(|entry| entry.send_record(&signed));
        }
        *self.book.own.write() = record;
        self.book.events.ring();
        (self.untold_since, self.told_at) = (None, now);
        self.in_step_at = self.in_step_at.max(now) + RECORD_INTERVAL;
    }

    /// Our record as it travels.
    pub(super) fn sign_record(&self, record: &BrokerRecord) -> Option<SignedRecord> {
        let wire = record.encode().map_err(|error| warn!(%error, "this broker's record cannot be written")).ok()?;
        let signed = self.settings.local.keyring.sign(Statement::Record(&wire));
        let signature = signed.map_err(|error| warn!(%error, "this broker's record cannot be signed")).ok()?;
        Some(SignedRecord { wire: wire.into(), signature })
    }
}

/// What a record takes of what its peer may have checked: one, and one more for every 4 KiB.
fn units(wire: &[u8]) -> u32 {
    u32::try_from(wire.len() / 4_096).unwrap_or(u32::MAX).saturating_add(1)
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
        links_max: if settings.local.roster.neighbours.lock().chooses() {
            u16::try_from(settings.links_max).unwrap_or(u16::MAX)
        } else {
            0
        },
        log: Some(settings.replication.log()),
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
        address: Some(entry.link.control.remote_address()),
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

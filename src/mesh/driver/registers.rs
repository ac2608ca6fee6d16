//! Registers: what comes of them on links, checked; what `shared::register` wants said to neighbours, sent; what this broker has to say, told.

use std::time::Instant;

use bytes::Bytes;
use tracing::{debug, info, warn};

use super::{Driver, Entry};
use crate::clock;
use crate::frame::control::ControlFrame;
use crate::ids::PortId;
use crate::mesh::link::OwnedSeal;
use crate::mesh::proof::Statement;
use crate::shared::SignedRecord;
use crate::shared::register::{DeltaHead, DeltaMode, End, Have, Judgement, Page, Say, Want};

/// What a link brings of registers.
#[derive(Debug)]
pub(in crate::mesh) enum RegisterWord {
    /// A delta, with nothing checked.
    Delta { mode: DeltaMode, wire: Bytes, seal: OwnedSeal },
    /// How far the neighbour has them.
    Have(Vec<Have>),
    /// It asks.
    Want(Want),
    /// It has answered.
    End(End),
}

impl Driver {
    /// A neighbour says something of registers.
    pub(super) fn register(&mut self, from: PortId, word: RegisterWord) {
        let now = clock::now();
        let mut out = Vec::new();
        let registers = &self.settings.registers;
        match word {
            RegisterWord::Delta { mode, wire, seal } => return self.delta(from, mode, wire, &seal, now),
            RegisterWord::Have(haves) => registers.hear_have(from, &haves, now, &mut out),
            RegisterWord::Want(want) => registers.hear_want(from, want, now, &mut out),
            RegisterWord::End(end) => {
                if let Err(error) = registers.hear_end(from, end, now, &mut out) {
                    self.book.refusals.copies_bad.add(1);
                    self.complain(from, "a copy of a register is dropped", &error);
                }
            }
        }
        self.say(out);
    }

    /// A delta is believed, kept and passed on once its signature is checked; of one that is no news only the head is read.
    fn delta(&mut self, from: PortId, mode: DeltaMode, wire: Bytes, seal: &OwnedSeal, now: Instant) {
        let Some(entry) = self.entry(from) else { return };
        let head = match DeltaHead::read(&wire) {
            Ok(head) => head,
            Err(error) => return entry.link.fail(error.into()),
        };
        let signature = match entry.words.seen(seal.slot) {
            Ok(chain) => seal.signature(chain),
            Err(error) => return entry.link.fail(error.into()),
        };
        if self.settings.registers.judge(from, &head, mode, now) == Judgement::Useless {
            return;
        }
        let Some(entry) = self.entry(from) else { return };
        if !entry.words.deltas.take(now) {
            self.book.refusals.deltas_throttled.add(1);
            return self.complain(from, "deltas of registers are dropped", &"they come faster than they are checked");
        }
        let keyring = &self.settings.local.keyring;
        match keyring.check(Statement::Delta(&wire), head.owner, &signature, clock::unix_time()) {
            Ok(_) => {}
            Err(error) if error.is_forged() => {
                self.book.refusals.deltas_forged.add(1);
                return self.on_link(from, |link| link.fail(error.into()));
            }
            Err(error) => {
                self.book.refusals.deltas_untrusted.add(1);
                return self.complain(from, "a delta of a register is dropped", &error);
            }
        }
        let mut out = Vec::new();
        if let Err(error) = self.settings.registers.take(from, mode, SignedRecord { wire, signature }, now, &mut out) {
            self.book.refusals.deltas_not_understood.add(1);
            self.complain(from, "a register is not followed", &error);
        }
        self.say(out);
    }

    /// When this broker's register is to be told.
    pub(super) fn register_due(&self, now: Instant) -> Option<Instant> {
        self.settings.registers.tell_due(now)
    }

    /// Tells what this broker has to say.
    pub(super) fn tell_register(&mut self) {
        let mut out = Vec::new();
        let keyring = &self.settings.local.keyring;
        let sign = |wire: &[u8]| {
            let signed = keyring.sign(Statement::Delta(wire));
            signed.map_err(|error| warn!(%error, "this broker's register cannot be signed")).ok()
        };
        self.settings.registers.tell(clock::now(), sign, &mut out);
        self.say(out);
    }

    /// A link came up.
    pub(super) fn register_up(&mut self, port: PortId) {
        let mut out = Vec::new();
        self.settings.registers.begin(self.settings.tree.claim.incarnation);
        self.settings.registers.port_up(port, clock::now(), &mut out);
        self.say(out);
    }

    /// A link went down.
    pub(super) fn register_down(&mut self, port: PortId) {
        let mut out = Vec::new();
        self.settings.registers.port_down(port, clock::now(), &mut out);
        self.say(out);
    }

    /// Once a second.
    pub(super) fn register_tick(&mut self) {
        let mut out = Vec::new();
        for (broker, filters) in self.settings.registers.tick(clock::now(), &mut out) {
            self.settings.local.metrics.members_left.add(1);
            let name = self.name_of(broker);
            match filters {
                0 => info!(broker = %name, "not heard of for `mesh.member_timeout`: no member any more"),
                _ => warn!(
                    broker = %name,
                    filters,
                    "not heard of for `mesh.member_timeout`: no member any more, and what is published from now on is not kept for its subscriptions"
                ),
            }
        }
        self.say(out);
    }

    fn say(&mut self, out: Vec<(PortId, Say)>) {
        self.echoes_progress();
        self.dealt_heard(clock::now());
        for (port, say) in out {
            match self.entry(port) {
                Some(entry) => entry.say(&say),
                None => debug!(?port, "nobody is told any more"),
            }
        }
    }
}

impl Entry {
    fn say(&mut self, say: &Say) {
        match say {
            Say::Delta(mode, signed) => {
                let seal = self.seal(&signed.signature);
                let copy = *mode == DeltaMode::Copy;
                self.link.send(&ControlFrame::RegisterDelta { copy, seal, delta: &signed.wire });
            }
            Say::Have(haves) => {
                let mut list = Vec::new();
                Have::encode_all(haves, &mut list);
                self.link.send(&ControlFrame::RegisterHave { list: &list });
            }
            Say::Want(want) => {
                let (behind, &Want { owner, incarnation, after, bytes, .. }) = (want.encode_behind(), want);
                self.link.send(&ControlFrame::RegisterWant { owner, incarnation, after, bytes, behind: &behind });
            }
            Say::End(end) => {
                let entries = end.page.as_ref().map(Page::encode_entries).unwrap_or_default();
                let (page, &End { owner, incarnation, version, .. }) = (end.page.as_ref().map(|page| page.last), end);
                self.link.send(&ControlFrame::RegisterEnd { owner, incarnation, version, page, entries: &entries });
            }
        }
    }
}

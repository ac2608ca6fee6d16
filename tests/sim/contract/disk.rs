//! A disk: what of a broker's journal is safe, and what a restarted broker reads of it. As plain as can be; nothing of the store's files is here.

use std::collections::{BTreeMap, BTreeSet};

use mqtt_st_quic::codec::PacketId;
use mqtt_st_quic::ids::{BrokerId, LaneId, OriginLane};
use mqtt_st_quic::session::{
    Change, Entry, Head, LogHead, Logged, Order, RestoredLog, RestoredSession, Stage, SubscriberId, SubscriptionOptions,
};

/// See the module.
#[derive(Default)]
pub(super) struct Disk {
    sessions: BTreeMap<SubscriberId, Kept>,
    ended: BTreeSet<SubscriberId>,
    heads: BTreeMap<LaneId, LogHead>,
    blocks: BTreeMap<(LaneId, u64), Logged>,
    covers: BTreeMap<OriginLane, u64>,
    members: BTreeSet<BrokerId>,
}

#[derive(Default)]
struct Kept {
    head: Option<Head>,
    subscriptions: BTreeMap<Box<str>, SubscriptionOptions>,
    entries: BTreeMap<Order, Entry>,
    /// What was said of entries that are not placed yet: a batch's list comes late. None: it is removed.
    early: BTreeMap<Order, Option<Stage>>,
    /// How often an identifier was received more than it was completed.
    received: BTreeMap<PacketId, i32>,
}

/// What a start reads.
pub(super) struct Restored {
    pub(super) sessions: Vec<RestoredSession>,
    /// The last number of a session that was given out.
    pub(super) last: SubscriberId,
    pub(super) log: RestoredLog,
}

impl Disk {
    /// Whether a broker was ever there.
    pub(super) fn is_blank(&self) -> bool {
        self.heads.is_empty()
    }

    /// A change is safe.
    pub(super) fn apply(&mut self, change: Change) {
        let Some(session) = change.session() else { return self.apply_log(change) };
        if self.ended.contains(&session) {
            return;
        }
        if let Change::Ended(session) = change {
            self.sessions.remove(&session);
            self.ended.insert(session);
            return;
        }
        self.sessions.entry(session).or_default().apply(change);
    }

    fn apply_log(&mut self, change: Change) {
        match change {
            Change::Log(head) => {
                let lane = head.lane;
                let known = self.heads.entry(lane).or_insert(head);
                if known.log != head.log {
                    *known = head;
                    self.blocks.retain(|(of, _), _| *of != lane);
                }
                (known.reserved, known.floor) = (known.reserved.max(head.reserved), known.floor.max(head.floor));
                let floor = known.floor;
                self.blocks.retain(|(of, _), block| *of != lane || block.last > floor);
            }
            Change::LogGone(lane) => {
                self.heads.remove(&lane);
                self.blocks.retain(|(of, _), _| *of != lane);
            }
            Change::Logged(block) => {
                let head = self.heads.get(&block.lane).expect("a block comes after its log's head");
                if block.last > head.floor {
                    self.blocks.insert((block.lane, block.first), block);
                }
            }
            Change::Cover(stream, cover) => {
                let known = self.covers.entry(stream).or_default();
                *known = cover.max(*known);
            }
            Change::CoverGone(stream) => drop(self.covers.remove(&stream)),
            Change::Member(member) => drop(self.members.insert(member)),
            Change::MemberGone(member) => drop(self.members.remove(&member)),
            other => panic!("nobody here does {other:?}"),
        }
    }

    pub(super) fn read(&self) -> Restored {
        let sessions = self.sessions.iter().filter_map(|(session, kept)| {
            let received = kept.received.iter().filter(|(_, count)| **count > 0).map(|(id, _)| *id);
            Some(RestoredSession {
                session: *session,
                head: kept.head.clone()?,
                subscriptions: kept.subscriptions.iter().map(|(filter, options)| (filter.clone(), options.clone())).collect(),
                entries: kept.entries.iter().map(|(order, entry)| (*order, entry.clone())).collect(),
                received: received.collect(),
                will: None,
            })
        });
        let last = self.sessions.keys().chain(&self.ended).max().copied().unwrap_or(SubscriberId(0));
        let log = RestoredLog {
            heads: self.heads.values().copied().collect(),
            blocks: self.blocks.values().cloned().collect(),
            covers: self.covers.iter().map(|(stream, cover)| (*stream, *cover)).collect(),
            members: self.members.iter().copied().collect(),
            positions_in_doubt: 0,
        };
        Restored { sessions: sessions.collect(), last, log }
    }
}

impl Kept {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Session(_, head) => self.head = Some(head),
            Change::Subscribed(_, filter, options) => drop(self.subscriptions.insert(filter, options)),
            Change::Unsubscribed(_, filter) => drop(self.subscriptions.remove(&filter)),
            Change::Placed(_, order, entry) => match self.early.remove(&order) {
                Some(None) => {}
                Some(Some(stage)) => drop(self.entries.insert(order, Entry { stage, ..entry })),
                None => drop(self.entries.insert(order, entry)),
            },
            Change::Staged(_, order, stage) => match self.entries.get_mut(&order) {
                Some(entry) => entry.stage = stage,
                None => drop(self.early.insert(order, Some(stage))),
            },
            Change::Removed(_, order) => {
                if self.entries.remove(&order).is_none() {
                    self.early.insert(order, None);
                }
            }
            // For replicas, not for the disk.
            Change::Source(..) | Change::Copied(..) | Change::Guarded(..) => {}
            Change::Received(_, id) => *self.received.entry(id).or_default() += 1,
            Change::Completed(_, id) => *self.received.entry(id).or_default() -= 1,
            other => panic!("nobody here does {other:?}"),
        }
    }
}

//! What goes over one lane of one link generation, read as it is sent: no message twice within one agreement. What an agreement before it
//! sent may be sent again after the next OPEN, whose covers ask for it.

use std::collections::HashSet;

use mqtt_st_quic::frame::lane::{LaneFrame, Messages, decode};
use mqtt_st_quic::ids::{BrokerId, LogId, OpenNumber};

const FRAME_BYTES_MAX: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct LaneLedger {
    unread: Vec<u8>,
    open: Option<OpenNumber>,
    aliases: Vec<(u16, BrokerId, LogId)>,
    sent: HashSet<(BrokerId, LogId, u64)>,
}

impl LaneLedger {
    /// Takes what a lane writer wrote; says how many messages were in it.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> u64 {
        self.unread.extend_from_slice(bytes);
        let unread = std::mem::take(&mut self.unread);
        let (mut at, mut messages) = (0, 0);
        while let Some((frame, length)) = decode(&unread[at..], FRAME_BYTES_MAX).expect("we write what we can read") {
            at += length;
            match frame {
                LaneFrame::Origin { alias, origin, log } => {
                    self.aliases.retain(|(former, ..)| *former != alias);
                    self.aliases.push((alias, origin, log));
                }
                LaneFrame::Open { mark, .. } => {
                    if self.open.replace(mark.number) != Some(mark.number) {
                        self.sent.clear();
                    }
                }
                LaneFrame::Messages(block) => {
                    assert!(self.open.is_some(), "a message in a lane that was never opened");
                    let (_, origin, log) =
                        *self.aliases.iter().find(|(alias, ..)| *alias == block.alias).expect("the alias was said");
                    for message in Messages::new(block.first, block.body) {
                        let (sequence, _) = message.expect("we write what we can read");
                        assert!(self.sent.insert((origin, log, sequence)), "{sequence} of {origin} sent twice in {:?}", self.open);
                        messages += 1;
                    }
                }
                LaneFrame::Covers { .. }
                | LaneFrame::Close { .. }
                | LaneFrame::Gap { .. }
                | LaneFrame::Pull { .. }
                | LaneFrame::Payloads { .. }
                | LaneFrame::Gone { .. }
                | LaneFrame::Fill { .. }
                | LaneFrame::Filled(_)
                | LaneFrame::Sent { .. }
                | LaneFrame::Unknown => {}
            }
        }
        self.unread = unread[at..].to_vec();
        messages
    }
}

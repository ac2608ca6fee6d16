//! What of a block goes over a port: all of it as it came, or stubs in place of what nobody behind the port wants. Of QoS 0, ids of which have
//! holes, nothing instead of stubs. What is retained always goes: a subscription that comes later wants it. Share groups want nothing by their filters: what was picked for a
//! broker behind the port is wanted there.

use bytes::Bytes;

use super::counters::Counters;
use crate::codec::QoS;
use crate::frame::lane::{self, Entry, Messages, Stub};
use crate::interest::{Behind, Interest, Verdicts};

/// One port lane's selection, with what it remembers. Where everything is wanted it owns no memory.
#[derive(Debug, Default)]
pub(super) struct Selection {
    verdicts: Verdicts,
    /// For each message of the present block, whether it goes whole.
    whole: Vec<bool>,
}

impl Selection {
    /// What the far side is sent of a block (its first sequence, its body) in place of it; `None`: the block as it is. An empty body: nothing.
    pub(super) fn of(
        &mut self,
        interest: &Interest,
        behind: &Behind,
        (first, body): (u64, &Bytes),
        counters: &Counters,
    ) -> Option<(u64, Bytes)> {
        if self.verdicts.want_everything(interest, behind) {
            return None;
        }
        let (mut topic, mut is_wanted) = ("", true);
        self.whole.clear();
        for (_, entry) in Messages::new(first, body).flatten() {
            if entry.topic() != topic {
                topic = entry.topic();
                is_wanted = self.verdicts.wants(interest, topic);
            }
            let picks = entry.picks();
            let is_wanted = (is_wanted && !picks.only) || picks.chosen().any(|pick| self.verdicts.has(pick.broker));
            // A stub is what there is. What is for picks alone is retained by none.
            self.whole.push(is_wanted || !matches!(entry, Entry::Message(message) if !message.retain || picks.only));
        }
        if self.whole.iter().all(|whole| *whole) { None } else { Some(self.shortened(first, body, counters)) }
    }

    fn shortened(&self, first: u64, body: &Bytes, counters: &Counters) -> (u64, Bytes) {
        let (mut out, mut begin, mut before, mut topic) = (Vec::new(), None, first, None);
        for ((sequence, entry), whole) in Messages::new(first, body).flatten().zip(&self.whole) {
            if !whole && entry.qos() == QoS::AtMostOnce {
                counters.messages_left_out.add(1);
                continue;
            }
            let delta = begin.map_or(0, |_: u64| sequence - before);
            let same_topic = topic.replace(entry.topic()) == Some(entry.topic());
            begin = begin.or(Some(sequence));
            before = sequence;
            match entry {
                Entry::Message(message) if *whole => lane::put_message(&mut out, delta, &message, same_topic),
                _ => {
                    counters.stubs_sent.add(1);
                    lane::put_stub(
                        &mut out,
                        delta,
                        &Stub { topic: entry.topic(), qos: entry.qos(), picks: entry.picks() },
                        same_topic,
                    );
                }
            }
        }
        (begin.unwrap_or(first), out.into())
    }
}

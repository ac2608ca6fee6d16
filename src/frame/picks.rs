//! To which broker each share group's copy of a message goes: the **picks**, as they travel in a message of a lane.
//!
//! A share group gets a message once, wherever its members are. The broker at which the message is published picks one broker for each group that
//! matches, and says so in the message; the others give nothing to their members of that group. Whoever is picked and has nobody to give it to picks
//! anew: it publishes the message once more, for the picks alone ([`Picks::only`]).
//!
//! It is not: how a broker is picked (`router`). What a peer says is bounded by [`PICKS_MAX`] and [`PICK_ROUNDS_MAX`].

use super::{FrameError, Reader, put_varint};
use crate::codec::QoS;
use crate::ids::{BrokerId, ShareId};
use crate::limits::{PICK_ROUNDS_MAX, PICKS_MAX};

/// In place of a group, with the broker at which the message is published: it did not know everybody's share groups then. Groups that no other pick names are still
/// to be given the message; those that were given it at that broker are named with it. In a copy
/// that is for picks alone: it was picked late for them; without others: all that the broker has published before in the lane is decided.
pub const UNDECIDED: ShareId = ShareId(0);

/// Group and broker.
const PICK_BYTES: usize = 16;

/// In the byte behind a message's flags: what QoS it has.
const QOS_BITS: u8 = 0b11;
/// Likewise: [`Picks::only`].
const ONLY: u8 = 1 << 2;
/// Likewise, above it: [`Picks::round`].
const ROUND_SHIFT: u32 = 3;
const _: () = assert!(PICK_ROUNDS_MAX < 1 << (8 - ROUND_SHIFT));

/// One group's broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Which group.
    pub share: ShareId,
    /// Who gives the message to one of its members.
    pub broker: BrokerId,
}

/// The picks of one message, well-formed. Of most messages there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Picks<'a> {
    bytes: &'a [u8],
    /// The message is for the picks and for nobody else: all others have it, under another id.
    pub only: bool,
    /// How often it was picked anew; at most [`PICK_ROUNDS_MAX`].
    pub round: u8,
}

impl Picks<'_> {
    /// Nothing is picked.
    pub const NONE: Picks<'static> = Picks { bytes: &[], only: false, round: 0 };

    /// Whether there are none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Front to back; at most [`PICKS_MAX`].
    pub fn iter(&self) -> impl Iterator<Item = Pick> {
        self.bytes.chunks_exact(PICK_BYTES).filter_map(|bytes| {
            let mut reader = Reader::new(bytes);
            Some(Pick { share: ShareId(reader.u64("share group").ok()?), broker: BrokerId(reader.u64("picked broker").ok()?) })
        })
    }

    /// The picks proper: what follows one for the same group says who was picked in vain before.
    pub fn chosen(&self) -> impl Iterator<Item = Pick> {
        let mut last = None;
        self.iter().filter(move |pick| last.replace(pick.share) != Some(pick.share))
    }

    /// Who was picked in vain for the group.
    pub fn tried(&self, share: ShareId) -> impl Iterator<Item = BrokerId> {
        self.iter().filter(move |pick| pick.share == share).skip(1).map(|pick| pick.broker)
    }

    /// Whether one of them is `broker`.
    #[must_use]
    pub fn name(&self, broker: BrokerId) -> bool {
        self.chosen().any(|pick| pick.broker == broker)
    }

    /// Whether the group has one of them.
    #[must_use]
    pub fn has(&self, share: ShareId) -> bool {
        self.iter().any(|pick| pick.share == share)
    }

    /// The byte behind the flags of a message of `qos` that has picks.
    pub(super) fn flags(&self, qos: QoS) -> u8 {
        qos as u8 | if self.only { ONLY } else { 0 } | self.round << ROUND_SHIFT
    }

    /// Appends what [`read`](Self::read) reads.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, (self.bytes.len() / PICK_BYTES) as u64);
        out.extend_from_slice(self.bytes);
    }
}

impl<'a> Picks<'a> {
    /// The QoS and, without the picks themselves, what [`flags`](Self::flags) wrote.
    #[cold]
    pub(super) fn read_flags(reader: &mut Reader<'a>) -> Result<(QoS, Self), FrameError> {
        let flags = reader.byte("picks' flags")?;
        let bad = FrameError::Value { field: "set of picks' flags", value: u64::from(flags) };
        let qos = QoS::try_from(flags & QOS_BITS).map_err(|_| bad)?;
        let round = flags >> ROUND_SHIFT;
        if round > PICK_ROUNDS_MAX {
            return Err(bad);
        }
        Ok((qos, Self { bytes: &[], only: flags & ONLY != 0, round }))
    }

    /// The picks themselves.
    #[cold]
    pub(super) fn read(self, reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let count = reader.varint_max(PICKS_MAX as u64, "count of picks")?;
        if count == 0 {
            return Err(FrameError::Value { field: "count of picks", value: 0 });
        }
        let bytes = reader.bytes(count as usize * PICK_BYTES, "picks")?;
        Ok(Self { bytes, ..self })
    }
}

/// Picks that are being made. Used again from message to message.
#[derive(Clone, Debug, Default)]
pub struct PickList {
    bytes: Vec<u8>,
}

impl PickList {
    /// One more.
    pub fn push(&mut self, pick: Pick) {
        self.bytes.extend_from_slice(&pick.share.0.to_be_bytes());
        self.bytes.extend_from_slice(&pick.broker.0.to_be_bytes());
    }

    /// One more, after others were picked in vain for the same group. All of them go into one page.
    pub fn push_after(&mut self, pick: Pick, tried: impl Iterator<Item = BrokerId>) {
        let tried: Vec<_> = tried.take(PICK_ROUNDS_MAX.into()).collect();
        let page = PICKS_MAX * PICK_BYTES;
        let free = page - self.bytes.len() % page;
        if free < (1 + tried.len()) * PICK_BYTES {
            // The last one again says nothing.
            let last = self.bytes.last_chunk::<PICK_BYTES>().copied().unwrap_or_default();
            (0..free / PICK_BYTES).for_each(|_| self.bytes.extend_from_slice(&last));
        }
        self.push(pick);
        tried.into_iter().for_each(|broker| self.push(Pick { broker, ..pick }));
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / PICK_BYTES
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Forgets as many as a message may have: they are in one.
    pub fn drop_page(&mut self) {
        self.bytes.drain(..self.bytes.len().min(PICKS_MAX * PICK_BYTES));
    }

    /// As many as a message may have at a time. `only` and `round`: see [`Picks`].
    pub fn pages(&self, only: bool, round: u8) -> impl Iterator<Item = Picks<'_>> {
        self.bytes.chunks(PICKS_MAX * PICK_BYTES).map(move |bytes| Picks { bytes, only, round })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_a_message_may_have_go_into_one() {
        let pick = |n: usize| Pick { share: ShareId(n as u64), broker: BrokerId(n as u64 + 1) };
        let mut list = PickList::default();
        assert!(list.is_empty() && list.pages(false, 0).next().is_none());
        list.push(pick(0));
        list.drop_page();
        assert!(list.is_empty());
        (0..=PICKS_MAX).for_each(|n| list.push(pick(n)));
        let pages: Vec<_> = list.pages(true, 3).collect();
        assert_eq!(pages.iter().map(|page| page.iter().count()).collect::<Vec<_>>(), [PICKS_MAX, 1]);
        assert!(pages[1].name(pick(PICKS_MAX).broker) && !pages[1].name(pick(0).broker) && pages[0].name(pick(0).broker));
        for page in pages {
            let mut wire = vec![page.flags(QoS::ExactlyOnce)];
            page.put(&mut wire);
            let mut reader = Reader::new(&wire);
            let (qos, read) = Picks::read_flags(&mut reader).unwrap();
            assert_eq!((qos, read.read(&mut reader)), (QoS::ExactlyOnce, Ok(page)));
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn who_was_picked_in_vain_stands_behind_who_is_picked_in_one_page() {
        let pick = |share: u64, broker: u64| Pick { share: ShareId(share), broker: BrokerId(broker) };
        let mut list = PickList::default();
        (0..PICKS_MAX as u64 - 2).for_each(|n| list.push(pick(n + 100, 1)));
        list.push_after(pick(7, 2), [BrokerId(3), BrokerId(4)].into_iter());
        let pages: Vec<_> = list.pages(true, 1).collect();
        assert_eq!(pages.len(), 2);
        assert_eq!(pages[0].chosen().count(), PICKS_MAX - 2);
        assert_eq!(pages[1].chosen().collect::<Vec<_>>(), [pick(7, 2)]);
        assert_eq!(pages[1].tried(ShareId(7)).collect::<Vec<_>>(), [BrokerId(3), BrokerId(4)]);
        assert!(pages[1].name(BrokerId(2)) && !pages[1].name(BrokerId(3)) && pages[1].has(ShareId(7)));
    }

    #[test]
    fn what_is_none_is_refused() {
        let read = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            Picks::read_flags(&mut reader).and_then(|(_, picks)| picks.read(&mut reader)).map(drop)
        };
        for (bytes, expected) in [
            (&[3, 1][..], Err(FrameError::Value { field: "set of picks' flags", value: 3 })),
            (&[0xf9, 1], Err(FrameError::Value { field: "set of picks' flags", value: 0xf9 })),
            (&[1, 0], Err(FrameError::Value { field: "count of picks", value: 0 })),
            (&[1, 65], Err(FrameError::Value { field: "count of picks", value: 65 })),
            (&[1, 1, 0], Err(FrameError::Truncated("picks"))),
            (&[1], Err(FrameError::Truncated("count of picks"))),
        ] {
            assert_eq!(read(bytes), expected, "{bytes:02x?}");
        }
    }
}

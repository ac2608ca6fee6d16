//! Letters between brokers that need not be linked: signed by who writes them, carried from broker to broker by what the records say of the links, checked
//! by whom they are to. What cannot be carried is lost: whoever wrote it writes again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use tracing::{debug, warn};

use super::{Driver, Entry};
use crate::clock;
use crate::frame::control::ControlFrame;
use crate::ids::{BrokerId, PortId};
use crate::limits::LETTER_BYTES_MAX;
use crate::mesh::link::OwnedSeal;
use crate::mesh::proof::Statement;
use crate::shared::{Letter, LinkState, Signature};

/// A letter goes over at most so many links.
const HOPS_MAX: u8 = 64;

/// A letter as it travels: sender and receiver, then what it says.
fn read(wire: &Bytes) -> Option<(BrokerId, BrokerId, Bytes)> {
    let (from, rest) = wire.split_first_chunk()?;
    let (to, _) = rest.split_first_chunk()?;
    let id = |bytes: &[u8; 8]| BrokerId(u64::from_be_bytes(*bytes));
    Some((id(from), id(to), wire.slice(2 * size_of::<u64>()..)))
}

impl Driver {
    /// This broker has written a letter.
    pub(super) fn send_letter(&mut self, letter: &Letter) {
        if letter.body.len() + 16 > LETTER_BYTES_MAX {
            return debug!(to = %letter.peer, "a letter is too long");
        }
        let own = self.settings.local.identity.id;
        let wire = [&own.0.to_be_bytes()[..], &letter.peer.0.to_be_bytes()[..], &letter.body[..]].concat();
        match self.settings.local.keyring.sign(Statement::Letter(&wire)) {
            Ok(signature) => self.carry(letter.peer, None, HOPS_MAX, &wire, &signature),
            Err(error) => warn!(%error, "a letter of this broker cannot be signed"),
        }
    }

    /// A neighbour brings a letter.
    pub(super) fn letter(&mut self, from: PortId, hops: u8, wire: Bytes, seal: &OwnedSeal) {
        let Some(entry) = self.entry(from) else { return };
        let signature = match entry.words.seen(seal.slot) {
            Ok(chain) => seal.signature(chain),
            Err(error) => return entry.link.fail(error.into()),
        };
        let Some((writer, to, body)) = read(&wire) else { return };
        if to != self.settings.local.identity.id {
            return match hops.checked_sub(1) {
                Some(hops) => self.carry(to, Some(from), hops, &wire, &signature),
                None => debug!(%writer, %to, "a letter has come too many links"),
            };
        }
        let now = clock::now();
        let may_check = self.entry(from).is_some_and(|entry| entry.words.deltas.take(now));
        if !may_check {
            return;
        }
        match self.settings.local.keyring.check(Statement::Letter(&wire), writer, &signature, clock::unix_time()) {
            Ok(_) => self.settings.post.deliver(Letter { peer: writer, body }),
            // Who carried it need not have checked it.
            Err(error) => self.complain(from, "a letter is not read", &error),
        }
    }

    fn carry(&mut self, to: BrokerId, from: Option<PortId>, hops: u8, wire: &[u8], signature: &Signature) {
        let next = self.way_to(to, from.map(|port| port.peer));
        match next.and_then(|peer| self.links.get_mut(&peer)) {
            Some(entry) => entry.send_letter(hops, wire, signature),
            None if from.is_none() => self.settings.post.bounce(to),
            None => debug!(%to, "no way for a letter"),
        }
    }

    /// The neighbour from which it is the fewest links to a broker, as the records say; not back to where it came from.
    fn way_to(&self, to: BrokerId, except: Option<BrokerId>) -> Option<BrokerId> {
        if self.links.contains_key(&to) {
            return Some(to);
        }
        let records = self.book.records.read();
        let own = self.settings.local.identity.id;
        let mut linked: BTreeMap<BrokerId, Vec<BrokerId>> = BTreeMap::new();
        for record in records.iter() {
            for link in record.links.iter().filter(|link| link.state != LinkState::Down) {
                linked.entry(record.id).or_default().push(link.peer);
                linked.entry(link.peer).or_default().push(record.id);
            }
        }
        // From the receiver outwards: the first neighbour of ours that is met is the nearest to it.
        let (mut seen, mut queue) = (BTreeSet::from([to, own]), VecDeque::from([to]));
        while let Some(broker) = queue.pop_front() {
            if self.links.contains_key(&broker) && Some(broker) != except {
                return Some(broker);
            }
            for next in linked.get(&broker).into_iter().flatten() {
                if seen.insert(*next) {
                    queue.push_back(*next);
                }
            }
        }
        None
    }
}

impl Entry {
    fn send_letter(&mut self, hops: u8, wire: &[u8], signature: &Signature) {
        let seal = self.seal(signature);
        self.link.send(&ControlFrame::Letter { hops, seal, letter: wire });
    }
}

//! What the driver lets be seen of the tree: counts, the healing time, this broker's place, and the lines of the log.
//!
//! A mesh that converges changes many times within milliseconds. Each step is logged at `debug`; at `info` stands what has come of them, when
//! the record tells it to the others: after a moment's rest, and about once a second while there is none.

use std::time::Instant;

use tracing::info;

use super::Driver;
use super::records::{change_now, link_port};
use crate::clock;
use crate::healing::{Healing, Standing};
use crate::ids::{PortId, TreeId};
use crate::mesh::Place;
use crate::mesh::events::MeshEvent;
use crate::stp::{ChangeCause, Stp};

/// What was seen so far.
#[derive(Debug)]
pub(super) struct Sight {
    healing: Healing,
    /// Changes that were counted.
    changes: u64,
    /// Changes that were logged.
    changes_shown: u64,
    /// The tree as it was logged.
    shown: TreeId,
    /// Where this broker stands by what the book says.
    placed: Option<(TreeId, Option<PortId>, Option<u32>)>,
}

impl Sight {
    pub(super) fn new(stp: &Stp) -> Self {
        let (changes, _) = stp.changes();
        Self { healing: Healing::default(), changes, changes_shown: changes, shown: stp.tree(), placed: None }
    }
}

impl Driver {
    /// A peer spoke of its tree.
    pub(super) fn heard(&mut self, port: PortId, tree: TreeId) {
        self.settings.local.metrics.bpdus_received.add(1);
        if let Some(entry) = self.entry(port) {
            entry.heard = Some(tree);
        }
    }

    /// Something went into the tree. `way_lost`: it was the loss of the Root port's link.
    pub(super) fn look(&mut self, way_lost: bool, now: Instant) {
        let (changes, cause) = self.stp.changes();
        let new_changes = changes.saturating_sub(self.sight.changes);
        if new_changes > 0 {
            self.sight.changes = changes;
            self.settings.local.metrics.tree_changed(cause.as_str(), new_changes);
            self.last_change = change_now(cause.as_str());
            self.changed();
        }
        if way_lost || new_changes > 0 && cause == ChangeCause::ParentLost {
            self.sight.healing.lose(now);
        }
        let standing = self.standing();
        if let Some(after) = self.sight.healing.observe(standing, now) {
            let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            self.settings.local.metrics.healed(after);
            info!(ms, "healed");
            self.happened(&MeshEvent::Healed { ms });
        }
        let placed = Some((self.stp.tree(), self.stp.root_port(), self.stp.distance()));
        if self.sight.placed != placed {
            self.sight.placed = placed;
            self.show_place();
        }
    }

    fn show_place(&self) {
        let place = place_of(&self.stp, self.name_of(self.stp.tree().root.id), self.parent());
        *self.book.place.write() = place;
        self.book.events.ring();
    }

    fn standing(&self) -> Standing {
        if self.stp.is_root() {
            let tree = self.stp.tree();
            Standing::of_root(self.links.values().map(|entry| (entry.heard == Some(tree), entry.forwarding)))
        } else {
            let parent = self.stp.root_port().and_then(|port| self.links.get(&port.peer));
            Standing::of_member(self.links.len(), parent.is_some_and(|entry| entry.forwarding))
        }
    }

    fn parent(&self) -> Option<String> {
        self.stp.root_port().map(|port| self.name_of(port.peer))
    }

    /// Logs what has changed since it was last logged.
    pub(super) fn show_changes(&mut self) {
        // A root may have a name by now.
        self.show_place();
        let (tree, (changes, cause)) = (self.stp.tree(), self.stp.changes());
        let new_changes = changes.saturating_sub(self.sight.changes_shown);
        let old_root = self.name_of(self.sight.shown.root.id);
        (self.sight.changes_shown, self.sight.shown) = (changes, tree);
        if new_changes > 0 {
            let (root, epoch, parent, cause) = (self.name_of(tree.root.id), tree.epoch, self.parent(), cause.as_str());
            let above = parent.as_deref().unwrap_or("none");
            info!(%root, %old_root, epoch, parent = %above, cause, changes = new_changes, "tree changed");
            self.happened(&MeshEvent::TreeChanged { root, old_root, epoch, parent, cause, changes: new_changes });
        }
        let mut ports = Vec::new();
        for entry in self.links.values_mut() {
            let port = (entry.role, entry.forwarding);
            if entry.shown.replace(port) != Some(port) {
                let (role, state) = link_port(entry);
                ports.push(MeshEvent::Port { peer: entry.link.peer.name.clone(), role: role.as_str(), state: state.as_str() });
            }
        }
        for event in ports {
            if let MeshEvent::Port { peer, role, state } = &event {
                info!(%peer, role, state, "tree port");
            }
            self.happened(&event);
        }
    }

    /// Tells whoever watches.
    pub(super) fn happened(&self, event: &MeshEvent) {
        let at = u64::try_from(clock::unix_time().as_millis()).unwrap_or(u64::MAX);
        self.book.events.push(at, event);
    }
}

/// Where `stp` stands, with the names of its root and of the broker above.
pub(super) fn place_of(stp: &Stp, root_name: String, parent: Option<String>) -> Place {
    let tree = stp.tree();
    Place { root: tree.root.id, root_name, epoch: tree.epoch, is_root: stp.is_root(), parent, distance: stp.distance() }
}

//! This broker in its mesh, as whoever shows it to others sees it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::driver::Book;
use crate::ids::BrokerId;
use crate::shared::{LastChange, LinkRecord};

/// Where a broker stands in its tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The root.
    pub root: BrokerId,
    /// Its name; its id where the name is not known.
    pub root_name: String,
    /// The tree's epoch.
    pub epoch: u64,
    /// Whether this broker is the root.
    pub is_root: bool,
    /// The name of the broker above; none at the root, and without a way to it.
    pub parent: Option<String>,
    /// What the way to the root costs; none without a way.
    pub distance: Option<u32>,
}

/// This broker in its mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The mesh's name.
    pub mesh: String,
    /// Where it stands in the tree.
    pub place: Place,
    /// Its links, up and lately lost.
    pub links: Vec<LinkRecord>,
    /// Brokers that can be reached, this one among them.
    pub brokers: usize,
    /// How often its tree or its parent was another since it started.
    pub changes: u64,
    /// The same by cause.
    pub changes_by_cause: Vec<(&'static str, u64)>,
    /// The last time that it was.
    pub last_change: LastChange,
    /// How often it has lost its way to the root and found one again.
    pub healings: u64,
    /// How long that took the last time.
    pub healing_last: Duration,
}

/// Waits for news of the mesh, for whoever shows it to others. There is one: the events that it takes are gone.
#[derive(Debug)]
pub struct Watcher {
    mesh: String,
    book: Arc<Book>,
}

impl Watcher {
    pub(super) fn new(mesh: String, book: Arc<Book>) -> Self {
        Self { mesh, book }
    }

    /// Waits until something has changed since it last returned.
    pub async fn news(&self) {
        self.book.events.news().await;
    }

    /// The events since the last call, as lines of JSON. A few hundred are kept; of more the oldest are missing.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.book.events.take()
    }

    /// Every broker to which a chain of live links leads, this one among them.
    #[must_use]
    pub fn reachable(&self) -> BTreeSet<BrokerId> {
        self.book.topology(&self.mesh).brokers.iter().map(|broker| broker.id).collect()
    }

    /// The name of a broker, as long as its record is kept; else its id.
    #[must_use]
    pub fn name_of(&self, broker: BrokerId) -> String {
        let named =
            self.book.look(|_, records| records.iter().find(|record| record.id == broker).map(|record| record.name.clone()));
        named.unwrap_or_else(|| broker.to_string())
    }

    /// This broker as it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        self.book.status(&self.mesh)
    }
}

//! The filters of one session, a map that owns no memory until the first comes: who only publishes has none.
//!
//! Invariant: to whoever reads it, it is the map that it holds, or an empty one.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

use super::subscriber::SubscriptionOptions;

type Map = HashMap<Box<str>, SubscriptionOptions, ahash::RandomState>;

/// See the module's page.
#[derive(Debug, Default)]
pub struct Filters(Option<Box<Map>>);

impl Deref for Filters {
    type Target = Map;

    fn deref(&self) -> &Map {
        static NONE: LazyLock<Map> = LazyLock::new(Map::default);
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Filters {
    fn deref_mut(&mut self) -> &mut Map {
        self.0.get_or_insert_default()
    }
}

impl FromIterator<(Box<str>, SubscriptionOptions)> for Filters {
    fn from_iter<I: IntoIterator<Item = (Box<str>, SubscriptionOptions)>>(filters: I) -> Self {
        let map: Map = filters.into_iter().collect();
        Self((!map.is_empty()).then(|| Box::new(map)))
    }
}

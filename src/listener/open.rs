//! Counts open connections.

use std::sync::Arc;

use crate::router::Router;

/// A connection that counts as open for as long as this lives.
#[derive(Debug)]
pub(super) struct Open {
    router: Arc<Router>,
}

impl Open {
    pub(super) fn new(router: Arc<Router>) -> Self {
        router.metrics().connections.change(1);
        Self { router }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.router.metrics().connections.change(-1);
    }
}

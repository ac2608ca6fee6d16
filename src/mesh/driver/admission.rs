//! Whether the certificate with which a link was made still admits its peer. Judged once more when the link is admitted, when the
//! credentials have been read anew, and when the certificate expires; a link whose peer is no longer admitted is closed, and its peer told
//! why.
//!
//! What counts is the chain that the peer showed in this link's handshake, the same for both its connections. A peer that has renewed its certificate meanwhile keeps the
//! link until the old one expires; whoever dialled then dials again at once, and the new one is shown.

use std::time::Duration;

use quinn::Connection;
use tracing::{error, info, warn};

use super::Driver;
use crate::clock;
use crate::mesh::error::LinkError;
use crate::mesh::expiry::Countdown;
use crate::mesh::handshake::peer_chain;
use crate::mesh::tls::validity;

impl Driver {
    /// When the certificate that the peer has shown expires, since the Unix epoch.
    ///
    /// # Errors
    /// Why it admits nobody now.
    pub(super) fn admitted_until(&self, control: &Connection) -> Result<Duration, LinkError> {
        let chain = peer_chain(control)?;
        self.settings.local.credentials.load().verify(&chain, clock::unix_time())?;
        Ok(validity(&chain).not_after)
    }

    /// The credentials have been read anew.
    pub(super) fn readmit(&mut self) {
        let credentials = self.settings.local.credentials.load_full();
        let now = clock::unix_time();
        let days_left = credentials.validity().not_after.saturating_sub(now).as_secs() / 86_400;
        info!(days_left, links = self.links.len(), "credentials read anew");
        self.countdown = Countdown::new(credentials.validity().life());
        self.judge_links(|_| true);
        self.follow_credentials();
    }

    /// Closes links whose peers' certificates have expired, and warns of our own. Looked at often, because the clock may have been set.
    pub(super) fn expire_certificates(&mut self) {
        let now = clock::unix_time();
        self.judge_links(|expires| expires <= now);
        let left = self.settings.local.credentials.load().validity().not_after.saturating_sub(now);
        if !self.countdown.is_due(left) {
            return;
        }
        let days_left = left.as_secs() / 86_400;
        if left.is_zero() {
            error!("this broker's certificate has expired: peers refuse it; see `certs renew`, then send SIGHUP");
        } else {
            warn!(days_left, hours_left = left.as_secs() / 3_600, "this broker's certificate expires soon; see `certs renew`");
        }
    }

    fn judge_links(&self, concerns: impl Fn(Duration) -> bool) {
        let entries = self.links.values().filter(|entry| concerns(entry.expires));
        for entry in entries {
            if let Err(error) = self.admitted_until(&entry.link.control) {
                entry.link.fail(error);
            }
        }
    }
}

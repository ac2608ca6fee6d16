//! A client that authenticated by a method and does so again (MQTT 5.0 section 4.12.1). It must show that it is who it was; everything else goes
//! on meanwhile.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::io::Scratch;
use super::{Client, Fault};
use crate::auth::{Policy, SCRAM_SHA_256, Scram};
use crate::codec::{Auth, AuthProperties, Packet, ReasonCode};

/// What a connection needs for it.
#[derive(Debug)]
pub(super) struct Reauthentication {
    policy: Arc<ArcSwap<Policy>>,
    /// A challenge is out.
    pending: Option<Scram>,
}

impl Reauthentication {
    pub(super) fn new(policy: Arc<ArcSwap<Policy>>) -> Self {
        Self { policy, pending: None }
    }
}

impl Client {
    pub(super) fn authenticate_anew(&mut self, auth: &Auth<'_>, scratch: &mut Scratch) -> Result<(), Fault> {
        // Only with the method of CONNECT [MQTT-4.12.1-1], and where there was one [MQTT-4.12.0-7].
        let Some(state) = &mut self.reauthentication else { return Err(Fault::Close(ReasonCode::ProtocolError)) };
        if auth.properties.authentication_method != Some(SCRAM_SHA_256) {
            return Err(Fault::Close(ReasonCode::ProtocolError));
        }
        let data = auth.properties.authentication_data.unwrap_or_default();
        // [MQTT-4.12.1-2]: who fails is closed.
        let failed = Fault::Close(ReasonCode::NotAuthorized);
        let (reason, data) = match (auth.reason, state.pending.take()) {
            (ReasonCode::ReAuthenticate, None) => {
                let policy = state.policy.load();
                let Some(users) = policy.users() else { return Err(failed) };
                let Ok((scram, challenge)) = Scram::begin(users, data) else { return Err(failed) };
                state.pending = Some(scram);
                (ReasonCode::ContinueAuthentication, challenge)
            }
            (ReasonCode::ContinueAuthentication, Some(scram)) => {
                let Ok((identity, signature)) = scram.finish(data) else { return Err(failed) };
                let access = self.connection.subscriber.access();
                if access.is_none_or(|access| access.identity().user() != identity.user()) {
                    return Err(failed);
                }
                (ReasonCode::Success, signature)
            }
            _ => return Err(Fault::Close(ReasonCode::ProtocolError)),
        };
        let properties = AuthProperties {
            authentication_method: Some(SCRAM_SHA_256),
            authentication_data: Some(data.as_bytes()),
            ..AuthProperties::default()
        };
        self.reply(&mut scratch.answers, &mut scratch.answers_count, &Packet::Auth(Auth { reason, properties }))
    }
}

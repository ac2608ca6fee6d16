//! An MQTT connection that is up: opened with CONNECT and CONNACK, kept alive, closed with DISCONNECT.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::fault::Fault;
use super::liveness::{Liveness, Traffic, Verdict};
use super::stream::{Endpoint, Stream};
use super::transport::Transport;
use crate::clock::now_ns;
use crate::wire::{
    ConnAck, DISCONNECT, Frame, Login, PINGREQ, PacketKind, Session, Version, WireFault, connack, connect, disconnect_reason,
    push_variable_integer, split,
};

/// What it takes to open a connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPlan {
    pub(crate) broker: Endpoint,
    pub(crate) client_id: String,
    pub(crate) version: Version,
    pub(crate) session: Session,
    pub(crate) login: Option<Login>,
    /// The keep alive to ask for; a broker may set its own.
    pub(crate) keep_alive_seconds: u16,
    /// How long the broker may owe an answer.
    pub(crate) timeout: Duration,
}

/// See the module.
pub(crate) struct Connection {
    transport: Transport,
    /// Packets that came with the CONNACK: of a session that was kept.
    early: Vec<u8>,
    version: Version,
    allowed: ConnAck,
    timeout: Duration,
    liveness: Liveness,
    look: Interval,
}

impl Connection {
    /// Connects and waits for the broker's consent.
    ///
    /// # Errors
    /// When there is no broker, it refuses, or it answers anything but a right CONNACK.
    pub(crate) async fn open(plan: &ConnectionPlan) -> Result<Self, Fault> {
        let opened = async {
            let mut transport = Transport::new(Stream::open(&plan.broker).await?);
            connect(plan.version, &plan.client_id, plan.session, plan.login.as_ref(), plan.keep_alive_seconds, transport.out())
                .map_err(Fault::Unwritable)?;
            let mut early = Vec::new();
            let allowed = consent(&mut transport, plan, &mut early).await?;
            Ok((transport, early, allowed))
        };
        let (transport, early, allowed) = timeout(plan.timeout, opened).await.unwrap_or(Err(Fault::NoAnswer(plan.timeout)))?;
        let liveness = Liveness::new(plan.timeout, allowed.keep_alive_seconds.unwrap_or(plan.keep_alive_seconds), now_ns());
        let mut look = interval(liveness.look_every());
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { transport, early, version: plan.version, allowed, timeout: plan.timeout, liveness, look })
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// What the broker allows.
    pub(crate) fn allowed(&self) -> ConnAck {
        self.allowed
    }

    /// Where to queue packets.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        self.transport.out()
    }

    /// Bytes that wait for the socket.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.transport.queued_bytes()
    }

    /// Reads once; hands `handle` every packet that is not about the connection itself, and the queue for its answers.
    pub(crate) fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        mut handle: impl FnMut(&Frame<'_>, &mut Vec<u8>) -> Result<(), Fault>,
    ) -> Poll<Result<(), Fault>> {
        let liveness = &mut self.liveness;
        let mut handle = |frame: &Frame<'_>, out: &mut Vec<u8>| match frame.kind {
            PacketKind::PingResp => {
                liveness.pong();
                Ok(())
            }
            PacketKind::Disconnect => Err(Fault::Disconnected(disconnect_reason(frame))),
            _ => handle(frame, out),
        };
        if self.early.is_empty() {
            return self.transport.poll_frames(cx, handle);
        }
        let early = std::mem::take(&mut self.early);
        let mut rest = early.as_slice();
        while let Some((frame, behind)) = split(rest)? {
            handle(&frame, self.transport.out())?;
            rest = behind;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what is queued; ready when nothing is.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.transport.poll_flush(cx)
    }

    /// Keeps the connection alive; to be called in every poll. `owed`: the broker owes this client an answer.
    ///
    /// # Errors
    /// When the broker has owed it for too long.
    pub(crate) fn keep_alive(&mut self, cx: &mut Context<'_>, owed: bool) -> Result<(), Fault> {
        while self.look.poll_tick(cx).is_ready() {
            let (bytes_read, bytes_written) = self.transport.totals();
            let traffic = Traffic { bytes_read, bytes_written, queued: self.queued_bytes() > 0, owed };
            match self.liveness.look(now_ns(), traffic) {
                Verdict::Fine => {}
                Verdict::Ping => self.transport.out().extend_from_slice(&PINGREQ),
                Verdict::Silent => return Err(Fault::Silent(self.timeout)),
                Verdict::Deaf => return Err(Fault::Deaf(self.timeout)),
            }
        }
        Ok(())
    }

    /// Says good-bye, within the time a broker has for anything.
    ///
    /// # Errors
    /// When the connection fails or the broker does not read.
    pub(crate) async fn close(&mut self) -> Result<(), Fault> {
        self.transport.out().extend_from_slice(&DISCONNECT);
        timeout(self.timeout, self.transport.close()).await.unwrap_or(Err(Fault::Deaf(self.timeout)))
    }
}

/// Sends what is queued and waits for the CONNACK, which must come first, and alone where no session was kept: we have asked for
/// nothing else yet. What else comes is appended to `early`.
async fn consent(transport: &mut Transport, plan: &ConnectionPlan, early: &mut Vec<u8>) -> Result<ConnAck, Fault> {
    poll_fn(|cx| transport.poll_flush(cx)).await?;
    let mut answer = None;
    while answer.is_none() {
        poll_fn(|cx| {
            transport.poll_frames(cx, |frame, _| {
                if answer.is_some() {
                    if plan.session == Session::Clean {
                        return Err(WireFault::Unexpected(frame.kind).into());
                    }
                    early.push(frame.first_byte);
                    push_variable_integer(early, frame.body.len());
                    early.extend_from_slice(frame.body);
                    return Ok(());
                }
                answer = Some(connack(frame, plan.version)?.map_err(Fault::Refused)?);
                Ok(())
            })
        })
        .await?;
    }
    answer.ok_or(Fault::Closed)
}

//! A small MQTT 5 client, just enough to show messages arriving: one connection, one subscription, QoS 1 both ways.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::codec::{
    Ack, Connect, ConnectProperties, Packet, PacketId, ProtocolVersion, Publish, PublishProperties, QoS, Subscribe,
    SubscribeFilter, SubscribeProperties, SubscriptionOptions, decode, encode,
};
use crate::{clock, limits, task};

const VERSION: ProtocolVersion = ProtocolVersion::V5;
/// A broker in this very process answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Packets that may wait to be written.
const OUTGOING_MAX: usize = 16;

/// What one client received.
#[derive(Debug)]
pub(super) struct Arrival {
    /// Which client.
    pub(super) at: usize,
    /// The payload.
    pub(super) payload: String,
    /// When.
    pub(super) when: Instant,
}

/// A connected client. Dropping it closes the connection.
pub(super) struct Client {
    outgoing: mpsc::Sender<Vec<u8>>,
}

impl Client {
    /// Connects to `address` as client number `number`, subscribes to `filter` and from then on sends what arrives to `arrivals`.
    pub(super) async fn connect(
        address: SocketAddr,
        number: usize,
        filter: &str,
        arrivals: mpsc::Sender<Arrival>,
    ) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut wire = Wire { stream, unread: Vec::new() };
        let client_id = format!("demo-{number}");
        let hello = Connect {
            is_bridge: false,
            version: VERSION,
            clean_start: true,
            keep_alive_seconds: 0,
            properties: ConnectProperties::default(),
            client_id: &client_id,
            will: None,
            user_name: None,
            password: None,
        };
        let filters = vec![SubscribeFilter { filter, options: SubscriptionOptions::from(QoS::AtLeastOnce) }];
        let subscribe = Subscribe { packet_id: PacketId::MIN, properties: SubscribeProperties::default(), filters };
        let hand_shake = async {
            wire.send(&Packet::Connect(Box::new(hello))).await?;
            wire.receive(|packet| match packet {
                Packet::ConnAck(answer) if !answer.reason.is_error() => Ok(()),
                other => Err(anyhow::anyhow!("the broker refuses the client: {other:?}")),
            })
            .await??;
            wire.send(&Packet::Subscribe(subscribe)).await?;
            wire.receive(|packet| match packet {
                Packet::SubAck(answer) if !answer.reasons.iter().any(|reason| reason.is_error()) => Ok(()),
                other => Err(anyhow::anyhow!("the broker refuses the subscription: {other:?}")),
            })
            .await?
        };
        tokio::time::timeout(ANSWER_TIMEOUT, hand_shake).await.context("the broker does not answer the client")??;
        let (outgoing, packets) = mpsc::channel(OUTGOING_MAX);
        task::spawn("demo client", async move {
            // A connection that ends shows in messages that do not arrive.
            if let Err(error) = wire.run(number, packets, arrivals).await {
                tracing::debug!(number, %error, "a client's connection ended");
            }
        });
        Ok(Self { outgoing })
    }

    /// Publishes at QoS 1.
    pub(super) async fn publish(&self, packet_id: PacketId, topic: &str, payload: &str) -> anyhow::Result<()> {
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic,
            packet_id: Some(packet_id),
            properties: PublishProperties::default(),
            payload: payload.as_bytes(),
        };
        let mut bytes = Vec::new();
        encode(&mut bytes, VERSION, &Packet::Publish(publish))?;
        self.outgoing.send(bytes).await.context("the client's connection has ended")
    }
}

struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Wire {
    async fn send(&mut self, packet: &Packet<'_>) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        encode(&mut bytes, VERSION, packet)?;
        Ok(self.stream.write_all(&bytes).await?)
    }

    /// What `look` makes of the next packet. Can be dropped at any time without loss.
    async fn receive<T>(&mut self, look: impl FnOnce(Packet<'_>) -> T) -> anyhow::Result<T> {
        loop {
            if let Some((packet, length)) = decode(&self.unread, VERSION, limits::PACKET_BYTES_MAX_DEFAULT)? {
                let result = look(packet);
                self.unread.drain(..length);
                return Ok(result);
            }
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                anyhow::bail!("the broker closed the connection");
            }
        }
    }

    async fn run(
        mut self,
        number: usize,
        mut packets: mpsc::Receiver<Vec<u8>>,
        arrivals: mpsc::Sender<Arrival>,
    ) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                packet = packets.recv() => match packet {
                    Some(packet) => self.stream.write_all(&packet).await?,
                    None => return Ok(()),
                },
                received = self.receive(|packet| match packet {
                    Packet::Publish(publish) => Some((publish.packet_id, String::from_utf8_lossy(publish.payload).into_owned())),
                    _ => None,
                }) => if let Some((packet_id, payload)) = received? {
                    let arrival = Arrival { at: number, payload, when: clock::now() };
                    arrivals.send(arrival).await.context("nobody listens any more")?;
                    if let Some(packet_id) = packet_id {
                        self.send(&Packet::PubAck(Ack::success(packet_id))).await?;
                    }
                },
            }
        }
    }
}

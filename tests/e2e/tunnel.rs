//! Brings any client to any listener: a TCP port on this side, TLS, QUIC, a unix socket or a PROXY header on the other.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;

/// The other side.
#[derive(Clone)]
pub enum Way {
    Unix(PathBuf),
    Tls(SocketAddr, Arc<ClientConfig>),
    /// The application protocol (ALPN) that is asked for.
    Quic(SocketAddr, Arc<ClientConfig>, &'static [u8]),
    /// TCP that begins with these bytes.
    Header(SocketAddr, Vec<u8>),
}

/// Open until it is dropped.
pub struct Tunnel {
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A stream with what must live as long.
struct Far(Box<dyn Stream>, Option<quinn::Connection>);

impl Tunnel {
    pub fn new(way: Way) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let way = way.clone();
                tokio::spawn(async move {
                    // That the far side refuses is seen by the near one as an end.
                    let Ok(Far(mut far, connection)) = dial(way).await else { return };
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                    drop(connection);
                });
            }
        });
        Self { address, runtime: Some(runtime) }
    }
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

async fn dial(way: Way) -> Result<Far, Failed> {
    Ok(match way {
        Way::Unix(path) => Far(Box::new(UnixStream::connect(path).await?), None),
        Way::Tls(address, config) => {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("localhost")?;
            Far(Box::new(TlsConnector::from(config).connect(name, stream).await?), None)
        }
        Way::Quic(address, config, protocol) => {
            let mut config = Arc::unwrap_or_clone(config);
            config.alpn_protocols = vec![protocol.to_vec()];
            let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config)?));
            let endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0)))?;
            let connection = endpoint.connect_with(config, address, "localhost")?.await?;
            let (sending, receiving) = connection.open_bi().await?;
            Far(Box::new(tokio::io::join(receiving, sending)), Some(connection))
        }
        Way::Header(address, bytes) => {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(&bytes).await?;
            Far(Box::new(stream), None)
        }
    })
}

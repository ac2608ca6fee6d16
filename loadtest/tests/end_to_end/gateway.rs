//! A way to a fake broker that speaks TLS, WebSocket, or both, by libraries that the program under test does not use for it.

use std::collections::HashSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_tungstenite::tokio::{TokioAdapter, accept_hdr_async};
use async_tungstenite::tungstenite::Message;
use async_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use futures_util::{SinkExt, StreamExt};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

/// What a gateway speaks on its near side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speaks {
    pub(crate) tls: bool,
    pub(crate) websocket: bool,
}

/// A listener, and the threads that carry its connections; all end with it.
pub(crate) struct Gateway {
    pub(crate) address: String,
    /// Those that clients have shown.
    certificates: Arc<Mutex<HashSet<Vec<u8>>>>,
    _runtime: Runtime,
}

/// The authority of a test, a client's certificate of its, and the acceptor of a broker that wants one.
pub(crate) struct Pki {
    _directory: Option<TempDir>,
    path: PathBuf,
    acceptor: TlsAcceptor,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Authorities of one name would be taken for each other, and then found wanting.
        params.distinguished_name.push(DnType::CommonName, directory.path().display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let signed = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
            (certificate, key)
        };
        let (client, client_key) = signed("client");
        let write = |name: &str, text: String| std::fs::write(directory.path().join(name), text).unwrap();
        write("ca.pem", authority.pem());
        write("client.pem", client.pem());
        write("client.key", client_key.serialize_pem());

        let (server, server_key) = signed("localhost");
        write("server.pem", server.pem());
        write("server.key", server_key.serialize_pem());
        let path = directory.path().to_owned();
        Self { acceptor: acceptor(&path), path, _directory: Some(directory) }
    }

    /// What `loadtest keys` has written.
    pub(crate) fn read(directory: &str) -> Self {
        let path = PathBuf::from(directory);
        Self { acceptor: acceptor(&path), path, _directory: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The options of a client that is let in.
    pub(crate) fn options(&self) -> String {
        let path = |name| self.path(name).display().to_string();
        format!("--cafile {} --cert {} --key {}", path("ca.pem"), path("client.pem"), path("client.key"))
    }
}

/// A broker with the certificate of this directory, who wants one of the same authority.
fn acceptor(directory: &Path) -> TlsAcceptor {
    let certificate = |name| CertificateDer::from_pem_file(directory.join(name)).unwrap();
    let key = PrivateKeyDer::from_pem_file(directory.join("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca.pem")).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_client_cert_verifier(verifier).with_single_cert(vec![certificate("server.pem")], key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

impl Gateway {
    /// To `broker`.
    pub(crate) fn start(speaks: Speaks, pki: &Pki, broker: String) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        let acceptor = pki.acceptor.clone();
        let certificates = Arc::default();
        let shown: Arc<Mutex<HashSet<_>>> = Arc::clone(&certificates);
        let handle = runtime.handle().clone();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((near, _)) = listener.accept().await {
                let (acceptor, broker, certificates) = (acceptor.clone(), broker.clone(), shown.clone());
                handle.spawn(async move {
                    // A client that is not let in is what some tests want.
                    if !speaks.tls {
                        carry(near, broker, speaks.websocket).await;
                    } else if let Ok(near) = acceptor.accept(near).await {
                        let shown = near.get_ref().1.peer_certificates().unwrap()[0].to_vec();
                        certificates.lock().unwrap().insert(shown);
                        carry(near, broker, speaks.websocket).await;
                    }
                });
            }
        });
        Self { address, certificates, _runtime: runtime }
    }

    /// Different certificates that clients have shown.
    pub(crate) fn certificates(&self) -> usize {
        self.certificates.lock().unwrap().len()
    }
}

async fn carry(mut near: impl AsyncRead + AsyncWrite + Unpin, broker: String, websocket: bool) {
    let Ok(mut far) = TcpStream::connect(&broker).await else { return };
    if !websocket {
        let _ = copy_bidirectional(&mut near, &mut far).await;
        return;
    }
    #[expect(clippy::result_large_err, reason = "the library's own type")]
    let agree = |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
        if request.uri().path() != "/mqtt" {
            let mut refusal = ErrorResponse::new(None);
            *refusal.status_mut() = "404".parse().unwrap();
            return Err(refusal);
        }
        assert_eq!(request.headers()["sec-websocket-protocol"], "mqtt");
        response.headers_mut().insert("Sec-WebSocket-Protocol", "mqtt".parse().unwrap());
        Ok(response)
    };
    let Ok(near) = accept_hdr_async(near, agree).await else { return };
    let near: async_tungstenite::WebSocketStream<TokioAdapter<_>> = near;
    let (mut sink, mut source) = near.split();
    let (mut from_broker, mut to_broker) = far.into_split();
    let inward = async {
        while let Some(Ok(message)) = source.next().await {
            if message.is_binary() && to_broker.write_all(&message.into_data()).await.is_err() {
                break;
            }
        }
        let _ = to_broker.shutdown().await;
    };
    let outward = async {
        // An odd length: packets end anywhere in a frame.
        let mut bytes = [0; 997];
        while let Ok(read @ 1..) = from_broker.read(&mut bytes).await {
            let data = Message::binary(bytes[..read].to_vec());
            if sink.send(Message::Ping("are you there".into())).await.is_err() || sink.send(data).await.is_err() {
                break;
            }
        }
        let _ = sink.close().await;
    };
    tokio::join!(inward, outward);
}

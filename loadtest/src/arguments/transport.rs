//! How brokers are spoken to: TCP, TLS, WebSocket.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;

use super::Usage;
use crate::client::{Endpoint, Tls, Trust};

/// What becomes a client's number.
const NUMBER: &str = "%i";

/// How brokers are spoken to.
#[derive(Debug, Args)]
pub(crate) struct Transport {
    /// Speak TLS, where a --broker does not say otherwise.
    #[arg(long)]
    tls: bool,
    /// File of the authorities, one of which must have signed a broker's certificate (PEM).
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    cafile: Option<PathBuf>,
    /// Certificate that the clients show (PEM); %i becomes a client's number.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The certificate's private key (PEM); %i becomes a client's number.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Believe any certificate.
    #[arg(long)]
    insecure: bool,
    /// Speak MQTT over WebSocket, where a --broker does not say otherwise.
    #[arg(long)]
    ws: bool,
    /// The WebSocket's path, where a --broker does not say otherwise.
    #[arg(long, value_name = "PATH", default_value = "/mqtt", value_parser = path)]
    ws_path: String,
}

impl Transport {
    /// These brokers, ready to be connected to.
    ///
    /// # Errors
    /// When files are missing, or say nothing of whom to believe.
    pub(crate) fn endpoints(&self, brokers: &[BrokerAddress]) -> Result<Vec<Endpoint>> {
        let scheme = |broker: &BrokerAddress| broker.scheme.unwrap_or(Scheme { tls: self.tls, websocket: self.ws });
        let tls = if brokers.iter().any(|broker| scheme(broker).tls) { Some(self.client(0)?) } else { None };
        if tls.is_none() && (self.cafile.is_some() || self.cert.is_some() || self.insecure) {
            let told = "--cafile, --cert, --key and --insecure are for TLS, which no broker is spoken to with (--tls, or --broker mqtts://HOST)";
            return Err(Usage(told.to_owned()).into());
        }
        let endpoint = |broker: &BrokerAddress| {
            let scheme = scheme(broker);
            let path = broker.path.as_ref().unwrap_or(&self.ws_path);
            Endpoint {
                address: format!("{}:{}", broker.host, broker.port.unwrap_or(scheme.port())).into(),
                tls: tls.clone().filter(|_| scheme.tls),
                websocket: scheme.websocket.then(|| path.as_str().into()),
                from: None,
            }
        };
        Ok(brokers.iter().map(endpoint).collect())
    }

    /// Whether each client has a certificate of its own.
    pub(crate) fn has_own_certificates(&self) -> bool {
        self.cert.iter().chain(&self.key).any(|path| path.to_string_lossy().contains(NUMBER))
    }

    /// TLS as the client of this number speaks it.
    ///
    /// # Errors
    /// As for [`Self::endpoints`].
    pub(crate) fn client(&self, number: u32) -> Result<Tls> {
        let trust = match &self.cafile {
            Some(path) => Trust::Authorities(path),
            None if self.insecure => Trust::Anyone,
            None => {
                let told = "TLS needs --cafile FILE with the authorities to believe, or --insecure to believe anyone";
                return Err(Usage(told.to_owned()).into());
            }
        };
        let own = |path: &PathBuf| PathBuf::from(path.to_string_lossy().replace(NUMBER, &number.to_string()));
        let (cert, key) = (self.cert.as_ref().map(own), self.key.as_ref().map(own));
        Tls::new(&trust, cert.as_deref().zip(key.as_deref()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scheme {
    tls: bool,
    websocket: bool,
}

const SCHEMES: [(&str, Scheme); 4] = [
    ("mqtt://", Scheme { tls: false, websocket: false }),
    ("mqtts://", Scheme { tls: true, websocket: false }),
    ("ws://", Scheme { tls: false, websocket: true }),
    ("wss://", Scheme { tls: true, websocket: true }),
];

impl Scheme {
    /// The port that is meant where none is named.
    fn port(self) -> u16 {
        match (self.tls, self.websocket) {
            (false, false) => 1883,
            (true, false) => 8883,
            (false, true) => 80,
            (true, true) => 443,
        }
    }
}

/// A broker as it is named: `[mqtt://|mqtts://|ws://|wss://]HOST[:PORT][/PATH]`, the path for WebSockets only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokerAddress {
    /// In brackets where it is an IPv6 address.
    host: String,
    port: Option<u16>,
    scheme: Option<Scheme>,
    path: Option<String>,
}

impl FromStr for BrokerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let told = SCHEMES.iter().find_map(|&(name, scheme)| Some((scheme, text.strip_prefix(name)?)));
        let (scheme, rest) = told.map_or((None, text), |(scheme, rest)| (Some(scheme), rest));
        let (address, path) = match rest.find('/').filter(|_| scheme.is_some_and(|scheme| scheme.websocket)) {
            Some(at) => {
                let (address, path) = rest.split_at_checked(at).unwrap_or((rest, ""));
                (address, Some(self::path(path)?))
            }
            None => (rest, None),
        };
        let wrong = || "expected HOST, HOST:PORT or [IPV6]:PORT, or mqtts://, ws:// or wss:// before it".to_owned();
        if let Ok(ip) = address.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            let host = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
            return Ok(Self { host, port: None, scheme, path });
        }
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse::<u16>().ok().filter(|&port| port > 0).ok_or_else(wrong)?)),
            None => (address, None),
        };
        if host.is_empty() || host.contains('/') {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port, scheme, path })
    }
}

fn path(text: &str) -> Result<String, String> {
    match text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err("a WebSocket's path begins with / and holds no spaces".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        broker: BrokerAddress,
        #[command(flatten)]
        transport: Transport,
    }

    /// The address, and whether it is TLS, and the path of its WebSocket.
    fn endpoint(line: &str) -> Result<(String, bool, Option<String>)> {
        let line = Line::try_parse_from(["line"].into_iter().chain(line.split_whitespace()))?;
        let endpoint = line.transport.endpoints(&[line.broker])?.remove(0);
        Ok((endpoint.to_string(), endpoint.tls.is_some(), endpoint.websocket.map(|path| path.to_string())))
    }

    #[test]
    fn a_broker_is_named_with_or_without_what_it_speaks() {
        let table = [
            ("localhost", "localhost:1883", false, None),
            ("broker.example:2883", "broker.example:2883", false, None),
            ("mqtt://10.0.0.1", "10.0.0.1:1883", false, None),
            ("::1", "[::1]:1883", false, None),
            ("[::1]", "[::1]:1883", false, None),
            ("[::1]:7", "[::1]:7", false, None),
            ("host --tls --insecure", "host:8883", true, None),
            ("mqtts://host:1 --insecure", "host:1", true, None),
            ("mqtt://host --tls --ws", "host:1883", false, None),
            ("host --ws", "host:80", false, Some("/mqtt")),
            ("host:1 --ws --ws-path /", "host:1", false, Some("/")),
            ("ws://host", "host:80", false, Some("/mqtt")),
            ("wss://[::1]/a/b --insecure", "[::1]:443", true, Some("/a/b")),
            ("host --ws --tls --insecure", "host:443", true, Some("/mqtt")),
        ];
        for (line, address, tls, path) in table {
            let expected = (address.to_owned(), tls, path.map(str::to_owned));
            assert_eq!(endpoint(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for address in ["host:0", "host:65536", ":1883", "http://host:80", "mqtt://host/path", "mqtt://", "/x"] {
            assert!(address.parse::<BrokerAddress>().is_err(), "{address}");
        }
        for (line, told) in [
            ("host --tls", "--cafile"),
            ("host --insecure", "--tls"),
            ("host --tls --insecure --cert c", "--key"),
            ("host --tls --cafile a --insecure", "--insecure"),
            ("host --tls --cafile /nowhere", "cannot read --cafile /nowhere"),
            ("host --ws-path x", "--ws-path"),
        ] {
            let error = format!("{:#}", endpoint(line).unwrap_err());
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}

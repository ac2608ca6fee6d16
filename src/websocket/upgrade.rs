//! The opening handshake (RFC 6455 section 4.2): one HTTP request, and what it is answered.
//!
//! A subprotocol must be agreed on [MQTT-6.0.0-3]: `mqtt` where it is offered [MQTT-6.0.0-4], else `mqttv3.1`, the name by which clients of
//! MQTT 3.1 knew it. A request without either is refused, and told so in words.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::{EMPTY_HEADER, Request, Status};
use sha1::{Digest, Sha1};

/// Longest request, bytes: cookies and tokens of web pages have room.
pub const REQUEST_BYTES_MAX: usize = 16 * 1024;
/// Header fields in a request.
const HEADERS_MAX: usize = 100;
/// Section 1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// In the order of our liking.
const SUBPROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

/// Who may open a WebSocket.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The only path; `None`: any.
    pub path: Option<String>,
    /// The only web pages (RFC 6454); none: any. Who names no origin is no browser.
    pub origins: Vec<String>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is not whole yet.
    More,
    /// The response opens the WebSocket; so many bytes were the request, what follows are frames.
    Open(Vec<u8>, usize),
    /// The response says why not, and so does the text.
    Refuse(Vec<u8>, &'static str),
}

/// Answers the request that `bytes` begin with.
#[must_use]
pub fn answer(bytes: &[u8], rules: &Rules) -> Answer {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Complete(length)) => match open(&request, rules) {
            Ok(response) => Answer::Open(response.into_bytes(), length),
            Err((status, why)) => refuse(status, why),
        },
        Ok(Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => Answer::More,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            refuse("431 Request Header Fields Too Large", "the request is too long")
        }
        Err(_) => refuse(BAD, "this is not HTTP; MQTT over WebSocket is spoken here"),
    }
}

const BAD: &str = "400 Bad Request";
const UPGRADE: &str = "426 Upgrade Required";

fn open(request: &Request<'_, '_>, rules: &Rules) -> Result<String, (&'static str, &'static str)> {
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    if rules.path.as_deref().is_some_and(|only| only != path) {
        return Err(("404 Not Found", "there is no WebSocket at this path"));
    }
    if request.method != Some("GET") || request.version != Some(1) || !has_word(request, "Upgrade", "websocket") {
        return Err((UPGRADE, "a WebSocket is opened here: GET, HTTP/1.1 and Upgrade: websocket are needed"));
    }
    if !has_word(request, "Connection", "upgrade") || values(request, "Host").next().is_none() {
        return Err((BAD, "Connection: Upgrade and Host are needed"));
    }
    if !values(request, "Sec-WebSocket-Version").any(|version| version == "13") {
        return Err((UPGRADE, "Sec-WebSocket-Version: 13 is needed"));
    }
    let mut keys = values(request, "Sec-WebSocket-Key");
    let key = keys.next().filter(|key| STANDARD.decode(key).is_ok_and(|key| key.len() == 16));
    let Some(key) = key.filter(|_| keys.next().is_none()) else {
        return Err((BAD, "one Sec-WebSocket-Key of 16 bytes is needed"));
    };
    let is_welcome = |origin: &str| rules.origins.is_empty() || rules.origins.iter().any(|one| one.eq_ignore_ascii_case(origin));
    if !values(request, "Origin").all(is_welcome) {
        return Err(("403 Forbidden", "this origin may not open WebSockets here"));
    }
    let is_offered = |name: &&str| words(request, "Sec-WebSocket-Protocol").any(|offered| offered == *name);
    let Some(subprotocol) = SUBPROTOCOLS.into_iter().find(is_offered) else {
        return Err((BAD, "Sec-WebSocket-Protocol: mqtt is needed"));
    };
    let accept = STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize());
    Ok(format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
    ))
}

/// Of each field of that name. One that is no text is none that we know.
fn values<'a>(request: &'a Request<'_, '_>, name: &'a str) -> impl Iterator<Item = &'a str> {
    let named = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    named.map(|header| std::str::from_utf8(header.value).unwrap_or("?").trim())
}

/// The elements of all lists of that name.
fn words<'a>(request: &'a Request<'_, '_>, name: &'a str) -> impl Iterator<Item = &'a str> {
    values(request, name).flat_map(|value| value.split(',')).map(str::trim)
}

fn has_word(request: &Request<'_, '_>, name: &str, word: &str) -> bool {
    words(request, name).any(|one| one.eq_ignore_ascii_case(word))
}

fn refuse(status: &str, why: &'static str) -> Answer {
    let version = if status == UPGRADE { "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" } else { "" };
    let response = format!(
        "HTTP/1.1 {status}\r\n{version}Content-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{why}\n",
        why.len() + 1
    );
    Answer::Refuse(response.into_bytes(), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = "GET /mqtt?a=b HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
                           Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Version: 13\r\n\r\n";

    fn status(request: &str, rules: &Rules) -> String {
        let (Answer::Open(response, _) | Answer::Refuse(response, _)) = answer(request.as_bytes(), rules) else {
            panic!("not whole: {request}")
        };
        let response = String::from_utf8(response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        assert_eq!(length.unwrap_or("0"), body.len().to_string());
        head.to_owned()
    }

    #[test]
    fn the_sample_of_the_specification_is_answered_as_it_says() {
        for length in 0..REQUEST.len() {
            assert_eq!(answer(&REQUEST.as_bytes()[..length], &Rules::default()), Answer::More);
        }
        let Answer::Open(response, length) = answer(&[REQUEST.as_bytes(), b"\x82\x80"].concat(), &Rules::default()) else {
            panic!()
        };
        assert_eq!(length, REQUEST.len());
        let response = String::from_utf8(response).unwrap();
        assert!(response.starts_with("HTTP/1.1 101 ") && response.ends_with("\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"));
        assert!(response.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{response}");
    }

    #[test]
    fn subprotocols_are_agreed_on() {
        for (offered, agreed) in [
            ("mqtt", Some("mqtt")),
            ("foo, mqtt", Some("mqtt")),
            ("mqttv3.1,mqtt", Some("mqtt")),
            ("mqttv3.1", Some("mqttv3.1")),
            ("foo\r\nSec-WebSocket-Protocol: mqtt", Some("mqtt")),
            ("foo", None),
            ("MQTT", None),
            ("", None),
        ] {
            let request = REQUEST.replace("Protocol: mqtt", &format!("Protocol: {offered}"));
            let head = status(&request, &Rules::default());
            let answered = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Protocol: "));
            assert_eq!((answered, head.starts_with("HTTP/1.1 101")), (agreed, agreed.is_some()), "{offered}: {head}");
        }
        let without = REQUEST.replace("Sec-WebSocket-Protocol: mqtt\r\n", "");
        assert!(status(&without, &Rules::default()).starts_with("HTTP/1.1 400"));
    }

    #[test]
    fn paths_and_origins_are_held_to_the_rules() {
        let rules = |path: Option<&str>, origins: &[&str]| Rules {
            path: path.map(str::to_owned),
            origins: origins.iter().map(|origin| (*origin).to_owned()).collect(),
        };
        let from = |origin: &str| REQUEST.replace("Host:", &format!("Origin: {origin}\r\nHost:"));
        for (request, rules, expected) in [
            (REQUEST.to_owned(), rules(Some("/mqtt"), &[]), "101"),
            (REQUEST.to_owned(), rules(Some("/"), &[]), "404"),
            (REQUEST.replace("/mqtt?a=b", "/mqtt/"), rules(Some("/mqtt"), &[]), "404"),
            (from("https://a.example"), rules(None, &[]), "101"),
            (from("https://a.example"), rules(None, &["https://b.example", "https://A.example"]), "101"),
            (from("https://a.example.evil"), rules(None, &["https://a.example"]), "403"),
            (from("null"), rules(None, &["https://a.example"]), "403"),
            (REQUEST.to_owned(), rules(None, &["https://a.example"]), "101"),
        ] {
            assert!(status(&request, &rules).starts_with(&format!("HTTP/1.1 {expected} ")), "{request}");
        }
    }

    #[test]
    fn names_are_known_in_any_case_and_what_is_missing_is_said() {
        let other_case = REQUEST.replace("Sec-WebSocket", "sec-websocket").replace("websocket\r", "WebSocket\r");
        assert!(status(&other_case, &Rules::default()).starts_with("HTTP/1.1 101"));
        for (from, to, expected) in [
            ("GET", "POST", "426"),
            ("HTTP/1.1", "HTTP/1.0", "426"),
            ("Upgrade: websocket\r\n", "", "426"),
            ("keep-alive, Upgrade", "keep-alive", "400"),
            ("Host: server.example.com\r\n", "", "400"),
            ("Version: 13", "Version: 8", "426"),
            ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ==", "400"),
            ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "", "400"),
            ("Host:", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nHost:", "400"),
            ("GET /mqtt", "\x10\x0c\0\x04MQTT", "400"),
        ] {
            let request = REQUEST.replace(from, to);
            assert!(status(&request, &Rules::default()).starts_with(&format!("HTTP/1.1 {expected} ")), "{request}");
        }
    }

    #[test]
    fn a_request_without_end_is_refused() {
        let long = format!("GET / HTTP/1.1\r\nCookie: {}", "x".repeat(REQUEST_BYTES_MAX));
        assert!(status(&long, &Rules::default()).starts_with("HTTP/1.1 431"));
        let many = format!("GET / HTTP/1.1\r\n{}", "A: b\r\n".repeat(HEADERS_MAX + 1));
        assert!(status(&many, &Rules::default()).starts_with("HTTP/1.1 431"));
    }
}

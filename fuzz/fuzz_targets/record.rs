//! Any bytes as records of durable sessions: none panics, each is taken off or is an error, and what is a record encodes to the same bytes again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mqtt_st_quic::session::record::decode;

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    while !rest.is_empty() {
        let before = rest;
        match decode(&mut rest) {
            Ok(Some(record)) => {
                let mut again = Vec::new();
                record.encode(&mut again);
                assert_eq!(again, before[..before.len() - rest.len()]);
            }
            Ok(None) => assert!(rest.len() < before.len()),
            // What has no length of its own ends it.
            Err(_) if rest.len() == before.len() => return,
            Err(_) => {}
        }
    }
});

//! Any bytes as a PROXY header of either version: no panic, and whoever reads as it is told to takes the whole header and never a byte more. What
//! is wrong stays wrong, whatever follows. The first byte chooses the version.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mqtt_st_quic::proxy::{HEADER_BYTES_MAX, Progress, Version, decode};

fuzz_target!(|input: &[u8]| {
    let Some((selector, bytes)) = input.split_first() else { return };
    let version = if selector % 2 == 0 { Version::V1 } else { Version::V2 };
    let whole = decode(bytes, version);
    let mut taken = 0;
    loop {
        match decode(&bytes[..taken], version) {
            Ok(Progress::More(more)) => {
                assert!(more > 0 && taken + more <= HEADER_BYTES_MAX);
                taken += more;
                if taken > bytes.len() {
                    assert!(matches!(whole, Ok(Progress::More(_)) | Err(_)));
                    return;
                }
            }
            Ok(Progress::Whole(header, length)) => {
                assert_eq!(length, taken);
                assert_eq!(whole, Ok(Progress::Whole(header, length)));
                return;
            }
            Err(_) => {
                assert!(whole.is_err());
                return;
            }
        }
    }
});

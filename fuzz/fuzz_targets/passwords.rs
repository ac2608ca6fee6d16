//! Any bytes as a password file: nothing panics, what is read is written and read again as the same, and changing one user's line leaves all
//! others alone. And any bytes as both messages of a SCRAM exchange: nobody gets in.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mqtt_st_quic::auth::{Hash, PasswordFile, Record, Scram, Users};

const USERS: &[u8] = b"u:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

fuzz_target!(|input: &[u8]| {
    let Some((selector, bytes)) = input.split_first() else { return };
    if selector & 1 == 1 {
        let users = Users::parse(USERS).expect("a good file");
        let at = usize::from(selector >> 1).min(bytes.len());
        let (first, last) = bytes.split_at(at);
        if let Ok((scram, challenge)) = Scram::begin(&users, first) {
            assert!(challenge.starts_with("r="));
            assert!(scram.finish(last).is_err(), "in without a password");
        }
        return;
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        let _ = Users::parse(bytes);
        return;
    };
    if let Ok(record) = Record::parse(text.trim()) {
        assert!(Record::parse(&record.to_string()).is_ok_and(|again| again == record));
    }
    let Ok(users) = Users::parse(bytes) else { return };
    assert!(users.find("").is_none());
    let mut file = PasswordFile::new(text.trim_start_matches('\u{feff}'));
    let record = Record::new(Hash::Sha512, None, b"x").expect("a record");
    file.set("somebody", &record).expect("a good name");
    let again = Users::parse(file.to_string().as_bytes()).expect("a good file with one user more");
    assert!(again.find("somebody").is_some_and(|(_, found)| **found == record));
    for line in text.lines() {
        let name = line.trim().split(':').next().unwrap_or_default();
        if name != "somebody" {
            assert_eq!(users.find(name), again.find(name));
        }
    }
});

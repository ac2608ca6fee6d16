//! Any bytes as an access file, then any client, topic and filter: nothing panics, no rule is no right, a right to a topic is a reason to let its
//! client subscribe to it, and a client whose name cannot fill a level has nothing that only patterns grant.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mqtt_st_quic::auth::{Access, Identity, Place, Rules};
use mqtt_st_quic::topic;

fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(4, |byte| *byte == 0);
    let mut text = || std::str::from_utf8(parts.next().unwrap_or_default()).unwrap_or_default();
    let (client_id, user, name) = (text(), text(), text());
    let file = parts.next().unwrap_or_default();
    let Ok(rules) = Rules::parse(file) else { return };
    assert!(file.windows(5).any(|word| word == b"topic") || file.windows(7).any(|word| word == b"pattern"), "a rule out of nothing");
    let identity = if user.is_empty() { Identity::Anonymous } else { Identity::Certified { name: user.into() } };
    let access = Access::new(identity, Place::default(), Some(rules.into()));
    if topic::check_name(name).is_ok() {
        let (may_publish, may_receive) = (access.may_publish(client_id, name), access.may_receive(client_id, name));
        if may_receive {
            assert!(access.may_subscribe(client_id, name), "{name:?} may be received and not subscribed");
            if !name.starts_with('$') {
                assert!(access.may_subscribe(client_id, "#"));
            }
        }
        let only_patterns_of_its_id = file.split(|byte| *byte == b'\n').all(|line| {
            let line = line.trim_ascii();
            line.is_empty() || line.starts_with(b"#") || (line.starts_with(b"pattern") && line.windows(2).any(|word| word == b"%c"))
        });
        if only_patterns_of_its_id && (client_id.is_empty() || client_id.contains(['+', '#', '/'])) {
            assert!(!may_publish && !may_receive, "{client_id:?} has a way in");
        }
        let out = access.shut_out();
        assert!(!out.may_publish(client_id, name) && !out.may_receive(client_id, name));
    } else if topic::parse_filter(name).is_ok() {
        let _ = access.may_subscribe(client_id, name);
    }
});

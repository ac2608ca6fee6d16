use std::collections::BTreeMap;

use super::*;
use crate::config::{BridgeVersion, Config, Protocol};

/// Files in memory, by their paths.
#[derive(Default)]
struct Memory(BTreeMap<PathBuf, Vec<u8>>);

impl Files for Memory {
    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        self.0.get(path).cloned().ok_or_else(|| "there is none".to_owned())
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>, String> {
        let all: Vec<_> = self.0.keys().filter(|path| path.parent() == Some(dir)).rev().cloned().collect();
        if all.is_empty() { Err("there is no such directory".to_owned()) } else { Ok(all) }
    }

    fn is_same(&self, a: &Path, b: &Path) -> bool {
        a == b
    }
}

fn import_files(files: &[(&str, &str)]) -> Result<Imported, ImportError> {
    let memory = Memory(files.iter().map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec())).collect());
    import(Path::new("m.conf"), &memory)
}

fn good(text: &str) -> (Config, Vec<String>) {
    let imported = import_files(&[("m.conf", text)]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let sources = Sources { file: Some(("b.toml", &imported.toml)), default_name: "host", ..Sources::default() };
    (sources.load().expect(&imported.toml), imported.remarks.iter().map(ToString::to_string).collect())
}

fn refused(text: &str) -> String {
    import_files(&[("m.conf", text)]).expect_err(text).to_string()
}

/// Variables with a value that is not the default, and what must stand above.
const TLS: &str = "listener 8883\ncertfile c\nkeyfile k\n";
const BRIDGE: &str = "connection b\naddress h:1\ntopic x out\n";
const EVERY_VARIABLE: &[(&str, &str)] = &[
    ("", "acl_file /acl"),
    ("", "allow_anonymous false"),
    ("", "allow_duplicate_messages false"),
    ("", "allow_zero_length_clientid false"),
    ("", "auth_plugin /x.so"),
    ("auth_plugin /x.so\n", "auth_opt_host h"),
    ("auth_plugin /x.so\n", "plugin_opt_host h"),
    ("auth_plugin /x.so\n", "auth_plugin_deny_special_chars false"),
    ("", "auto_id_prefix a-"),
    ("", "autosave_interval 60"),
    ("", "autosave_on_changes true"),
    ("", "check_retain_source false"),
    ("", "connection_messages false"),
    ("", "log_dest syslog"),
    ("", "log_dest stdout"),
    ("", "log_dest topic"),
    ("", "log_dest file /var/log/m.log"),
    ("", "log_dest dlt"),
    ("", "log_dest none"),
    ("", "log_facility 5"),
    ("", "log_timestamp false"),
    ("", "log_timestamp_format %Y"),
    ("", "log_type debug"),
    ("", "log_type subscribe"),
    ("", "max_inflight_bytes 1000000"),
    ("", "max_inflight_messages 20"),
    ("", "max_keepalive 300"),
    ("", "max_packet_size 100000"),
    ("", "max_queued_bytes 1000000"),
    ("", "max_queued_messages 500"),
    ("", "memory_limit 1000000000"),
    ("", "message_size_limit 1000"),
    ("", "password_file /passwd"),
    ("", "persistence false"),
    ("", "persistence_file x.db"),
    ("", "persistence_location /var/lib/m/"),
    ("", "persistent_client_expiration 14d"),
    ("", "pid_file /run/m.pid"),
    ("", "psk_file /psk"),
    ("", "queue_qos0_messages true"),
    ("", "retain_available false"),
    ("", "set_tcp_nodelay false"),
    ("", "sys_interval 60"),
    ("", "upgrade_outgoing_qos true"),
    ("", "user mosquitto"),
    ("", "bind_address 192.0.2.1"),
    ("listener 1\n", "bind_interface lo"),
    ("listener 1\n", "http_dir /www"),
    ("", "listener 1884 127.0.0.1"),
    ("", "max_connections 100"),
    ("", "max_qos 1"),
    ("listener 1\n", "max_topic_alias 7"),
    ("listener 1\nlistener 2\n", "mount_point a/"),
    ("", "port 1884"),
    ("listener 1\n", "protocol websockets"),
    ("listener 1\n", "socket_domain ipv4"),
    ("listener 2\nlistener 1\n", "socket_domain ipv6"),
    ("listener 2\nlistener 1\n", "use_username_as_clientid true"),
    ("", "websockets_log_level 1"),
    ("", "websockets_headers_size 2048"),
    (TLS, "cafile /ca"),
    ("listener 2\nlistener 1\ncertfile c\nkeyfile k\nrequire_certificate true\n", "capath /cas"),
    ("listener 1\ncertfile c\n", "keyfile k"),
    ("listener 1\nkeyfile k\n", "certfile c"),
    (TLS, "ciphers X"),
    (TLS, "ciphers_tls1.3 X"),
    ("listener 1\ncertfile c\nkeyfile k\ncafile a\nrequire_certificate true\n", "crlfile /crl"),
    (TLS, "dhparamfile /dh"),
    ("listener 1\ncertfile c\nkeyfile k\ncafile a\n", "require_certificate true"),
    ("listener 2\nlistener 1\n", "tls_engine e"),
    (TLS, "tls_engine_kpass_sha1 00"),
    ("listener 2\nlistener 1\n", "tls_keyform engine"),
    (TLS, "tls_version tlsv1.3"),
    ("listener 1\ncertfile c\nkeyfile k\ncafile a\nrequire_certificate true\n", "use_identity_as_username true"),
    ("listener 1\ncertfile c\nkeyfile k\ncafile a\nrequire_certificate true\n", "use_subject_as_username true"),
    ("listener 2\nlistener 1\n", "psk_hint hint"),
    ("connection b\ntopic x out\n", "address h:1"),
    ("connection b\ntopic x out\n", "addresses h:1 h2:2"),
    (BRIDGE, "bridge_attempt_unsubscribe false"),
    (BRIDGE, "bridge_bind_address 192.0.2.1"),
    (BRIDGE, "bridge_max_packet_size 1000"),
    (BRIDGE, "bridge_outgoing_retain false"),
    (BRIDGE, "bridge_protocol_version mqttv50"),
    (BRIDGE, "bridge_protocol_version mqttv31"),
    (BRIDGE, "cleansession true"),
    (BRIDGE, "local_cleansession true"),
    (BRIDGE, "keepalive_interval 30"),
    (BRIDGE, "idle_timeout 30"),
    (BRIDGE, "local_clientid l"),
    (BRIDGE, "local_password p"),
    (BRIDGE, "local_username u"),
    (BRIDGE, "notifications false"),
    (BRIDGE, "notifications_local_only true"),
    (BRIDGE, "notification_topic n/t"),
    (BRIDGE, "remote_clientid r"),
    (BRIDGE, "clientid r"),
    ("connection b\naddress h:1\ntopic x out\nremote_username u\n", "remote_password p"),
    ("connection b\naddress h:1\ntopic x out\nusername u\n", "password p"),
    (BRIDGE, "remote_username u"),
    (BRIDGE, "username u"),
    (BRIDGE, "restart_timeout 10 60"),
    (BRIDGE, "round_robin true"),
    (BRIDGE, "start_type lazy"),
    (BRIDGE, "threshold 5"),
    (BRIDGE, "topic # both 2 l/ r/"),
    (BRIDGE, "try_private false"),
    (BRIDGE, "bridge_alpn mqtt"),
    (BRIDGE, "bridge_cafile /ca"),
    (BRIDGE, "bridge_capath /cas"),
    ("connection b\naddress h:1\ntopic x out\nbridge_cafile a\nbridge_keyfile k\n", "bridge_certfile c"),
    ("connection b\naddress h:1\ntopic x out\nbridge_cafile a\nbridge_certfile c\n", "bridge_keyfile k"),
    (BRIDGE, "bridge_identity i"),
    (BRIDGE, "bridge_psk 00"),
    ("connection b\naddress h:1\ntopic x out\nbridge_cafile a\n", "bridge_insecure true"),
    (BRIDGE, "bridge_require_ocsp true"),
    (BRIDGE, "bridge_tls_version tlsv1.2"),
    // 2.1
    ("listener 1\n", "accept_protocol_versions 4"),
    ("listener 1\n", "listener_allow_anonymous true"),
    ("listener 1\n", "listener_auto_id_prefix a-"),
    ("listener 1\n", "max_topic_alias_broker 7"),
    ("listener 1\nprotocol websockets\n", "websockets_origin https://a.example"),
    ("listener 1\n", "enable_proxy_protocol 2"),
    ("listener 1\n", "proxy_protocol_v2_require_tls true"),
    ("listener 1\n", "disable_client_cert_date_checks true"),
    ("", "enable_control_api true"),
    ("", "global_max_clients 10"),
    ("", "global_max_connections 10"),
    ("", "global_plugin /x.so"),
    ("", "plugin /x.so"),
    ("", "plugin_load x /x.so"),
    ("plugin_load x /x.so\nlistener 1\n", "plugin_use x"),
    ("", "packet_buffer_size 1000"),
    ("", "retain_expiry_interval 10"),
    ("", "retained_persistence false"),
    ("", "retry_interval 20"),
    (BRIDGE, "bridge_ciphers X"),
    (BRIDGE, "bridge_ciphers_tls1.3 X"),
    (BRIDGE, "bridge_max_topic_alias 5"),
    (BRIDGE, "bridge_receive_maximum 5"),
    (BRIDGE, "bridge_reload_type lazy"),
    (BRIDGE, "bridge_session_expiry_interval 5"),
    (BRIDGE, "bridge_tcp_keepalive 1 2 3"),
    (BRIDGE, "bridge_tcp_user_timeout 5"),
    (BRIDGE, "bridge_tls_use_os_certs true"),
];

#[test]
fn every_variable_is_translated_or_named() {
    for (above, line) in EVERY_VARIABLE {
        let number = above.lines().count() + 1;
        let text = format!("{above}{line}\n");
        let with = match import_files(&[("m.conf", &text)]) {
            Ok(with) => with,
            Err(error) => panic!("{text}: {error}"),
        };
        let is_named = with.remarks.iter().any(|remark| remark.origin.line == number && line.starts_with(&remark.key));
        let is_translated = import_files(&[("m.conf", above)]).map_or(true, |without| without.toml != with.toml);
        assert!(is_named || is_translated, "{text}: {with:?}");
    }
    // What is asked for above is a list of the variables: none that is known was forgotten.
    let tried = |known: &str| EVERY_VARIABLE.iter().any(|(_, line)| line.split(' ').next() == Some(known));
    let special = ["clientid_prefixes", "connection", "include_dir", "per_listener_settings"];
    let known = elsewise::KNOWN.iter().chain(elsewise::ELSEWISE.iter().map(|(key, ..)| key));
    let missing: Vec<_> = known.filter(|known| !tried(known) && !special.contains(known)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_whole_configuration() {
    let text = "# a comment\n\n  persistence true\npersistence_location /var/lib/mosquitto/\nmax_queued_messages 0\nlog_type warning\n\
                password_file /etc/mosquitto/passwd\nacl_file /etc/mosquitto/acl\r\nlistener 1883\nlistener 8883 192.0.2.1\nmax_connections 50\n\
                certfile /c.pem\nkeyfile /c.key\ncafile /ca.pem\nrequire_certificate true\nuse_identity_as_username 1\n\
                listener 0 /run/m.sock\nlistener 9001 ::1\nprotocol websockets\n\
                connection to-b\naddress b.example\ntopic # out 2 \"\" A/\ntopic # IN 2 \"\" B/ # a comment\nrestart_timeout 5 60\n";
    let imported = import_files(&[("m.conf", text)]).expect("good");
    let expected = "# Imported from m.conf. `mqtt-st-quic config check` says whether a broker can start with it.\n\
                    data_dir = \"/var/lib/mosquitto/\"\n\
                    \n[[listener]]\nbind = \"[::]:1883\"\n\
                    \n[[listener]]\nbind = \"192.0.2.1:8883\"\nmax_connections = 50\n\
                    tls = { cafile = \"/ca.pem\", certfile = \"/c.pem\", keyfile = \"/c.key\", require_certificate = true, use_identity_as_username = true }\n\
                    \n[[listener]]\nbind = \"unix:/run/m.sock\"\n\
                    \n[[listener]]\nbind = \"[::1]:9001\"\nprotocol = \"websockets\"\n\
                    \n[auth]\npassword_file = \"/etc/mosquitto/passwd\"\nacl_file = \"/etc/mosquitto/acl\"\n\
                    \n[persistence]\nenabled = true\n\
                    \n[limits]\nmax_queued_messages = 2147483648\n\
                    \n[log]\nfilter = \"warn\"\n\
                    \n[[bridge]]\nname = \"to-b\"\nprotocol_version = \"mqttv311\"\naddresses = [\"b.example\"]\nrestart_timeout = \"60s\"\n\
                    topic = ['# out 2 \"\" A/', '# in 2 \"\" B/']\n";
    assert_eq!(imported.toml, expected);
    assert_eq!((imported.left_out(), imported.lines), (0, 22), "{imported:?}");
    let (config, remarks) = good(text);
    assert_eq!(config.bridges[0].addresses[0].port, 1883);
    assert_eq!(config.bridges[0].protocol_version, BridgeVersion::MqttV311);
    assert_eq!(config.listeners[3].protocol, Protocol::WebSockets);
    assert!(remarks.iter().any(|remark| remark.starts_with("m.conf:3: persistence: note: what is in mosquitto.db")), "{remarks:?}");
}

#[test]
fn who_comes_in_is_as_in_mosquitto() {
    // Nothing is said: this machine only, and everybody.
    for (text, bind, anonymous) in [
        ("", "127.0.0.1:1883", true),
        ("persistence true\n", "127.0.0.1:1883", true),
        ("password_file p\n", "127.0.0.1:1883", true),
        ("allow_anonymous false\npassword_file p\n", "127.0.0.1:1883", false),
        ("port 1884\n", "[::]:1884", false),
        ("listener 1884\n", "[::]:1884", false),
        ("listener 1884 localhost\nallow_anonymous true\n", "127.0.0.1:1884", true),
        ("per_listener_settings true\nlistener 1\nallow_anonymous true\n", "[::]:1", true),
        ("per_listener_settings true\nallow_anonymous true\nlistener 1\n", "[::]:1", false),
    ] {
        let (config, _) = good(text);
        let listener = config.listeners.first().expect("a listener");
        assert_eq!((listener.bind.to_string().as_str(), config.auth_of(listener).allow_anonymous), (bind, anonymous), "{text}");
        assert_eq!(config.listeners.len(), 1, "{text}");
    }
    let (config, _) =
        good("per_listener_settings true\nlistener 1\npassword_file p\nlistener 2\nallow_anonymous true\nacl_file a\n");
    let [first, second] = &config.listeners[..] else { panic!("{config:?}") };
    assert_eq!((first.password_file.as_deref(), first.allow_anonymous), (Some(Path::new("p")), None));
    assert_eq!(
        (second.acl_file.as_deref(), second.allow_anonymous, &second.password_file),
        (Some(Path::new("a")), Some(true), &None)
    );
    assert_eq!(config.auth, crate::config::Auth::default());
}

#[test]
fn what_is_left_out_lets_nobody_do_more() {
    let left_out = |text: &str, count: usize| {
        let (config, remarks) = good(text);
        assert_eq!(remarks.iter().filter(|remark| remark.contains("left out")).count(), count, "{text}: {remarks:?}");
        config
    };
    // A listener without its protection is not opened.
    for line in [
        "psk_hint h",
        "mount_point m/",
        "bind_interface eth0",
        "socket_domain ipv6",
        "use_username_as_clientid true",
        "capath /c\nrequire_certificate true\ncertfile c\nkeyfile k",
        "mount_point m/\ncapath /c\nrequire_certificate true\ncertfile c\nkeyfile k\ncafile a",
        "certfile c\nkeyfile k\ncafile a\nuse_identity_as_username true",
        "enable_proxy_protocol 2\nproxy_protocol_v2_require_tls true",
        "enable_proxy_protocol 2\nrequire_certificate true\nlistener_allow_anonymous true",
        "enable_proxy_protocol 2\nrequire_certificate true\nuse_identity_as_username true\npassword_file p",
    ] {
        let config = left_out(&format!("listener 1\nlistener 2\n{line}\n"), 2);
        assert_eq!(config.listeners.len(), 1, "{line}");
        let said = refused(&format!("listener 2\n{line}\n"));
        assert!(said.starts_with("m.conf") && said.contains("no listener is left"), "{said}");
    }
    // Nobody comes in where a plug-in would have decided.
    let config = left_out("listener 1\nallow_anonymous true\npassword_file p\nauth_plugin /x.so\nauth_opt_a b\n", 4);
    assert_eq!(config.auth, crate::config::Auth::default());
    let certificates = "certfile c\nkeyfile k\ncafile a\nrequire_certificate true\nuse_identity_as_username true\n";
    let config = left_out(&format!("listener 1\n{certificates}auth_plugin /x.so\n"), 2);
    let tls = config.listeners[0].tls.as_ref().expect("TLS");
    assert!(tls.require_certificate && !tls.use_identity_as_username, "{tls:?}");
    let config = left_out("per_listener_settings true\nlistener 1\nplugin /x.so\nlistener 2\nallow_anonymous true\n", 1);
    assert_eq!(config.listeners.iter().map(|one| one.allow_anonymous).collect::<Vec<_>>(), [Some(false), Some(true)]);
    let config = left_out("global_plugin /x.so\nlistener 2\nlistener_allow_anonymous true\n", 2);
    assert_eq!(config.listeners[0].allow_anonymous, Some(false));
    // Where nobody would come in without a certificate, either, the proxy's word is good.
    let certified = "listener 1\nenable_proxy_protocol 2\nrequire_certificate true\nuse_identity_as_username true\n";
    let config = left_out(certified, 0);
    assert!(config.listeners[0].proxy_identity_as_username && !config.auth_of(&config.listeners[0]).allow_anonymous);
    // A bridge does not go over the network in the clear.
    for line in ["bridge_psk 00", "bridge_capath /c"] {
        assert!(left_out(&format!("{BRIDGE}{line}\n"), 2).bridges.is_empty(), "{line}");
    }
}

#[test]
fn included_files_come_in_mosquittos_order_and_once() {
    let files = [
        ("m.conf", "include_dir d\nlog_type error\n"),
        ("d/b.conf", "connection b\naddress h\ntopic b out\n"),
        ("d/B.conf", "connection B\naddress h\ntopic B out\n"),
        ("d/00.conf", "listener 1\n"),
        ("d/a.conf", "connection a\naddress h\ntopic a out\n"),
        ("d/x.txt", "nonsense\n"),
    ];
    let imported = import_files(&files).expect("good");
    let names: Vec<_> = imported.toml.lines().filter(|line| line.starts_with("name")).collect();
    assert_eq!(names, ["name = \"a\"", "name = \"B\"", "name = \"b\""]);
    let said = |files: &[(&str, &str)]| import_files(files).expect_err("bad").to_string();
    for (files, words) in [
        (
            &[("m.conf", "include_dir d\n"), ("d/a.conf", "include_dir d\n")][..],
            "d/a.conf:1: `include_dir d`: stands in a file that is itself",
        ),
        (&[("m.conf", "port 1\ninclude_dir \n")], "m.conf:2: `include_dir`: has no value"),
        (&[("m.conf", "\ninclude_dir e\n")], "m.conf:2: cannot read e: there is no such directory"),
        (
            &[("m.conf", "include_dir d\n"), ("d/a.conf", "\nporrt 1\n")],
            "d/a.conf:2: `porrt 1`: is no variable of Mosquitto's; did you mean `port`?",
        ),
        (&[("x.conf", "")], "cannot read m.conf: there is none"),
    ] {
        let said = said(files);
        assert!(said.contains(words), "{words:?} is not in {said:?}");
    }
    // What one file is about is not what the next is about.
    let said = said(&[("m.conf", "include_dir d\n"), ("d/a.conf", BRIDGE), ("d/b.conf", "round_robin true\n")]);
    assert!(said.starts_with("d/b.conf:1: `round_robin true`: stands before any `connection`"), "{said}");
    let memory = Memory([(PathBuf::from("d/m.conf"), b"include_dir d\n".to_vec())].into());
    let said = import(Path::new("d/m.conf"), &memory).expect_err("a cycle").to_string();
    assert!(said.contains("d/m.conf:1") && said.contains("include itself"), "{said}");
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let long = format!("port 1\nacl_file {}\n", "x".repeat(10_000_000));
    for (text, words) in [
        ("lisener 1883\n", &["m.conf:1", "lisener 1883", "did you mean `listener`?"][..]),
        ("x y\n", &["m.conf:1", "no variable", "take the line away"]),
        ("clientid_prefixes secure-\n", &["m.conf:1", "keeps clients out", "take the line away"]),
        ("listener 1\nport 2\n", &["m.conf:2", "default listener", "above the first"]),
        ("listener 1\nbind_address 127.0.0.1\n", &["m.conf:2", "default listener"]),
        ("listener 1\nuse_identity_as_username true\nrequire_certificate true\n", &["m.conf:2", "needs certfile"]),
        ("listener 1\nenable_proxy_protocol 2\nuse_subject_as_username true\n", &["m.conf:3", "use_identity_as_username can"]),
        ("max_connections -0x-8000000000000000\n", &["m.conf:1", "no whole number"]),
        ("persistence yes\n", &["m.conf:1", "neither true nor false"]),
        ("persistence\n", &["m.conf:1", "no value"]),
        ("listener x\n", &["m.conf:1", "no whole number"]),
        ("listener 70000\n", &["m.conf:1", "from 0 to 65535"]),
        ("listener 0\n", &["m.conf:1", "unix socket"]),
        ("listener 1 host.example\n", &["m.conf:1", "`host.example` is a name", "write that"]),
        ("\nlistener 1\nlistener 1\n", &["m.conf:3", "bind", "is the address of listener 0 already"]),
        ("listener 1\ncertfile c\n", &["m.conf:2", "write both"]),
        ("listener 1\ncafile c\n", &["m.conf:2", "of no use without certfile"]),
        ("listener 1\ncertfile c\nkeyfile k\nrequire_certificate true\n", &["m.conf:1", "tls.require_certificate", "cafile"]),
        ("listener 1\nprotocol quic\n", &["m.conf:2", "none of mqtt"]),
        ("sys_interval 70000\n", &["m.conf:1", "from 0 to 65535"]),
        ("max_packet_size 20\n", &["m.conf:1", "it must be from 128"]),
        ("memory_limit 1000\n", &["m.conf:1", "too few for a broker"]),
        ("log_type loud\n", &["m.conf:1", "none of error"]),
        ("log_dest moon\n", &["m.conf:1", "none of stderr"]),
        ("allow_anonymous true\nper_listener_settings true\n", &["m.conf:2", "move it to the top"]),
        ("auth_opt_x y\n", &["m.conf:1", "before any plug-in"]),
        ("topic a out\n", &["m.conf:1", "before any `connection`"]),
        ("connection a\ntopic a out\n", &["m.conf:1", "addresses: is missing"]),
        ("connection a\naddress h\n", &["m.conf:1", "topic: is missing"]),
        ("connection a\naddress h:x\ntopic a\n", &["m.conf:2", "is not a host and port"]),
        ("connection a\naddress h\ntopic a sideways\n", &["m.conf:3", "none of out, in and both"]),
        ("connection a\naddress h\ntopic a out 3\n", &["m.conf:3", "no QoS"]),
        ("connection a\naddress h\ntopic a out 1 b/# c\n", &["m.conf:3", "wildcard"]),
        ("connection a\naddress h\ntopic \"\" out 1 b \"\"\n", &["m.conf:3"]),
        ("connection a\naddress h\ntopic a\nkeepalive_interval 1\n", &["m.conf:4", "from 5"]),
        ("connection a\naddress h\ntopic a\nrestart_timeout 9 3\n", &["m.conf:4", "below the first"]),
        ("connection a\naddress h\ntopic a\nconnection a\naddress h\ntopic a\n", &["m.conf:4", "another bridge `a`"]),
        ("connection a\naddress h\ntopic a\nremote_password p\n", &["m.conf:1", "remote_username"]),
        (&long, &["m.conf:2", "262144"]),
        ("port 1\nacl_file a\u{7}\n", &["m.conf:2", "control characters"]),
    ] {
        let said = refused(text);
        for word in words {
            assert!(said.contains(word), "{word:?} is not in {said:?}");
        }
        assert!(said.len() < 600, "{said}");
    }
    // Passwords are not shown.
    assert!(!refused("remote_password secret\n").contains("secret"));
    let memory = Memory([(PathBuf::from("m.conf"), b"port 1\nacl_file \xff\n".to_vec())].into());
    let said = import(Path::new("m.conf"), &memory).expect_err("no text").to_string();
    assert!(said.contains("m.conf:2") && said.contains("UTF-8"), "{said}");
}

#[test]
fn addresses_and_topics_are_written_as_here() {
    let (config, remarks) = good(
        "connection my/bridge # a comment\naddresses h 192.0.2.1:1 ::1:1884 # a comment\ntopic \"\" both 1 mine theirs\ntopic # in\ntopic \"a b\" out\n",
    );
    let bridge = config.bridges.first().expect("a bridge");
    assert_eq!(bridge.name, "my-bridge");
    let addresses: Vec<String> = bridge.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["h:1883", "192.0.2.1:1", "[::1]:1884"]);
    let topics: Vec<String> = bridge.topics.iter().map(ToString::to_string).collect();
    assert_eq!(topics, ["\"\" both 1 mine theirs", "# in 0 \"\" \"\""]);
    assert_eq!(remarks.iter().filter(|remark| remark.contains("left out")).count(), 1, "{remarks:?}");
}

#[test]
fn what_was_said_last_counts() {
    for (text, bind, filter) in [
        (
            "listener 0 /s\nbind_interface lo\nprotocol websockets\nprotocol mqtt\nlog_dest none\nlog_dest stderr\n",
            "unix:/s",
            false,
        ),
        ("listener 5 192.0.2.1\nbind_interface lo\nlog_dest stderr\nlog_dest none\n", "127.0.0.1:5", true),
        ("listener 5 ::1\nsocket_domain ipv6\nuse_username_as_clientid true\nuse_username_as_clientid false\n", "[::1]:5", false),
    ] {
        let (config, remarks) = good(text);
        assert_eq!(config.listeners[0].bind.to_string(), bind, "{remarks:?}");
        assert_eq!(config.listeners[0].protocol, Protocol::Mqtt, "{text}");
        assert_eq!(config.log.filter == "off", filter, "{text}");
        assert!(!remarks.iter().any(|remark| remark.contains("left out")), "{remarks:?}");
    }
}

#[test]
fn no_text_makes_it_panic() {
    proptest::proptest!(|(lines in proptest::collection::vec(
        (0..EVERY_VARIABLE.len(), 0..6_usize, "[ -~]{0,12}"), 0..12))| {
        let text: String = lines.iter().map(|(place, way, noise)| {
            let (above, line) = EVERY_VARIABLE[*place];
            let key = line.split(' ').next().unwrap_or_default();
            match way {
                0 => format!("{above}{line}\n"),
                1 => format!("{line}\n"),
                2 => format!("{key} {noise}\n"),
                3 => format!("{key}\n"),
                4 => format!("{line}{noise}\n"),
                _ => format!("{noise}\n"),
            }
        }).collect();
        // What is given can be loaded: that is tried inside.
        let _ = import_files(&[("m.conf", &text)]);
    });
}

#[test]
fn the_guide_has_every_variable() {
    let guide = include_str!("../../../deploy/mosquitto.md");
    for (_, line) in EVERY_VARIABLE {
        let variable = line.split(' ').next().unwrap_or_default();
        let variable = if variable.contains("_opt_") { variable.replace("host", "*") } else { variable.to_owned() };
        assert!(guide.contains(&format!("`{variable}`")), "{variable}");
    }
}

#[test]
fn plugins_that_ask_a_database_become_auth_sql() {
    let text = "listener 1883\nallow_anonymous false\nauth_plugin /usr/lib/mosquitto/go-auth.so\nauth_opt_backends files, postgres\n\
                auth_opt_files_password_path /etc/pw\nauth_opt_pg_host db\nauth_opt_pg_port 5433\nauth_opt_pg_dbname mqtt\nauth_opt_pg_user mosquitto\n\
                auth_opt_pg_password secret\nauth_opt_pg_userquery SELECT pw FROM account WHERE username = $1 limit 1\n\
                auth_opt_pg_superquery SELECT COUNT(*) FROM account WHERE username = $1 AND super = 1\n\
                auth_opt_pg_aclquery SELECT topic FROM acls WHERE (username = $1) AND rw >= $2\nauth_opt_auth_cache_seconds 30\n\
                auth_opt_acl_cache_seconds 90\nauth_opt_hasher bcrypt\nauth_opt_check_prefix true\n";
    let imported = import_files(&[("m.conf", text)]).expect("good");
    assert!(!imported.toml.contains("secret"), "{}", imported.toml);
    let (config, remarks) = good(text);
    let sql = config.auth.sql.as_ref().expect("[auth.sql]");
    assert_eq!(sql.user_query.as_deref(), Some("SELECT pw FROM account WHERE username = $1 limit 1"));
    assert_eq!(sql.acl_query.as_deref(), Some("SELECT topic FROM acls WHERE (username = $1) AND rw >= $2"));
    assert!(sql.superuser_query.is_some() && sql.cache_ttl == std::time::Duration::from_secs(30));
    assert_eq!((config.auth.password_file.as_deref(), config.auth.backends.len()), (Some(Path::new("/etc/pw")), 2));
    let left_out: Vec<_> = remarks.iter().filter(|remark| remark.contains("left out")).collect();
    assert_eq!(left_out.len(), 2, "{remarks:?}");
    assert!(
        left_out[0].contains("m.conf:3")
            && left_out[0].contains("postgres://mosquitto:PASSWORD@db:5433/mqtt?sslmode=verify-full into"),
        "{left_out:?}"
    );
    assert!(left_out[1].contains("m.conf:17"), "{left_out:?}");
    assert!(
        remarks.iter().any(|remark| remark.contains("m.conf:4") && remark.contains("the first that knows a user")),
        "{remarks:?}"
    );
    let (_, remarks) = good(&format!("{text}auth_opt_pg_sslmode verify-ca\nauth_opt_pg_sslrootcert /ca.pem\n"));
    let url = "postgres://mosquitto:PASSWORD@db:5433/mqtt?sslmode=verify-ca&sslrootcert=/ca.pem into";
    assert!(remarks.iter().any(|remark| remark.contains(url)), "{remarks:?}");

    let (config, _) = good(
        "auth_plugin /opt/auth-plug.so\nauth_opt_backends mysql\nauth_opt_host h\nauth_opt_userquery SELECT pw FROM users WHERE username = '%s'\n\
         auth_opt_aclquery SELECT topic FROM acls WHERE (username = '%s') AND (rw >= %d)\n",
    );
    let sql = config.auth.sql.as_ref().expect("[auth.sql]");
    assert_eq!(sql.user_query.as_deref(), Some("SELECT pw FROM users WHERE username = ?"));
    assert_eq!(sql.acl_query.as_deref(), Some("SELECT topic FROM acls WHERE (username = ?) AND (rw >= ?)"));
    assert!(
        !config.auth.allow_anonymous && config.listeners.iter().all(|listener| listener.allow_anonymous != Some(true)),
        "it judged them"
    );
    let plugin =
        "auth_plugin /opt/auth-plug.so\nauth_opt_backends mysql\nauth_opt_userquery SELECT pw FROM users WHERE username = '%s'\n";
    let (config, remarks) =
        good(&format!("listener 1883\nallow_anonymous true\n{plugin}auth_opt_aclquery SELECT topic, 1 FROM acls WHERE u = '%s'\n"));
    assert!(config.auth.sql.is_some() && !config.auth.allow_anonymous);
    assert!(remarks.iter().any(|remark| remark.contains("m.conf:2") && remark.contains("left out")), "{remarks:?}");
    // Without a query for rules that plug-in lets nobody do anything.
    let (config, remarks) = good(&format!("listener 1883\n{plugin}"));
    assert!(config.auth.sql.is_none() && remarks.iter().any(|remark| remark.contains("nobody comes in")), "{remarks:?}");
    let (config, remarks) = good(
        "auth_plugin /go-auth.so\nauth_opt_backends http\nauth_opt_http_host auth.example\nauth_opt_http_port 8443\nauth_opt_http_with_tls true\n\
         auth_opt_http_getuser_uri /user\nauth_opt_http_superuser_uri /su\nauth_opt_http_aclcheck_uri acl\nauth_opt_http_params_mode form\n\
         auth_opt_http_response_mode status\nauth_opt_http_timeout 3\nauth_opt_auth_cache_seconds 10\n",
    );
    let http = config.auth.http.expect("[auth.http]");
    assert_eq!(http.user_url.as_deref(), Some("https://auth.example:8443/user"));
    assert_eq!((http.acl_url.as_deref(), http.format), (Some("https://auth.example:8443/acl"), crate::config::HttpFormat::Form));
    assert!(http.superuser_url.is_some() && http.cafile.is_some() && http.timeout == std::time::Duration::from_secs(3));
    assert_eq!(http.cache_ttl, std::time::Duration::from_secs(10));
    assert!(remarks.iter().any(|remark| remark.contains("all rules of a user")), "{remarks:?}");

    let imported = import_files(&[(
        "m.conf",
        "auth_plugin /go-auth.so\nauth_opt_backends jwt\nauth_opt_jwt_mode files\nauth_opt_jwt_secret verysecret\nauth_opt_jwt_userfield Username\n\
         auth_opt_jwt_files_acl_path /etc/acl\n",
    )])
    .expect("good");
    assert!(!imported.toml.contains("verysecret") && imported.toml.contains("[auth.jwt]"), "{}", imported.toml);
    assert!(
        imported.toml.contains("user_claim = \"username\"") && imported.toml.contains("in_user_name = true"),
        "{}",
        imported.toml
    );
    assert!(imported.toml.contains("acl_file = \"/etc/acl\"") && imported.toml.contains("acl_claim = \"\""), "{}", imported.toml);
    // Passwords go where that plug-in sent them, and not where a header names.
    let (config, _) = good(
        "auth_plugin /auth-plug.so\nauth_opt_backends http\nauth_opt_http_ip 192.0.2.7\nauth_opt_http_port 8080\nauth_opt_http_hostname example.org\n\
         auth_opt_http_getuser_uri /user\nauth_opt_http_superuser_uri /su\nauth_opt_http_aclcheck_uri /acl\n",
    );
    let http = config.auth.http.expect("[auth.http]");
    assert_eq!((http.user_url.as_deref(), http.plain_http), (Some("http://192.0.2.7:8080/user"), true));
    // All of it, or nothing: what is missing may have been what refused.
    for options in [
        "backends redis",
        "backends sqlite, jwt",
        "backends postgres",
        "log_level debug",
        "backends files",
        "backends sqlite,mysql",
        "backends http\nauth_opt_http_host h\nauth_opt_http_getuser_uri /u",
        "backends http\nauth_opt_http_host h\nauth_opt_http_getuser_uri /u\nauth_opt_http_aclcheck_uri /a\nauth_opt_http_response_mode json",
        "backends jwt\nauth_opt_jwt_mode local",
    ] {
        let (config, remarks) = good(&format!("listener 1\npassword_file p\nauth_plugin /go-auth.so\nauth_opt_{options}\n"));
        assert_eq!((&config.auth.sql, &config.auth.password_file, config.auth.allow_anonymous), (&None, &None, false), "{options}");
        assert!(remarks.iter().any(|remark| remark.contains("nobody comes in")), "{options}: {remarks:?}");
    }
    // A superuser that was switched off stays so.
    let (config, _) = good(
        "auth_plugin /go-auth.so\nauth_opt_backends sqlite\nauth_opt_sqlite_source /db\nauth_opt_sqlite_userquery SELECT p FROM u WHERE n = ?\nauth_opt_sqlite_superquery SELECT s FROM u WHERE n = ?\n\
         auth_opt_disable_superuser true\n",
    );
    assert_eq!(config.auth.sql.expect("[auth.sql]").superuser_query, None);
}

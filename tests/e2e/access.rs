//! Users and rules as an operator has them: the command that makes a password file, Mosquitto's on the other side, the start, SIGHUP, the log.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command, Stdio};

use crate::broker::{Broker, Said, Site, program, run, wait_for};
use crate::client::{Client, Connect, Publish, Will};
use crate::foreign::is_there;

const NOT_AUTHORIZED: u8 = 0x87;
const WRONG: u8 = 0x86;

fn passwd(arguments: &[&str]) -> Said {
    run(&[&["passwd"], arguments].concat())
}

/// Runs `passwd`, which must do it.
fn good(arguments: &[&str]) {
    let said = passwd(arguments);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{arguments:?}: {said:?}");
}

/// A configuration in which these two files say who may do what.
fn guarded(site: &Site, name: &str) -> String {
    let alone = site.alone(name).replace("allow_anonymous = true\n", "");
    format!("{alone}[auth]\npassword_file = {:?}\nacl_file = {:?}\n", site.file("passwd"), site.file("acl"))
}

fn login(broker: &Broker, user: &str, password: &str) -> Client {
    Client::connect(broker, &Connect::new(5).login(user, password))
}

/// The code with which the broker refuses a client.
pub fn refusal(broker: &Broker, connect: &Connect) -> u8 {
    let mut client = Client::open(broker, connect.version);
    client.send(&connect.encode());
    client.expect_end().reason.expect("a refusal says why")
}

fn hash_of(file: &str, user: &str) -> String {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{user}:")));
    line.unwrap_or_else(|| panic!("no {user} in {text}")).to_owned()
}

#[test]
fn passwd_makes_changes_and_deletes() {
    let site = Site::new();
    let file = &site.file("passwd");
    good(&["-c", "-b", file, "bob", "secret"]);
    let mode = || fs::metadata(file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    assert!(hash_of(file, "bob").starts_with("$argon2id$v=19$m=47104,t=1,p=1$"));
    fs::set_permissions(file, fs::Permissions::from_mode(0o640)).unwrap();
    let first = hash_of(file, "bob");
    for (arguments, user, begins) in [
        (&["-H", "sha512", "-b", file, "old", "x"][..], "old", "$6$"),
        (&["-H", "sha512-pbkdf2", "-b", file, "eve", "x"], "eve", "$7$1000$"),
        (&["-H", "sha512-pbkdf2", "-I", "101", "-b", file, "eve", "x"], "eve", "$7$101$"),
        (&["-H", "argon2id", "-b", file, "eve", "x"], "eve", "$argon2id$"),
        (&["--scram", "-b", file, "eve", "x"], "eve", "SCRAM-SHA-256$15000:"),
        (&["--scram", "-I", "4096", "-b", file, "eve", "x"], "eve", "SCRAM-SHA-256$4096:"),
    ] {
        good(arguments);
        assert!(hash_of(file, user).starts_with(begins), "{arguments:?}");
        assert_eq!((hash_of(file, "bob"), mode()), (first.clone(), 0o640), "the others stay, and who may read it");
    }
    good(&["-D", file, "eve"]);
    assert!(!fs::read_to_string(file).unwrap().contains("eve"));
    // From a pipe.
    let mut child = program().args(["passwd", file, "bob"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"new one\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_ne!(hash_of(file, "bob"), first);
    // -c begins anew.
    good(&["-c", "-b", file, "last", "x"]);
    assert_eq!(fs::read_to_string(file).unwrap().lines().count(), 1);
    assert_eq!(fs::read_dir(site.path()).unwrap().count(), 2, "pki and the file, nothing is left behind");
}

#[test]
fn passwd_hashes_a_plain_file_and_only_what_is_plain() {
    let site = Site::new();
    let file = &site.file("passwd");
    fs::write(file, "# ours\nbob:secret\n\neve: two words \n").unwrap();
    let said = passwd(&["-U", "-H", "sha512", file]);
    assert_eq!((said.code, said.out), (Some(0), format!("{file}: 2 passwords hashed\n")));
    let before = fs::read_to_string(file).unwrap();
    assert!(before.starts_with("# ours\nbob:$6$") && !before.contains("secret"), "{before}");
    assert_eq!(passwd(&["-U", file]).out, format!("{file}: 0 passwords hashed\n"));
    assert_eq!(fs::read_to_string(file).unwrap(), before);
}

#[test]
fn passwd_says_what_is_wrong_and_changes_nothing() {
    let site = Site::new();
    let file = &site.file("passwd");
    let (missing, nowhere) = (&site.file("missing"), &site.file("no/such"));
    good(&["-c", "-b", file, "bob", "secret"]);
    let before = fs::read(file).unwrap();
    for (arguments, code, words) in [
        (&["-b", missing, "bob", "x"][..], 1, &[missing.as_str(), "-c makes a new file"][..]),
        (&["-c", "-b", nowhere, "bob", "x"], 1, &["cannot write"]),
        (&["-D", file, "eve"], 1, &["no user \"eve\""]),
        (&["-b", file, "a:b", "x"], 1, &["a `:` in it"]),
        (&["-b", file, "a\nb", "x"], 1, &["control characters"]),
        (&["-b", file, "", "x"], 1, &["an empty user name"]),
        (&["-b", file, "bob", ""], 1, &["an empty password"]),
        (&["-H", "sha512", "-I", "5", "-b", file, "bob", "x"], 1, &["no count of iterations"]),
        (&["--scram", "-I", "5", "-b", file, "bob", "x"], 1, &["from 4096 to"]),
        (&["-H", "md5", "-b", file, "bob", "x"], 2, &["md5", "argon2id, sha512-pbkdf2, sha512"]),
        (&["-c", "-D", file, "bob"], 2, &["cannot be used with"]),
        (&["-U", file, "bob"], 2, &["cannot be used with"]),
        (&["-b", file, "bob"], 2, &["PASSWORD"]),
        (&[file, "bob", "x"], 2, &["--batch"]),
        (&[file], 2, &["NAME"]),
        (&[], 2, &["FILE"]),
    ] {
        let said = passwd(arguments);
        assert_eq!(said.code, Some(code), "{arguments:?}: {said:?}");
        assert!(words.iter().all(|word| said.err.contains(word)), "{arguments:?}: {}", said.err);
        assert_eq!(fs::read(file).unwrap(), before, "{arguments:?}");
    }
    fs::write(file, "bob\n").unwrap();
    let said = passwd(&["-U", file]);
    assert!(said.code == Some(1) && said.err.contains(&format!("{file}:1: no `:`")), "{said:?}");
}

fn mosquitto_passwd_is_there() -> bool {
    let mut probe = Command::new("sh");
    probe.args(["-c", "command -v mosquitto_passwd"]);
    is_there("mosquitto", probe)
}

/// What mosquitto_passwd writes lets clients in here, in files that both commands have changed.
#[test]
fn password_files_of_mosquitto_are_good_here() {
    if !mosquitto_passwd_is_there() {
        return;
    }
    let site = Site::new();
    let file = &site.file("passwd");
    let theirs = |arguments: &[&str]| assert!(Command::new("mosquitto_passwd").args(arguments).status().unwrap().success());
    theirs(&["-c", "-b", file, "pbkdf2", "s\u{e4}cret"]);
    theirs(&["-H", "sha512", "-b", file, "sha", "secret"]);
    good(&["-b", file, "argon2", "secret"]);
    good(&["--scram", "-b", file, "scram", "secret"]);
    theirs(&["-b", file, "late", "secret"]);
    good(&["-b", file, "gone", "secret"]);
    theirs(&["-D", file, "gone"]);
    fs::write(site.file("acl"), "pattern readwrite own/%u\n").unwrap();
    let broker = site.start("a", &guarded(&site, "a"));
    for (user, password) in
        [("pbkdf2", "s\u{e4}cret"), ("sha", "secret"), ("argon2", "secret"), ("scram", "secret"), ("late", "secret")]
    {
        let mut client = login(&broker, user, password);
        client.subscribe(&[(&format!("own/{user}"), 1)]);
        client.say_to_itself(&format!("own/{user}"), "in");
    }
    for (user, password) in [("gone", "secret"), ("sha", "s"), ("pbkdf2", "secret")] {
        assert_eq!(refusal(&broker, &Connect::new(5).login(user, password)), WRONG, "{user}");
    }
}

struct Mosquitto(Child);

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).unwrap();
    }
}

/// Starts Debian's broker with this configuration on a free port, which another process may take first: then once more.
fn mosquitto(site: &Site, configuration: &str) -> (Mosquitto, SocketAddr) {
    let path = site.file("mosquitto.conf");
    for _ in 0..5 {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        fs::write(&path, format!("listener {} 127.0.0.1\n{configuration}", address.port())).unwrap();
        // Debian puts it where only root's PATH looks.
        let mut command = Command::new("sh");
        command.args(["-c", "PATH=$PATH:/usr/sbin exec mosquitto -c \"$0\"", &path]).stderr(Stdio::null());
        let mut child = Mosquitto(command.spawn().unwrap());
        let is_up = wait_for("Mosquitto", || match child.0.try_wait().unwrap() {
            Some(_) => Some(false),
            None => TcpStream::connect(address).is_ok().then_some(true),
        });
        if is_up {
            return (child, address);
        }
    }
    panic!("Mosquitto does not start");
}

/// And what our command writes lets clients in there.
#[test]
fn password_files_of_ours_are_good_for_mosquitto() {
    if !mosquitto_passwd_is_there() {
        return;
    }
    let site = Site::new();
    let file = &site.file("passwd");
    good(&["-c", "-H", "sha512-pbkdf2", "-b", file, "pbkdf2", "secret"]);
    good(&["-H", "sha512", "-b", file, "sha", "secret"]);
    fs::write(site.file("plain"), "plain:secret\n").unwrap();
    good_update(&site.file("plain"));
    let plain = fs::read_to_string(site.file("plain")).unwrap();
    fs::write(file, fs::read_to_string(file).unwrap() + &plain).unwrap();
    // Mosquitto gives up root's rights where it has them.
    fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (_mosquitto, address) = mosquitto(&site, &format!("allow_anonymous false\npassword_file {file}\n"));
    for (user, password, is_in) in [
        ("pbkdf2", "secret", true),
        ("sha", "secret", true),
        ("plain", "secret", true),
        ("sha", "Secret", false),
        ("eve", "x", false),
    ] {
        let mut client = Client::open_at(address, 5);
        client.send(&Connect::new(5).login(user, password).encode());
        assert_eq!(client.expect(crate::wire::kind::CONNACK).reason == 0, is_in, "{user} {password}");
    }
}

fn good_update(file: &str) {
    let said = passwd(&["-U", "-H", "sha512-pbkdf2", file]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

/// Both brokers decide alike, topic by topic, on the same rules.
#[test]
fn rules_are_mosquittos() {
    if !mosquitto_passwd_is_there() {
        return;
    }
    let site = Site::new();
    let rules = "# anonymous\ntopic read pub/#\ntopic all\ntopic write only/written\ntopic deny pub/not\n\nuser bob\ntopic a/+/c\n\
                 topic deny a/x/c\ntopic read readwrite words/my topic\ntopic write w/#\nuser eve\ntopic #\ntopic deny e/#\n\
                 user bob\ntopic read late\npattern read id/%c/#\npattern write user/%u\npattern deny id/%c/no\npattern e/%u\n";
    fs::write(site.file("acl"), rules).unwrap();
    good(&["-c", "-H", "sha512", "-b", &site.file("passwd"), "bob", "x"]);
    good(&["-H", "sha512", "-b", &site.file("passwd"), "eve", "x"]);
    for name in ["acl", "passwd"] {
        fs::set_permissions(site.file(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let files = format!("password_file {}\nacl_file {}\n", site.file("passwd"), site.file("acl"));
    let (_mosquitto, theirs) = mosquitto(&site, &format!("allow_anonymous true\n{files}"));
    let ours = site.start("a", &(guarded(&site, "a") + "allow_anonymous = true\n"));
    let topics = [
        "pub/x",
        "pub",
        "pub/not",
        "all",
        "only/written",
        "a/b/c",
        "a/x/c",
        "a/b",
        "words/my topic",
        "readwrite words/my topic",
        "w/1/2",
        "late",
        "id/c1",
        "id/c1/x",
        "id/c2/x",
        "id/c1/no",
        "user/bob",
        "user/eve",
        "user/",
        "e/1",
        "e/eve",
        "other",
        "/",
        "a//c",
    ];
    for user in [None, Some("bob"), Some("eve")] {
        for topic in topics {
            let decided = [ours.address(), theirs].map(|address| {
                let connect = user.map_or_else(|| Connect::new(5), |user| Connect::new(5).login(user, "x")).id("c1");
                let mut client = Client::connect_at(address, &connect);
                let code = client.publish(Publish { topic, payload: "x", qos: 1, ..Publish::default() });
                client.disconnect();
                code == NOT_AUTHORIZED
            });
            assert_eq!(decided[0], decided[1], "{user:?} writes {topic:?}: refused here, refused there");
        }
    }
}

#[test]
fn a_broker_that_cannot_know_who_may_come_in_does_not_start() {
    let site = Site::new();
    let (passwd, acl) = (site.file("passwd"), site.file("acl"));
    let whole = |file: &str, text: &str| fs::write(file, text).unwrap();
    let configuration = guarded(&site, "a");
    for (users, rules, words) in [
        (None, Some("topic #\n"), &["password_file: cannot read", "passwd"][..]),
        (Some(""), Some("topic #\n"), &["passwd: no user in it", "leave password_file out"]),
        (Some("bob:secret\n"), Some("topic #\n"), &["passwd:1: ", "passwd -U FILE"]),
        (Some("good"), None, &["acl_file: cannot read", "acl"]),
        (Some("good"), Some("\n# none\n"), &["acl: no rule in it", "leave acl_file out"]),
        (Some("good"), Some("topic #\nuser\n"), &["acl:2: `user` without a name"]),
        (Some("good"), Some("topic read a#\n"), &["acl:1: ", "misplaced wildcard"]),
    ] {
        for file in [&passwd, &acl] {
            let _ = fs::remove_file(file);
        }
        match users {
            Some("good") => good(&["-c", "-H", "sha512", "-b", &passwd, "bob", "x"]),
            Some(text) => whole(&passwd, text),
            None => {}
        }
        rules.into_iter().for_each(|text| whole(&acl, text));
        let said = site.fails(&configuration);
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(words.iter().all(|word| said.err.contains(word)), "{words:?}: {}", said.err);
        assert!(!said.err.contains("secret"), "{}", said.err);
        let checked = run(&["config", "check", &site.file("broken.toml")]);
        assert!(checked.code == Some(1) && words.iter().all(|word| checked.err.contains(word)), "{checked:?}");
    }
    // Nobody can come in: that is allowed, and said.
    let closed = site.alone("a").replace("allow_anonymous = true\n", "");
    fs::write(site.file("closed.toml"), &closed).unwrap();
    let said = run(&["config", "check", &site.file("closed.toml")]);
    assert!(said.code == Some(0) && said.out.contains("warning: listener 127.0.0.1:0: nobody can come in"), "{said:?}");
    assert_eq!(refusal(&site.start("a", &closed), &Connect::new(5)), NOT_AUTHORIZED);
}

#[test]
fn at_sighup_users_and_rules_are_read_anew() {
    let site = Site::new();
    let (passwd, acl) = (&site.file("passwd"), site.file("acl"));
    for user in ["bob", "eve"] {
        let create = if user == "bob" { "-bc" } else { "-b" };
        good(&["-H", "sha512-pbkdf2", create, passwd, user, "secret"]);
    }
    fs::write(&acl, "user bob\ntopic #\nuser eve\ntopic #\n").unwrap();
    let broker = site.start("a", &guarded(&site, "a"));
    let mut bob = login(&broker, "bob", "secret");
    let mut eve = login(&broker, "eve", "secret");
    eve.subscribe(&[("t/#", 1)]);
    let reload = |done: &str| {
        let count = || broker.log().lines().filter(|line| line.contains(done)).count();
        let before = count();
        broker.signal("HUP");
        wait_for(done, || (count() > before).then_some(()));
    };
    // A file with a mistake in it changes nothing.
    fs::write(&acl, "user bob\ntopic #\nuser eve\ntopik #\n").unwrap();
    good(&["-D", passwd, "bob"]);
    reload("not reloaded");
    broker.wait_for_log(&["not reloaded", &format!("{acl}:4: `topik` is not one of the words")]);
    bob.say("t/1", "still here");
    eve.expect_message("still here");
    // Without it bob is gone, and eve may not hear all.
    fs::write(&acl, "user bob\ntopic #\nuser eve\ntopic t/2\n").unwrap();
    reload("reloaded");
    bob.expect_disconnect(&[NOT_AUTHORIZED]);
    assert_eq!(refusal(&broker, &Connect::new(5).login("bob", "secret")), WRONG);
    good(&["-b", passwd, "bob", "again"]);
    reload("reloaded");
    let mut bob = login(&broker, "bob", "again");
    bob.say("t/1", "not for eve");
    bob.say("t/2", "for eve");
    eve.expect_message("for eve");
    eve.expect_nothing();
    assert!(!broker.log().contains("needs a restart"), "{}", broker.log());
}

#[test]
fn a_session_is_its_users_after_a_restart_too() {
    let site = Site::new();
    let passwd = &site.file("passwd");
    for (user, create) in [("bob", "-bc"), ("eve", "-b")] {
        good(&["-H", "sha512", create, passwd, user, "secret"]);
    }
    fs::write(site.file("acl"), "user bob\ntopic #\nuser eve\ntopic #\n").unwrap();
    let configuration = guarded(&site, "a");
    let connect = |user: &str, id: &str| Connect::new(5).login(user, "secret").id(id).resume(1_000);
    let broker = site.start("a", &configuration);
    for id in ["first", "second", "third"] {
        let mut bob = Client::connect(&broker, &connect("bob", id));
        bob.subscribe(&[("t/#", 1)]);
        bob.lose();
    }
    login(&broker, "eve", "secret").say("t/1", "before");
    drop(broker);

    // While the broker is down bob loses a right.
    fs::write(site.file("acl"), "user bob\ntopic t/2\nuser eve\ntopic #\n").unwrap();
    let broker = site.start("a", &configuration);
    login(&broker, "eve", "secret").say("t/2", "after");
    let mut eve = Client::connect(&broker, &connect("eve", "first"));
    assert!(!eve.connack.session_present);
    eve.expect_nothing();
    let mut bob = Client::connect(&broker, &connect("bob", "second"));
    assert!(bob.connack.session_present);
    bob.expect_message("after");
    bob.expect_nothing();
    drop(broker);

    // Then he is gone; another of his name begins anew.
    good(&["-D", passwd, "bob"]);
    let broker = site.start("a", &configuration);
    good(&["-H", "sha512", "-b", passwd, "bob", "secret"]);
    broker.signal("HUP");
    broker.wait_for_log(&["reloaded"]);
    assert!(!Client::connect(&broker, &connect("bob", "third")).connack.session_present);
}

/// A will that its client may not publish does not go out because the broker was restarted before it was due; one that it may does.
#[test]
fn wills_of_restored_sessions_are_judged() {
    let site = Site::new();
    let passwd = &site.file("passwd");
    good(&["-H", "sha512", "-bc", passwd, "bob", "secret"]);
    fs::write(site.file("acl"), "topic #\nuser bob\ntopic t/#\n").unwrap();
    let configuration = guarded(&site, "a");
    let anonymous = configuration.clone() + "allow_anonymous = true\n";
    let broker = site.start("a", &anonymous);
    let _bobs = ["admin/cmd", "t/will"].map(|topic| {
        let will = Will { qos: 1, retain: true, ..Will::new(topic, "from the grave") };
        Client::connect(&broker, &Connect::new(5).login("bob", "secret").id(topic).resume(1_000).will(will))
    });
    let mut alice = Client::connect(&broker, &Connect::new(5).id("anonymous").resume(1_000));
    alice.subscribe(&[("t/#", 1), ("admin/#", 1)]);
    broker.kill();

    let broker = site.start("a", &anonymous);
    let mut alice = Client::connect(&broker, &Connect::new(5).id("anonymous").resume(1_000));
    assert!(alice.connack.session_present);
    assert_eq!(alice.expect_message("from the grave").topic, "t/will");
    alice.expect_nothing();
    let mut late = Client::new(&broker, 5);
    late.subscribe(&[("admin/#", 0)]);
    late.expect_nothing();
    drop(broker);

    // Other listeners in front of hers do not take an anonymous client's session from her; that nobody may come in without a name does.
    let first = "[[listener]]\nbind = \"127.0.0.2:0\"\nallow_anonymous = false\n";
    let two = anonymous.replacen("[[listener]]", &format!("{first}[[listener]]"), 1);
    let broker = site.start("a", &two);
    let connect = Connect::new(5).id("anonymous").resume(1_000);
    assert!(Client::connect_at(broker.listener(1), &connect).connack.session_present);
    drop(broker);
    let mut broker = site.start("a", &configuration);
    broker.signal("TERM");
    assert!(broker.wait().success());
    assert!(!Client::connect(&site.start("a", &anonymous), &connect).connack.session_present);
}

/// Failed log-ins are in the log, escaped, with their address, and few enough to be read.
#[test]
fn who_fails_is_named_in_the_log_once_a_second() {
    let site = Site::new();
    good(&["-H", "sha512", "-bc", &site.file("passwd"), "bob", "secret"]);
    fs::write(site.file("acl"), "topic #\n").unwrap();
    fs::set_permissions(site.file("passwd"), fs::Permissions::from_mode(0o604)).unwrap();
    let broker = site.start("a", &guarded(&site, "a"));
    broker.wait_for_log(&["WARN", "everybody on this machine can read the password file"]);
    let mut guesses: Vec<_> = (0..500)
        .map(|number| {
            let mut client = Client::open(&broker, 5);
            client.send(&Connect::new(5).id("evil\"\u{202e}").login("bob", &format!("hunter{number}")).encode());
            client
        })
        .collect();
    guesses.iter_mut().for_each(|guess| drop(guess.expect_end()));
    let log = broker.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("log-in refused")).collect();
    assert!((1..=20).contains(&lines.len()), "{log}");
    for word in ["WARN", "127.0.0.1", r#"evil\"\u{202e}"#, "bob", "wrong user name or password"] {
        assert!(lines.iter().any(|line| line.contains(word)), "{word}: {lines:?}");
    }
    assert!(!log.contains("hunter") && !log.contains('\u{202e}'), "{log}");
}

#[test]
fn a_password_file_keeps_its_owner() {
    let site = Site::new();
    let file = &site.file("passwd");
    good(&["-c", "-b", file, "bob", "x"]);
    if fs::metadata(file).unwrap().uid() != 0 {
        println!("skipped: needs root");
        return;
    }
    std::os::unix::fs::chown(file, Some(1), Some(2)).unwrap();
    good(&["-b", file, "bob", "y"]);
    let metadata = fs::metadata(file).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (1, 2));
}

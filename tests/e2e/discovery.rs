//! Brokers that know only the mesh's authority and name find each other, each in a network namespace of its own on one bridge: by mDNS, by one
//! seed, by a DNS name whose answer changes. Needs root, `ip` (iproute2) and, for DNS, `dnsmasq`; skipped without, unless `REQUIRE_ALL` is
//! set. What it makes carries a tag of its own and is removed in the end, whatever that is.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::{Broker, Site, program, wait_for};
use crate::foreign::is_there;
use crate::mesh::settle;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const SEED: &str = "10.77.0.1:7883";
const NAME_SERVER: &str = "10.77.0.254";

fn ip(arguments: &str) {
    let said = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(said.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&said.stderr));
}

/// A bridge in a namespace of its own, and more namespaces on it; number `n` has the address 10.77.0.n.
struct Lan {
    tag: String,
    hosts: Vec<String>,
}

impl Lan {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let tag = format!("mq{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let lan = Self { tag, hosts: Vec::new() };
        let switch = lan.switch();
        ip(&format!("netns add {switch}"));
        // An address of its own: otherwise it takes the lowest of its ports, changes it when one is plugged in, and who asked before is not heard.
        ip(&format!("-n {switch} link add br0 address 02:00:0a:4d:00:fe type bridge"));
        ip(&format!("-n {switch} addr add {NAME_SERVER}/24 dev br0"));
        ip(&format!("-n {switch} link set br0 up"));
        ip(&format!("-n {switch} link set lo up"));
        lan
    }

    fn switch(&self) -> String {
        format!("{}-sw", self.tag)
    }

    fn etc(host: &str) -> PathBuf {
        PathBuf::from("/etc/netns").join(host)
    }

    /// One more host; its name server is the bridge's.
    fn plug(&mut self) -> String {
        let (number, switch) = (self.hosts.len() + 1, self.switch());
        let host = format!("{}-{number}", self.tag);
        self.hosts.push(host.clone());
        ip(&format!("netns add {host}"));
        ip(&format!("-n {host} link add eth0 type veth peer name p{number} netns {switch}"));
        ip(&format!("-n {switch} link set p{number} master br0 up"));
        ip(&format!("-n {host} addr add 10.77.0.{number}/24 dev eth0"));
        ip(&format!("-n {host} link set eth0 up"));
        ip(&format!("-n {host} link set lo up"));
        fs::create_dir_all(Self::etc(&host)).unwrap();
        fs::write(Self::etc(&host).join("resolv.conf"), format!("nameserver {NAME_SERVER}\n")).unwrap();
        host
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for host in self.hosts.iter().chain([&self.switch()]) {
            let _ = Command::new("ip").args(["netns", "del", host]).status();
            let _ = fs::remove_dir_all(Self::etc(host));
        }
        // Only if nobody else has anything there.
        let _ = fs::remove_dir("/etc/netns");
    }
}

/// `command` in the namespace `host`.
fn inside(host: &str, command: &Command) -> Command {
    let mut wrapped = Command::new("ip");
    wrapped.args(["netns", "exec", host]).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, _) in command.get_envs().filter(|(_, value)| value.is_none()) {
        wrapped.env_remove(name);
    }
    wrapped
}

/// A running broker and the namespace that it lives in.
struct Resident {
    host: String,
    broker: Broker,
}

impl Resident {
    /// Starts a broker of the mesh that is told nothing but what `finds` says.
    fn start(site: &Site, lan: &mut Lan, name: &str, finds: &str) -> Self {
        site.certify("m", name, &[]);
        let host = lan.plug();
        let configuration = format!(
            "{}\n[mesh]\nname = \"m\"\n{finds}\ncafile = {:?}\ncertfile = {:?}\nkeyfile = {:?}\n",
            site.alone(name),
            site.file("pki/ca.pem"),
            site.file(&format!("pki/{name}.pem")),
            site.file(&format!("pki/{name}.key"))
        );
        let log = site.file(&format!("{name}.log"));
        let broker = Broker::start(site, name, &configuration, |command| {
            let mut wrapped = inside(&host, command);
            wrapped.stderr(File::create(&log).unwrap());
            *command = wrapped;
        });
        Self { host, broker }
    }

    fn topology(&self) -> Value {
        let mut command = program();
        let admin = format!("http://{}", self.broker.address_of("admin"));
        command.args(["topology", "--format", "json", "--admin", &admin]);
        let said = inside(&self.host, &command).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        serde_json::from_slice(&said.stdout).unwrap()
    }

    /// How many brokers it knows, and how many links there are and carry messages.
    fn sees(&self) -> (usize, usize, usize) {
        let told = self.topology();
        let links = told["links"].as_array().unwrap();
        let of = |states: &[&str]| links.iter().filter(|link| states.contains(&link["state"].as_str().unwrap())).count();
        (told["brokers"].as_array().unwrap().len(), of(&["forwarding", "blocked"]), of(&["forwarding"]))
    }
}

/// Waits until all are in one tree, then until each is linked with each. Prints how long it took since `began`.
fn gather(residents: &[Resident], what: &str, began: Instant) {
    let count = residents.len();
    let told = |residents: &[Resident]| residents.iter().map(Resident::sees).collect::<Vec<_>>();
    wait_for(&format!("one tree of {count} {what}: {:?}", told(residents)), || {
        told(residents).iter().all(|(brokers, _, forwarding)| (*brokers, *forwarding) == (count, count - 1)).then_some(())
    });
    println!("{count} brokers in {count} namespaces, {what}: one tree after {:.1} s", began.elapsed().as_secs_f64());
    wait_for(&format!("each linked with each {what}"), || {
        told(residents).iter().all(|(_, links, _)| *links == count * (count - 1) / 2).then_some(())
    });
    println!("{count} brokers in {count} namespaces, {what}: each linked with each after {:.1} s", began.elapsed().as_secs_f64());
}

/// `NO_NAMESPACES` is set by whoever runs the tests as root in a sandbox whose kernel gives none, which no package mends.
fn may_make_namespaces() -> bool {
    if std::env::var_os("NO_NAMESPACES").is_some() {
        println!("skipped: needs network namespaces");
        return false;
    }
    let mut probe = Command::new("sh");
    probe.args(["-c", "test $(id -u) = 0 && ip netns add mq$$-probe && ip netns del mq$$-probe"]);
    is_there("root and iproute2", probe)
}

#[test]
fn brokers_on_one_network_find_each_other_by_mdns() {
    if !may_make_namespaces() {
        return;
    }
    let (site, mut lan) = (Site::new(), Lan::new());
    // It does not announce itself, and nobody finds it.
    let silent = Resident::start(&site, &mut lan, "silent", "discovery = [\"static\"]");
    let began = Instant::now();
    let mut residents: Vec<_> = NAMES.map(|name| Resident::start(&site, &mut lan, name, "discovery = [\"mdns\"]")).into();
    gather(&residents, "by mDNS", began);
    assert_eq!(silent.sees(), (1, 0, 0));
    // Who leaves in order says so; who comes back is found again.
    let gone = residents.pop().unwrap();
    gone.broker.signal("TERM");
    wait_for("four", || residents.iter().all(|one| one.sees().0 == 4).then_some(()));
}

#[test]
fn one_seed_is_enough_to_find_all() {
    if !may_make_namespaces() {
        return;
    }
    let (site, mut lan) = (Site::new(), Lan::new());
    let began = Instant::now();
    let finds = format!("discovery = [\"gossip\"]\npeers = [{SEED:?}]");
    let residents = NAMES.map(|name| Resident::start(&site, &mut lan, name, &finds));
    gather(&residents, "by one seed and gossip", began);
}

/// A name server on the bridge. Killed when dropped.
struct NameServer {
    child: Child,
    hosts: String,
}

impl NameServer {
    fn start(site: &Site, lan: &Lan, services: &[String]) -> Self {
        let hosts = site.file("hosts");
        fs::write(&hosts, "").unwrap();
        let mut command = Command::new("dnsmasq");
        command.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
            "--bind-interfaces",
            "--pid-file=",
        ]);
        command.args(["--local-ttl=1", "--user=root", "--local=/mesh.test/"]);
        command.arg(format!("--listen-address={NAME_SERVER}")).arg(format!("--addn-hosts={hosts}"));
        command.args(services.iter().map(|service| format!("--srv-host={service}")));
        let log = site.file("dnsmasq.log");
        command.arg(format!("--log-facility={log}"));
        let server = Self { child: inside(&lan.switch(), &command).spawn().unwrap(), hosts };
        // Until then a signal would end it.
        wait_for("the name server", || fs::read_to_string(&log).unwrap_or_default().contains("started").then_some(()));
        server
    }

    /// From now on `name` has these addresses.
    fn answer(&self, lines: &[(u8, &str)]) {
        let text: String = lines.iter().map(|(number, name)| format!("10.77.0.{number} {name}\n")).collect();
        fs::write(&self.hosts, text).unwrap();
        assert!(Command::new("kill").args(["-HUP", &self.child.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn has_dnsmasq() -> bool {
    let mut probe = Command::new("dnsmasq");
    probe.arg("--version");
    is_there("dnsmasq", probe)
}

#[test]
fn a_name_is_followed_while_its_answer_changes() {
    if !may_make_namespaces() || !has_dnsmasq() {
        return;
    }
    const NAME: &str = "brokers.mesh.test";
    let (site, mut lan) = (Site::new(), Lan::new());
    let server = NameServer::start(&site, &lan, &[]);
    server.answer(&[(200, NAME)]);
    let finds = format!("discovery = [\"dns\"]\npeers = [\"{NAME}:7883\"]");
    let residents = NAMES.map(|name| Resident::start(&site, &mut lan, name, &finds));
    std::thread::sleep(Duration::from_secs(1));
    assert!(residents.iter().all(|one| one.sees() == (1, 0, 0)), "nobody lives at the address that the name has");
    let began = Instant::now();
    server.answer(&[(1, NAME)]);
    wait_for("a tree around the one that the name has now", || residents.iter().all(|one| one.sees() == (5, 4, 4)).then_some(()));
    println!(
        "5 brokers in 5 namespaces, by a DNS name whose answer changed: one tree after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    server.answer(&[1, 2, 3, 4, 5].map(|number| (number, NAME)));
    gather(&residents, "since the DNS name has all", Instant::now());
    // What the name service forgets stays linked; and a name that is gone harms nothing.
    server.answer(&[]);
    std::thread::sleep(Duration::from_secs(5));
    assert!(residents.iter().all(|one| one.sees() == (5, 10, 4)));
}

#[test]
fn srv_records_name_hosts_and_ports() {
    if !may_make_namespaces() || !has_dnsmasq() {
        return;
    }
    let (site, mut lan) = (Site::new(), Lan::new());
    let hosts = NAMES.map(|name| format!("{name}.mesh.test"));
    let services = hosts.each_ref().map(|host| format!("_mqtt-st._udp.mesh.test,{host},7801,10,5"));
    let server = NameServer::start(&site, &lan, &services);
    let lines: Vec<_> = (1..).zip(hosts.iter().map(String::as_str)).collect();
    server.answer(&lines);
    let began = Instant::now();
    let finds = "listen = \"0.0.0.0:7801\"\ndiscovery = [\"dns\"]\npeers = [\"_mqtt-st._udp.mesh.test\"]";
    let residents = NAMES.map(|name| Resident::start(&site, &mut lan, name, finds));
    gather(&residents, "by SRV records", began);
}

#[test]
fn a_reload_adds_and_removes_peers_and_ends_no_link() {
    let site = Site::new();
    ["a", "b"].into_iter().for_each(|name| site.certify("m", name, &[]));
    let a = site.start("a", &site.configuration("a", &[]));
    let b = site.start("b", &site.configuration("b", &[]));
    let reload = |peers: &[_], times: usize| {
        fs::write(site.file("b.toml"), site.configuration("b", peers)).unwrap();
        b.signal("HUP");
        wait_for("a reload", || (b.log().matches("reloaded").count() >= times).then_some(()));
    };
    reload(&[a.address_of("mesh")], 1);
    settle(&[&a, &b]);
    reload(&[], 2);
    settle(&[&a, &b]);
    assert!(!b.log().contains("link down"), "{}", b.log());
    drop(a);
    b.wait_for_log(&["link down"]);
    // It would be tried several times a second.
    std::thread::sleep(Duration::from_secs(1));
    assert!(!b.log().contains("no link"), "it is not dialled again: {}", b.log());
}

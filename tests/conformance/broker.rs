//! DEV ONLY: mosquitto
use mqtt_st_quic::config::Config;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
pub struct Broker {
    child: Child,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}
impl Broker {
    pub fn start() -> Self {
        Self::with(|_| {})
    }
    pub fn with(_: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let conf = dir.path().join("c");
        std::fs::write(&conf, format!("listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")).unwrap();
        let child = Command::new("/usr/sbin/mosquitto").arg("-c").arg(&conf).stderr(std::process::Stdio::null()).spawn().unwrap();
        let address: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
        for _ in 0..500 {
            if TcpStream::connect(address).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Self { child, address, _dir: dir }
    }
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

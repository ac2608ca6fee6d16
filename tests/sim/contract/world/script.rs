//! What a text scenario does with a world: nothing happens by chance but how long things take, and that within narrow bounds.

use super::*;

impl World {
    /// Brokers with disks, all up and none linked, with so many blocks in their rings, and clients whose sessions stay.
    pub(in super::super) fn scripted(seed: u64, plan: Plan, rings: &[usize], links: &[[usize; 2]], homes: &[usize]) -> Self {
        let plan = Plan { brokers: rings.len(), disks_of_ten: 10, scripted: true, ..plan };
        let mut world = Self::build(seed, plan, links.iter().copied(), homes.iter().map(|home| (*home, false)));
        world.rings = rings.to_vec();
        (0..rings.len()).for_each(|broker| world.start(broker));
        world
    }

    pub(in super::super) fn run_until(&mut self, since_begin: Duration) {
        self.run((self.begin + since_begin).saturating_duration_since(self.now));
    }

    pub(in super::super) fn script(&mut self, act: &Scripted) {
        match *act {
            Scripted::Up(link) => self.up(link),
            Scripted::Down(link) => self.down(link),
            Scripted::Crash(broker) => self.crash(broker),
            Scripted::Start(broker) => self.start(broker),
            Scripted::LoseDisk(broker) => self.disks[broker] = Disk::default(),
            Scripted::DiskStands(broker, stands) => self.stands[broker] = stands,
            Scripted::Comes(client, home) => {
                if let Some(home) = home {
                    self.clients[client].moves(home);
                    self.account.moves(client);
                }
                self.connect(client);
            }
            Scripted::Leaves(client) => {
                if let Some(connection) = self.clients[client].connection {
                    self.at(self.now, Event::Left { connection });
                    self.clients[client].leaves(&mut self.account);
                }
            }
            Scripted::Mute(client, is_mute) => {
                self.clients[client].is_mute = is_mute;
                let unsaid = if is_mute { Vec::new() } else { std::mem::take(&mut self.clients[client].unsaid) };
                if let Some(connection) = self.clients[client].connection.filter(|_| !unsaid.is_empty()) {
                    self.send_to_broker(connection, unsaid);
                }
            }
            Scripted::Subscribes(client, ref filter, qos) => {
                let mut out = Vec::new();
                self.clients[client].subscribe(filter, qos, &mut self.account, &mut out);
                self.say_for(client, out);
            }
            Scripted::Publishes(client, topic, qos, count) => {
                // Each a block of its own in its lane.
                for _ in 0..count {
                    let mut out = Vec::new();
                    self.publish_one(client, topic, qos, NUMBER_BYTES, &mut out);
                    self.say_for(client, out);
                    self.run(Duration::from_millis(5));
                }
            }
        }
    }

    fn say_for(&mut self, client: usize, out: Vec<u8>) {
        let connection = self.clients[client].connection.filter(|_| !out.is_empty());
        self.send_to_broker(connection.expect("the client may say that now"), out);
    }

    /// Of the messages that were published before, how many the client got, and how many copies came again.
    pub(in super::super) fn got(&self, client: usize) -> (usize, usize) {
        self.account.got(client)
    }
}

/// What a text scenario says.
#[derive(Clone, Debug)]
pub(in super::super) enum Scripted {
    Up(usize),
    Down(usize),
    Crash(usize),
    Start(usize),
    LoseDisk(usize),
    DiskStands(usize, bool),
    /// To its broker, or to another.
    Comes(usize, Option<usize>),
    Leaves(usize),
    /// It hears, and says nothing for now.
    Mute(usize, bool),
    Subscribes(usize, String, QoS),
    /// A topic, and how many.
    Publishes(usize, usize, QoS, usize),
}

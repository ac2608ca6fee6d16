//! Clients act, and connections carry what they and the brokers say.

use super::*;

impl World {
    pub(super) fn act(&mut self, number: usize) {
        let client = &self.clients[number];
        let Some(connection) = client.connection.filter(|_| client.is_up()) else { return };
        let mut out = Vec::new();
        let is_member = self.group_of(number).is_some();
        match self.rng.random_range(0..100) {
            76..89 if is_member => self.publish(number, &mut out),
            0..76 => self.publish(number, &mut out),
            76..84 => {
                let (filter, qos) = (self.any_filter(), self.any_qos());
                self.clients[number].subscribe(&filter, qos, &mut self.account, &mut out);
                say!(self, "client {number} asks for {filter} with {qos:?}: {}", !out.is_empty());
            }
            84..89 => {
                let nth = self.rng.random_range(0..TOPICS);
                self.clients[number].unsubscribe(nth, &mut self.account, &mut out);
                say!(self, "client {number} gives something up: {}", !out.is_empty());
            }
            89..93 => {
                let properties = DisconnectProperties::default();
                put(&mut out, &Packet::Disconnect(Disconnect { reason: ReasonCode::Success, properties }));
                self.send_to_broker(connection, out);
                return self.leave(number, connection);
            }
            _ => return self.leave(number, connection),
        }
        if !out.is_empty() {
            self.send_to_broker(connection, out);
        }
    }

    /// The filter of the share group of which the client is a member.
    fn group_of(&self, number: usize) -> Option<&'static str> {
        let is_member = self.plan.shares && !self.clients[number].is_passing && number % 5 < 3;
        is_member.then(|| ["$share/red/#", "$share/blue/topic/2", "$share/red/#"][number % 5])
    }

    pub(super) fn any_qos(&mut self) -> QoS {
        [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::ExactlyOnce][self.rng.random_range(0..4)]
    }

    pub(super) fn any_filter(&mut self) -> String {
        match self.rng.random_range(0..10) {
            0 => "#".to_owned(),
            1 => "topic/#".to_owned(),
            _ => topic_name(self.rng.random_range(0..TOPICS)),
        }
    }

    pub(super) fn publish(&mut self, number: usize, out: &mut Vec<u8>) {
        for _ in 0..self.rng.random_range(1..5) {
            let (topic, qos) = (self.rng.random_range(0..TOPICS), self.any_qos());
            let bytes = if self.rng.random_bool(0.05) { self.rng.random_range(NUMBER_BYTES..10_000) } else { NUMBER_BYTES };
            self.publish_one(number, topic, qos, bytes, out);
        }
    }

    pub(super) fn publish_one(&mut self, number: usize, topic: usize, qos: QoS, bytes: usize, out: &mut Vec<u8>) {
        let client = &mut self.clients[number];
        let message = Message {
            by: number,
            stay: 0,
            broker: client.home,
            life: self.claims[client.home].incarnation,
            topic,
            qos,
            bytes,
            at: self.now,
            is_taken: false,
            is_refused: false,
            is_resent: false,
            is_forgotten: false,
            is_elsewhere: false,
            is_back: false,
            is_orphan: false,
        };
        client.publish(message, &mut self.account, out);
        say!(self, "client {number} has published up to {}", self.account.messages.len());
    }

    /// The client is gone, and comes back. What it has sent arrives or does not.
    pub(super) fn leave(&mut self, number: usize, connection: u64) {
        say!(self, "client {number} leaves");
        let is_clean = self.rng.random_bool(0.5);
        if let Some(pipe) = self.pipes.get(&connection) {
            let at = if is_clean { pipe.to_broker.max(self.now) } else { self.now + Duration::from_millis(1) };
            self.at(at, Event::Left { connection });
        }
        self.clients[number].leaves(&mut self.account);
        if self.plan.wanders && !self.clients[number].is_passing && self.rng.random_bool(0.7) {
            let home = self.rng.random_range(0..self.brokers.len());
            if self.plan.deaths > 0 || self.plan.replicas {
                self.flee(number, home);
            } else {
                self.clients[number].moves(home);
                self.account.moves(number);
            }
        }
        let away_us = if self.rng.random_bool(0.3) { 1_000 } else { 1_500_000 };
        self.within(away_us, Event::Connect { client: number });
    }

    /// The client goes to another broker while its own is dead, or could be.
    fn flee(&mut self, number: usize, home: usize) {
        // Where links fail as they like nobody knows whether there are two parts.
        let is_parted = self.is_parted || (self.plan.replicas && self.now < self.fault_at + CALM);
        self.clients[number].flees(home, is_parted, &mut self.account);
        self.account.moves(number);
        if is_parted {
            self.account.changes_sides(number);
        }
    }

    pub(super) fn connect(&mut self, number: usize) {
        let home = self.clients[number].home;
        if self.clients[number].connection.is_some() {
            return;
        }
        let Some(broker) = self.brokers[home].as_ref() else {
            if self.plan.deaths > 0 && self.rng.random_bool(0.7) {
                let home = self.rng.random_range(0..self.brokers.len());
                self.flee(number, home);
            }
            assert!(!self.plan.scripted, "client {number} comes to broker {home}, which is down");
            return self.within(300_000, Event::Connect { client: number });
        };
        self.connections += 1;
        let (connection, now) = (self.connections, self.now);
        let pipe = Pipe { client: number, broker: home, life: broker.life, to_broker: now, to_client: now, turns: false };
        self.pipes.insert(connection, pipe);
        self.clients[number].connects(connection);
        let at = self.arrival(connection, true);
        self.at(at, Event::Hello { connection });
    }

    /// When what is sent now arrives.
    pub(super) fn arrival(&mut self, connection: u64, is_to_broker: bool) -> Instant {
        let slow = if self.chance(0.03) { 100_000 } else { 0 };
        let delay = Duration::from_micros(self.rng.random_range(50..1_000 + slow));
        let now = self.now;
        let pipe = self.pipes.get_mut(&connection).unwrap();
        let last = if is_to_broker { &mut pipe.to_broker } else { &mut pipe.to_client };
        *last = (now + delay).max(*last);
        *last
    }

    pub(super) fn send_to_broker(&mut self, connection: u64, bytes: Vec<u8>) {
        let at = self.arrival(connection, true);
        self.at(at, Event::ToBroker { connection, bytes });
    }

    /// The broker that serves the connection, if it still does.
    pub(super) fn server(&mut self, connection: u64) -> Option<usize> {
        let pipe = self.pipes.get(&connection)?;
        let is_it = self.brokers[pipe.broker].as_ref().is_some_and(|broker| broker.life == pipe.life);
        is_it.then_some(pipe.broker)
    }

    pub(super) fn hello(&mut self, connection: u64) {
        let Some(number) = self.server(connection) else { return };
        let client = &self.clients[self.pipes[&connection].client];
        // Without a connection it has given up already.
        if client.connection != Some(connection) {
            return;
        }
        let (name, is_passing) = (client.name(), client.is_passing);
        let access = self.policy.admit(&Identity::Anonymous);
        let caller = Caller { client: client.number, name: &name, is_passing, access };
        let broker = self.brokers[number].as_mut().unwrap();
        let access = Some(Arc::clone(&caller.access));
        if let Some(fetch) = broker.router.fetch_session(&name, is_passing, access, self.now) {
            broker.fetching.insert(connection, (fetch, name));
            return self.turn_soon(connection);
        }
        self.serve(connection, &caller);
    }

    /// The client's session is here, or there is none.
    fn serve(&mut self, connection: u64, caller: &Caller<'_>) {
        let Some(number) = self.server(connection) else { return };
        let broker = self.brokers[number].as_mut().unwrap();
        match Service::open(&broker.router, &mut broker.batch, caller, self.now) {
            Some(service) => {
                broker.services.insert(connection, service);
                self.turn_soon(connection);
            }
            None => self.refuse(connection),
        }
    }

    fn refuse(&mut self, connection: u64) {
        let at = self.arrival(connection, false);
        self.at(at, Event::Dropped { connection });
    }

    /// Whether the connection waits for its session.
    fn fetches(&mut self, number: usize, connection: u64) -> bool {
        let waker = self.waker(Sleeper::Connection(connection));
        let broker = self.brokers[number].as_mut().unwrap();
        let Some((fetch, _)) = broker.fetching.get(&connection) else { return false };
        if let Poll::Ready(verdict) = fetch.poll(&mut Context::from_waker(&waker)) {
            let (_, name) = broker.fetching.remove(&connection).unwrap();
            let client = &self.clients[self.pipes[&connection].client];
            let access = self.policy.admit(&Identity::Anonymous);
            let caller = Caller { client: client.number, name: &name, is_passing: client.is_passing, access };
            say!(self, "the session of client {} is fetched: {verdict:?}", caller.client);
            match verdict {
                Verdict::Proceed => self.serve(connection, &caller),
                Verdict::Refused => self.refuse(connection),
            }
        }
        true
    }

    pub(super) fn read(&mut self, connection: u64, bytes: &[u8]) {
        let (Some(number), now) = (self.server(connection), self.now) else { return };
        let broker = self.brokers[number].as_mut().unwrap();
        let Some(service) = broker.services.get_mut(&connection) else { return };
        let says_goodbye = service.read(&broker.router, &mut broker.batch, bytes, now);
        if says_goodbye {
            self.close(connection, Farewell::Normal);
        } else {
            self.turn_soon(connection);
        }
    }

    pub(super) fn turn_soon(&mut self, connection: u64) {
        let slow_us = if self.chance(0.03) { 100_000 } else { 1_000 };
        if let Some(pipe) = self.pipes.get_mut(&connection)
            && !std::mem::replace(&mut pipe.turns, true)
        {
            self.within(slow_us, Event::Turn { connection });
        }
    }

    pub(super) fn turn(&mut self, connection: u64) {
        self.pipes.get_mut(&connection).into_iter().for_each(|pipe| pipe.turns = false);
        let (Some(number), now) = (self.server(connection), self.now) else { return };
        if self.fetches(number, connection) {
            return;
        }
        let waker = self.waker(Sleeper::Connection(connection));
        let broker = self.brokers[number].as_mut().unwrap();
        let Some(service) = broker.services.get_mut(&connection) else { return };
        let turned = service.turn(&broker.router, &mut broker.batch, &mut Context::from_waker(&waker), now);
        if !turned.bytes.is_empty() {
            let at = self.arrival(connection, false);
            self.at(at, Event::ToClient { connection, bytes: turned.bytes });
        }
        if turned.is_over {
            let at = self.arrival(connection, false);
            self.at(at, Event::Dropped { connection });
            return self.close(connection, Farewell::Lost);
        }
        if let Some(at) = turned.again {
            self.at(at, Event::Turn { connection });
        }
    }

    /// The broker's side of a connection ends.
    pub(super) fn close(&mut self, connection: u64, farewell: Farewell) {
        let (Some(number), now) = (self.server(connection), self.now) else { return };
        let broker = self.brokers[number].as_mut().unwrap();
        broker.fetching.remove(&connection);
        if let Some(service) = broker.services.remove(&connection) {
            service.close(&broker.router, &mut broker.batch, farewell, now);
        }
    }

    /// The client hears that its connection is over.
    pub(super) fn dropped(&mut self, connection: u64) {
        let Some(pipe) = self.pipes.remove(&connection) else { return };
        if self.clients[pipe.client].connection == Some(connection) {
            self.clients[pipe.client].leaves(&mut self.account);
            if !self.plan.scripted {
                self.within(500_000, Event::Connect { client: pipe.client });
            }
        }
    }

    pub(super) fn hear(&mut self, connection: u64, bytes: &[u8]) {
        let Some(pipe) = self.pipes.get(&connection) else { return };
        let number = pipe.client;
        if self.clients[number].connection != Some(connection) {
            return;
        }
        let now = self.now;
        // What a script waits for is its own affair.
        let is_calm = now >= self.fault_at + CALM && !self.is_parted;
        let all_is_well = is_calm || self.fault_at == self.begin || self.plan.scripted;
        // Where the old broker cannot be reached a session is begun anew.
        let is_torn = self.plan.wanders && (self.is_parted || (!all_is_well && self.plan.deaths == 0));
        let may_forget = self.bereft.contains(&number) || self.clients[number].is_passing || is_torn;
        let was_up = self.clients[number].is_up();
        say_heard(self, number, bytes);
        let mut out = Vec::new();
        let mut around = Surroundings { account: &mut self.account, all_is_well, may_forget, is_torn, now };
        self.clients[number].hear(bytes, &mut around, &mut out);
        if self.clients[number].is_mute {
            self.clients[number].unsaid.append(&mut out);
        }
        if !was_up && self.clients[number].is_up() {
            say!(self, "client {number} is connected");
            // Its broker may have crashed while that was on its way.
            if self.server(connection).is_some() {
                self.bereft.remove(&number);
            }
            if !self.clients[number].has_wishes() && !self.plan.scripted {
                let (filter, qos) = match self.group_of(number) {
                    Some(filter) => (filter.to_owned(), QoS::ExactlyOnce),
                    None => (self.any_filter(), self.any_qos()),
                };
                self.clients[number].subscribe(&filter, qos, &mut self.account, &mut out);
                say!(self, "client {number} asks for {filter} with {qos:?} first");
            }
        }
        if !out.is_empty() {
            self.send_to_broker(connection, out);
        }
    }
}

/// Messages that a client gets, where it is said what happens.
fn say_heard(world: &World, client: usize, bytes: &[u8]) {
    let mut rest = bytes;
    while let Some((packet, length)) = world.is_loud.then(|| codec::decode(rest, VERSION, u32::MAX).ok().flatten()).flatten() {
        if let Packet::SubAck(suback) = &packet {
            say!(world, "client {client} gets SUBACK {}", suback.packet_id);
        }
        if let Packet::Publish(publish) = &packet {
            let number = String::from_utf8_lossy(&publish.payload[..NUMBER_BYTES]).into_owned();
            say!(world, "client {client} gets {number} {:?} {:?} dup {}", publish.qos, publish.packet_id, publish.dup);
        }
        rest = &rest[length..];
    }
}

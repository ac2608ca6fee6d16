//! Links come up, are cut, and carry what brokers say to each other.

use super::*;

impl World {
    pub(super) fn ends(&self, link: usize, end: usize) -> [usize; 2] {
        let ends = self.links[link].ends;
        [ends[end], ends[1 - end]]
    }

    pub(super) fn up(&mut self, link: usize) {
        let ends = self.links[link].ends;
        if self.links[link].generation.is_some() || ends.iter().any(|&broker| self.brokers[broker].is_none()) {
            return;
        }
        self.generations += 1;
        let (generation, now) = (self.generations, self.now);
        say!(self, "link {ends:?} comes up, generation {generation}");
        (self.links[link].generation, self.links[link].deaf) = (Some(generation), None);
        self.find_ways();
        self.links[link].arrivals.clear();
        for end in 0..2 {
            let [number, peer] = self.ends(link, end);
            let id = PortId { peer: self.claims[peer].id, generation };
            // The old link's death may not have been noticed yet.
            let former: Vec<PortId> = self.brokers[number].as_ref().unwrap().ports.keys().copied().collect();
            former.into_iter().filter(|former| former.peer == id.peer).for_each(|former| self.port_down(number, former));
            let broker = self.brokers[number].as_mut().unwrap();
            let port = broker.replication.add_port(id);
            let lanes = port.lanes().len();
            let receivers = port.lanes().iter().map(LaneReceiver::new).collect();
            let deliveries = (0..lanes).map(|_| LinkDelivery::new(Arc::clone(&broker.router))).collect();
            let ledgers = (0..lanes).map(|_| LaneLedger::default()).collect();
            broker.ports.insert(id, End { port, receivers, deliveries, ledgers, on_the_way: vec![0; lanes], closing: Vec::new() });
            for lane in 0..lanes {
                self.woken.lock().unwrap().push(Sleeper::Writer(Writer { link, broker: number, port: id, lane }));
            }
        }
        for end in 0..2 {
            let [number, peer] = self.ends(link, end);
            let port = PortId { peer: self.claims[peer].id, generation };
            let mut out = Vec::new();
            self.tell_clock(number, port);
            let broker = self.brokers[number].as_mut().unwrap();
            broker.registers.begin(broker.life);
            broker.registers.port_up(port, now, &mut out);
            self.say_all(number, out);
            let cost = NonZeroU32::new(self.rng.random_range(1..10)).unwrap();
            self.input(number, Input::LinkUp { port, cost, rtt: Duration::from_millis(2) });
        }
    }

    /// The neighbour is told what time it is here: on a stream of its own, so it comes before what else is said, or behind it.
    fn tell_clock(&mut self, number: usize, port: PortId) {
        let (now, broker) = (self.now, self.brokers[number].as_ref().unwrap());
        let Some(clock) = broker.router.retained().clock().filter(|_| self.plan.clocks) else { return };
        let unix_ms = clock.say(now);
        let Some(link) = self.links.iter().position(|link| link.generation == Some(port.generation)) else { return };
        let end = usize::from(self.links[link].ends[0] == number);
        self.at(now + CLOCK_DELAY, Event::Clock { link, generation: port.generation, end, unix_ms });
    }

    /// Who was behind tells its other neighbours.
    pub(super) fn hear_clock(&mut self, link: usize, generation: u64, end: usize, unix_ms: u64) {
        let ([number, _], now) = (self.ends(link, end), self.now);
        if self.links[link].generation != Some(generation) || self.links[link].deaf == Some(end) {
            return;
        }
        let Some(broker) = self.brokers[number].as_ref() else { return };
        let word = broker.router.retained().clock().map(|clock| clock.hear(unix_ms, now));
        assert!(!matches!(word, Some(ClockWord::Absurd(_))), "{word:?}");
        if matches!(word, Some(ClockWord::Behind(_))) {
            let others: Vec<PortId> = broker.ports.keys().filter(|port| port.generation != generation).copied().collect();
            others.into_iter().for_each(|port| self.tell_clock(number, port));
        }
    }

    /// In both directions at once, or in one first.
    pub(super) fn cut(&mut self, link: usize) {
        self.fault_at = self.now;
        let Some(generation) = self.links[link].generation else { return };
        if self.links[link].deaf.is_none() && self.chance(0.3) {
            let deaf = self.rng.random_range(0..2);
            say!(self, "broker {} hears nothing any more on link {:?}", self.links[link].ends[deaf], self.links[link].ends);
            self.links[link].deaf = Some(deaf);
            self.find_ways();
            self.within(800_000, Event::Die { link, generation });
        } else {
            self.down(link);
        }
    }

    pub(super) fn down(&mut self, link: usize) {
        if let Some(generation) = self.links[link].generation.take() {
            self.find_ways();
            say!(self, "link {:?} is cut", self.links[link].ends);
            let detection_us = if self.chance(0.2) { 500_000 } else { 30_000 };
            (0..2).for_each(|end| self.within(detection_us, Event::LinkDown { link, generation, end }));
        }
    }

    pub(super) fn link_down(&mut self, link: usize, generation: u64, end: usize) {
        let [number, peer] = self.ends(link, end);
        let port = PortId { peer: self.claims[peer].id, generation };
        if self.brokers[number].as_ref().is_some_and(|broker| broker.ports.contains_key(&port)) {
            self.port_down(number, port);
        }
    }

    pub(super) fn port_down(&mut self, number: usize, port: PortId) {
        let (mut out, now) = (Vec::new(), self.now);
        let broker = self.brokers[number].as_mut().unwrap();
        broker.ports.remove(&port);
        broker.registers.port_down(port, now, &mut out);
        broker.neighbourhood.remove(port);
        self.neighbourhood_changed(number);
        self.say_all(number, out);
        self.input(number, Input::LinkDown { port });
    }

    pub(super) fn send(&mut self, number: usize, port: PortId, stream: Stream) {
        let Some(link) = self.links.iter().position(|link| link.generation == Some(port.generation)) else { return };
        let end = usize::from(self.links[link].ends[0] == number);
        let (lane, bytes) = match &stream {
            Stream::Control(_) => (usize::MAX, 0),
            Stream::Lane(lane, bytes) => (*lane, bytes.len() as u64),
        };
        let slow = if self.chance(0.05) { 40_000 } else { 0 };
        let stands = if self.plan.stalls && bytes > 0 && self.rng.random_bool(0.01) { 4_000_000 } else { 0 };
        let delay = Duration::from_micros(self.rng.random_range(100..3_000 + slow + stands));
        let takes = Duration::from_micros(bytes * 1_000_000 / self.plan.lane_rate);
        let last = self.links[link].arrivals.entry((end, lane)).or_insert(self.now);
        *last = (self.now + delay).max(*last) + takes;
        let at = *last;
        self.at(at, Event::Arrive { link, generation: port.generation, end, stream });
    }

    pub(super) fn arrive(&mut self, link: usize, generation: u64, end: usize, stream: Stream) {
        let [number, peer] = self.ends(link, end);
        let (id, now) = (PortId { peer: self.claims[peer].id, generation }, self.now);
        if self.brokers[number].as_ref().is_none_or(|broker| !broker.ports.contains_key(&id)) {
            return;
        }
        let (lane, bytes) = match stream {
            Stream::Control(Word::Bpdu(bpdu)) => return self.input(number, Input::Bpdu { port: id, bpdu }),
            Stream::Control(Word::Register(say)) => return self.hear_register(number, id, say),
            Stream::Control(Word::Behind(members)) => {
                let broker = self.brokers[number].as_mut().unwrap();
                if !self.plan.coin {
                    broker.ports[&id].port.set_behind(members.clone());
                }
                broker.neighbourhood.hear(id, members);
                return self.neighbourhood_changed(number);
            }
            Stream::Lane(lane, bytes) => (lane, bytes),
        };
        let piece = self.rng.random_range(1..=bytes.len());
        let mut events = Vec::new();
        let port = self.brokers[number].as_mut().unwrap().ports.get_mut(&id).unwrap();
        for piece in bytes.chunks(piece) {
            let mut local = Local { delivery: &mut port.deliveries[lane], now };
            if let Err(error) = port.receivers[lane].receive(piece, now, &mut local, &mut events) {
                panic!("broker {number} lane {lane} from {peer}: {error}");
            }
        }
        self.consumed(link, generation, end, lane, bytes.len(), now + TRANSIT_PATIENCE);
        for event in events {
            let input = match event {
                LaneEvent::OpenReceived(open) => Input::OpenReceived { port: id, open },
                LaneEvent::CloseReceived(number) => Input::CloseReceived { port: id, number },
            };
            self.input(number, input);
        }
    }

    /// The reader says that it has consumed what it read, unless others had better be waited for. The writer may write so much more.
    pub(super) fn consumed(&mut self, link: usize, generation: u64, end: usize, lane: usize, bytes: usize, patience: Instant) {
        if self.links[link].generation != Some(generation) {
            return;
        }
        let [number, peer] = self.ends(link, end);
        let [here, there] = [peer, number].map(|peer| PortId { peer: self.claims[peer].id, generation });
        let Some(reader) = self.brokers[number].as_ref().and_then(|broker| broker.ports.get(&here)) else { return };
        let is_pending = reader.port.lanes()[lane].poll_others(&mut Context::from_waker(Waker::noop())).is_pending();
        if is_pending && self.now < patience {
            let again = self.now + Duration::from_millis(10);
            return self.at(again, Event::Consumed { link, generation, end, lane, bytes, patience });
        }
        if let Some(writer) = self.brokers[peer].as_mut().and_then(|broker| broker.ports.get_mut(&there)) {
            writer.on_the_way[lane] -= bytes;
            self.woken.lock().unwrap().push(Sleeper::Writer(Writer { link, broker: peer, port: there, lane }));
        }
    }

    pub(super) fn send_lane(&mut self, writer: Writer) {
        let budget = if self.plan.scripted { 8_000 } else { self.rng.random_range(1..3_000) };
        let (credit, now) = (self.plan.credit, self.now);
        let waker = self.waker(Sleeper::Writer(writer));
        let Some(end) = self.brokers[writer.broker].as_mut().and_then(|broker| broker.ports.get_mut(&writer.port)) else { return };
        let mut out: Vec<Bytes> = Vec::new();
        let lane = &end.port.lanes()[writer.lane];
        let batch = if end.on_the_way[writer.lane] >= credit {
            // A CLOSE needs none.
            let Some(batch) = lane.take_close(8_000, &mut out) else { return };
            batch
        } else {
            let Poll::Ready(batch) = lane.poll(&mut Context::from_waker(&waker), now, budget, &mut out) else {
                assert!(out.is_empty());
                return;
            };
            assert!(batch.bytes <= budget, "{} bytes with a budget of {budget}", batch.bytes);
            batch
        };
        let bytes = out.concat();
        assert_eq!(bytes.len(), batch.bytes);
        end.on_the_way[writer.lane] += bytes.len();
        self.sent += end.ledgers[writer.lane].write(&bytes);
        if !bytes.is_empty() {
            self.send(writer.broker, writer.port, Stream::Lane(writer.lane, bytes));
        }
        self.woken.lock().unwrap().push(Sleeper::Writer(writer));
        if let Some(number) = batch.closed {
            self.closed(writer, number);
        }
    }

    pub(super) fn waker(&self, sleeper: Sleeper) -> Waker {
        Waker::from(Arc::new(Alarm { sleeper, woken: Arc::clone(&self.woken) }))
    }
}

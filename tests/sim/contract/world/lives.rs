//! Brokers start, crash and come back; their disks take what is written, or do not.

use super::*;

impl World {
    pub(super) fn start(&mut self, number: usize) {
        if self.brokers[number].is_some() {
            return;
        }
        self.fault_at = self.now;
        self.claims[number].incarnation.0 += 1;
        let (claim, now) = (self.claims[number], self.now);
        let life = claim.incarnation;
        say!(self, "broker {number} starts, life {}", life.0);
        let journal = self.has_disk[number].then(Journal::new);
        let outbound = OutboundLimits {
            inflight_max: SENT_MAX,
            inflight_bytes_max: usize::MAX,
            queued_messages_max: u32::MAX,
            queued_bytes_max: usize::MAX,
            drop_oldest: false,
            queue_qos0: false,
        };
        let limits = RouterLimits { outbound, shared: SharedStrategy::default() };
        let router = Arc::new(Router::new(limits, Arc::new(Metrics::default()), journal.clone(), now));
        let registers = Registers::new(claim.id, MEMBER_TIMEOUT, REGISTER_FILTERS_MAX);
        let ahead = if self.plan.clocks { CLOCKS_S[number % CLOCKS_S.len()] } else { 0 };
        let unix = Duration::from_secs(1_700_000_000 + ahead) + now.saturating_duration_since(self.begin);
        router.share_retained(StampClock::new(self.rng.random(), unix, now), Duration::from_secs(86_400));
        router.join_registers(Arc::clone(&registers));
        let log = if journal.is_some() { self.restore(number, &router) } else { RestoredLog::default() };
        let interest = Arc::new(Interest::new(claim.id, Rules::new(Mode::Interest, [])));
        if let Some(journal) = &journal {
            registers.follow(Arc::new(Roster(Arc::clone(journal))));
            log.members.iter().for_each(|member| registers.met(*member, now));
        }
        registers.follow(Arc::clone(&interest) as Arc<dyn Follow>);
        interest.await_echoes(Echoes::new(Arc::clone(&registers)));
        let config = ReplicationConfig {
            origin: claim.id,
            log: LogId(self.rng.random()),
            lanes_per_class: LANES_PER_CLASS,
            ring_blocks: self.rings[number],
            ring_bytes: self.plan.ring_bytes,
            ring_age: self.plan.ring_age,
            slows_publishers: true,
            hop_max: u8::MAX,
            message_bytes_max: 100_000,
        };
        let replication = match &journal {
            Some(journal) => Replication::durable(config, interest, journal, log, now),
            None => Replication::with_interest(config, interest, now),
        };
        registers.own().tell_log(replication.own_log());
        router.join_mesh(Arc::clone(&replication));
        let post = Arc::<Post>::default();
        let (letters, ways, lost) = (Arc::clone(&self.letters), Arc::clone(&self.ways), Arc::clone(&self.lost));
        let carrier = Arc::new(Carrier { broker: number, letters, ways, lost, begun: self.now });
        let carry: Arc<dyn Carry> = Arc::clone(&carrier) as _;
        post.open(Arc::downgrade(&carry));
        router.join_post(Arc::clone(&post));
        if self.plan.deaths > 0 || self.plan.replicas {
            router.replicate_sessions();
        }
        self.account.returns(number);
        let hello = Duration::from_millis(100);
        self.brokers[number] = Some(Broker {
            life,
            delivery: LinkDelivery::new(Arc::clone(&router)),
            router,
            replication,
            registers,
            journal,
            neighbourhood: Neighbourhood::new(claim.id),
            stp: Stp::new(StpConfig { claim, hop_max: u8::MAX, hello, epoch_interval: Duration::from_secs(1) }),
            ports: BTreeMap::new(),
            timeout: None,
            batch: Batch::default(),
            services: BTreeMap::new(),
            post,
            _carrier: carrier,
            fetching: BTreeMap::new(),
            moves_at: Some(now),
            writing: None,
            is_to_write: false,
            promised: 0,
            is_to_tell: false,
            is_to_tell_behind: false,
        });
        self.at(now, Event::Moves { broker: number, life });
        self.at(now + PULL_REPEAT, Event::Tick { broker: number, life });
        if self.plan.coin {
            self.within(TOSS_MAX_US, Event::Toss { broker: number, life });
        }
    }

    /// A broker with a disk reads it.
    pub(super) fn restore(&mut self, number: usize, router: &Router) -> RestoredLog {
        let (disk, now) = (&self.disks[number], self.now);
        if disk.is_blank() {
            return RestoredLog::default();
        }
        let restored = disk.read();
        router.number_sessions_from(restored.last);
        restored.sessions.into_iter().for_each(|session| router.restore_session(session, now));
        let mut batch = Batch::default();
        router.judge_anew(&mut batch, |access| self.policy.judge(access.identity()), now);
        router.finish(&mut batch, now);
        restored.log
    }

    /// Brokers die one after the other, each when all of its sessions have replicas, and are back after a while.
    pub(in super::super) fn let_die(&mut self) {
        for _ in 0..self.plan.deaths {
            if self.plan.parts {
                self.part();
            }
            self.plan(Duration::from_secs(5), self.plan.acts / self.plan.deaths, 0);
            self.plan_cuts(Duration::from_secs(5), self.plan.faults / self.plan.deaths);
            let number = self.rng.random_range(0..self.brokers.len());
            self.plan_messages(Duration::from_secs(9), self.plan.acts / self.plan.deaths);
            let wait = Duration::from_millis(self.rng.random_range(0..4_000));
            self.run(wait);
            self.await_replicas(number);
            // It dies while a link is gone of which nobody knows as yet, or for which nothing has followed.
            while self.plan.faults > 0 {
                self.plan_cuts(Duration::ZERO, 1);
                let since = Duration::from_millis(self.rng.random_range(0..700));
                self.run(since);
                if self.is_replicated(number) {
                    break;
                }
                self.await_replicas(number);
            }
            let away = Duration::from_millis(self.rng.random_range(100..12_000));
            self.fall(number, Some(away));
            self.plan(away + Duration::from_secs(2), self.plan.acts / self.plan.deaths, 0);
            self.plan_cuts(away + Duration::from_secs(2), self.plan.faults / self.plan.deaths);
            self.run(away + Duration::from_secs(4));
        }
    }

    fn await_replicas(&mut self, number: usize) {
        let (until, mut is_replicated) = (self.now + Duration::from_secs(40), 0);
        while is_replicated < 30 {
            self.run(Duration::from_millis(10));
            is_replicated = if self.is_replicated(number) { is_replicated + 1 } else { 0 };
            assert!(self.now < until, "the sessions of broker {number} have no replicas: {}", self.unreplicated(number));
        }
    }

    /// Links are cut within that time, each for less than it takes until anybody goes on without its session's broker.
    fn plan_cuts(&mut self, span: Duration, count: usize) {
        for _ in 0..count {
            let link = self.rng.random_range(0..self.links.len());
            let at = self.now + span.mul_f64(self.rng.random());
            let mended = at + Duration::from_millis(self.rng.random_range(50..1_500));
            self.at(at, Event::Cut { link });
            self.at(mended, Event::Mend { link });
        }
    }

    /// The mesh falls into two parts for a while, in which clients go where they like; then it is whole again.
    fn part(&mut self) {
        let sides: Vec<bool> = self.brokers.iter().map(|_| self.rng.random()).collect();
        let crossing: Vec<usize> =
            (0..self.links.len()).filter(|link| sides[self.links[*link].ends[0]] != sides[self.links[*link].ends[1]]).collect();
        say!(self, "the mesh parts: {sides:?}");
        self.is_parted = !crossing.is_empty();
        crossing.iter().for_each(|link| self.cut(*link));
        let span = Duration::from_millis(self.rng.random_range(100..9_000));
        self.plan(span, self.plan.acts / self.plan.deaths, 0);
        self.run(span);
        say!(self, "the mesh is whole again");
        crossing.iter().for_each(|link| self.up(*link));
        self.fault_at = self.now;
        self.run(CALM);
        self.is_parted = false;
    }

    fn unreplicated(&self, number: usize) -> String {
        let mine: Vec<_> = self.clients.iter().filter(|client| client.home == number).map(Client::state).collect();
        let count = self.brokers[number].as_ref().map(|broker| broker.router.metrics().sessions_unreplicated.value());
        format!("{count:?}, {mine:?}")
    }

    fn is_replicated(&self, number: usize) -> bool {
        let Some(broker) = &self.brokers[number] else { return false };
        let mut mine = self.clients.iter().filter(|client| client.home == number);
        broker.router.metrics().sessions_unreplicated.value() == 0 && mine.all(|client| client.is_up() && client.is_settled())
    }

    /// What was about to be safe is, or is not. Who has no disk loses everything.
    pub(super) fn crash(&mut self, number: usize) {
        self.fall(number, None);
    }

    /// Likewise, and for so long.
    fn fall(&mut self, number: usize, away: Option<Duration>) {
        // While a disk fails clients are told what is not safe: who crashes then has told them wrong.
        let has_promised = |broker: &mut Broker| {
            broker.journal.as_ref().is_some_and(|journal| journal.is_failing() || journal.committed() < broker.promised)
        };
        let Some(broker) = self.brokers[number].take_if(|broker| !has_promised(broker)) else { return };
        self.fault_at = self.now;
        self.counts.add(&broker);
        let mut is_lost = !self.has_disk[number];
        if !is_lost && self.chance(0.5) && !self.is_failing[number] {
            let changes = broker.writing.into_iter().flat_map(|(_, changes)| changes);
            changes.for_each(|change| self.disks[number].apply(change));
        }
        if !is_lost && self.plan.loses_disks && self.rng.random_bool(0.2) {
            self.disks[number] = Disk::default();
            is_lost = true;
        }
        say!(self, "broker {number} crashes{}", if is_lost { ", and loses everything" } else { "" });
        self.account.forgets_of(number);
        let wanders = self.plan.wanders;
        for client in self.clients.iter().filter(|client| client.home == number || wanders) {
            self.account.crashes(client.number, is_lost || client.is_passing);
        }
        if is_lost {
            self.account.orphans(number);
            self.bereft.extend(self.clients.iter().filter(|client| client.home == number).map(|client| client.number));
        }
        for link in 0..self.links.len() {
            if self.links[link].ends.contains(&number) {
                self.down(link);
            }
        }
        let mine: Vec<u64> = self.pipes.iter().filter(|(_, pipe)| pipe.broker == number).map(|(id, _)| *id).collect();
        for connection in mine {
            self.within(300_000, Event::Dropped { connection });
        }
        if self.plan.scripted {
            return;
        }
        let away = away.unwrap_or_else(|| Duration::from_micros(self.rng.random_range(0..=2_000_000)));
        self.at(self.now + away, Event::Start { broker: number });
    }

    pub(super) fn alive(&mut self, number: usize, life: Incarnation) -> Option<&mut Broker> {
        self.brokers[number].as_mut().filter(|broker| broker.life == life)
    }

    pub(super) fn tick(&mut self, number: usize, life: Incarnation) {
        let now = self.now;
        if self.alive(number, life).is_none() {
            return;
        }
        let heard = self.connected_with(number);
        let log = |other: usize| Some((self.claims[other].id, self.brokers[other].as_ref()?.replication.log()));
        let records: Vec<_> = heard.into_iter().filter_map(log).collect();
        let mut out = Vec::new();
        let costs = self.costs(number);
        let Some(broker) = self.alive(number, life) else { return };
        broker.replication.interest().set_costs(costs);
        broker.replication.trim(now);
        let mut local = Local { delivery: &mut broker.delivery, now };
        broker.replication.repeat_pulls(PATIENCE, now, &mut local);
        while broker.replication.pick_again(now, &mut local) | broker.replication.share_late(now, &mut local) {}
        broker.registers.own().ask_dealt(broker.replication.awaits_dealt(), false);
        for (stream, sequence) in broker.replication.dealt(&broker.replication.interest().asked()) {
            broker.registers.own().tell_dealt(stream, sequence);
        }
        for (id, log) in records {
            broker.registers.met(id, now);
            broker.replication.log_begun(id, log);
        }
        broker.registers.tick(now, &mut out);
        // Covers that came alone.
        if broker.journal.is_some() && broker.writing.is_none() && !std::mem::replace(&mut broker.is_to_write, true) {
            self.at(now, Event::Write { broker: number, life });
        }
        self.say_all(number, out);
        self.at(now + PULL_REPEAT, Event::Tick { broker: number, life });
    }

    /// Links are others.
    pub(super) fn find_ways(&mut self) {
        let all: BTreeSet<_> = (0..self.brokers.len())
            .flat_map(|one| self.connected_with(one).into_iter().map(move |other| (one, other)))
            .map(|(one, other)| (one, self.claims[other].id))
            .collect();
        let mut lost = self.lost.lock().unwrap();
        lost.extend(self.ways.lock().unwrap().difference(&all).map(|way| (*way, self.now)));
        lost.retain(|way, _| !all.contains(way));
        *self.ways.lock().unwrap() = all;
    }

    /// A letter arrives, or finds no way any more.
    pub(super) fn letter(&mut self, from: usize, to: BrokerId, body: &[u8]) {
        let is_there = self.ways.lock().unwrap().contains(&(from, to));
        let reader = self.claims.iter().position(|claim| claim.id == to).unwrap();
        if !is_there {
            self.brokers[from].iter().for_each(|broker| broker.post.bounce(to));
        } else if let Some(broker) = &self.brokers[reader] {
            broker.post.deliver(self.claims[from].id, body);
        }
    }

    /// What the broker's own task for sessions on the move does.
    pub(super) fn move_sessions(&mut self, number: usize, life: Incarnation) {
        let now = self.now;
        let Some(broker) = self.alive(number, life).filter(|broker| broker.moves_at.is_some_and(|at| at <= now)) else { return };
        let first = broker.post.receive();
        let pause = broker.router.drive_moves(&mut broker.batch, first, now);
        broker.router.finish(&mut broker.batch, now);
        let at = now + pause.max(Duration::from_millis(1));
        broker.moves_at = Some(at);
        self.at(at, Event::Moves { broker: number, life });
    }

    /// Links on the shortest ways to others.
    fn costs(&self, number: usize) -> BTreeMap<BrokerId, u32> {
        let (mut costs, mut rank) = (BTreeMap::from([(number, 0)]), vec![number]);
        while !rank.is_empty() {
            let mut next = Vec::new();
            for one in rank {
                for link in self.links.iter().filter(|link| link.generation.is_some() && link.ends.contains(&one)) {
                    let other = if link.ends[0] == one { link.ends[1] } else { link.ends[0] };
                    let cost = costs[&one] + 1;
                    costs.entry(other).or_insert_with(|| {
                        next.push(other);
                        cost
                    });
                }
            }
            rank = next;
        }
        costs.into_iter().filter(|(other, _)| *other != number).map(|(other, cost)| (self.claims[other].id, cost)).collect()
    }

    /// Other brokers whose records come here.
    pub(super) fn connected_with(&self, number: usize) -> BTreeSet<usize> {
        let (mut known, mut new) = (BTreeSet::from([number]), vec![number]);
        while let Some(one) = new.pop() {
            for link in self.links.iter().filter(|link| link.generation.is_some() && link.deaf.is_none()) {
                let other = if link.ends[0] == one { link.ends[1] } else { link.ends[0] };
                if link.ends.contains(&one) && known.insert(other) {
                    new.push(other);
                }
            }
        }
        known.remove(&number);
        known
    }

    pub(super) fn write(&mut self, number: usize, life: Incarnation) {
        let is_slow = self.plan.slow_disks && self.rng.random_bool(0.05);
        let Some(broker) = self.alive(number, life).filter(|broker| broker.writing.is_none()) else { return };
        broker.is_to_write = false;
        let mut changes = Vec::new();
        let last = broker.journal.as_ref().unwrap().take(&mut changes, Duration::ZERO).unwrap();
        broker.writing = Some((last, changes));
        self.within(if is_slow { 1_000_000 } else { 20_000 }, Event::Sync { broker: number, life });
    }

    pub(super) fn sync(&mut self, number: usize, life: Incarnation) {
        let is_failing = self.is_failing[number];
        if self.stands[number] && self.alive(number, life).is_some() {
            return self.within(10_000, Event::Sync { broker: number, life });
        }
        let Some(broker) = self.alive(number, life) else { return };
        let journal = Arc::clone(broker.journal.as_ref().unwrap());
        if is_failing {
            journal.fail();
            return self.within(250_000, Event::Sync { broker: number, life });
        }
        if journal.is_failing() {
            broker.promised = journal.last();
        }
        if let Some((last, changes)) = broker.writing.take() {
            changes.into_iter().for_each(|change| self.disks[number].apply(change));
            journal.commit(last);
        }
    }
}

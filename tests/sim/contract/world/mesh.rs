//! What a broker's driver does: the tree, who is behind whom, registers.

use super::*;

impl World {
    pub(super) fn input(&mut self, number: usize, input: Input) {
        let now = self.now;
        let Some(broker) = self.brokers[number].as_mut() else { return };
        let mut outputs = Vec::new();
        broker.stp.handle(input, now, &mut outputs);
        let timeout = broker.stp.poll_timeout().map(|at| at.max(now));
        if timeout != broker.timeout {
            broker.timeout = timeout;
            if let Some(at) = timeout {
                self.at(at, Event::Timeout { broker: number });
            }
        }
        outputs.into_iter().for_each(|output| self.output(number, output));
    }

    pub(super) fn output(&mut self, number: usize, output: Output) {
        let now = self.now;
        let Some(broker) = self.brokers[number].as_mut() else { return };
        match output {
            Output::SendBpdu { port, bpdu } => self.send(number, port, Stream::Control(Word::Bpdu(bpdu))),
            // A link that is gone already is nobody's.
            Output::OpenLanes { port, open } => {
                broker.ports.get(&port).into_iter().for_each(|end| end.port.open(&open, now));
            }
            Output::AnswerOpen { port, open } => {
                broker.ports.get(&port).into_iter().for_each(|end| end.port.answer(&open, now));
            }
            Output::CloseLanes { port, number } => {
                if let Some(end) = broker.ports.get_mut(&port) {
                    end.closing.push((number, end.receivers.len()));
                    end.port.close(&number);
                }
            }
            Output::PortState { port, forwarding, .. } => {
                if broker.neighbourhood.set_open(port, forwarding)
                    && !forwarding
                    && let Some(end) = broker.ports.get(&port)
                {
                    end.port.set_behind(None);
                }
                self.neighbourhood_changed(number);
            }
            Output::TreeChanged { .. } => {}
            Output::Refuse { error, .. } => panic!("broker {number} refuses a peer: {error}"),
        }
    }

    pub(super) fn closed(&mut self, writer: Writer, number: OpenNumber) {
        let broker = self.brokers[writer.broker].as_mut().unwrap();
        let end = broker.ports.get_mut(&writer.port).unwrap();
        let waits = end.closing.iter_mut().find(|(closing, _)| *closing == number).unwrap();
        waits.1 -= 1;
        if waits.1 == 0 {
            end.closing.retain(|(closing, _)| *closing != number);
            self.input(writer.broker, Input::LanesClosed { port: writer.port, number });
        }
    }

    pub(super) fn neighbourhood_changed(&mut self, number: usize) {
        let at = self.now + TELL_DELAY;
        let Some(broker) = self.brokers[number].as_mut() else { return };
        let life = broker.life;
        let (interest, reachable) = (broker.replication.interest(), broker.neighbourhood.reachable());
        if let Some(echoes) = interest.echoes() {
            echoes.set_reachable(reachable.clone());
            echoes.progress();
        }
        interest.set_reachable(reachable);
        if !std::mem::replace(&mut broker.is_to_tell_behind, true) {
            self.at(at, Event::TellBehind { broker: number, life });
        }
    }

    pub(super) fn tell_behind(&mut self, number: usize, life: Incarnation) {
        let Some(broker) = self.alive(number, life) else { return };
        broker.is_to_tell_behind = false;
        for (port, members) in broker.neighbourhood.tell() {
            self.send(number, port, Stream::Control(Word::Behind(members)));
        }
    }

    /// A broker is told anew who is behind its ports, and it is not so.
    pub(super) fn toss(&mut self, number: usize, life: Incarnation) {
        let all: Vec<BrokerId> = self.claims.iter().map(|claim| claim.id).collect();
        let rng = &mut self.rng;
        let Some(broker) = self.brokers[number].as_ref().filter(|broker| broker.life == life) else { return };
        for end in broker.ports.values() {
            let some = all.iter().copied().filter(|_| rng.random_bool(0.3)).collect();
            end.port.set_behind(if rng.random_bool(0.05) { None } else { Some(some) });
        }
        self.within(TOSS_MAX_US, Event::Toss { broker: number, life });
    }

    pub(super) fn tell(&mut self, number: usize, life: Incarnation) {
        let now = self.now;
        let Some(broker) = self.alive(number, life) else { return };
        broker.is_to_tell = false;
        let mut out = Vec::new();
        let sign = |_: &[u8]| Some(Signature { chain: Bytes::new(), scheme: 0, bytes: Bytes::new() });
        broker.registers.tell(now, sign, &mut out);
        self.say_all(number, out);
    }

    pub(super) fn say_all(&mut self, number: usize, out: Vec<(PortId, Say)>) {
        if let Some(echoes) = self.brokers[number].as_ref().and_then(|broker| broker.replication.interest().echoes()) {
            echoes.progress();
        }
        out.into_iter().for_each(|(port, say)| self.send(number, port, Stream::Control(Word::Register(say))));
    }

    pub(super) fn hear_register(&mut self, number: usize, from: PortId, say: Say) {
        let (now, mut out) = (self.now, Vec::new());
        let Some(broker) = self.brokers[number].as_mut() else { return };
        let registers = &broker.registers;
        match say {
            Say::Delta(mode, signed) => {
                let head = DeltaHead::read(&signed.wire).unwrap();
                if registers.judge(from, &head, mode, now) == Judgement::Check {
                    registers.take(from, mode, signed.as_ref().clone(), now, &mut out).unwrap();
                }
            }
            Say::Have(haves) => registers.hear_have(from, &haves, now, &mut out),
            Say::Want(want) => registers.hear_want(from, want, now, &mut out),
            Say::End(end) => registers.hear_end(from, end, now, &mut out).unwrap(),
        }
        self.say_all(number, out);
    }
}

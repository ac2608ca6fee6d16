//! What goes wrong in the world, and is put right again.

use std::time::Duration;

use mqtt_st_quic::stp::Input;

use super::World;
use super::impostor::Lie;
use super::link::cost;
use super::path::Path;

/// Links and brokers are named by their index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Mends a link, whatever was cut of it.
    Up(usize),
    /// Cuts a link in both directions.
    Down(usize),
    /// What the first broker (`0`) or the second (`1`) of a link's ends sends gets lost from now on.
    CutFrom(usize, usize),
    /// New costs at both ends of a link; where costs are measured, until the next measurement.
    Cost(usize, [u32; 2]),
    /// Another delay, loss and so on.
    Path(usize, Path),
    /// The process is gone, with all that it did not store.
    Crash(usize),
    Start(usize),
    /// The broker's wall clock goes back; it is read at the next start.
    ClockBack(usize, Duration),
    /// What the broker stored is gone; it is read at the next start.
    LoseDisk(usize),
    /// The broker lies from now on, or ceases to.
    Lie(usize, Option<Lie>),
}

impl World {
    pub(super) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Up(link) => self.mend(link),
            Fault::Down(link) => self.cut(link, [true, true]),
            Fault::CutFrom(link, end) => {
                let mut is_cut = self.links[link].is_cut;
                is_cut[1 - end] = true;
                self.cut(link, is_cut);
            }
            Fault::Cost(link, costs) => self.set_costs(link, costs),
            Fault::Path(link, path) => self.links[link].path = path,
            Fault::Crash(broker) => self.crash(broker),
            Fault::Start(broker) => self.start_broker(broker),
            Fault::ClockBack(broker, by) => {
                let wall = &mut self.brokers[broker].wall_ms;
                *wall = wall.saturating_sub(u64::try_from(by.as_millis()).unwrap_or(u64::MAX));
            }
            Fault::LoseDisk(broker) => self.brokers[broker].stored = None,
            Fault::Lie(broker, lie) => self.brokers[broker].lie = lie,
        }
    }

    fn set_costs(&mut self, link: usize, costs: [u32; 2]) {
        self.links[link].costs = costs;
        let Some(generation) = self.links[link].generation else { return };
        let rtt = self.links[link].path.rtt();
        for (end, new) in costs.into_iter().enumerate() {
            let (broker, port) = self.port_at(link, end, generation);
            self.feed(broker, Input::Cost { port, cost: cost(new), rtt });
        }
    }

    /// Schedules the cut of every link between the brokers of one side and the rest, and says which links these are.
    pub fn partition_after(&mut self, delay: Duration, is_inside: impl Fn(usize) -> bool) -> Vec<usize> {
        let crosses = |ends: [usize; 2]| is_inside(ends[0]) != is_inside(ends[1]);
        let crossing: Vec<usize> = (0..self.links.len()).filter(|&link| crosses(self.links[link].ends)).collect();
        for &link in &crossing {
            self.fault_after(delay, Fault::Down(link));
        }
        crossing
    }
}

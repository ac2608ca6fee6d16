//! The packet ids of a publisher's QoS 1 and 2 messages: which are taken, and which acknowledgement each is owed.
//!
//! Ids are used in turn, so that a late second acknowledgement does not hit the next message by accident.

use std::num::NonZeroU16;

use super::fault::Fault;

/// See the module. Id `n` is slot `n - 1`.
#[derive(Debug)]
pub(crate) struct InFlight {
    slots: Vec<Slot>,
    /// Where the search for a free slot begins.
    cursor: usize,
    used: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    /// Published, and owed a PUBACK or PUBREC.
    Published {
        due_at_ns: u64,
    },
    /// Released, and owed a PUBCOMP.
    Released {
        due_at_ns: u64,
    },
}

impl InFlight {
    /// At most `window` messages at a time.
    pub(crate) fn new(window: NonZeroU16) -> Self {
        Self { slots: vec![Slot::Free; usize::from(window.get())], cursor: 0, used: 0 }
    }

    /// Messages that are owed something.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// An id for a message that was due at `due_at_ns`; `None` while the window is full.
    pub(crate) fn take(&mut self, due_at_ns: u64) -> Option<NonZeroU16> {
        if self.used == self.slots.len() {
            return None;
        }
        loop {
            let index = self.cursor;
            self.cursor = (index + 1) % self.slots.len();
            let slot = self.slots.get_mut(index)?;
            if *slot == Slot::Free {
                *slot = Slot::Published { due_at_ns };
                self.used += 1;
                return u16::try_from(index + 1).ok().and_then(NonZeroU16::new);
            }
        }
    }

    /// A PUBACK, or a PUBREC that refuses: when the message was due.
    pub(crate) fn acknowledge(&mut self, id: NonZeroU16) -> Result<u64, Fault> {
        match self.slot(id)? {
            slot @ &mut Slot::Published { due_at_ns } => {
                *slot = Slot::Free;
                self.used -= 1;
                Ok(due_at_ns)
            }
            Slot::Free | Slot::Released { .. } => Err(Fault::UnknownAcknowledgement(id.get())),
        }
    }

    /// A PUBREC. A repeated one is answered like the first.
    pub(crate) fn release(&mut self, id: NonZeroU16) -> Result<(), Fault> {
        match self.slot(id)? {
            slot @ &mut Slot::Published { due_at_ns } => {
                *slot = Slot::Released { due_at_ns };
                Ok(())
            }
            Slot::Released { .. } => Ok(()),
            Slot::Free => Err(Fault::UnknownAcknowledgement(id.get())),
        }
    }

    /// A PUBCOMP: when the message was due.
    pub(crate) fn complete(&mut self, id: NonZeroU16) -> Result<u64, Fault> {
        match self.slot(id)? {
            slot @ &mut Slot::Released { due_at_ns } => {
                *slot = Slot::Free;
                self.used -= 1;
                Ok(due_at_ns)
            }
            Slot::Free | Slot::Published { .. } => Err(Fault::UnknownAcknowledgement(id.get())),
        }
    }

    fn slot(&mut self, id: NonZeroU16) -> Result<&mut Slot, Fault> {
        self.slots.get_mut(usize::from(id.get()) - 1).ok_or(Fault::UnknownAcknowledgement(id.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u16) -> NonZeroU16 {
        NonZeroU16::new(number).unwrap()
    }

    #[test]
    fn ids_are_used_in_turn_and_the_window_holds() {
        let mut in_flight = InFlight::new(id(3));
        assert_eq!([in_flight.take(10), in_flight.take(20), in_flight.take(30)], [Some(id(1)), Some(id(2)), Some(id(3))]);
        assert_eq!((in_flight.take(40), in_flight.used()), (None, 3));
        assert_eq!(in_flight.acknowledge(id(2)).unwrap(), 20);
        assert_eq!(in_flight.acknowledge(id(1)).unwrap(), 10);
        assert_eq!([in_flight.take(40), in_flight.take(50), in_flight.take(60)], [Some(id(1)), Some(id(2)), None]);
    }

    #[test]
    fn a_window_of_all_ids_hands_out_all_of_them() {
        let mut in_flight = InFlight::new(NonZeroU16::MAX);
        assert!((1..=u16::MAX).all(|number| in_flight.take(0) == Some(id(number))));
        assert_eq!(in_flight.take(0), None);
    }

    #[test]
    fn exactly_once_takes_two_steps() {
        let mut in_flight = InFlight::new(id(1));
        in_flight.take(10).unwrap();
        assert!(in_flight.complete(id(1)).is_err(), "not released");
        in_flight.release(id(1)).unwrap();
        in_flight.release(id(1)).unwrap();
        assert!(in_flight.acknowledge(id(1)).is_err(), "released");
        assert_eq!(in_flight.complete(id(1)).unwrap(), 10);
        assert_eq!(in_flight.used(), 0);
    }

    #[test]
    fn acknowledgements_nobody_asked_for_are_lies() {
        let mut in_flight = InFlight::new(id(2));
        in_flight.take(10).unwrap();
        for lie in [2, 3, u16::MAX] {
            assert!(matches!(in_flight.acknowledge(id(lie)), Err(Fault::UnknownAcknowledgement(told)) if told == lie));
            assert!(in_flight.release(id(lie)).is_err());
            assert!(in_flight.complete(id(lie)).is_err());
        }
        assert_eq!(in_flight.used(), 1);
    }
}

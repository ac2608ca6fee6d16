//! The packet ids of a publisher's QoS 1 and 2 messages: which are taken, and which acknowledgement each is owed.
//!
//! Ids are used in turn, so that a late second acknowledgement does not hit the next message by accident.

use std::num::NonZeroU16;

use super::fault::Fault;

/// See the module. Id `n` is slot `n - 1`.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    slots: Vec<Slot<T>>,
    /// Where the search for a free slot begins.
    cursor: usize,
    used: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot<T> {
    Free,
    /// Published, and owed a PUBACK or PUBREC.
    Published(T),
    /// Released, and owed a PUBCOMP.
    Released(T),
}

impl<T: Copy + PartialEq> InFlight<T> {
    /// At most `window` messages at a time.
    pub(crate) fn new(window: NonZeroU16) -> Self {
        Self { slots: vec![Slot::Free; usize::from(window.get())], cursor: 0, used: 0 }
    }

    /// Messages that are owed something.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// An id for `message`; `None` while the window is full.
    pub(crate) fn take(&mut self, message: T) -> Option<NonZeroU16> {
        if self.used == self.slots.len() {
            return None;
        }
        loop {
            let index = self.cursor;
            self.cursor = (index + 1) % self.slots.len();
            let slot = self.slots.get_mut(index)?;
            if *slot == Slot::Free {
                *slot = Slot::Published(message);
                self.used += 1;
                return u16::try_from(index + 1).ok().and_then(NonZeroU16::new);
            }
        }
    }

    /// A PUBACK, or a PUBREC that refuses: which message.
    pub(crate) fn acknowledge(&mut self, id: NonZeroU16) -> Result<T, Fault> {
        match self.slot(id)? {
            slot @ &mut Slot::Published(message) => {
                *slot = Slot::Free;
                self.used -= 1;
                Ok(message)
            }
            Slot::Free | Slot::Released(_) => Err(Fault::UnknownAcknowledgement(id.get())),
        }
    }

    /// A PUBREC: which message. A repeated one is answered like the first.
    pub(crate) fn release(&mut self, id: NonZeroU16) -> Result<T, Fault> {
        match self.slot(id)? {
            slot @ &mut Slot::Published(message) => {
                *slot = Slot::Released(message);
                Ok(message)
            }
            &mut Slot::Released(message) => Ok(message),
            Slot::Free => Err(Fault::UnknownAcknowledgement(id.get())),
        }
    }

    /// A PUBCOMP: which message.
    pub(crate) fn complete(&mut self, id: NonZeroU16) -> Result<T, Fault> {
        match self.slot(id)? {
            slot @ &mut Slot::Released(message) => {
                *slot = Slot::Free;
                self.used -= 1;
                Ok(message)
            }
            Slot::Free | Slot::Published(_) => Err(Fault::UnknownAcknowledgement(id.get())),
        }
    }

    /// Everything that is owed something, by id: the message, and whether it is released.
    pub(crate) fn open(&self) -> impl Iterator<Item = (NonZeroU16, T, bool)> {
        let ids = (1..=u16::MAX).filter_map(NonZeroU16::new);
        ids.zip(&self.slots).filter_map(|(id, slot)| match *slot {
            Slot::Free => None,
            Slot::Published(message) => Some((id, message, false)),
            Slot::Released(message) => Some((id, message, true)),
        })
    }

    /// Whether a PUBREC has come for it and no PUBCOMP.
    pub(crate) fn is_released(&self, id: NonZeroU16) -> bool {
        matches!(self.slots.get(usize::from(id.get()) - 1), Some(Slot::Released(_)))
    }

    /// Forgets what is published and not released.
    pub(crate) fn forget_published(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot, Slot::Published(_)) {
                *slot = Slot::Free;
                self.used -= 1;
            }
        }
    }

    fn slot(&mut self, id: NonZeroU16) -> Result<&mut Slot<T>, Fault> {
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
        in_flight.forget_published();
        assert_eq!(in_flight.open().collect::<Vec<_>>(), [(id(1), 10, true)]);
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

//! The frames that wait to be sent to a peer: those of higher classes leave first.
//!
//! Owns the frames that wait for one peer. Engine thread only. Frames whose order matters to more than one
//! operation are of no class: they leave in the order of the class *normal*, or *first*. Invariants: frames
//! of one class leave in their order; at most [`MAX_PASSING_FRAMES`] later frames of each higher class leave
//! before a frame that waits.

use std::collections::VecDeque;

use bytes::BytesMut;
use plasmon::Class;

/// Number of frames of higher classes that leave while a class waits, until one of its own does.
const MAX_PASSING_FRAMES: u32 = 64;

/// A frame with the class that it leaves with.
pub(super) type Queued = (Class, BytesMut);

/// The frames for a peer.
#[derive(Default)]
pub(crate) struct Queue {
    /// The frames, the highest class first.
    frames: [VecDeque<BytesMut>; 3],
    /// Number of frames of higher classes that have left while the first of a class waited.
    passed: [u32; 3],
}

impl Queue {
    /// Number of frames.
    pub(crate) fn len(&self) -> usize {
        self.frames.iter().map(VecDeque::len).sum()
    }

    /// Whether there are no frames.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.iter().all(VecDeque::is_empty)
    }

    /// Adds a frame behind those of its class.
    pub(crate) fn push(&mut self, class: Class, frame: BytesMut) {
        self.frames[class.rank()].push_back(frame);
    }

    /// Drops all frames.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes the frames of the next message, which has room for `room` bytes: of one class, or of all classes
    /// that may go. There are none if no class that has frames may go.
    pub(super) fn take(
        &mut self,
        mut room: usize,
        is_of_one_class: bool,
        mut may_go: impl FnMut(Class) -> bool,
    ) -> Vec<Queued> {
        let may_go = Class::ALL.iter().map(|class| !self.frames[class.rank()].is_empty() && may_go(*class));
        let mut may_go: Vec<bool> = may_go.collect();
        let mut taken: Vec<Queued> = Vec::new();
        while let Some(class) = self.next(&may_go) {
            let frames = &mut self.frames[class.rank()];
            if frames.front().is_none_or(|frame| frame.len() > room) {
                break;
            }
            let Some(frame) = frames.pop_front() else { break };
            room -= frame.len();
            may_go[class.rank()] &= !frames.is_empty();
            taken.push((class, frame));
            self.passed[class.rank()] = 0;
            for lower in class.rank() + 1..self.frames.len() {
                self.passed[lower] += u32::from(!self.frames[lower].is_empty());
            }
            if is_of_one_class {
                may_go.iter_mut().enumerate().for_each(|(rank, may)| *may &= rank == class.rank());
            }
        }
        taken
    }

    /// Returns the class of the next frame: the highest that may go, or one that has waited for long.
    fn next(&self, may_go: &[bool]) -> Option<Class> {
        let open = || Class::ALL.iter().copied().filter(|class| may_go[class.rank()]);
        open().find(|class| self.passed[class.rank()] >= MAX_PASSING_FRAMES).or_else(|| open().next())
    }

    /// Puts frames back that could not be sent.
    pub(super) fn put_back(&mut self, frames: Vec<Queued>) {
        for (class, frame) in frames.into_iter().rev() {
            self.frames[class.rank()].push_front(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: &[u8]) -> BytesMut {
        BytesMut::from(bytes)
    }

    fn taken(queue: &mut Queue, room: usize) -> Vec<u8> {
        queue.take(room, false, |_| true).iter().map(|(_, frame)| frame[0]).collect()
    }

    #[test]
    fn higher_classes_leave_first_and_each_in_its_order() {
        let mut queue = Queue::default();
        for (class, byte) in
            [(Class::Low, 1), (Class::Normal, 2), (Class::High, 3), (Class::Low, 4), (Class::High, 5)]
        {
            queue.push(class, frame(&[byte]));
        }
        assert_eq!(queue.len(), 5);
        let frames = queue.take(3, false, |_| true);
        assert_eq!(frames.iter().map(|(_, frame)| frame[0]).collect::<Vec<_>>(), [3, 5, 2]);
        queue.put_back(frames);
        assert_eq!(taken(&mut queue, 100), [3, 5, 2, 1, 4]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_message_has_the_frames_that_fit() {
        let mut queue = Queue::default();
        queue.push(Class::High, frame(&[1; 10]));
        queue.push(Class::High, frame(&[2; 10]));
        queue.push(Class::Low, frame(&[3; 2]));
        assert_eq!(taken(&mut queue, 15), [1], "what is shorter does not overtake");
        assert_eq!(taken(&mut queue, 15), [2, 3]);
    }

    #[test]
    fn a_message_may_be_of_one_class_and_of_those_that_may_go() {
        let mut queue = Queue::default();
        queue.push(Class::Normal, frame(&[1]));
        queue.push(Class::Low, frame(&[2]));
        assert_eq!(queue.take(100, true, |_| true).len(), 1);
        queue.push(Class::Normal, frame(&[3]));
        assert!(queue.take(100, false, |class| class == Class::High).is_empty());
        let frames = queue.take(100, false, |class| class == Class::Low);
        assert_eq!(frames, [(Class::Low, frame(&[2]))]);
    }

    #[test]
    fn low_frames_are_not_passed_for_ever() {
        let mut queue = Queue::default();
        queue.push(Class::Low, frame(&[1]));
        let mut high = 0;
        loop {
            queue.push(Class::High, frame(&[2]));
            match taken(&mut queue, 1)[..] {
                [2] => high += 1,
                [1] => break,
                _ => panic!("one frame fits"),
            }
        }
        assert_eq!(high, MAX_PASSING_FRAMES);
        assert_eq!(taken(&mut queue, 1), [2]);
    }
}

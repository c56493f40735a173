//! Answers that were too long for a slot, kept until their clients ask for them by the socket. Owns
//! [`LongAnswers`]. Engine thread only.
//!
//! Otherwise the home would be asked again, and the outcome that it keeps has no map. Invariant: the last
//! [`MAX_KEPT`] answers of each client are kept.

use std::cell::RefCell;
use std::collections::VecDeque;

use plasmon::shared::CallResult;
use plasmon::wire::SlotResult;
use plasmon::wire::files::{FileAnswer, FileAnswered, encoded};

use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;

/// Maximum number of answers that are kept for a client.
const MAX_KEPT: usize = 64;

/// Kept answer: the number of the attached volume, the number of the operation, and the answer.
type Kept = (u32, u64, FileAnswer);

/// The answers of all clients.
#[derive(Default)]
pub(super) struct LongAnswers {
    clients: RefCell<HashMap<ClientKey, VecDeque<Kept>>>,
}

impl LongAnswers {
    /// Returns the result of a slot for an answer. An answer that is too long is kept, and the result says
    /// so.
    pub(super) fn in_slot(
        &self,
        client: ClientKey,
        volume: u32,
        number: u64,
        answer: FileAnswer,
    ) -> CallResult {
        CallResult::with(&FileAnswered { too_long: false }.values(), &encoded(&answer)).unwrap_or_else(|| {
            let mut clients = self.clients.borrow_mut();
            let kept = clients.entry(client).or_default();
            if kept.len() == MAX_KEPT {
                kept.pop_front();
            }
            kept.push_back((volume, number, answer));
            CallResult::of(&FileAnswered { too_long: true }.values())
        })
    }

    /// Takes the answer to an operation that is asked for again.
    pub(super) fn take(&self, client: ClientKey, volume: u32, number: u64) -> Option<FileAnswer> {
        let mut clients = self.clients.borrow_mut();
        let kept = clients.get_mut(&client)?;
        let at = kept.iter().position(|(of, asked, _)| (*of, *asked) == (volume, number))?;
        kept.remove(at).map(|(_, _, answer)| answer)
    }

    /// Forgets the answers of a client that has gone.
    pub(super) fn end(&self, client: ClientKey) {
        self.clients.borrow_mut().remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::files::FileOutcome;

    use super::*;

    fn key(number: u64) -> ClientKey {
        ClientKey::new(number).expect("it is not 0")
    }

    fn answer(len: usize) -> FileAnswer {
        FileAnswer::of(FileOutcome::Bytes(vec![7; len].into()))
    }

    #[test]
    fn an_answer_that_is_too_long_is_taken_once_by_its_client() {
        let long = LongAnswers::default();
        assert_eq!(long.in_slot(key(1), 2, 3, answer(10)).values[0], 0);
        assert_eq!(long.take(key(1), 2, 3), None, "it fits the slot");
        assert_eq!(long.in_slot(key(1), 2, 4, answer(1000)).values[0], 1);
        for (client, volume, number) in [(2, 2, 4), (1, 3, 4), (1, 2, 3)] {
            assert_eq!(long.take(key(client), volume, number), None);
        }
        assert_eq!(long.take(key(1), 2, 4), Some(answer(1000)));
        assert_eq!(long.take(key(1), 2, 4), None);
    }

    #[test]
    fn few_answers_are_kept() {
        let long = LongAnswers::default();
        let most = MAX_KEPT as u64;
        (0..=most).for_each(|number| _ = long.in_slot(key(1), 1, number, answer(1000)));
        assert_eq!(long.take(key(1), 1, 0), None, "the oldest went");
        assert!(long.take(key(1), 1, 1).is_some() && long.take(key(1), 1, most).is_some());
        long.end(key(1));
        assert_eq!(long.take(key(1), 1, 2), None);
    }
}

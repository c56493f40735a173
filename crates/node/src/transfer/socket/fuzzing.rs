//! The fuzzer's target for frames of a data connection, and its seeds.

use plasmon::{NodeId, ObjectId};

use super::frame::{ANSWER_LEN, ASK_LEN, Answer, Ask, Sizes};

/// Decodes bytes as a holder and as a reader; a frame that decodes must decode to the same after encoding.
pub(crate) fn frame(bytes: &[u8]) {
    if let Some(Ok(ask)) = bytes.first_chunk::<ASK_LEN>().map(Ask::decode) {
        assert_eq!(ask.encode(), bytes[..ASK_LEN]);
    }
    if let Some(Ok(answer)) = bytes.first_chunk::<ANSWER_LEN>().map(Answer::decode) {
        let again = answer.encode();
        assert_eq!(Answer::decode(again[..].try_into().expect("as long as an answer")), Ok(answer));
    }
}

/// Returns a frame of each kind.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let id = ObjectId::from_bytes([7; 20]);
    let ask = Ask { id, reader: NodeId::from_bytes([1; 16]), request: 4, secret: u128::MAX - 1 };
    let answer = |sizes| Answer { id, sizes }.encode().to_vec();
    vec![ask.encode().to_vec(), answer(Some(Sizes { data: 100, metadata: 8 })), answer(None)]
}

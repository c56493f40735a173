//! Targets of the fuzzer for frames about files and for changes that mirrors are sent, with their seeds. Owns
//! no state. Any thread.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use plasmon::NodeId;
use plasmon::wire::files::{FileKind, FileOutcome, LockRange, Time, encoded, file_object};
use plasmon::wire::{Draw, Table, Wire};

use super::change::{Begun, Change, Made};
use super::frames::FileFrame;
use super::map::{Piece, Place};
use super::state::{Head, Opens, State};

/// Decodes a frame, which must decode to the same after encoding.
pub(crate) fn frame(bytes: &[u8]) {
    let Some((opcode, body)) = bytes.split_first() else { return };
    let Ok(frame) = FileFrame::decode_body(*opcode, Bytes::copy_from_slice(body)) else { return };
    let mut again = BytesMut::new();
    frame.put_body(&mut again);
    assert_eq!(FileFrame::decode_body(frame.opcode(), again.freeze()), Ok(frame));
}

/// Returns a few frames of each kind, as bytes.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let encode = |frame: FileFrame| {
        let mut bytes = BytesMut::from(&[frame.opcode()][..]);
        frame.put_body(&mut bytes);
        bytes.to_vec()
    };
    FileFrame::draw_all(3, 7).into_iter().map(encode).collect()
}

/// Decodes the changes of a batch as a mirror does. They must be the same after encoding, and a mirror must
/// be able to apply them to any state.
pub(crate) fn changes(bytes: &[u8]) {
    let Ok(changes) = Change::read_all(Bytes::copy_from_slice(bytes)) else { return };
    assert_eq!(Change::read_all(all(&changes)).as_ref(), Ok(&changes));
    let mut state = State::unknown(7, Time::default());
    changes.into_iter().for_each(|change| state.apply(change));
}

/// Returns a few changes of each kind, and batches that a mirror can apply.
pub(crate) fn batches() -> Vec<Vec<u8>> {
    let valid = |change: &Change| Change::read_all(encoded(change).freeze()).is_ok();
    let drawn: Vec<_> = Change::draw_all(3, 7).into_iter().filter(valid).collect();
    let mut batches: Vec<_> = drawn.iter().map(|change| encoded(change).to_vec()).collect();
    batches.push(all(&drawn).to_vec());
    batches.push(all(&batch()).to_vec());
    batches
}

/// Returns changes by which a mirror that joins gets two inodes and a session, then uses them, and loses
/// them.
fn batch() -> Vec<Change> {
    let mut draw = Draw::new(7);
    let id = file_object(7, 1, 3);
    let (file, folder) = (head(&mut draw, FileKind::File, 1), head(&mut draw, FileKind::Folder, 2));
    let begun = Begun::draw(&mut draw);
    let object = Some((200, NodeId::draw(&mut draw)));
    let range = LockRange { start: 0, end: 100, ..LockRange::draw(&mut draw) };
    let inline = |bytes: &[u8]| Piece { len: bytes.len() as u64, place: Place::Inline(bytes.into()) };
    let piece = Piece { len: 100, place: Place::Object(id, 50) };
    let (a, b): (Rc<[u8]>, Rc<[u8]>) = ((*b"a").into(), (*b"b").into());
    vec![
        Change::PutLast { inode: 2, session: 1 },
        Change::PutSession { session: 1, begun, answered: 1, discarded: 2 },
        Change::PutDeleted { session: 1, ranges: vec![(1, 1), (5, 9)] },
        Change::Credit { session: 1, uid: 7, bytes: 100 },
        Change::Credit { session: 1, uid: 8, bytes: 50 },
        Change::Credit { session: 1, uid: 7, bytes: 0 },
        Change::PutInode { inode: 1, head: folder, above: 1, made: Made::Folder, last_cookie: 4 },
        Change::PutEntry { folder: 1, name: Rc::clone(&a), inode: 2, cookie: 3 },
        Change::PutInode { inode: 2, head: file, above: 1, made: Made::File, last_cookie: 0 },
        Change::PutPiece { inode: 2, offset: 0, piece: piece.clone(), object },
        Change::PutPiece { inode: 2, offset: 100, piece: inline(b"here"), object: None },
        Change::Cover { inode: 2, offset: 50, piece: inline(b"over it"), object: None },
        Change::Make { head: file, above: 1, made: Made::File },
        Change::Above { inode: 2, above: 0 },
        Change::Name { folder: 1, name: b, inode: Some(3) },
        Change::Cover { inode: 3, offset: 10, piece, object },
        Change::Punch { inode: 2, start: 20, end: 103 },
        Change::Xattr { inode: 2, name: (*b"user.a").into(), value: Some((*b"value").into()) },
        Change::Lock { inode: 2, session: 1, range },
        Change::Open { inode: 2, session: 1, opens: Opens { count: 2, writes: true, maps: 2 } },
        Change::Close { inode: 2, session: 1, maps: true },
        Change::Note { session: 1, number: 4, outcome: FileOutcome::Done },
        Change::Answered { session: 1, number: 5 },
        Change::Name { folder: 1, name: a, inode: None },
        Change::Head { inode: 2, head: Head { links: 0, uid: file.uid ^ 1, ..file } },
        Change::Forget { inode: 2 },
        Change::Forget { inode: 3 },
        Change::Deleted(vec![id]),
        Change::PutCondemned(vec![id]),
        Change::End { session: 1 },
    ]
}

fn head(draw: &mut Draw, kind: FileKind, links: u32) -> Head {
    Head { kind, links, ..Head::draw(draw) }
}

fn all(changes: &[Change]) -> Bytes {
    changes.iter().flat_map(|change| encoded(change).freeze()).collect()
}

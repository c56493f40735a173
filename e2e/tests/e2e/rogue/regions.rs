//! Tests of a rogue among those who use regions: as a node that maps them, and as their home.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use plasmon::region::{Region, RegionOptions, Rights, region_id};
use plasmon::{Error, ErrorKind, NodeId, ObjectId, RegionState};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};

use super::frames::{self, Frame};
use super::region_frames::{Desk, Piece, body, desk_of, opcode, operation};
use super::{Rogue, cluster, dropped, heard, the_others_go_on};
use crate::support::kind;

/// Size in bytes of the regions.
pub(super) const LEN: u64 = 300_000;
/// A user who has no rights.
const STRANGER: u32 = 70_001;
/// Rights to read, to write, and to govern.
pub(super) const ALL: [u8; 3] = [1, 1, 1];
/// Time-out of calls that a rogue does not answer.
pub(super) const BRIEF: Duration = Duration::from_secs(2);

impl Rogue {
    /// Name of a region of which the rogue is no keeper.
    pub(super) fn foreign_name(&self) -> String {
        let own = self.id();
        let names = (0..).map(|nth| format!("region {nth} of {}", ObjectId::random()));
        names.into_iter().find(|name| !self.keepers(&region_id(name)).contains(&own)).expect("others")
    }

    /// Asks a node for something as a user; returns the answer.
    pub(super) fn ask_as(&mut self, user: u32, to: &str, opcode: u8, body: Vec<u8>) -> Frame {
        let drawn = ObjectId::random();
        let request = u64::from_le_bytes(drawn.as_bytes()[..8].try_into().expect("8 bytes"));
        self.send(to, &Frame { user, request, ..self.frame(to, opcode, body) });
        let node = crate::support::bytes(to);
        self.next("an answer", |frame| frame.request == request && frame.from[..] == node)
    }

    /// Answers a frame about a region.
    pub(super) fn reply_about(&mut self, asked: &Frame, opcode: u8, body: Vec<u8>) {
        let answer = Frame { flags: 1, ..self.answer(asked, opcode, body) };
        self.send(&super::hex(&asked.reply_to), &answer);
    }

    /// Refuses what was asked.
    pub(super) fn refuse(&mut self, asked: &Frame, kind: ErrorKind) {
        let why = b"as it likes";
        let body = [&(kind as u16).to_le_bytes()[..], &[why.len() as u8, 0, 0, 0], why, &[0; 2]].concat();
        self.reply(asked, frames::opcode::REFUSED, body);
    }

    /// Next frame with this number.
    pub(super) fn next_of(&mut self, opcode: u8) -> Frame {
        self.next(&format!("frame {opcode}"), |frame| frame.opcode == opcode)
    }

    /// Maps a region of user 0.
    fn map(&mut self, home: &str, name: &str) -> Desk {
        let mapped = self.ask_as(0, home, opcode::MAP, body::map(region_id(name), ALL));
        assert_eq!(mapped.opcode, opcode::MAPPED);
        desk_of(&mapped.body)
    }

    /// Tells a node where the rogue's own memory is: segment 0, version 1, of pattern 7.
    pub(super) fn tell_segment(&mut self, to: &str) {
        let body = frames::body::segment(&self.provider, 0, 1, self.region);
        self.send(to, &self.frame(to, frames::opcode::SEGMENT, body));
    }
}

/// Kind of the error with which something was refused. `None` if it was not.
pub(super) fn refusal(answer: &Frame) -> Option<ErrorKind> {
    let kinds = [
        ErrorKind::Exists,
        ErrorKind::NotFound,
        ErrorKind::TimedOut,
        ErrorKind::Full,
        ErrorKind::Lost,
        ErrorKind::TooLarge,
        ErrorKind::Invalid,
        ErrorKind::NotAllowed,
        ErrorKind::Busy,
        ErrorKind::Disconnected,
        ErrorKind::Internal,
        ErrorKind::Fenced,
        ErrorKind::Freed,
        ErrorKind::NotHere,
    ];
    let number = u16::from_le_bytes(answer.body.get(..2)?.try_into().expect("2 bytes"));
    let kind = kinds.into_iter().find(|kind| *kind as u16 == number);
    kind.filter(|_| answer.opcode == frames::opcode::REFUSED)
}

/// Region on node 0 that a client of node 1 has mapped as well.
pub(super) struct Honest {
    name: String,
    home: String,
    pub(super) near: Region,
    pub(super) far: Region,
}

impl Honest {
    pub(super) fn make(cluster: &Cluster, rogue: &mut Rogue) -> Self {
        let (name, options) = (rogue.foreign_name(), RegionOptions::default());
        let near = cluster.client(0).create_region(&name, LEN, &options).expect("there is room");
        let far = cluster.client(1).map_region(&name, Rights::ALL, None).expect("it is there");
        near.write(0, &Pattern(3).bytes(LEN as usize)).expect("write");
        let honest = Self { home: near.home().to_string(), name, near, far };
        honest.check();
        honest
    }

    /// Checks that both clients read what was written.
    pub(super) fn check(&self) {
        for region in [&self.near, &self.far] {
            let mut found = vec![0; LEN as usize];
            region.read(0, &mut found).expect("read");
            Pattern(3).check(&found);
            region.read(8, &mut found[..8]).expect("read");
            assert_eq!(found[..8], Pattern(3).bytes(16)[8..]);
            assert_eq!(region.state(), RegionState::Live);
        }
    }

    pub(super) fn free(self, rogue: &mut Rogue) {
        rogue.letting_go(|| self.near.free().expect("free"));
    }
}

/// Body of a *snapshot* of a region.
fn snapshot(desk: Desk) -> Vec<u8> {
    let object = [&ObjectId::random().as_bytes()[..], &[0], &[0; 8], &[1, 1, 0], &[0; 8], &[0; 2]].concat();
    body::about(desk, &[&object, &0u64.to_le_bytes()])
}

/// One frame of each kind that a home carries out, with its name.
fn questions(desk: Desk, id: ObjectId) -> Vec<(&'static str, u8, Vec<u8>)> {
    let access = |operation: Vec<u8>, data: &[u8]| body::access(desk, &operation, data);
    vec![
        ("read", opcode::ACCESS, access(operation::read(0, 8), b"")),
        ("write", opcode::ACCESS, access(operation::write(0), b"12345678")),
        ("add", opcode::ACCESS, access(operation::add(0, 1), b"")),
        ("swap", opcode::ACCESS, access(operation::swap(0, 1), b"")),
        ("fill", opcode::ACCESS, access(operation::fill(0, LEN, 1), b"")),
        ("wait", opcode::ACCESS, access(operation::wait(0, 0), b"")),
        ("notify", opcode::ACCESS, access(operation::notify(0), b"")),
        ("locate", opcode::LOCATE, body::desk(desk)),
        ("pull", opcode::PULL, body::pull(desk, 0, &[(0, 1, 0, 8)])),
        ("copy", opcode::COPY, body::copy(desk, [8, 8], id, desk.life)),
        ("govern", opcode::GOVERN, body::govern(desk, STRANGER, ALL)),
        ("describe", opcode::DESCRIBE, body::desk(desk)),
        ("snapshot", opcode::SNAPSHOT, snapshot(desk)),
        ("move", opcode::MOVE, body::relocate(desk, &[7; 16])),
        ("free", opcode::FREE, body::desk(desk)),
    ]
}

#[test]
fn a_home_refuses_wrong_desks_lives_users_and_places() {
    let (cluster, mut rogue) = cluster();
    let honest = Honest::make(&cluster, &mut rogue);
    let (home, id) = (honest.home.clone(), region_id(&honest.name));
    let desk = rogue.map(&home, &honest.name);
    rogue.tell_segment(&home);
    let others = [
        Desk { number: desk.number + 1, ..desk },
        Desk { number: u32::MAX, ..desk },
        Desk { life: desk.life ^ 1, ..desk },
        Desk { life: 0, ..desk },
    ];
    for other in others {
        for (what, opcode, body) in questions(other, id) {
            let answer = rogue.ask_as(0, &home, opcode, body);
            assert_eq!(refusal(&answer), Some(ErrorKind::Freed), "{what} at {other:?}");
        }
    }
    for (what, opcode, body) in questions(desk, id) {
        let answer = rogue.ask_as(STRANGER, &home, opcode, body);
        assert_eq!(refusal(&answer), Some(ErrorKind::NotAllowed), "{what} by a stranger");
    }
    let stranger = rogue.ask_as(STRANGER, &home, opcode::MAP, body::map(id, [1, 0, 0]));
    assert_eq!(refusal(&stranger), Some(ErrorKind::NotAllowed));
    let nobody = rogue.ask_as(0, &home, opcode::MAP, body::map(ObjectId::random(), [1, 0, 0]));
    assert_eq!(refusal(&nobody), Some(ErrorKind::NotFound));

    let access = |operation: Vec<u8>, data: &[u8]| (opcode::ACCESS, body::access(desk, &operation, data));
    let pull = |offset, pieces: &[Piece]| (opcode::PULL, body::pull(desk, offset, pieces));
    let copy = |range, source, life| (opcode::COPY, body::copy(desk, range, source, life));
    let invalid = vec![
        access(operation::read(LEN - 4, 8), b""),
        access(operation::read(u64::MAX, 8), b""),
        access(operation::read(0, 1 << 40), b""),
        access(operation::read(0, u64::MAX), b""),
        access(operation::write(LEN - 4), b"12345678"),
        access(operation::write(u64::MAX), b"12345678"),
        access(operation::add(4, 1), b""),
        access(operation::add(LEN / 8 * 8, 1), b""),
        access(operation::swap(u64::MAX - 7, 1), b""),
        access(operation::fill(1, LEN, 9), b""),
        access(operation::fill(u64::MAX, 2, 9), b""),
        access(operation::wait(1, 0), b""),
        access(operation::wait(LEN, 0), b""),
        access(operation::notify(3), b""),
        pull(LEN, &[(0, 1, 0, 1)]),
        pull(0, &[(0, 1, 0, LEN + 1)]),
        pull(u64::MAX, &[(0, 1, 0, 8)]),
        pull(0, &[(0, 1, u64::MAX, 8)]),
        pull(0, &[(0, 1, 0, u64::MAX), (0, 1, 0, 9)]),
        copy([LEN - 4, 8], id, desk.life),
        copy([0, u64::MAX], id, desk.life),
        (opcode::GOVERN, body::govern(desk, 0, [0; 3])),
    ];
    for (nth, (opcode, body)) in invalid.into_iter().enumerate() {
        let answer = rogue.ask_as(0, &home, opcode, body);
        assert_eq!(refusal(&answer), Some(ErrorKind::Invalid), "the {nth}th");
    }
    // Bytes that are not there, in segments that are, or in segments of which nothing was said.
    for piece in [(9, 1, 0, 9000), (0, 2, 0, 9000), (0, 1, 1 << 40, 9000), (u32::MAX, 1, 0, 9000)] {
        let (opcode, body) = pull(0, &[piece]);
        let answer = rogue.ask_as(0, &home, opcode, body);
        assert_eq!(refusal(&answer), Some(ErrorKind::Disconnected), "{piece:?}");
    }
    for (source, life) in [(rogue.foreign_id(), desk.life), (id, desk.life ^ 1)] {
        let (opcode, body) = copy([0, 8], source, life);
        let answer = rogue.ask_as(0, &home, opcode, body);
        assert_eq!(refusal(&answer), Some(ErrorKind::NotFound));
    }
    let moved = rogue.ask_as(0, &home, opcode::MOVE, body::relocate(desk, &[7; 16]));
    assert_eq!(refusal(&moved), Some(ErrorKind::NotFound));
    let adopted = rogue.ask_as(0, &home, opcode::ADOPT, body::adopt(id, desk.life));
    assert_eq!(refusal(&adopted), Some(ErrorKind::Lost));
    rogue.send(&home, &rogue.frame(&home, opcode::LEAVE, body::leave(desk, 1)));
    honest.check();
    honest.free(&mut rogue);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn who_is_not_the_home_ends_no_mapping_and_who_has_left_learns_nothing() {
    let (cluster, mut rogue) = cluster();
    let honest = Honest::make(&cluster, &mut rogue);
    let (home, mapper) = (honest.home.clone(), cluster.status(1).node);
    let desk = rogue.map(&home, &honest.name);
    let located = rogue.ask_as(0, &home, opcode::LOCATE, body::desk(desk));
    assert_eq!(located.opcode, opcode::LOCATED);
    // Only the home may end the other node's mapping.
    let client = cluster.client(1);
    let watched = client.map_region(&honest.name, Rights::READ, None).expect("it is there");
    let mut events = client.region_events().expect("there is room");
    for (opcode, body) in [
        (opcode::GONE, body::desk(desk)),
        (opcode::GOVERNED, body::governed(desk)),
        (opcode::DEPARTED, body::departed(desk, &[7; 16])),
    ] {
        rogue.send(&mapper, &rogue.frame(&mapper, opcode, body));
    }
    assert_eq!(rogue.ask_as(0, &mapper, opcode::HALT, body::desk(desk)).opcode, opcode::CHANGED);
    honest.check();
    assert_eq!(events.next_within(Some(Duration::ZERO), None), Ok(None), "nobody was told of it");
    drop(watched);
    // More is left than was given; it is the rogue's own.
    for count in [u32::MAX, 0, 1] {
        rogue.send(&home, &rogue.frame(&home, opcode::LEAVE, body::leave(desk, count)));
        let other = Desk { number: desk.number + 1, ..desk };
        rogue.send(&home, &rogue.frame(&home, opcode::LEAVE, body::leave(other, count)));
    }
    let located = rogue.ask_as(0, &home, opcode::LOCATE, body::desk(desk));
    assert_eq!(refusal(&located), Some(ErrorKind::NotHere), "its memory is not kept for the rogue");
    assert_eq!(honest.near.info().expect("it is there").nodes, 1, "nodes that map it");
    honest.check();
    honest.free(&mut rogue);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn answers_to_questions_of_others_end_nothing() {
    const ANSWERS: u64 = 2000;
    let (cluster, mut rogue) = cluster();
    let honest = Honest::make(&cluster, &mut rogue);
    let (home, asker) = (honest.home.clone(), cluster.status(1).node);
    let desk = rogue.map(&home, &honest.name);
    honest.near.write(0, &[0; 8]).expect("write");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| honest.far.wait(0, 0, PATIENCE));
        eventually("it waits", || cluster.status(1).slots.under_way == 1);
        // One of these has the number of the question.
        let false_answers: Vec<_> = (1..ANSWERS)
            .flat_map(|request| {
                let answer = |opcode, body| Frame { request, flags: 1, ..rogue.frame(&asker, opcode, body) };
                [
                    answer(opcode::ACCESSED, body::accessed(666, b"")).encode(),
                    answer(opcode::MAPPED, body::mapped(desk, LEN, 0)).encode(),
                    answer(opcode::LOCATED, body::pieces(&[(0, 1, 0, LEN)])).encode(),
                ]
            })
            .collect();
        rogue.send_bytes(&asker, &false_answers);
        heard(&mut rogue, &asker);
        // The home answers no question that names another node for the answer.
        let before = dropped(&cluster, 0);
        let to = *NodeId::as_bytes(&asker.parse().expect("a node id"));
        let reflected: Vec<_> = (1..=30)
            .flat_map(|request| {
                let ask = |opcode, body| {
                    Frame { request, reply_to: to, ..rogue.frame(&home, opcode, body) }.encode()
                };
                let read = body::access(desk, &operation::read(8, 8), b"");
                [ask(opcode::ACCESS, read), ask(opcode::MAP, body::map(region_id(&honest.name), ALL))]
            })
            .collect();
        rogue.send_bytes(&home, &reflected);
        eventually("they are counted", || dropped(&cluster, 0) >= before + 60);
        // A question that is marked as an answer is not answered either.
        let flagged = (1..=30).map(|request| {
            let read = body::access(desk, &operation::read(8, 8), b"");
            Frame { request, reply_to: to, flags: 1, ..rogue.frame(&home, opcode::ACCESS, read) }.encode()
        });
        let flagged: Vec<_> = flagged.collect();
        rogue.send_bytes(&home, &flagged);
        heard(&mut rogue, &home);
        assert_eq!(cluster.status(1).slots.under_way, 1, "the wait goes on");
        assert_eq!(honest.near.info().expect("it is there").nodes, 2, "nodes that map it");
        honest.near.write(0, &Pattern(3).bytes(8)).expect("write");
        honest.near.notify(0).expect("notify");
        let value = waiter.join().expect("no panic").expect("the word has changed");
        assert_eq!(value.to_le_bytes(), Pattern(3).bytes(8)[..]);
    });
    honest.check();
    rogue.send(&home, &rogue.frame(&home, opcode::LEAVE, body::leave(desk, 1)));
    honest.free(&mut rogue);
    the_others_go_on(&cluster, &mut rogue);
}

/// Makes a region on the rogue.
fn make_there(cluster: &Cluster, rogue: &mut Rogue, len: u64) -> (Region, Desk) {
    let (client, node) = (cluster.client(0), NodeId::from_bytes(rogue.node));
    let (name, options) = (rogue.foreign_name(), RegionOptions { node: Some(node), ..Default::default() });
    let making = thread::spawn(move || client.create_region(&name, LEN, &options));
    let asked = rogue.next_of(opcode::MAKE);
    let desk = Desk { number: 1, life: asked.request };
    rogue.reply_about(&asked, opcode::MADE, body::made(desk, len, 0));
    (making.join().expect("no panic").expect("the rogue makes it"), desk)
}

/// Has a region of the rogue read, which says that its bytes lie in these pieces.
fn read_in(
    cluster: &Cluster,
    rogue: &mut Rogue,
    pieces: &[Piece],
    timeout: Duration,
) -> Result<Vec<u8>, Error> {
    let to = cluster.status(0).node;
    rogue.tell_segment(&to);
    let (region, _) = make_there(cluster, rogue, LEN);
    let reading = read(&region.with_timeout(timeout), LEN);
    while !reading.is_finished() {
        rogue.listen(Duration::from_millis(20));
        while let Some(at) = rogue.frames.iter().position(|frame| frame.opcode == opcode::LOCATE) {
            let asked = rogue.frames.remove(at).expect("it is there");
            // A connection that broke has the segment forgotten.
            rogue.tell_segment(&to);
            rogue.reply_about(&asked, opcode::LOCATED, body::pieces(pieces));
        }
    }
    reading.join().expect("no panic")
}

/// Begins a call of a client of node 0 on a region of the rogue.
pub(super) fn begin<T: Send + 'static>(
    region: &Region,
    call: impl FnOnce(&Region) -> Result<T, Error> + Send + 'static,
) -> JoinHandle<Result<T, Error>> {
    let region = region.clone();
    thread::spawn(move || call(&region))
}

fn read(region: &Region, len: u64) -> JoinHandle<Result<Vec<u8>, Error>> {
    begin(region, move |region| {
        let mut bytes = vec![0; len as usize];
        region.read(0, &mut bytes).map(|()| bytes)
    })
}

#[test]
fn a_home_that_lies_about_its_region_harms_no_other() {
    let (cluster, mut rogue) = cluster();
    let honest = Honest::make(&cluster, &mut rogue);
    let to = cluster.status(0).node;
    rogue.tell_segment(&to);
    let (region, desk) = make_there(&cluster, &mut rogue, LEN);
    // Wrong numbers of bytes, wrong kinds of answers.
    for len in [0, 7, 9, 9000] {
        let reading = read(&region, 8);
        let asked = rogue.next_of(opcode::ACCESS);
        rogue.reply_about(&asked, opcode::ACCESSED, body::accessed(0, &vec![1; len]));
        assert_eq!(kind(reading.join().expect("no panic")), ErrorKind::Internal, "{len} bytes");
    }
    for (opcode, body) in [
        (opcode::CHANGED, Vec::new()),
        (opcode::LOCATED, body::pieces(&[])),
        (opcode::MAPPED, body::mapped(desk, LEN, 0)),
        (opcode::LISTED, [[0; 4].to_vec(), vec![0]].concat()),
    ] {
        let adding = begin(&region, |region| region.fetch_add(0, 1));
        let asked = rogue.next_of(opcode::ACCESS);
        rogue.reply_about(&asked, opcode, body);
        assert_eq!(kind(adding.join().expect("no panic")), ErrorKind::Internal);
    }
    // Twice, and too late.
    let adding = begin(&region, |region| region.fetch_add(0, 1));
    let asked = rogue.next_of(opcode::ACCESS);
    rogue.reply_about(&asked, opcode::ACCESSED, body::accessed(5, b""));
    rogue.reply_about(&asked, opcode::ACCESSED, body::accessed(6, b""));
    assert_eq!(adding.join().expect("no panic"), Ok(5));
    let adding = begin(&region, |region| region.clone().with_timeout(BRIEF).fetch_add(0, 1));
    let late = rogue.next_of(opcode::ACCESS);
    assert_eq!(kind(adding.join().expect("no panic")), ErrorKind::OutcomeUnknown);
    rogue.reply_about(&late, opcode::ACCESSED, body::accessed(7, b""));
    let adding = begin(&region, |region| region.fetch_add(0, 1));
    let asked = rogue.next_of(opcode::ACCESS);
    rogue.reply_about(&late, opcode::ACCESSED, body::accessed(8, b""));
    rogue.reply_about(&asked, opcode::ACCESSED, body::accessed(9, b""));
    assert_eq!(adding.join().expect("no panic"), Ok(9));
    // The rogue says that it does not have the region any more, and says so again and again.
    for what in [ErrorKind::NotHere, ErrorKind::Lost] {
        let adding = begin(&region, |region| region.fetch_add(0, 1));
        let asked = rogue.next_of(opcode::ACCESS);
        rogue.refuse(&asked, what);
        let told = kind(adding.join().expect("no panic"));
        assert!([ErrorKind::Freed, ErrorKind::Lost].contains(&told), "{told:?}");
    }
    for _ in 0..2 {
        rogue.send(&to, &rogue.frame(&to, opcode::GONE, body::desk(desk)));
    }
    heard(&mut rogue, &to);
    assert_eq!(kind(region.fetch_add(0, 1)), ErrorKind::Freed);
    honest.check();
    drop(region);
    honest.free(&mut rogue);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn pieces_that_are_none_are_not_read() {
    let (cluster, mut rogue) = cluster();
    let lies: [(&str, Vec<Piece>); 9] = [
        ("no pieces", vec![]),
        ("too short a piece", vec![(0, 1, 0, LEN - 1)]),
        ("an offset that overflows", vec![(0, 1, u64::MAX, LEN)]),
        ("lengths that overflow", vec![(0, 1, 0, 8), (0, 1, u64::MAX - 8, u64::MAX)]),
        ("a segment of which nothing was said", vec![(9, 1, 0, LEN)]),
        ("a version that was replaced", vec![(0, 9, 0, LEN)]),
        ("a segment beyond any", vec![(u32::MAX, 1, 0, LEN)]),
        ("a place behind the segment's end", vec![(0, 1, 8 << 20, LEN)]),
        ("a piece that is there, and one that is not", vec![(0, 1, 0, LEN - 8), (0, 1, 8 << 20, 8)]),
    ];
    for (what, pieces) in lies {
        let told = kind(read_in(&cluster, &mut rogue, &pieces, BRIEF));
        let fits = [ErrorKind::Invalid, ErrorKind::Disconnected, ErrorKind::TimedOut, ErrorKind::Lost];
        assert!(fits.contains(&told), "{what}: {told:?}");
    }
    // Existing bytes are read, and no more than the region has.
    let found = read_in(&cluster, &mut rogue, &[(0, 1, 0, 2 * LEN)], PATIENCE).expect("it is there");
    Pattern(7).check(&found);
    // A write is as good as its home.
    let (region, _) = make_there(&cluster, &mut rogue, LEN);
    let writing = begin(&region, |region| region.write(0, &[1; 100_000]));
    let asked = rogue.next_of(opcode::PULL);
    rogue.reply_about(&asked, opcode::CHANGED, Vec::new());
    assert_eq!(writing.join().expect("no panic"), Ok(()));
    drop(region);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn a_list_of_regions_ends() {
    let (cluster, mut rogue) = cluster();
    let client = cluster.client(0);
    for next in [0, u64::from(u32::MAX) + 1, u64::MAX] {
        let listing = thread::spawn({
            let client = client.clone();
            move || client.list_regions()
        });
        let asked = rogue.next_of(opcode::LIST);
        let page = [&[0; 4][..], &[1], &next.to_le_bytes()].concat();
        rogue.reply_about(&asked, opcode::LISTED, page);
        let list = listing.join().expect("no panic").expect("the others answer");
        assert_eq!(list.regions, []);
        let missing: Vec<_> = list.missing.iter().map(|(node, _)| *node).collect();
        assert_eq!(missing, [NodeId::from_bytes(rogue.node)]);
    }
    the_others_go_on(&cluster, &mut rogue);
}

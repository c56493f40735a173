//! Tests of credit: credit and bytes of files are never more than the terms permit, and a commit that credit
//! covers has room.

use std::collections::BTreeMap;

use plasmon::wire::Draw;
use plasmon::wire::files::{MAX_RESERVED_BYTES, Written};

use super::mirrors::{Echo, compare};
use super::*;

/// Number of random runs.
const SEEDS: u64 = 60;
/// Number of operations in each random run.
const STEPS: usize = 400;
const CAPACITY: u64 = 1000;
const QUOTA: u64 = 600;

fn limited() -> Bench {
    Bench::with(VolumeTerms { capacity: CAPACITY, user_quota: QUOTA, ..Default::default() })
}

fn give_to(inode: u64, uid: u32) -> FileOperation {
    FileOperation::SetAttributes { inode, set: SetAttributes { uid: Some(uid), ..Default::default() } }
}

impl Bench {
    /// Makes a section of a new object of a session.
    fn section_of(&mut self, session: u32, offset: u64, len: u64) -> Section {
        let (section, _) = self.section(offset, len);
        let Source::Object { id, at, object_len, node } = section.source else { panic!("it is an object") };
        let (_, _, counter) = plasmon::wire::files::parts_of(&id).expect("it is of a file");
        let source = Source::Object { id: file_object(VOLUME, session, counter), at, object_len, node };
        Section { source, ..section }
    }

    fn reserve(&mut self, session: u32, inode: u64, bytes: u64, patient: bool) -> Result<u64, Errno> {
        match self.act(session, &Actor::default(), FileOperation::Reserve { inode, bytes, patient })? {
            FileOutcome::Reserved { bytes, .. } => Ok(bytes),
            other => panic!("{other:?} is no credit"),
        }
    }

    fn commit_of(&mut self, session: u32, inode: u64, len: u64, credit: u64) -> Result<(), Errno> {
        self.commit_at(session, inode, 0, len, credit)
    }

    fn owner(&self, inode: u64) -> u32 {
        self.state.inode(inode).expect("it is there").head.uid
    }

    fn commit_at(
        &mut self,
        session: u32,
        inode: u64,
        offset: u64,
        len: u64,
        credit: u64,
    ) -> Result<(), Errno> {
        let of = self.owner(inode);
        self.commit_by(session, inode, (offset, len), (of, credit))
    }

    /// Commits a range with credit for the files of a user.
    fn commit_by(
        &mut self,
        session: u32,
        inode: u64,
        (offset, len): (u64, u64),
        (credit_of, credit): (u32, u64),
    ) -> Result<(), Errno> {
        let sections = vec![self.section_of(session, offset, len)];
        let commit = FileOperation::Commit {
            inode,
            sections,
            modified: None,
            drops_privileges: false,
            credit,
            credit_of,
        };
        self.act(session, &Actor::default(), commit).map(drop)
    }
}

#[test]
fn credit_is_room_that_nobody_else_gets() {
    let mut bench = limited();
    let (a, b) = (bench.make_file(TOP, "a"), bench.make_file(TOP, "b"));
    bench.run(give_to(b, 7)).unwrap();
    let other = bench.attach(true);
    // The session gets what it needs, and an eighth of what is left of the quota.
    assert_eq!(bench.reserve(1, a, 440, false), Ok(460));
    assert_eq!(bench.reserve(other, a, 141, false), Err(Errno::OverQuota));
    assert_eq!(bench.reserve(other, a, 141, true), Err(Errno::Again), "the first may give some back");
    assert_eq!(bench.reserve(other, a, 601, true), Err(Errno::Full), "that is no help");
    assert_eq!(bench.reserve(other, b, 541, false), Err(Errno::Full));
    assert_eq!(bench.reserve(1, a, 141, true), Err(Errno::OverQuota), "it is the session's own");
    assert_eq!(bench.commit_of(other, b, 541, 0), Err(Errno::Full));
    assert_eq!(bench.commit_of(other, b, 541, 541), Err(Errno::Full), "it has no credit");
    bench.commit_of(other, b, 540, 0).unwrap();
    let Ok(FileOutcome::Usage(usage)) = bench.run(FileOperation::Usage) else { panic!() };
    assert_eq!((usage.used, usage.free, usage.available), (540, 460, 460), "credit is no use");
    bench.commit_of(1, a, 300, 300).unwrap();
    assert_eq!((bench.state.used, bench.state.credit), (840, 160));
    // A section over other bytes uses up credit, and takes no further room.
    bench.commit_of(1, a, 100, 100).unwrap();
    assert_eq!((bench.state.used, bench.state.credit), (840, 60));
    bench.run(FileOperation::GiveBack { uid: 0, bytes: 9 }).unwrap();
    assert_eq!(bench.state.sessions[&1].credit, BTreeMap::from([(0, 51)]));
    bench.end(1);
    assert_eq!((bench.state.credit, bench.state.credit_of.len()), (0, 0));
    bench.act(other, &Actor::default(), resize(b, 0)).unwrap();
    assert_eq!(bench.reserve(other, b, 600, false), Ok(600), "room is there at once");
}

#[test]
fn a_need_has_a_size_that_is_possible() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    assert_eq!(bench.reserve(1, file, MAX_RESERVED_BYTES + 1, false), Err(Errno::TooLarge));
    assert_eq!(
        bench.reserve(1, file, MAX_RESERVED_BYTES, false),
        Ok(2 * MAX_RESERVED_BYTES),
        "there is much room"
    );
    assert_eq!(bench.reserve(1, TOP, 1, false), Err(Errno::IsFolder));
    assert_eq!(bench.reserve(1, 99, 1, false), Err(Errno::Stale));
    let begun = Begun {
        node: NodeId::from_bytes([1; NodeId::LEN]),
        secret: 1,
        uid: 7,
        gid: 7,
        groups: Vec::new(),
        trusted: false,
        checked: true,
        read_only: false,
    };
    let stranger = bench.begin(begun.clone());
    assert_eq!(bench.reserve(stranger, file, 1, false), Err(Errno::NoAccess), "it may not write the file");
    let reader = bench.begin(Begun { uid: 0, read_only: true, ..begun });
    assert_eq!(bench.reserve(reader, file, 1, false), Err(Errno::ReadOnly));
    bench.limits.memory = bench.state.memory;
    let second = bench.attach(true);
    assert_eq!(bench.reserve(second, file, 1, false), Err(Errno::Full), "credit takes memory");
    assert!(bench.reserve(1, file, 1, false).is_ok(), "this session has some of this user's");
}

#[test]
fn bytes_that_were_covered_come_when_the_capacity_was_lowered() {
    let mut bench = limited();
    let file = bench.make_file(TOP, "a");
    assert_eq!(bench.reserve(1, file, 500, false), Ok(512));
    bench.commit(vec![Change::Terms(VolumeTerms { capacity: 10, ..Default::default() })]);
    bench.commit_of(1, file, 400, 400).unwrap();
    assert_eq!(bench.commit_at(1, file, 400, 113, 100), Err(Errno::Full));
}

#[test]
fn what_was_covered_comes_to_a_file_that_got_another_owner() {
    let mut bench = limited();
    let (file, full) = (bench.make_file(TOP, "a"), bench.make_file(TOP, "b"));
    bench.run(give_to(full, 7)).unwrap();
    assert_eq!(bench.reserve(1, file, 400, false), Ok(425));
    let other = bench.attach(true);
    bench.commit_of(other, full, 575, 0).unwrap();
    bench.act(other, &Actor::default(), give_to(file, 7)).unwrap();
    assert_eq!(bench.commit_by(1, file, (0, 400), (7, 400)), Err(Errno::Full), "it has no such credit");
    assert_eq!(bench.commit_by(other, file, (0, 400), (0, 400)), Err(Errno::Full), "nor has the other");
    bench.commit_by(1, file, (0, 400), (0, 400)).unwrap();
    assert_eq!((bench.state.used, bench.state.credit), (975, 25));
    assert_eq!(bench.state.sessions[&1].credit, BTreeMap::from([(0, 25)]));
    assert_eq!(bench.reserve(other, full, 1, false), Err(Errno::Full));
}

#[test]
fn users_do_not_exceed_their_quotas_with_credit_for_files_of_others() {
    let mut bench = limited();
    let (others, own) = (bench.make_file(TOP, "a"), bench.make_file(TOP, "b"));
    let open = SetAttributes { mode: Some(0o666), ..Default::default() };
    bench.run(FileOperation::SetAttributes { inode: others, set: open }).unwrap();
    bench.run(give_to(own, 7)).unwrap();
    let begun = Begun {
        node: NodeId::from_bytes([1; NodeId::LEN]),
        secret: 1,
        uid: 7,
        gid: 7,
        groups: Vec::new(),
        trusted: false,
        checked: true,
        read_only: false,
    };
    let user = bench.begin(begun);
    bench.commit_of(user, own, 600, 0).unwrap();
    assert_eq!(bench.reserve(user, others, 300, false), Ok(312));
    assert_eq!(bench.commit_by(user, own, (600, 100), (0, 100)), Err(Errno::OverQuota));
    bench.commit_by(user, own, (0, 100), (0, 100)).unwrap();
    assert_eq!((bench.state.used, bench.state.credit), (600, 212), "nothing more is used of the quota");
}

/// Credit that sessions hold, as they count it, by session and user.
type Held = BTreeMap<(u32, u32), u64>;

fn check(bench: &Bench, held: &Held, seed: u64) {
    let state = &bench.state;
    assert!(state.used + state.credit <= CAPACITY, "seed {seed}: {} and {}", state.used, state.credit);
    for (uid, credit) in &state.credit_of {
        let used = state.used_by.get(uid).copied().unwrap_or_default();
        assert!(used + credit <= QUOTA, "seed {seed}: {used} and {credit} of {uid}");
    }
    let rows = state.sessions.iter();
    let rows = rows.flat_map(|(session, one)| one.credit.iter().map(|(uid, b)| ((*session, *uid), *b)));
    assert_eq!(&rows.collect::<Held>(), held, "seed {seed}");
    assert_eq!(state.credit, held.values().sum::<u64>(), "seed {seed}");
}

/// Does a random act with credit or room. What sessions hold follows from the answers.
fn act(bench: &mut Bench, draw: &mut Draw, held: &mut Held, files: &[u64]) {
    let sessions: Vec<_> = bench.state.sessions.keys().copied().collect();
    let (session, file) = (draw.one(&sessions), draw.one(files));
    let uid = bench.owner(file);
    let own = held.get(&(session, uid)).copied().unwrap_or_default();
    let (offset, len) = (draw.below(300) as u64, 1 + draw.below(120) as u64);
    match draw.below(14) {
        0 if sessions.len() < 4 => _ = bench.attach(false),
        1 if session != 1 => {
            bench.end(session);
            held.retain(|(one, _), _| *one != session);
        }
        2 => _ = bench.run(resize(file, offset)),
        3 => _ = bench.run(give_to(file, draw.one(&[0, 7, 8]))),
        4 => {
            let operation =
                FileOperation::Clone { source: files[0], source_offset: 0, inode: files[1], offset, len };
            _ = bench.act(session, &Actor::default(), operation);
        }
        5 => {
            let bytes = draw.below(200) as u64;
            bench.act(session, &Actor::default(), FileOperation::GiveBack { uid, bytes }).unwrap();
            held.entry((session, uid)).and_modify(|own| *own = own.saturating_sub(bytes));
        }
        6 | 7 => {
            let covered = own >= len;
            let written = Written::Bytes(vec![1; len as usize].into());
            let append = FileOperation::Append {
                inode: file,
                written,
                drops_privileges: false,
                credit: len,
                credit_of: uid,
            };
            match bench.act(session, &Actor::default(), append) {
                Ok(FileOutcome::NoRoomInline) => {}
                Ok(_) => _ = held.entry((session, uid)).and_modify(|own| *own = own.saturating_sub(len)),
                Err(errno) => assert!(!covered, "{errno:?}, although {own} cover {len}"),
            }
        }
        8..=10 => {
            let credit = if draw.below(3) == 0 { 0 } else { len };
            let covered = credit == len && own >= len;
            match bench.commit_at(session, file, offset, len, credit) {
                Ok(()) => _ = held.entry((session, uid)).and_modify(|own| *own = own.saturating_sub(credit)),
                Err(errno) => assert!(!covered, "{errno:?}, although {own} cover {len}"),
            }
        }
        _ => {
            if let Ok(given) = bench.reserve(session, file, len, draw.below(2) == 0) {
                assert!(given >= len);
                *held.entry((session, uid)).or_default() += given;
            }
        }
    }
    held.retain(|_, own| *own > 0);
}

#[test]
fn what_is_given_and_used_is_never_more_than_there_is() {
    let (mut full, mut lapsed) = (0, 0);
    for seed in 0..SEEDS {
        let (mut bench, mut draw, mut held) = (limited(), Draw::new(seed), Held::new());
        let files: Vec<_> = ["a", "b", "c"].iter().map(|name| bench.make_file(TOP, name)).collect();
        bench.run(give_to(files[1], 7)).unwrap();
        for step in 0..STEPS {
            act(&mut bench, &mut draw, &mut held, &files);
            if draw.below(40) == 0
                && let Some(((session, uid), own)) = held.iter_mut().next()
            {
                *own /= 2;
                bench.commit(vec![Change::Credit { session: *session, uid: *uid, bytes: *own }]);
                lapsed += 1;
                held.retain(|_, own| *own > 0);
            }
            check(&bench, &held, seed);
            full += u32::from(bench.state.used + bench.state.credit > CAPACITY - 20);
            if draw.below(60) == 0 && bench.mirrors.len() < 2 {
                bench.mirrors.push(Echo::join(&bench.state));
            }
            for mirror in &mut bench.mirrors {
                mirror.follow(&bench.state, step % 7 == 0);
            }
        }
        bench.mirrors.iter_mut().for_each(|mirror| mirror.follow(&bench.state, true));
        bench.mirrors.iter().for_each(|mirror| compare(&bench.state, &mirror.state));
    }
    assert!(full > 100 && lapsed > 100, "{full} steps were near the end, {lapsed} times some lapsed");
}

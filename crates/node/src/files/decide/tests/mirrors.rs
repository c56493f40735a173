//! Tests of mirrors: after random operations a mirror knows of a volume what the home knows, whenever it
//! joined.

use std::collections::BTreeMap;

use plasmon::wire::Draw;
use plasmon::wire::files::{LockKind, LockRange};

use super::model::check_above;
use super::*;
use crate::files::state::FileSession;
use crate::files::walk::{Parts, Walk};

/// Number of random runs.
const SEEDS: u64 = 60;
/// Number of operations in each random run.
const STEPS: usize = 250;
/// Number of bytes of a share of a walk, which has an inode or two.
const SHARE: usize = 150;

/// Mirror that is told changes in the encoding of the wire.
pub(in crate::files::decide) struct Echo {
    pub(super) state: State,
    walk: Option<Walk>,
    gathered: Parts,
}

impl Echo {
    /// Makes a mirror that joins.
    pub(super) fn join(home: &State) -> Self {
        let state = State::unknown(home.number, home.created);
        Self { state, walk: Some(Walk::new(home)), gathered: Parts::default() }
    }

    /// Notes a change that the home is about to apply.
    pub(super) fn note(&mut self, home: &State, change: &Change) {
        match &mut self.walk {
            _ if !change.is_sent(home) => {}
            Some(walk) => walk.note(home, change),
            None => self.gathered.push(change),
        }
    }

    /// Applies what was sent so far. Sends a mirror that joins another share, or the rest if `all`.
    pub(super) fn follow(&mut self, home: &State, all: bool) {
        while let Some(walk) = &mut self.walk {
            walk.go_on(home, SHARE);
            let parts = walk.take();
            let is_done = walk.is_done();
            parts.into_iter().for_each(|part| self.apply(part));
            if is_done {
                self.walk = None;
            }
            if !all {
                return;
            }
        }
        self.gathered.take().into_iter().for_each(|part| self.apply(part));
    }

    fn apply(&mut self, part: Bytes) {
        let changes = Change::read_all(part).expect("the home sent it");
        changes.into_iter().for_each(|change| self.state.apply(change));
    }

    pub(super) fn has_joined(&self) -> bool {
        self.walk.is_none()
    }
}

/// Returns all changes that tell a mirror a state.
fn contents(state: &State) -> Vec<Change> {
    let mut walk = Walk::new(state);
    while !walk.is_done() {
        walk.go_on(state, usize::MAX);
    }
    let parts = walk.take().into_iter();
    let mut all: Vec<_> = parts.flat_map(|part| Change::read_all(part).expect("it is ours")).collect();
    // The order of the locks of an inode has no meaning.
    all.sort_by_key(|change| match change {
        Change::Lock { .. } => format!("{change:?}"),
        _ => String::new(),
    });
    all
}

/// Compares a mirror with the home.
pub(super) fn compare(home: &State, mirror: &State) {
    assert_eq!(contents(home), contents(mirror));
    // A mirror is not told what trusted sessions have open.
    let trusted = home.sessions.values().filter(|session| session.trusted);
    let opens: u64 = trusted.map(|session| session.opens.len() as u64).sum();
    let memory = home.memory - opens * crate::files::state::OPEN_BYTES;
    let opened = |state: &State| {
        let opened = |(number, session): (&u32, &FileSession)| {
            (!session.trusted).then(|| (*number, session.opens.clone()))
        };
        state.sessions.iter().filter_map(opened).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(opened(home), opened(mirror));
    assert_eq!((memory, home.used, home.inline), (mirror.memory, mirror.used, mirror.inline));
    assert_eq!(home.used_by, mirror.used_by);
    assert_eq!((home.credit, &home.credit_of), (mirror.credit, &mirror.credit_of));
    assert_eq!(home.objects, mirror.objects);
    assert_eq!((&home.unlinked, &home.condemned), (&mirror.unlinked, &mirror.condemned));
}

/// Does a random act with sessions, opens, locks or deletions.
fn act_on_sessions(bench: &mut Bench, draw: &mut Draw) {
    let sessions: Vec<_> = bench.state.sessions.keys().copied().collect();
    let files: Vec<_> = bench.state.inodes.keys().copied().filter(|inode| *inode != TOP).collect();
    let session = sessions[draw.below(sessions.len())];
    let file = files.get(draw.below(files.len().max(1))).copied().unwrap_or(TOP);
    let name = draw.one(&["a", "b", "c", "d", "e", "f"]);
    let folders: Vec<_> = bench.state.inodes.iter().filter(|(_, one)| one.folder().is_some()).collect();
    let folders: Vec<_> = folders.into_iter().map(|(inode, _)| *inode).collect();
    let [folder, to_folder] = [(); 2].map(|()| folders[draw.below(folders.len())]);
    let start = draw.below(20) as u64;
    let range = LockRange {
        owner: draw.below(2) as u64,
        pid: 1,
        start,
        end: start + draw.below(9) as u64,
        kind: draw.one(LockKind::ALL),
        flock: draw.below(4) == 0,
    };
    let operation = match draw.below(16) {
        0 if sessions.len() < 4 => {
            bench.attach_as(draw.below(2) == 0);
            return;
        }
        1 if session != 1 => return bench.end(session),
        2 => {
            let outcome = FileOutcome::Done;
            let number = draw.below(30) as u64;
            let changes = vec![
                Change::Answered { session, number: number.saturating_sub(9) },
                Change::Note { session, number, outcome },
            ];
            return bench.commit(changes);
        }
        3 => {
            let ids: Vec<_> = bench.state.condemned.iter().take(2).copied().collect();
            return bench.commit(vec![Change::Deleted(ids)]);
        }
        4 => FileOperation::Open {
            inode: file,
            read: true,
            write: true,
            truncate: draw.below(4) == 0,
            maps: false,
        },
        5 => FileOperation::Closed { opens: vec![(file, false)] },
        6 | 7 => FileOperation::Lock { inode: file, range, wait: false },
        8 => {
            let (name, value) = (named("user.x"), vec![7; draw.below(50)].into());
            FileOperation::SetXattr { inode: file, name, value, create: false, replace: false }
        }
        9 => FileOperation::RemoveXattr { inode: file, name: named("user.x") },
        10 => unlink(folder, name),
        11 => FileOperation::Link { inode: file, folder: to_folder, name: named(name) },
        12 => FileOperation::MakeFolder { folder: TOP, name: named(name), mode: 0o755 },
        13 => FileOperation::Rename {
            folder,
            name: named(name),
            to_folder,
            to_name: named(draw.one(&["a", "b", "c", "d", "e", "f"])),
            no_replace: false,
            exchange: draw.below(3) == 0,
            whiteout: false,
        },
        _ => create(folder, name, false),
    };
    // A mirror need not know whether the operation was allowed.
    _ = bench.act(session, &Actor::default(), operation);
}

#[test]
fn a_mirror_knows_of_sessions_and_locks_what_the_home_knows() {
    for seed in 0..SEEDS {
        let (mut bench, mut draw) = (Bench::new(), Draw::new(seed));
        for step in 0..STEPS {
            act_on_sessions(&mut bench, &mut draw);
            check_above(&bench.state);
            if draw.below(3) == 0 {
                let files: Vec<_> =
                    bench.state.inodes.iter().filter(|(_, one)| one.map().is_some()).collect();
                if let Some((inode, _)) = files.get(draw.below(files.len().max(1))) {
                    let inode = **inode;
                    let (section, _) = bench.section(draw.below(40) as u64, 5);
                    let sections = vec![section];
                    let drops_privileges = false;
                    let commit = FileOperation::Commit {
                        inode,
                        sections,
                        modified: None,
                        drops_privileges,
                        credit: 0,
                        credit_of: 0,
                    };
                    bench.run(commit).expect("the file is there");
                }
            }
            if draw.below(25) == 0 && bench.mirrors.len() < 3 {
                bench.mirrors.push(Echo::join(&bench.state));
            }
            for mirror in &mut bench.mirrors {
                mirror.follow(&bench.state, false);
                if mirror.has_joined() && step % 5 == 0 {
                    mirror.follow(&bench.state, true);
                    compare(&bench.state, &mirror.state);
                }
            }
        }
        bench.mirrors.iter_mut().for_each(|mirror| mirror.follow(&bench.state, true));
        bench.mirrors.iter().for_each(|mirror| compare(&bench.state, &mirror.state));
        assert!(!bench.mirrors.is_empty(), "seed {seed}");
    }
}

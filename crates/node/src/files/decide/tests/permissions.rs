//! Tests of permissions: of sessions that the home checks, and of modes that change by themselves.

use plasmon::wire::files::{Errno, FileAsked, FileOperation, SetAttributes};

use super::*;
use crate::files::known::Known;

const ALICE: u32 = 1000;
const BOB: u32 = 1001;

fn user(uid: u32) -> Actor {
    Actor { uid, gid: uid, groups: vec![50] }
}

fn set_mode(inode: u64, mode: u32) -> FileOperation {
    FileOperation::SetAttributes { inode, set: SetAttributes { mode: Some(mode), ..Default::default() } }
}

/// Makes a folder of this mode for a user.
fn folder_of(bench: &mut Bench, name: &str, uid: u32, mode: u32) -> u64 {
    let inode = bench.make_folder(TOP, name);
    let set = SetAttributes { mode: Some(mode), uid: Some(uid), gid: Some(50), ..Default::default() };
    bench.run(FileOperation::SetAttributes { inode, set }).unwrap();
    inode
}

#[test]
fn others_may_do_what_the_mode_says() {
    let mut bench = Bench::new();
    let folder = folder_of(&mut bench, "alice", ALICE, 0o700);
    let file = attributes_of(bench.act(1, &user(ALICE), create(folder, "a", true)).unwrap());
    assert_eq!((file.uid, file.gid), (ALICE, ALICE));
    assert_eq!(bench.act(1, &user(BOB), lookup(folder, "a")).map(drop), Err(Errno::NoAccess));
    assert_eq!(bench.act(1, &user(BOB), create(folder, "b", true)).map(drop), Err(Errno::NoAccess));
    let list = FileOperation::List { folder, after: 0, upto: None, most: 9 };
    assert_eq!(bench.act(1, &user(BOB), list).map(drop), Err(Errno::NoAccess));
    bench.act(1, &user(ALICE), set_mode(folder, 0o755)).unwrap();
    bench.act(1, &user(BOB), lookup(folder, "a")).unwrap();
    let open =
        |write| FileOperation::Open { inode: file.inode, read: true, write, truncate: false, maps: false };
    bench.act(1, &user(BOB), open(false)).unwrap();
    assert_eq!(bench.act(1, &user(BOB), open(true)).map(drop), Err(Errno::NoAccess));
    assert_eq!(bench.act(1, &user(BOB), set_mode(file.inode, 0o777)).map(drop), Err(Errno::NotPermitted));
    assert_eq!(bench.act(1, &user(BOB), unlink(folder, "a")).map(drop), Err(Errno::NoAccess));
    // The home checks nothing for a session whose kernel checks permissions.
    let free = bench.attach(false);
    bench.act(free, &user(BOB), unlink(folder, "a")).unwrap();
}

#[test]
fn a_sticky_folder_keeps_what_is_others() {
    let mut bench = Bench::new();
    let folder = folder_of(&mut bench, "tmp", 0, 0o1777);
    bench.act(1, &user(ALICE), create(folder, "a", true)).unwrap();
    bench.act(1, &user(BOB), create(folder, "b", true)).unwrap();
    assert_eq!(bench.act(1, &user(BOB), unlink(folder, "a")).map(drop), Err(Errno::NotPermitted));
    let over = bench.act(1, &user(BOB), rename(folder, "b", folder, "a"));
    assert_eq!(over.map(drop), Err(Errno::NotPermitted));
    let away = bench.act(1, &user(BOB), rename(folder, "a", folder, "c"));
    assert_eq!(away.map(drop), Err(Errno::NotPermitted));
    bench.act(1, &user(ALICE), unlink(folder, "a")).unwrap();
}

#[test]
fn a_folder_may_give_its_group_to_what_is_in_it() {
    let mut bench = Bench::new();
    let folder = folder_of(&mut bench, "shared", 0, 0o2777);
    let file = attributes_of(bench.act(1, &user(ALICE), create(folder, "a", true)).unwrap());
    assert_eq!((file.gid, file.mode), (50, 0o644));
    let inner = FileOperation::MakeFolder { folder, name: named("inner"), mode: 0o755 };
    let inner = attributes_of(bench.act(1, &user(ALICE), inner).unwrap());
    assert_eq!((inner.gid, inner.mode), (50, 0o2755));
    let stranger = Actor { uid: BOB, gid: BOB, groups: Vec::new() };
    let made = FileOperation::MakeNode { folder, name: named("b"), mode: 0o2755, device: 0 };
    let made = attributes_of(bench.act(1, &stranger, made).unwrap());
    assert_eq!(made.mode, 0o755, "the group is not the user's");
}

#[test]
fn who_makes_a_file_set_its_group_is_of_the_group() {
    let mut bench = Bench::new();
    let folder = folder_of(&mut bench, "shared", 0, 0o2777);
    let file = attributes_of(bench.act(1, &user(ALICE), create(folder, "a", true)).unwrap()).inode;
    let mode_set_by = |bench: &mut Bench, session, groups: &[u32]| {
        let alice = Actor { groups: groups.to_vec(), ..user(ALICE) };
        attributes_of(bench.act(session, &alice, set_mode(file, 0o2755)).unwrap()).mode
    };
    assert_eq!(mode_set_by(&mut bench, 1, &[50]), 0o2755);
    assert_eq!(mode_set_by(&mut bench, 1, &[]), 0o755, "the group is not the user's");
    // A kernel that checks permissions tells no groups.
    let free = bench.attach(false);
    assert_eq!(mode_set_by(&mut bench, free, &[]), 0o2755);
}

#[test]
fn only_root_gives_files_away() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let give = |uid, gid| FileOperation::SetAttributes {
        inode: file,
        set: SetAttributes { uid, gid, ..Default::default() },
    };
    bench.run(set_mode(file, 0o6755)).unwrap();
    let given = bench.entry(give(Some(ALICE), None)).unwrap();
    assert_eq!((given.uid, given.mode), (ALICE, 0o755), "a program of root's does not become Alice's");
    assert_eq!(bench.act(1, &user(ALICE), give(Some(BOB), None)).map(drop), Err(Errno::NotPermitted));
    assert_eq!(bench.act(1, &user(ALICE), give(None, Some(60))).map(drop), Err(Errno::NotPermitted));
    let group = attributes_of(bench.act(1, &user(ALICE), give(None, Some(50))).unwrap());
    assert_eq!(group.gid, 50);
    let device = |mode| FileOperation::MakeNode { folder: TOP, name: named("null"), mode, device: 259 };
    bench.run(set_mode(TOP, 0o777)).unwrap();
    assert_eq!(bench.act(1, &user(BOB), device(0o020_666)).map(drop), Err(Errno::NotPermitted));
    assert_eq!(bench.entry(device(0o020_666)).unwrap().device, 259);
    assert_eq!(bench.run(device(0o040_666)).map(drop), Err(Errno::Exists));
}

#[test]
fn a_session_that_is_not_trusted_is_its_own_user() {
    let mut bench = Bench::new();
    let number = bench.begin(Begun {
        node: plasmon::NodeId::from_bytes([1; plasmon::NodeId::LEN]),
        secret: 1,
        uid: ALICE,
        gid: ALICE,
        groups: Vec::new(),
        trusted: false,
        checked: false,
        read_only: false,
    });
    let root = Actor::default();
    assert_eq!(bench.act(number, &root, create(TOP, "a", true)).map(drop), Err(Errno::NoAccess));
    let folder = folder_of(&mut bench, "alice", ALICE, 0o700);
    let made = attributes_of(bench.act(number, &root, create(folder, "a", true)).unwrap());
    assert_eq!(made.uid, ALICE);
}

#[test]
fn a_session_that_reads_changes_nothing() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let number = bench.begin(Begun { read_only: true, ..ROOTS });
    let root = Actor::default();
    assert_eq!(bench.act(number, &root, create(TOP, "b", true)).map(drop), Err(Errno::ReadOnly));
    assert_eq!(bench.act(number, &root, resize(file, 1)).map(drop), Err(Errno::ReadOnly));
    let open = |write| FileOperation::Open { inode: file, read: true, write, truncate: false, maps: false };
    assert_eq!(bench.act(number, &root, open(true)).map(drop), Err(Errno::ReadOnly));
    bench.act(number, &root, open(false)).unwrap();
    bench.act(number, &root, FileOperation::Closed { opens: vec![(file, false)] }).unwrap();
}

/// Makes a session of a user that is not trusted.
fn untrusted(bench: &mut Bench, uid: u32) -> u32 {
    let (node, secret) = (NodeId::from_bytes([1; NodeId::LEN]), 1);
    let groups = vec![50];
    bench.begin(Begun {
        node,
        secret,
        uid,
        gid: uid,
        groups,
        trusted: false,
        checked: true,
        read_only: false,
    })
}

#[test]
fn a_session_that_is_not_trusted_gets_no_bytes_that_it_may_not_read() {
    let mut bench = Bench::new();
    let folder = folder_of(&mut bench, "all", 0, 0o777);
    let secret = bench.make_file(folder, "secret");
    let (section, id) = bench.section(0, 100);
    bench.run(commit(secret, vec![section.clone()])).unwrap();
    bench.run(set_mode(secret, 0o602)).unwrap();
    let bob = untrusted(&mut bench, BOB);
    let own = attributes_of(bench.act(bob, &user(BOB), create(folder, "own", true)).unwrap()).inode;
    // The session may not name bytes of others in a file of its own.
    let named = bench.act(bob, &user(BOB), commit(own, vec![section]));
    assert_eq!(named.map(drop), Err(Errno::NotPermitted));
    let cloned = FileOperation::Clone { source: secret, source_offset: 0, inode: own, offset: 0, len: 100 };
    assert_eq!(bench.act(bob, &user(BOB), cloned.clone()).map(drop), Err(Errno::NoAccess));
    // A user that may only write a file is not told its map.
    let open = FileOperation::Open { inode: secret, read: false, write: true, truncate: false, maps: false };
    bench.act(bob, &user(BOB), open).unwrap();
    let map = FileOperation::Map { inode: secret, from: 0 };
    assert_eq!(bench.act(bob, &user(BOB), map.clone()).map(drop), Err(Errno::NoAccess));
    assert_eq!(bench.act(bob, &user(BOB), cloned).map(drop), Err(Errno::NoAccess));
    // The session may name its own objects as often as it likes.
    let (node, id_of_bob) = (NodeId::from_bytes([1; NodeId::LEN]), file_object(VOLUME, bob, 1));
    let source = Source::Object { id: id_of_bob, at: 0, object_len: 9, node };
    let mine = Section { offset: 0, len: 9, source };
    for offset in [0, 20] {
        let section = Section { offset, ..mine.clone() };
        bench.act(bob, &user(BOB), commit(own, vec![section])).unwrap();
    }
    bench.run(set_mode(secret, 0o604)).unwrap();
    let told = bench.act(bob, &user(BOB), map).unwrap();
    let FileOutcome::Map { map, .. } = told else { panic!("{told:?}") };
    assert!(
        matches!(&map.sections[..], [Section { source: Source::Object { id: told, .. }, .. }] if *told == id)
    );
}

#[test]
fn a_session_that_is_not_trusted_names_what_it_was_told_of() {
    let mut bench = Bench::new();
    let hidden = folder_of(&mut bench, "hidden", 0, 0o700);
    // The names in the folder are told only to users that know them.
    let open = folder_of(&mut bench, "open", 0, 0o711);
    let (inside, outside) = (bench.make_file(hidden, "a"), bench.make_file(open, "b"));
    let deep = bench.make_folder(hidden, "deep");
    let (bob, known) = (untrusted(&mut bench, BOB), Known::default());
    let mut run = |operation: FileOperation| {
        let asked = FileAsked { number: 1, answered: 1, actor: user(BOB), operation };
        known.ensure_named(&bench.state, bob, &asked)?;
        let outcome = bench.act(bob, &user(BOB), asked.operation.clone())?;
        Ok::<_, Errno>(known.show(&bench.state, bob, &asked, outcome))
    };
    let get = |inode| FileOperation::GetAttributes { inode };
    // Everybody may read these files, but not everybody may find them.
    assert_eq!(run(get(inside)).map(drop), Err(Errno::Stale));
    assert_eq!(run(get(outside)).map(drop), Err(Errno::Stale), "it was not looked up");
    run(lookup(TOP, "hidden")).unwrap();
    assert_eq!(run(lookup(hidden, "a")).map(drop), Err(Errno::NoAccess));
    run(lookup(TOP, "open")).unwrap();
    run(lookup(open, "b")).unwrap();
    run(get(outside)).unwrap();
    let link = FileOperation::Link { inode: inside, folder: TOP, name: named("c") };
    assert_eq!(run(link).map(drop), Err(Errno::Stale));
    known.forget(bob);
    assert_eq!(run(get(outside)).map(drop), Err(Errno::Stale));
    // A folder is found by the folders above it.
    run(get(open)).unwrap();
    run(get(hidden)).unwrap();
    assert_eq!(run(get(deep)).map(drop), Err(Errno::Stale));
}

#[test]
fn who_lists_a_folder_that_it_may_not_search_is_told_of_names_alone() {
    let mut bench = Bench::new();
    let folder = folder_of(&mut bench, "listed", 0, 0o744);
    let file = bench.make_file(folder, "a");
    let (bob, known) = (untrusted(&mut bench, BOB), Known::default());
    let mut run = |operation: FileOperation| {
        let outcome = bench.act(bob, &user(BOB), operation.clone())?;
        let asked = FileAsked { number: 1, answered: 1, actor: user(BOB), operation };
        Ok::<_, Errno>(known.show(&bench.state, bob, &asked, outcome))
    };
    let list = FileOperation::List { folder, after: 0, upto: None, most: 9 };
    assert!(matches!(run(list.clone()), Ok(FileOutcome::Entries { entries, .. }) if entries.len() == 1));
    let session = |bench: &Bench| {
        let operation = FileOperation::GetAttributes { inode: file };
        let asked = FileAsked { number: 1, answered: 1, actor: user(BOB), operation };
        known.ensure_named(&bench.state, bob, &asked)
    };
    assert_eq!(session(&bench), Err(Errno::Stale));
    bench.run(set_mode(folder, 0o755)).unwrap();
    let outcome = bench.act(bob, &user(BOB), list.clone()).unwrap();
    let asked = FileAsked { number: 1, answered: 1, actor: user(BOB), operation: list };
    known.show(&bench.state, bob, &asked, outcome);
    assert_eq!(session(&bench), Ok(()));
}

#[test]
fn a_session_that_is_not_trusted_names_what_it_could_list() {
    let mut bench = Bench::new();
    let bob = untrusted(&mut bench, BOB);
    let names = |bench: &Bench, inode| {
        let operation = FileOperation::GetAttributes { inode };
        let asked = FileAsked { number: 1, answered: 1, actor: user(BOB), operation };
        // A new home does not know what the former home has told.
        Known::default().ensure_named(&bench.state, bob, &asked)
    };
    let outer = folder_of(&mut bench, "outer", 0, 0o711);
    let listed = folder_of(&mut bench, "listed", 0, 0o755);
    let hidden = folder_of(&mut bench, "hidden", 0, 0o700);
    bench.run(rename(TOP, "listed", outer, "listed")).unwrap();
    let file = bench.make_file(listed, "a");
    assert_eq!(names(&bench, file), Ok(()));
    // Wherever a name of the file goes, the file is found only by a folder that has a name of it.
    bench.run(rename(listed, "a", hidden, "a")).unwrap();
    assert_eq!(names(&bench, file), Err(Errno::Stale));
    bench.run(rename(hidden, "a", listed, "b")).unwrap();
    assert_eq!(names(&bench, file), Ok(()));
    let link = |folder, name| FileOperation::Link { inode: file, folder, name: named(name) };
    bench.run(link(hidden, "a")).unwrap();
    assert_eq!(names(&bench, file), Ok(()));
    bench.run(unlink(listed, "b")).unwrap();
    assert_eq!(names(&bench, file), Err(Errno::Stale));
    bench.run(link(listed, "c")).unwrap();
    assert_eq!(names(&bench, file), Ok(()));
    let other = bench.make_file(hidden, "other");
    assert_eq!(names(&bench, other), Err(Errno::Stale));
    let swap = FileOperation::Rename {
        folder: hidden,
        name: named("other"),
        to_folder: listed,
        to_name: named("c"),
        no_replace: false,
        exchange: true,
        whiteout: false,
    };
    bench.run(swap).unwrap();
    assert_eq!((names(&bench, file), names(&bench, other)), (Err(Errno::Stale), Ok(())));
    bench.run(rename(hidden, "a", listed, "c")).unwrap();
    assert_eq!(names(&bench, file), Ok(()));
    // What is gone may be named: nothing is told of it, but that it is gone.
    assert!(bench.state.inode(other).is_none());
    assert_eq!(names(&bench, other), Ok(()));
    let get = FileOperation::GetAttributes { inode: other };
    assert_eq!(bench.run(get).map(drop), Err(Errno::Stale));
    // All folders above have to be searchable, and the last one readable.
    bench.run(set_mode(listed, 0o711)).unwrap();
    assert_eq!(names(&bench, file), Err(Errno::Stale));
    bench.run(set_mode(listed, 0o755)).unwrap();
    bench.run(set_mode(outer, 0o744)).unwrap();
    assert_eq!(names(&bench, file), Err(Errno::Stale));
    bench.run(set_mode(outer, 0o711)).unwrap();
    assert_eq!(names(&bench, file), Ok(()));
    // An inode without a name cannot be found.
    bench.open(file).unwrap();
    bench.run(unlink(hidden, "other")).unwrap();
    bench.run(unlink(listed, "c")).unwrap();
    assert_eq!(names(&bench, file), Err(Errno::Stale));
}

#[test]
fn inodes_without_a_name_are_listed_for_root_alone() {
    let mut bench = Bench::new();
    let opened: Vec<_> = ["a", "b", "c"]
        .map(|name| {
            let inode = bench.make_file(TOP, name);
            bench.open(inode).unwrap();
            bench.run(unlink(TOP, name)).unwrap();
            inode
        })
        .into();
    bench.make_file(TOP, "named");
    let mut listed = |after| {
        let outcome = bench.run(FileOperation::ListUnnamed { after }).unwrap();
        let FileOutcome::Entries { entries, end: true, .. } = outcome else { panic!("{outcome:?}") };
        assert!(entries.iter().all(|entry| entry.name.is_empty() && entry.cookie == entry.attributes.inode));
        entries.into_iter().map(|entry| entry.cookie).collect::<Vec<_>>()
    };
    assert_eq!((listed(0), listed(opened[0])), (opened.clone(), opened[1..].to_vec()));
    let bob = untrusted(&mut bench, BOB);
    let list = FileOperation::ListUnnamed { after: 0 };
    assert_eq!(bench.act(bob, &user(BOB), list).map(drop), Err(Errno::NotPermitted));
}

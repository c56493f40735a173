//! Tests of contents: commits, appends, cuts, holes, clones, quotas, extended attributes.

use plasmon::wire::files::{
    Attributes, Errno, Extended, FileOperation, FileOutcome, Fingerprint, MAX_FILE_BYTES, MAX_INLINE_BYTES,
    MAX_SECTIONS, MAX_XATTR_BYTES, PLACE_XATTR, Place, Section, SetAttributes, Source, Written,
};

use super::*;

fn inline(offset: u64, bytes: &[u8]) -> Section {
    Section { offset, len: bytes.len() as u64, source: Source::Inline(bytes.to_vec().into()) }
}

fn map_of(bench: &mut Bench, inode: u64, from: u64) -> Extended {
    match bench.run(FileOperation::Map { inode, from }) {
        Ok(FileOutcome::Map { map, .. }) => map,
        other => panic!("{other:?} is no map"),
    }
}

#[test]
fn what_was_committed_is_the_map() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let (section, id) = bench.section(10, 100);
    let attributes = bench.entry(commit(file, vec![section.clone()])).unwrap();
    assert_eq!((attributes.size, attributes.used), (110, 100), "before it there is a hole");
    assert_eq!(map_of(&mut bench, file, 0), Extended { sections: vec![section], next: None });
    // A section over the middle of another cuts it in two. Its object stays as long as a part is seen.
    let (over, _) = bench.section(20, 80);
    bench.entry(commit(file, vec![over])).unwrap();
    assert_eq!(map_of(&mut bench, file, 0).sections.len(), 3);
    assert_eq!(bench.state.objects[&id].references, 2);
    let (over, _) = bench.section(0, 110);
    let attributes = bench.entry(commit(file, vec![over])).unwrap();
    assert_eq!((attributes.size, attributes.used), (110, 110));
    assert!(bench.state.condemned.contains(&id));
    bench.run(unlink(TOP, "a")).unwrap();
    assert_eq!((bench.state.used, bench.state.objects.len(), bench.state.condemned.len()), (0, 0, 3));
    assert!(bench.state.used_by.is_empty());
    assert_eq!(bench.state.memory, Bench::new().state.memory);
}

#[test]
fn a_session_commits_its_own_objects_and_those_of_the_volume() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let (section, id) = bench.section(0, 100);
    let node = NodeId::from_bytes([1; NodeId::LEN]);
    let of = |id, at, len, object_len| {
        let source = Source::Object { id, at, object_len, node };
        commit(file, vec![Section { offset: 0, len, source }])
    };
    let foreign =
        [file_object(VOLUME, 2, 1), file_object(VOLUME + 1, 1, 1), ObjectId::from_bytes([7; ObjectId::LEN])];
    for id in foreign {
        assert_eq!(bench.run(of(id, 0, 1, 1)).map(drop), Err(Errno::NotPermitted));
    }
    assert_eq!(bench.run(of(id, 1, 100, 100)).map(drop), Err(Errno::NotPermitted), "it ends before");
    assert_eq!(bench.run(of(id, u64::MAX, 2, 100)).map(drop), Err(Errno::NotPermitted));
    bench.entry(commit(file, vec![section])).unwrap();
    assert_eq!(bench.run(of(id, 0, 1, 200)).map(drop), Err(Errno::NotPermitted), "it has another size");
    let other = bench.attach(true);
    bench.act(other, &Actor::default(), of(id, 50, 50, 100)).unwrap();
    // An object that is being deleted cannot be named again.
    bench.run(resize(file, 0)).unwrap();
    assert!(bench.state.condemned.contains(&id));
    assert_eq!(bench.run(of(id, 0, 100, 100)).map(drop), Err(Errno::NotPermitted));
    bench.state.apply(Change::Deleted(vec![id]));
    assert_eq!(bench.run(of(id, 0, 100, 100)).map(drop), Err(Errno::NotPermitted), "it was deleted");
    let (next, _) = bench.section(0, 100);
    bench.entry(commit(file, vec![next])).unwrap();
    let memory = bench.state.memory;
    bench.end(1);
    assert!(bench.state.memory < memory, "what was deleted is forgotten with the session");
}

#[test]
fn what_a_session_has_discarded_is_not_committed() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let [(first, id), (second, _), (third, _)] = [0, 10, 20].map(|offset| bench.section(offset, 10));
    bench.entry(commit(file, vec![first.clone()])).unwrap();
    assert_eq!(bench.run(FileOperation::Discard { below: 3 }), Ok(FileOutcome::Done));
    assert_eq!(bench.run(FileOperation::Discard { below: 1 }), Ok(FileOutcome::Done));
    assert_eq!(bench.run(commit(file, vec![second])).map(drop), Err(Errno::NotPermitted));
    bench.entry(commit(file, vec![third])).unwrap();
    bench.entry(commit(file, vec![Section { offset: 40, ..first }])).unwrap();
    assert_eq!(bench.state.objects[&id].references, 2, "a file has it");
}

#[test]
fn an_object_moves_within_a_commit() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let (first, id) = bench.section(0, 1);
    bench.entry(commit(file, vec![first.clone()])).unwrap();
    // The first section takes away the last reference to an object that the second names.
    let (over, _) = bench.section(0, 1);
    let moved = Section { offset: 1, ..first };
    bench.entry(commit(file, vec![over.clone(), moved.clone()])).unwrap();
    assert_eq!(bench.state.objects[&id].references, 1);
    assert!(bench.state.condemned.is_empty());
    assert_eq!(map_of(&mut bench, file, 0).sections, [over, moved]);
    let opened = bench.open(file).unwrap();
    assert!(matches!(opened, FileOutcome::Opened { .. }), "{opened:?}");
}

#[test]
fn offsets_reach_to_2_to_the_63() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let end = bench.entry(commit(file, vec![inline(MAX_FILE_BYTES - 1, b"x")])).unwrap();
    assert_eq!((end.size, end.used), (MAX_FILE_BYTES, 1));
    for offset in [MAX_FILE_BYTES, u64::MAX - 1, u64::MAX] {
        assert_eq!(bench.run(commit(file, vec![inline(offset, b"x")])).map(drop), Err(Errno::TooLarge));
        assert_eq!(
            bench.run(FileOperation::Punch { inode: file, offset, len: 2, extend: true }).map(drop),
            Err(Errno::TooLarge)
        );
    }
    assert_eq!(bench.run(resize(file, MAX_FILE_BYTES + 1)).map(drop), Err(Errno::TooLarge));
    let bytes = Written::Bytes(named("x"));
    let append = FileOperation::Append {
        inode: file,
        written: bytes,
        drops_privileges: false,
        credit: 0,
        credit_of: 0,
    };
    assert_eq!(bench.run(append).map(drop), Err(Errno::TooLarge));
    let folder = bench.make_folder(TOP, "folder");
    assert_eq!(bench.run(resize(folder, 0)).map(drop), Err(Errno::IsFolder));
    assert_eq!(bench.run(commit(folder, Vec::new())).map(drop), Err(Errno::IsFolder));
    assert_eq!(bench.run(commit(file, vec![inline(0, b"")])).map(drop), Err(Errno::Invalid));
}

#[test]
fn bytes_of_all_files_can_be_counted() {
    let mut bench = Bench::new();
    let files = [bench.make_file(TOP, "a"), bench.make_file(TOP, "b"), bench.make_file(TOP, "c")];
    // Sections lie one over the other: only the last one is seen, but the bytes of all are counted when they
    // come.
    let over = (0..3).map(|_| bench.section(0, MAX_FILE_BYTES).0).collect();
    assert_eq!(bench.run(commit(files[0], over)).map(drop), Err(Errno::Full));
    let (whole, _) = bench.section(0, MAX_FILE_BYTES);
    assert_eq!(bench.entry(commit(files[0], vec![whole])).unwrap().used, MAX_FILE_BYTES);
    for file in &files[1..] {
        let (whole, _) = bench.section(0, MAX_FILE_BYTES);
        assert_eq!(bench.run(commit(*file, vec![whole])).map(drop), Err(Errno::Full));
    }
    // An object has one size, which has to be possible.
    let (section, _) = bench.section(0, 1);
    let Source::Object { id, at, node, .. } = section.source else { panic!("it is of an object") };
    let of = |offset, object_len| {
        let source = Source::Object { id, at, object_len, node };
        Section { offset, len: 1, source }
    };
    bench.entry(resize(files[0], 0)).unwrap();
    for wrong in [vec![of(0, u64::MAX)], vec![of(0, 1), of(1, 2)]] {
        assert_eq!(bench.run(commit(files[1], wrong)).map(drop), Err(Errno::NotPermitted));
    }
}

#[test]
fn a_file_gets_shorter_although_there_is_no_memory() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let (section, id) = bench.section(0, 100);
    bench.entry(commit(file, vec![section])).unwrap();
    bench.limits.memory = 0;
    assert_eq!(bench.entry(resize(file, 10)).unwrap().used, 10);
    assert_eq!(bench.entry(resize(file, 0)).unwrap().used, 0);
    assert!(bench.state.condemned.contains(&id));
}

#[test]
fn cutting_lets_go_and_lengthening_makes_a_hole() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let (section, id) = bench.section(0, 100);
    bench.entry(commit(file, vec![section])).unwrap();
    let cut = bench.entry(resize(file, 40)).unwrap();
    assert_eq!((cut.size, cut.used), (40, 40));
    let longer = bench.entry(resize(file, 100)).unwrap();
    assert_eq!((longer.size, longer.used), (100, 40), "the bytes that were cut do not come back");
    let open = FileOperation::Open { inode: file, read: true, write: true, truncate: true, maps: false };
    assert_eq!(attributes_of(bench.run(open).unwrap()).size, 0);
    assert!(bench.state.condemned.contains(&id));
}

#[test]
fn appends_come_one_behind_the_other() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let append = |written| FileOperation::Append {
        inode: file,
        written,
        drops_privileges: false,
        credit: 0,
        credit_of: 0,
    };
    for (number, line) in ["one", "two", "three"].into_iter().enumerate() {
        let Ok(FileOutcome::Appended { offset, .. }) = bench.run(append(Written::Bytes(named(line)))) else {
            panic!("it is appended");
        };
        assert_eq!(offset, 3 * number as u64);
    }
    assert_eq!(map_of(&mut bench, file, 0).sections, [inline(0, b"onetwothree")]);
    let (section, _) = bench.section(0, 50);
    bench.run(append(Written::Sections(vec![section]))).unwrap();
    assert_eq!(map_of(&mut bench, file, 11).sections[0].offset, 11);
    let full = append(Written::Bytes(vec![0; MAX_INLINE_BYTES].into()));
    assert_eq!(bench.run(full), Ok(FileOutcome::NoRoomInline));
    assert_eq!(bench.entry(FileOperation::GetAttributes { inode: file }).unwrap().size, 61);
}

#[test]
fn a_small_file_lies_in_its_map_and_is_written_again_there() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let whole = vec![1; MAX_INLINE_BYTES];
    bench.entry(commit(file, vec![inline(0, &whole)])).unwrap();
    bench.entry(commit(file, vec![inline(0, &whole)])).unwrap();
    let more = commit(file, vec![inline(MAX_INLINE_BYTES as u64, b"x")]);
    assert_eq!(bench.run(more.clone()), Ok(FileOutcome::NoRoomInline));
    // With less memory for maps, all bytes go to objects.
    bench.entry(resize(file, 0)).unwrap();
    bench.limits.memory = bench.state.memory + 6000;
    assert_eq!(bench.run(commit(file, vec![inline(0, &whole)])), Ok(FileOutcome::NoRoomInline));
}

#[test]
fn long_maps_come_in_pages() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    for number in 0..3 * MAX_SECTIONS as u64 {
        let (section, _) = bench.section(number * 20, 10);
        bench.entry(commit(file, vec![section])).unwrap();
    }
    let (mut offsets, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let page = map_of(&mut bench, file, at);
        assert!(page.sections.len() <= MAX_SECTIONS);
        offsets.extend(page.sections.iter().map(|section| section.offset));
        from = page.next;
    }
    assert_eq!(offsets, (0..3 * MAX_SECTIONS as u64).map(|number| number * 20).collect::<Vec<_>>());
    assert_eq!(map_of(&mut bench, file, 25).sections[0].offset, 20, "it reaches behind 25");
}

#[test]
fn a_clone_has_the_same_objects() {
    let mut bench = Bench::new();
    let (a, b) = (bench.make_file(TOP, "a"), bench.make_file(TOP, "b"));
    let (section, id) = bench.section(0, 100);
    bench.entry(commit(a, vec![section, inline(200, b"tail")])).unwrap();
    let clone = |inode, source_offset, offset, len| FileOperation::Clone {
        source: a,
        source_offset,
        inode,
        offset,
        len,
    };
    let cloned = bench.run(clone(b, 50, 1000, u64::from(u32::MAX)));
    let Ok(FileOutcome::Cloned { len, attributes }) = cloned else { panic!("{cloned:?}") };
    assert_eq!((len, attributes.size, attributes.used), (154, 1154, 54));
    bench.run(unlink(TOP, "a")).unwrap();
    assert_eq!(bench.state.objects[&id].references, 1);
    let map = map_of(&mut bench, b, 0).sections;
    assert_eq!((map[0].offset, map[0].len, map.len()), (1000, 50, 2));
    bench.run(unlink(TOP, "b")).unwrap();
    assert!(bench.state.condemned.contains(&id));
    let file = bench.make_file(TOP, "c");
    bench.entry(commit(file, vec![inline(0, b"0123456789")])).unwrap();
    let onto =
        |offset, len| FileOperation::Clone { source: file, source_offset: 0, inode: file, offset, len };
    assert_eq!(bench.run(onto(5, 10)).map(drop), Err(Errno::Invalid), "the ranges overlap");
    assert_eq!(attributes_of(bench.run(onto(10, 10)).unwrap()).size, 20);
}

#[test]
fn a_hole_is_no_bytes() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let (section, _) = bench.section(0, 100);
    bench.entry(commit(file, vec![section])).unwrap();
    let punch = |offset, len, extend| FileOperation::Punch { inode: file, offset, len, extend };
    let punched = bench.entry(punch(10, 20, false)).unwrap();
    assert_eq!((punched.size, punched.used), (100, 80));
    assert_eq!(bench.entry(punch(90, 20, false)).unwrap().size, 100);
    assert_eq!(bench.entry(punch(90, 20, true)).unwrap().size, 110);
}

#[test]
fn tidying_is_refused_if_the_file_has_other_sections() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let (section, id) = bench.section(0, 10);
    let before = [section, inline(10, b"more"), bench.section(14, 6).0];
    bench.entry(commit(file, before.to_vec())).unwrap();
    let (last, _) = bench.section(20, 10);
    let told = bench.entry(commit(file, vec![last.clone()])).unwrap();
    let (used, memory) = (bench.state.used, bench.state.memory);
    let (whole, _) = bench.section(0, 20);
    let tidy =
        |replaces, section: &Section| FileOperation::Tidy { inode: file, replaces, section: section.clone() };
    let seen = Fingerprint::of(&before);
    assert_eq!(bench.run(tidy(seen + 1, &whole)).map(drop), Err(Errno::Stale));
    let (longer, _) = bench.section(0, 30);
    assert_eq!(bench.run(tidy(seen, &longer)).map(drop), Err(Errno::Stale));
    assert_eq!(bench.run(tidy(seen, &inline(0, &[7; 20]))).map(drop), Err(Errno::Invalid));
    let foreign = file_object(VOLUME, 2, 1);
    let node = NodeId::from_bytes([1; NodeId::LEN]);
    let source = Source::Object { id: foreign, at: 0, object_len: 20, node };
    let of_others = Section { offset: 0, len: 20, source };
    assert_eq!(bench.run(tidy(seen, &of_others)).map(drop), Err(Errno::NotPermitted));
    // Others may write beside the range.
    let (last, _) = bench.section(20, 10);
    let beside = bench.entry(commit(file, vec![last.clone()])).unwrap();
    let after = bench.entry(tidy(seen, &whole)).unwrap();
    assert!(after.version > beside.version && beside.version > told.version, "maps of before are old");
    let same = |told: &Attributes| (told.modified, told.changed, told.size, told.used);
    assert_eq!(same(&after), same(&beside));
    assert_eq!(map_of(&mut bench, file, 0).sections, [whole.clone(), last]);
    assert!(bench.state.condemned.contains(&id), "its object is to be deleted");
    assert!(bench.state.memory < memory && bench.state.used == used);
    assert_eq!(bench.run(tidy(seen, &whole)).map(drop), Err(Errno::Stale), "it was done");
    // A hole has no bytes.
    let (hole, _) = bench.section(0, 100);
    let sections = map_of(&mut bench, file, 0).sections;
    assert_eq!(bench.run(tidy(Fingerprint::of(&sections), &hole)).map(drop), Err(Errno::Stale));
}

#[test]
fn bytes_have_limits() {
    let mut bench = Bench::with(VolumeTerms { capacity: 1000, user_quota: 600, ..Default::default() });
    let (a, b) = (bench.make_file(TOP, "a"), bench.make_file(TOP, "b"));
    let give = |inode, uid| FileOperation::SetAttributes {
        inode,
        set: SetAttributes { uid: Some(uid), ..Default::default() },
    };
    bench.run(give(b, 7)).unwrap();
    let (section, _) = bench.section(0, 600);
    bench.entry(commit(a, vec![section])).unwrap();
    let (more, _) = bench.section(600, 1);
    assert_eq!(bench.run(commit(a, vec![more])).map(drop), Err(Errno::OverQuota));
    let (again, _) = bench.section(0, 600);
    bench.entry(commit(a, vec![again])).expect("it takes the place of what was there");
    let (other, _) = bench.section(0, 401);
    assert_eq!(bench.run(commit(b, vec![other])).map(drop), Err(Errno::Full));
    let (other, _) = bench.section(0, 400);
    bench.entry(commit(b, vec![other])).unwrap();
    assert_eq!(bench.run(give(b, 0)).map(drop), Err(Errno::OverQuota));
    let Ok(FileOutcome::Usage(usage)) = bench.run(FileOperation::Usage) else { panic!() };
    assert_eq!((usage.capacity, usage.used, usage.free, usage.inodes), (1000, 1000, 0, 3));
    bench.run(resize(a, 0)).unwrap();
    bench.run(give(b, 0)).unwrap();
    assert_eq!(bench.state.used_by.get(&0), Some(&400));
}

#[test]
fn writing_takes_privileges_away() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let set = SetAttributes { mode: Some(0o6755), ..Default::default() };
    bench.run(FileOperation::SetAttributes { inode: file, set }).unwrap();
    let write = |drops_privileges| FileOperation::Commit {
        inode: file,
        sections: vec![inline(0, b"x")],
        modified: None,
        drops_privileges,
        credit: 0,
        credit_of: 0,
    };
    assert_eq!(bench.entry(write(false)).unwrap().mode, 0o6755);
    assert_eq!(bench.entry(write(true)).unwrap().mode, 0o755);
    // A file keeps both bits if root truncates it by an open, punches it or copies to it, and loses them if
    // another user does.
    let source = bench.make_file(TOP, "b");
    let written = FileOperation::Append {
        inode: source,
        written: Written::Bytes("bytes".into()),
        drops_privileges: false,
        credit: 0,
        credit_of: 0,
    };
    bench.run(written).unwrap();
    let open = FileOperation::Open { inode: file, read: false, write: true, truncate: true, maps: false };
    let punch = FileOperation::Punch { inode: file, offset: 0, len: 3, extend: true };
    let clone = FileOperation::Clone { source, source_offset: 0, inode: file, offset: 0, len: 5 };
    let free = bench.attach(false);
    for operation in [open, punch, clone] {
        for (uid, left) in [(0, 0o6755), (7, 0o755)] {
            let set = SetAttributes { mode: Some(0o6755), ..Default::default() };
            bench.run(FileOperation::SetAttributes { inode: file, set }).unwrap();
            bench.act(free, &Actor { uid, ..Actor::default() }, operation.clone()).unwrap();
            assert_eq!(bench.look(TOP, "a").unwrap().mode, left, "{operation:?} by user {uid}");
        }
    }
}

#[test]
fn extended_attributes_are_kept_and_limited() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let set = |name: &str, value: Vec<u8>, create, replace| FileOperation::SetXattr {
        inode: file,
        name: named(name),
        value: value.into(),
        create,
        replace,
    };
    let get = |name: &str| FileOperation::GetXattr { inode: file, name: named(name) };
    let before = bench.state.memory;
    assert_eq!(bench.run(get("user.a")).map(drop), Err(Errno::NoXattr));
    assert_eq!(bench.run(set("user.a", vec![1], false, true)).map(drop), Err(Errno::NoXattr));
    bench.run(set("user.a", vec![1], true, false)).unwrap();
    assert_eq!(bench.run(set("user.a", vec![2], true, false)).map(drop), Err(Errno::Exists));
    bench.run(set("user.a", vec![3; MAX_XATTR_BYTES], false, true)).unwrap();
    assert_eq!(bench.run(get("user.a")), Ok(FileOutcome::Bytes(vec![3; MAX_XATTR_BYTES].into())));
    let full = (0..10)
        .find_map(|n| bench.run(set(&format!("user.{n}"), vec![0; MAX_XATTR_BYTES], false, false)).err());
    assert_eq!(full, Some(Errno::Full));
    assert_eq!(bench.run(set("user.", vec![], false, false)).map(drop), Err(Errno::NotSupported));
    assert_eq!(
        bench.run(set("system.posix_acl_access", vec![], false, false)).map(drop),
        Err(Errno::NotSupported)
    );
    let long = format!("user.{}", "x".repeat(251));
    assert_eq!(bench.run(set(&long, vec![], false, false)).map(drop), Err(Errno::OutOfRange));
    let Ok(FileOutcome::Bytes(names)) = bench.run(FileOperation::ListXattrs { inode: file }) else {
        panic!()
    };
    let names: Vec<_> = names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    for name in names {
        let remove = FileOperation::RemoveXattr { inode: file, name: name.to_vec().into() };
        bench.run(remove.clone()).unwrap();
        assert_eq!(bench.run(remove).map(drop), Err(Errno::NoXattr));
    }
    assert_eq!(bench.state.memory, before);
}

#[test]
fn what_is_made_in_a_folder_has_its_copies() {
    let mut bench = Bench::with(VolumeTerms { copies: 2, ..Default::default() });
    let folder = bench.make_folder(TOP, "a");
    let set = |value: &str| FileOperation::SetXattr {
        inode: folder,
        name: named("user.plasmon.copies"),
        value: named(value),
        create: false,
        replace: false,
    };
    for wrong in ["", "0", "-1", "two", "70000"] {
        assert_eq!(bench.run(set(wrong)).map(drop), Err(Errno::Invalid), "{wrong}");
    }
    bench.run(set("3")).unwrap();
    let inner = bench.make_folder(folder, "b");
    bench.make_file(inner, "c");
    assert_eq!(bench.look(inner, "c").unwrap().copies, 3);
    assert_eq!(bench.look(TOP, ".").unwrap().copies, 2);
    let get = FileOperation::GetXattr { inode: inner, name: named("user.plasmon.copies") };
    assert_eq!(bench.run(get), Ok(FileOutcome::Bytes(named("3"))));
    let other = FileOperation::SetXattr {
        inode: folder,
        name: named("user.plasmon.other"),
        value: named("spread"),
        create: false,
        replace: false,
    };
    assert_eq!(bench.run(other).map(drop), Err(Errno::NotSupported));
}

#[test]
fn what_is_made_in_a_folder_has_its_place() {
    let mut bench = Bench::with(VolumeTerms { place: Place::Spread, ..Default::default() });
    let (name, folder) = (|| named(PLACE_XATTR), bench.make_folder(TOP, "a"));
    let before = bench.state.memory;
    let set = |inode, value: &str| FileOperation::SetXattr {
        inode,
        name: name(),
        value: named(value),
        create: false,
        replace: false,
    };
    let node = plasmon::NodeId::from_bytes([7; plasmon::NodeId::LEN]);
    for wrong in ["", "here", "07", &format!("{node},"), &vec![node.to_string(); 17].join(",")] {
        assert_eq!(bench.run(set(folder, wrong)).map(drop), Err(Errno::Invalid), "{wrong}");
    }
    bench.run(set(folder, &node.to_string())).unwrap();
    let inner = bench.make_folder(folder, "b");
    let file = bench.make_file(inner, "c");
    let nodes = Place::Nodes(vec![node]);
    assert_eq!(bench.look(inner, "c").unwrap().place, nodes);
    assert_eq!(bench.look(TOP, ".").unwrap().place, Place::Spread, "what the volume says");
    // The file has a place of its own from then on.
    bench.run(set(folder, "local")).unwrap();
    assert_eq!(bench.look(inner, "c").unwrap().place, nodes);
    assert_eq!(bench.look(folder, ".").unwrap().place, Place::Local);
    let get = |inode| FileOperation::GetXattr { inode, name: name() };
    assert_eq!(bench.run(get(file)), Ok(FileOutcome::Bytes(named(&node.to_string()))));
    assert_eq!(bench.run(get(TOP)), Ok(FileOutcome::Bytes(named("spread"))));
    for (folder, name) in [(inner, "c"), (folder, "b")] {
        let remove = match name {
            "c" => FileOperation::Unlink { folder, name: named(name) },
            _ => FileOperation::RemoveFolder { folder, name: named(name) },
        };
        bench.run(remove).unwrap();
    }
    bench.run(FileOperation::RemoveXattr { inode: folder, name: name() }).unwrap();
    assert_eq!(bench.look(folder, ".").unwrap().place, Place::Spread);
    assert_eq!(bench.state.memory, before);
}

#[test]
fn a_session_ends_opens_of_its_own_alone() {
    let mut bench = Bench::new();
    let [own, others] = ["a", "b"].map(|name| bench.make_file(TOP, name));
    let number = bench.attach_as(false);
    for (session, inode) in [(number, own), (number, own), (1, others)] {
        let open = FileOperation::Open { inode, read: true, write: false, truncate: false, maps: false };
        bench.act(session, &Actor::default(), open).unwrap();
    }
    let (session, actor) = (&bench.state.sessions[&number], Actor::default());
    let asking = Asking {
        state: &bench.state,
        number,
        session,
        who: who(session, &actor),
        now: Time::default(),
        limits: bench.limits,
        lingering: &Lingering::default(),
        are_untold: false,
    };
    let opens = [own, others, 1 << 63, own, u64::MAX, own].map(|inode| (inode, false)).to_vec();
    let changes = decide(&asking, FileOperation::Closed { opens }).unwrap().changes;
    assert_eq!(
        changes,
        vec![Change::Close { inode: own, session: number, maps: false }; 2],
        "mirrors hear of no others"
    );
}

#[test]
fn the_right_to_map_a_file_is_one_sessions_until_its_last_such_open_ends() {
    let mut bench = Bench::new();
    let root = Actor::default();
    let file = bench.make_file(TOP, "a");
    let second = bench.attach(false);
    let open = |write, maps| FileOperation::Open { inode: file, read: true, write, truncate: false, maps };
    let gets = |bench: &mut Bench, session, operation| match bench.act(session, &root, operation) {
        Ok(FileOutcome::Opened { maps, .. }) => maps,
        other => panic!("{other:?}"),
    };
    let close = |bench: &mut Bench, session, maps| {
        bench.act(session, &root, FileOperation::Closed { opens: vec![(file, maps)] }).unwrap();
    };
    assert!(!gets(&mut bench, 1, open(true, false)), "it was not asked for");
    assert!(!gets(&mut bench, 1, open(false, true)), "who only reads needs none");
    assert!(gets(&mut bench, second, open(true, true)), "nobody has it");
    assert!(gets(&mut bench, second, open(true, true)), "it has it");
    let create = |exclusive, name| FileOperation::Create {
        folder: TOP,
        name: named(name),
        mode: 0o644,
        exclusive,
        maps: true,
    };
    for operation in [open(true, true), create(false, "a")] {
        assert!(!gets(&mut bench, 1, operation), "another has it");
    }
    close(&mut bench, second, true);
    close(&mut bench, 1, false);
    assert!(!gets(&mut bench, 1, open(true, true)), "an open of the other is left");
    assert!(!gets(&mut bench, second, open(true, false)));
    close(&mut bench, second, true);
    assert!(gets(&mut bench, 1, open(true, true)), "the other has the file open without the right");
    assert!(!gets(&mut bench, second, open(true, true)));
    bench.end(1);
    assert!(gets(&mut bench, second, open(true, true)), "the right ends with the session");
    // Of a new file, nobody else has it. At a new home nobody gets it of others, before all have told.
    let third = bench.attach(false);
    bench.are_untold = true;
    assert!(gets(&mut bench, third, create(true, "new")) && gets(&mut bench, third, create(true, "")));
    close(&mut bench, second, true);
    assert!(!gets(&mut bench, third, open(true, true)));
    bench.are_untold = false;
    assert!(gets(&mut bench, third, open(true, true)));
    bench.commit(vec![Change::Terms(VolumeTerms { shared_maps: true, ..Default::default() })]);
    assert!(gets(&mut bench, second, open(true, true)), "all may map");
}

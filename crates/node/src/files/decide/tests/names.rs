//! Tests of names: making, looking up, removing, renaming, listing.

use plasmon::wire::files::{Errno, FileKind, FileOperation, FileOutcome, MAX_LINKS, SetAttributes};

use super::*;

#[test]
fn names_have_1_to_255_bytes_of_any_kind_but_slash_and_zero() {
    let mut bench = Bench::new();
    let mut make = |name: &[u8]| {
        let made = FileOperation::MakeFolder { folder: TOP, name: name.to_vec().into(), mode: 0o755 };
        bench.run(made).map(drop)
    };
    assert_eq!(make(b""), Err(Errno::NotFound));
    assert_eq!(make(&[b'a'; 255]), Ok(()));
    assert_eq!(make(&[b'a'; 256]), Err(Errno::NameTooLong));
    assert_eq!(make(b"a/b"), Err(Errno::Invalid));
    assert_eq!(make(b"a\0b"), Err(Errno::Invalid));
    assert_eq!(make(b"\xff\xfe not UTF-8"), Ok(()));
    assert_eq!(make(b"."), Err(Errno::Exists));
    assert_eq!(make(b".."), Err(Errno::Exists));
    assert_eq!(bench.look(TOP, ".").unwrap().inode, TOP);
    assert_eq!(bench.look(TOP, "..").unwrap().inode, TOP, "the root is its own");
    assert_eq!(bench.look(TOP, &"a".repeat(256)), Err(Errno::NameTooLong));
    assert_eq!(bench.look(TOP, "nobody"), Err(Errno::NotFound));
}

#[test]
fn an_exclusive_creation_finds_nothing_there() {
    let mut bench = Bench::new();
    let first = bench.entry(create(TOP, "a", true)).unwrap();
    assert_eq!(bench.run(create(TOP, "a", true)).map(drop), Err(Errno::Exists));
    let Ok(FileOutcome::Opened { attributes, created, .. }) = bench.run(create(TOP, "a", false)) else {
        panic!("it is opened");
    };
    assert_eq!((attributes.inode, created), (first.inode, false));
    bench.make_folder(TOP, "folder");
    assert_eq!(bench.run(create(TOP, "folder", false)).map(drop), Err(Errno::IsFolder));
    let link = FileOperation::MakeSymlink { folder: TOP, name: named("link"), target: named("a") };
    let link = bench.entry(link).unwrap();
    assert_eq!((link.kind, link.size), (FileKind::Symlink, 1));
    assert_eq!(bench.run(create(TOP, "link", false)).map(drop), Err(Errno::IsLink));
    let target = bench.run(FileOperation::ReadLink { inode: link.inode });
    assert_eq!(target, Ok(FileOutcome::Bytes(named("a"))));
}

#[test]
fn a_file_without_a_name_gets_one_or_goes() {
    let mut bench = Bench::new();
    let before = bench.state.memory;
    let file = bench.entry(create(TOP, "", false)).unwrap();
    assert_eq!((file.links, bench.names(TOP).len()), (0, 0));
    bench.close(file.inode);
    assert_eq!(bench.entry(FileOperation::GetAttributes { inode: file.inode }), Err(Errno::Stale));
    assert_eq!(bench.state.memory, before, "nothing is left");
    let file = bench.entry(create(TOP, "", false)).unwrap().inode;
    let link = FileOperation::Link { inode: file, folder: TOP, name: named("a") };
    assert_eq!(bench.entry(link.clone()).unwrap().links, 1);
    bench.close(file);
    assert_eq!(bench.look(TOP, "a").unwrap().inode, file);
    assert_eq!(bench.run(link).map(drop), Err(Errno::Exists));
}

#[test]
fn an_inode_lives_as_long_as_it_has_a_name_or_is_open() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    bench.entry(FileOperation::Link { inode: file, folder: TOP, name: named("b") }).unwrap();
    bench.open(file).unwrap();
    bench.open(file).unwrap();
    for name in ["a", "b"] {
        bench.run(unlink(TOP, name)).unwrap();
    }
    let attributes = bench.entry(FileOperation::GetAttributes { inode: file }).unwrap();
    assert_eq!(attributes.links, 0);
    let other = bench.attach(true);
    let opened = bench.act(
        other,
        &Actor::default(),
        FileOperation::Open { inode: file, read: true, write: false, truncate: false, maps: false },
    );
    assert_eq!(opened.map(drop), Err(Errno::Stale), "nobody else finds it any more");
    bench.close(file);
    assert!(bench.state.inode(file).is_some());
    bench.close(file);
    assert!(bench.state.inode(file).is_none());
    bench.close(file);
    assert_eq!(bench.make_file(TOP, "c"), file + 1, "numbers are not used again");
}

#[test]
fn what_a_dead_session_had_open_goes() {
    let mut bench = Bench::new();
    let file = bench.entry(create(TOP, "a", true)).unwrap().inode;
    let second = bench.attach(true);
    let open = FileOperation::Open { inode: file, read: true, write: false, truncate: false, maps: false };
    bench.act(second, &Actor::default(), open).unwrap();
    bench.run(unlink(TOP, "a")).unwrap();
    bench.end(1);
    assert!(bench.state.inode(file).is_some());
    bench.end(second);
    assert!(bench.state.inode(file).is_none());
}

#[test]
fn folders_are_removed_when_they_are_empty() {
    let mut bench = Bench::new();
    let folder = bench.make_folder(TOP, "a");
    let inner = bench.make_folder(folder, "b");
    assert_eq!(bench.look(TOP, "a").unwrap().links, 3);
    let remove = |folder, name| FileOperation::RemoveFolder { folder, name: named(name) };
    assert_eq!(bench.run(remove(TOP, "a")).map(drop), Err(Errno::NotEmpty));
    assert_eq!(bench.run(unlink(TOP, "a")).map(drop), Err(Errno::IsFolder));
    assert_eq!(bench.run(remove(folder, "..")).map(drop), Err(Errno::NotEmpty));
    assert_eq!(bench.run(remove(folder, ".")).map(drop), Err(Errno::Invalid));
    bench.make_file(inner, "file");
    assert_eq!(bench.run(remove(inner, "file")).map(drop), Err(Errno::NotFolder));
    bench.run(unlink(inner, "file")).unwrap();
    bench.open(inner).unwrap_err();
    let read = FileOperation::Open { inode: inner, read: true, write: false, truncate: false, maps: false };
    bench.run(read).unwrap();
    bench.run(remove(folder, "b")).unwrap();
    assert_eq!(bench.run(create(inner, "late", true)).map(drop), Err(Errno::NotFound), "it was removed");
    assert_eq!(bench.names(inner).len(), 0);
    bench.close(inner);
    bench.run(remove(TOP, "a")).unwrap();
    assert_eq!((bench.state.inodes.len(), bench.look(TOP, ".").unwrap().links), (1, 2));
}

#[test]
fn a_rename_takes_the_place_of_what_was_there() {
    let mut bench = Bench::new();
    let (a, b) = (bench.make_file(TOP, "a"), bench.make_file(TOP, "b"));
    bench.run(rename(TOP, "a", TOP, "b")).unwrap();
    assert_eq!((bench.names(TOP), bench.look(TOP, "b").unwrap().inode), (vec!["b".to_owned()], a));
    assert!(bench.state.inode(b).is_none());
    let (full, empty) = (bench.make_folder(TOP, "full"), bench.make_folder(TOP, "empty"));
    bench.make_file(full, "x");
    assert_eq!(bench.run(rename(TOP, "empty", TOP, "full")).map(drop), Err(Errno::NotEmpty));
    assert_eq!(bench.run(rename(TOP, "b", TOP, "full")).map(drop), Err(Errno::IsFolder));
    assert_eq!(bench.run(rename(TOP, "full", TOP, "b")).map(drop), Err(Errno::NotFolder));
    bench.run(rename(TOP, "full", TOP, "empty")).unwrap();
    assert!(bench.state.inode(empty).is_none());
    assert_eq!(bench.look(TOP, ".").unwrap().links, 3);
    // The two names are of one inode, so nothing happens.
    bench.entry(FileOperation::Link { inode: a, folder: TOP, name: named("c") }).unwrap();
    bench.run(rename(TOP, "b", TOP, "c")).unwrap();
    assert_eq!(bench.names(TOP).len(), 3);
}

#[test]
fn no_folder_comes_to_lie_in_itself() {
    let mut bench = Bench::new();
    let a = bench.make_folder(TOP, "a");
    let b = bench.make_folder(a, "b");
    assert_eq!(bench.run(rename(TOP, "a", a, "x")).map(drop), Err(Errno::Invalid));
    assert_eq!(bench.run(rename(TOP, "a", b, "x")).map(drop), Err(Errno::Invalid));
    let c = bench.make_folder(TOP, "c");
    bench.run(rename(a, "b", c, "b")).unwrap();
    assert_eq!(bench.look(b, "..").unwrap().inode, c);
    let links = |bench: &mut Bench, name| bench.look(TOP, name).unwrap().links;
    assert_eq!((links(&mut bench, "a"), links(&mut bench, "c")), (2, 3));
    let swap = |folder, name, to_folder, to_name| FileOperation::Rename {
        folder,
        name: named(name),
        to_folder,
        to_name: named(to_name),
        no_replace: false,
        exchange: true,
        whiteout: false,
    };
    assert_eq!(bench.run(swap(c, "b", TOP, "c")).map(drop), Err(Errno::Invalid));
    assert_eq!(bench.run(swap(TOP, "c", c, "b")).map(drop), Err(Errno::Invalid));
    assert_eq!(bench.run(swap(TOP, "c", TOP, "none")).map(drop), Err(Errno::NotFound));
    let file = bench.make_file(TOP, "file");
    bench.run(swap(TOP, "file", c, "b")).unwrap();
    assert_eq!(bench.look(c, "b").unwrap().inode, file);
    assert_eq!((bench.look(TOP, "file").unwrap().inode, bench.look(b, "..").unwrap().inode), (b, TOP));
    assert_eq!((links(&mut bench, "c"), links(&mut bench, ".")), (2, 5));
}

#[test]
fn a_rename_may_refuse_to_replace() {
    let mut bench = Bench::new();
    bench.make_file(TOP, "a");
    bench.make_file(TOP, "b");
    let gently = |to_name, exchange| FileOperation::Rename {
        folder: TOP,
        name: named("a"),
        to_folder: TOP,
        to_name: named(to_name),
        no_replace: true,
        exchange,
        whiteout: false,
    };
    assert_eq!(bench.run(gently("b", false)).map(drop), Err(Errno::Exists));
    assert_eq!(bench.run(gently("b", true)).map(drop), Err(Errno::Invalid));
    bench.run(gently("c", false)).unwrap();
    assert_eq!(bench.names(TOP), ["b", "c"]);
    assert_eq!(bench.run(rename(TOP, "b", TOP, "..")).map(drop), Err(Errno::Invalid));
    assert_eq!(bench.run(rename(TOP, "a", TOP, "d")).map(drop), Err(Errno::NotFound));
}

#[test]
fn links_have_a_limit() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "0");
    for number in 1..MAX_LINKS {
        let name = named(&number.to_string());
        bench.run(FileOperation::Link { inode: file, folder: TOP, name }).unwrap();
    }
    let one_more = FileOperation::Link { inode: file, folder: TOP, name: named("more") };
    assert_eq!(bench.run(one_more).map(drop), Err(Errno::TooManyLinks));
    let folder = bench.make_folder(TOP, "folder");
    let of_folder = FileOperation::Link { inode: folder, folder: TOP, name: named("more") };
    assert_eq!(bench.run(of_folder).map(drop), Err(Errno::NotPermitted));
}

#[test]
fn a_list_goes_on_where_it_stopped_while_names_go() {
    let mut bench = Bench::new();
    let names: Vec<_> = (0..100).map(|number| format!("name {number}")).collect();
    for name in &names {
        bench.make_file(TOP, name);
    }
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let list = FileOperation::List { folder: TOP, after, upto: None, most: 7 };
        let Ok(FileOutcome::Entries { entries, end, above, .. }) = bench.run(list) else { panic!() };
        assert_eq!(above, TOP);
        for entry in entries {
            after = entry.cookie;
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            bench.run(unlink(TOP, &name)).unwrap();
            found.push(name);
        }
        if end {
            break;
        }
    }
    assert_eq!(found, names, "each once, although all were removed");
    let list = FileOperation::List { folder: TOP, after: u64::MAX, upto: None, most: 7 };
    assert!(
        matches!(bench.run(list), Ok(FileOutcome::Entries { entries, end: true, .. }) if entries.is_empty())
    );
    assert_eq!(bench.state.memory, Bench::new().state.memory);
}

#[test]
fn an_empty_file_takes_little_memory() {
    let mut bench = Bench::new();
    let before = bench.state.memory;
    bench.make_file(TOP, "sixteen bytes ok");
    assert!(bench.state.memory - before <= 400);
}

#[test]
fn memory_and_inodes_have_limits() {
    let mut bench = Bench::with(VolumeTerms { inodes: 3, ..Default::default() });
    bench.make_file(TOP, "a");
    bench.make_file(TOP, "b");
    assert_eq!(bench.run(create(TOP, "c", true)).map(drop), Err(Errno::Full));
    bench.run(unlink(TOP, "a")).unwrap();
    bench.run(create(TOP, "c", true)).unwrap();
    let mut bench = Bench::new();
    bench.limits.memory = bench.state.memory + 1000;
    let full = (0..10).find_map(|number| bench.run(create(TOP, &format!("{number}"), true)).err());
    assert_eq!(full, Some(Errno::Full));
}

#[test]
fn times_are_those_of_the_home_or_those_that_are_set() {
    use plasmon::wire::files::{Change as TimeChange, Time};
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let long_ago = Time { seconds: -1, nanos: 999_999_999 };
    let set = SetAttributes { modified: TimeChange::To(long_ago), ..Default::default() };
    let attributes = bench.entry(FileOperation::SetAttributes { inode: file, set }).unwrap();
    assert_eq!((attributes.modified, attributes.changed.seconds), (long_ago, bench.now));
    let wrong = Time { seconds: 0, nanos: 1_000_000_000 };
    let set = SetAttributes { accessed: TimeChange::To(wrong), ..Default::default() };
    assert_eq!(bench.run(FileOperation::SetAttributes { inode: file, set }).map(drop), Err(Errno::Invalid));
    let before = bench.look(TOP, ".").unwrap().modified;
    bench.make_file(TOP, "b");
    assert!(bench.look(TOP, ".").unwrap().modified > before);
    // The clock of the host that writes may be ahead.
    let ahead = Time { seconds: bench.now + 100, nanos: 7 };
    let (section, _) = bench.section(0, 10);
    let commit = FileOperation::Commit {
        inode: file,
        sections: vec![section],
        modified: Some(ahead),
        drops_privileges: false,
        credit: 0,
        credit_of: 0,
    };
    let attributes = bench.entry(commit).unwrap();
    assert_eq!(
        (attributes.modified, attributes.changed),
        (ahead, ahead),
        "no bytes are later than the change"
    );
}

#[test]
fn a_name_is_looked_up_with_those_that_were_made_after_it() {
    let mut bench = Bench::new();
    let names: Vec<_> = (0..10).map(|number| format!("name {}", 9 - number)).collect();
    for name in &names {
        bench.make_file(TOP, name);
    }
    let look = |bench: &mut Bench, name: &str, most| {
        let ahead = FileOperation::LookAhead { folder: TOP, name: named(name), most };
        let FileOutcome::Entries { entries, end, .. } = bench.run(ahead)? else { panic!() };
        let names = entries.into_iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap());
        Ok::<_, Errno>((names.collect::<Vec<_>>(), end))
    };
    assert_eq!(look(&mut bench, &names[2], 3), Ok((names[2..5].to_vec(), false)));
    bench.run(unlink(TOP, &names[3])).unwrap();
    assert_eq!(look(&mut bench, &names[2], 2), Ok((vec![names[2].clone(), names[4].clone()], false)));
    assert_eq!(look(&mut bench, &names[9], 4), Ok((names[9..].to_vec(), true)));
    assert_eq!(look(&mut bench, &names[3], 4), Err(Errno::NotFound));
    assert_eq!(look(&mut bench, "", 4), Err(Errno::NotFound));
    assert_eq!(look(&mut bench, "..", 4), Err(Errno::NotFound));
}

#[test]
fn a_list_ends_with_what_was_there_when_it_began() {
    let mut bench = Bench::new();
    for number in 0..10 {
        bench.make_file(TOP, &number.to_string());
    }
    let (mut found, mut from) = (Vec::new(), (0, None));
    loop {
        let (after, upto) = from;
        let list = FileOperation::List { folder: TOP, after, upto, most: 3 };
        let Ok(FileOutcome::Entries { entries, end, last, .. }) = bench.run(list) else { panic!() };
        for entry in &entries {
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            bench.run(rename(TOP, &name, TOP, &format!("{name}+"))).unwrap();
            found.push(name);
        }
        if end {
            break;
        }
        from = (entries.last().unwrap().cookie, Some(last));
    }
    assert_eq!(found, (0..10).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(bench.names(TOP).len(), 10);
}

#[test]
fn a_name_that_stands_for_another_inode_keeps_its_place_in_lists() {
    let mut bench = Bench::new();
    for name in ["a", "b", "c", "new"] {
        bench.make_file(TOP, name);
    }
    let memory = bench.state.memory;
    bench.run(rename(TOP, "new", TOP, "b")).unwrap();
    assert_eq!(bench.names(TOP), ["a", "b", "c"]);
    assert!(bench.state.memory < memory);
    let exchange = FileOperation::Rename {
        folder: TOP,
        name: named("a"),
        to_folder: TOP,
        to_name: named("c"),
        no_replace: false,
        exchange: true,
        whiteout: false,
    };
    bench.run(exchange).unwrap();
    assert_eq!(bench.names(TOP), ["a", "b", "c"]);
}

#[test]
fn a_folder_that_is_gone_has_no_names_and_gets_none() {
    let mut bench = Bench::new();
    let folder = bench.make_folder(TOP, "d");
    let file = bench.make_file(TOP, "a");
    bench.run(FileOperation::RemoveFolder { folder: TOP, name: named("d") }).unwrap();
    let fails = |bench: &mut Bench, folder| {
        let link = FileOperation::Link { inode: file, folder, name: named("x") };
        let make = FileOperation::MakeFolder { folder, name: named("x"), mode: 0o755 };
        let remove = FileOperation::RemoveFolder { folder, name: named("x") };
        let ahead = FileOperation::LookAhead { folder, name: named("x"), most: 4 };
        let all = [
            lookup(folder, "x"),
            create(folder, "x", false),
            make,
            link,
            unlink(folder, "x"),
            remove,
            rename(folder, "x", TOP, "y"),
            rename(TOP, "a", folder, "y"),
            ahead,
        ];
        for operation in all {
            let what = format!("{operation:?}");
            assert_eq!(bench.run(operation).map(drop), Err(Errno::NotFound), "{what}");
        }
        assert!(bench.names(folder).is_empty());
    };
    fails(&mut bench, folder);
    // One that is open is there, and has no names either.
    let opened = bench.make_folder(TOP, "d");
    let open = FileOperation::Open { inode: opened, read: true, write: false, truncate: false, maps: false };
    bench.run(open).unwrap();
    bench.run(FileOperation::RemoveFolder { folder: TOP, name: named("d") }).unwrap();
    fails(&mut bench, opened);
    let attributes = bench.entry(FileOperation::GetAttributes { inode: opened }).unwrap();
    assert_eq!((attributes.links, attributes.kind), (0, FileKind::Folder));
    bench.close(opened);
    assert_eq!(bench.entry(FileOperation::GetAttributes { inode: opened }), Err(Errno::Stale));
}

//! Memory that names take, as it is counted and as the allocator gives it.

use std::env;
use std::process::Command;

use plasmon::wire::files::{FileOperation, Section, Source};

use super::{Bench, commit, named};
use crate::memory::taken;

/// Environment variable of the process that runs nothing but this test.
const ALONE: &str = "PLASMON_NAMES_TEST_ALONE";

/// Number of names of each kind.
const NAMES: u64 = 4_000;
/// Maximum number of bytes of memory of a file with a short name and one section.
const MOST: u64 = 600;

/// Something that has a name, and what makes one of it in a folder.
type Kind = (&'static str, fn(&mut Bench, u64, &str));

fn file(bench: &mut Bench, folder: u64, name: &str, sections: u64) {
    let file = bench.make_file(folder, name);
    for number in 0..sections {
        // They do not touch, and stay sections of their own.
        let (section, _) = bench.section(number * 10_000, 5000);
        bench.run(commit(file, vec![section])).expect("the file is there");
    }
}

const KINDS: &[Kind] = &[
    ("file without bytes", |bench, folder, name| file(bench, folder, name, 0)),
    ("file with one section", |bench, folder, name| file(bench, folder, name, 1)),
    ("file with three sections", |bench, folder, name| file(bench, folder, name, 3)),
    ("file with twenty sections", |bench, folder, name| file(bench, folder, name, 20)),
    ("file with bytes in the map", |bench, folder, name| {
        let inode = bench.make_file(folder, name);
        let source = Source::Inline(vec![7; 100].into());
        bench.run(commit(inode, vec![Section { offset: 0, len: 100, source }])).expect("the file is there");
    }),
    ("folder", |bench, folder, name| _ = bench.make_folder(folder, name)),
    ("folder with a file", |bench, folder, name| {
        let folder = bench.make_folder(folder, name);
        file(bench, folder, name, 0);
    }),
    ("link", |bench, folder, name| {
        let target = bench.look(1, "target").expect("it was made").inode;
        bench.run(FileOperation::Link { inode: target, folder, name: named(name) }).expect("few links");
    }),
    ("symbolic link", |bench, folder, name| {
        let target = b"../folder-00000001/file"[..].into();
        let made = FileOperation::MakeSymlink { folder, name: named(name), target };
        bench.run(made).expect("it is new");
    }),
    ("file with an attribute", |bench, folder, name| {
        let inode = bench.make_file(folder, name);
        let (name, value) = (named("user.a"), named("value"));
        let set = FileOperation::SetXattr { inode, name, value, create: false, replace: false };
        bench.run(set).expect("the file is there");
    }),
    ("open file", |bench, folder, name| {
        let inode = bench.make_file(folder, name);
        bench.open(inode).expect("the file is there");
    }),
];

#[test]
fn names_take_what_is_counted() {
    if env::var_os(ALONE).is_none() {
        // Other tests of this process would take and give memory meanwhile.
        let test = "files::decide::tests::memory::names_take_what_is_counted";
        let program = env::current_exe().expect("a test is a program");
        let alone = Command::new(program).args([test, "--exact", "--nocapture"]).env(ALONE, "1").output();
        let alone = alone.expect("the program of the tests runs again");
        let [out, log] = [&alone.stdout, &alone.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(alone.status.success() && out.contains("1 passed"), "{out}{log}");
        return;
    }
    for (kind, make) in KINDS {
        let mut bench = Bench::new();
        bench.make_file(1, "target");
        let before = (taken(), bench.state.memory);
        for folder in 0..NAMES / 100 {
            let folder = bench.make_folder(1, &format!("folder-{folder:08}"));
            (0..100).for_each(|name| make(&mut bench, folder, &format!("file-{name:06}.txt")));
        }
        let (is, counted) = (taken() - before.0, bench.state.memory - before.1);
        let [is, counted] = [is, counted].map(|bytes| bytes / NAMES);
        eprintln!("{kind}: {is} bytes are taken, {counted} are counted");
        assert!(is <= counted * 21 / 20, "{kind}: {is} bytes are taken, {counted} are counted");
        if *kind == "file with one section" {
            assert!(counted <= MOST, "{counted} bytes");
        }
    }
}

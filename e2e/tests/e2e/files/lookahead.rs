//! Names that a program looks up one after another come to its host in pages.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use plasmon_e2e::{Cluster, eventually};

use super::{Mounted, can_mount, unless_late};

/// Number of files of a folder.
const FILES: usize = 100;

fn path(folder: usize, file: usize) -> String {
    format!("folder {folder}/file {file}")
}

/// Makes a folder with empty files.
fn fill(mounted: &Mounted, folder: usize) {
    fs::create_dir(mounted.path(&format!("folder {folder}"))).expect("mkdir");
    for file in 0..FILES {
        File::create_new(mounted.path(&path(folder, file))).expect("create");
    }
}

fn mode(mounted: &Mounted, path: &str) -> u32 {
    fs::metadata(mounted.path(path)).expect("stat").mode() & 0o777
}

#[test]
fn a_program_that_looks_at_all_files_asks_a_few_questions() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    let mut folder = 0;
    // Attributes that came ahead are over after a second: a slower host asks again.
    eventually("100 files are looked at with fewer than 30 questions", || {
        folder += 1;
        fill(&one, folder);
        let before = cluster.status(1).files.asked;
        for file in 0..FILES {
            assert_eq!(fs::metadata(two.path(&path(folder, file))).expect("stat").len(), 0);
        }
        cluster.status(1).files.asked - before < 30
    });
}

#[test]
fn what_came_ahead_is_not_told_after_a_change() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    let change = |folder: usize, by: &Mounted| {
        fill(&one, folder);
        let at = |file: usize| path(folder, file);
        for file in 0..20 {
            assert_eq!(mode(&two, &at(file)), mode(&one, &at(file)), "file {file}");
        }
        // Some of these came to the second host, which was asked for none.
        fs::set_permissions(by.path(&at(22)), PermissionsExt::from_mode(0o600)).expect("chmod");
        assert_eq!(mode(&two, &at(22)), 0o600);
        fs::write(by.path(&at(23)), "text").expect("write");
        assert_eq!(fs::metadata(two.path(&at(23))).expect("stat").len(), 4);
        fs::remove_file(by.path(&at(24))).expect("unlink");
        assert_eq!(fs::metadata(two.path(&at(24))).expect_err("it is gone").kind(), ErrorKind::NotFound);
        fs::rename(by.path(&at(25)), by.path(&at(26))).expect("rename");
        let inode = |mounted: &Mounted| fs::metadata(mounted.path(&at(26))).expect("stat").ino();
        assert!(!two.path(&at(25)).exists());
        assert_eq!(inode(&one), inode(&two));
        // Another name in another folder changes the number of names.
        fs::hard_link(by.path(&at(27)), by.path(&format!("link {folder}"))).expect("link");
        assert_eq!(fs::metadata(two.path(&at(27))).expect("stat").nlink(), 2);
        fs::remove_file(by.path(&format!("link {folder}"))).expect("unlink");
        assert_eq!(fs::metadata(two.path(&at(27))).expect("stat").nlink(), 1);
        for file in 28..FILES {
            let by = if file % 2 == 0 { &one } else { &two };
            fs::set_permissions(by.path(&at(file)), PermissionsExt::from_mode(0o640)).expect("chmod");
            assert_eq!(mode(&two, &at(file)), 0o640, "file {file} of folder {folder}");
        }
    };
    for (round, by) in [&one, &two, &one, &two].into_iter().enumerate() {
        unless_late(&cluster, |attempt| change(10 * round + attempt, by));
    }
}

//! Tests of the choice of homes and mirrors: for volumes that are made where no names may be, for more
//! volumes than there may be, and as their owners say.

use std::fs;

use plasmon::ErrorKind;
use plasmon::files::{Actor, AttachOptions, Volume, VolumeTerms, Volumes};
use plasmon_e2e::{Cluster, Pattern, eventually};
use serde_json::json;

use super::mirrors::{id, row};
use super::{Mounted, can_mount, plasmon, text, try_mount};
use crate::commands::{self, failure};
use crate::support::MIB;

#[test]
fn the_first_mount_by_a_node_that_keeps_no_names_has_its_home_elsewhere() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().memory("128MiB").start();
    let options: [&[&str]; 3] = [&["--cache"], &["--no-files"], &["--files-memory", "1B"]];
    let others = options.map(|options| cluster.add_node_with(options));
    let home = id(&cluster, 0);
    let data = Pattern(3).bytes(2 * MIB);
    for (node, options) in others.into_iter().zip(options) {
        let mounted = Mounted::new(&cluster, node);
        let told = row(&cluster, 0);
        assert_eq!((&told["name"], &told["home"]), (&json!("main"), &json!(home)), "{options:?}");
        fs::write(mounted.path("file"), &data).expect("write");
        assert!(fs::read(mounted.path("file")).expect("read") == data, "{options:?}");
        mounted.unmount();
        let remove = || plasmon(&["volume", "rm", "main", "--socket", text(&cluster.socket(0))]);
        eventually("the session has ended", || remove().status.success());
        // A volume that is made there has the same home, and one that is to be there is refused.
        let told = commands::json(&cluster, node, &["volume", "create", "made"]);
        assert_eq!(told["home"], json!(home), "{options:?}");
        let named = id(&cluster, node);
        failure(&cluster, 0, &["volume", "create", "named", "--home", &named]);
        commands::json(&cluster, node, &["volume", "rm", "made"]);
    }
    assert_eq!(cluster.status(others[0]).files.mirrors, 0, "a cache is no mirror");
}

#[test]
fn a_mount_without_any_node_that_keeps_names_says_so() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().args(&["--cache"]).start();
    let folder = super::ground::Folder::new();
    let refused = try_mount(&cluster, 0, folder.path(), &[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("start a node without these options"), "{said}");
    let (_, said) = failure(&cluster, 0, &["volume", "create", "scratch"]);
    assert!(said.contains("'scratch' can have no home"), "{said}");
    assert_eq!(commands::json(&cluster, 0, &["volume", "ls"]), json!([]));
    assert_eq!(fs::read_dir(folder.path()).expect("nothing is mounted").count(), 0);
    // All nodes of this cluster are started as caches, and the second one too.
    let other = cluster.add_node();
    let refused = try_mount(&cluster, other, folder.path(), &[]);
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
fn the_number_of_nodes_with_the_names_changes_while_the_volume_is_mounted() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    let home = 1;
    super::mirrors::create(&cluster, home, &[]);
    let mounted = Mounted::new(&cluster, 0);
    for (number, copies) in ["3", "1", "2"].into_iter().enumerate() {
        let told = commands::json(&cluster, 2, &["volume", "set", "main", "--metadata-copies", copies]);
        assert_eq!(told["metadata_copies"].to_string(), copies);
        fs::write(mounted.path(copies), copies).expect("write");
        let mirrors = || row(&cluster, 0)["mirrors"].as_array().map(Vec::len);
        eventually("mirrors join or go", || mirrors().is_some_and(|many| (many + 1).to_string() == copies));
        assert_eq!(fs::read_dir(mounted.root()).expect("opendir").count(), number + 1);
    }
    let (code, _) = failure(&cluster, 0, &["volume", "set", "main", "--metadata-copies", "9"]);
    assert_eq!(code, 2);
    let change = plasmon::files::VolumeChange { metadata_copies: Some(9), ..Default::default() };
    let refused = Volumes::by(&cluster.client(0)).set("main", change).expect_err("there may be 8");
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    // The mirror has everything.
    cluster.kill(home);
    for copies in ["3", "1", "2"] {
        assert_eq!(fs::read_to_string(mounted.path(copies)).expect("read"), copies);
    }
}

#[test]
fn the_name_of_a_volume_that_was_removed_is_free_on_every_node() {
    let cluster = Cluster::builder().nodes(3).start();
    let clients = [0, 1, 2].map(|node| cluster.client(node));
    for number in 0..60 {
        let by = |at: usize| Volumes::by(&clients[at % clients.len()]);
        let made = by(number).create("again", None, VolumeTerms::default());
        made.unwrap_or_else(|error| panic!("round {number}: {error}"));
        let twice = by(number + 1).create("again", None, VolumeTerms::default()).expect_err("it is there");
        assert_eq!(twice.kind(), ErrorKind::Exists, "{twice}");
        by(number / 3).remove("again").unwrap_or_else(|error| panic!("round {number}: {error}"));
    }
}

/// Makes volumes by the first node until there may be no more. Returns how many there are, and the error.
fn fill(cluster: &Cluster) -> (usize, plasmon::Error) {
    let client = cluster.client(0);
    let terms = VolumeTerms { metadata_copies: 1, ..VolumeTerms::default() };
    let make = |number: usize| Volumes::by(&client).create(&format!("v{number}"), None, terms.clone()).err();
    let refused = (0..).find_map(|number| Some((number, make(number)?)));
    refused.expect("there may be so many alone")
}

fn check_full(cluster: &Cluster, part: &str) -> usize {
    let (many, error) = fill(cluster);
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains(part), "{error}");
    let listed = || Volumes::by(&cluster.client(0)).list().expect("the node answers").volumes.len();
    assert_eq!(listed(), many, "all that were made are there");
    Volumes::by(&cluster.client(0)).remove("v0").expect("it is there");
    assert_eq!(fill_one(cluster), None, "there is room for one");
    assert_eq!(listed(), many);
    many
}

fn fill_one(cluster: &Cluster) -> Option<plasmon::Error> {
    let terms = VolumeTerms { metadata_copies: 1, ..VolumeTerms::default() };
    Volumes::by(&cluster.client(0)).create("again", None, terms).err()
}

#[test]
fn more_volumes_than_a_node_has_memory_for_are_refused() {
    let cluster = Cluster::builder().args(&["--files-memory", "64KiB"]).start();
    let many = check_full(&cluster, "--files-memory");
    assert!(many > 50, "{many}");
    // The file of which there was to be room has it.
    let volume = Volume::attach(&cluster.client(0), "again", &AttachOptions::default()).expect("attach");
    volume.make_folder(&Actor::default(), plasmon::files::ROOT_INODE, b"folder", 0o755).expect("mkdir");
}

#[test]
fn more_volumes_than_a_cluster_may_have_are_refused() {
    if std::env::var_os("PLASMON_E2E_LONG").is_none() {
        eprintln!("skipped: it takes a while to make thousands of volumes");
        return;
    }
    let cluster = Cluster::builder().start();
    assert_eq!(check_full(&cluster, "`plasmon volume rm`"), 4096);
}

//! Tests of the choice of libfabric: a node runs with the one that it was told, or says why not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use plasmon::Client;
use plasmon_e2e::{Cluster, Daemon, Refused, binary};

fn serve(cluster: &Cluster, libfabric: &str) -> Command {
    let mut command = Command::new(binary());
    command.args(["serve", "--json", "--exit-with-parent", "--memory", "16MiB", "--listen", "127.0.0.1:0"]);
    command.args(["--libfabric", libfabric]).arg("--socket").arg(cluster.folder().join("other.sock"));
    command
}

/// Path of the libfabric that a node runs with.
fn in_use(cluster: &Cluster, command: Command) -> PathBuf {
    let daemon = Daemon::start(command, cluster.folder(), "other").expect("it starts");
    Client::connect(daemon.socket())
        .and_then(|client| client.status())
        .expect("it answers")
        .fabric
        .library
        .into()
}

/// Message of a node that does not start.
fn refused(command: Command, folder: &Path) -> String {
    match Daemon::start(command, folder, "other") {
        Ok(daemon) => panic!("it serves:\n{}", daemon.log()),
        Err(Refused { log, .. }) => log,
    }
}

#[test]
fn a_node_runs_with_the_libfabric_of_a_file() {
    let cluster = Cluster::builder().start();
    let system = in_use(&cluster, serve(&cluster, "system"));
    assert_eq!(system.file_name().expect("it is a file"), "libfabric.so.1");
    let copy = cluster.folder().join("libfabric-of-ours.so");
    fs::copy(&system, &copy).expect("the folder is ours");
    assert_eq!(in_use(&cluster, serve(&cluster, copy.to_str().expect("it is text"))), copy);
}

#[test]
fn a_libfabric_that_is_none_is_named() {
    let cluster = Cluster::builder().start();
    let folder = cluster.folder();
    let file = folder.join("libfabric.so.1");
    let named = file.to_str().expect("it is text").to_owned();
    let said = refused(serve(&cluster, &named), folder);
    assert!(said.contains(&named), "{said}");
    fs::write(&file, "no library").expect("the folder is ours");
    let said = refused(serve(&cluster, &named), folder);
    assert!(said.contains(&named), "{said}");
    let said = refused(serve(&cluster, "libfabric"), folder);
    assert!(said.contains("bundled, system, or the path"), "{said}");
}

#[test]
fn a_build_has_no_libfabric_of_its_own() {
    let cluster = Cluster::builder().start();
    let said = refused(serve(&cluster, "bundled"), cluster.folder());
    assert!(said.contains("without a libfabric of its own"), "{said}");
}

//! Tests of settings: flags, environment, file and defaults have one order, and an error tells its place.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use plasmon_e2e::{Cluster, binary};
use serde_json::Value;
use tempfile::TempDir;

/// Runs `plasmon serve` with a home folder of its own and only the given environment.
fn serve(home: &Path, environment: &[(&str, &str)], words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.env_clear().env("HOME", home).envs(environment.iter().copied());
    command.arg("serve").args(words).output().expect("plasmon runs")
}

/// Settings in force: value and source by key.
fn in_force(home: &Path, environment: &[(&str, &str)], words: &[&str]) -> Value {
    let output = serve(home, environment, &[words, &["--print-config", "--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// Exit code and message of a start that fails.
fn refused(home: &Path, environment: &[(&str, &str)], words: &[&str]) -> (Option<i32>, String) {
    let output = serve(home, environment, words);
    assert!(!output.status.success(), "{words:?} should have failed");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn home() -> TempDir {
    tempfile::tempdir().expect("the temporary folder is writable")
}

fn write(home: &Path, name: &str, text: &str) -> String {
    let path = home.join(name);
    fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder is ours");
    fs::write(&path, text).expect("the folder is ours");
    path.to_str().expect("it is text").to_owned()
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    let home = home();
    let file = write(
        home.path(),
        "own.toml",
        "# of a test\nmemory = \"1GiB\"\nlease = 7\nmax-clients = 5\ncache = true\n\
         socket = \"/tmp/of-the-file\"\n",
    );
    let environment =
        [("PLASMON_MEMORY", "2GiB"), ("PLASMON_MAX_CLIENTS", "6"), ("PLASMON_CONFIG", file.as_str())];
    let rows = in_force(home.path(), &environment, &["--memory", "3GiB", "--cache=false"]);
    let is = |key: &str, value: &str, source: &str| {
        assert_eq!((&rows[key]["value"], &rows[key]["source"]), (&value.into(), &source.into()), "{key}");
    };
    is("memory", "3GiB", "flag --memory");
    is("max-clients", "6", "environment PLASMON_MAX_CLIENTS");
    is("lease", "7", &format!("file {file}"));
    is("socket", "/tmp/of-the-file", &format!("file {file}"));
    is("cache", "false", "flag --cache");
    is("socket-mode", "0600", "default");
    assert_eq!(rows["spill-dir"]["value"], Value::Null);

    // The output for people is a file with the same meaning.
    let printed = serve(home.path(), &environment, &["--memory", "3GiB", "--cache=false", "--print-config"]);
    let printed = write(home.path(), "printed.toml", &String::from_utf8_lossy(&printed.stdout));
    let again = in_force(home.path(), &[], &["--config", &printed]);
    for (key, row) in rows.as_object().expect("it is an object") {
        assert_eq!(row["value"], again[key]["value"], "{key}");
    }
}

#[test]
fn the_file_is_found_where_it_should_be() {
    let (home, other) = (home(), home());
    write(home.path(), ".config/plasmon/plasmon.toml", "memory = \"1GiB\"\n");
    write(other.path(), "plasmon/plasmon.toml", "memory = \"2GiB\"\n");
    assert_eq!(in_force(home.path(), &[], &[])["memory"]["value"], "1GiB");
    let other = other.path().to_str().expect("it is text");
    assert_eq!(in_force(home.path(), &[("XDG_CONFIG_HOME", other)], &[])["memory"]["value"], "2GiB");
    let named = write(home.path(), "named.toml", "lease = 9\n");
    let rows = in_force(home.path(), &[], &["--config", &named]);
    assert_eq!(
        (&rows["lease"]["value"], &rows["memory"]["source"]),
        (&"9".into(), &"default".into()),
        "one file counts"
    );
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let home = home();
    let wrong = |text: &str, place: &str, words: &[&str]| {
        let file = write(home.path(), "wrong.toml", text);
        let (code, said) = refused(home.path(), &[], &["--config", &file]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("wrong.toml") && said.contains(place), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    wrong("memory = \"1GiB\"\n\nmemroy = \"2GiB\"\n", ":3:", &["memroy", "memory"]);
    wrong("lease = 5\nmemory = \"much\"\n", ":2:", &["much", "4GiB"]);
    wrong("memory = [1]\n", ":1:", &["one value"]);
    wrong("[node]\nmemory = \"1GiB\"\n", ":1:", &["node"]);
    wrong("memory = \"1GiB\"\nlease 5\n", ":2:", &["lease 5"]);
    wrong("# size\nmemory = 64MiB  # of it\n", ":2:", &["needs quotes", "memory = \"64MiB\""]);
    wrong("lease = 5\nlease = 6\n", ":2:", &["duplicate"]);
    wrong("print-config = true\n", ":1:", &["print-config"]);
    let (code, said) = refused(home.path(), &[], &["--config", "/nowhere.toml"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("/nowhere.toml"), "{said}");
    let (code, said) = refused(home.path(), &[("PLASMON_MEMORY", "much")], &[]);
    assert_eq!(code, Some(2), "{said}");
    let file = write(home.path(), "cache.toml", "cache = true\n");
    let (code, said) = refused(home.path(), &[], &["--config", &file, "--spill-dir", "/tmp/never"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("cache and spill-dir"), "{said}");
}

#[test]
fn a_node_obeys_its_file() {
    let cluster = Cluster::builder().start();
    let file = write(cluster.folder(), "plasmon.toml", "memory = \"32MiB\"\nmetrics = \"127.0.0.1:0\"\n");
    let mut command = cluster.command(0, &binary());
    command.args(["serve", "--json", "--exit-with-parent", "--listen", "127.0.0.1:0", "--config", &file]);
    command.env("PLASMON_SOCKET", cluster.folder().join("other.sock"));
    let daemon = cluster.launch(0, command).expect("it serves");
    let client = plasmon::Client::connect(daemon.socket()).expect("it serves");
    assert_eq!(client.capacity(), 32 << 20);
    assert!(daemon.announces("metrics"));
}

#[test]
fn a_spill_directory_is_not_made_where_a_disk_is_missing() {
    let home = home();
    let lost = home.path().join("not/mounted");
    for (folder, why) in [
        (lost.to_str().expect("UTF-8"), "the directory above it does not exist either"),
        ("/mnt/plasmon-has-no-such-disk", "disks are mounted in the directory above it"),
    ] {
        let (code, said) = refused(home.path(), &[], &["--memory", "16MiB", "--spill-dir", folder]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(folder) && said.contains(why) && said.contains("mkdir"), "{said}");
        assert!(!Path::new(folder).exists());
    }
}

#[test]
fn a_variable_with_a_slip_is_told() {
    let cluster = Cluster::builder().start();
    let mut command = cluster.serve_at(0, &cluster.folder().join("other.sock"));
    command.args(["--listen", &format!("{}:0", cluster.address(0))]);
    command.env("PLASMON_MEMROY", "1GiB").env("PLASMON_BIM", "no setting");
    let daemon = cluster.launch(0, command).expect("it serves");
    let log = daemon.log();
    assert!(log.contains("PLASMON_MEMROY, which sets nothing: did you mean PLASMON_MEMORY?"), "{log}");
    assert!(!log.contains("PLASMON_BIM"), "{log}");
    let mut command = Command::new(binary());
    let said =
        command.args(["--json", "ls"]).env("PLASMON_SOKET", "/x").output().expect("plasmon runs").stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("PLASMON_SOKET, which sets nothing: did you mean PLASMON_SOCKET?"), "{said}");
}

//! Tests of the files in `deploy/`, as far as they can be tried on one machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use plasmon_e2e::binary;

/// Variables of the job script that are not settings.
const OWN: [&str; 4] = ["PLASMON_FIRST", "PLASMON_HOSTS", "PLASMON_PATIENCE", "PLASMON_PORT"];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn read(name: &str) -> String {
    fs::read_to_string(deploy().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Words of a text that begin with `start` and go on with the given letters.
fn words<'a>(text: &'a str, start: &'a str, goes_on: fn(char) -> bool) -> impl Iterator<Item = &'a str> {
    text.match_indices(start).map(move |(at, _)| {
        let rest = &text[at + start.len()..];
        &text[at..at + start.len() + rest.find(|char| !goes_on(char)).unwrap_or(rest.len())]
    })
}

#[test]
fn settings_in_them_exist() {
    let help = Command::new(binary()).args(["serve", "--help"]).output().expect("plasmon runs").stdout;
    let help = String::from_utf8(help).expect("it is text");
    let variable = |char: char| char.is_ascii_uppercase() || char == '_';
    let known: BTreeSet<_> = words(&help, "PLASMON_", variable).collect();
    assert!(known.contains("PLASMON_SPILL_DIR"), "{help}");
    for name in ["plasmon.toml", "systemd/plasmon.service", "slurm/plasmon.sbatch", "kubernetes/plasmon.yaml"]
    {
        let text = read(name);
        for used in words(&text, "PLASMON_", variable) {
            assert!(known.contains(used) || OWN.contains(&used), "{name}: {used}");
        }
        let served =
            text.lines().filter(|line| line.contains("plasmon serve") || line.trim().starts_with("- --"));
        for line in served.chain(text.lines().filter(|line| line.contains("plasmon, serve"))) {
            for flag in words(line, "--", |char| char.is_ascii_lowercase() || char == '-') {
                assert!(
                    help.contains(&format!("{flag} ")) || help.contains(&format!("{flag}[")),
                    "{name}: {flag}"
                );
            }
        }
    }
}

#[test]
fn the_file_of_settings_is_one() {
    let mut command = Command::new(binary());
    command.args(["serve", "--print-config", "--config"]).arg(deploy().join("plasmon.toml"));
    let output = command.output().expect("plasmon runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("memory = \"8GiB\""), "{output:?}");
}

#[test]
fn systemd_takes_the_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return eprintln!("skipped: there is no systemd-analyze here");
    }
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let unit = read("systemd/plasmon.service");
    assert!(unit.contains("ExecStart=/usr/local/bin/plasmon serve\n"));
    let program = binary();
    let unit = unit.replace("/usr/local/bin/plasmon", program.to_str().expect("it is text"));
    let path = folder.path().join("plasmon.service");
    fs::write(&path, unit).expect("the folder is ours");
    let output =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let about: Vec<_> = said.lines().filter(|line| line.contains("plasmon")).collect();
    assert!(output.status.success() && about.is_empty(), "{said}");
}

/// Replacement of srun that uses processes as hosts: each has a folder for what a host has only once.
const SRUN: &str = r#"#!/usr/bin/env bash
set -u
count=1
while [[ $1 == --* ]]; do
    [[ $1 == --ntasks=* ]] && count=${1#*=}
    shift
done
children=()
for ((host = 0; host < count; host++)); do
    mkdir -p "$HOSTS/$host"
    SLURM_NODEID=$host TMPDIR=$HOSTS/$host "$@" &
    children+=($!)
done
trap 'kill -TERM "${children[@]}" 2>/dev/null' TERM
status=0
for child in "${children[@]}"; do
    wait "$child" || { code=$?; wait "$child" 2>/dev/null || true; ((code > status)) && status=$code; }
done
exit "$status"
"#;

/// Replacement of scontrol that names the hosts of the job.
const SCONTROL: &str =
    "#!/usr/bin/env bash\n[ \"$1 $2\" = 'show hostnames' ] || exit 1\nprintf '127.0.0.1\\n%.0s' 1 2 3\n";

/// Program that runs beside each node.
const PROGRAM: &str = r#"set -e
echo "$SLURM_NODEID" | plasmon put - --name "of $SLURM_NODEID" >/dev/null
for host in 0 1 2; do plasmon get "of $host" --timeout 60 >"$RESULTS/$SLURM_NODEID-$host"; done
"#;

#[test]
fn the_job_script_starts_a_node_for_each_host() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("bin")).expect("the folder is ours");
    fs::create_dir(at("results")).expect("the folder is ours");
    for (name, text) in [("srun", SRUN), ("scontrol", SCONTROL)] {
        let path = at("bin").join(name);
        fs::write(&path, text).expect("the folder is ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    }
    let program = binary();
    for name in ["plasmon", "plasmon-node"] {
        symlink(program.with_file_name(name), at("bin").join(name)).expect("the folder is ours");
    }
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("there are ports");
        free.local_addr().expect("it is bound").port().to_string()
    };
    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.arg(deploy().join("slurm/plasmon.sbatch")).args(["bash", "-c", PROGRAM]);
    command.env("PATH", path).env("HOSTS", at("hosts")).env("RESULTS", at("results"));
    command.env("SLURM_JOB_ID", "7").env("SLURM_JOB_NUM_NODES", "3").env("SLURM_JOB_NODELIST", "host[0-2]");
    command.env("PLASMON_MEMORY", "16MiB").env("PLASMON_PORT", port);
    let output = command.output().expect("bash runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    for host in 0..3 {
        for other in 0..3 {
            let got = fs::read_to_string(at("results").join(format!("{host}-{other}")));
            assert_eq!(got.expect("it was got"), format!("{other}\n"), "{log}");
        }
        let socket = at("hosts").join(format!("{host}/plasmon-7/plasmon.sock"));
        assert!(!socket.exists(), "node {host} has stopped and cleaned up: {log}");
    }
}

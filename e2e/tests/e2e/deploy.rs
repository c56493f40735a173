//! Tests of the files in `deploy/`, as far as they can be tried on one machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use plasmon_e2e::binary;

use crate::support::copy_program;

/// Variables of the job script that are not settings.
const OWN: [&str; 3] = ["PLASMON_FIRST", "PLASMON_HOSTS", "PLASMON_PATIENCE"];

/// Files of settings and services, all of which are checked.
const FILES: [&str; 7] = [
    "plasmon.toml",
    "systemd/plasmon.service",
    "slurm/plasmon.sbatch",
    "kubernetes/plasmon.yaml",
    "kubernetes/coordinator-embedded.yaml",
    "kubernetes/coordinator-etcd.yaml",
    "kubernetes/example.yaml",
];

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
    for name in FILES {
        let text = read(name);
        for used in words(&text, "PLASMON_", variable) {
            assert!(known.contains(used) || OWN.contains(&used), "{name}: {used}");
        }
        // Arguments in lines of their own are those of etcd in one of the files.
        let listed = !name.ends_with("etcd.yaml");
        let served = text.lines().filter(|line| {
            line.contains("plasmon serve")
                || line.contains("[serve, ")
                || line.contains("how=(")
                || (listed && line.trim().starts_with("- --"))
        });
        for line in served {
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
fn a_unit_that_is_stopped_has_time_for_its_drain() {
    let unit = read("systemd/plasmon.service");
    let seconds = |start: &str| -> u64 {
        let value = unit.lines().find_map(|line| line.strip_prefix(start));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {start} in {unit}"))
    };
    assert!(seconds("Environment=PLASMON_DRAIN_ON_STOP=") + 10 < seconds("TimeoutStopSec="));
}

#[test]
fn systemd_takes_the_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return eprintln!("skipped: there is no systemd-analyze here");
    }
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let unit = read("systemd/plasmon.service");
    assert!(unit.contains("ExecStart=/opt/plasmon/bin/plasmon serve\n"));
    let program = binary();
    let unit = unit.replace("/opt/plasmon/bin/plasmon", program.to_str().expect("it is text"));
    let path = folder.path().join("plasmon.service");
    fs::write(&path, unit).expect("the folder is ours");
    let output =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let about: Vec<_> = said.lines().filter(|line| line.contains("plasmon")).collect();
    assert!(output.status.success() && about.is_empty(), "{said}");
}

#[test]
fn prometheus_takes_the_rules() {
    let mut command = Command::new("promtool");
    let output = match command.args(["check", "rules"]).arg(deploy().join("prometheus-rules.yml")).output() {
        Ok(output) => output,
        Err(_) => return eprintln!("skipped: there is no promtool here (Debian's package prometheus)"),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("SUCCESS"), "{output:?}");
}

/// Replacement of srun that uses processes as hosts: each has a folder for what a host has only once. As with
/// srun, all tasks get the whole input.
const SRUN: &str = r#"#!/usr/bin/env bash
set -u
count=$SLURM_JOB_NUM_NODES
while [[ $1 == --* ]]; do
    [[ $1 == --ntasks=* ]] && count=${1#*=}
    shift
done
children=()
inputs=()
for ((host = 0; host < count; host++)); do
    mkdir -p "$HOSTS/$host"
    input=$HOSTS/$host/input-$$
    mkfifo "$input"
    SLURM_NODEID=$host SLURMD_NODENAME=host$host TMPDIR=$HOSTS/$host "$@" <"$input" &
    children+=($!)
    inputs+=("$input")
done
tee "${inputs[@]}" <&0 >/dev/null 2>&1 &
tee=$!
status=0
for child in "${children[@]}"; do
    wait "$child" || { code=$?; ((code > status)) && status=$code; }
done
kill "$tee" 2>/dev/null
rm -f "${inputs[@]}"
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
    job_script_starts_nodes("hosts");
}

#[test]
fn the_job_script_starts_nodes_where_paths_are_too_long_for_sockets() {
    job_script_starts_nodes(&"h".repeat(105));
}

/// Runs a job whose hosts have their temporary folders in one of this name.
fn job_script_starts_nodes(hosts: &str) {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("bin")).expect("the folder is ours");
    fs::create_dir(at("results")).expect("the folder is ours");
    for (name, text) in [("srun", SRUN), ("scontrol", SCONTROL)] {
        let written = at(name);
        fs::write(&written, text).expect("the folder is ours");
        fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).expect("the file is ours");
        copy_program(&written, &at("bin").join(name));
    }
    let program = binary();
    for name in ["plasmon", "plasmon-node"] {
        symlink(program.with_file_name(name), at("bin").join(name)).expect("the folder is ours");
    }
    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.arg(deploy().join("slurm/plasmon.sbatch")).args(["bash", "-c", PROGRAM]);
    command.env("PATH", path).env("HOSTS", at(hosts)).env("RESULTS", at("results"));
    // Jobs of other runs of this test have other numbers, so that they share no folder.
    let job = format!("{}{}", std::process::id(), hosts.len());
    command.env("SLURM_JOB_ID", &job).env("SLURM_JOB_NUM_NODES", "3").env("SLURM_JOB_NODELIST", "host[0-2]");
    command.env("SLURM_MEM_PER_NODE", "32").env_remove("PLASMON_MEMORY");
    let output = command.output().expect("bash runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    for host in 0..3 {
        for other in 0..3 {
            let got = fs::read_to_string(at("results").join(format!("{host}-{other}")));
            assert_eq!(got.expect("it was got"), format!("{other}\n"), "{log}");
        }
        let left: Vec<_> = fs::read_dir(at(hosts).join(host.to_string())).expect("it is there").collect();
        assert!(left.is_empty(), "node {host} has stopped and cleaned up, but left {left:?}: {log}");
        let elsewhere = Path::new("/tmp").join(format!("plasmon-{job}-host{host}"));
        assert!(!elsewhere.exists(), "node {host} has left {}", elsewhere.display());
    }
}

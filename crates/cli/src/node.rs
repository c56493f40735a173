//! Root of the program `plasmon-node`: the daemon, which `plasmon serve` starts with its own command line.
//!
//! Owns the node. The main thread makes the settings and then runs the node's engine; with
//! `--exit-with-parent` the thread `plasmon-parent` waits for the end of the parent. Invariant: the log goes
//! to standard error, the announcement to standard output.
#![forbid(unsafe_code)]

mod announcing;
mod cgroup;
mod config;
mod own_files;
mod quoting;
mod secret_file;
mod serve_args;
mod settings;
mod users;
mod values;

use std::error::Error;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use announcing::{Announcement, is_loopback};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use config::Settings;
use plasmon::Socket;
use plasmon::text::{printable_json, printable_lines};
use plasmon_node::memory::Allowance;
use plasmon_node::{Config, EtcdConfig, Node, NodeError, Numa, TlsConfig};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open};
use sd_notify::NotifyState;
use serve_args::{LogFormat, Serve};
use settings::misspelling;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

/// The daemon of Plasmon. `plasmon serve` starts it.
#[derive(Debug, Parser)]
#[command(name = "plasmon-node", version = env!("PLASMON_VERSION"))]
struct Args {
    #[arg(long, global = true, env = "PLASMON_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node until it is told to stop
    Serve(Serve),
}

/// Exit code for wrong arguments, the same as clap's.
const WRONG_ARGUMENTS: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let settings = match Settings::read(Args::command(), &words) {
        Ok(settings) => settings,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::from(WRONG_ARGUMENTS);
        }
    };
    let args = Args::from_arg_matches(&settings.matches).unwrap_or_else(|error| error.exit());
    let Args { socket, json, command: Command::Serve(serve), .. } = args;
    if serve.print_config {
        return match io::stdout().write_all(printable_json(&settings.print(json)).as_bytes()) {
            // A reader that has read enough is no error.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                complain(&format!("cannot write standard output: {error}"));
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        };
    }
    if serve.cache && serve.spill_dir.is_some() {
        settings.refuse(
            "cache and spill-dir exclude each other: a cache drops objects instead of spilling \
                         them",
        );
    }
    match run(socket, json, &serve, &settings.misspelt()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Prints a message on standard error. A failure to print is ignored.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "plasmon: {}", printable_lines(text));
}

/// Runs the node until it is stopped. Reports the variables in `misspelt`, each with the name that was meant.
fn run(
    socket: Option<PathBuf>,
    as_json: bool,
    args: &Serve,
    misspelt: &[(String, String)],
) -> Result<(), Box<dyn Error>> {
    start_log(args);
    misspelt.iter().for_each(|one| warn!("{}", misspelling(one)));
    if args.exit_with_parent {
        follow_parent()?;
    }
    let config = config(socket, args)?;
    let (wanted, secret_file) = (config.socket.clone(), config.secret_file.clone());
    let node = match Node::start(config) {
        // A node that is stopped while it starts ends well.
        Err(stopped @ NodeError::Stopped(_)) => {
            info!("{stopped}");
            return Ok(());
        }
        started => started?,
    };
    let announcement =
        Announcement { node: &node, args, secret_file: secret_file.as_deref(), wanted: &wanted };
    let said = if as_json {
        printable_json(&announcement.json()).into_owned() + "\n"
    } else {
        printable_lines(&announcement.text()).into_owned()
    };
    // A failure to print is ignored: the node serves in any case.
    let _ = io::stdout().write_all(said.as_bytes()).and_then(|()| io::stdout().flush());
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    Ok(node.run()?)
}

/// Makes the settings of the node. Creates the secret file if a cluster begins and no file was named.
fn config(socket: Option<PathBuf>, args: &Serve) -> Result<Config, Box<dyn Error>> {
    let yields_socket = socket.is_none();
    let socket = socket.map_or_else(Socket::default, Socket::from);
    let absolute = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
    let read = |path: &str| fs::read_to_string(path).ok();
    let allowance = |cgroup::Allowance { limit, used, file }| Allowance { limit, used, file };
    Ok(Config {
        // A socket that the environment names is one that was asked for.
        yields_socket,
        socket_mode: args.socket_mode,
        listen: args.listen.clone(),
        join: args.join.clone(),
        etcd: etcd(args)?,
        metrics: args.metrics.clone(),
        secret_file: secret_file(args)?,
        tls: tls(args)?,
        libfabric: args.libfabric.clone(),
        provider: args.provider.clone(),
        lanes: args.lanes.into(),
        qos: args.qos,
        classes: args.classes.clone().unwrap_or_default(),
        allowance: cgroup::allowance(read, "/proc/self").map(allowance),
        huge_allowance: cgroup::huge_allowance(read, "/proc/self").map(allowance),
        huge_pages: !args.no_huge_pages,
        prefault: !args.no_prefault,
        numa: match args.numa {
            serve_args::Numa::Auto => Numa::Auto,
            serve_args::Numa::Node(number) => Numa::Node(number),
            serve_args::Numa::Off => Numa::Off,
        },
        protocol: args.protocol,
        verify: args.verify,
        push: args.push,
        calibration: absolute(&args.calibration)?.or_else(own_files::calibration),
        spin: args.spin.map(Duration::from_micros),
        lease: args.lease,
        drain_on_stop: args.drain_on_stop,
        spill_dir: absolute(&args.spill_dir)?,
        cache: args.cache,
        public: args.public,
        client_quota: args.client_quota,
        user_quota: args.user_quota,
        region_memory: args.region_memory,
        files_memory: args.files_memory,
        files: !args.no_files,
        user_regions: args.user_regions,
        capacity: args.capacity,
        max_clients: args.max_clients,
        ..Config::new(args.memory, std::path::absolute(socket.path())?)
    })
}

/// File of the cluster's secret: the one that was named, or else this user's own for the first node of a
/// cluster. With `--listen` on loopback no secret is made, because the node is for its own host.
fn secret_file(args: &Serve) -> Result<Option<PathBuf>, Box<dyn Error>> {
    let begins = args.join.is_none() && args.coordinator.is_none();
    match &args.secret_file {
        Some(path) => Ok(Some(std::path::absolute(path)?)),
        None if begins && !args.listen.as_deref().is_some_and(is_loopback) => Ok(Some(own_files::secret()?)),
        None => Ok(None),
    }
}

/// Certificates that the settings name. `None` unless certificate, key and authority are named.
fn tls(args: &Serve) -> io::Result<Option<TlsConfig>> {
    let (Some(cert), Some(key), Some(ca)) = (&args.tls_cert, &args.tls_key, &args.tls_ca) else {
        return Ok(None);
    };
    let [cert, key, ca] = [cert, key, ca].map(std::path::absolute);
    Ok(Some(TlsConfig { cert: cert?, key: key?, ca: ca? }))
}

/// Settings for the servers of etcd.
fn etcd(args: &Serve) -> Result<Option<EtcdConfig>, Box<dyn Error>> {
    let Some(url) = &args.coordinator else { return Ok(None) };
    let absolute = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
    let user = args.etcd_user.as_ref().or(url.user.as_ref());
    Ok(Some(EtcdConfig {
        endpoints: url.endpoints.clone(),
        prefix: url.prefix.clone(),
        user: match (user, absolute(&args.etcd_password_file)?) {
            (Some(user), Some(file)) => Some((user.clone(), file)),
            (None, None) => None,
            (Some(user), None) => {
                return Err(format!(
                    "the password of etcd's user {user} is missing: add --etcd-password-file"
                )
                .into());
            }
            (None, Some(_)) => {
                return Err("the user of --etcd-password-file is missing: add --etcd-user".into());
            }
        },
        ca: absolute(&args.etcd_ca)?,
        identity: absolute(&args.etcd_cert)?.zip(absolute(&args.etcd_key)?),
    }))
}

/// Starts the log to standard error, in the format of the settings.
fn start_log(args: &Serve) {
    let log = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(&args.log)).with_writer(io::stderr);
    match args.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => {
            log.json().flatten_event(true).with_current_span(false).with_span_list(false).init()
        }
    }
}

/// Stops the node when the process that started it ends.
///
/// The parent-death signal is not used, because it comes when the parent's *thread* that started this process
/// ends.
fn follow_parent() -> io::Result<()> {
    let gone = || io::Error::other("the parent process has ended");
    let parent = getppid().ok_or_else(gone)?;
    let watched = pidfd_open(parent, PidfdFlags::empty())?;
    // The parent may have ended before, so that its number may belong to another process.
    if getppid() != Some(parent) {
        return Err(gone());
    }
    let watch = move || {
        // A pidfd is readable once its process has ended.
        let _ = retry_on_intr(|| poll(&mut [PollFd::new(&watched, PollFlags::IN)], None));
        // The call cannot fail, because every process may signal itself.
        let _ = kill_process(getpid(), Signal::TERM);
    };
    std::thread::Builder::new().name("plasmon-parent".into()).spawn(watch)?;
    Ok(())
}

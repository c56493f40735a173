//! `plasmon-node`: the daemon, which `plasmon serve` starts with its own command line.
#![forbid(unsafe_code)]

mod cgroup;
mod config;
mod serve_args;
mod settings;

use std::error::Error;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

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
use serde_json::json;
use serve_args::{LogFormat, Serve};
use tracing::info;
use tracing_subscriber::EnvFilter;

/// The daemon of Plasmon. `plasmon serve` starts it.
#[derive(Debug, Parser)]
#[command(name = "plasmon-node", version)]
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
    let Args { socket, json, command: Command::Serve(serve) } = args;
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
    let socket = socket.map_or_else(Socket::default, Socket::from);
    match run(socket.path(), json, serve) {
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

fn run(socket: &Path, as_json: bool, args: Serve) -> Result<(), Box<dyn Error>> {
    start_log(&args);
    if args.exit_with_parent {
        follow_parent()?;
    }
    let (etcd, tls) = (etcd(&args)?, tls(&args)?);
    let config = Config {
        socket_mode: args.socket_mode,
        listen: args.listen,
        join: args.join,
        etcd,
        metrics: args.metrics,
        secret_file: args.secret_file.map(std::path::absolute).transpose()?,
        tls,
        libfabric: args.libfabric,
        provider: args.provider,
        allowance: cgroup::allowance(|path| fs::read_to_string(path).ok(), "/proc/self")
            .map(|cgroup::Allowance { limit, used, file }| Allowance { limit, used, file }),
        huge_pages: !args.no_huge_pages,
        prefault: !args.no_prefault,
        numa: match args.numa {
            serve_args::Numa::Auto => Numa::Auto,
            serve_args::Numa::Node(number) => Numa::Node(number),
            serve_args::Numa::Off => Numa::Off,
        },
        protocol: args.protocol,
        calibration: args.calibration.or_else(default_calibration).map(std::path::absolute).transpose()?,
        spin: args.spin.map(Duration::from_micros),
        lease: args.lease,
        spill_dir: args.spill_dir.map(std::path::absolute).transpose()?,
        cache: args.cache,
        public: args.public,
        client_quota: args.client_quota,
        user_quota: args.user_quota,
        capacity: args.capacity,
        max_clients: args.max_clients,
        ..Config::new(args.memory, std::path::absolute(socket)?)
    };
    let socket = config.socket.clone();
    let node = match Node::start(config) {
        // A node that is stopped while it starts ends well.
        Err(stopped @ NodeError::Stopped(_)) => {
            info!("{stopped}");
            return Ok(());
        }
        started => started?,
    };
    let (id, listen, metrics) = (node.id(), node.listen(), node.metrics());
    let others = match &args.coordinator {
        Some(etcd) => format!("--coordinator etcd://{}{}", etcd.endpoints.join(","), etcd.prefix),
        None => format!("--join {listen}"),
    };
    let line = if as_json {
        let (node, pid) = (id.to_string(), std::process::id());
        json!({ "node": node, "socket": socket, "listen": listen, "metrics": metrics, "pid": pid })
            .to_string()
    } else {
        format!("node {id} serves at {}; other nodes join with: plasmon serve {others}", socket.display())
    };
    // A failure to print is ignored: the node serves in any case.
    let _ = writeln!(io::stdout(), "{}", printable_json(&line)).and_then(|()| io::stdout().flush());
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    Ok(node.run()?)
}

/// Certificates that the settings name.
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

/// Default path of the calibration, among the state files of this user.
fn default_calibration() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    Some(state.or_else(home)?.join("plasmon/calibration.json"))
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

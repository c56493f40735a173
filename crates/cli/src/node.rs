//! `plasmon-node`: the daemon behind `plasmon serve`, with the same command line.
#![forbid(unsafe_code)]

mod serve_args;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use plasmon_node::{Config, Node, NodeError, Numa};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open};
use serde_json::json;
use serve_args::Serve;
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

fn main() -> ExitCode {
    let Args { socket, json, command: Command::Serve(serve) } = Args::parse();
    let socket = socket.unwrap_or_else(plasmon::Client::default_socket);
    match run(&socket, json, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plasmon: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(socket: &Path, as_json: bool, args: Serve) -> Result<(), NodeError> {
    let filter = EnvFilter::try_from_env("PLASMON_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).init();
    if args.exit_with_parent {
        follow_parent()?;
    }
    let config = Config {
        socket_mode: args.socket_mode,
        listen: args.listen,
        join: args.join,
        provider: args.provider,
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
        client_quota: args.client_quota,
        user_quota: args.user_quota,
        max_clients: args.max_clients,
        ..Config::new(args.memory, std::path::absolute(socket)?)
    };
    let socket = config.socket.clone();
    let node = Node::start(config)?;
    let (id, listen) = (node.id(), node.listen());
    let line = if as_json {
        json!({ "node": id.to_string(), "socket": socket, "listen": listen, "pid": std::process::id() })
            .to_string()
    } else {
        format!(
            "node {id} serves at {}; other nodes join with: plasmon serve --join {listen}",
            socket.display()
        )
    };
    // Nobody may be reading: the node serves all the same.
    let _ = writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
    node.run()
}

/// Among what programs keep for this user.
fn default_calibration() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    Some(state.or_else(home)?.join("plasmon/calibration.json"))
}

/// Stops the node when the process that started it ends.
///
/// Not by the parent-death signal: that comes when the parent's *thread* ends that started this
/// process.
fn follow_parent() -> io::Result<()> {
    let gone = || io::Error::other("the parent process has ended");
    let parent = getppid().ok_or_else(gone)?;
    let watched = pidfd_open(parent, PidfdFlags::empty())?;
    // It may have ended before, and its number be another's now.
    if getppid() != Some(parent) {
        return Err(gone());
    }
    let watch = move || {
        // A pidfd is readable once its process has ended.
        let _ = retry_on_intr(|| poll(&mut [PollFd::new(&watched, PollFlags::IN)], None));
        // It cannot fail: every process may signal itself.
        let _ = kill_process(getpid(), Signal::TERM);
    };
    std::thread::Builder::new().name("plasmon-parent".into()).spawn(watch)?;
    Ok(())
}

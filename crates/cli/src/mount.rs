//! `plasmon mount` and `plasmon umount`: a volume as a folder of this host.
//!
//! Owns the process that serves a mount. The main thread serves; the thread `signals` unmounts the folder
//! when a signal asks the process to end. Without `--foreground` the command starts itself again in the
//! background, and returns when the folder is mounted. Invariant: when `plasmon mount` without
//! `--foreground` exits with 0, the folder can be used.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use std::{env, thread};

use clap::Args as ClapArgs;
use plasmon::Socket;
use plasmon_mount::{DEFAULT_THREADS, Ending, Mount, MountOptions, remount_folder, unmount_folder};
use serde_json::json;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

use crate::connecting::connect;
use crate::failure::Failure;
use crate::names::name;
use crate::output::{self, line};
use crate::values::seconds;

/// Name of the volume that is created by its first mount.
pub(crate) const MAIN: &str = "main";
/// Argument by which the command starts itself again in the background.
const IN_BACKGROUND: &str = "--in-background";

/// Arguments of `plasmon mount`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The command returns when the folder is mounted; a process of its own serves it until `plasmon umount`. The \
volume `main` is created by its first mount; others are made by `plasmon volume create`.

Root mounts by itself. Other users need fusermount3 (package fuse3), and for --allow-other a line \
`user_allow_other` in /etc/fuse.conf.

When the node of this host is away, programs wait for it as long as --patience says, and get EIO then.

Exit code 5 if a volume is mounted at the folder already.")]
pub(crate) struct MountArgs {
    /// Folder at which the volume is mounted
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Name of the volume
    #[arg(long, value_name = "NAME", default_value = MAIN, value_parser = name)]
    volume: String,
    /// Let other users use the folder, as far as the modes of its files allow
    #[arg(long)]
    allow_other: bool,
    /// Change nothing
    #[arg(long)]
    read_only: bool,
    /// Longest time in seconds for which the kernel keeps names and attributes
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    cache: Duration,
    /// Keep no bytes of files in the kernel's page cache
    #[arg(long)]
    direct: bool,
    /// Largest number of requests that are carried out at a time
    #[arg(
        long,
        value_name = "N",
        default_value_t = DEFAULT_THREADS,
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=256)
    )]
    threads: usize,
    /// Seconds that an operation waits for a node that is away
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    patience: Duration,
    /// Serve the folder in this process, until Ctrl-C
    #[arg(long)]
    foreground: bool,
    /// File to which the mount appends what goes wrong [default: standard error with --foreground, else
    /// nowhere]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Mount files that keep no bytes, without a node: for measuring what the kernel takes
    #[arg(long, hide = true)]
    null: bool,
    /// Serve the folder as the process in the background
    #[arg(long, hide = true)]
    in_background: bool,
}

/// Arguments of `plasmon umount`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Exit code 3 if no volume is mounted at the folder.")]
pub(crate) struct UmountArgs {
    /// Folder at which a volume is mounted
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Take the folder away at once; what is open there goes on until it is closed
    #[arg(long)]
    force: bool,
}

/// Mounts a volume. `words` is the command line without the program's name, for the process in the
/// background.
pub(crate) fn mount(
    socket: &Socket,
    as_json: bool,
    args: &MountArgs,
    words: &[OsString],
) -> Result<(), Failure> {
    if args.foreground || args.in_background { serve(socket, as_json, args) } else { start(as_json, words) }
}

/// Unmounts a folder.
pub(crate) fn umount(args: &UmountArgs) -> Result<(), Failure> {
    Ok(unmount_folder(&args.folder, args.force)?)
}

/// Changes whether a mounted folder can be written.
pub(crate) fn remount(folder: &Path, read_only: bool, no_exec: bool) -> Result<(), Failure> {
    Ok(remount_folder(folder, read_only, no_exec)?)
}

/// Starts this command in the background, and waits until the folder is mounted or the process has failed.
fn start(as_json: bool, words: &[OsString]) -> Result<(), Failure> {
    let own = env::current_exe().map_err(Failure::file("find", "this program"))?;
    let mut child: Child = Command::new(&own)
        .args(words)
        .arg(IN_BACKGROUND)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Failure::file("run", &own))?;
    let mut told = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut told).map_err(Failure::file("read", "the mount's output"))?;
    }
    if told.ends_with('\n') {
        let told = told.trim_end();
        return if as_json { output::json(told) } else { line(told) };
    }
    let mut problem = String::new();
    if let Some(mut errors) = child.stderr.take() {
        // A message that cannot be read is only missing in the error.
        let _ = errors.read_to_string(&mut problem);
    }
    let ended = child.wait().map_err(Failure::file("wait for", &own))?;
    let code = ended.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0).unwrap_or(1);
    let problem = problem.trim_end();
    let problem = problem.strip_prefix("plasmon: ").unwrap_or(problem);
    Err(Failure::Mounting { problem: problem.to_owned(), code })
}

/// Mounts and serves the folder until it is unmounted.
fn serve(socket: &Socket, as_json: bool, args: &MountArgs) -> Result<(), Failure> {
    if args.in_background {
        // The mount outlives the terminal. This process leads no group, since it was just started.
        rustix::process::setsid().map_err(|error| Failure::file("leave", "the terminal")(error.into()))?;
    }
    let log = match &args.log {
        Some(path) => Some(
            OpenOptions::new().create(true).append(true).open(path).map_err(Failure::file("open", path))?,
        ),
        None => None,
    };
    // The mount connects again from another folder when its node was started again.
    let socket = &socket.absolute().map_err(Failure::file("find", socket.path()))?;
    let mount = match args.null {
        true => Mount::null(&args.folder, args.threads)?,
        false => Mount::new(connect(socket, "plasmon mount")?, &args.folder, &options(args))?,
    };
    match log {
        Some(file) => logging().with_writer(Mutex::new(file)).with_ansi(false).init(),
        None if args.in_background => logging().with_writer(io::sink).init(),
        None => logging().with_writer(io::stderr).init(),
    }
    if args.in_background {
        env::set_current_dir("/").map_err(Failure::file("enter", "/"))?;
    }
    end_by_signal(mount.ending()).map_err(Failure::file("handle signals of", mount.folder()))?;
    let told = told(as_json, mount.folder(), &args.volume);
    let ready = move || {
        // Whoever started this may be gone.
        let _ = if as_json { output::json(&told) } else { line(&told) };
    };
    Ok(mount.serve(ready)?)
}

/// Log of the mount, with the filter of `PLASMON_LOG`.
fn logging() -> tracing_subscriber::fmt::SubscriberBuilder<
    tracing_subscriber::fmt::format::DefaultFields,
    tracing_subscriber::fmt::format::Format,
    EnvFilter,
> {
    let filter = EnvFilter::try_from_env("PLASMON_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter)
}

fn options(args: &MountArgs) -> MountOptions {
    MountOptions {
        volume: args.volume.clone(),
        create: args.volume == MAIN,
        allow_other: args.allow_other,
        read_only: args.read_only,
        cache: args.cache,
        direct: args.direct,
        threads: args.threads,
        patience: args.patience,
    }
}

/// Line that says where the volume is mounted.
fn told(as_json: bool, folder: &Path, volume: &str) -> String {
    let folder = folder.to_string_lossy();
    match as_json {
        true => json!({ "folder": folder, "volume": volume, "pid": std::process::id() }).to_string(),
        false => format!("volume {volume} is mounted at {folder}"),
    }
}

/// Ends the mount when a signal asks this process to end. Open files stay usable until they are closed, or
/// another signal comes.
fn end_by_signal(ending: Ending) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if let Err(error) = ending.end() {
                tracing::error!(%error, "the mount cannot be ended, so its process exits");
                // The kernel ends the mount when nobody has its device any more.
                std::process::exit(1);
            }
        }
    })?;
    Ok(())
}

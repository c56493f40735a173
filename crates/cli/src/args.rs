//! Command line of `plasmon`: the commands, their arguments and their help.
//!
//! Owns no state. Invariant: an argument that is parsed is valid for its command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};
use plasmon::wire::MAX_NAME_BYTES;
use plasmon::{Class, Client, ObjectId, Rights};

use crate::demo::Demo;
use crate::list_args::{Ls, Rm};
use crate::lock::{BarrierArgs, LockArgs};
use crate::manual::{Completions, ManPages};
use crate::mount::{MountArgs, UmountArgs};
use crate::ping::Ping;
use crate::region_args::RegionCommand;
use crate::serve_args::{Serve, memory, positive_size, public, seconds};
use crate::service::CallFunction;
use crate::volume::VolumeCommand;

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  it failed; the message says why
     (doctor: it found a problem)
  2  wrong arguments
  3  no such object, region or volume
  4  timed out, or a node did not answer (ls --cluster, rm of a pattern)
  5  the object or volume exists already
  6  the store is full, or too small for the object
  7  no daemon answers, or it is being drained
  8  the object is lost: every node that held it is gone
  9  the object is damaged: its bytes are not those that were sealed
     (drain: only what does not move is left: damaged objects, regions)
  10 fewer nodes hold the object than were asked for; the object stays where it is
  11 there is no other node (calibrate)
  12 the outcome is unknown: a node that decides it does not answer, and what was asked may have been done
     (rm, region, call); the lock was lost, or the barrier is broken (lock, barrier, region)

Examples:
  plasmon serve --memory 8GiB
  plasmon serve --listen 10.0.0.1:4740
  plasmon serve --join 10.0.0.1:4740 --secret-file secret
  plasmon put data.parquet --name data
  plasmon get data -o copy.parquet
  plasmon wait part-0 part-1 part-2 --count 2 --timeout 60
  plasmon ls 'tmp/*' --cluster
  plasmon status --cluster
  plasmon region create counters 4KiB
  plasmon lock nightly --timeout 60s -- ./backup.sh
  plasmon drain node7
  plasmon doctor --memory 64GiB";

/// Plasmon: a distributed in-memory object store. Objects put on one node are read in place by any
/// process there, and fetched by the other nodes of the cluster over RDMA or TCP.
#[derive(Debug, Parser)]
#[command(name = "plasmon", version = env!("PLASMON_VERSION"), after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Unix socket of this host's node [default: plasmon/plasmon.sock in $XDG_RUNTIME_DIR, or without that
    /// /run/plasmon/plasmon.sock for root and /tmp/plasmon-UID/plasmon.sock for others; if the user has no
    /// socket there, commands use /run/plasmon/plasmon.sock]. A socket given here may belong to any user
    #[arg(long, global = true, env = "PLASMON_SOCKET", hide_env_values = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON for programs to read
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Class of the command's work: high, normal or low [default: normal]
    #[arg(long, global = true, value_name = "CLASS", hide_env = true)]
    pub(crate) priority: Option<Class>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Commands of `plasmon`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node until it is stopped
    Serve(Box<Serve>),
    /// Show two nodes of this host at work: a table of flights, put on one and queried in place on the other
    Demo(Demo),
    /// Put a file into the store
    Put(Put),
    /// Get an object from any node that holds it
    Get(Get),
    /// Wait until objects are on this host
    Wait(Wait),
    /// List the objects on this node, or in the whole cluster
    Ls(Ls),
    /// Delete objects from every node
    Rm(Rm),
    /// Compute the digest of an object, and compare it with the one made when it was sealed
    Hash(Hash),
    /// Evict objects from memory, the least recently used first
    Evict(Evict),
    /// Print the objects that are sealed on this node or leave it, until Ctrl-C
    #[command(after_help = "\
Objects that are there already come first. If events come faster than they are read, some are left \
out, and a line says how many. With --json each event is a line of its own. With --cluster each line \
begins with the node; the lines of a node are in order, those of several nodes are not. A node that is \
out of reach, and one that comes, has a line that says so.")]
    Subscribe {
        /// Print the events of all nodes
        #[arg(long)]
        cluster: bool,
    },
    /// Show the state of the node, or of the whole cluster
    Status(StatusOf),
    /// Show the nodes of the cluster and their activity, updated continuously
    Top(Top),
    /// List the clients of the node with the objects that they hold
    Clients,
    /// List the nodes that hold an object
    Locations(Located),
    /// Make several nodes keep an object
    Replicate(Replicate),
    /// Move an object to another node
    Migrate(Migrate),
    /// Bring an object to many nodes at the same time; they pass on to each other what they have received
    Broadcast(Broadcast),
    /// Move everything that a node keeps to other nodes, and make it leave the cluster
    Drain(Drain),
    /// Begin to bring objects to this host, without waiting for them
    Prefetch(Prefetch),
    /// Explain how an object came to this host (source, protocol with the reason, and the time of each step),
    /// or where the bytes of a file lie
    #[command(after_help = "\
A file of a volume is named by its path in a folder at which the volume is mounted, with at least one slash \
(./FILE), or as VOLUME:/PATH.")]
    Explain(Located),
    /// Make, read and change regions: memory with a name that programs of all hosts read and write
    #[command(subcommand)]
    Region(RegionCommand),
    /// Mount a volume of files at a folder of this host
    Mount(MountArgs),
    /// Unmount a folder
    Umount(UmountArgs),
    /// Make, list, change and remove volumes: file systems in the memory of the cluster
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// List the services of the cluster: functions that programs run for others
    #[command(after_help = "\
A node that does not answer is named on standard error; the rest is printed, and the exit code is 4.")]
    Services,
    /// Call a function of a service, and print its reply
    Call(CallFunction),
    /// Run a command while it holds a lock of the cluster
    Lock(LockArgs),
    /// List the locks and barriers of the cluster: who holds them, who waits, since when
    #[command(after_help = "\
A node that does not answer is named on standard error; the rest is printed, and the exit code is 4.")]
    Locks,
    /// Wait until a number of processes of any hosts have arrived
    Barrier(BarrierArgs),
    /// Ask a node for signs of life, and print how long they take
    Ping(Ping),
    /// Measure the best transfer parameters between this node and others
    Calibrate(Calibrate),
    /// Make a secret for a cluster
    Secret(Secret),
    /// Find what makes Plasmon slower on this host than the hardware allows, and how to fix it
    Doctor(Doctor),
    /// Print the script with which a shell completes the commands and options of plasmon
    Completions(Completions),
    /// Write man pages of all commands into a directory
    Man(ManPages),
}

/// Arguments of `plasmon status`.
#[derive(Debug, ClapArgs)]
pub(crate) struct StatusOf {
    /// Print a line for every node of the cluster; a node that does not answer within 2 s has a line with the
    /// reason
    #[arg(long)]
    pub(crate) cluster: bool,
}

/// Arguments of `plasmon top`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
q, Esc or Ctrl-C ends it; up and down scroll. Rates are those of the last interval, by each node's own \
clock. If standard output is no terminal, or with --json, it prints the present state once, without \
rates.")]
pub(crate) struct Top {
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
}

/// Arguments of `plasmon put`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints the id of the object. Standard input is first read into memory as a whole.")]
pub(crate) struct Put {
    /// File to put; - reads standard input
    pub(crate) file: PathBuf,
    /// Store the file as a value of Python: table (Arrow, from .parquet, .csv, .json, .arrow or .feather),
    /// array (NumPy, from .npy), json (what it holds) or text [default: bytes as they are]
    #[arg(long = "as", value_name = "KIND", value_parser = ["table", "array", "json", "text"])]
    pub(crate) kind: Option<String>,
    /// Name of the object. Its id is the hash of the name, the same on every node. With --private the name
    /// belongs to this user, and other users may use the same name
    #[arg(long, conflicts_with = "id", value_parser = name)]
    pub(crate) name: Option<String>,
    /// Id of the object, 40 hexadecimal digits [default: a random one]
    #[arg(long, value_name = "HEX")]
    pub(crate) id: Option<ObjectId>,
    /// Only processes of this user may see the object
    #[arg(long)]
    pub(crate) private: bool,
    /// Rights of other users to the object: r (read), or rw (delete and move as well)
    #[arg(long, value_name = "r|rw", default_value = "r", conflicts_with = "private", value_parser = public)]
    pub(crate) public: Rights,
    /// Make a digest of the object, with which `plasmon hash` compares its bytes at any time
    #[arg(long)]
    pub(crate) digest: bool,
    /// Number of nodes that keep the object
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) replicas: u16,
    /// Seconds after which the object is deleted everywhere [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = lifetime)]
    pub(crate) ttl: Option<Duration>,
    /// Seconds that the call may take, including the wait for room in a full store [default: as long as the
    /// node itself takes, without waiting for others to make room]
    #[arg(long, value_name = "SECONDS", value_parser = timeout, allow_negative_numbers = true)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) quiet: Quiet,
}

/// Arguments of commands that may take long.
#[derive(Debug, ClapArgs)]
pub(crate) struct Quiet {
    /// Show no progress. None is shown with --json, or if standard error is no terminal
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Arguments of `plasmon get`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
If the command takes longer than a second, it shows its progress on standard error, if that is a terminal.")]
pub(crate) struct Get {
    /// Object to get
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Write to this file, as a whole or not at all [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print or write a value of Python: json; for arrays npy; for tables and frames csv, parquet or arrow
    /// [default: what the end of the output's name says, if that is one of these and the value an array or an
    /// Arrow table; else the bytes as they are]. A pickle can run any code: name a kind only for values of
    /// users that you trust
    #[arg(
        long = "as",
        value_name = "KIND",
        value_parser = ["json", "csv", "npy", "parquet", "arrow"],
        conflicts_with = "raw"
    )]
    pub(crate) kind: Option<String>,
    /// Write the bytes of a value of Python, to a terminal and to a file of any name
    #[arg(long)]
    pub(crate) raw: bool,
    /// Seconds to wait for the object; 0 does not wait for one that is not in the cluster
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "30",
        value_parser = timeout,
        allow_negative_numbers = true
    )]
    pub(crate) timeout: Duration,
    /// Compare the bytes with the digest made when the object was sealed, if one was made: where they come
    /// from another node, and here
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) quiet: Quiet,
}

/// Arguments of `plasmon explain` and `plasmon locations`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Located {
    /// Object to look up
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
}

/// Arguments of `plasmon replicate`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints the nodes that keep the object. Their replicas are not evicted. If one of the nodes dies, another \
takes its place. A smaller number than before turns the other replicas into cached ones. Exit code 10 if \
fewer nodes can take the object: it stays where it is, and further nodes take it as soon as they can.")]
pub(crate) struct Replicate {
    /// Object to replicate
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Number of nodes
    #[arg(value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) copies: u16,
    #[command(flatten)]
    pub(crate) spreading: Spreading,
}

/// Arguments of `plasmon migrate`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The node becomes the primary of the object, and the previous primary drops its replica. As many nodes \
keep the object as before: if the node kept a replica already, the two swap roles. Readers are not \
disturbed.")]
pub(crate) struct Migrate {
    /// Object to move
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Node, as its host's name or address, or as its id or the beginning of the id
    #[arg(value_name = "NODE|HOST")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) spreading: Spreading,
}

/// Arguments of `plasmon broadcast`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints the nodes that hold the object afterwards. Each gets a cached replica; use `plasmon replicate` for \
replicas that are not evicted. Exit code 10 if some of the nodes could not take the object.")]
pub(crate) struct Broadcast {
    /// Object to bring to the nodes
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Only these nodes, as names or addresses of hosts, or as ids or their beginnings [default: every node]
    #[arg(long, value_name = "NODE|HOST", num_args = 1..)]
    pub(crate) nodes: Vec<String>,
    #[command(flatten)]
    pub(crate) spreading: Spreading,
}

/// Arguments of `plasmon drain`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A draining node refuses new objects, and serves reads as before. When other nodes keep everything, its \
daemon ends with exit code 0. An object that no other node has room for stays, and so does the node; the \
object is offered again each second. Ctrl-C and --timeout end the waiting, not the drain; --call-off \
ends the drain.

The node with the embedded coordinator cannot be drained: stop it last. Only root and the user that the \
node runs as may drain it.")]
pub(crate) struct Drain {
    /// Node, as its host's name or address, or as its id or the beginning of the id [default: this host's
    /// node]
    #[arg(value_name = "NODE|HOST")]
    pub(crate) node: Option<String>,
    /// End the drain: the node stays and accepts objects again. Objects that have moved stay where they are
    #[arg(long)]
    pub(crate) call_off: bool,
    #[command(flatten)]
    pub(crate) spreading: Spreading,
}

/// Arguments of commands that bring objects to other nodes.
#[derive(Debug, ClapArgs)]
pub(crate) struct Spreading {
    /// Seconds to wait [default: without limit]
    #[arg(long, value_name = "SECONDS", value_parser = timeout, allow_negative_numbers = true)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) quiet: Quiet,
}

/// Arguments of `plasmon prefetch`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Returns at once, and the node goes on. `plasmon wait` waits for the objects, `plasmon get` finds them here.")]
pub(crate) struct Prefetch {
    /// Objects to bring to this host
    #[arg(value_name = "NAME|ID", required = true, value_parser = which)]
    pub(crate) objects: Vec<Which>,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Seconds to wait for objects that do not exist yet; 0 brings only those that exist
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "60",
        value_parser = timeout,
        allow_negative_numbers = true
    )]
    pub(crate) timeout: Duration,
}

/// Arguments of `plasmon calibrate`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The node reads memory that the other node lends it, in small and large pieces, in messages and by \
one-sided reads. This takes one or two seconds for each peer. The fastest parameters are used from then \
on, and kept for later starts. Measure while the nodes are idle: other traffic distorts the measurement \
and is slowed down by it.")]
pub(crate) struct Calibrate {
    /// Only towards this node, as its host's name or address, or as its id or the beginning of the id
    /// [default: every other node]
    #[arg(long, value_name = "NODE|HOST")]
    pub(crate) peer: Option<String>,
    /// Draw the measured curves into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// Arguments of `plasmon wait`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Objects of other nodes are fetched. Prints the objects that are here, as they were named.")]
pub(crate) struct Wait {
    /// Objects to wait for, at most 65536
    #[arg(value_name = "NAME|ID", required = true, value_parser = which)]
    pub(crate) objects: Vec<Which>,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Number of objects that is enough [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<usize>,
    /// Seconds to wait; 0 only checks what is on this host
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "30",
        value_parser = timeout,
        allow_negative_numbers = true
    )]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) quiet: Quiet,
}

/// Arguments of `plasmon hash`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints 16 hexadecimal digits: XXH3 of data and metadata. The same bytes have the same digest on \
every node. Exit code 9 if the object was sealed with a digest (`plasmon put --digest`) and its \
bytes have another one now.")]
pub(crate) struct Hash {
    /// Object to hash
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Seconds to wait for the object; 0 does not wait for one that is not in the cluster
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "30",
        value_parser = timeout,
        allow_negative_numbers = true
    )]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) quiet: Quiet,
}

/// Arguments of `plasmon evict`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
No object is lost: only objects that are also on another node or on disk leave memory. A node that \
was started with --cache drops any object. Pinned objects stay. Prints the amount of memory freed.")]
pub(crate) struct Evict {
    /// Amount of memory to free, at least
    #[arg(value_parser = positive_size)]
    pub(crate) size: u64,
}

/// Arguments of `plasmon doctor`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examines huge pages, memory, limits, cores and RDMA devices, and how the node of this host uses \
them, if one runs. Changes nothing. Exit code 1 if there is a problem; advice alone is no problem.")]
pub(crate) struct Doctor {
    /// Memory that the store is to have [default: that of this host's node, or else 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: Option<u64>,
    /// Directory for spilled objects [default: that of this host's node]
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
}

/// Parses a time-out in seconds. Infinity means no limit.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = plasmon::timeout(text.parse().unwrap_or(f64::NAN)).map_err(|error| error.to_string())?;
    Ok(timeout.unwrap_or(Duration::MAX))
}

fn interval(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        short if short < Duration::from_millis(100) => {
            Err("the interval is too short: take 0.1 s or more".into())
        }
        interval => Ok(interval),
    }
}

/// Arguments of `plasmon secret`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Writes 32 random bytes, in hexadecimal digits, into a new file that only this user can read. Copy it to \
every host in a way that keeps it secret, and start every node with --secret-file FILE. Any host with \
the file may join.")]
pub(crate) struct Secret {
    /// File to write, which must not exist yet
    pub(crate) file: PathBuf,
}

/// Object as the user named it.
#[derive(Debug, Clone)]
pub(crate) struct Which {
    pub(crate) text: String,
    /// Id that the text stands for. `None` if the text is a name.
    id: Option<ObjectId>,
}

impl Which {
    /// Stands for no object in particular.
    pub(crate) fn nothing() -> Self {
        Self { text: String::new(), id: None }
    }

    /// Id of the object for this client.
    pub(crate) fn id(&self, client: &Client, whose: &Whose) -> ObjectId {
        self.id.unwrap_or_else(|| whose.named(&self.text, client))
    }

    /// Name, if the text is none of an id.
    pub(crate) fn name(&self) -> Option<&str> {
        self.id.is_none().then_some(self.text.as_str())
    }

    /// Names the object, in an error of a call for it, as the user named it.
    pub(crate) fn named(&self, id: ObjectId) -> impl FnOnce(plasmon::Error) -> plasmon::Error {
        let name = self.id.is_none().then_some(self.text.as_str());
        move |error| name.into_iter().fold(error.about(id), |error, name| error.naming(name))
    }
}

/// Parses an object: 40 hexadecimal digits are an id, any other text is a name.
pub(crate) fn which(text: &str) -> Result<Which, String> {
    let id = text.parse().ok();
    if id.is_none() {
        name(text)?;
    }
    Ok(Which { text: text.to_owned(), id })
}

/// Argument that says whose names are meant.
#[derive(Debug, ClapArgs)]
pub(crate) struct Whose {
    /// Names are those of this user's private objects (`plasmon put --private`)
    #[arg(long)]
    pub(crate) private: bool,
}

impl Whose {
    /// Id of the object with this name.
    fn named(&self, name: &str, client: &Client) -> ObjectId {
        if self.private {
            ObjectId::from_private_name(name, client.user())
        } else {
            ObjectId::from_name(name)
        }
    }
}

fn lifetime(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("an object lives for more than 0 seconds".into()),
        lifetime => Ok(lifetime),
    }
}

pub(crate) fn name(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a name has at least one character".into()),
        len if len > MAX_NAME_BYTES => {
            Err(format!("a name has at most {MAX_NAME_BYTES} bytes, and this one has {len}"))
        }
        _ if text.parse::<ObjectId>().is_ok() => {
            Err("40 hexadecimal digits are an id, not a name: use --id, or another name".into())
        }
        _ => Ok(text.to_owned()),
    }
}

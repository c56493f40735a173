//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};
use plasmon::{Client, ObjectId, Rights};

use crate::serve_args::{Serve, memory, positive_size, public, seconds};

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  it failed; the message says why
     (doctor: there is a problem)
  2  wrong arguments
  3  no such object
  4  timed out
  5  the object exists already
  6  the store is full, or too small for the object
  7  no daemon answers, or it is being drained
  8  the object is lost: every node that held it is gone
  9  the object is damaged: its bytes are not those that were sealed
  10 fewer nodes hold the object than was asked for; it stays where it is
  11 there is no other node (calibrate)
  12 what happened is not known: a node that knows does not answer (rm)

Examples:
  plasmon serve --memory 8GiB
  plasmon serve --socket /tmp/b.sock --listen 127.0.0.1:0 --join 127.0.0.1:4740
  plasmon put data.parquet --name data
  plasmon get data --socket /tmp/b.sock -o copy.parquet
  plasmon wait part-0 part-1 part-2 --count 2 --timeout 60
  plasmon status --cluster
  plasmon drain node7
  plasmon doctor --memory 64GiB";

/// Plasmon: a distributed in-memory object store. Objects put on one node are read in place by any
/// process there, and fetched by the other nodes of the cluster over RDMA or TCP.
#[derive(Debug, Parser)]
#[command(name = "plasmon", version, after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Unix socket of the node of this host [default: plasmon/plasmon.sock in $XDG_RUNTIME_DIR, or without
    /// that /run/plasmon/plasmon.sock for root and /tmp/plasmon-UID/plasmon.sock for others; commands that
    /// find none of their user's there take /run/plasmon/plasmon.sock]. One that is named here may be any
    /// user's
    #[arg(long, global = true, env = "PLASMON_SOCKET", hide_env_values = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON for programs to read
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node until it is told to stop
    Serve(Box<Serve>),
    /// Put a file into the store
    Put(Put),
    /// Get an object, from whichever node holds it
    Get(Get),
    /// Wait until objects are on this host
    Wait(Wait),
    /// List the objects on this node
    Ls,
    /// Delete objects from every node
    Rm(Rm),
    /// Compute the digest of an object, and compare it with the one made when it was sealed
    Hash(Hash),
    /// Take objects out of memory that were not used for long
    Evict(Evict),
    /// Print what is sealed on this node and what leaves it, until Ctrl-C
    #[command(after_help = "\
Objects that are there already come first. When events come faster than they are read, some are left \
out, and a line says how many. With --json each event is a line of its own.")]
    Subscribe,
    /// Show the state of the node, or of the whole cluster
    Status(StatusOf),
    /// Show the nodes of the cluster and what they do, again and again
    Top(Top),
    /// List the clients of the node, with what they hold
    Clients,
    /// Say which nodes hold an object
    Locations(Located),
    /// Have so many nodes hold an object, and keep it
    Replicate(Replicate),
    /// Move an object to another node
    Migrate(Migrate),
    /// Bring an object to many nodes at the same time, each passing on what it has
    Broadcast(Broadcast),
    /// Move everything that a node keeps to the others, and have it leave the cluster
    Drain(Drain),
    /// Begin to bring objects to this host, without waiting for them
    Prefetch(Prefetch),
    /// Say how an object came to this host: from where, by which protocol and why, and what took how long
    Explain(Located),
    /// Measure which way of moving objects is best between this node and others
    Calibrate(Calibrate),
    /// Make a secret for a cluster
    Secret(Secret),
    /// Say what makes Plasmon slower here than the hardware allows, and how to mend it
    Doctor(Doctor),
}

/// What `plasmon status` takes.
#[derive(Debug, ClapArgs)]
pub(crate) struct StatusOf {
    /// A line for every node of the cluster; one that does not answer within two seconds has a line that says
    /// so
    #[arg(long)]
    pub(crate) cluster: bool,
}

/// What `plasmon top` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
q, Esc or Ctrl-C ends it; up and down scroll. Rates are of the last interval, by each node's own clock. \
Where standard output is no terminal, and with --json, it prints what is there once, without rates.")]
pub(crate) struct Top {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
}

/// What `plasmon put` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints the id of the object. What is read from standard input is gathered in memory first.")]
pub(crate) struct Put {
    /// The file; - reads standard input
    pub(crate) file: PathBuf,
    /// Name of the object: its id is the name's hash, the same on every node; with --private it is this
    /// user's, and others may have the same
    #[arg(long, conflicts_with = "id", value_parser = name)]
    pub(crate) name: Option<String>,
    /// Id of the object, 40 hexadecimal digits [default: a random one]
    #[arg(long, value_name = "HEX")]
    pub(crate) id: Option<ObjectId>,
    /// Only processes of this user may see the object
    #[arg(long)]
    pub(crate) private: bool,
    /// What other users may do with the object: r (read it), or rw (delete and move it as well)
    #[arg(long, value_name = "r|rw", default_value = "r", conflicts_with = "private", value_parser = public)]
    pub(crate) public: Rights,
    /// Make a digest of the object, which `plasmon hash` compares it with at any time
    #[arg(long)]
    pub(crate) digest: bool,
    /// How many nodes are to hold the object, and keep it
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) replicas: u16,
    /// Seconds that the object lives: then it is deleted everywhere [default: for ever]
    #[arg(long, value_name = "SECONDS", value_parser = lifetime)]
    pub(crate) ttl: Option<Duration>,
    /// Seconds that the node may take, above all to get room when the store is full [default: as long as it
    /// takes the node itself, without waiting for others to make room]
    #[arg(long, value_name = "SECONDS", value_parser = timeout, allow_negative_numbers = true)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) quiet: Quiet,
}

/// What commands that take long take.
#[derive(Debug, ClapArgs)]
pub(crate) struct Quiet {
    /// Show no progress; with --json, or where standard error is no terminal, none is shown anyway
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
What takes longer than a second shows how far it is on standard error, if that is a terminal.")]
pub(crate) struct Get {
    /// The object
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Write to this file, whole or not at all [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Seconds to wait for the object; 0 takes only what is on this node
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

/// What `plasmon explain` and `plasmon locations` take.
#[derive(Debug, ClapArgs)]
pub(crate) struct Located {
    /// The object
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
}

/// What `plasmon replicate` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints the nodes that keep it. No eviction drops these replicas, and should a node die, another takes its \
place. A smaller number than before makes the others ordinary cached replicas. Exit code 10 when fewer nodes \
can take it: it stays where it is, and further ones take it as soon as they can.")]
pub(crate) struct Replicate {
    /// The object
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// How many nodes
    #[arg(value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) copies: u16,
    #[command(flatten)]
    pub(crate) spreading: Spreading,
}

/// What `plasmon migrate` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The object belongs to that node then, and the replica of the node that had it is dropped. As many nodes \
keep it as \
before: if that node kept a replica already, the two change places. Whoever reads it does not notice.")]
pub(crate) struct Migrate {
    /// The object
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// The node: its host's name or address, or its id or the beginning of it
    #[arg(value_name = "NODE|HOST")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) spreading: Spreading,
}

/// What `plasmon broadcast` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints the nodes that hold it then. What comes there is a cached replica: `plasmon replicate` makes such \
that stay. Exit code 10 when not all of them could take it.")]
pub(crate) struct Broadcast {
    /// The object
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Only to these nodes: hosts' names or addresses, or ids or their beginnings [default: every node]
    #[arg(long, value_name = "NODE|HOST", num_args = 1..)]
    pub(crate) nodes: Vec<String>,
    #[command(flatten)]
    pub(crate) spreading: Spreading,
}

/// What `plasmon drain` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
From the beginning on the node takes nothing new; reads go on, of what it holds and through it. When other \
nodes keep \
everything, its daemon ends with exit code 0. What no other node has room for stays, and the node with it: \
it is offered again each second. Ctrl-C and --timeout end the waiting, not the draining: --call-off does.

The node with the embedded coordinator cannot be drained: stop it last. Only root and the user that the node runs \
as may drain it.")]
pub(crate) struct Drain {
    /// The node: its host's name or address, or its id or the beginning of it [default: the one of this host]
    #[arg(value_name = "NODE|HOST")]
    pub(crate) node: Option<String>,
    /// End the draining: the node stays, and takes objects again. What has moved stays where it is
    #[arg(long)]
    pub(crate) call_off: bool,
    #[command(flatten)]
    pub(crate) spreading: Spreading,
}

/// What these have in common.
#[derive(Debug, ClapArgs)]
pub(crate) struct Spreading {
    /// Seconds to wait [default: as long as it takes]
    #[arg(long, value_name = "SECONDS", value_parser = timeout, allow_negative_numbers = true)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) quiet: Quiet,
}

/// What `plasmon prefetch` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Returns at once; the node goes on. `plasmon wait` waits for them, `plasmon get` finds them here.")]
pub(crate) struct Prefetch {
    /// The objects
    #[arg(value_name = "NAME|ID", required = true, value_parser = which)]
    pub(crate) objects: Vec<Which>,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Seconds to wait for objects that do not exist yet
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "60",
        value_parser = timeout,
        allow_negative_numbers = true
    )]
    pub(crate) timeout: Duration,
}

/// What `plasmon calibrate` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The node reads memory that the other lends it, small and large, in messages and by one-sided reads; a \
second or two for each peer. What was fastest is in force from then on, and kept for later starts. Measure \
when nothing else goes on: what disturbs the one disturbs the other.")]
pub(crate) struct Calibrate {
    /// Only towards this node: its host's name or address, or its id or the beginning of it [default: every
    /// other node]
    #[arg(long, value_name = "NODE|HOST")]
    pub(crate) peer: Option<String>,
    /// Draw the curves into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Rm {
    /// The objects
    #[arg(value_name = "NAME|ID", required = true, value_parser = which)]
    pub(crate) objects: Vec<Which>,
    #[command(flatten)]
    pub(crate) whose: Whose,
}

/// What `plasmon wait` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Objects of other nodes are fetched. Prints those that are here, as they were named.")]
pub(crate) struct Wait {
    /// The objects, at most 65536
    #[arg(value_name = "NAME|ID", required = true, value_parser = which)]
    pub(crate) objects: Vec<Which>,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// So many of them are enough [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<usize>,
    /// Seconds to wait; 0 only looks
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

/// What `plasmon hash` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints 16 hexadecimal digits: XXH3 of data and metadata. The same bytes have the same digest on \
every node. Exit code 9 if the object was sealed with a digest (`plasmon put --digest`) and has \
another one now.")]
pub(crate) struct Hash {
    /// The object
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Seconds to wait for the object; 0 takes only what is on this node
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

/// What `plasmon evict` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Nothing is lost by it: only what is on another node or on disk as well leaves memory. A node that \
was started with --cache drops any object. Pinned objects stay. Prints how much became free.")]
pub(crate) struct Evict {
    /// How much memory is to become free, at least
    #[arg(value_parser = positive_size)]
    pub(crate) size: u64,
}

/// What `plasmon doctor` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Looks at huge pages, memory, limits, cores and RDMA devices, and at what the node of this host makes \
of them, if one runs. Changes nothing. Exit code 1 when there is a problem; advice is no problem.")]
pub(crate) struct Doctor {
    /// Memory the store is to have [default: what the node of this host has, or else 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: Option<u64>,
    /// Directory for objects when memory is short [default: the one of the node of this host]
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
}

/// Seconds that a call may take; infinity is no limit.
fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = plasmon::timeout(text.parse().unwrap_or(f64::NAN)).map_err(|error| error.to_string())?;
    Ok(timeout.unwrap_or(Duration::MAX))
}

fn interval(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        short if short < Duration::from_millis(100) => {
            Err("look at most ten times a second: 0.1 or more".into())
        }
        interval => Ok(interval),
    }
}

/// What `plasmon secret` takes.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Writes 32 random bytes, in hexadecimal digits, into a new file that only this user can read. Copy it to \
every host by a \
way that keeps it secret, and start every node with --secret-file FILE: who has the file may join.")]
pub(crate) struct Secret {
    /// The file, which must not be there yet
    pub(crate) file: PathBuf,
}

/// An object as the user named it.
#[derive(Debug, Clone)]
pub(crate) struct Which {
    pub(crate) text: String,
    /// None if the text is a name.
    id: Option<ObjectId>,
}

impl Which {
    /// The object's id, to this client.
    pub(crate) fn id(&self, client: &Client, whose: &Whose) -> ObjectId {
        self.id.unwrap_or_else(|| whose.named(&self.text, client))
    }
}

/// 40 hexadecimal digits are an id, everything else is a name.
fn which(text: &str) -> Result<Which, String> {
    let id = text.parse().ok();
    if id.is_none() {
        name(text)?;
    }
    Ok(Which { text: text.to_owned(), id })
}

/// Whose names are meant.
#[derive(Debug, ClapArgs)]
pub(crate) struct Whose {
    /// Names are those of this user's private objects (`plasmon put --private`)
    #[arg(long)]
    private: bool,
}

impl Whose {
    /// The id behind a name.
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

fn name(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a name has at least one character".into()),
        len if len > plasmon::wire::MAX_NAME => {
            Err(format!("a name has at most {} bytes, this one {len}", plasmon::wire::MAX_NAME))
        }
        _ if text.parse::<ObjectId>().is_ok() => {
            Err("40 hexadecimal digits are an id, not a name: use --id, or another name".into())
        }
        _ => Ok(text.to_owned()),
    }
}

//! Arguments of the commands for objects, except `plasmon ls` and `plasmon rm` (`list_args`).
//!
//! Owns no state. Any thread. Invariant: each argument is valid by itself; the command checks how arguments
//! fit together.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use plasmon::{ObjectId, Rights, Version};

use crate::connecting::timeout;
use crate::names::{Which, Whose, name, which};
use crate::values::{positive_size, public, seconds};

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
    /// Take the place of the object of this name or id, if there is one, in one step: who gets the object
    /// finds the old one or the new one. With --json the version is printed
    #[arg(long)]
    pub(crate) replace: bool,
    /// Replace only the object of this version. Exit code 5 if another version is there, 3 if there is none
    #[arg(long, value_name = "VERSION", requires = "replace")]
    pub(crate) expected: Option<Version>,
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
    #[arg(long, value_name = "SECONDS", value_parser = timeout)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) quiet: Quiet,
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
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// Compare the bytes with the digest made when the object was sealed, if one was made: where they come
    /// from another node, and here
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) quiet: Quiet,
}

/// Argument of commands that wait for one object.
#[derive(Debug, ClapArgs)]
pub(crate) struct Waiting {
    /// Seconds to wait for the object; 0 does not wait for one that is not in the cluster
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "30",
        value_parser = timeout
    )]
    pub(crate) timeout: Duration,
}

/// Arguments of commands that may take long.
#[derive(Debug, ClapArgs)]
pub(crate) struct Quiet {
    /// Show no progress. None is shown with --json, or if standard error is no terminal
    #[arg(short, long)]
    pub(crate) quiet: bool,
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

/// Arguments of commands that bring objects to other nodes.
#[derive(Debug, ClapArgs)]
pub(crate) struct Spreading {
    /// Seconds to wait [default: without limit]
    #[arg(long, value_name = "SECONDS", value_parser = timeout)]
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
        value_parser = timeout
    )]
    pub(crate) timeout: Duration,
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
        value_parser = timeout
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
    #[command(flatten)]
    pub(crate) waiting: Waiting,
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

/// Parses the time to live of an object.
fn lifetime(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("an object lives for more than 0 seconds".into()),
        lifetime => Ok(lifetime),
    }
}

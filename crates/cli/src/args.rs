//! Command line of `plasmon`: its commands, the arguments of all of them, and the help of the program.
//!
//! Owns no state. Main thread. Invariant: each argument is valid by itself; the command checks how arguments
//! fit together.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use plasmon::Class;

use crate::calibrate::Calibrate;
use crate::demo::Demo;
use crate::doctor::Doctor;
use crate::drain::Drain;
use crate::list_args::{Ls, Patience, Rm};
use crate::lock::{BarrierArgs, LockArgs};
use crate::manual::{Completions, ManPages};
use crate::mount::{MountArgs, UmountArgs};
use crate::object_args::{Broadcast, Evict, Get, Hash, Located, Migrate, Prefetch, Put, Replicate, Wait};
use crate::ping::Ping;
use crate::region_args::RegionCommand;
use crate::secret::Secret;
use crate::serve_args::Serve;
use crate::service::CallFunction;
use crate::top::Top;
use crate::volume::VolumeCommand;

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  it failed; the message says why
     (doctor: it found a problem)
  2  wrong arguments
  3  no such object, region or volume
  4  timed out, or a node did not answer (lists of the cluster, rm of a pattern)
  5  the object or volume exists already, or is of another version
  6  the store is full, or too small for the object
  7  no daemon answers, or it is being drained
  8  the object is lost: every node that held it is gone
  9  the object is damaged: its bytes are not those that were sealed
     (drain: only what does not move is left: damaged objects, regions)
  10 fewer nodes hold the object than were asked for; the object stays where it is
  11 there is no other node (calibrate)
  12 the outcome is unknown: a node that decides it does not answer, and what was asked may have been done
     (rm, region, call); the lock was lost, or the barrier is broken (lock, barrier, region)

Times are seconds, or have a unit: 200ms, 30s, 5m, 1h, 2d.

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
    /// Unix socket of this host's node [default: plasmon/plasmon.sock in $XDG_RUNTIME_DIR, or without that,
    /// or if its path is too long, /run/plasmon/plasmon.sock for root and /tmp/plasmon-UID/plasmon.sock for
    /// others; if the user has no socket there, commands use /run/plasmon/plasmon.sock]. A socket given here
    /// may belong to any user
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
    Services(Patience),
    /// Call a function of a service, and print its reply
    Call(CallFunction),
    /// Run a command while it holds a lock of the cluster
    Lock(LockArgs),
    /// List the locks and barriers of the cluster: who holds them or has left them, who waits, since when
    #[command(after_help = "\
A node that does not answer is named on standard error; the rest is printed, and the exit code is 4.")]
    Locks(Patience),
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

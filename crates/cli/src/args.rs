//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};
use plasmon::ObjectId;

use crate::serve_args::{Serve, positive_size, seconds};

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
  7  no daemon answers
  8  the object is lost: every node that held it is gone

Examples:
  plasmon serve --memory 8GiB
  plasmon serve --socket /tmp/b.sock --listen 127.0.0.1:0 --join 127.0.0.1:4740
  plasmon put data.parquet --name data
  plasmon get data --socket /tmp/b.sock -o copy.parquet";

/// Plasmon: a distributed in-memory object store. Objects put on one node are read in place by any
/// process there, and fetched by the other nodes of the cluster over RDMA or TCP.
#[derive(Debug, Parser)]
#[command(name = "plasmon", version, after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Unix socket of the node of this host [default: plasmon/plasmon.sock in $XDG_RUNTIME_DIR;
    /// /run/plasmon/plasmon.sock for root]
    #[arg(long, global = true, env = "PLASMON_SOCKET", value_name = "PATH")]
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
    Serve(Serve),
    /// Put a file into the store
    Put(Put),
    /// Get an object, from whichever node holds it
    Get(Get),
    /// List the objects on this node
    Ls,
    /// Delete objects from every node
    Rm(Rm),
    /// Show the state of the node
    Status,
    /// Say what makes Plasmon slower here than the hardware allows, and how to mend it
    Doctor(Doctor),
}

/// Prints the id of the object. What is read from standard input is gathered in memory first.
#[derive(Debug, ClapArgs)]
pub(crate) struct Put {
    /// The file; - reads standard input
    pub(crate) file: PathBuf,
    /// Name of the object: its id is the name's hash, the same on every node
    #[arg(long, conflicts_with = "id", value_parser = name)]
    pub(crate) name: Option<String>,
    /// Id of the object, 40 hexadecimal digits [default: a random one]
    #[arg(long, value_name = "HEX")]
    pub(crate) id: Option<ObjectId>,
    /// Only processes of this user may see the object
    #[arg(long)]
    pub(crate) private: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Get {
    /// The object
    #[arg(value_name = "NAME|ID", value_parser = which)]
    pub(crate) object: Which,
    /// Write to this file, whole or not at all [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Seconds to wait for the object; 0 takes only what is on this node
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Rm {
    /// The objects
    #[arg(value_name = "NAME|ID", required = true, value_parser = which)]
    pub(crate) objects: Vec<Which>,
}

/// Looks at huge pages, memory, limits, cores and RDMA devices, and at what the node of this host makes
/// of them, if one runs. Changes nothing. Exit code 1 when there is a problem; advice is no problem.
#[derive(Debug, ClapArgs)]
pub(crate) struct Doctor {
    /// Memory the store is to have [default: what the node of this host has, or else 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) memory: Option<u64>,
    /// Directory for objects when memory is short [default: the one of the node of this host]
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
}

/// An object as the user named it.
#[derive(Debug, Clone)]
pub(crate) struct Which {
    pub(crate) text: String,
    pub(crate) id: ObjectId,
}

/// 40 hexadecimal digits are an id, everything else is a name.
fn which(text: &str) -> Result<Which, String> {
    let id = match text.parse() {
        Ok(id) => id,
        Err(_) => ObjectId::from_name(&name(text)?),
    };
    Ok(Which { text: text.to_owned(), id })
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

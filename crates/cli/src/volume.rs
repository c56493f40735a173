//! `plasmon volume`: makes, lists, changes and removes volumes.
//!
//! Owns no state. Main thread.

use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use plasmon::files::{Place, VolumeChange, VolumeInfo, VolumeState, VolumeTerms, Volumes, find_place};
use plasmon::{Client, Socket, find_nodes};
use serde_json::{Value, json};

use crate::connecting::connect;
use crate::failure::Failure;
use crate::listing::{complete, short};
use crate::names::name;
use crate::output::{self, age, size, table};
use crate::values::positive_size;
use crate::volume_check::check;

/// Name of the command in the node's list of clients.
const NAME: &str = "plasmon volume";

/// Commands of `plasmon volume`.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume
    #[command(after_help = "\
Its home, the node that decides about names, is the node of this host unless --home says another one. If the \
node of this host keeps no names of files (a cache, --no-files), it is the one with the most free memory \
that does. Exit code 5 if there is a volume of this name.")]
    Create(CreateVolume),
    /// List the volumes of the cluster
    #[command(after_help = "\
A node that does not answer is named on standard error; the rest is printed, and the exit code is 4.")]
    Ls,
    /// Change the terms of a volume
    Set(SetVolume),
    /// Look whether the bytes of all files are there, on as many nodes as was promised
    #[command(after_help = "\
Names the files, and the ranges of them, that no node has (lost) or that fewer nodes keep than the files say \
(short); counts objects that no file has; compares what the home counts with what the files add up to. \
Exit code 8 if bytes are lost: reading them gives EIO. Files may be in use meanwhile.")]
    Check {
        /// Name of the volume
        #[arg(value_name = "NAME", value_parser = name)]
        name: String,
        /// Make copies where there are too few, and delete objects that no file has
        #[arg(long)]
        repair: bool,
    },
    /// Remove a volume with all its files
    #[command(after_help = "It is refused while the volume is mounted somewhere.")]
    Rm {
        /// Name of the volume
        #[arg(value_name = "NAME", value_parser = name)]
        name: String,
        /// Forget a volume that is lost: no node is left that had its names
        #[arg(long)]
        lost: bool,
    },
}

/// Arguments of `plasmon volume create`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CreateVolume {
    /// Name of the volume
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// Number of nodes that keep names and attributes, the home among them [default: 2]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=8))]
    metadata_copies: Option<u16>,
    /// Node that decides about names, as its host's name or address, or as its id or the beginning of the id
    #[arg(long, value_name = "NODE|HOST")]
    home: Option<String>,
    /// Whether other users may attach; the home looks at the modes of what they use
    #[arg(long)]
    shared: bool,
    /// Let programs on any number of hosts map a file (MAP_SHARED): they lose stores to each other
    #[arg(long)]
    shared_maps: bool,
    #[command(flatten)]
    terms: Terms,
}

/// Arguments of `plasmon volume set`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
What is not named stays. 'none' lifts a limit. A smaller --capacity or --user-quota than what is used \
refuses further bytes. --copies and --place hold for what is written from then on; where a file lies, \
`plasmon explain PATH` says. `plasmon volume check --repair` makes copies of what is there. With more \
--metadata-copies other nodes get the names in the background, as `plasmon volume ls` shows; with fewer, \
nodes let them go. Users who have attached to a volume stay when it is shared no more.")]
pub(crate) struct SetVolume {
    /// Name of the volume
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// Number of nodes that keep names and attributes, the home among them
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=8))]
    metadata_copies: Option<u16>,
    /// Whether other users may attach from now on
    #[arg(long, value_name = "true|false")]
    shared: Option<bool>,
    /// Whether programs on any number of hosts may map a file (MAP_SHARED) that is opened from now on
    #[arg(long, value_name = "true|false")]
    shared_maps: Option<bool>,
    #[command(flatten)]
    terms: Terms,
}

/// Terms that a volume is made with, and that may change.
#[derive(Debug, ClapArgs)]
struct Terms {
    /// Size that all files may have together [default: what the nodes have room for]
    #[arg(long, value_name = "SIZE|none", value_parser = limit)]
    capacity: Option<u64>,
    /// Number of nodes that keep the bytes of a file [default: 1]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    copies: Option<u16>,
    /// Where the bytes of files lie that are written from now on: on the host that writes them while a tenth
    /// of its memory is free (local), on hosts with much free memory (spread), or on these nodes, each as its
    /// host's name or address, or as its id or the beginning of the id; never on a cache [default: local]
    #[arg(long, value_name = "local|spread|NODE,..")]
    place: Option<String>,
    /// Size that the files of one user may have together [default: any]
    #[arg(long, value_name = "SIZE|none", value_parser = limit)]
    user_quota: Option<u64>,
    /// Number of files, folders and others that there may be [default: what the home has room for]
    #[arg(long, value_name = "N|none", value_parser = number_limit)]
    inodes: Option<u64>,
}

/// Runs a command of `plasmon volume`.
pub(crate) fn volume(socket: &Socket, as_json: bool, command: &VolumeCommand) -> Result<(), Failure> {
    let client = connect(socket, NAME)?;
    let volumes = Volumes::by(&client);
    match command {
        VolumeCommand::Create(args) => {
            let home = match &args.home {
                Some(home) => Some(find_nodes(&client, &[home], None)?[0]),
                None => None,
            };
            let info = volumes.create(&args.name, home, terms(&client, args)?)?;
            done(as_json, &row_json(&info))
        }
        VolumeCommand::Ls => {
            let list = volumes.list()?;
            if as_json {
                output::json(&list.volumes.iter().map(row_json).collect::<Value>().to_string())?;
            } else {
                let rows: Vec<_> = list.volumes.iter().map(row).collect();
                let titles =
                    ["USED", "CAPACITY", "INODES", "COPIES", "HOME", "MIRRORS", "MOUNTS", "AGE", "NAME"];
                table(titles, &rows)?;
            }
            complete(&list.missing)
        }
        VolumeCommand::Set(args) => {
            let Terms { capacity, copies, user_quota, inodes, .. } = args.terms;
            let place = place(&client, args.terms.place.as_deref())?;
            let change = VolumeChange {
                capacity,
                inodes,
                user_quota,
                copies,
                metadata_copies: args.metadata_copies,
                place,
                shared: args.shared,
                shared_maps: args.shared_maps,
            };
            let info = volumes.set(&args.name, change)?;
            done(as_json, &row_json(&info))
        }
        VolumeCommand::Check { name, repair } => check(&client, as_json, name, *repair),
        VolumeCommand::Rm { name, lost } => {
            if *lost {
                volumes.forget(name)?;
            } else {
                volumes.remove(name)?;
            }
            done(as_json, &json!({ "name": name }))
        }
    }
}

/// Word for no limit.
const NO_LIMIT: &str = "none";

/// Parses a limit in bytes. No limit is 0.
fn limit(text: &str) -> Result<u64, String> {
    match text {
        NO_LIMIT => Ok(0),
        _ => positive_size(text).map_err(|error| format!("{error}, or '{NO_LIMIT}' for no limit")),
    }
}

/// Parses a limit of a number of things. No limit is 0.
fn number_limit(text: &str) -> Result<u64, String> {
    match (text, text.parse()) {
        (NO_LIMIT, _) => Ok(0),
        (_, Ok(number)) if number > 0 => Ok(number),
        _ => Err(format!("write a number, at least 1, or '{NO_LIMIT}' for no limit")),
    }
}

/// Place that a word stands for, if there is one.
fn place(client: &Client, word: Option<&str>) -> Result<Option<Place>, Failure> {
    Ok(word.map(|word| find_place(client, word)).transpose()?)
}

fn terms(client: &Client, args: &CreateVolume) -> Result<VolumeTerms, Failure> {
    Ok(VolumeTerms {
        capacity: args.terms.capacity.unwrap_or(0),
        inodes: args.terms.inodes.unwrap_or(0),
        user_quota: args.terms.user_quota.unwrap_or(0),
        copies: args.terms.copies.unwrap_or(1),
        metadata_copies: args.metadata_copies.unwrap_or(0),
        place: place(client, args.terms.place.as_deref())?.unwrap_or_default(),
        shared: args.shared,
        shared_maps: args.shared_maps,
    })
}

/// Prints nothing for people, and what was done for programs.
fn done(as_json: bool, what: &Value) -> Result<(), Failure> {
    if as_json { output::json(&what.to_string()) } else { Ok(()) }
}

fn row(info: &VolumeInfo) -> [String; 9] {
    [
        size(info.used),
        if info.terms.capacity == 0 { "any".to_owned() } else { size(info.terms.capacity) },
        info.inodes.to_string(),
        info.terms.copies.to_string(),
        match info.state {
            VolumeState::Served => short(&[info.home]),
            VolumeState::Waits => "changes".to_owned(),
            VolumeState::Lost => "lost".to_owned(),
        },
        if info.mirrors.is_empty() { "none".to_owned() } else { short(&info.mirrors) },
        info.sessions.to_string(),
        age(Duration::from_millis(info.age_ms)),
        info.name.clone(),
    ]
}

fn row_json(info: &VolumeInfo) -> Value {
    json!({
        "name": info.name,
        "number": info.number,
        "owner": info.owner,
        "home": info.home.to_string(),
        "mirrors": info.mirrors.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "joining": info.joining.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "state": match info.state {
            VolumeState::Served => "served",
            VolumeState::Waits => "changes",
            VolumeState::Lost => "lost",
        },
        "capacity": info.terms.capacity,
        "most_inodes": info.terms.inodes,
        "user_quota": info.terms.user_quota,
        "copies": info.terms.copies,
        "place": info.terms.place.to_string(),
        "shared": info.terms.shared,
        "shared_maps": info.terms.shared_maps,
        "metadata_copies": info.terms.metadata_copies,
        "used": info.used,
        "inodes": info.inodes,
        "sessions": info.sessions,
        "memory": info.memory,
        "age_ms": info.age_ms,
    })
}

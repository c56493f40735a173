//! Arguments of `plasmon region` and its commands.
//!
//! Owns no state. Any thread. Invariant: each argument is valid by itself. The node checks arguments against
//! the region, such as an offset against its length.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use plasmon::region::{Principal, Rights};

use crate::connecting::timeout;
use crate::list_args::Patience;
use crate::names::name;
use crate::users::user_id;
use crate::values::{any_size, positive_size};

/// Commands of `plasmon region`.
#[derive(Debug, Subcommand)]
pub(crate) enum RegionCommand {
    /// Make a region, of zeros
    Create(Create),
    /// List the regions of the cluster
    #[command(after_help = "\
Those of this user and those to which it has rights; for root, all. A node that does not answer is named on \
standard error; the rest is printed, and the exit code is 4.")]
    Ls(Patience),
    /// Show what a region is like
    Info(Which),
    /// Read bytes of a region
    Read(Read),
    /// Write a file into a region
    Write(Write),
    /// Set bytes of a region to a value
    Fill(Fill),
    /// Copy bytes from one region to another, or within one
    Copy(Copy),
    /// Add to a word of a region, and print what it was before
    Add(Add),
    /// Replace a word of a region if it is what was expected, and print what it was before
    #[command(after_help = "\
The word was replaced if EXPECTED is printed. With --json, `swapped` says so.")]
    Cas(Cas),
    /// Give a user rights to a region
    Grant(Grant),
    /// Take all rights to a region from a user
    Revoke(Revoke),
    /// Move a region to another node
    #[command(after_help = "\
Operations on the region wait meanwhile, and go on at the other node.")]
    Move(Move),
    /// Free a region: its name and its memory
    Free(Which),
    /// Print a word of a region, and again each time that it is another, until Ctrl-C
    #[command(after_help = "\
Values that the word had for a short time may be missing. A program that changes the word in mapped memory \
has to notify; others do not.")]
    Watch(Word),
    /// Print what happens to regions, until Ctrl-C
    Events(Events),
    /// Make an object of a region's bytes
    Snapshot(Snapshot),
}

/// Region, as the user named it.
#[derive(Debug, ClapArgs)]
pub(crate) struct Which {
    /// Name of the region
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: String,
    /// Only a region that belongs to this user, by name or number [default: this user's or root's]
    #[arg(long, value_name = "USER", value_parser = user_id)]
    pub(crate) owner: Option<u32>,
    /// Seconds that the command may take
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "30",
        value_parser = timeout
    )]
    pub(crate) timeout: Duration,
}

/// Arguments of `plasmon region create`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A region lives until it is freed, or its node ends.

Examples:
  plasmon region create counters 4KiB
  plasmon region create results 1GiB --node node7 --public r")]
pub(crate) struct Create {
    /// Name of the region, which is unique in the cluster
    #[arg(value_parser = name)]
    pub(crate) name: String,
    /// Size, such as 8, 4KiB or 1GiB
    #[arg(value_parser = positive_size)]
    pub(crate) size: u64,
    /// Node on which it is to live, as its host's name or address, or as its id or the beginning of the id
    /// [default: this host's node]
    #[arg(long, value_name = "NODE|HOST")]
    pub(crate) node: Option<String>,
    /// Rights of every user: r (read), or rw (read and write) [default: none]
    #[arg(long, value_name = "r|rw", value_parser = access)]
    pub(crate) public: Option<Rights>,
    /// No process may map the region into its memory: every operation is a call
    #[arg(long)]
    pub(crate) unmappable: bool,
    /// Succeed if this user has a region of this name and size already
    #[arg(long)]
    pub(crate) exist_ok: bool,
    /// Seconds that the command may take, including the wait for room in a full store [default: as long as
    /// the node itself takes, without waiting for others to make room]
    #[arg(long, value_name = "SECONDS", value_parser = timeout)]
    pub(crate) timeout: Option<Duration>,
}

/// Arguments of `plasmon region read`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Read {
    #[command(flatten)]
    pub(crate) region: Which,
    #[command(flatten)]
    pub(crate) span: Span,
    /// Write to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Bytes of a region.
#[derive(Debug, ClapArgs)]
pub(crate) struct Span {
    /// Offset of the first byte
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = any_size)]
    pub(crate) offset: u64,
    /// Number of bytes [default: up to the end]
    #[arg(long, value_name = "BYTES", value_parser = any_size)]
    pub(crate) size: Option<u64>,
}

/// Arguments of `plasmon region write`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Write {
    #[command(flatten)]
    pub(crate) region: Which,
    /// File to write into the region; - reads standard input
    pub(crate) file: PathBuf,
    /// Offset of the first byte
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = any_size)]
    pub(crate) offset: u64,
}

/// Arguments of `plasmon region fill`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Fill {
    #[command(flatten)]
    pub(crate) region: Which,
    /// Value of each byte
    #[arg(value_name = "BYTE", default_value = "0")]
    pub(crate) byte: u8,
    #[command(flatten)]
    pub(crate) span: Span,
}

/// Arguments of `plasmon region copy`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Copy {
    #[command(flatten)]
    pub(crate) region: Which,
    /// Name of the region to copy from
    #[arg(value_name = "SOURCE", value_parser = name)]
    pub(crate) source: String,
    /// Offset of the first byte in the source
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = any_size)]
    pub(crate) source_offset: u64,
    /// Offset of the first byte in the region
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = any_size)]
    pub(crate) offset: u64,
    /// Number of bytes [default: up to the end of the source]
    #[arg(long, value_name = "BYTES", value_parser = any_size)]
    pub(crate) size: Option<u64>,
}

/// Arguments of `plasmon region add`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Add {
    #[command(flatten)]
    pub(crate) region: Which,
    /// Offset of the word, a multiple of 8
    #[arg(value_parser = any_size)]
    pub(crate) offset: u64,
    /// Number to add, which may be negative
    #[arg(value_name = "N", default_value = "1", value_parser = word)]
    pub(crate) value: u64,
}

/// Arguments of `plasmon region cas`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Cas {
    #[command(flatten)]
    pub(crate) region: Which,
    /// Offset of the word, a multiple of 8
    #[arg(value_parser = any_size)]
    pub(crate) offset: u64,
    /// Value that is expected
    #[arg(value_parser = word)]
    pub(crate) expected: u64,
    /// Value that the word gets
    #[arg(value_parser = word)]
    pub(crate) value: u64,
}

/// Arguments of `plasmon region watch`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Word {
    #[command(flatten)]
    pub(crate) region: Which,
    /// Offset of the word, a multiple of 8
    #[arg(default_value = "0", value_parser = any_size)]
    pub(crate) offset: u64,
}

/// Arguments of `plasmon region events`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A line says that a region has moved, was freed, or is lost with its home, or that a user was granted \
rights or lost them. Rights of other users are told to masters of the region. With --json each event is a \
line of its own. Regions that are made later are not among those that are watched by default. If events come \
faster than they are read, some are left out, and a line says how many.")]
pub(crate) struct Events {
    /// Regions [default: all those that this user may see]
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) names: Vec<String>,
    /// Only regions that belong to this user, by name or number [default: this user's or root's, or those of
    /// every user if none is named]
    #[arg(long, value_name = "USER", value_parser = user_id)]
    pub(crate) owner: Option<u32>,
}

/// Arguments of `plasmon region grant`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Grant {
    #[command(flatten)]
    pub(crate) region: Which,
    /// User by name or number, or `everyone`
    #[arg(value_parser = principal)]
    pub(crate) user: Principal,
    /// Rights that the user gets beside those that it has: r (read), rw (read and write) or master (these,
    /// and to grant, revoke, move and free)
    #[arg(value_name = "r|rw|master", value_parser = rights)]
    pub(crate) rights: Rights,
}

/// Arguments of `plasmon region revoke`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Revoke {
    #[command(flatten)]
    pub(crate) region: Which,
    /// User by name or number, or `everyone`
    #[arg(value_parser = principal)]
    pub(crate) user: Principal,
}

/// Arguments of `plasmon region move`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Move {
    #[command(flatten)]
    pub(crate) region: Which,
    /// Node, as its host's name or address, or as its id or the beginning of the id
    #[arg(value_name = "NODE|HOST")]
    pub(crate) node: String,
}

/// Arguments of `plasmon region snapshot`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Prints the id of the object. Calls that change the region wait while it is copied; programs that write its \
mapped memory do not.")]
pub(crate) struct Snapshot {
    #[command(flatten)]
    pub(crate) region: Which,
    /// Name of the object [default: none; its id is a random one]
    #[arg(long = "name", value_name = "OBJECT", value_parser = name)]
    pub(crate) object: Option<String>,
    /// Number of nodes that keep the object
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) replicas: u16,
}

fn access(text: &str) -> Result<Rights, String> {
    match text {
        "r" => Ok(Rights::READ),
        "rw" => Ok(Rights::READ_WRITE),
        _ => Err("write r (every user may read) or rw (every user may read and write)".into()),
    }
}

fn rights(text: &str) -> Result<Rights, String> {
    match text {
        "r" => Ok(Rights::READ),
        "rw" => Ok(Rights::READ_WRITE),
        "master" => Ok(Rights::ALL),
        _ => Err("write r (read), rw (read and write) or master (all rights)".into()),
    }
}

fn principal(text: &str) -> Result<Principal, String> {
    if text == "everyone" { Ok(Principal::Everyone) } else { user_id(text).map(Principal::User) }
}

/// Parses a word of 64 bits: a decimal number, which may be negative, or hexadecimal digits behind 0x.
fn word(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok().or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned)),
    };
    parsed.ok_or_else(|| "write a number of 64 bits such as 1, -1 or 0xff".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_64_bits() {
        assert_eq!([word("7"), word("-1"), word("0xff")], [Ok(7), Ok(u64::MAX), Ok(255)]);
        assert_eq!(word("18446744073709551615"), Ok(u64::MAX));
        assert!(word("18446744073709551616").is_err() && word("-9223372036854775809").is_err());
        assert!(word("0x").is_err() && word("").is_err() && word("1.5").is_err());
    }

    #[test]
    fn everyone_is_no_user() {
        assert_eq!(principal("everyone"), Ok(Principal::Everyone));
        assert_eq!(principal("1000"), Ok(Principal::User(1000)));
        assert_eq!([rights("rw"), rights("master")], [Ok(Rights::READ_WRITE), Ok(Rights::ALL)]);
        assert!(rights("w").is_err() && access("master").is_err());
    }
}

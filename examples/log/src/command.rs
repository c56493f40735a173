//! `plasmon-log`: makes logs, appends to them, follows them, and cleans up behind writers.
//!
//! Owns no state. The main thread. Exit codes are those of `plasmon region`; what was trimmed is not found.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args as ClapArgs, Parser, Subcommand};
use plasmon::text::{printable, printable_json};
use plasmon::{Client, ErrorKind, Socket, find_nodes};
use serde_json::{Value, json};

use crate::{Error, Log, Start, Transaction, Writer, feed};

/// Name of the command in the node's list of clients.
const NAME: &str = "plasmon-log";
/// Longest wait of a follower before it waits again.
const WAIT: Duration = Duration::from_secs(3600);

/// A distributed atomic log, made of regions of Plasmon
#[derive(Debug, Parser)]
#[command(
    name = "plasmon-log",
    version,
    max_term_width = 110,
    after_help = "\
Exit codes: 1 failed, 2 wrong arguments, 3 there is no such log or the position was trimmed, 4 timed out,
5 there is a log of this name, 6 full or too large, 7 no node answers, 8 lost, 9 damaged,
11 the transaction may or may not be in the log."
)]
struct Args {
    /// Path of the node's socket [default: as `plasmon` finds it]
    #[arg(long, global = true, env = "PLASMON_SOCKET")]
    socket: Option<PathBuf>,
    /// Print JSON, one value a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a log
    Create(Create),
    /// Append the lines of a file, each as a transaction
    Append(Append),
    /// Print the transactions of a log, and those that come, until Ctrl-C
    Follow(Follow),
    /// Give up all transactions before a position
    Trim {
        /// Name of the log
        name: String,
        /// First position to keep, or `end`
        position: String,
    },
    /// Show what a log is like
    Info {
        /// Name of the log
        name: String,
    },
    /// Void what dead writers have left undecided, until Ctrl-C
    Clean(Clean),
    /// Append the rows of a CSV file as events, lines of JSON
    Feed(Feed),
    /// Free a log and all its memory
    Remove {
        /// Name of the log
        name: String,
    },
}

#[derive(Debug, ClapArgs)]
struct Create {
    /// Name of the log
    name: String,
    /// Bytes of transactions that it has at most, such as 64MiB; what is trimmed counts no more
    #[arg(long, default_value = "64MiB", value_parser = capacity)]
    capacity: u64,
    /// Nodes that have a copy each, as their hosts' names or addresses, or as ids [default: this host's node]
    #[arg(long, value_delimiter = ',')]
    nodes: Vec<String>,
}

#[derive(Debug, ClapArgs)]
struct Sending {
    /// Records of a transaction, which are read together or not at all
    #[arg(long, default_value = "1", value_name = "RECORDS")]
    group: NonZeroU32,
    /// Transactions under way at a time; of more than 1 the order is not kept
    #[arg(long, default_value_t = 1, value_name = "TRANSACTIONS")]
    window: usize,
    /// Print the position of each transaction when all copies have it
    #[arg(long)]
    positions: bool,
}

#[derive(Debug, ClapArgs)]
struct Append {
    /// Name of the log
    name: String,
    /// File to read, or - for standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    sending: Sending,
}

#[derive(Debug, ClapArgs)]
struct Follow {
    /// Name of the log
    name: String,
    /// Position to begin at: a number, `oldest` or `end`
    #[arg(long, default_value = "oldest")]
    from: String,
    /// End after so many transactions
    #[arg(long)]
    count: Option<u64>,
    /// End when there is no more
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, ClapArgs)]
struct Clean {
    /// Name of the log
    name: String,
    /// Seconds that a transaction may be undecided; its writer appends it anew if it lives
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    after: f64,
    /// End when nothing is undecided
    #[arg(long)]
    once: bool,
}

#[derive(Debug, ClapArgs)]
struct Feed {
    /// Name of the log
    name: String,
    /// CSV file with a line of heads, such as flights.csv of the demo, or - for standard input
    #[arg(long, value_name = "FILE")]
    flights: PathBuf,
    #[command(flatten)]
    sending: Sending,
}

/// Reason why the command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Log(#[from] Error),
    #[error("cannot {action} {path}: {source}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{0}")]
    Wrong(String),
}

impl From<plasmon::Error> for Failure {
    fn from(error: plasmon::Error) -> Self {
        Self::Log(error.into())
    }
}

impl Failure {
    fn exit_code(&self) -> ExitCode {
        let Self::Log(error) = self else {
            return ExitCode::from(if matches!(self, Self::Wrong(_)) { 2 } else { 1 });
        };
        ExitCode::from(match error.kind() {
            ErrorKind::NotFound | ErrorKind::Freed => 3,
            ErrorKind::TimedOut => 4,
            ErrorKind::Exists => 5,
            ErrorKind::Full | ErrorKind::TooLarge => 6,
            ErrorKind::Disconnected => 7,
            ErrorKind::Lost => 8,
            ErrorKind::Damaged => 9,
            ErrorKind::OutcomeUnknown => 11,
            _ => 1,
        })
    }
}

/// Runs the command with the arguments of the process.
pub fn main() -> ExitCode {
    let Args { socket, json, command } = Args::parse();
    let socket = socket.map_or_else(Socket::find, Socket::from);
    match run(&socket, json, &command) {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has closed the pipe has what it wants.
        Err(Failure::File { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "plasmon-log: {}", printable(&failure.to_string()));
            failure.exit_code()
        }
    }
}

fn run(socket: &Socket, as_json: bool, command: &Command) -> Result<(), Failure> {
    let client = Client::connect_as(socket.clone(), NAME)?;
    let open = |name: &str| Log::open(&client, name);
    match command {
        Command::Create(args) => {
            let nodes = match args.nodes.as_slice() {
                [] => vec![client.node()],
                nodes => find_nodes(&client, nodes, None)?,
            };
            let log = Log::create(&client, &args.name, args.capacity, &nodes)?;
            if as_json { info(&log, true) } else { Ok(()) }
        }
        Command::Append(args) => append(&open(&args.name)?, as_json, args),
        Command::Follow(args) => follow(&open(&args.name)?, as_json, args),
        Command::Trim { name, position } => {
            let log = open(name)?;
            let position = match position.as_str() {
                "end" => log.end()?,
                text => number(text)?,
            };
            let oldest = log.trim(position)?;
            if as_json { line(&json!({ "oldest": oldest }).to_string()) } else { Ok(()) }
        }
        Command::Info { name } => info(&open(name)?, as_json),
        Command::Clean(args) => clean(&open(&args.name)?, as_json, args),
        Command::Feed(args) => feed(&open(&args.name)?, as_json, args),
        Command::Remove { name } => Ok(open(name)?.remove()?),
    }
}

fn number(text: &str) -> Result<u64, Failure> {
    text.parse().map_err(|_| Failure::Wrong(format!("'{text}' is no position: a position is a number")))
}

fn capacity(text: &str) -> Result<u64, String> {
    text.parse::<ByteSize>()
        .map(|size| size.as_u64())
        .map_err(|error| format!("{error}; write one such as 64MiB"))
}

/// Prints a line, and has it seen at once.
fn line(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(writing)
}

fn writing(source: io::Error) -> Failure {
    Failure::File { action: "write", path: "standard output".into(), source }
}

fn input(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file =
        File::open(path).map_err(|source| Failure::File { action: "open", path: path.into(), source })?;
    Ok(Box::new(BufReader::new(file)))
}

/// Reads a line without its end. `None` at the end of the file.
fn next_line(input: &mut dyn BufRead, path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let mut line = Vec::new();
    let read = input.read_until(b'\n', &mut line);
    let read = read.map_err(|source| Failure::File { action: "read", path: path.into(), source })?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok((read > 0).then_some(line))
}

/// Transactions that a command appends.
struct Sender<'a> {
    writer: Writer,
    sending: &'a Sending,
    records: Vec<Vec<u8>>,
    appended: u64,
    last: Option<u64>,
}

impl<'a> Sender<'a> {
    fn new(log: &Log, sending: &'a Sending) -> Result<Self, Failure> {
        let writer = log.writer()?.with_window(sending.window);
        Ok(Self { writer, sending, records: Vec::new(), appended: 0, last: None })
    }

    fn send(&mut self, record: Vec<u8>) -> Result<(), Failure> {
        self.records.push(record);
        if self.records.len() as u64 == u64::from(self.sending.group.get()) { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), Failure> {
        while self.writer.under_way() == self.writer.window() {
            self.take()?;
        }
        self.writer.begin(&self.records)?;
        self.records.clear();
        if self.writer.window() == 1 { self.take() } else { Ok(()) }
    }

    fn take(&mut self) -> Result<(), Failure> {
        let Some(result) = self.writer.finish() else { return Ok(()) };
        let position = result?;
        self.appended += 1;
        self.last = Some(position);
        if self.sending.positions { line(&position.to_string()) } else { Ok(()) }
    }

    fn end(mut self, as_json: bool) -> Result<(), Failure> {
        if !self.records.is_empty() {
            self.commit()?;
        }
        while self.writer.under_way() > 0 {
            self.take()?;
        }
        let told =
            json!({ "transactions": self.appended, "last": self.last, "writer": self.writer.number() });
        if as_json { line(&told.to_string()) } else { Ok(()) }
    }
}

fn append(log: &Log, as_json: bool, args: &Append) -> Result<(), Failure> {
    let (mut input, mut sender) = (input(&args.file)?, Sender::new(log, &args.sending)?);
    while let Some(line) = next_line(&mut *input, &args.file)? {
        sender.send(line)?;
    }
    sender.end(as_json)
}

fn feed(log: &Log, as_json: bool, args: &Feed) -> Result<(), Failure> {
    let (path, mut input, mut sender) =
        (&args.flights, input(&args.flights)?, Sender::new(log, &args.sending)?);
    let wrong = |what: &str| Failure::Wrong(format!("{}: {what}", path.display()));
    let text = |line: Vec<u8>| String::from_utf8(line).map_err(|_| wrong("it is no text in UTF-8"));
    let heads =
        next_line(&mut *input, path)?.ok_or_else(|| wrong("it is empty: the first line has the heads"))?;
    let heads =
        feed::fields(text(heads)?.trim_end_matches('\r')).ok_or_else(|| wrong("a quote is not closed"))?;
    while let Some(line) = next_line(&mut *input, path)? {
        let mut row = text(line)?;
        let fields = loop {
            if let Some(fields) = feed::fields(row.trim_end_matches('\r')) {
                break fields;
            }
            let more = next_line(&mut *input, path)?.ok_or_else(|| wrong("a quote is not closed"))?;
            row = format!("{row}\n{}", text(more)?);
        };
        sender.send(feed::event(&heads, &fields).into_bytes())?;
    }
    sender.end(as_json)
}

fn follow(log: &Log, as_json: bool, args: &Follow) -> Result<(), Failure> {
    let start = match args.from.as_str() {
        "oldest" => Start::Oldest,
        "end" => Start::End,
        position => Start::At(number(position)?),
    };
    let mut reader = log.reader(start)?;
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let batch = reader.next_batch(if args.no_wait { Duration::ZERO } else { WAIT })?;
        if batch.is_empty() && args.no_wait {
            break;
        }
        let mut out = io::stdout().lock();
        for transaction in batch.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            let printed = match as_json {
                true => writeln!(out, "{}", printable_json(&to_json(transaction).to_string())),
                false => transaction
                    .records
                    .iter()
                    .try_for_each(|record| writeln!(out, "{}", printable(&String::from_utf8_lossy(record)))),
            };
            printed.map_err(writing)?;
            left -= 1;
        }
        out.flush().map_err(writing)?;
    }
    Ok(())
}

/// Transaction for programs: records are texts, or hexadecimal digits if they are not in UTF-8.
fn to_json(transaction: &Transaction) -> Value {
    let record = |record: &Vec<u8>| match std::str::from_utf8(record) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": record.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    };
    let records: Vec<_> = transaction.records.iter().map(record).collect();
    json!({ "position": transaction.position, "writer": transaction.writer, "records": records })
}

fn clean(log: &Log, as_json: bool, args: &Clean) -> Result<(), Failure> {
    let after = plasmon::timeout(args.after).map_err(Error::from)?.unwrap_or(Duration::MAX);
    let mut cleaner = log.cleaner(after);
    loop {
        let swept = cleaner.pass()?;
        if swept.voided + swept.completed > 0 {
            let told = json!({ "voided": swept.voided, "completed": swept.completed });
            let text = format!("{} voided, {} completed", swept.voided, swept.completed);
            line(&if as_json { told.to_string() } else { text })?;
        }
        if args.once && swept.open == 0 {
            return Ok(());
        }
        thread::sleep((after / 4).clamp(Duration::from_millis(20), Duration::from_secs(1)));
    }
}

fn info(log: &Log, as_json: bool) -> Result<(), Failure> {
    let info = log.info()?;
    let homes = |homes: &[plasmon::NodeId]| homes.iter().map(ToString::to_string).collect::<Vec<_>>();
    if as_json {
        let segments: Vec<_> = info
            .segments
            .iter()
            .map(|segment| {
                json!({
                    "number": segment.number, "homes": homes(&segment.homes), "reserved": segment.reserved,
                    "open": segment.open, "closed": segment.closed,
                })
            })
            .collect();
        let told = json!({
            "name": info.name, "oldest": info.oldest, "end": info.end, "nodes": homes(&info.nodes),
            "copies": info.shape.copies, "capacity": info.shape.data * info.shape.segments,
            "segment_bytes": info.shape.data, "segment_entries": info.shape.entries, "segments": segments,
        });
        return line(&printable_json(&told.to_string()));
    }
    line(&format!("name      {}", printable(&info.name)))?;
    line(&format!("capacity  {}", ByteSize::b(info.shape.data * info.shape.segments).display().iec()))?;
    line(&format!("copies    {}, on nodes {}", info.shape.copies, homes(&info.nodes).join(", ")))?;
    line(&format!("positions {} to {}", info.oldest, info.end))?;
    for segment in &info.segments {
        let closed = if segment.closed { ", closed since its first copy is lost" } else { "" };
        line(&format!(
            "segment {}: {} reserved, {} undecided, copies on {}{closed}",
            segment.number,
            segment.reserved,
            segment.open,
            homes(&segment.homes).join(", ")
        ))?;
    }
    Ok(())
}

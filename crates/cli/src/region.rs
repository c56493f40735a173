//! `plasmon region`: makes, lists, reads, changes and frees regions.
//!
//! Owns no state. Main thread. Invariant: a file is read and written in steps, so that no file is in memory
//! as a whole.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use plasmon::region::{Principal, RegionInfo, RegionOptions, Rights};
use plasmon::{Client, CreateOptions, Error, ErrorKind, ObjectId, Region, Socket, find_nodes};
use serde_json::{Value, json};

use crate::connecting::Within;
use crate::failure::Failure;
use crate::list_args::Patience;
use crate::listing::{complete, short};
use crate::output::{self, STANDARD_OUTPUT, age, line, size, standard, table, tolerant};
use crate::region_args::{
    Add, Cas, Copy, Create, Fill, Grant, Move, Read, RegionCommand, Revoke, Snapshot, Span, Which, Word,
    Write,
};
use crate::region_events::{events, letters, user_json};

/// Name of the command in the node's list of clients.
const NAME: &str = "plasmon region";
/// Number of bytes that are read or written at a time.
const STEP_BYTES: usize = 4 << 20;
/// Longest wait for a change of a watched word. The command waits again afterwards.
const WATCH: Duration = Duration::from_secs(3600);

const READ: Rights = Rights::READ;

/// Runs a command of `plasmon region`.
pub(crate) fn region(socket: &Socket, as_json: bool, command: &RegionCommand) -> Result<(), Failure> {
    match command {
        RegionCommand::Create(args) => create(socket, as_json, args),
        RegionCommand::Ls(patience) => ls(socket, as_json, patience),
        RegionCommand::Info(which) => info(socket, as_json, which),
        RegionCommand::Read(args) => read(socket, as_json, args),
        RegionCommand::Write(args) => write(socket, as_json, args),
        RegionCommand::Fill(args) => fill(socket, as_json, args),
        RegionCommand::Copy(args) => copy(socket, as_json, args),
        RegionCommand::Add(args) => add(socket, as_json, args),
        RegionCommand::Cas(args) => cas(socket, as_json, args),
        RegionCommand::Grant(args) => grant(socket, as_json, args),
        RegionCommand::Revoke(args) => revoke(socket, as_json, args),
        RegionCommand::Move(args) => move_to(socket, as_json, args),
        RegionCommand::Free(which) => free(socket, as_json, which),
        RegionCommand::Watch(args) => watch(socket, as_json, args),
        RegionCommand::Events(args) => events(socket, as_json, args),
        RegionCommand::Snapshot(args) => snapshot(socket, as_json, args),
    }
}

/// Connects, and maps a region with these rights.
fn map(socket: &Socket, which: &Which, rights: Rights) -> Result<(Client, Region), Failure> {
    let within = Within::new(Some(which.timeout));
    let client = within.connect(socket, NAME)?;
    let region = client.map_region_of(which.owner, &which.name, rights, None)?;
    Ok((client, region.with_timeout(within.left().unwrap_or(which.timeout))))
}

/// Prints nothing for people, and what was done for programs.
fn done(as_json: bool, what: &Value) -> Result<(), Failure> {
    if as_json { output::json(&what.to_string()) } else { Ok(()) }
}

fn create(socket: &Socket, as_json: bool, args: &Create) -> Result<(), Failure> {
    let within = Within::new(args.timeout);
    let client = within.connect(socket, NAME)?;
    let node = match &args.node {
        Some(node) => Some(find_nodes(&client, &[node], within.left())?[0]),
        None => None,
    };
    let options = RegionOptions {
        node,
        public: args.public.unwrap_or(Rights::NONE),
        mappable: !args.unmappable,
        ephemeral: false,
        exist_ok: args.exist_ok,
        room: within.left(),
    };
    let region = client.create_region(&args.name, args.size, &options)?;
    done(as_json, &json!({ "name": args.name, "bytes": region.len(), "home": region.home().to_string() }))
}

fn ls(socket: &Socket, as_json: bool, patience: &Patience) -> Result<(), Failure> {
    let list = Within::new(Some(patience.timeout)).connect(socket, NAME)?.list_regions()?;
    if as_json {
        output::json(&list.regions.iter().map(row_json).collect::<Value>().to_string())?;
    } else {
        let rows: Vec<_> = list.regions.iter().map(row).collect();
        table(["SIZE", "HOME", "OWNER", "RIGHTS", "PUBLIC", "HANDLES", "AGE", "NAME"], &rows)?;
    }
    complete(&list.missing)
}

fn row(info: &RegionInfo) -> [String; 8] {
    [
        size(info.len),
        short(&[info.home]),
        info.owner.to_string(),
        info.rights.to_string(),
        info.public.to_string(),
        info.handles.to_string(),
        age(Duration::from_millis(info.age_ms)),
        info.name.clone(),
    ]
}

fn row_json(info: &RegionInfo) -> Value {
    json!({
        "name": info.name,
        "bytes": info.len,
        "home": info.home.to_string(),
        "owner": info.owner,
        "rights": letters(info.rights),
        "public": letters(info.public),
        "mappable": info.mappable,
        "crowded_out": info.crowded_out,
        "pieces": info.pieces,
        "ephemeral": info.ephemeral,
        "handles": info.handles,
        "nodes": info.nodes,
        "age_seconds": info.age_ms as f64 / 1000.0,
    })
}

fn info(socket: &Socket, as_json: bool, which: &Which) -> Result<(), Failure> {
    let info = map(socket, which, Rights::NONE)?.1.info()?;
    if as_json {
        return output::json(&row_json(&info).to_string());
    }
    let yes = |it: bool| if it { "yes" } else { "no" };
    line(&format!("name       {}", info.name))?;
    line(&format!("size       {} ({} bytes)", size(info.len), info.len))?;
    line(&format!("home       node {}", info.home))?;
    line(&format!("owner      user {}", info.owner))?;
    line(&format!("rights     {} (of every user: {})", info.rights, info.public))?;
    let why_not = match info.crowded_out {
        true => ", for want of memory that its owner's processes may map",
        false => "",
    };
    line(&format!("mappable   {}{why_not}", yes(info.mappable)))?;
    if info.pieces > 1 {
        line(&format!("memory     {} pieces", info.pieces))?;
    }
    line(&format!("ephemeral  {}", yes(info.ephemeral)))?;
    line(&format!("handles    {} at home, and those of {} other nodes", info.handles, info.nodes))?;
    line(&format!("age        {}", age(Duration::from_millis(info.age_ms))))
}

/// Bytes from the offset up to the end, or as many as were asked for.
fn extent(region: &Region, span: &Span) -> std::ops::Range<u64> {
    let end = span.size.map_or(region.len().max(span.offset), |size| span.offset.saturating_add(size));
    span.offset..end
}

fn read(socket: &Socket, as_json: bool, args: &Read) -> Result<(), Failure> {
    let (_client, region) = map(socket, &args.region, READ)?;
    let wanted = extent(&region, &args.span);
    let bytes = wanted.end - wanted.start;
    // The first bytes are read before a file is made, so that a wrong offset leaves none.
    let mut step = vec![0; bytes.min(STEP_BYTES as u64) as usize];
    region.read(wanted.start, &mut step)?;
    let Some(path) = &args.output else {
        return tolerant_read(&region, wanted, step);
    };
    let mut file = File::create(path).map_err(Failure::file("create", path))?;
    copy_out(&region, wanted, step, &mut |bytes| file.write_all(bytes), path)?;
    if as_json { done(true, &json!({ "bytes": bytes, "output": path })) } else { Ok(()) }
}

/// Prints bytes. A reader that has gone away is no error.
fn tolerant_read(region: &Region, wanted: std::ops::Range<u64>, step: Vec<u8>) -> Result<(), Failure> {
    let path = Path::new(STANDARD_OUTPUT);
    let mut out = standard().map_err(Failure::file("write", path))?;
    let printed = copy_out(region, wanted, step, &mut |bytes| out.write_all(bytes), path);
    match printed {
        Err(Failure::File { source, .. }) => tolerant(Err(source)),
        Err(other) => Err(other),
        Ok(()) => tolerant(out.flush()),
    }
}

/// Passes on the bytes of a region. `step` has the first of them.
fn copy_out(
    region: &Region,
    wanted: std::ops::Range<u64>,
    mut step: Vec<u8>,
    to: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    path: &Path,
) -> Result<(), Failure> {
    let mut at = wanted.start;
    loop {
        to(&step).map_err(Failure::file("write", path))?;
        at += step.len() as u64;
        if at >= wanted.end {
            return Ok(());
        }
        step.truncate((wanted.end - at).min(STEP_BYTES as u64) as usize);
        region.read(at, &mut step)?;
    }
}

fn write(socket: &Socket, as_json: bool, args: &Write) -> Result<(), Failure> {
    let (_client, region) = map(socket, &args.region, Rights::WRITE)?;
    let mut from: Box<dyn io::Read> = if args.file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let file = File::open(&args.file).map_err(Failure::file("open", &args.file))?;
        // A file that is too long is refused before any byte of the region is changed.
        let len = file.metadata().map_err(Failure::file("look at", &args.file))?.len();
        if args.offset.checked_add(len).is_none_or(|end| end > region.len()) {
            return Err(too_long(&region, args, len).into());
        }
        Box::new(file)
    };
    let mut at = args.offset;
    let mut step = Vec::new();
    loop {
        step.clear();
        let path = &args.file;
        from.by_ref().take(STEP_BYTES as u64).read_to_end(&mut step).map_err(Failure::file("read", path))?;
        if step.is_empty() {
            break;
        }
        region.write(at, &step)?;
        at += step.len() as u64;
    }
    done(as_json, &json!({ "bytes": at - args.offset }))
}

fn too_long(region: &Region, args: &Write, len: u64) -> Error {
    let text = format!(
        "{} has {len} bytes, which do not fit at offset {} of region '{}' of {} bytes; nothing was written",
        args.file.display(),
        args.offset,
        region.name(),
        region.len()
    );
    Error::new(ErrorKind::Invalid, text)
}

fn fill(socket: &Socket, as_json: bool, args: &Fill) -> Result<(), Failure> {
    let (_client, region) = map(socket, &args.region, Rights::WRITE)?;
    let wanted = extent(&region, &args.span);
    let bytes = wanted.end - wanted.start;
    region.fill(wanted, args.byte)?;
    done(as_json, &json!({ "bytes": bytes }))
}

fn copy(socket: &Socket, as_json: bool, args: &Copy) -> Result<(), Failure> {
    let (client, region) = map(socket, &args.region, Rights::WRITE)?;
    let source = client.map_region_of(args.region.owner, &args.source, READ, None)?;
    let wanted = extent(&source, &Span { offset: args.source_offset, size: args.size });
    let bytes = wanted.end - wanted.start;
    region.copy_from(args.offset, &source, wanted)?;
    done(as_json, &json!({ "bytes": bytes }))
}

fn add(socket: &Socket, as_json: bool, args: &Add) -> Result<(), Failure> {
    let (_client, region) = map(socket, &args.region, Rights::WRITE)?;
    let before = region.fetch_add(args.offset, args.value)?;
    notify(&region, args.offset)?;
    if as_json { done(true, &json!({ "before": before })) } else { line(&before.to_string()) }
}

fn cas(socket: &Socket, as_json: bool, args: &Cas) -> Result<(), Failure> {
    let (_client, region) = map(socket, &args.region, Rights::WRITE)?;
    let before = region.compare_swap(args.offset, args.expected, args.value)?;
    let swapped = before == args.expected;
    if swapped {
        notify(&region, args.offset)?;
    }
    if as_json {
        return done(true, &json!({ "before": before, "swapped": swapped }));
    }
    line(&before.to_string())
}

/// Wakes those who wait for the word, if this process changed it in mapped memory.
fn notify(region: &Region, offset: u64) -> Result<(), Failure> {
    if region.is_mapped() { Ok(region.notify(offset)?) } else { Ok(()) }
}

fn grant(socket: &Socket, as_json: bool, args: &Grant) -> Result<(), Failure> {
    map(socket, &args.region, Rights::MASTER)?.1.grant(args.user, args.rights)?;
    done(as_json, &json!({ "user": user_json(number(args.user)), "rights": letters(args.rights) }))
}

fn revoke(socket: &Socket, as_json: bool, args: &Revoke) -> Result<(), Failure> {
    map(socket, &args.region, Rights::MASTER)?.1.revoke(args.user)?;
    done(as_json, &json!({ "user": user_json(number(args.user)) }))
}

/// Number of a user. `None` for every user.
fn number(user: Principal) -> Option<u32> {
    match user {
        Principal::User(user) => Some(user),
        Principal::Everyone => None,
    }
}

fn move_to(socket: &Socket, as_json: bool, args: &Move) -> Result<(), Failure> {
    let within = Within::new(Some(args.region.timeout));
    let (client, region) = map(socket, &args.region, Rights::MASTER)?;
    let node = find_nodes(&client, &[&args.node], within.left())?[0];
    region.move_to(node, within.left().unwrap_or(args.region.timeout))?;
    done(as_json, &json!({ "home": node.to_string() }))
}

fn free(socket: &Socket, as_json: bool, which: &Which) -> Result<(), Failure> {
    map(socket, which, Rights::MASTER)?.1.free()?;
    done(as_json, &json!({ "name": which.name }))
}

/// Prints a word at each change, until standard output is closed, the region is freed, or a signal comes.
fn watch(socket: &Socket, as_json: bool, args: &Word) -> Result<(), Failure> {
    let (_client, region) = map(socket, &args.region, READ)?;
    let mut word = [0; 8];
    region.read(args.offset, &mut word)?;
    let mut seen = u64::from_le_bytes(word);
    loop {
        let text = if as_json { json!({ "value": seen }).to_string() } else { seen.to_string() };
        let written = standard().and_then(|mut out| writeln!(out, "{text}").and_then(|()| out.flush()));
        if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return Ok(());
        }
        tolerant(written)?;
        seen = changed(&region, args.offset, seen)?;
    }
}

/// Waits until a word is another, however long that takes.
fn changed(region: &Region, offset: u64, seen: u64) -> Result<u64, Error> {
    loop {
        match region.wait(offset, seen, WATCH) {
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            changed => return changed,
        }
    }
}

fn snapshot(socket: &Socket, as_json: bool, args: &Snapshot) -> Result<(), Failure> {
    let (_client, region) = map(socket, &args.region, READ)?;
    let id = args.object.as_deref().map_or_else(ObjectId::random, ObjectId::from_name);
    let options = CreateOptions {
        name: args.object.clone(),
        fresh: args.object.is_none(),
        replicas: args.replicas,
        ..CreateOptions::default()
    };
    let id = region.snapshot(id, &options)?;
    if as_json {
        return done(true, &json!({ "id": id.to_string(), "name": args.object, "bytes": region.len() }));
    }
    line(&id.to_string())
}

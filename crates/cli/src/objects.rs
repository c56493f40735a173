//! `plasmon put`, `get`, `hash` and `evict`.
//!
//! Owns no state. Main thread; while `get` and `hash` wait, another thread asks for a progress that is shown.
//! Invariant: a regular file that `get` writes appears as a whole or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use plasmon::{Client, CreateOptions, Object, ObjectId, Rights, Socket, Version};
use rustix::fs::{AtFlags, CWD, linkat};
use serde_json::json;

use crate::connecting::{Within, connect};
use crate::failure::Failure;
use crate::names::{Which, Whose};
use crate::object_args::{Evict, Get, Hash, Put};
use crate::output::{self, Progress, line, size, standard, tolerant};
use crate::python;

/// Number of bytes moved between two updates of the progress.
const STEP_BYTES: usize = 8 << 20;
/// Time between two questions for how far an object has come.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Puts a file or standard input, and prints the id of the object.
pub(crate) fn put(socket: &Socket, as_json: bool, args: &Put) -> Result<(), Failure> {
    if let Some(kind) = &args.kind {
        return Err(python::put(socket, as_json, args, kind));
    }
    let options = CreateOptions {
        name: args.name.clone(),
        rights: if args.private { Rights::Private } else { args.public },
        room: args.timeout,
        digest: args.digest,
        fresh: args.name.is_none() && args.id.is_none(),
        // An object that replaces another is kept by as many nodes as that one, if no number was given.
        replicas: if args.replace && args.replicas == 1 { 0 } else { args.replicas },
        ttl: args.ttl,
        owned: false,
        replace: args.replace,
    };
    let client = Within::new(args.timeout).connect(socket, "plasmon put")?;
    let id = match (&args.name, args.id) {
        (Some(name), _) if args.private => ObjectId::from_private_name(name, client.user()),
        (Some(name), _) => ObjectId::from_name(name),
        (None, Some(id)) => id,
        (None, None) => ObjectId::random(),
    };
    let put = if args.file == Path::new("-") {
        let mut data = Vec::new();
        io::stdin().read_to_end(&mut data).map_err(Failure::file("read", "standard input"))?;
        let version = put_bytes(&client, id, &data, &options, args.expected);
        version.map(|version| (data.len() as u64, version))
    } else {
        put_file(&client, id, args, &options, as_json || args.quiet.quiet)
    };
    let (bytes, version) = put.map_err(|failure| match (failure, &args.name) {
        (Failure::Store(error), Some(name)) => Failure::Store(error.about(id).naming(name)),
        (failure, _) => failure,
    })?;
    if as_json {
        let version = version.map(|version| version.to_string());
        let put = json!({ "id": id.to_string(), "name": args.name, "bytes": bytes, "version": version });
        output::json(&put.to_string())?;
    } else {
        line(&id.to_string())?;
    }
    Ok(())
}

/// Stores bytes. Returns the version of an object that replaces another.
fn put_bytes(
    client: &Client,
    id: ObjectId,
    data: &[u8],
    options: &CreateOptions,
    expected: Option<Version>,
) -> Result<Option<Version>, Failure> {
    if options.replace {
        return Ok(Some(client.replace(id, data, &[], options, expected)?));
    }
    client.put(id, data, &[], options)?;
    Ok(None)
}

/// Reads a file directly into the store. Returns its size in bytes, and the version of an object that
/// replaces another.
fn put_file(
    client: &Client,
    id: ObjectId,
    args: &Put,
    options: &CreateOptions,
    quiet: bool,
) -> Result<(u64, Option<Version>), Failure> {
    let path = args.file.as_path();
    let mut file = File::open(path).map_err(Failure::file("open", path))?;
    let found = file.metadata().map_err(Failure::file("look at", path))?;
    // Files in /proc have a length of 0 although they are not empty.
    if !found.is_file() || found.len() == 0 {
        let mut data = Vec::new();
        file.read_to_end(&mut data).map_err(Failure::file("read", path))?;
        let version = put_bytes(client, id, &data, options, args.expected)?;
        return Ok((data.len() as u64, version));
    }
    let bytes = found.len();
    let progress = Progress::bytes("putting", bytes, quiet);
    let mut creation = client.create(id, bytes, &[], options)?;
    for step in creation.as_mut_slice().chunks_mut(STEP_BYTES) {
        file.read_exact(step).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => Failure::Changed { path: path.to_owned(), expected: bytes },
            _ => Failure::File { action: "read", path: path.to_owned(), source },
        })?;
        progress.advance(step.len() as u64);
    }
    if options.replace {
        return Ok((bytes, Some(creation.replace(args.expected)?)));
    }
    creation.seal()?;
    Ok((bytes, None))
}

/// Gets an object, and writes its bytes or a value of Python.
pub(crate) fn get(socket: &Socket, as_json: bool, args: &Get) -> Result<(), Failure> {
    if let Some(kind) = &args.kind {
        return get_as(socket, as_json, args, kind);
    }
    let quiet = as_json || args.quiet.quiet;
    let how = (args.waiting.timeout, args.verify);
    let object = fetch(socket, "plasmon get", (&args.object, &args.whose), how, quiet)?;
    if !args.raw
        && let Some(value) = python::described(&object)
    {
        let name = || args.object.text.clone();
        match args.output.as_deref().map(|path| (path, python::promised(path))) {
            None if io::stdout().is_terminal() => {
                return Err(Failure::NoText { object: name(), what: value.what });
            }
            Some((path, Some(kind))) if value.is_pickle => {
                return Err(Failure::Pickled {
                    object: name(),
                    what: value.what,
                    kind,
                    path: path.to_owned(),
                });
            }
            Some((_, Some(kind))) => return get_as(socket, as_json, args, kind),
            _ => {}
        }
    }
    let data = object.data();
    let progress = Progress::bytes("writing", data.len() as u64, quiet);
    match &args.output {
        None => tolerant(standard().and_then(|mut out| write_all(&mut out, data, &progress))),
        Some(path) => {
            let failed = |source| Failure::File { action: "write", path: path.to_owned(), source };
            write_file(path, |file| write_all(file, data, &progress).map_err(failed))?;
            drop(progress);
            tell_written(as_json, object.id(), data.len() as u64, path)
        }
    }
}

/// Gets a value of Python, and prints or writes it in the format of a kind.
fn get_as(socket: &Socket, as_json: bool, args: &Get, kind: &str) -> Result<(), Failure> {
    let mut command = python::get(socket, args, kind)?;
    let Some(path) = &args.output else { return Err(python::become_it(command)) };
    let mut bytes = 0;
    write_file(path, |file| {
        let failed = |source| Failure::File { action: "write", path: path.to_owned(), source };
        command.stdout(file.try_clone().map_err(failed)?);
        let ended = command.status().map_err(Failure::file("run", command.get_program()))?;
        bytes = file.metadata().map_err(failed)?.len();
        match ended.code() {
            Some(0) => Ok(()),
            code => {
                Err(Failure::Unwritten { path: path.to_owned(), code: code.map_or(1, |code| code as u8) })
            }
        }
    })?;
    let id = args.object.id(&connect(socket, "plasmon get")?, &args.whose);
    tell_written(as_json, id, bytes, path)
}

/// Tells which file was written.
fn tell_written(as_json: bool, id: ObjectId, bytes: u64, path: &Path) -> Result<(), Failure> {
    if as_json {
        let id = id.to_string();
        return output::json(&json!({ "id": id, "bytes": bytes, "output": path }).to_string());
    }
    line(&format!("{} in {}", size(bytes), path.display()))
}

/// Waits for an object, and shows that it waits and how far the object has come.
fn fetch(
    socket: &Socket,
    name: &str,
    (which, whose): (&Which, &Whose),
    (timeout, verify): (Duration, bool),
    quiet: bool,
) -> Result<Object, Failure> {
    let within = Within::new(Some(timeout));
    let client = within.connect(socket, name)?;
    let client = if verify { client.verifying() } else { client };
    let id = which.id(&client, whose);
    let waiting = Progress::waiting(&format!("waiting for {}", which.text), quiet);
    let mut watch = None;
    let mut look = || {
        if waiting.is_wanted() {
            let watch = watch.get_or_insert_with(|| Watch::start(socket, name, id));
            if let Some((arrived, bytes)) = watch.seen() {
                waiting.moving("getting", arrived, bytes);
            }
            waiting.show();
        }
        false
    };
    let results = client.get_interruptible(&[id], within.left(), &mut look);
    let result = results.and_then(|mut results| results.pop().expect("one id has one result"));
    Ok(result.map_err(which.named(id))?)
}

/// Watcher of an object's arrival, which asks again and again how far the object has come. It has a thread
/// and a client of its own, so that a node that does not answer does not delay the get beyond its time-out.
struct Watch {
    seen: Arc<Mutex<Option<(u64, u64)>>>,
}

impl Watch {
    fn start(socket: &Socket, name: &str, id: ObjectId) -> Self {
        let seen = Arc::new(Mutex::new(None));
        let (socket, name, shown) = (socket.clone(), format!("{name}, progress"), Arc::downgrade(&seen));
        // A failure means that no progress is shown. The thread ends with the watcher, or with the program.
        thread::spawn(move || {
            let Ok(client) = Client::connect_as(socket, &name) else { return };
            while let (Some(shown), Ok(explanation)) = (shown.upgrade(), client.explain(id)) {
                let arriving = explanation.arriving.map(|it| (it.arrived_bytes, it.bytes));
                *shown.lock().unwrap_or_else(PoisonError::into_inner) = arriving;
                drop(shown);
                thread::sleep(PROGRESS_INTERVAL);
            }
        });
        Self { seen }
    }

    /// Bytes that have arrived, and bytes in total. `None` if the object is not on its way.
    fn seen(&self) -> Option<(u64, u64)> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Computes the digest of an object, and compares it with that of the seal.
pub(crate) fn hash(socket: &Socket, as_json: bool, args: &Hash) -> Result<(), Failure> {
    let quiet = as_json || args.quiet.quiet;
    let object =
        fetch(socket, "plasmon hash", (&args.object, &args.whose), (args.waiting.timeout, false), quiet)?;
    let digest = format!("{:016x}", object.verify()?);
    if as_json {
        let id = object.id().to_string();
        return output::json(
            &json!({ "id": id, "hash": digest, "compared": object.digest().is_some() }).to_string(),
        );
    }
    line(&digest)
}

/// Evicts objects from the memory of the node, and prints how much became free.
pub(crate) fn evict(socket: &Socket, as_json: bool, args: &Evict) -> Result<(), Failure> {
    let bytes = connect(socket, "plasmon evict")?.evict(args.size)?;
    if as_json {
        return output::json(&json!({ "bytes": bytes }).to_string());
    }
    let note = if bytes < args.size { "; the rest is pinned or has no other replica" } else { "" };
    line(&format!("{} became free{note}", size(bytes)))
}

fn write_all(to: &mut impl Write, data: &[u8], progress: &Progress) -> io::Result<()> {
    for step in data.chunks(STEP_BYTES) {
        to.write_all(step)?;
        progress.advance(step.len() as u64);
    }
    to.flush()
}

/// Has `fill` write a file as a whole or not at all: the file has no name until its last byte is written.
/// Links are followed, and a replaced file keeps its mode.
fn write_file(path: &Path, fill: impl FnOnce(&mut File) -> Result<(), Failure>) -> Result<(), Failure> {
    let failed = |source| Failure::File { action: "write", path: path.to_owned(), source };
    let to = target(path).map_err(failed)?;
    let existing = fs::metadata(&to).ok();
    if existing.as_ref().is_some_and(|existing| !existing.is_file()) {
        return fill(&mut File::options().write(true).open(&to).map_err(failed)?);
    }
    let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::tempfile_in(directory).map_err(failed)?;
    fill(&mut file)?;
    name(&file, directory, &to, existing.map(|existing| existing.permissions())).map_err(failed)
}

/// File that a chain of links leads to, whether it exists or not.
fn target(path: &Path) -> io::Result<PathBuf> {
    const LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        match fs::read_link(&path) {
            // The links of /proc can lead to files that have no path.
            Ok(_) if fs::metadata(&path).is_ok_and(|found| !found.is_file()) => return Ok(path),
            Ok(next) => path = path.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many links"))
}

/// Gives a file without a name its name, in place of another one.
fn name(file: &File, directory: &Path, path: &Path, mode: Option<Permissions>) -> io::Result<()> {
    let beside = directory.join(format!(".{}.plasmon", ObjectId::random()));
    if let Some(mode) = mode {
        file.set_permissions(mode)?;
    }
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    if linkat(CWD, &nameless, CWD, &beside, AtFlags::SYMLINK_FOLLOW).is_err() {
        // This file system has no nameless files. If the command is interrupted, the file with the temporary
        // name stays.
        fs::copy(&nameless, &beside)?;
    }
    fs::rename(&beside, path).inspect_err(|_| {
        // The first error is the one to report.
        let _ = fs::remove_file(&beside);
    })
}

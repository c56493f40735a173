//! The Python package beside this program: the demo, and values that only Python reads and writes.
//!
//! Owns no state. Main thread. Invariant: the package starts the program that `PLASMON_BIN` names, or this
//! one if the variable is not set.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use plasmon::{Object, Rights, Socket};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::object_args::{Get, Put};
use crate::output::size;
use crate::service::CallFunction;

/// Variable that names the program of the nodes to the Python package.
const PROGRAM: &str = "PLASMON_BIN";
/// Variable that names the socket of the node to the Python package.
const SOCKET: &str = "PLASMON_SOCKET";
/// Option of Python that keeps it from importing files of the current directory, which may be another user's.
const SAFE_PATH: &str = "-P";
/// Module that puts files as values, and prints values.
const FILES: &str = "plasmon._files";
/// First bytes of the metadata of a value that the Python package stored, behind which JSON describes it.
const STORED_BY_PYTHON: &[u8] = b"PLPY\x01";

/// Command that runs a module of the package, with the first Python that has it.
pub(crate) fn command(module: &str) -> Result<Command, Failure> {
    let own = env::current_exe().map_err(Failure::file("find", "this program"))?;
    let candidates = pythons(&own);
    let Some(python) = candidates.iter().find(|python| has(python, module)) else {
        let looked = candidates.iter().map(|python| python.display().to_string()).collect::<Vec<_>>();
        return Err(Failure::NoPython { module: module.to_owned(), looked: looked.join(", ") });
    };
    let mut command = Command::new(python);
    command.args([SAFE_PATH, "-m", module]);
    if env::var_os(PROGRAM).is_none() {
        command.env(PROGRAM, own);
    }
    Ok(command)
}

/// Replaces this process by the command. Returns only if that fails.
pub(crate) fn become_it(mut command: Command) -> Failure {
    let error = command.exec();
    Failure::file("run", command.get_program())(error)
}

/// Puts a file as a value of Python.
pub(crate) fn put(socket: &Socket, as_json: bool, args: &Put, kind: &str) -> Failure {
    let options = json!({
        "as": kind,
        "json": as_json,
        "id": args.id.map(|id| id.to_string()),
        "name": args.name,
        "private": args.private,
        "public": (args.public == Rights::ReadWrite).then_some("rw"),
        "digest": args.digest,
        "replicas": args.replicas,
        "ttl": args.ttl.map(|ttl| ttl.as_secs_f64()),
        "timeout": args.timeout.map(|timeout| timeout.as_secs_f64()),
        "replace": args.replace,
        "expected": args.expected.map(|version| version.to_string()),
    });
    files(socket, "put", &args.file, &options).map_or_else(|failure| failure, become_it)
}

/// Command that writes a value of Python to its standard output in the format of a kind.
pub(crate) fn get(socket: &Socket, args: &Get, kind: &str) -> Result<Command, Failure> {
    let (private, timeout) = (args.whose.private, args.waiting.timeout.as_secs_f64());
    let options = json!({ "as": kind, "private": private, "timeout": timeout, "verify": args.verify });
    files(socket, "get", Path::new(&args.object.text), &options)
}

/// Calls a function of a service with values of Python, which `arguments` has as a list in JSON, and prints
/// what it returns. Returns only if that fails.
pub(crate) fn call(socket: &Socket, as_json: bool, args: &CallFunction, arguments: &[u8]) -> Failure {
    let options = json!({
        "function": args.function,
        "arguments": String::from_utf8_lossy(arguments),
        "owner": args.owner,
        "timeout": args.timeout.as_secs_f64(),
        "json": as_json,
    });
    let command = files(socket, "call", Path::new(&args.service), &options);
    command.map_or_else(|failure| failure, become_it)
}

/// Command that puts a file as a value (`call` is put), writes a value (`get`), or calls a function of a
/// service (`call`), with these options.
fn files(socket: &Socket, call: &str, what: &Path, options: &Value) -> Result<Command, Failure> {
    let mut command = command(FILES)?;
    command.arg(call).arg(options.to_string()).arg("--").arg(what);
    // Without PLASMON_SOCKET the package finds the default socket itself, and checks who owns it.
    if *socket != Socket::find() {
        command.env(SOCKET, socket.path());
    }
    Ok(command)
}

/// Value that the Python package stored.
pub(crate) struct Described {
    /// Description of the value, for people.
    pub(crate) what: String,
    /// Whether reading the value runs code that its bytes choose.
    pub(crate) is_pickle: bool,
}

/// Description of the value in an object, if the Python package stored one.
pub(crate) fn described(object: &Object) -> Option<Described> {
    let header = object.metadata().strip_prefix(STORED_BY_PYTHON)?;
    let header: Value = serde_json::from_slice(header).unwrap_or_default();
    let (what, is_pickle) = match header["kind"].as_str() {
        Some("numpy") => {
            (format!("a NumPy array of shape {} and type {}", header["shape"], header["dtype"]), false)
        }
        Some("arrow") => (format!("an Arrow {}", header["type"].as_str().unwrap_or("table")), false),
        _ => ("a pickled value of Python".to_owned(), true),
    };
    Some(Described { what: format!("{what}, {}", size(object.data().len() as u64)), is_pickle })
}

/// Kind that the end of a file's name promises.
pub(crate) fn promised(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "json" => Some("json"),
        "csv" => Some("csv"),
        "npy" => Some("npy"),
        "parquet" | "pq" => Some("parquet"),
        "arrow" | "feather" => Some("arrow"),
        _ => None,
    }
}

/// Pythons that may have the package: that of the environment in which this program was called, that beside
/// the program itself, and that of the `PATH`.
fn pythons(own: &Path) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = |name: &Path| env::split_paths(&path).map(|folder| folder.join(name)).find(|at| at.exists());
    let called = env::args_os().next().map(PathBuf::from);
    let called =
        called.and_then(|called| if called.components().count() > 1 { Some(called) } else { found(&called) });
    let mut pythons = Vec::new();
    for program in called.as_deref().into_iter().chain([own]) {
        let beside = program.with_file_name("python");
        if beside.exists() && !pythons.contains(&beside) {
            pythons.push(beside);
        }
    }
    pythons.push("python3".into());
    pythons
}

/// Whether a Python has the package with this module.
fn has(python: &Path, module: &str) -> bool {
    let look = format!(
        "import importlib.util as u, sys; sys.exit(not (u.find_spec('plasmon') and u.find_spec('{module}')))"
    );
    let mut command = Command::new(python);
    command.args([SAFE_PATH, "-c", &look]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

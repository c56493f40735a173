//! Printing for all commands: lines, JSON, sizes, tables, progress.
//!
//! Owns one flag, [`CLOSED`], written before `main`. Any thread. Invariant: names and messages are printed as
//! [`plasmon::text`] escapes them, because others choose the names of objects, clients, files and hosts.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plasmon::status::MemoryStatus;
use plasmon::text::{printable, printable_json, printable_lines};
use rustix::io::{Errno, fcntl_getfd};

/// Name of standard output in messages.
pub(crate) const STANDARD_OUTPUT: &str = "standard output";
/// Time after which a command shows its progress.
const PROGRESS_DELAY: Duration = Duration::from_secs(1);

/// Formats a size in bytes for a person, in binary units.
pub(crate) fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// Formats a number of things, such as *1 node* and *2 nodes*.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// Describes the pages that the memory of a node is made of.
pub(crate) fn pages(memory: &MemoryStatus) -> String {
    let kind = if memory.pages == "huge" { "huge pages of the pool" } else { "transparent huge pages" };
    let base = memory.prefaulted.saturating_sub(memory.huge);
    let parts = [(memory.huge, kind), (base, "base pages")].into_iter().filter(|(bytes, _)| *bytes > 0);
    let parts: Vec<_> = parts.map(|(bytes, kind)| format!("{} in {kind}", size(bytes))).collect();
    if parts.is_empty() { "in no pages yet".into() } else { parts.join(", ") }
}

/// Formats an age in seconds, minutes, hours or days: the largest unit that is not zero.
pub(crate) fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ ..60 => format!("{seconds}s"),
        seconds @ ..3600 => format!("{}m", seconds / 60),
        seconds @ ..86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Whether standard output was closed when the program began.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Checks standard output before Rust's runtime does. The runtime opens `/dev/null` in place of a closed one,
/// so that later writes would seem to succeed.
// SAFETY: the system calls the functions in this section before `main`, one after the other, with this type.
// This function makes a system call and stores a flag.
#[allow(unsafe_code)]
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        let closed = fcntl_getfd(io::stdout()) == Err(Errno::BADF);
        CLOSED.store(closed, Ordering::Relaxed);
    }
    look
};

/// Standard output for writing.
///
/// # Errors
/// If standard output is closed.
pub(crate) fn standard() -> io::Result<io::StdoutLock<'static>> {
    if CLOSED.load(Ordering::Relaxed) { Err(Errno::BADF.into()) } else { Ok(io::stdout().lock()) }
}

/// Prints a line. A reader that has gone away is no error.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    tolerant(standard().and_then(|mut out| writeln!(out, "{}", printable(text))))
}

/// Prints JSON for programs. Escapes keep the values of names.
pub(crate) fn json(text: &str) -> Result<(), Failure> {
    tolerant(standard().and_then(|mut out| writeln!(out, "{}", printable_json(text))))
}

/// Prints a line of a stream at once, as JSON for programs or as text. Says whether somebody reads on.
pub(crate) fn stream(text: &str, as_json: bool) -> Result<bool, Failure> {
    let text = if as_json { printable_json(text) } else { printable(text) };
    let written = standard().and_then(|mut out| writeln!(out, "{text}").and_then(|()| out.flush()));
    let is_there = !written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
    if is_there {
        tolerant(written)?;
    }
    Ok(is_there)
}

/// Prints a message on standard error. A failure to print is ignored.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "plasmon: {}", printable(text));
}

/// Prints a further line of a message on standard error. A failure to print is ignored.
pub(crate) fn complain_further(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(text));
}

/// Prints help and version, or an error in the command line.
pub(crate) fn about_arguments(error: &clap::Error) -> Result<(), Failure> {
    if !error.use_stderr() {
        return tolerant(standard().and_then(|_| error.print()));
    }
    let text = error.render().to_string();
    // A failure to print is ignored. Colours are used if nothing has to be escaped.
    let _ = match printable_lines(&text) {
        Cow::Borrowed(_) => error.print(),
        Cow::Owned(text) => io::stderr().write_all(text.as_bytes()),
    };
    Ok(())
}

/// Result of writing to standard output, where a reader that has gone away is no error.
pub(crate) fn tolerant(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::file("write", STANDARD_OUTPUT)(error))
        }
        _ => Ok(()),
    }
}

/// Prints rows under headings. Each column is as wide as its widest cell.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> Result<(), Failure> {
    let rows: Vec<[Cow<'_, str>; N]> =
        rows.iter().map(|row| std::array::from_fn(|column| printable(&row[column]))).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    });
    let print = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    print(headings)?;
    rows.iter().try_for_each(|row| print(std::array::from_fn(|column| &*row[column])))
}

/// Template of the progress bar for a known length.
const BYTES_TEMPLATE: &str =
    "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} to go";

/// Progress on standard error, shown after a second if standard error is a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    /// Whether the progress may be shown.
    wanted: bool,
}

impl Progress {
    /// Progress of `total` bytes. `quiet` shows nothing.
    pub(crate) fn bytes(what: &str, total: u64, quiet: bool) -> Self {
        Self::new(what, ProgressBar::new(total), BYTES_TEMPLATE, quiet)
    }

    /// Progress of an unknown length.
    pub(crate) fn waiting(what: &str, quiet: bool) -> Self {
        Self::new(what, ProgressBar::no_length(), "{spinner} {msg} ({elapsed})", quiet)
    }

    fn new(what: &str, bar: ProgressBar, style: &str, quiet: bool) -> Self {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        bar.set_style(template(style));
        bar.set_message(printable(what).into_owned());
        Self { bar, started: Instant::now(), wanted: !quiet && io::stderr().is_terminal() }
    }

    /// Whether the progress may ever be shown.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Shows that the awaited bytes are on their way: `moved` of `total` have arrived.
    pub(crate) fn moving(&self, what: &str, moved: u64, total: u64) {
        if self.bar.length() != Some(total) {
            self.bar.set_style(template(BYTES_TEMPLATE));
            self.say(what);
            self.bar.set_length(total);
            self.bar.set_position(moved);
            // The time spent waiting does not count for the rate.
            self.bar.reset_eta();
        }
        self.bar.set_position(moved);
    }

    /// Changes the text of what is awaited.
    pub(crate) fn say(&self, what: &str) {
        self.bar.set_message(printable(what).into_owned());
    }

    /// Advances the progress by `bytes`.
    pub(crate) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
        self.show();
    }

    /// Draws the progress, once [`PROGRESS_DELAY`] has passed.
    pub(crate) fn show(&self) {
        if self.bar.is_hidden() && self.started.elapsed() > PROGRESS_DELAY && self.wanted {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.tick();
    }
}

fn template(text: &str) -> ProgressStyle {
    ProgressStyle::with_template(text).expect("the template is well-formed")
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

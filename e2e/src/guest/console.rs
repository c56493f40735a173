//! Output of guests: the program's output as it comes, and the end of the kernel's log after a failure.
//!
//! Owns a thread for each output that it copies. Invariant: lines of several guests are not mixed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write, stdout};
use std::path::Path;
use std::thread::{self, JoinHandle};

/// Number of lines of a log that are shown after a failure.
const TAIL_LINES: usize = 40;

/// Copies a program's output to the output of this process, on a new thread, with `prefix` before every line.
/// The thread ends with the program's output.
pub(super) fn stream(output: impl Read + Send + 'static, prefix: String) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        // Lines are bytes, not text, because a program may print anything.
        while matches!(output.read_until(b'\n', &mut line), Ok(1..)) {
            let mut to = stdout().lock();
            // A failed write is ignored, so that the guest goes on when the reader of this output is gone.
            let _ =
                to.write_all(prefix.as_bytes()).and_then(|()| to.write_all(&line)).and_then(|()| to.flush());
            line.clear();
        }
    })
}

/// Last lines of a log, indented.
pub(super) fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..]
        .iter()
        .map(|line| format!("    {}\n", line.trim_end()))
        .collect()
}

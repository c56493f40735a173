//! What guests say: the program's output as it comes, and the end of the kernel's log when something is wrong.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write, stdout};
use std::path::Path;
use std::thread::{self, JoinHandle};

/// Lines of a log that are worth showing.
const TAIL: usize = 40;

/// Copies a program's output to this process's, on a thread of its own, every line behind `prefix`. It ends
/// with the output.
pub(super) fn stream(output: impl Read + Send + 'static, prefix: String) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        // Bytes, not text: a program may print anything.
        while matches!(output.read_until(b'\n', &mut line), Ok(1..)) {
            let mut to = stdout().lock();
            // Whoever reads it may be gone; the guest goes on all the same.
            let _ =
                to.write_all(prefix.as_bytes()).and_then(|()| to.write_all(&line)).and_then(|()| to.flush());
            line.clear();
        }
    })
}

/// The last lines of a log.
pub(super) fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..]
        .iter()
        .map(|line| format!("    {}\n", line.trim_end()))
        .collect()
}

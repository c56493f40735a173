//! Redis as a peer, from Rust: commands written to the connection as they are.
//!
//! Owns a connection. Runs on the worker's only thread.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::protocol::{Call, Greeting, Numbers, Peer};

/// Number of bytes for which there is room beside a value in an answer.
const AROUND: usize = 64;

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Connection to a server.
pub(crate) struct Redis {
    stream: Box<dyn Stream>,
}

impl Redis {
    /// Connects to a host and port, or to the path of a socket.
    pub(crate) fn connect(address: &str) -> Result<Self> {
        if address.starts_with('/') {
            return Ok(Self { stream: Box::new(UnixStream::connect(address)?) });
        }
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: Box::new(stream) })
    }
}

impl Peer for Redis {
    fn greeting(&self) -> Greeting {
        Greeting {
            version: "",
            in_place: false,
            shared: true,
            operations: &["read", "write", "fetch_add", "lock"],
        }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        _owner: u64,
        _numbers: Numbers,
        _batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        let (key, number) = (format!("value-{size}"), format!("number-{size}"));
        if operation == "lock" {
            return Ok(Box::new(Taken::new(&mut *self.stream)));
        }
        let content = value(size);
        let set = command(&[b"SET", key.as_bytes(), &content]);
        let (sent, is_value) = match operation {
            "read" => (command(&[b"GET", key.as_bytes()]), true),
            "write" => (set.clone(), false),
            "fetch_add" => (command(&[b"INCR", number.as_bytes()]), false),
            other => return Err(format!("there is no operation {other:?}").into()),
        };
        let mut ask =
            Ask { stream: &mut *self.stream, sent: set, is_value: false, content, answer: Vec::new() };
        ask.answer.resize(size + AROUND, 0);
        // The value has to be there before it is read.
        ask.call(0)?;
        (ask.sent, ask.is_value) = (sent, is_value);
        Ok(Box::new(ask))
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        Ok(())
    }
}

/// Command as it is sent.
pub(crate) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut sent = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        sent.extend(format!("${}\r\n", word.len()).bytes());
        sent.extend_from_slice(word);
        sent.extend_from_slice(b"\r\n");
    }
    sent
}

/// Lock as it is made of a key: the first who sets it has it until its time is over or it is deleted.
struct Taken<'a> {
    stream: &'a mut dyn Stream,
    take: Vec<u8>,
    unlock: Vec<u8>,
    took: Duration,
}

impl<'a> Taken<'a> {
    fn new(stream: &'a mut dyn Stream) -> Self {
        let key: &[u8] = b"bench-lock";
        let take = command(&[b"SET", key, b"the token of its holder", b"NX", b"PX", b"10000"]);
        Self { stream, take, unlock: command(&[b"DEL", key]), took: Duration::ZERO }
    }

    fn ask(stream: &mut dyn Stream, sent: &[u8], wanted: &[u8]) -> Result<()> {
        stream.write_all(sent)?;
        let mut answer = [0; AROUND];
        let mut len = 0;
        while !answer[..len].ends_with(b"\r\n") {
            match stream.read(&mut answer[len..])? {
                0 => return Err("the server has closed the connection, or its answer is too long".into()),
                came => len += came,
            }
        }
        if answer[..len] == *wanted { Ok(()) } else { Err("the lock is not as it was left".into()) }
    }
}

impl Call for Taken<'_> {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        let begin = Instant::now();
        Self::ask(self.stream, &self.take, b"+OK\r\n")?;
        self.took = begin.elapsed();
        Self::ask(self.stream, &self.unlock, b":1\r\n")
    }

    fn took(&self) -> Option<Duration> {
        Some(self.took)
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
}

/// Command, and its answer.
struct Ask<'a> {
    stream: &'a mut dyn Stream,
    sent: Vec<u8>,
    /// Whether the answer is a value.
    is_value: bool,
    content: Vec<u8>,
    answer: Vec<u8>,
}

impl Call for Ask<'_> {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        self.stream.write_all(&self.sent)?;
        // The length of a value is known, so its answer is known to be whole without looking at it.
        let around = format!("${}\r\n\r\n", self.content.len()).len();
        let whole = if self.is_value { self.content.len() + around } else { 3 };
        let mut len = 0;
        while len < whole || !self.answer[..len].ends_with(b"\r\n") {
            let came = self.stream.read(&mut self.answer[len..])?;
            if came == 0 {
                return Err("the server has closed the connection, or its answer is too long".into());
            }
            len += came;
        }
        if self.answer[0] == b'-' {
            return Err(String::from_utf8_lossy(&self.answer[..len]).into_owned().into());
        }
        Ok(())
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        let start = format!("${}\r\n", self.content.len()).len();
        if self.is_value && self.answer.get(start..start + self.content.len()) != Some(&self.content[..]) {
            return Err("other bytes came than were set".into());
        }
        Ok(())
    }
}

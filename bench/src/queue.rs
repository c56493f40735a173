//! Calls through lists of Redis as a peer: a caller pushes its data onto one list and waits at another for
//! the reply (LPUSH, BRPOP).
//!
//! [`Queue`] is the calling side, a worker. [`answer`] is the other one, `plasmon-bench queue-serve`, which
//! waits in the kernel. Both send the command that pushes and the one that waits in one piece.

use std::io::{BufRead, BufReader, Read, Write, stdout};
use std::net::TcpStream;

use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::protocol::{Call, Greeting, Numbers, Peer};

use crate::redis::command;

/// List of calls.
const CALLS: &[u8] = b"bench-calls";
/// List of replies.
const REPLIES: &[u8] = b"bench-replies";
/// Longest time in seconds that a caller waits at its list.
const POP_PATIENCE_SECONDS: &[u8] = b"20";
/// Longest time that a server waits at its list: without end.
const FOR_EVER: &[u8] = b"0";
/// Number of bytes that a call brings which is held against its reply.
const LITTLE: usize = 64;
/// Longest element that is taken, in bytes.
const LONGEST: usize = 64 << 20;

/// Connection by which elements are pushed and popped.
struct Lists(BufReader<TcpStream>);

impl Lists {
    fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    fn send(&mut self, commands: &[u8]) -> Result<()> {
        Ok(self.0.get_mut().write_all(commands)?)
    }

    /// A line of an answer that has to begin with this sign, as a number.
    fn number(&mut self, sign: u8) -> Result<i64> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        match line.as_bytes().first() {
            Some(first) if *first == sign => Ok(line[1..].trim_end().parse()?),
            Some(_) => Err(format!("Redis: {}", line.trim_end()).into()),
            None => Err("the server has closed the connection".into()),
        }
    }

    fn pushed(&mut self) -> Result<()> {
        self.number(b':').map(drop)
    }

    /// The element that a BRPOP has waited for.
    fn popped(&mut self) -> Result<Vec<u8>> {
        if self.number(b'*')? != 2 {
            return Err("nothing came in time".into());
        }
        self.text()?;
        self.text()
    }

    fn text(&mut self) -> Result<Vec<u8>> {
        let len = usize::try_from(self.number(b'$')?).ok().filter(|len| *len <= LONGEST);
        let mut bytes = vec![0; len.ok_or("the answer has no length that it can have")? + 2];
        self.0.read_exact(&mut bytes)?;
        bytes.truncate(bytes.len() - 2);
        Ok(bytes)
    }
}

fn pop(list: &[u8], patience: &[u8]) -> Vec<u8> {
    command(&[b"BRPOP", list, patience])
}

/// Answers calls until the process is killed. Prints a line when it serves.
pub(crate) fn answer(address: &str) -> Result<()> {
    let mut lists = Lists::connect(address)?;
    lists.send(&command(&[b"DEL", CALLS, REPLIES]))?;
    lists.pushed()?;
    writeln!(stdout(), "ready")?;
    lists.send(&pop(CALLS, FOR_EVER))?;
    loop {
        let data = lists.popped()?;
        let wanted = data.first_chunk().map_or(0, |len| u64::from_le_bytes(*len) as usize);
        let reply = if wanted == 0 { data } else { vec![7; wanted.min(LONGEST)] };
        lists.send(&[command(&[b"LPUSH", REPLIES, &reply]), pop(CALLS, FOR_EVER)].concat())?;
        lists.pushed()?;
    }
}

/// Calling side.
pub(crate) struct Queue(Lists);

impl Queue {
    /// Connects to a host and port.
    pub(crate) fn connect(address: &str) -> Result<Self> {
        Ok(Self(Lists::connect(address)?))
    }
}

impl Peer for Queue {
    fn greeting(&self) -> Greeting {
        let operations = &["call", "call_reply", "call_begun"];
        Greeting { version: "", in_place: false, shared: true, operations }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        _owner: u64,
        _numbers: Numbers,
        batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        let (mut data, wanted) = match operation {
            "call_reply" => (value(LITTLE), vec![7; size]),
            "call" | "call_begun" if size >= 8 => {
                let mut data = value(size);
                data[..8].fill(0);
                (data.clone(), data)
            }
            other => return Err(format!("there is no operation {other:?} of {size} bytes").into()),
        };
        if operation == "call_reply" {
            data[..8].copy_from_slice(&(size as u64).to_le_bytes());
        }
        let push = command(&[b"LPUSH", CALLS, &data]);
        let sent = [push.repeat(batch), pop(REPLIES, POP_PATIENCE_SECONDS).repeat(batch)].concat();
        Ok(Box::new(Made { lists: &mut self.0, sent, batch, wanted, last: Vec::new() }))
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        Ok(())
    }
}

/// Calls that are made together, `batch` of them.
struct Made<'a> {
    lists: &'a mut Lists,
    sent: Vec<u8>,
    batch: usize,
    wanted: Vec<u8>,
    last: Vec<u8>,
}

impl Call for Made<'_> {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        self.lists.send(&self.sent)?;
        (0..self.batch).try_for_each(|_| self.lists.pushed())?;
        for _ in 0..self.batch {
            self.last = self.lists.popped()?;
        }
        Ok(())
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        if self.last == self.wanted { Ok(()) } else { Err("a reply of other bytes came".into()) }
    }
}

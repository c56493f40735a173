//! Model of calls whose functions are counted: what their callers are told has to fit how often each was run.
//!
//! A call has a number, which its data and its reply begin with. All servers and callers of a test share the
//! model. A call that was answered was run once, one of an unknown outcome at most once, any other not at
//! all.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::service::ServeOptions;
use plasmon::{Client, Error, ErrorKind, Server, Service};
use plasmon_e2e::wait::let_pass;

/// Number of bytes with which data begin: the number of the call, and the length of the reply.
const HEAD: usize = 16;
/// Time for which a server waits for a call before it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Counts of the calls that were run, and of the ways in which they ended.
#[derive(Default)]
pub(crate) struct CallModel {
    drawn: AtomicU64,
    /// The nodes at which each call was run.
    run: Mutex<HashMap<u64, Vec<String>>>,
    ended: Mutex<HashMap<u64, Result<(), Error>>>,
}

/// Bytes of a call or a reply of at least 16 bytes.
fn message(number: u64, about: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![number as u8; len.max(HEAD)];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..HEAD].copy_from_slice(&about.to_le_bytes());
    bytes
}

/// The two numbers that a message begins with. All of its bytes are checked.
fn head(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let (number, about) = (word(0), word(8));
    assert!(bytes == message(number, about, bytes.len()), "call {number} has other bytes");
    (number, about)
}

impl CallModel {
    /// Serves a name at a node as long as `goes_on` says so, anew when the node's daemon has died.
    pub(crate) fn serve(
        &self,
        socket: &Path,
        name: &str,
        threads: usize,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) {
        while goes_on() {
            let served =
                Client::connect(socket).and_then(|it| it.serve(name, &["run"], &ServeOptions::default()));
            let Ok(server) = served else {
                let_pass(Duration::from_millis(20), "its daemon is not there now");
                continue;
            };
            thread::scope(|scope| {
                (0..threads).for_each(|_| drop(scope.spawn(|| self.work(&server, socket, goes_on))));
            });
        }
    }

    fn work(&self, server: &Server, socket: &Path, goes_on: &dyn Fn() -> bool) {
        while goes_on() {
            let call = match server.receive(Some(LOOK)) {
                Ok(Some(call)) => call,
                Ok(None) => continue,
                // The daemon stands still.
                Err(error) if error.kind() == ErrorKind::TimedOut => continue,
                Err(error) if error.kind() == ErrorKind::Disconnected => return,
                Err(error) => panic!("{:?}: {error}", error.kind()),
            };
            let (number, len) = head(call.data());
            let at = format!("{} with {:?} left", socket.display(), call.left());
            self.run.lock().expect("no panic").entry(number).or_default().push(at);
            // The caller may not be able to take the reply, or the daemon to bring it.
            _ = call.reply(&message(number, 0, len as usize));
        }
    }

    /// Makes a call with so many bytes, for a reply of so many.
    pub(crate) fn call(
        &self,
        service: &Service,
        (len, back): (usize, usize),
        timeout: Duration,
    ) -> Result<(), Error> {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        let reply = service.call("run", &message(number, back as u64, len), timeout);
        let ended = reply.map(|reply| {
            assert_eq!(head(&reply), (number, 0), "the reply of another");
            assert_eq!(reply.len(), back.max(HEAD), "of call {number}");
        });
        self.ended.lock().expect("no panic").insert(number, ended.clone());
        ended
    }

    /// Checks how often each call was run that has ended. Returns how many ended well.
    pub(crate) fn check(&self) -> usize {
        let (run, ended) = (self.run.lock().expect("no panic"), self.ended.lock().expect("no panic"));
        let mut kinds: HashMap<Option<ErrorKind>, usize> = HashMap::new();
        for (number, ended) in ended.iter() {
            let at = run.get(number).map_or(&[][..], Vec::as_slice);
            let times = at.len();
            let kind = ended.as_ref().map_err(Error::kind).err();
            *kinds.entry(kind).or_default() += 1;
            let fits = match kind {
                None => times == 1,
                // A server may lack memory for the data, or for the reply.
                Some(ErrorKind::OutcomeUnknown | ErrorKind::Raised) => times <= 1,
                Some(
                    ErrorKind::TimedOut
                    | ErrorKind::NotFound
                    | ErrorKind::Disconnected
                    | ErrorKind::Lost
                    | ErrorKind::Full
                    | ErrorKind::Busy,
                ) => times == 0,
                Some(_) => false,
            };
            assert!(fits, "call {number} was run at {at:?}, and ended with {ended:?}");
        }
        let twice = run.iter().find(|(_, at)| at.len() > 1);
        assert_eq!(twice, None, "a call was run twice");
        eprintln!("calls: {kinds:?}");
        kinds.get(&None).copied().unwrap_or_default()
    }
}

//! Tests of data connections over real sockets, between real arenas. The tests play misbehaving peers.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::UnboundedReceiver;
use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::{Either, Future, join_all, select};
use plasmon::{NodeId, ObjectId};

use super::answering::MOST_VAIN_ASKS;
use super::frame::{ANSWER_LEN, ASK_LEN, Answer, Ask, Sizes};
use super::thread::{Done, Job, Local, Request, SocketThread, Wake};
use crate::memory::{Arena, ArenaConfig, Domain, Extent, HugePages, Writer, Zone};
use crate::transfer::record::Arrived;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SEGMENT: u64 = 2 << 20;
/// A time long enough for every well-behaved peer.
const LONG_STALL: Duration = Duration::from_secs(60);
/// The stall of tests that wait for a stall to end.
const SHORT_STALL: Duration = Duration::from_millis(300);

fn nobody_sleeps() -> Wake {
    Arc::new(|| {})
}

fn arena() -> Arena {
    Arena::new(&ArenaConfig {
        capacity: 16 * SEGMENT,
        segment_size: Some(SEGMENT),
        huge_pages: HugePages::Never,
        prefault: false,
        near: None,
        huge_allowance: None,
    })
    .unwrap()
}

fn extent(arena: &mut Arena, len: u64) -> Extent {
    arena.allocate(Zone { domain: Domain::Shared, writer: Writer::Engine }, len).unwrap()
}

fn pattern(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ seed as u8).collect()
}

fn ask(number: u64) -> Ask {
    let id = ObjectId::from_name(&format!("object {number}"));
    Ask { id, reader: NodeId::from_bytes([9; 16]), request: number, secret: u128::from(number) << 70 }
}

fn sizes(len: u64) -> Sizes {
    Sizes { data: len - len / 3, metadata: (len / 3) as u32 }
}

/// A holder with objects, and the ends of the objects that it gave away.
struct Holder {
    thread: SocketThread,
    requests: UnboundedReceiver<Request>,
    objects: HashMap<Ask, (u64, Extent)>,
    written: Vec<oneshot::Receiver<u64>>,
}

impl Holder {
    fn new(arena: &mut Arena, lens: &[u64], stall: Duration) -> Self {
        let (thread, requests) = SocketThread::start(nobody_sleeps(), stall).unwrap();
        let objects = lens.iter().zip(0..).map(|(len, number)| {
            let extent = extent(arena, *len);
            extent.write(0, &pattern(number, *len)).unwrap();
            (ask(number), (*len, extent))
        });
        Self { thread, requests, objects: objects.collect(), written: Vec::new() }
    }

    fn address(&self) -> SocketAddr {
        (HERE, self.thread.port(HERE).unwrap()).into()
    }

    /// Plays the engine until something has ended.
    async fn until<T>(&mut self, ended: impl Future<Output = T>) -> T {
        let ended = std::pin::pin!(ended);
        let serving = async {
            while let Some(Request { ask, answer }) = self.requests.next().await {
                let local = self.objects.get(&ask).map(|(len, extent)| {
                    let (done, written) = Done::new(&self.thread.wake);
                    self.written.push(written);
                    Local { sizes: sizes(*len), bytes: extent.io_range(), done }
                });
                answer.send(local).ok();
            }
        };
        match select(ended, std::pin::pin!(serving)).await {
            Either::Left((ended, _)) => ended,
            Either::Right(_) => panic!("the thread has ended"),
        }
    }
}

/// A fetch as the reader's engine sees it.
struct Fetch {
    extent: Extent,
    wanted: Option<Arc<()>>,
    ended: oneshot::Receiver<Result<(), String>>,
}

impl Fetch {
    fn begin(arena: &mut Arena, reader: &SocketThread, from: SocketAddr, number: u64, len: u64) -> Self {
        Self::begin_part(arena, reader, from, number, (len, len))
    }

    /// Begins a fetch with room for the first bytes of the object alone.
    fn begin_part(
        arena: &mut Arena,
        reader: &SocketThread,
        from: SocketAddr,
        number: u64,
        (room, len): (u64, u64),
    ) -> Self {
        let extent = extent(arena, room);
        let wanted = Arc::new(());
        let (done, ended) = Done::new(&reader.wake);
        let (ask, sizes, into) = (ask(number), sizes(len), extent.io_range());
        reader.fetch(
            from,
            Job {
                ask,
                sizes,
                into,
                tail: None,
                arrived: Arrived::default(),
                wanted: Arc::downgrade(&wanted),
                done,
            },
        );
        Self { extent, wanted: Some(wanted), ended }
    }

    async fn end(&mut self) -> Result<(), String> {
        (&mut self.ended).await.expect("the thread tells")
    }

    fn check(&self, number: u64) {
        let mut bytes = vec![0; self.extent.len() as usize];
        self.extent.read(0, &mut bytes).unwrap();
        assert!(bytes == pattern(number, self.extent.len()), "object {number}");
    }
}

fn reader(stall: Duration) -> SocketThread {
    SocketThread::start(nobody_sleeps(), stall).unwrap().0
}

/// Accepts a connection and reads `count` requests.
fn take(listener: &TcpListener, count: u64) -> (TcpStream, Vec<Ask>) {
    let mut stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(LONG_STALL)).unwrap();
    let asks = (0..count).map(|_| {
        let mut frame = [0; ASK_LEN];
        stream.read_exact(&mut frame).unwrap();
        Ask::decode(&frame).unwrap()
    });
    let asks = asks.collect();
    (stream, asks)
}

fn answer(ask: &Ask, len: u64) -> Vec<u8> {
    Answer { id: ask.id, sizes: Some(sizes(len)) }.encode().to_vec()
}

/// Connects to a holder as a stranger.
fn connect(holder: &Holder) -> TcpStream {
    connect_to(holder.address())
}

fn connect_to(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG_STALL)).unwrap();
    stream
}

/// Runs a function that blocks, beside the engine of a holder.
fn beside<T: Send + 'static>(holder: &mut Holder, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, acted) = oneshot::channel();
    let thread = thread::spawn(move || sender.send(act()).ok().expect("the test waits"));
    let result = block_on(holder.until(acted));
    thread.join().unwrap();
    result.unwrap()
}

#[test]
fn objects_of_all_lengths_come_over_one_connection_in_any_place() {
    let mut arena = arena();
    let lens = [0, 1, 4095, 4096, 4097, 100_000, SEGMENT, SEGMENT + 5, 5 * SEGMENT / 2 + 1];
    let mut holder = Holder::new(&mut arena, &lens, LONG_STALL);
    let (from, reader) = (holder.address(), reader(LONG_STALL));
    let mut fetches: Vec<_> =
        (0..).zip(lens).map(|(number, len)| Fetch::begin(&mut arena, &reader, from, number, len)).collect();
    let ends = block_on(holder.until(join_all(fetches.iter_mut().map(Fetch::end))));
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    (0..).zip(&fetches).for_each(|(number, fetch)| fetch.check(number));
    let written = block_on(join_all(holder.written));
    assert_eq!(written.into_iter().sum::<Result<u64, _>>(), Ok(lens.iter().sum()));
    assert!(fetches.iter().any(|fetch| fetch.extent.segments().count() > 1), "none crosses a segment's end");
}

#[test]
fn what_there_is_no_room_for_is_left_out_and_the_next_object_comes() {
    let mut arena = arena();
    let lens = [5, 100_000, 2 * SEGMENT + 7, 4096, 9000];
    let mut holder = Holder::new(&mut arena, &lens, LONG_STALL);
    let (from, reader) = (holder.address(), reader(LONG_STALL));
    let rooms = [0, 60_000, SEGMENT, 4095, 9000];
    let mut fetches: Vec<_> = (0..)
        .zip(rooms.into_iter().zip(lens))
        .map(|(number, sizes)| Fetch::begin_part(&mut arena, &reader, from, number, sizes))
        .collect();
    let ends = block_on(holder.until(join_all(fetches.iter_mut().map(Fetch::end))));
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    (0..).zip(&fetches).for_each(|(number, fetch)| fetch.check(number));
    assert_eq!(holder.thread.garbage(), 0);
}

#[test]
fn what_is_not_leased_is_refused_and_the_next_request_is_answered() {
    let mut arena = arena();
    let mut holder = Holder::new(&mut arena, &[5000], LONG_STALL);
    let (from, reader) = (holder.address(), reader(LONG_STALL));
    let mut unknown = Fetch::begin(&mut arena, &reader, from, 77, 5000);
    let mut known = Fetch::begin(&mut arena, &reader, from, 0, 5000);
    let (refused, came) = block_on(holder.until(async { (unknown.end().await, known.end().await) }));
    assert!(refused.unwrap_err().contains("lease"));
    assert_eq!(came, Ok(()));
    known.check(0);
    assert_eq!(holder.thread.garbage(), 0);
}

#[test]
fn a_holder_that_breaks_the_rules_fails_what_was_asked_for() {
    const LEN: u64 = 10_000;
    let other = ask(7);
    let cases: [(&str, Vec<u8>); 5] = [
        ("another object", answer(&other, LEN)),
        ("another length", answer(&ask(0), LEN + 1)),
        ("no frame", vec![0xff; ANSWER_LEN]),
        ("an end in the answer", answer(&ask(0), LEN)[..ANSWER_LEN - 1].to_vec()),
        ("an end in the object", [answer(&ask(0), LEN), vec![1; LEN as usize - 1]].concat()),
    ];
    for (what, bytes) in cases {
        let mut arena = arena();
        let reader = reader(LONG_STALL);
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let from = listener.local_addr().unwrap();
        let mut fetches = [0, 1].map(|number| Fetch::begin(&mut arena, &reader, from, number, LEN));
        let (mut stream, asks) = take(&listener, 2);
        assert_eq!(asks, [ask(0), ask(1)]);
        stream.write_all(&bytes).unwrap();
        drop(stream);
        for fetch in &mut fetches {
            assert!(block_on(fetch.end()).unwrap_err().contains("broken"), "{what}");
        }
    }
}

#[test]
fn a_holder_that_falls_silent_is_given_up() {
    for sent in [0, ANSWER_LEN - 1, ANSWER_LEN, ANSWER_LEN + 4096] {
        let mut arena = arena();
        let reader = reader(SHORT_STALL);
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let mut fetch = Fetch::begin(&mut arena, &reader, listener.local_addr().unwrap(), 0, 10_000);
        let (mut stream, _) = take(&listener, 1);
        stream.write_all(&[answer(&ask(0), 10_000), vec![1; 10_000]].concat()[..sent]).unwrap();
        assert!(block_on(fetch.end()).unwrap_err().contains("no byte moved"));
        drop(stream);
    }
    // Nothing listens there any more.
    let mut arena = arena();
    let reader = reader(LONG_STALL);
    let gone = TcpListener::bind((HERE, 0)).unwrap().local_addr().unwrap();
    let mut fetch = Fetch::begin(&mut arena, &reader, gone, 0, 10);
    assert!(block_on(fetch.end()).unwrap_err().contains("cannot be reached"));
}

#[test]
fn what_nobody_wants_any_more_holds_nobody_up() {
    const LEN: u64 = 1 << 20;
    let mut arena = arena();
    let reader = reader(LONG_STALL);
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let from = listener.local_addr().unwrap();
    let mut fetches = [0, 1, 2].map(|number| Fetch::begin(&mut arena, &reader, from, number, LEN));
    let (mut first, asks) = take(&listener, 3);
    first.write_all(&answer(&asks[0], LEN)).unwrap();
    for unwanted in [0, 2] {
        fetches[unwanted].wanted = None;
    }
    // A further byte of the first object.
    first.write_all(&[1]).unwrap();
    let (mut second, asks) = take(&listener, 1);
    assert_eq!(asks, [ask(1)]);
    second.write_all(&[answer(&asks[0], LEN), pattern(1, LEN)].concat()).unwrap();
    assert_eq!(block_on(fetches[1].end()), Ok(()));
    fetches[1].check(1);
    for unwanted in [0, 2] {
        assert!(block_on(&mut fetches[unwanted].ended).is_err(), "its memory was let go of without a word");
    }
}

#[test]
fn a_connection_that_was_closed_is_made_anew() {
    let mut arena = arena();
    let reader = reader(LONG_STALL);
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let from = listener.local_addr().unwrap();
    for number in 0..3 {
        let mut fetch = Fetch::begin(&mut arena, &reader, from, number, 5);
        let (mut stream, asks) = take(&listener, 1);
        stream.write_all(&[answer(&asks[0], 5), pattern(number, 5)].concat()).unwrap();
        assert_eq!(block_on(fetch.end()), Ok(()));
        fetch.check(number);
        // Nobody waits for anything: the reader closes its end too.
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn strangers_are_given_nothing() {
    let mut arena = arena();
    let mut holder = Holder::new(&mut arena, &[5000], LONG_STALL);
    let wrong = Ask { secret: ask(0).secret ^ 1, ..ask(0) };
    let mut stream = connect(&holder);
    let said = beside(&mut holder, move || {
        for _ in 0..MOST_VAIN_ASKS {
            stream.write_all(&wrong.encode()).unwrap();
        }
        let mut said = Vec::new();
        // The holder may close with requests unread.
        let _ = stream.read_to_end(&mut said);
        said
    });
    assert!(said.len() <= (MOST_VAIN_ASKS as usize - 1) * ANSWER_LEN);
    let refusal = Answer { id: wrong.id, sizes: None }.encode();
    assert!(said.chunks_exact(ANSWER_LEN).all(|answer| answer == refusal), "{said:?}");
    assert_eq!(holder.thread.garbage(), 1);

    for (number, bytes) in (2..).zip([vec![0; ASK_LEN], vec![0xff; 1000], b"GET / HTTP/1.1\r\n\r\n".to_vec()])
    {
        let mut stream = connect(&holder);
        stream.write_all(&bytes).unwrap();
        // The holder may have closed already.
        let _ = stream.shutdown(Shutdown::Write);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.is_empty());
        assert_eq!(holder.thread.garbage(), number);
    }
    // A client that says nothing and closes did nothing wrong.
    drop(connect(&holder));
    let mut stream = connect(&holder);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(holder.thread.garbage(), 4);
}

#[test]
fn a_stranger_that_falls_silent_is_closed_and_a_member_is_not() {
    let mut arena = arena();
    let mut holder = Holder::new(&mut arena, &[5], SHORT_STALL);
    for len in [0, 1, ASK_LEN - 1] {
        let mut stream = connect(&holder);
        stream.write_all(&ask(0).encode()[..len]).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(holder.thread.garbage(), 2, "silence is none");
    let mut stream = connect(&holder);
    stream.write_all(&ask(0).encode()).unwrap();
    let address = holder.address();
    beside(&mut holder, move || {
        for _ in 0..2 {
            let mut said = [0; ANSWER_LEN + 5];
            stream.read_exact(&mut said).unwrap();
            assert_eq!(said[..], [answer(&ask(0), 5), pattern(0, 5)].concat());
            // The member is silent until two strangers, one after the other, were closed for their silence.
            for _ in 0..2 {
                assert_eq!(connect_to(address).read(&mut [0]).unwrap(), 0);
            }
            stream.write_all(&ask(0).encode()).unwrap();
        }
    });
    assert_eq!(holder.thread.garbage(), 2);
}

#[test]
fn a_reader_that_reads_nothing_gives_the_memory_back() {
    let len = 5 * SEGMENT;
    let mut arena = arena();
    let mut holder = Holder::new(&mut arena, &[len], SHORT_STALL);
    let mut stream = connect(&holder);
    stream.write_all(&ask(0).encode()).unwrap();
    let request = block_on(holder.requests.next()).unwrap();
    assert_eq!(request.ask, ask(0));
    let (done, written) = Done::new(&holder.thread.wake);
    let local = Local { sizes: sizes(len), bytes: holder.objects[&ask(0)].1.io_range(), done };
    request.answer.send(Some(local)).ok();
    let written = block_on(written).unwrap();
    assert!(written < len, "{written} bytes fit the sockets' buffers");
    drop(stream);
}

//! `plasmon top`: shows the nodes of the cluster in a terminal, updated continuously.
//!
//! There are two threads, which share a channel. One asks the node, which may take long; the other draws and
//! reads keys. When the node does not answer, the last lines stay and the heading says so, until it answers
//! again.

mod rates;
mod view;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use plasmon::overview::Overview;
use plasmon::{Client, Error, Socket};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::view::View;
use crate::args::Top;
use crate::connecting::connect;
use crate::failure::Failure;
use crate::output;
use crate::overview;

/// Longest time until a key is noticed.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Overview of the node, or the error that it did not answer.
type News = Result<Overview, Error>;

pub(crate) fn top(socket: &Socket, as_json: bool, args: &Top) -> Result<(), Failure> {
    if as_json {
        return overview::status(socket, true);
    }
    // A missing node is reported before the screen is switched.
    let client = connect(socket, "plasmon top")?;
    if !io::stdout().is_terminal() {
        output::complain("standard output is no terminal: this is the present state, without rates");
        return overview::print(&client.overview()?);
    }
    let (sender, news) = mpsc::sync_channel(1);
    let (socket, interval) = (socket.clone(), args.interval);
    let asker = thread::Builder::new().name("plasmon-top".into());
    asker
        .spawn(move || ask(&socket, client, interval, &sender))
        .map_err(Failure::file("start", "a thread"))?;
    let mut terminal = ratatui::try_init().map_err(Failure::file("draw on", "the terminal"))?;
    let ended = draw(&mut terminal, &news);
    ratatui::restore();
    ended.map_err(Failure::file("draw on", "the terminal"))
}

/// Asks for overviews until the receiver is gone.
fn ask(socket: &Socket, first: Client, interval: Duration, sender: &SyncSender<News>) {
    let mut client = Some(first);
    loop {
        let connected = client.take().map_or_else(|| Client::connect_as(socket, "plasmon top"), Ok);
        let news = connected.and_then(|connected| {
            let overview = connected.overview()?;
            client = Some(connected);
            Ok(overview)
        });
        if sender.send(news).is_err() {
            return;
        }
        thread::sleep(interval);
    }
}

/// Draws overviews until a key ends it.
fn draw(terminal: &mut DefaultTerminal, news: &Receiver<News>) -> io::Result<()> {
    let mut view = View::default();
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        loop {
            if event::poll(KEY_POLL_INTERVAL)? {
                match event::read()? {
                    Event::Key(key) if key.kind == KeyEventKind::Release => {}
                    Event::Key(key) if ends(key) => return Ok(()),
                    Event::Key(KeyEvent { code: KeyCode::Up, .. }) => view.scroll(-1),
                    Event::Key(KeyEvent { code: KeyCode::Down, .. }) => view.scroll(1),
                    // All other events, such as a change of size, cause a redraw only.
                    _ => {}
                }
                break;
            }
            if let Ok(news) = news.try_recv() {
                view.take(news);
                break;
            }
        }
    }
}

fn ends(key: KeyEvent) -> bool {
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

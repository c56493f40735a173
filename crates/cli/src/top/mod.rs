//! `plasmon top`: the nodes of the cluster in a terminal, again and again.
//!
//! Two threads: one asks the node, which may take as long as it likes, the other draws and listens to keys.
//! They share a channel. When the node goes, the last lines stay and the heading says so, until it is back.

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

/// How long a key may go unnoticed.
const TICK: Duration = Duration::from_millis(50);

/// What the node said, or why it said nothing.
type News = Result<Overview, Error>;

pub(crate) fn top(socket: &Socket, as_json: bool, args: &Top) -> Result<(), Failure> {
    if as_json {
        return overview::status(socket, true);
    }
    // Whether there is a node at all is said before the screen is taken.
    let client = connect(socket, "plasmon top")?;
    if !io::stdout().is_terminal() {
        output::complain("standard output is no terminal: this is one look, without rates");
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

/// Asks until nobody listens any more.
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

/// Draws what comes, until a key ends it.
fn draw(terminal: &mut DefaultTerminal, news: &Receiver<News>) -> io::Result<()> {
    let mut view = View::default();
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        loop {
            if event::poll(TICK)? {
                match event::read()? {
                    Event::Key(key) if key.kind == KeyEventKind::Release => {}
                    Event::Key(key) if ends(key) => return Ok(()),
                    Event::Key(KeyEvent { code: KeyCode::Up, .. }) => view.scroll(-1),
                    Event::Key(KeyEvent { code: KeyCode::Down, .. }) => view.scroll(1),
                    // Any other is drawn over, a change of size above all.
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

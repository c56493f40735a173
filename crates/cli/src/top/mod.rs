//! `plasmon top`: shows the nodes of the cluster in a terminal, updated continuously.
//!
//! The thread `plasmon-top` owns the client and asks the node, which may take long. The main thread owns the
//! screen: it draws and reads keys. A channel joins them. Invariant: while the node does not answer, the last
//! lines stay and the heading says that.

mod rates;
mod view;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use clap::Args as ClapArgs;
use plasmon::overview::Overview;
use plasmon::{Client, Error, Socket};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::view::View;
use crate::connecting::connect;
use crate::failure::Failure;
use crate::output;
use crate::overview;
use crate::values::seconds;

/// Longest time until a key is noticed.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Overview of the node, or the error that it did not answer.
type News = Result<Overview, Error>;

/// Arguments of `plasmon top`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
q, Esc or Ctrl-C ends it; up and down scroll. Rates are those of the last interval, by each node's own \
clock. If standard output is no terminal, or with --json, it prints the present state once, without \
rates.")]
pub(crate) struct Top {
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
}

/// Shows the nodes until a key ends the command; without a terminal prints the present state.
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

/// Draws overviews until a key ends the command.
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

/// Parses the time between two updates.
fn interval(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        short if short < Duration::from_millis(100) => {
            Err("the interval is too short: take 0.1 s or more".into())
        }
        interval => Ok(interval),
    }
}

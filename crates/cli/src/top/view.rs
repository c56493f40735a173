//! Screen of `plasmon top`: a heading, a line for every node, and the effect of keys.
//!
//! Owns [`View`]. Main thread. Invariant: the screen works at any size of the terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table, TableState};

use plasmon::overview::{NodeOverview, Overview};
use plasmon::text::printable;

use super::News;
use super::rates::Rates;
use crate::output::size;
use crate::overview::{cells, heading, note};

/// Headings of the columns, with their widths. The last one takes what is left.
const COLUMNS: [(&str, u16); 13] = [
    ("NODE", 8),
    ("LISTEN", 21),
    ("MEMORY", 21),
    ("PRIMARY", 18),
    ("CACHED", 18),
    ("REGIONS", 18),
    ("FETCHED/s", 11),
    ("SERVED/s", 11),
    ("REGION OPS/s", 13),
    ("CALLS/s", 8),
    ("HIGH, LOW/s", 12),
    ("MESSAGES/s", 10),
    ("", 20),
];

/// Last overview that was received, with the position of the lines shown.
#[derive(Default)]
pub(super) struct View {
    overview: Option<Overview>,
    rates: Rates,
    /// Reason why there is no newer overview.
    failure: Option<String>,
    table: TableState,
}

impl View {
    /// Takes an overview, or notes why there is none.
    pub(super) fn take(&mut self, news: News) {
        match news {
            Ok(overview) => {
                self.rates.take(&overview);
                self.overview = Some(overview);
                self.failure = None;
            }
            Err(error) => self.failure = Some(printable(error.message()).into_owned()),
        }
    }

    /// Scrolls the lines that are shown.
    pub(super) fn scroll(&mut self, by: isize) {
        let lines = self.overview.as_ref().map_or(0, |overview| overview.nodes.len());
        let offset = self.table.offset().saturating_add_signed(by).min(lines.saturating_sub(1));
        *self.table.offset_mut() = offset;
    }

    /// Draws the heading and the lines of the nodes.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [top, problem, middle, bottom] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(u16::from(self.failure.is_some())),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let text = self.overview.as_ref().map_or_else(|| "waiting for the first answer".to_owned(), heading);
        frame.render_widget(Line::from(text).bold(), top);
        if let Some(failure) = &self.failure {
            frame.render_widget(Line::from(format!("not updated: {failure}")).fg(Color::Red), problem);
        }
        let nodes = self.overview.iter().flat_map(|overview| &overview.nodes);
        let rows: Vec<_> = nodes.map(|node| self.row(node)).collect();
        let width = |(name, width): (&str, u16)| match name {
            "" => Constraint::Min(width),
            _ => Constraint::Length(width),
        };
        let widths = COLUMNS.map(width);
        let head = Row::new(COLUMNS.map(|(name, _)| Cell::from(name))).style(Style::new().reversed());
        frame.render_stateful_widget(Table::new(rows, widths).header(head), middle, &mut self.table);
        frame.render_widget(Line::from("q ends, up and down scroll").dim(), bottom);
    }

    fn row(&self, node: &NodeOverview) -> Row<'static> {
        let [name, listen, memory, primary, cached, regions, ..] = cells(node);
        let rates = match self.rates.of(&node.node) {
            Some(rate) => [
                size(rate.fetched_bytes as u64),
                size(rate.served_bytes as u64),
                format!("{:.0}", rate.operations),
                format!("{:.0}", rate.calls),
                format!("{:.0}, {:.0}", rate.high, rate.low),
                format!("{:.0}", rate.messages),
            ],
            None => ["-"; 6].map(str::to_owned),
        };
        let style = match &node.summary {
            None => Style::new().fg(Color::Red),
            Some(summary) if !summary.unfit.is_empty() || summary.regions_crowded_out > 0 => {
                Style::new().fg(Color::Yellow)
            }
            Some(_) => Style::new(),
        };
        let told = [name, listen, memory, primary, cached, regions];
        Row::new(told.into_iter().chain(rates).chain([note(node)])).style(style)
    }
}

#[cfg(test)]
mod tests {
    use plasmon::overview::Summary;
    use plasmon::{Error, ErrorKind};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn cluster() -> Overview {
        let node = |name: &str, summary| NodeOverview {
            node: name.repeat(32),
            listen: format!("host-{name}:4740"),
            failure: "it was stopped".into(),
            summary,
            ..NodeOverview::default()
        };
        let summary = Summary {
            primary_objects: 42,
            uptime_seconds: 5.0,
            regions: 7,
            region_bytes: 3 << 30,
            regions_in_pieces: 2,
            regions_crowded_out: 1,
            ..Summary::default()
        };
        let nodes = vec![node("a", Some(summary)), node("b", None)];
        Overview { nodes, coordinator: "embedded".into(), coordinator_connected: true, ..Overview::default() }
    }

    fn drawn(view: &mut View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it is memory");
        terminal.draw(|frame| view.draw(frame)).expect("it is memory");
        terminal.backend().to_string()
    }

    #[test]
    fn every_node_has_a_line() {
        let mut view = View::default();
        assert!(drawn(&mut view, 240, 10).contains("waiting for the first answer"));
        view.take(Ok(cluster()));
        let text = drawn(&mut view, 240, 10);
        assert!(text.contains("2 nodes, 1 of them silent"), "{text}");
        assert!(text.contains("7 (3.0 GiB)"), "{text}");
        assert!(text.contains("2 regions in pieces; 1 region crowded out"), "{text}");
        assert!(text.contains("aaaaaaaa") && text.contains("42 (0 B)"), "{text}");
        assert!(text.contains("bbbbbbbb") && text.contains("no answer: it was"), "{text}");
        view.take(Err(Error::new(ErrorKind::Disconnected, "the node is gone")));
        let text = drawn(&mut view, 240, 10);
        assert!(text.contains("not updated: the node is gone") && text.contains("aaaaaaaa"), "{text}");
        view.scroll(1);
        assert!(!drawn(&mut view, 240, 10).contains("aaaaaaaa"), "it was scrolled away");
        view.scroll(-5);
        assert!(drawn(&mut view, 240, 10).contains("aaaaaaaa"));
    }

    #[test]
    fn requests_of_classes_are_shown_by_the_second() {
        let mut view = View::default();
        for (uptime_seconds, high_requests, low_requests) in [(5.0, 10, 0), (7.0, 20, 6)] {
            let mut overview = cluster();
            let summary = Summary { uptime_seconds, high_requests, low_requests, ..Summary::default() };
            overview.nodes[0].summary = Some(summary);
            view.take(Ok(overview));
        }
        let text = drawn(&mut view, 240, 10);
        assert!(text.contains("HIGH, LOW/s") && text.contains("5, 3"), "{text}");
    }

    #[test]
    fn no_size_is_too_small() {
        let mut view = View::default();
        view.take(Ok(cluster()));
        for (width, height) in [(1, 1), (3, 2), (20, 5), (80, 24), (300, 100)] {
            drawn(&mut view, width, height);
        }
    }
}

//! The design's pages name the rooms as they are.
//!
//! The table of rooms in `docs/design.md` has a row for each room, from the highest floor down. A row begins
//! with the room's floor and its name, linked to its page. The page has a table that opens the room: rows for
//! its floor, what it owns, its thread, the rooms that it may use and what it promises. The node's crate
//! opens with a table of its floors, each with the rooms on it.

use crate::floors::rooms_from_the_top;
use crate::{Finding, Kind, Source, Text};

const OVERVIEW: &str = "docs/design.md";
const CRATE: &str = "crates/node/src/lib.rs";

/// Rows of a room's opening, beside the first.
const ROWS: [&str; 4] = ["owns", "thread", "may use", "promises"];

/// Rooms that the design does not name, or names otherwise than they are.
#[must_use]
pub fn rooms(source: &Source) -> Vec<Finding> {
    let page = |path: &str| source.of_kind(Kind::Markdown).find(|text| text.path == path);
    let Some(overview) = page(OVERVIEW) else {
        let advice = "the page with the table of rooms is missing".to_owned();
        return vec![Finding { path: OVERVIEW.to_owned(), line: 1, item: String::new(), advice }];
    };
    let rows: Vec<_> = table(overview).collect();
    let names: Vec<_> = rows.iter().map(|row| (row.name, row.floor)).collect();
    let rooms = rooms_from_the_top();
    if names != rooms {
        let wrong = names.iter().zip(&rooms).position(|(there, room)| there != room);
        let at = wrong.unwrap_or(names.len().min(rooms.len()));
        let line = rows.get(at).or(rows.last()).map_or(1, |row| row.line);
        let advice = match rooms.get(at) {
            Some((room, floor)) => format!("the table of rooms has `{room}` on floor {floor} at this place"),
            None => "the table of rooms ends before this row".to_owned(),
        };
        return vec![finding(overview, line, "", advice)];
    }
    let root = source.of_kind(Kind::Rust).find(|text| text.path == CRATE);
    let mut found: Vec<_> = root.and_then(opening_of_crate).into_iter().collect();
    for row in rows {
        let target = row.target.split('#').next().unwrap_or_default();
        match page(&format!("docs/{target}")) {
            Some(page) => found.extend(opening(page, row.name, row.floor)),
            None => found.push(finding(
                overview,
                row.line,
                row.name,
                format!("the room `{}` has no page at `{target}`", row.name),
            )),
        }
    }
    found
}

/// A row of the table of rooms.
struct Row<'a> {
    line: usize,
    floor: u32,
    name: &'a str,
    target: &'a str,
}

/// The rows of the overview's table: floor, then name and link.
fn table(overview: &Text) -> impl Iterator<Item = Row<'_>> {
    overview.content.lines().enumerate().filter_map(|(at, line)| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let floor = cells.next()?.parse().ok()?;
        let (name, target) = cells.next()?.strip_prefix("[`")?.strip_suffix(')')?.split_once("`](")?;
        Some(Row { line: at + 1, floor, name, target })
    })
}

/// Finding about the table of floors that opens the node's crate.
fn opening_of_crate(root: &Text) -> Option<Finding> {
    let on_floor = |line: &str| {
        let (floor, rooms) = line.strip_prefix("//! | ")?.split_once(" | ")?;
        let floor: u32 = floor.parse().ok()?;
        let names = rooms.split("[`").skip(1).filter_map(|name| Some(name.split_once("`]")?.0.to_owned()));
        Some(names.map(|name| (name, floor)).collect::<Vec<_>>())
    };
    let mut names: Vec<_> = root.content.lines().filter_map(on_floor).flatten().collect();
    let mut rooms: Vec<_> =
        rooms_from_the_top().into_iter().map(|(name, floor)| (name.to_owned(), floor)).collect();
    names.sort_unstable();
    rooms.sort_unstable();
    let advice = || format!("the rooms on their floors are {rooms:?}, and the table has {names:?}");
    (names != rooms).then(|| finding(root, 1, "", advice()))
}

/// Findings about the table that opens a room on its page.
fn opening(page: &Text, room: &str, floor: u32) -> Vec<Finding> {
    let first = format!("| room | `{room}`, floor {floor} |");
    let mut lines = page.content.lines().enumerate().skip_while(|(_, line)| *line != first);
    let Some((at, _)) = lines.next() else {
        return vec![finding(page, 1, room, format!("no row `{first}` opens the room"))];
    };
    let mut found = Vec::new();
    for name in ROWS {
        let Some((_, line)) = lines.next().filter(|(_, line)| line.starts_with(&format!("| {name} | ")))
        else {
            let advice = format!("`{room}` opens with the rows room, {}", ROWS.join(", "));
            found.push(finding(page, at + 1, room, advice));
            break;
        };
        let right = format!("| may use | {} |", below(floor));
        if name == "may use" && line != right {
            found.push(finding(page, at + 1, room, format!("the rooms below `{room}` are: `{right}`")));
        }
    }
    found
}

/// The rooms below a floor, as a page lists them.
fn below(floor: u32) -> String {
    let rooms = rooms_from_the_top().into_iter().filter(|(_, own)| *own < floor);
    let rooms: Vec<_> = rooms.map(|(name, _)| format!("`{name}`")).collect();
    if rooms.is_empty() { "no other room".to_owned() } else { rooms.join(", ") }
}

fn finding(text: &Text, line: usize, item: &str, advice: String) -> Finding {
    Finding { path: text.path.clone(), line, item: item.to_owned(), advice }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// An overview and a page that are right.
    fn design() -> (String, String) {
        let (mut overview, mut page) = (String::new(), String::new());
        for (room, floor) in rooms_from_the_top() {
            writeln!(overview, "| {floor} | [`{room}`](design/all.md#{room}) | something |").unwrap();
            writeln!(page, "| room | `{room}`, floor {floor} |\n| owns | it |\n| thread | engine |").unwrap();
            writeln!(page, "| may use | {} |\n| promises | much |\n", below(floor)).unwrap();
        }
        (overview, page)
    }

    fn found(overview: &str, page: &str) -> Vec<(String, usize, String)> {
        let files = [("docs/design.md", overview), ("docs/design/all.md", page)];
        let found = rooms(&Source::of(&files)).into_iter();
        found.map(|finding| (finding.path, finding.line, finding.item)).collect()
    }

    #[test]
    fn a_design_that_names_every_room_is_right() {
        let (overview, page) = design();
        assert_eq!(found(&overview, &page), []);
    }

    #[test]
    fn the_table_has_every_room_once_and_in_order() {
        let (overview, page) = design();
        let overview_is_refused_at = |overview: &str, line| {
            assert_eq!(found(overview, &page), [("docs/design.md".into(), line, String::new())]);
        };
        let lines: Vec<_> = overview.lines().collect();
        overview_is_refused_at(&lines[1..].join("\n"), 1);
        overview_is_refused_at(&lines[..lines.len() - 1].join("\n"), lines.len() - 1);
        overview_is_refused_at(&[&lines[..], &lines[..1]].concat().join("\n"), lines.len() + 1);
        overview_is_refused_at(&overview.replace("| 17 |", "| 14 |"), 2);
    }

    #[test]
    fn the_crate_opens_with_every_room() {
        let (overview, page) = design();
        let mut root = String::new();
        for (room, floor) in rooms_from_the_top() {
            writeln!(root, "//! | {floor} | [`{room}`]: something |").unwrap();
        }
        let found = |root: &str| {
            let files = [(OVERVIEW, &*overview), ("docs/design/all.md", &*page), (CRATE, root)];
            rooms(&Source::of(&files)).len()
        };
        assert_eq!(found(&root), 0);
        assert_eq!(found(&root.replace("[`guard`]", "guard")), 1);
        assert_eq!(found(&root.replace("| 17 |", "| 16 |")), 1);
    }

    #[test]
    fn every_room_is_opened_on_its_page() {
        let (overview, page) = design();
        let refused = |page: &str| {
            let found = found(&overview, page);
            assert_eq!(found.len(), 1, "{found:?}");
            found[0].2.clone()
        };
        assert_eq!(refused(&page.replace("`store`, floor 7", "`store`, floor 6")), "store");
        assert_eq!(refused(&page.replace("no other room", "`engine`")), "memory");
        let row = page.find("| promises").unwrap();
        assert_eq!(refused(&[&page[..row], &page[row + 2..]].concat()), "engine");
        let missing = overview.replace("design/all.md#store", "design/none.md");
        assert_eq!(found(&missing, &page)[0].2, "store");
    }
}

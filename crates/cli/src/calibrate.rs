//! `plasmon calibrate`: measures the best transfer parameters, draws them, and puts them in force.
//!
//! Owns no state. Main thread. The node measures and puts the parameters in force; the command prints and
//! draws them.

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use plasmon::transfer::{Calibration, SmallPoint};
use plasmon::{Client, NodeId, Socket, find_among};
use plotters::prelude::*;

use crate::connecting::connect;
use crate::failure::Failure;
use crate::output::{json, line, size, table};

/// Length of the longest bar, in characters.
const BAR_CHARS: f64 = 40.0;

/// Arguments of `plasmon calibrate`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The node reads memory that the other node lends it, in small and large pieces, in messages and by \
one-sided reads. This takes one or two seconds for each peer. The fastest parameters are used from then \
on, and kept for later starts. Measure while the nodes are idle: other traffic distorts the measurement \
and is slowed down by it.")]
pub(crate) struct Calibrate {
    /// Only towards this node, as its host's name or address, or as its id or the beginning of the id
    /// [default: every other node]
    #[arg(long, value_name = "NODE|HOST")]
    pub(crate) peer: Option<String>,
    /// Draw the measured curves into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// Measures towards the peers, and prints and draws what the node found.
pub(crate) fn calibrate(socket: &Socket, as_json: bool, args: &Calibrate) -> Result<(), Failure> {
    let client = connect(socket, "plasmon calibrate")?;
    let peers = peers(&client, args.peer.as_deref())?;
    let mut measured = Vec::new();
    for (peer, listen) in peers {
        if !as_json {
            if !measured.is_empty() {
                line("")?;
            }
            line(&format!("node {peer} at {listen}"))?;
        }
        let calibration = client.calibrate(peer)?;
        if !as_json {
            print(&calibration)?;
        }
        measured.push(calibration);
    }
    if let Some(path) = &args.svg {
        draw(path, &measured).map_err(|error| {
            Failure::file("write", &path.display().to_string())(std::io::Error::other(error.to_string()))
        })?;
    }
    if as_json {
        json(&serde_json::to_string_pretty(&measured).expect("plain values"))?;
    }
    Ok(())
}

/// Nodes to measure towards, with their listening addresses.
fn peers(client: &Client, wanted: Option<&str>) -> Result<Vec<(NodeId, String)>, Failure> {
    let members = client.status()?.cluster.members;
    let others: Vec<_> = members.into_iter().filter(|member| !member.this).collect();
    if others.is_empty() {
        return Err(Failure::Alone);
    }
    let wanted = wanted.map(|wanted| find_among(client, &others, wanted)).transpose()?;
    let peers = others.into_iter().filter_map(|member| Some((member.node.parse().ok()?, member.listen)));
    Ok(peers.filter(|(node, _)| wanted.is_none_or(|wanted| wanted == *node)).collect())
}

fn print(calibration: &Calibration) -> Result<(), Failure> {
    let slowest = calibration.small.iter().flat_map(times).map(|(_, us)| us).fold(1.0, f64::max);
    let bar = |us: f64| "#".repeat((us / slowest * BAR_CHARS).round() as usize);
    let mut rows = Vec::new();
    for point in &calibration.small {
        for (at, (way, us)) in times(point).enumerate() {
            let bytes = if at == 0 { size(point.bytes) } else { String::new() };
            rows.push([bytes, way.to_owned(), format!("{us:.1}"), bar(us)]);
        }
    }
    table(["SIZE", "BY", "US", ""], &rows)?;
    let bytes = calibration.large.first().map_or(0, |point| point.bytes);
    let fastest = calibration.large.iter().map(|point| rate(point.bytes, point.us)).fold(0.1, f64::max);
    let rows: Vec<_> = calibration
        .large
        .iter()
        .map(|point| {
            let rate = rate(point.bytes, point.us);
            [
                size(point.chunk),
                point.window.to_string(),
                format!("{rate:.2}"),
                "#".repeat((rate / fastest * BAR_CHARS).round() as usize),
            ]
        })
        .collect();
    line(&format!("{} in reads of", size(bytes)))?;
    table(["SIZE", "AT A TIME", "GB/S", ""], &rows)?;
    let limit = |max: u32| match max {
        u32::MAX => "up to 256 KiB".to_owned(),
        0 => "never".to_owned(),
        max => format!("up to {}", size(max.into())),
    };
    line(&format!(
        "{}: objects come in messages {}; by writes {}, if one message is too short; others in reads \
         of {}, {} at a time",
        calibration.provider,
        limit(calibration.eager_max),
        limit(calibration.push_max),
        size(calibration.chunk),
        calibration.window
    ))
}

/// Ways that were measured for a small size, with the time of each in microseconds.
fn times(point: &SmallPoint) -> impl Iterator<Item = (&'static str, f64)> + use<> {
    let times = [("message", point.eager_us), ("write", point.push_us), ("read", point.read_us)];
    times.into_iter().filter(|(way, us)| *way != "write" || *us > 0.0)
}

/// Rate in gigabytes per second.
fn rate(bytes: u64, us: f64) -> f64 {
    bytes as f64 / us.max(1e-3) / 1e3
}

/// Draws the curves of all peers into a file, small objects above and large ones below.
fn draw(path: &Path, measured: &[Calibration]) -> Result<(), Box<dyn std::error::Error>> {
    let height = 720 * measured.len() as u32;
    let area = SVGBackend::new(path, (760, height)).into_drawing_area();
    area.fill(&WHITE)?;
    for (area, calibration) in area.split_evenly((measured.len(), 1)).iter().zip(measured) {
        let (above, below) = area.split_vertically(360);
        draw_small(&above, calibration)?;
        draw_large(&below, calibration)?;
    }
    area.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_small(area: &Area<'_>, calibration: &Calibration) -> Result<(), Box<dyn std::error::Error>> {
    let times = calibration.small.iter().flat_map(times).map(|(_, us)| us);
    let sizes = calibration.small.iter().map(|point| point.bytes as f64);
    let most = times.fold(1.0, f64::max) * 1.1;
    let (least, largest) =
        sizes.fold((f64::MAX, 2.0), |(least, most): (f64, f64), bytes| (least.min(bytes), most.max(bytes)));
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("{} to {}: small objects", calibration.provider, calibration.host),
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d((least.min(largest / 2.0)..largest).log_scale(), 0.0..most)?;
    chart.configure_mesh().x_desc("bytes").y_desc("µs, median").draw()?;
    for (name, colour, time) in [
        ("inside a message", BLUE, (|point| point.eager_us) as fn(&SmallPoint) -> f64),
        ("write and message", GREEN, |point| point.push_us),
        ("message and read", RED, |point| point.read_us),
    ] {
        let points = calibration.small.iter().map(|point| (point.bytes as f64, time(point)));
        let line = points.filter(|(_, us)| *us > 0.0);
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::LowerRight).border_style(BLACK).draw()?;
    Ok(())
}

fn draw_large(area: &Area<'_>, calibration: &Calibration) -> Result<(), Box<dyn std::error::Error>> {
    let rates = calibration.large.iter().map(|point| rate(point.bytes, point.us));
    let most = rates.fold(0.1, f64::max) * 1.1;
    let windows = calibration.large.iter().map(|point| f64::from(point.window)).fold(2.0, f64::max);
    let bytes = calibration.large.first().map_or(0, |point| point.bytes);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{} in reads", size(bytes)), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d((1.0..windows).log_scale().base(2.0), 0.0..most)?;
    chart.configure_mesh().x_desc("reads at a time").y_desc("GB/s").draw()?;
    let mut chunks: Vec<u64> = calibration.large.iter().map(|point| point.chunk).collect();
    chunks.dedup();
    for (chunk, colour) in chunks.into_iter().zip([BLUE, RED, GREEN, BLACK].into_iter().cycle()) {
        let points = calibration.large.iter().filter(|point| point.chunk == chunk);
        let line = points.map(|point| (f64::from(point.window), rate(point.bytes, point.us)));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(size(chunk))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::LowerRight).border_style(BLACK).draw()?;
    Ok(())
}

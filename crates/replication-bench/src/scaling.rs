//! Growth of the cost of a frame with connections and with objects, as numbers and as a picture.

use std::fmt::Write as _;

use serde::Serialize;

use crate::case::{Case, Mode, run};
use crate::workload::Group;

/// One point of a curve.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Connections.
    pub connections: usize,
    /// Objects.
    pub objects: usize,
    /// Mean microseconds of a frame.
    pub net_us: f64,
    /// Mean microseconds of the shared stage.
    pub shared_us: f64,
    /// Mean microseconds of one connection.
    pub per_conn_us: f64,
    /// Payload bytes for each client and frame.
    pub bytes: f64,
}

/// A curve: what grows, and its points.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// Quantity of the x axis, and the constants.
    pub title: &'static str,
    /// The x axis.
    pub axis: &'static str,
    /// In the order of the x axis.
    pub points: Vec<Point>,
}

impl Curve {
    fn x(&self, point: &Point) -> f64 {
        if self.axis == "connections" { point.connections as f64 } else { point.objects as f64 }
    }
}

fn point(group: Group, lod: bool) -> Point {
    let objects = group.objects().max(group.connections * 20);
    let frames = (2_000_000 / objects).clamp(20, 200) as u32;
    let outcome = run(&Case { frames, warmup: 30, lod, ..Case::new(group, Mode::Shared) });
    Point {
        connections: outcome.connections,
        objects: outcome.objects,
        net_us: outcome.net_us.mean,
        shared_us: outcome.shared_us.mean,
        per_conn_us: outcome.per_conn_us.mean,
        bytes: outcome.bytes_per_client_frame,
    }
}

/// Runs every point: 10 to 2,000 connections at one density, the same with levels of detail in one
/// square kilometre, and 100 to 100,000 objects for 100 connections. Takes a minute or two.
#[must_use]
pub fn curves(mut begin: impl FnMut(&str)) -> Vec<Curve> {
    let mut curve =
        |title: &'static str, axis: &'static str, groups: &mut dyn Iterator<Item = (Group, bool)>| {
            let mut points = Vec::new();
            for (group, lod) in groups {
                begin(&format!("{title}: {} connections, {} objects", group.connections, group.objects()));
                points.push(point(group, lod));
            }
            Curve { title, axis, points }
        };
    const CONNECTIONS: [usize; 7] = [10, 50, 100, 200, 500, 1000, 2000];
    let side = |connections: usize| (connections as f32 / 100.0).sqrt() * 500.0;
    vec![
        curve(
            "a character each, 400 in a square kilometre",
            "connections",
            &mut CONNECTIONS.iter().map(|count| (Group::scaled(*count, 0, side(*count)), false)),
        ),
        curve(
            "a character each, one square kilometre, levels of detail",
            "connections",
            &mut CONNECTIONS.iter().map(|count| (Group::scaled(*count, 0, 1000.0), true)),
        ),
        curve(
            "100 connections on islands, 3 % of the chests change",
            "objects",
            &mut [0, 4, 9, 49, 99, 499, 999].iter().map(|chests| (Group::islands(100, *chests), false)),
        ),
    ]
}

const WIDTH: f64 = 720.0;
const PANEL: f64 = 240.0;
const LEFT: f64 = 70.0;

/// Draws the curves below each other, both axes logarithmic, as SVG text.
#[must_use]
pub fn svg(curves: &[Curve]) -> String {
    let height = curves.len() as f64 * (PANEL + 70.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (at, curve) in curves.iter().enumerate() {
        panel(&mut out, curve, at as f64 * (PANEL + 70.0) + 30.0);
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, curve: &Curve, top: f64) {
    let xs = curve.points.iter().map(|point| curve.x(point).log10());
    let ys =
        curve.points.iter().flat_map(|point| [point.net_us, point.shared_us]).map(|us| us.max(1.0).log10());
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        (low.floor(), high.ceil().max(low.floor() + 1.0))
    };
    let (x_low, x_high) = bounds(&mut { xs });
    let (y_low, y_high) = bounds(&mut { ys });
    let place_x = |x: f64| LEFT + (x.log10() - x_low) / (x_high - x_low) * (WIDTH - LEFT - 30.0);
    let place_y = |us: f64| top + PANEL - (us.max(1.0).log10() - y_low) / (y_high - y_low) * PANEL;
    let mut text = |x: f64, y: f64, anchor: &str, words: &str| {
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
    };
    text(LEFT, top - 8.0, "start", &format!("Microseconds a frame: {}", curve.title));
    let mut lines = String::new();
    for decade in y_low as i32..=y_high as i32 {
        let us = 10_f64.powi(decade);
        let y = place_y(us);
        text(LEFT - 6.0, y + 4.0, "end", &format!("{us}"));
        let _ = writeln!(
            lines,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>",
            WIDTH - 30.0
        );
    }
    for point in &curve.points {
        let x = place_x(curve.x(point));
        text(x, top + PANEL + 16.0, "middle", &format!("{}", curve.x(point)));
    }
    text(WIDTH - 30.0, top + PANEL + 32.0, "end", curve.axis);
    for (name, colour, value) in [
        ("frame", "#1f6feb", (|p| p.net_us) as fn(&Point) -> f64),
        ("shared stage", "#d1495b", |p| p.shared_us),
    ] {
        let line =
            curve.points.iter().map(|p| format!("{:.1},{:.1}", place_x(curve.x(p)), place_y(value(p))));
        let line: Vec<String> = line.collect();
        let _ = writeln!(
            lines,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        if let Some(last) = curve.points.last() {
            let y = place_y(value(last)) - 6.0;
            let _ = writeln!(
                lines,
                "<text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\" fill=\"{colour}\">{name}</text>",
                WIDTH - 32.0
            );
        }
    }
    out.push_str(&lines);
}

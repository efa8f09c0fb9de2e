//! One picture of a report: latency and CPU over time, or over the players of a sweep, as SVG.

use std::fmt::Write as _;

use crate::report::{Report, Run};

const WIDTH: f64 = 960.0;
const PANEL: f64 = 250.0;
const HEAD: f64 = 92.0;
/// Around the plot of a panel: for the labels of the axes.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 28.0;
const BOTTOM: f64 = 46.0;
const FINE: &str = "#4cc9f0";
const COARSE: &str = "#ff8a5b";
const LOAD: &str = "#4fd1a5";
/// Lines across a panel, at most.
const LINES: f64 = 5.0;

type Line = Vec<(f64, f64)>;

/// One curve.
struct Curve {
    name: &'static str,
    colour: &'static str,
    line: Line,
    /// Shade the area below.
    filled: bool,
}

/// Draws the runs of `report` as SVG text; `None` when there is nothing to draw.
///
/// Several runs become a sweep (players on the x axis), a single one its samples over time.
#[must_use]
pub fn svg(report: &Report) -> Option<String> {
    let sweep = report.runs.len() > 1;
    let (x_label, p50, p99, cores): (&str, Line, Line, Line) = if sweep {
        let line =
            |value: fn(&Run) -> f64| report.runs.iter().map(|run| (run.players as f64, value(run))).collect();
        let cores =
            report.runs.iter().filter_map(|run| Some((run.players as f64, run.server_cores?))).collect();
        ("players", line(|run| run.state.p50_ms), line(|run| run.state.p99_ms), cores)
    } else {
        let samples = &report.runs.first()?.samples;
        let p50 = samples.iter().map(|sample| (sample.at_s, sample.p50_ms)).collect();
        let p99 = samples.iter().map(|sample| (sample.at_s, sample.p99_ms)).collect();
        let cores = samples.iter().filter_map(|sample| Some((sample.at_s, sample.server_cores?))).collect();
        ("seconds", p50, p99, cores)
    };
    if p99.is_empty() {
        return None;
    }
    let latency = [
        Curve { name: "p99", colour: COARSE, line: p99, filled: false },
        Curve { name: "p50", colour: FINE, line: p50, filled: false },
    ];
    let load = [Curve { name: "cores", colour: LOAD, line: cores, filled: true }];
    let panels = if load[0].line.is_empty() { 1.0 } else { 2.0 };
    let height = HEAD + panels * (PANEL + 20.0) + 8.0;
    let mut out = String::with_capacity(1 << 13);
    let machine = &report.machine;
    // Writing to a String cannot fail, here and below.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"Inter,Segoe UI,Helvetica,Arial,sans-serif\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#0b1020\"/>\n\
         <text x=\"28\" y=\"44\" font-size=\"25\" font-weight=\"700\" fill=\"#f8fafc\">{}</text>\n\
         <text x=\"28\" y=\"70\" font-size=\"14\" fill=\"#94a3b8\">{}</text>\n",
        escape(&report.test),
        escape(&subtitle(report, sweep, machine.cpus, &machine.model))
    );
    panel(&mut out, HEAD, "state latency", "ms", x_label, &latency);
    if panels > 1.0 {
        panel(&mut out, HEAD + PANEL + 20.0, "server CPU", "cores", x_label, &load);
    }
    out.push_str("</svg>\n");
    Some(out)
}

fn subtitle(report: &Report, sweep: bool, cpus: usize, model: &str) -> String {
    let what = match report.runs.first() {
        Some(run) if !sweep => format!("{}, {:.0} s", run.name, run.window_s),
        _ => format!("{} runs", report.runs.len()),
    };
    format!("{what}  \u{b7}  {cpus} x {model}, shared with the generator")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The distance of lines that are easy to read: 1, 2 or 5 times a power of ten.
fn step(span: f64) -> f64 {
    let rough = (span / LINES).max(1e-9);
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough).unwrap_or(10.0);
    factor * power
}

/// A label of an axis, without digits that say nothing.
fn label(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).max(0.0) as usize;
    format!("{value:.digits$}")
}

fn panel(out: &mut String, top: f64, title: &str, unit: &str, x_label: &str, curves: &[Curve]) {
    let points = || curves.iter().flat_map(|curve| &curve.line);
    let x_max = points().map(|point| point.0).fold(1e-9, f64::max);
    let y_step = step(points().map(|point| point.1).fold(0.01, f64::max) * 1.12);
    let y_max = (points().map(|point| point.1).fold(0.01, f64::max) * 1.08 / y_step).ceil() * y_step;
    let (left, width) = (28.0 + LEFT, WIDTH - 56.0 - LEFT - RIGHT);
    let (plot_top, height) = (top + 40.0, PANEL - 40.0 - BOTTOM);
    let at = |(x, y): (f64, f64)| (left + x / x_max * width, plot_top + height - y / y_max * height);
    let _ = write!(
        out,
        "<rect x=\"28\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{PANEL:.1}\" rx=\"10\" fill=\"#111831\"/>\n\
         <text x=\"46\" y=\"{:.1}\" font-size=\"15\" font-weight=\"600\" fill=\"#e2e8f0\">{title} [{unit}]</text>\n",
        WIDTH - 56.0,
        top + 26.0
    );
    let mut y = 0.0;
    while y <= y_max + y_step / 2.0 {
        let (_, pixel) = at((0.0, y));
        let _ = write!(
            out,
            "<path d=\"M{left:.1} {pixel:.1}h{width:.1}\" stroke=\"#26304f\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             font-size=\"12\" text-anchor=\"end\" fill=\"#94a3b8\">{}</text>",
            left - 8.0,
            pixel + 4.0,
            label(y, y_step)
        );
        y += y_step;
    }
    let x_step = step(x_max * 1.6);
    let mut x = 0.0;
    while x <= x_max + x_step / 1e6 {
        let (pixel, _) = at((x, 0.0));
        let _ = write!(
            out,
            "<text x=\"{pixel:.1}\" y=\"{:.1}\" font-size=\"12\" text-anchor=\"middle\" fill=\"#94a3b8\">{}</text>",
            plot_top + height + 18.0,
            label(x, x_step)
        );
        x += x_step;
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12\" text-anchor=\"end\" fill=\"#64748b\">{x_label}</text>",
        left + width,
        plot_top + height + 36.0
    );
    for (index, curve) in curves.iter().enumerate().filter(|(_, curve)| !curve.line.is_empty()) {
        let path: Vec<String> = curve
            .line
            .iter()
            .map(|&point| {
                let (x, y) = at(point);
                format!("{x:.1} {y:.1}")
            })
            .collect();
        let colour = curve.colour;
        if curve.filled {
            let (first, last) = (at(curve.line[0]).0, at(curve.line[curve.line.len() - 1]).0);
            let base = plot_top + height;
            let _ = writeln!(
                out,
                "<path d=\"M{first:.1} {base:.1}L{}L{last:.1} {base:.1}z\" fill=\"{colour}\" fill-opacity=\".16\"/>",
                path.join("L")
            );
        }
        let _ = writeln!(
            out,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.4\" stroke-linejoin=\"round\" \
             stroke-linecap=\"round\"/>",
            path.join("L")
        );
        for &point in &curve.line {
            let (x, y) = at(point);
            let _ = write!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\" fill=\"{colour}\" stroke=\"#111831\" \
                 stroke-width=\"1.4\"><title>{}: {:.2} {unit} at {} {x_label}</title></circle>",
                curve.name,
                point.1,
                label(point.0, x_step)
            );
        }
        if curves.len() > 1 {
            let x = WIDTH - 56.0 - RIGHT - index as f64 * 70.0;
            let _ = write!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"16\" height=\"4\" rx=\"2\" fill=\"{colour}\"/><text x=\"{:.1}\" \
                 y=\"{:.1}\" font-size=\"13\" fill=\"#cbd5e1\">{}</text>",
                x - 14.0,
                top + 19.0,
                x + 8.0,
                top + 26.0,
                curve.name
            );
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_draw_is_no_picture() {
        assert_eq!(svg(&Report::new("a b")), None);
    }

    #[test]
    fn lines_stand_at_round_numbers() {
        assert_eq!([0.7, 4.0, 26.0, 130.0, 1_000.0].map(step), [0.2, 1.0, 10.0, 50.0, 200.0]);
        assert_eq!([label(0.4, 0.2), label(30.0, 10.0), label(0.05, 0.01)], ["0.4", "30", "0.05"]);
    }
}

//! One picture of a report: latency and throughput over time, or over the players of a sweep.

use std::error::Error;

use plotters::prelude::*;

use crate::report::{Report, Run};

const SIZE: (u32, u32) = (960, 640);

type Line = Vec<(f64, f64)>;

/// Draws the runs of `report` as SVG text; `None` when there is nothing to draw.
///
/// Several runs become a sweep (players on the x axis), a single one its samples over time.
///
/// # Errors
/// When the drawing library refuses, which no report of ours makes it do.
pub fn svg(report: &Report) -> Result<Option<String>, Box<dyn Error>> {
    let sweep = report.runs.len() > 1;
    let (x_label, latency, cores): (&str, Vec<Line>, Line) = if sweep {
        let line =
            |value: fn(&Run) -> f64| report.runs.iter().map(|run| (run.players as f64, value(run))).collect();
        let cores =
            report.runs.iter().filter_map(|run| Some((run.players as f64, run.server_cores?))).collect();
        ("players", vec![line(|run| run.state.p50_ms), line(|run| run.state.p99_ms)], cores)
    } else if let Some(run) = report.runs.first() {
        let samples = &run.samples;
        let p50 = samples.iter().map(|sample| (sample.at_s, sample.p50_ms)).collect();
        let p99 = samples.iter().map(|sample| (sample.at_s, sample.p99_ms)).collect();
        let cores = samples.iter().filter_map(|sample| Some((sample.at_s, sample.server_cores?))).collect();
        ("seconds", vec![p50, p99], cores)
    } else {
        return Ok(None);
    };
    if latency.iter().all(Vec::is_empty) {
        return Ok(None);
    }
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (top, bottom) = area.split_vertically(SIZE.1 / 2);
        draw(&top, &format!("{}: state latency", report.test), x_label, "ms", &latency, &["p50", "p99"])?;
        draw(&bottom, "server CPU", x_label, "cores", &[cores], &["cores"])?;
        area.present()?;
    }
    Ok(Some(text))
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    x_label: &str,
    y_label: &str,
    lines: &[Line],
    names: &[&str],
) -> Result<(), Box<dyn Error>> {
    let points = || lines.iter().flatten();
    let x_max = points().map(|point| point.0).fold(1.0, f64::max) * 1.02;
    let y_max = points().map(|point| point.1).fold(0.001, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        // Half of the last label on the x axis stands beyond the axis.
        .margin_right(28)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..x_max, 0.0..y_max)?;
    chart
        .configure_mesh()
        .x_desc(x_label)
        .y_desc(y_label)
        .x_label_formatter(&axis_label)
        .y_label_formatter(&axis_label)
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    for ((line, name), color) in lines.iter().zip(names).zip([BLUE, RED]) {
        let series = LineSeries::new(line.iter().copied(), color.stroke_width(2)).point_size(2);
        chart
            .draw_series(series)?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    if lines.len() > 1 {
        // Latency grows to the right, so this corner is free.
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .margin(10)
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    Ok(())
}

/// `600` and `0.25`, not `600.0` and `0.2500000001`.
fn axis_label(value: &f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_draw_is_no_picture() {
        assert_eq!(svg(&Report::new("a b")).expect("drawable"), None);
    }

    #[test]
    fn labels_have_no_needless_digits() {
        for (value, text) in
            [(0.0, "0"), (600.0, "600"), (1200.0, "1200"), (0.1 + 0.2, "0.3"), (0.25, "0.25")]
        {
            assert_eq!(axis_label(&value), text);
        }
    }
}

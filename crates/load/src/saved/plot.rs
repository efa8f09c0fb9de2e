//! Small charts as SVG, for self-contained pages.

use std::fmt::Write as _;

use super::short;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 24.0;
const TOP: f64 = 10.0;
const LINES: usize = 4;
/// Numbers below a histogram.
const HISTOGRAM_NAMES: usize = 6;

/// A line over its x axis, from zero.
pub(super) fn line(points: &[(f64, f64)], x_name: &str) -> String {
    let x_max = points.iter().map(|(x, _)| *x).fold(0.0, f64::max).max(1e-9);
    let y_max = ceiling(points.iter().map(|(_, y)| *y).fold(0.0, f64::max));
    let at = |x: f64, y: f64| (LEFT + x / x_max * (WIDTH - LEFT - 8.0), foot() - y / y_max * (foot() - TOP));
    let mut out = frame(y_max);
    let mut path = String::new();
    for (x, y) in points {
        let (x, y) = at(*x, *y);
        let _ = write!(path, "{x:.1},{y:.1} ");
    }
    let _ = write!(out, "<polyline class=\"line\" points=\"{}\"/>", path.trim_end());
    let end = WIDTH - 8.0;
    let _ = write!(
        out,
        "<text x=\"{end}\" y=\"{}\" text-anchor=\"end\">{} {x_name}</text></svg>",
        HEIGHT - 6.0,
        short(x_max)
    );
    out
}

/// Bars with names below.
pub(super) fn bars(values: &[(&str, f64)]) -> String {
    let y_max = ceiling(values.iter().map(|(_, value)| *value).fold(0.0, f64::max));
    let mut out = frame(y_max);
    let step = (WIDTH - LEFT - 8.0) / values.len().max(1) as f64;
    for (index, (name, value)) in values.iter().enumerate() {
        let (x, height) = (LEFT + step * index as f64, value / y_max * (foot() - TOP));
        let (width, y, middle) = (step * 0.62, foot() - height, x + step / 2.0);
        let _ = write!(
            out,
            "<rect class=\"bar\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text x=\"{middle:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
            x + step * 0.19,
            (y - 4.0).max(9.0),
            short(*value),
            HEIGHT - 6.0,
        );
    }
    out.push_str("</svg>");
    out
}

/// Neighbouring bars, one a bucket: where it ends and how many are in it. Buckets that grow by a
/// factor make the x axis logarithmic.
pub(super) fn histogram(buckets: &[(f64, f64)], x_name: &str) -> String {
    let y_max = ceiling(buckets.iter().map(|(_, count)| *count).fold(0.0, f64::max));
    let mut out = frame(y_max);
    let step = (WIDTH - LEFT - 8.0) / buckets.len().max(1) as f64;
    let named = buckets.len().div_ceil(HISTOGRAM_NAMES).max(1);
    for (index, (end, count)) in buckets.iter().enumerate() {
        let (x, height) = (LEFT + step * index as f64, count / y_max * (foot() - TOP));
        let (width, y) = ((step - 1.0).max(step / 2.0), foot() - height);
        let _ = write!(
            out,
            "<rect class=\"bar\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
        if index % named == named - 1 {
            let last = index + named >= buckets.len();
            let unit = if last { format!(" {x_name}") } else { String::new() };
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"end\">{}{unit}</text>",
                x + step,
                HEIGHT - 6.0,
                short(*end)
            );
        }
    }
    out.push_str("</svg>");
    out
}

fn foot() -> f64 {
    HEIGHT - BOTTOM
}

/// The frame with horizontal lines and their numbers.
fn frame(y_max: f64) -> String {
    let mut out =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\">");
    for index in 0..=LINES {
        let share = index as f64 / LINES as f64;
        let y = foot() - share * (foot() - TOP);
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{WIDTH}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 3.5,
            engineering(y_max * share),
        );
    }
    out
}

/// The next of 1, 2, 2.5, 5 times a power of ten.
fn ceiling(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|step| step * power).find(|top| *top >= value).unwrap_or(value)
}

fn engineering(value: f64) -> String {
    match value.abs() {
        1e9.. => format!("{} G", short(value / 1e9)),
        1e6.. => format!("{} M", short(value / 1e6)),
        1e4.. => format!("{} k", short(value / 1e3)),
        0.0 => "0".to_owned(),
        _ => short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_round_number() {
        for (value, top) in
            [(0.0, 1.0), (0.7, 1.0), (1.0, 1.0), (11.0, 20.0), (21.0, 25.0), (260.0, 500.0), (7e6, 1e7)]
        {
            assert!((ceiling(value) / top - 1.0).abs() < 1e-9, "{value}: {}", ceiling(value));
        }
    }

    #[test]
    fn charts_stay_within_their_frame_whatever_the_values() {
        for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, 1e12), (2.0, 3.0)]] {
            assert!(!line(&points, "s").contains("NaN"));
        }
        for buckets in [vec![], vec![(1.0, 0.0)], vec![(1.0, 5.0), (1.25, 1e9)]] {
            assert!(!histogram(&buckets, "ms").contains("NaN"));
        }
        assert!(!bars(&[]).contains("NaN") && bars(&[("p50", 3.0)]).contains("p50"));
    }
}

//! A world seen from above, as an animated SVG: cells in the colour of their server and as strong
//! as they are full, obstacles, everyone, one player's interest, and every handover as a ripple.
//!
//! The animation is declarative (SMIL), so the file moves in every browser and shows its first
//! moment everywhere else.

use std::fmt::Write as _;

use super::tape::{Step, Tape};
use super::{Grid, Layout, SPATIAL_FIRST, WorldReport, lod};

/// Side of the map in the picture, and the margin around it.
const MAP: f32 = 960.0;
const MARGIN: f32 = 28.0;
const HEAD: f32 = 92.0;
const FOOT: f32 = 76.0;
/// Ripples drawn at most; those between servers come first.
const RIPPLES_MAX: usize = 700;
/// One colour a server, neighbours far apart on the wheel.
const COLOURS: [&str; 9] =
    ["#5b8cff", "#ff8a5b", "#4fd1a5", "#c77dff", "#ffd166", "#4cc9f0", "#f472b6", "#a3e635", "#94a3ff"];
const NEAR: [&str; lod::BANDS] = ["#ffd166", "#4cc9f0", "#64748b"];
const HERO: &str = "#ffffff";

/// Draws what happened; `None` when the run kept no record.
pub(crate) fn svg(outcome: &WorldReport) -> Option<String> {
    let tape = &outcome.tape;
    let (first, last) = (tape.snapshots.first()?, tape.snapshots.last()?);
    let people = first.places.len();
    if people == 0 || last.at_ns == 0 {
        return None;
    }
    let mut picture = Picture {
        outcome,
        tape,
        scale: MAP / tape.side_metres,
        seconds: last.at_ns as f64 / 1e9,
        hero: hero(tape, people),
        out: String::with_capacity(1 << 18),
    };
    picture.begin();
    if let Layout::Grid(grid) = outcome.layout {
        picture.cells(grid);
    }
    picture.obstacles();
    picture.sight();
    picture.ripples();
    picture.people(people);
    picture.end();
    Some(picture.out)
}

/// The player whose interest is shown: the one who crossed most cells, if possible with a border
/// between servers.
fn hero(tape: &Tape, people: usize) -> usize {
    let mut score = vec![0u32; people];
    for step in &tape.steps {
        if let Some(score) = score.get_mut(step.entity as usize) {
            *score += if step.between_servers { 100 } else { 1 };
        }
    }
    // Near the edge half of the interest would be off the map.
    let middle = tape.side_metres / 2.0;
    let centred = |index: usize| {
        let (x, z) = tape.snapshots[0].places[index];
        (x - middle).abs().max((z - middle).abs())
    };
    let better =
        |&a: &usize, &b: &usize| score[a].cmp(&score[b]).then_with(|| centred(b).total_cmp(&centred(a)));
    (0..people).max_by(better).unwrap_or(0)
}

struct Picture<'a> {
    outcome: &'a WorldReport,
    tape: &'a Tape,
    /// Pixels per metre.
    scale: f32,
    seconds: f64,
    hero: usize,
    out: String,
}

/// Appends formatted text; writing to a String cannot fail.
macro_rules! put {
    ($picture:expr, $($text:tt)*) => { let _ = write!($picture.out, $($text)*); };
}

impl Picture<'_> {
    fn begin(&mut self) {
        let (width, height) = (MAP + 2.0 * MARGIN, HEAD + MAP + FOOT);
        let WorldReport { players, servers, .. } = self.outcome;
        let grid = self.outcome.layout.grid();
        let title = match grid {
            Some(grid) => {
                format!("One world, {} servers, {} players", grid.servers(), thousands(*players as u64))
            }
            None => format!("{} players, rates by distance", thousands(*players as u64)),
        };
        let mut facts = Vec::new();
        if let Some(grid) = grid {
            facts.push(format!("{} cells of {:.0} m", grid.cells(), grid.cell_metres));
            facts.push(format!(
                "{:.0} handovers/s, {:.0} of them between servers",
                self.outcome.per_second(servers.handovers),
                self.outcome.per_second(servers.server_handovers)
            ));
        }
        facts.push(format!(
            "{} states/s delivered",
            thousands(self.outcome.per_second(self.outcome.counts.delivered).round() as u64)
        ));
        if let Some(cores) = self.outcome.server_cores() {
            facts.push(format!("gateway {cores:.2} cores"));
        }
        put!(
            self,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"Inter,Segoe UI,Helvetica,Arial,sans-serif\">\n\
             <title>{title}</title>\n\
             <defs><radialGradient id=\"glow\"><stop offset=\"0\" stop-color=\"{HERO}\" stop-opacity=\".9\"/>\
             <stop offset=\".35\" stop-color=\"{HERO}\" stop-opacity=\".35\"/>\
             <stop offset=\"1\" stop-color=\"{HERO}\" stop-opacity=\"0\"/></radialGradient>\
             <clipPath id=\"map\"><rect width=\"{MAP}\" height=\"{MAP}\" rx=\"10\"/></clipPath></defs>\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#0b1020\"/>\n\
             <text x=\"{MARGIN}\" y=\"44\" font-size=\"27\" font-weight=\"700\" fill=\"#f8fafc\">{title}</text>\n\
             <text x=\"{MARGIN}\" y=\"72\" font-size=\"15\" fill=\"#94a3b8\">{}</text>\n\
             <g transform=\"translate({MARGIN} {HEAD})\" clip-path=\"url(#map)\">\n\
             <rect width=\"{MAP}\" height=\"{MAP}\" fill=\"#111831\"/>\n",
            facts.join("  \u{b7}  ")
        );
    }

    /// Cells as full as they were on average, in their server's colour; borders of servers drawn on
    /// top.
    fn cells(&mut self, grid: Grid) {
        let mut load = vec![0u32; grid.cells()];
        for snapshot in &self.tape.snapshots {
            for (cell, _) in &snapshot.cells {
                if let Some(load) = load.get_mut(cell.saturating_sub(SPATIAL_FIRST) as usize) {
                    *load += 1;
                }
            }
        }
        let most = load.iter().copied().max().unwrap_or(1).max(1) as f32;
        let side = grid.cell_metres * self.scale;
        for (index, load) in (0..).zip(load) {
            let (x, y) = ((index % grid.columns) as f32 * side, (index / grid.columns) as f32 * side);
            let colour = COLOURS[grid.server_of(SPATIAL_FIRST + index) as usize % COLOURS.len()];
            let strength = 0.10 + 0.42 * load as f32 / most;
            put!(
                self,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{side:.1}\" height=\"{side:.1}\" fill=\"{colour}\" \
                 fill-opacity=\"{strength:.2}\" stroke=\"#0b1020\" stroke-opacity=\".55\"/>"
            );
        }
        let block = grid.columns.div_ceil(grid.server_columns) as f32 * side;
        for border in 1..grid.server_columns {
            let at = border as f32 * block;
            put!(
                self,
                "<path d=\"M{at:.1} 0V{MAP}M0 {at:.1}H{MAP}\" stroke=\"#f8fafc\" stroke-opacity=\".55\" \
                 stroke-width=\"1.6\" stroke-dasharray=\"2 5\"/>"
            );
        }
        self.out.push('\n');
    }

    fn obstacles(&mut self) {
        let side = super::terrain::OBSTACLE_METRES * self.scale;
        let mut path = String::new();
        for (x, z) in &self.tape.obstacles {
            // Writing to a String cannot fail.
            let _ =
                write!(path, "M{:.0} {:.0}h{side:.0}v{side:.0}h-{side:.0}z", x * self.scale, z * self.scale);
        }
        put!(self, "<path d=\"{path}\" fill=\"#05080f\" fill-opacity=\".6\"/>\n");
    }

    /// The hero's view: the cells of its interest and its circle, or the rings of the rates.
    fn sight(&mut self) {
        let hero = self.hero;
        let Some(grid) = self.outcome.layout.grid().copied() else {
            for (band, rate) in lod::TABLE.iter().enumerate().filter(|(_, rate)| rate.metres.is_finite()) {
                let radius = rate.metres * self.scale;
                put!(
                    self,
                    "<g><circle r=\"{radius:.1}\" fill=\"{colour}\" fill-opacity=\".10\" stroke=\"{colour}\" \
                     stroke-opacity=\".8\" stroke-width=\"1.5\" stroke-dasharray=\"5 5\"/>{motion}</g>\n",
                    colour = NEAR[band],
                    motion = self.motion(hero)
                );
            }
            return;
        };
        // The interest moves when its player's character changes cells, not with every step.
        let centres: Vec<(f32, f32)> = self
            .tape
            .snapshots
            .iter()
            .map(|snapshot| snapshot.cells.get(hero).map_or((0.0, 0.0), |(_, centre)| *centre))
            .collect();
        let side = grid.cell_metres;
        let radius = self.tape.interest_metres;
        for index in 0..grid.columns * grid.columns {
            let low = [(index % grid.columns) as f32 * side, (index / grid.columns) as f32 * side];
            let seen = |&(x, z): &(f32, f32)| {
                let away = |at: f32, low: f32| (low - at).max(at - low - side).max(0.0);
                away(x, low[0]).hypot(away(z, low[1])) <= radius
            };
            let shown: Vec<String> =
                centres.iter().map(|centre| if seen(centre) { ".85" } else { "0" }.to_owned()).collect();
            if shown.iter().all(|shown| shown == "0") {
                continue;
            }
            let pixels = side * self.scale;
            put!(
                self,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"4\" fill=\"{HERO}\" \
                 fill-opacity=\".13\" stroke=\"{HERO}\" stroke-width=\"1.4\" opacity=\"{}\">{}</rect>",
                low[0] * self.scale + 2.0,
                low[1] * self.scale + 2.0,
                pixels - 4.0,
                pixels - 4.0,
                shown[0],
                self.discrete("opacity", &shown)
            );
        }
        let centre = |(x, z): &(f32, f32)| format!("{:.1} {:.1}", x * self.scale, z * self.scale);
        let values: Vec<String> = centres.iter().map(centre).collect();
        let (start, radius) = (values[0].clone(), radius * self.scale);
        put!(
            self,
            "<g transform=\"translate({start})\"><circle r=\"{radius:.1}\" fill=\"none\" stroke=\"{HERO}\" \
             stroke-width=\"1.6\" stroke-dasharray=\"7 6\" stroke-opacity=\".8\"/>\
             <animateTransform attributeName=\"transform\" type=\"translate\" calcMode=\"discrete\" \
             dur=\"{:.2}s\" repeatCount=\"indefinite\" values=\"{}\"/></g>\n",
            self.seconds,
            values.join(";")
        );
    }

    /// Every handover spreads for a moment from where it happened.
    fn ripples(&mut self) {
        let mut steps: Vec<&Step> = self.tape.steps.iter().collect();
        steps.sort_by_key(|step| (!step.between_servers, step.at_ns));
        steps.truncate(RIPPLES_MAX);
        let grid = self.outcome.layout.grid().copied();
        for step in steps {
            let at = step.at_ns as f64 / 1e9 / self.seconds;
            let (radius, lasting, width) = if step.between_servers { (22, 0.9, 2.4) } else { (9, 0.5, 1.2) };
            let until = at + lasting / self.seconds;
            if at <= 0.001 || until >= 0.999 {
                continue;
            }
            let colour = grid.map_or(HERO, |grid| COLOURS[grid.server_of(step.to) as usize % COLOURS.len()]);
            let times = format!("0;{at:.4};{:.4};{until:.4};1", at + 0.0005);
            put!(
                self,
                "<circle cx=\"{:.0}\" cy=\"{:.0}\" r=\"0\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" \
                 opacity=\"0\"><animate attributeName=\"r\" dur=\"{d:.2}s\" repeatCount=\"indefinite\" \
                 keyTimes=\"{times}\" values=\"0;0;2;{radius};{radius}\"/><animate attributeName=\"opacity\" \
                 dur=\"{d:.2}s\" repeatCount=\"indefinite\" keyTimes=\"{times}\" values=\"0;0;1;0;0\"/></circle>",
                step.place.0 * self.scale,
                step.place.1 * self.scale,
                d = self.seconds
            );
        }
        self.out.push('\n');
    }

    fn people(&mut self, people: usize) {
        let grid = self.outcome.layout.grid().copied();
        let radius = if people > 600 { 2.6 } else { 3.4 };
        for index in (0..people).filter(|&index| index != self.hero) {
            let colour = |snapshot: &super::tape::Snapshot| match grid {
                Some(grid) => {
                    let cell = snapshot.cells.get(index).map_or(0, |(cell, _)| *cell);
                    COLOURS[grid.server_of(cell) as usize % COLOURS.len()]
                }
                None => match (snapshot.places.get(self.hero), snapshot.places.get(index)) {
                    (Some(hero), Some(place)) => NEAR[lod::band(*hero, *place)],
                    _ => NEAR[lod::BANDS - 1],
                },
            };
            let colours: Vec<String> =
                self.tape.snapshots.iter().map(|snapshot| colour(snapshot).to_owned()).collect();
            let change = if colours.iter().any(|other| other != &colours[0]) {
                self.discrete("fill", &colours)
            } else {
                String::new()
            };
            let start = self.start(index);
            put!(
                self,
                "<g transform=\"translate({start})\"><circle r=\"{radius}\" fill=\"{}\" stroke=\"#0b1020\" \
                 stroke-width=\".8\">{change}</circle>{}</g>",
                colours[0],
                self.motion(index)
            );
        }
        let start = self.start(self.hero);
        put!(
            self,
            "\n<g transform=\"translate({start})\"><circle r=\"17\" fill=\"url(#glow)\"/><circle r=\"5\" \
             fill=\"{HERO}\" stroke=\"#0b1020\"/>{}</g>\n",
            self.motion(self.hero)
        );
    }

    fn end(&mut self) {
        self.out.push_str("</g>\n");
        let y = HEAD + MAP + 30.0;
        if let Some(grid) = self.outcome.layout.grid().copied() {
            // Characters by server, on average.
            let mut load = vec![0u64; grid.servers()];
            for snapshot in &self.tape.snapshots {
                for (cell, _) in snapshot.cells.iter().filter(|(cell, _)| *cell >= SPATIAL_FIRST) {
                    load[grid.server_of(*cell) as usize] += 1;
                }
            }
            let snapshots = self.tape.snapshots.len() as u64;
            let step = MAP / load.len() as f32;
            let most = load.iter().copied().max().unwrap_or(1).max(1) as f32;
            for (index, load) in load.into_iter().enumerate() {
                let x = MARGIN + index as f32 * step;
                let width = (step - 14.0) * load as f32 / most;
                put!(
                    self,
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"5\" rx=\"2.5\" fill=\"#1e293b\"/>\
                     <rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"5\" rx=\"2.5\" fill=\"{}\"/>\
                     <text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"12.5\" fill=\"#cbd5e1\">server {} \u{b7} {}</text>\n",
                    y - 6.0,
                    step - 14.0,
                    y - 6.0,
                    COLOURS[index % COLOURS.len()],
                    y + 17.0,
                    index + 1,
                    load / snapshots
                );
            }
            put!(
                self,
                "<text x=\"{MARGIN}\" y=\"{:.1}\" font-size=\"12.5\" fill=\"#64748b\">White: one player, its {:.0} m of \
                 interest as of its latest handover, and the cells it is subscribed to. Ripples: handovers, large ones \
                 between servers.</text>\n",
                y + 38.0,
                self.tape.interest_metres
            );
        } else {
            for (index, band) in self.outcome.bands.iter().enumerate() {
                let x = MARGIN + index as f32 * MAP / 3.0;
                put!(
                    self,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                     font-size=\"14\" fill=\"#cbd5e1\">{}: {:.1}% of {} states, p99 {:.0} ms</text>\n",
                    x + 6.0,
                    y,
                    NEAR[index],
                    x + 18.0,
                    y + 5.0,
                    band.name.split(' ').take(2).collect::<Vec<_>>().join(" "),
                    band.share * 100.0,
                    thousands(band.expected),
                    band.state.p99_ms
                );
            }
            put!(
                self,
                "<text x=\"{MARGIN}\" y=\"{:.1}\" font-size=\"12.5\" fill=\"#64748b\">White: one player. Colours: how \
                 often it is sent the others, by the distance to them.</text>\n",
                y + 34.0
            );
        }
        self.out.push_str("</svg>\n");
    }

    fn start(&self, index: usize) -> String {
        let (x, z) = self.tape.snapshots[0].places[index];
        format!("{:.1} {:.1}", x * self.scale, z * self.scale)
    }

    /// The way of a character, snapshot by snapshot; the browser walks in between.
    fn motion(&self, index: usize) -> String {
        let at = |snapshot: &super::tape::Snapshot| {
            let (x, z) = snapshot.places.get(index).copied().unwrap_or_default();
            format!("{:.1} {:.1}", x * self.scale, z * self.scale)
        };
        let values: Vec<String> = self.tape.snapshots.iter().map(at).collect();
        format!(
            "<animateTransform attributeName=\"transform\" type=\"translate\" dur=\"{:.2}s\" \
             repeatCount=\"indefinite\" values=\"{}\"/>",
            self.seconds,
            values.join(";")
        )
    }

    fn discrete(&self, attribute: &str, values: &[String]) -> String {
        format!(
            "<animate attributeName=\"{attribute}\" calcMode=\"discrete\" dur=\"{:.2}s\" \
             repeatCount=\"indefinite\" values=\"{}\"/>",
            self.seconds,
            values.join(";")
        )
    }
}

/// A whole number with separators.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(thousands),
            ["0", "999", "1,000", "1,234,567"].map(str::to_owned)
        );
    }
}

//! The drawings of a report, as what stands inside an `<svg>` of [`VIEW`]. Inks are names: the page says which colour each has,
//! on paper, in light and in dark. So are fonts: text has no size of its own here. Numbers a drawing shows are in the page's
//! tables, too.

use std::fmt::Display;
use std::ops::Range;

use anyhow::{Result, anyhow};
use chrono::DateTime;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::latency::Bar;
use super::timeline::{SETTLED, Stretch};

/// Width and height of every drawing. Four units are a pixel where the page is wide: lengths are whole numbers here, and bars
/// of a few pixels must not differ by one.
pub const VIEW: (u32, u32) = (1920, 1000);

const LEFT: u32 = 230;
const BELOW: u32 = 140;
const ABOVE: u32 = 40;
const RIGHT: u32 = 170;

/// How many labels fit on the axes of a phone.
const TICKS_MOST: u64 = 4;

/// What a colour is for; its name in the page's style sheet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ink {
    Settled(usize),
    Answers,
    Grid,
    Goal,
    Label,
}

impl Ink {
    const ALL: [Self; 7] = [
        Self::Settled(0),
        Self::Settled(1),
        Self::Settled(2),
        Self::Answers,
        Self::Grid,
        Self::Goal,
        Self::Label,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Settled(as_what) => SETTLED[as_what],
            Self::Answers => "answers",
            Self::Grid => "grid",
            Self::Goal => "goal",
            Self::Label => "soft",
        }
    }

    /// A colour that stands for it until the drawing is done.
    fn colour(self) -> RGBColor {
        let place = Self::ALL.iter().position(|ink| *ink == self).unwrap_or_default();
        RGBColor(1, 2, place as u8)
    }
}

/// What was settled so far, as a line for each of [`SETTLED`] that there is; with a line for all targets.
pub fn progress(stretches: &[Stretch], width: i64, targets: u64) -> Result<String> {
    let Some((first, last)) = stretches.first().zip(stretches.last()) else { return Ok(String::new()) };
    let times = first.from..last.from + width;
    draw(Axis::times(&times), targets, |chart| {
        let goal = [times.start, times.end].map(|time| (time as f64, targets as f64));
        chart.draw_series(LineSeries::new(goal, Ink::Goal.colour().stroke_width(4))).map_err(undrawn)?;
        for as_what in (0..SETTLED.len()).filter(|as_what| last.so_far[*as_what] > 0) {
            let start = std::iter::once((first.from as f64, 0.0));
            let ends = stretches
                .iter()
                .map(|stretch| ((stretch.from + width) as f64, stretch.so_far[as_what] as f64));
            let colour = Ink::Settled(as_what).colour();
            let area = AreaSeries::new(start.chain(ends), 0.0, colour.mix(0.12));
            chart.draw_series(area.border_style(colour.stroke_width(8))).map_err(undrawn)?;
        }
        Ok(())
    })
}

/// What was settled in each stretch, as a bar: [`SETTLED`] upon each other.
pub fn rate(stretches: &[Stretch], width: i64) -> Result<String> {
    let Some((first, last)) = stretches.first().zip(stretches.last()) else { return Ok(String::new()) };
    let most = stretches.iter().map(|stretch| stretch.settled.iter().sum()).max().unwrap_or(0);
    draw(Axis::times(&(first.from..last.from + width)), most, |chart| {
        let gap = width as f64 * 0.1;
        for stretch in stretches {
            let (from, to) = (stretch.from as f64 + gap, (stretch.from + width) as f64 - gap);
            let mut below = 0;
            for (as_what, number) in stretch.settled.into_iter().enumerate().filter(|(_, number)| *number > 0)
            {
                let corners = [(from, below as f64), (to, (below + number) as f64)];
                bar(chart, corners, Ink::Settled(as_what))?;
                below += number;
            }
        }
        Ok(())
    })
}

/// How many answers came within which time. The bars stand side by side: their edges grow by powers.
pub fn latency(bars: &[Bar]) -> Result<String> {
    let most = bars.iter().map(|bar| bar.number).max().unwrap_or(0);
    draw(Axis::edges(bars), most, |chart| {
        for (at, Bar { number, .. }) in bars.iter().enumerate() {
            let (from, to) = (at as f64 + 0.06, at as f64 + 0.94);
            bar(chart, [(from, 0.0), (to, *number as f64)], Ink::Answers)?;
        }
        Ok(())
    })
}

// ---- what all have in common -------------------------------------------------------------------------------------

type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

fn undrawn(error: impl Display) -> anyhow::Error {
    anyhow!("a chart cannot be drawn: {error}")
}

fn bar(chart: &mut Plane<'_, '_>, corners: [(f64, f64); 2], ink: Ink) -> Result<()> {
    chart.draw_series([Rectangle::new(corners, ink.colour().filled())]).map(drop).map_err(undrawn)
}

/// A plane with a grid, from 0 to at least `most`, and what `fill` draws in it.
fn draw(x: Axis, most: u64, fill: impl FnOnce(&mut Plane<'_, '_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let area: DrawingArea<SVGBackend<'_>, Shift> =
            SVGBackend::with_string(&mut svg, VIEW).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin_top(ABOVE)
            .margin_right(RIGHT)
            .x_label_area_size(BELOW)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(x, Axis::numbers(most))
            .map_err(undrawn)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(Ink::Grid.colour().stroke_width(4))
            .light_line_style(TRANSPARENT)
            .axis_style(Ink::Goal.colour().stroke_width(4))
            .set_tick_mark_size(LabelAreaPosition::Left, 14)
            .set_tick_mark_size(LabelAreaPosition::Bottom, 24)
            .label_style(("", 52).into_font().color(&Ink::Label.colour()))
            .draw()
            .map_err(undrawn)?;
        fill(&mut chart)?;
        area.present().map_err(undrawn)?;
    }
    Ok(for_the_page(svg))
}

/// Names the inks, and leaves to the page what is its own: the element around, with its size and meaning, and the fonts.
fn for_the_page(mut svg: String) -> String {
    for ink in Ink::ALL {
        let RGBColor(r, g, b) = ink.colour();
        svg = svg.replace(&format!("\"#{r:02X}{g:02X}{b:02X}\""), &format!("\"var(--{})\"", ink.name()));
    }
    let mut drawing = String::with_capacity(svg.len());
    for line in svg.lines().filter(|line| !line.starts_with("<svg") && !line.starts_with("</svg")) {
        let (before, after) = match line.split_once(" font-family=") {
            Some((before, fonts)) => (before, fonts.find(" opacity=").map_or("", |end| &fonts[end..])),
            None => (line, ""),
        };
        drawing.extend([before, after, "\n"]);
    }
    drawing
}

// ---- axes --------------------------------------------------------------------------------------------------------

/// From where to where, and what is said of which places between.
struct Axis {
    range: Range<f64>,
    labels: Vec<(f64, String)>,
}

impl Axis {
    /// From 0 to a round number that is not below `most`.
    fn numbers(most: u64) -> Self {
        let labels: Vec<_> = levels(most).into_iter().map(|level| (level as f64, compact(level))).collect();
        Self { range: 0.0..labels.last().map_or(1.0, |(top, _)| *top), labels }
    }

    /// In milliseconds since 1970.
    fn times(times: &Range<i64>) -> Self {
        let step = step(times.end - times.start);
        let first = times.start.div_euclid(step) + i64::from(times.start.rem_euclid(step) != 0);
        let labels = (first..=times.end.div_euclid(step)).map(|number| number * step);
        Self {
            range: times.start as f64..times.end as f64,
            labels: labels.map(|ms| (ms as f64, clock(ms, step))).collect(),
        }
    }

    /// Where one bar ends and the next begins.
    fn edges(bars: &[Bar]) -> Self {
        let edge = |at: usize| match bars.get(at) {
            Some(bar) => span(bar.from),
            None => bars.last().and_then(|bar| bar.to).map_or("\u{221e}".into(), span),
        };
        let every = bars.len().div_ceil(TICKS_MOST as usize).max(1);
        let labels = (0..=bars.len()).step_by(every).map(|at| (at as f64, edge(at))).collect();
        Self { range: 0.0..bars.len() as f64, labels }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        from + (part * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.labels.iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, place: &f64) -> String {
        let label = self.labels.iter().find(|(at, _)| at == place);
        label.map_or_else(String::new, |(_, text)| text.clone())
    }
}

/// From 0 in even steps to what is not below `most`.
fn levels(most: u64) -> Vec<u64> {
    let powers = std::iter::successors(Some(1u64), |power| power.checked_mul(10));
    let mut steps = powers.flat_map(|power| [1, 2, 5].map(|times| power.saturating_mul(times)));
    let step = steps.find(|step| most.div_ceil(*step) <= TICKS_MOST).unwrap_or(u64::MAX);
    (0..=most.div_ceil(step).max(1)).map(|number| number * step).collect()
}

/// 950, 12k, 1.5M.
fn compact(number: u64) -> String {
    let (unit, letter) = match number {
        0..10_000 => return number.to_string(),
        10_000..1_000_000 => (1e3, "k"),
        1_000_000..1_000_000_000 => (1e6, "M"),
        _ => (1e9, "G"),
    };
    format!("{}{letter}", (number as f64 / unit * 100.0).round() / 100.0)
}

/// 20 ms, 5 s, 10 min: whole numbers of the largest unit that gives one.
pub fn span(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    match units.into_iter().find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", ms / unit),
        None => format!("{ms} ms"),
    }
}

/// Between labels of a time so long: a round number of some unit. In milliseconds.
fn step(length: i64) -> i64 {
    const S: i64 = 1_000;
    const M: i64 = 60 * S;
    const H: i64 = 60 * M;
    let small = [1, 2, 5, 10, 20, 30].map(|seconds| seconds * S).into_iter();
    let small = small.chain([1, 2, 5, 10, 20, 30].map(|minutes| minutes * M));
    let large = [1, 2, 3, 6, 12].map(|hours| hours * H).into_iter();
    let large = large.chain([1, 2, 4, 7, 14, 28, 91, 182, 364].map(|days| days * DAY));
    let huge = std::iter::successors(Some(728 * DAY), |step| step.checked_mul(2));
    let fits = |step: &i64| length / step <= TICKS_MOST as i64;
    small.chain(large).chain(huge).find(fits).unwrap_or(i64::MAX)
}

const DAY: i64 = 86_400_000;

/// As exact as labels so far apart need it.
fn clock(ms: i64, step: i64) -> String {
    let form = match step {
        0..60_000 => "%H:%M:%S",
        60_000..DAY => "%H:%M",
        _ if step < 91 * DAY => "%-d %b",
        _ => "%b %Y",
    };
    DateTime::from_timestamp_millis(ms).map_or_else(String::new, |time| time.format(form).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_round_and_few_and_reach_the_most() {
        for (most, expected) in [
            (0, vec![0, 1]),
            (1, vec![0, 1]),
            (3, vec![0, 1, 2, 3]),
            (7, vec![0, 2, 4, 6, 8]),
            (1_000_000, vec![0, 500_000, 1_000_000]),
            (999, vec![0, 500, 1_000]),
        ] {
            assert_eq!(levels(most), expected, "{most}");
        }
        assert!(levels(u64::MAX / 8).len() <= TICKS_MOST as usize + 1);
    }

    #[test]
    fn labels_are_short() {
        let all = [0, 9_500, 12_500, 250_000, 1_500_000, 20_000_000, 4_000_000_000];
        assert_eq!(all.map(compact), ["0", "9500", "12.5k", "250k", "1.5M", "20M", "4G"]);
        assert_eq!(
            [0, 500, 1_000, 1_500, 60_000, 7_200_000].map(span),
            ["0 ms", "500 ms", "1 s", "1500 ms", "1 min", "2 h"]
        );
    }

    #[test]
    fn times_have_between_one_and_five_labels() {
        let start = 1_796_083_200_000;
        for length in [1_000, 4_000, 80_000, 3_600_000, DAY, 40 * DAY, 4_000 * DAY] {
            for shift in [0, 300_000] {
                let times = start + shift..start + shift + length;
                let Axis { mut labels, .. } = Axis::times(&times);
                assert!((1..=5).contains(&labels.len()), "{length}: {labels:?}");
                assert!(labels.iter().all(|(at, _)| (times.start as f64..=times.end as f64).contains(at)));
                let all = labels.len();
                labels.dedup_by(|a, b| a.1 == b.1);
                assert_eq!(labels.len(), all, "{length}: {labels:?}");
            }
        }
    }

    #[test]
    fn a_drawing_has_inks_of_the_page_alone() {
        let stretch = |from, settled, so_far| Stretch { from, settled, so_far };
        let stretches = [stretch(0, [2, 1, 0], [2, 1, 0]), stretch(1_000, [0, 0, 1], [2, 1, 1])];
        let bars = [Bar { from: 5, to: Some(10), number: 3 }];
        for drawing in [progress(&stretches, 1_000, 4), rate(&stretches, 1_000), latency(&bars)] {
            let drawing = drawing.unwrap();
            assert!(drawing.contains("var(--") && drawing.contains("<text"), "{drawing}");
            for foreign in ["\"#", "font-", "http", "<svg", "NaN"] {
                assert!(!drawing.contains(foreign), "{foreign} in {drawing}");
            }
        }
        assert_eq!(progress(&[], 1_000, 4).unwrap(), "");
    }
}

//! When targets were settled: how many in each stretch of time. Stretches begin as seconds and grow when they become too many, so
//! that a task of a minute and one of a month take the same memory and make a chart of the same density.

use std::collections::BTreeMap;

/// Each is a multiple of the one before, in milliseconds.
const WIDTHS: [i64; 16] = {
    const S: i64 = 1000;
    const M: i64 = 60 * S;
    const H: i64 = 60 * M;
    const D: i64 = 24 * H;
    [S, 5 * S, 10 * S, 30 * S, M, 5 * M, 10 * M, 30 * M, H, 3 * H, 6 * H, 12 * H, D, 7 * D, 28 * D, 364 * D]
};

/// From the first stretch to the last, at most.
const MOST: i64 = 80;

/// What a target can be settled as, in this order.
pub const SETTLED: [&str; 3] = ["sent", "failed", "unknown"];

/// How many were settled, as each of [`SETTLED`].
pub type Settled = [u64; 3];

pub struct Timeline {
    /// Of each stretch.
    pub width: i64,
    /// By number: stretch n begins n widths after 1970.
    stretches: BTreeMap<i64, Settled>,
    /// When the first and the last were settled.
    pub ends: Option<(i64, i64)>,
    /// Settled, and nobody wrote when.
    pub undated: u64,
}

/// One stretch of time, in which something was settled or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Milliseconds since 1970.
    pub from: i64,
    pub settled: Settled,
    /// All that was settled up to its end.
    pub so_far: Settled,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { width: WIDTHS[0], stretches: BTreeMap::new(), ends: None, undated: 0 }
    }
}

impl Timeline {
    /// `at` in milliseconds; `as_what` is an index of [`SETTLED`].
    pub fn add(&mut self, at: i64, as_what: usize) {
        let (first, last) = self.ends.unwrap_or((at, at));
        self.ends = Some((first.min(at), last.max(at)));
        self.stretches.entry(at.div_euclid(self.width)).or_default()[as_what] += 1;
        while self.span() > MOST {
            self.widen();
        }
    }

    /// How many stretches from the first to the last.
    fn span(&self) -> i64 {
        match (self.stretches.first_key_value(), self.stretches.last_key_value()) {
            (Some((first, _)), Some((last, _))) => last - first + 1,
            _ => 0,
        }
    }

    fn widen(&mut self) {
        let wider = WIDTHS.into_iter().find(|width| *width > self.width).unwrap_or(self.width * 2);
        let times = wider / self.width;
        for (number, settled) in std::mem::take(&mut self.stretches) {
            let stretch = self.stretches.entry(number.div_euclid(times)).or_default();
            for (sum, more) in stretch.iter_mut().zip(settled) {
                *sum += more;
            }
        }
        self.width = wider;
    }

    /// From the first in which something was settled to the last, those between in which nothing was included.
    pub fn stretches(&self) -> Vec<Stretch> {
        let Some((first, _)) = self.stretches.first_key_value() else { return Vec::new() };
        let mut so_far = Settled::default();
        (*first..first + self.span())
            .map(|number| {
                let settled = self.stretches.get(&number).copied().unwrap_or_default();
                for (sum, more) in so_far.iter_mut().zip(settled) {
                    *sum += more;
                }
                Stretch { from: number * self.width, settled, so_far }
            })
            .collect()
    }

    /// All that have a time.
    pub fn dated(&self) -> u64 {
        self.stretches.values().flatten().sum()
    }

    /// "second", "5 minutes", "day".
    pub fn width_in_words(&self) -> String {
        let units = [(86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")];
        let (unit, name) =
            units.into_iter().find(|(unit, _)| self.width % unit == 0).unwrap_or((1_000, "second"));
        match self.width / unit {
            1 => name.to_owned(),
            number => format!("{number} {name}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_width_is_a_multiple_of_the_one_before() {
        for pair in WIDTHS.windows(2) {
            assert_eq!(pair[1] % pair[0], 0, "{pair:?}");
        }
    }

    #[test]
    fn however_long_it_took_nothing_is_lost_and_little_is_kept() {
        let second = 1_800_000_000_000;
        for (span, width) in [
            (0, "second"),
            (79_999, "second"),
            (80_000, "5 seconds"),
            (600_000, "10 seconds"),
            (3_600_000, "minute"),
            (86_400_000, "30 minutes"),
            (35 * 86_400_000, "12 hours"),
            (400 * 86_400_000, "7 days"),
            (300 * 365 * 86_400_000, "1456 days"),
        ] {
            let mut timeline = Timeline::default();
            // In no order.
            for number in (0..1000).map(|number| number * 7 % 1000) {
                timeline.add(second + span * number / 999, (number % 3) as usize);
            }
            let stretches = timeline.stretches();
            assert!(stretches.len() <= MOST as usize, "{span}: {}", stretches.len());
            assert_eq!(stretches.last().unwrap().so_far, [334, 333, 333], "{span}");
            assert_eq!((timeline.dated(), timeline.width_in_words().as_str()), (1000, width));
            assert!(stretches[0].from <= second && second < stretches[0].from + timeline.width);
            assert!(stretches.windows(2).all(|pair| pair[1].from - pair[0].from == timeline.width));
        }
    }

    #[test]
    fn stretches_in_which_nothing_was_settled_are_there() {
        let mut timeline = Timeline::default();
        timeline.add(5_000, 0);
        timeline.add(7_999, 2);
        let settled: Vec<_> = timeline.stretches().iter().map(|stretch| stretch.settled).collect();
        assert_eq!(settled, [[1, 0, 0], [0, 0, 0], [0, 0, 1]]);
        assert!(Timeline::default().stretches().is_empty());
    }
}

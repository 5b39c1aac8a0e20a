//! How long the channel took: percentiles, and how many answers came within which time.

use hdrhistogram::Histogram;

/// Where one bar of the histogram ends and the next begins, in milliseconds. The last is open.
const EDGES: [u64; 20] = [
    0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000, 120_000, 600_000,
    3_600_000, 86_400_000,
];

/// What took longer counts as so long: ten years, in milliseconds.
const LONGEST: u64 = 10 * 366 * 86_400_000;

pub struct Latency {
    /// To three digits; to the millisecond up to two seconds. Its bounds are fixed: of one that grows, `saturating_record` clamps to what
    /// it has grown to.
    values: Histogram<u64>,
    bars: [u64; EDGES.len()],
}

/// So many answers took at least `from`, and less than `to`. In milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    pub from: u64,
    /// None: no end.
    pub to: Option<u64>,
    pub number: u64,
}

impl Default for Latency {
    fn default() -> Self {
        let values = Histogram::new_with_max(LONGEST, 3).expect("both are within what it takes");
        Self { values, bars: [0; EDGES.len()] }
    }
}

impl Latency {
    pub fn add(&mut self, ms: u64) {
        self.values.saturating_record(ms);
        self.bars[EDGES.partition_point(|edge| *edge <= ms) - 1] += 1;
    }

    pub fn number(&self) -> u64 {
        self.bars.iter().sum()
    }

    /// The smallest latency that is not below `part` of all. None: there are none.
    pub fn percentile(&self, part: f64) -> Option<u64> {
        (self.number() > 0).then(|| self.values.value_at_quantile(part))
    }

    pub fn longest(&self) -> Option<u64> {
        (self.number() > 0).then(|| self.values.max())
    }

    /// From the first that is not empty to the last.
    pub fn bars(&self) -> Vec<Bar> {
        let filled = |number: &u64| *number > 0;
        let Some(first) = self.bars.iter().position(filled) else { return Vec::new() };
        let last = self.bars.iter().rposition(filled).unwrap_or(first);
        (first..=last)
            .map(|at| Bar { from: EDGES[at], to: EDGES.get(at + 1).copied(), number: self.bars[at] })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let mut latency = Latency::default();
        assert_eq!((latency.percentile(0.5), latency.longest(), latency.bars().len()), (None, None, 0));
        latency.add(7);
        assert_eq!(latency.percentile(0.99), Some(7));
        let mut latency = Latency::default();
        let mut sorted: Vec<u64> = (0..1_000).map(|n| (n * n) % 1_999).collect();
        sorted.iter().for_each(|ms| latency.add(*ms));
        sorted.sort_unstable();
        for (part, rank) in [(0.5, 500), (0.95, 950), (0.99, 990), (1.0, 1000)] {
            assert_eq!(latency.percentile(part), Some(sorted[rank - 1]), "{part}");
        }
        assert_eq!((latency.number(), latency.longest()), (1_000, sorted.last().copied()));

        // One that a person settled, later.
        let mut latency = Latency::default();
        [20, 1_024, 1_025, 33_868].into_iter().for_each(|ms| latency.add(ms));
        let near = |part: f64| latency.percentile(part).unwrap().abs_diff(33_868) < 40;
        assert!(near(0.95) && near(0.99) && latency.longest().unwrap().abs_diff(33_868) < 40);
        latency.add(u64::MAX);
        assert!(latency.longest().unwrap() >= LONGEST);
    }

    #[test]
    fn every_latency_is_in_one_bar() {
        let mut latency = Latency::default();
        for ms in [2, 4, 5, 10, u64::MAX] {
            latency.add(ms);
        }
        let bars = latency.bars();
        let bar = |from, to, number| Bar { from, to, number };
        assert_eq!(
            bars[..4],
            [bar(2, Some(5), 2), bar(5, Some(10), 1), bar(10, Some(20), 1), bar(20, Some(50), 0)]
        );
        assert_eq!(bars.last(), Some(&bar(86_400_000, None, 1)));
        assert_eq!(bars.iter().map(|bar| bar.number).sum::<u64>(), latency.number());
    }
}

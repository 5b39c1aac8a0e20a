//! How fast a channel may be sent to: what `rate` and `burst` mean in slots of time. Pure. The slots are handed out by the
//! database, one after the other to all lanes, runs and hosts, by the generic cell rate algorithm: a group of n that leaves
//! together takes n slots, and what is not used is not saved up.

use std::time::Duration;

/// A rate, and how many may leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    count: u32,
    per: Duration,
    burst: u32,
    group: u32,
}

/// Slots are so many hundredths wider than the rate asks for. A group leaves at once and networks deliver in jerks: without
/// it, ten seconds of somebody else's clock would now and then hold more than ten seconds' worth.
const HEADROOM: u128 = 2;

/// Sends in a unit of `rate`.
const COUNT_MOST: u32 = 1_000_000;

/// Sends at once.
pub const BURST_MOST: u32 = 10_000;

impl Pace {
    /// `rate`: as in `100/s`, `3000/min`, `50000/h`. `burst`: how many may leave together; absent, messages flow in groups
    /// of a tenth of a second's worth. Errors are the end of a sentence that begins with the key.
    pub fn parse(rate: &str, burst: Option<u32>) -> Result<Self, String> {
        let wrong = || {
            format!(
                "must be a number of 1 to {COUNT_MOST} and /s, /min or /h, as in \"100/s\", not \"{rate}\""
            )
        };
        let (count, unit) = rate.split_once('/').ok_or_else(wrong)?;
        let per = match unit.trim() {
            "s" => 1,
            "min" => 60,
            "h" => 3600,
            _ => return Err(wrong()),
        };
        let count = count.trim();
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let count: u32 =
            count.parse().ok().filter(|count| (1..=COUNT_MOST).contains(count)).ok_or_else(wrong)?;
        let second = (count / per).clamp(1, BURST_MOST);
        // Unasked, it flows in tenths of a second; what comes late may still leave together.
        let (burst, group) = burst.map_or((second, (second / 10).max(1)), |burst| (burst, burst));
        Ok(Self { count, per: Duration::from_secs(per.into()), burst, group })
    }

    /// How many may leave together.
    pub fn burst(&self) -> usize {
        self.burst as usize
    }

    /// How many take their slots together: as many as were asked for with `burst`, else a tenth of a second's worth.
    pub fn group(&self) -> usize {
        self.group as usize
    }

    /// The time that so many slots take.
    pub fn span(&self, slots: usize) -> Duration {
        let ns = self.per.as_nanos() * slots as u128 * (100 + HEADROOM) / (100 * u128::from(self.count));
        // Up to the database's whole microsecond: never faster than asked.
        Duration::from_micros(u64::try_from(ns.div_ceil(1000)).unwrap_or(u64::MAX))
    }

    /// How many slots there are in so much time; at least one.
    pub fn slots(&self, time: Duration) -> usize {
        let slots = time.as_nanos() * u128::from(self.count) / self.per.as_nanos();
        usize::try_from(slots).unwrap_or(usize::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: &str) -> Pace {
        Pace::parse(rate, None).unwrap()
    }

    #[test]
    fn a_rate_is_a_number_in_a_unit_of_time() {
        assert_eq!(pace("100/s").span(1), Duration::from_micros(10_200));
        assert_eq!(pace("100/s").span(50), Duration::from_millis(510));
        assert_eq!(pace("60/min").span(1), Duration::from_millis(1020));
        assert_eq!(pace("50/h").span(1), Duration::from_micros(73_440_000));
        assert_eq!(pace("1000000/s").span(1), Duration::from_micros(2), "rounded up");
        for wrong in
            ["", "100", "/s", "0/s", "-1/s", "+1/s", "1.5/s", "1000001/s", "100/m", "100/d", "100 /x", "a/s"]
        {
            assert!(Pace::parse(wrong, None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_tenth_of_a_second_leaves_together_unless_it_is_said_otherwise() {
        assert_eq!(pace("100/s").burst(), 100);
        assert_eq!(pace("600/min").burst(), 10);
        assert_eq!(pace("50/h").burst(), 1);
        let asked = Pace::parse("100/s", Some(30)).unwrap();
        assert_eq!((asked.burst(), asked.group()), (30, 30));
        assert_eq!([pace("100/s").group(), pace("5/s").group(), pace("50/h").group()], [10, 1, 1]);
    }

    #[test]
    fn a_window_of_ten_seconds_holds_no_more_than_the_rate() {
        for rate in ["1/s", "20/s", "100/s", "3000/min", "1000/s"] {
            let pace = pace(rate);
            let allowed = pace.slots(Duration::from_secs(10));
            for group in [1, pace.group()] {
                let groups = 1
                    + (Duration::from_secs(10) - Duration::from_nanos(1)).as_nanos()
                        / pace.span(group).as_nanos();
                assert!(groups as usize * group <= allowed, "{rate} in groups of {group}");
                assert!(
                    groups as usize * group * 100 >= allowed * 95 || allowed < 20,
                    "{rate} in groups of {group}"
                );
            }
        }
    }

    #[test]
    fn so_much_time_has_so_many_slots() {
        assert_eq!(pace("100/s").slots(Duration::from_secs(2)), 200);
        assert_eq!(pace("1/s").slots(Duration::from_secs(2)), 2);
        assert_eq!(pace("50/h").slots(Duration::from_secs(2)), 1);
    }
}

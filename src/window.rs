//! The hours in which a channel may be sent to: from when to when, by the wall clock of a time zone. Pure: what time it is, is
//! the database's word. Where a clock is put forward or back, the wall clock alone counts: what it shows twice is open
//! (or closed) twice.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, NaiveTime, TimeDelta, Timelike, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};

use crate::moment::Moment;

/// Daily hours. `from` after `to`: over midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Minutes since midnight; `to` is the first that is outside.
    from: u32,
    to: u32,
    zone: Tz,
}

const DAY: u32 = 24 * 60;

/// No window is open or closed for longer; the rest is for the switches of daylight saving.
const LONGEST_LOOK: i64 = 2 * DAY as i64;

/// Another city is not what was meant: who follows a wrong hint sends at wrong hours.
const MISTYPED: f64 = 0.95;

impl Window {
    /// `hours`: as in `08:00-22:00`; `24:00` is the end of the day. `zone`: an IANA name. Errors are sentences that name the key.
    pub fn parse(hours: &str, zone: &str) -> Result<Self, String> {
        let wrong = || format!("`window` must be as in \"08:00-22:00\", not \"{hours}\"");
        let minute = |text: &str| {
            if text.trim() == "24:00" {
                return Some(DAY);
            }
            let time = NaiveTime::parse_from_str(text.trim(), "%H:%M").ok()?;
            Some(time.hour() * 60 + time.minute())
        };
        let (from, to) = hours.split_once('-').ok_or_else(wrong)?;
        let (from, to) = (minute(from).ok_or_else(wrong)?, minute(to).ok_or_else(wrong)?);
        if from == to || from == DAY {
            return Err(format!("`window` \"{hours}\" holds no time; leave it out for the whole day"));
        }
        let zone = zone.parse().map_err(|_| {
            let likeness = |name: &str| strsim::jaro_winkler(&zone.to_lowercase(), &name.to_lowercase());
            let near = TZ_VARIANTS
                .iter()
                .map(|tz| tz.name())
                .filter(|name| likeness(name) > MISTYPED)
                .max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            match near {
                Some(near) => format!("`time_zone` \"{zone}\" is no IANA name: did you mean `{near}`?"),
                None => format!("`time_zone` \"{zone}\" is no IANA name, as in \"Asia/Shanghai\" or \"UTC\""),
            }
        })?;
        Ok(Self { from, to, zone })
    }

    pub fn is_open(&self, at: DateTime<Utc>) -> bool {
        let local = at.with_timezone(&self.zone).time();
        let minute = local.hour() * 60 + local.minute();
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }

    /// How long it stays open: nothing once it is closed. A window of the whole day is looked at for two days.
    pub fn left(&self, now: DateTime<Utc>) -> Duration {
        self.until_change(now).filter(|_| self.is_open(now)).unwrap_or_default()
    }

    /// When it opens next; now, if it is open.
    pub fn opens(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        if self.is_open(now) {
            return now;
        }
        now + self.until_change(now).unwrap_or_default()
    }

    /// Since when it is open, if it is. A window of the whole day: for two days.
    pub fn open_since(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let minute = now.with_second(0)?.with_nanosecond(0)?;
        let closed = |minutes: &i64| !self.is_open(minute - TimeDelta::minutes(*minutes));
        let minutes = (1..=LONGEST_LOOK).find(closed).unwrap_or(LONGEST_LOOK);
        self.is_open(now).then(|| minute - TimeDelta::minutes(minutes - 1))
    }

    /// The time until it is no longer as it is now. Minute by minute: offsets and switches are whole minutes, and nothing
    /// that is computed from them is as plain.
    fn until_change(&self, now: DateTime<Utc>) -> Option<Duration> {
        let open = self.is_open(now);
        let minute = now.with_second(0)?.with_nanosecond(0)?;
        let changed = |minutes: &i64| self.is_open(minute + TimeDelta::minutes(*minutes)) != open;
        let minutes = (1..=LONGEST_LOOK).find(changed).unwrap_or(LONGEST_LOOK);
        (minute + TimeDelta::minutes(minutes) - now).to_std().ok()
    }
}

/// What time it is: read from the database once, and carried on by this host's own clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    read: Moment,
    at: DateTime<Utc>,
}

impl Clock {
    /// `at`: what the database said; `read`: when it had been asked.
    pub fn new(read: Moment, at: DateTime<Utc>) -> Self {
        Self { read, at }
    }

    pub fn now(&self) -> DateTime<Utc> {
        self.at + TimeDelta::from_std(self.read.elapsed()).unwrap_or_default()
    }
}

/// For people: `08:00-22:00 Asia/Shanghai`.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |minutes: u32| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        write!(f, "{}-{} {}", time(self.from), time(self.to), self.zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().with_timezone(&Utc)
    }

    fn minutes(left: Duration) -> u64 {
        left.as_secs() / 60
    }

    #[test]
    fn it_is_open_by_the_wall_clock_of_its_zone() {
        let window = Window::parse("08:00-22:00", "Asia/Shanghai").unwrap();
        assert!(!window.is_open(at("2026-11-30T07:59:59.999+08:00")));
        assert!(window.is_open(at("2026-11-30T08:00:00+08:00")));
        assert!(window.is_open(at("2026-11-30T21:59:59.999+08:00")));
        assert!(!window.is_open(at("2026-11-30T22:00:00+08:00")));
        assert_eq!(window.left(at("2026-11-30T21:59:30+08:00")), Duration::from_secs(30));
        assert_eq!(window.left(at("2026-11-30T22:00:00+08:00")), Duration::ZERO);
        assert_eq!(window.opens(at("2026-11-30T22:00:01+08:00")), at("2026-12-01T08:00:00+08:00"));
        assert_eq!(window.opens(at("2026-11-30T09:00:01+08:00")), at("2026-11-30T09:00:01+08:00"));
    }

    #[test]
    fn it_knows_since_when_it_is_open() {
        let day = Window::parse("08:00-22:00", "Asia/Shanghai").unwrap();
        assert_eq!(day.open_since(at("2026-11-30T09:00:30+08:00")), Some(at("2026-11-30T08:00:00+08:00")));
        assert_eq!(day.open_since(at("2026-11-30T08:00:00+08:00")), Some(at("2026-11-30T08:00:00+08:00")));
        assert_eq!(day.open_since(at("2026-11-30T07:59:59+08:00")), None);
        let night = Window::parse("22:00-06:00", "UTC").unwrap();
        assert_eq!(night.open_since(at("2026-11-30T05:00:00Z")), Some(at("2026-11-29T22:00:00Z")));
        let whole = Window::parse("00:00-24:00", "UTC").unwrap();
        assert!(whole.open_since(at("2026-11-30T12:00:00Z")) < Some(at("2026-11-29T00:00:00Z")));
    }

    #[test]
    fn it_may_go_over_midnight_or_to_its_end() {
        let night = Window::parse("22:00-06:00", "UTC").unwrap();
        assert!(night.is_open(at("2026-11-30T23:00:00Z")) && night.is_open(at("2026-11-30T05:59:00Z")));
        assert!(!night.is_open(at("2026-11-30T06:00:00Z")) && !night.is_open(at("2026-11-30T21:59:00Z")));
        assert_eq!(minutes(night.left(at("2026-11-30T23:00:00Z"))), 7 * 60);
        let evening = Window::parse("18:00-24:00", "UTC").unwrap();
        assert!(evening.is_open(at("2026-11-30T23:59:59Z")) && !evening.is_open(at("2026-12-01T00:00:00Z")));
        let whole = Window::parse("00:00-24:00", "UTC").unwrap();
        assert!(
            whole.is_open(at("2026-11-30T00:00:00Z"))
                && whole.left(at("2026-11-30T00:00:00Z")) > Duration::from_secs(86_400)
        );
    }

    // In New York, 2026-03-08 has no 02:00-03:00, and 2026-11-01 has 01:00-02:00 twice.

    #[test]
    fn an_edge_that_the_clock_leaps_over_is_where_it_lands() {
        let morning = Window::parse("02:30-12:00", "America/New_York").unwrap();
        assert_eq!(morning.opens(at("2026-03-08T00:00:00-05:00")), at("2026-03-08T03:00:00-04:00"));
        let night = Window::parse("22:00-02:30", "America/New_York").unwrap();
        assert_eq!(minutes(night.left(at("2026-03-08T01:00:00-05:00"))), 60);
        assert!(!night.is_open(at("2026-03-08T03:00:00-04:00")));
        // An hour less of the day itself.
        let day = Window::parse("00:00-12:00", "America/New_York").unwrap();
        assert_eq!(minutes(day.left(at("2026-03-08T00:00:00-05:00"))), 11 * 60);
    }

    #[test]
    fn an_hour_that_the_clock_shows_twice_is_open_or_closed_twice() {
        let morning = Window::parse("01:30-12:00", "America/New_York").unwrap();
        assert!(morning.is_open(at("2026-11-01T01:30:00-04:00")));
        assert_eq!(minutes(morning.left(at("2026-11-01T01:30:00-04:00"))), 30, "back to one o'clock");
        assert!(!morning.is_open(at("2026-11-01T01:15:00-05:00")));
        assert_eq!(morning.opens(at("2026-11-01T01:15:00-05:00")), at("2026-11-01T01:30:00-05:00"));
        let night = Window::parse("22:00-01:30", "America/New_York").unwrap();
        assert_eq!(minutes(night.left(at("2026-11-01T01:00:00-04:00"))), 30);
        assert_eq!(night.opens(at("2026-11-01T01:45:00-04:00")), at("2026-11-01T01:00:00-05:00"));
        let day = Window::parse("00:00-12:00", "America/New_York").unwrap();
        assert_eq!(minutes(day.left(at("2026-11-01T00:00:00-04:00"))), 13 * 60);
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for wrong in [
            "",
            "08:00",
            "8-22",
            "08:00-25:00",
            "08:00-08:00",
            "24:00-08:00",
            "08:00-22:00-23:00",
            "08:60-09:00",
        ] {
            let error = Window::parse(wrong, "UTC").unwrap_err();
            assert!(error.contains("`window`"), "{error}");
        }
        let error = Window::parse("08:00-22:00", "Asia/Shangai").unwrap_err();
        assert_eq!(error, "`time_zone` \"Asia/Shangai\" is no IANA name: did you mean `Asia/Shanghai`?");
        let error = Window::parse("08:00-22:00", "asia/shanghai").unwrap_err();
        assert!(error.ends_with("did you mean `Asia/Shanghai`?"), "{error}");
        for other in ["Asia/Beijing", "CST", "CST8", "UTC+8", "China", ""] {
            let error = Window::parse("08:00-22:00", other).unwrap_err();
            assert!(error.ends_with("is no IANA name, as in \"Asia/Shanghai\" or \"UTC\""), "{error}");
        }
    }

    #[test]
    fn it_is_shown_as_it_is_written() {
        let window = Window::parse("8:00 - 24:00", "Europe/Berlin").unwrap();
        assert_eq!(window.to_string(), "08:00-24:00 Europe/Berlin");
    }
}

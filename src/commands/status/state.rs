//! What is to be known of a task at a glance: whether it goes on, what it waits for and until when, whether anything is wrong.
//! Decided from what the database says of it and from this host's configuration; pure, but for nothing.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::course::Course;
use crate::task::{Counts, Holder, Task, TaskStatus, show_time};
use crate::window::Window;

/// With cron's run each minute, nobody but a dead cron leaves alone for so long what is due.
pub const STALLED: TimeDelta = TimeDelta::minutes(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Draft,
    /// A run holds it.
    Running(Holder),
    Waiting(Wait),
    /// The next run takes it, or ends it.
    Pending,
    /// The next run pauses it.
    Expired,
    Stalled(Stall),
    Paused(Option<String>),
    Finished(Option<DateTime<Utc>>),
    Cancelled,
}

/// What a task waits for, while nothing is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    Schedule(DateTime<Utc>),
    /// The channel asked to be left alone, or cannot be reached; so many times in a row.
    Hold(DateTime<Utc>, u16),
    /// The channel's hours.
    Window(DateTime<Utc>, String),
    /// The next slot of the channel's rate, further away than a run can wait for.
    Rate(DateTime<Utc>),
    Retry(DateTime<Utc>),
    /// Others go before it.
    Turn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stall {
    /// It is due, and no run has taken it since then.
    NoRun(DateTime<Utc>),
    /// The run that held it died, and no other has come since to repair what it left.
    DeadRun { owner: String, at: DateTime<Utc> },
}

/// A task at a glance.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    pub state: State,
    /// In whatever status; `state` tells it of a pending one alone.
    pub stall: Option<Stall>,
    /// Since when the oldest target is due, of a task that may be sent now as far as it and this host's configuration say. A held
    /// channel does not change that.
    pub due_since: Option<DateTime<Utc>>,
    /// Sent in a second, of a task that a run holds.
    pub rate: Option<f64>,
    pub finishes_in: Option<Duration>,
    /// Whether this host's configuration has its channel.
    pub known: bool,
}

/// What a decision stands on beside the task itself.
pub struct Circumstances<'a> {
    pub now: DateTime<Utc>,
    /// The highest priority that a run works on.
    pub at_work: Option<i16>,
    /// Whether this host has its channel, and that channel's hours.
    pub known: bool,
    pub window: Option<&'a Window>,
    /// How long a run waits for a slot.
    pub budget: Duration,
}

impl Standing {
    pub fn of(task: &Task, counts: &Counts, course: Option<&Course>, here: &Circumstances<'_>) -> Self {
        let stall = course.and_then(|course| dead_run(counts, course, here.now));
        let mut standing = Self {
            state: match task.status {
                TaskStatus::Draft => State::Draft,
                TaskStatus::Pending => State::Pending,
                TaskStatus::Paused => State::Paused(task.status_reason.clone()),
                TaskStatus::Finished => State::Finished(task.finished_at),
                TaskStatus::Cancelled => State::Cancelled,
            },
            stall,
            due_since: None,
            rate: None,
            finishes_in: None,
            known: here.known,
        };
        if task.status == TaskStatus::Pending {
            standing.weigh(task, course, here);
        }
        if let (State::Running(_), Some(recent)) = (&standing.state, course.and_then(|course| course.recent))
        {
            standing.rate = Some(recent.rate());
            standing.finishes_in = time_to_finish(counts, recent.rate());
        }
        standing
    }

    /// A pending task.
    fn weigh(&mut self, task: &Task, course: Option<&Course>, here: &Circumstances<'_>) {
        let now = here.now;
        let opened = here.window.map(|window| window.open_since(now));
        if !task.early && !task.expired && opened != Some(None) {
            let due = course.and_then(|course| course.due_since(now));
            self.due_since = due.max(due.and(opened.flatten()));
        }
        self.state = match (&task.lease, &self.stall) {
            (Some(holder), _) => State::Running(holder.clone()),
            _ if task.expired => State::Expired,
            (None, Some(stall)) => State::Stalled(stall.clone()),
            (None, None) => match waits(task, course, here) {
                Some(wait) => State::Waiting(wait),
                None => match course.and_then(|course| self.left_alone_since(course, now)) {
                    // Those that a run works on may have gone before it all the time.
                    // But no run of this host takes what it has no channel for.
                    Some(_) if self.known && here.at_work >= Some(task.priority) => {
                        State::Waiting(Wait::Turn)
                    }
                    Some(since) => State::Stalled(Stall::NoRun(since)),
                    None => State::Pending,
                },
            },
        };
        if let State::Stalled(stall) = &self.state {
            self.stall = Some(stall.clone());
        }
    }

    /// Since when a run could have taken it, if that is too long ago.
    fn left_alone_since(&self, course: &Course, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let gate = &course.gate;
        let due = self.due_since?;
        let since = [course.served_at, gate.held_until, gate.next_slot]
            .into_iter()
            .flatten()
            .fold(due, DateTime::max);
        (now - since > STALLED).then_some(since)
    }
}

/// Targets are in the hands of a run whose lease ended long ago.
fn dead_run(counts: &Counts, course: &Course, now: DateTime<Utc>) -> Option<Stall> {
    let lost = course.lost.as_ref().filter(|lost| now - lost.at > STALLED)?;
    (counts.processing + counts.sending > 0)
        .then(|| Stall::DeadRun { owner: lost.owner.clone(), at: lost.at })
}

fn waits(task: &Task, course: Option<&Course>, here: &Circumstances<'_>) -> Option<Wait> {
    if let Some(at) = task.scheduled_at.filter(|_| task.early) {
        return Some(Wait::Schedule(at));
    }
    if let Some(until) = task.held_until {
        return Some(Wait::Hold(until, course.map_or(1, |course| course.gate.holds)));
    }
    if let Some(window) = here.window
        && !window.is_open(here.now)
    {
        return Some(Wait::Window(window.opens(here.now), window.to_string()));
    }
    let course = course?;
    if course.due_since(here.now).is_none() {
        return course.retry_at.map(Wait::Retry);
    }
    let farthest = here.now + TimeDelta::from_std(here.budget).unwrap_or_default();
    course.gate.next_slot.filter(|at| *at > farthest).map(Wait::Rate)
}

/// At the rate of now; nothing is told of what only waits for its retries.
fn time_to_finish(counts: &Counts, rate: f64) -> Option<Duration> {
    let open = counts.pending + counts.processing + counts.sending;
    let seconds = counts.left() as f64 / rate;
    (open > 0 && rate > 0.0 && seconds < 1e9).then(|| Duration::from_secs(seconds.ceil() as u64))
}

// ---- in words ----------------------------------------------------------------------------------------------------

/// How times are shown: whole, or for somebody who reads it now.
#[derive(Clone, Copy, Debug)]
pub enum Times {
    Whole,
    Short(DateTime<Utc>),
}

impl Times {
    /// One to come, or one that was.
    pub fn at(self, time: &DateTime<Utc>) -> String {
        let Self::Short(now) = self else { return show_time(time) };
        let away = (*time - now).num_seconds();
        let clock = match away.unsigned_abs() {
            _ if time.date_naive() == now.date_naive() => "%H:%MZ",
            seconds if seconds < 6 * 86_400 => "%a %H:%MZ",
            _ => "%Y-%m-%d",
        };
        let span = span(Duration::from_secs(away.unsigned_abs()));
        let away = if away > 0 { format!("in {span}") } else { format!("{span} ago") };
        format!("{}, {away}", time.format(clock))
    }
}

/// As durations are typed, in its two largest units: `12s`, `4m10s`, `2h`, `3d4h`.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let first = units.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(3);
    let (unit, name) = units[first];
    let rest = units.get(first + 1).map(|(next, name)| (seconds % unit / next, name));
    match rest {
        Some((rest, rest_name)) if rest > 0 => format!("{}{name}{rest}{rest_name}", seconds / unit),
        _ => format!("{}{name}", seconds / unit),
    }
}

/// How long ago, of a time that was.
pub fn ago(time: DateTime<Utc>, now: DateTime<Utc>) -> String {
    format!("{} ago", span((now - time).to_std().unwrap_or_default()))
}

/// What a state says before it goes into details.
pub fn head(text: &str) -> &str {
    let ends = [", ", ": ", " ("].into_iter().filter_map(|end| text.find(end));
    &text[..ends.min().unwrap_or(text.len())]
}

/// In which time rates are told, one for all that are compared.
#[derive(Clone, Copy)]
pub enum Unit {
    Second,
    Minute,
    Hour,
}

impl Unit {
    /// In which the slowest can be read.
    pub fn of(per_second: f64) -> Self {
        match per_second {
            rate if rate >= 1.0 || rate <= 0.0 => Self::Second,
            rate if rate * 60.0 >= 1.0 => Self::Minute,
            _ => Self::Hour,
        }
    }

    /// `412/s`.
    pub fn rate(self, per_second: f64) -> String {
        let (number, unit) = match self {
            Self::Second => (per_second, "s"),
            Self::Minute => (per_second * 60.0, "min"),
            Self::Hour => (per_second * 3_600.0, "h"),
        };
        if number < 9.95 && number.fract() > 0.05 {
            format!("{number:.1}/{unit}")
        } else {
            format!("{number:.0}/{unit}")
        }
    }
}

impl State {
    /// The word of the public form.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Running(_) => "running",
            Self::Waiting(_) => "waiting",
            Self::Pending | Self::Expired => "pending",
            Self::Stalled(_) => "stalled",
            Self::Paused(_) => "paused",
            Self::Finished(_) => "finished",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn text(&self, times: Times) -> String {
        match (self, times) {
            (Self::Running(Holder { owner, since, .. }), _) => {
                format!("running since {} ({owner})", times.at(since))
            }
            (Self::Waiting(wait), _) => wait.text(times),
            (Self::Expired, _) => "expired: the next run pauses it".into(),
            (Self::Stalled(stall), _) => format!("stalled: {}", stall.text(times)),
            (Self::Paused(Some(reason)), _) => format!("paused: {reason}"),
            (Self::Finished(Some(at)), Times::Short(_)) => format!("finished {}", times.at(at)),
            _ => self.word().into(),
        }
    }
}

impl Wait {
    pub fn until(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Schedule(at)
            | Self::Hold(at, _)
            | Self::Window(at, _)
            | Self::Rate(at)
            | Self::Retry(at) => Some(*at),
            Self::Turn => None,
        }
    }

    /// The word of the public form.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Schedule(_) => "schedule",
            Self::Hold(..) => "hold",
            Self::Window(..) => "window",
            Self::Rate(_) => "rate",
            Self::Retry(_) => "retry",
            Self::Turn => "turn",
        }
    }

    fn text(&self, times: Times) -> String {
        match self {
            Self::Schedule(at) => format!("waiting until {}", times.at(at)),
            Self::Hold(until, _) => format!("channel held until {}", times.at(until)),
            Self::Window(opens, hours) => format!("waiting until {}: window {hours}", times.at(opens)),
            Self::Rate(at) => format!("waiting until {}: rate of the channel", times.at(at)),
            Self::Retry(at) => format!("waiting until {}: retry", times.at(at)),
            Self::Turn => "waiting for its turn".into(),
        }
    }
}

impl Stall {
    /// As told behind the word.
    pub fn text(&self, times: Times) -> String {
        match self {
            Self::NoRun(since) => format!("no run took it since {}", times.at(since)),
            Self::DeadRun { owner, at } => format!("{owner} died, and no run came since {}", times.at(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::{Gate, Lost, Recent};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn task() -> Task {
        Task {
            id: 7,
            name: "Spring".into(),
            channel: "mail".into(),
            payload: None,
            status: TaskStatus::Pending,
            status_reason: None,
            priority: 0,
            scheduled_at: None,
            expires_at: None,
            created_at: at(-3_600),
            started_at: None,
            finished_at: None,
            lease: None,
            early: false,
            expired: false,
            held_until: None,
        }
    }

    fn course() -> Course {
        Course {
            ready_since: at(-3_600),
            pending: true,
            retry_at: None,
            served_at: None,
            lost: None,
            gate: Gate::default(),
            recent: None,
        }
    }

    fn holder() -> Holder {
        Holder { owner: "web:1".into(), since: at(-5), until: at(25) }
    }

    fn standing_beside(task: &Task, counts: &Counts, course: &Course, at_work: Option<i16>) -> Standing {
        let here = Circumstances {
            now: at(0),
            at_work,
            known: task.channel == "mail",
            window: None,
            budget: Duration::from_secs(50),
        };
        Standing::of(task, counts, Some(course), &here)
    }

    fn standing(task: &Task, course: &Course) -> Standing {
        standing_beside(task, &Counts { pending: 1, ..Counts::default() }, course, None)
    }

    #[test]
    fn due_and_taken_by_nobody_for_minutes_is_stalled() {
        let found = standing(&task(), &course());
        assert_eq!(found.state, State::Stalled(Stall::NoRun(at(-3_600))));
        assert_eq!((found.due_since, found.stall.is_some()), (Some(at(-3_600)), true));
        // Just made, served, let go by its channel, or given a slot: a run has not come by yet.
        let recently = Some(at(-60));
        for course in [
            Course { ready_since: at(-60), ..course() },
            Course { served_at: recently, ..course() },
            Course { gate: Gate { held_until: recently, ..Gate::default() }, ..course() },
            Course { gate: Gate { next_slot: recently, ..Gate::default() }, ..course() },
            Course { gate: Gate { next_slot: Some(at(40)), ..Gate::default() }, ..course() },
        ] {
            let found = standing(&task(), &course);
            assert_eq!((found.state, found.stall), (State::Pending, None), "{course:?}");
        }
        // Runs are at work: on what goes before it, or on what comes after it.
        let beside = |at_work| standing_beside(&task(), &Counts::default(), &course(), Some(at_work)).state;
        assert_eq!(beside(0), State::Waiting(Wait::Turn));
        assert_eq!(beside(-1), State::Stalled(Stall::NoRun(at(-3_600))));
        // None of them would take it.
        let strange = Task { channel: "nail".into(), ..task() };
        let found = standing_beside(&strange, &Counts::default(), &course(), Some(0));
        assert_eq!((found.known, found.state), (false, State::Stalled(Stall::NoRun(at(-3_600)))));
    }

    #[test]
    fn what_waits_for_its_time_is_not_stalled() {
        let (later, course) = (at(600), course());
        let scheduled = Task { scheduled_at: Some(later), early: true, ..task() };
        let held = Task { held_until: Some(later), ..task() };
        let gate = Gate { next_slot: Some(later), holds: 3, ..Gate::default() };
        let slow = Course { gate, ..course.clone() };
        let retry = Course { pending: false, retry_at: Some(later), ..course.clone() };
        for (task, course, wait, due) in [
            (&scheduled, &course, Wait::Schedule(later), None),
            (&held, &slow, Wait::Hold(later, 3), Some(at(-3_600))),
            (&task(), &slow, Wait::Rate(later), Some(at(-3_600))),
            (&task(), &retry, Wait::Retry(later), None),
        ] {
            let found = standing(task, course);
            assert_eq!((&found.state, found.due_since, found.stall), (&State::Waiting(wait), due, None));
        }
        let expired = Task { expired: true, ..task() };
        assert_eq!(
            (standing(&expired, &course).state, standing(&expired, &course).due_since),
            (State::Expired, None)
        );
        for status in [TaskStatus::Draft, TaskStatus::Paused, TaskStatus::Finished, TaskStatus::Cancelled] {
            let found = standing(&Task { status, ..task() }, &course);
            assert_eq!((found.state.word(), found.due_since, found.stall), (status.word(), None, None));
        }
    }

    #[test]
    fn what_a_dead_run_left_is_stalled_in_any_status_once_nobody_comes() {
        let lost = |seconds| Some(Lost { owner: "web:1".into(), at: at(seconds) });
        let in_flight = Counts { sending: 1, ..Counts::default() };
        let of = |status, counts, lost| {
            standing_beside(
                &Task { status, ..task() },
                counts,
                &Course { lost, served_at: Some(at(-60)), ..course() },
                None,
            )
        };
        let dead = Stall::DeadRun { owner: "web:1".into(), at: at(-301) };
        let found = of(TaskStatus::Pending, &in_flight, lost(-301));
        assert_eq!((found.state, found.stall), (State::Stalled(dead.clone()), Some(dead.clone())));
        let found = of(TaskStatus::Paused, &in_flight, lost(-301));
        assert_eq!((found.state, found.stall), (State::Paused(None), Some(dead)));
        assert_eq!(of(TaskStatus::Pending, &in_flight, lost(-300)).stall, None, "the next run comes yet");
        assert_eq!(of(TaskStatus::Pending, &Counts::default(), lost(-301)).stall, None, "it left nothing");
    }

    #[test]
    fn a_task_that_a_run_holds_has_a_rate_and_an_end() {
        let running = Task { lease: Some(holder()), held_until: Some(at(60)), ..task() };
        let recent = Some(Recent { sent: 300, within: Duration::from_secs(60) });
        let of = |counts: Counts, recent| {
            standing_beside(&running, &counts, &Course { recent, ..course() }, Some(0))
        };
        let found = of(Counts { pending: 100, retry: 1, sent: 5, ..Counts::default() }, recent);
        assert_eq!(found.state, State::Running(holder()));
        assert_eq!((found.rate, found.finishes_in), (Some(5.0), Some(Duration::from_secs(21))));
        assert_eq!(of(Counts { retry: 9, ..Counts::default() }, recent).finishes_in, None);
        let still = Some(Recent { sent: 0, within: Duration::from_secs(60) });
        assert_eq!(of(Counts { pending: 9, ..Counts::default() }, still).finishes_in, None);
        assert_eq!(standing(&task(), &Course { recent, ..course() }).rate, None, "nobody holds it");
    }

    #[test]
    fn words_for_people() {
        let spans =
            [0, 59, 60, 250, 3_600, 3_659, 7_260, 86_400, 100_800].map(|n| span(Duration::from_secs(n)));
        assert_eq!(spans, ["0s", "59s", "1m", "4m10s", "1h", "1h", "2h1m", "1d", "1d4h"]);
        let rates = [412.3, 5.25, 3.0, 0.5, 0.01, 0.0, 9.97].map(|rate| Unit::of(rate).rate(rate));
        assert_eq!(rates, ["412/s", "5.2/s", "3/s", "30/min", "36/h", "0/s", "10/s"]);
        assert_eq!([412.3, 0.5].map(|rate| Unit::of(0.5).rate(rate)), ["24738/min", "30/min"]);
        let short = Times::Short(at(0));
        assert_eq!(short.at(&at(250)), "08:04Z, in 4m10s");
        assert_eq!(short.at(&at(0)), "08:00Z, 0s ago");
        assert_eq!(short.at(&at(-90_000)), "Thu 07:00Z, 1d1h ago");
        assert_eq!(short.at(&at(900_000)), "2027-01-25, in 10d10h");
        assert_eq!(Times::Whole.at(&at(0)), "2027-01-15T08:00:00.000Z");
        for (state, text, first) in [
            (
                State::Stalled(Stall::NoRun(at(-720))),
                "stalled: no run took it since 07:48Z, 12m ago",
                "stalled",
            ),
            (
                State::Waiting(Wait::Hold(at(60), 1)),
                "channel held until 08:01Z, in 1m",
                "channel held until 08:01Z",
            ),
            (
                State::Waiting(Wait::Window(at(90_000), "22:00-06:00 UTC".into())),
                "waiting until Sat 09:00Z, in 1d1h: window 22:00-06:00 UTC",
                "waiting until Sat 09:00Z",
            ),
            (State::Waiting(Wait::Turn), "waiting for its turn", "waiting for its turn"),
            (State::Running(holder()), "running since 07:59Z, 5s ago (web:1)", "running since 07:59Z"),
            (State::Paused(Some("HTTP 401".into())), "paused: HTTP 401", "paused"),
            (State::Expired, "expired: the next run pauses it", "expired"),
        ] {
            assert_eq!((state.text(short).as_str(), head(&state.text(short))), (text, first));
        }
        assert_eq!(
            State::Running(holder()).text(Times::Whole),
            "running since 2027-01-15T07:59:55.000Z (web:1)"
        );
    }
}

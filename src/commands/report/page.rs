//! A report as a page: numbers and times in words, and what page.html is given. What comes from rows is made harmless twice: control
//! characters and marks that turn the direction of text are shown as what they are, and the template escapes everything.

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;
use uuid::Uuid;

use super::charts::{self, VIEW, span};
use super::figures::Figures;
use super::reasons::REASONED;
use super::sums::Sum;
use super::timeline::{SETTLED, Timeline};
use crate::commands::output::plain;
use crate::store::Snapshot;
use crate::target::{TargetFacts, TargetId, TargetStatus};
use crate::task::{Counts, Task, TaskId, TaskStatus, show_time};

/// Reasons, and numbers of attempts, that have a row of their own.
const REASONS_MOST: usize = 25;
const ATTEMPTS_MOST: usize = 20;

/// `waits`: what a pending task waits for.
pub fn render(
    snapshot: &Snapshot,
    waits: Option<&str>,
    figures: &Figures,
    sums: &[Sum],
    installation: Uuid,
) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build()?,
    );
    environment.add_filter("number", grouped);
    // What a template is called decides what it escapes for.
    environment.add_template("page.html", include_str!("page.html")).context("the page's template")?;
    let mut page = Page::of(snapshot, figures, sums, installation)?;
    if let Some(waits) = waits {
        page.task.status = plain(waits).into_owned();
    }
    environment.get_template("page.html")?.render(Serde(page)).context("make the page")
}

#[derive(Serialize)]
struct Page {
    version: &'static str,
    installation: String,
    at: Time,
    task: ShownTask,
    times: Vec<(&'static str, Time)>,
    total: u64,
    open: u64,
    settled: [(&'static str, u64); 3],
    outcomes: Vec<Share>,
    notes: Vec<Note>,
    view: (u32, u32),
    progress: Option<Progress>,
    undated: u64,
    latency: Option<Latencies>,
    untimed: u64,
    unattempted: u64,
    attempts: Vec<Share>,
    reasons: Vec<Reason>,
    reasoned: u64,
    reasons_overflowed: bool,
    unknown: Vec<Unknown>,
    sums: Vec<ShownSum>,
    sums_hold: bool,
}

#[derive(Serialize)]
struct ShownTask {
    id: TaskId,
    name: String,
    channel: String,
    status: String,
    reason: Option<String>,
    holder: Option<String>,
}

#[derive(Serialize)]
struct Time {
    /// For programs.
    exact: String,
    /// For people, in UTC.
    shown: String,
}

/// A part of all targets.
#[derive(Serialize)]
struct Share {
    name: String,
    number: u64,
    share: String,
    /// Of the longest bar, in hundredths.
    length: String,
}

/// What a person can do, and by which command.
#[derive(Serialize)]
struct Note {
    text: String,
    command: Option<String>,
}

#[derive(Serialize)]
struct Progress {
    chart: String,
    rate: String,
    /// "minute".
    width: String,
    from: Time,
    to: Time,
    lasted: String,
    /// The stretch in which most was settled, and how many.
    busiest: Time,
    most: u64,
    rows: Vec<ProgressRow>,
    /// Stretches without a row, since nothing was settled in them.
    idle: usize,
}

#[derive(Serialize)]
struct ProgressRow {
    from: Time,
    settled: [u64; 3],
    so_far: [u64; 3],
}

#[derive(Serialize)]
struct Latencies {
    chart: String,
    number: u64,
    /// Name, milliseconds, in words.
    points: Vec<(&'static str, u64, String)>,
    rows: Vec<Share>,
}

#[derive(Serialize)]
struct Reason {
    /// None: all the others.
    of: Option<&'static str>,
    text: String,
    number: u64,
    share: String,
}

#[derive(Serialize)]
struct Unknown {
    id: TargetId,
    recipient: String,
    attempts: u16,
    began: Option<Time>,
    settled: Option<Time>,
    why: String,
}

#[derive(Serialize)]
struct ShownSum {
    what: &'static str,
    found: u64,
    expected: u64,
    holds: bool,
}

impl Page {
    fn of(snapshot: &Snapshot, figures: &Figures, sums: &[Sum], installation: Uuid) -> Result<Self> {
        let Figures { counts, timeline, latency, untimed, unattempted, .. } = figures;
        let total = counts.total();
        let bars = latency.bars();
        let longest = bars.iter().map(|bar| bar.number).max().unwrap_or(0);
        let percentile = |name, part| latency.percentile(part).map(|ms| (name, ms, lasted(ms)));
        let latencies = match latency.number() {
            0 => None,
            number => Some(Latencies {
                chart: charts::latency(&bars)?,
                number,
                points: [
                    percentile("p50", 0.5),
                    percentile("p95", 0.95),
                    percentile("p99", 0.99),
                    latency.longest().map(|ms| ("longest", ms, lasted(ms))),
                ]
                .into_iter()
                .flatten()
                .collect(),
                rows: bars
                    .iter()
                    .map(|bar| {
                        let name = match bar.to {
                            Some(to) => format!("{} to {}", span(bar.from), span(to)),
                            None => format!("{} or more", span(bar.from)),
                        };
                        Share::of(name, bar.number, number, longest)
                    })
                    .collect(),
            }),
        };
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            installation: installation.to_string(),
            at: Time::of(snapshot.at),
            task: ShownTask::of(&snapshot.task),
            times: times(&snapshot.task),
            total,
            open: total - counts.sent - counts.failed - counts.unknown,
            settled: [(SETTLED[0], counts.sent), (SETTLED[1], counts.failed), (SETTLED[2], counts.unknown)],
            outcomes: outcomes(counts),
            notes: notes(&snapshot.task, counts),
            view: VIEW,
            progress: Progress::of(timeline, snapshot.targets)?,
            undated: timeline.undated,
            latency: latencies,
            untimed: *untimed,
            unattempted: *unattempted,
            attempts: attempts(figures),
            reasons: reasons(figures),
            reasoned: figures.reasons.number(),
            reasons_overflowed: figures.reasons.overflowed(),
            unknown: figures.unknown.iter().map(Unknown::of).collect(),
            sums: sums
                .iter()
                .map(|sum| ShownSum {
                    what: sum.what,
                    found: sum.found,
                    expected: sum.expected,
                    holds: sum.holds(),
                })
                .collect(),
            sums_hold: sums.iter().all(Sum::holds),
        })
    }
}

impl ShownTask {
    fn of(task: &Task) -> Self {
        let text = |text: &String| plain(text).into_owned();
        Self {
            id: task.id,
            name: text(&task.name),
            channel: text(&task.channel),
            status: task.status.word().to_owned(),
            reason: task.status_reason.as_ref().map(text),
            holder: task.lease.as_ref().map(|holder| text(&holder.owner)),
        }
    }
}

impl Time {
    fn of(time: DateTime<Utc>) -> Self {
        Self { exact: show_time(&time), shown: time.format("%Y-%m-%d %H:%M:%S").to_string() }
    }

    /// Milliseconds since 1970.
    fn at(ms: i64) -> Self {
        Self::of(DateTime::from_timestamp_millis(ms).unwrap_or_default())
    }
}

impl Share {
    fn of(name: String, number: u64, total: u64, longest: u64) -> Self {
        let length = format!("{:.2}", number as f64 / longest.max(1) as f64 * 100.0);
        Self { name, number, share: share(number, total), length }
    }
}

impl Progress {
    fn of(timeline: &Timeline, targets: u64) -> Result<Option<Self>> {
        let stretches = timeline.stretches();
        let all = |settled: [u64; 3]| settled.iter().sum::<u64>();
        let Some(busiest) = stretches.iter().rev().max_by_key(|stretch| all(stretch.settled)) else {
            return Ok(None);
        };
        // Not the ends of the stretches: the first of them begins before the task did.
        let (from, to) = timeline.ends.unwrap_or_default();
        let rows: Vec<ProgressRow> = stretches
            .iter()
            .filter(|stretch| all(stretch.settled) > 0)
            .map(|stretch| ProgressRow {
                from: Time::at(stretch.from),
                settled: stretch.settled,
                so_far: stretch.so_far,
            })
            .collect();
        Ok(Some(Self {
            chart: charts::progress(&stretches, timeline.width, targets)?,
            rate: charts::rate(&stretches, timeline.width)?,
            width: timeline.width_in_words(),
            from: Time::at(from),
            to: Time::at(to),
            lasted: lasted((to - from).unsigned_abs()),
            busiest: Time::at(busiest.from),
            most: all(busiest.settled),
            idle: stretches.len() - rows.len(),
            rows,
        }))
    }
}

impl Unknown {
    fn of(target: &TargetFacts) -> Self {
        Self {
            id: target.id,
            recipient: plain(target.recipient.as_deref().unwrap_or_default()).into_owned(),
            attempts: target.attempts,
            began: target.send_at.map(Time::of),
            settled: target.settled_at.map(Time::of),
            why: plain(target.last_error.as_deref().unwrap_or_default()).into_owned(),
        }
    }
}

fn times(task: &Task) -> Vec<(&'static str, Time)> {
    let times = [
        ("created", Some(task.created_at)),
        ("not before", task.scheduled_at),
        ("not after", task.expires_at),
        ("started", task.started_at),
        ("finished", task.finished_at),
    ];
    times.into_iter().filter_map(|(name, time)| Some((name, Time::of(time?)))).collect()
}

/// Every status that there is; those that are settled in any case.
fn outcomes(counts: &Counts) -> Vec<Share> {
    let total = counts.total();
    let numbers = TargetStatus::ALL.map(|status| {
        let number = match status {
            TargetStatus::Pending => counts.pending,
            TargetStatus::Processing => counts.processing,
            TargetStatus::Sending => counts.sending,
            TargetStatus::Sent => counts.sent,
            TargetStatus::Failed => counts.failed,
            TargetStatus::Retry => counts.retry,
            TargetStatus::Unknown => counts.unknown,
        };
        (status.word(), number)
    });
    let (settled, open): (Vec<_>, Vec<_>) = numbers.into_iter().partition(|(word, _)| SETTLED.contains(word));
    let open = open.into_iter().chain([("no status of this version", counts.invalid)]);
    let shown = settled.into_iter().chain(open.filter(|(_, number)| *number > 0));
    shown.map(|(word, number)| Share::of(word.to_owned(), number, total, total)).collect()
}

fn attempts(figures: &Figures) -> Vec<Share> {
    let (total, longest) = (figures.counts.total(), figures.attempts.values().max().copied().unwrap_or(0));
    let share = |name: String, number| Share::of(name, number, total, longest);
    let mut rows: Vec<Share> = figures
        .attempts
        .iter()
        .take(ATTEMPTS_MOST)
        .map(|(attempts, number)| {
            share(if *attempts == 0 { "none".into() } else { attempts.to_string() }, *number)
        })
        .collect();
    let rest: u64 = figures.attempts.values().skip(ATTEMPTS_MOST).sum();
    if rest > 0 {
        rows.push(share("more".into(), rest));
    }
    rows
}

fn reasons(figures: &Figures) -> Vec<Reason> {
    let all = figures.reasons.number();
    let (commonest, rest) = figures.reasons.commonest(REASONS_MOST);
    let mut rows: Vec<Reason> = commonest
        .into_iter()
        .map(|reason| Reason {
            of: Some(REASONED[reason.of]),
            text: plain(&reason.text).into_owned(),
            number: reason.number,
            share: share(reason.number, all),
        })
        .collect();
    if rest > 0 {
        rows.push(Reason { of: None, text: String::new(), number: rest, share: share(rest, all) });
    }
    rows
}

/// What needs a person, but for the unknown targets, which have a section of their own.
fn notes(task: &Task, counts: &Counts) -> Vec<Note> {
    let id = task.id;
    let mut notes = Vec::new();
    let mut note = |text: String, command: Option<String>| notes.push(Note { text, command });
    match task.status {
        TaskStatus::Draft => {
            note("Nothing of it is sent before".into(), Some(format!("batch-send task start {id}")))
        }
        TaskStatus::Paused if task.expired => {
            note("It goes on with".into(), Some(format!("batch-send task resume {id} --until TIME")));
        }
        TaskStatus::Paused => note("It goes on with".into(), Some(format!("batch-send task resume {id}"))),
        TaskStatus::Pending | TaskStatus::Finished | TaskStatus::Cancelled => {}
    }
    if counts.overdue > 0 {
        note(
            format!(
                "Of those sending, {} are of a run that died: unknown at the next run.",
                grouped(counts.overdue)
            ),
            None,
        );
    }
    if counts.failed > 0 && task.status != TaskStatus::Cancelled {
        note(
            "One more attempt for each of those that failed:".into(),
            Some(format!("batch-send retry {id}")),
        );
    }
    if counts.invalid > 0 {
        note("A status that is no word of this version is to be mended in the table.".into(), None);
    }
    notes
}

// ---- numbers in words --------------------------------------------------------------------------------------------

/// 1,234,567
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Never "0.0 %" of something, nor "100.0 %" of what is not all.
fn share(number: u64, total: u64) -> String {
    let tenths = (number as f64 / total.max(1) as f64 * 1000.0).round() as u64;
    match tenths {
        0 if number > 0 => "< 0.1 %".into(),
        1000.. if number < total => "> 99.9 %".into(),
        _ => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

/// 740 ms, 2.5 s, 3 min 20 s, 5 h 1 min, 12 d 3 h.
fn lasted(ms: u64) -> String {
    let (s, m, h) = (ms / 1_000, ms / 60_000, ms / 3_600_000);
    let two = |large: u64, one: &str, small: u64, other: &str| match small {
        0 => format!("{large} {one}"),
        _ => format!("{large} {one} {small} {other}"),
    };
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{} s", ms as f64 / 1_000.0),
        60_000..3_600_000 => two(m, "min", s % 60, "s"),
        3_600_000..172_800_000 => two(h, "h", m % 60, "min"),
        _ => two(h / 24, "d", h % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let all = [0, 999, 1_000, 1_234_567, u64::MAX];
        assert_eq!(all.map(grouped), ["0", "999", "1,000", "1,234,567", "18,446,744,073,709,551,615"]);
    }

    #[test]
    fn a_share_is_neither_nothing_nor_all_unless_it_is() {
        assert_eq!(share(0, 0), "0.0 %");
        assert_eq!(share(1, 1_000_000), "< 0.1 %");
        assert_eq!(share(999_999, 1_000_000), "> 99.9 %");
        assert_eq!(share(7, 7), "100.0 %");
        assert_eq!(share(1, 8), "12.5 %");
    }

    #[test]
    fn a_time_is_told_in_its_two_largest_units() {
        let all = [0, 740, 2_500, 200_000, 60_000, 18_060_000, 1_047_600_000];
        assert_eq!(
            all.map(lasted),
            ["0 ms", "740 ms", "2.5 s", "3 min 20 s", "1 min", "5 h 1 min", "12 d 3 h"]
        );
    }
}

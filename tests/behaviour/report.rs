//! A report is one page of HTML that needs nothing else. What it says is what the rows say; what is in the rows cannot act in it; and
//! a browser shows it whole, on a phone and on a desk, in light and in dark.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::support::browser::{self, DESK, PHONE, unescape};
use crate::support::database::quote;
use crate::support::{Cue, Endpoint, Engine, Sandbox};

on_each_database! {
    the_numbers_are_those_of_the_rows,
    a_run_is_told_as_it_was,
    what_comes_from_rows_cannot_act,
    nothing_is_asked_of_anybody,
    whatever_the_task_there_is_a_page,
    many_reasons_are_grouped_and_none_is_lost,
    numbers_that_contradict_each_other_are_told,
    the_file_is_whole_or_as_it_was,
    bad_input_is_told,
}

/// What the browser shows; it does not matter to it which database the rows are in.
mod in_a_browser {
    #[test]
    #[ignore = "needs Chromium: BATCH_SEND_TEST_CHROMIUM"]
    fn the_page_is_shown_whole() {
        super::the_page_is_shown_whole(crate::support::Sandbox::new(crate::support::Engine::Sqlite));
    }

    #[test]
    #[ignore = "needs Chromium and a server: BATCH_SEND_TEST_CHROMIUM, BATCH_SEND_TEST_MYSQL"]
    fn the_page_is_shown_whole_on_mysql() {
        super::the_page_is_shown_whole(crate::support::Sandbox::new(crate::support::Engine::MySql));
    }
}

mod own_server {
    use crate::support::Sandbox;
    use crate::support::server::Server;

    /// By the server's own counters.
    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn a_report_reads_the_targets_of_its_task_and_not_the_table() {
        let server = Server::start();
        let it = Sandbox::on_server(&server.url());
        for (task, from, to) in [(1, 1, 200_000), (2, 200_001, 205_000)] {
            it.database.draft("web");
            it.database.execute(&format!(
                "INSERT INTO batch_task_target (task_id, recipient, status) \
                 SELECT {task}, CONCAT('person-', seq), IF(seq % 9 = 0, 'unknown', 'sent') FROM seq_{from}_to_{to}"
            ));
        }
        it.database.execute("ANALYZE TABLE batch_task_target");
        let reads = || {
            it.database.number(
                "SELECT SUM(variable_value) FROM information_schema.global_status WHERE variable_name LIKE 'Handler_read%'",
            )
        };
        let before = reads();
        let page = super::report(&it, 2);
        let read = reads() - before;
        assert_eq!(page.number("outcomes", "total", 1), 5_000);
        // Each once to be counted and once to be told.
        assert!(read <= 2 * 5_000 + 2_500, "{read} rows read for a report on 5000");
    }
}

/// 2026-11-30 00:53:20 UTC.
const START: i64 = 1_796_000_000_000;

/// A target as it is put into the table. Times in milliseconds after START.
#[derive(Clone)]
struct Made {
    recipient: String,
    status: &'static str,
    attempts: u64,
    began: Option<i64>,
    settled: Option<i64>,
    error: Option<String>,
}

impl Made {
    fn new(recipient: impl Into<String>, status: &'static str) -> Self {
        Self { recipient: recipient.into(), status, attempts: 0, began: None, settled: None, error: None }
    }

    fn took(self, attempts: u64, began: i64, ms: i64) -> Self {
        Self { attempts, began: Some(began), settled: Some(began + ms), ..self }
    }

    fn why(self, error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..self }
    }
}

/// A time column's value.
fn at(it: &Sandbox, ms: Option<i64>) -> String {
    match (ms.map(|ms| START + ms), it.database.engine) {
        (None, _) => "NULL".into(),
        (Some(ms), Engine::Sqlite) => ms.to_string(),
        (Some(ms), Engine::MySql) => format!("FROM_UNIXTIME({}.{:03})", ms / 1000, ms % 1000),
    }
}

fn text(text: &str) -> String {
    // In MySQL a backslash would escape.
    quote(&text.replace('\\', "\\\\"))
}

/// A task with these targets, in this status.
fn task(it: &Sandbox, name: &str, status: &str, made: &[Made]) -> u64 {
    let task = it.database.draft("web");
    it.database.execute(&format!(
        "UPDATE batch_task SET name = {}, status = '{status}', started_at = {} WHERE id = {task}",
        text(name),
        at(it, Some(0))
    ));
    for some in made.chunks(500) {
        let rows: Vec<String> = some
            .iter()
            .map(|made| {
                format!(
                    "({task}, {}, '{}', {}, {}, {}, {}, {})",
                    text(&made.recipient),
                    made.status,
                    made.attempts,
                    at(it, made.began),
                    at(it, made.settled),
                    at(it, Some(9_000_000).filter(|_| made.status == "retry")),
                    made.error.as_deref().map_or("NULL".into(), text),
                )
            })
            .collect();
        it.database.execute(&format!(
            "INSERT INTO batch_task_target (task_id, recipient, status, attempts, send_at, settled_at, retry_at, last_error) VALUES {}",
            rows.join(", ")
        ));
    }
    task
}

/// 1000 targets of every status, settled within some minutes.
fn mixed() -> Vec<Made> {
    let mut made = Vec::new();
    for n in 0..1000 {
        let (name, began, ms) = (format!("person-{n}@example.com"), n * 300, (n * n) % 1_999);
        made.push(match n % 20 {
            0 => Made::new(name, "failed")
                .took(2, began, ms)
                .why(format!("550 <person-{n}@example.com>: unknown")),
            1 => Made::new(name, "unknown").took(1, began, 10_000).why("no complete answer: timeout"),
            2 if n < 500 => Made::new(name, "unknown").took(1, began, 61_000).why("the run died"),
            2 => Made::new(name, "failed").why("suppressed"),
            3 => Made { attempts: 1, began: Some(began), ..Made::new(name, "retry").why("HTTP 421") },
            4 if n > 900 => Made::new(name, "pending"),
            5 => Made::new(name, "sent").took(3, began, ms),
            _ => Made::new(name, "sent").took(1, began, ms),
        });
    }
    made
}

struct Report {
    html: String,
}

/// The report on a task, which must be all right.
#[track_caller]
fn report(it: &Sandbox, task: u64) -> Report {
    let shown = it.call(&format!("report {task} --html -")).done().exits(0);
    assert_eq!(shown.stderr, "");
    Report { html: shown.stdout }
}

/// The text of a piece of HTML.
fn words(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((before, tag)) = rest.split_once('<') {
        text += before;
        rest = tag.split_once('>').unwrap().1;
    }
    unescape(&(text + rest)).split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Report {
    /// A table, row by row, its head included.
    #[track_caller]
    fn table(&self, id: &str) -> Vec<Vec<String>> {
        let (_, rest) = self
            .html
            .split_once(&format!("<table id=\"{id}\""))
            .unwrap_or_else(|| panic!("no table {id} in {}", self.html));
        let table = rest.split_once("</table>").unwrap().0;
        table
            .split("<tr>")
            .skip(1)
            .map(|row| {
                let row = row.split("</tr>").next().unwrap().replace("</td>", "\0").replace("</th>", "\0");
                row.trim_end_matches('\0').split('\0').map(words).collect()
            })
            .collect()
    }

    /// The number in a column of the row that begins with `name`.
    #[track_caller]
    fn number(&self, table: &str, name: &str, column: usize) -> u64 {
        let rows = self.table(table);
        let row = rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("no {name} in {rows:?}"));
        number(&row[column])
    }

    fn text(&self) -> String {
        words(
            &self
                .html
                .split_once("<body>")
                .unwrap()
                .1
                .replace("</td>", " ")
                .replace("</th>", " ")
                .replace("</dt>", " ")
                .replace("</dd>", " "),
        )
    }

    /// Name and milliseconds.
    fn percentiles(&self) -> Vec<(String, u64)> {
        let list = self.html.split_once("id=\"percentiles\">").unwrap().1.split_once("</dl>").unwrap().0;
        list.split("<dt>")
            .skip(1)
            .map(|entry| {
                let value = entry.split_once("<data value=\"").unwrap().1.split_once('"').unwrap().0;
                (entry.split_once('<').unwrap().0.to_owned(), value.parse().unwrap())
            })
            .collect()
    }
}

fn number(text: &str) -> u64 {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("\"{text}\" is no number"))
}

fn the_numbers_are_those_of_the_rows(it: Sandbox) {
    let made = mixed();
    let id = task(&it, "Spring", "pending", &made);
    // Another's are not counted.
    task(&it, "Autumn", "pending", &mixed()[..70]);
    let report = report(&it, id);
    let how_many = |is: &dyn Fn(&Made) -> bool| made.iter().filter(|made| is(made)).count() as u64;
    for status in ["sent", "failed", "unknown", "pending", "retry"] {
        let counted = it.database.count(id, status);
        assert_eq!(report.number("outcomes", status, 1), counted, "{status}");
        assert_eq!(counted, how_many(&|made| made.status == status));
    }
    assert_eq!(report.number("outcomes", "total", 1), 1000);
    assert_eq!(
        report.table("outcomes")[1][2],
        format!("{}.{} %", how_many(&|m| m.status == "sent") / 10, how_many(&|m| m.status == "sent") % 10)
    );

    // Progress: each stretch against the rows that were settled within it, and what was settled so far.
    let progress = report.table("progress");
    let begins: Vec<i64> = progress[1..].iter().map(|row| begin(&row[0])).collect();
    let width = begins.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
    assert_eq!(
        (width, words(report.html.split_once("id=\"c-progress\">").unwrap().1.split_once('<').unwrap().0)),
        (5_000, "Settled in each 5 seconds".into())
    );
    for (row, from) in progress[1..].iter().zip(&begins) {
        for (column, status) in ["sent", "failed", "unknown"].into_iter().enumerate() {
            let settled = |made: &Made| made.settled.filter(|_| made.status == status).map(|ms| START + ms);
            let within = how_many(&|m| settled(m).is_some_and(|ms| (*from..from + width).contains(&ms)));
            let so_far = how_many(&|m| settled(m).is_some_and(|ms| ms < from + width));
            assert_eq!([number(&row[column + 1]), number(&row[column + 4])], [within, so_far], "{row:?}");
        }
    }
    let undated = how_many(&|made| made.status == "failed" && made.settled.is_none());
    let last = progress.last().unwrap();
    let settled: u64 = last[4..].iter().map(|text| number(text)).sum();
    assert_eq!(settled + undated, it.database.count(id, "sent,failed,unknown"));
    assert!(report.text().contains(&format!("Of {undated} settled targets nobody wrote when")));

    // Latency: sorted by hand.
    let mut took: Vec<u64> = made
        .iter()
        .filter(|made| matches!(made.status, "sent" | "failed") && made.attempts > 0)
        .map(|made| (made.settled.unwrap() - made.began.unwrap()) as u64)
        .collect();
    took.sort_unstable();
    let rank = |part: f64| took[(part * took.len() as f64).ceil() as usize - 1];
    let expected = [("p50", rank(0.5)), ("p95", rank(0.95)), ("p99", rank(0.99)), ("longest", rank(1.0))];
    assert_eq!(report.percentiles(), expected.map(|(name, ms)| (name.to_owned(), ms)));
    let within = |from: u64, to: u64| took.iter().filter(|ms| (from..to).contains(*ms)).count() as u64;
    assert_eq!(report.number("latency", "200 ms to 500 ms", 1), within(200, 500));
    assert_eq!(report.number("latency", "1 s to 2 s", 1), within(1_000, 2_000));
    assert_eq!(report.number("latency", "total", 1), took.len() as u64);

    for (name, attempts) in [("none", 0), ("1", 1), ("2", 2), ("3", 3)] {
        assert_eq!(report.number("attempts", name, 1), how_many(&|made| made.attempts == attempts), "{name}");
    }
    let reasons: Vec<(u64, String, String)> = report.table("reasons")[1..]
        .iter()
        .filter(|row| !row[2].is_empty())
        .map(|row| (number(&row[0]), row[2].clone(), row[3].clone()))
        .collect();
    let reason = |number, status: &str, text: &str| (number, status.to_owned(), text.to_owned());
    assert_eq!(
        reasons,
        [
            reason(50, "failed", "550 <…>: unknown"),
            reason(50, "unknown", "no complete answer: timeout"),
            reason(50, "retry", "HTTP 421"),
            reason(25, "failed", "suppressed"),
            reason(25, "unknown", "the run died"),
        ]
    );

    // Everybody who is unknown, by name, and what settles them.
    let unknown = report.table("unknown");
    let rows = it.database.targets(id);
    let expected: Vec<_> = rows.iter().filter(|row| row.status == "unknown").collect();
    assert_eq!(unknown.len() - 1, expected.len());
    for (shown, row) in unknown[1..].iter().zip(expected) {
        assert_eq!([&shown[0], &shown[1], &shown[5]], [&row.id.to_string(), &row.recipient, &row.error]);
    }
    assert_eq!([&unknown[1][2], &unknown[1][3]], ["2026-11-30 00:53:20", "2026-11-30 00:53:30"]);
    assert!(report.html.contains(&format!("batch-send resolve {id} --target ID --as VERDICT")));
    assert!(report.html.contains(&format!("batch-send retry {id}")));

    assert!(report.table("sums")[1..].iter().all(|row| row[1] == row[2] && row[3] == "adds up"));
    let text = report.text();
    let installation = it.database.text("SELECT id FROM batch_installation");
    for word in ["The sums add up.", "All times are UTC", env!("CARGO_PKG_VERSION"), &installation, "Spring"]
    {
        assert!(text.contains(word), "{word} in {text}");
    }
}

/// The milliseconds of a time that is shown.
fn begin(shown: &str) -> i64 {
    let time = chrono::NaiveDateTime::parse_from_str(shown, "%Y-%m-%d %H:%M:%S").unwrap();
    time.and_utc().timestamp_millis()
}

/// Nothing put into the rows by hand: what a run left there.
fn a_run_is_told_as_it_was(it: Sandbox) {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "rejected" => Cue::Answer(422),
        "closed" => Cue::AcceptThenClose,
        _ => Cue::Accept,
    });
    it.configure("", &endpoint.channel("web", ""));
    let id = it.database.task("web", ["ann", "rejected", "closed", "bob"]);
    it.call("run").done().exits(3);
    assert_eq!(it.database.status(id), "finished");
    let page = report(&it, id);
    let counts = ["sent", "failed", "unknown", "total"].map(|status| page.number("outcomes", status, 1));
    assert_eq!(counts, [2, 1, 1, 4]);
    assert_eq!((page.number("attempts", "1", 1), page.number("latency", "total", 1)), (4, 3));
    let sums = page.table("sums");
    assert_eq!(sums.len(), 1 + 8, "the counts that were frozen included: {sums:?}");
    assert!(sums[1..].iter().all(|row| row[3] == "adds up"), "{sums:?}");
    let target = it.database.target(id, "closed").id;
    assert_eq!(page.table("unknown")[1][..2], [target.to_string(), "closed".into()]);

    it.call(&format!("resolve {id} --target {target} --as failed --yes")).done().exits(0);
    let page = report(&it, id);
    assert_eq!(["sent", "failed", "unknown"].map(|status| page.number("outcomes", status, 1)), [2, 2, 0]);
    assert!(page.text().contains("Unknown targets There are none."));
}

const HOSTILE: &str = "<script>alert(1)</script><img src=x onerror=alert(2)> \"q\" 'a' &amp; </title></style> \u{202e}cba \u{200f}";

fn what_comes_from_rows_cannot_act(it: Sandbox) {
    let name = format!("N {HOSTILE}");
    let made = [
        Made::new(format!("R {HOSTILE}"), "unknown").took(1, 0, 5).why(format!("U {HOSTILE}")),
        Made::new("ann", "failed").took(1, 0, 5).why(format!("F {HOSTILE}")),
    ];
    let id = task(&it, &name, "paused", &made);
    it.database.execute(&format!(
        "UPDATE batch_task SET status_reason = {} WHERE id = {id}",
        text(&format!("P {HOSTILE}"))
    ));
    let page = report(&it, id);
    for raw in ["<script", "<img", "onerror=alert(2)>", "\u{202e}", "\u{200f}", "'a'", "\"q\""] {
        assert!(!page.html.contains(raw), "{raw} in {}", page.html);
    }
    // As many ends of these as the page has by itself.
    assert_eq!(page.html.matches("</style>").count(), 1);
    let seen = HOSTILE.replace('\u{202e}', "\\u{202e}").replace('\u{200f}', "\\u{200f}");
    let whole = unescape(&page.html);
    for what in ["N", "R", "U", "F", "P"] {
        assert!(whole.contains(&format!("{what} {seen}")), "{what} in {whole}");
    }
}

fn nothing_is_asked_of_anybody(it: Sandbox) {
    let id = task(&it, "Spring", "pending", &mixed());
    let html = report(&it, id).html.to_lowercase();
    for outside in [
        "://",
        " src",
        "href",
        "url(",
        "@import",
        "<script",
        "<link",
        "<img",
        "<iframe",
        "<object",
        "<base",
        "javascript",
    ] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("default-src 'none'"));
    assert!(html.starts_with("<!doctype html>\n<html lang=\"en\">"), "{}", &html[..80]);
    assert!(html.contains(&format!("<title>report on task {id}: spring</title>")));
    for (at, _) in html.match_indices("<svg") {
        let drawing = html[at..].split_once("</svg>").unwrap().0;
        let name = drawing.split_once("aria-labelledby=\"").unwrap().1.split_once('"').unwrap().0;
        let told: Vec<&str> = name
            .split(' ')
            .map(|id| drawing.split_once(&format!("id=\"{id}\">")).unwrap().1.split_once('<').unwrap().0)
            .collect();
        assert!(
            drawing.contains("role=\"img\"") && told.len() == 2 && told.iter().all(|told| told.len() > 20),
            "{told:?}"
        );
    }
    assert_eq!(html.matches("<svg").count(), 3);
}

/// Every kind of task that there is, with a name for each.
fn all_kinds(it: &Sandbox) -> Vec<(&'static str, u64)> {
    let sent = |n: i64, began| Made::new(format!("p{n}"), "sent").took(1, began, 40);
    let many = |status: &'static str| -> Vec<Made> {
        (0..1500)
            .map(|n| {
                Made::new(format!("a-person-with-a-long-name-{n}@a-long-domain.example.com"), status)
                    .took(1, n * 100, 30_000)
                    .why("no complete answer: timeout after the whole of the request was sent")
            })
            .collect()
    };
    let mut running: Vec<Made> = (0..40).map(|n| sent(n, n * 1_000)).collect();
    running.push(Made { attempts: 1, began: Some(40_000), ..Made::new("on-its-way", "sending") });
    running.extend((0..2_000_i64).map(|n| Made::new(format!("q{n}"), "pending")));
    let month: Vec<Made> = (0..300).map(|n| sent(n, n * 9_000_000)).collect();
    let kinds = vec![
        ("empty", task(it, "Nothing yet", "draft", &[])),
        ("untouched", task(it, "Not yet", "pending", &[Made::new("ann", "pending")])),
        ("running", task(it, "Right now", "pending", &running)),
        ("one", task(it, "王小明", "finished", &[sent(1, 0)])),
        ("all failed", task(it, "Failed", "finished", &many("failed"))),
        ("all unknown", task(it, &"A very long name without an end ".repeat(5), "paused", &many("unknown"))),
        ("one second", task(it, "Quick", "finished", &(0..50).map(|n| sent(n, n)).collect::<Vec<_>>())),
        ("a month", task(it, "Slow", "cancelled", &month)),
        ("one long word", {
            let word = "W".repeat(180);
            let made = [Made::new(format!("{word}@{word}")[..255].to_owned(), "unknown")
                .took(1, 0, 5)
                .why("E".repeat(400))];
            task(it, &word, "paused", &made)
        }),
        ("mixed", task(it, "Spring", "pending", &mixed())),
    ];
    it.database.execute(&format!(
        "UPDATE batch_task SET lock_token = '{}', lock_owner = 'mail-1:77', lock_at = {}, lock_until = {} WHERE id = {}",
        "0".repeat(36),
        it.database.moment(-5),
        it.database.moment(600),
        kinds[2].1
    ));
    kinds
}

fn whatever_the_task_there_is_a_page(it: Sandbox) {
    for (kind, id) in all_kinds(&it) {
        let page = report(&it, id);
        let text = page.text();
        for section in [
            "Outcomes",
            "Progress and pace",
            "Latency of the channel",
            "Attempts",
            "Reasons",
            "Unknown targets",
            "Proof that the sums add up",
        ] {
            assert!(page.html.contains(&format!(">{section}</h2>")), "{kind}: {section}");
        }
        for wrong in ["NaN", "inf%", "undefined", "Some(", "-1 "] {
            assert!(!page.html.contains(wrong), "{kind}: {wrong}");
        }
        assert!(text.contains("The sums add up."), "{kind}");
        let said: &[&str] = match kind {
            "empty" => &[
                "This task has no targets.",
                "Nothing was settled yet.",
                &format!("batch-send task start {id}"),
            ],
            "untouched" => &["Nothing was settled yet.", "No answer has come"],
            "running" => &["pending, held by mail-1:77", "of a run that died"],
            "one" => &["王小明", "Settled at 2026-11-30 00:53:20"],
            "all failed" => &["failed 1,500 100.0 %", &format!("batch-send retry {id}")],
            "all unknown" => &[
                "The first 100 of 1,500",
                "1,400 more:",
                &format!("batch-send targets {id} --status unknown"),
            ],
            "one second" => &["Settled per second", "from 2026-11-30 00:53:20: 50"],
            "a month" => &["Settled per 12 hours", "cancelled"],
            _ => &[],
        };
        for said in said {
            assert!(text.contains(said), "{kind}: \"{said}\" in {text}");
        }
    }
}

fn many_reasons_are_grouped_and_none_is_lost(it: Sandbox) {
    let word = |n: i64| -> String { n.to_string().bytes().map(|b| char::from(b'a' + b - b'0')).collect() };
    let mut made: Vec<Made> = (0..2_500)
        .map(|n| Made::new(format!("a{n}"), "failed").took(1, 0, 1).why(format!("no {}", word(n))))
        .collect();
    made.extend((0..600).map(|n| {
        Made::new(format!("b{n}"), "failed").took(1, 0, 1).why(format!("no mailbox {}", 100_000 + n))
    }));
    made.push(Made::new("c", "failed").took(1, 0, 1));
    let id = task(&it, "Spring", "pending", &made);
    let page = report(&it, id);
    let reasons = page.table("reasons");
    assert!(reasons.len() <= 30 && page.text().contains("not told apart"), "{reasons:?}");
    let (total, rows) = reasons[1..].split_last().unwrap();
    assert_eq!(number(&total[0]), 3_101);
    assert_eq!(rows.iter().map(|row| number(&row[0])).sum::<u64>(), 3_101);
    assert_eq!(rows.last().unwrap()[3], "other reasons");
}

fn numbers_that_contradict_each_other_are_told(it: Sandbox) {
    let id = task(&it, "Spring", "finished", &mixed());
    it.database.execute(&format!(
        "UPDATE batch_task SET sent_count = 12345, failed_count = {}, unknown_count = {} WHERE id = {id}",
        it.database.count(id, "failed"),
        it.database.count(id, "unknown")
    ));
    let told = it.call(&format!("report {id} --html -")).done().exits(3);
    let told = told.says(&["do not add up", "sent = sent when the task was finished"]);
    assert_eq!(told.stderr.lines().count(), 1, "{told}");
    let page = Report { html: told.stdout };
    assert!(page.text().contains("The sums do not add up"));
    let row = |what: &str| page.table("sums").into_iter().find(|row| row[0].starts_with(what)).unwrap();
    assert_eq!(row("sent =")[2..], ["12,345", "differs"]);
    assert_eq!(row("failed =")[3], "adds up");
}

fn the_file_is_whole_or_as_it_was(it: Sandbox) {
    let id = task(&it, "Spring", "pending", &mixed());
    let folder = it.path("pages");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("page.html");
    let to = |path: &PathBuf| it.call(&format!("report {id} --html")).arg(&path.display().to_string());
    let files = || fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    to(&path).done().quietly();
    let page = fs::read_to_string(&path).unwrap();
    assert!(page.ends_with("</html>\n") && files() == ["page.html"], "{:?}", files());

    // Whoever reads the old page meanwhile has it to its end.
    let old = "old ".repeat(10_000);
    fs::write(&path, &old).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640, "it holds recipients");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let mut reader = fs::File::open(&path).unwrap();
    let link = it.path("link.html");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    to(&link).done().quietly();
    let mut read = String::new();
    reader.seek(SeekFrom::Start(0)).unwrap();
    reader.read_to_string(&mut read).unwrap();
    assert!(read == old, "the old page was written over: {} bytes are left of it", read.len());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "who may read it");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read_to_string(&path).unwrap().ends_with("</html>\n") && files() == ["page.html"]);

    // A full disk is not silence, and no place to write is told before anything is read.
    to(&"/dev/full".into()).done().exits(1).says(&["cannot write /dev/full"]);
    assert!(!fs::metadata("/dev/full").unwrap().is_file());
    to(&folder).done().exits(2).says(&["is a directory"]);
    to(&it.path("nowhere/page.html")).done().exits(2).says(&["no directory", "nowhere"]);
}

fn bad_input_is_told(it: Sandbox) {
    it.call("report 7 --html -").done().exits(2).says(&["there is no task 7", "batch-send task list"]);
    it.call("report 7").done().exits(2).says(&["--html"]);
    it.call("report --html -").done().exits(2).says(&["TASK"]);
    let fresh = Sandbox::empty(it.database.engine);
    fresh.call("report 7 --html -").done().exits(2).says(&["batch-send migrate"]);
}

fn the_page_is_shown_whole(it: Sandbox) {
    let kinds = all_kinds(&it);
    let paths: Vec<PathBuf> = kinds
        .iter()
        .map(|(_, id)| {
            let path = it.path(&format!("{id}.html"));
            it.call(&format!("report {id} --html")).arg(&path.display().to_string()).done().quietly();
            path
        })
        .collect();
    let pages: Vec<_> = paths.iter().map(PathBuf::as_path).collect();
    for (((kind, _), path), frames) in kinds.iter().zip(&paths).zip(browser::look(&pages)) {
        let report = Report { html: fs::read_to_string(path).unwrap() };
        let widths = frames.iter().map(|shown| shown.width as u32).collect::<Vec<_>>();
        assert_eq!(widths, [PHONE, PHONE, DESK, DESK]);
        assert_eq!(frames.iter().map(|shown| shown.dark).collect::<Vec<_>>(), [false, true, false, true]);
        assert_ne!(frames[0].background, frames[1].background, "{kind}");
        for shown in frames {
            let here = format!("{kind}, {} pixels, dark {}", shown.width, shown.dark);
            assert!(shown.scroll_width <= shown.width, "{here}: {} pixels are needed", shown.scroll_width);
            assert_eq!(shown.collisions, Vec::<String>::new(), "{here}");
            assert_eq!(shown.faint, Vec::<String>::new(), "{here}");
            assert_eq!(shown.fetched, Vec::<String>::new(), "{here}");
            assert!(shown.smallest >= 11.0, "{here}: text of {} pixels", shown.smallest);
            assert!(shown.drawings.iter().all(|drawn| *drawn > 0), "{here}: {:?}", shown.drawings);
            let drawings = if matches!(*kind, "empty" | "untouched") { 0 } else { 3 };
            assert_eq!(
                shown.drawings.len(),
                if matches!(*kind, "all unknown" | "one long word") { 2 } else { drawings },
                "{here}"
            );
            assert_eq!(shown.headings[0], 1, "{here}");
            assert!(shown.headings[1..].iter().all(|level| *level == 2), "{here}: {:?}", shown.headings);
            // It shows what it says, which is compared with the rows elsewhere.
            for (id, table) in &shown.tables {
                let shown: Vec<Vec<String>> = table
                    .iter()
                    .map(|row| {
                        row.iter().map(|cell| cell.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
                    })
                    .collect();
                assert_eq!(shown, report.table(id), "{here}: {id}");
            }
            assert!(shown.tables.contains_key("sums"));
        }
    }
}

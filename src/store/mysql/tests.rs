//! What only this adapter has: URLs, lost connections, plans and the number of statements. What every store must do is in
//! conformance.rs. Those that need a server take the database of `BATCH_SEND_TEST_MYSQL`, under a prefix of their own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicI64, Ordering};

use serde_json::value::RawValue;

use super::connection::has_skip_locked;
use super::*;
use crate::message::{TargetPart, TaskPart};
use crate::trouble::Kind;

// ---- URLs --------------------------------------------------------------------------------------------------------

fn settings(url: &str) -> Result<Settings> {
    Settings::new(url, "batch_", ClaimForm::Auto)
}

#[test]
fn a_url_that_cannot_be_is_refused_without_showing_its_password() {
    for url in [
        "postgres://app:s3cret@db/shop",
        "mysql://app:s3cret@/shop",
        "mysql:///shop",
        "mysql://app:s3cret@db",
        "mysql://app:s3cret@db/",
        "mysql://app:s3cret@db:port/shop",
        "mysql://app:s3cret#x@db/shop",
        "mysql://app:s3cret@db/shop?compress=true",
        "mysql://app:s3cret@db/shop?ssl_mode=prefer",
        "mysql://app:s3cret@db/shop?ssl_mode=required&ssl_ca=/ca.pem",
    ] {
        let error = settings(url).err().unwrap_or_else(|| panic!("{url} is taken"));
        assert_eq!(Trouble::kind_of(&error), Some(Kind::Usage), "{url}");
        assert!(!format!("{error:#} {error:?}").contains("s3cret"), "{error:#}");
    }
}

#[test]
fn user_and_password_are_percent_decoded_and_are_no_part_of_the_identity() {
    let settings = settings("mysql://a%40b:p%2F%3A%23w@db.internal:3307/shop").unwrap();
    assert_eq!(settings.opts.get_user(), Some("a@b"));
    assert_eq!(settings.opts.get_pass(), Some("p/:#w"));
    assert_eq!(settings.identity(), "mysql://db.internal:3307/shop batch_");
}

#[test]
fn tls_is_verified_unless_the_database_is_on_this_host_or_the_url_says_otherwise() {
    let tls = |url: &str| {
        let settings = settings(url).unwrap();
        let tls = settings.opts.get_ssl_opts();
        tls.map(|tls| (tls.accept_invalid_certs(), tls.skip_domain_validation()))
    };
    for local in ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"] {
        assert_eq!(tls(&format!("mysql://app@{local}/shop")), None, "{local}");
    }
    assert_eq!(tls("mysql:///shop?socket=/run/mysqld/mysqld.sock"), None);
    assert_eq!(tls("mysql://app@db/shop"), Some((false, false)));
    assert_eq!(tls("mysql://app@db/shop?ssl_mode=disabled"), None);
    assert_eq!(tls("mysql://app@db/shop?ssl_mode=required"), Some((true, true)));
    assert_eq!(tls("mysql://app@db/shop?ssl_mode=verify_ca"), Some((false, true)));
    assert_eq!(tls("mysql://app@localhost/shop?ssl_ca=%2Fca.pem"), Some((false, false)));
    let socket = settings("mysql://app@localhost/shop?socket=%2Frun%2Fa%20b.sock").unwrap();
    assert_eq!(socket.opts.get_socket(), Some("/run/a b.sock"));
    assert_eq!(socket.identity(), "mysql:///run/a b.sock/shop batch_");
}

#[test]
fn locked_rows_are_skipped_where_the_server_can() {
    for (version, can) in [
        ("8.0.0-dmr", false),
        ("8.0.1", true),
        ("9.7.4", true),
        ("5.7.44-log", false),
        ("10.11.19-MariaDB-0+deb12u1", true),
        ("5.5.5-10.6.0-MariaDB", true),
        ("10.5.29-MariaDB", false),
        ("8.0.11-TiDB-v8.5.0", false),
        ("", false),
    ] {
        assert_eq!(has_skip_locked(version), can, "{version}");
    }
}

// ---- a server ----------------------------------------------------------------------------------------------------

/// Tables of its own, and a way to the server that can lose what it answers.
struct Place {
    url: String,
    prefix: String,
    way: Way,
}

impl Place {
    fn new() -> Self {
        #[allow(
            clippy::disallowed_methods,
            reason = "which server to test on is said by the environment alone"
        )]
        let url = std::env::var("BATCH_SEND_TEST_MYSQL").expect("BATCH_SEND_TEST_MYSQL is not set");
        let prefix = format!("m{:08x}_", fastrand::u32(..));
        let direct = Settings::new(&url, &prefix, ClaimForm::Auto).unwrap();
        let way = Way::to(&direct.place);
        let place = Self { url: url.replace(&direct.place, &way.address), prefix, way };
        place.store().migrate(Duration::ZERO).unwrap();
        place
    }

    fn store(&self) -> MySql {
        MySql::connect(&Settings::new(&self.url, &self.prefix, ClaimForm::Auto).unwrap()).unwrap()
    }

    /// A pending task with so many targets.
    fn task(&self, store: &mut MySql, targets: usize) -> TaskId {
        let new = NewTask {
            name: "a task",
            channel: "letters",
            payload: None,
            priority: 0,
            scheduled: None,
            expires: None,
        };
        let task = store.create(&new).unwrap();
        let rows: Vec<NewTarget> =
            (0..targets).map(|n| NewTarget { recipient: format!("r{n}"), params: None }).collect();
        store.add(task, &rows).unwrap();
        let act = Act { who: "ann@desk", what: "start", why: None };
        store.turn(task, &[TaskStatus::Draft], TaskStatus::Pending, None, Expiry::Keep, &act).unwrap();
        task
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.way.lose_after.store(0, Ordering::SeqCst);
        let _ = self.store().drop_tables();
    }
}

/// Between a store and the server.
struct Way {
    address: String,
    /// So many answers still get through, and the next is lost with its connection. 0: all get through. Negative: no connection
    /// lasts.
    lose_after: Arc<AtomicI64>,
}

impl Way {
    fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let lose_after = Arc::new(AtomicI64::new(0));
        let (server, losing) = (server.to_owned(), Arc::clone(&lose_after));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                if losing.load(Ordering::SeqCst) < 0 {
                    continue;
                }
                let server = TcpStream::connect(&server).unwrap();
                let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || carry(from_client, to_server, || true));
                let losing = Arc::clone(&losing);
                std::thread::spawn(move || {
                    carry(server, client, || match losing.load(Ordering::SeqCst) {
                        0 => true,
                        1 => {
                            losing.store(0, Ordering::SeqCst);
                            false
                        }
                        2.. => losing.fetch_sub(1, Ordering::SeqCst) > 0,
                        _ => false,
                    });
                });
            }
        });
        Self { address, lose_after }
    }

    /// The answer after so many others is lost.
    fn lose_answer(&self, after: i64) {
        self.lose_after.store(after + 1, Ordering::SeqCst);
    }

    fn lost(&self) -> bool {
        self.lose_after.load(Ordering::SeqCst) == 0
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, mut pass: impl FnMut() -> bool) {
    let mut buffer = [0; 65536];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if !pass() || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn terms() -> Terms {
    let seconds = Duration::from_secs;
    Terms {
        owner: "host 1".into(),
        lease: seconds(30),
        send: seconds(20),
        margin: seconds(2),
        dedupe: None,
        channel: "letters".into(),
    }
}

fn lease(store: &mut MySql, task: TaskId) -> Lease {
    match store.lease(task, &terms(), false).unwrap() {
        Leasing::Ours(lease) => lease,
        other => panic!("{other:?}"),
    }
}

fn ready(claimed: Vec<Claimed>) -> Vec<Ready> {
    let json = || RawValue::from_string("{}".into()).unwrap();
    let message = |target: &Target| Message {
        key: Uuid::from_u128(target.id.into()),
        attempt: 1,
        task: Arc::new(TaskPart { id: 1, name: String::new(), payload: json() }),
        target: TargetPart { id: target.id, recipient: target.recipient.clone(), params: json() },
        body: None,
    };
    claimed
        .into_iter()
        .map(|claimed| {
            let message = message(claimed.target());
            claimed.ready(message, None)
        })
        .collect()
}

fn sent(task: TaskId, begun: Begun) -> Vec<Answer> {
    begun
        .in_flight
        .into_iter()
        .map(|flight| flight.answer(task, Settlement::Sent { receipt: Some("r-1".into()) }))
        .collect()
}

fn words(store: &mut MySql, text: &str) -> Vec<String> {
    let text = text
        .replace("{target}", &store.tables.target)
        .replace("{task}", &store.tables.task)
        .replace("{audit}", &store.tables.audit);
    store.read("look", &text).unwrap().into_iter().map(|mut row| row.word()).collect()
}

/// A counter of this session.
fn status(store: &mut MySql, name: &str) -> u64 {
    let mut rows = store.read("look", &format!("SHOW SESSION STATUS LIKE '{name}'")).unwrap();
    rows.iter_mut()
        .map(|row| {
            row.word();
            row.number::<u64>().unwrap()
        })
        .sum()
}

// ---- lost connections --------------------------------------------------------------------------------------------

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_begin_whose_answer_is_lost_is_found_out_and_not_counted_twice() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 6);
    let lease = lease(&mut store, task);
    let first = store.claim(&lease, 3).unwrap();
    let begun = store.begin(&lease, ready(first), vec![]).unwrap();
    let answers = sent(task, begun);
    let claimed = store.claim(&lease, 3).unwrap();
    place.way.lose_answer(0);
    let begun = store.begin(&lease, ready(claimed), answers).unwrap();
    assert!(place.way.lost());
    assert_eq!((begun.in_flight.len(), begun.fenced.len()), (3, 0));
    assert_eq!(begun.settled, Settled { written: 3, ..Settled::default() });
    assert_eq!(
        words(&mut store, "SELECT status FROM {target} ORDER BY id"),
        ["sent", "sent", "sent", "sending", "sending", "sending"]
    );
    assert_eq!(words(&mut store, "SELECT DISTINCT attempts FROM {target}"), ["1"]);
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_settle_whose_answer_is_lost_is_written_once() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 2);
    let lease = lease(&mut store, task);
    let claimed = store.claim(&lease, 2).unwrap();
    let mut begun = store.begin(&lease, ready(claimed), vec![]).unwrap().in_flight;
    let returned = Settlement::Returned { reason: "not reached".into() };
    let answers = vec![
        begun.remove(0).answer(task, Settlement::Sent { receipt: None }),
        begun.remove(0).answer(task, returned),
    ];
    place.way.lose_answer(0);
    let settled = store.settle(answers).unwrap();
    assert!(place.way.lost());
    assert_eq!(settled, Settled { written: 2, ..Settled::default() });
    assert_eq!(
        words(&mut store, "SELECT CONCAT(status, attempts) FROM {target} ORDER BY id"),
        ["sent1", "pending0"]
    );
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_claim_whose_answer_is_lost_is_found_by_its_token() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 5);
    let lease = lease(&mut store, task);
    for (skip_locked, lost) in [(true, 0), (true, 1), (false, 0)] {
        store.skip_locked = skip_locked;
        place.way.lose_answer(lost);
        let claimed = store.claim(&lease, 3).unwrap();
        assert!(place.way.lost());
        assert_eq!(claimed.len(), 3);
        assert_eq!(words(&mut store, "SELECT COUNT(*) FROM {target} WHERE status = 'processing'"), ["3"]);
        assert_eq!(store.release(claimed).unwrap(), 3);
    }
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn lease_and_close_survive_a_lost_answer() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 1);
    place.way.lose_answer(0);
    let mut lease = lease(&mut store, task);
    assert!(place.way.lost());
    place.way.lose_answer(0);
    assert_eq!(store.renew(&mut lease).unwrap(), Standing::Ours);
    let claimed = store.claim(&lease, 1).unwrap();
    let begun = store.begin(&lease, ready(claimed), vec![]).unwrap();
    store.settle(sent(task, begun)).unwrap();
    // The last of its texts, whose COMMIT was carried out.
    place.way.lose_answer(4);
    assert_eq!(store.close(lease).unwrap(), Closed::Finished);
    assert!(place.way.lost());
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn what_may_have_begun_comes_back_as_returned_when_the_server_is_gone() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 4);
    let lease = lease(&mut store, task);
    let claimed = store.claim(&lease, 2).unwrap();
    let begun = store.begin(&lease, ready(claimed), vec![]).unwrap();
    let answers = sent(task, begun);
    let claimed = store.claim(&lease, 2).unwrap();
    // This one is carried out, and nobody hears of it.
    place.way.lose_after.store(-1, Ordering::SeqCst);
    let Unwritten { answers, why } = store.begin(&lease, ready(claimed), answers).unwrap_err();
    assert_eq!(Trouble::kind_of(&why), Some(Kind::TryLater), "{why:#}");
    assert!(!format!("{why:#}").contains("root"), "{why:#}");
    let returned = answers.iter().filter(|answer| matches!(answer.settlement, Settlement::Returned { .. }));
    assert_eq!((answers.len(), returned.count()), (4, 2));

    place.way.lose_after.store(0, Ordering::SeqCst);
    assert_eq!(store.settle(answers).unwrap(), Settled { written: 4, ..Settled::default() });
    assert_eq!(
        words(&mut store, "SELECT CONCAT(status, attempts) FROM {target} ORDER BY id"),
        ["sent1", "sent1", "pending0", "pending0"]
    );
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_slot_whose_answer_is_lost_is_nobodys() {
    let place = Place::new();
    let mut store = place.store();
    let (span, horizon) = (Duration::from_secs(600), Duration::from_secs(3_600));
    assert_eq!(store.reserve("letters", span, horizon).unwrap(), Slot::In(Duration::ZERO));
    place.way.lose_answer(0);
    let Slot::In(wait) = store.reserve("letters", span, horizon).unwrap() else { panic!("not taken") };
    assert!(place.way.lost());
    assert!(wait > span, "{wait:?}: the slot that was taken unheard is given again");
    // Beyond the horizon, nothing is taken by the second try either.
    place.way.lose_answer(0);
    let Slot::Later(wait) = store.reserve("letters", span, Duration::ZERO).unwrap() else { panic!("taken") };
    assert!(place.way.lost() && wait > 2 * span && wait <= 3 * span, "{wait:?}");
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn the_suppressed_are_told_apart_when_the_answer_is_lost() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 6);
    let lease = lease(&mut store, task);
    let act = Act { who: "ann@desk", what: "suppress", why: None };
    let rows = ["r1", "r4"].map(|name| Suppression {
        recipient: name.into(),
        channel: None,
        reason: None,
        since: None,
    });
    store.suppress(&rows, &act).unwrap();
    // The answer to each statement in turn: of the begin, of the look at those that were left, of their end.
    let mut lost = 0;
    loop {
        let claimed = store.claim(&lease, 6).unwrap();
        assert_eq!(claimed.len(), 6);
        place.way.lose_answer(lost);
        let begun = store.begin(&lease, ready(claimed), vec![]).unwrap();
        let was_lost = place.way.lost();
        place.way.lose_after.store(0, Ordering::SeqCst);
        assert_eq!((begun.in_flight.len(), begun.suppressed.len(), begun.fenced.len()), (4, 2, 0), "{lost}");
        assert_eq!(
            words(&mut store, "SELECT CONCAT(status, attempts) FROM {target} ORDER BY id"),
            ["sending1", "failed0", "sending1", "sending1", "failed0", "sending1"]
        );
        if !was_lost {
            break;
        }
        lost += 1;
        let target = &store.tables.target;
        let again = format!("UPDATE {target} SET status = 'pending', attempts = 0, last_error = NULL");
        store.write("prepare", &again).unwrap();
    }
    assert!(lost >= 3, "{lost} answers");
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_suppression_ended_without_an_answer_is_counted_and_audited_once() {
    let place = Place::new();
    let mut store = place.store();
    let act = Act { who: "ann@desk", what: "unsuppress", why: None };
    let row = Suppression { recipient: "ann".into(), channel: None, reason: None, since: None };
    store.suppress(&[row], &Act { what: "suppress", ..act.clone() }).unwrap();
    place.way.lose_answer(1);
    assert_eq!(store.unsuppress("ann", None, &act).unwrap(), 1);
    assert!(place.way.lost());
    assert_eq!(store.unsuppress("ann", None, &act).unwrap(), 0);
    assert_eq!(words(&mut store, "SELECT what FROM {audit} ORDER BY id"), ["suppress", "unsuppress"]);
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_migration_that_was_cut_off_is_applied_again() {
    let place = Place::new();
    let mut store = place.store();
    let second = migrations::statements(migrations::MIGRATIONS[1].mysql, &place.prefix);
    for done in 0..=second.len() {
        store.drop_tables().unwrap();
        let first = migrations::statements(migrations::MIGRATIONS[0].mysql, &place.prefix);
        let own = migrations::own_table(false, &place.prefix);
        for statement in std::iter::once(&own).chain(&first).chain(&second[..done]) {
            store.write("prepare", statement).unwrap();
        }
        let text = format!(
            "INSERT INTO {} (version, name, checksum) VALUES (1, 'x', '{}')",
            store.tables.migration,
            migrations::checksum(migrations::MIGRATIONS[0].mysql)
        );
        store.write("prepare", &text).unwrap();
        assert_eq!(store.migrate(Duration::ZERO).unwrap().applied.len(), migrations::MIGRATIONS.len() - 1);
        let hold = Hold { asked: None, first: Duration::from_secs(9), most: Duration::from_secs(9) };
        assert_eq!(store.hold("letters", &hold).unwrap(), hold.first, "after {done} statements");
    }
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_connection_that_was_killed_is_replaced() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 1);
    let id = words(&mut store, "SELECT CONNECTION_ID()").remove(0);
    place.store().write("kill", &format!("KILL {id}")).unwrap();
    let lease = lease(&mut store, task);
    assert_eq!(store.claim(&lease, 9).unwrap().len(), 1);
    assert_ne!(words(&mut store, "SELECT CONNECTION_ID()"), [id]);
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn answers_to_a_row_held_for_longer_than_a_lock_wait_are_given_back_and_written_later() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 2);
    let lease = lease(&mut store, task);
    let claimed = store.claim(&lease, 2).unwrap();
    let begun = store.begin(&lease, ready(claimed), vec![]).unwrap();
    let mut other = place.store();
    let target = other.tables.target.clone();
    other
        .connection
        .run(&format!("{BEGIN}SELECT id FROM {target} ORDER BY id DESC LIMIT 1 FOR UPDATE"))
        .unwrap();
    // At the first lock wait that runs out: they belong in the journal.
    let began = Moment::now();
    let unwritten = store.settle(sent(task, begun)).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    assert_eq!(unwritten.answers.len(), 2);
    other.connection.run("COMMIT").unwrap();
    assert_eq!(store.settle(unwritten.answers).unwrap(), Settled { written: 2, ..Settled::default() });
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_text_that_a_column_refuses_costs_the_text_alone() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 3);
    let lease = lease(&mut store, task);
    let claimed = store.claim(&lease, 2).unwrap();
    let begun = store.begin(&lease, ready(claimed), vec![]).unwrap();
    let mut answers = sent(task, begun);
    answers[0].settlement = Settlement::Sent { receipt: Some("a long receipt".into()) };
    let alter = format!("ALTER TABLE {} MODIFY receipt VARCHAR(5)", store.tables.target);
    store.write("narrow a column", &alter).unwrap();
    let claimed = store.claim(&lease, 1).unwrap();
    let begun = store.begin(&lease, ready(claimed), answers).unwrap();
    assert_eq!(begun.settled, Settled { written: 2, ..Settled::default() });
    assert_eq!(begun.in_flight.len(), 1);
    assert_eq!(
        words(&mut store, "SELECT CONCAT(status, COALESCE(receipt, '-')) FROM {target} ORDER BY id"),
        ["sent-", "sentr-1", "sending"].map(|word| if word == "sending" { "sending-" } else { word })
    );
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn tables_that_are_missing_are_named_with_the_command_that_makes_them() {
    let place = Place::new();
    let mut store = place.store();
    store.drop_tables().unwrap();
    assert_eq!(store.schema().unwrap(), Schema { version: 0, installation: None });
    let error = store.due(&["letters"], &[]).unwrap_err();
    assert_eq!(Trouble::kind_of(&error), Some(Kind::Usage));
    assert!(format!("{error:#}").contains("batch-send migrate"), "{error:#}");
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn access_denied_and_no_such_database_are_usage_and_unreachable_is_for_later() {
    let place = Place::new();
    let kind = |url: &str| {
        let settings = Settings::new(url, "batch_", ClaimForm::Auto).unwrap();
        let error = MySql::connect(&settings).err().unwrap();
        assert!(!format!("{error:#}").contains("s3cret"), "{error:#}");
        Trouble::kind_of(&error)
    };
    let address = &place.way.address;
    assert_eq!(kind(&format!("mysql://nobody:s3cret@{address}/test")), Some(Kind::Usage));
    let (before, _) = place.url.rsplit_once('/').unwrap();
    assert_eq!(kind(&format!("{before}/no_such_database")), Some(Kind::Usage));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(kind(&format!("mysql://root:s3cret@{closed}/test")), Some(Kind::TryLater));
}

// ---- what it costs -----------------------------------------------------------------------------------------------

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_minute_with_nothing_to_do_is_at_most_ten_statements() {
    let place = Place::new();
    let mut store = place.store();
    // One that waits, one that is finished, one that is paused: what an ordinary night has.
    let waiting = place.task(&mut store, 3);
    let held = lease(&mut store, waiting);
    let act = Act { who: "ann@desk", what: "pause", why: None };
    let paused = place.task(&mut store, 1);
    store.turn(paused, &[TaskStatus::Pending], TaskStatus::Paused, None, Expiry::Keep, &act).unwrap();
    let finished = place.task(&mut store, 1);
    let lease = lease(&mut store, finished);
    let claimed = store.claim(&lease, 1).unwrap();
    let begun = store.begin(&lease, ready(claimed), vec![]).unwrap();
    store.settle(sent(finished, begun)).unwrap();
    assert_eq!(store.close(lease).unwrap(), Closed::Finished);

    let mut store = place.store();
    store.schema().unwrap();
    assert_eq!(store.recover(None).unwrap(), Recovered::default());
    assert_eq!(store.strays(&["letters"]).unwrap(), []);
    assert!(store.due(&["letters"], &[]).unwrap().is_none());
    let questions = status(&mut store, "Questions");
    assert!(questions <= 10, "{questions} statements");
    drop(held);
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_begin_that_settles_is_four_statements() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 128);
    let lease = lease(&mut store, task);
    let first = store.claim(&lease, 64).unwrap();
    let begun = store.begin(&lease, ready(first), vec![]).unwrap();
    let answers = sent(task, begun);
    let second = store.claim(&lease, 64).unwrap();
    let before = status(&mut store, "Questions");
    let begun = store.begin(&lease, ready(second), answers).unwrap();
    let asked = status(&mut store, "Questions") - before - 1;
    assert_eq!((begun.in_flight.len(), begun.settled.written), (64, 64));
    assert_eq!(asked, 4);
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_slot_is_one_statement() {
    let place = Place::new();
    let mut store = place.store();
    let (span, horizon) = (Duration::from_secs(600), Duration::from_secs(3_600));
    store.reserve("letters", span, horizon).unwrap();
    let before = status(&mut store, "Questions");
    store.reserve("letters", span, horizon).unwrap();
    assert!(matches!(store.reserve("letters", span, Duration::ZERO).unwrap(), Slot::Later(_)));
    assert_eq!(status(&mut store, "Questions") - before - 1, 2);
}

/// A task of 358,400 targets: the last 1,000 pending, a seventh waiting for a retry of which 100 are due, the others sent.
fn a_large_task(place: &Place, store: &mut MySql) -> TaskId {
    let task = place.task(store, 700);
    let target = store.tables.target.clone();
    let mut write = |text: String| store.write("prepare", &text).unwrap();
    for round in 0..9 {
        write(format!(
            "INSERT INTO {target} (task_id, recipient) SELECT task_id, CONCAT(recipient, '-{round}') FROM {target}"
        ));
    }
    write(format!("UPDATE {target} SET status = 'sent' ORDER BY id LIMIT 357400"));
    write(format!(
        "UPDATE {target} SET status = 'retry', retry_at = NOW(3) + INTERVAL 1 HOUR WHERE status = 'sent' AND id % 7 = 0"
    ));
    write(format!("UPDATE {target} SET retry_at = NOW(3) WHERE status = 'retry' ORDER BY id LIMIT 100"));
    task
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn in_a_large_table_nothing_is_read_or_locked_but_what_is_taken() {
    let place = Place::new();
    let mut store = place.store();
    let task = a_large_task(&place, &mut store);
    let lease = lease(&mut store, task);
    let target = store.tables.target.clone();

    // Another session has every row but those that are to be taken: whoever wants one of them waits in vain.
    let taken = |store: &mut MySql, which: &str| {
        let text =
            format!("SELECT id FROM {target} FORCE INDEX (k_task_status) WHERE task_id = {task} AND {which}");
        ids(store.read("prepare", &text).unwrap()).unwrap()
    };
    let mut other = place.store();
    let mut hold_all_but = |taken: &[u64]| {
        let taken = if taken.is_empty() { "0".into() } else { list(taken) };
        let all = format!(
            "SELECT COUNT(*) FROM {target} FORCE INDEX (PRIMARY) WHERE id NOT IN ({taken}) FOR UPDATE"
        );
        other.connection.run(&format!("ROLLBACK; {BEGIN}{all}")).unwrap();
    };
    let reads = |store: &mut MySql, what: &str, most: u64, work: &mut dyn FnMut(&mut MySql)| {
        let before = status(store, "Handler_read%");
        let own = status(store, "Handler_read%") - before;
        let before = status(store, "Handler_read%");
        work(store);
        let read = (status(store, "Handler_read%") - before).saturating_sub(own);
        assert!(read <= most, "{what}: {read} rows read, {most} allowed");
    };

    hold_all_but(&taken(&mut store, "status = 'retry' AND retry_at <= NOW(3)"));
    reads(&mut store, "promote 100", 420, &mut |store| assert_eq!(store.promote(&lease).unwrap(), 100));
    for skip_locked in [true, false] {
        hold_all_but(&taken(&mut store, "status = 'pending' ORDER BY id LIMIT 100"));
        let mut claimed = Vec::new();
        reads(&mut store, "claim 100", 420, &mut |store| {
            store.skip_locked = skip_locked;
            claimed = store.claim(&lease, 100).unwrap();
        });
        assert_eq!(claimed.len(), 100);
        let dead = claimed.iter().map(|claimed| claimed.target.id).collect::<Vec<_>>();
        let text = format!(
            "UPDATE {target} SET claim_until = NOW(3) - INTERVAL 1 SECOND WHERE id IN ({})",
            list(&dead)
        );
        store.write("prepare", &text).unwrap();
        hold_all_but(&dead);
        reads(&mut store, "recover 100", 420, &mut |store| {
            assert_eq!(store.recover(None).unwrap().pending, 100)
        });
    }
    hold_all_but(&[]);
    reads(&mut store, "recover", 40, &mut |store| {
        assert_eq!(store.recover(None).unwrap(), Recovered::default())
    });
    reads(&mut store, "due", 40, &mut |store| {
        let free = format!("UPDATE {} SET lock_until = NULL", store.tables.task);
        store.write("free the lease", &free).unwrap();
        assert!(store.due(&["letters"], &[]).unwrap().is_some());
    });
    let mut seen = 0;
    reads(&mut store, "a page of targets", 4_100, &mut |store| {
        let stop = store.targets(task, &[], &mut |_| {
            seen += 1;
            if seen == 500 { Err(anyhow!("enough")) } else { Ok(()) }
        });
        assert!(stop.is_err());
    });
}

#[test]
#[ignore = "needs BATCH_SEND_TEST_MYSQL"]
fn a_begin_reads_what_it_begins_however_many_are_suppressed() {
    let place = Place::new();
    let mut store = place.store();
    let task = place.task(&mut store, 5_000);
    let lease = lease(&mut store, task);
    let act = Act { who: "ann@desk", what: "suppress", why: None };
    let entry = |recipient: String, channel: Option<&str>| Suppression {
        recipient,
        channel: channel.map(str::to_owned),
        reason: None,
        since: None,
    };
    let reads = |store: &mut MySql, suppressed: usize, most: u64| {
        let claimed = store.claim(&lease, 100).unwrap();
        let theirs =
            claimed.iter().take(suppressed).map(|claimed| entry(claimed.target.recipient.clone(), None));
        store.suppress(&theirs.collect::<Vec<_>>(), &act).unwrap();
        let before = status(store, "Handler_read%");
        let own = status(store, "Handler_read%") - before;
        let before = status(store, "Handler_read%");
        let begun = store.begin(&lease, ready(claimed), vec![]).unwrap();
        let read = (status(store, "Handler_read%") - before).saturating_sub(own);
        assert_eq!((begun.in_flight.len(), begun.suppressed.len()), (100 - suppressed, suppressed));
        assert!(read <= most, "{read} rows read, {most} allowed");
    };
    // Each by its key, the server's own look at a table that is new to it, and nothing for one that is empty.
    reads(&mut store, 0, 180);

    // 16,384 strangers: half of them of this channel alone. The statistics know nothing of them, then all.
    let strangers: Vec<_> =
        (0..1024).map(|n| entry(format!("r{n}@elsewhere"), (n % 2 == 0).then_some("letters"))).collect();
    store.suppress(&strangers, &act).unwrap();
    let table = store.tables.suppression.clone();
    for round in 0..4 {
        let text = format!(
            "INSERT INTO {table} (recipient, channel) SELECT CONCAT(recipient, '-{round}'), channel FROM {table}"
        );
        store.write("prepare", &text).unwrap();
    }
    for _ in 0..2 {
        reads(&mut store, 0, 220);
        // Those that are left are read again, and ended.
        reads(&mut store, 3, 620);
        store.read("prepare", &format!("ANALYZE TABLE {table}")).unwrap();
    }
}

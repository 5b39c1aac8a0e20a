//! The database fails in the middle of a run: killed, stopped, locked, read-only, its connections cut. Nobody is sent a
//! message twice, and what was answered gets into its row as soon as there is one again.

use std::time::{Duration, Instant};

use crate::support::server::Server;
use crate::support::{Cue, Database, Endpoint, Process, Sandbox, check, finish, wait_until};

on_mysql! {
    connections_killed_at_random,
    row_locks_of_a_third_session_are_waited_out,
    a_table_lock_of_a_third_session_is_waited_out,
}

const RUN: &str = "lease = \"5s\"\nbatch_size = 50";
const KEYS: &str = "timeout = \"1s\"\nconcurrency = 4\nstop_after_unknown = 1000";

fn steady(it: &Sandbox, targets: usize) -> (Endpoint, u64) {
    let endpoint = Endpoint::new(|_| Cue::AcceptAfter(Duration::from_millis(10)));
    it.configure(RUN, &endpoint.channel("web", KEYS));
    let task = it.database.task("web", (0..targets).map(|n| format!("person-{n}")));
    (endpoint, task)
}

/// A run that is well under way.
fn under_way(it: &Sandbox, task: u64) -> Process {
    let run = it.call("run").start();
    wait_until("some messages to be sent", 30, || it.database.count(task, "sent") >= 20);
    run
}

fn connections_killed_at_random(it: Sandbox) {
    let seed = std::env::var("BATCH_SEND_TEST_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    eprintln!("BATCH_SEND_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (endpoint, task) = steady(&it, 2_000);
    let sessions = format!(
        "SELECT id FROM information_schema.processlist WHERE db = '{}' AND id <> CONNECTION_ID()",
        it.database.name()
    );
    let mut killed = 0;
    for _ in 0..6 {
        let mut run = it.call("run").start();
        let end = Instant::now() + Duration::from_secs(5);
        while run.running() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(random.u64(50..600)));
            for row in it.database.rows(&sessions) {
                let id = row[0].clone().unwrap();
                killed += u64::from(it.database.try_execute(&format!("KILL CONNECTION {id}")).is_ok());
            }
        }
        let run = run.wait();
        assert!(matches!(run.code(), Some(0 | 1 | 3 | 75)) && !run.stderr.contains("panicked"), "{run}");
        check(&it, task, &endpoint);
    }
    assert!(killed > 5, "only {killed} connections were killed");
    finish(&it, task, &endpoint, 4 * killed);
    assert!(it.database.count(task, "sent") > 1_000, "{:?}", it.database.counts(task));
}

fn row_locks_of_a_third_session_are_waited_out(it: Sandbox) {
    locked_for_twenty_seconds(&it, |other, task| {
        other.execute("BEGIN");
        other.rows(&format!("SELECT * FROM batch_task_target WHERE task_id = {task} FOR UPDATE"));
    });
}

fn a_table_lock_of_a_third_session_is_waited_out(it: Sandbox) {
    locked_for_twenty_seconds(&it, |other, _| other.execute("LOCK TABLES batch_task_target WRITE"));
}

fn locked_for_twenty_seconds(it: &Sandbox, lock: impl FnOnce(&Database, u64)) {
    let (endpoint, task) = steady(it, 600);
    let mut run = under_way(it, task);
    let other = it.database.another();
    lock(&other, task);
    // Far longer than any lock wait of ours; the run must not have lost an answer meanwhile.
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(200));
        assert!(run.running() || Instant::now() > end - Duration::from_secs(15), "it gave up at once");
    }
    other.execute("COMMIT");
    other.execute("UNLOCK TABLES");
    let run = run.wait();
    assert!(matches!(run.code(), Some(0 | 1 | 3 | 75)), "{run}");
    finish(it, task, &endpoint, 4);
}

/// On a server of their own.
mod own_server {
    use super::*;

    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn a_server_killed_in_mid_run_has_lost_nothing() {
        let mut server = Server::start();
        let it = Sandbox::on_server(&server.url());
        let (endpoint, task) = steady(&it, 1_000);
        for kill in 1..=2 {
            let run = it.call("run").start();
            wait_until("some messages to be sent", 30, || it.database.count(task, "sent") >= 100 * kill);
            server.kill();
            server.again();
            it.database.reconnect();
            check(&it, task, &endpoint);
            let run = run.wait();
            assert!(matches!(run.code(), Some(0 | 1 | 3 | 75)) && !run.stderr.contains("panicked"), "{run}");
            check(&it, task, &endpoint);
        }
        finish(&it, task, &endpoint, 8);
    }

    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn a_server_that_stands_still_is_waited_for() {
        let server = Server::start();
        let it = Sandbox::on_server(&server.url());
        let (endpoint, task) = steady(&it, 1_000);
        let run = under_way(&it, task);
        server.stop();
        // Beyond the read timeout of the driver: the answer to the statement under way comes to nobody.
        std::thread::sleep(Duration::from_secs(25));
        server.go_on();
        let run = run.wait();
        assert!(matches!(run.code(), Some(0 | 1 | 3 | 75)) && !run.stderr.contains("panicked"), "{run}");
        check(&it, task, &endpoint);
        finish(&it, task, &endpoint, 4);
    }

    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn a_server_that_turns_read_only_is_waited_for() {
        let server = Server::start();
        let it = Sandbox::on_server(&server.url());
        let (endpoint, task) = steady(&it, 1_000);
        let name = it.database.name();
        it.database.execute("CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret-word'");
        it.database.execute(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO app@'127.0.0.1'"));
        let url = format!("mysql://app:secret-word@127.0.0.1:{}/{name}", server.port());
        it.configure_as(&url, RUN, &endpoint.channel("web", KEYS));
        let run = under_way(&it, task);
        it.database.execute("SET GLOBAL read_only = 1");
        let requests = endpoint.requests();
        std::thread::sleep(Duration::from_secs(3));
        assert!(endpoint.requests() <= requests + 4, "nothing is begun that cannot be written down");
        it.database.execute("SET GLOBAL read_only = 0");
        let run = run.wait();
        assert!(matches!(run.code(), Some(0 | 1 | 3 | 75)), "{run}");
        assert!(!run.stderr.contains("secret-word"), "{run}");
        finish(&it, task, &endpoint, 4);
    }
}

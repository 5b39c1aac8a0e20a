//! A large table is no slower than a small one: the server's own counters say how many rows a run read.

use crate::support::server::Server;
use crate::support::{Endpoint, Sandbox};

mod own_server {
    use super::*;

    /// 300,000 targets sent, 50,000 wait for a retry, 500 are left to do; 100,000 who are not among them want nothing.
    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn a_run_reads_what_it_sends_and_not_the_table() {
        let server = Server::start();
        let it = Sandbox::on_server(&server.url());
        let endpoint = Endpoint::accepting();
        it.configure("", &endpoint.channel("web", ""));
        let task = it.database.draft("web");
        let fill = |from: u32, to: u32, status: &str, retry: &str| {
            it.database.execute(&format!(
                "INSERT INTO batch_task_target (task_id, recipient, status, retry_at)
                 SELECT {task}, CONCAT('person-', seq), '{status}', {retry} FROM seq_{from}_to_{to}"
            ));
        };
        fill(1, 300_000, "sent", "NULL");
        fill(300_001, 350_000, "retry", "NOW(3) + INTERVAL 1 HOUR");
        fill(350_001, 350_500, "pending", "NULL");
        it.database.execute(
            "INSERT INTO batch_suppression (recipient) SELECT CONCAT('stranger-', seq) FROM seq_1_to_100000",
        );
        it.database.execute("ANALYZE TABLE batch_task_target");
        it.database.execute(&format!("UPDATE batch_task SET status = 'pending' WHERE id = {task}"));

        let reads = || {
            it.database.number(
                "SELECT SUM(variable_value) FROM information_schema.global_status WHERE variable_name LIKE 'Handler_read%'",
            )
        };
        let own = {
            let before = reads();
            reads() - before
        };
        let before = reads();
        it.run();
        let read = reads() - before - own;
        assert_eq!(endpoint.requests(), 500);
        // Each is read for the claim, its begin and its settle: a dozen rows, or two; a walk over the table reads 350,000.
        assert!(read <= 500 * 24 + 2_000, "{read} rows read for 500 messages");

        // A quiet minute on the same table.
        let before = reads();
        it.run();
        let read = reads() - before - own;
        assert!(read <= 2_000, "{read} rows read by a run with nothing to do");

        // What waits and what is in doubt is counted up to a point, and guessed beyond.
        fill(400_001, 500_000, "pending", "NULL");
        fill(500_001, 600_000, "unknown", "NULL");
        it.database.execute(&format!(
            "UPDATE batch_task SET status = 'pending', sent_count = NULL, failed_count = NULL, unknown_count = NULL WHERE id = {task}"
        ));
        it.configure_top(&format!("metrics_file = \"{}\"", it.path("bs.prom").display()));
        let before = reads();
        it.call("run --limit 1").done().exits(0);
        let read = reads() - before - own;
        assert!(read <= 8_000, "{read} rows read by a run with metrics");
        let metrics = std::fs::read_to_string(it.path("bs.prom")).unwrap();
        let backlog = metrics
            .lines()
            .find_map(|line| line.strip_prefix("batch_send_backlog_targets{channel=\"web\"} "));
        let backlog: u64 = backlog.expect("a backlog").parse().unwrap();
        assert!((30_000..300_000).contains(&backlog), "{backlog} guessed, 99,999 there");
    }
}

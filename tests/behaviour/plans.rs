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
    }

    /// Two tasks of 700,000 targets and one of three: about a million rows are counted, the smallest tasks first.
    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn status_of_a_large_table_counts_a_million_rows_and_estimates_the_rest() {
        let server = Server::start();
        let it = Sandbox::on_server(&server.url());
        it.configure("", &Endpoint::accepting().channel("web", ""));
        let small = it.database.task("web", ["ann", "bob", "cy"]);
        let large = [1, 2].map(|_| {
            let task = it.database.draft("web");
            it.database.execute(&format!(
                "INSERT INTO batch_task_target (task_id, recipient, status)
                 SELECT {task}, CONCAT('person-', seq), IF(seq <= 400000, 'sent', IF(seq = 400001, 'unknown', 'pending'))
                 FROM seq_1_to_700000"
            ));
            it.database.execute(&format!("UPDATE batch_task SET status = 'pending' WHERE id = {task}"));
            task
        });
        let counts = |args: &str| {
            let all = it.call(args).done().exits(0).json();
            let tasks = all["tasks"].as_array().unwrap().clone();
            move |id: u64| tasks.iter().find(|task| task["id"] == id).unwrap()["counts"].clone()
        };
        let seen = counts("status --json");
        let estimated: Vec<u64> = large.into_iter().filter(|id| seen(*id)["estimated"] == true).collect();
        assert_eq!(estimated.len(), 1, "{} {}", seen(large[0]), seen(large[1]));
        assert_eq!((&seen(small)["total"], seen(small).get("estimated")), (&3.into(), None));
        for id in large {
            let seen = seen(id);
            for (status, true_count) in
                [("sent", 400_000_u64), ("unknown", 1), ("pending", 299_999), ("failed", 0)]
            {
                let off = seen[status].as_u64().unwrap().abs_diff(true_count);
                assert!(off <= true_count / 10, "{status} in {seen}");
            }
        }
        let table = it.call("status").done().exits(0).stdout;
        assert_eq!(table.lines().filter(|line| line.contains("  ~")).count(), 1, "{table}");
        let exact = counts("status --exact --json");
        assert!(
            large.iter().all(|id| exact(*id)["pending"] == 299_999 && exact(*id).get("estimated").is_none())
        );
        // Of one alone, too.
        let full = it.call(&format!("status {}", estimated[0])).done().exits(0).stdout;
        assert!(full.contains("they are summed up with --exact"), "{full}");
        let full = it.call(&format!("status {} --exact", estimated[0])).done().exits(0).stdout;
        assert!(full.contains("\ntotal       700000\n") && full.contains("\nattempts    0\n"), "{full}");
    }
}

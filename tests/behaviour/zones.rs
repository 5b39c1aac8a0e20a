//! Process, application and server each in a time zone of its own: what is scheduled for an hour from now goes out an
//! hour from now.

use crate::support::server::Server;
use crate::support::{Endpoint, Engine, Sandbox, check};

on_each_database! { the_process_zone_is_of_no_account }

const FAR: [&str; 2] = ["Pacific/Kiritimati", "Pacific/Pago_Pago"];

fn scheduled(it: &Sandbox, seconds: i64) -> u64 {
    let task = it.database.task("web", [format!("at{seconds}")]);
    let moment = it.database.moment(seconds);
    it.database.execute(&format!("UPDATE batch_task SET scheduled_at = {moment} WHERE id = {task}"));
    task
}

fn the_process_zone_is_of_no_account(it: Sandbox) {
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("web", ""));
    if it.database.engine == Engine::MySql {
        it.database.execute("SET time_zone = '-08:00'");
    }
    let later = scheduled(&it, 3_600);
    for zone in FAR {
        it.call("run").env("TZ", zone).done().quietly();
        assert_eq!(it.database.count(later, "pending"), 1, "{zone}");
    }
    let now = scheduled(&it, -1);
    it.call("run").env("TZ", FAR[1]).done().quietly();
    assert_eq!(it.database.count(now, "sent"), 1);
    let shown =
        |zone: &str| it.call(&format!("status {later} --json")).env("TZ", zone).done().exits(0).json();
    assert_eq!(shown(FAR[0])["scheduled_at"], shown(FAR[1])["scheduled_at"]);
    let at =
        it.call("task create --name x --channel web --at 2037-01-31T09:00:00+08:00").env("TZ", FAR[0]).done();
    let task: u64 = at.exits(0).stdout.trim().parse().unwrap();
    let status = it.call(&format!("status {task} --json")).done().exits(0).json();
    assert_eq!(status["scheduled_at"], "2037-01-31T01:00:00.000Z");
}

mod own_server {
    use super::*;

    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn the_servers_zone_is_of_no_account() {
        let server = Server::start();
        let it = Sandbox::on_server(&server.url());
        it.database.execute("SET GLOBAL time_zone = '+09:00'");
        it.database.reconnect();
        let endpoint = Endpoint::accepting();
        it.configure("", &endpoint.channel("web", ""));
        let later = scheduled(&it, 3_600);
        it.call("run").env("TZ", FAR[0]).done().quietly();
        assert_eq!(it.database.count(later, "pending"), 1);
        it.database.execute("SET time_zone = '-08:00'");
        let now = scheduled(&it, -1);
        it.call("run").env("TZ", FAR[1]).done().quietly();
        assert_eq!(it.database.count(now, "sent"), 1);
        check(&it, now, &endpoint);
    }
}

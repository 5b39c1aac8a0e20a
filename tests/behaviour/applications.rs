//! docs/applications.md, to the letter: its programs by their real interpreters and drivers, as the user that it makes, in
//! sessions that are neither in UTC nor strict; and its rights, each of them enough, and none of them idle.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::{Value, json};

use crate::support::document::{block, blocks, document, statements};
use crate::support::process::bare;
use crate::support::server::Server;
use crate::support::{Cue, Database, Endpoint, Engine, Sandbox, check};

on_mysql! {
    what_the_application_must_not_do_is_refused,
    what_the_page_shows_in_sql_is_allowed,
    repeats_are_skipped_with_a_right_more,
    batch_send_does_all_its_work_with_its_rights,
    a_right_that_is_missing_is_named,
    who_purges_needs_no_more_than_its_rights,
    who_makes_the_tables_needs_no_more_than_its_rights,
}

mod own_server {
    #[test]
    #[ignore = "needs PHP with PDO (BATCH_SEND_TEST_PHP), and starts a MariaDB of its own"]
    fn php() {
        super::a_task_from(super::php);
    }

    #[test]
    #[ignore = "needs Node with mysql2 (BATCH_SEND_TEST_NODE, _NODE_MODULES), and starts a MariaDB of its own"]
    fn node() {
        super::a_task_from(super::node);
    }

    #[test]
    #[ignore = "needs Python with PyMySQL (BATCH_SEND_TEST_PYTHON), and starts a MariaDB of its own"]
    fn python() {
        super::a_task_from(super::python);
    }

    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn sql() {
        super::a_task_from(super::sql);
    }

    #[test]
    #[ignore = "starts a MariaDB of its own"]
    fn what_goes_wrong_quietly() {
        super::what_goes_wrong_quietly();
    }
}

const PAGE: &str = "docs/applications.md";

/// In the page's own words.
const AT: &str = "2037-03-01T09:00:00+08:00";
const UNTIL: &str = "2037-03-01T21:00:00+08:00";

/// A block of the page's SQL, on this story's database and for its users.
fn sql_of(it: &Sandbox, info: &str) -> Vec<String> {
    let name = it.database.name();
    let ours = |text: String| {
        text.replace("shop.", &format!("{name}."))
            .replace("shop_web@", &format!("{name}_web@"))
            .replace("batch_send@", &format!("{name}_send@"))
            .replace("batch_migrate@", &format!("{name}_migrate@"))
            .replace("batch_purge@", &format!("{name}_purge@"))
    };
    statements(&block(&document(PAGE), info)).into_iter().map(ours).collect()
}

/// The rights that the block grants, each on its table, one after another.
fn rights(it: &Sandbox, info: &str) -> Vec<(String, String)> {
    let grants = sql_of(it, info).into_iter().filter_map(|statement| {
        let (rights, rest) = statement.strip_prefix("GRANT ")?.split_once(" ON ")?;
        let table = rest.split(' ').next()?.split_once('.')?.1.to_owned();
        Some(rights.split(", ").map(|right| (right.to_owned(), table.clone())).collect::<Vec<_>>())
    });
    grants.flatten().collect()
}

/// Users of the server with the rights that the page gives them; gone with the story.
pub struct Users<'a> {
    it: &'a Sandbox,
    made: Vec<String>,
}

impl<'a> Users<'a> {
    pub fn of(it: &'a Sandbox) -> Self {
        Self { it, made: Vec::new() }
    }

    /// Grants what the block says, and knows the user that it makes.
    pub fn grant(&mut self, info: &str) -> &mut Self {
        for statement in sql_of(self.it, info) {
            self.it.database.execute(&statement);
            if let Some(made) = statement.strip_prefix("CREATE USER ") {
                self.made.push(made.split(' ').next().unwrap().to_owned());
            }
        }
        self
    }

    /// The database, as the user whose name ends so.
    pub fn url(&self, user: &str, password: &str) -> String {
        let (_, place) = self.it.database.url.split_once('@').unwrap();
        let password = password.replace(' ', "%20");
        format!("mysql://{}_{user}:{password}@{place}", self.it.database.name())
    }

    fn web(&self) -> String {
        self.url("web", "secret of the shop")
    }

    fn send(&self) -> String {
        self.url("send", "secret of batch-send")
    }

    fn purge(&self) -> String {
        self.url("purge", "secret of purge")
    }
}

impl Drop for Users<'_> {
    fn drop(&mut self) {
        for user in &self.made {
            // Gone already with its server: as well.
            let _ = self.it.database.try_execute(&format!("DROP USER {user}"));
        }
    }
}

// ---- the programs ---------------------------------------------------------------------------------------------------

/// A server as careless hands leave it: not in UTC and not strict. One for all stories that run at the same time.
fn careless_server() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let server = Arc::new(Server::start());
    let root = Database::on_server(&server.url());
    root.execute("SET GLOBAL time_zone = '+09:00'");
    root.execute("SET GLOBAL sql_mode = ''");
    *shared = Arc::downgrade(&server);
    server
}

/// What a program of the page is told, and where: a directory of its own, the database, the user that the page makes.
struct Shop<'a> {
    it: &'a Sandbox,
    web: ::mysql::Opts,
}

impl Shop<'_> {
    /// The environment that the page tells of, and a process whose own zone is yet another.
    fn environment(&self, command: &mut Command) {
        command
            .env("PATH", std::env::var("PATH").unwrap())
            .env("TZ", "America/New_York")
            .env("DB_HOST", self.web.get_ip_or_hostname().as_ref())
            .env("DB_PORT", self.web.get_tcp_port().to_string())
            .env("DB_USER", self.web.get_user().unwrap())
            .env("DB_PASSWORD", self.web.get_pass().unwrap())
            .env("DB_NAME", self.web.get_db_name().unwrap())
            .current_dir(self.it.path(""));
    }

    /// Its only line, as JSON; not a word on stderr.
    #[track_caller]
    fn answer(&self, mut command: Command) -> Value {
        self.environment(&mut command);
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && stderr.is_empty(), "{command:?}\n{stdout}{stderr}");
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{command:?}: {error}\n{stdout}"))
    }
}

/// A program of the page: how it is asked for something.
trait Program {
    fn ask(&self, shop: &Shop<'_>, verb: &str, args: &[&str]) -> Value;

    /// Makes a task of 2,500 people whose names are numbers, and is interrupted after the first slice. None: cannot.
    fn many(&self, _: &Shop<'_>) -> Option<Value> {
        None
    }
}

/// The blocks of one language, one after another.
struct Script {
    fence: &'static str,
    file: &'static str,
    interpreter: Command,
    /// Instead of its last block: makes many, in two calls.
    many: &'static str,
}

fn given(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable);
    path.unwrap_or_else(|| panic!("{variable} is not set; tests/run brings what is needed")).into()
}

fn php(_: &Sandbox) -> Box<dyn Program> {
    let mut interpreter = bare(given("BATCH_SEND_TEST_PHP"));
    interpreter.args(["-d", "date.timezone=Asia/Kolkata", "-d", "display_errors=stderr"]);
    Box::new(Script {
        fence: "php",
        file: "tasks.php",
        interpreter,
        many: "
            foreach (range(1, 2500) as $n) { $people[(string) (13800000000 + $n)] = []; }
            $task = create_draft('Many', 'welcome', [], null, null);
            add_targets($task, array_slice($people, 0, 1000, true));
            add_targets($task, $people);
            echo json_encode($task);",
    })
}

fn node(it: &Sandbox) -> Box<dyn Program> {
    let modules = it.path("node_modules");
    std::os::unix::fs::symlink(given("BATCH_SEND_TEST_NODE_MODULES"), modules).unwrap();
    Box::new(Script {
        fence: "js",
        file: "tasks.mjs",
        interpreter: bare(given("BATCH_SEND_TEST_NODE")),
        many: "
            const people = Array.from({ length: 2500 }, (_, n) => [String(13800000001 + n), {}]);
            const task = await createDraft('Many', 'welcome', {}, null, null);
            await addTargets(task, new Map(people.slice(0, 1000)));
            await addTargets(task, new Map(people));
            console.log(JSON.stringify(task));
            await db.end();",
    })
}

fn python(_: &Sandbox) -> Box<dyn Program> {
    let mut interpreter = bare(given("BATCH_SEND_TEST_PYTHON"));
    interpreter.args(["-W", "error"]);
    Box::new(Script {
        fence: "python",
        file: "tasks.py",
        interpreter,
        many: "
people = {str(13800000001 + n): {} for n in range(2500)}
task = create_draft('Many', 'welcome', {})
add_targets(task, dict(list(people.items())[:1000]))
add_targets(task, people)
print(json.dumps(task))",
    })
}

impl Script {
    fn run(&self, shop: &Shop<'_>, text: &str, args: &[&str]) -> Value {
        let path = shop.it.write(self.file, text);
        let mut command = bare(self.interpreter.get_program());
        command.args(self.interpreter.get_args()).arg(path).args(args);
        shop.answer(command)
    }
}

impl Program for Script {
    fn ask(&self, shop: &Shop<'_>, verb: &str, args: &[&str]) -> Value {
        let args: Vec<&str> = std::iter::once(verb).chain(args.iter().copied()).collect();
        self.run(shop, &blocks(&document(PAGE), self.fence).join("\n"), &args)
    }

    fn many(&self, shop: &Shop<'_>) -> Option<Value> {
        let mut text = blocks(&document(PAGE), self.fence);
        text.pop();
        Some(self.run(shop, &(text.join("\n") + self.many), &[]))
    }
}

/// The page's SQL, by the server's own client.
struct Client;

fn sql(it: &Sandbox) -> Box<dyn Program> {
    // A table of the application's own, of which one is in the task already and one wants no mail.
    it.database.execute(
        "CREATE TABLE customers (email VARCHAR(191) CHARACTER SET utf8mb4, name TEXT, wants_mail INT)",
    );
    it.database.execute(
        "INSERT INTO customers VALUES ('ann@example.com', 'Ann', 1), ('bob@example.com', 'Bob', 1), ('cy@example.com', 'Cy', 0)",
    );
    it.database.execute(&format!(
        "GRANT SELECT ON {}.customers TO {}_web@'127.0.0.1'",
        it.database.name(),
        it.database.name()
    ));
    Box::new(Client)
}

impl Client {
    /// Lines of cells.
    #[track_caller]
    fn run(&self, shop: &Shop<'_>, text: &str) -> Vec<Vec<String>> {
        let program = ["mariadb", "mysql"].into_iter().find(|name| {
            std::env::split_paths(&std::env::var_os("PATH").unwrap()).any(|dir| dir.join(name).exists())
        });
        let mut command = bare(program.expect("the client mariadb or mysql; tests/run brings it"));
        shop.environment(&mut command);
        let file = shop.it.write("block.sql", text);
        command
            .args(["--no-defaults", "--batch", "--skip-column-names", "--protocol=tcp"])
            .arg(format!("--host={}", shop.web.get_ip_or_hostname()))
            .arg(format!("--port={}", shop.web.get_tcp_port()))
            .arg(format!("--user={}", shop.web.get_user().unwrap()))
            .env("MYSQL_PWD", shop.web.get_pass().unwrap())
            .arg(shop.web.get_db_name().unwrap())
            .stdin(Stdio::from(std::fs::File::open(file).unwrap()));
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{text}\n{stderr}");
        let lines = String::from_utf8_lossy(&output.stdout);
        lines.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }
}

impl Program for Client {
    fn ask(&self, shop: &Shop<'_>, verb: &str, args: &[&str]) -> Value {
        let page = document(PAGE);
        let named = |verb: &str, id: &str, then: &str| {
            let block = block(&page, &format!("sql {verb}"));
            self.run(shop, &format!("SET NAMES utf8mb4;\nSET @task = {id};\n{block}{then}"))
        };
        let cell = |row: &[String], column: usize| match row[column].as_str() {
            "NULL" => Value::Null,
            text => text.into(),
        };
        match verb {
            "create" => {
                let id = self.run(shop, &block(&page, "sql create"))[0][0].clone();
                named("add", &id, "");
                named("add", &id, "");
                id.parse::<u64>().unwrap().into()
            }
            "watch" => {
                let rows = named("watch", args[0], "");
                let counts =
                    rows[1..].iter().map(|row| (row[0].clone(), json!(row[1].parse::<u64>().unwrap())));
                json!({
                    "status": cell(&rows[0], 0), "status_reason": cell(&rows[0], 1),
                    "at": cell(&rows[0], 2), "until": cell(&rows[0], 3),
                    "counts": Value::Object(counts.collect()),
                })
            }
            "unknown" => {
                let mut rows = named("unknown", args[0], "");
                // The tasks of its second statement, which have five columns.
                rows.retain(|row| row.len() == 3);
                let shown = rows.iter().map(|row| json!({ "recipient": row[1], "last_error": row[2] }));
                shown.collect()
            }
            "suppress" => {
                named("suppress", "NULL", "");
                Value::Null
            }
            verb => (named(verb, args[0], "SELECT ROW_COUNT();\n")[0][0] == "1").into(),
        }
    }
}

// ---- what they do ---------------------------------------------------------------------------------------------------

fn number(value: &Value) -> u64 {
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    number.unwrap_or_else(|| panic!("no number: {value}")) as u64
}

/// A task made, watched, paused, resumed, sent and cancelled by the page's program; `batch-send` and the application each with the
/// rights that the page gives them.
fn a_task_from(program: fn(&Sandbox) -> Box<dyn Program>) {
    let server = careless_server();
    let it = Sandbox::on_server(&server.url());
    let mut users = Users::of(&it);
    users.grant("sql grants of batch-send").grant("sql grants of the application");
    let shop = Shop { it: &it, web: ::mysql::Opts::from_url(&users.web()).unwrap() };
    let program = program(&it);
    let ask = |verb: &str, args: &[&str]| program.ask(&shop, verb, args);
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "björn@example.com" => Cue::AcceptThenClose,
        _ => Cue::Accept,
    });
    it.configure_as(&users.send(), "", &endpoint.channel("welcome", ""));

    // Created, and due when it was meant to be, whatever zone anybody is in.
    let task = number(&ask("create", &[AT, UNTIL]));
    let id = task.to_string();
    let shown = it.call(&format!("status {task} --json")).done().exits(0).json();
    assert_eq!(shown["scheduled_at"], "2037-03-01T01:00:00.000Z", "{shown}");
    assert_eq!(shown["expires_at"], "2037-03-01T13:00:00.000Z", "{shown}");
    assert_eq!((&shown["status"], &shown["counts"]["pending"]), (&json!("pending"), &json!(3)), "{shown}");
    it.run();
    assert_eq!(endpoint.requests(), 0);
    let seen = ask("watch", &[&id]);
    assert_eq!((number(&seen["at"]), number(&seen["until"])), (2_119_482_000, 2_119_525_200), "{seen}");
    assert_eq!((&seen["status"], number(&seen["counts"]["pending"])), (&json!("pending"), 3), "{seen}");

    // Paused once, and by nobody resumed who did not pause it.
    let past = it.database.moment(-1);
    it.database.execute(&format!("UPDATE batch_task SET scheduled_at = {past} WHERE id = {task}"));
    assert_eq!((ask("pause", &[&id]), ask("pause", &[&id])), (json!(true), json!(false)));
    assert_eq!(it.database.standing(task), ("paused".into(), "shop: stock ran out".into()));
    let halted = "SELECT ABS(TIMESTAMPDIFF(SECOND, halt_at, NOW(3))) < 60 FROM batch_task WHERE id = ";
    assert_eq!(it.database.text(&format!("{halted}{task}")), "1");
    it.run();
    assert_eq!(endpoint.requests(), 0);
    assert_eq!(ask("resume", &[&id]), json!(true));
    it.database.execute(&format!(
        "UPDATE batch_task SET status = 'paused', status_reason = 'why' WHERE id = {task}"
    ));
    assert_eq!(ask("resume", &[&id]), json!(false));
    it.call(&format!("task resume {task}")).done().exits(0);

    // Sent, but to him who is on the list; one answer is missing.
    ask("suppress", &["Bob@Example.com"]);
    ask("suppress", &["Bob@Example.com"]);
    it.call("run").done().exits(3);
    check(&it, task, &endpoint);
    let accepted = endpoint.accepted();
    let of = |name: &str| &accepted.iter().find(|request| request.recipient == name).unwrap().body;
    assert_eq!(accepted.len(), 2);
    assert_eq!(of("ann@example.com")["params"], json!({ "name": "Ann" }));
    assert_eq!(of("björn@example.com")["params"], json!({ "name": "Björn" }));
    assert_eq!(of("björn@example.com")["payload"], json!({ "text": "spring is here 🌱" }));
    assert_eq!(it.database.target(task, "bob@example.com").error, "suppressed");
    let seen = ask("watch", &[&id]);
    assert_eq!(seen["status"], "finished", "{seen}");
    for status in ["sent", "failed", "unknown"] {
        assert_eq!(number(&seen["counts"][status]), 1, "{status} in {seen}");
    }
    let frozen = "SELECT CONCAT_WS(' ', sent_count, failed_count, unknown_count) FROM batch_task WHERE id = ";
    assert_eq!(it.database.text(&format!("{frozen}{task}")), "1 1 1");
    let unknown = ask("unknown", &[&id]);
    assert_eq!(unknown.as_array().unwrap().len(), 1, "{unknown}");
    assert_eq!(unknown[0]["recipient"], "björn@example.com");
    assert!(!unknown[0]["last_error"].as_str().unwrap().is_empty(), "{unknown}");
    it.call(&format!("resolve {task} --all --as sent --yes")).done().exits(0);
    assert_eq!(ask("unknown", &[&id]), json!([]));

    // Cancelled once, and never sent.
    let task = number(&ask("create", &[AT, UNTIL]));
    let id = task.to_string();
    assert_eq!((ask("cancel", &[&id]), ask("cancel", &[&id])), (json!(true), json!(false)));
    it.database.execute(&format!("UPDATE batch_task SET scheduled_at = {past} WHERE id = {task}"));
    it.run();
    assert_eq!((endpoint.requests(), it.database.count(task, "pending")), (2, 3));
    let ended = format!("SELECT finished_at IS NOT NULL FROM batch_task WHERE id = {task}");
    assert_eq!(it.database.text(&ended), "1");
    assert_eq!(ask("watch", &[&id])["status"], "cancelled");

    // Thousands, and interrupted in between.
    if let Some(task) = program.many(&shop) {
        let task = number(&task);
        assert_eq!(it.database.count(task, "pending"), 2_500);
        for name in ["13800000001", "13800002500"] {
            assert_eq!(it.database.target(task, name).status, "pending");
        }
        let shown = it.call(&format!("status {task} --json")).done().exits(0).json();
        assert_eq!((&shown["status"], &shown["scheduled_at"]), (&json!("draft"), &Value::Null), "{shown}");
    }
}

fn what_goes_wrong_quietly() {
    let server = careless_server();
    let it = Sandbox::on_server(&server.url());
    let mut users = Users::of(&it);
    users.grant("sql grants of the application");
    let endpoint = Endpoint::accepting();
    it.configure("", &endpoint.channel("welcome", ""));
    let draft = it.database.draft("welcome");
    it.database.execute("INSERT INTO batch_task (name, channel) VALUES ('typo', 'welcome')");

    // Strict, each is an error.
    let strict = it.database.another_as(&users.web());
    strict.execute(&sql_of(&it, "sql strict")[0]);
    strict.execute(&format!("SET @task = {draft}"));
    for statement in sql_of(&it, "sql careless") {
        let refused = strict.try_execute(&statement).expect_err(&statement);
        assert!(!refused.contains("denied"), "{statement}: {refused}");
    }

    // Not strict, each is taken, and means what the page says.
    let web = it.database.another_as(&users.web());
    assert_eq!(web.text("SELECT CONCAT(@@time_zone, @@sql_mode)"), "+09:00");
    web.execute(&format!("SET @task = {draft}"));
    for statement in sql_of(&it, "sql careless") {
        web.execute(&statement);
    }
    let id = |name: &str| it.database.number(&format!("SELECT id FROM batch_task WHERE name = '{name}'"));
    let (iso, no_day, for_ever, typo) = (id("iso"), id("no such day"), id("for ever"), id("typo"));
    for task in [iso, no_day, for_ever, typo] {
        it.database.add(task, [format!("person-{task}")]);
        it.database.execute(&format!(
            "UPDATE batch_task SET status = 'pending' WHERE id = {task} AND status = 'draft'"
        ));
    }
    let shown = |task: u64| it.call(&format!("status {task} --json")).done().exits(0).json();
    assert_eq!(shown(iso)["scheduled_at"], "2037-03-01T00:00:00.000Z", "nine o'clock in the session's zone");
    let run = it.call("run").done().exits(3).says(&[&format!("task {for_ever} is paused")]);
    assert!(!run.stderr.contains("panicked"), "{run}");
    assert_eq!(endpoint.ledger().into_keys().collect::<Vec<_>>(), [format!("person-{no_day}")]);
    assert_eq!(it.database.status(for_ever), "paused");
    assert_eq!(shown(typo)["status"], "draft");
    it.run();
    let cut = &it.database.targets(draft)[0].recipient;
    assert_eq!((cut.chars().count(), &cut[250..]), (255, "@exam"));
    check(&it, no_day, &endpoint);
}

// ---- rights ---------------------------------------------------------------------------------------------------------

fn what_the_application_must_not_do_is_refused(it: Sandbox) {
    let mut users = Users::of(&it);
    users.grant("sql grants of the application");
    let task = it.database.task("welcome", ["ann@example.com"]);
    let web = it.database.another_as(&users.web());
    web.execute(&format!("SET @task = {task}"));
    let before = it.database.rows("SELECT * FROM batch_task_target");
    for statement in sql_of(&it, "sql refused") {
        let refused = web.try_execute(&statement).expect_err(&statement);
        assert!(refused.contains("command denied"), "{statement}: {refused}");
    }
    assert_eq!(it.database.rows("SELECT * FROM batch_task_target"), before);
}

fn what_the_page_shows_in_sql_is_allowed(it: Sandbox) {
    let mut users = Users::of(&it);
    users.grant("sql grants of the application");
    sql(&it);
    let web = it.database.another_as(&users.web());
    let shown = [
        "create",
        "add",
        "watch",
        "unknown",
        "pause",
        "resume",
        "cancel",
        "suppress",
        "suppress",
        "unsuppress",
    ];
    for verb in shown {
        for statement in sql_of(&it, &format!("sql {verb}")) {
            web.execute(&statement);
        }
    }
    let task = web.number("SELECT @task");
    assert_eq!((it.database.status(task).as_str(), it.database.count(task, "pending")), ("cancelled", 3));
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_suppression"), 0);
}

fn repeats_are_skipped_with_a_right_more(it: Sandbox) {
    let mut users = Users::of(&it);
    users.grant("sql grants of the application");
    let task = it.database.draft("welcome");
    let web = it.database.another_as(&users.web());
    let insert = |names: &str| {
        web.try_execute(&format!(
            "INSERT INTO batch_task_target (task_id, recipient) VALUES {names} ON DUPLICATE KEY UPDATE task_id = task_id"
        ))
    };
    let names = format!("({task}, 'ann'), ({task}, 'ann  '), ({task}, 'bob')");
    assert!(insert(&names).unwrap_err().contains("command denied"));
    users.grant("sql grants for repeats");
    insert(&names).unwrap();
    insert(&format!("({task}, 'bob'), ({task}, 'Bob')")).unwrap();
    let names: Vec<_> = it.database.targets(task).into_iter().map(|row| row.recipient).collect();
    assert_eq!(names, ["ann", "bob", "Bob"]);
}

/// A channel whose pace is kept, with one who rejects and one who never answers.
fn configured(it: &Sandbox, users: &Users<'_>) -> Endpoint {
    let endpoint = Endpoint::new(|request| match request.recipient.as_str() {
        "rejected" => Cue::Answer(422),
        "closed" => Cue::AcceptThenClose,
        "busy" if request.nth == 1 => Cue::Busy(429, 1),
        _ => Cue::Accept,
    });
    it.configure_as(&users.send(), "", &endpoint.channel("welcome", "rate = \"1000/s\""));
    endpoint
}

fn batch_send_does_all_its_work_with_its_rights(it: Sandbox) {
    let mut users = Users::of(&it);
    users.grant("sql grants of batch-send");
    let endpoint = configured(&it, &users);
    it.call("migrate --check").done().exits(0);
    let csv = "recipient\nann\nrejected\nclosed\nbusy\n";
    let created = it.call("task create --name x --channel welcome --draft --targets -").stdin(csv).done();
    let task: u64 = created.exits(0).stdout.trim().parse().unwrap();
    it.call(&format!("task add {task} -")).stdin("recipient\nann\nbob\n").done().exits(0);
    it.call(&format!("task start {task}")).done().exits(0);
    it.call("run --dry-run").done().exits(0);
    let stray = it.database.task("of another host", ["ann"]);
    it.call("run").done().exits(3);
    it.database.execute(&format!(
        "UPDATE batch_pace SET held_until = NULL, next_at = {}",
        it.database.pace_moment(-1)
    ));
    it.database.execute(&format!(
        "UPDATE batch_task_target SET retry_at = NOW(3) WHERE task_id = {task} AND status = 'retry'"
    ));
    it.run();
    assert_eq!((it.database.count(task, "sent"), it.database.status(task).as_str()), (3, "finished"));
    it.call(&format!("resolve {task} --all --as retry --yes")).done().exits(0);
    it.call(&format!("retry {task} --yes")).done().exits(0);
    for verb in ["pause", "resume", "cancel --yes"] {
        it.call(&format!("task {verb} {task}")).done().exits(0);
    }
    for args in
        ["task list".into(), "status".into(), format!("status {task} --json"), format!("targets {task}")]
    {
        it.call(&args).done().exits(0);
    }
    it.run();
    for args in
        ["suppress add x", "suppress add x", "suppress list", "suppress remove x", "suppress import -"]
    {
        it.call(args).stdin("recipient\nx\n").done().exits(0);
    }
    it.call(&format!("task try {task} --to me")).done().exits(0);
    assert_eq!(it.database.status(stray), "pending");
    check_sent(&endpoint, &["ann", "bob", "busy", "closed", "me"]);
}

/// Each of these, once.
#[track_caller]
fn check_sent(endpoint: &Endpoint, names: &[&str]) {
    let ledger = endpoint.ledger();
    assert_eq!(ledger.keys().collect::<Vec<_>>(), names);
    assert!(ledger.values().all(|times| *times == 1), "{ledger:?}");
}

fn who_purges_needs_no_more_than_its_rights(it: Sandbox) {
    let mut users = Users::of(&it);
    users.grant("sql grants to purge");
    let ended = || {
        let task = it.database.task("welcome", ["ann"]);
        it.database.execute(&format!("UPDATE batch_task_target SET status = 'sent' WHERE task_id = {task}"));
        it.database.execute(&format!(
            "INSERT INTO batch_audit (who, what, task_id) VALUES ('ann', 'resolve', {task})"
        ));
        it.database
            .execute("UPDATE batch_task SET status = 'finished', finished_at = NOW(3) - INTERVAL 2 HOUR");
    };
    it.configure_as(&users.purge(), "", "");
    let name = it.database.name();
    for (right, table) in rights(&it, "sql grants to purge") {
        ended();
        let of = format!("{right} ON {name}.{table}");
        it.database.execute(&format!("REVOKE {of} FROM {name}_purge@'127.0.0.1'"));
        let call = it.call("purge --finished-before 1h --yes").done();
        let named = ["lacks a privilege", "denied", &table].iter().all(|word| call.stderr.contains(*word));
        assert!(call.code() == Some(2) && named, "without {of}: {call}");
        it.database.execute(&format!("GRANT {of} TO {name}_purge@'127.0.0.1'"));
    }
    it.call("purge --finished-before 1h --yes").done().quietly();
    assert_eq!(it.database.number("SELECT COUNT(*) FROM batch_task"), 0);
}

fn a_right_that_is_missing_is_named(it: Sandbox) {
    let mut users = Users::of(&it);
    users.grant("sql grants of batch-send");
    let endpoint = configured(&it, &users);
    let task = it.database.task("welcome", ["ann"]);
    let stray = it.database.task("of another host", ["ann"]);
    it.call("migrate").done().exits(2).says(&["lacks a privilege", "CREATE"]);
    let name = it.database.name();
    it.database.execute("INSERT INTO batch_suppression (recipient) VALUES ('x')");
    let cases = [
        ("SELECT", "task", "status"),
        ("INSERT", "task", "task create --name x --channel welcome"),
        ("UPDATE", "task", "task pause {task}"),
        ("UPDATE", "task", "run"),
        ("SELECT", "task_target", "targets {task}"),
        ("SELECT", "task_target", "run"),
        ("INSERT", "task_target", "task add {task} -"),
        ("UPDATE", "task_target", "run"),
        ("SELECT", "pace", "run"),
        ("INSERT", "pace", "run"),
        ("UPDATE", "pace", "run"),
        ("INSERT", "audit", "task pause {task}"),
        ("INSERT", "audit", "run"),
        ("SELECT", "audit", "run"),
        ("SELECT", "suppression", "run"),
        ("SELECT", "suppression", "suppress list"),
        ("INSERT", "suppression", "suppress add x"),
        ("UPDATE", "suppression", "suppress add x"),
        ("DELETE", "suppression", "suppress remove x"),
        ("SELECT", "installation", "run"),
        ("SELECT", "migration", "run"),
    ];
    let named: BTreeSet<_> =
        cases.iter().map(|(right, table, _)| (*right, format!("batch_{table}"))).collect();
    let granted = rights(&it, "sql grants of batch-send");
    let granted: BTreeSet<_> = granted.iter().map(|(right, table)| (right.as_str(), table.clone())).collect();
    assert_eq!(named, granted, "each right is needed by something");
    for (right, table, args) in cases {
        let of = format!("{right} ON {name}.batch_{table}");
        // The stray is written down once.
        it.database.execute("DELETE FROM batch_audit");
        it.database.execute(&format!("REVOKE {of} FROM {name}_send@'127.0.0.1'"));
        let args = args.replace("{task}", &task.to_string());
        let call = it.call(&args).stdin("recipient\nbob\n").done();
        let named = ["lacks a privilege", "denied", &format!("batch_{table}"), "names the GRANT"];
        let named = named.iter().all(|word| call.stderr.contains(word));
        assert!(call.code() == Some(2) && named, "without {of}: {call}");
        it.database.execute(&format!("GRANT {of} TO {name}_send@'127.0.0.1'"));
        it.database.execute(&format!(
            "UPDATE batch_task SET lock_token = NULL, lock_until = NULL WHERE id IN ({task}, {stray})"
        ));
        it.database.claims_end(task);
    }
    assert_eq!(endpoint.requests(), 0);
    it.run();
    check_sent(&endpoint, &["ann"]);
    check(&it, task, &endpoint);
}

fn who_makes_the_tables_needs_no_more_than_its_rights(_: Sandbox) {
    let it = Sandbox::empty(Engine::MySql);
    let mut users = Users::of(&it);
    users.grant("sql grants to migrate");
    it.configure_as(&users.url("migrate", "secret of migrate"), "", "");
    let name = it.database.name();
    for (right, _) in rights(&it, "sql grants to migrate") {
        it.database.execute(&format!("REVOKE {right} ON {name}.* FROM {name}_migrate@'127.0.0.1'"));
        let call = it.call("migrate").done().exits(2);
        assert!(
            call.stderr.contains("privilege") || call.stderr.contains("denie"),
            "without {right}: {call}"
        );
        it.database.execute(&format!("GRANT {right} ON {name}.* TO {name}_migrate@'127.0.0.1'"));
    }
    it.call("migrate").done().exits(0);
    it.call("migrate --check").done().exits(0);
}

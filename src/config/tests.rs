//! The configuration as its users write it, and each way to get it wrong.

use std::ffi::OsString;

use super::*;
use crate::trouble;
use tempfile::TempDir;
use toml::{Table, Value};

const EXAMPLE: &str = include_str!("../../batch-send.example.toml");
const DATABASE: &str = "database_url = \"sqlite:///t.db\"\n";

fn global() -> Global {
    Global { config: None, database_url: None, verbose: 0, quiet: false, log_format: None }
}

/// A configuration file, and the environment that it is read in.
struct Set {
    dir: TempDir,
    global: Global,
    budget: Option<Duration>,
    env: BTreeMap<String, OsString>,
}

impl Set {
    fn new(text: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("c.toml");
        fs::write(&file, text).unwrap();
        Self { dir, global: Global { config: Some(file), ..global() }, budget: None, env: BTreeMap::new() }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    fn load(&self) -> Result<Config> {
        Config::load_in(&self.global, self.budget, &|name| self.env.get(name).cloned())
    }

    fn log_format(&self) -> Result<LogFormat> {
        log_format_of(&self.global, &|name| self.env.get(name).cloned())
    }

    /// What it is refused with: of the kind usage, one line, its file named as F.
    fn refused(&self) -> String {
        let error = self.load().err().expect("must be refused");
        assert_eq!(trouble::Trouble::kind_of(&error), Some(trouble::Kind::Usage));
        let text = format!("{error:#}").replace(&self.dir.path().join("c.toml").display().to_string(), "F");
        assert!(!text.contains('\n'), "{text}");
        text
    }
}

fn loaded(text: &str) -> Config {
    Set::new(text).load().unwrap_or_else(|error| panic!("{error:#}\n{text}"))
}

fn refused(text: &str) -> String {
    Set::new(&format!("{DATABASE}{text}")).refused()
}

const WECHAT: &str = "[channel.wx]\nkind = \"wechat\"\nappid = \"wx1\"\nsecret = \"s3cret\"\n";
const HTTP: &str = "[channel.welcome]\nkind = \"http\"\nurl = \"https://h/\"\nbody = \"1\"\n";
const SMTP: &str =
    "[channel.m]\nkind = \"smtp\"\nhost = \"h\"\nfrom = \"a@h.example\"\nsubject = \"s\"\ntext = \"t\"\n";

#[test]
fn the_example_says_what_holds_without_it() {
    let example = loaded(EXAMPLE);
    let bare = loaded(&format!(
        "{DATABASE}[channel.welcome]\nkind = \"http\"\nurl = \"https://h/\"\nbody = \"1\"\n\
         [channel.local]\nkind = \"exec\"\ncommand = [\"/usr/local/bin/send\"]\n\
         [channel.spool]\nkind = \"file\"\npath = \"/var/spool/batch-send.jsonl\"\n\
         [channel.mail]\nkind = \"smtp\"\nhost = \"h\"\nfrom = \"a@h.example\"\nsubject = \"s\"\ntext = \"t\"\n"
    ));
    assert_eq!(example.run, bare.run);
    assert_eq!(example.table_prefix, bare.table_prefix);
    assert_eq!((&example.state_dir, &example.lock_dir), (&bare.state_dir, &bare.lock_dir));
    for (one, other) in example.channels.values().zip(bare.channels.values()) {
        assert_eq!(one.name, other.name);
        assert_eq!(
            (one.timeout, one.concurrency, one.ahead, &one.policy),
            (other.timeout, other.concurrency, other.ahead, &other.policy)
        );
        match (&one.kind, &other.kind) {
            (Kind::Http(one), Kind::Http(other)) => assert_eq!(one.method, other.method),
            (Kind::Exec(one), Kind::Exec(other)) => assert_eq!(one, other),
            (Kind::File(one), Kind::File(other)) => assert_eq!(one, other),
            (Kind::Smtp(one), Kind::Smtp(other)) => {
                assert_eq!((one.tls, one.answer_timeout), (other.tls, other.answer_timeout));
            }
            _ => panic!("{}: another kind", one.name),
        }
    }
    assert_eq!(example.channels.len(), 4);
}

#[test]
fn the_example_has_every_key_and_those_commented_out_are_right_too() {
    let all: String = EXAMPLE
        .lines()
        .map(|line| line.strip_prefix('#').filter(|key| !key.starts_with(' ')).unwrap_or(line))
        .flat_map(|line| [line, "\n"])
        .collect();
    let key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let config = Set::new(&all)
        .with("API_TOKEN", "t")
        .with("WEBHOOK_KEY", key)
        .with("WX_SECRET", "s")
        .with("SMTP_PASSWORD", "p")
        .with("PING_ID", "i")
        .load()
        .unwrap();
    let run = Uuid::nil();
    assert!(config.told.ping(run).unwrap().is_some() && config.told.notify(run).unwrap().is_some());
    assert_eq!(config.lock_dir, Path::new("/run/batch-send"));
    for channel in config.channels.values().filter(|channel| channel.template.is_some()) {
        // But for the file of the CA, which is nowhere.
        let error = channel.sender(1).err().map(|error| error.to_string());
        assert!(error.as_ref().is_none_or(|error| error.contains("ca_file /etc/")), "{error:?}");
    }

    // What a file may have is what is asked of it; an empty one in each place tells.
    let table: Table = all.parse().unwrap();
    let keys = |place: &Value| place.as_table().unwrap().keys().cloned().collect::<Vec<_>>();
    let channel = &table["channel"];
    let mut own = keys(&channel["welcome"]);
    own.extend(keys(&channel["local"]));
    own.extend(keys(&channel["spool"]));
    own.extend(keys(&channel["wechat"]));
    let common = refused("[channel.c]\nkind = \"file\"\nxxxxx = 1\n");
    let listed = |text: &str| {
        let (_, list) = text.split_once("known here: ").unwrap();
        list.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    let known = [listed(&common), listed(&refused("[channel.c]\nkind = \"exec\"\nxxxxx = 1\n"))].concat();
    let http = listed(&refused("[channel.c]\nkind = \"http\"\nbody = \"\"\nxxxxx = 1\n"));
    let smtp = listed(&refused("[channel.c]\nkind = \"smtp\"\nxxxxx = 1\n"));
    own.extend(keys(&channel["mail"]));
    let wechat = listed(&refused("[channel.c]\nkind = \"wechat\"\nxxxxx = 1\n"));
    for key in known.iter().chain(&http).chain(&smtp).chain(&wechat) {
        assert!(own.contains(key), "`{key}` is not in the example");
    }
    for key in listed(&refused("[run]\nxxxxx = 1\n")) {
        assert!(keys(&table["run"]).contains(&key), "`{key}` is not in the example");
    }
    for key in listed(&refused("xxxxx = 1\n")) {
        assert!(table.contains_key(&key), "`{key}` is not in the example");
    }
}

#[test]
fn an_unknown_key_is_refused_with_its_nearest_neighbour() {
    let table = [
        (
            "[channel.welcome]\nkind = \"http\"\nconcurency = 3\n",
            "F: unknown key `concurency` in [channel.welcome]: did you mean `concurrency`?",
        ),
        (
            "[channel.welcome]\nkind = \"http\"\nULR = \"https://h/\"\nbody = \"1\"\n",
            "F: unknown key `ULR` in [channel.welcome]: did you mean `url`?",
        ),
        ("[run]\nbatchsize = 3\n", "F: unknown key `batchsize` in [run]: did you mean `batch_size`?"),
        ("table_prefx = \"b_\"\n", "F: unknown key `table_prefx`: did you mean `table_prefix`?"),
        ("[chanel.x]\nkind = \"http\"\n", "F: unknown key `chanel`: did you mean `channel`?"),
        (
            "[channel.c]\nkind = \"file\"\npath = \"/p\"\nbackoff = { frist = \"1s\" }\n",
            "F: unknown key `frist` in [channel.c.backoff]: did you mean `first`?",
        ),
        (
            "[run]\nzzz = 1\n",
            "F: unknown key `zzz` in [run]; known here: budget, lease, turn, lanes, batch_size, claim",
        ),
        (
            "[channel.c]\nkind = \"htp\"\n",
            "F: `kind` in [channel.c] is unknown: \"htp\": did you mean `http`?",
        ),
        (
            "[channel.a.b]\nkind = \"file\"\n[channel.a]\nkind = \"file\"\n",
            "F: [channel.a.b] is a table inside [channel.a]: write the name of a channel with a dot in quotes, as in [channel.\"a.b\"]",
        ),
    ];
    for (text, sentence) in table {
        assert_eq!(refused(text), sentence);
    }
}

#[test]
fn how_a_run_tells_what_it_does_is_checked_and_shows_no_secret() {
    for (text, sentence) in [
        ("log_file = \"b.log\"", "F: `log_file` must be an absolute path, not `b.log`"),
        ("metrics_file = \"b.prom\"", "F: `metrics_file` must be an absolute path, not `b.prom`"),
        (
            "metrics_file = \"/b.txt\"",
            "F: `metrics_file` must end in .prom, not `/b.txt`: node_exporter reads no other files",
        ),
        (
            "ping_url = \"hc.example/s3cret\"",
            "F: `ping_url`: it needs http:// or https:// and a host, as in https://api.example.com/v1/messages: invalid format",
        ),
        (
            "[notify]\ncommand = []",
            "F: [notify]: `command` is empty: name a program, as in [\"/usr/local/bin/send\"]",
        ),
        ("[notify]\nx = 1", "F: unknown key `x` in [notify]; known here: command"),
    ] {
        assert_eq!(refused(text), sentence);
    }
    // A person who looks at `status` need not have cron's secrets.
    let config =
        loaded(&format!("{DATABASE}ping_url = \"${{PING}}\"\n[notify]\ncommand = [\"/t\", \"${{KEY}}\"]"));
    for (refused, name) in [
        (config.told.ping(Uuid::nil()).err(), "the environment has no `PING`, which `ping_url` asks for"),
        (config.told.notify(Uuid::nil()).err(), "the environment has no `KEY`, which `command` asks for"),
    ] {
        let error = refused.expect("must be refused");
        assert_eq!(trouble::Trouble::kind_of(&error), Some(trouble::Kind::Usage));
        assert!(error.to_string().contains(name), "{error:#}");
    }
    let set = Set::new(&format!("{DATABASE}ping_url = \"${{PING}}\"")).with("PING", "s3cret");
    assert!(!set.refused().contains("s3cret"));
}

#[test]
fn each_mistake_is_one_sentence_with_file_table_and_key() {
    let channel = |line: &str| format!("{HTTP}{line}\n");
    let run = |line: &str| format!("[run]\n{line}\n");
    let exec = |line: &str| format!("[channel.x]\nkind = \"exec\"\n{line}\n");
    let smtp = |line: &str| format!("{SMTP}{line}\n");
    let file = |line: &str| format!("[channel.x]\nkind = \"file\"\n{line}\n");
    let wechat = |line: &str| format!("{WECHAT}body = \"{{}}\"\nmessage = \"template\"\n{line}\n");
    let table = [
        (channel("timeout = \"11m\""), "`timeout` in [channel.welcome] must be 1ms to 10m, not 11m"),
        (channel("timeout = \"0s\""), "`timeout` in [channel.welcome] must be 1ms to 10m, not 0ms"),
        (
            channel("timeout = 10"),
            "`timeout` in [channel.welcome] must be a duration such as \"50s\", not of type integer",
        ),
        (
            channel("timeout = \"10\""),
            "`timeout` in [channel.welcome]: \"10\" is no duration: write an integer and ms, s, m, h or d, as in 50s",
        ),
        (channel("concurrency = 257"), "`concurrency` in [channel.welcome] must be 1 to 256, not 257"),
        (
            channel("concurrency = \"8\""),
            "`concurrency` in [channel.welcome] must be an integer, not of type string",
        ),
        (channel("ahead = -1"), "`ahead` in [channel.welcome] must be 0 to 10000, not -1"),
        (channel("max_attempts = 0"), "`max_attempts` in [channel.welcome] must be 1 to 100, not 0"),
        (channel("max_attempts = 101"), "`max_attempts` in [channel.welcome] must be 1 to 100, not 101"),
        (
            channel("stop_after_unknown = 0"),
            "`stop_after_unknown` in [channel.welcome] must be 1 to 65535, not 0",
        ),
        (
            channel("backoff = { first = \"2h\" }"),
            "`first` in [channel.welcome.backoff] (2h) must not be longer than `most` (1h)",
        ),
        (channel("backoff = \"30s\""), "`backoff` in [channel.welcome] must be a table, not of type string"),
        (
            channel("rate = \"100/m\""),
            "`rate` in [channel.welcome] must be a number of 1 to 1000000 and /s, /min or /h, as in \"100/s\", not \"100/m\"",
        ),
        (channel("rate = 100"), "`rate` in [channel.welcome] must be a string, not of type integer"),
        (channel("burst = 5"), "`burst` in [channel.welcome] says nothing without `rate`"),
        (
            channel("rate = \"1/s\"\nburst = 0"),
            "`burst` in [channel.welcome] must be 1 to 10000, not 0",
        ),
        (
            channel("window = \"08:00-22:00\""),
            "`window` in [channel.welcome] needs a `time_zone` beside it, as in \"Asia/Shanghai\"",
        ),
        (channel("time_zone = \"UTC\""), "`time_zone` in [channel.welcome] says nothing without `window`"),
        (
            channel("window = \"8-22\"\ntime_zone = \"UTC\""),
            "[channel.welcome]: `window` must be as in \"08:00-22:00\", not \"8-22\"",
        ),
        (
            channel("window = \"08:00-22:00\"\ntime_zone = \"Asia/Shangai\""),
            "[channel.welcome]: `time_zone` \"Asia/Shangai\" is no IANA name: did you mean `Asia/Shanghai`?",
        ),
        (
            channel("idempotent_for = \"40s\""),
            "`idempotent_for` in [channel.welcome] (40s) must be longer than one exchange and the first wait of `backoff` together (40s): \
             a message in doubt could never be sent again in time",
        ),
        (
            "[channel.c]\nkind = \"file\"\npath = \"/x\"\nidempotent_for = \"24h\"\n".into(),
            "`idempotent_for` in [channel.c]: nothing behind this channel drops a message whose key it has seen; take it out",
        ),
        (
            "[channel.c]\nkind = \"http\"\nurl = \"https://h/\"\nbody = \"{{ attempt }}\"\nidempotent_for = \"24h\"\n".into(),
            "`body` in [channel.c] cannot be read: `attempt` would make a message differ each time, and with `idempotent_for` each must be the same",
        ),
        (
            channel("redirect_to = \"me\""),
            "`redirect_to` in [channel.welcome] stands in for `target.recipient`, which `body` in [channel.welcome] does not have: \
             messages would go to the real recipients",
        ),
        (
            channel("redirect_to = \" \""),
            "`redirect_to` in [channel.welcome] is empty: name the one recipient of everything, or take it out",
        ),
        (channel("ca_file = \"ca.pem\""), "`ca_file` in [channel.welcome] must be an absolute path"),
        (
            "[channel.c]\nkind = \"http\"\nurl = \"https://h/\"\n".into(),
            "`body` in [channel.c] is missing: a channel of kind http needs one, as in '{\"to\": {{ target.recipient }}}'",
        ),
        ("[channel.c]\nkind = \"http\"\nbody = \"1\"\n".into(), "`url` in [channel.c] is missing: a channel of this kind cannot do without it, batch-send.example.toml shows one"),
        (
            "[channel.c]\nurl = \"https://h/\"\n".into(),
            "`kind` in [channel.c] is missing: one of exec, file, http, smtp, wechat",
        ),
        (
            smtp("body = \"1\""),
            "`body` in [channel.m] is not for a mail: its templates are `subject`, `text`, `html` and the like; take it out",
        ),
        (
            smtp("idempotent_for = \"24h\""),
            "`idempotent_for` in [channel.m]: nothing behind this channel drops a message whose key it has seen; take it out",
        ),
        (smtp("tls = \"ssl\""), "`tls` in [channel.m]: unknown variant `ssl`, expected one of `none`, `starttls`, `implicit`"),
        (smtp("answer_timeout = \"11m\""), "[channel.m]: `answer_timeout` must be 1ms to 10m"),
        (smtp("password = \"secret\""), "[channel.m]: `user` and `password` go together: give both, or neither"),
        (
            smtp("html = \"{{ name }}\""),
            "[channel.m]: unknown variable `name` in the html: it may use task.id, task.name, task.payload, target.id, target.recipient, target.params, key, attempt",
        ),
        (smtp("headers = { To = \"x\" }"), "[channel.m]: headers: To is not yours to set; leave it out"),
        ("[channel.m]\nkind = \"smtp\"\nhost = \"h\"\nfrom = \"a@h.example\"\n".into(), "`subject` in [channel.m] is missing: a channel of this kind cannot do without it, batch-send.example.toml shows one"),
        (
            "[channel.\"a b\"]\nkind = \"file\"\n".into(),
            "`a b` is no name for a channel: it takes 1-64 ASCII letters, digits, `_`, `-` and `.`",
        ),
        ("channel = 1\n".into(), "`channel` must be a table, not of type integer"),
        (
            exec("command = []"),
            "[channel.x]: `command` is empty: name a program, as in [\"/usr/local/bin/send\"]",
        ),
        (
            exec("command = [\"send\"]"),
            "[channel.x]: the program of `command` must be an absolute path, not `send`: cron's PATH is not yours",
        ),
        (
            exec("command = \"/bin/send secret\""),
            "`command` in [channel.x]: invalid type: a string, expected a sequence",
        ),
        (
            exec("command = [\"/s\"]\nexit_codes = { rejected = [75] }"),
            "`exit_codes` in [channel.x]: exit code 75 is both deferred and rejected: each code has one meaning, and a class that is not given keeps its default",
        ),
        (
            exec("command = [\"/s\"]\nexit_codes = { rejected = [\"9-3\"] }"),
            "`exit_codes` in [channel.x]: `9-3` is no range of exit codes: write it as in \"65-69\"",
        ),
        (
            file("path = \"spool\""),
            "[channel.x]: `path` must be absolute, not `spool`: cron's working directory is not yours",
        ),
        (
            WECHAT.into(),
            "`message` in [channel.wx] is missing: a channel of this kind cannot do without it, batch-send.example.toml shows one",
        ),
        (
            format!("{WECHAT}message = \"mass\"\n"),
            "`message` in [channel.wx]: unknown variant `mass`, expected `template` or `subscribe`",
        ),
        (
            format!("{WECHAT}message = \"template\"\n"),
            "[channel.wx]: `body` is missing: it is the message, as in '{\"template_id\": \"...\", \"data\": {\"thing1\": {\"value\": {{ target.params.name }}}}}'",
        ),
        (
            format!("{WECHAT}message = \"template\"\nbody = '{{\"touser\": 1}}'\n"),
            "[channel.wx]: `body` has \"touser\": that is put into each message by itself, take it out",
        ),
        (
            format!("{WECHAT}message = \"template\"\nbody = '{{{{ attempt }}}}'\n"),
            "`body` in [channel.wx] cannot be read: `attempt` would make a message differ each time, and with `idempotent_for` each must be the same",
        ),
        (
            format!("{WECHAT}message = \"subscribe\"\nbody = \"{{}}\"\nidempotent_for = \"5m\"\n"),
            "`idempotent_for` in [channel.wx]: nothing behind this channel drops a message whose key it has seen; take it out",
        ),
        (
            wechat("api = \"http://api.weixin.qq.com\""),
            "[channel.wx]: `api` must begin with https://: the secret and the messages go there",
        ),
        (
            wechat("idempotent_for = \"40s\""),
            "`idempotent_for` in [channel.wx] (40s) must be longer than one exchange and the first wait of `backoff` together (40s): a message \
             in doubt could never be sent again in time",
        ),
        (wechat("ca_file = \"ca.pem\""), "[channel.wx]: `ca_file` must be an absolute path"),
        (run("budget = \"500ms\""), "`budget` in [run] must be 1s to 1d, not 500ms"),
        (run("lease = \"2s\""), "`lease` in [run] must be 3s to 1d, not 2s"),
        (run("lanes = 65"), "`lanes` in [run] must be 1 to 64, not 65"),
        (run("batch_size = 5001"), "`batch_size` in [run] must be 1 to 5000, not 5001"),
        (
            run("claim = \"skip_locked\""),
            "`claim` in [run] must be auto, skip-locked or update, not `skip_locked`",
        ),
        (
            format!("[run]\nlanes = 5\n{HTTP}concurrency = 205\n"),
            "5 `lanes` of [run] times 205 `concurrency` in [channel.welcome] are more than 1024 sends at once: lower one of them",
        ),
        (
            "table_prefix = \"\"\n".into(),
            "`table_prefix` must be 1-32 letters, digits or underscores, not ``",
        ),
        (
            "table_prefix = \"a-b\"\n".into(),
            "`table_prefix` must be 1-32 letters, digits or underscores, not `a-b`",
        ),
        ("state_dir = \"var\"\n".into(), "`state_dir` must be an absolute path, not `var`"),
        ("table_prefix = 1\n".into(), "`table_prefix` must be a string, not of type integer"),
    ];
    for (text, sentence) in table {
        assert_eq!(refused(&text), format!("F: {sentence}"));
    }
    let template =
        refused("[channel.w]\nkind = \"http\"\nurl = \"https://h/\"\nbody = '''\n{\n\"a\": {{ key }\n}'''\n");
    assert!(template.starts_with("F: `body` in [channel.w] cannot be read: "), "{template}");
    assert!(template.contains("in line 2 of the body"), "{template}");
}

#[test]
fn limits_themselves_are_allowed() {
    let config = loaded(&format!(
        "{DATABASE}[run]\nbudget = \"24h\"\nlease = \"3s\"\nlanes = 64\nbatch_size = 5000\nclaim = \"update\"\n\
         {HTTP}timeout = \"10m\"\nconcurrency = 16\nahead = 10000\nmax_attempts = 100\n\
         backoff = {{ first = \"0s\", most = \"0s\" }}\n"
    ));
    assert_eq!(config.run.claim, ClaimForm::Update);
    assert_eq!((config.run.lanes, config.channels["welcome"].concurrency), (64, 16));
    let long = "c".repeat(64);
    assert!(
        loaded(&format!("{DATABASE}[channel.{long}]\nkind = \"file\"\npath = \"/p\"\n"))
            .channels
            .contains_key(&long)
    );
    assert!(refused(&format!("[channel.{long}c]\nkind = \"file\"\npath = \"/p\"\n")).contains("is no name"));
}

#[test]
fn what_the_environment_gives_to_a_channel_is_its_secret() {
    let channel = "[channel.tg]\nkind = \"http\"\nurl = \"https://h/bot${TOKEN}/send\"\nbody = \"1\"\n";
    let config = Set::new(&format!("{DATABASE}{HTTP}{channel}")).with("TOKEN", "12:s3cret").load().unwrap();
    assert_eq!(config.channels["tg"].secrets, ["12:s3cret"]);
    assert!(config.channels["welcome"].secrets.is_empty());
}

#[test]
fn a_flag_goes_before_the_environment_and_that_before_the_file() {
    let mut set = Set::new(&format!("{DATABASE}[run]\nbudget = \"10s\"\n"));
    let seen = |set: &Set| {
        let config = set.load().unwrap();
        (config.database_url, config.run.budget, set.log_format().unwrap())
    };
    assert_eq!(seen(&set), ("sqlite:///t.db".into(), 10 * SECOND, LogFormat::Text));
    set = set
        .with("BATCH_SEND_DATABASE_URL", "mysql://e:$${X}@h/d")
        .with("BATCH_SEND_BUDGET", "20s")
        .with("BATCH_SEND_LOG_FORMAT", "json");
    assert_eq!(seen(&set), ("mysql://e:$${X}@h/d".into(), 20 * SECOND, LogFormat::Json));
    set.global.database_url = Some("mysql://f/d".into());
    set.global.log_format = Some(LogFormat::Text);
    set.budget = Some(30 * SECOND);
    assert_eq!(seen(&set), ("mysql://f/d".into(), 30 * SECOND, LogFormat::Text));

    set.budget = Some(25 * HOUR);
    assert_eq!(set.refused(), "--budget must be 1s to 1d, not 25h");
    set.budget = None;
    assert_eq!(set.with("BATCH_SEND_BUDGET", "1").refused().split(':').next(), Some("BATCH_SEND_BUDGET"));
    let set = Set::new(DATABASE).with("BATCH_SEND_LOG_FORMAT", "xml");
    let error = set.log_format().unwrap_err().to_string();
    assert_eq!(error, "BATCH_SEND_LOG_FORMAT must be text, json or journal, not `xml`");
    let set = Set::new(DATABASE).with("BATCH_SEND_DATABASE_URL", "").with("BATCH_SEND_BUDGET", "");
    assert_eq!(seen(&set), ("sqlite:///t.db".into(), 50 * SECOND, LogFormat::Text));
}

#[test]
fn a_named_file_must_be_there_and_the_database_must_be_named_somewhere() {
    let mut set = Set::new("");
    assert_eq!(
        set.refused(),
        "F: `database_url` is missing: put it there, as in \"mysql://app@db.internal/shop\" or \
         \"sqlite:///var/lib/batch-send/tasks.db\", or give --database-url or BATCH_SEND_DATABASE_URL"
    );
    set.global.database_url = Some("sqlite:///t.db".into());
    assert!(set.load().unwrap().channels.is_empty());

    set.global.config = Some("/no/such.toml".into());
    let missing = "cannot read the configuration /no/such.toml, named by --config: No such file";
    assert!(set.refused().starts_with(missing), "{}", set.refused());
    set.global.config = None;
    let set = set.with("BATCH_SEND_CONFIG", "/no/such.toml");
    assert!(set.refused().contains("/no/such.toml, named by BATCH_SEND_CONFIG"), "{}", set.refused());

    let set = Set::new(DATABASE);
    let file = set.global.config.clone().unwrap();
    let by_env = Set { global: global(), ..set }.with("BATCH_SEND_CONFIG", file.to_str().unwrap());
    assert_eq!(by_env.load().unwrap().database_url, "sqlite:///t.db");
}

#[test]
fn broken_toml_is_refused_with_its_line_and_without_its_text() {
    let text = refused("[channel.c]\nkind = \"http\"\nheaders = { A = \"secret } \n");
    assert!(text.starts_with("F: line 4 is no TOML: "), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn no_refusal_shows_a_secret() {
    for line in [
        "headers = \"secret\"",
        "headers = { A = [\"secret\"] }",
        "receipt = [\"secret\"]",
        "url = [\"secret\"]",
    ] {
        let text = refused(&format!(
            "[channel.c]\nkind = \"http\"\nbody = \"1\"\n{}{line}\n",
            if line.starts_with("url") { "" } else { "url = \"https://h/\"\n" }
        ));
        assert!(text.contains("in [channel.c]: invalid type"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
    for secret in ["12345678", "[\"12345678\"]"] {
        let text = refused(&format!("[channel.c]\nkind = \"wechat\"\nappid = \"wx1\"\nsecret = {secret}\n"));
        assert!(text.starts_with("F: `secret` in [channel.c]: invalid type: "), "{text}");
        assert!(!text.contains("12345678"), "{text}");
    }
}

#[test]
fn a_template_message_is_remembered_for_ten_minutes_and_no_longer() {
    let window = |keys: &str| {
        let text = format!("{DATABASE}{WECHAT}body = \"{{}}\"\n{keys}\n");
        loaded(&text).channels["wx"].policy.idempotent_for
    };
    assert_eq!(window("message = \"template\""), Some(10 * MINUTE));
    assert_eq!(window("message = \"template\"\nidempotent_for = \"24h\""), Some(10 * MINUTE));
    assert_eq!(window("message = \"template\"\nidempotent_for = \"5m\""), Some(5 * MINUTE));
    assert_eq!(window("message = \"subscribe\""), None);
}

#[test]
fn a_password_for_mail_comes_from_the_environment_and_its_answer_counts_among_the_time() {
    let text = format!("{DATABASE}{SMTP}user = \"app\"\npassword = \"${{PW}}\"\nanswer_timeout = \"1m\"\n");
    let config = Set::new(&text).with("PW", "s3cret").load().unwrap();
    let Kind::Smtp(smtp) = &config.channels["m"].kind else { panic!("another kind") };
    assert_eq!(smtp.password.as_deref(), Some("s3cret"));
    assert_eq!(config.channels["m"].longest(), 70 * SECOND);
    assert!(config.channels["m"].sender(1).is_ok());

    let error = Set::new(&text).load().unwrap().channels["m"].sender(1).err().unwrap().to_string();
    assert!(error.contains("has no `PW`, which `password` asks for"), "{error}");
}

#[test]
fn variables_are_the_environments_and_one_that_is_not_set_stops_only_who_sends() {
    let text = format!(
        "{DATABASE}{HTTP}headers = {{ Authorization = \"Bearer ${{TOKEN}}\", Price = \"$5 $$ $${{TOKEN}}\" }}\n\
         [channel.run]\nkind = \"exec\"\ncommand = [\"${{BIN}}/send\", \"--to=${{BIN}}\"]\n\
         [channel.spool]\nkind = \"file\"\npath = \"${{DIR}}/spool\"\n"
    );
    let set = Set::new(&text).with("TOKEN", "t${X}").with("BIN", "/opt");
    let config = set.load().unwrap();
    let Kind::Http(http) = &config.channels["welcome"].kind else { panic!("another kind") };
    assert_eq!(http.headers["Authorization"], "Bearer t${X}");
    assert_eq!(http.headers["Price"], "$5 $$ ${TOKEN}");
    let Kind::Exec(exec) = &config.channels["run"].kind else { panic!("another kind") };
    assert_eq!(exec.command, ["/opt/send", "--to=/opt"]);
    assert!(config.channels["welcome"].sender(1).is_ok() && config.channels["run"].sender(1).is_ok());

    let text = format!("{DATABASE}{WECHAT}message = \"subscribe\"\nbody = \"{{}}\"\n")
        .replace("wx1", "${APP}")
        .replace("s3cret", "${WX}");
    let account = Set::new(&text).with("APP", "wx2").with("WX", "5ecret").load().unwrap();
    let Kind::Wechat(wechat) = &account.channels["wx"].kind else { panic!("another kind") };
    assert_eq!((wechat.appid.as_str(), wechat.secret.as_str()), ("wx2", "5ecret"));
    assert!(account.channels["wx"].sender(1).is_ok());
    let error = Set::new(&text).with("APP", "wx2").load().unwrap().channels["wx"].sender(1).err().unwrap();
    assert!(error.to_string().contains("has no `WX`, which `secret` asks for"), "{error}");

    let error = config.channels["spool"].sender(1).err().unwrap();
    assert_eq!(trouble::Trouble::kind_of(&error), Some(trouble::Kind::Usage));
    let text = error.to_string();
    let expected = "c.toml: [channel.spool]: the environment has no `DIR`, which `path` asks for: set it where \
                    batch-send is started (in the crontab), or write `$${DIR}` if the text itself is meant";
    assert!(text.ends_with(expected), "{text}");

    for wrong in ["${", "${}", "${A-B}", "${1}", "x ${ A }"] {
        let text = refused(&format!("[channel.c]\nkind = \"file\"\npath = \"{wrong}\"\n"));
        assert!(text.starts_with("F: `path` in [channel.c]: `${` must be followed by"), "{text}");
    }
}

#[test]
fn in_the_database_url_a_variable_is_percent_encoded() {
    let text = "database_url = \"mysql://app:${PW}@h/d?x=$1\"\n";
    let config = Set::new(text).with("PW", "p@:/?#%ä ~").load().unwrap();
    assert_eq!(config.database_url, "mysql://app:p%40%3A%2F%3F%23%25%C3%A4%20~@h/d?x=$1");
    assert_eq!(
        Set::new(text).refused(),
        "F: the environment has no `PW`, which `database_url` asks for: set it where batch-send is started"
    );
    let mut set = Set::new(text);
    set.global.database_url = Some("mysql://h/d".into());
    assert!(set.load().is_ok(), "the file's is not used, and not asked of the environment");
}

#[test]
fn directories_are_made_for_their_owner_alone_or_named_with_the_user() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("a/state");
    let config = loaded(&format!("{DATABASE}state_dir = \"{}\"\n", state.display()));
    assert_eq!(config.lock_dir, state);
    config.make_dirs().unwrap();
    config.make_dirs().unwrap();
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);

    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let lock = file.join("lock");
    let config = loaded(&format!(
        "{DATABASE}state_dir = \"{}\"\nlock_dir = \"{}\"\n",
        state.display(),
        lock.display()
    ));
    let error = config.make_dirs().unwrap_err();
    assert_eq!(trouble::Trouble::kind_of(&error), Some(trouble::Kind::Usage));
    let start = format!("cannot write in {} as user {}: ", lock.display(), who::user());
    assert!(error.to_string().starts_with(&start), "{error}");
    assert!(error.to_string().contains("`lock_dir`"), "{error}");
}

#[test]
fn colours_are_for_terminals_that_have_them_and_people_who_want_them() {
    let may = |variables: &'static [(&str, &str)]| {
        may_colour_in(&|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(*value))
        })
    };
    assert!(may(&[("TERM", "xterm-256color")]));
    assert!(may(&[("TERM", "xterm"), ("NO_COLOR", "")]), "empty counts as unset");
    assert!(!may(&[("TERM", "xterm"), ("NO_COLOR", "1")]));
    assert!(!may(&[("TERM", "dumb")]) && !may(&[]));
}

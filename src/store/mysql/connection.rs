//! One connection to the server and its manners: how the URL is read, how a session is set up, which errors leave it
//! unusable, and when a piece of work may be tried again. What the statements say is not its business.

use std::fmt::Display;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use mysql::prelude::Queryable;
use mysql::{Column, Conn, Opts, OptsBuilder, Row, SslOpts, Value};

use super::ClaimForm;
use crate::moment::Moment;
use crate::trouble::Trouble;

// ---- where the database is ---------------------------------------------------------------------------------------

/// Where the database is and how to speak to it, from `database_url`. Holds the password, so it has no `Debug`.
pub struct Settings {
    pub(super) opts: Opts,
    /// Host and port, or the socket: what messages may say.
    pub(super) place: String,
    pub(super) database: String,
    pub(super) prefix: String,
    pub(super) claim: ClaimForm,
    /// How often a piece of work was tried again, over all connections.
    pub retries: Arc<AtomicU64>,
}

/// The server must answer a statement that waits for a lock (5 s each for rows and tables) before we stop listening.
const ANSWER: Duration = Duration::from_secs(12);
const CONNECT: Duration = Duration::from_secs(10);

impl Settings {
    /// Connects to nothing. Errors are about the URL, and never show it: it has a password.
    pub fn new(url: &str, prefix: &str, claim: ClaimForm) -> Result<Self> {
        let rest = url.strip_prefix("mysql://").ok_or_else(|| {
            Trouble::usage("database_url must begin with mysql:// or with sqlite:// and an absolute path")
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let parameters = Parameters::parse(query)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let no_host = authority.is_empty() || authority.ends_with('@');
        if no_host && parameters.socket.is_none() {
            return Err(
                Trouble::usage("database_url names no host: mysql://user:password@host/database").into()
            );
        }
        let host = if no_host { "localhost" } else { "" };
        let opts = Opts::from_url(&format!("mysql://{authority}{host}/{path}")).map_err(|error| {
            Trouble::usage(format!(
                "database_url cannot be read ({}): special characters in user and password must be percent-encoded",
                match error {
                    mysql::UrlError::ParseError(error) => error.to_string(),
                    _ => "not of the form mysql://user:password@host/database".into(),
                }
            ))
        })?;
        let Some(database) = opts.get_db_name().map(str::to_owned) else {
            return Err(Trouble::usage(
                "database_url names no database: mysql://user:password@host/database",
            )
            .into());
        };
        let host = opts.get_ip_or_hostname().into_owned();
        let place = match &parameters.socket {
            Some(socket) => socket.clone(),
            None if host.contains(':') => {
                format!("[{}]:{}", host.trim_matches(['[', ']']), opts.get_tcp_port())
            }
            None => format!("{host}:{}", opts.get_tcp_port()),
        };
        let tls = parameters.tls(&host)?;
        let opts = OptsBuilder::from_opts(opts)
            .socket(parameters.socket)
            // Never a silent change to a local socket: it may lead to another server than the port.
            .prefer_socket(false)
            .ssl_opts(tls)
            .tcp_connect_timeout(Some(CONNECT))
            .read_timeout(Some(ANSWER))
            .write_timeout(Some(ANSWER))
            .tcp_keepalive_time_ms(Some(10_000))
            .tcp_keepalive_probe_interval_secs(Some(5))
            .tcp_keepalive_probe_count(Some(3))
            // The protocol's own end, so that the driver need not ask. The server's limit is far above our statements.
            .max_allowed_packet(Some(1 << 30))
            .stmt_cache_size(0);
        Ok(Self {
            opts: opts.into(),
            place,
            database,
            prefix: prefix.to_owned(),
            claim,
            retries: Arc::default(),
        })
    }

    pub fn identity(&self) -> String {
        format!("mysql://{}/{} {}", self.place, self.database, self.prefix)
    }
}

/// What may stand behind the `?`.
#[derive(Default)]
struct Parameters {
    mode: Option<String>,
    ca: Option<PathBuf>,
    socket: Option<String>,
}

impl Parameters {
    fn parse(query: &str) -> Result<Self> {
        let mut parameters = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value);
            match name {
                "ssl_mode" => parameters.mode = Some(value),
                "ssl_ca" => parameters.ca = Some(value.into()),
                "socket" => parameters.socket = Some(value),
                _ => {
                    return Err(Trouble::usage(format!(
                        "database_url has an unknown parameter {name:?}: ssl_mode, ssl_ca and socket are known"
                    ))
                    .into());
                }
            }
        }
        Ok(parameters)
    }

    /// By default plain on this host and over a socket, fully verified over a network.
    fn tls(&self, host: &str) -> Result<Option<SslOpts>> {
        let local = host.eq_ignore_ascii_case("localhost")
            || IpAddr::from_str(host.trim_matches(['[', ']'])).is_ok_and(|address| address.is_loopback());
        let mode = match (self.mode.as_deref(), &self.ca) {
            (Some(mode), _) => mode,
            (None, Some(_)) => "verify_identity",
            (None, None) if local || self.socket.is_some() => "disabled",
            (None, None) => "verify_identity",
        };
        if self.ca.is_some() && !mode.starts_with("verify_") {
            return Err(Trouble::usage(format!(
                "database_url has ssl_ca, which ssl_mode={mode} does not use: verify_ca or verify_identity does"
            ))
            .into());
        }
        let tls = SslOpts::default().with_root_cert_path(self.ca.clone());
        match mode {
            "disabled" => Ok(None),
            "required" => {
                Ok(Some(tls.with_danger_accept_invalid_certs(true).with_danger_skip_domain_validation(true)))
            }
            "verify_ca" => Ok(Some(tls.with_danger_skip_domain_validation(true))),
            "verify_identity" => Ok(Some(tls)),
            other => Err(Trouble::usage(format!(
                "database_url has ssl_mode={other}: disabled, required, verify_ca or verify_identity"
            ))
            .into()),
        }
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

// ---- what went wrong ---------------------------------------------------------------------------------------------

/// Why a text was not carried out, as far as it decides what to do next.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nothing of it was done; from the beginning it may be tried again.
    Undone(anyhow::Error),
    /// The connection is gone, and what became of the text is not known.
    Lost(anyhow::Error),
    /// A value does not fit its column. Nothing was done; trying again does not help.
    Data(anyhow::Error),
    /// A table or a column is not there.
    Missing(anyhow::Error),
    /// Nothing was done; trying again does not help.
    Final(anyhow::Error),
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        Self::Final(error)
    }
}

impl Fault {
    pub(super) fn into_error(self) -> anyhow::Error {
        match self {
            Self::Undone(error)
            | Self::Lost(error)
            | Self::Data(error)
            | Self::Missing(error)
            | Self::Final(error) => error,
        }
    }

    /// By the server's own number.
    fn from_server(error: mysql::MySqlError, place: &str) -> Self {
        let text = error.message.clone();
        let usage = |text: String| Self::Final(Trouble::usage(text).into());
        match error.code {
            // Deadlock; snapshot too old; refused at commit by a cluster; lock wait; statement limit; killed query.
            1213 | 1020 | 1180 | 3101 | 1205 | 1969 | 3024 | 1317 | 3572 | 1637 => {
                Self::Undone(anyhow!("the database undid the work: {text} (error {})", error.code))
            }
            // Not the writer any more, or going down: another address may be.
            1290 | 1792 | 1836 | 3100 | 3032 | 1047 | 1927 | 1053 | 1158..=1161 | 1184 | 4031 => {
                Self::Lost(unreachable(place, &format!("{text} (error {})", error.code)))
            }
            1040 | 1203 | 1226 | 1129 => Self::Final(
                Trouble::try_later(format!(
                    "the database at {place} takes no more connections: {text}; the next run tries again; `lanes` in [run] is how many \
                     a run takes, max_connections how many the server has"
                ))
                .into(),
            ),
            1045 | 1698 => usage(format!(
                "the database at {place} denies access: {text}; correct user and password in `database_url`, or let that user in from \
                 this host"
            )),
            1044 => usage(format!(
                "the database at {place} denies access: {text}; correct user and database in `database_url`, or grant that user its rights, \
                 which docs/applications.md lists"
            )),
            1049 => usage(format!(
                "the database at {place} has no such database: {text}; make it, or correct its name in `database_url`"
            )),
            1142 | 1143 | 1227 | 1370 => usage(format!(
                "the database user lacks a privilege: {text}; `batch-send check` names the GRANT that runs lack, docs/applications.md the \
                 rights of each user"
            )),
            1176 => usage(format!(
                "an index of the tables is missing: {text}; `batch-send check` names the ALTER TABLE that makes it"
            )),
            1146 | 1054 => Self::Missing(
                Trouble::usage(format!(
                    "the tables are not as this batch-send knows them: {text}; run `batch-send migrate`, and if that finds nothing to do they were changed by hand"
                ))
                .into(),
            ),
            1665 => usage(format!(
                "binlog_format must be ROW or MIXED, here and in the server's configuration: {text}"
            )),
            1153 | 1406 | 1264 | 1265 | 1292 | 1366 | 3140 | 3156 | 4025 | 1300 | 1690 => {
                Self::Data(anyhow!("the database refuses a value: {text} (error {})", error.code))
            }
            code => Self::Final(anyhow!(
                "the database refuses a statement: {text} (error {code}); `batch-send check` looks at what statements rely on"
            )),
        }
    }
}

/// Trouble with the way to the server, for the next minute to try again.
fn unreachable(place: &str, why: &str) -> anyhow::Error {
    Trouble::try_later(format!("the database at {place} cannot be reached: {why}")).into()
}

// ---- what came back ----------------------------------------------------------------------------------------------

/// What one statement of a text answered.
pub(super) struct Reply {
    pub rows: Vec<Cells>,
    /// Rows changed (not found).
    pub changed: u64,
    /// Of an INSERT.
    pub id: u64,
}

impl Reply {
    fn bytes(&self) -> usize {
        const FRAME: usize = 32;
        FRAME + self.rows.iter().map(Cells::bytes).sum::<usize>()
    }
}

/// One row, read from left to right.
pub(super) struct Cells {
    columns: Arc<[Column]>,
    values: std::vec::IntoIter<Value>,
}

impl Cells {
    fn new(row: Row) -> Self {
        Self { columns: row.columns(), values: row.unwrap().into_iter() }
    }

    fn bytes(&self) -> usize {
        let values = self.values.as_slice().iter();
        values.map(|value| if let Value::Bytes(bytes) = value { bytes.len() + 4 } else { 4 }).sum()
    }

    pub fn text(&mut self) -> Option<String> {
        match self.values.next() {
            Some(Value::Bytes(bytes)) => Some(
                String::from_utf8(bytes)
                    .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
            ),
            _ => None,
        }
    }

    /// The text of a column by its name, for what each server lays out in its own way.
    pub fn named(&mut self, name: &str) -> Option<String> {
        let position = self.columns.iter().position(|column| column.name_str() == name)?;
        let ahead = position.checked_sub(self.columns.len() - self.values.len())?;
        self.values.by_ref().take(ahead).for_each(drop);
        self.text()
    }

    /// The same, of a row that is not read from left to right; empty for a column that is not there, or NULL.
    pub fn peek(&self, name: &str) -> String {
        let position = self.columns.iter().position(|column| column.name_str() == name);
        match position.and_then(|position| self.values.as_slice().get(position)) {
            Some(Value::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        }
    }

    /// The text of a column that is never NULL; empty for a careless one.
    pub fn word(&mut self) -> String {
        self.text().unwrap_or_default()
    }

    pub fn maybe<N: FromStr>(&mut self) -> Result<Option<N>> {
        self.text()
            .map(|text| text.parse().map_err(|_| anyhow!("the database answered {text:?} for a number")))
            .transpose()
    }

    pub fn number<N: FromStr>(&mut self) -> Result<N> {
        self.maybe()?.context("the database answered NULL for a number")
    }

    /// A condition; one that is NULL does not hold.
    pub fn flag(&mut self) -> Result<bool> {
        Ok(self.maybe::<i64>()?.unwrap_or(0) != 0)
    }
}

// ---- the connection ----------------------------------------------------------------------------------------------

/// What a server can do, asked right after connecting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Server {
    pub skip_locked: bool,
    /// A node of a Galera cluster: its row locks are its own alone, and skipping locked rows was seen to crash one.
    pub galera: bool,
    /// A statement longer than this is refused.
    pub packet: usize,
}

/// A connection that is opened when first needed, and again after it was lost.
pub(super) struct Connection {
    opts: Opts,
    place: String,
    /// None: not open, or dropped, since what it would answer next could not be trusted.
    conn: Option<Conn>,
    /// A text began a transaction, and none has ended it yet.
    in_transaction: bool,
    /// Bytes of answers read through `conn`, about.
    read: usize,
    retries: Arc<AtomicU64>,
    pub server: Server,
}

/// Everything a session of ours relies on, and what we must know of the server, in one round trip. A minute without a word
/// ends the session: a host that was suspended inside a transaction must not hold its rows for ever.
const SESSION: &str = "SET NAMES utf8mb4, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
     autocommit = 1, completion_type = 0, sql_select_limit = DEFAULT, sql_safe_updates = 0, innodb_lock_wait_timeout = 5, lock_wait_timeout = 5, wait_timeout = 60; \
     SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; \
     SHOW VARIABLES WHERE Variable_name IN ('version', 'wsrep_on', 'max_allowed_packet')";

/// How a text begins that is one transaction, and how it ends.
pub(super) const BEGIN: &str = "START TRANSACTION; ";
pub(super) const COMMIT: &str = "COMMIT";

/// After so many bytes a connection is exchanged for a new one. The driver reads into a buffer of 4 MiB from its front to its
/// end before it uses the front again, so that each lane's connection would come to hold all of it.
const READ_MOST: usize = 1 << 20;

/// How often, and for how long, a piece of work is tried.
const TRIES: u32 = 8;
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The same for what holds answers of a channel. Short: they are in memory alone until the caller, told of the failure, has
/// them in the journal; then it tries again by itself.
pub(super) const WITH_ANSWERS: Duration = Duration::from_secs(2);

impl Connection {
    /// Connects at once, one try.
    pub fn open(settings: &Settings) -> Result<Self> {
        let mut connection = Self {
            opts: settings.opts.clone(),
            place: settings.place.clone(),
            conn: None,
            in_transaction: false,
            read: 0,
            retries: Arc::clone(&settings.retries),
            server: Server::default(),
        };
        connection.conn = Some(connection.connect().map_err(Fault::into_error)?);
        Ok(connection)
    }

    fn connect(&mut self) -> Result<Conn, Fault> {
        let place = &self.place;
        let with_tls = self.opts.get_ssl_opts().is_some();
        let mut conn = Conn::new(self.opts.clone()).map_err(|error| match error {
            mysql::Error::MySqlError(error) => Fault::from_server(error, place),
            mysql::Error::TlsError(error) => tls_fault(place, &error),
            // A certificate that is refused ends the handshake as "invalid data"; the others are of `ssl_ca`.
            mysql::Error::IoError(error)
                if with_tls
                    && matches!(
                        error.kind(),
                        ErrorKind::InvalidData | ErrorKind::NotFound | ErrorKind::PermissionDenied
                    ) =>
            {
                tls_fault(place, &error)
            }
            mysql::Error::CodecError(error) if with_tls && is_invalid_data(&error) => {
                tls_fault(place, &error)
            }
            mysql::Error::DriverError(error @ mysql::DriverError::TlsNotSupported) => {
                tls_fault(place, &error)
            }
            // What MySQL 9 proposes to a user that it does not know.
            mysql::Error::DriverError(mysql::DriverError::UnknownAuthPlugin(plugin)) => Fault::Final(
                Trouble::usage(format!(
                    "the database at {place} wants {plugin} from this user, which is not spoken here: check the user's \
                     name, or let it use caching_sha2_password or mysql_native_password"
                ))
                .into(),
            ),
            mysql::Error::DriverError(mysql::DriverError::CouldNotConnect(Some((_, why, _)))) => {
                Fault::Lost(unreachable(place, &why))
            }
            error => Fault::Lost(unreachable(place, &error.to_string())),
        })?;
        let replies = ask(&mut conn, SESSION).map_err(|error| match error {
            mysql::Error::MySqlError(error) => Fault::from_server(error, place),
            error => Fault::Lost(unreachable(place, &error.to_string())),
        })?;
        for mut row in replies.into_iter().flat_map(|reply| reply.rows) {
            let (name, value) = (row.word(), row.word());
            match (name.as_str(), value) {
                ("version", version) => self.server.skip_locked = has_skip_locked(&version),
                ("max_allowed_packet", bytes) => self.server.packet = bytes.parse().unwrap_or(1 << 20),
                ("wsrep_on", on) => self.server.galera = on.eq_ignore_ascii_case("ON"),
                _ => {}
            }
        }
        Ok(conn)
    }

    /// The number that the other side gave this session when it began.
    pub fn session(&self) -> Option<u32> {
        self.conn.as_ref().map(Conn::connection_id)
    }

    /// Carries out a text of one or more statements, in one round trip. The first that fails ends it, and undoes
    /// the transaction that the text, or one before it, began.
    pub fn run(&mut self, text: &str) -> Result<Vec<Reply>, Fault> {
        // Taken out, and put back only when it may be used again: any error that is not the server's own word leaves
        // this driver one answer behind, and the server perhaps still at work.
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => self.connect()?,
        };
        let was_open = std::mem::take(&mut self.in_transaction);
        match ask(&mut conn, text) {
            Ok(replies) => {
                self.conn = Some(conn);
                self.read += replies.iter().map(Reply::bytes).sum::<usize>();
                self.in_transaction = (was_open || text.starts_with(BEGIN)) && !text.ends_with(COMMIT);
                Ok(replies)
            }
            Err(mysql::Error::MySqlError(error)) => {
                let fault = Fault::from_server(error, &self.place);
                // A lock wait that ran out undoes its statement alone, and a commit now would keep half.
                if !matches!(fault, Fault::Lost(_)) && conn.query_drop("ROLLBACK").is_ok() {
                    self.conn = Some(conn);
                }
                Err(fault)
            }
            Err(mysql::Error::CodecError(error)) if error.to_string().contains("max_allowed_packet") => {
                Err(Fault::Data(anyhow!("a statement is too large for the database")))
            }
            Err(error) => Err(Fault::Lost(unreachable(&self.place, &error.to_string()))),
        }
    }

    /// Does `work` until it is done, a bounded number of times, with a new connection where the last one is lost.
    /// `work` starts from its beginning each time and is told whether an earlier try may have been carried
    /// out without our knowing.
    pub fn persist<T>(&mut self, work: impl FnMut(&mut Self, bool) -> Result<T, Fault>) -> Result<T, Fault> {
        self.persist_for(PATIENCE, work)
    }

    /// [`Self::persist`], for so long.
    pub fn persist_for<T>(
        &mut self,
        patience: Duration,
        mut work: impl FnMut(&mut Self, bool) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.freshen();
        let started = Moment::now();
        let mut lost = false;
        let mut tries = 0;
        loop {
            tries += 1;
            let done = work(self, lost);
            // What was left open is given up here, so that `work` may return from anywhere.
            if self.in_transaction {
                self.in_transaction = false;
                self.conn =
                    self.conn.take().and_then(|mut conn| conn.query_drop("ROLLBACK").ok().map(|()| conn));
            }
            let fault = match done {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            let (why, wait) = match &fault {
                Fault::Undone(why) => (why, 20),
                Fault::Lost(why) => {
                    lost = true;
                    (why, 100)
                }
                Fault::Data(_) | Fault::Missing(_) | Fault::Final(_) => return Err(fault),
            };
            if tries == TRIES || started.elapsed() > patience {
                return Err(fault);
            }
            self.retries.fetch_add(1, Ordering::Relaxed);
            log::debug!("try {tries} of {TRIES}: {why:#}");
            let most = wait << tries.min(5);
            std::thread::sleep(Duration::from_millis(fastrand::u64(most / 2..=most)));
        }
    }

    /// Exchanges a connection that has read much; where no other is to be had, this one goes on.
    fn freshen(&mut self) {
        if self.read > READ_MOST && !self.in_transaction {
            self.read = 0;
            if let Ok(conn) = self.connect() {
                self.conn = Some(conn);
            }
        }
    }

    /// [`Self::persist`], with what was being done in the error.
    pub fn attempt<T>(
        &mut self,
        what: &'static str,
        work: impl FnMut(&mut Self, bool) -> Result<T, Fault>,
    ) -> Result<T> {
        self.persist(work).map_err(|fault| fault.into_error().context(format!("cannot {what}")))
    }
}

fn is_invalid_data(error: &dyn std::error::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == ErrorKind::InvalidData)
}

fn tls_fault(place: &str, why: &dyn Display) -> Fault {
    Fault::Final(
        Trouble::usage(format!(
            "no TLS with the database at {place}: {why}; see ssl_mode and ssl_ca in database_url"
        ))
        .into(),
    )
}

fn ask(conn: &mut Conn, text: &str) -> mysql::Result<Vec<Reply>> {
    let mut replies = Vec::new();
    let mut result = conn.query_iter(text)?;
    while let Some(set) = result.iter() {
        let (changed, id) = (set.affected_rows(), set.last_insert_id().unwrap_or(0));
        let rows = set.map(|row| Ok(Cells::new(row?))).collect::<mysql::Result<_>>()?;
        replies.push(Reply { rows, changed, id });
    }
    Ok(replies)
}

/// MySQL from 8.0.1 and MariaDB from 10.6, by the text of `version`.
pub(super) fn has_skip_locked(version: &str) -> bool {
    if version.contains("TiDB") {
        return false;
    }
    let number = number_of(version);
    if version.contains("MariaDB") { number >= (10, 6, 0) } else { number >= (8, 0, 1) }
}

/// The number at the beginning of `version`.
pub(super) fn number_of(version: &str) -> (u32, u32, u32) {
    let text = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut parts = text.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

//! The lines on stderr: trouble, and with -v what happens. Nothing at all in a healthy minute, since cron mails what is printed.

use std::io::Write;

use log::{Level, LevelFilter};

use crate::cli::LogFormat;

/// Only our own lines: what a library has to say is in the errors it returns.
pub fn start(verbose: u8, quiet: bool, format: LogFormat) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::Error,
        (false, 0) => LevelFilter::Warn,
        (false, 1) => LevelFilter::Info,
        (false, _) => LevelFilter::Debug,
    };
    let mut builder = env_logger::Builder::new();
    builder.filter_level(LevelFilter::Off).filter_module("batch_send", level);
    builder.format(move |out, record| match format {
        LogFormat::Text if record.level() <= Level::Warn => writeln!(out, "batch-send: {}", record.args()),
        LogFormat::Text => writeln!(out, "batch-send: {}: {}", word(record.level()), record.args()),
        LogFormat::Json => {
            let line = serde_json::json!({
                "time": time(),
                "level": word(record.level()),
                "pid": std::process::id(),
                "message": record.args().to_string(),
            });
            writeln!(out, "{line}")
        }
    });
    builder.init();
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

/// This host's time, for whoever collects the lines: nothing is decided by it.
#[allow(clippy::disallowed_methods)]
fn time() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = chrono::DateTime::from_timestamp_millis(now.as_millis() as i64).unwrap_or_default();
    crate::task::show_time(&now)
}

//! The channels: whether each could send, told by its own sender, which sends nothing; whom it sends to; and whether it may
//! send at this hour.

use anyhow::Error;
use chrono::{DateTime, Utc};

use super::{Finding, What};
use crate::config::Channel;
use crate::task::show_time;

/// Asks all of them at once: each takes as long as its `timeout` lets it. In their order.
pub(super) fn probe(channels: &[&Channel], lanes: usize) -> Vec<Finding> {
    std::thread::scope(|scope| {
        let probing: Vec<_> =
            channels.iter().map(|channel| (channel, scope.spawn(move || one(channel, lanes)))).collect();
        probing
            .into_iter()
            .map(|(channel, probing)| {
                let panicked = |_| Finding::failed(What::Channel, &Error::msg("its sender panicked"));
                probing.join().unwrap_or_else(panicked).about(&channel.name)
            })
            .collect()
    })
}

fn one(channel: &Channel, lanes: usize) -> Finding {
    let kind = channel.kind();
    // A ${NAME} that is not set, a ca_file that cannot be read: the text says what to do.
    let sender = match channel.sender(lanes) {
        Ok(sender) => sender,
        Err(error) => return Finding::failed(What::Channel, &error),
    };
    match sender.probe() {
        Ok(seen) => Finding::ok(What::Channel, format!("{kind}: {seen}")),
        Err(wrong) => Finding::error(What::Channel, format!("{kind}: {wrong}"), way_out(kind)),
    }
}

fn way_out(kind: &str) -> &'static str {
    match kind {
        "exec" => "correct `command`, or make it executable for this user",
        "file" => "correct `path`, or give the directory to this user",
        "smtp" => "correct `host`, `port`, `tls`, `user` or `password`, or see to the mail server",
        "wechat" => "correct `appid` or `secret`, or allow this host's address in the account",
        _ => "correct `url` or `ca_file`, or see to the network and the host",
    }
}

/// What was found of each channel, with what its configuration says of it. `now`: by the database, if that could be asked.
pub(super) fn judge(channels: &[&Channel], probed: Vec<Finding>, now: Option<DateTime<Utc>>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (channel, probed) in channels.iter().zip(probed) {
        findings.push(probed);
        if let Some(to) = &channel.redirect_to {
            findings.push(
                Finding::warning(
                    What::Redirect,
                    format!("everything goes to {to}, and nothing to the real recipients"),
                    "take `redirect_to` out where real messages are sent",
                )
                .about(&channel.name),
            );
        }
        if let (Some(window), Some(now)) = (&channel.window, now) {
            let text = if window.is_open(now) {
                let closes = now + window.left(now);
                format!("open {window}: now, until {}", show_time(&closes))
            } else {
                format!("open {window}: not now, from {} on", show_time(&window.opens(now)))
            };
            findings.push(Finding::ok(What::Window, text).about(&channel.name));
        }
    }
    findings
}

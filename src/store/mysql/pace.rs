//! The pace of a channel on MySQL and MariaDB: its next slot, and its holds. One row a channel, shared by all hosts.

use super::*;

/// A year is for ever here: TIMESTAMP ends in 2038.
const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// Up: a rate means not more often than so.
fn micros_up(time: Duration) -> u128 {
    time.min(YEAR).as_nanos().div_ceil(1000)
}

impl MySql {
    pub(super) fn reserve_slot(&mut self, channel: &str, span: Duration, horizon: Duration) -> Result<Slot> {
        let pace = &self.tables.pace;
        let name = quote(channel);
        let slot = "GREATEST(next_at, NOW(6))";
        // The one condition that decides also remembers the wait, which comes back with the answer whether or not it held. The
        // time is that of the statement's start: who waited for the row waits a little longer than needed, never less.
        let take = format!(
            "UPDATE {pace} SET next_at = TIMESTAMPADD(MICROSECOND, {}, {slot}) WHERE channel = {name} \
             AND LAST_INSERT_ID(1 + TIMESTAMPDIFF(MICROSECOND, NOW(6), {slot})) <= 1 + {horizon}",
            micros_up(span),
            horizon = horizon.min(YEAR).as_micros(),
        );
        let make =
            format!("INSERT INTO {pace} (channel) VALUES ({name}) ON DUPLICATE KEY UPDATE channel = {name}");
        let answer = self.connection.attempt("reserve a slot", |connection, _| {
            let answer = last(connection.run(&take)?).id;
            if answer > 0 {
                return Ok(answer);
            }
            Ok(last(connection.run(&format!("{make}; {take}"))?).id)
        })?;
        let wait = answer.checked_sub(1).with_context(|| format!("the row of channel {channel} is gone"))?;
        let wait = Duration::from_micros(wait);
        Ok(if wait <= horizon { Slot::In(wait) } else { Slot::Later(wait) })
    }

    pub(super) fn hold_channel(&mut self, channel: &str, hold: &Hold) -> Result<Duration> {
        let pace = &self.tables.pace;
        let name = quote(channel);
        // A hold long after the end of the one before begins a new row of them.
        let look = format!(
            "{BEGIN}INSERT INTO {pace} (channel) VALUES ({name}) ON DUPLICATE KEY UPDATE channel = {name}; \
             SELECT IF(held_until >= NOW(6) - INTERVAL {} SECOND, holds, 0), \
             GREATEST(COALESCE(TIMESTAMPDIFF(MICROSECOND, NOW(6), held_until), 0), 0) \
             FROM {pace} WHERE channel = {name} FOR UPDATE",
            hold.most.min(YEAR).as_secs()
        );
        self.connection.attempt("hold a channel", |connection, _| {
            let Some(mut row) = last(connection.run(&look)?).rows.pop() else {
                return Err(Fault::Final(anyhow!("the row of channel {channel} is gone")));
            };
            let (holds, left): (u32, _) = (row.number()?, Duration::from_micros(row.number()?));
            let wait = match hold.asked {
                Some(asked) => asked.max(left),
                // Other lanes meet the same silence: together they are one hold.
                None if left > Duration::ZERO => left,
                None => hold.first.saturating_mul(1 << holds.min(31)).min(hold.most),
            }
            .min(YEAR);
            let holds = if left > Duration::ZERO { holds } else { (holds + 1).min(u32::from(u16::MAX)) };
            let end = format!("TIMESTAMPADD(MICROSECOND, {}, NOW(6))", wait.as_micros());
            connection.run(&format!(
                "UPDATE {pace} SET held_until = {end}, next_at = GREATEST(next_at, {end}), holds = {holds} \
                 WHERE channel = {name}; COMMIT"
            ))?;
            Ok(wait)
        })
    }
}

//! Working through one leased task: all control flow of sending is here. The lane's thread speaks to the database, worker
//! threads speak to the channel; a target crosses to a worker as a value and comes back with its outcome.
//! Which task comes next, and what the process does around it, is commands/run.rs.

mod pool;
mod quota;
mod served;

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender as Back};
use std::thread::{Builder, Scope};
use std::time::Duration;

use anyhow::{Error, Result};

use self::pool::{Closing, Pool};
pub use self::quota::Quota;
pub use self::served::{Ended, Served};
use crate::journal::Journal;
use crate::message::Message;
use crate::moment::Moment;
use crate::pace::Pace;
use crate::sender::{Outcome, Sender, Toll};
use crate::settlement::{self, HOLD_AFTER_UNREACHED, Policy, STOP_AFTER_REJECTED};
use crate::stop::Stop;
use crate::store::{Answer, Claimed, Hold, InFlight, Lease, Relay, Settlement, Slot, Standing, Unwritten};
use crate::target::Target;

/// How often the lease is renewed, and with it the look at whether somebody paused or cancelled.
const RENEWAL: Duration = Duration::from_secs(1);

/// How long the lane waits for an answer before it looks at signals and the budget again.
const TICK: Duration = Duration::from_millis(100);

/// A claim holds no more than about so many bytes of params: a lane's memory does not depend on what an application puts there.
const CLAIM_BYTES: usize = 4 << 20;

/// A slot of a pace is good for so long. Later it is given up: a run that stood still would send what it has together with those
/// whose slots have come meanwhile.
const SLOT: Duration = Duration::from_secs(1);

/// A claim holds about so much sending: what is claimed and cannot be sent soon is held back from other runs for nothing.
const CLAIM_SPAN: Duration = Duration::from_secs(2);

/// What a lane works with, for one task.
pub struct Orders<'a> {
    /// The channel's name.
    pub channel: &'a str,
    pub sender: &'a dyn Sender,
    pub policy: &'a Policy,
    pub render: &'a dyn Fn(&Target) -> Result<Message>,
    /// Sends in flight at once.
    pub concurrency: usize,
    /// How many targets more than idle workers may be begun.
    pub ahead: usize,
    /// Largest claim.
    pub batch: usize,
    /// How fast the channel may be sent to.
    pub pace: Option<&'a Pace>,
    /// A slot of the pace that comes later is not waited for.
    pub slots_until: Moment,
    /// When the channel's window closes: nothing leaves after it.
    pub closes: Option<Moment>,
    /// This host, for the reason of a pause.
    pub host: &'a str,
    pub stop: &'a Stop,
    pub quota: &'a Quota,
    pub journal: &'a Journal,
    /// Told about once a second what has come of it so far.
    pub seen: &'a dyn Fn(&Served),
}

/// What a run remembers of a task between its turns.
#[derive(Debug, Default)]
pub struct Tally {
    accepted: bool,
    rejected: u32,
}

/// Sends until nothing is left, or something ends it. `turn_over` is asked from time to time whether the lane should go to
/// another task. Whatever happens, nothing is in flight when it returns, and every answer is in the database or the journal.
pub fn serve(
    store: &mut dyn Relay,
    lease: &mut Lease,
    orders: &Orders<'_>,
    tally: &mut Tally,
    turn_over: &mut dyn FnMut(&mut dyn Relay) -> Result<bool>,
    last_begun: &mut dyn FnMut(),
) -> Served {
    let pool = Pool::new(orders.closes);
    std::thread::scope(|scope| {
        // Also when this thread panics: workers that wait for ever would keep the process alive.
        let _closing = Closing(&pool);
        let (back, answered) = mpsc::channel();
        let mut delivery = Delivery {
            store,
            lease,
            orders,
            tally,
            pool: &pool,
            stock: VecDeque::new(),
            in_flight: 0,
            workers: 0,
            answers: Vec::new(),
            owed: Vec::new(),
            unwritten: None,
            renewed: Moment::now(),
            began: Moment::now(),
            answered: 0,
            weight: 0,
            dry: false,
            slots: Slots { free: 0, at: Moment::now() },
            unreached: 0,
            held: None,
            served: Served::default(),
        };
        delivery.work(scope, &back, &answered, turn_over, last_begun);
        delivery.served
    })
}

struct Delivery<'a> {
    store: &'a mut dyn Relay,
    lease: &'a mut Lease,
    orders: &'a Orders<'a>,
    tally: &'a mut Tally,
    pool: &'a Pool,
    /// Claimed, not begun.
    stock: VecDeque<Claimed>,
    /// Begun, not answered.
    in_flight: usize,
    workers: usize,
    /// Answered, not written.
    answers: Vec<Answer>,
    /// In the journal, not written: the database failed us. Nothing is begun before they are.
    owed: Vec<Answer>,
    /// Why they were not written.
    unwritten: Option<Error>,
    renewed: Moment,
    began: Moment,
    answered: u64,
    /// Bytes of a target, on the average of the last claim.
    weight: usize,
    /// The last look found nothing to claim.
    dry: bool,
    /// Of a channel with a pace: taken, not used.
    slots: Slots,
    /// Not reached, so many times in a row.
    unreached: u32,
    /// For how long the channel is held, as far as this lane knows.
    held: Option<Duration>,
    served: Served,
}

/// Slots of a channel's pace: so many sends, not before this moment.
struct Slots {
    free: usize,
    at: Moment,
}

impl<'a> Delivery<'a> {
    fn work<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        back: &Back<(InFlight, Outcome)>,
        answered: &Receiver<(InFlight, Outcome)>,
        turn_over: &mut dyn FnMut(&mut dyn Relay) -> Result<bool>,
        last_begun: &mut dyn FnMut(),
    ) where
        'a: 'scope,
    {
        // Runs that die while sending would otherwise make more unknowns each minute, for ever.
        self.stop_after_unknowns();
        loop {
            if self.may_begin() {
                self.reserve();
                self.begin(scope, back);
            }
            self.settle();
            self.restock();
            self.keep_up(turn_over);
            if !self.may_begin() {
                // Not while answers wait to be written: those that come meanwhile would wait for this, in memory alone.
                if self.owed.is_empty() {
                    let rest = self.stock.drain(..).collect();
                    self.put_back(rest);
                }
                last_begun();
            }
            if self.in_flight == 0 && self.answers.is_empty() && self.finished() {
                return;
            }
            self.wait(answered);
        }
    }

    /// Nothing is in flight: whether there is nothing to wait for either.
    fn finished(&mut self) -> bool {
        if !self.owed.is_empty() {
            // As long as the run may live; what is left then is the journal's.
            let over = self.orders.stop.end().passed();
            if over && let Some(why) = self.unwritten.take() {
                self.fail(why);
            }
            return over;
        }
        if self.may_begin() && self.stock.is_empty() && self.dry {
            self.end(Ended::Drained);
        }
        !self.may_begin()
    }

    fn may_begin(&self) -> bool {
        self.served.ended.is_none() && self.served.failure.is_none() && self.owed.is_empty()
    }

    /// The first reason stands, but a pause of ours outranks: a person must know of it.
    fn end(&mut self, ended: Ended) {
        if self.served.ended.is_none() || matches!(ended, Ended::Paused(_)) {
            self.served.ended = Some(ended);
        }
    }

    fn fail(&mut self, error: Error) {
        self.served.failure.get_or_insert(error);
    }

    fn capacity(&self) -> usize {
        (self.orders.concurrency + self.orders.ahead).saturating_sub(self.in_flight)
    }

    // ---- begin -------------------------------------------------------------------------------------------------

    /// Takes slots for the next group, if they come in time; the work goes on while they are waited for.
    fn reserve(&mut self) {
        let Some(pace) = self.orders.pace else { return };
        if self.slots.at.elapsed() > SLOT {
            self.slots.free = 0;
        }
        let group = self.capacity().min(self.stock.len()).min(pace.group());
        if self.slots.free > 0 || group == 0 {
            return;
        }
        match self.store.reserve(self.orders.channel, pace.span(group), self.orders.slots_until.left()) {
            Ok(Slot::In(wait)) => {
                log::debug!(channel = self.orders.channel, group, wait:?; "slots");
                self.slots = Slots { free: group, at: Moment::now() + wait };
            }
            Ok(Slot::Later(wait)) => {
                if self.served.begun == 0 {
                    self.lease.pass_turn();
                }
                self.end(Ended::Paced(wait));
            }
            Err(error) => {
                self.fail(error.context(format!("take a slot of channel {}", self.orders.channel)));
            }
        }
    }

    /// How many may be begun now, as far as the pace allows.
    fn slots(&self) -> usize {
        match self.orders.pace {
            None => usize::MAX,
            Some(_) if self.slots.at.passed() => self.slots.free,
            Some(_) => 0,
        }
    }

    /// As many as there are idle workers, in one commit with the answers that have come.
    fn begin<'scope>(&mut self, scope: &'scope Scope<'scope, '_>, back: &Back<(InFlight, Outcome)>)
    where
        'a: 'scope,
    {
        let (mut ready, mut refused, mut stale) = (Vec::new(), Vec::new(), Vec::new());
        let most = self.capacity().min(self.slots());
        while ready.len() < most {
            let Some(claimed) = self.stock.pop_front() else { break };
            let target = claimed.target();
            if claimed.until().passed() {
                stale.push(claimed);
            } else if target.in_doubt && target.attempts >= self.orders.policy.max_attempts {
                refused.push((claimed, "attempts used up, and one of them may have been accepted".into()));
            } else {
                match (self.orders.render)(target) {
                    Ok(message) => {
                        let hash = self.orders.policy.idempotent_for.map(|_| message.hash());
                        ready.push(claimed.ready(message, hash));
                    }
                    Err(error) => refused.push((claimed, format!("{error:#}"))),
                }
            }
        }
        self.refuse(refused);
        if !stale.is_empty() {
            // Claimed for longer than it may be held: others may have it, or we once more.
            self.dry = false;
            self.put_back(stale);
        }
        if ready.is_empty() {
            return;
        }
        let stood_still = self.lease.until().passed() || self.renewed.elapsed() >= 2 * RENEWAL;
        if stood_still && !self.renew() {
            // Meanwhile somebody took the task, paused or cancelled it.
            return self.put_back(ready.into_iter().map(|ready| ready.unsent()).collect());
        }
        if !self.hire(self.in_flight + ready.len(), scope, back) {
            return self.put_back(ready.into_iter().map(|ready| ready.unsent()).collect());
        }
        let asked = ready.len();
        let answers = std::mem::take(&mut self.answers);
        match self.store.begin(self.lease, ready, answers) {
            Ok(begun) => {
                self.served.settled.add(begun.settled);
                if !begun.fenced.is_empty() {
                    log::info!("not ours any more: targets {:?}", begun.fenced);
                }
                if !begun.suppressed.is_empty() {
                    // Nobody's fault, and no word on the message: they are not counted as rejected.
                    log::debug!("suppressed: targets {:?}", begun.suppressed);
                    self.served.refused += begun.suppressed.len() as u64;
                }
                if !begun.unknown.is_empty() {
                    log::info!("unknown: targets {:?}", begun.unknown);
                    self.served.unknown += begun.unknown.len() as u64;
                }
                self.orders.quota.give(asked - begun.in_flight.len());
                log::debug!(targets = begun.in_flight.len(), asked; "begun");
                self.served.begun += begun.in_flight.len() as u64;
                self.in_flight += begun.in_flight.len();
                self.slots.free = self.slots.free.saturating_sub(begun.in_flight.len());
                self.pool.put(begun.in_flight);
            }
            Err(unwritten) => {
                self.orders.quota.give(asked);
                self.owe(unwritten);
            }
        }
    }

    /// Sees to a worker for each target, up to `concurrency`, before any is begun. A host that is out of threads works with
    /// those there are; whether there are any.
    fn hire<'scope>(
        &mut self,
        targets: usize,
        scope: &'scope Scope<'scope, '_>,
        back: &Back<(InFlight, Outcome)>,
    ) -> bool
    where
        'a: 'scope,
    {
        while self.workers < targets.min(self.orders.concurrency) {
            let (pool, sender, back) = (self.pool, self.orders.sender, back.clone());
            match Builder::new().spawn_scoped(scope, move || pool.work(sender, &back)) {
                Ok(_) => self.workers += 1,
                Err(_) if self.workers > 0 => break,
                Err(error) => {
                    self.fail(Error::new(error).context("start a thread that sends"));
                    return false;
                }
            }
        }
        true
    }

    fn refuse(&mut self, refused: Vec<(Claimed, String)>) {
        if refused.is_empty() {
            return;
        }
        let count = refused.len();
        self.orders.quota.give(count);
        for (claimed, reason) in &refused {
            let target = claimed.target();
            log::info!(target = target.id, recipient = target.recipient; "refused: {reason}");
        }
        // What is in doubt becomes unknown, and says nothing of the message.
        let (doubtful, wrong): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|(claimed, _)| claimed.target().in_doubt);
        let last = wrong.last().map(|(claimed, reason)| (reason.clone(), claimed.target().recipient.clone()));
        let count = wrong.len() as u32;
        for (refused, counter) in [(doubtful, &mut self.served.unknown), (wrong, &mut self.served.refused)] {
            if refused.is_empty() {
                continue;
            }
            match self.store.refuse(self.lease, refused) {
                Ok(written) => *counter += written,
                Err(error) => {
                    let error = error.context("write down targets that are not sent");
                    self.served.failure.get_or_insert(error);
                }
            }
        }
        if let Some((last, recipient)) = last {
            self.tally.rejected += count;
            self.stop_after_rejected(&last, recipient);
        }
    }

    /// Claims the next batch while the workers are busy with the last. After settle: a returned target is pending again only then.
    fn restock(&mut self) {
        let per_second = self.answered as f64 / self.began.elapsed().as_secs_f64().max(0.001);
        let span = (per_second * CLAIM_SPAN.as_secs_f64()) as usize;
        // As much as can be begun at once; on a channel that has shown to be slow no more than can be begun now, or its
        // claim would grow old.
        let mut most = self.orders.concurrency + self.orders.ahead;
        let paced = self.orders.pace.map_or(usize::MAX, |pace| pace.slots(CLAIM_SPAN).max(pace.burst()));
        most = most.min(paced);
        if self.answered > 0 {
            most = most.min(span.max(self.capacity()));
        }
        if !self.may_begin() || self.dry || self.stock.len() >= most {
            return;
        }
        let light = self.orders.batch.min(CLAIM_BYTES / self.weight.max(1)).max(1);
        let light = light.min(paced);
        let batch = span.clamp(most.min(light), light);
        let batch = self.orders.quota.take(batch.saturating_sub(self.stock.len()).max(1));
        if batch == 0 {
            if self.stock.is_empty() {
                self.end(Ended::Stopped);
            }
            return;
        }
        match self.claim(batch) {
            Ok(claimed) => {
                self.orders.quota.give(batch - claimed.len());
                self.dry = claimed.is_empty();
                let bytes: usize = claimed.iter().map(|claimed| claimed.target().bytes()).sum();
                self.weight = bytes / claimed.len().max(1);
                self.stock.extend(claimed);
            }
            Err(error) => {
                self.orders.quota.give(batch);
                self.fail(error.context(format!("claim targets of task {}", self.lease.task())));
            }
        }
    }

    /// Pending targets; when there are none, the retries that have become due.
    fn claim(&mut self, batch: usize) -> Result<Vec<Claimed>> {
        let claimed = self.store.claim(self.lease, batch)?;
        if claimed.is_empty() && self.store.promote(self.lease)? > 0 {
            return self.store.claim(self.lease, batch);
        }
        Ok(claimed)
    }

    /// Gives back what was claimed and not begun.
    fn put_back(&mut self, rest: Vec<Claimed>) {
        if rest.is_empty() {
            return;
        }
        self.orders.quota.give(rest.len());
        if let Err(error) = self.store.release(rest) {
            self.fail(error.context("give back what was claimed and not begun"));
        }
    }

    // ---- settle ------------------------------------------------------------------------------------------------

    /// Waits for an answer, no longer than until the next look at the clock, and takes every other that has come.
    fn wait(&mut self, answered: &Receiver<(InFlight, Outcome)>) {
        let until_renewal = RENEWAL.saturating_sub(self.renewed.elapsed());
        let waits_for_slots = self.may_begin() && self.slots.free > 0 && !self.stock.is_empty();
        let until_slots = if waits_for_slots { self.slots.at.left() } else { TICK };
        let time = TICK.min(until_renewal).min(until_slots);
        let mut next = if self.in_flight == 0 {
            // Nothing can come. Only what is owed, a slot, or a returned target is waited for.
            if !self.owed.is_empty() {
                std::thread::sleep(TICK);
            } else if waits_for_slots {
                std::thread::sleep(time);
            }
            Err(RecvTimeoutError::Timeout)
        } else {
            // With a slot at hand and nobody idle to use it, an answer is what is waited for.
            let time = if self.capacity() == 0 { TICK.min(until_renewal) } else { time };
            answered.recv_timeout(time)
        };
        while let Ok((in_flight, outcome)) = next {
            self.hear(in_flight, outcome);
            next = answered.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
    }

    /// From what the channel said to what we write, and what it means for those that follow.
    fn hear(&mut self, in_flight: InFlight, outcome: Outcome) {
        self.in_flight -= 1;
        self.answered += 1;
        let task = self.lease.task();
        let recipient = &in_flight.message().target.recipient;
        log::debug!(target = in_flight.id(), recipient = recipient.as_str(); "answered: {outcome:?}");
        let consequence = self.consequence(&outcome, recipient);
        let (attempt, in_doubt) = (in_flight.attempt(), in_flight.in_doubt());
        let settlement = settlement::settle(outcome, in_doubt, attempt, self.orders.policy, fastrand::f64());
        self.count(&settlement);
        self.lease.count(&settlement);
        self.answers.push(in_flight.answer(task, settlement));
        match consequence {
            Consequence::None => self.stop_after_unknowns(),
            Consequence::Hold(asked) => self.hold(asked),
            Consequence::Pause(reason, recipient) => self.pause(reason, Some(recipient)),
            Consequence::Reject(reason, recipient) => self.stop_after_rejected(&reason, recipient),
        }
    }

    fn consequence(&mut self, outcome: &Outcome, recipient: &str) -> Consequence {
        match outcome {
            Outcome::Deferred { toll: Toll::Unreached, .. } => {
                self.unreached += 1;
                return if self.unreached >= HOLD_AFTER_UNREACHED {
                    Consequence::Hold(None)
                } else {
                    Consequence::None
                };
            }
            Outcome::Deferred { toll: Toll::Nothing, .. } => return Consequence::None,
            _ => self.unreached = 0,
        }
        match outcome {
            Outcome::Accepted { .. } => self.tally.accepted = true,
            Outcome::Deferred { after, toll: Toll::Hold, .. } => return Consequence::Hold(*after),
            Outcome::Unavailable { reason } => {
                let reason = format!("channel unavailable on {}: {reason}", self.orders.host);
                return Consequence::Pause(reason, recipient.to_owned());
            }
            Outcome::Rejected { reason } => {
                self.tally.rejected += 1;
                return Consequence::Reject(reason.clone(), recipient.to_owned());
            }
            _ => {}
        }
        Consequence::None
    }

    /// The message is wrong then, not the people. What could not be rendered counts, too.
    fn stop_after_rejected(&mut self, last: &str, recipient: String) {
        let rejected = self.tally.rejected;
        if rejected >= STOP_AFTER_REJECTED && !self.tally.accepted {
            let reason = format!("{rejected} targets rejected and none accepted; the last: {last}");
            self.pause(reason, Some(recipient));
        }
    }

    fn count(&mut self, settlement: &Settlement) {
        *match settlement {
            Settlement::Sent { .. } => &mut self.served.sent,
            Settlement::Failed { .. } => &mut self.served.failed,
            Settlement::Retry { .. } => &mut self.served.retry,
            Settlement::Unknown { .. } => &mut self.served.unknown,
            Settlement::Returned { .. } => &mut self.served.returned,
        } += 1;
        // A returned target can be claimed again at once.
        self.dry &= !matches!(settlement, Settlement::Returned { .. });
    }

    /// Writes what no begin has taken along.
    fn settle(&mut self) {
        let answers = std::mem::take(&mut self.answers);
        if self.owed.is_empty() {
            if !answers.is_empty() {
                match self.store.settle(answers) {
                    Ok(settled) => self.served.settled.add(settled),
                    Err(unwritten) => self.owe(unwritten),
                }
            }
        } else if !answers.is_empty() {
            // The database fails us, and each question to it may take long: to disk before the next.
            self.keep(answers);
        } else {
            let count = self.owed.len();
            match self.store.settle(std::mem::take(&mut self.owed)) {
                Ok(settled) => {
                    self.served.settled.add(settled);
                    self.orders.journal.written(count);
                    self.unwritten = None;
                }
                Err(Unwritten { answers, why }) => {
                    log::debug!("still not written: {why:#}");
                    self.owed = answers;
                }
            }
        }
    }

    /// To the journal first, then again and again; once all is written the work goes on.
    fn owe(&mut self, Unwritten { answers, why }: Unwritten) {
        if answers.is_empty() {
            return self.fail(why);
        }
        log::info!("{} answers go to the journal: {why:#}", answers.len());
        self.keep(answers);
        self.unwritten = Some(why);
    }

    fn keep(&mut self, answers: Vec<Answer>) {
        if let Err(error) = self.orders.journal.append(&answers) {
            log::error!("{} answers are in memory alone: {error:#}", answers.len());
        }
        self.owed.extend(answers);
    }

    // ---- what ends it ------------------------------------------------------------------------------------------

    /// The clock's work: signals, budget, turn, lease.
    fn keep_up(&mut self, turn_over: &mut dyn FnMut(&mut dyn Relay) -> Result<bool>) {
        if self.orders.stop.asked() {
            self.end(Ended::Stopped);
        }
        if self.orders.closes.is_some_and(Moment::passed) {
            self.end(Ended::Closed);
        }
        // With answers owed nothing more is begun, and a lease that ends does them no harm.
        if self.renewed.elapsed() < RENEWAL || !self.owed.is_empty() {
            return;
        }
        self.renew();
        (self.orders.seen)(&self.served);
        if self.may_begin() {
            match turn_over(self.store) {
                Ok(true) => self.end(Ended::Yielded),
                Ok(false) => {}
                Err(error) => self.fail(error),
            }
        }
    }

    /// Whether the lease is still ours.
    fn renew(&mut self) -> bool {
        self.renewed = Moment::now();
        match self.store.renew(self.lease) {
            Ok(Standing::Ours) => return true,
            Ok(Standing::Lost) => self.end(Ended::Lost),
            Ok(Standing::Halted) => self.end(Ended::Halted),
            Err(error) => self.fail(error.context(format!("renew the lease of task {}", self.lease.task()))),
        }
        false
    }

    fn stop_after_unknowns(&mut self) {
        let run = self.lease.unknown_run();
        if run >= self.orders.policy.stop_after_unknown
            && !matches!(self.served.ended, Some(Ended::Paused(_)))
        {
            let reason = format!(
                "{run} unknown outcomes or crashed runs in a row: see what became of them, then resolve and resume"
            );
            self.pause(reason, None);
        }
    }

    fn hold(&mut self, asked: Option<Duration>) {
        if self.held.is_some_and(|held| asked.unwrap_or_default() <= held) {
            return;
        }
        let backoff = self.orders.policy.backoff;
        match self.store.hold(self.orders.channel, &Hold { asked, first: backoff.first, most: backoff.most })
        {
            Ok(length) => {
                log::info!(channel = self.orders.channel, length:?; "held");
                self.held = Some(length);
                self.end(Ended::Held(length));
            }
            Err(error) => self.fail(error.context(format!("hold channel {}", self.orders.channel))),
        }
    }

    /// `recipient`: whom the reason may repeat.
    fn pause(&mut self, reason: String, recipient: Option<String>) {
        if matches!(self.served.ended, Some(Ended::Paused(_) | Ended::Lost)) {
            return;
        }
        match self.store.pause(self.lease, &reason) {
            Ok(true) => {
                self.served.paused_at = recipient;
                self.end(Ended::Paused(reason));
            }
            Ok(false) => self.end(Ended::Halted),
            Err(error) => self.fail(error.context(format!("pause task {}", self.lease.task()))),
        }
    }
}

enum Consequence {
    None,
    Hold(Option<Duration>),
    /// For this reason, at this recipient.
    Pause(String, String),
    Reject(String, String),
}

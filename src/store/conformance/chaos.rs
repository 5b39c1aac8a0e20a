//! Random stories: two runs, killed between any two calls, claims that end under them, a person's verbs in between, and a
//! provider that remembers for a while what it took. Whatever happens: nothing is delivered twice, nothing is begun for who is
//! suppressed, sent is final, nothing that was delivered is called failed, and in the end every target is sent or failed.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use super::stage::*;
use crate::sender::{Outcome, Toll};
use crate::settlement::{self, Backoff, Policy};

/// So many stories; a server takes its time for each commit.
const STORIES: [u64; 2] = [300, 60];
const STEPS: usize = 60;

pub(super) fn whatever_is_killed_nothing_is_sent_twice_or_lost(stage: &Stage) {
    #[allow(clippy::disallowed_methods, reason = "a story that failed is told again by its seed")]
    let only = std::env::var("BATCH_SEND_TEST_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    if let Some(seed) = only {
        return World::new(stage, seed).play();
    }
    let first = fastrand::u64(..1 << 48);
    for seed in first..first + STORIES[usize::from(!stage.on_sqlite())] {
        World::new(stage, seed).play();
    }
}

/// One run of the binary, as far as it has come.
struct Run {
    store: Box<dyn Store>,
    lease: Option<Lease>,
    claimed: Vec<Claimed>,
    flights: Vec<InFlight>,
    answers: Vec<Answer>,
}

struct World<'a> {
    stage: &'a Stage,
    seed: u64,
    random: fastrand::Rng,
    task: TaskId,
    terms: Terms,
    policy: Policy,
    runs: [Run; 2],
    desk: Box<dyn Store>,
    /// Answers that dead runs wrote down.
    journal: Vec<Answer>,
    /// What the recipients got.
    delivered: BTreeMap<TargetId, u32>,
    /// Keys that the provider remembers.
    remembered: BTreeSet<Uuid>,
    /// In flight beyond their deadline: their senders let nothing leave.
    too_late: BTreeSet<(TargetId, Uuid)>,
    /// Targets seen as sent.
    sent: BTreeSet<TargetId>,
    /// Who wants nothing any more.
    suppressed: BTreeSet<String>,
    story: Vec<String>,
}

impl Drop for World<'_> {
    #[allow(clippy::print_stderr, reason = "the story of a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("BATCH_SEND_TEST_SEED={}\n{}", self.seed, self.story.join("\n"));
        }
    }
}

impl<'a> World<'a> {
    fn new(stage: &'a Stage, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let idempotent = random.bool();
        // No other story's rows: recover is for all tasks.
        stage.sql("DELETE FROM {p}task_target");
        stage.sql("DELETE FROM {p}task");
        stage.sql("DELETE FROM {p}suppression");
        let (task, _) = stage.task(3);
        let run =
            || Run { store: stage.store(), lease: None, claimed: vec![], flights: vec![], answers: vec![] };
        Self {
            stage,
            seed,
            random,
            task,
            terms: if idempotent { keyed() } else { terms() },
            policy: Policy {
                max_attempts: 3,
                backoff: Backoff { first: secs(30), most: secs(60) },
                stop_after_unknown: 5,
                idempotent_for: idempotent.then(|| secs(86_400)),
            },
            runs: [run(), run()],
            desk: stage.store(),
            journal: Vec::new(),
            delivered: BTreeMap::new(),
            remembered: BTreeSet::new(),
            too_late: BTreeSet::new(),
            sent: BTreeSet::new(),
            suppressed: BTreeSet::new(),
            story: vec![format!("idempotent: {idempotent}")],
        }
    }

    fn play(mut self) {
        for _ in 0..STEPS {
            match self.random.u8(..16) {
                0..12 => self.step(),
                12..14 => self.time_passes(),
                _ => self.person(),
            }
            self.check();
        }
        self.finish();
    }

    fn tell(&mut self, what: impl Into<String>) {
        self.story.push(what.into());
    }

    fn plain(&self) -> bool {
        self.policy.idempotent_for.is_none()
    }

    /// One call of one run, or its death.
    fn step(&mut self) {
        let who = self.random.usize(..2);
        let choice = self.random.u8(..20);
        if choice == 0 {
            return self.kill(who);
        }
        let run = &mut self.runs[who];
        let Some(lease) = &mut run.lease else {
            let forced = self.random.u8(..4) == 0;
            if choice < 6 {
                let recovered = run.store.recover(None).unwrap();
                return self.tell(format!("{who} recovers {recovered:?}"));
            }
            let leasing = run.store.lease(self.task, &self.terms, forced).unwrap();
            let told = format!("{who} leases (forced: {forced}): {leasing:?}");
            if let Leasing::Ours(lease) = leasing {
                run.lease = Some(lease);
            }
            return self.tell(told);
        };
        match choice {
            1 => {
                // A run that is told to stop may be slow to listen: nothing rests on its obedience.
                let standing = run.store.renew(lease).unwrap();
                self.tell(format!("{who} renews: {standing:?}"));
            }
            2..5 => {
                let promoted = run.store.promote(lease).unwrap();
                self.tell(format!("{who} promotes {promoted}"));
            }
            5..8 => {
                let claimed = run.store.claim(lease, self.random.usize(1..4)).unwrap();
                let told = format!("{who} claims {:?}", ids(&claimed));
                run.claimed.extend(claimed);
                self.tell(told);
            }
            8..11 => self.begin(who),
            11..14 => self.send(who),
            14..17 => {
                let answers = std::mem::take(&mut run.answers);
                let told = format!("{who} settles {answers:?}");
                let settled = settle(&mut *run.store, answers);
                self.tell(told);
                self.settled(&settled);
            }
            17 => {
                let released = run.store.release(std::mem::take(&mut run.claimed)).unwrap();
                self.tell(format!("{who} releases {released}"));
            }
            18 => {
                let refused = run.claimed.pop().map(|claimed| (claimed, "no name".to_owned()));
                let refused = run.store.refuse(lease, refused.into_iter().collect()).unwrap();
                self.tell(format!("{who} refuses {refused}"));
            }
            _ => {
                let paused = self.random.bool() && run.store.pause(lease, "stop").unwrap();
                let closed = run.lease.take().map(|lease| run.store.close(lease).unwrap());
                self.tell(format!("{who} paused: {paused}, closes: {closed:?}"));
            }
        }
    }

    fn begin(&mut self, who: usize) {
        let run = &mut self.runs[who];
        let Some(lease) = &run.lease else { return };
        let some = self.random.usize(..=run.claimed.len());
        let these: Vec<Ready> = run.claimed.drain(..some).map(|claimed| ready(claimed, lease)).collect();
        let answers = if self.random.bool() { std::mem::take(&mut run.answers) } else { Vec::new() };
        let told = format!("{who} begins {some} and settles {answers:?}");
        let begun = run.store.begin(lease, these, answers).map_err(|unwritten| unwritten.why).unwrap();
        let in_flight: Vec<TargetId> = begun.in_flight.iter().map(InFlight::id).collect();
        if self.plain() {
            let others = self.runs.iter().flat_map(|run| &run.flights).map(InFlight::id).collect::<Vec<_>>();
            assert!(in_flight.iter().all(|id| !others.contains(id)), "{in_flight:?} in two hands");
        }
        for flight in &begun.in_flight {
            let recipient = &flight.message().target.recipient;
            assert!(!self.suppressed.contains(recipient), "{recipient} is suppressed, and was begun");
        }
        self.runs[who].flights.extend(begun.in_flight);
        self.tell(format!(
            "{told}: {in_flight:?}, fenced {:?}, suppressed {:?}",
            begun.fenced, begun.suppressed
        ));
        self.settled(&begun.settled);
    }

    fn settled(&mut self, settled: &Settled) {
        self.tell(format!("    {settled:?}"));
        if self.plain() {
            assert!(settled.duplicates.is_empty(), "accepted twice: {settled:?}");
        }
    }

    /// The message leaves, and the provider takes it or not.
    fn reaches(&mut self, flight: &InFlight, taken: bool) {
        self.tell(format!("    {} reaches the provider: {taken}", flight.id()));
        if !taken || (!self.plain() && !self.remembered.insert(flight.message().key)) {
            return;
        }
        let delivered = self.delivered.entry(flight.id()).or_default();
        *delivered += 1;
        assert_eq!(*delivered, 1, "target {} was delivered twice", flight.id());
    }

    fn send(&mut self, who: usize) {
        let Some(flight) = self.runs[who].flights.pop() else { return };
        let reason = || "why".to_owned();
        let (taken, outcome) = match self.random.u8(..9) {
            _ if self.late(&flight) => (false, Outcome::too_late()),
            0..3 => (true, Outcome::Accepted { receipt: None }),
            3 => (true, Outcome::Unknown { reason: reason() }),
            4 => (false, Outcome::Unknown { reason: reason() }),
            5 => (false, Outcome::Rejected { reason: reason() }),
            6 => (false, Outcome::Unavailable { reason: reason() }),
            _ => (false, Outcome::Deferred { reason: reason(), after: None, toll: Toll::Attempt }),
        };
        self.reaches(&flight, taken);
        let settlement = settlement::settle(outcome, flight.in_doubt(), flight.attempt(), &self.policy, 0.0);
        self.tell(format!("{who} is answered for {}: {settlement:?}", flight.id()));
        self.runs[who].answers.push(flight.answer(self.task, settlement));
    }

    /// Whether it was begun before the provider forgot, and is looked at after.
    fn late(&self, flight: &InFlight) -> bool {
        self.too_late.contains(&(flight.id, flight.token))
    }

    /// kill -9. Some of its messages had left; some of its answers were in the journal.
    fn kill(&mut self, who: usize) {
        self.tell(format!("{who} is killed"));
        let store = self.stage.store();
        let dead = std::mem::replace(
            &mut self.runs[who],
            Run { store, lease: None, claimed: vec![], flights: vec![], answers: vec![] },
        );
        for flight in dead.flights {
            let taken = self.random.bool() && !self.late(&flight);
            self.reaches(&flight, taken);
        }
        for answer in dead.answers {
            if self.random.bool() {
                self.journal.push(answer);
            }
        }
    }

    fn replay(&mut self) {
        let answers: Vec<Answer> = self.journal.iter().map(again).collect();
        // Removed only sometimes: a run may be killed between the replay and the removal.
        if self.random.bool() {
            self.journal.clear();
        }
        let told = format!("the journal is replayed: {answers:?}");
        let settled = settle(&mut *self.desk, answers);
        self.tell(told);
        self.settled(&settled);
    }

    fn time_passes(&mut self) {
        match self.random.u8(..9) {
            0..2 => {
                self.stage.end_claims();
                self.tell("claims end");
            }
            2..4 => {
                self.stage.end_leases();
                self.tell("leases end");
            }
            4..6 => {
                self.stage.end_waits();
                self.tell("retries come");
            }
            6 => {
                // Past every window. What was begun within one and has not left is past its deadline, too.
                self.stage.age("dedupe_until", None, 1);
                self.remembered.clear();
                let flights = self.runs.iter().flat_map(|run| &run.flights);
                self.too_late.extend(flights.map(|flight| (flight.id, flight.token)));
                self.tell("the provider forgets");
            }
            _ => self.replay(),
        }
    }

    fn person(&mut self) {
        use TaskStatus::{Paused, Pending};
        match self.random.u8(..7) {
            6 => self.suppress(),
            0 => {
                let turned = turn(&mut *self.desk, self.task, &[Pending], Paused);
                self.tell(format!("a person pauses: {turned:?}"));
            }
            1..3 => {
                let turned = turn(&mut *self.desk, self.task, &[Paused], Pending);
                self.tell(format!("a person resumes: {turned:?}"));
            }
            3 => self.resolve(),
            4 => {
                let changed = self.desk.requeue(self.task, None, &ACT).unwrap().changed;
                self.tell(format!("a person asks for {changed} retries"));
            }
            _ => {
                let name = format!("n{}", self.random.u8(..4));
                let added = self.desk.add(self.task, &[recipient(&name)]).unwrap();
                self.tell(format!("a person adds {name}: {added:?}"));
            }
        }
    }

    /// Somebody unsubscribes, or subscribes again.
    fn suppress(&mut self) {
        let recipient = format!("r{}", self.random.u8(1..=3));
        if self.suppressed.remove(&recipient) {
            assert_eq!(self.desk.unsuppress(&recipient, None, &ACT).unwrap(), 1);
            return self.tell(format!("{recipient} subscribes again"));
        }
        let row =
            Suppression { recipient: recipient.to_uppercase(), channel: None, reason: None, since: None };
        assert_eq!(self.desk.suppress(&[row], &ACT).unwrap().new, 1);
        self.tell(format!("{recipient} unsubscribes"));
        self.suppressed.insert(recipient);
    }

    /// A person who asked the provider settles what is unknown, and waits while a run may still send it.
    fn resolve(&mut self) {
        for (id, status) in self.statuses() {
            let held = self.runs.iter().flat_map(|run| &run.flights).any(|flight| flight.id() == id);
            if status != "unknown" || held {
                continue;
            }
            let verdict = match self.delivered.contains_key(&id) {
                true => Verdict::Sent,
                false if self.random.bool() => Verdict::Retry,
                false => Verdict::Failed,
            };
            let changed = self.desk.resolve(self.task, Some(&[id]), verdict, &ACT).unwrap();
            self.tell(format!("a person resolves {id} as {verdict:?}: {changed}"));
        }
    }

    fn statuses(&self) -> Vec<(TargetId, String)> {
        let rows = self.stage.rows("SELECT id, status FROM {p}task_target ORDER BY id");
        rows.into_iter().map(|row| (row[0].parse().unwrap(), row[1].clone())).collect()
    }

    fn check(&mut self) {
        for (id, status) in self.statuses() {
            let delivered = self.delivered.get(&id).copied().unwrap_or(0);
            match status.as_str() {
                "sent" => {
                    assert_eq!(delivered, 1, "target {id} is sent, and was not delivered");
                    self.sent.insert(id);
                }
                "failed" => assert_eq!(delivered, 0, "target {id} failed, and was delivered"),
                _ => {}
            }
            assert!(status == "sent" || !self.sent.contains(&id), "target {id} was sent, and is {status}");
        }
    }

    /// All die; then the next minutes' runs, undisturbed.
    fn finish(&mut self) {
        for who in 0..2 {
            self.kill(who);
        }
        self.replay();
        for minute in 0.. {
            assert!(minute < 10, "lost: {:?}", self.statuses());
            self.stage.end_claims();
            self.stage.end_leases();
            self.stage.end_waits();
            let recovered = self.desk.recover(None).unwrap();
            self.tell(format!("in the end recovered {recovered:?}"));
            self.resolve();
            turn(&mut *self.desk, self.task, &[TaskStatus::Paused], TaskStatus::Pending);
            self.check();
            let leasing = self.desk.lease(self.task, &self.terms, false).unwrap();
            let Leasing::Ours(lease) = leasing else {
                assert_eq!(task_status(&mut *self.desk, self.task), TaskStatus::Finished);
                break;
            };
            self.desk.promote(&lease).unwrap();
            let mut answers = Vec::new();
            for flight in begin(&mut *self.desk, &lease, 100) {
                self.reaches(&flight, true);
                answers.push(flight.answer(self.task, sent()));
            }
            settle(&mut *self.desk, answers);
            close(&mut *self.desk, lease);
            self.check();
        }
        let open = self.statuses().into_iter().filter(|(_, status)| status != "sent" && status != "failed");
        assert_eq!(open.count(), 0);
        let (_, counts) = self.desk.tasks(Some(self.task), false).unwrap().pop().unwrap();
        assert_eq!(counts.sent as usize, self.sent.len());
        assert_eq!(counts.total() as usize, self.statuses().len());
    }
}

//! skeleton
use super::*;
pub struct Settings {}
impl Settings {
    pub fn new(_url: &str, _prefix: &str, _claim: ClaimForm) -> Result<Self> {
        unimplemented!()
    }
    pub fn identity(&self) -> String {
        unimplemented!()
    }
}
pub struct MySql {}
impl MySql {
    pub fn connect(_settings: &Settings) -> Result<Self> {
        unimplemented!()
    }
}
impl Relay for MySql {
    fn recover(&mut self, only: Option<TaskId>) -> Result<Recovered> {
        unimplemented!()
    }
    fn strays(&mut self, channels: &[&str]) -> Result<Vec<Stray>> {
        unimplemented!()
    }
    fn due(&mut self, channels: &[&str], left_alone: &[TaskId]) -> Result<Option<Task>> {
        unimplemented!()
    }
    fn lease(&mut self, task: TaskId, terms: &Terms, beside: bool) -> Result<Leasing> {
        unimplemented!()
    }
    fn renew(&mut self, lease: &mut Lease) -> Result<Standing> {
        unimplemented!()
    }
    fn promote(&mut self, lease: &Lease) -> Result<u64> {
        unimplemented!()
    }
    fn claim(&mut self, lease: &Lease, most: usize) -> Result<Vec<Claimed>> {
        unimplemented!()
    }
    fn refuse(&mut self, lease: &Lease, refused: Vec<(Claimed, String)>) -> Result<u64> {
        unimplemented!()
    }
    fn begin(&mut self, lease: &Lease, ready: Vec<Ready>, answers: Vec<Answer>) -> Result<Begun, Unwritten> {
        unimplemented!()
    }
    fn settle(&mut self, answers: Vec<Answer>) -> Result<Settled, Unwritten> {
        unimplemented!()
    }
    fn release(&mut self, rest: Vec<Claimed>) -> Result<u64> {
        unimplemented!()
    }
    fn hold(&mut self, channel: &str, hold: &Hold) -> Result<Duration> {
        unimplemented!()
    }
    fn pause(&mut self, lease: &Lease, reason: &str) -> Result<bool> {
        unimplemented!()
    }
    fn close(&mut self, lease: Lease) -> Result<Closed> {
        unimplemented!()
    }
}
impl Desk for MySql {
    fn schema(&mut self) -> Result<Schema> {
        unimplemented!()
    }
    fn migrate(&mut self, patience: Duration) -> Result<Migrated> {
        unimplemented!()
    }
    fn drop_tables(&mut self) -> Result<()> {
        unimplemented!()
    }
    fn create(&mut self, task: &NewTask<'_>) -> Result<TaskId> {
        unimplemented!()
    }
    fn add(&mut self, task: TaskId, rows: &[NewTarget]) -> Result<Added> {
        unimplemented!()
    }
    fn turn(
        &mut self,
        task: TaskId,
        from: &[TaskStatus],
        to: TaskStatus,
        reason: Option<&str>,
        expiry: Expiry,
        act: &Act<'_>,
    ) -> Result<Turned> {
        unimplemented!()
    }
    fn task(&mut self, id: TaskId) -> Result<Option<Task>> {
        unimplemented!()
    }
    fn tasks(&mut self, only: Option<TaskId>, exact: bool) -> Result<Vec<(Task, Counts)>> {
        unimplemented!()
    }
    fn peek(&mut self, task: TaskId, most: usize) -> Result<Vec<Target>> {
        unimplemented!()
    }
    fn targets(
        &mut self,
        task: TaskId,
        statuses: &[&str],
        each: &mut dyn FnMut(TargetRow) -> Result<()>,
    ) -> Result<()> {
        unimplemented!()
    }
    fn resolve(
        &mut self,
        task: TaskId,
        targets: Option<&[TargetId]>,
        to: Verdict,
        act: &Act<'_>,
    ) -> Result<u64> {
        unimplemented!()
    }
    fn requeue(&mut self, task: TaskId, act: &Act<'_>) -> Result<u64> {
        unimplemented!()
    }
}

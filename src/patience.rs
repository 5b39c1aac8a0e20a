//! Calls that may never come back, as to a file system that has gone away or the system's look-up of names: made in a thread of their
//! own, and waited for so long and no longer. What does not come back is left to itself, and ends with the process.

use std::io::{self, ErrorKind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Errors: [`ErrorKind::TimedOut`], or that there is no thread to be had.
pub fn within<T: Send + 'static>(
    time: Duration,
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (answer, answers) = mpsc::channel();
    thread::Builder::new().name(name.into()).spawn(move || {
        // Nobody waits any more once the time is over.
        answer.send(call()).ok();
    })?;
    answers.recv_timeout(time).map_err(|_| io::Error::new(ErrorKind::TimedOut, "no answer in time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_comes_back_is_left() {
        assert_eq!(within(Duration::from_secs(20), "quick", || 7).unwrap(), 7);
        let (_held, never) = mpsc::channel::<()>();
        let lost = within(Duration::from_millis(10), "slow", move || never.recv().ok());
        assert_eq!(lost.unwrap_err().kind(), ErrorKind::TimedOut);
    }
}

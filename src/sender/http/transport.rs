//! How far an exchange came: ureq's own name look-up, TCP and TLS, with a mark at each step. ureq reports "reset before
//! anything had left" and "reset after all had left" as the same error, and for the promise they are worlds
//! apart. Everything that rests on `ureq::unversioned` is in this file; what the marks mean is in http.rs.

use std::cell::Cell;
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, NextTimeout, RustlsConnector, TcpConnector, Transport,
};
use ureq::{Agent, Error};

use crate::moment::Moment;

/// The last step that an exchange took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has a name to look up, or a connection to find.
    LookUp,
    Connect,
    /// TCP is up, TLS is not.
    Secure,
    /// Its time was over before the first byte left: nothing was sent.
    TooLate,
    /// The first byte of the request went to the connection. From here on it may have arrived.
    Sent,
}

/// What was seen of one exchange.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    until: Moment,
    pub step: Step,
    /// Reading ended in an error: where only the end of the connection ends the body, it was cut short.
    pub broken: bool,
}

thread_local! {
    // ureq does all of an exchange on the thread that asked for it, and has no other way to hand something through
    // to its transport. Outside of `watch` every moment is too late.
    static SEEN: Cell<Seen> =
        Cell::new(Seen { until: Moment::at_seconds(0), step: Step::TooLate, broken: false });
}

/// Runs one exchange on an agent of [`agent`]; past `until` its first byte does not leave.
pub fn watch<T>(until: Moment, exchange: impl FnOnce() -> T) -> (T, Seen) {
    SEEN.set(Seen { until, step: Step::LookUp, broken: false });
    let answer = exchange();
    (answer, SEEN.get())
}

fn mark(step: Step) {
    SEEN.set(Seen { step, ..SEEN.get() });
}

/// An agent whose exchanges can be watched. For one host: it remembers the addresses of the last one.
pub fn agent(config: Config) -> Agent {
    Agent::with_parts(config, MarkingConnector::default(), RememberingResolver::default())
}

/// For so long the addresses of the host are good.
const REMEMBERED: Duration = Duration::from_secs(5);

/// Asks for the host's addresses once, and remembers them. By itself ureq starts a thread and looks the name up for each
/// message, even with a connection at hand; with 256 senders these threads alone took 12 MiB.
#[derive(Debug, Default)]
struct RememberingResolver {
    resolver: DefaultResolver,
    known: Mutex<Known>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct Known {
    /// A thread is asking; the others wait for it.
    asked: bool,
    addresses: Option<(Moment, ResolvedSocketAddrs)>,
}

impl Resolver for RememberingResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let until = Moment::now() + *timeout.after;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut known, waited) = self
            .answered
            .wait_timeout_while(known, *timeout.after, |known| known.asked)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(Error::Timeout(timeout.reason));
        }
        if let Some((since, addresses)) = &known.addresses
            && since.elapsed() < REMEMBERED
        {
            return Ok(addresses.clone());
        }
        known.asked = true;
        drop(known);

        let left = NextTimeout { after: until.left().into(), ..timeout };
        let answer = self.resolver.resolve(uri, config, left);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.asked = false;
        known.addresses = answer.as_ref().ok().map(|addresses| (Moment::now(), addresses.clone()));
        self.answered.notify_all();
        answer
    }
}

type Tcp = <TcpConnector as Connector>::Out;
type Tls = <RustlsConnector as Connector<Tcp>>::Out;

#[derive(Debug, Default)]
struct MarkingConnector {
    tcp: TcpConnector,
    tls: RustlsConnector,
}

impl Connector for MarkingConnector {
    type Out = Marking<Tls>;

    fn connect(&self, details: &ConnectionDetails, _: Option<()>) -> Result<Option<Self::Out>, Error> {
        mark(Step::Connect);
        let tcp = self.tcp.connect(details, None)?;
        if details.needs_tls() {
            mark(Step::Secure);
        }
        let tls = self.tls.connect(details, tcp)?;
        Ok(tls.map(Marking))
    }
}

/// The outermost transport, above TLS: what passes here are bytes of requests and answers.
#[derive(Debug)]
struct Marking<T>(T);

impl<T: Transport> Transport for Marking<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let seen = SEEN.get();
        if seen.step != Step::Sent {
            if seen.until.passed() {
                mark(Step::TooLate);
                return Err(io::Error::other("the time allowed had passed").into());
            }
            mark(Step::Sent);
        }
        self.0.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let read = self.0.await_input(timeout);
        if read.is_err() {
            SEEN.set(Seen { broken: true, ..SEEN.get() });
        }
        read
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }

    fn is_tls(&self) -> bool {
        self.0.is_tls()
    }
}

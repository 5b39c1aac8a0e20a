//! The access token that each message needs: asked for once for all threads, kept until shortly before it ends, asked for anew
//! when the API refuses it. Nothing of a message has left while one is asked for. It is a secret, and shows nowhere.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use ureq::http::Uri;

use super::{MINUTE, Span, errcode, post, rules};
use crate::moment::Moment;
use crate::sender::http::answers::{After, Rules, Verdict};
use crate::sender::http::exchange::{Answer, Client};
use crate::sender::{Outcome, Secrets, Toll, percent_encoded};

/// So long before its end a token is not used any more: the message has to arrive in time, too.
const MARGIN: Duration = Duration::from_secs(60);

/// Bytes of a token as it stands in a URL. The API says that 512 are to be expected.
pub const LONGEST: usize = 2048;

/// What errcodes mean when a token was asked for. What is not listed is asked again later: nothing of a message has left.
const TABLE: &[(&[i64], Verdict)] = &[
    // For a person: appid or secret wrong or frozen, this host's address not allowed, the account blocked.
    (
        &[
            40001, 40002, 40013, 40125, 40164, 40243, 41002, 41004, 43002, 48001, 48004, 50004, 50007, 61004,
            61024, 89501, 89503, 89506, 89507,
        ],
        Verdict::Unavailable,
    ),
    (&[45009], Verdict::Deferred { after: After::Unsaid, toll: Toll::Hold }),
    (&[45011], Verdict::Deferred { after: After::Fixed(MINUTE), toll: Toll::Hold }),
];

/// One access token. Without `Debug`: it is a secret.
pub struct Token {
    text: String,
    /// As it stands in a URL.
    pub query: String,
    /// It, the one before, and the secret that both were asked for with.
    pub secrets: Secrets,
}

/// The access tokens of one account, one after the other.
pub struct Tokens {
    uri: Uri,
    secret: String,
    /// What hides the secret.
    secrets: Secrets,
    /// Asks for the token that there is, or for a new one when that ends soon: as often as one likes.
    ordinary: String,
    /// Asks for a new one, and ends the other: 20 times a day.
    forced: String,
    rules: Rules,
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    /// The token that messages go out with, and until when it is good.
    current: Option<(Arc<Token>, Moment)>,
    /// The last one that a message was refused with.
    refused: Option<Arc<Token>>,
    /// A new one was asked for by force: not twice in a run.
    forced: bool,
    /// A thread is asking; the others wait for it.
    asking: bool,
    /// How many times somebody has asked, and why the last of them got none.
    asked: u64,
    failure: Option<Outcome>,
}

impl State {
    fn was_refused(&self, token: &Token) -> bool {
        self.refused.as_ref().is_some_and(|refused| refused.text == token.text)
    }
}

impl Tokens {
    pub fn new(uri: Uri, appid: &str, secret: &str) -> Result<Self> {
        let body = |forced: bool| {
            json!({"grant_type": "client_credential", "appid": appid, "secret": secret, "force_refresh": forced})
                .to_string()
        };
        Ok(Self {
            uri,
            secret: secret.to_owned(),
            secrets: Secrets::new([secret].into_iter()),
            ordinary: body(false),
            forced: body(true),
            rules: rules(TABLE)?,
            state: Mutex::default(),
            answered: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token for one message, another than the one it was `refused` with. Without one, nothing of the message has left.
    pub fn get(&self, client: &Client, span: Span, refused: Option<&Token>) -> Result<Arc<Token>, Outcome> {
        let fits = |token: &Token| refused.is_none_or(|refused| refused.text != token.text);
        let mut state = self.state();
        loop {
            if let Some((token, until)) = &state.current
                && fits(token)
                && !until.passed()
            {
                return Ok(token.clone());
            }
            if !state.asking {
                break;
            }
            let before = state.asked;
            let (waited, _) = self
                .answered
                .wait_timeout_while(state, span.left(), |state| state.asked == before)
                .unwrap_or_else(PoisonError::into_inner);
            state = waited;
            if state.asked == before {
                return Err(nothing_left(span.waited_in_vain()));
            }
            match &state.failure {
                // That thread came too late, which says nothing of this one.
                None | Some(Outcome::Deferred { toll: Toll::Nothing, .. }) => {}
                Some(outcome) => return Err(outcome.clone()),
            }
        }
        state.asking = true;
        drop(state);
        let mut asking = Asking { tokens: self, answer: None };
        let answer = self.ask(client, span);
        let token = answer.as_ref().map(|(token, _)| token.clone()).map_err(Clone::clone);
        asking.answer = Some(answer);
        token
    }

    /// A message was refused with it: no other shall be, unless there is a newer one already.
    pub fn forget(&self, token: &Arc<Token>) {
        let mut state = self.state();
        if state.current.as_ref().is_some_and(|(current, _)| current.text == token.text) {
            state.current = None;
            state.refused = Some(token.clone());
        }
    }

    /// Asks; once more, and by force, if the API gives out the very token that it has refused.
    fn ask(&self, client: &Client, span: Span) -> Result<(Arc<Token>, Moment), Outcome> {
        let refused = || Outcome::Unavailable {
            reason: "the API gives out an access token that it refuses with a message".into(),
        };
        let new = self.fetch(client, span, &self.ordinary)?;
        {
            let mut state = self.state();
            if !state.was_refused(&new.0) {
                return Ok(new);
            }
            if std::mem::replace(&mut state.forced, true) {
                return Err(refused());
            }
        }
        let new = self.fetch(client, span, &self.forced)?;
        if self.state().was_refused(&new.0) { Err(refused()) } else { Ok(new) }
    }

    /// One token from the API, and until when it is good.
    fn fetch(&self, client: &Client, span: Span, body: &str) -> Result<(Arc<Token>, Moment), Outcome> {
        // Its time counts from before it was made.
        let asked = Moment::now();
        let request = post(self.uri.clone(), body);
        let answer = client.exchange(request, span.bounds(), &self.secrets).map_err(nothing_left)?;
        let (token, lasts) = self.read(answer).map_err(nothing_left)?;
        Ok((Arc::new(token), asked + lasts.saturating_sub(MARGIN)))
    }

    fn token(&self, text: &str) -> Token {
        let state = self.state();
        let before = state.refused.as_ref().map(|token| token.text.as_str());
        let secrets = Secrets::new([text, self.secret.as_str()].into_iter().chain(before));
        Token { text: text.to_owned(), query: percent_encoded(text), secrets }
    }

    /// The token in an answer, and how long it lasts.
    fn read(&self, mut answer: Answer) -> Result<(Token, Duration), Outcome> {
        let body = answer.json().filter(|body| answer.status == 200 && body.is_object());
        let text = body.and_then(|body| body["access_token"].as_str()).unwrap_or_default();
        let lasts = body.and_then(|body| body["expires_in"].as_u64()).map(Duration::from_secs);
        let token = self.token(text);
        let good = (1..=LONGEST).contains(&token.query.len()) && errcode(&answer) == Some(0);
        match lasts {
            Some(lasts) if good => return Ok((token, lasts)),
            // It may hold a token, or the beginning of one, that is not known and would be shown.
            _ if body.is_none() => answer.body.clear(),
            _ => {}
        }
        Err(self.rules.judge(&answer, &token.secrets))
    }
}

#[cfg(test)]
impl Tokens {
    /// The token that the next message would go out with.
    pub fn holds(&self) -> Option<String> {
        self.state().current.as_ref().map(|(token, _)| token.text.clone())
    }

    /// As if a thread had begun to ask; without an answer when it is dropped.
    pub fn is_asked_for(&self) -> impl Drop {
        self.state().asking = true;
        Asking { tokens: self, answer: None }
    }
}

/// The thread that asks. Whatever becomes of it, the others do not wait for ever.
struct Asking<'a> {
    tokens: &'a Tokens,
    answer: Option<Result<(Arc<Token>, Moment), Outcome>>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.tokens.state();
        state.asking = false;
        state.asked += 1;
        state.failure = None;
        match self.answer.take() {
            Some(Ok(new)) => state.current = Some(new),
            Some(Err(outcome)) => state.failure = Some(outcome),
            None => {}
        }
        self.tokens.answered.notify_all();
    }
}

/// What it means for a message that no token came: nothing of the message has left.
fn nothing_left(outcome: Outcome) -> Outcome {
    let no_token = |reason: String| format!("no access token: {reason}");
    match outcome {
        Outcome::Deferred { toll: Toll::Nothing, .. } => outcome,
        Outcome::Deferred { reason, after, toll: Toll::Hold } => {
            Outcome::Deferred { reason: no_token(reason), after, toll: Toll::Hold }
        }
        Outcome::Deferred { reason, .. } | Outcome::Unknown { reason } => {
            Outcome::unreached(no_token(reason))
        }
        Outcome::Unavailable { reason } | Outcome::Rejected { reason } => {
            Outcome::Unavailable { reason: no_token(reason) }
        }
        Outcome::Accepted { .. } => Outcome::unreached(no_token("the answer is none of the API".into())),
    }
}

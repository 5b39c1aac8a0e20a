//! From a task and a target to the message that is sent: the idempotency key, the template, the JSON form. Pure: the
//! same task, target and attempt give the same message, byte for byte.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::target::{Target, TargetId};
use crate::task::{Task, TaskId};

/// What goes to a channel for one target. Its JSON form is public: the stdin of `exec`, a line of `file` and of
/// `run --dry-run`.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    /// The same on every attempt: a provider that deduplicates by it delivers once.
    pub key: Uuid,
    /// From 1.
    pub attempt: u16,
    pub task: Arc<TaskPart>,
    pub target: TargetPart,
    /// The rendered templates of the channel, JSON on one line: its `body`, or each of its texts by name; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize)]
pub struct TaskPart {
    pub id: TaskId,
    pub name: String,
    pub payload: Box<RawValue>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TargetPart {
    pub id: TargetId,
    pub recipient: String,
    pub params: Box<RawValue>,
}

impl Message {
    /// The public form: JSON on one line, the line break included.
    pub fn line(&self) -> Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self).context("the message has no JSON form")?;
        line.push(b'\n');
        Ok(line)
    }

    /// Hash of what the recipient would get, for the byte-identical resend of a target in doubt. The attempt is no part of it.
    pub fn hash(&self) -> [u8; 16] {
        let body = self.body.as_ref().map_or("", |body| body.get());
        let parts =
            [self.task.payload.get(), &self.target.recipient, self.target.params.get(), body].join("\0");
        *Uuid::new_v5(&self.key, parts.as_bytes()).as_bytes()
    }
}

/// The idempotency key: the same on every attempt, another after a person's `retry` of a failed target (`round`), and
/// never that of another target: the task's `created_at` tells ids apart that come round again after a TRUNCATE
/// or in a restored database. So it does after a purge, where the server is older than MySQL 8.0: started again, it goes on from the
/// highest ids that are left. A new task that gets an old id has another `created_at`. A new target with an old id is one of a new
/// task, too: of a task that has lost a target to a purge nothing is sent any more, and nothing is added to it (`Desk::condemn`).
pub fn key(installation: Uuid, task: &Task, target: &Target) -> Uuid {
    let name = format!("{}:{}:{}:{}", task.id, task.created_at.timestamp_millis(), target.id, target.round);
    Uuid::new_v5(&installation, name.as_bytes())
}

/// A channel's templates, parsed once.
pub struct Template {
    environment: Environment<'static>,
    form: Form,
}

/// What the rendered templates make.
enum Form {
    /// One template, whose values are escaped as JSON, renders the JSON itself.
    Json,
    /// Each template renders a text; together they are a JSON object of strings, in this order.
    Texts(Vec<String>),
}

const BODY: &str = "body";

/// The text whose values are escaped as HTML.
const HTML: &str = "html";

/// The names that a template may use. `task.payload` and `target.params` go on as the application likes.
const KNOWN: [&str; 8] = [
    "task.id",
    "task.name",
    "task.payload",
    "target.id",
    "target.recipient",
    "target.params",
    "key",
    "attempt",
];

/// Whether a name, as far as it is written out, is one of these or leads to one.
fn is_known(name: &str) -> bool {
    KNOWN.iter().any(|known| {
        let free =
            matches!(*known, "task.payload" | "target.params") && name.starts_with(&format!("{known}."));
        free || name == *known || known.starts_with(&format!("{name}."))
    })
}

impl Template {
    /// A `body` that renders to JSON. `with_attempt`: it may use `attempt`; where a resend must be the same as the first, it
    /// may not. Errors: what minijinja says of the source, with its line; a name that no message has.
    pub fn json(body: &str, with_attempt: bool) -> Result<Self> {
        Self::parse(&[(BODY, body)], Form::Json, with_attempt)
    }

    /// Texts by name; in the one named `html` values are escaped as HTML, in the others they stand as they are. Errors: as above,
    /// with the text's name.
    pub fn texts(texts: &[(&str, &str)], with_attempt: bool) -> Result<Self> {
        let names = texts.iter().map(|(name, _)| (*name).to_owned()).collect();
        Self::parse(texts, Form::Texts(names), with_attempt)
    }

    fn parse(sources: &[(&str, &str)], form: Form, with_attempt: bool) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        let is_json = matches!(form, Form::Json);
        environment.set_auto_escape_callback(move |name| match name {
            _ if is_json => AutoEscape::Json,
            HTML => AutoEscape::Html,
            _ => AutoEscape::None,
        });
        for (name, source) in sources {
            environment
                .add_template_owned((*name).to_owned(), (*source).to_owned())
                .map_err(|error| anyhow!("{}", describe(&error, name, source)))?;
            let names = environment.get_template(name)?.undeclared_variables(true);
            if names.contains("attempt") && !with_attempt {
                bail!(
                    "`attempt` would make a message differ each time, and with `idempotent_for` each must be the same"
                );
            }
            let unknown = names.into_iter().filter(|name| !is_known(name)).min();
            if let Some(unknown) = unknown {
                bail!("unknown variable `{unknown}` in the {name}: it may use {}", KNOWN.join(", "));
            }
        }
        Ok(Self { environment, form })
    }

    /// Whether it has the recipient of the target in it.
    pub fn names_recipient(&self) -> bool {
        self.environment.templates().any(|(_, template)| {
            let names = template.undeclared_variables(true);
            names.contains("target") || names.contains("target.recipient")
        })
    }

    /// JSON on one line.
    fn render(&self, context: minijinja::Value) -> Result<Box<RawValue>> {
        let text = |name: &str| {
            let source = self.environment.get_template(name)?;
            source.render(&context).map_err(|error| {
                let undefined = undefined(&error, &source, &self.environment, &context);
                anyhow!("{}", undefined.unwrap_or_else(|| describe(&error, name, source.source())))
            })
        };
        match &self.form {
            Form::Json => {
                json(Some(&text(BODY)?)).map_err(|error| anyhow!("the rendered {BODY} is not JSON: {error}"))
            }
            Form::Texts(names) => {
                let texts = names.iter().map(|name| Ok((name.clone(), text(name)?.into())));
                let texts = texts.collect::<Result<serde_json::Map<_, _>>>()?;
                Ok(serde_json::value::to_raw_value(&texts)?)
            }
        }
    }
}

/// Renders the messages of one task. Holds what they share, so that the payload is parsed once.
pub struct Renderer<'a> {
    installation: Uuid,
    task: &'a Task,
    part: Result<Arc<TaskPart>, String>,
    payload: minijinja::Value,
    template: Option<&'a Template>,
    /// Everything goes to this recipient instead.
    redirect_to: Option<&'a str>,
}

impl<'a> Renderer<'a> {
    pub fn new(
        installation: Uuid,
        task: &'a Task,
        template: Option<&'a Template>,
        redirect_to: Option<&'a str>,
    ) -> Self {
        let part = json(task.payload.as_deref())
            .map_err(|error| format!("payload of the task is not JSON: {error}"));
        let payload = part.as_ref().map_or(minijinja::Value::UNDEFINED, |raw| value(raw));
        let part = part.map(|payload| Arc::new(TaskPart { id: task.id, name: task.name.clone(), payload }));
        Self { installation, task, part, payload, template, redirect_to }
    }

    /// The message of the next attempt of `target`. Errors are about this target alone, and name what is
    /// wrong: the variable that is missing, or where the rendered body stops being JSON.
    pub fn render(&self, target: &Target) -> Result<Message> {
        let key = key(self.installation, self.task, target);
        // Redirected, it is another message: the provider must not take the real one for a repeat of it.
        let key = self.redirect_to.map_or(key, |recipient| Uuid::new_v5(&key, recipient.as_bytes()));
        self.render_as(target, key, &target.recipient)
    }

    /// The same for somebody else to look at: under a key that is not the target's, and to another recipient, unless everything is
    /// redirected anyway.
    pub fn render_as(&self, target: &Target, key: Uuid, recipient: &str) -> Result<Message> {
        let part = self.part.clone().map_err(|error| anyhow!(error))?;
        let params = json(target.params.as_deref()).context("params are not JSON")?;
        if !params.get().trim_start().starts_with('{') {
            bail!("params are not a JSON object");
        }
        let attempt = target.attempts.saturating_add(1);
        let recipient = self.redirect_to.unwrap_or(recipient).to_owned();
        let target = TargetPart { id: target.id, recipient, params };
        let body =
            self.template.map(|template| template.render(self.context(&target, key, attempt))).transpose()?;
        Ok(Message { key, attempt, task: part, target, body })
    }

    fn context(&self, target: &TargetPart, key: Uuid, attempt: u16) -> minijinja::Value {
        use minijinja::context;
        let TargetPart { id, recipient, params } = target;
        context! {
            task => context! { id => self.task.id, name => &self.task.name, payload => &self.payload },
            target => context! { id => id, recipient => recipient, params => value(params) },
            key => key.to_string(),
            attempt => attempt,
        }
    }
}

/// JSON text on one line: outside strings a line break is white space, and inside them JSON allows none.
fn json(text: Option<&str>) -> Result<Box<RawValue>, serde_json::Error> {
    let text = text.unwrap_or("{}");
    serde_json::from_str::<&RawValue>(text)?;
    RawValue::from_string(text.replace(['\r', '\n'], " "))
}

fn value(raw: &RawValue) -> minijinja::Value {
    serde_json::from_str::<serde_json::Value>(raw.get())
        .map_or(minijinja::Value::UNDEFINED, |value| minijinja::Value::from(Serde(value)))
}

/// What the error is about, from the beginning of its first name: of `a.b.c` minijinja may point at `.b.c`.
fn expression<'a>(error: &minijinja::Error, source: &'a str) -> Option<&'a str> {
    let range = error.range()?;
    let before = source.get(..range.start)?;
    let in_a_name = source.get(range.clone())?.starts_with('.');
    let begin =
        before.trim_end_matches(|c: char| in_a_name && (c.is_alphanumeric() || "._".contains(c))).len();
    source.get(begin..range.end)
}

/// The variable of a larger expression that is undefined, where that can be told: minijinja says only which expression it is
/// in. None where it is not one of the message, but one that the template itself has set.
fn undefined(
    error: &minijinja::Error,
    template: &minijinja::Template<'_, '_>,
    environment: &Environment<'_>,
    context: &minijinja::Value,
) -> Option<String> {
    if error.kind() != minijinja::ErrorKind::UndefinedError {
        return None;
    }
    let expression = expression(error, template.source())?;
    let names = environment.compile_expression(expression).ok()?.undeclared_variables(true);
    let of_the_message = template.undeclared_variables(true);
    let is_there = |name: &str| {
        let found = name.split('.').try_fold(context.clone(), |value, part| value.get_attr(part).ok());
        found.is_some_and(|value| !value.is_undefined())
    };
    let mut lacking: Vec<_> = names
        .into_iter()
        .filter(|name| of_the_message.contains(name) && !is_there(name))
        .map(|name| format!("`{name}`"))
        .collect();
    lacking.sort();
    let line =
        error.line().map_or(String::new(), |line| format!(" in line {line} of the {}", template.name()));
    (!lacking.is_empty()).then(|| format!("undefined variable {}{line}", lacking.join(" or ")))
}

/// minijinja's words, with the expression that is undefined: "undefined value" alone does not say which.
fn describe(error: &minijinja::Error, name: &str, source: &str) -> String {
    let text = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    let line = error.line().map_or(String::new(), |line| format!(" in line {line} of the {name}"));
    match expression(error, source) {
        Some(expression) if error.kind() == minijinja::ErrorKind::UndefinedError => {
            format!("undefined variable `{}`{line}", expression.trim())
        }
        _ => format!("{text}{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::TaskStatus;
    use chrono::DateTime;

    fn task(payload: Option<&str>) -> Task {
        Task {
            id: 7,
            name: "Spring".into(),
            channel: "c".into(),
            payload: payload.map(str::to_owned),
            status: TaskStatus::Pending,
            status_reason: None,
            priority: 0,
            scheduled_at: None,
            expires_at: None,
            created_at: DateTime::from_timestamp_millis(1_700_000_000_123).unwrap(),
            started_at: None,
            finished_at: None,
            lease: None,
            early: false,
            expired: false,
            held_until: None,
        }
    }

    fn target(params: Option<&str>) -> Target {
        Target {
            id: 9,
            recipient: "ann@example.com".into(),
            params: params.map(str::to_owned),
            attempts: 0,
            round: 0,
            in_doubt: false,
        }
    }

    fn render(body: &str, payload: Option<&str>, params: Option<&str>) -> Result<String, String> {
        let task = task(payload);
        let template = Template::json(body, true).map_err(|error| error.to_string())?;
        let message = Renderer::new(Uuid::nil(), &task, Some(&template), None)
            .render(&target(params))
            .map_err(|error| format!("{error:#}"))?;
        Ok(message.body.unwrap().get().to_owned())
    }

    #[test]
    fn values_are_escaped_as_json_and_stay_on_one_line() {
        let body = "{\n\"to\": {{ target.recipient }},\r\n\"text\": {{ \"Hi \" ~ target.params.name }}, \"n\": {{ task.payload.n }}}";
        let params = r#"{"name": "O'Neil \"\ud83d\ude00\"\r\n</script>"}"#;
        let rendered = render(body, Some(r#"{"n": [1, {"b": 1, "a": null}]}"#), Some(params)).unwrap();
        assert!(!rendered.contains('\n'), "{rendered}");
        let value: serde_json::Value = serde_json::from_str(&rendered).unwrap();
        assert_eq!(value["text"], "Hi O'Neil \"😀\"\r\n</script>");
        assert_eq!(value["n"].to_string(), r#"[1,{"b":1,"a":null}]"#);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let missing = render("{{ target.params.name }}", None, None).unwrap_err();
        assert!(missing.contains("target.params.name"), "{missing}");
        for (body, named) in [
            (r#"{{ "Hi " ~ target.params.nmae }}"#, "undefined variable `target.params.nmae` in line 1"),
            (r#"{{ target.recipient ~ (target.params.a.b | upper) }}"#, "`target.params.a.b`"),
            (
                r#"{{ target.params.b ~ (task.payload.x | default("")) }}"#,
                "undefined variable `target.params.b` or `task.payload.x` in",
            ),
            // What the template calls so itself is shown as it stands there.
            (r#"{% set p = target.params %}{{ "Hi " ~ p.nmae }}"#, "p.nmae"),
        ] {
            let missing = render(body, None, None).unwrap_err();
            assert!(missing.contains(named), "{missing}");
        }
        let no_json = render("{\"a\": {{ target.recipient }} x}", None, None).unwrap_err();
        assert!(no_json.contains("line 1 column"), "{no_json}");
        for (body, name) in [
            ("{{ kye }}", "kye"),
            ("{{ target.recipent }}", "target.recipent"),
            ("{{ task.params.x }}", "task.params.x"),
        ] {
            let unknown = render(body, None, None).unwrap_err();
            assert!(unknown.contains(&format!("unknown variable `{name}`")), "{unknown}");
        }
        let known =
            r#"{% for key in ["a"] %}{% endfor %}{% set x = target %}{{ task.payload.a is defined }}"#;
        assert_eq!(render(known, None, None).as_deref(), Ok("false"));
        let broken = render("{{ target.recipient", None, None).unwrap_err();
        assert!(broken.contains("line 1"), "{broken}");
        assert!(render("1", Some("{"), None).unwrap_err().contains("payload of the task is not JSON"));
        assert!(render("1", None, Some("{")).unwrap_err().contains("params are not JSON"));
        assert!(render("1", None, Some("[1]")).unwrap_err().contains("params are not a JSON object"));
    }

    #[test]
    fn attempt_is_refused_on_a_channel_that_must_repeat_itself() {
        let error = Template::json("{{ attempt }}", false).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("`attempt`"), "{error}");
    }

    #[test]
    fn the_key_is_the_targets_own_and_changes_with_the_round_alone() {
        let (task, target) = (task(None), target(None));
        let of = |installation: u128, task: &Task, target: &Target| {
            key(Uuid::from_u128(installation), task, target)
        };
        let first = of(1, &task, &target);
        assert_eq!(first, of(1, &task, &Target { attempts: 3, in_doubt: true, ..target.clone() }));
        let later = DateTime::from_timestamp_millis(1_700_000_000_124).unwrap();
        let others = [
            of(2, &task, &target),
            of(1, &Task { id: 8, ..task.clone() }, &target),
            of(1, &Task { created_at: later, ..task.clone() }, &target),
            of(1, &task, &Target { id: 10, ..target.clone() }),
            of(1, &task, &Target { round: 1, ..target.clone() }),
        ];
        assert!(others.iter().all(|other| *other != first));
    }

    #[test]
    fn texts_are_an_object_of_strings_in_which_only_html_is_escaped() {
        let task = task(None);
        let texts = [
            ("subject", "Hi {{ target.params.name }}"),
            ("html", "<p>{{ target.params.name }}</p>\n"),
            ("text", "{{ target.params.name }}"),
        ];
        let template = Template::texts(&texts, true).unwrap();
        let renderer = Renderer::new(Uuid::nil(), &task, Some(&template), None);
        let message = renderer.render(&target(Some(r#"{"name": "<Ann> & \"Bo\""}"#))).unwrap();
        let body = message.body.unwrap();
        let texts: serde_json::Map<String, serde_json::Value> = serde_json::from_str(body.get()).unwrap();
        let names: Vec<&str> = texts.keys().map(String::as_str).collect();
        assert_eq!(names, ["subject", "html", "text"]);
        assert_eq!(texts["subject"], r#"Hi <Ann> & "Bo""#);
        assert_eq!(texts["text"], r#"<Ann> & "Bo""#);
        assert_eq!(texts["html"], "<p>&lt;Ann&gt; &amp; &quot;Bo&quot;</p>");
        let missing = renderer.render(&target(None)).unwrap_err().to_string();
        assert_eq!(missing, "undefined variable `target.params.name` in line 1 of the subject");
        let unknown = Template::texts(&[("text", "{{ kye }}")], true).map(|_| ()).unwrap_err().to_string();
        assert!(unknown.contains("`kye` in the text"), "{unknown}");
    }

    #[test]
    fn what_is_redirected_goes_to_the_one_recipient_alone() {
        let task = task(None);
        let template = Template::json(r#"{"to": {{ target.recipient }}}"#, true).unwrap();
        let renderer = Renderer::new(Uuid::nil(), &task, Some(&template), Some("me@example.com"));
        let message = renderer.render(&target(None)).unwrap();
        assert_eq!(message.target.recipient, "me@example.com");
        assert_eq!(message.body.unwrap().get(), r#"{"to": "me@example.com"}"#);
        assert_ne!(message.key, key(Uuid::nil(), &task, &target(None)), "the real one is not a repeat of it");
    }

    #[test]
    fn for_somebody_else_to_look_at_the_message_has_another_key_and_recipient_and_all_else_is_the_same() {
        let task = task(None);
        let body = r#"{"to": {{ target.recipient }}, "key": {{ key }}, "n": {{ target.params.n }}}"#;
        let template = Template::json(body, true).unwrap();
        let target = target(Some(r#"{"n": 7}"#));
        let key = Uuid::from_u128(5);
        let render = |redirect_to| {
            let renderer = Renderer::new(Uuid::nil(), &task, Some(&template), redirect_to);
            renderer.render_as(&target, key, "me@example.com").unwrap()
        };
        let message = render(None);
        assert_eq!((message.key, message.target.recipient.as_str()), (key, "me@example.com"));
        assert_eq!(
            message.body.unwrap().get(),
            format!(r#"{{"to": "me@example.com", "key": "{key}", "n": 7}}"#)
        );
        let redirected = render(Some("team@example.com"));
        assert_eq!(redirected.target.recipient, "team@example.com");
        assert!(redirected.body.unwrap().get().contains("team@example.com"));
    }

    #[test]
    fn the_public_form_has_its_keys_in_order() {
        let task = task(Some("{\"a\":\n1}"));
        let message = Renderer::new(Uuid::nil(), &task, None, None).render(&target(None)).unwrap();
        let line = serde_json::to_string(&message).unwrap();
        let expected = r#""attempt":1,"task":{"id":7,"name":"Spring","payload":{"a": 1}},"target":{"id":9,"recipient":"ann@example.com","params":{}}}"#;
        assert!(line.ends_with(expected), "{line}");
    }
}

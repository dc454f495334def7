//! One chat template, compiled once and rendered as transformers renders it: jinja2 with `trim_blocks` and
//! `lstrip_blocks`, loop controls, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, methods of Python's
//! `str` and `dict`. Fuel and an output bound stop a template that would not end by itself.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::SystemTime;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};

use crate::content_format::{self, ContentFormat};
use crate::error::TokenError;
use crate::{python, rewrite};

/// Instructions of one rendering: some 10,000 messages of an elaborate template, a few tenths of a second.
const FUEL_INSTRUCTIONS: u64 = 10_000_000;
/// Bytes one rendering may write; above the default body limit.
const MAX_RENDERED_BYTES: usize = 256 << 20;
/// The one name in a template's environment; no extension, so that nothing is escaped.
const NAME: &str = "chat";

/// A compiled chat template.
#[derive(Debug)]
pub(crate) struct Template {
    environment: Environment<'static>,
    format: ContentFormat,
    knows_developer: bool,
    reads_thinking: bool,
    appends_description: bool,
}

impl Template {
    /// # Errors
    /// With line and reason, where the source does not compile.
    pub(crate) fn new(source: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL_INSTRUCTIONS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(print);
        environment.add_filter("tojson", |value: &Value, options: Kwargs| python::tojson(value, options));
        environment.add_filter("string", |value: &Value| python::text(value));
        environment.add_filter("trim", |value: &Value, characters: Option<&str>| python::strip(&python::text(value), characters));
        environment.add_filter("items", items);
        environment.add_test("sequence", |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map));
        environment.add_test("iterable", |value: &Value| value.kind() == ValueKind::String || value.try_iter().is_ok() && !value.is_none());
        environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
        environment.add_function("raise_exception", raise);
        environment.add_template_owned(NAME, rewrite::for_minijinja(source)).map_err(|error| describe(&error))?;
        Ok(Self {
            environment,
            format: content_format::detect(source),
            knows_developer: source.contains("'developer'") || source.contains("\"developer\""),
            reads_thinking: source.contains("message.thinking") || source.contains("message['thinking']"),
            appends_description: source.contains("+ tool.description"),
        })
    }

    pub(crate) fn content_format(&self) -> ContentFormat {
        self.format
    }

    /// Whether the template treats the `developer` role on its own.
    pub(crate) fn knows_developer(&self) -> bool {
        self.knows_developer
    }

    /// Whether the template reads the reasoning of earlier turns as `thinking`.
    pub(crate) fn reads_thinking(&self) -> bool {
        self.reads_thinking
    }

    /// Whether the template takes it for granted that a tool has a description.
    pub(crate) fn appends_description(&self) -> bool {
        self.appends_description
    }

    /// Renders with `variables`; `now` is what `strftime_now` prints. A panic of the template engine is a failed rendering: minijinja
    /// 2.24 panics where a slice that is empty is reversed (`messages[1:][::-1]` of one message).
    pub(crate) fn render(&self, variables: Vec<(String, Value)>, now: SystemTime) -> Result<String, TokenError> {
        let clock = Value::from_function(move |format: &str| python::strftime(format, now));
        let context: Value = std::iter::once(("strftime_now".to_owned(), clock)).chain(variables).collect();
        let mut out = Bounded(Vec::new());
        let rendering = || self.environment.get_template(NAME).and_then(|template| template.render_captured_to(context, &mut out));
        // What it leaves half done is dropped with it.
        let rendered = catch_unwind(AssertUnwindSafe(rendering));
        if let Err(error) = rendered.map_err(|_| TokenError::Render("the template engine panicked".to_owned()))? {
            return Err(failure(&error));
        }
        String::from_utf8(out.0).map_err(|error| TokenError::Render(error.to_string()))
    }
}

/// What is printed by `{{ }}`: containers and floats as Python's `str`.
fn print(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Number => {
            out.write_str(&python::text(value)).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// The pairs of a map; none of what is undefined, as in jinja2.
fn items(value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_undefined() {
        return Ok(Vec::new());
    }
    if value.kind() != ValueKind::Map {
        return Err(Error::new(ErrorKind::InvalidOperation, "can only get the items of a map"));
    }
    value.try_iter()?.map(|key| Ok(Value::from(vec![key.clone(), value.get_item(&key)?]))).collect()
}

/// What a template said by `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise(message: &Value) -> Result<Value, Error> {
    let message = python::text(message);
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn failure(error: &Error) -> TokenError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(this) = cause {
        if let Some(Raised(message)) = this.downcast_ref() {
            return TokenError::Refused(message.clone());
        }
        cause = this.source();
    }
    TokenError::Render(describe(error))
}

fn describe(error: &Error) -> String {
    match (error.line(), error.detail()) {
        (Some(line), Some(detail)) => format!("{}: {detail} (line {line})", error.kind()),
        (Some(line), None) => format!("{} (line {line})", error.kind()),
        (None, _) => error.to_string(),
    }
}

struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_RENDERED_BYTES {
            return Err(io::Error::other(format!("more than {MAX_RENDERED_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::json;

    use super::*;

    fn render(source: &str) -> Result<String, TokenError> {
        let variables = vec![("x".to_owned(), Value::from_serialize(json!({"a": [1, 2.0, "é<&'\""], "b": null, "t": true})))];
        Template::new(source).map_err(TokenError::Render)?.render(variables, UNIX_EPOCH)
    }

    #[test]
    fn values_print_as_in_python() {
        assert_eq!(render("{{ x.b }} {{ x.t }} {{ x.a }} {{ 3.0 }} {{ y }}|").as_deref(), Ok("None True [1, 2.0, 'é<&\\'\"'] 3.0 |"));
        assert_eq!(render("{{ x | tojson }}").as_deref(), Ok(r#"{"a": [1, 2.0, "é<&'\""], "b": null, "t": true}"#));
        assert_eq!(render("{{ '%s-%s' % (x.t, x['b']) }}{{ '%02d' % 7 }}").as_deref(), Ok("True-None07"));
        assert_eq!(render("{{ strftime_now('%Y') }}").as_deref(), Ok("1970"));
    }

    /// `loop.last` needs a length, whatever is looped over.
    #[test]
    fn loops_know_their_last_item() {
        for over in [
            "x.a",
            "x.a[1:]",
            "x.a[::-1]",
            "x.a|reverse",
            "x.keys()",
            "x.values()",
            "x.items()",
            "x|items",
            "x",
            "range(3)",
            "'a b c'.split()",
            "x.a|map('string')",
            "x.a|select",
            "x.a|unique",
            "x.a|batch(2)",
            "x|dictsort",
            "x.a|list",
            "x.a + x.a",
            "'a\\nb'.splitlines()",
            "x.a|reject('string')",
        ] {
            let source = format!("{{% for i in {over} %}}{{{{ '.' if not loop.last else '!' }}}}{{% endfor %}}");
            let marks = render(&source).expect(over);
            assert!(marks.ends_with('!') && marks.matches('!').count() == 1, "{over}: {marks}");
        }
    }

    #[test]
    fn lenient_where_jinja2_is() {
        assert_eq!(render("{% for k, v in x.nothing|items %}{{ k }}{% endfor %}|").as_deref(), Ok("|"));
        assert_eq!(render("{{ [' a'] | trim }}{{ ' b\\x1c\\n' | trim }}{{ 'xcx' | trim('x') }}").as_deref(), Ok("[' a']bc"));
        assert_eq!(render("a\r\n{{ 'b\rc' }}").as_deref(), Ok("a\nb\nc"));
    }

    #[test]
    fn a_refusal_is_told_from_a_failure() {
        assert_eq!(render("{% if x %}{{ raise_exception('no, <never>') }}{% endif %}"), Err(TokenError::Refused("no, <never>".into())));
        assert!(matches!(render("{{ y.z.w }}"), Err(TokenError::Render(_))));
        assert!(matches!(render("{% if %}"), Err(TokenError::Render(_))));
        assert!(matches!(render("{{ x.a[9:][::-1] }}"), Err(TokenError::Render(reason)) if reason.contains("panicked")));
    }

    #[test]
    fn endless_templates_end() {
        let loops =
            "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}x{% endfor %}{% endfor %}{% endfor %}";
        assert!(matches!(render(loops), Err(TokenError::Render(reason)) if reason.contains("fuel")));
        assert!(matches!(render("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"), Err(TokenError::Render(_))));
    }

    const PIECES: [&str; 36] = [
        "{%",
        "%}",
        "{{",
        "}}",
        "{#",
        "#}",
        "{%-",
        "-%}",
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if m %}",
        "{% else %}",
        "{% endif %}",
        "{% set x = ",
        "{% macro f(a) %}",
        "{% endmacro %}",
        "{% generation %}",
        "{% endgeneration %}",
        "{% raw %}",
        "{% endraw %}",
        "'%s' % ",
        "m.content",
        "m['content']",
        "messages",
        "|tojson",
        "|join(',')",
        "(",
        ")",
        "[",
        "]",
        "'",
        "f(f)",
        "range(99999)",
        " * 9999999",
        "loop.index0 ",
        "[::-1]",
    ];

    /// Anything at all may be a template; nothing panics or runs on.
    #[test]
    fn fuzz() {
        let messages = json!([{"role": "user", "content": [{"type": "text", "text": "é"}]}, {"role": "a", "content": "x", "n": [1, 2.5]}]);
        bolero::check!().with_test_time(std::time::Duration::from_secs(3)).with_max_len(64).for_each(|input: &[u8]| {
            let source: String = input
                .iter()
                .map(|byte| match PIECES.get(usize::from(*byte) % 64) {
                    Some(piece) => (*piece).to_owned(),
                    None => char::from(*byte).to_string(),
                })
                .collect();
            if let Ok(template) = Template::new(&source) {
                // May fail; may not panic.
                let _ = template.render(vec![("messages".into(), Value::from_serialize(&messages))], UNIX_EPOCH);
            }
        });
    }
}

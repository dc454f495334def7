//! Whether a template wants message content as text or as a list of parts. vLLM decides by looking for a loop over the
//! content of a message (`_detect_content_format`); engines hand over content in that form, so the choice decides the
//! prompt. This reads the same loops from the source: over `message.content` where `message` runs over `messages` or a
//! variable set from it, over `content`, and over a macro parameter that is given a message's content.

/// The form in which message content is handed to a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentFormat {
    /// One string; text parts are joined with newlines.
    Text,
    /// A list of `{"type": ...}` parts.
    Parts,
}

/// Reads `source`.
pub(crate) fn detect(source: &str) -> ContentFormat {
    let statements = statements(source);
    let lists = derived(&statements);
    let messages: Vec<&str> = statements
        .iter()
        .filter_map(|statement| match statement {
            Statement::For { target, over, .. } => path(over).filter(|path| path.1.is_none() && lists.contains(&path.0)).map(|_| *target),
            Statement::Set { .. } | Statement::Macro { .. } => None,
        })
        .collect();
    let is_content = |expression: &str| path(expression).is_some_and(|(root, key)| key == Some("content") && messages.contains(&root));
    let mut scope: Option<(&str, &[&str])> = None;
    for statement in &statements {
        match statement {
            Statement::Macro { name: Some(name), parameters } => scope = Some((name, parameters)),
            Statement::Macro { name: None, .. } => scope = None,
            Statement::Set { .. } => {}
            Statement::For { over, .. } => {
                let parts = is_content(over)
                    || match (scope, path(over)) {
                        (None, Some(("content", None))) => over.trim() == "content",
                        (Some((name, parameters)), Some((root, None))) => {
                            parameters.contains(&root) && given(source, name, parameters, root, &is_content)
                        }
                        (_, _) => false,
                    };
                if parts {
                    return ContentFormat::Parts;
                }
            }
        }
    }
    ContentFormat::Text
}

enum Statement<'a> {
    Set {
        name: &'a str,
        value: &'a str,
    },
    For {
        target: &'a str,
        over: &'a str,
    },
    /// The start of a macro, or with no name its end.
    Macro {
        name: Option<&'a str>,
        parameters: Vec<&'a str>,
    },
}

fn statements(source: &str) -> Vec<Statement<'_>> {
    let mut found = Vec::new();
    for piece in source.split("{%").skip(1) {
        let Some(end) = piece.find("%}") else { continue };
        let code = piece[..end].trim_matches(['-', '+']).trim();
        let (word, rest) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
        match word {
            "set" => {
                if let Some((name, value)) = rest.split_once('=') {
                    found.push(Statement::Set { name: name.trim(), value });
                }
            }
            "for" => {
                if let Some((target, over)) = rest.split_once(" in ") {
                    let over = over.split(" if ").next().unwrap_or(over);
                    found.push(Statement::For { target: target.trim(), over: over.trim().trim_end_matches(" recursive") });
                }
            }
            "macro" => {
                let (name, parameters) = rest.split_once('(').unwrap_or((rest, ""));
                let parameters = parameters.trim_end().trim_end_matches(')');
                found.push(Statement::Macro {
                    name: Some(name.trim()),
                    parameters: parameters.split(',').map(|one| one.split('=').next().unwrap_or(one).trim()).collect(),
                });
            }
            "endmacro" => found.push(Statement::Macro { name: None, parameters: Vec::new() }),
            _ => {}
        }
    }
    found
}

/// `messages` and the variables that are set from it as it is, filtered, or sliced.
fn derived<'a>(statements: &[Statement<'a>]) -> Vec<&'a str> {
    let mut names = vec!["messages"];
    // Each round adds at least one name or ends.
    loop {
        let before = names.len();
        for statement in statements {
            if let Statement::Set { name, value } = statement
                && let Some((root, None)) = path(value)
                && names.contains(&root)
                && !names.contains(name)
            {
                names.push(name);
            }
        }
        if names.len() == before {
            return names;
        }
    }
}

/// The root variable of an expression and the one key read from it, if that is all there is, but for slices, filters and
/// tests.
fn path(expression: &str) -> Option<(&str, Option<&str>)> {
    let text = expression.trim();
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    let (root, mut rest) = text.split_at(end);
    if root.is_empty() || root.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut key = None;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Some((root, key));
        } else if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(after.len());
            if key.replace(&after[..end]).is_some() {
                return None;
            }
            rest = &after[end..];
        } else if let Some(after) = rest.strip_prefix('[') {
            let (inside, after) = after.split_once(']')?;
            let inside = inside.trim();
            if !inside.contains(':') {
                let name = inside.strip_prefix(['\'', '"'])?.strip_suffix(['\'', '"'])?;
                if key.replace(name).is_some() {
                    return None;
                }
            }
            rest = after;
        } else if rest.starts_with('|') || rest.starts_with("is ") {
            // Filters and tests may be anything; an operator behind them makes it another expression.
            let operator = [" + ", " ~ ", " and ", " or ", " if ", " == ", " != "].iter().any(|one| rest.contains(one));
            return (!operator).then_some((root, key));
        } else {
            return None;
        }
    }
}

/// Whether a call of macro `name` gives a message's content to its parameter `parameter`.
fn given(source: &str, name: &str, parameters: &[&str], parameter: &str, is_content: &dyn Fn(&str) -> bool) -> bool {
    let call = format!("{name}(");
    source.match_indices(&call).any(|(at, _)| {
        let before = source[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') || source[..at].trim_end().ends_with("macro") {
            return false;
        }
        arguments(&source[at + call.len()..]).into_iter().enumerate().any(|(index, argument)| {
            let (to, value) = match argument.split_once('=') {
                Some((keyword, value)) if !value.starts_with('=') => (Some(keyword.trim()), value),
                _ => (parameters.get(index).copied(), argument),
            };
            to == Some(parameter) && is_content(value)
        })
    })
}

/// The arguments of a call, from behind its opening bracket.
fn arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut start) = (0_usize, 0);
    let mut found = Vec::new();
    for (at, character) in text.char_indices() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            ')' | ']' | '}' => {
                found.push(&text[start..at]);
                break;
            }
            ',' if depth == 0 => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::ContentFormat::{Parts, Text};
    use super::detect;

    #[test]
    fn loops_over_content_want_parts() {
        for source in [
            "{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}",
            "{%- for message in messages[1:] -%}{%- for c in message.content | list if c.type == 'text' -%}",
            "{% set loop_messages = messages %}{% for m in loop_messages %}{% for p in m.content %}",
            "{% for m in messages %}{% set content = m.content %}{% for p in content %}",
            "{% macro show(body, n=1) %}{% for p in body %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content, 2) }}",
            "{% for m in messages|reverse %}{% for p in m['content'][::-1] %}",
            "{% for m in messages %}{{ show(n=1, body=m['content']) }}{% endfor %}{% macro show(body, n) %}{% for p in body %}",
        ] {
            assert_eq!(detect(source), Parts, "{source}");
        }
    }

    #[test]
    fn other_loops_do_not() {
        for source in [
            "{% for m in messages %}{{ m['content'] | trim }}{% endfor %}",
            "{% for t in tools %}{% for p in t.content %}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% for c in m.tool_calls %}{{ c.content }}{% endfor %}{% endfor %}",
            "{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}{{ f(x) }}",
            "{% for m in messages[0].content %}",
            "{% set m2 = messages if tools else messages[1:] %}{% for m in m2 %}{% for p in m.content %}",
            "{% for",
            "{% set %}",
            "{% for x in %}",
            "",
        ] {
            assert_eq!(detect(source), Text, "{source}");
        }
    }
}

//! Three things Python's jinja2 does that minijinja has no hook for, done to a template's source before it is compiled:
//! line ends of any kind become newlines; `{% generation %}` blocks (transformers' extension that marks what the assistant said; they print their body) and
//! printf formatting, `'...' % value`, which becomes `'...'|format(value)`.

/// The source minijinja gets.
pub(crate) fn for_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let (open, close) = match tag.as_bytes().get(1) {
            Some(b'#') => ("{#", "#}"),
            Some(b'%') => ("{%", "%}"),
            Some(b'{') => ("{{", "}}"),
            _ => {
                out.push('{');
                rest = &tag[1..];
                continue;
            }
        };
        let end = if open == "{#" { tag[2..].find(close).map(|at| at + 2) } else { code_end(tag, close) };
        let Some(end) = end else {
            // Not closed: the compiler says so.
            out.push_str(tag);
            return out;
        };
        let inside = &tag[2..end];
        rest = &tag[end + 2..];
        out.push_str(open);
        match inside.trim_matches(['-', '+']).trim() {
            "generation" if open == "{%" => out.push_str(&inside.replace("generation", "if true")),
            "endgeneration" if open == "{%" => out.push_str(&inside.replace("endgeneration", "endif")),
            _ if open == "{#" => out.push_str(inside),
            _ => out.push_str(&printf(inside)),
        }
        out.push_str(close);
        if open == "{%" && inside.trim_matches(['-', '+']).trim() == "raw" {
            // Up to the tag that ends it nothing is code.
            let end = rest.find("endraw").unwrap_or(rest.len());
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    out
}

/// Where `close` stands in `tag`, outside of string literals.
fn code_end(tag: &str, close: &str) -> Option<usize> {
    let bytes = tag.as_bytes();
    let mut at = 2;
    while at < bytes.len() {
        match bytes[at] {
            b'\'' | b'"' => at = string_end(bytes, at)?,
            _ if bytes[at..].starts_with(close.as_bytes()) => return Some(at),
            _ => at += 1,
        }
    }
    None
}

/// Behind the string literal that starts at `at`.
fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let quote = bytes[at];
    let mut end = at + 1;
    loop {
        match bytes.get(end)? {
            b'\\' => end += 2,
            byte if *byte == quote => return Some(end + 1),
            _ => end += 1,
        }
    }
}

/// Replaces each `'...' % operand`.
fn printf(code: &str) -> String {
    let bytes = code.as_bytes();
    let mut out = String::with_capacity(code.len());
    let (mut at, mut copied) = (0, 0);
    while at < bytes.len() {
        if !matches!(bytes[at], b'\'' | b'"') {
            at += 1;
            continue;
        }
        let Some(end) = string_end(bytes, at) else { break };
        at = end;
        let operator = skip_space(bytes, end);
        if bytes.get(operator) != Some(&b'%') {
            continue;
        }
        let start = skip_space(bytes, operator + 1);
        let Some(operand) = operand_end(bytes, start).filter(|operand| *operand > start) else { continue };
        out.push_str(&code[copied..end]);
        out.push_str("|format(");
        let text = &code[start..operand];
        // A tuple in parentheses is the list of values; parentheses around one value change nothing.
        let whole_group = bytes[start] == b'(' && group_end(bytes, start) == Some(operand);
        out.push_str(if whole_group { &text[1..text.len() - 1] } else { text });
        out.push(')');
        at = operand;
        copied = operand;
    }
    out.push_str(&code[copied..]);
    out
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

fn name_end(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80) {
        at += 1;
    }
    at
}

/// Behind the bracket that closes the one at `at`.
fn group_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match bytes.get(at)? {
            b'\'' | b'"' => at = string_end(bytes, at)?,
            b'(' | b'[' | b'{' => {
                depth += 1;
                at += 1;
            }
            b')' | b']' | b'}' => {
                depth -= 1;
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
}

/// Behind a value with its attributes, subscripts, calls and filters: all that binds tighter than `%`.
fn operand_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = match bytes.get(start)? {
        b'\'' | b'"' => string_end(bytes, start)?,
        b'(' | b'[' | b'{' => group_end(bytes, start)?,
        _ => name_end(bytes, start),
    };
    loop {
        at = match bytes.get(at) {
            Some(b'(' | b'[') => group_end(bytes, at)?,
            Some(b'.') => name_end(bytes, at + 1),
            _ => {
                let filter = skip_space(bytes, at);
                if bytes.get(filter) != Some(&b'|') {
                    return Some(at);
                }
                name_end(bytes, skip_space(bytes, filter + 1))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::for_minijinja;

    #[test]
    fn generation_blocks_print_their_body_and_keep_their_trim_marks() {
        assert_eq!(for_minijinja("{%- generation -%}x{% endgeneration %}"), "{%- if true -%}x{% endif %}");
        assert_eq!(for_minijinja("{% set generation = 1 %}"), "{% set generation = 1 %}");
    }

    #[test]
    fn printf_becomes_a_filter() {
        for (python, minijinja) in [
            ("{{ '%s' % x }}", "{{ '%s'|format(x) }}"),
            ("{{ '%s=%d' % (a, b[0]) }}", "{{ '%s=%d'|format(a, b[0]) }}"),
            ("{{ '%s' % (a).b }}", "{{ '%s'|format((a).b) }}"),
            ("{{ '%s' % x.y('%}')|upper ~ 'z' }}", "{{ '%s'|format(x.y('%}')|upper) ~ 'z' }}"),
            ("{% set a = \"%02d\"%n %}", "{% set a = \"%02d\"|format(n) %}"),
        ] {
            assert_eq!(for_minijinja(python), minijinja);
        }
    }

    #[test]
    fn everything_else_stays() {
        for same in [
            "{{ 7 % x }}",
            "{# '%s' % x #}",
            "'%s' % x",
            "{ {{ 'a' }} %}",
            "{% raw %}{{ '%s' % x }}{% endraw %}",
            "{{ 'open",
            "{{ '%s' % }}",
            "{",
            "{#}",
            "{{ x['%'] }}",
            "{{ '%s' % (x }}",
        ] {
            assert_eq!(for_minijinja(same), same);
        }
    }
}

//! What chat templates take for granted because they run in Python: `json.dumps`, `str` of containers and floats,
//! `strftime`. Formats: Python's `json` and `datetime` documentation, and `repr` of floats (shortest digits that read
//! back, scientific from 1e16 up and below 1e-4).

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// The `tojson` filter as transformers defines it: `json.dumps` with `ensure_ascii=False` by default, and no HTML escapes.
pub(crate) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        Some(indent) if indent.is_none() || indent.is_undefined() => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(indent.as_usize().filter(|width| *width <= 64).ok_or_else(|| invalid("bad indent"))?),
        }),
        None => None,
    };
    let separators = match options.get::<Option<Vec<String>>>("separators")? {
        Some(pair) => {
            let [item, key] = <[String; 2]>::try_from(pair).map_err(|_| invalid("separators are a pair"))?;
            (item, key)
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer {
        out: String::new(),
        indent,
        separators,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

struct Writer {
    out: String,
    indent: Option<String>,
    separators: (String, String),
    sort_keys: bool,
    ensure_ascii: bool,
}

/// Nesting of a value written out; JSON bodies have at most 128, templates can build more.
const MAX_DEPTH: usize = 256;

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            other => return Err(Error::new(ErrorKind::InvalidOperation, format!("{other} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut any = false;
        for item in value.try_iter()? {
            self.next(any, depth + 1);
            any = true;
            self.value(&item, depth + 1)?;
        }
        self.close(any, depth, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let mut any = false;
        for key in keys {
            self.next(any, depth + 1);
            any = true;
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None => self.string("null"),
                ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
                _ => self.string(&number(&key)),
            }
            self.out.push_str(&self.separators.1);
            self.value(&value.get_item(&key)?, depth + 1)?;
        }
        self.close(any, depth, '}');
        Ok(())
    }

    fn next(&mut self, any: bool, depth: usize) {
        if any {
            self.out.push_str(&self.separators.0);
        }
        self.line(depth);
    }

    fn close(&mut self, any: bool, depth: usize, bracket: char) {
        if any {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                plain if plain >= ' ' && (!self.ensure_ascii || (' '..='~').contains(&plain)) => self.out.push(plain),
                other => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        // Writing to a String cannot fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
            }
        }
        self.out.push('"');
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        value.to_string()
    } else {
        f64::try_from(value.clone()).map_or_else(|_| value.to_string(), |number| float(number, "NaN", "Infinity"))
    }
}

/// `repr` of a float.
fn float(number: f64, nan: &str, infinity: &str) -> String {
    if number.is_nan() {
        return nan.to_owned();
    }
    if number.is_infinite() {
        return format!("{}{infinity}", if number < 0.0 { "-" } else { "" });
    }
    // Rust writes the shortest digits that read back, as Python does; only the choice of notation differs.
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

/// `str.strip`: Python takes the four separator controls for white space, Rust does not.
pub(crate) fn strip(text: &str, characters: Option<&str>) -> String {
    let strip = |c: char| match characters {
        Some(characters) => characters.contains(c),
        None => c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c),
    };
    text.trim_matches(strip).to_owned()
}

/// `str(value)`.
pub(crate) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.to_string(),
        _ => {
            let mut out = String::new();
            repr(value, &mut out, 0);
            out
        }
    }
}

fn repr(value: &Value, out: &mut String, depth: usize) {
    if depth > MAX_DEPTH {
        out.push_str("...");
        return;
    }
    match value.kind() {
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number, "nan", "inf")),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&item, out, depth + 1);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&key, out, depth + 1);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), out, depth + 1);
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

/// `repr` of a string, but for characters Python holds unprintable beyond the controls.
fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            same if same == quote => {
                out.push('\\');
                out.push(same);
            }
            control if control.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\x{:02x}", u32::from(control));
            }
            plain => out.push(plain),
        }
    }
    out.push(quote);
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];

/// `datetime.strftime` of `now` in UTC, which is what engines in containers run in. Unknown directives stay as they are.
pub(crate) fn strftime(format: &str, now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let weekday = DAYS[(days as usize + 4) % 7];
    let month_name = MONTHS[month as usize - 1];
    let year_day = days - days_before_year(year) + 1;
    let mut out = String::new();
    let mut rest = format.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let unpadded = rest.next_if_eq(&'-').is_some();
        let padded = |number: u64| if unpadded { number.to_string() } else { format!("{number:02}") };
        match rest.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&padded(year % 100)),
            Some('m') => out.push_str(&padded(month)),
            Some('d') => out.push_str(&padded(day)),
            Some('H') => out.push_str(&padded(hour)),
            Some('I') => out.push_str(&padded(hour12)),
            Some('M') => out.push_str(&padded(minute)),
            Some('S') => out.push_str(&padded(second)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('e') => out.push_str(&format!("{day:>2}")),
            Some('j') if unpadded => out.push_str(&year_day.to_string()),
            Some('j') => out.push_str(&format!("{year_day:03}")),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('%') => out.push('%'),
            Some(other) => {
                out.push_str(if unpadded { "%-" } else { "%" });
                out.push(other);
            }
            None => out.push('%'),
        }
    }
    out
}

fn leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days from 1970-01-01 to the first of January of `year`.
fn days_before_year(year: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

/// Year, month and day (both from 1) of a number of days since 1970-01-01, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before_year(year + 1) <= days {
        year += 1;
    }
    let mut left = days - days_before_year(year);
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (123456.789, "123456.789"),
            (-0.0, "-0.0"),
        ];
        for (number, text) in cases {
            assert_eq!(float(number, "nan", "inf"), text);
        }
    }

    #[test]
    fn dates() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(strftime("%d %B %Y, %A", at(0)), "01 January 1970, Thursday");
        assert_eq!(strftime("%F %T %j", at(951_782_399)), "2000-02-28 23:59:59 059");
        assert_eq!(strftime("%-d %b %y", at(951_782_400)), "29 Feb 00");
        assert_eq!(strftime("%a %-m/%-d %I:%M %p %% %Q %", at(1_796_047_176)), "Mon 11/30 01:59 PM % %Q %");
        assert_eq!(strftime("%F", at(4_107_542_399)), "2100-02-28");
        assert_eq!(strftime("%F", at(4_107_542_400)), "2100-03-01");
    }
}

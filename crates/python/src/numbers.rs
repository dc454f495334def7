//! Numbers of an argument: from a list, a tuple or another sequence one by one; from a numpy array or another buffer as they lie in
//! memory, without a Python object for each.
//!
//! The buffer protocol is in the stable interface from Python 3.11 on only, so buffers are read through a `memoryview`: one copy of
//! their bytes, also where they are not contiguous.

use std::time::Duration;

use pyo3::{
    exceptions::{PyOverflowError, PyTypeError, PyValueError},
    intern,
    prelude::*,
    pybacked::PyBackedBytes,
    types::{PyBytes, PyList, PyMemoryView, PySequence, PyTuple},
};

/// What a number of an argument is.
pub(crate) trait Number: Copy + Send + Sync + for<'a, 'py> FromPyObject<'a, 'py> {
    /// In words, with its range.
    const RANGE: &'static str;
    /// Whether one that lies in memory is in that range.
    fn has_signed(number: i64) -> bool;
    /// The same of an unsigned one.
    fn has_unsigned(number: u64) -> bool;
    /// One by the bits of a number that is.
    fn of_bits(bits: u64) -> Self;
}

impl Number for u32 {
    const RANGE: &'static str = "0 to 4294967295";

    fn has_signed(number: i64) -> bool {
        (0..=i64::from(u32::MAX)).contains(&number)
    }

    fn has_unsigned(number: u64) -> bool {
        number <= u64::from(u32::MAX)
    }

    fn of_bits(bits: u64) -> Self {
        bits as u32
    }
}

impl Number for u64 {
    const RANGE: &'static str = "0 to 2**64-1";

    fn has_signed(number: i64) -> bool {
        number >= 0
    }

    fn has_unsigned(_: u64) -> bool {
        true
    }

    fn of_bits(bits: u64) -> Self {
        bits
    }
}

/// An engine's name of a block: 64 bits, which Python may take for a signed or an unsigned number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(pub(crate) u64);

impl Number for Hash {
    const RANGE: &'static str = "-2**63 to 2**64-1";

    fn has_signed(_: i64) -> bool {
        true
    }

    fn has_unsigned(_: u64) -> bool {
        true
    }

    fn of_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Hash {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match value.extract::<u64>() {
            Ok(number) => Ok(Self(number)),
            Err(_) => Ok(Self(value.extract::<i64>()?.cast_unsigned())),
        }
    }
}

/// Numbers that are here, or the memory they are in, which needs no GIL any more.
pub(crate) enum Numbers<T> {
    Here(Vec<T>),
    Lying { bytes: PyBackedBytes, name: &'static str, kind: Kind },
}

/// How integers lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    signed: bool,
    bytes: usize,
}

impl<T: Number> Numbers<T> {
    /// Looks at an argument. Lists are read, buffers are copied.
    pub(crate) fn of(value: &Bound<'_, PyAny>, name: &'static str) -> PyResult<Self> {
        if let Ok(list) = value.cast::<PyList>() {
            return each(list.iter(), list.len(), name);
        }
        if let Ok(tuple) = value.cast::<PyTuple>() {
            return each(tuple.iter(), tuple.len(), name);
        }
        if let Ok(view) = PyMemoryView::from(value) {
            return lying(&view, name);
        }
        match value.cast::<PySequence>() {
            Ok(sequence) => {
                let all = sequence.try_iter()?.collect::<PyResult<Vec<_>>>()?;
                let count = all.len();
                each(all.into_iter(), count, name)
            }
            Err(_) => Err(PyTypeError::new_err(format!(
                "{name} is a {}: expected a list, a numpy array or another buffer of integers",
                type_name(value)
            ))),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Here(numbers) => numbers.len(),
            Self::Lying { bytes, kind, .. } => bytes.len() / kind.bytes,
        }
    }

    /// The numbers; needs no GIL, but for an error.
    pub(crate) fn read(self) -> PyResult<Vec<T>> {
        match self {
            Self::Here(numbers) => Ok(numbers),
            Self::Lying { bytes, name, kind } => read(&bytes, name, kind),
        }
    }
}

/// What is asked of an index: the blocks of a prompt, and what goes into their names.
pub(crate) struct Prompt {
    tokens: Numbers<u32>,
    lora_name: Option<String>,
    cache_salt: Option<String>,
}

impl Prompt {
    /// Looks at the arguments.
    pub(crate) fn of(
        token_ids: &Bound<'_, PyAny>,
        lora_name: Option<&Bound<'_, PyAny>>,
        cache_salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let tokens = Numbers::of(token_ids, "token_ids")?;
        Ok(Self { tokens, lora_name: text(lora_name, "lora_name")?, cache_salt: text(cache_salt, "cache_salt")? })
    }

    /// Asks with tokens, adapter and salt, without the GIL.
    pub(crate) fn find<T: Send>(self, py: Python<'_>, ask: impl FnOnce(&[u32], Option<&str>, Option<&str>) -> T + Send) -> PyResult<T> {
        py.detach(|| Ok(ask(&self.tokens.read()?, self.lora_name.as_deref(), self.cache_salt.as_deref())))
    }
}

fn each<'py, T: Number>(values: impl Iterator<Item = Bound<'py, PyAny>>, count: usize, name: &'static str) -> PyResult<Numbers<T>> {
    let mut numbers = Vec::with_capacity(count);
    for value in values {
        match value.extract::<T>() {
            Ok(number) => numbers.push(number),
            Err(error) => return Err(wrong::<T>(&value, &format!("{name}[{}]", numbers.len()), error.into())),
        }
    }
    Ok(Numbers::Here(numbers))
}

fn lying<T: Number>(view: &Bound<'_, PyMemoryView>, name: &'static str) -> PyResult<Numbers<T>> {
    let py = view.py();
    let dimensions: usize = view.getattr(intern!(py, "ndim"))?.extract()?;
    if dimensions != 1 {
        return Err(PyValueError::new_err(format!("{name} has {dimensions} dimensions: expected one")));
    }
    let format = view.getattr(intern!(py, "format"))?;
    let format = format.extract::<&str>()?;
    let bytes: usize = view.getattr(intern!(py, "itemsize"))?.extract()?;
    let kind = kind(format, bytes).ok_or_else(|| {
        PyTypeError::new_err(format!("{name} holds items of format '{format}': expected integers in the machine's byte order"))
    })?;
    let bytes = view.call_method0(intern!(py, "tobytes"))?.cast_into::<PyBytes>()?;
    Ok(Numbers::Lying { bytes: bytes.into(), name, kind })
}

fn kind(format: &str, bytes: usize) -> Option<Kind> {
    let native = if cfg!(target_endian = "little") { '<' } else { '>' };
    let letter = format.strip_prefix(['@', '=', native]).unwrap_or(format);
    let signed = match letter {
        "b" | "h" | "i" | "l" | "q" | "n" => true,
        "B" | "H" | "I" | "L" | "Q" | "N" => false,
        _ => return None,
    };
    matches!(bytes, 1 | 2 | 4 | 8).then_some(Kind { signed, bytes })
}

fn read<T: Number>(bytes: &[u8], name: &str, kind: Kind) -> PyResult<Vec<T>> {
    macro_rules! items {
        ($type:ty, $wide:ty, $has:ident) => {{
            let (items, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
            let numbers = || items.iter().map(|item| <$wide>::from(<$type>::from_ne_bytes(*item)));
            // Looked at as a whole first: both passes are loops without a branch.
            if !numbers().fold(true, |all, number| all & T::$has(number)) {
                let wrong = numbers().enumerate().find(|(_, number)| !T::$has(*number));
                let (position, number) = wrong.unwrap_or_default();
                return Err(PyValueError::new_err(format!("{name}[{position}] is {number}: expected {}", T::RANGE)));
            }
            Ok(numbers().map(|number| T::of_bits(number as u64)).collect())
        }};
    }
    match (kind.signed, kind.bytes) {
        (true, 1) => items!(i8, i64, has_signed),
        (true, 2) => items!(i16, i64, has_signed),
        (true, 4) => items!(i32, i64, has_signed),
        (true, _) => items!(i64, i64, has_signed),
        (false, 1) => items!(u8, u64, has_unsigned),
        (false, 2) => items!(u16, u64, has_unsigned),
        (false, 4) => items!(u32, u64, has_unsigned),
        (false, _) => items!(u64, u64, has_unsigned),
    }
}

/// One number, or an error that names the argument.
pub(crate) fn number<T: Number>(value: &Bound<'_, PyAny>, name: &str) -> PyResult<T> {
    value.extract::<T>().map_err(|error| wrong::<T>(value, name, error.into()))
}

/// A number of at least 1.
pub(crate) fn positive(value: &Bound<'_, PyAny>, name: &str) -> PyResult<u32> {
    match number::<u32>(value, name)? {
        0 => Err(PyValueError::new_err(format!("{name} is 0: expected at least 1"))),
        number => Ok(number),
    }
}

/// A text, or an error that names the argument.
pub(crate) fn text(value: Option<&Bound<'_, PyAny>>, name: &str) -> PyResult<Option<String>> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
    let text = value.extract::<String>();
    text.map(Some).map_err(|_| PyTypeError::new_err(format!("{name} is a {}: expected a str", type_name(value))))
}

/// A boolean, or an error that names the argument.
pub(crate) fn flag(value: Option<&Bound<'_, PyAny>>, name: &str) -> PyResult<Option<bool>> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
    let flag = value.extract::<bool>();
    flag.map(Some).map_err(|_| PyTypeError::new_err(format!("{name} is a {}: expected a bool", type_name(value))))
}

/// A time in seconds, or an error that names the argument.
pub(crate) fn seconds(value: Option<&Bound<'_, PyAny>>, otherwise: f64, name: &str) -> PyResult<Duration> {
    let wrong = |value: &Bound<'_, PyAny>| PyTypeError::new_err(format!("{name} is a {}: expected seconds", type_name(value)));
    let seconds = value.map(|value| value.extract::<f64>().map_err(|_| wrong(value))).transpose()?.unwrap_or(otherwise);
    Duration::try_from_secs_f64(seconds).map_err(|_| PyValueError::new_err(format!("{name} is {seconds}: expected seconds, at least 0")))
}

fn wrong<T: Number>(value: &Bound<'_, PyAny>, name: &str, error: PyErr) -> PyErr {
    if error.is_instance_of::<PyOverflowError>(value.py()) {
        let shown = value.repr().map_or_else(|_| "too large".to_owned(), |text| text.to_string());
        PyValueError::new_err(format!("{name} is {shown}: expected {}", T::RANGE))
    } else if error.is_instance_of::<PyTypeError>(value.py()) {
        PyTypeError::new_err(format!("{name} is a {}: expected an integer", type_name(value)))
    } else {
        error
    }
}

/// The name of a value's type, for errors.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "value".to_owned(), |name| name.to_string())
}

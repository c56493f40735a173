//! Terms on which a new object is kept: a named tuple of Python (`plasmon/_terms.py`), read here.

use std::borrow::Cow;
use std::ops::Deref;
use std::time::{Duration, Instant};

use plasmon::{CreateOptions, Rights};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyString;

use crate::error::{invalid, raised, wrong_type};
use crate::given::refused;
use crate::replacing::Version;

/// Text that a caller gave, as an argument of a method. It has an encoding in UTF-8.
pub(crate) struct Text(PyBackedStr);

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        (*text).to_owned()
    }
}

impl<'py> FromPyObject<'_, 'py> for Text {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match given.cast::<PyString>() {
            Ok(text) => {
                PyBackedStr::try_from(text.to_owned()).map(Self).map_err(|error| no_utf8(&text, error))
            }
            Err(_) => {
                let kind = given.get_type();
                Err(wrong_type(given.py(), &format!("a text is a str, not {}", kind.name()?)))
            }
        }
    }
}

/// Characters of a text that a caller gave.
pub(crate) fn characters<'a>(text: &'a Bound<'_, PyString>) -> PyResult<Cow<'a, str>> {
    text.to_cow().map_err(|error| no_utf8(text, error))
}

/// Exception for a text without an encoding in UTF-8, which `error` says.
fn no_utf8(text: &Bound<'_, PyString>, error: PyErr) -> PyErr {
    let py = text.py();
    let shown = text.repr().map_or_else(|_| String::new(), |repr| repr.to_string_lossy().into_owned());
    let message = format!(
        "{shown} has a lone surrogate, which UTF-8 does not have: \
         text.encode('utf-8', 'backslashreplace').decode() gives a text that has none"
    );
    let raised = invalid(py, &message);
    raised.set_cause(py, Some(error));
    raised
}

/// Names that a caller gave, none by default.
pub(crate) fn names(given: Option<Vec<Text>>) -> Vec<String> {
    given.unwrap_or_default().into_iter().map(Into::into).collect()
}

/// Terms on which a new object is kept, with the attributes of `plasmon._terms.Terms`.
pub(crate) struct Terms {
    /// Name behind the id.
    name: Option<Text>,
    /// Rights of other users: "private", "r" or "rw".
    rights: PyBackedStr,
    /// Time-out in seconds, which includes the wait for room.
    timeout: Option<f64>,
    /// Whether a digest is made.
    digest: bool,
    /// Whether the id was drawn at random for the object.
    fresh: bool,
    /// Number of nodes that keep the object.
    replicas: i64,
    /// Time to live in seconds.
    ttl: Option<f64>,
    /// Whether the object ends with its client.
    owned: bool,
    /// Whether the object takes the place of what has its id.
    replace: bool,
    /// Version that is to be replaced.
    expected: Option<Version>,
}

impl<'py> FromPyObject<'_, 'py> for Terms {
    type Error = PyErr;

    fn extract(terms: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = terms.py();
        Ok(Self {
            name: field(terms, intern!(py, "name"))?,
            rights: field(terms, intern!(py, "rights"))?,
            timeout: field(terms, intern!(py, "timeout"))?,
            digest: field(terms, intern!(py, "digest"))?,
            fresh: field(terms, intern!(py, "fresh"))?,
            replicas: field(terms, intern!(py, "replicas"))?,
            ttl: field(terms, intern!(py, "ttl"))?,
            owned: field(terms, intern!(py, "owned"))?,
            replace: field(terms, intern!(py, "replace"))?,
            expected: field(terms, intern!(py, "expected"))?,
        })
    }
}

/// Term that an argument of a call of this name gave.
fn field<'py, T: for<'a> FromPyObject<'a, 'py>>(
    terms: Borrowed<'_, 'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<T> {
    let py = terms.py();
    let given = terms.getattr(name)?;
    given.extract().map_err(Into::<PyErr>::into).map_err(|error| {
        if error.is_instance_of::<PyTypeError>(py) {
            wrong_type(py, &format!("argument '{name}': {}", error.value(py)))
        } else {
            refused(&given, error)
        }
    })
}

impl Terms {
    /// Version that the object is to replace.
    pub(crate) fn expected(&self) -> Option<plasmon::Version> {
        self.expected.map(|version| version.0)
    }

    /// Terms as options of the client.
    pub(crate) fn options(self, py: Python<'_>) -> PyResult<CreateOptions> {
        let rights = match &*self.rights {
            "private" => Rights::Private,
            "rw" => Rights::ReadWrite,
            _ => Rights::Read,
        };
        let ttl = match self.ttl {
            Some(seconds) if seconds.is_nan() || seconds <= 0.0 => {
                return Err(invalid(py, "an object lives for more than 0 seconds, or for ever"));
            }
            ttl => duration(py, ttl)?,
        };
        let replicas = u16::try_from(self.replicas).ok().filter(|replicas| *replicas > 0);
        let replicas = replicas.ok_or_else(|| invalid(py, "an object has 1 to 65,535 replicas"))?;
        // An object that replaces another is kept by as many nodes as that one, if no number was given.
        let replicas = if self.replace && replicas == 1 { 0 } else { replicas };
        let room = room(py, self.timeout)?;
        Ok(CreateOptions {
            name: self.name.map(Into::into),
            rights,
            room,
            digest: self.digest,
            fresh: self.fresh,
            replicas,
            ttl,
            owned: self.owned,
            replace: self.replace,
        })
    }
}

/// Time-out of a call that makes an object. `None` and 0 do not wait for others to make room.
pub(crate) fn room(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout {
        None => Ok(None),
        // The longest duration stands for no limit.
        Some(_) => Ok(Some(duration(py, timeout)?.unwrap_or(Duration::MAX))),
    }
}

/// Time-out of so many seconds. `None` and infinity mean no limit.
pub(crate) fn duration(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let seconds = timeout.unwrap_or(f64::INFINITY);
    plasmon::timeout(seconds).map_err(|error| raised(py, &error))
}

/// Rest of a time-out since `began`. It is zero only if the time-out itself is, because zero has another
/// meaning.
pub(crate) fn left(timeout: Option<Duration>, began: Instant) -> Option<Duration> {
    let rest = |timeout: Duration| timeout.saturating_sub(began.elapsed()).max(Duration::from_micros(1));
    timeout.map(|timeout| if timeout.is_zero() { timeout } else { rest(timeout) })
}

/// Client that compares objects with the digest of their seal if the caller wants that.
pub(crate) fn verifying(client: &plasmon::Client, verify: bool) -> Cow<'_, plasmon::Client> {
    if verify { Cow::Owned(client.clone().verifying()) } else { Cow::Borrowed(client) }
}

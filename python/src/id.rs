//! Object ids, and the values that callers may write in their place.

use std::borrow::Cow;

use plasmon::ParseIdError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::error::{invalid, wrong_type};
use crate::given::given;
use crate::terms::{Text, characters};

/// Id of an object: 20 bytes, the same on every node.
///
/// `ObjectId(data)` makes an id from 20 bytes; `from_name`, `from_hex` and `random` make one in other ways.
/// Ids can be compared, hashed, sorted and pickled.
#[pyclass(frozen, eq, ord, hash, module = "plasmon", from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId(pub(crate) plasmon::ObjectId);

#[pymethods]
impl ObjectId {
    /// Length of an id in bytes.
    #[classattr]
    const LENGTH: usize = plasmon::ObjectId::LEN;

    #[new]
    fn new(py: Python<'_>, #[pyo3(from_py_with = given)] data: PyBackedBytes) -> PyResult<Self> {
        Self::of_bytes(py, &data)
    }

    /// Id of the object with this name, the same on every host.
    #[staticmethod]
    fn from_name(py: Python<'_>, name: Text) -> PyResult<Self> {
        Self::of_name(py, &name)
    }

    /// Id of a user's private object with this name.
    #[staticmethod]
    fn from_private_name(
        py: Python<'_>,
        name: Text,
        #[pyo3(from_py_with = given)] user: u32,
    ) -> PyResult<Self> {
        Self::of_name(py, &name)?;
        Ok(Self(plasmon::ObjectId::from_private_name(&name, user)))
    }

    /// Id with the given 40 hexadecimal digits.
    #[staticmethod]
    fn from_hex(py: Python<'_>, text: Text) -> PyResult<Self> {
        text.parse().map(Self).map_err(|error: ParseIdError| invalid(py, &error.to_string()))
    }

    /// Draws a random id, which no other object has.
    #[staticmethod]
    fn random() -> Self {
        Self(plasmon::ObjectId::random())
    }

    /// Bytes of the id.
    fn binary<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.as_bytes())
    }

    /// Id as 40 hexadecimal digits.
    fn hex(&self) -> String {
        self.0.to_string()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.binary(py)
    }

    fn __str__(&self) -> String {
        self.hex()
    }

    fn __repr__(&self) -> String {
        format!("ObjectId.from_hex('{}')", self.0)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let arguments = (slf.get().binary(slf.py()),);
        (slf.get_type(), arguments).into_pyobject(slf.py())
    }
}

impl ObjectId {
    fn of_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let bytes = data.try_into().map_err(|_| {
            let len = plasmon::ObjectId::LEN;
            invalid(py, &format!("an object id takes {len} bytes, not {}", data.len()))
        })?;
        Ok(Self(plasmon::ObjectId::from_bytes(bytes)))
    }

    fn of_name(py: Python<'_>, name: &str) -> PyResult<Self> {
        if name.is_empty() {
            return Err(invalid(py, "the name of an object cannot be empty"));
        }
        if hex(name).is_some() {
            let message =
                format!("{name} cannot be a name: 40 hexadecimal digits are an id, which from_hex makes");
            return Err(invalid(py, &message));
        }
        Ok(Self(plasmon::ObjectId::from_name(name)))
    }
}

/// Id with the name by which the caller called the object, for error messages.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Named {
    id: plasmon::ObjectId,
    name: String,
}

#[pymethods]
impl Named {
    #[new]
    fn new(#[pyo3(from_py_with = given)] id: ObjectId, name: Text) -> Self {
        Self { id: id.0, name: name.into() }
    }
}

/// Name that a caller gave for one of the objects of a call.
pub(crate) fn name_of(given: &Bound<'_, PyAny>, id: plasmon::ObjectId) -> Option<String> {
    if let Ok(name) = given.cast::<PyString>() {
        return name.to_cow().ok().filter(|name| hex(name).is_none()).map(Cow::into_owned);
    }
    if let Ok(named) = given.cast::<Named>() {
        return Some(named.get().name.clone());
    }
    // An iterator has ended by now.
    if !given.is_instance_of::<PyList>() && !given.is_instance_of::<PyTuple>() {
        return None;
    }
    let found = |one: Bound<'_, PyAny>| object_id(&one).ok().filter(|it| *it == id).and(name_of(&one, id));
    given.try_iter().ok()?.filter_map(PyResult::ok).find_map(found)
}

/// Id that a text stands for, if the text is no name.
fn hex(text: &str) -> Option<plasmon::ObjectId> {
    // Other texts are not parsed, because the error takes memory.
    (text.len() == 2 * plasmon::ObjectId::LEN).then(|| text.parse().ok()).flatten()
}

/// Id from an `ObjectId`, 20 bytes, 40 hexadecimal digits or a name, as every call of the client takes it.
pub(crate) fn object_id(given: &Bound<'_, PyAny>) -> PyResult<plasmon::ObjectId> {
    let py = given.py();
    if let Ok(id) = given.cast::<ObjectId>() {
        Ok(id.get().0)
    } else if let Ok(name) = given.cast::<PyString>() {
        let name = characters(name)?;
        hex(&name).map_or_else(|| Ok(ObjectId::of_name(py, &name)?.0), Ok)
    } else if let Ok(bytes) = given.cast::<PyBytes>() {
        Ok(ObjectId::of_bytes(py, bytes.as_bytes())?.0)
    } else if let Ok(named) = given.cast::<Named>() {
        Ok(named.get().id)
    } else {
        let kind = given.get_type();
        let message = format!("an object id is an ObjectId, 20 bytes or a name, not {}", kind.name()?);
        Err(wrong_type(py, &message))
    }
}

/// Ids from any iterable of them, or from a single one.
pub(crate) fn object_ids(given: &Bound<'_, PyAny>) -> PyResult<Vec<plasmon::ObjectId>> {
    if given.is_instance_of::<ObjectId>()
        || given.is_instance_of::<PyString>()
        || given.is_instance_of::<PyBytes>()
        || given.is_instance_of::<Named>()
    {
        return Ok(vec![object_id(given)?]);
    }
    let ids = given.try_iter().map_err(|_| {
        let kind = given.get_type().name().map_or_else(|_| String::new(), |name| name.to_string());
        let text = format!("ids are an ObjectId, 20 bytes or a name, or a list of these, not {kind}");
        wrong_type(given.py(), &text)
    })?;
    ids.map(|one| object_id(&one?)).collect()
}

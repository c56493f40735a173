//! Descriptions of values in objects, in a few words for people.
//!
//! Owns no state. Any thread. The Python package writes metadata that describe a value: `PLPY`, a version,
//! and a JSON object (`python/python/plasmon/_values.py`). Anybody may write such bytes, so the code trusts
//! none of them.

use serde_json::Value;

/// Beginning of the metadata of values of the Python package.
const MAGIC: &[u8] = b"PLPY\x01";
/// Longest description in characters.
const MAX_CHARS: usize = 80;

/// Describes a value by the metadata of its object, or by the beginning of the metadata.
pub(crate) fn describe(metadata: &[u8]) -> String {
    let Some(header) = metadata.strip_prefix(MAGIC) else { return "bytes".into() };
    let header = match serde_json::from_slice::<Value>(header) {
        Ok(header) => header,
        // The rest is cut off: the kind comes first.
        Err(_) => return kind_of(header).unwrap_or("unknown").chars().take(MAX_CHARS).collect(),
    };
    let field = |name: &str| header[name].as_str().unwrap_or_default();
    let text = match field("kind") {
        "" => "unknown".to_owned(),
        "numpy" => format!("numpy {} {}", dtype(field("dtype")), shape(&header["shape"])),
        "arrow" => match field("type") {
            kind @ ("frame" | "series") => format!("polars {kind}"),
            kind => format!("arrow {kind}"),
        },
        kind => format!("{kind} {}", field("type")),
    };
    text.trim_end().chars().take(MAX_CHARS).collect()
}

/// Kind in a header of which the end is missing.
fn kind_of(header: &[u8]) -> Option<&str> {
    let rest = std::str::from_utf8(header.strip_prefix(br#"{"kind":""#)?.get(..32)?).ok()?;
    rest.split('"').next()
}

/// Name of an element type, whose Python literal is like `'<f8'`.
fn dtype(literal: &str) -> String {
    let code = literal.trim_matches('\'');
    let plain = code.trim_start_matches(['<', '|', '=']);
    let bits = |bytes: &str| bytes.parse::<u32>().ok().filter(|bytes| *bytes <= 32).map(|bytes| 8 * bytes);
    let name = plain.split_at_checked(1).and_then(|(letter, bytes)| {
        let name = match letter {
            "b" => return Some("bool".to_owned()),
            "i" => "int",
            "u" => "uint",
            "f" => "float",
            "c" => "complex",
            _ => return None,
        };
        Some(format!("{name}{}", bits(bytes)?))
    });
    name.unwrap_or_else(|| code.to_owned())
}

/// Shape of an array as Python writes it.
fn shape(shape: &Value) -> String {
    let sides: Vec<_> = shape.as_array().into_iter().flatten().map(Value::to_string).collect();
    if let [one] = sides.as_slice() { format!("({one},)") } else { format!("({})", sides.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_told_in_a_few_words() {
        for (header, text) in [
            (r#"{"kind":"numpy","dtype":"'<f8'","shape":[1000],"order":"C"}"#, "numpy float64 (1000,)"),
            (r#"{"kind":"numpy","dtype":"'|b1'","shape":[],"order":"C"}"#, "numpy bool ()"),
            (r#"{"kind":"numpy","dtype":"'>i4'","shape":[2,3],"order":"F"}"#, "numpy >i4 (2, 3)"),
            (r#"{"kind":"numpy","dtype":"'<M8[ns]'","shape":[2]}"#, "numpy <M8[ns] (2,)"),
            (r#"{"kind":"arrow","type":"table"}"#, "arrow table"),
            (r#"{"kind":"arrow","type":"series"}"#, "polars series"),
            (r#"{"kind":"pickle","type":"dict","pickle":3,"table":8,"buffers":0}"#, "pickle dict"),
            (r#"{"kind":"pickle","pickle":3,"table":8,"buffers":0}"#, "pickle"),
            (r#"{"kind":"numpy","dtype":"[('a', '<f8'), ('b'"#, "numpy"),
            (r#"{"kind"#, "unknown"),
            (r"[1]", "unknown"),
        ] {
            assert_eq!(describe(&[MAGIC, header.as_bytes()].concat()), text);
        }
        assert_eq!(describe(b""), "bytes");
        assert_eq!(describe(b"of the program's own"), "bytes");
    }
}

//! Rows of a table as events: each row of a CSV file becomes a line of JSON.
//!
//! Owns no state. Any thread. Fields are as RFC 4180 has them; a field that is a number becomes one.

use serde_json::{Map, Value};

/// Fields of a row, without the end of its line. `None` if a quote is not closed, so that the row goes on in
/// the next line.
pub(crate) fn fields(row: &str) -> Option<Vec<String>> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut chars = row.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                fields.last_mut()?.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => fields.last_mut()?.push(other),
        }
    }
    (!quoted).then_some(fields)
}

/// Event of a row: an object with a value for each field that is not empty and not `NA`.
pub(crate) fn event(heads: &[String], row: &[String]) -> String {
    let value = |field: &String| match field.parse::<i64>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from(field.as_str()),
    };
    let named = heads.iter().zip(row).filter(|(_, field)| !field.is_empty() && *field != "NA");
    let object: Map<String, Value> = named.map(|(head, field)| (head.clone(), value(field))).collect();
    Value::Object(object).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_events() {
        let heads = fields("year,carrier,dep_delay,note").expect("it is whole");
        let row = fields("2013,UA,NA,\"late, \"\"very\"\"\"").expect("it is whole");
        assert_eq!(event(&heads, &row), r#"{"carrier":"UA","note":"late, \"very\"","year":2013}"#);
        assert_eq!(fields("a,\"b"), None);
        assert_eq!(fields(""), Some(vec![String::new()]));
    }
}

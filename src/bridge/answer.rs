//! What an application's answer comes to. Total: it is a decision, or what is wrong with it, by the name of the field.

use super::{STATE_MOST, merged, patch, set};
use crate::agents::{Decision, MAX_EVENTS};
use serde_json::{Map, Value};

/// The decision in `body`, an answer with status 200 to a question about `state`.
pub(super) fn decision(body: &[u8], state: Value) -> Result<Decision, String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| format!("the body is no JSON: {error}"))?;
    let Value::Object(mut fields) = body else {
        return Err("the body: expected an object such as {\"answer\": …}".to_owned());
    };
    let answer = fields.remove("answer").ok_or("field answer: absent; null will do")?;
    let (entries, whole) = (fields.remove("entries"), fields.remove("state"));
    if let Some(unknown) = fields.keys().next() {
        return Err(format!("field {unknown}: unknown; there are answer, entries and state"));
    }
    let events = match (entries, whole) {
        (None, None) => return Ok(Decision::Answer(answer)),
        (Some(_), Some(_)) => return Err("fields entries and state: give one of them".to_owned()),
        (None, Some(whole)) => {
            bounded(&whole)?;
            vec![set(whole)]
        }
        (Some(entries), None) => patches(entries, state)?,
    };
    Ok(Decision::Append { events, answer })
}

fn patches(entries: Value, mut state: Value) -> Result<Vec<Value>, String> {
    let Value::Array(entries) = entries else {
        return Err("field entries: expected a list of objects".to_owned());
    };
    if entries.len() > MAX_EVENTS {
        return Err(format!("field entries: {} of them, {MAX_EVENTS} are allowed", entries.len()));
    }
    for (at, entry) in entries.iter().enumerate() {
        if !entry.is_object() {
            return Err(format!("field entries[{at}]: expected an object, a JSON merge patch (RFC 7396) of the state"));
        }
        if at == 0 && state.is_null() {
            state = Value::Object(Map::new());
        }
        patch::merge(&mut state, entry);
    }
    bounded(&state)?;
    Ok(entries.into_iter().map(merged).collect())
}

fn bounded(state: &Value) -> Result<(), String> {
    match state.to_string().len() {
        0..=STATE_MOST => Ok(()),
        bytes => Err(format!("the state would have {bytes} bytes, {STATE_MOST} are allowed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn decided(body: &Value, state: Value) -> Result<Decision, String> {
        decision(body.to_string().as_bytes(), state)
    }

    #[test]
    fn an_answer_alone_is_a_read() {
        assert_eq!(decided(&json!({"answer": null}), json!(1)), Ok(Decision::Answer(Value::Null)));
    }

    #[test]
    fn entries_are_stored_as_patches_and_a_state_as_a_whole() {
        let append = |events: Vec<Value>| Ok(Decision::Append { events, answer: json!(1) });
        let entries = json!({"answer": 1, "entries": [{"a": 1}, {"a": null}]});
        assert_eq!(
            decided(&entries, Value::Null),
            append(vec![json!({"merge": {"a": 1}}), json!({"merge": {"a": null}})])
        );
        assert_eq!(decided(&json!({"answer": 1, "entries": []}), json!(1)), append(vec![]));
        assert_eq!(decided(&json!({"answer": 1, "state": null}), json!(1)), append(vec![json!({"set": null})]));
    }

    #[test]
    fn each_thing_that_is_wrong_is_named_by_its_field() {
        let big = json!("x".repeat(STATE_MOST));
        for (body, named) in [
            (json!([1]), "the body"),
            (json!({}), "field answer"),
            (json!({"answer": 1, "result": 2}), "field result"),
            (json!({"answer": 1, "entries": [], "state": 1}), "fields entries and state"),
            (json!({"answer": 1, "entries": {}}), "field entries:"),
            (json!({"answer": 1, "entries": [{}, 3]}), "field entries[1]"),
            (json!({"answer": 1, "entries": vec![json!({}); MAX_EVENTS + 1]}), "4097 of them"),
            (json!({"answer": 1, "state": big}), "the state"),
            (json!({"answer": 1, "entries": [{"a": big}]}), "the state"),
        ] {
            let why = decided(&body, Value::Null).unwrap_err();
            assert!(why.contains(named), "{why}");
        }
        assert!(decision(b"<html>", Value::Null).unwrap_err().contains("no JSON"));
    }
}

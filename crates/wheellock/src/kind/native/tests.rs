//! Tests of `native`.

use super::*;

fn said(native: &Native, replies: [Option<Value>; 2]) -> Option<Option<Value>> {
    let [first, second] = replies;
    (native.read)(&first.unwrap(), second.as_ref()).map(|reply| match reply {
        NativeReply::Done(value) => Some(value),
        NativeReply::Refused => None,
    })
}

#[test]
fn native_replies_match_script_replies() {
    let ok = Value::SimpleString(b"OK".to_vec().into());
    let refusal = Value::Error(b"NOPERM no channel".to_vec().into());
    assert_eq!(said(&SET[0], [Some(ok.clone()), None]), Some(Some(Value::Null)));
    assert_eq!(said(&SET[0], [Some(Value::Null), None]), Some(None), "the script says for how long");
    assert_eq!(said(&SET[0], [Some(Value::Integer(1)), None]), None);
    for delete in &DELETE {
        let told = |gone, heard| said(delete, [Some(Value::Integer(gone)), Some(heard)]);
        assert_eq!(told(1, Value::Integer(2)), Some(Some(Value::Integer(3))));
        assert_eq!(told(1, refusal.clone()), Some(Some(Value::Integer(1))));
        assert_eq!(told(0, Value::Integer(2)), Some(Some(Value::Null)), "nothing was given back");
        assert_eq!(told(2, Value::Integer(2)), None);
        assert_eq!(told(1, Value::Integer(-1)), None);
        assert_eq!(told(1, ok.clone()), None);
        assert_eq!(said(delete, [Some(Value::Integer(1)), None]), None);
    }
}

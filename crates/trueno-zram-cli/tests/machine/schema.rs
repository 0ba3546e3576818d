//! The output of `--json` is as docs/JSON.md describes it, in every command.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::support::{folder, image, run};
use crate::victim::Victim;

const DOCUMENT: &str = include_str!("../../../../docs/JSON.md");

/// The types of every key, with the commands that print it so.
type Types = BTreeMap<String, BTreeMap<&'static str, String>>;

fn kind(value: &Value) -> Option<&'static str> {
    match value {
        Value::Null => None,
        Value::Bool(_) => Some("boolean"),
        Value::Number(_) => Some("number"),
        Value::String(_) => Some("string"),
        Value::Array(_) => Some("array"),
        Value::Object(_) => Some("object"),
    }
}

fn collect(command: &str, value: &Value, types: &mut Types) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let known = types.entry(key.clone()).or_default();
                if let Some(kind) = kind(value) {
                    known.entry(kind).or_insert_with(|| command.to_owned());
                }
                collect(command, value, types);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(command, item, types)),
        _ => {}
    }
}

#[test]
fn every_key_is_documented_and_has_one_type_in_all_commands() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(50)).unwrap();
    fs::write(folder.path().join("damaged.lz4"), b"\x04\x22\x4d\x18 not a frame").unwrap();
    let victim = Victim::start(10);
    let pid = victim.pid().to_string();
    let mut types = Types::new();
    for (args, code) in [
        (&["compress", "image"][..], 0),
        (&["compress", "image"], 1),
        (&["decompress", "-f", "image.lz4"], 0),
        (&["test", "image.lz4", "missing", "damaged.lz4"], 1),
        (&["extract", "image.lz4", "--pages", "3", "-o", "page"], 0),
        (&["extract", "image.lz4", "--pages", "99", "-o", "page2"], 1),
        (&["inspect", "image", "image.lz4", "missing"], 1),
        (&["inspect", "image.lz4", "--decode"], 0),
        (&["info"], 0),
        (&["selftest", "--only", "cpu scalar"], 0),
        (&["snapshot", &pid, "-o", "snapshot.lz4"], 0),
        (&["snapshot", "4194305", "-o", "none.lz4"], 1),
        (&["inspect", "snapshot.lz4"], 0),
        (&["compress", "--base", "image.lz4", "image"], 0),
        (&["test", "image.tzd"], 0),
        (&["inspect", "image.tzd"], 0),
        (&["flatten", "image.tzd", "-o", "flat.lz4"], 0),
        (&["snapshot", &pid, "--base", "snapshot.lz4", "-o", "snapshot.tzd"], 0),
        (&["compress", "--dedup", "image", "-o", "dedup.tzd"], 0),
        (&["inspect", "dedup.tzd"], 0),
        (&["snapshot", &pid, "--dedup", "-o", "dedup-snapshot.tzd"], 0),
    ] {
        let ran = run(folder.path(), &[args, &["--json"]].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        let objects = ran.json();
        assert!(!objects.is_empty(), "{args:?} prints its result, failed or not");
        let failed = objects.iter().filter(|object| object["status"] == "failed").count();
        assert_eq!(failed > 0, code == 1, "{args:?}: {objects:?}");
        for object in objects {
            assert_eq!((&object["schema"], &object["command"]), (&1.into(), &args[0].into()), "{args:?}");
            assert_eq!(object["error"].is_string(), object["status"] == "failed", "{object}");
            assert!(["ok", "failed"].contains(&object["status"].as_str().unwrap()), "{object}");
            collect(args[0], &object, &mut types);
        }
    }
    for (key, kinds) in types {
        assert!(kinds.len() <= 1, "`{key}` has several types: {kinds:?}");
        assert!(DOCUMENT.contains(&format!("`{key}`")), "`{key}` is not in docs/JSON.md");
    }
}

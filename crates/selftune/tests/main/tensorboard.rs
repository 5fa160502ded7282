//! What `--tensorboard` writes, read by the published descriptions of its parts alone: records of TensorFlow, wire format
//! of protocol buffers, CRC-32C bit by bit.

use crate::tiny::{Place, SHORT};
use serde_json::Value;
use std::collections::BTreeMap;

#[test]
fn event_files_hold_what_the_events_say_and_are_private() {
    let place = Place::new();
    let train = ["train", "--model", "model", "--data", "history.jsonl", "--output", "runs/me", "--json", "--events"];
    let output = place.run(&[&train[..], SHORT, &["--tensorboard", "boards/me"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut expected = Vec::new();
    for line in String::from_utf8(output.stdout).expect("UTF-8").lines() {
        let event: Value = serde_json::from_str(line).expect("a JSON object a line");
        let scalar = |tag: &str, key: &str| (tag.to_owned(), event[key].as_f64().expect(key) as f32);
        let scalars = match event["event"].as_str() {
            Some("step") => vec![
                scalar("loss/train", "loss"),
                scalar("learning_rate", "learning_rate"),
                scalar("gradient_norm", "gradient_norm"),
                scalar("tokens_per_second", "tokens_per_second"),
            ],
            Some("validation") => vec![scalar("loss/validation", "loss")],
            _ => continue,
        };
        expected.push((event["step"].as_u64().expect("a step"), scalars));
    }
    assert!(expected.len() > 3, "{expected:?}");

    let file = std::fs::read_dir(place.path("boards/me")).expect("the folder").next().expect("a file").expect("a file");
    let bytes = std::fs::read(file.path()).expect("readable");
    let mut rest = &bytes[..];
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (head, body) = rest.split_at(12);
        assert_eq!(masked(&head[..8]), u32::from_le_bytes(head[8..].try_into().expect("4 bytes")));
        let (message, body) = body.split_at(u64::from_le_bytes(head[..8].try_into().expect("8 bytes")) as usize);
        let (checksum, body) = body.split_at(4);
        assert_eq!(masked(message), u32::from_le_bytes(checksum.try_into().expect("4 bytes")));
        rest = body;
        found.push(fields(message));
    }
    let version = found.remove(0);
    assert_eq!(version[&3], [b"brain.Event:2"]);
    assert_eq!(version[&1][0].len(), 8, "a time");
    let scalar = |value: &Vec<u8>| {
        let value = fields(value);
        let tag = String::from_utf8(value[&1][0].clone()).expect("UTF-8");
        (tag, f32::from_le_bytes(value[&2][0][..].try_into().expect("4 bytes")))
    };
    let found: Vec<(u64, Vec<(String, f32)>)> = found
        .iter()
        .map(|event| {
            // The number 0 is not written.
            let step = event.get(&2).map_or(0, |step| varint(&mut &step[0][..]));
            (step, fields(&event[&5][0])[&1].iter().map(scalar).collect())
        })
        .collect();
    assert_eq!(found, expected);

    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &std::path::Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&place.path("boards")), mode(&place.path("boards/me"))), (0o700, 0o700));
        assert_eq!(mode(&file.path()), 0o600);
    }
}

/// The fields of a message by their numbers: a varint as it stands, others without their length.
fn fields(mut message: &[u8]) -> BTreeMap<u64, Vec<Vec<u8>>> {
    let mut fields = BTreeMap::<u64, Vec<Vec<u8>>>::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let len = match key & 7 {
            0 => message.iter().position(|byte| byte & 0x80 == 0).expect("an end") + 1,
            1 => 8,
            2 => varint(&mut message) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (value, rest) = message.split_at(len);
        fields.entry(key >> 3).or_default().push(value.to_vec());
        message = rest;
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

/// RFC 3720, section B.4, bit by bit; masked as TensorFlow does.
fn masked(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    let crc = !bytes.iter().fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit));
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[test]
fn the_checksum_of_this_test_is_the_published_one() {
    let crc = |bytes: &[u8]| masked(bytes).wrapping_sub(0xa282_ead8).rotate_left(15);
    assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
}

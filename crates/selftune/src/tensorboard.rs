//! Scalars for TensorBoard: an event file, that is records of a protocol buffer each (tensorflow/core/util/event.proto).
//!
//! A record is its length (u64), the masked CRC-32C of that, the message, and its masked CRC-32C. Of the message a scalar
//! needs four fields, which is less than any crate for it would bring along (see docs/log.md).

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::failure::Failure;
use anyhow::Context;
use train::TrainEvent;

/// An open event file.
pub struct Scalars {
    file: File,
}

impl Scalars {
    /// Begins a new event file in `folder`; TensorBoard shows all files of a folder as one run, by the update's number.
    pub fn create(folder: &Path) -> Result<Scalars, Failure> {
        let seconds = device::unix_time_seconds();
        let create = || {
            std::fs::create_dir_all(folder)?;
            let name = format!("events.out.tfevents.{:010}.selftune.{}", seconds as u64, std::process::id());
            let mut scalars = Scalars { file: File::create(folder.join(name))? };
            // Field 3: the version of the file, which a reader expects first.
            scalars.record(&message(seconds, None, &bytes_field(3, b"brain.Event:2")))?;
            Ok::<_, io::Error>(scalars)
        };
        Ok(create().with_context(|| format!("cannot write for TensorBoard into {}", folder.display()))?)
    }

    /// Notes what an event measured.
    pub fn event(&mut self, event: &TrainEvent) -> io::Result<()> {
        match event {
            TrainEvent::Step(step) => self.scalars(
                step.step,
                &[
                    ("loss/train", step.loss),
                    ("learning_rate", step.learning_rate),
                    ("gradient_norm", step.gradient_norm),
                    ("tokens_per_second", step.tokens_per_second),
                ],
            ),
            TrainEvent::Validation(point) => self.scalars(point.step, &[("loss/validation", point.loss)]),
            _ => Ok(()),
        }
    }

    fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        // Field 5: a summary, whose field 1 is a value: field 1 its tag, field 2 a float.
        let summary: Vec<u8> = values
            .iter()
            .flat_map(|(tag, value)| {
                let mut fields = bytes_field(1, tag.as_bytes());
                fields.push(2 << 3 | 5);
                fields.extend_from_slice(&(*value as f32).to_le_bytes());
                bytes_field(1, &fields)
            })
            .collect();
        self.record(&message(device::unix_time_seconds(), Some(step), &bytes_field(5, &summary)))
    }

    /// One write a record, so that a reader beside us rarely sees a part of one.
    fn record(&mut self, message: &[u8]) -> io::Result<()> {
        let len = (message.len() as u64).to_le_bytes();
        let mut record = len.to_vec();
        record.extend_from_slice(&masked_crc32c(&len).to_le_bytes());
        record.extend_from_slice(message);
        record.extend_from_slice(&masked_crc32c(message).to_le_bytes());
        self.file.write_all(&record)
    }
}

/// An event: field 1 the time (double), field 2 the step (varint), and `rest`.
fn message(seconds: f64, step: Option<u64>, rest: &[u8]) -> Vec<u8> {
    let mut message = vec![1 << 3 | 1];
    message.extend_from_slice(&seconds.to_le_bytes());
    if let Some(step) = step {
        message.push(2 << 3);
        push_varint(&mut message, step);
    }
    message.extend_from_slice(rest);
    message
}

/// A field of bytes (wire type 2).
fn bytes_field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    push_varint(&mut field, bytes.len() as u64);
    field.extend_from_slice(bytes);
    field
}

fn push_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// CRC-32C (Castagnoli), masked as in TensorFlow's lib/hash/crc32c.h, so that a checksum of checksums is no weak one.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    const REFLECTED_POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (REFLECTED_POLYNOMIAL & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_the_published_ones() {
        // RFC 3720, section B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn numbers_are_as_in_the_specification_of_protocol_buffers() {
        let mut bytes = Vec::new();
        push_varint(&mut bytes, 150);
        push_varint(&mut bytes, 1);
        assert_eq!(bytes, [0x96, 0x01, 0x01]);
        assert_eq!(bytes_field(2, b"testing"), [&[0x12, 0x07][..], b"testing"].concat());
    }
}

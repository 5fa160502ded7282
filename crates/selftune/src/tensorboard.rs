//! Scalars for TensorBoard: an event file, that is records of a protocol buffer each (tensorflow/core/util/event.proto).
//!
//! A record is its length (u64), the masked CRC-32C of that, the message, and its masked CRC-32C.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::failure::Failure;
use anyhow::Context;
use prost::Message;
use train::TrainEvent;

/// The fields of an event that scalars need, numbered as in event.proto.
#[derive(prost::Message)]
struct Event {
    #[prost(double, tag = "1")]
    unix_seconds: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

/// As in summary.proto.
#[derive(prost::Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Scalar>,
}

#[derive(prost::Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    value: Option<f32>,
}

/// An open event file.
pub struct Scalars {
    file: File,
}

impl Scalars {
    /// Begins a new event file in `folder`; TensorBoard shows all files of a folder as one run, by the update's number.
    /// File and new folders are the owner's only.
    pub fn create(folder: &Path) -> Result<Scalars, Failure> {
        let name =
            format!("events.out.tfevents.{:010}.selftune.{}", device::unix_time_seconds() as u64, std::process::id());
        crate::study::make_private_folder(folder)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let create = || {
            let mut scalars = Scalars { file: options.open(folder.join(name))? };
            // A reader expects the version of the file first.
            scalars.record(0, Some("brain.Event:2".to_owned()), None)?;
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
        let scalar = |(tag, value): &(&str, f64)| Scalar { tag: (*tag).to_owned(), value: Some(*value as f32) };
        self.record(step, None, Some(Summary { values: values.iter().map(scalar).collect() }))
    }

    /// One write a record, so that a reader beside us rarely sees a part of one.
    fn record(&mut self, step: u64, file_version: Option<String>, summary: Option<Summary>) -> io::Result<()> {
        let event = Event { unix_seconds: device::unix_time_seconds(), step: step as i64, file_version, summary };
        let message = event.encode_to_vec();
        let len = (message.len() as u64).to_le_bytes();
        let mut record = len.to_vec();
        record.extend_from_slice(&masked_crc32c(&len).to_le_bytes());
        record.extend_from_slice(&message);
        record.extend_from_slice(&masked_crc32c(&message).to_le_bytes());
        self.file.write_all(&record)
    }
}

/// CRC-32C, masked as in TensorFlow's lib/hash/crc32c.h, so that a checksum of checksums is no weak one.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    const CASTAGNOLI: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    CASTAGNOLI.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

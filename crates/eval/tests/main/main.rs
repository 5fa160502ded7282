//! Tests of the crate from outside, in one binary.

mod differences;
mod evaluate;
mod report;
mod rouge;
mod sample;
mod study;
mod verdict;

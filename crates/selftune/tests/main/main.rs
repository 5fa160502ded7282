//! The command line from outside: what it prints, writes, survives and refuses.

mod accept;
mod bad_input;
mod bench_step;
mod commands;
mod documented;
mod generation;
mod hub;
mod imports;
mod memory;
mod merging;
mod plan;
mod real_model;
mod runs;
mod stages;
mod study;
mod survival;
mod tensorboard;
mod tiny;

//! Whole models: gradients against central differences, equalities that must hold to the bit, counted work and
//! allocations, and values written by other programs.

mod adapter_files;
mod allocations;
mod bad_input;
mod candidates;
mod configurations;
mod counted_work;
mod equalities;
mod generation;
mod gradients;
mod memory;
mod oracle;
mod real_model;
mod stacked;
mod tiny;

//! Text, retrieval and examples against goldens of other programs, and properties of every example.

mod benchmark_files;
mod bm25_goldens;
mod bundled;
mod examples;
mod git_import;
mod history;
mod imports;
mod isolation;
mod masks;
mod real_model;
mod support;
mod template_goldens;
mod tokenizer_goldens;

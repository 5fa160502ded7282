//! Whole files through the public interface. Oracles: goldens written by gguf-py, MLX, transformers and peft, and files
//! that this test writes byte by byte.

mod adapters;
mod cache;
mod gguf_files;
mod hostile;
mod hugging_face;
mod mlx_folders;
mod rewritten;
mod support;

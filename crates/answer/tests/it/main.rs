//! Answers as clients see them.

mod harness;
mod hostile;
mod logprobs;
mod models;
mod parsers;
mod shapes;
mod stops;
mod text;
mod usage;

//! Parsers of the calls of tools that a model writes into its text.

mod calls;
mod channels;
mod elements;
mod family;
mod framed;
mod gemma;
mod grammar;
mod guided;
mod headed;
mod json;
mod literal;
mod machine;
mod object;
mod parsing;
mod pythonic;
mod schema;
mod state;
mod tagged;
pub(crate) mod text;
mod value;

pub use family::{ToolParser, UnknownParser};
pub use parsing::{Parsing, Plan};
pub use schema::Schemas;
pub use state::{MAX_HELD_BYTES, State};

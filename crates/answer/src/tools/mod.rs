//! Parsers of the calls of tools that a model writes into its text.
//!
//! [`Plan::start`] gives what one choice needs: thoughts are taken out first ([`crate::reasoning`]), then calls. Text is pushed
//! in as it comes and comes out as [`crate::Delta`]s, the same however it was cut. The names are those of Dynamo 1.6.1, as
//! model cards carry them.
//!
//! | name | models | form |
//! |---|---|---|
//! | `hermes`, `qwen25` | Hermes 2 to 4, Qwen 2.5, Qwen 3 | `<tool_call>{"name": .., "arguments": {..}}</tool_call>` |
//! | `qwen3_coder`, `qwen3`, `nemotron_nano` | Qwen3-Coder, Qwen 3.5, Nemotron 3 | `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`; objects as above too |
//! | `llama3_json` | Llama 3.1 to 3.3 | `{"name": .., "parameters": {..}}`, alone or behind `<\|python_tag\|>` |
//! | `pythonic` | Llama 3.2, Llama 4, ToolACE | `[NAME(key=value)]`, also between `<\|python_start\|>` and `<\|python_end\|>` |
//! | `mistral` | Mistral, Ministral, Devstral, Magistral | `[TOOL_CALLS]`, then `[{..}]` or `NAME[ARGS]{..}` |
//! | `deepseek_v3`, `deepseek_v3_1` | DeepSeek V3, R1, V3.1 | `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>..` |
//! | `deepseek_v3_2` | DeepSeek V3.2 | `<｜DSML｜function_calls><｜DSML｜invoke name="NAME">..` |
//! | `deepseek_v4` (`deepseek-v4`, `deepseekv4`), `deepseek_v41` | DeepSeek V4, V4.1 | the same in `tool_calls`, in ` calls` |
//! | `harmony` | gpt-oss | `<\|channel\|>commentary to=functions.NAME<\|message\|>{..}<\|call\|>` |
//! | `kimi_k2`, `kimi_k25` | Kimi K2, K2 Thinking, K2.5 | `<\|tool_calls_section_begin\|><\|tool_call_begin\|>functions.NAME:0..` |
//! | `kimi_k3` (`kimi-k3`) | Kimi K3 | `<\|open\|>tools<\|sep\|><\|open\|>call tool="NAME"..` |
//! | `glm45`, `glm47` | GLM-4.5 to GLM-5 | `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>` |
//! | `minimax_m2` | MiniMax-M2 | `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>..` |
//! | `minimax_m3` (`minimax-m3`), `minimax_m3_nom` (`minimax-m3-nom`) | MiniMax-M3 | `]<]minimax[>[<tool_call>]<]minimax[>[<invoke name="NAME">..`; without the mark before each tag |
//! | `gemma4` (`gemma-4`) | Gemma 4 | `<\|tool_call>call:NAME{key:<\|"\|>text<\|"\|>}<tool_call\|>` |
//! | `nemotron_deci` | Llama-Nemotron, Nemotron-H | `<TOOLCALL>[{..}]</TOOLCALL>` |
//! | `jamba` | Jamba | `<tool_calls>[{..}]</tool_calls>` |
//! | `phi4` | Phi-4 mini | `functools[{..}]` |
//! | `inkling` | Inkling | `<\|content_invoke_tool_json\|>{"name": .., "args": {..}}<\|end_message\|>` |
//! | `muse`, `muse_glimmer` | Muse | `to=NAME<\|message\|><atem:function_calls>..` |
//! | `default` | any | as `nemotron_deci` and `llama3_json` |
//!
//! **When a call begins.** A call goes out with its name as soon as it is certain, then its arguments as they come: JSON as the
//! model wrote it, what is not JSON converted, with the types that the tool's schema declares. Until then it is held, up to
//! [`MAX_HELD_BYTES`]. What turns out to be none is content, from its marker on. Arguments of a call that is cut off stay cut:
//! they are no valid JSON, so that nobody acts on half of them.
//!
//! **What is content.** All text outside calls. Line breaks next to a marker belong to the marker, and so does white space with
//! nothing else between two markers (1.6.1 leaves both in the text). Tokens that end turns are dropped where they come as text.
//!
//! **Special tokens.** Markers are special tokens in some vocabularies and would be skipped: `Plan::wants_special_tokens` says
//! that they must not be, `Parsing::wants_token` which ones.
//!
//! **Named and required tools.** The engine was bound to JSON without markers, which is read as such; an engine that could not
//! be bound writes as its family does, and is read as that.
//!
//! Time is linear in the text. Held at most: one marker, [`MAX_HELD_BYTES`] of an undecided call, and as much of one value that
//! is not a string.

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

#[cfg(test)]
mod tests;

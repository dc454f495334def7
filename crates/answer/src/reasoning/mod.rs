//! Parsers of what a model thinks before it answers.
//!
//! | name | form |
//! |---|---|
//! | `basic`, `qwen3`, `qwen3_coder`, `glm45`, `glm47`, `nemotron_deci`, `deepseek_v3`, `deepseek_v3_1`, `deepseek_v3_2`, `deepseek_v4` (`deepseek-v4`, `deepseekv4`), `deepseek_v41`, `kimi_k2` | `<think>..</think>` before the answer |
//! | `deepseek_r1`, `step3`, `minimax_m2`, `nemotron_nano`, `nemotron3`, `nemotron_v3`, `kimi_k25` | the same, and thinking from the first token on |
//! | `minimax_append_think` | nothing is taken out: the `<think>` that the template opened is put in front of the content |
//! | `minimax_m3` (`minimax-m3`) | `<mm:think>..</mm:think>` |
//! | `mistral` | `[THINK]..[/THINK]`, anywhere |
//! | `kimi` | `◁think▷..◁/think▷` |
//! | `granite` | `Here is my thought process:..Here is my response:` |
//! | `gemma4` (`gemma-4`) | `<\|channel>thought..<channel\|>`, anywhere |
//! | `kimi_k3` (`kimi-k3`) | `<\|open\|>think<\|sep\|>..<\|close\|>think<\|sep\|>` |
//! | `gpt_oss`, `inkling`, `muse` (`muse_glimmer`) | messages of their own, told apart by their heads; these parse calls too |
//!
//! **Where thinking begins.** The end of the prompt tells: a template that opened the thought has the model go on inside, one
//! that closed it (`enable_thinking: false`) is past it. Where the prompt says nothing, the table does. Where thoughts come
//! only before the answer, the marker counts once and not behind the beginning of a call: an answer and the arguments of a call
//! may quote it.
//!
//! A marker of calls inside a thought opens no call. Exceptions are the section tokens of DeepSeek and Kimi K2, which a
//! model can write with no other meaning: there the thought is over.

mod names;
mod state;

pub use names::ReasoningParser;
pub use state::State;

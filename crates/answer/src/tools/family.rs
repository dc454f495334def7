//! Which parsers there are, by the names that model cards use, and the markers of each.

use thiserror::Error;

use super::{
    elements::Elements,
    framed::Framed,
    gemma::Gemma,
    grammar,
    headed::{Headed, Style},
    pythonic::Pythonic,
    state::Machine,
    tagged::Tagged,
};

/// A model card names a parser that does not exist here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no {kind} parser is named {name:?}; there are: {known}")]
pub struct UnknownParser {
    /// `tool call` or `reasoning`.
    pub kind: &'static str,
    /// What was asked for.
    pub name: String,
    /// All names, separated by commas.
    pub known: String,
}

/// How a family of models writes its calls. The table of names and formats is at the head of [`crate::tools`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolParser {
    /// `<TOOLCALL>[..]</TOOLCALL>`, `<|python_tag|>{..}`, or an object alone.
    Generic,
    /// `<tool_call>{..}</tool_call>`
    Hermes,
    /// `<TOOLCALL>[..]</TOOLCALL>`
    NemotronDeci,
    /// An object alone or behind `<|python_tag|>`.
    Llama3Json,
    /// `[TOOL_CALLS]`, then objects or headers.
    Mistral,
    /// `functools[..]`
    Phi4,
    /// `<tool_calls>[..]</tool_calls>`
    Jamba,
    /// `<｜tool▁calls▁begin｜>..`, V3 and V3.1.
    DeepSeek,
    /// `<|tool_calls_section_begin|>..`
    KimiK2,
    /// `<tool_call><function=..>..`; JSON between the outer tags is read too.
    Qwen3Coder,
    /// `<minimax:tool_call><invoke ..>..`
    MiniMaxM2,
    /// `]<]minimax[>[<tool_call>..`
    MiniMaxM3,
    /// As MiniMax-M3, without the mark before each tag.
    MiniMaxM3Plain,
    /// `<tool_call>NAME<arg_key>..`
    Glm,
    /// `<｜DSML｜function_calls>..`
    DeepSeekV32,
    /// `<｜DSML｜tool_calls>..`
    DeepSeekV4,
    /// `<｜DSML｜ calls>..`
    DeepSeekV41,
    /// `<|open|>tools<|sep|>..`
    KimiK3,
    /// `[f(a=1)]`
    Pythonic,
    /// `<|tool_call>call:..`
    Gemma4,
    /// gpt-oss: messages on channels.
    Harmony,
    /// Messages whose kind is a token.
    Inkling,
    /// Messages with recipients, calls in `<atem:function_calls>`.
    Muse,
}

const NAMES: [(&str, ToolParser); 35] = [
    ("default", ToolParser::Generic),
    ("hermes", ToolParser::Hermes),
    ("qwen25", ToolParser::Hermes),
    ("qwen3", ToolParser::Qwen3Coder),
    ("qwen3_coder", ToolParser::Qwen3Coder),
    ("nemotron_nano", ToolParser::Qwen3Coder),
    ("nemotron_deci", ToolParser::NemotronDeci),
    ("llama3_json", ToolParser::Llama3Json),
    ("pythonic", ToolParser::Pythonic),
    ("mistral", ToolParser::Mistral),
    ("phi4", ToolParser::Phi4),
    ("jamba", ToolParser::Jamba),
    ("deepseek_v3", ToolParser::DeepSeek),
    ("deepseek_v3_1", ToolParser::DeepSeek),
    ("deepseek_v3_2", ToolParser::DeepSeekV32),
    ("deepseek_v4", ToolParser::DeepSeekV4),
    ("deepseek-v4", ToolParser::DeepSeekV4),
    ("deepseekv4", ToolParser::DeepSeekV4),
    ("deepseek_v41", ToolParser::DeepSeekV41),
    ("harmony", ToolParser::Harmony),
    ("kimi_k2", ToolParser::KimiK2),
    ("kimi_k25", ToolParser::KimiK2),
    ("kimi_k3", ToolParser::KimiK3),
    ("kimi-k3", ToolParser::KimiK3),
    ("glm45", ToolParser::Glm),
    ("glm47", ToolParser::Glm),
    ("gemma4", ToolParser::Gemma4),
    ("gemma-4", ToolParser::Gemma4),
    ("minimax_m2", ToolParser::MiniMaxM2),
    ("minimax_m3", ToolParser::MiniMaxM3),
    ("minimax-m3", ToolParser::MiniMaxM3),
    ("minimax_m3_nom", ToolParser::MiniMaxM3Plain),
    ("minimax-m3-nom", ToolParser::MiniMaxM3Plain),
    ("inkling", ToolParser::Inkling),
    ("muse", ToolParser::Muse),
];

/// Accepted as well, but not listed twice in messages.
const MUSE_GLIMMER: &str = "muse_glimmer";

/// A marker, and what reads what stands behind it.
type Opening = (&'static str, fn() -> Machine);

const MINIMAX_MARK: &str = "]<]minimax[>[<";

impl ToolParser {
    /// The parser of this name, as a model card's `runtime_config.tool_call_parser` gives it.
    ///
    /// # Errors
    /// There is none; the error lists those that there are.
    pub fn by_name(name: &str) -> Result<Self, UnknownParser> {
        let name = if name == MUSE_GLIMMER { "muse" } else { name };
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, parser)| *parser).ok_or_else(|| UnknownParser {
            kind: "tool call",
            name: name.to_owned(),
            known: Self::names().collect::<Vec<_>>().join(", "),
        })
    }

    /// Every name that [`ToolParser::by_name`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name).chain([MUSE_GLIMMER])
    }

    /// Markers that open calls, and how what stands behind each is read.
    pub(super) fn opens(self) -> &'static [Opening] {
        match self {
            Self::Generic => &[("<TOOLCALL>", || framed(&["</TOOLCALL>"])), ("<|python_tag|>", || framed(&[]))],
            Self::Hermes => &[("<tool_call>", || framed(&["</tool_call>"]))],
            Self::NemotronDeci => &[("<TOOLCALL>", || framed(&["</TOOLCALL>"]))],
            Self::Llama3Json => &[("<|python_tag|>", || framed(&[]))],
            Self::Mistral => &[("[TOOL_CALLS]", || Machine::Mistral)],
            Self::Phi4 => &[("functools", || framed(&[]))],
            Self::Jamba => &[("<tool_calls>", || framed(&["</tool_calls>"]))],
            Self::DeepSeek => &[
                ("<｜tool▁calls▁begin｜>", || Machine::Headed(Headed::section(Style::DeepSeek))),
                ("<｜tool▁call▁begin｜>", || Machine::Headed(Headed::call(Style::DeepSeek))),
            ],
            Self::KimiK2 => &[
                ("<|tool_calls_section_begin|>", || Machine::Headed(Headed::section(Style::Kimi))),
                ("<|tool_call_section_begin|>", || Machine::Headed(Headed::section(Style::Kimi))),
                ("<|tool_call_begin|>", || Machine::Headed(Headed::call(Style::Kimi))),
            ],
            Self::Qwen3Coder => &[
                ("<tool_call>", || Machine::Tagged(Tagged::run(&grammar::QWEN))),
                ("<function=", || Machine::Tagged(Tagged::call(&grammar::QWEN))),
            ],
            Self::MiniMaxM2 => &[
                ("<minimax:tool_call>", || Machine::Tagged(Tagged::run(&grammar::MINIMAX_M2))),
                ("<invoke ", || Machine::Tagged(Tagged::call(&grammar::MINIMAX_M2))),
            ],
            Self::MiniMaxM3 => &[("]<]minimax[>[<tool_call>", || Machine::Elements(Elements::new(MINIMAX_MARK)))],
            Self::MiniMaxM3Plain => &[("<tool_call>", || Machine::Elements(Elements::new("<")))],
            Self::Glm => &[("<tool_call>", || Machine::Tagged(Tagged::call(&grammar::GLM)))],
            Self::DeepSeekV32 => &[
                ("<｜DSML｜function_calls>", || Machine::Tagged(Tagged::run(&grammar::DEEPSEEK_V3_2))),
                ("<｜DSML｜invoke ", || Machine::Tagged(Tagged::call(&grammar::DEEPSEEK_V3_2))),
            ],
            Self::DeepSeekV4 => &[
                ("<｜DSML｜tool_calls>", || Machine::Tagged(Tagged::run(&grammar::DEEPSEEK_V4))),
                ("<｜DSML｜invoke ", || Machine::Tagged(Tagged::call(&grammar::DEEPSEEK_V4))),
            ],
            Self::DeepSeekV41 => &[
                ("<｜DSML｜ calls>", || Machine::Tagged(Tagged::run(&grammar::DEEPSEEK_V4_1))),
                ("<｜DSML｜ invoke ", || Machine::Tagged(Tagged::call(&grammar::DEEPSEEK_V4_1))),
            ],
            Self::KimiK3 => &[
                ("<|open|>tools<|sep|>", || Machine::Tagged(Tagged::run(&grammar::KIMI_K3))),
                ("<|open|>call ", || Machine::Tagged(Tagged::call(&grammar::KIMI_K3))),
            ],
            Self::Pythonic => &[("<|python_start|>", || Machine::Pythonic(Pythonic::new()))],
            Self::Gemma4 => &[("<|tool_call>", || Machine::Gemma(Gemma::new()))],
            Self::Muse => &[
                ("<atem:function_calls>", || Machine::Tagged(Tagged::run(&grammar::MUSE))),
                ("<atem:invoke ", || Machine::Tagged(Tagged::call(&grammar::MUSE))),
            ],
            // Their markers are those of messages.
            Self::Harmony | Self::Inkling => &[],
        }
    }

    /// Whether a text that begins like this may begin with a call.
    pub(crate) fn opens_with(self, first: u8) -> bool {
        self.bare(first).is_some()
    }

    /// The markers that open calls.
    pub(crate) fn marks(self) -> impl Iterator<Item = &'static str> {
        self.opens().iter().map(|(mark, _)| *mark)
    }

    /// Brackets that may open a call without a marker, as the first character of the text or behind a call.
    pub(super) fn bare(self, first: u8) -> Option<Machine> {
        match (self, first) {
            (Self::Generic | Self::Llama3Json, b'{' | b'[') => Some(Machine::Framed(Framed::alone())),
            (Self::Pythonic, b'[') => Some(Machine::Pythonic(Pythonic::new())),
            _ => None,
        }
    }

    /// Tokens that end turns or enclose answers: no part of the content.
    pub(super) fn drops(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Qwen3Coder | Self::KimiK2 => &["<|im_end|>", "<|endoftext|>"],
            Self::Llama3Json => &["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"],
            Self::Pythonic => &["<|python_end|>", "<|eot|>", "<|eom|>"],
            Self::DeepSeek | Self::DeepSeekV32 | Self::DeepSeekV4 | Self::DeepSeekV41 => &["<｜end▁of▁sentence｜>"],
            Self::Glm => &["<|observation|>", "<|user|>", "<|endoftext|>"],
            Self::Gemma4 => &["<turn|>", "<|tool_response>"],
            Self::KimiK3 => &[
                "<|open|>response<|sep|>",
                "<|close|>response<|sep|>",
                "<|close|>tools<|sep|>",
                "<|close|>message<|sep|>",
                "<|end_of_msg|>",
            ],
            Self::Generic
            | Self::NemotronDeci
            | Self::Mistral
            | Self::Phi4
            | Self::Jamba
            | Self::MiniMaxM2
            | Self::MiniMaxM3
            | Self::MiniMaxM3Plain
            | Self::Harmony
            | Self::Inkling
            | Self::Muse => &[],
        }
    }

    /// Tokens of this family's calls that a tokenizer may count as special: they must not be skipped when tokens become text.
    pub(crate) fn tokens(self) -> &'static [&'static str] {
        match self {
            Self::Generic => &["<TOOLCALL>", "</TOOLCALL>", "<|python_tag|>"],
            Self::Hermes => &["<tool_call>", "</tool_call>"],
            Self::NemotronDeci => &["<TOOLCALL>", "</TOOLCALL>"],
            Self::Llama3Json => &["<|python_tag|>"],
            Self::Mistral => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            Self::Phi4 => &[],
            Self::Jamba => &["<tool_calls>", "</tool_calls>"],
            Self::DeepSeek => {
                &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"]
            }
            Self::KimiK2 => &[
                "<|tool_calls_section_begin|>",
                "<|tool_call_section_begin|>",
                "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>",
                "<|tool_call_end|>",
                "<|tool_calls_section_end|>",
                "<|tool_call_section_end|>",
            ],
            Self::Qwen3Coder => &["<tool_call>", "</tool_call>"],
            Self::MiniMaxM2 => &["<minimax:tool_call>", "</minimax:tool_call>"],
            Self::MiniMaxM3 => &["]<]minimax[>[", "<tool_call>", "</tool_call>"],
            Self::MiniMaxM3Plain => &["<tool_call>", "</tool_call>"],
            Self::Glm => &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
            Self::DeepSeekV32 | Self::DeepSeekV4 | Self::DeepSeekV41 => &["｜DSML｜"],
            Self::KimiK3 => &["<|open|>", "<|close|>", "<|sep|>"],
            Self::Pythonic => &["<|python_start|>", "<|python_end|>"],
            Self::Gemma4 => &["<|tool_call>", "<tool_call|>", "<|\"|>"],
            Self::Harmony => &["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"],
            Self::Inkling => &[
                "<|message_model|>",
                "<|content_thinking|>",
                "<|content_text|>",
                "<|content_invoke_tool_json|>",
                "<|end_message|>",
                "<|content_model_end_sampling|>",
            ],
            Self::Muse => &["<|start|>", "<|message|>", "<|eom|>", "<|eot|>"],
        }
    }
}

fn framed(ends: &'static [&'static str]) -> Machine {
    Machine::Framed(Framed::marked(ends))
}

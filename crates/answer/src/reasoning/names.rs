//! Which parsers there are, by the names that model cards use, and the markers of each.

use crate::tools::UnknownParser;

/// How a family of models writes what it thinks. The table of names is at the head of [`crate::reasoning`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningParser {
    /// `<think>..</think>` before the answer.
    Think,
    /// The same, and thinking from the first token on.
    ThinkAtOnce,
    /// The same, where a section of calls ends the thought.
    ThinkAtOnceKimi,
    /// `<think>..</think>` where DeepSeek's section of calls ends the thought.
    ThinkDeepSeek,
    /// `<think>..</think>` where Kimi's section of calls ends the thought.
    ThinkKimi,
    /// `<think>` is put in front of the content, and no thought is taken out.
    AppendThink,
    /// `<mm:think>..</mm:think>`
    MiniMaxM3,
    /// `[THINK]..[/THINK]`
    Mistral,
    /// `◁think▷..◁/think▷`
    Kimi,
    /// `Here is my thought process:..Here is my response:`
    Granite,
    /// `<|channel>thought..<channel|>`
    Gemma4,
    /// `<|open|>think<|sep|>..<|close|>think<|sep|>`
    KimiK3,
    /// Messages on channels.
    GptOss,
    /// Messages whose kind is a token.
    Inkling,
    /// Messages with recipients.
    Muse,
}

const NAMES: [(&str, ReasoningParser); 35] = [
    ("basic", ReasoningParser::Think),
    ("qwen3", ReasoningParser::Think),
    ("qwen3_coder", ReasoningParser::Think),
    ("glm45", ReasoningParser::Think),
    ("glm47", ReasoningParser::Think),
    ("nemotron_deci", ReasoningParser::Think),
    ("deepseek_r1", ReasoningParser::ThinkAtOnce),
    ("deepseek_v3", ReasoningParser::ThinkDeepSeek),
    ("deepseek_v3_1", ReasoningParser::ThinkDeepSeek),
    ("deepseek_v3_2", ReasoningParser::ThinkDeepSeek),
    ("deepseek_v4", ReasoningParser::ThinkDeepSeek),
    ("deepseek-v4", ReasoningParser::ThinkDeepSeek),
    ("deepseekv4", ReasoningParser::ThinkDeepSeek),
    ("deepseek_v41", ReasoningParser::ThinkDeepSeek),
    ("step3", ReasoningParser::ThinkAtOnce),
    ("minimax_m2", ReasoningParser::ThinkAtOnce),
    ("nemotron_nano", ReasoningParser::ThinkAtOnce),
    ("nemotron3", ReasoningParser::ThinkAtOnce),
    ("nemotron_v3", ReasoningParser::ThinkAtOnce),
    ("kimi_k2", ReasoningParser::ThinkKimi),
    ("kimi_k25", ReasoningParser::ThinkAtOnceKimi),
    ("minimax_append_think", ReasoningParser::AppendThink),
    ("minimax_m3", ReasoningParser::MiniMaxM3),
    ("minimax-m3", ReasoningParser::MiniMaxM3),
    ("mistral", ReasoningParser::Mistral),
    ("kimi", ReasoningParser::Kimi),
    ("granite", ReasoningParser::Granite),
    ("gemma4", ReasoningParser::Gemma4),
    ("gemma-4", ReasoningParser::Gemma4),
    ("kimi_k3", ReasoningParser::KimiK3),
    ("kimi-k3", ReasoningParser::KimiK3),
    ("gpt_oss", ReasoningParser::GptOss),
    ("inkling", ReasoningParser::Inkling),
    ("muse", ReasoningParser::Muse),
    ("muse_glimmer", ReasoningParser::Muse),
];

/// Where in a text thoughts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    /// Once, before the answer.
    First,
    /// Once, before the answer, from the first token on.
    AtOnce,
    /// Anywhere, any number of times.
    Anywhere,
}

/// What a family puts around thoughts.
#[derive(Debug)]
pub(super) struct Marks {
    pub(super) opens: &'static [&'static str],
    pub(super) closes: &'static [&'static str],
    /// These close a thought too, and belong to what follows.
    pub(super) breaks: &'static [&'static str],
    pub(super) at: Where,
    /// What a tokenizer may count as special tokens.
    pub(super) tokens: &'static [&'static str],
}

const NONE: Marks = Marks { opens: &[], closes: &[], breaks: &[], at: Where::First, tokens: &[] };

const THINK: Marks = Marks { opens: &["<think>"], closes: &["</think>"], tokens: &["<think>", "</think>"], ..NONE };

const DEEPSEEK_CALLS: &[&str] = &["<｜tool▁calls▁begin｜>"];
const KIMI_CALLS: &[&str] = &["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"];

impl ReasoningParser {
    /// The parser of this name, as a model card's `runtime_config.reasoning_parser` gives it.
    ///
    /// # Errors
    /// There is none; the error lists those that there are.
    pub fn by_name(name: &str) -> Result<Self, UnknownParser> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, parser)| *parser).ok_or_else(|| UnknownParser {
            kind: "reasoning",
            name: name.to_owned(),
            known: Self::names().collect::<Vec<_>>().join(", "),
        })
    }

    /// Every name that [`ReasoningParser::by_name`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Whether the model goes on inside a thought behind a prompt that ends like this.
    pub(crate) fn starts_inside(self, prompt_tail: &str) -> bool {
        let marks = self.marks();
        let tail = prompt_tail.trim_end();
        if marks.opens.iter().any(|open| tail.ends_with(open)) {
            return true;
        }
        marks.at == Where::AtOnce && !self.starts_behind(prompt_tail)
    }

    /// Tokens that a tokenizer may count as special and that must become text all the same.
    pub(crate) fn tokens(self) -> &'static [&'static str] {
        self.marks().tokens
    }

    /// Whether a prompt that ends like this closed the thought already.
    pub(super) fn starts_behind(self, prompt_tail: &str) -> bool {
        let tail = prompt_tail.trim_end();
        self.marks().closes.iter().any(|close| tail.ends_with(close))
    }

    pub(super) fn marks(self) -> Marks {
        match self {
            Self::Think => THINK,
            Self::ThinkAtOnce => Marks { at: Where::AtOnce, breaks: DEEPSEEK_CALLS, ..THINK },
            Self::ThinkAtOnceKimi => Marks { at: Where::AtOnce, breaks: KIMI_CALLS, ..THINK },
            Self::ThinkDeepSeek => Marks { breaks: DEEPSEEK_CALLS, ..THINK },
            Self::ThinkKimi => Marks { breaks: KIMI_CALLS, ..THINK },
            Self::AppendThink => NONE,
            Self::MiniMaxM3 => Marks { opens: &["<mm:think>"], closes: &["</mm:think>"], tokens: &["<mm:think>", "</mm:think>"], ..NONE },
            Self::Mistral => {
                Marks { opens: &["[THINK]"], closes: &["[/THINK]"], at: Where::Anywhere, tokens: &["[THINK]", "[/THINK]"], ..NONE }
            }
            Self::Kimi => Marks { opens: &["◁think▷"], closes: &["◁/think▷"], tokens: &["◁think▷", "◁/think▷"], ..NONE },
            Self::Granite => Marks {
                opens: &["Here's my thought process:", "Here is my thought process:"],
                closes: &["Here's my response:", "Here is my response:"],
                ..NONE
            },
            Self::Gemma4 => Marks {
                opens: &["<|channel>thought"],
                closes: &["<channel|>"],
                at: Where::Anywhere,
                tokens: &["<|channel>", "<channel|>"],
                ..NONE
            },
            Self::KimiK3 => Marks {
                opens: &["<|open|>think<|sep|>"],
                closes: &["<|close|>think<|sep|>"],
                tokens: &["<|open|>", "<|close|>", "<|sep|>"],
                ..NONE
            },
            // Their thoughts are messages: see `tools::channels`.
            Self::GptOss | Self::Inkling | Self::Muse => NONE,
        }
    }
}

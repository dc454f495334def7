//! What holds for every choice of an answer.

use std::sync::Arc;

use prompt::Vocabulary;
use wire::generate::StopReason;

use super::{End, Finish};
use crate::{
    shape::{Shape, Stops},
    stop::StopStrings,
    tools::Parsing,
};

/// What ends a choice, and what is told of its tokens.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) vocabulary: Arc<Vocabulary>,
    skip_special_tokens: bool,
    /// Knows which special tokens are shown all the same.
    markers: Option<Box<Parsing>>,
    pub(super) strings: Option<StopStrings>,
    pub(super) include: bool,
    pub(super) min_tokens: usize,
    pub(super) max_tokens: usize,
    pub(super) logprobs: Option<u32>,
    /// Sorted, as the other two.
    hidden: Box<[u32]>,
    visible: Box<[u32]>,
    eos: Box<[u32]>,
}

/// What a token does to its choice.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Nothing.
    Not,
    /// It ends it, and its text is not shown.
    Hidden(End),
    /// It ends it, and its text is shown.
    Visible(End),
}

impl Rules {
    pub(crate) fn new(shape: &Shape, vocabulary: Arc<Vocabulary>) -> Self {
        let Stops { strings, include, hidden_ids, visible_ids, eos_ids, ignore_eos, min_tokens, max_tokens } = &shape.stops;
        Self {
            vocabulary,
            skip_special_tokens: shape.skip_special_tokens,
            markers: shape.plan().filter(|plan| plan.wants_special_tokens()).map(|plan| Box::new(plan.start("", 0))),
            strings: StopStrings::new(strings),
            include: *include,
            min_tokens: *min_tokens as usize,
            max_tokens: max_tokens.map_or(usize::MAX, |most| most as usize),
            logprobs: shape.logprobs,
            hidden: sorted(hidden_ids),
            visible: sorted(visible_ids),
            eos: if *ignore_eos { Box::default() } else { sorted(eos_ids) },
        }
    }

    /// Whether a token makes text.
    pub(super) fn shows(&self, id: u32) -> bool {
        !(self.skip_special_tokens && self.vocabulary.is_special(id)) || self.is_marker(id)
    }

    fn is_marker(&self, id: u32) -> bool {
        let text = || std::str::from_utf8(self.vocabulary.token_bytes(id)).ok();
        self.markers.as_ref().is_some_and(|markers| text().is_some_and(|text| markers.wants_token(text)))
    }

    pub(super) fn ends(&self, id: u32) -> Ends {
        let is_in = |ids: &[u32]| !ids.is_empty() && ids.binary_search(&id).is_ok();
        let stop = || End { finish: Finish::Stop, detail: "stop", stop: Some(StopReason::Token(id.into())) };
        if is_in(&self.eos) {
            Ends::Hidden(End { finish: Finish::Stop, detail: "eos", stop: None })
        } else if is_in(&self.visible) || (self.include && is_in(&self.hidden)) {
            Ends::Visible(stop())
        } else if is_in(&self.hidden) {
            Ends::Hidden(stop())
        } else {
            Ends::Not
        }
    }
}

fn sorted(ids: &[u32]) -> Box<[u32]> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.into()
}

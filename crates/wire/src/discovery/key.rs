//! Keys: `v1/<bucket>/<rest>`.

use std::fmt;

const ROOT: &str = "v1/";

/// A family of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bucket {
    /// Endpoints that can be called.
    Instances,
    /// Model cards.
    Mdc,
    /// Where a topic's events are published.
    EventChannels,
    /// Which worker and rank a publisher speaks for.
    EventSources,
    /// Stock engines beside a sidecar: ours, and nothing 1.6.1 watches.
    OpenAiWorkers,
}

impl Bucket {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Instances, Self::Mdc, Self::EventChannels, Self::EventSources, Self::OpenAiWorkers];

    /// The part of a key between `v1/` and the rest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Instances => "instances",
            Self::Mdc => "mdc",
            Self::EventChannels => "event_channels",
            Self::EventSources => "event_sources",
            Self::OpenAiWorkers => "openai_workers",
        }
    }

    /// What all keys of the bucket begin with, and no others: `v1/instances/`.
    pub fn prefix(self) -> String {
        format!("{ROOT}{}/", self.name())
    }

    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bucket| bucket.name() == name)
    }
}

/// The key of one record: a known bucket and a rest that is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    text: String,
    bucket: Bucket,
}

/// A key of no bucket known here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no key of the form v1/<bucket>/<rest> with a known bucket")]
pub struct KeyError(String);

impl Key {
    /// The key of this bucket with this rest.
    pub fn new(bucket: Bucket, rest: &str) -> Self {
        Self { text: format!("{}{rest}", bucket.prefix()), bucket }
    }

    /// Takes a key apart.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let apart = text.strip_prefix(ROOT).and_then(|key| key.split_once('/'));
        match apart.map(|(name, rest)| (Bucket::of_name(name), rest)) {
            Some((Some(bucket), rest)) if !rest.is_empty() => Ok(Self { text: text.to_owned(), bucket }),
            _ => Err(KeyError(crate::clip(text, 256))),
        }
    }

    /// The bucket.
    pub fn bucket(&self) -> Bucket {
        self.bucket
    }

    /// What follows the bucket and its slash.
    pub fn rest(&self) -> &str {
        &self.text[ROOT.len() + self.bucket.name().len() + 1..]
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The id at the end of the rest: a publisher's, or an instance's unless the key names an adapter behind it.
    pub fn id(&self) -> Option<u64> {
        let last = self.text.rsplit('/').next()?;
        u64::from_str_radix(last, 16).ok()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

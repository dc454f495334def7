//! Where a list with one entry per block names media.

/// The first entry of such a list that names media, and how many entries it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Media {
    first: Option<usize>,
    entries: usize,
}

impl Media {
    /// A list of so many entries, as long as none has named any.
    pub(crate) fn none_in(entries: usize) -> Self {
        Self { first: None, entries }
    }

    /// The entry of this block names media.
    pub(crate) fn is_in(&mut self, block: usize) {
        self.first = Some(self.first.map_or(block, |first| first.min(block)));
    }

    /// The first of `blocks` blocks with media. All are, where the entries are not those of the blocks one by one.
    pub(crate) fn from(self, blocks: usize) -> Option<usize> {
        self.first.map(|first| if self.entries == blocks { first } else { 0 })
    }
}

//! Which events travel in one message.

use wire::router::RouterEvent;

use super::{MESSAGE_BLOCKS, MESSAGE_EVENTS, snapshot::data_blocks};

/// The events in runs of at most [`MESSAGE_EVENTS`] and [`MESSAGE_BLOCKS`] blocks, in their order. An event that is larger
/// goes alone.
pub fn partition(events: &[RouterEvent]) -> impl Iterator<Item = &[RouterEvent]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        let mut blocks = 0;
        let fits = rest.iter().take(MESSAGE_EVENTS).take_while(|event| {
            let before = blocks;
            blocks += data_blocks(&event.event.data);
            before == 0 || blocks <= MESSAGE_BLOCKS
        });
        let count = fits.count();
        let (message, left) = rest.split_at(count);
        rest = left;
        (!message.is_empty()).then_some(message)
    })
}

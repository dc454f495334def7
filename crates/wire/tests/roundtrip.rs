//! What an encoder writes is read back as the event, less what its generation cannot say.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use proptest::{collection, option, prelude::*, sample};
use wire::{
    Adapter, Batch, Carries, Event, Group, Kind, Locality, Medium, Naming, Removed, Stored, Tokens,
    encode::{Encoder, Generation, Hashes},
};

const ADAPTERS: [&str; 3] = ["sql", "chat", "s"];

fn hash() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..300_u64, Just(u64::MAX), Just(1 << 63)]
}

fn hashes() -> impl Strategy<Value = Vec<u64>> {
    collection::vec(hash(), 0..40)
}

fn tokens() -> impl Strategy<Value = Tokens> {
    let token = || prop_oneof![any::<u32>(), 0..200_u32];
    prop_oneof![collection::vec(token(), 0..80).prop_map(Tokens::Plain), collection::vec(token(), 2..80).prop_map(Tokens::Pairs),]
}

fn medium() -> impl Strategy<Value = Medium> {
    let unknown = ["FS", "OBJ", "new"].map(|name| Medium::Unknown(name.to_owned()));
    let known = [Medium::Device, Medium::Host, Medium::Disk, Medium::External];
    sample::select([&known[..], &unknown[..]].concat())
}

fn adapter() -> impl Strategy<Value = Adapter> {
    prop_oneof![
        Just(Adapter::Base),
        sample::select(&ADAPTERS[..]).prop_map(|name| Adapter::Named(name.to_owned())),
        (1..i64::MAX).prop_map(Adapter::Numbered),
    ]
}

fn group() -> impl Strategy<Value = Group> {
    let kind = sample::select(vec![Kind::FullAttention, Kind::Other("mamba".to_owned())]);
    (option::of(any::<u32>()), option::of(kind)).prop_map(|(idx, kind)| Group { idx, kind })
}

fn locality() -> impl Strategy<Value = Locality> {
    sample::select(vec![Locality::Local, Locality::Remote])
}

fn stored() -> impl Strategy<Value = Stored> {
    // Salts that are spelled like adapters are among them.
    let salt = option::of(prop_oneof!["[a-z]{1,40}", sample::select(&ADAPTERS[..]).prop_map(str::to_owned)]);
    let blocks = (hashes(), option::of(hash()), tokens(), any::<u32>());
    let identity = (adapter(), salt, option::of(0..5usize));
    let place = (medium(), group(), locality());
    (blocks, identity, place).prop_map(|(blocks, identity, place)| Stored {
        block_hashes: blocks.0,
        parent: blocks.1,
        tokens: blocks.2,
        block_size: blocks.3,
        adapter: identity.0,
        salt: identity.1,
        media_from: identity.2,
        medium: place.0,
        group: place.1,
        locality: place.2,
        carries: Carries::default(),
    })
}

fn removed() -> impl Strategy<Value = Removed> {
    (hashes(), medium(), group(), locality()).prop_map(|(block_hashes, medium, group, locality)| Removed {
        block_hashes,
        medium,
        group,
        locality,
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => stored().prop_map(Event::Stored),
        2 => removed().prop_map(Event::Removed),
        1 => Just(Event::Cleared),
        1 => Just(Event::Unknown("BlockMoved".to_owned())),
    ]
}

/// What a generation's events say, as the releases' notes have it: name, extra keys and groups, locality, medium; and what
/// can be told of that from their form.
struct Says {
    name: bool,
    number: bool,
    keys: bool,
    salt_field: bool,
    locality: bool,
    medium: bool,
    shows: (Naming, bool),
}

fn says(generation: Generation) -> Says {
    let all = (Naming::Names, true);
    let vllm = |name, keys, locality, shows| Says { name, number: true, keys, salt_field: false, locality, medium: true, shows };
    let sglang = |new, shows| Says { name: new, number: false, keys: false, salt_field: new, locality: false, medium: new, shows };
    match generation {
        Generation::Vllm012 => vllm(false, false, false, (Naming::Numbers, false)),
        Generation::Vllm016 => vllm(true, false, false, (Naming::Names, false)),
        Generation::Vllm023 | Generation::Vllm024 => vllm(true, true, false, all),
        Generation::Vllm026 | Generation::Vllm033 => vllm(true, true, true, all),
        Generation::Sglang056 => sglang(false, (Naming::Nothing, false)),
        Generation::Sglang0523 => sglang(true, all),
    }
}

fn carried(generation: Generation, event: Event) -> Event {
    let says = says(generation);
    match event {
        Event::Stored(stored) => {
            let blocks = stored.block_hashes.len();
            let adapter = match stored.adapter {
                Adapter::Named(name) if says.name => Adapter::Named(name),
                Adapter::Named(name) if says.number => {
                    let position = ADAPTERS.iter().position(|adapter| *adapter == name).unwrap();
                    Adapter::Numbered(i64::try_from(position).unwrap() + 1)
                }
                Adapter::Numbered(number) if says.number => Adapter::Numbered(number),
                Adapter::Base | Adapter::Named(_) | Adapter::Numbered(_) => Adapter::Base,
            };
            let salted = says.salt_field || (says.keys && blocks > 0 && stored.parent.is_none());
            Event::Stored(Stored {
                adapter,
                salt: stored.salt.filter(|_| salted),
                media_from: stored.media_from.filter(|from| says.keys && *from < blocks),
                medium: if says.medium { stored.medium } else { Medium::Device },
                group: if says.keys { stored.group } else { Group::default() },
                locality: if says.locality { stored.locality } else { Locality::Local },
                carries: Carries { adapter: says.shows.0, salt: says.shows.1 },
                ..stored
            })
        }
        Event::Removed(removed) => Event::Removed(Removed {
            medium: if says.medium { removed.medium } else { Medium::Device },
            group: Group { idx: removed.group.idx.filter(|_| says.keys), kind: None },
            locality: if says.locality { removed.locality } else { Locality::Local },
            ..removed
        }),
        Event::Cleared => Event::Cleared,
        Event::Unknown(tag) => Event::Unknown(tag),
    }
}

proptest! {
    #[test]
    fn decoding_undoes_encoding(
        generation in sample::select(&Generation::ALL[..]),
        hashes in sample::select(vec![Hashes::Integer, Hashes::Binary]),
        timestamp in any::<f64>(),
        rank in any::<u32>(),
        events in collection::vec(event(), 0..8),
    ) {
        let adapters = ADAPTERS.map(str::to_owned).to_vec();
        let payload = Encoder { generation, hashes, adapters }.batch(timestamp, rank, &events);
        let expected = events.into_iter().map(|event| Ok(carried(generation, event))).collect();
        let expected = Batch { timestamp: Some(timestamp), rank: Some(rank), events: expected };
        prop_assert_eq!(wire::batch(&payload), Ok(expected));
    }
}

#[test]
fn an_adapter_that_is_not_loaded_never_looks_like_the_base_model() {
    let adapter = Adapter::Named("other".to_owned());
    let stored = Event::Stored(Stored { adapter, ..Stored::default() });
    let payload = Encoder::new(Generation::Vllm012).batch(0.0, 0, &[stored]);
    match &wire::batch(&payload).unwrap().events[0] {
        Ok(Event::Stored(stored)) => assert_eq!(stored.adapter, Adapter::Numbered(1)),
        other => panic!("{other:?}"),
    }
}

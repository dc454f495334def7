//! What events mean: tiers, domains, other targets, odd events, holes (rules 4, 6, 8 and 9).

use feed::{Ignored, Trust};
use index::{BlockSize, Lane};
use wire::{
    recovery::Listing,
    router::{Domain, KvData, RouterEvent, RouterEventError, RouterFault, Tier},
};

use crate::support::{Bench, PUBLISHER, WORKER, config, event, numbered, stored, unreadable};

fn in_tier(storage_tier: Tier, event: RouterEvent) -> RouterEvent {
    RouterEvent { storage_tier, ..event }
}

fn of(domain: Domain, event: RouterEvent) -> RouterEvent {
    RouterEvent { domain, ..event }
}

#[test]
fn events_are_sets_and_one_removal_removes() {
    let mut bench = Bench::following(2);
    bench.live_of(PUBLISHER, event(3, stored(Some(1), &[2])));
    bench.live_of(PUBLISHER, event(4, stored(Some(1), &[2])));
    bench.is(Trust::Exact, 2);
    bench.live_of(PUBLISHER, event(5, KvData::Removed(vec![2, 77])));
    bench.is(Trust::Exact, 1);
    assert_eq!(bench.rank().unknown_removals, 1);
}

#[test]
fn lower_tiers_have_lanes_and_external_is_counted() {
    let mut bench = Bench::following(2);
    for (id, tier) in [(3, Tier::HostPinned), (4, Tier::Disk), (5, Tier::External)] {
        bench.live_of(PUBLISHER, in_tier(tier, event(id, stored(None, &[1]))));
    }
    let rank = bench.rank();
    assert_eq!((rank.blocks, rank.host_blocks, rank.disk_blocks), (2, 1, 1));
    assert_eq!(rank.ignored.get(Ignored::ExternalMedium), 1);
    bench.live_of(PUBLISHER, in_tier(Tier::HostPinned, event(6, KvData::Removed(vec![1]))));
    assert_eq!((bench.rank().blocks, bench.rank().host_blocks), (2, 0));
    bench.live_of(PUBLISHER, in_tier(Tier::External, event(7, KvData::Cleared)));
    let rank = bench.rank();
    assert_eq!((rank.blocks, rank.disk_blocks, rank.trust), (0, 0, Trust::Exact), "a clear is of every tier");
}

#[test]
fn a_dump_has_every_tier() {
    let mut bench = Bench::following(3);
    bench.live_of(PUBLISHER, in_tier(Tier::Disk, event(4, stored(None, &[1, 2]))));
    let query = bench.live(9).unwrap();
    let events =
        [event(0, stored(None, &[1, 2])), in_tier(Tier::HostPinned, event(1, stored(None, &[1]))), in_tier(Tier::External, numbered(2))];
    bench.list(query, Listing::TreeDump, events.into_iter().map(Ok).collect(), 9);
    let rank = bench.rank();
    assert_eq!((rank.trust, rank.blocks, rank.host_blocks, rank.disk_blocks), (Trust::Exact, 2, 1, 0));
}

#[test]
fn only_the_workers_own_domain_counts() {
    let mut bench = Bench::following(2);
    let legacy = of(Domain::Legacy, numbered(3));
    bench.live_of(PUBLISHER, legacy);
    bench.is(Trust::Exact, 3);
    for (id, domain) in [(4, Domain::CacheOwner), (6, Domain::Unknown("moon".to_owned()))] {
        bench.live_of(PUBLISHER, in_tier(Tier::HostPinned, of(domain.clone(), event(id, stored(None, &[1])))));
        bench.live_of(PUBLISHER, of(domain, event(id + 1, KvData::Cleared)));
    }
    bench.is(Trust::Exact, 3);
    assert_eq!((bench.rank().ignored.get(Ignored::OtherDomain), bench.rank().host_blocks), (4, 0));
    bench.live_of(PUBLISHER, of(Domain::Legacy, event(8, KvData::Cleared)));
    bench.is(Trust::Exact, 0);
}

#[test]
fn events_of_another_target_count_as_numbers_only() {
    let mut bench = Bench::following(2);
    bench.live_of(PUBLISHER, RouterEvent { worker_id: WORKER + 1, ..numbered(3) });
    let mut other = event(4, KvData::Cleared);
    other.event.dp_rank += 1;
    bench.live_of(PUBLISHER, other.clone());
    bench.is(Trust::Exact, 2);
    assert_eq!((bench.rank().rank_mismatches, bench.stream().last_seq), (2, Some(4)));
    let query = bench.live_of(PUBLISHER, event(9, stored(None, &[5]))).unwrap();
    bench.list(query, Listing::TreeDump, vec![Ok(numbered(1))], 9);
    bench.is(Trust::Exact, 1);
    assert_eq!(bench.rank().rank_mismatches, 2);
}

#[test]
fn an_answer_that_tells_of_another_target_makes_nothing_exact() {
    let foreign = |id| RouterEvent { worker_id: 4711, ..numbered(id) };
    let named = |bench: &Bench| {
        let reason = bench.rank().reason;
        assert!(reason.contains("worker 4711 rank") && reason.contains(&format!("worker {WORKER} rank")), "{reason}");
    };
    // A dump, of nothing else or of both.
    for ours in [0, 2] {
        let mut bench = Bench::new(config());
        bench.add(PUBLISHER, true);
        let query = bench.connect(PUBLISHER).unwrap();
        let events = (1..=ours).map(numbered).chain((ours + 1..10).map(foreign));
        bench.list(query, Listing::TreeDump, events.map(Ok).collect(), 9);
        bench.is(Trust::Degraded, ours as usize);
        named(&bench);
    }
    // Events of the ring.
    let mut bench = Bench::following(2);
    let query = bench.live(4).unwrap();
    bench.list(query, Listing::Events, vec![Ok(foreign(3)), Ok(numbered(4))], 4);
    bench.is(Trust::Degraded, 2);
    named(&bench);
    // A hole is not filled by them.
    let mut bench = Bench::following(2);
    bench.live(4).unwrap();
    assert_eq!(bench.wait().1, None);
    let query = bench.wait().1.unwrap();
    bench.list(query, Listing::Events, vec![Ok(foreign(3)), Ok(numbered(4))], 4);
    bench.is(Trust::Degraded, 2);
}

#[test]
fn one_odd_event_is_counted_and_its_neighbours_are_folded_in() {
    let mut bench = Bench::following(2);
    bench.feed.events(bench.now, PUBLISHER, vec![unreadable(Some(3)), Ok(event(4, stored(Some(2), &[4])))]);
    bench.is(Trust::Degraded, 3);
    assert_eq!((bench.rank().event_errors, bench.stream().last_seq, bench.gaps()), (1, Some(4), (0, 0, 0, 0)));
    bench.live_of(PUBLISHER, event(5, KvData::Cleared));
    bench.is(Trust::Exact, 0);

    let moon = RouterEventError { event_id: Some(6), fault: RouterFault::Tier("moon".to_owned()) };
    bench.feed.events(bench.now, PUBLISHER, vec![Err(moon)]);
    bench.is(Trust::Exact, 0);
    assert_eq!(bench.rank().ignored.get(Ignored::UnknownMedium), 1);
}

#[test]
fn an_odd_event_in_a_dump_leaves_it_incomplete() {
    let mut bench = Bench::following(2);
    let query = bench.live(9).unwrap();
    bench.list(query, Listing::TreeDump, vec![Ok(numbered(1)), unreadable(Some(1))], 9);
    bench.is(Trust::Degraded, 1);
    assert!(bench.rank().reason.contains("could not be read"), "{}", bench.rank().reason);
}

#[test]
fn a_store_that_contradicts_itself_is_refused() {
    let mut bench = Bench::following(2);
    bench.live_of(PUBLISHER, event(3, stored(Some(5), &[5])));
    bench.is(Trust::Degraded, 2);
    assert_eq!(bench.rank().refused, 1);
    bench.live_of(PUBLISHER, event(4, stored(Some(2), &[])));
    assert_eq!(bench.rank().stores, 1, "a store of nothing is none");
}

#[test]
fn a_store_whose_parent_is_unknown_waits_for_it() {
    let mut bench = Bench::following(2);
    bench.live_of(PUBLISHER, event(3, stored(Some(4), &[5])));
    bench.is(Trust::Degraded, 2);
    assert_eq!(bench.rank().orphans_parked, 1);
    bench.live_of(PUBLISHER, event(4, stored(Some(2), &[3, 4])));
    bench.is(Trust::Exact, 5);
    assert_eq!(bench.overlap(5), 5);
}

#[test]
fn a_dump_is_folded_as_its_events_say() {
    let mut bench = Bench::following(3);
    let query = bench.live(20).unwrap();
    let events = vec![
        // A leaf that goes, a hole that stays, one that comes again, and a chain behind the hole.
        event(0, stored(None, &[1, 2, 3, 4])),
        event(1, stored(Some(4), &[5, 6])),
        event(2, stored(Some(2), &[30])),
        event(3, KvData::Removed(vec![6, 3, 30, 4])),
        event(4, stored(Some(3), &[4])),
        event(5, stored(Some(2), &[40, 41])),
        event(6, KvData::Removed(vec![99])),
    ];
    bench.list(query, Listing::TreeDump, events.into_iter().map(Ok).collect(), 20);
    bench.is(Trust::Exact, 6);
    assert_eq!(bench.overlap(6), 2);
    bench.live_of(PUBLISHER, event(21, stored(Some(2), &[3])));
    assert_eq!(bench.overlap(6), 5, "4 and 5 are behind the hole");
}

#[test]
fn a_large_dump_is_taken_over_in_steps() {
    const BLOCKS: u64 = 100_000;
    let mut bench = Bench::following(3);
    let query = bench.live(20).unwrap();
    let chains = (0..BLOCKS / 100).map(|chain| Ok(event(0, stored(None, &(chain * 100 + 1..=chain * 100 + 100).collect::<Vec<_>>()))));
    let events: Vec<_> = chains.collect();
    assert_eq!(bench.page(query.id, Listing::TreeDump, events, crate::support::tail(Listing::TreeDump, 20, 0)), None);
    let mut steps = 0;
    while bench.rank().trust == Trust::Recovering {
        assert!(bench.feed.deadline().unwrap() <= bench.now);
        let before = bench.rank().blocks;
        bench.live(21 + steps);
        // It is late, and the dump has what became of it.
        bench.live_of(PUBLISHER, event(4, stored(None, &[u64::MAX])));
        bench.feed.tick(bench.now);
        assert!(bench.rank().blocks - before <= 4_196);
        steps += 1;
    }
    assert!(steps >= 24, "{steps}");
    let indexer = bench.catalog.indexer("model", BlockSize::new(16).unwrap());
    assert_eq!(indexer.blocks(bench.target, Lane::Device), BLOCKS as usize);
}

#[test]
fn a_dump_beyond_the_bound_is_refused() {
    let limits = feed::plane::PlaneLimits { dump_blocks: 5, ..Default::default() };
    let mut bench = Bench::following_within(feed::plane::PlaneConfig { limits, ..crate::support::config() }, 3);
    for events in [vec![Ok(event(0, stored(None, &[1, 2, 3, 4, 5, 6])))], vec![Ok(event(0, KvData::Removed(vec![0; 6])))]] {
        let query = bench.live(20).or_else(|| bench.wait().1).unwrap();
        let failures = bench.stream().replay_failures;
        bench.list(query, Listing::TreeDump, events, 20);
        assert_eq!(bench.stream().replay_failures, failures + 1);
        assert_eq!(bench.overlap(3), 3);
    }
}

#[test]
fn a_dump_of_a_publisher_that_missed_something_degrades_until_its_clear() {
    let mut bench = Bench::new(crate::support::config());
    bench.add(PUBLISHER, true);
    let query = bench.connect(PUBLISHER).unwrap();
    let lacking = wire::recovery::Tail { lacking: true, ..crate::support::tail(Listing::TreeDump, 5, 0) };
    assert_eq!(bench.page(query.id, Listing::TreeDump, vec![Ok(numbered(1)), Ok(numbered(2))], lacking), None);
    assert_eq!(bench.work(), None);
    bench.is(Trust::Degraded, 2);
    assert!(bench.rank().reason.contains("its publisher missed something"), "{}", bench.rank().reason);
    assert_eq!(bench.live_of(PUBLISHER, event(6, KvData::Cleared)), None);
    bench.is(Trust::Exact, 0);
}

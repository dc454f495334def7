//! The view against its promises, for random lives of a store.

use std::collections::BTreeMap;

use proptest::prelude::*;
use wire::discovery::Bucket;

use super::*;

const GRACE: Duration = Duration::from_secs(10);

fn key(n: u8) -> Key {
    Key::new(Bucket::Instances, &n.to_string())
}

fn listed(n: u8, value: u8, owner: u64) -> Listed {
    Listed { key: key(n), value: Bytes::from(vec![value]), owner }
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    Lost,
    List,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..6_u8, 0..3_u8).prop_map(|(n, value)| Step::Put(n, value)),
        3 => (0..6_u8).prop_map(Step::Delete),
        1 => Just(Step::Lost),
        2 => Just(Step::List),
        3 => (0..8_u64).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 0..60)
}

type Told = BTreeMap<Key, Bytes>;

fn fold(told: &mut Told, changes: Vec<Change>) {
    for change in changes {
        match change {
            Change::Reset(all) => *told = all.into_iter().collect(),
            Change::Add(key, value) => assert_ne!(told.insert(key, value.clone()), Some(value), "an add that changes nothing"),
            Change::Remove(key) => assert!(told.remove(&key).is_some(), "a removal of what was not told"),
        }
    }
}

proptest! {
    /// What is told is what the store holds and, only while the plane is not heard or was not until lately, what it held. No key
    /// is removed within the grace after a loss.
    #[test]
    fn told_is_held_or_missing_for_a_short_time(steps in steps()) {
        let mut now = Instant::now();
        let mut view = View::new(GRACE);
        let (mut store, mut told) = (Told::new(), Told::new());
        // When the plane was heard again after its last loss; `None` while it is not heard.
        let mut heard = None;
        for step in steps {
            let before = told.len();
            let mut changes = Vec::new();
            match step {
                Step::Put(n, value) => {
                    store.insert(key(n), Bytes::from(vec![value]));
                    if heard.is_some() {
                        changes.extend(view.put(listed(n, value, u64::from(n) + 1)));
                    }
                }
                Step::Delete(n) => {
                    store.remove(&key(n));
                    if heard.is_some() {
                        changes = view.deleted(now, vec![key(n)]);
                    }
                }
                Step::Lost => {
                    view.lost();
                    heard = None;
                }
                Step::List => {
                    let all = store.iter().map(|(key, value)| Listed { key: key.clone(), value: value.clone(), owner: 1 });
                    changes = view.listed(now, all.collect());
                    // Where nothing was told nothing can be missing.
                    let since = if told.is_empty() { now - GRACE } else { now };
                    heard = heard.or(Some(since));
                }
                Step::Wait(seconds) => {
                    now += Duration::from_secs(seconds);
                    changes = view.tick(now);
                }
            }
            let removed = changes.iter().any(|change| matches!(change, Change::Remove(_)));
            fold(&mut told, changes);
            match heard {
                None => prop_assert!(!removed && told.len() >= before),
                Some(since) if now < since + GRACE => prop_assert!(!removed && store.iter().all(|(key, value)| told.get(key) == Some(value))),
                Some(_) => {
                    fold(&mut told, view.tick(now));
                    prop_assert_eq!(&told, &store);
                }
            }
        }
    }
}

/// A view that was told `keys`, each by an owner of its own.
fn view_of(now: Instant, keys: &[u8]) -> View {
    let mut view = View::new(GRACE);
    view.listed(now, keys.iter().map(|n| listed(*n, 0, u64::from(*n) + 1)).collect());
    view
}

#[test]
fn one_owner_that_goes_is_gone_and_several_in_one_step_are_a_loss() {
    let now = Instant::now();
    let mut view = view_of(now, &[1, 2]);
    assert_eq!(view.deleted(now, vec![key(1)]), [Change::Remove(key(1))]);
    let mut view = view_of(now, &[1, 2, 3]);
    assert_eq!(view.deleted(now, vec![key(1), key(2)]), []);
    assert_eq!(view.put(listed(1, 0, 9)), None, "back with the value it had");
    assert_eq!(view.tick(now + GRACE / 2), []);
    assert_eq!(view.tick(now + GRACE), [Change::Remove(key(2))]);
    assert_eq!(view.deadline(), None);
}

#[test]
fn a_list_at_the_end_of_the_grace_counts_before_the_clock() {
    let now = Instant::now();
    let mut view = view_of(now, &[1, 2]);
    view.lost();
    assert!(matches!(&view.listed(now, Vec::new())[..], [Change::Reset(all)] if all.len() == 2), "missing and kept");
    assert_eq!(view.listed(now + GRACE, vec![listed(1, 0, 1)]), [Change::Remove(key(2))]);
}

#[test]
fn what_exceeds_the_bounds_is_left_out_and_counted() {
    let now = Instant::now();
    let mut view = view_of(now, &[]);
    let huge = Bytes::from(vec![0; MAX_BYTES / 2]);
    let put = |view: &mut View, n| view.put(Listed { key: key(n), value: huge.clone(), owner: 0 }).is_some();
    assert!(put(&mut view, 1) && put(&mut view, 2));
    assert!(!put(&mut view, 3));
    assert_eq!(view.left_out(), 1);
    view.deleted(now, vec![key(1)]);
    assert!(put(&mut view, 3), "room again");
}

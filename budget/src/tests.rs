use super::*;

const SHORT: Duration = Duration::from_secs(10);

fn user(name: &str) -> Owner {
    Owner::User(name.into())
}

/// Takes as much as is granted, in steps.
fn fill(part: &Part, kind: Use) -> Held {
    let mut held = part.nothing();
    while let Some(more) = part.try_take(10, kind) {
        held.add(more);
    }
    held
}

#[test]
fn an_owner_holds_three_times_what_is_free() {
    let budget = Budget::new(100_000);
    let held: Vec<Held> = ["a", "b", "c", "d"].map(|name| fill(&budget.part(user(name)), Use::Quick)).into();
    let bytes: Vec<usize> = held.iter().map(Held::bytes).collect();
    assert_eq!(bytes, [75_000, 18_750, 4_680, 1_170], "the last one holds three times what is free");
    // An owner that holds little may take any free bytes.
    assert!(budget.part(user("e")).try_take(390, Use::Quick).is_some());
    assert!(budget.part(user("e")).try_take(399, Use::Quick).is_none(), "{budget:?}");
    drop(held);
    assert_eq!((budget.used(), budget.most_used() > 99_000), (0, true));
    assert!(budget.0.state.lock().held.is_empty(), "owners that hold nothing are forgotten");
}

/// The shares become equal when the first one gives back and asks again.
#[test]
fn owners_who_ask_again_and_again_get_equal_parts() {
    let budget = Budget::new(70_000);
    let parts = ["a", "b"].map(|name| budget.part(user(name)));
    let mut held: Vec<Vec<Held>> = vec![Vec::new(), Vec::new()];
    while let Some(more) = parts[0].try_take(100, Use::Quick) {
        held[0].push(more);
    }
    for _ in 0..10_000 {
        for (part, held) in parts.iter().zip(&mut held) {
            held.pop();
            held.extend(part.try_take(100, Use::Quick));
            held.extend(part.try_take(100, Use::Quick));
        }
    }
    let counts: Vec<usize> = held.iter().map(Vec::len).collect();
    assert!(counts.iter().all(|count| (298..=302).contains(count)), "{counts:?}");
}

#[test]
fn what_others_must_end_takes_one_half() {
    let budget = Budget::new(100_000);
    let slow: Vec<Held> = (0..50).map(|name| fill(&budget.part(user(&name.to_string())), Use::Slow)).collect();
    let taken: usize = slow.iter().map(Held::bytes).sum();
    assert!((49_000..=50_000).contains(&taken), "{taken}");
    assert!(budget.part(user("x")).try_take(30_000, Use::Quick).is_some(), "{budget:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_gets_what_is_given_back() {
    let budget = Budget::new(100);
    let mut first = budget.part(user("a")).try_take(70, Use::Quick).unwrap();
    let part = budget.part(user("b"));
    let waiting = tokio::spawn(async move { part.take(60, Use::Quick, SHORT).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    first.count(15);
    assert_eq!(waiting.await.unwrap().unwrap().bytes(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends() {
    let budget = Budget::new(100);
    let _first = budget.part(user("a")).try_take(70, Use::Quick).unwrap();
    let begun = tokio::time::Instant::now();
    assert_eq!(budget.part(user("b")).take(60, Use::Quick, SHORT).await.err(), Some(Full));
    assert_eq!(begun.elapsed(), SHORT);
    // A reservation that can never be granted is refused at once.
    assert_eq!(budget.part(user("b")).take(76, Use::Quick, SHORT).await.err(), Some(Full));
    assert_eq!(begun.elapsed(), SHORT);
    assert_eq!(budget.used(), 70);
}

/// Each of two owners wants the bytes of the other: one gives up, and the other continues.
#[tokio::test(start_paused = true)]
async fn those_who_wait_for_each_other_do_not_wait_for_ever() {
    let budget = Budget::new(100);
    let grow = async |mut held: Held| held.grow(60, Use::Quick, SHORT).await;
    let [one, other] = ["a", "b"].map(|name| budget.part(user(name)).try_take(40, Use::Quick).unwrap());
    let begun = tokio::time::Instant::now();
    let (one, other) = tokio::join!(grow(one), grow(other));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    assert_eq!(begun.elapsed(), SHORT);
    assert_eq!(budget.used(), 0);
    assert!(budget.part(user("a")).try_take(75, Use::Quick).is_some());
}

/// Small reservations of the same owner do not always overtake a large one.
#[tokio::test(start_paused = true)]
async fn reservations_of_an_owner_are_granted_in_order() {
    let budget = Budget::new(100_000);
    let part = budget.part(user("a"));
    let held = part.try_take(70_000, Use::Quick).unwrap();
    let large = tokio::spawn({
        let part = part.clone();
        async move { part.take(50_000, Use::Quick, SHORT).await }
    });
    tokio::task::yield_now().await;
    assert!(part.try_take(1, Use::Quick).is_none());
    assert!(budget.part(user("b")).try_take(1, Use::Quick).is_some(), "others are not behind it");
    drop(held);
    assert_eq!(large.await.unwrap().unwrap().bytes(), 50_000);
    assert!(part.try_take(1, Use::Quick).is_some());
}

/// Growing a reservation does not wait behind one that waits for its end.
#[tokio::test(start_paused = true)]
async fn one_that_grows_waits_for_no_new_one() {
    let budget = Budget::new(100);
    let part = budget.part(user("a"));
    let mut held = part.try_take(40, Use::Quick).unwrap();
    let large = tokio::spawn({
        let part = part.clone();
        async move { part.take(60, Use::Quick, SHORT).await }
    });
    tokio::task::yield_now().await;
    held.grow(70, Use::Quick, SHORT).await.unwrap();
    drop(held);
    assert_eq!(large.await.unwrap().unwrap().bytes(), 60);
}

/// A caller that stops waiting at the moment of its grant gives the bytes back.
#[tokio::test(start_paused = true)]
async fn nothing_is_lost_by_those_who_leave() {
    let budget = Budget::new(100);
    for _ in 0..100 {
        let held = budget.part(user("a")).try_take(75, Use::Quick).unwrap();
        let part = budget.part(user("b"));
        let waiting = tokio::spawn(async move { part.take(75, Use::Quick, SHORT).await.map(drop) });
        tokio::task::yield_now().await;
        drop(held);
        waiting.abort();
        let _ = waiting.await;
        assert_eq!(budget.used(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_exists_is_counted_and_others_wait_for_it() {
    let budget = Budget::new(100);
    let mut made = budget.part(user("a")).nothing();
    made.count(250);
    assert_eq!(budget.room(SHORT).await, Err(Full));
    assert!(budget.part(user("b")).try_take(0, Use::Quick).is_none());
    made.count(99);
    assert_eq!(budget.room(SHORT).await, Ok(()));
    drop(made);
    assert_eq!(budget.used(), 0);
}

//! The promise, under every possible schedule.

use std::future::poll_fn;

use shuttle::future::block_on;
use shuttle::scheduler::DfsScheduler;
use shuttle::{Config, Runner};

use crate::sync::{Arc, Promise, thread};

/// Two wait and two resolve: both get the one value.
#[test]
fn every_waiter_gets_the_first_value() {
    let mut config = Config::new();
    config.silence_warnings = true;
    let schedules = Runner::new(DfsScheduler::new(None, false), config).run(|| {
        let promise = Arc::new(Promise::default());
        let waiter = {
            let promise = promise.clone();
            thread::spawn(move || block_on(poll_fn(|context| promise.poll(context))))
        };
        let rival = {
            let promise = promise.clone();
            thread::spawn(move || promise.resolve(2))
        };
        let first = promise.resolve(1);
        let value = block_on(poll_fn(|context| promise.poll(context)));
        assert_eq!(value, if first { 1 } else { 2 });
        assert_eq!(waiter.join().unwrap(), value);
        assert_ne!(rival.join().unwrap(), first, "one call gave the value");
        assert_eq!(promise.peek(), Some(value));
    });
    println!("{schedules} schedules, which are all");
    assert!(schedules > 100);
}

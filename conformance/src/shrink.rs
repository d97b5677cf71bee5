//! Shrinks a failing sequence of steps by leaving out smaller and smaller parts of it.
//!
//! Each step must be self-contained: a sequence without some of its steps must still be a sequence. This is a
//! simple form of delta debugging (Zeller, Hildebrandt: "Simplifying and Isolating Failure-Inducing Input", 2002).

/// The shortest sequence found by leaving out steps of `steps` that still `fails`; `steps` itself when there is no
/// shorter one. No single step of the result can be left out.
///
/// Calls `fails` about twice for each step when none can be left out. The worst case, with many dependencies
/// between steps, is the square of their number.
///
/// ```
/// use conformance::shrink;
///
/// let needed = shrink((0..100).collect(), |steps| steps.contains(&17) && steps.contains(&83));
/// assert_eq!(needed, [17, 83]);
/// ```
pub fn shrink<S: Clone>(mut steps: Vec<S>, fails: impl Fn(&[S]) -> bool) -> Vec<S> {
    let mut part = steps.len().div_ceil(2);
    while part > 0 {
        let (mut at, before) = (0, steps.len());
        while at < steps.len() {
            let mut shorter = steps.clone();
            shorter.drain(at..(at + part).min(steps.len()));
            if fails(&shorter) {
                steps = shorter;
            } else {
                at += part;
            }
        }
        // Steps that the removed part needed may now be removable too.
        if part > 1 || steps.len() == before {
            part /= 2;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::shrink;

    #[test]
    fn only_what_fails_is_left() {
        assert_eq!(shrink((0..100).collect(), |steps| steps.contains(&17) && steps.contains(&83)), [17, 83]);
        assert_eq!(shrink(vec![1], |_| true), Vec::<i32>::new());
        assert_eq!(shrink(vec![1, 2, 3], |steps| steps.len() == 3), [1, 2, 3]);
    }

    #[test]
    fn what_only_a_later_step_needed_goes_with_it() {
        // Each step needs the one before it. Only the first and the last matter.
        let fails = |steps: &[u32]| steps.contains(&0) && (!steps.contains(&9) || steps.len() == 10);
        assert_eq!(shrink((0..10).collect(), fails), [0]);
    }

    #[test]
    fn no_single_step_can_be_left_out() {
        let fails = |steps: &[u32]| steps.iter().sum::<u32>() >= 50;
        let short = shrink((0..40).collect(), fails);
        assert!(fails(&short));
        for at in 0..short.len() {
            let mut shorter = short.clone();
            shorter.remove(at);
            assert!(!fails(&shorter), "{short:?} without {at}");
        }
    }
}

//! Making a failing tape short: leaving out ever smaller parts of it.

/// The shortest tape found by leaving out steps that still `fails`.
pub(crate) fn shrink<S: Clone>(mut tape: Vec<S>, fails: impl Fn(&[S]) -> bool) -> Vec<S> {
    let mut part = tape.len().div_ceil(2);
    while part > 0 {
        let (mut at, before) = (0, tape.len());
        while at < tape.len() {
            let mut shorter = tape.clone();
            shorter.drain(at..(at + part).min(tape.len()));
            if fails(&shorter) {
                tape = shorter;
            } else {
                at += part;
            }
        }
        // What a part that is gone had needed may go now too.
        if part > 1 || tape.len() == before {
            part /= 2;
        }
    }
    tape
}

#[test]
fn only_what_fails_is_left() {
    let short = shrink((0..100).collect(), |tape| tape.contains(&17) && tape.contains(&83));
    assert_eq!(short, [17, 83]);
}

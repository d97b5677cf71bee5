//! Making a failing tape short: leaving out ever smaller parts of it.

use super::Instruction;

/// The shortest tape found by leaving out instructions that still `fails`.
pub(super) fn shrink(mut tape: Vec<Instruction>, fails: impl Fn(&[Instruction]) -> bool) -> Vec<Instruction> {
    let mut part = tape.len() / 2;
    while part > 0 {
        let mut at = 0;
        let before = tape.len();
        while at < tape.len() {
            let mut shorter = tape.clone();
            shorter.drain(at..(at + part).min(tape.len()));
            if fails(&shorter) {
                tape = shorter;
            } else {
                at += part;
            }
        }
        // What was needed for a part that is gone may now go too.
        if part > 1 || tape.len() == before {
            part /= 2;
        }
    }
    tape
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Action;

    #[test]
    fn only_what_fails_is_left() {
        let step = |back| Instruction { transaction: 0, action: Action::SetReadVersion { back } };
        let tape: Vec<_> = (0..100).map(step).collect();
        let short = shrink(tape, |tape| tape.contains(&step(17)) && tape.contains(&step(83)));
        assert_eq!(short, [step(17), step(83)]);
    }
}

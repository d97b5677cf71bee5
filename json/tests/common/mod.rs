//! Random JSON from a seed, for tests of the codec. `SEED=… cargo test` repeats a run.

/// A seeded generator, the same on every platform.
pub(crate) struct Random(fastrand::Rng);

impl Random {
    /// The generator of one test. Prints its seed, which is shown if the test fails.
    pub(crate) fn for_test(name: &str) -> Random {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_251_121);
        println!("{name}: SEED={seed}");
        Random(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A string as JSON, in one of its many spellings.
    pub(crate) fn string(&mut self) -> String {
        const PIECES: [&str; 24] = [
            "a",
            "b",
            "z",
            "A",
            "0",
            "_",
            "/",
            "\\/",
            "\\\"",
            "\\\\",
            "\\n",
            "\\u000a",
            "\\u0000",
            "\\u001F",
            "é",
            "\\u00e9",
            "😀",
            "\\ud83d\\ude00",
            "\u{2028}",
            "\u{7f}",
            " ",
            "~",
            "\\u0022",
            "0123456789abcdef",
        ];
        let mut text = String::from("\"");
        for _ in 0..self.one_of(&[0, 1, 1, 1, 2, 3, 8, 30]) {
            text.push_str(self.one_of(&PIECES));
        }
        text.push('"');
        text
    }

    pub(crate) fn number(&mut self) -> String {
        match self.below(8) {
            0 => {
                (self.one_of(&["0", "-0", "1", "-1", "0.0", "-0.0", "1.0", "1e2", "1E-2", "5e-324", "1e22"])).to_owned()
            }
            1 => (self.next() as i64).to_string(),
            2 => self.next().to_string(),
            3 => f64::from_bits(self.next()).to_string().replace("NaN", "1").replace("inf", "2"),
            4 => format!("{}{}e{}", self.below(100), [".5", ""][self.below(2)], self.below(40) as i32 - 20),
            5 => {
                let sign = ["", "-"][self.below(2)];
                let digits = self.one_of(&[19, 20, 21, 300, 614, 615, 616, 1000]);
                let rest: String = (1..digits).map(|_| char::from(b'0' + self.below(10) as u8)).collect();
                format!("{sign}{}{rest}", 1 + self.below(9))
            }
            _ => (self.below(600) as i64 - 300).to_string(),
        }
    }

    fn space(&mut self, text: &mut String) {
        if self.below(8) == 0 {
            text.push_str(self.one_of(&[" ", "\n", "\r\n\t"]));
        }
    }

    /// An object, as valid JSON that need not be normalised.
    pub(crate) fn object(&mut self, depth: usize) -> String {
        let mut text = String::from("{");
        let members = self.one_of(&[0, 1, 2, 3, 5, 40]);
        for index in 0..members {
            if index > 0 {
                text.push(',');
            }
            self.space(&mut text);
            text.push_str(&self.string());
            self.space(&mut text);
            text.push(':');
            text.push_str(&self.value(if members > 5 { depth.min(1) } else { depth }));
        }
        self.space(&mut text);
        text.push('}');
        text
    }

    /// Any value, written like [`Random::object`].
    pub(crate) fn value(&mut self, depth: usize) -> String {
        let mut text = String::new();
        self.space(&mut text);
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 | 1 => text.push_str(&self.string()),
            2 | 3 => text.push_str(&self.number()),
            4 => text.push_str(self.one_of(&["true", "false", "null", "{}", "[]", "[ ]"])),
            5 | 6 => text.push_str(&self.object(depth - 1)),
            _ => {
                text.push('[');
                for index in 0..self.one_of(&[0, 1, 2, 12]) {
                    if index > 0 {
                        text.push(',');
                    }
                    text.push_str(&self.value(depth - 1));
                }
                text.push(']');
            }
        }
        self.space(&mut text);
        text
    }
}

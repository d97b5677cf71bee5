use super::*;

/// Whether each text matches, as Erlang's `re:run/3` on bytes answers.
fn check(pattern: &str, matching: &[&str], others: &[&str]) {
    let regex = Regex::new(pattern).unwrap_or_else(|problem| panic!("{pattern}: {problem}"));
    for text in matching {
        assert_eq!(regex.is_match(text), Ok(true), "{pattern} on {text:?}");
    }
    for text in others {
        assert_eq!(regex.is_match(text), Ok(false), "{pattern} on {text:?}");
    }
    // The backtracking engine too, if the pattern has both.
    let Engines { linear: Some(_), .. } = &*regex.0 else { return };
    let program = Program::new(&parse::parse(pattern).unwrap()).unwrap();
    for (texts, matches) in [(matching, true), (others, false)] {
        for text in texts {
            assert_eq!(program.is_match(text, &Steps::default()), Ok(matches), "{pattern} on {text:?}, backtracking");
        }
    }
}

#[test]
fn what_only_backtracking_has() {
    check("foo(?=bar)", &["foobar"], &["foo", "foobaz"]);
    check("foo(?!bar)", &["foo", "foobaz"], &["foobar"]);
    check("(?<=a|bc)d", &["ad", "bcd"], &["d", "cd"]);
    check("(?<!a)d", &["d", "bd"], &["ad"]);
    check(r"^(\w+) \1$", &["a a", "bo bo\n"], &["a b", "bo b"]);
    check(r"(?i)^(a)\1$", &["aA"], &["ab"]);
    check(r"(?P<x>a)(?P=x)\k<x>\k{x}\g{x}\g1\g{-1}", &["aaaaaaa"], &["aaaaaa"]);
    check("^(?>a+)ab", &[], &["aaab"]);
    check("^a++b", &["aab"], &["b"]);
    check("^a++ab|^c", &["c"], &["aaab"]);
    check("^(a)?(?(1)b|c)$", &["ab", "c"], &["ac", "b"]);
    check(r"^a\Rb$", &["a\r\nb", "a\nb", "a\u{b}b"], &["a\n\nb"]);
    check("^(?:a|ab)(?:c|bcd)(?=d*$)", &["acd", "abcd"], &["abe"]);
    // A group that refers to itself is atomic.
    check(r"^(a+(?:b|\1c)?)a", &[], &["aaa"]);
    check(r"^(?:(\1b|a))+$", &["a", "aab", "aababb"], &["ab"]);
    check("(?:(?=(a))){2}\\1", &["a"], &["b"]);
    check("^(a*)*(?=b)", &["aab", "b"], &["aac", "c"]);
    check("^(?!)?a|b(?!)", &["a"], &["b"]);
}

#[test]
fn what_is_written_otherwise_in_other_languages() {
    check(r"a\Zb|a\Z", &["a", "a\n"], &["ab", "a\n\n"]);
    check(r"a\z", &["a"], &["a\n"]);
    check("c$", &["c", "c\n"], &["c\n\n", "cd"]);
    check("(?:c$|d)\n", &["c\n", "d\n"], &["c", "d"]);
    check("(?m)c$", &["c", "c\nd", "c\n\n"], &["cd"]);
    check("(?m)^$", &["", "\na", "a\n\n"], &["a\n", "a"]);
    check(r"^\Qa.b\E+$", &["a.b", "a.bb"], &["axb", "a.ba.b"]);
    check(r"[\Qa]\E]x", &["]x", "ax"], &["bx"]);
    check("a(?#comment)b*(?#comment)?", &["ab", "a"], &["b"]);
    check("(?x) a b # comment\n c", &["abc"], &["a b c"]);
    // Spaces, and then comments, may lie between a quantifier and what follows it.
    check("^(?x:a+ \n(?#q)+)b", &["ab", "aab"], &["b"]);
    check("^(?x:a+ +)a", &[], &["aa", "aaa"]);
    check("^(?x:a+ # comment\n?)a", &["aa"], &["a"]);
    check("a{b", &["a{b"], &["ab"]);
    check("a{,3}", &["a{,3}"], &["aaa"]);
    check("^a{2}$", &["aa"], &["a{2}", "aaa"]);
    check(r"\<b\>", &["<b>"], &["b"]);
    check(r"^\h$", &["\t", " "], &["h", "\n", "a"]);
    check(r"^\H\V\N$", &["abc"], &[" bc", "a\nc", "ab\n"]);
    check(r"\x41\x{42}\103\cA\o{104}\e", &["ABC\u{1}D\u{1b}"], &["ABC"]);
    check("^[a&&b]$", &["a", "&", "b"], &["c"]);
    check("^[[:alpha:]-]+$", &["ab-"], &["1"]);
    check(r"^[\d-z]$", &["-", "1", "z"], &["x"]);
    check("^[]a]$", &["]", "a"], &["b"]);
    check("^[^]a]$", &["b"], &["]", "a"]);
    check(r"\Aa\Gb|\G\Aa", &["a"], &["ba"]);
    check("(?U)a+?b", &["aab"], &["b"]);
    check("(a(?i)b)c|(?i:D)e", &["aBc", "De"], &["aBC", "DE"]);
    check(r"a\Kb", &["ab"], &["b"]);
}

#[test]
fn bytes_and_code_points() {
    check("^..$", &["é", "ab"], &["e", "日"]);
    check("^é$", &["é"], &["e"]);
    // Latin-1's letters, as in Erlang: the first of the two bytes of `é` is a letter.
    check(r"^\w\W$", &["é", "a."], &["ab"]);
    check(r"foo\b", &["foo", "foo."], &["fooé", "foob"]);
    check("(?i)äPFEL", &["zwei äpfel"], &["Äpfel"]);
    // On code points.
    check("^[äö]pfel$", &["äpfel"], &["pfel"]);
    check("^ä+.$", &["äää", "äb"], &["ä"]);
    check(r"^\p{Lu}\P{Lu}\p{^Lu}\pL$", &["Äbcd"], &["äbcd"]);
    check(r"(*UTF8)^.\w$", &["日本"], &["日"]);
    check(r"^\x{65e5}", &["日本"], &["本"]);
    check("(?i)^[ä]$", &["Ä"], &["a"]);
    check(r"(?<=[ä])b", &["äb"], &["ab"]);
}

#[test]
fn what_is_refused() {
    for pattern in [
        "(",
        ")",
        "(a",
        "a)",
        "[",
        "[a",
        "[]",
        "*",
        "a**",
        "a?{50}",
        "(?x)a+(?#q) +",
        "(?!)(?#q)?",
        "(?x:(?!) ?)",
        "^*",
        r"\b+",
        "a{2,1}",
        "a{65536}",
        "{1}",
        r"\",
        "(?",
        "(?<",
        "(?P",
        "(?<1>a)",
        "(?<a>a)(?<a>b)",
        r"\1",
        r"(a)\2",
        r"\k<a>",
        r"\g",
        r"\g0",
        r"\g{-1}",
        "(?R)",
        "(?1)",
        "(?&a)",
        "(?|a)",
        "(?C)",
        "(*FAIL)",
        r"(*ACCEPT)",
        "(?<=a*)b",
        "(?:(?<=a*)b){0}",
        "(?(R)a)",
        "(?(1)a)",
        "(?(?=a)b)",
        "[z-a]",
        "[[:nothing:]]",
        "[[.a.]]",
        "[[:<:]]",
        r"\p{Nothing}",
        r"\pX",
        r"\p",
        r"\x{110000}",
        r"\x{d800}",
        r"\o{8}",
        r"\u0041",
        r"\U",
        r"\L",
        r"\X",
        r"\N{x}",
        r"[\R]",
        r"\c",
        r"\cä",
        "((a{1000}){1000}){1000}",
        "(?=(a{1000}){1000})",
        "[[:alpha:]",
    ] {
        let problem = Regex::new(pattern).err().unwrap_or_else(|| panic!("{pattern} is compiled"));
        assert!(!problem.is_empty() && !problem.contains('\n'), "{pattern}: {problem}");
    }
    assert!(Regex::new(&"(".repeat(100_000)).is_err());
    assert!(Regex::new(&"(?=".repeat(59)).is_err());
    let nested = format!("{}a{}", "(?=".repeat(59), ")".repeat(59));
    assert_eq!(Regex::new(&nested).unwrap().is_match("a"), Ok(true));
}

/// Patterns of the linear engine take one pass; others end after their steps.
#[test]
fn no_pattern_takes_long() {
    let long = "a".repeat(200_000) + "!";
    for pattern in ["^(a+)+$", "(a|aa)+$", "(.*a){10}b", "a{50}(?:a?){50}$"] {
        assert!(Regex::new(pattern).unwrap().is_match(&long).is_ok(), "{pattern}");
    }
    for pattern in ["^(?=a)(a+)+$", r"(a|aa)+\1$", "(?:(?=a)a)*b", r"(.+)\1!!", "(?=.*b)", "(?=(a|b)*c)"] {
        assert_eq!(Regex::new(pattern).unwrap().is_match(&long), Err(TooManySteps), "{pattern}");
    }
    // A long text alone is not a problem.
    let text = "some words of a text ".repeat(5_000);
    for pattern in [r"(?<!x)\d", r"\b(\w+) \1\b", "of(?! a)", "^(?>some)(?=x)"] {
        assert_eq!(Regex::new(pattern).unwrap().is_match(&text), Ok(false), "{pattern}");
    }
}

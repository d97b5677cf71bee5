//! Draws a revision tree as SVG.
//!
//! ```text
//!   ┌──────┐   ┌──────┐   ┌──────┐   ┌──────┐
//!   │ 1-aa ├─┬─┤ 2-bb ├───┤ 3-cc ├───┤ 4-dd │  winner
//!   └──────┘ │ └──────┘   └──────┘   └──────┘
//!            │ ┌──────┐
//!            └─┤ 2-ee │  conflict
//!              └──────┘
//! ```
//!
//! Each leaf has its own lane, in which its branch starts beside its parent. Of a long run of revisions without a
//! branch, only the ends are drawn. Ids and revisions are text from outside: all of it is escaped, and characters that
//! XML does not allow are replaced.

use std::fmt::Write;

use model::RevId;

use super::{Kind, Shape};

/// Number of revisions drawn at each end of a long run.
const ENDS: usize = 3;

/// Number of characters drawn of a hash and of a heading. The rest is in the tooltip.
const HASH_CHARS: usize = 10;
const HEADING_CHARS: usize = 80;

// Sizes in pixels.
const MARGIN: usize = 24;
const TOP: usize = 64;
const COLUMN: usize = 176;
const LANE: usize = 56;
const BOX: (usize, usize) = (136, 28);

/// A box of the drawing.
enum Item {
    Rev(RevId),
    /// This many revisions are not drawn.
    More(usize),
}

/// The start of a branch.
struct Branch {
    /// The column and the lane of its parent.
    parent: Option<(usize, usize)>,
    /// Whether it continues in its parent's lane.
    goes_on: bool,
    rev: RevId,
}

/// The drawing of the tree of a document.
pub(super) fn draw(heading: &str, shape: &Shape<'_>) -> String {
    let mut body = String::new();
    // Branches left to draw, the next one last. A history is too long for recursion.
    let mut left: Vec<Branch> = Vec::new();
    let (mut lanes, mut columns) = (0, 0);
    for root in shape.below(None).rev() {
        left.push(Branch { parent: None, goes_on: false, rev: root.clone() });
    }
    while let Some(Branch { parent, goes_on, rev }) = left.pop() {
        let begin = parent.map_or(0, |(column, _)| column + 1);
        let lane = match parent {
            Some((_, lane)) if goes_on => lane,
            _ => lanes,
        };
        lanes = lanes.max(lane + 1);
        match parent {
            Some(from) => edge(&mut body, from, (begin, lane)),
            None if rev.position() > 1 => forgotten(&mut body, lane),
            None => {}
        }
        let run = run_from(shape, rev);
        let last = run.last().cloned();
        let mut column = begin;
        for (place, item) in shorten(run).into_iter().enumerate() {
            column = begin + place;
            if place > 0 {
                edge(&mut body, (column - 1, lane), (column, lane));
            }
            match item {
                Item::Rev(rev) => node(&mut body, (column, lane), &rev, shape.kind(&rev)),
                Item::More(count) => more(&mut body, (column, lane), count),
            }
        }
        columns = columns.max(column + 1);
        for (place, child) in shape.below(last).enumerate().rev() {
            left.push(Branch { parent: Some((column, lane)), goes_on: place == 0, rev: child.clone() });
        }
    }
    // The mark of a leaf is beside its box.
    let (width, height) = (2 * MARGIN + (columns + 1) * COLUMN, TOP + lanes * LANE + MARGIN);
    let (heading, title) = (escape(&cut(heading, HEADING_CHARS)), escape(heading));
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"12\">\n\
         <title>{title}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{MARGIN}\" y=\"34\" font-size=\"16\">{heading}</text>\n{body}</svg>\n"
    )
}

/// The revisions from this one on, up to a leaf, or to the last one before the next branches.
fn run_from(shape: &Shape<'_>, rev: RevId) -> Vec<RevId> {
    let mut run = vec![rev];
    while let Some(last) = run.last() {
        let mut children = shape.below(Some(last.clone()));
        match (children.next(), children.next()) {
            // A leaf may be an ancestor in another branch. It ends a run too, so that its mark is drawn.
            (Some(child), None) if shape.kind(last) == Kind::Missing => run.push(child.clone()),
            _ => break,
        }
    }
    run
}

/// The boxes of a run.
fn shorten(run: Vec<RevId>) -> Vec<Item> {
    let hidden = run.len().saturating_sub(2 * ENDS);
    if hidden < 2 {
        return run.into_iter().map(Item::Rev).collect();
    }
    let mut items = Vec::with_capacity(2 * ENDS + 1);
    for (place, rev) in run.into_iter().enumerate() {
        if place < ENDS || place >= ENDS + hidden {
            items.push(Item::Rev(rev));
        } else if place == ENDS {
            items.push(Item::More(hidden));
        }
    }
    items
}

/// The left edge and the middle of a box.
fn at((column, lane): (usize, usize)) -> (usize, usize) {
    (MARGIN + column * COLUMN, TOP + lane * LANE + LANE / 2)
}

fn node(out: &mut String, place: (usize, usize), rev: &RevId, kind: Kind) {
    let ((x, y), (width, height)) = (at(place), BOX);
    let (fill, stroke, dashes) = match kind {
        Kind::Winner => ("#d6f5d6", "#1a7f1a", ""),
        Kind::Conflict => ("#fff0cc", "#b36b00", ""),
        Kind::Deleted | Kind::DeletedWinner => ("#f5d6d6", "#a61c1c", ""),
        Kind::Missing => ("#f2f2f2", "#808080", " stroke-dasharray=\"4 3\""),
    };
    let bold = if matches!(kind, Kind::Winner | Kind::DeletedWinner) { 3 } else { 1 };
    let (top, text, base, beside) = (y - height / 2, x + width / 2, y + 4, x + width + 8);
    let label = escape(&format!("{}-{}", rev.position(), cut(&rev.hash().to_string(), HASH_CHARS)));
    let (full, mark) = (escape(&rev.to_string()), kind.mark());
    let class = kind.class();
    let _ = writeln!(
        out,
        "<g class=\"{class}\"><title>{full} ({mark})</title><rect x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" \
         rx=\"6\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"{bold}\"{dashes}/><text x=\"{text}\" y=\"{base}\" \
         text-anchor=\"middle\">{label}</text></g>"
    );
    if kind != Kind::Missing {
        let _ =
            writeln!(out, "<text class=\"mark\" x=\"{beside}\" y=\"{}\" fill=\"{stroke}\">{mark}</text>", base - 12);
    }
}

fn more(out: &mut String, place: (usize, usize), count: usize) {
    let (x, y) = at(place);
    let (text, base) = (x + BOX.0 / 2, y + 4);
    let _ =
        writeln!(out, "<text class=\"more\" x=\"{text}\" y=\"{base}\" text-anchor=\"middle\">… {count} more …</text>");
}

/// A line from one box to the next.
fn edge(out: &mut String, from: (usize, usize), to: (usize, usize)) {
    let ((x1, y1), (x2, y2)) = (at(from), at(to));
    let (begin, bend) = (x1 + BOX.0, x2 - (COLUMN - BOX.0) / 2);
    let _ =
        writeln!(out, "<path class=\"edge\" d=\"M{begin} {y1}H{bend}V{y2}H{x2}\" fill=\"none\" stroke=\"#555555\"/>");
}

/// The stub of a branch whose older revisions are forgotten.
fn forgotten(out: &mut String, lane: usize) {
    let (x, y) = at((0, lane));
    let _ = writeln!(
        out,
        "<path class=\"forgotten\" d=\"M{} {y}H{x}\" fill=\"none\" stroke=\"#808080\" stroke-dasharray=\"2 3\"/>",
        x - MARGIN
    );
}

/// The first characters of a text, and a sign if there are more.
fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Text as XML may contain it, in elements and in attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            // These change the order in which the rest of a line is shown.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            char => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::leaf;
    use super::*;

    /// The elements and the texts of a drawing. Fails where it is not well-formed.
    fn parts(svg: &str) -> (Vec<&str>, Vec<&str>) {
        let (mut open, mut elements, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        let mut rest = svg.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").expect("a declaration");
        while let Some(begin) = rest.find('<') {
            let text = rest[..begin].trim();
            assert!(!text.contains('>'), "{text}");
            for reference in text.split('&').skip(1) {
                let name = reference.split_once(';').expect("a reference ends").0;
                assert!(["amp", "lt", "gt", "quot", "apos"].contains(&name), "{name}");
            }
            texts.extend(Some(text).filter(|text| !text.is_empty()));
            let end = begin + rest[begin..].find('>').expect("a tag ends");
            let tag = &rest[begin + 1..end];
            rest = &rest[end + 1..];
            assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "{tag}");
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None => {
                    elements.push(tag);
                    if !tag.ends_with('/') {
                        open.push(tag.split(' ').next().expect("a name"));
                    }
                }
            }
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest:?}");
        assert!(svg.chars().all(|char| char == '\n' || !char.is_control()));
        (elements, texts)
    }

    fn count(elements: &[&str], what: &str) -> usize {
        elements.iter().filter(|element| element.contains(what)).count()
    }

    #[test]
    fn each_revision_has_a_box_and_each_leaf_its_mark() {
        let leaves =
            [leaf("4-dd cc bb aa", false), leaf("3-ee bb aa", false), leaf("3-ff bb aa", true), leaf("9-99", true)];
        let svg = draw("db/doc", &Shape::of(&leaves));
        let (elements, texts) = parts(&svg);
        for (class, expected) in [("winner", 1), ("conflict", 1), ("deleted", 2), ("missing", 3)] {
            assert_eq!(count(&elements, &format!("g class=\"{class}\"")), expected, "{class}");
        }
        // Five edges in the one tree. The other one is a single box, whose ancestors are forgotten.
        assert_eq!((count(&elements, "\"edge\""), count(&elements, "\"forgotten\"")), (5, 1));
        for text in ["db/doc", "1-aa", "4-dd", "winner", "conflict", "deleted", "4-dd (winner)", "2-bb (missing)"] {
            assert!(texts.contains(&text), "{text}: {texts:?}");
        }
        // No two boxes are at one place.
        let places = elements.iter().filter(|element| element.starts_with("rect x="));
        let mut places: Vec<String> = places.map(|rect| rect.split(" width").next().unwrap().to_owned()).collect();
        let boxes = places.len();
        places.sort();
        places.dedup();
        assert_eq!((boxes, places.len()), (7, 7));
        let deleted = draw("db/doc", &Shape::of(&[leaf("2-bb aa", true)]));
        assert!(parts(&deleted).1.contains(&"winner, deleted"), "{deleted}");
    }

    #[test]
    fn hostile_ids_and_revisions_are_text() {
        let evil = "</title><script>alert(\"1\")</script>&#0;'\u{0}\u{1b}\u{ffff}\u{202e}]]>";
        let svg = draw(evil, &Shape::of(&[leaf("2-<b>\"&'x aa", false)]));
        let (elements, texts) = parts(&svg);
        assert_eq!((count(&elements, "script"), count(&elements, "<b")), (0, 0));
        assert!(texts.iter().any(|text| text.contains("&lt;script&gt;")), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("2-&lt;b&gt;&quot;&amp;&apos;x (winner)")), "{texts:?}");
        // A long one is cut between two characters, and is in the title as a whole.
        let long = "é".repeat(10_000);
        let svg = draw(&long, &Shape::of(&[leaf("1-a", false)]));
        let drawn = format!("{}…", "é".repeat(HEADING_CHARS));
        assert!(parts(&svg).1.contains(&drawn.as_str()) && svg.contains(&format!("<title>{long}</title>")));
    }

    #[test]
    fn a_long_history_is_drawn_as_its_ends() {
        let ids: Vec<String> = (0..20_000).map(|n| format!("{n:032x}")).collect();
        let long = leaf(&format!("20000-{}", ids.join(" ")), false);
        let svg = draw("long", &Shape::of(&[long]));
        let (elements, texts) = parts(&svg);
        assert_eq!(count(&elements, "g class="), 6);
        assert!(texts.contains(&"… 19994 more …"), "{texts:?}");
        assert!(svg.len() < 5_000);
        // A run that is hardly longer is drawn as a whole.
        let ids: Vec<String> = (0..7).map(|n| format!("{n:032x}")).collect();
        let svg = draw("short", &Shape::of(&[leaf(&format!("7-{}", ids.join(" ")), false)]));
        assert_eq!(count(&parts(&svg).0, "g class="), 7);
    }

    #[test]
    fn a_thousand_branches_have_a_lane_each() {
        let leaves: Vec<_> = (0..1_000).map(|n| leaf(&format!("2-{n:032x} aa"), n % 2 == 0)).collect();
        let svg = draw("wide", &Shape::of(&leaves));
        let (elements, _) = parts(&svg);
        assert_eq!((count(&elements, "g class="), count(&elements, "\"edge\"")), (1_001, 1_000));
    }
}

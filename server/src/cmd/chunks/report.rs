//! Parts of the reports of `couch-layer chunks`.

use chunks::store::Figures;

/// Number of problems that are shown one by one. All are counted.
pub(super) const SHOWN: usize = 20;

pub(super) fn unread_files(count: usize) -> String {
    format!("cannot read which chunks {count} files refer to")
}

pub(super) fn sizes(before: &Figures, after: &Figures) -> String {
    let of = |figures: &Figures| format!("{} documents, {}", figures.documents, bytes(figures.document_bytes));
    format!("before: {}\nafter:  {}", of(before), of(after))
}

/// A line for each of the first items left alone, and one for the rest.
pub(super) fn left_alone(left: &[String]) -> String {
    let mut lines: String = left.iter().take(SHOWN).map(|line| format!("\n  {line}")).collect();
    if left.len() > SHOWN {
        lines += &format!("\n  and {} more", left.len() - SHOWN);
    }
    lines
}

pub(super) fn bytes(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}

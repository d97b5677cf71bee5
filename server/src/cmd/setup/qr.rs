//! QR codes of half blocks, two modules a character.

use console::Term;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};

/// White on black whatever the terminal's colours are, since many cameras read no inverted code.
const COLOURS: [&str; 2] = ["\x1b[40;97m", "\x1b[0m"];

/// The code of a text, with its margin. Blocks stand for the light modules. `None` if the text is too long for a code.
pub(super) fn code(text: &str) -> Option<String> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L).ok()?;
    Some(code.render::<Dense1x2>().dark_color(Dense1x2::Light).light_color(Dense1x2::Dark).build())
}

/// The code in colours for this terminal; if it is too narrow, the number of columns that the code needs.
pub(super) fn for_terminal(code: &str, terminal: &Term) -> Result<String, usize> {
    let width = code.lines().next().map_or(0, |line| line.chars().count());
    if usize::from(terminal.size().1) < width {
        return Err(width);
    }
    let [begin, end] = COLOURS;
    let lines: Vec<String> = code.lines().map(|line| format!("{begin}{line}{end}")).collect();
    Ok(lines.join("\n"))
}

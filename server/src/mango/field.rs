//! Field names of a selector: `a.b` goes down two levels, `a\.b` is one name with a dot in it.

use super::error::SelectorError;

/// Takes a field name apart (`mango_util:parse_field/1`). A dot after a backslash does not split, and
/// every backslash is then taken out. Appends to `path`.
pub(super) fn parse(field: &str, path: &mut Vec<String>) -> Result<(), SelectorError> {
    let mut name = String::new();
    let mut escaped = false;
    let mut end = |name: &mut String, any: bool| {
        if !any {
            return Err(SelectorError::invalid_field_name(field));
        }
        path.push(std::mem::take(name));
        Ok(())
    };
    // Whether the part being read has a character, be it only a backslash that is taken out.
    let mut any = false;
    for character in field.chars() {
        match character {
            '.' if !escaped => {
                end(&mut name, any)?;
                any = false;
                continue;
            }
            '\\' => {}
            other => name.push(other),
        }
        any = true;
        escaped = character == '\\';
    }
    end(&mut name, any)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(field: &str) -> Result<Vec<String>, SelectorError> {
        let mut path = Vec::new();
        parse(field, &mut path).map(|()| path)
    }

    #[test]
    fn fields_split_at_dots_that_are_not_escaped() {
        for (field, expected) in [
            ("ab", &["ab"][..]),
            ("a.b", &["a", "b"]),
            (r"a\.b", &["a.b"]),
            ("a.b.c", &["a", "b", "c"]),
            (r"a.b\.c", &["a", "b.c"]),
            (r"\$price", &["$price"]),
            ("ä.0", &["ä", "0"]),
        ] {
            assert_eq!(parts(field).unwrap(), expected, "{field}");
        }
        for field in ["", ".", "a..b", ".a", "a."] {
            let error = parts(field).unwrap_err();
            assert_eq!(error.error(), "invalid_field_name");
            assert_eq!(error.reason(), format!("Invalid field name: {field}"));
        }
    }
}

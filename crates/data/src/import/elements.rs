//! The elements of a list in a JSON file, one by one and as they stand: one that is broken takes no other with it.

use std::io::{BufRead, Bytes};

/// Of a longer element only the beginning is kept, which is then no JSON: a quotation mark may be missing its end.
const ELEMENT_BYTES_MAX: usize = 256 << 20;

/// Reads a list element by element.
pub(super) struct Elements<R> {
    bytes: Bytes<R>,
    has_ended: bool,
}

/// What comes next in a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Element(Vec<u8>),
    /// The list ends; whether only spaces follow.
    End {
        is_last: bool,
    },
    /// The file ends inside of the list.
    CutOff,
}

impl<R: BufRead> Elements<R> {
    /// Begins with a list; `None` if the text is none.
    pub fn of(input: R) -> std::io::Result<Option<Elements<R>>> {
        let mut bytes = input.bytes();
        for byte in &mut bytes {
            match byte? {
                b'[' => return Ok(Some(Elements { bytes, has_ended: false })),
                // Spaces, and the bytes of a byte order mark.
                byte if byte.is_ascii_whitespace() || [0xef, 0xbb, 0xbf].contains(&byte) => {}
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The bytes up to the comma or bracket that ends the element: not those in texts, nor those of lists inside.
    pub fn next(&mut self) -> std::io::Result<Next> {
        if self.has_ended {
            return self.end();
        }
        let mut element = Vec::new();
        let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
        while let Some(byte) = self.bytes.next().transpose()? {
            match byte {
                _ if in_text => {
                    in_text = is_escaped || byte != b'"';
                    is_escaped = !is_escaped && byte == b'\\';
                }
                b'"' => in_text = true,
                b'{' | b'[' => depth += 1,
                b',' if depth == 0 => return Ok(Next::Element(element)),
                b']' if depth == 0 => {
                    self.has_ended = true;
                    let is_empty = element.iter().all(u8::is_ascii_whitespace);
                    return if is_empty { self.end() } else { Ok(Next::Element(element)) };
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if element.len() < ELEMENT_BYTES_MAX {
                element.push(byte);
            }
        }
        Ok(Next::CutOff)
    }

    fn end(&mut self) -> std::io::Result<Next> {
        let is_space = |byte: &std::io::Result<u8>| matches!(byte, Ok(byte) if byte.is_ascii_whitespace());
        let after = self.bytes.find(|byte| !is_space(byte)).transpose()?;
        Ok(Next::End { is_last: after.is_none() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_end_at_their_own_comma() {
        let read = |text: &str| {
            let mut found = Vec::new();
            let Some(mut elements) = Elements::of(text.as_bytes()).unwrap() else { return (found, None) };
            loop {
                match elements.next().unwrap() {
                    Next::Element(bytes) => found.push(String::from_utf8(bytes).unwrap()),
                    last => return (found, Some(last)),
                }
            }
        };
        let end = |is_last| Some(Next::End { is_last });
        for (text, elements, last) in [
            ("", &[][..], None),
            ("{}", &[], None),
            ("\u{feff} [ ]\n", &[], end(true)),
            ("[1,2]", &["1", "2"], end(true)),
            ("[1,]x", &["1"], end(false)),
            ("[,1]", &["", "1"], end(true)),
            (r#"[{"a":[1,2]},"],\"[\\"," "]"#, &[r#"{"a":[1,2]}"#, r#""],\"[\\""#, r#"" ""#], end(true)),
            ("[}},{]", &["}}"], Some(Next::CutOff)),
            (r#"[1,"a]"#, &["1"], Some(Next::CutOff)),
        ] {
            assert_eq!(read(text), (elements.iter().map(|text| text.to_string()).collect(), last), "{text}");
        }
    }
}

//! Text that others wrote, made safe to stand in a page, a drawing or a Markdown table.

/// For HTML and SVG, in elements and in quoted attributes.
///
/// Besides the five characters of markup, control characters and those that turn the direction of text around are
/// shown as the replacement character: a hostile record must not reorder or hide what stands beside it.
pub fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(visible(other)),
        }
    }
    escaped
}

/// For a Markdown table cell or list item: one line, no markup, no links, no HTML.
pub fn markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars().map(visible) {
        match character {
            '\n' | '\t' => escaped.push(' '),
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '!' | '$' => {
                escaped.push('\\');
                escaped.push(character);
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// At most `characters_max` characters, with an ellipsis in place of the rest.
pub fn shortened(text: &str, characters_max: usize) -> String {
    match text.char_indices().nth(characters_max) {
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
        None => text.to_string(),
    }
}

fn visible(character: char) -> char {
    match character {
        '\n' | '\t' => character,
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' => '\u{fffd}',
        control if control.is_control() => '\u{fffd}',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_controls_and_direction_marks_lose_their_power() {
        assert_eq!(
            html("<b onclick=\"x('&')\">\u{0}\u{202e}\u{1b}[31m"),
            "&lt;b onclick=&quot;x(&#39;&amp;&#39;)&quot;&gt;\u{fffd}\u{fffd}\u{fffd}[31m"
        );
        assert_eq!(html("naïve 東京\n"), "naïve 東京\n");
        assert_eq!(markdown("a|b\n[x](y) <i> `c`"), "a\\|b \\[x\\](y) &lt;i&gt; \\`c\\`");
    }

    #[test]
    fn shortening_keeps_whole_characters() {
        assert_eq!(shortened("äöü", 2), "äö…");
        assert_eq!(shortened("äöü", 3), "äöü");
    }
}

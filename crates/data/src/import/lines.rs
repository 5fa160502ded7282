//! Lines of a file that may be hostile: none is kept longer than a bound.

use std::io::BufRead;

/// Reads one line without its end, at most `bytes_max` bytes of it; how many bytes it has in the file with its end, 0 at
/// the end of the file.
pub(super) fn read_limited_line(
    input: &mut impl BufRead,
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> std::io::Result<usize> {
    line.clear();
    let mut count = 0;
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(count);
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let length = end.unwrap_or(buffer.len());
        let room = bytes_max.saturating_sub(line.len());
        line.extend_from_slice(&buffer[..length.min(room)]);
        let used = end.map_or(length, |end| end + 1);
        count += used;
        input.consume(used);
        if end.is_some() {
            return Ok(count);
        }
    }
}

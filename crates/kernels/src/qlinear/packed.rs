//! Frozen matrices as the kernels read them: packed once, kept in memory or mapped from a file.

use std::ops::Range;
use std::sync::Arc;

use super::affine::{AffineError, AffineMatrix, GROUP_SIZES, ScaleType};
use super::layout::{TILE, TRAILER_BYTES, byte_place, nibble_place};
use crate::arena::{ALIGNMENT_BYTES, AlignedBuffer};
use crate::map::MappedFile;

/// Read-only bytes that somebody owns: a buffer, or a mapped file.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Owner,
    range: Range<usize>,
}

#[derive(Clone)]
enum Owner {
    Memory(Arc<dyn AsRef<[u8]> + Send + Sync>),
    File(Arc<MappedFile>),
}

impl SharedBytes {
    /// Bytes `range` of `owner`; `None` when the owner has fewer.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Self { owner: Owner::Memory(owner), range })
    }
    /// Bytes `range` of a mapped file, whose pages can be read ahead and released; `None` when the file has fewer.
    pub fn of_file(file: Arc<MappedFile>, range: Range<usize>) -> Option<Self> {
        (*file).as_ref().get(range.clone())?;
        Some(Self { owner: Owner::File(file), range })
    }
    pub fn as_slice(&self) -> &[u8] {
        let all = match &self.owner {
            Owner::Memory(owner) => (**owner).as_ref(),
            Owner::File(file) => (**file).as_ref(),
        };
        &all[self.range.clone()]
    }
    pub fn len(&self) -> usize {
        self.range.len()
    }
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
    /// The file behind the bytes, if there is one.
    fn file(&self) -> Option<&MappedFile> {
        match &self.owner {
            Owner::Memory(_) => None,
            Owner::File(file) => Some(file),
        }
    }
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedBytes({:?})", self.range)
    }
}

struct OwnedBytes(AlignedBuffer<u8>);
impl AsRef<[u8]> for OwnedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// What must be known to read packed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedHeader {
    pub n_out: usize,
    pub k_in: usize,
    /// Bits of a code in the source, 2 to 8. Up to 4 are stored in 4 bits, more in 8.
    pub bits: u32,
    pub group_size: usize,
    pub scale_type: ScaleType,
}

/// Why bytes are no packed matrix.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PackedError {
    #[error(transparent)]
    Affine(#[from] AffineError),
    #[error("packed matrix [{n_out}, {k_in}] is larger than the address space")]
    TooLarge { n_out: usize, k_in: usize },
    #[error("packed matrix [{n_out}, {k_in}] needs {expected} bytes, found {found}")]
    Length { n_out: usize, k_in: usize, expected: usize, found: usize },
    #[error("packed matrix starts {remainder} bytes after a multiple of {ALIGNMENT_BYTES}")]
    Alignment { remainder: usize },
}

impl PackedHeader {
    /// Version of the layout: part of a cache file's name, so that old caches are not read.
    pub const LAYOUT_VERSION: u32 = 1;

    /// Bits in which a code is stored: 4 or 8.
    pub fn code_bits(&self) -> u32 {
        if self.bits <= 4 { 4 } else { 8 }
    }
    /// Checks bits, group size and columns.
    pub fn validate(&self) -> Result<(), PackedError> {
        let Self { n_out, k_in, bits, group_size, .. } = *self;
        if n_out == 0 || k_in == 0 {
            Err(AffineError::Empty { n_out, k_in })?;
        }
        if !(2..=8).contains(&bits) {
            Err(AffineError::Bits { bits })?;
        }
        if !GROUP_SIZES.contains(&group_size) {
            Err(AffineError::GroupSize { group_size })?;
        }
        if !k_in.is_multiple_of(group_size) {
            Err(AffineError::Columns { k_in, group_size })?;
        }
        Ok(())
    }
    /// Bytes of the packed matrix.
    pub fn byte_len(&self) -> Result<usize, PackedError> {
        self.validate()?;
        let size = || {
            let tiles = self.row_tiles().checked_mul(self.column_tiles())?.checked_mul(self.tile_bytes())?;
            let rows = self.row_tiles().checked_mul(TILE * 2 * size_of::<f32>())?;
            let total = tiles.checked_add(rows)?.checked_add(TRAILER_BYTES)?;
            (total <= isize::MAX as usize).then_some(total)
        };
        size().ok_or(PackedError::TooLarge { n_out: self.n_out, k_in: self.k_in })
    }

    pub(crate) fn row_tiles(&self) -> usize {
        self.n_out.div_ceil(TILE)
    }
    pub(crate) fn column_tiles(&self) -> usize {
        self.k_in.div_ceil(TILE)
    }
    /// Scale groups inside a tile: 1, 2 or 4.
    pub(crate) fn groups_per_tile(&self) -> usize {
        (TILE / self.group_size).max(1)
    }
    pub(crate) fn code_bytes(&self) -> usize {
        TILE * TILE * self.code_bits() as usize / 8
    }
    pub(crate) fn tile_bytes(&self) -> usize {
        self.code_bytes() + self.groups_per_tile() * 2 * TILE * self.scale_type.bytes()
    }
    /// What a stored code must be lowered by to give the source's code.
    pub(crate) fn stored_excess(&self) -> i32 {
        (1 << (self.code_bits() - 1)) - (1 << (self.bits - 1))
    }
    /// The code in the middle of the range: kernels multiply `code - centre`.
    pub(crate) fn centre(&self) -> f32 {
        (1u32 << (self.bits - 1)) as f32
    }
}

/// A frozen matrix in the tile layout of `qlinear::layout`, shared by both directions. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct PackedMatrix {
    header: PackedHeader,
    bytes: SharedBytes,
    /// Row tiles of the bytes that this matrix shows; all of them unless it is a window.
    shown_tiles: Range<usize>,
    stored_row_tiles: usize,
    /// Every `bias + centre·scale` is zero: the products have no offset term.
    symmetric: bool,
}

impl PackedMatrix {
    /// Packs a valid matrix.
    pub fn pack(matrix: &AffineMatrix) -> Result<PackedMatrix, PackedError> {
        matrix.validate()?;
        let header = PackedHeader {
            n_out: matrix.n_out,
            k_in: matrix.k_in,
            bits: matrix.bits,
            group_size: matrix.group_size,
            scale_type: matrix.scale_type,
        };
        let mut bytes = AlignedBuffer::<u8>::zeroed(header.byte_len()?);
        let (row_tiles, column_tiles) = (header.row_tiles(), header.column_tiles());
        for row_tile in 0..row_tiles {
            for column_tile in 0..column_tiles {
                let start = (row_tile * column_tiles + column_tile) * header.tile_bytes();
                pack_tile(matrix, &header, row_tile, column_tile, &mut bytes[start..start + header.tile_bytes()]);
            }
        }
        let symmetric = write_row_maxima(matrix, &header, &mut bytes);
        let len = bytes.len();
        Ok(PackedMatrix {
            header,
            bytes: SharedBytes { owner: Owner::Memory(Arc::new(OwnedBytes(bytes))), range: 0..len },
            shown_tiles: 0..row_tiles,
            stored_row_tiles: row_tiles,
            symmetric,
        })
    }

    /// A packed matrix over bytes made by [`PackedMatrix::pack`], usually mapped from a file at a multiple of 64.
    pub fn from_bytes(header: PackedHeader, bytes: SharedBytes) -> Result<PackedMatrix, PackedError> {
        let expected = header.byte_len()?;
        let slice = bytes.as_slice();
        if slice.len() != expected {
            let (n_out, k_in) = (header.n_out, header.k_in);
            return Err(PackedError::Length { n_out, k_in, expected, found: slice.len() });
        }
        let remainder = slice.as_ptr() as usize % ALIGNMENT_BYTES;
        if remainder != 0 {
            return Err(PackedError::Alignment { remainder });
        }
        let symmetric = slice[expected - TRAILER_BYTES] == 1;
        let row_tiles = header.row_tiles();
        Ok(PackedMatrix { header, bytes, shown_tiles: 0..row_tiles, stored_row_tiles: row_tiles, symmetric })
    }

    /// A valid matrix of random codes, at the speed of memory: for benchmarks and memory tests of large shapes. Its
    /// weights have a mean of about zero and a variance of 1 / k_in.
    pub fn random(header: PackedHeader, seed: u64) -> Result<PackedMatrix, PackedError> {
        let mut bytes = AlignedBuffer::<u8>::zeroed(header.byte_len()?);
        let mut state = seed;
        // Codes are uniform over 2^bits, of which the variance is (4^bits - 1) / 12.
        let scale = (12.0 / (4f64.powi(header.bits as i32) - 1.0) / header.k_in as f64).sqrt() as f32;
        let bias = -scale * (header.centre() - 0.5);
        let (scale_bytes, excess) = (header.scale_type.bytes(), header.stored_excess() as u8);
        let columns_in_tile = |tile: usize| TILE.min(header.k_in - tile % header.column_tiles() * TILE);
        let rows_in_tile = |tile: usize| TILE.min(header.n_out - tile / header.column_tiles() * TILE);
        let tiles = header.row_tiles() * header.column_tiles();
        for (tile, part) in bytes[..tiles * header.tile_bytes()].chunks_mut(header.tile_bytes()).enumerate() {
            let (codes, scales) = part.split_at_mut(header.code_bytes());
            let mask = if header.code_bits() == 4 { (1u8 << header.bits) - 1 } else { u8::MAX >> (8 - header.bits) };
            let mask = if header.code_bits() == 4 { mask * 0x11 } else { mask };
            let add = if header.code_bits() == 4 { excess * 0x11 } else { excess };
            for eight in codes.chunks_mut(8) {
                // xorshift64*, enough for weights that only have to look busy.
                state ^= state >> 12;
                state ^= state << 25;
                state ^= state >> 27;
                let random = state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes();
                eight.iter_mut().zip(random).for_each(|(code, random)| *code = (random & mask) + add);
            }
            let groups = columns_in_tile(tile).div_ceil(header.group_size);
            for group in 0..groups {
                for row in 0..rows_in_tile(tile) {
                    let start = group * 2 * TILE * scale_bytes;
                    header.scale_type.write(scale, &mut scales[start + row * scale_bytes..]);
                    header.scale_type.write(bias, &mut scales[start + (TILE + row) * scale_bytes..]);
                }
            }
        }
        let stored = {
            let mut number = [0; 4];
            header.scale_type.write(scale, &mut number);
            header.scale_type.read(&number)
        };
        for row in 0..header.n_out {
            for (section, value) in [stored, 1.0 / stored].into_iter().enumerate() {
                let place =
                    tiles * header.tile_bytes() + (section * header.row_tiles() * TILE + row) * size_of::<f32>();
                bytes[place..place + 4].copy_from_slice(&value.to_ne_bytes());
            }
        }
        let range = 0..bytes.len();
        Self::from_bytes(header, SharedBytes { owner: Owner::Memory(Arc::new(OwnedBytes(bytes))), range })
    }

    /// A matrix of which only the shape is there: for ops that plan. Anything that reads a weight panics.
    pub fn planned(header: PackedHeader) -> Result<PackedMatrix, PackedError> {
        header.byte_len()?;
        let bytes = SharedBytes { owner: Owner::Memory(Arc::new(Vec::new())), range: 0..0 };
        let row_tiles = header.row_tiles();
        Ok(PackedMatrix { header, bytes, shown_tiles: 0..row_tiles, stored_row_tiles: row_tiles, symmetric: false })
    }

    /// Whether the bytes lie in a mapped file.
    pub fn is_mapped(&self) -> bool {
        self.bytes.file().is_some()
    }
    /// Asks the system to read a mapped matrix from the disk ahead of its use.
    pub fn read_ahead(&self) {
        if let Some(file) = self.bytes.file() {
            file.read_ahead(self.bytes.range.clone());
        }
    }
    /// Takes a mapped matrix out of this process' memory until it is read again.
    pub fn release(&self) {
        if let Some(file) = self.bytes.file() {
            file.release(self.bytes.range.clone());
        }
    }

    /// Codes, scales and biases as they were packed.
    pub fn unpack(&self) -> AffineMatrix {
        let header = self.header;
        let groups = header.k_in / header.group_size;
        let mut matrix = AffineMatrix {
            n_out: header.n_out,
            k_in: header.k_in,
            bits: header.bits,
            group_size: header.group_size,
            codes: vec![0; header.n_out * header.k_in],
            scales: vec![0.0; header.n_out * groups],
            biases: vec![0.0; header.n_out * groups],
            scale_type: header.scale_type,
        };
        for row in 0..header.n_out {
            for column in 0..header.k_in {
                matrix.codes[row * header.k_in + column] = self.code(row, column);
            }
            for group in 0..groups {
                (matrix.scales[row * groups + group], matrix.biases[row * groups + group]) =
                    self.scale_and_bias(row, group * header.group_size);
            }
        }
        matrix
    }

    /// Writes row `row` as float32, `scale·code + bias` rounded once, into `out`, k_in values.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.header.n_out, "row {row} of {}", self.header.n_out);
        assert_eq!(out.len(), self.header.k_in, "a row has k_in weights");
        let step = self.header.group_size.min(TILE);
        for (index, part) in out.chunks_mut(step).enumerate() {
            let (scale, bias) = self.scale_and_bias(row, index * step);
            for (column, weight) in part.iter_mut().enumerate() {
                *weight = scale.mul_add(f32::from(self.code(row, index * step + column)), bias);
            }
        }
    }

    /// Rows of the 64-row tiles `tiles` as a matrix of their own that shares the bytes.
    pub fn row_window(&self, tiles: Range<usize>) -> PackedMatrix {
        assert!(tiles.start < tiles.end && tiles.end <= self.shown_tiles.len(), "row tiles {tiles:?}");
        let mut window = self.clone();
        window.header.n_out = self.header.n_out.min(tiles.end * TILE) - tiles.start * TILE;
        window.shown_tiles = self.shown_tiles.start + tiles.start..self.shown_tiles.start + tiles.end;
        window
    }

    pub fn header(&self) -> PackedHeader {
        self.header
    }
    /// All bytes, for a cache file. A window shows the bytes of the matrix it was taken from.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }
    pub fn n_out(&self) -> usize {
        self.header.n_out
    }
    pub fn k_in(&self) -> usize {
        self.header.k_in
    }
    /// Number of 64-row tiles.
    pub fn row_tiles(&self) -> usize {
        self.shown_tiles.len()
    }
    pub(crate) fn symmetric(&self) -> bool {
        self.symmetric
    }

    /// The bytes of all shown tiles, row of tiles by row of tiles.
    pub(crate) fn tiles(&self) -> &[u8] {
        let row_bytes = self.header.column_tiles() * self.header.tile_bytes();
        &self.bytes.as_slice()[self.shown_tiles.start * row_bytes..self.shown_tiles.end * row_bytes]
    }
    /// `max |scale|` of every row, [row_tiles·64], zero beyond the matrix.
    pub(crate) fn row_maxima(&self) -> &[f32] {
        self.row_section(0)
    }
    /// `1 / max |scale|` of every row, zero where the maximum is zero.
    pub(crate) fn row_maxima_inverse(&self) -> &[f32] {
        self.row_section(1)
    }
    fn row_section(&self, section: usize) -> &[f32] {
        let tiles = self.stored_row_tiles * self.header.column_tiles() * self.header.tile_bytes();
        let start = tiles + (section * self.stored_row_tiles + self.shown_tiles.start) * TILE * size_of::<f32>();
        let bytes = &self.bytes.as_slice()[start..start + self.shown_tiles.len() * TILE * size_of::<f32>()];
        assert!(bytes.as_ptr().cast::<f32>().is_aligned());
        // SAFETY: aligned (checked), inside one slice, and every bit pattern is an f32.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<f32>()) }
    }

    fn tile(&self, row: usize, column: usize) -> &[u8] {
        let index = row / TILE * self.header.column_tiles() + column / TILE;
        &self.tiles()[index * self.header.tile_bytes()..][..self.header.tile_bytes()]
    }
    fn code(&self, row: usize, column: usize) -> u8 {
        let tile = self.tile(row, column);
        let stored = if self.header.code_bits() == 4 {
            let (place, shift) = nibble_place(row % TILE, column % TILE);
            tile[place] >> shift & 15
        } else {
            tile[byte_place(row % TILE, column % TILE)]
        };
        (i32::from(stored) - self.header.stored_excess()) as u8
    }
    fn scale_and_bias(&self, row: usize, column: usize) -> (f32, f32) {
        let header = &self.header;
        let group = column % TILE / header.group_size;
        let (bytes, tile) = (header.scale_type.bytes(), self.tile(row, column));
        let scales = header.code_bytes() + group * 2 * TILE * bytes;
        let read = |place: usize| header.scale_type.read(&tile[place..]);
        (read(scales + row % TILE * bytes), read(scales + (TILE + row % TILE) * bytes))
    }
}

fn pack_tile(matrix: &AffineMatrix, header: &PackedHeader, row_tile: usize, column_tile: usize, tile: &mut [u8]) {
    let rows = row_tile * TILE..matrix.n_out.min((row_tile + 1) * TILE);
    let columns = column_tile * TILE..matrix.k_in.min((column_tile + 1) * TILE);
    let excess = header.stored_excess() as u8;
    let (code_bytes, scale_bytes) = (header.code_bytes(), header.scale_type.bytes());
    for row in rows {
        let codes = &matrix.codes[row * matrix.k_in + columns.start..row * matrix.k_in + columns.end];
        if header.code_bits() == 4 {
            for (column, code) in codes.iter().enumerate() {
                let (place, shift) = nibble_place(row % TILE, column);
                tile[place] |= (code + excess) << shift;
            }
        } else {
            for (column, code) in codes.iter().enumerate() {
                tile[byte_place(row % TILE, column)] = code + excess;
            }
        }
        let per_row = matrix.groups_per_row();
        for (index, column) in columns.clone().step_by(header.group_size.min(TILE)).enumerate() {
            let group = row * per_row + column / header.group_size;
            let scales = code_bytes + index * 2 * TILE * scale_bytes;
            header.scale_type.write(matrix.scales[group], &mut tile[scales + row % TILE * scale_bytes..]);
            header.scale_type.write(matrix.biases[group], &mut tile[scales + (TILE + row % TILE) * scale_bytes..]);
        }
    }
}

/// Writes the row maxima, their inverses and the trailer; returns whether the matrix is symmetric.
fn write_row_maxima(matrix: &AffineMatrix, header: &PackedHeader, bytes: &mut [u8]) -> bool {
    let tiles = header.row_tiles() * header.column_tiles() * header.tile_bytes();
    let per_row = matrix.groups_per_row();
    for row in 0..matrix.n_out {
        let maximum =
            matrix.scales[row * per_row..(row + 1) * per_row].iter().fold(0f32, |max, scale| max.max(scale.abs()));
        let inverse = 1.0 / maximum;
        // A row whose scales are all zero, or so small that the inverse overflows, multiplies nothing.
        let (maximum, inverse) = if inverse.is_finite() { (maximum, inverse) } else { (0.0, 0.0) };
        for (section, value) in [maximum, inverse].into_iter().enumerate() {
            let place = tiles + (section * header.row_tiles() * TILE + row) * size_of::<f32>();
            bytes[place..place + 4].copy_from_slice(&value.to_ne_bytes());
        }
    }
    let symmetric = std::iter::zip(&matrix.scales, &matrix.biases)
        .all(|(scale, bias)| scale.mul_add(header.centre(), *bias) == 0.0);
    let trailer = bytes.len() - TRAILER_BYTES;
    bytes[trailer] = u8::from(symmetric);
    symmetric
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Random, random_matrix};
    use super::*;

    #[test]
    fn packing_loses_nothing() {
        let mut random = Random(1);
        for bits in 2..=8 {
            for group_size in GROUP_SIZES {
                for scale_type in ScaleType::ALL {
                    for (n_out, groups) in [(1, 1), (63, 3), (64, 2), (65, 5), (130, 1)] {
                        let shape = (n_out, groups * group_size);
                        let matrix = random_matrix(shape, bits, group_size, scale_type, &mut random);
                        let packed = PackedMatrix::pack(&matrix).expect("valid");
                        assert_eq!(packed.unpack(), matrix);
                        let bytes = AlignedBuffer::from_slice(packed.bytes());
                        let len = bytes.len();
                        let shared = SharedBytes::new(Arc::new(OwnedBytes(bytes)), 0..len).expect("in range");
                        let again = PackedMatrix::from_bytes(packed.header(), shared).expect("same bytes");
                        assert_eq!(again.unpack(), matrix);
                        let mut row = vec![0.0; shape.1];
                        again.dequantize_row(n_out - 1, &mut row);
                        for (column, weight) in row.iter().enumerate() {
                            let expected = matrix.weight(n_out - 1, column);
                            assert!((f64::from(*weight) - expected).abs() <= expected.abs() * 1e-7);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn random_matrices_are_like_packed_ones() {
        for bits in 2..=8 {
            for group_size in GROUP_SIZES {
                for (n_out, k_in) in [(1, group_size), (65, 5 * group_size), (130, 3 * group_size)] {
                    let header = PackedHeader { n_out, k_in, bits, group_size, scale_type: ScaleType::Float32 };
                    let random = PackedMatrix::random(header, 7).expect("valid");
                    let matrix = random.unpack();
                    assert!(matrix.codes.iter().all(|code| u32::from(*code) < 1 << bits));
                    let packed = PackedMatrix::pack(&matrix).expect("valid");
                    assert_eq!(packed.unpack(), matrix);
                    assert_eq!(packed.row_maxima()[..n_out], random.row_maxima()[..n_out]);
                    assert_eq!(packed.row_maxima_inverse()[..n_out], random.row_maxima_inverse()[..n_out]);
                    assert_eq!(random.bytes().len(), packed.bytes().len());
                }
            }
        }
    }

    #[test]
    fn windows_show_their_rows_and_wrong_bytes_are_refused() {
        let matrix = random_matrix((200, 96), 4, 32, ScaleType::Float16, &mut Random(2));
        let packed = PackedMatrix::pack(&matrix).expect("valid");
        let window = packed.row_window(1..4).row_window(1..3);
        assert_eq!(window.n_out(), 200 - 128);
        assert_eq!(window.unpack().codes, matrix.codes[128 * 96..]);
        assert_eq!(window.row_maxima()[..72], packed.row_maxima()[128..200]);
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(OwnedBytes(AlignedBuffer::zeroed(1 << 16)));
        assert!(SharedBytes::new(owner.clone(), 0..(1 << 16) + 1).is_none());
        let len = packed.bytes().len();
        let short = SharedBytes::new(owner.clone(), 0..len - 1).expect("in range");
        assert!(matches!(PackedMatrix::from_bytes(packed.header(), short), Err(PackedError::Length { .. })));
        let shifted = SharedBytes::new(owner, 4..len + 4).expect("in range");
        assert_eq!(
            PackedMatrix::from_bytes(packed.header(), shifted).expect_err("misaligned"),
            PackedError::Alignment { remainder: 4 }
        );
        let huge = PackedHeader { n_out: usize::MAX / 2, k_in: 1 << 20, ..packed.header() };
        assert!(matches!(huge.byte_len(), Err(PackedError::TooLarge { .. })));
    }
}

//! Seeded byte streams, whose checker tells loss, repetition and foreign bytes apart.

use std::fmt;

use anyhow::{Result, bail};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Bytes made at a time.
const BLOCK: usize = 4096;

/// How far around a fault its bytes are looked for.
const SEARCH: u64 = 8 << 20;

/// How many bytes must agree to say where they are from.
const WITNESS: usize = 16;

/// An endless stream of bytes that its seed decides, and a place in it.
#[derive(Clone)]
pub struct Stream {
    seed: u64,
    random: Pcg64Mcg,
    block: Box<[u8]>,
    used: usize,
    at: u64,
}

impl Stream {
    /// The stream of `seed`, at its beginning.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            random: Pcg64Mcg::seed_from_u64(seed),
            block: vec![0; BLOCK].into(),
            used: BLOCK,
            at: 0,
        }
    }

    /// How many bytes were taken.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Takes the next bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        let mut filled = 0;
        while filled < buffer.len() {
            let piece = self.piece(buffer.len() - filled);
            buffer[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        }
    }

    /// Takes the next `length` bytes.
    #[must_use]
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.fill(&mut bytes);
        bytes
    }

    /// Takes as many bytes as came and compares.
    ///
    /// # Errors
    ///
    /// Fails at the first byte that differs, and says where the bytes that came belong.
    pub fn check(&mut self, came: &[u8]) -> Result<()> {
        let begin = self.at;
        let mut checked = 0;
        while checked < came.len() {
            let piece = self.piece(came.len() - checked);
            let length = piece.len();
            if *piece != came[checked..checked + length] {
                let same = came[checked..].iter().zip(piece);
                let index = checked + same.take_while(|(a, b)| a == b).count();
                bail!(
                    "{}",
                    describe(self.seed, begin + index as u64, &came[index..])
                );
            }
            checked += length;
        }
        Ok(())
    }

    fn piece(&mut self, most: usize) -> &[u8] {
        if self.used == BLOCK {
            self.random.fill_bytes(&mut self.block);
            self.used = 0;
        }
        let begin = self.used;
        let length = most.min(BLOCK - begin);
        self.used += length;
        self.at += length as u64;
        &self.block[begin..begin + length]
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} at {})", self.seed, self.at)
    }
}

fn describe(seed: u64, at: u64, came: &[u8]) -> String {
    let Some(witness) = came.get(..WITNESS) else {
        return format!("byte {at} of stream {seed} is wrong: {came:02x?}");
    };
    let begin = at.saturating_sub(SEARCH);
    let mut stream = Stream::new(seed);
    let mut skipped = vec![0; BLOCK];
    while stream.at() + BLOCK as u64 <= begin {
        stream.fill(&mut skipped);
    }
    let begin = stream.at();
    let around = stream.take(2 * SEARCH as usize);
    let found = around
        .windows(WITNESS)
        .position(|window| window == witness)
        .map(|index| begin + index as u64);
    match found {
        Some(from) if from > at => format!(
            "{} bytes are lost or late: at byte {at} of stream {seed} came those of byte {from}",
            from - at
        ),
        Some(from) => format!(
            "bytes came again: at byte {at} of stream {seed} came those of byte {from}, {} bytes back",
            at - from
        ),
        None => format!("foreign bytes at byte {at} of stream {seed}: {witness:02x?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(came: &[u8]) -> String {
        Stream::new(7).check(came).unwrap_err().to_string()
    }

    #[test]
    fn a_stream_is_the_same_however_it_is_cut() {
        let whole = Stream::new(7).take(10_000);
        let mut cut = Stream::new(7);
        for piece in whole.chunks(613) {
            cut.check(piece).unwrap();
        }
        assert_eq!(cut.at(), 10_000);
    }

    #[test]
    fn lost_repeated_and_foreign_bytes_are_told_apart() {
        let whole = Stream::new(7).take(10_000);
        let lost = [&whole[..5000], &whole[5010..]].concat();
        assert!(
            fault(&lost).starts_with("10 bytes are lost"),
            "{}",
            fault(&lost)
        );
        let again = [&whole[..5000], &whole[4000..]].concat();
        assert!(
            fault(&again).ends_with("1000 bytes back"),
            "{}",
            fault(&again)
        );
        let foreign = [&whole[..5000], &Stream::new(8).take(100)].concat();
        assert!(fault(&foreign).starts_with("foreign bytes at byte 5000"));
    }
}

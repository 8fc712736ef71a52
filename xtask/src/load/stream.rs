//! Endless seeded bytes that cost next to nothing to make and to check.
//!
//! Checking must not be what is measured, so no byte is drawn on the way. The stream is cut into chunks of 64 KiB; each
//! is a copy of 64 KiB out of one random MiB, from a place that depends on its number, with the number written over its
//! first 8 bytes. Bytes lost, doubled or swapped shift what follows against the random bytes; a whole chunk lost,
//! doubled or swapped has the wrong number. So each shows, at the cost of a memcpy and a memcmp from the cache.

use std::io::{self, Write};

use anyhow::{Result, bail};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// As many bytes as go into one write.
pub(crate) const CHUNK: usize = 64 * 1024;

/// A seed for streams that are sent like all others and whose bytes are not compared, only counted.
pub(crate) const UNCHECKED: u64 = 0x7fff_ffff_ffff_ffff;

const BLOCK: usize = 1024 * 1024;

/// The stream from one seed, at a position.
pub(crate) struct Stream {
    block: Vec<u8>,
    chunk: Vec<u8>,
    position: u64,
}

impl Stream {
    pub(crate) fn new(seed: u64) -> Self {
        let mut block = vec![0; BLOCK];
        Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut block);
        let mut stream = Self {
            block,
            chunk: vec![0; CHUNK],
            position: 0,
        };
        stream.fill(0);
        stream
    }

    /// Makes chunk `number` the current one.
    fn fill(&mut self, number: u64) {
        // An odd factor with its bits well spread (2^64 divided by the golden ratio) moves neighbours far apart.
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let from = usize::try_from(spread).unwrap_or(0) % (BLOCK - CHUNK);
        self.chunk.copy_from_slice(&self.block[from..from + CHUNK]);
        self.chunk[..8].copy_from_slice(&number.to_le_bytes());
    }

    /// Of the current chunk, what is yet to come, `most` bytes of it.
    fn ahead(&self, most: u64) -> &[u8] {
        let begin = usize::try_from(self.position % CHUNK as u64).unwrap_or(0);
        let left = CHUNK - begin;
        let length = usize::try_from(most).map_or(left, |most| most.min(left));
        &self.chunk[begin..begin + length]
    }

    fn advance(&mut self, by: usize) {
        let before = self.position / CHUNK as u64;
        self.position += by as u64;
        let now = self.position / CHUNK as u64;
        if now != before {
            self.fill(now);
        }
    }

    /// Writes the next `length` bytes, telling `progress` how many went with each call.
    pub(crate) fn write(
        &mut self,
        to: &mut impl Write,
        length: u64,
        mut progress: impl FnMut(u64),
    ) -> io::Result<()> {
        let end = self.position + length;
        while self.position < end {
            let written = match to.write(self.ahead(end - self.position)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.advance(written);
            progress(written as u64);
        }
        Ok(())
    }

    /// Checks that `bytes` are the next ones.
    pub(crate) fn expect(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let ahead = self.ahead(bytes.len() as u64);
            let (now, later) = bytes.split_at(ahead.len());
            if now != ahead {
                let right = now.iter().zip(ahead).take_while(|(a, b)| a == b).count();
                bail!("wrong byte at {}", self.position + right as u64);
            }
            self.advance(now.len());
            bytes = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(seed: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let length = u64::try_from(length).unwrap();
        Stream::new(seed).write(&mut bytes, length, |_| ()).unwrap();
        bytes
    }

    fn fault(bytes: &[u8]) -> Option<String> {
        let checked = Stream::new(1).expect(bytes);
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn what_is_written_is_what_is_expected_in_pieces_of_any_size() {
        let bytes = bytes(1, 3 * CHUNK + 100);
        let mut stream = Stream::new(1);
        for piece in bytes.chunks(40_001) {
            stream.expect(piece).unwrap();
        }
        assert_eq!(fault(&bytes), None);
    }

    #[test]
    fn loss_duplication_reorder_and_change_are_found() {
        let whole = bytes(1, 4 * CHUNK);
        for (begin, length) in [(CHUNK, CHUNK), (CHUNK + 5, 1), (7, 2 * CHUNK), (100, 4096)] {
            let mut lost = whole.clone();
            lost.drain(begin..begin + length);
            assert!(fault(&lost).is_some(), "{length} lost at {begin}");
            let mut doubled = whole[..begin + length].to_vec();
            doubled.extend_from_slice(&whole[begin..]);
            assert!(fault(&doubled).is_some(), "{length} doubled at {begin}");
        }
        let mut swapped = whole.clone();
        swapped.copy_within(2 * CHUNK..3 * CHUNK, CHUNK);
        assert_eq!(fault(&swapped).unwrap(), format!("wrong byte at {CHUNK}"));
        let mut changed = whole;
        changed[CHUNK + 11] ^= 1;
        assert_eq!(
            fault(&changed).unwrap(),
            format!("wrong byte at {}", CHUNK + 11)
        );
    }

    #[test]
    fn seeds_give_different_streams() {
        assert_ne!(bytes(1, 100)[8..], bytes(2, 100)[8..]);
    }
}

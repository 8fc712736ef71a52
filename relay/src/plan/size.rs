//! How much is held of a direction at most while it is on its way through this process.

/// Bytes, from [`Size::LEAST`] to [`Size::MOST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(usize);

impl Size {
    /// A page, the least that a pipe can hold.
    pub const LEAST: usize = 4 << 10;

    /// More than any socket buffer gives at once.
    pub const MOST: usize = 64 << 20;

    /// This many bytes, unless that is outside the bounds.
    #[must_use]
    pub fn new(bytes: usize) -> Option<Self> {
        (Self::LEAST..=Self::MOST)
            .contains(&bytes)
            .then_some(Self(bytes))
    }

    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0
    }
}

/// What bytes are moved through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Asked for each pipe of splice, which holds one while bytes are in it; the kernel may grant less.
    pub pipe: Size,
    /// Of each buffer of copy, which holds one while bytes are in it.
    pub buffer: Size,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            pipe: Size(1 << 20),
            buffer: Size(256 << 10),
        }
    }
}

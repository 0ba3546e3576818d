//! The result of restoring one page.

/// The result of restoring one page.
///
/// ```
/// use trueno_gpu::kernels::packed::PageStatus;
/// assert_eq!(PageStatus::from_code(0), Some(PageStatus::Restored));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PageStatus {
    /// The page was restored.
    Restored = 0,
    /// The index entry is incomplete, points outside the input, or has a kind or length that the kernel does not
    /// accept.
    BadEntry = 1,
    /// The compressed bytes do not decode to exactly one page.
    BadBlock = 2,
    /// The compressed bytes have a form that the kernel does not decode, although another decoder may.
    Unsupported = 3,
}

impl PageStatus {
    /// Returns the status that a kernel stored as `code`.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::PageStatus;
    /// let stored = [0, 2, 0]; // what the kernel left in `status`
    /// let bad = stored.iter().position(|&code| PageStatus::from_code(code) != Some(PageStatus::Restored));
    /// assert_eq!(bad, Some(1));
    /// assert_eq!(PageStatus::from_code(4), None);
    /// ```
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Restored),
            1 => Some(Self::BadEntry),
            2 => Some(Self::BadBlock),
            3 => Some(Self::Unsupported),
            _ => None,
        }
    }
}

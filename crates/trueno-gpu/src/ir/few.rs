//! Up to four items, held inline: operands of an instruction, registers of a vector access.

use std::ops::{Deref, DerefMut};

/// One to four items, held inline and read as a slice.
///
/// ```
/// use trueno_gpu::ir::Few;
/// let few = Few::from([7, 8]);
/// assert_eq!(few.len(), 2);
/// assert_eq!(few[1], 8);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Few<T> {
    items: [T; 4],
    len: u8,
}

impl<T: Copy> Few<T> {
    /// Copies a slice of one to four items.
    ///
    /// # Panics
    /// If the slice is empty or longer than four.
    ///
    /// ```
    /// use trueno_gpu::ir::Few;
    /// assert_eq!(&*Few::from_slice(&[1, 2, 3]), &[1, 2, 3]);
    /// ```
    #[must_use]
    pub fn from_slice(slice: &[T]) -> Self {
        assert!((1..=4).contains(&slice.len()), "an instruction has one to four operands of each kind");
        let mut items = [slice[0]; 4];
        items[..slice.len()].copy_from_slice(slice);
        let len = u8::try_from(slice.len()).expect("at most four");
        Self { items, len }
    }
}

impl<T: Copy, const N: usize> From<[T; N]> for Few<T> {
    fn from(items: [T; N]) -> Self {
        Self::from_slice(&items)
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.len)]
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Few<T> {}

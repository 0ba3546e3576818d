//! Memory pages of 4 KiB, and the forms in which a compressed page is held.
//!
//! The CPU codecs, the GPU kernels and the file formats of trueno-zram share these definitions. The crate has no
//! dependencies.
//!
//! ```
//! use trueno_page::{PAGE_SIZE, Page, PageKind, fill_page, same_filled};
//!
//! let mut page: Page = [0; PAGE_SIZE];
//! fill_page(&mut page, *b"pattern!");
//! assert_eq!(same_filled(&page), Some(*b"pattern!"));
//! assert_eq!(PageKind::SameFilled.to_string(), "same-filled");
//! ```
#![forbid(unsafe_code)]

mod kind;
mod same_fill;
mod zero;

pub use kind::{PageKind, UnknownPageKind};
pub use same_fill::{fill_page, same_filled};
pub use zero::is_zero;

/// Number of bytes in a memory page, the unit of compression.
///
/// ```
/// assert_eq!(trueno_page::PAGE_SIZE, 4096);
/// ```
pub const PAGE_SIZE: usize = 4096;

/// Number of bytes in the word that stands for a same-filled page.
///
/// ```
/// use trueno_page::{FILL_WORD_BYTES, PAGE_SIZE};
/// assert_eq!(PAGE_SIZE % FILL_WORD_BYTES, 0);
/// ```
pub const FILL_WORD_BYTES: usize = 8;

/// One uncompressed page.
///
/// ```
/// use trueno_page::{PAGE_SIZE, Page};
/// let page: Page = [0; PAGE_SIZE];
/// assert_eq!(page.len(), PAGE_SIZE);
/// ```
pub type Page = [u8; PAGE_SIZE];

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

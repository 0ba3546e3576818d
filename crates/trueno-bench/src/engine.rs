//! The interface of everything that is measured.

use std::time::Duration;

use trueno_zram_core::{PAGE_SIZE, Page};

use crate::error::{Error, Result};

/// Compresses a batch of pages, keeps the result, and restores it.
///
/// ```
/// use std::time::{Duration, Instant};
/// use trueno_bench::{Engine, Result, load, verify};
/// use trueno_zram_core::Page;
///
/// /// Keeps pages as they are.
/// struct Copy(Vec<Page>);
///
/// impl Engine for Copy {
///     fn name(&self) -> &str {
///         "copy"
///     }
///     fn threads(&self) -> usize {
///         1
///     }
///     fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
///         let start = Instant::now();
///         self.0 = pages.to_vec();
///         Ok(start.elapsed())
///     }
///     fn held_bytes(&self) -> Result<u64> {
///         Ok(self.0.as_flattened().len() as u64)
///     }
///     fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
///         let start = Instant::now();
///         pages.copy_from_slice(&self.0);
///         Ok(start.elapsed())
///     }
/// }
///
/// verify(&mut Copy(Vec::new()), &load(&[], 10)?[0].pages)?;
/// # Ok::<(), trueno_bench::Error>(())
/// ```
///
/// An engine that works in memory of its own copies pages there in [`load`](Self::load) and back in
/// [`fetch`](Self::fetch), which are not timed.
pub trait Engine {
    /// The name in all rows.
    fn name(&self) -> &str;

    /// CPU threads at work.
    fn threads(&self) -> usize;

    /// Copies the pages to the engine's own memory, if it has any.
    ///
    /// # Errors
    /// The engine's own.
    fn load(&mut self, _pages: &[Page]) -> Result<()> {
        Ok(())
    }

    /// Compresses the pages and keeps the result. Returns the time this took.
    ///
    /// # Errors
    /// The engine's own.
    fn compress(&mut self, pages: &[Page]) -> Result<Duration>;

    /// Returns the compressed size of the last batch in bytes. A page that does not shrink counts whole.
    ///
    /// # Errors
    /// The engine's own.
    fn held_bytes(&self) -> Result<u64>;

    /// Restores the last batch. Returns the time this took.
    ///
    /// # Errors
    /// The engine's own.
    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration>;

    /// Copies the restored pages from the engine's own memory, if it has any.
    ///
    /// # Errors
    /// The engine's own.
    fn fetch(&mut self, _pages: &mut [Page]) -> Result<()> {
        Ok(())
    }

    /// Returns the stages of the last call, if the engine knows them. Stages that overlap add up to more than the call.
    fn stages(&self) -> Vec<(&'static str, Duration)> {
        Vec::new()
    }

    /// Returns facts to print beside the figures, such as the shape of a launch.
    fn note(&self) -> String {
        String::new()
    }
}

/// Compresses the pages, restores them over other bytes, and compares every one.
///
/// # Errors
/// [`Error::NotRestored`] with the first page that differs, or the engine's own.
pub fn verify(engine: &mut dyn Engine, pages: &[Page]) -> Result<()> {
    engine.load(pages)?;
    engine.compress(pages)?;
    let mut restored = vec![[0xa5; PAGE_SIZE]; pages.len()];
    engine.decompress(&mut restored)?;
    engine.fetch(&mut restored)?;
    compare(engine.name(), &restored, pages)
}

/// Compares what an engine restored with the pages that it was given.
pub(crate) fn compare(engine: &str, restored: &[Page], pages: &[Page]) -> Result<()> {
    match restored.iter().zip(pages).position(|(restored, page)| restored != page) {
        Some(page) => Err(Error::NotRestored { engine: engine.to_owned(), page }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes one byte of one page.
    struct Forgetful(Vec<Page>);

    impl Engine for Forgetful {
        fn name(&self) -> &str {
            "forgetful"
        }

        fn threads(&self) -> usize {
            1
        }

        fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
            self.0 = pages.to_vec();
            Ok(Duration::ZERO)
        }

        fn held_bytes(&self) -> Result<u64> {
            Ok(1)
        }

        fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
            pages.copy_from_slice(&self.0);
            pages[2][4095] ^= 1;
            Ok(Duration::ZERO)
        }
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let error = verify(&mut Forgetful(Vec::new()), &[[1; PAGE_SIZE]; 4]).unwrap_err();
        assert_eq!(error.to_string(), "forgetful does not restore page 2");
    }
}

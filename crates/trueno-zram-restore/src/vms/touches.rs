//! The order in which a VM touched its memory, kept in a file beside the archive.
//!
//! The file is text: a line that names the format, then one line per window of 64 KiB in the order of first touches, with the
//! number of its first 4 KiB page. It decides only what is restored first, so a wrong one costs time and nothing else.

use std::io::{self, BufRead, Read as _, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::unit_states::AtomicBitSet;

const FORMAT: &str = "trueno-zram touches 1";
/// 4 KiB pages per window.
pub(crate) const WINDOW_PAGES: u64 = 16;
/// Longer lines are not numbers of pages.
const LINE_LIMIT: u64 = 64;

/// Windows of 64 KiB in the order in which a VM first touched them.
///
/// ```
/// use trueno_zram_restore::Touches;
/// let touches = Touches::read("trueno-zram touches 1\n32\n0\n".as_bytes())?;
/// assert_eq!(touches.windows(), 2);
/// let mut text = Vec::new();
/// touches.write(&mut text)?;
/// assert_eq!(text, b"trueno-zram touches 1\n32\n0\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touches {
    /// Numbers of windows.
    pub(crate) order: Vec<u64>,
}

impl Touches {
    /// Reads a file of touches. The example of [`Touches`] reads one.
    ///
    /// # Errors
    /// [`Error::Touches`] with the line that is malformed; [`Error::System`] if reading fails.
    pub fn read(mut file: impl BufRead) -> Result<Self, Error> {
        let (mut order, mut line) = (Vec::new(), String::new());
        for number in 1.. {
            line.clear();
            let read = (&mut file).take(LINE_LIMIT).read_line(&mut line);
            let malformed = |problem| Error::Touches { line: number, problem };
            match read {
                Ok(0) if number > 1 => break,
                Ok(_) if !line.ends_with('\n') => return Err(malformed("it is cut short or too long")),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(malformed("it is not text")),
                Err(source) => return Err(Error::System { call: "reading the touches", source }),
            }
            let text = line.trim_end_matches('\n');
            if number == 1 {
                if text != FORMAT {
                    return Err(malformed("the file is not a list of touches"));
                }
                continue;
            }
            let page: u64 = text.parse().map_err(|_| malformed("it is not the number of a page"))?;
            order.push(page / WINDOW_PAGES);
        }
        Ok(Self { order })
    }

    /// Writes a file of touches, as in the example of [`Touches`].
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut out = io::BufWriter::new(out);
        writeln!(out, "{FORMAT}")?;
        for window in &self.order {
            writeln!(out, "{}", window * WINDOW_PAGES)?;
        }
        out.flush()
    }

    /// Returns the number of windows.
    #[must_use]
    pub fn windows(&self) -> usize {
        self.order.len()
    }
}

/// Records windows in the order in which VMs first touch them.
#[derive(Debug)]
pub(crate) struct TouchRecorder {
    windows: usize,
    touched: AtomicBitSet,
    order: Mutex<Vec<u64>>,
}

impl TouchRecorder {
    /// Records windows whose numbers are below `windows`, and ignores others.
    pub(crate) fn new(windows: usize) -> Self {
        Self { windows, touched: AtomicBitSet::new(windows), order: Mutex::default() }
    }

    /// Records a touch of a window.
    pub(crate) fn record(&self, window: u64) {
        let Some(number) = usize::try_from(window).ok().filter(|number| *number < self.windows) else { return };
        if self.touched.insert(number) {
            self.lock_order().push(window);
        }
    }

    /// Returns the touches so far.
    pub(crate) fn touches(&self) -> Touches {
        Touches { order: self.lock_order().clone() }
    }

    fn lock_order(&self) -> MutexGuard<'_, Vec<u64>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_keep_the_position_of_their_first_touch() {
        let recorder = TouchRecorder::new(70);
        [69, 3, 69, 64, 3, 70, 1 << 40].into_iter().for_each(|window| recorder.record(window));
        assert_eq!(recorder.touches().order, [69, 3, 64]);
    }

    #[test]
    fn malformed_files_are_refused_by_line() {
        let line = |text: &[u8]| match Touches::read(text) {
            Err(Error::Touches { line, .. }) => line,
            other => panic!("{other:?}"),
        };
        assert_eq!(line(b""), 1);
        assert_eq!(line(b"16\n"), 1);
        assert_eq!(line(b"trueno-zram touches 1"), 1);
        assert_eq!(line(b"trueno-zram touches 1\n16\n-1\n"), 3);
        assert_eq!(line(b"trueno-zram touches 1\n16"), 2);
        assert_eq!(line(b"trueno-zram touches 1\n\xff\xfe\n"), 2);
        assert_eq!(line(&[b"trueno-zram touches 1\n".as_slice(), &[b'1'; 1000]].concat()), 2);
        assert_eq!(line(b"trueno-zram touches 1\n99999999999999999999\n"), 2);
    }

    #[test]
    fn what_is_written_reads_back() {
        let touches = Touches { order: vec![5, 0, 1 << 40] };
        let mut text = Vec::new();
        touches.write(&mut text).unwrap();
        assert_eq!(Touches::read(&text[..]).unwrap(), touches);
    }
}

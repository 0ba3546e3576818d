//! The ranges of `/proc/PID/smaps`: the lines of `maps`, with counts below each.

/// One range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapsLine {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Four letters: `rw-p`.
    pub(crate) permissions: String,
    /// The offset in its file, in bytes.
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    /// A file, `[heap]` and the like, or nothing.
    pub(crate) name: String,
    /// Memory and swap that it takes. Programs reserve terabytes that they never touch: that is known here at once.
    pub(crate) held_kib: u64,
}

/// The counts that add up to all that a range holds: what `Rss` leaves out are huge pages of their own kind.
const HELD: [&str; 4] = ["Rss", "Swap", "Private_Hugetlb", "Shared_Hugetlb"];

impl MapsLine {
    /// Parses the whole text; `None` if it is not of that form.
    pub(super) fn parse_all(text: &str) -> Option<Vec<Self>> {
        let mut ranges: Vec<Self> = Vec::new();
        for line in text.lines() {
            if let Some(range) = Self::parse(line) {
                ranges.push(range);
                continue;
            }
            let (range, (key, value)) = (ranges.last_mut()?, line.split_once(':')?);
            if HELD.contains(&key) {
                range.held_kib += value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?;
            }
        }
        Some(ranges)
    }

    /// `7f0f5a82c000-7f0f5a82e000 rw-p 001d3000 fe:00 326279      /usr/lib/libc.so.6`
    fn parse(line: &str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).ok());
        let mut rest = rest.splitn(4, ' ');
        let (permissions, offset, _device) = (rest.next()?, rest.next()?, rest.next()?);
        let rest = rest.next()?;
        let (inode, name) = rest.split_once(' ').unwrap_or((rest, ""));
        let line = Self {
            start: start?,
            end: end?,
            permissions: Some(permissions).filter(|letters| letters.len() == 4)?.to_owned(),
            offset: u64::from_str_radix(offset, 16).ok()?,
            inode: inode.parse().ok()?,
            name: name.trim_start().to_owned(),
            held_kib: 0,
        };
        (line.start < line.end).then_some(line)
    }

    /// Returns `true` if writes are shared with other processes.
    pub(crate) fn is_shared(&self) -> bool {
        self.permissions.ends_with('s')
    }

    /// Returns `true` for private memory without a file.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.inode == 0 && !self.is_shared()
    }

    /// Returns `true` for ranges of the kernel itself: `[vvar]`, `[vvar_vclock]`, `[vdso]`, `[vsyscall]`, `[uprobes]`.
    pub(crate) fn belongs_to_kernel(&self) -> bool {
        ["[vvar", "[vdso]", "[vsyscall]", "[uprobes]"].iter().any(|name| self.name.starts_with(name))
    }
}

#[cfg(test)]
mod tests {
    use super::MapsLine;

    fn line(text: &str) -> MapsLine {
        MapsLine::parse(text).unwrap()
    }

    #[test]
    fn every_form_of_line_is_read() {
        let libc = line("7f0f5a82c000-7f0f5a82e000 rw-p 001d3000 fe:00 326279                     /usr/lib/libc.so.6");
        assert_eq!((libc.start, libc.end, libc.inode), (0x7f0f_5a82_c000, 0x7f0f_5a82_e000, 326_279));
        assert_eq!((libc.permissions.as_str(), libc.name.as_str()), ("rw-p", "/usr/lib/libc.so.6"));
        let anonymous = line("7f0f5a845000-7f0f5a847000 rw-p 00000000 00:00 0 ");
        assert!(anonymous.is_anonymous() && anonymous.name.is_empty());
        assert_eq!(line("1000-2000 ---p 00000000 00:00 0").name, "");
        let deleted = line("1000-2000 rw-s 00000000 00:01 5  /memfd:a name with  spaces (deleted)");
        assert_eq!(deleted.name, "/memfd:a name with  spaces (deleted)");
        assert!(deleted.is_shared() && !deleted.is_anonymous());
    }

    #[test]
    fn the_kernels_own_ranges_are_known() {
        for name in ["[vvar]", "[vvar_vclock]", "[vvar_lsm]", "[vdso]", "[vsyscall]"] {
            assert!(line(&format!("1000-2000 r--p 00000000 00:00 0   {name}")).belongs_to_kernel(), "{name}");
        }
        assert!(!line("1000-2000 rw-p 00000000 00:00 0   [heap]").belongs_to_kernel());
        assert!(!line("1000-2000 rw-p 00000000 00:00 0   [anon:v8]").belongs_to_kernel());
    }

    #[test]
    fn what_a_range_holds_is_added_up() {
        let text = "1000-2000 rw-p 00000000 00:00 0   [heap]\nSize:   4 kB\nRss:    4 kB\nPss_Dirty:  9 kB\nSwap:   8 kB\n\
                    VmFlags: rd wr mr\n3000-4000 ---p 00000000 00:00 0\nRss:    0 kB\nPrivate_Hugetlb:   2048 kB\n";
        let held: Vec<_> = MapsLine::parse_all(text).unwrap().iter().map(|range| range.held_kib).collect();
        assert_eq!(held, [12, 2048]);
        assert_eq!(MapsLine::parse_all(""), Some(vec![]));
        for text in ["Rss: 4 kB", "1000-2000 rw-p 00000000 00:00 0\nRss: many kB", "1000-2000 rw-p 0 00:00 0\nwhat"] {
            assert_eq!(MapsLine::parse_all(text), None, "{text:?}");
        }
    }

    #[test]
    fn other_text_is_no_line() {
        for text in ["", "1000", "1000-2000", "x-y rw-p 0 0 0", "2000-1000 rw-p 0 00:00 0", "1000-2000 rw 0 00:00 0 "] {
            assert_eq!(MapsLine::parse(text), None, "{text:?}");
        }
    }
}

//! The command line.

use std::path::PathBuf;

use crate::kernels::FileKernel;

pub(crate) const HELP: &str = "\
kernel-bench [OPTIONS] CORPUS.bin...

  --nvcomp FILE         libnvcomp.so to measure against (libnvcomp.so.6 of the wheel nvidia-libnvcomp-cu13)
  --device N            CUDA device (0)
  --pages N             pages on the device; the corpus is repeated (65536)
  --reps N              timed runs, of which the median counts (11)
  --json FILE           writes the results there
  --verify              decodes every page with C lz4, not only one copy of the corpus
  --compress SPEC       adds a kernel from a PTX file
  --decompress SPEC     likewise; SPEC is NAME,FILE.ptx,ENTRY,WARPS_A_BLOCK,DYNAMIC_SHARED_BYTES[,SCRATCH_BYTES_A_WARP]
  --no-copy             leaves out the copy kernels, which show what memory bandwidth allows
  --no-builtin          runs the kernels of --compress and --decompress alone
  --once                launches each kernel once and times nothing, for profilers";

/// What is to be measured.
pub(crate) struct Options {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) nvcomp: Option<PathBuf>,
    pub(crate) device: u32,
    pub(crate) pages: u32,
    pub(crate) reps: usize,
    pub(crate) json: Option<PathBuf>,
    pub(crate) verify: Verify,
    /// Which of the kernels that come with the binary are run.
    pub(crate) builtin: Builtin,
    pub(crate) added: Vec<FileKernel>,
    pub(crate) runs: Runs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Builtin {
    All,
    WithoutCopies,
    None,
}

/// How often each kernel is launched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// As often as it takes to time it.
    Timed,
    /// Once.
    Once,
}

/// How many pages are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verify {
    /// The first copy of the corpus: each of its pages once.
    OneCopy,
    /// All.
    EveryPage,
}

impl Options {
    /// `None` where help was asked for.
    pub(crate) fn from_args(args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            files: Vec::new(),
            nvcomp: None,
            device: 0,
            pages: 65_536,
            reps: 11,
            json: None,
            verify: Verify::OneCopy,
            builtin: Builtin::All,
            added: Vec::new(),
            runs: Runs::Timed,
        };
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--help" | "-h" => return Ok(None),
                "--nvcomp" => options.nvcomp = Some(value()?.into()),
                "--device" => options.device = number(&arg, &value()?)?,
                "--pages" => options.pages = number(&arg, &value()?)?,
                "--reps" => options.reps = number(&arg, &value()?)?,
                "--json" => options.json = Some(value()?.into()),
                "--verify" => options.verify = Verify::EveryPage,
                "--compress" => options.added.push(FileKernel::compress(&value()?)?),
                "--decompress" => options.added.push(FileKernel::decompress(&value()?)?),
                "--no-copy" if options.builtin == Builtin::All => options.builtin = Builtin::WithoutCopies,
                "--no-copy" => {}
                "--no-builtin" => options.builtin = Builtin::None,
                "--once" => options.runs = Runs::Once,
                flag if flag.starts_with('-') => return Err(format!("unknown option {flag}; see --help")),
                file => options.files.push(file.into()),
            }
        }
        if options.files.is_empty() {
            return Err("no CORPUS.bin was named; see --help".into());
        }
        if options.pages == 0 || options.reps == 0 {
            return Err("--pages and --reps must be above 0".into());
        }
        Ok(Some(options))
    }
}

pub(crate) fn number<T: std::str::FromStr>(what: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{what}: {text:?} is no number, or too large"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>, String> {
        Options::from_args(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read() {
        let options =
            parse("--pages 16 a.bin --verify --reps 3 --device 1 --nvcomp n.so b.bin --no-copy").unwrap().unwrap();
        assert_eq!((options.pages, options.reps, options.device, options.files.len()), (16, 3, 1, 2));
        assert!(options.verify == Verify::EveryPage && options.builtin == Builtin::WithoutCopies);
        assert!(parse("--help").unwrap().is_none());
        let options = parse("--no-builtin --no-copy --once --compress k,k.ptx,k,4,0 a.bin").unwrap().unwrap();
        assert!(options.builtin == Builtin::None && options.runs == Runs::Once && options.added.len() == 1);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["", "--pages", "--pages x a", "--pages 0 a", "--reps 0 a", "--what a", "--compress a,b a.bin"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}

//! The command line.

use std::path::PathBuf;

use crate::kernels::{self, FileKernel, KernelVariant};

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
  --no-builtin          runs the kernels of --compress and --decompress alone";

/// What is to be measured.
pub(crate) struct Options {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) nvcomp: Option<PathBuf>,
    pub(crate) device: u32,
    pub(crate) pages: u32,
    pub(crate) reps: usize,
    pub(crate) json: Option<PathBuf>,
    pub(crate) verify: Verify,
    pub(crate) variants: Vec<Box<dyn KernelVariant>>,
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
            variants: kernels::builtin(),
        };
        let mut args = args.peekable();
        let mut added: Vec<Box<dyn KernelVariant>> = Vec::new();
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
                "--compress" => added.push(Box::new(FileKernel::compress(&value()?)?)),
                "--decompress" => added.push(Box::new(FileKernel::decompress(&value()?)?)),
                "--no-copy" => options.variants.retain(|variant| variant.name() != kernels::COPY),
                "--no-builtin" => options.variants.clear(),
                flag if flag.starts_with('-') => return Err(format!("unknown option {flag}; see --help")),
                file => options.files.push(file.into()),
            }
        }
        options.variants.append(&mut added);
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
        assert!(options.verify == Verify::EveryPage && options.variants.iter().all(|v| v.name() != kernels::COPY));
        assert!(parse("--help").unwrap().is_none());
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["", "--pages", "--pages x a", "--pages 0 a", "--reps 0 a", "--what a", "--compress a,b a.bin"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}

//! The command line.

use std::path::PathBuf;

pub(crate) const HELP: &str = "\
Times batches of pages from host memory through a GPU and back, beside the bus, memcpy and C lz4.

pipeline-bench [OPTIONS] [FILES]

FILES are memory images; their pages are mixed and repeated. Without any, the built-in corpus.

  --pages N         pages of a batch [1048576: 4 GiB]
  --reps N          repetitions of each measurement, of which the median counts [5]
  --batch-pages N   pages of a slot, `batch_size` [4096]
  --slots N         slots, `ring_buffer_slots` [4]
  --device N        the GPU [0]
  --sections LIST   comma-separated, of limits,cpu,compress,decompress,both,serial,share,slots,small,corpora [all]
  --json FILE       all rows for machines
  --help";

/// The parts of a run.
pub(crate) const SECTIONS: [&str; 10] =
    ["limits", "cpu", "compress", "decompress", "both", "serial", "share", "slots", "small", "corpora"];

/// What to measure.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) pages: usize,
    pub(crate) reps: usize,
    pub(crate) batch_pages: usize,
    pub(crate) slots: usize,
    pub(crate) device: u32,
    pub(crate) sections: Vec<String>,
    pub(crate) json: Option<PathBuf>,
}

impl Options {
    /// `None` if help was asked for.
    pub(crate) fn from_args(args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            files: Vec::new(),
            pages: 1 << 20,
            reps: 5,
            batch_pages: 4096,
            slots: 4,
            device: 0,
            sections: SECTIONS.map(str::to_owned).to_vec(),
            json: None,
        };
        let mut args = args;
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--help" | "-h" => return Ok(None),
                "--pages" => options.pages = number(&arg, &value()?)?,
                "--reps" => options.reps = number(&arg, &value()?)?,
                "--batch-pages" => options.batch_pages = number(&arg, &value()?)?,
                "--slots" => options.slots = number(&arg, &value()?)?,
                "--device" => options.device = number::<u32>(&arg, &value()?)?,
                "--sections" => options.sections = sections(&value()?)?,
                "--json" => options.json = Some(value()?.into()),
                _ if arg.starts_with('-') => return Err(format!("{arg} is no option; see --help")),
                _ => options.files.push(arg.into()),
            }
        }
        Ok(Some(options))
    }

    pub(crate) fn has(&self, section: &str) -> bool {
        self.sections.iter().any(|named| named == section)
    }
}

fn number<T: std::str::FromStr + PartialOrd + Default>(option: &str, text: &str) -> Result<T, String> {
    let wrong = || format!("{option} needs a number, not {text:?}");
    let value: T = text.parse().map_err(|_| wrong())?;
    // A device may be number 0; no number of anything else may.
    if value == T::default() && option != "--device" { Err(wrong()) } else { Ok(value) }
}

fn sections(list: &str) -> Result<Vec<String>, String> {
    let named: Vec<String> = list.split(',').map(str::to_owned).collect();
    match named.iter().find(|name| !SECTIONS.contains(&name.as_str())) {
        Some(unknown) => Err(format!("{unknown:?} is none of {}", SECTIONS.join(","))),
        None => Ok(named),
    }
}

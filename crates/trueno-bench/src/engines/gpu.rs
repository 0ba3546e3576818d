//! Our own batches on the GPU, from and to each kind of host memory.
#![cfg_attr(not(feature = "device"), allow(dead_code, reason = "only `pipeline` measures every kind of memory"))]

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::{Duration, Instant};

use trueno_zram_core::gpu::{
    BatchResult, BatchTimes, GpuBatchCompressor, GpuBatchConfig, GpuDeviceInfo, GpuDeviceStatus, GpuOptions,
    PinnedBatch, PinnedPages,
};
use trueno_zram_core::{Algorithm, CompressedBatch, PAGE_SIZE, Page};

use super::cpu::{Pool, copy_pages};
use crate::engine::Engine;
use crate::error::{Error, Result};

/// The GPU, if it takes part.
#[derive(Clone, Debug)]
pub enum Gpu {
    /// It takes part.
    Present {
        /// The CUDA device.
        device_index: u32,
    },
    /// It does not, and why.
    Absent(String),
}

impl Gpu {
    /// Looks for the first GPU that can be used.
    #[must_use]
    pub fn find() -> Self {
        let device = GpuDeviceInfo::all().into_iter().find(GpuDeviceInfo::is_supported);
        device.map_or_else(
            || {
                let error = GpuDeviceStatus::query(0).err();
                Self::Absent(error.map_or_else(|| "no device is supported".into(), |error| error.to_string()))
            },
            |device| Self::Present { device_index: device.index },
        )
    }
}

/// The host memory of pages and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostMemory {
    /// Ordinary memory, and an arena.
    Pageable,
    /// Page-locked pages, and an arena.
    PinnedPages,
    /// Page-locked pages and a page-locked batch.
    Pinned,
    /// Ordinary memory, and values that are dropped before the next batch.
    Values,
    /// Ordinary memory, and values that are kept, so that each batch takes fresh memory.
    KeptValues,
}

/// `GpuBatchCompressor`, with pages and results in one kind of memory.
pub(crate) struct TruenoGpu {
    name: String,
    compressor: GpuBatchCompressor,
    pool: Pool,
    memory: HostMemory,
    batch: CompressedBatch,
    pinned: SharedPinned,
    values: Vec<BatchResult>,
    held_bytes: u64,
    last: BatchTimes,
}

/// Page-locked memory that engines which take turns share: there are gigabytes of it.
pub(crate) type SharedPinned = Rc<RefCell<Option<PinnedMemory>>>;

/// Page-locked pages, room to restore them, and a batch.
pub(crate) struct PinnedMemory {
    pages: PinnedPages,
    restored: PinnedPages,
    packed: PinnedBatch,
}

impl TruenoGpu {
    /// From and to ordinary memory, in slots that fill the bus.
    pub(crate) fn new(name: &str, algorithm: Algorithm, device_index: u32, pool: &Pool) -> Result<Self> {
        const SLOT_PAGES: usize = 4096;
        let config = GpuBatchConfig { device_index, algorithm, batch_size: SLOT_PAGES, ..GpuBatchConfig::default() };
        Self::with(name, config, None, pool, HostMemory::Pageable, &SharedPinned::default())
    }

    pub(crate) fn with(
        name: &str,
        config: GpuBatchConfig,
        multiprocessors: Option<NonZeroU32>,
        pool: &Pool,
        memory: HostMemory,
        pinned: &SharedPinned,
    ) -> Result<Self> {
        let options = GpuOptions::new().with_multiprocessors(multiprocessors).with_pool(Pool::clone(pool));
        let compressor = GpuBatchCompressor::with_options(config, &options);
        Ok(Self {
            name: name.to_owned(),
            compressor: compressor.map_err(Error::engine(name))?,
            pool: Pool::clone(pool),
            memory,
            batch: CompressedBatch::new(),
            pinned: Rc::clone(pinned),
            values: Vec::new(),
            held_bytes: 0,
            last: BatchTimes::default(),
        })
    }

    /// Work that the CPU did after a failure of the GPU must not count as the GPU's.
    fn done(&mut self, times: trueno_zram_core::Result<BatchTimes>) -> Result<Duration> {
        let times = times.map_err(Error::engine(&self.name))?;
        let fallback = &self.compressor.stats().fallback;
        if let Some(why) = &fallback.last_reason {
            return Err(Error::engine(&self.name)(format!("the GPU failed: {why}")));
        }
        if fallback.unsupported_pages > 0 {
            return Err(Error::engine(&self.name)(format!("the CPU restored {} pages", fallback.unsupported_pages)));
        }
        self.last = times;
        Ok(Duration::from_nanos(times.total_time_ns))
    }
}

fn times_of(result: &BatchResult) -> BatchTimes {
    BatchTimes {
        h2d_time_ns: result.h2d_time_ns,
        kernel_time_ns: result.kernel_time_ns,
        d2h_time_ns: result.d2h_time_ns,
        total_time_ns: result.total_time_ns,
    }
}

impl Engine for TruenoGpu {
    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn load(&mut self, pages: &[Page]) -> Result<()> {
        if !matches!(self.memory, HostMemory::Pinned | HostMemory::PinnedPages) {
            return Ok(());
        }
        let set_up = || {
            let mut shared = self.pinned.borrow_mut();
            if shared.as_ref().is_none_or(|memory| memory.pages.len() != pages.len()) {
                *shared = Some(PinnedMemory {
                    pages: self.compressor.pinned_pages(pages.len())?,
                    restored: self.compressor.pinned_pages(pages.len())?,
                    packed: self.compressor.pinned_batch(pages.len())?,
                });
            }
            let memory = shared.as_mut().expect("it was just set up");
            memory.restored.pages_mut()?.fill([0xee; PAGE_SIZE]);
            copy_pages(&self.pool, pages, memory.pages.pages_mut()?);
            Ok(())
        };
        set_up().map_err(|error: trueno_zram_core::Error| Error::engine(&self.name)(error))
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        let Self { compressor, batch, values, .. } = self;
        let times = match (self.memory, self.pinned.borrow_mut().as_mut()) {
            (HostMemory::Pinned, Some(memory)) => {
                compressor.compress_all_pinned(&mut memory.pages, &mut memory.packed, &()).inspect(|_| {
                    self.held_bytes = memory.packed.index().iter().map(|entry| u64::from(entry.len_bytes)).sum();
                })
            }
            (HostMemory::PinnedPages, Some(memory)) => compressor.compress_pinned_into(&mut memory.pages, batch, &()),
            (HostMemory::Values | HostMemory::KeptValues, _) => {
                if self.memory == HostMemory::Values {
                    values.clear();
                }
                compressor.compress_batch(pages).map(|result| {
                    let times = times_of(&result);
                    values.push(result);
                    times
                })
            }
            _ => compressor.compress_into(pages, batch, &()),
        };
        self.done(times)
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(match self.memory {
            HostMemory::Pinned => self.held_bytes,
            HostMemory::Values | HostMemory::KeptValues => {
                let pages = self.values.last().map_or(&[][..], |result| &result.pages);
                pages.iter().map(|page| page.data().bytes().len() as u64).sum()
            }
            HostMemory::Pageable | HostMemory::PinnedPages => self.batch.stats().bytes_out,
        })
    }

    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
        let Self { compressor, batch, values, .. } = self;
        let times = match (self.memory, self.pinned.borrow_mut().as_mut()) {
            (HostMemory::Pinned, Some(memory)) => {
                compressor.decompress_all_pinned(&mut memory.packed, &mut memory.restored, &())
            }
            (HostMemory::PinnedPages, Some(memory)) => {
                compressor.decompress_pinned_into(batch, &mut memory.restored, &())
            }
            (HostMemory::Values | HostMemory::KeptValues, _) => {
                let last = values.last().map_or(&[][..], |result| &result.pages);
                let start = Instant::now();
                compressor.decompress_batch(last).map(|restored| {
                    let total_time_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    pages.copy_from_slice(&restored.pages);
                    BatchTimes { total_time_ns, ..BatchTimes::default() }
                })
            }
            _ => compressor.decompress_into(batch, pages, &()),
        };
        self.done(times)
    }

    fn fetch(&mut self, pages: &mut [Page]) -> Result<()> {
        if let (HostMemory::Pinned | HostMemory::PinnedPages, Some(memory)) =
            (self.memory, self.pinned.borrow().as_ref())
        {
            copy_pages(&self.pool, memory.restored.pages().map_err(Error::engine(&self.name))?, pages);
        }
        Ok(())
    }

    fn stages(&self) -> Vec<(&'static str, Duration)> {
        let BatchTimes { h2d_time_ns, kernel_time_ns, d2h_time_ns, .. } = self.last;
        let stages = [("to the GPU", h2d_time_ns), ("kernel", kernel_time_ns), ("back", d2h_time_ns)];
        stages.map(|(stage, ns)| (stage, Duration::from_nanos(ns))).to_vec()
    }
}

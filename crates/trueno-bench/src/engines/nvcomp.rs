//! nvCOMP's batched LZ4 and Zstandard, loaded at run time.
//!
//! Declared by hand after nvCOMP's public documentation of its C interface (version 6; 5 has the same layout).
#![allow(unsafe_code)]

use std::ffi::{OsStr, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

use libloading::Library;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_core::gpu::raw::{CudaStream, DeviceBuffer, GpuContext, PageFormat};

use crate::error::{Error, Result};

/// `nvcompBatchedLZ4CompressOpts_t`, `nvcompBatchedLZ4DecompressOpts_t` and those of Zstandard: 64 bytes each, and all zero in
/// the defaults (data type `char`, no bit shuffling, nvCOMP's choice of back end, reserved bytes).
#[repr(C)]
#[derive(Clone, Copy)]
struct Opts([c_int; 16]);

const DEFAULTS: Opts = Opts([0; 16]);

type Status = c_int;
type DevicePtr = u64;
type StreamPtr = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Properties {
    version: u32,
    cudart_version: u32,
}

/// (chunks, chunk bytes, options, result, total bytes, stream), for compression and decompression alike.
type TempSize = unsafe extern "C" fn(usize, usize, Opts, *mut usize, usize, StreamPtr) -> Status;
type MaxOutput = unsafe extern "C" fn(usize, Opts, *mut usize) -> Status;
/// (input pointers, input sizes, largest, count, temp, temp size, output pointers, output sizes, options, statuses, stream).
type Compress = unsafe extern "C" fn(
    DevicePtr,
    DevicePtr,
    usize,
    usize,
    DevicePtr,
    usize,
    DevicePtr,
    DevicePtr,
    Opts,
    DevicePtr,
    StreamPtr,
) -> Status;
/// (input pointers, input sizes, room, output sizes, count, temp, temp size, output pointers, options, statuses, stream).
type Decompress = unsafe extern "C" fn(
    DevicePtr,
    DevicePtr,
    DevicePtr,
    DevicePtr,
    usize,
    DevicePtr,
    usize,
    DevicePtr,
    Opts,
    DevicePtr,
    StreamPtr,
) -> Status;

/// The library.
pub(crate) struct NvComp {
    /// Its version, such as 6000.
    pub(crate) version: u32,
    lz4: Functions,
    zstd: Functions,
    // The functions are valid while it is loaded.
    _library: Library,
}

/// The functions of one format, which have the same types in all of them.
struct Functions {
    compress_temp: TempSize,
    decompress_temp: TempSize,
    max_output: MaxOutput,
    compress: Compress,
    decompress: Decompress,
}

impl Functions {
    /// Finds the functions of a format by nvCOMP's name for it.
    fn load(library: &Library, format: &str) -> Result<Self> {
        // SAFETY: in all of these, the type is the function's of that name in nvCOMP's documentation.
        unsafe fn get<F: Copy>(library: &Library, format: &str, rest: &str) -> Result<F> {
            let name = format!("nvcompBatched{format}{rest}");
            // SAFETY: the caller names the function's own type.
            unsafe { library.get::<F>(name.as_bytes()) }
                .map(|function| *function)
                .map_err(|e| failed(format!("{name}: {e}")))
        }
        Ok(Self {
            // SAFETY: as above.
            compress_temp: unsafe { get(library, format, "CompressGetTempSize") }?,
            // SAFETY: as above.
            decompress_temp: unsafe { get(library, format, "DecompressGetTempSize") }?,
            // SAFETY: as above.
            max_output: unsafe { get(library, format, "CompressGetMaxOutputChunkSize") }?,
            // SAFETY: as above.
            compress: unsafe { get(library, format, "CompressAsync") }?,
            // SAFETY: as above.
            decompress: unsafe { get(library, format, "DecompressAsync") }?,
        })
    }
}

impl NvComp {
    /// Loads nvCOMP from a file.
    pub(crate) fn load(file: &Path) -> Result<Self> {
        let unusable = |e: libloading::Error| failed(format!("{}: {e}", file.display()));
        let name: &OsStr = file.as_os_str();
        // SAFETY: the user names the file as nvCOMP's library; its initialisers are NVIDIA's.
        let library = unsafe { Library::new(name) }.map_err(unusable)?;
        // SAFETY: the type is the function's of that name in nvCOMP's documentation.
        let properties =
            unsafe { library.get::<unsafe extern "C" fn(*mut Properties) -> Status>(b"nvcompGetProperties") }
                .map_err(unusable)?;
        let mut found = Properties::default();
        // SAFETY: the destination is a value of ours, of the documented layout.
        check("nvcompGetProperties", unsafe { properties(&raw mut found) })?;
        Ok(Self {
            version: found.version,
            lz4: Functions::load(&library, "LZ4")?,
            zstd: Functions::load(&library, "Zstd")?,
            _library: library,
        })
    }

    fn functions(&self, format: PageFormat) -> &Functions {
        match format {
            PageFormat::Lz4 => &self.lz4,
            PageFormat::Zstd => &self.zstd,
        }
    }

    /// Sets up one batch over the pages in `input`, one chunk per page, to be restored into `decoded`, which has the same
    /// length.
    pub(crate) fn batch<'a>(
        &'a self,
        format: PageFormat,
        context: &'a GpuContext,
        stream: &'a CudaStream,
        input: &Arc<DeviceBuffer>,
        decoded: &Arc<DeviceBuffer>,
    ) -> Result<Batch<'a>> {
        let total = input.len_bytes();
        let count = total / PAGE_SIZE;
        if decoded.len_bytes() != total {
            return Err(failed(format!("room for {} bytes, for pages of {total}", decoded.len_bytes())));
        }
        let functions = self.functions(format);
        let (mut max_output, mut compress_temp) = (0usize, 0usize);
        current(context, || {
            // SAFETY: the destination is a value of ours.
            check("max output", unsafe { (functions.max_output)(PAGE_SIZE, DEFAULTS, &raw mut max_output) })?;
            // SAFETY: likewise; the stream lives.
            let status = unsafe {
                (functions.compress_temp)(count, PAGE_SIZE, DEFAULTS, &raw mut compress_temp, total, stream.as_raw())
            };
            check("compress temp size", status)
        })?;
        let room = max_output.next_multiple_of(16);
        let output = buffer(context, count * room)?;
        let every = |start: u64, step: usize| (0..count as u64).map(move |i| start + i * step as u64);
        Ok(Batch {
            inputs: table(context, stream, every(input.address(), PAGE_SIZE))?,
            compress_temp: buffer(context, compress_temp)?,
            decoder: self.decoder(format, context, stream, every(output.address(), room), 0..count, decoded)?,
            _output: output,
            _input: Arc::clone(input),
        })
    }

    /// Sets up the decompression of chunks at the given addresses, each to the page of the given number in `decoded`. Their
    /// sizes are set later.
    pub(crate) fn decoder<'a>(
        &'a self,
        format: PageFormat,
        context: &'a GpuContext,
        stream: &'a CudaStream,
        chunks: impl Iterator<Item = u64>,
        numbers: impl Iterator<Item = usize>,
        decoded: &Arc<DeviceBuffer>,
    ) -> Result<Decoder<'a>> {
        let functions = self.functions(format);
        let numbers: Vec<u64> = numbers.map(|number| number as u64).collect();
        let (count, total) = (numbers.len(), decoded.len_bytes());
        if numbers.iter().any(|number| (number + 1) * PAGE_SIZE as u64 > total as u64) {
            return Err(failed(format!("a page lies outside the room of {total} bytes")));
        }
        let mut temp = 0usize;
        current(context, || {
            // SAFETY: the destination is a value of ours; the stream lives.
            let status = unsafe {
                (functions.decompress_temp)(count, PAGE_SIZE, DEFAULTS, &raw mut temp, total, stream.as_raw())
            };
            check("decompress temp size", status)
        })?;
        let places = numbers.iter().map(|number| decoded.address() + number * PAGE_SIZE as u64);
        Ok(Decoder {
            functions,
            context,
            stream,
            count,
            chunks: table(context, stream, chunks.take(count))?,
            chunk_sizes: buffer(context, count * size_of::<u64>())?,
            page_sizes: table(context, stream, std::iter::repeat_n(PAGE_SIZE as u64, count))?,
            places: table(context, stream, places)?,
            decoded_sizes: buffer(context, count * size_of::<u64>())?,
            statuses: buffer(context, count * size_of::<Status>())?,
            temp: buffer(context, temp)?,
            _decoded: Arc::clone(decoded),
        })
    }
}

fn buffer(context: &GpuContext, len_bytes: usize) -> Result<DeviceBuffer> {
    DeviceBuffer::new(context, len_bytes).map_err(failed)
}

/// Puts numbers of 8 bytes into device memory.
fn table(context: &GpuContext, stream: &CudaStream, entries: impl Iterator<Item = u64>) -> Result<DeviceBuffer> {
    let bytes: Vec<u8> = entries.flat_map(u64::to_le_bytes).collect();
    let table = buffer(context, bytes.len())?;
    stream.upload(&table, 0, &bytes).map_err(failed)?;
    Ok(table)
}

/// nvCOMP's tables and temporary memory to compress and restore one batch.
pub(crate) struct Batch<'a> {
    inputs: DeviceBuffer,
    compress_temp: DeviceBuffer,
    /// Of the compressed pages.
    decoder: Decoder<'a>,
    // The tables point into these.
    _output: DeviceBuffer,
    _input: Arc<DeviceBuffer>,
}

impl Batch<'_> {
    /// Temporary device memory for compression.
    #[must_use]
    pub(crate) fn temp_bytes(&self) -> usize {
        self.compress_temp.len_bytes()
    }

    /// Queues the compression of the batch.
    pub(crate) fn compress(&self) -> Result<()> {
        let Decoder { functions, context, stream, count, chunks, chunk_sizes, page_sizes, statuses, .. } =
            &self.decoder;
        current(context, || {
            // SAFETY: the tables have one entry per page, each pointing to a page or to room for the largest output; the
            // temporary memory has the size that nvCOMP asked for; all live until the stream has run.
            let status = unsafe {
                (functions.compress)(
                    self.inputs.address(),
                    page_sizes.address(),
                    PAGE_SIZE,
                    *count,
                    self.compress_temp.address(),
                    self.compress_temp.len_bytes(),
                    chunks.address(),
                    chunk_sizes.address(),
                    DEFAULTS,
                    statuses.address(),
                    stream.as_raw(),
                )
            };
            check("CompressAsync", status)
        })
    }

    /// Queues the decompression of what `compress` made, into the decoded pages.
    pub(crate) fn decompress(&self) -> Result<()> {
        self.decoder.decompress()
    }

    /// Returns the size of the compressed pages; a page that does not shrink counts whole.
    pub(crate) fn held_bytes(&self) -> Result<u64> {
        self.check_statuses()?;
        let sizes = &self.decoder.chunk_sizes;
        let mut bytes = vec![0; sizes.len_bytes()];
        self.decoder.stream.download(sizes, 0, &mut bytes).map_err(failed)?;
        let sizes = bytes.as_chunks().0.iter().map(|size| u64::from_le_bytes(*size));
        Ok(sizes.map(|size| size.min(PAGE_SIZE as u64)).sum())
    }

    /// Returns an error if nvCOMP failed on a page of the last call.
    pub(crate) fn check_statuses(&self) -> Result<()> {
        self.decoder.check_statuses()
    }
}

/// nvCOMP's tables and temporary memory to restore pages, one from each chunk.
pub(crate) struct Decoder<'a> {
    functions: &'a Functions,
    context: &'a GpuContext,
    stream: &'a CudaStream,
    count: usize,
    chunks: DeviceBuffer,
    chunk_sizes: DeviceBuffer,
    page_sizes: DeviceBuffer,
    places: DeviceBuffer,
    decoded_sizes: DeviceBuffer,
    statuses: DeviceBuffer,
    temp: DeviceBuffer,
    // The places point into it.
    _decoded: Arc<DeviceBuffer>,
}

impl Decoder<'_> {
    /// Sets the sizes of the chunks.
    pub(crate) fn set_sizes(&self, sizes: impl Iterator<Item = u64>) -> Result<()> {
        let bytes: Vec<u8> = sizes.flat_map(u64::to_le_bytes).collect();
        self.stream.upload(&self.chunk_sizes, 0, &bytes).map_err(failed)
    }

    /// Queues the decompression.
    pub(crate) fn decompress(&self) -> Result<()> {
        current(self.context, || {
            // SAFETY: the tables have one entry per chunk, each pointing to a chunk or to room for a page; the temporary
            // memory has the size that nvCOMP asked for; all live until the stream has run.
            let status = unsafe {
                (self.functions.decompress)(
                    self.chunks.address(),
                    self.chunk_sizes.address(),
                    self.page_sizes.address(),
                    self.decoded_sizes.address(),
                    self.count,
                    self.temp.address(),
                    self.temp.len_bytes(),
                    self.places.address(),
                    DEFAULTS,
                    self.statuses.address(),
                    self.stream.as_raw(),
                )
            };
            check("DecompressAsync", status)
        })
    }

    /// Returns an error if nvCOMP failed on a chunk of the last call.
    pub(crate) fn check_statuses(&self) -> Result<()> {
        let mut bytes = vec![0; self.statuses.len_bytes()];
        self.stream.download(&self.statuses, 0, &mut bytes).map_err(failed)?;
        let mut statuses = bytes.as_chunks().0.iter().map(|status| i32::from_le_bytes(*status));
        match statuses.position(|status| status != 0) {
            Some(chunk) => Err(failed(format!("failed on chunk {chunk}"))),
            None => Ok(()),
        }
    }

    /// Returns an error unless every chunk of the last call was one page.
    pub(crate) fn check_sizes(&self) -> Result<()> {
        let mut bytes = vec![0; self.decoded_sizes.len_bytes()];
        self.stream.download(&self.decoded_sizes, 0, &mut bytes).map_err(failed)?;
        let mut sizes = bytes.as_chunks().0.iter().map(|size| u64::from_le_bytes(*size));
        match sizes.position(|size| size != PAGE_SIZE as u64) {
            Some(chunk) => Err(failed(format!("chunk {chunk} is not one page"))),
            None => Ok(()),
        }
    }
}

fn current<T>(context: &GpuContext, f: impl FnOnce() -> Result<T>) -> Result<T> {
    context.with_current(f).map_err(failed)?
}

fn check(call: &str, status: Status) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(failed(format!("{call}: status {status}"))) }
}

fn failed(reason: impl ToString) -> Error {
    Error::engine("nvCOMP")(reason)
}

//! The CPU's back ends: each by itself, against each other, and batches against single pages.

use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::{Algorithm, CompressedBatch, CpuBatchCompressor, Error, IndexEntry, PAGE_SIZE, Page, PageCodec};

use super::samples::Set;
use super::{Check, Codec, codec_checks, proofs};

/// One page at a time on one back end.
pub(super) struct CpuCodec {
    codec: PageCodec,
}

impl CpuCodec {
    pub(super) fn new(backend: InstructionSet) -> Result<Self, String> {
        PageCodec::with_instruction_set(Algorithm::Lz4, backend).map(|codec| Self { codec }).map_err(|e| e.to_string())
    }
}

impl Codec for CpuCodec {
    fn compress(&mut self, pages: &[Page]) -> Result<CompressedBatch, String> {
        let (mut arena, mut index) = (Vec::new(), Vec::new());
        let mut out = [0; PAGE_SIZE];
        for page in pages {
            let data = self.codec.compress(page, &mut out).map_err(|e| e.to_string())?;
            let len_bytes = u16::try_from(data.bytes().len()).map_err(|e| e.to_string())?;
            index.push(IndexEntry { offset: arena.len() as u64, len_bytes, kind: data.kind() });
            arena.extend_from_slice(data.bytes());
        }
        CompressedBatch::from_parts(arena, index).map_err(|e| e.to_string())
    }

    fn decompress(&mut self, batch: &CompressedBatch) -> Result<Vec<Option<Page>>, String> {
        let restore = |data| {
            let mut page = [0xee; PAGE_SIZE];
            match self.codec.decompress(data, &mut page) {
                Ok(()) => Ok(Some(page)),
                Err(Error::CorruptLz4(_)) => Ok(None),
                Err(error) => Err(error.to_string()),
            }
        };
        batch.iter().map(restore).collect()
    }
}

/// Batches on all cores.
struct AllCores(CpuBatchCompressor);

impl AllCores {
    fn new() -> Result<Self, String> {
        CpuBatchCompressor::new(Algorithm::Lz4).map(Self).map_err(|e| e.to_string())
    }
}

impl Codec for AllCores {
    fn compress(&mut self, pages: &[Page]) -> Result<CompressedBatch, String> {
        self.0.compress(pages).map_err(|e| e.to_string())
    }

    fn decompress(&mut self, batch: &CompressedBatch) -> Result<Vec<Option<Page>>, String> {
        let pages = self.0.decompress(batch).map_err(|e| e.to_string())?;
        Ok(pages.into_iter().map(Some).collect())
    }
}

pub(super) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for backend in InstructionSet::available() {
        checks.extend(codec_checks(&format!("cpu {backend}"), Set::large, move || CpuCodec::new(backend)));
    }
    for backend in InstructionSet::available().into_iter().filter(|backend| *backend != InstructionSet::Scalar) {
        checks.push(Check::new(format!("cpu {backend}: same bytes as scalar"), move || {
            proofs::same_bytes(
                &mut CpuCodec::new(backend)?,
                &mut CpuCodec::new(InstructionSet::Scalar)?,
                &Set::large().pages,
            )
        }));
    }
    checks.push(Check::new("cpu, all cores: round trip", || {
        proofs::round_trip(&mut AllCores::new()?, &Set::large().pages)
    }));
    checks.push(Check::new("cpu, all cores: same bytes as one", || {
        proofs::same_bytes(&mut AllCores::new()?, &mut CpuCodec::new(InstructionSet::detect())?, &Set::large().pages)
    }));
    checks
}

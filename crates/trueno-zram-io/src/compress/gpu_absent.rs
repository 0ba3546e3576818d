//! Replaces `gpu.rs` in builds without the feature `gpu`: no GPU exists that could be handed in.

use std::convert::Infallible;
use std::marker::PhantomData;

use trueno_zram_core::{BatchCodec, PageCodec};

use super::{Compressed, Job};
use crate::input::page_source::PageSource;
use crate::output::ArchiveOutput;

/// A GPU. None exists in builds without the feature `gpu`.
#[derive(Debug)]
pub struct Gpu<'a>(Infallible, PhantomData<&'a mut ()>);

impl Gpu<'_> {
    pub(crate) fn codec(&mut self) -> &mut dyn BatchCodec {
        self.never()
    }

    pub(crate) fn never(&self) -> ! {
        match self.0 {}
    }
}

pub(super) fn compress<S: PageSource, W: ArchiveOutput>(
    _job: Job<'_, S, W>,
    gpu: Gpu<'_>,
    _helpers: &mut [PageCodec],
) -> Result<Compressed<S, W>, S::Error> {
    gpu.never()
}

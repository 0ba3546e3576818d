//! Replaces `gpu.rs` in builds without the feature `gpu`: no GPU exists that could be handed in.

use std::convert::Infallible;
use std::marker::PhantomData;

use trueno_zram_archive::ReadSummary;
use trueno_zram_core::{BatchCodec, PageCodec};

use crate::compress::{CompressJob, Compressed};
use crate::input::page_source::PageSource;
use crate::restore::groups::{GroupFailure, GroupsJob};

/// A GPU. None exists in builds without the feature `gpu`.
#[derive(Debug)]
pub struct Gpu<'a>(Infallible, PhantomData<&'a mut ()>);

impl Gpu<'_> {
    pub(crate) fn codec(&mut self) -> Option<&mut dyn BatchCodec> {
        match self.0 {}
    }

    pub(crate) fn compress<S: PageSource, W>(
        self,
        _job: CompressJob<'_, S, W>,
        _helpers: &mut [PageCodec],
    ) -> Result<Compressed<S, W>, S::Error> {
        match self.0 {}
    }

    pub(crate) fn restore_groups<K>(
        &mut self,
        _job: GroupsJob<'_, K>,
        _cpu_helps: bool,
    ) -> Result<ReadSummary, GroupFailure> {
        match self.0 {}
    }
}

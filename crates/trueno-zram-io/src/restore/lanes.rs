//! Lanes on the CPU: each reads, checks, restores and writes groups on a worker of the pool.

use std::fs::File;

use rayon::ThreadPool;
use trueno_zram_archive::{ContentSpan, Groups, PageGroup, PageRun};
use trueno_zram_core::{PAGE_SIZE, Page, PageCodec, PageData};

use super::Sink;
use super::groups::{GroupContent, Restored, Restoring};
use crate::Observer;
use crate::error::Result;
use crate::spare::Spare;
use crate::timeline::{Stage, timed};

/// Pages that are restored before they are written: they stay in the core's cache.
const CACHED_PAGES: usize = 64;

/// Groups in memory if their content has to be taken in order: up to 8 MiB each.
const MOST_ORDERED: usize = 6;

/// A group and its pages.
#[derive(Default)]
pub(super) struct Content {
    pub(super) group: PageGroup,
    pages: Vec<Page>,
}

impl Content {
    pub(super) fn new(group: PageGroup) -> Self {
        Self { group, pages: Vec::new() }
    }
}

impl GroupContent for Content {
    fn group(&self) -> &PageGroup {
        &self.group
    }

    fn pages(&self) -> &[Page] {
        &self.pages
    }
}

/// Restores pages of a group on one core.
pub(super) struct CpuPages {
    codec: PageCodec,
    cached: Vec<Page>,
}

impl CpuPages {
    pub(super) fn new() -> Self {
        Self { codec: PageCodec::default(), cached: vec![[0; PAGE_SIZE]; CACHED_PAGES] }
    }

    /// Restores all pages of a group into memory of their own. Returns `false` if one is corrupt.
    pub(super) fn restore_all(&mut self, content: &mut Content) -> bool {
        let pages = content.group.data_pages();
        if content.pages.len() < pages {
            content.pages.resize(pages, [0; PAGE_SIZE]);
        }
        restore(&mut self.codec, content.group.pages(), &mut content.pages)
    }

    /// Restores the pages of a group a few at a time, and writes them at their place.
    pub(super) fn restore_in_place<K: Sink, C: GroupContent>(
        &mut self,
        group: &PageGroup,
        restoring: &Restoring<'_, K, C>,
    ) -> Result<()> {
        let (mut at, mut pages) = (group.content_start(), group.pages());
        let write = |at: &mut u64, span: ContentSpan<'_>| {
            let start = *at;
            *at += span.len_bytes();
            restoring.write(start, std::iter::once(span))
        };
        for run in group.runs() {
            match run {
                PageRun::Zeros(len_bytes) => write(&mut at, ContentSpan::Zeros(len_bytes))?,
                PageRun::Tail(bytes) => write(&mut at, ContentSpan::Data(bytes))?,
                PageRun::Pages(mut left) => {
                    let place = restoring.prepare(at, left * PAGE_SIZE)?;
                    while left > 0 {
                        let now = left.min(CACHED_PAGES);
                        let cached = &mut self.cached[..now];
                        let codec = &mut self.codec;
                        let restored = timed(restoring.observer, Stage::Decode, || {
                            restore(codec, pages.by_ref().take(now), cached)
                        });
                        if !restored {
                            restoring.doubt();
                            return Ok(());
                        }
                        restoring.write_prepared(place.as_ref(), at, cached.as_flattened())?;
                        at += (now * PAGE_SIZE) as u64;
                        left -= now;
                    }
                }
            }
        }
        Ok(())
    }
}

fn restore<'a>(codec: &mut PageCodec, pages: impl Iterator<Item = PageData<'a>>, into: &mut [Page]) -> bool {
    pages.zip(into).all(|(page, into)| codec.decompress(page, into).is_ok())
}

/// Restores an archive on the pool's workers.
pub(super) fn restore_groups<K: Sink>(
    (groups, file): (Groups, &File),
    sink: &mut K,
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<Restored> {
    let threads = pool.current_num_threads();
    let restoring = Restoring::<_, Content>::new(groups, file, sink, threads, observer)?;
    let lanes = threads.min(usize::try_from(restoring.groups.count()).unwrap_or(usize::MAX));
    let contents = if restoring.is_ordered() { MOST_ORDERED.min(2 * lanes) } else { lanes };
    let contents = (0..contents).map(|_| Content::default()).collect();
    let spare = Spare::new(contents);
    pool.scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|_| {
                if let Err(error) = spare.run(|| restoring.run_lane(&spare)) {
                    restoring.fail(error);
                    spare.stop();
                }
            });
        }
    });
    restoring.finish()
}

impl<K: Sink> Restoring<'_, K, Content> {
    /// Takes groups all the way, until there are no more or something fails.
    fn run_lane(&self, spare: &Spare<Content>) -> Result<()> {
        let mut cpu = CpuPages::new();
        while let Some(mut content) = timed(self.observer, Stage::Wait, || spare.take()) {
            let Some(number) = self.claim() else {
                spare.stop();
                break;
            };
            if !self.read(number, &mut content.group) {
                spare.give(content);
            } else if self.is_ordered() {
                if timed(self.observer, Stage::Decode, || cpu.restore_all(&mut content)) {
                    self.give(number, content, |content| spare.give(content))?;
                } else {
                    self.doubt();
                    spare.give(content);
                }
            } else {
                cpu.restore_in_place(&content.group, self)?;
                spare.give(content);
            }
        }
        Ok(())
    }
}

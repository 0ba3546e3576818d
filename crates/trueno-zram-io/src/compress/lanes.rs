//! Lanes on the CPU: each reads, compresses and writes on a worker of the pool.

use rayon::ThreadPool;
use trueno_zram_archive::{ContentHash, PageBlocks, WriteOptions};
use trueno_zram_core::{PAGE_SIZE, PageCodec, PageRoom};

use super::{Claimed, Compressed, Content, Job, Parcel, Shared};
use crate::Observer;
use crate::error::Error;
use crate::ordered::lock;
use crate::output::ArchiveOutput;
use crate::source::PageSource;
use crate::timeline::{Stage, timed};

/// Pages that a lane takes at a time: together with their compressed form they stay in the core's cache.
pub(super) const LANE_PAGES: usize = 64;
/// Parcels beyond one per lane, which wait for their turn.
const WAITING_PER_LANE: usize = 2;

/// Pages in memory, and what they hold.
pub(super) struct Pages {
    pages: PageRoom,
    held: Held,
}

#[derive(Clone, Copy)]
enum Held {
    /// This many bytes of the pages.
    Data(usize),
    /// This many zero pages, which are not in memory.
    Zeros(u64),
}

impl Content for Pages {
    fn hash_into(&self, hash: &mut ContentHash) {
        match self.held {
            Held::Zeros(pages) => hash.update_zeros(pages * PAGE_SIZE as u64),
            Held::Data(len_bytes) => hash.update(&self.pages.as_flattened()[..len_bytes]),
        }
    }
}

impl Pages {
    pub(super) fn new(pages: usize) -> Self {
        Self { pages: PageRoom::new(pages), held: Held::Data(0) }
    }

    /// Compresses the pages into blocks.
    fn compress(&self, codec: &mut PageCodec, blocks: &mut PageBlocks) -> Result<(), CompressError> {
        match self.held {
            Held::Zeros(pages) => blocks.push_zeros(pages)?,
            Held::Data(len_bytes) => {
                let (pages, tail) = self.pages.as_flattened()[..len_bytes].as_chunks();
                let mut out = [0; PAGE_SIZE];
                for page in pages {
                    blocks.push_of(codec.compress(page, &mut out)?, page)?;
                }
                blocks.hash_pages(pages);
                blocks.push_tail(tail)?;
            }
        }
        blocks.finish();
        Ok(())
    }
}

/// An error of the codec or of the archive.
#[derive(Debug, thiserror::Error)]
enum CompressError {
    #[error(transparent)]
    Codec(#[from] trueno_zram_core::Error),
    #[error(transparent)]
    Archive(#[from] trueno_zram_archive::Error),
}

/// What a lane does next.
enum Task {
    Write(Job),
    Fill(Pages),
    Stop,
}

/// Compresses all of `source`, with a codec per lane.
pub(super) fn compress<S: PageSource, W: ArchiveOutput>(
    source: S,
    out: (W, &str),
    options: WriteOptions,
    codecs: &mut [PageCodec],
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<Compressed<S, W>, S::Error> {
    // A small input needs few lanes and little memory.
    let page_count = source.len_bytes().map_or(u64::MAX, |len_bytes| len_bytes.div_ceil(PAGE_SIZE as u64));
    let page_count = usize::try_from(page_count).unwrap_or(usize::MAX).max(1);
    let parcel_pages = LANE_PAGES.min(page_count);
    let most_lanes = codecs.len().min(pool.current_num_threads()).max(1);
    let lane_count = most_lanes.min(page_count.div_ceil(parcel_pages));
    let shared = Shared::<_, _, Pages>::new(source, out, options, lane_count, observer)?;
    let parcels = lane_count * (1 + WAITING_PER_LANE);
    lock(&shared.state).free = (0..parcels).map(|_| Pages::new(parcel_pages)).collect();
    pool.scope(|scope| {
        for codec in codecs.iter_mut().take(lane_count) {
            let shared = &shared;
            scope.spawn(move |_| shared.run(|| shared.run_lane(codec)));
        }
    });
    shared.finish()
}

impl<S: PageSource, W: ArchiveOutput> Shared<'_, S, W, Pages> {
    /// Takes parcels all the way, until the source ends or something fails.
    fn run_lane(&self, codec: &mut PageCodec) -> Result<(), S::Error> {
        loop {
            match self.next_task() {
                Task::Stop => return Ok(()),
                Task::Write(job) => self.write(job)?,
                Task::Fill(pages) => {
                    self.fill(pages, codec, |pages| pages)?;
                }
            }
        }
    }

    fn next_task(&self) -> Task {
        let mut state = lock(&self.state);
        loop {
            if state.has_failed {
                return Task::Stop;
            }
            if let Some(job) = self.take_job(&mut state) {
                return Task::Write(job);
            }
            if state.has_ended {
                // Whoever brings or writes a parcel looks here again, so none is left behind.
                return Task::Stop;
            }
            if state.has_room()
                && let Some(pages) = state.free.pop()
            {
                return Task::Fill(pages);
            }
            state = timed(self.observer, Stage::Wait, || self.changed.wait(state))
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

impl<S: PageSource, W: ArchiveOutput, C: Content> Shared<'_, S, W, C> {
    /// Fills pages with what comes next, compresses them, and takes them to the archive. Returns the bytes of content.
    pub(super) fn fill(
        &self,
        mut pages: Pages,
        codec: &mut PageCodec,
        into_content: impl FnOnce(Pages) -> C,
    ) -> Result<u64, S::Error> {
        let Some(ticket) = self.claim(&mut pages.pages)? else { return Ok(0) };
        pages.held = match ticket.claimed {
            Claimed::Range(range) => Held::Data(self.read(&range, &mut pages.pages)?),
            Claimed::Filled(len_bytes) => Held::Data(len_bytes),
            Claimed::Zeros(zeros) => Held::Zeros(zeros),
        };
        let mut blocks = self.blocks(ticket.first_page);
        let compressed = timed(self.observer, Stage::Compress, || pages.compress(codec, &mut blocks));
        compressed.map_err(|error| match error {
            CompressError::Codec(error) => Error::Codec(error),
            CompressError::Archive(error) => Error::archive(self.out_name, error),
        })?;
        let content_len = blocks.content_len();
        self.deliver(Parcel { number: ticket.number, content: into_content(pages), blocks })?;
        Ok(content_len)
    }
}

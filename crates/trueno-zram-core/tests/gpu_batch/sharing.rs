//! One device with several users: threads, several compressors, a compressor that moves between threads.

use std::thread;

use trueno_gpu::kernels::lz4::Mode;

use crate::harness::{
    Form, Memory, assert_no_fallback, assert_restored, batch, check_batch, check_values, compressor, config, in_mode,
    lock_device,
};

#[test]
#[ignore = "needs a GPU"]
fn four_threads_share_a_device() {
    let _device = lock_device();
    let pages = batch(6000);
    let pages = &pages[..];
    thread::scope(|scope| {
        for (number, mode) in [Mode::Fast, Mode::Ratio, Mode::Fast, Mode::Ratio].into_iter().enumerate() {
            scope.spawn(move || {
                let mine = &pages[number * 1000..number * 1000 + 2500];
                let mut compressor = compressor(config(300 * (number + 1), number + 1), &in_mode(mode));
                let mut memory = Memory::new(&compressor, mine.len());
                for round in 0..5 {
                    for form in Form::ALL {
                        memory.compress(&mut compressor, form, mine);
                        check_batch(&memory.batch, mine);
                        memory.restore(&mut compressor, form).unwrap();
                        assert_restored(&memory.restored, mine, &format!("thread {number}, {round}, {form:?}"));
                    }
                }
                assert_no_fallback(&compressor);
            });
        }
    });
}

#[test]
#[ignore = "needs a GPU"]
fn two_compressors_at_once_on_one_thread() {
    let _device = lock_device();
    let pages = batch(3000);
    let mut fast = compressor(config(400, 3), &in_mode(Mode::Fast));
    let mut tight = compressor(config(1000, 2), &in_mode(Mode::Ratio));
    let (mut fast_bytes, mut tight_bytes) = (0, 0);
    for _ in 0..3 {
        let (of_fast, of_tight) = (fast.compress_batch(&pages).unwrap(), tight.compress_batch(&pages).unwrap());
        check_values(&of_fast.pages, &pages);
        check_values(&of_tight.pages, &pages);
        // Each restores what the other compressed.
        assert_restored(&fast.decompress_batch(&of_tight.pages).unwrap().pages, &pages, "the fast one");
        assert_restored(&tight.decompress_batch(&of_fast.pages).unwrap().pages, &pages, "the tight one");
        fast_bytes += of_fast.pages.iter().map(|page| page.bytes().len()).sum::<usize>();
        tight_bytes += of_tight.pages.iter().map(|page| page.bytes().len()).sum::<usize>();
    }
    assert!(tight_bytes < fast_bytes, "{tight_bytes} and {fast_bytes}: the ratio mode must be smaller");
    // Drop one and keep using the other.
    drop(fast);
    check_values(&tight.compress_batch(&pages).unwrap().pages, &pages);
    assert_no_fallback(&tight);
}

#[test]
#[ignore = "needs a GPU"]
fn a_compressor_can_move_between_threads() {
    let _device = lock_device();
    let pages = batch(2000);
    let mut moving = compressor(config(300, 3), &in_mode(Mode::Fast));
    let mut memory = Memory::new(&moving, pages.len());
    let first = moving.compress_batch(&pages).unwrap();
    for form in Form::ALL {
        let pages = pages.clone();
        let run = move || {
            memory.compress(&mut moving, form, &pages);
            check_batch(&memory.batch, &pages);
            memory.restore(&mut moving, form).unwrap();
            assert_restored(&memory.restored, &pages, &format!("{form:?}"));
            (moving, memory)
        };
        (moving, memory) = thread::spawn(run).join().unwrap();
    }
    assert_eq!(moving.compress_batch(&pages).unwrap().pages, first.pages);
    assert_no_fallback(&moving);
}

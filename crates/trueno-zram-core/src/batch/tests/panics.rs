//! Panics of the caller's code and of workers: passed on, and survived by the compressor.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Form, NO_HURRY, Shape, Trial};
use crate::arena::CompressedBatch;
use crate::gpu::ring::fake::{Call, Fault, Schedule};
use crate::page::PAGE_SIZE;

const SHAPE: Shape = Shape { pages: 23, batch_size: 4, slots: 3 };

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<String>().map_or_else(|| panic.downcast_ref().copied().unwrap_or("?"), String::as_str)
}

/// A batch after a panic: by whomever, but right, and without waiting for slots that went down with it.
fn assert_comes_out_right(trial: &mut Trial) {
    let done = trial.run().unwrap_or_else(|error| panic!("{:?}: {error}", trial.form));
    assert_eq!(done.by_device + done.by_cpu, SHAPE.pages);
}

#[test]
fn a_progress_that_panics_is_passed_on() {
    let progress = |_: usize| panic!("the caller's own");
    for form in [Form::CompressInto, Form::DecompressInto] {
        let mut trial = Trial::new(form, SHAPE, Schedule::OneByOne, NO_HURRY);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            if form.compresses() {
                trial.compressor.compress_into(&trial.pages, &mut CompressedBatch::new(), &progress)
            } else {
                trial.compressor.decompress_into(&trial.sample.held, &mut [[0; PAGE_SIZE]; 23], &progress)
            }
        }))
        .expect_err("it panicked");
        assert_eq!(message(&*panic), "the caller's own", "{form:?}");
        assert_comes_out_right(&mut trial);
    }
}

#[test]
fn a_worker_that_panics_is_passed_on() {
    for form in Form::ALL {
        let mut trial = Trial::new(form, SHAPE, Schedule::Eager, NO_HURRY);
        trial.run().unwrap();
        trial.fake.arm([]);
        trial.run().unwrap();
        // Page-locked memory is waited for by workers; where it is not, there is no worker to panic.
        let Some(wait) = trial.fake.calls().iter().rposition(|call| *call == Call::Wait) else { continue };
        trial.fake.arm([(wait, Fault::Panic)]);
        let panic = catch_unwind(AssertUnwindSafe(|| trial.run())).expect_err("it panicked");
        assert_eq!(message(&*panic), "told to panic in Wait", "{form:?}");
        assert_comes_out_right(&mut trial);
    }
}

//! Checks that `selftest` runs. Each says in one line what it proved, or what went wrong.

mod archive;
mod codecs;
mod proofs;
mod samples;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use serde::Serialize;

/// A description of the proof, or of the failure.
pub(crate) type Proof = Result<String, String>;

/// One check.
pub(crate) struct Check {
    pub(crate) name: String,
    run: Box<dyn FnOnce() -> Proof>,
}

/// The result of a check.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) passed: bool,
    /// A description of the proof, or of the failure.
    pub(crate) text: String,
    pub(crate) seconds: f64,
}

impl Check {
    pub(crate) fn new(name: impl Into<String>, run: impl FnOnce() -> Proof + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// Runs the check. A panic is a failure like any other.
    pub(crate) fn run(self) -> Outcome {
        let begun = Instant::now();
        let proof = catch_unwind(AssertUnwindSafe(self.run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(format!("it panicked: {}", text.unwrap_or("no message")))
        });
        let seconds = begun.elapsed().as_secs_f64();
        let passed = proof.is_ok();
        Outcome { name: self.name, passed, text: proof.unwrap_or_else(|wrong| wrong), seconds }
    }
}

impl Outcome {
    pub(crate) fn took(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// All checks of this machine. Pages and blocks are the same every time.
pub(crate) fn all() -> Vec<Check> {
    let mut checks = codecs::checks();
    checks.extend(archive::checks());
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_fails_or_panics_says_why() {
        let failed = Check::new("a", || Err("page 3 differs".into())).run();
        assert!(!failed.passed && failed.text == "page 3 differs");
        let panicked = Check::new("b", || panic!("out of {}", "bounds")).run();
        assert!(!panicked.passed && panicked.text.ends_with("out of bounds"), "{}", panicked.text);
        assert!(Check::new("c", || Ok("all".into())).run().passed);
    }
}

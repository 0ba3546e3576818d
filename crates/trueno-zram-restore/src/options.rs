//! Options of lazy restores.

use std::num::NonZeroUsize;
use std::time::Duration;

use trueno_zram_connections::MAX_CONNECTIONS;

/// The treatment of a VM or a process that touches a page that cannot be restored. [`RestoreOptions`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// The access fails as on broken memory (SIGBUS, or a machine check in the guest), and the VM goes on if it can. Where
    /// the kernel cannot do that (before Linux 6.6), the VM is ended.
    #[default]
    Poison,
    /// The VM is ended.
    Kill,
}

/// The treatment of a VM or a process that has pages of a group whose proof has failed: they may differ from the pages that were
/// saved. [`RestoreOptions`] has an example.
///
/// Only sources that return pages before they are proven have such groups, such as an [`Archive`](trueno_zram_archive::Archive)
/// with [`Verify::Touched`](trueno_zram_archive::Verify::Touched).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisproof {
    /// It is ended. So is one with pages whose proof cannot be read for as long as [`RestoreOptions::proof_patience`].
    #[default]
    End,
    /// It goes on with these pages. [`Notice::Disproven`](crate::Notice::Disproven) and the report name them.
    GoOn,
}

/// Tuning options of [`LazyRestore`](crate::LazyRestore) and [`ProcessRestore`](crate::ProcessRestore).
///
/// ```
/// use trueno_zram_restore::{OnDamage, OnDisproof, RestoreOptions};
/// let options = RestoreOptions::default().with_on_damage(OnDamage::Kill).with_around_bytes(0);
/// assert!(options.background_fill && options.on_disproof == OnDisproof::End);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// The block around a fault that is restored with it, while no other fault waits: 64 KiB by default. 4096 or less disables it.
    pub around_bytes: u64,
    /// The time for which the handler polls for the next fault before it sleeps. Waking it takes some 40 µs on an idle core.
    pub spin: Duration,
    /// `true` to restore all memory in the background, not only what is touched and what was recorded.
    pub background_fill: bool,
    /// Threads that restore memory in the background.
    pub workers: NonZeroUsize,
    /// The treatment of pages that cannot be restored.
    pub on_damage: OnDamage,
    /// The treatment of VMs and processes that have pages whose proof has failed.
    pub on_disproof: OnDisproof,
    /// The time for which a proof that cannot be read is tried again before it counts as failed.
    pub proof_patience: Duration,
    /// The time that a VMM may take for its first message.
    pub handshake_timeout: Duration,
    /// VMs that are restored at the same time. Later ones wait.
    pub vms_at_a_time: NonZeroUsize,
}

impl RestoreOptions {
    /// Sets [`around_bytes`](Self::around_bytes).
    #[must_use]
    pub fn with_around_bytes(self, around_bytes: u64) -> Self {
        Self { around_bytes, ..self }
    }

    /// Sets [`spin`](Self::spin).
    #[must_use]
    pub fn with_spin(self, spin: Duration) -> Self {
        Self { spin, ..self }
    }

    /// Sets [`background_fill`](Self::background_fill).
    #[must_use]
    pub fn with_background_fill(self, background_fill: bool) -> Self {
        Self { background_fill, ..self }
    }

    /// Sets [`workers`](Self::workers).
    #[must_use]
    pub fn with_workers(self, workers: NonZeroUsize) -> Self {
        Self { workers, ..self }
    }

    /// Sets [`on_damage`](Self::on_damage).
    #[must_use]
    pub fn with_on_damage(self, on_damage: OnDamage) -> Self {
        Self { on_damage, ..self }
    }

    /// Sets [`on_disproof`](Self::on_disproof).
    #[must_use]
    pub fn with_on_disproof(self, on_disproof: OnDisproof) -> Self {
        Self { on_disproof, ..self }
    }

    /// Sets [`proof_patience`](Self::proof_patience).
    #[must_use]
    pub fn with_proof_patience(self, proof_patience: Duration) -> Self {
        Self { proof_patience, ..self }
    }

    /// Sets [`handshake_timeout`](Self::handshake_timeout).
    #[must_use]
    pub fn with_handshake_timeout(self, handshake_timeout: Duration) -> Self {
        Self { handshake_timeout, ..self }
    }

    /// Sets [`vms_at_a_time`](Self::vms_at_a_time).
    #[must_use]
    pub fn with_vms_at_a_time(self, vms_at_a_time: NonZeroUsize) -> Self {
        Self { vms_at_a_time, ..self }
    }
}

impl Default for RestoreOptions {
    fn default() -> Self {
        Self {
            around_bytes: 64 << 10,
            spin: Duration::from_micros(500),
            background_fill: true,
            workers: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            on_damage: OnDamage::default(),
            on_disproof: OnDisproof::default(),
            proof_patience: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            vms_at_a_time: NonZeroUsize::new(MAX_CONNECTIONS).expect("it is not 0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_sets_its_option() {
        let seven = NonZeroUsize::new(7).expect("it is not 0");
        let options = RestoreOptions::default()
            .with_around_bytes(1)
            .with_spin(Duration::from_secs(2))
            .with_background_fill(false)
            .with_workers(seven)
            .with_on_damage(OnDamage::Kill)
            .with_on_disproof(OnDisproof::GoOn)
            .with_proof_patience(Duration::from_secs(4))
            .with_handshake_timeout(Duration::from_secs(3))
            .with_vms_at_a_time(seven);
        assert_eq!((options.around_bytes, options.spin, options.background_fill), (1, Duration::from_secs(2), false));
        assert_eq!((options.workers, options.on_damage, options.vms_at_a_time), (seven, OnDamage::Kill, seven));
        assert_eq!(options.handshake_timeout, Duration::from_secs(3));
        assert_eq!((options.on_disproof, options.proof_patience), (OnDisproof::GoOn, Duration::from_secs(4)));
    }
}

//! The block device of this machine that `serve --ublk` makes, and what it takes to swap to it.

#[cfg(feature = "ublk")]
pub(super) use with_ublk::{BlockDevice, prepare_for_swap};
#[cfg(not(feature = "ublk"))]
pub(super) use without_ublk::{BlockDevice, prepare_for_swap};

#[cfg(feature = "ublk")]
mod with_ublk {
    use std::sync::Arc;

    use rustix::mm::{MlockAllFlags, mlockall};
    use trueno_zram_serve::Export;
    use trueno_zram_serve::ublk::{UblkDevice, become_io_flusher};

    use super::super::{Args, describe};
    use crate::args::Global;
    use crate::failure::Failure;
    use crate::print::report;
    use crate::signals;

    /// Makes all threads that are started from now on fit for serving swap.
    pub(crate) fn prepare_for_swap(global: &Global) -> Result<(), Failure> {
        if let Err(error) = become_io_flusher() {
            let warning =
                format!("the kernel may wait for the server to free the memory that the server needs: {error}");
            report::warn(global, "--swap needs CAP_SYS_RESOURCE", &warning);
        }
        Ok(())
    }

    /// A block device. It is removed before a signal ends the process.
    pub(crate) struct BlockDevice(Arc<UblkDevice>);

    impl BlockDevice {
        pub(crate) fn start(args: &Args, global: &Global, export: &Arc<dyn Export>) -> Result<Self, Failure> {
            if args.swap {
                // The store's memory is locked already. Under memory pressure all else that the server has, such as code,
                // stacks and buffers, must not be swapped out to itself either.
                let locked = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE);
                locked.map_err(|error| Failure::io("--swap: memory cannot be locked (ulimit -l)", &error.into()))?;
            }
            let device = UblkDevice::start(export, args.queues).map_err(|error| Failure::io("--ublk", &error))?;
            let device = Arc::new(device);
            signals::hold_off().add({
                let device = Arc::clone(&device);
                move || drop(device.stop())
            });
            let path = device.path().display();
            report::say(global, &format!("block device with {} queues: {path}", args.queues));
            if args.swap {
                report::say(global, &format!("to use it:  mkswap {path} && swapon --discard --priority 100 {path}"));
                report::say(global, &format!("before the server ends:  swapoff {path}"));
            }
            Ok(Self(device))
        }

        pub(crate) fn path(&self) -> String {
            self.0.path().display().to_string()
        }

        /// Waits until the device ends without being asked to, and returns why. The server cannot go on without it.
        pub(crate) fn wait(&self) -> Failure {
            match self.0.wait() {
                Err(error) => {
                    // As a signal would: sockets are removed.
                    signals::hold_off().run_all();
                    Failure::at(self.path(), describe(&error))
                }
                // A signal stopped the device, and is about to end the process.
                Ok(()) => loop {
                    std::thread::park();
                },
            }
        }
    }
}

#[cfg(not(feature = "ublk"))]
mod without_ublk {
    use std::sync::Arc;

    use trueno_zram_serve::Export;

    use super::super::Args;
    use crate::args::Global;
    use crate::failure::Failure;

    fn unavailable() -> Failure {
        Failure::usage("this build has no ublk devices; build it with --features ublk")
    }

    pub(crate) fn prepare_for_swap(_: &Global) -> Result<(), Failure> {
        Err(unavailable())
    }

    /// A device that this build cannot make.
    pub(crate) enum BlockDevice {}

    impl BlockDevice {
        pub(crate) fn start(_: &Args, _: &Global, _: &Arc<dyn Export>) -> Result<Self, Failure> {
            Err(unavailable())
        }

        pub(crate) fn path(&self) -> String {
            match *self {}
        }

        pub(crate) fn wait(&self) -> Failure {
            match *self {}
        }
    }
}

//! The queue of a guest, whose notifications never block the thread that serves it.
//!
//! A guest chooses the descriptors by which both sides notify each other. A write to a full one, or a read from one that
//! holds less than a notification, would block the thread of the queue forever, even after the guest has ended.

use std::fs::File;
use std::io;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vhost_user_backend::{VringRwLock, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::Error;

use super::connection::GuestMemory;

/// A queue with non-blocking notifications. Otherwise it equals [`VringRwLock`].
#[derive(Clone)]
pub(super) struct NonblockingVring(VringRwLock);

/// Makes a descriptor of the guest non-blocking. A descriptor that cannot be is not used: the guest gets no notifications.
fn nonblocking(file: Option<File>) -> Option<File> {
    file.filter(|file| fcntl_getfl(file).and_then(|flags| fcntl_setfl(file, flags | OFlags::NONBLOCK)).is_ok())
}

impl<'a> VringStateGuard<'a, GuestMemory> for NonblockingVring {
    type G = <VringRwLock as VringStateGuard<'a, GuestMemory>>::G;
}

impl<'a> VringStateMutGuard<'a, GuestMemory> for NonblockingVring {
    type G = <VringRwLock as VringStateMutGuard<'a, GuestMemory>>::G;
}

/// Methods of [`VringT`] that call those of the wrapped queue.
macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self, $($arg: $type),*) $(-> $result)? {
            self.0.$name($($arg),*)
        })*
    };
}

impl VringT<GuestMemory> for NonblockingVring {
    fn new(memory: GuestMemory, max_queue_size: u16) -> Result<Self, Error> {
        VringRwLock::new(memory, max_queue_size).map(Self)
    }

    fn get_ref(&self) -> <Self as VringStateGuard<'_, GuestMemory>>::G {
        self.0.get_ref()
    }

    fn get_mut(&self) -> <Self as VringStateMutGuard<'_, GuestMemory>>::G {
        self.0.get_mut()
    }

    fn set_kick(&self, file: Option<File>) {
        self.0.set_kick(nonblocking(file));
    }

    fn set_call(&self, file: Option<File>) {
        self.0.set_call(nonblocking(file));
    }

    fn set_err(&self, file: Option<File>) {
        self.0.set_err(nonblocking(file));
    }

    fn signal_used_queue(&self) -> io::Result<()> {
        match self.0.signal_used_queue() {
            // A counter at its end is a notification that the guest has not taken yet.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            signalled => signalled,
        }
    }

    forward! {
        fn add_used(desc_index: u16, len: u32) -> Result<(), Error>;
        fn enable_notification() -> Result<bool, Error>;
        fn disable_notification() -> Result<(), Error>;
        fn needs_notification() -> Result<bool, Error>;
        fn read_kick() -> io::Result<bool>;
        fn set_enabled(enabled: bool);
        fn set_queue_info(desc_table: u64, avail_ring: u64, used_ring: u64) -> Result<(), Error>;
        fn queue_next_avail() -> u16;
        fn set_queue_next_avail(base: u16);
        fn set_queue_next_used(index: u16);
        fn queue_used_idx() -> Result<u16, Error>;
        fn set_queue_size(num: u16);
        fn set_queue_event_idx(enabled: bool);
        fn set_queue_ready(ready: bool);
    }
}

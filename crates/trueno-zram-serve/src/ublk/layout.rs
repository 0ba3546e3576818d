//! The numbers and messages of the ublk driver (`linux/ublk_cmd.h`).

/// Length of a control command.
pub(super) const CONTROL_BYTES: usize = 32;
/// Length of a command of a queue.
pub(super) const IO_BYTES: usize = 16;
/// Length of the description of a device.
pub(super) const DEVICE_INFO_BYTES: usize = 64;
/// Length of a request's descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 24;
/// Requests per queue for which the driver leaves room between the descriptors of two queues.
pub(super) const MAX_QUEUE_DEPTH: usize = 4096;

/// Features that this server needs: encoded commands, and data that is read and written like a file.
pub(super) const FEATURES: u64 = FEATURE_IOCTL_ENCODE | FEATURE_USER_COPY;
const FEATURE_IOCTL_ENCODE: u64 = 1 << 6;
const FEATURE_USER_COPY: u64 = 1 << 7;

/// The driver aborted the command (`-ENODEV`).
pub(super) const ABORTED: i32 = -19;

/// Control commands.
pub(super) mod control {
    pub(crate) const ADD: u32 = super::encoded(0x04, super::CONTROL_BYTES);
    pub(crate) const DELETE: u32 = super::encoded(0x05, super::CONTROL_BYTES);
    pub(crate) const START: u32 = super::encoded(0x06, super::CONTROL_BYTES);
    pub(crate) const STOP: u32 = super::encoded(0x07, super::CONTROL_BYTES);
    pub(crate) const SET_PARAMETERS: u32 = super::encoded(0x08, super::CONTROL_BYTES);
}

/// Commands of a queue.
pub(super) mod io {
    pub(crate) const FETCH: u32 = super::encoded(0x20, super::IO_BYTES);
    pub(crate) const COMMIT_AND_FETCH: u32 = super::encoded(0x21, super::IO_BYTES);
}

/// Operations of requests.
pub(super) mod operation {
    pub(crate) const READ: u8 = 0;
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const FLUSH: u8 = 2;
    pub(crate) const DISCARD: u8 = 3;
    pub(crate) const WRITE_ZEROES: u8 = 5;
    /// The flag of a request whose zeros may not become holes.
    pub(crate) const NO_UNMAP: u32 = 1 << 15;
}

/// `_IOWR('u', number, length)`.
#[allow(clippy::cast_possible_truncation, reason = "commands are short")]
const fn encoded(number: u32, len_bytes: usize) -> u32 {
    3 << 30 | (len_bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

/// The description of a device: as requested, then as the driver granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) max_io_bytes: u32,
    /// `u32::MAX` asks for any number.
    pub(super) id: u32,
    pub(super) features: u64,
}

impl DeviceInfo {
    pub(super) fn encode(self) -> [u8; DEVICE_INFO_BYTES] {
        let mut bytes = [0; DEVICE_INFO_BYTES];
        bytes[..2].copy_from_slice(&self.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.max_io_bytes.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.id.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.features.to_ne_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; DEVICE_INFO_BYTES]) -> Self {
        Self {
            queues: u16::from_ne_bytes(field(bytes, 0)),
            depth: u16::from_ne_bytes(field(bytes, 2)),
            max_io_bytes: u32::from_ne_bytes(field(bytes, 8)),
            id: u32::from_ne_bytes(field(bytes, 12)),
            features: u64::from_ne_bytes(field(bytes, 24)),
        }
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes.get(at + index).copied().unwrap_or(0))
}

/// The parameters of a device of whole pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceParameters {
    pub(super) sectors: u64,
    pub(super) max_io_bytes: u32,
    /// The most sectors of one discard or write zeroes request.
    pub(super) max_zero_sectors: u32,
    pub(super) read_only: bool,
}

/// The parameters of a device, as the driver takes them.
pub(super) fn parameters(device: DeviceParameters) -> Vec<u8> {
    let DeviceParameters { sectors, max_io_bytes, max_zero_sectors, read_only } = device;
    const BASIC: u32 = 1;
    const DISCARD: u32 = 2;
    const READ_ONLY: u32 = 1;
    const PAGE_SHIFT: u8 = 12;
    let mut body = Vec::new();
    let types = if read_only { BASIC } else { BASIC | DISCARD };
    body.extend(types.to_ne_bytes());
    body.extend(if read_only { READ_ONLY } else { 0 }.to_ne_bytes());
    // Logical and physical blocks, best and least length of requests.
    body.extend([PAGE_SHIFT; 4]);
    body.extend((max_io_bytes / 512).to_ne_bytes());
    body.extend(0u32.to_ne_bytes()); // no chunks
    body.extend(sectors.to_ne_bytes());
    body.extend(0u64.to_ne_bytes()); // no boundary
    body.extend(0u32.to_ne_bytes()); // discard: alignment, granularity, limits, one range per request
    body.extend(4096u32.to_ne_bytes());
    body.extend([max_zero_sectors.to_ne_bytes(); 2].concat());
    body.extend(1u16.to_ne_bytes());
    body.extend(0u16.to_ne_bytes());
    let len_bytes = u32::try_from(body.len() + 4).unwrap_or(0);
    [&len_bytes.to_ne_bytes()[..], &body].concat()
}

/// Encodes a control command for a device, with a buffer or a word of data.
pub(super) fn control_command(device: u32, address: u64, len_bytes: u16, data: u64) -> [u8; CONTROL_BYTES] {
    let mut bytes = [0; CONTROL_BYTES];
    bytes[..4].copy_from_slice(&device.to_ne_bytes());
    // Not for a queue.
    bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    bytes[6..8].copy_from_slice(&len_bytes.to_ne_bytes());
    bytes[8..16].copy_from_slice(&address.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// Encodes a command of a queue, with the result of a request.
pub(super) fn io_command(queue: u16, tag: u16, result: i32) -> [u8; IO_BYTES] {
    let mut bytes = [0; IO_BYTES];
    bytes[..2].copy_from_slice(&queue.to_ne_bytes());
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes
}

/// Returns the position of a request's data in the file of the device.
pub(super) fn data_offset(queue: u16, tag: u16) -> u64 {
    const DATA_START: u64 = 0x8000_0000;
    DATA_START + (u64::from(queue) << 41) + (u64::from(tag) << 25)
}

/// A request, as the driver describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) operation: u8,
    pub(super) flags: u32,
    pub(super) sectors: u32,
    pub(super) start_sector: u64,
}

impl Descriptor {
    /// Decodes the first two words of a descriptor.
    pub(super) fn decode(words: [u64; 2]) -> Self {
        let first = words[0].to_ne_bytes();
        let operation_and_flags = u32::from_ne_bytes(field(&first, 0));
        Self {
            operation: operation_and_flags.to_le_bytes()[0],
            flags: operation_and_flags,
            sectors: u32::from_ne_bytes(field(&first, 4)),
            start_sector: words[1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_header() {
        // As a C program prints UBLK_U_CMD_ADD_DEV and UBLK_U_IO_COMMIT_AND_FETCH_REQ.
        assert_eq!((control::ADD, control::STOP), (0xc020_7504, 0xc020_7507));
        assert_eq!((io::FETCH, io::COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
    }

    #[test]
    fn messages_have_the_layout_of_the_header() {
        let info = DeviceInfo { queues: 2, depth: 64, max_io_bytes: 1 << 19, id: 7, features: FEATURES };
        assert_eq!(DeviceInfo::decode(&info.encode()), info);
        let small = DeviceParameters { sectors: 8, max_io_bytes: 4096, max_zero_sectors: 8, read_only: true };
        assert_eq!(parameters(small).len(), 60);
        let parameters = parameters(DeviceParameters {
            sectors: 1 << 21,
            max_io_bytes: 1 << 19,
            max_zero_sectors: 1 << 15,
            read_only: false,
        });
        assert_eq!(parameters[..8], [60, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(parameters[24..32], (1u64 << 21).to_ne_bytes());
        let descriptor = Descriptor::decode([8 << 32 | 1 << 15 | 5, 1 << 40]);
        assert_eq!((descriptor.operation, descriptor.sectors, descriptor.start_sector), (5, 8, 1 << 40));
        assert_ne!(descriptor.flags & operation::NO_UNMAP, 0);
        assert_eq!(control_command(1, 2, 3, 4)[4..8], [0xff, 0xff, 3, 0]);
        assert_eq!(io_command(1, 2, -5)[..8], [1, 0, 2, 0, 0xfb, 0xff, 0xff, 0xff]);
        assert_eq!(data_offset(1, 1), 0x8000_0000 + (1 << 41) + (1 << 25));
    }
}

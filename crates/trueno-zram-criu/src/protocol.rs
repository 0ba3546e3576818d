//! The messages of CRIU's page servers: records of 32 bytes in the byte order of x86 and ARM.

/// Length of a record.
pub(crate) const RECORD_LEN: usize = 32;

/// Pages follow, with flags in the upper half of the command.
const ADD_WITH_FLAGS: u32 = 6;
/// The client asks for pages.
const GET: u32 = 7;
/// The client is done.
const CLOSE: u32 = 0x1023;
/// The client is done, and the connection may stay open.
const FORCE_CLOSE: u32 = 0x1024;

/// Flag of a reply: the pages follow.
const PRESENT: u32 = 1 << 2;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Pages of a process.
    Get { pid: u64, address: u64, pages: u64 },
    /// An acknowledgement that all is done.
    Close,
}

impl Request {
    /// Reads a record: `u32 command, u32 padding, u64 pages, u64 address, u64 process`.
    ///
    /// # Errors
    /// Any other command, which only the receiver of a dump knows.
    pub(crate) fn decode(record: &[u8; RECORD_LEN]) -> Result<Self, u32> {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| record[at + byte]));
        let command = u32::from_le_bytes(std::array::from_fn(|byte| record[byte]));
        // The upper half has flags, which these requests do not need.
        match command & 0xffff {
            GET => Ok(Self::Get { pages: number(8), address: number(16), pid: number(24) }),
            CLOSE | FORCE_CLOSE => Ok(Self::Close),
            command => Err(command),
        }
    }
}

/// Returns the record before pages.
pub(crate) fn encode_pages(pid: u64, address: u64, pages: u64) -> [u8; RECORD_LEN] {
    let mut record = [0; RECORD_LEN];
    record[..4].copy_from_slice(&(ADD_WITH_FLAGS | PRESENT << 16).to_le_bytes());
    record[8..16].copy_from_slice(&pages.to_le_bytes());
    record[16..24].copy_from_slice(&address.to_le_bytes());
    record[24..].copy_from_slice(&pid.to_le_bytes());
    record
}

/// The answer to [`Request::Close`]: a status of 0.
pub(crate) const CLOSED: [u8; 4] = [0; 4];

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct page_server_iov` of CRIU on x86-64.
    #[test]
    fn records_have_the_layout_of_the_c_structure() {
        let mut record = [0; RECORD_LEN];
        record[0] = 7;
        record[4..8].fill(0xff);
        record[8] = 3;
        record[16..24].copy_from_slice(&0x7f00_1234_5000u64.to_le_bytes());
        record[24] = 42;
        assert_eq!(Request::decode(&record), Ok(Request::Get { pid: 42, address: 0x7f00_1234_5000, pages: 3 }));
        let reply = encode_pages(42, 0x7f00_1234_5000, 3);
        assert_eq!((&reply[..8], &reply[8..]), (&[6, 0, 4, 0, 0, 0, 0, 0][..], &record[8..]));
        for (command, request) in
            [(0x1023, Ok(Request::Close)), (0x1024, Ok(Request::Close)), (3, Err(3)), (0xffff, Err(0xffff))]
        {
            record[..4].copy_from_slice(&u32::to_le_bytes(command));
            assert_eq!(Request::decode(&record), request);
        }
    }
}

//! Reads the parts of a delta that are needed to open it, and checks them.

use crate::error::{Error, Result};
use crate::read_at::{ReadAt, file_len, read_part};

use super::identity::digest;
use super::layout::{
    BaseRecord, DeltaFooter, FOOTER_LEN, HEAD_LEN, HEAD_MAGIC, MAX_GROUP_LEN, MAX_RECORD_LEN, MapRecord, RECORD_LEN,
    head,
};

/// Bytes of the table that are read at a time.
const TABLE_CHUNK: usize = 64 << 10;

/// Reads the footer; `None` if the file does not start like a delta.
pub(crate) fn read_footer(file: &dyn ReadAt) -> Result<Option<DeltaFooter>> {
    let file_len = file_len(file)?;
    let mut start = [0; HEAD_LEN];
    if file_len < HEAD_MAGIC.len() as u64 {
        return Ok(None);
    }
    read_part(file, 0, &mut start[..HEAD_MAGIC.len()], None, "its head")?;
    if !start.starts_with(&HEAD_MAGIC) {
        return Ok(None);
    }
    let Some(footer_at) = file_len.checked_sub(FOOTER_LEN as u64).filter(|at| *at >= HEAD_LEN as u64) else {
        return Err(Error::delta("it has no footer: the file is cut short"));
    };
    read_part(file, 0, &mut start, None, "its head")?;
    if start != head() {
        return Err(Error::delta("its head is damaged, or of a version that this reader does not know"));
    }
    let mut footer = [0; FOOTER_LEN];
    read_part(file, footer_at, &mut footer, None, "its footer")?;
    DeltaFooter::decode(&footer, file_len).map(Some)
}

/// Reads the table. The maps of all groups add up to their length.
pub(crate) fn read_records(file: &dyn ReadAt, footer: &DeltaFooter) -> Result<Vec<(u64, MapRecord)>> {
    let (mut records, mut at) = (Vec::new(), footer.map_at());
    let (mut next, end) = (footer.table_at(), footer.table_at() + footer.table_len());
    let mut chunk = vec![0; TABLE_CHUNK];
    while next < end {
        let len = usize::try_from(end - next).unwrap_or(TABLE_CHUNK).min(TABLE_CHUNK);
        read_part(file, next, &mut chunk[..len], None, "its table")?;
        for record in chunk[..len].as_chunks::<RECORD_LEN>().0 {
            let record = MapRecord::decode(*record);
            if record.len_bytes as usize > MAX_GROUP_LEN {
                return Err(Error::delta("its table has a group that is too long"));
            }
            records.push((at, record));
            at += u64::from(record.len_bytes);
        }
        next += len as u64;
    }
    if at != footer.table_at() {
        return Err(Error::delta("its table does not add up to its map"));
    }
    Ok(records)
}

/// Reads the record of the base, and compares it and the table with their digest.
pub(crate) fn read_base(file: &dyn ReadAt, footer: &DeltaFooter, records: &[(u64, MapRecord)]) -> Result<BaseRecord> {
    let len = usize::try_from(footer.base_len).ok().filter(|len| *len <= MAX_RECORD_LEN);
    let len = len.ok_or_else(|| Error::delta("the record of its base is too long"))?;
    let mut base = vec![0; len];
    let at = footer.table_at() + footer.table_len();
    read_part(file, at, &mut base, None, "the record of its base")?;
    let table: Vec<u8> = records.iter().flat_map(|(_, record)| record.encode()).collect();
    if digest(&[&table, &base]) != footer.digest {
        return Err(Error::delta("its table or the record of its base is damaged"));
    }
    BaseRecord::decode(&base)
}

//! Reads the parts of a delta that are needed to open it, and checks them.

use crate::error::{Error, Result};
use crate::read_at::{ReadAt, file_len, read_part};

use super::identity::digest;
use super::layout::{BaseRecord, DeltaFooter, FOOTER_LEN, HEAD_LEN, HEAD_MAGIC, MAX_RECORD_LEN, decode_head};
use super::map_table::MapTable;

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
    let version = decode_head(&start)?;
    let mut footer = [0; FOOTER_LEN];
    read_part(file, footer_at, &mut footer, None, "its footer")?;
    DeltaFooter::decode(&footer, version, file_len).map(Some)
}

/// Reads the table and the record of the base, if there is one, and compares them with their digest.
pub(super) fn read_table(file: &dyn ReadAt, footer: &DeltaFooter) -> Result<(MapTable, Option<BaseRecord>)> {
    if footer.base_len as usize > MAX_RECORD_LEN {
        return Err(Error::delta("the record of its base is too long"));
    }
    // No more than the file has: all parts add up to its length.
    let table_len = usize::try_from(footer.table_len()).map_err(|_| Error::delta("its table is too long"))?;
    let mut bytes = vec![0; table_len + footer.base_len as usize];
    read_part(file, footer.table_at(), &mut bytes, None, "its table")?;
    if digest(&[&bytes]) != footer.digest {
        return Err(Error::delta("its table or the record of its base is damaged"));
    }
    let (table, base) = bytes.split_at(table_len);
    Ok((MapTable::decode(table, footer)?, BaseRecord::decode(base, footer.version)?))
}

//! The checksum at the end of a backup: the SHA-256 of everything before it, which reveals a single changed byte.
//!
//! SQLite reads as many pages as the header says and ignores the bytes after them. Its own checks find inconsistent
//! pages, but not a changed value.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::OpenError;
use crate::names::file_error;

/// The first bytes of a database.
const HEADER: &[u8; 16] = b"SQLite format 3\0";
/// The bytes that precede the checksum.
const MARK: &[u8; 16] = b"stepwell sha256\n";
const LENGTH: u64 = 16 + 32;
/// The length of a database is a multiple of this, for every page size.
const SMALLEST_PAGE: u64 = 512;

/// The type of a file, judged by its first and last bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A database without a checksum, or an empty file.
    Database,
    /// A backup that ends with a checksum.
    Backup,
    /// Starts like a database, but has neither a valid length nor a checksum.
    Cut,
    /// Not a SQLite database.
    Other,
}

/// Returns the type of a file from its first and last bytes.
pub(crate) fn kind(file: &mut File) -> io::Result<Kind> {
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(Kind::Database);
    }
    if length < SMALLEST_PAGE || !reads(file, SeekFrom::Start(0), HEADER)? {
        return Ok(Kind::Other);
    }
    if reads(file, SeekFrom::End(-(LENGTH as i64)), MARK)? {
        return Ok(Kind::Backup);
    }
    Ok(if length.is_multiple_of(SMALLEST_PAGE) { Kind::Database } else { Kind::Cut })
}

fn reads(file: &mut File, at: SeekFrom, expected: &[u8; 16]) -> io::Result<bool> {
    let mut found = [0; 16];
    file.seek(at)?;
    file.read_exact(&mut found)?;
    Ok(found == *expected)
}

/// Removes the checksum of a backup that is about to be opened as a database, because the first write would invalidate
/// it.
pub(crate) fn strip(path: &Path) -> Result<(), OpenError> {
    let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if length.is_multiple_of(SMALLEST_PAGE) {
        return Ok(());
    }
    let stripped = OpenOptions::new().read(true).write(true).open(path).and_then(|mut file| {
        let is_backup = kind(&mut file)? == Kind::Backup;
        if is_backup { file.set_len(length - LENGTH) } else { Ok(()) }
    });
    stripped.map_err(|error| file_error(path, &format!("cannot remove the checksum of the backup: {error}")))
}

/// Appends the checksum to a file.
pub(crate) fn append(file: &mut File) -> io::Result<()> {
    let length = file.metadata()?.len();
    let sum = over(file, length)?;
    file.seek(SeekFrom::End(0))?;
    file.write_all(&[MARK.as_slice(), &sum].concat())
}

/// Returns true if the checksum at the end of a backup matches its content.
pub(crate) fn checksum_matches(file: &mut File) -> io::Result<bool> {
    let length = file.metadata()?.len().saturating_sub(LENGTH);
    let sum = over(file, length)?;
    let mut found = [0; 32];
    file.seek(SeekFrom::End(-32))?;
    file.read_exact(&mut found)?;
    Ok(sum == found)
}

fn over(file: &mut File, length: u64) -> io::Result<[u8; 32]> {
    file.seek(SeekFrom::Start(0))?;
    let mut rest = file.take(length);
    let (mut sum, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match rest.read(&mut buffer)? {
            0 => return Ok(sum.finalize().into()),
            read => sum.update(&buffer[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom, Write};

    use super::{HEADER, Kind, append, checksum_matches, kind};

    #[test]
    fn checksum_detects_every_changed_byte() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[HEADER.as_slice(), &[7; 1_008]].concat()).unwrap();
        assert_eq!(kind(&mut file).unwrap(), Kind::Database);
        append(&mut file).unwrap();
        assert_eq!((kind(&mut file).unwrap(), checksum_matches(&mut file).unwrap()), (Kind::Backup, true));
        let length = file.metadata().unwrap().len();
        for at in 0..length {
            let mut byte = [0];
            let mut flip = || {
                file.seek(SeekFrom::Start(at)).unwrap();
                file.read_exact(&mut byte).unwrap();
                file.seek(SeekFrom::Start(at)).unwrap();
                file.write_all(&[byte[0] ^ 0x10]).unwrap();
            };
            flip();
            let sound = kind(&mut file).unwrap() == Kind::Backup && checksum_matches(&mut file).unwrap();
            assert!(!sound && kind(&mut file).unwrap() != Kind::Database, "byte {at}");
            let mut file = &file;
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&byte).unwrap();
        }
        file.set_len(length - 1).unwrap();
        assert_eq!(kind(&mut file).unwrap(), Kind::Cut);
        file.set_len(0).unwrap();
        assert_eq!(kind(&mut file).unwrap(), Kind::Database, "SQLite calls an empty file a database");
        file.write_all(b"a letter").unwrap();
        assert_eq!(kind(&mut file).unwrap(), Kind::Other);
    }
}

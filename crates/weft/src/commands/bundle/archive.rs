//! Writer for a tar archive (ustar) with small files.
//!
//! Source: tar(5), ustar.

use std::fs::File;
use std::io::{self, Write};

/// Block size, in bytes.
const BLOCK: usize = 512;
/// Maximum length for a name, in bytes.
const NAME_MAX: usize = 100;

/// Archive that is being written.
#[derive(Debug)]
pub(super) struct Archive {
    file: File,
    /// Time that each file gets, in seconds since 1970.
    time: u64,
}

impl Archive {
    /// Returns an empty archive.
    pub(super) fn new(file: File, time: u64) -> Archive {
        Archive { file, time }
    }

    /// Appends a file.
    ///
    /// # Errors
    /// The name is too long, or the archive cannot be written.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let header = header(name, content.len(), self.time)?;
        self.file.write_all(&header)?;
        self.file.write_all(content)?;
        let rest = content.len() % BLOCK;
        if rest > 0 {
            self.file.write_all(&[0; BLOCK][rest..])?;
        }
        Ok(())
    }

    /// Ends the archive.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.file.write_all(&[0; 2 * BLOCK])?;
        // A pipe or a terminal has nothing to sync.
        if self.file.metadata()?.is_file() { self.file.sync_all() } else { Ok(()) }
    }
}

fn header(name: &str, size: usize, time: u64) -> io::Result<[u8; BLOCK]> {
    if name.len() > NAME_MAX {
        return Err(io::Error::other(format!("{name}: longer than {NAME_MAX} bytes")));
    }
    let mut header = [0; BLOCK];
    let fields: [(usize, String); 9] = [
        (0, name.to_owned()),
        (100, "0000600\0".to_owned()),
        (108, "0000000\0".to_owned()),
        (116, "0000000\0".to_owned()),
        (124, format!("{size:011o}\0")),
        (136, format!("{time:011o}\0")),
        // The checksum counts as blanks while it is computed.
        (148, " ".repeat(8)),
        (156, "0".to_owned()),
        (257, "ustar\x0000".to_owned()),
    ];
    for (offset, text) in fields {
        header[offset..offset + text.len()].copy_from_slice(text.as_bytes());
    }
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

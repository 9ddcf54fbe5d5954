// SPDX-License-Identifier: GPL-2.0
//! The file that is written.

use crate::Failure;
use blkrelay_format::{Meta, Trailer, Writer};
use blkrelay_trace::Dev;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The file, opened before the trace is started and still as it was.
#[derive(Debug)]
pub struct Target {
    path: PathBuf,
    file: File,
    device: Dev,
    regular: bool,
    /// We made it: it goes again if nothing is recorded.
    created: bool,
}

/// The file, being written.
#[derive(Debug)]
pub struct Recording {
    pub writer: Writer<File>,
    path: PathBuf,
    regular: bool,
}

impl Target {
    /// Opens `path` for writing. An existing file is only opened with `force`, and then not touched yet.
    ///
    /// # Errors
    ///
    /// If it exists, is a block device, or cannot be made or written.
    pub fn open(path: &Path, force: bool) -> Result<Target, Failure> {
        let fail = |error: io::Error| format!("{}: {error}", path.display());
        let open = |options: &mut OpenOptions| options.write(true).open(path);
        let (file, created) = match open(OpenOptions::new().create_new(true)) {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !force {
                    let path = path.display();
                    return Err(
                        format!("{path}: exists already: use --force to overwrite it").into(),
                    );
                }
                (open(&mut OpenOptions::new()).map_err(fail)?, false)
            }
            Err(error) => return Err(fail(error).into()),
        };
        let data = file.metadata().map_err(fail)?;
        if data.file_type().is_block_device() {
            let path = path.display();
            return Err(format!("{path}: is a block device: name a file to write to").into());
        }
        Ok(Target {
            path: path.to_owned(),
            file,
            device: Dev {
                major: rustix::fs::major(data.dev()),
                minor: rustix::fs::minor(data.dev()),
            },
            regular: data.is_file(),
            created,
        })
    }

    /// As it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device of its file system.
    pub fn device(&self) -> Dev {
        self.device
    }

    /// Empties the file and writes its beginning.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn begin(mut self, meta: &Meta) -> Result<Recording, Failure> {
        let path = self.path.clone();
        let fail = |error: io::Error| format!("{}: {error}", path.display());
        let file = self.file.try_clone().map_err(fail)?;
        if self.regular {
            file.set_len(0).map_err(fail)?;
        }
        let writer = Writer::new(file, meta).map_err(fail)?;
        self.created = false;
        Ok(Recording {
            writer,
            path: path.clone(),
            regular: self.regular,
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.created {
            // Best effort: an empty file is left behind, no more.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Recording {
    /// As it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the file and returns its size. What a failed write left behind the last whole chunk is cut off
    /// first; if then there is no room for the trailer, the file goes without.
    ///
    /// # Errors
    ///
    /// If the file cannot be cut or synced.
    pub fn finish(mut self, trailer: &Trailer) -> Result<u64, Failure> {
        let path = self.path.clone();
        let fail = |error: io::Error| format!("{}: {error}", path.display());
        let good = self.writer.len();
        let file = self.writer.get_ref().try_clone().map_err(fail)?;
        if self.regular {
            file.set_len(good).map_err(fail)?;
            self.writer
                .get_mut()
                .seek(SeekFrom::Start(good))
                .map_err(fail)?;
        }
        let ended = self.writer.finish(trailer);
        if let Err(error) = ended {
            if !self.regular {
                return Err(fail(error).into());
            }
            crate::say(format_args!(
                "{}: {error}: no room for the trailer",
                path.display()
            ));
            file.set_len(good).map_err(fail)?;
        }
        if !self.regular {
            return Ok(good);
        }
        file.sync_all().map_err(fail)?;
        Ok(file.metadata().map_err(fail)?.len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn nothing_is_left_or_overwritten_if_nothing_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new.blkr");
        drop(Target::open(&path, false).unwrap());
        assert!(!path.exists());

        fs::write(&path, "precious").unwrap();
        let error = Target::open(&path, false).unwrap_err().to_string();
        assert!(
            error.ends_with("exists already: use --force to overwrite it"),
            "{error}"
        );
        drop(Target::open(&path, true).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");

        let nowhere = dir.path().join("none/file.blkr");
        let error = Target::open(&nowhere, true).unwrap_err().to_string();
        assert!(error.contains("No such file or directory"), "{error}");
    }

    #[test]
    fn a_finished_file_is_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old.blkr");
        fs::write(&path, vec![b'x'; 100_000]).unwrap();
        let meta = Meta {
            format: 1,
            ..Meta::default()
        };
        let recording = Target::open(&path, true).unwrap().begin(&meta).unwrap();
        let bytes = recording.finish(&Trailer::default()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
        let source = blkrelay_trace::open(&path).unwrap();
        assert_eq!(source.problems(), []);
        assert_eq!(source.events().count(), 0);
    }
}

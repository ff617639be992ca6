//! A lock that only processes of one user can take: a file that other users cannot open.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A locked file; unlocked and removed on drop.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    _file: File,
}

impl LockFile {
    /// Takes the lock; `None` if another process has it.
    ///
    /// # Errors
    /// If the file cannot be created, is a symbolic link, or belongs to another user.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let file = open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // The previous holder may have removed the file between the two steps.
            let inode = file.metadata()?.ino();
            if fs::symlink_metadata(path).is_ok_and(|meta| meta.ino() == inode) {
                return Ok(Some(Self { path: path.into(), _file: file }));
            }
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // While it is still locked, so that nobody else has taken it meanwhile.
        let _gone = fs::remove_file(&self.path);
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    let own = rustix::process::geteuid().as_raw();
    match file.metadata()?.uid() {
        owner if owner == own => Ok(file),
        owner => {
            let path = path.display();
            Err(io::Error::other(format!("{path} belongs to user {owner}; remove it with `rm {path}`")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn place(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("bm-lock-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder.join("api.sock.lock")
    }

    #[test]
    fn only_one_holder_at_a_time() {
        let path = place("one");
        let ours = LockFile::take(&path).unwrap().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(LockFile::take(&path).unwrap().is_none());
        drop(ours);
        assert!(!path.exists());
        // Left by a process that was killed.
        fs::write(&path, "").unwrap();
        assert!(LockFile::take(&path).unwrap().is_some());
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn links_and_files_of_others_are_refused() {
        let path = place("others");
        let target = path.with_file_name("target");
        symlink(&target, &path).unwrap();
        assert_eq!(LockFile::take(&path).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert!(!target.exists(), "the link was not followed");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        if chown(&path, Some(65534), None).is_ok() {
            let refused = LockFile::take(&path).unwrap_err().to_string();
            assert!(refused.contains("belongs to user 65534; remove it with `rm "), "{refused}");
        }
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}

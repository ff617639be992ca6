//! A folder in bpffs that one process owns for as long as it lives.
//!
//! Anyone who can open the folder can lock it, so only its owner may open it: the mode is 0700. A bpffs may be
//! mounted writable for everybody, so a folder there that belongs to another user is refused.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bpffs::for_others;

/// Read, write and search permission for the owner only.
const PRIVATE: u32 = 0o700;
/// How often to try to lock a folder before concluding that another daemon has it, and the pause between attempts.
/// Other processes hold the lock for a moment while they clean up or remove the folder, and so does a process that is
/// just being forked.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// A folder that no other process may use until this is dropped. It is then removed if it is empty.
#[derive(Debug)]
pub(crate) struct ClaimedFolder {
    top: PathBuf,
    path: PathBuf,
    _lock: File,
}

/// Why a folder cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum NotClaimed {
    /// Another process has claimed it.
    #[error("another daemon is using {}: each network namespace can have only one", for_others(folder).display())]
    Taken { folder: PathBuf },
    #[error("{0} belongs to user {owner}; remove it with `rm -r {0}`", for_others(folder).display())]
    Foreign {
        folder: PathBuf,
        /// The ID of the user.
        owner: u32,
    },
    #[error("{}: {error}", for_others(folder).display())]
    System { folder: PathBuf, error: io::Error },
}

impl ClaimedFolder {
    /// Claims the folder `below` in the folder `top`, and creates both if needed. Tries for a tenth of a second if
    /// another process has it.
    ///
    /// # Errors
    /// See [`NotClaimed`].
    pub fn claim(top: &Path, below: &Path) -> Result<Self, NotClaimed> {
        for _ in 1..TRIES {
            match Self::try_claim(top, below) {
                Err(NotClaimed::Taken { .. }) => std::thread::sleep(PAUSE),
                result => return result,
            }
        }
        Self::try_claim(top, below)
    }

    /// As [`claim`](Self::claim), but tries only once.
    ///
    /// # Errors
    /// See [`NotClaimed`].
    pub(crate) fn try_claim(top: &Path, below: &Path) -> Result<Self, NotClaimed> {
        let path = top.join(below);
        let taken = || NotClaimed::Taken { folder: path.clone() };
        let mut lock = private(top)?;
        let mut folder = top.to_path_buf();
        for part in below {
            folder.push(part);
            // Its previous owner may remove it between the two steps of creating and opening it.
            lock = match private(&folder) {
                Err(NotClaimed::System { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(taken());
                }
                result => result?,
            };
        }
        if lock.try_lock().is_err() {
            return Err(taken());
        }
        match (lock.metadata(), fs::metadata(&path)) {
            (Ok(own), Ok(present)) if own.ino() == present.ino() => {
                Ok(Self { top: top.into(), path, _lock: lock })
            }
            _ => Err(taken()),
        }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ClaimedFolder {
    fn drop(&mut self) {
        // A folder that is not empty stays.
        for folder in self.path.ancestors().take_while(|folder| folder.starts_with(&self.top)) {
            let _emptied = fs::remove_dir(folder);
        }
    }
}

/// Opens a folder that belongs to this user and that no other user can open; creates it if needed.
fn private(folder: &Path) -> Result<File, NotClaimed> {
    let system = |error| NotClaimed::System { folder: folder.into(), error };
    match DirBuilder::new().mode(PRIVATE).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(system(error)),
        _ => (),
    }
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(folder).map_err(system)?;
    let meta = opened.metadata().map_err(system)?;
    if meta.uid() != bm_sys::effective_user() {
        return Err(NotClaimed::Foreign { folder: folder.into(), owner: meta.uid() });
    }
    // Earlier versions created it readable for everybody.
    if meta.mode() & 0o777 != PRIVATE {
        opened.set_permissions(Permissions::from_mode(PRIVATE)).map_err(system)?;
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    /// A user without any rights.
    const NOBODY: u32 = 65534;

    fn top(test: &str) -> PathBuf {
        std::env::temp_dir().join(format!("bm-claim-{test}-{}", std::process::id()))
    }

    fn is_root() -> bool {
        bm_sys::effective_user() == 0
    }

    #[test]
    fn waiting_stops_for_a_folder_of_another_user() {
        let (top, below) = (top("once"), Path::new("4026531840"));
        let ours = ClaimedFolder::claim(&top, below).unwrap();
        let asked = std::time::Instant::now();
        for _ in 0..200 {
            assert!(matches!(ClaimedFolder::try_claim(&top, below), Err(NotClaimed::Taken { .. })));
        }
        // With the pauses of `claim` it would be 20 seconds.
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        assert!(matches!(ClaimedFolder::claim(&top, below), Err(NotClaimed::Taken { .. })));
        drop(ours);
        drop(ClaimedFolder::claim(&top, below).unwrap());
        assert!(!top.exists());
    }

    #[test]
    fn folders_in_use_are_kept() {
        let top = top("levels");
        let low = ClaimedFolder::claim(&top, Path::new("1/low")).unwrap();
        drop(ClaimedFolder::claim(&top, Path::new("1/high")).unwrap());
        assert!(low.path().exists() && !top.join("1/high").exists());
        fs::write(low.path().join("7"), "").unwrap();
        let path = low.path().to_path_buf();
        drop(low);
        assert!(path.exists());
        fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn another_user_cannot_lock_it() {
        if !is_root() {
            return eprintln!("skipped: another_user_cannot_lock_it needs root");
        }
        let (top, below) = (top("lock"), Path::new("4026531840"));
        // As an earlier version left it.
        fs::create_dir_all(top.join(below)).unwrap();
        fs::set_permissions(&top, Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(top.join(below), Permissions::from_mode(0o755)).unwrap();
        let lock = |folder: &Path| {
            let mut command = Command::new("flock");
            command.args(["--nonblock", "--exclusive"]).arg(folder).arg("true");
            command.uid(NOBODY).gid(NOBODY).stderr(Stdio::null()).status().unwrap().success()
        };
        assert!(lock(&top.join(below)), "the lock was open to everybody");
        let ours = ClaimedFolder::claim(&top, below).unwrap();
        assert!(!lock(ours.path()) && !lock(&top));
        for folder in [ours.path(), &top] {
            assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, PRIVATE);
        }
        drop(ours);
        assert!(!top.exists());
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        if !is_root() {
            return eprintln!("skipped: a_folder_of_another_user_is_refused needs root");
        }
        let (top, below) = (top("foreign"), Path::new("4026531840"));
        fs::create_dir_all(&top).unwrap();
        std::os::unix::fs::chown(&top, Some(NOBODY), None).unwrap();
        let refused = ClaimedFolder::claim(&top, below).unwrap_err().to_string();
        let folder = top.display();
        assert_eq!(refused, format!("{folder} belongs to user 65534; remove it with `rm -r {folder}`"));
        fs::remove_dir(&top).unwrap();
        std::os::unix::fs::symlink("/", &top).unwrap();
        let refused = ClaimedFolder::claim(&top, below).unwrap_err();
        assert!(matches!(refused, NotClaimed::System { .. }), "{refused}");
        fs::remove_file(&top).unwrap();
    }
}

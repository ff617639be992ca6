//! A folder in bpffs that one process has to itself, for as long as it lives.
//!
//! The lock of a folder is open to whoever can open the folder, so only its owner can: the mode is 0700. A bpffs may
//! be mounted so that everybody can write to it; a folder there that another user has made is refused.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bpffs::for_others;

/// Read, written and entered by its owner alone.
const PRIVATE: u32 = 0o700;
/// How often a folder is asked for before it counts as another daemon's, and the pause between: others hold it
/// for a moment when they sweep it or remove it, and a process that was just being forked does with a lock that was
/// given back.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// A folder that no other process may use until this is dropped. Then it is removed where nothing is in it.
#[derive(Debug)]
pub struct ClaimedFolder {
    top: PathBuf,
    path: PathBuf,
    _lock: File,
}

/// Why a folder is not this process's.
#[derive(Debug)]
pub enum NotClaimed {
    /// Another process has it.
    Taken {
        /// The folder.
        folder: PathBuf,
    },
    /// Another user has made it.
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// That user's number.
        owner: u32,
    },
    /// A system call failed.
    System {
        /// The folder.
        folder: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

impl fmt::Display for NotClaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { folder } => {
                write!(
                    f,
                    "another daemon is using {}: each network namespace can have only one",
                    for_others(folder).display()
                )
            }
            Self::Foreign { folder, owner } => {
                let folder = for_others(folder);
                let folder = folder.display();
                write!(f, "{folder} belongs to user {owner}; remove it with `rm -r {folder}`")
            }
            Self::System { folder, error } => write!(f, "{}: {error}", for_others(folder).display()),
        }
    }
}

impl std::error::Error for NotClaimed {}

impl ClaimedFolder {
    /// Claims the folder `below` the folder `top`, and makes both where they are missing. Tries for a tenth of a
    /// second while another process has it.
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
    pub fn try_claim(top: &Path, below: &Path) -> Result<Self, NotClaimed> {
        let path = top.join(below);
        let taken = || NotClaimed::Taken { folder: path.clone() };
        let mut lock = private(top)?;
        let mut folder = top.to_path_buf();
        for part in below {
            folder.push(part);
            // Whoever had it may remove it between the two steps of making and opening it.
            lock = match private(&folder) {
                Err(NotClaimed::System { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(taken());
                }
                result => result?,
            };
        }
        // SAFETY: passes numbers.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(taken());
        }
        let inode = |meta: io::Result<fs::Metadata>| meta.map(|meta| meta.ino()).ok();
        if inode(lock.metadata()).is_some_and(|own| inode(fs::metadata(&path)) == Some(own)) {
            return Ok(Self { top: top.into(), path, _lock: lock });
        }
        Err(taken())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ClaimedFolder {
    fn drop(&mut self) {
        // Each stays where something is in it.
        for folder in self.path.ancestors().take_while(|folder| folder.starts_with(&self.top)) {
            let _emptied = fs::remove_dir(folder);
        }
    }
}

/// Opens a folder of this user that nobody else can open; makes it where it is missing.
fn private(folder: &Path) -> Result<File, NotClaimed> {
    let system = |error| NotClaimed::System { folder: folder.into(), error };
    match DirBuilder::new().mode(PRIVATE).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(system(error)),
        _ => (),
    }
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(folder).map_err(system)?;
    let meta = opened.metadata().map_err(system)?;
    // SAFETY: has no arguments and cannot fail.
    if meta.uid() != unsafe { libc::geteuid() } {
        return Err(NotClaimed::Foreign { folder: folder.into(), owner: meta.uid() });
    }
    // Earlier versions made it for everybody to read.
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
        // SAFETY: has no arguments and cannot fail.
        unsafe { libc::geteuid() == 0 }
    }

    #[test]
    fn a_folder_of_others_is_not_waited_for() {
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
    fn what_is_in_use_stays() {
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

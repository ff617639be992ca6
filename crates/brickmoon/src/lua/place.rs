//! Where a Lua program is asked that was not told where.
//!
//! At the daemon's socket if no one answers there, else at a socket of its own beside it, `run-PID.sock`. A process that is
//! killed leaves its socket behind; the next one that makes a socket of its own removes it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bm_api::request::SOCKET;
use tokio::net::UnixStream;

use crate::daemon::server::Socket;
use crate::{Failure, log};

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_millis(100);
/// How long the folder's lock is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// The daemon's socket if it is free, else one of this process.
pub async fn somewhere() -> Option<Socket> {
    if let Ok(socket) = Socket::listen(Path::new(SOCKET)).await {
        return Some(socket);
    }
    let folders = [
        Path::new(SOCKET).parent().map(PathBuf::from),
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
    ];
    for folder in folders.into_iter().flatten() {
        if let Ok((path, socket)) = own(&folder).await {
            log::say(&format!("brickmoon: ask this program with --socket {}", path.display()));
            return Some(socket);
        }
    }
    None
}

/// A socket of this process in a folder, from which those of dead processes are removed.
async fn own(folder: &Path) -> Result<(PathBuf, Socket), Failure> {
    // Between being made and being listened on, a socket looks like a dead one; so nobody looks meanwhile.
    let lock = lock(folder).await;
    if lock.is_some() {
        remove_dead(folder).await;
    }
    let path = folder.join(format!("run-{}.sock", std::process::id()));
    Socket::listen(&path).await.map(|socket| (path, socket))
}

/// The lock of a folder; none if it is not there, or somebody keeps it.
async fn lock(folder: &Path) -> Option<File> {
    let (file, begin) = (File::open(folder).ok()?, Instant::now());
    while file.try_lock().is_err() {
        if begin.elapsed() > LOCK_WAIT {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Some(file)
}

/// Removes the sockets of processes that have ended. The caller has the folder's lock.
async fn remove_dead(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let process = name.strip_prefix("run-").and_then(|rest| rest.strip_suffix(".sock"));
        let Some(process) = process.and_then(|number| number.parse::<u32>().ok()) else { continue };
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket && !Path::new(&format!("/proc/{process}")).exists() && is_refused(&entry.path()).await {
            // What may not be removed stays, and is in nobody's way.
            let _stays = fs::remove_file(entry.path());
        }
    }
}

/// Whether nobody listens: a process of another PID namespace may, whose number means nothing here. One that does not
/// answer in time listens.
async fn is_refused(path: &Path) -> bool {
    let tried = tokio::time::timeout(CONNECT_MAX, UnixStream::connect(path)).await;
    matches!(tried, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Numbers beyond the largest that Linux gives to a process, 4194304.
    const GONE: [u32; 2] = [5_000_001, 5_000_002];

    #[tokio::test]
    async fn sockets_of_dead_processes_are_removed_and_no_others() {
        let folder = std::env::temp_dir().join(format!("bm-place-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        let [dead, elsewhere] = GONE.map(|process| path(&format!("run-{process}.sock")));
        let ours = path(&format!("run-{}.sock", std::process::id()));
        // Nobody listens any more, though the number of the last is that of a process.
        drop(
            [&dead, &ours, &path("api.sock"), &path("run-x.sock")]
                .map(|path| UnixListener::bind(path).unwrap()),
        );
        let _listens = UnixListener::bind(&elsewhere).unwrap();
        fs::write(path("run-5000003.sock"), "").unwrap();
        remove_dead(&folder).await;
        let mut left: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let ours = ours.file_name().unwrap().to_string_lossy().into_owned();
        let mut expected = vec!["api.sock", "run-5000002.sock", "run-5000003.sock", "run-x.sock", &ours];
        expected.sort_unstable();
        assert_eq!(left, expected);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn a_program_has_a_socket_of_its_own_until_it_ends() {
        let folder = std::env::temp_dir().join(format!("bm-places-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, socket) = own(&folder).await.unwrap();
        remove_dead(&folder).await;
        assert!(UnixStream::connect(&path).await.is_ok());
        // The folder is free for the next one.
        File::open(&folder).unwrap().try_lock().unwrap();
        drop(socket);
        assert!(!path.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}

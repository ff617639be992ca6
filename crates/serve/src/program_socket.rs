//! The control socket of a Lua program that was not given a path for it.
//!
//! It is `run-PID.sock` beside the daemon's socket, never the daemon's own, which must stay free for the daemon. A
//! process that is killed leaves its socket behind; the next program removes it.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bm_api::request::SOCKET;
use bm_cli::Failure;
use bm_privilege::LockFile;
use tokio::net::UnixStream;

use crate::socket::Socket;

/// Time limit of a connection attempt.
const CONNECT_MAX: Duration = Duration::from_millis(100);
/// How long to wait for the lock of the directory.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Opens a socket beside the daemon's, or in the user's runtime directory; `None` if neither can be written.
pub async fn somewhere() -> Option<Socket> {
    let folders = [
        Path::new(SOCKET).parent().map(PathBuf::from),
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
    ];
    for folder in folders.into_iter().flatten() {
        if let Ok((path, socket)) = own(&folder).await {
            tracing::info!("query this program with --socket {}", path.display());
            return Some(socket);
        }
    }
    None
}

/// Opens the socket of this process in a directory, and removes those of dead processes there.
async fn own(folder: &Path) -> Result<(PathBuf, Socket), Failure> {
    // A socket that is bound but not yet listening looks dead; the lock keeps others from looking meanwhile.
    let lock = lock(folder).await;
    if lock.is_some() {
        remove_dead(folder).await;
    }
    let path = folder.join(format!("run-{}.sock", std::process::id()));
    Socket::own(&path).map(|socket| (path, socket))
}

/// Sockets of running programs in the directory of this one.
pub fn programs_beside(socket: &Path) -> Vec<PathBuf> {
    let entries = socket.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| process(path).is_some_and(|process| Path::new(&format!("/proc/{process}")).exists()))
        .collect()
}

/// The process ID in the name of a socket.
fn process(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix("run-")?.strip_suffix(".sock")?.parse().ok()
}

/// Takes the lock of a directory, which only the same user can; `None` if the directory is missing or the lock stays taken.
async fn lock(folder: &Path) -> Option<LockFile> {
    let (file, begin) = (folder.join("run.lock"), Instant::now());
    loop {
        if let Some(lock) = LockFile::take(&file).ok()? {
            return Some(lock);
        }
        if begin.elapsed() > LOCK_WAIT {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Removes the sockets of processes that have ended. The caller holds the lock of the directory.
async fn remove_dead(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Some(process) = process(&entry.path()) else { continue };
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket && !Path::new(&format!("/proc/{process}")).exists() && is_refused(&entry.path()).await {
            // A socket that cannot be removed does no harm.
            let _stays = fs::remove_file(entry.path());
        }
    }
}

/// Whether nobody listens on a socket. A process of another PID namespace may, whose ID means nothing here. A
/// connection attempt that times out counts as listening.
async fn is_refused(path: &Path) -> bool {
    let tried = tokio::time::timeout(CONNECT_MAX, UnixStream::connect(path)).await;
    matches!(tried, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Process IDs beyond the largest that Linux assigns, 4194304.
    const GONE: [u32; 2] = [5_000_001, 5_000_002];

    #[tokio::test]
    async fn sockets_of_dead_processes_are_removed_and_no_others() {
        let folder = std::env::temp_dir().join(format!("bm-place-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        let [dead, elsewhere] = GONE.map(|process| path(&format!("run-{process}.sock")));
        let ours = path(&format!("run-{}.sock", std::process::id()));
        // Nobody listens on these any more, although the last one has the ID of a running process.
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
        // The lock is free for the next program.
        assert!(lock(&folder).await.is_some());
        drop(socket);
        assert!(!path.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}

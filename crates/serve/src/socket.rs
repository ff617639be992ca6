//! The Unix control socket: one process listens on it at a time, and the one that created it removes it.
//!
//! The listener holds a lock on the file beside it (`api.sock.lock`), which only processes of the same user can take.
//! The socket is created under another name, gets its mode, and is then renamed, which replaces one that a killed
//! process left. So no process can remove the socket of one that has just started to listen, and no client can find a
//! socket with the wrong mode.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use bm_cli::Failure;
use bm_privilege::LockFile;
use tokio::net::{UnixListener, UnixStream};

use crate::connections::serve;
use crate::rights::Rights;

/// Number of attempts to take the lock, and the pause in between: a child process that is just being started may hold
/// it for a moment longer than its parent.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of connections for each kind of client.
const CONNECTIONS: usize = 256;

/// Time limit for finding out whether anything answers at all.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A listening socket; removed on drop.
pub struct Socket {
    listener: UnixListener,
    made: SocketFile,
}

struct SocketFile {
    path: PathBuf,
    inode: u64,
    /// Dropped last.
    _lock: Option<LockFile>,
}

impl Socket {
    /// Listens at `path`, and replaces a socket that nobody listens on. Everybody can connect if `open`, otherwise only
    /// the owner and the owner's group.
    pub async fn listen(path: &Path, open: bool) -> Result<Self, Failure> {
        make_folder(path)?;
        let lock = lock(path).await?;
        if somebody_listens(path).await {
            return Err(in_use(path));
        }
        Self::make(path, open, Some(lock))
    }

    /// Listens at a path that no other process uses, since its name contains the ID of this one.
    pub fn own(path: &Path) -> Result<Self, Failure> {
        make_folder(path)?;
        Self::make(path, false, None)
    }

    fn make(path: &Path, open: bool, lock: Option<LockFile>) -> Result<Self, Failure> {
        let failed = |error| Failure::Failed(format!("{}: {error}", path.display()));
        // Never replace a file that is not a socket.
        if std::fs::symlink_metadata(path).is_ok_and(|meta| !meta.file_type().is_socket()) {
            return Err(Failure::Failed(format!(
                "{}: this file is not a socket; remove it, or choose another path with --socket",
                path.display()
            )));
        }
        let new = path.with_file_name(format!(".{}.sock", std::process::id()));
        let listener = UnixListener::bind(&new).map_err(failed)?;
        let mode = std::fs::Permissions::from_mode(if open { 0o666 } else { 0o660 });
        let named = std::fs::set_permissions(&new, mode).and_then(|()| std::fs::rename(&new, path));
        let inode = named.and_then(|()| std::fs::symlink_metadata(path)).map(|meta| meta.ino());
        let inode = inode.map_err(|error| {
            let _gone = std::fs::remove_file(&new);
            failed(error)
        })?;
        Ok(Self { listener, made: SocketFile { path: path.into(), inode, _lock: lock } })
    }

    /// Serves clients by their rights until the task is dropped.
    pub async fn serve(self, rights: Rights) {
        let Self { listener, made } = self;
        serve(listener, |stream| rights.for_client(stream), CONNECTIONS).await;
        drop(made);
    }

    /// Serves all clients the same routes until the task is dropped.
    pub async fn serve_all(self, routes: Router) {
        self.serve(Rights::of_all(routes)).await;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode) {
            // It may already be gone.
            let _gone = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether a process listens on a socket, even if it accepts no connections at the moment.
pub async fn somebody_listens(socket: &Path) -> bool {
    match tokio::time::timeout(CONNECT_MAX, UnixStream::connect(socket)).await {
        Ok(Err(error)) => error.kind() == std::io::ErrorKind::WouldBlock,
        Ok(Ok(_)) | Err(_) => true,
    }
}

fn make_folder(path: &Path) -> Result<(), Failure> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
}

async fn lock(path: &Path) -> Result<LockFile, Failure> {
    let mut file = path.as_os_str().to_owned();
    file.push(".lock");
    for _ in 0..TRIES {
        let locked = LockFile::take(Path::new(&file));
        let locked =
            locked.map_err(|error| Failure::Failed(format!("cannot lock {}: {error}", path.display())))?;
        if let Some(lock) = locked {
            return Ok(lock);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(in_use(path))
}

fn in_use(path: &Path) -> Failure {
    let hint = "stop it with `brickmoon stop`, or use another socket with --socket";
    Failure::Failed(format!("another daemon or program already answers at {}: {hint}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn place(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("bm-socket-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder.join("api.sock")
    }

    fn why(result: Result<Socket, Failure>) -> String {
        result.err().expect("a refusal").to_string()
    }

    #[tokio::test]
    async fn a_second_process_is_refused_and_a_dead_one_replaced() {
        let path = place("second");
        let first = Socket::listen(&path, false).await.unwrap();
        assert!(why(Socket::listen(&path, false).await).contains("answers at"));
        assert!(UnixStream::connect(&path).await.is_ok());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        drop(first);
        assert!(std::fs::read_dir(path.parent().unwrap()).unwrap().next().is_none(), "nothing is left");
        // Left by a process that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let again = Socket::listen(&path, true).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        drop(again);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[tokio::test]
    async fn files_other_than_sockets_stay() {
        let path = place("link");
        let target = path.with_file_name("target");
        std::fs::write(&target, "kept").unwrap();
        symlink(&target, &path).unwrap();
        assert!(why(Socket::listen(&path, false).await).contains("this file is not a socket"));
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
        assert!(std::fs::symlink_metadata(&path).unwrap().is_symlink());
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[tokio::test]
    async fn the_socket_of_another_is_not_removed_at_the_end() {
        let path = place("other");
        let ours = Socket::listen(&path, false).await.unwrap();
        // Somebody has put another one in its place.
        let aside = path.with_file_name("aside");
        let _other = std::os::unix::net::UnixListener::bind(&aside).unwrap();
        std::fs::rename(&aside, &path).unwrap();
        drop(ours);
        assert!(path.exists());
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}

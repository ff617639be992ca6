//! What SAs of the configuration that have a lifetime were used for, over restarts.
//!
//! ```text
//! fingerprint of suite and keys     direction  bytes  packets  added       first packet
//! 0123456789abcdef0123456789abcdef  out        84000  1000     1790000000  1790000002
//! ```
//!
//! The file is replaced once a second while packets pass, and when workers have ended, so a kill costs a second. Times are
//! seconds since 1970: other clocks begin anew with the machine.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bm_forward::SaStatus;
use bm_graph::clock_ns;
use bm_ipsec::{Direction, Sa, SaUsage};

use super::ConfiguredSa;
use super::shown::direction;

const WRITE_EVERY: Duration = Duration::from_secs(1);
const NS_PER_S: u64 = 1_000_000_000;

/// The file.
pub struct Lifetimes {
    path: PathBuf,
    known: BTreeMap<Key, Line>,
    written: Instant,
    has_failed: bool,
}

/// Which keys, and whether they encrypt.
type Key = (u128, bool);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    bytes: u64,
    packets: u64,
    /// In seconds since 1970; 0 for never.
    added: u64,
    first: u64,
}

impl Lifetimes {
    /// Reads the file beside the state file, if there is one.
    ///
    /// # Errors
    /// What is wrong with the file, and how to fix it.
    pub fn open(state_file: &Path) -> Result<Self, String> {
        let mut path = state_file.as_os_str().to_owned();
        path.push(".lifetimes");
        let path = PathBuf::from(path);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| format!("cannot read {}: {error}", path.display()))?,
        };
        let known = text.lines().map(read_line).collect::<Option<_>>().ok_or_else(|| {
            format!(
                "{} is damaged, so it is not known how much SAs were used: delete it, and use new keys for those with a lifetime",
                path.display()
            )
        })?;
        Ok(Self { path, known, written: Instant::now(), has_failed: false })
    }

    /// For an SA that no worker of this process has had: what it was used for by others.
    pub fn status(&self, sa: &Sa) -> SaStatus {
        let Some(line) = self.known.get(&key_of(sa.fingerprint(), sa.direction)) else {
            return SaStatus::new(clock_ns());
        };
        let used = SaUsage {
            bytes: line.bytes,
            packets: line.packets,
            added_ns: clock_at(line.added),
            first_ns: if line.first == 0 { 0 } else { clock_at(line.first).max(1) },
        };
        SaStatus::after(&used, 0)
    }

    /// Called often: writes what these SAs were used for, if that has changed and the last time is long ago.
    pub fn follow(&mut self, known: &[ConfiguredSa]) {
        if self.written.elapsed() >= WRITE_EVERY {
            self.write(known);
        }
    }

    /// Writes what these SAs were used for, if that has changed.
    pub fn write(&mut self, known: &[ConfiguredSa]) {
        self.written = Instant::now();
        let mut is_new = false;
        for known in known.iter().filter(|known| known.has_lifetime) {
            let line = Line::of(&known.status.read().used);
            let before = self.known.insert(key_of(known.fingerprint, known.direction), line);
            is_new |= before.is_none_or(|before| before.differs_from(&line));
        }
        if !is_new && !self.has_failed {
            return;
        }
        let result = self.replace();
        if let (Err(error), false) = (&result, self.has_failed) {
            tracing::error!(
                "cannot write {}: {error}: lifetimes of SAs begin anew with the next start",
                self.path.display()
            );
        }
        self.has_failed = result.is_err();
    }

    fn replace(&self) -> std::io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let new = self.path.with_extension("lifetimes.new");
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        for ((fingerprint, sends), Line { bytes, packets, added, first }) in &self.known {
            let which = direction(if *sends { Direction::Out } else { Direction::In });
            writeln!(file, "{fingerprint:032x} {which} {bytes} {packets} {added} {first}")?;
        }
        file.sync_data()?;
        fs::rename(&new, &self.path)
    }
}

impl Line {
    fn of(used: &SaUsage) -> Self {
        let (now_ns, epoch_s) = (clock_ns(), epoch_s());
        let added = epoch_s.saturating_sub(used.age_ns(now_ns) / NS_PER_S);
        let first = match used.first_ns {
            0 => 0,
            first => epoch_s.saturating_sub(now_ns.wrapping_sub(first) / NS_PER_S).max(1),
        };
        Self { bytes: used.bytes, packets: used.packets, added, first }
    }

    /// The two clocks may round a time to one second or the next.
    fn differs_from(&self, other: &Self) -> bool {
        (self.bytes, self.packets) != (other.bytes, other.packets) || self.added.abs_diff(other.added) > 1
    }
}

fn read_line(text: &str) -> Option<(Key, Line)> {
    fn number<T: FromStr>(text: &str) -> Option<T> {
        text.parse().ok()
    }
    let words: Vec<&str> = text.split(' ').collect();
    let [fingerprint, which, bytes, packets, added, first] = words[..] else { return None };
    let sends = match which {
        "out" => true,
        "in" => false,
        _ => return None,
    };
    let line = Line {
        bytes: number(bytes)?,
        packets: number(packets)?,
        added: number(added)?,
        first: number(first)?,
    };
    Some(((u128::from_str_radix(fingerprint, 16).ok()?, sends), line))
}

fn key_of(fingerprint: u128, direction: Direction) -> Key {
    (fingerprint, direction == Direction::Out)
}

/// The process's clock at this second since 1970, which is mostly before the clock began.
fn clock_at(second: u64) -> u64 {
    clock_ns().wrapping_sub(epoch_s().saturating_sub(second) * NS_PER_S)
}

fn epoch_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_ipsec::{SaId, Secret, Suite};
    use std::sync::Arc;

    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    fn sa(key: u8, direction: Direction) -> Sa {
        let id = SaId { spi: 0x1001, destination: [192, 0, 2, 2].into() };
        let mut sa = Sa::new(direction, id, [192, 0, 2, 1].into(), Suite::Aes128Gcm);
        sa.encryption_key = Secret::new(&[key; 20]);
        sa
    }

    fn known(sa: &Sa, used: &SaUsage, has_lifetime: bool) -> ConfiguredSa {
        ConfiguredSa {
            id: sa.id(),
            direction: sa.direction,
            fingerprint: sa.fingerprint(),
            worker: 0,
            is_spare: false,
            has_lifetime,
            status: Arc::new(SaStatus::after(used, 5)),
        }
    }

    #[test]
    fn sas_with_a_lifetime_go_on_after_a_restart() {
        let folder = Folder(std::env::temp_dir().join(format!("bm-lifetimes-{}", std::process::id())));
        let state = folder.0.join("ipsec.state");
        let [out, back, without] = [sa(1, Direction::Out), sa(1, Direction::In), sa(2, Direction::Out)];
        let used = SaUsage {
            bytes: 84_000,
            packets: 1000,
            added_ns: clock_at(epoch_s() - 40),
            first_ns: clock_at(epoch_s() - 30),
        };
        let unused = SaUsage { added_ns: clock_at(epoch_s() - 7), ..SaUsage::default() };
        let all = [known(&out, &used, true), known(&back, &unused, true), known(&without, &used, false)];
        Lifetimes::open(&state).unwrap().write(&all);
        let next = Lifetimes::open(&state).unwrap();
        let seen = |sa: &Sa| {
            let used = next.status(sa).read().used;
            (used.bytes, used.packets, used.age_ns(clock_ns()) / NS_PER_S, used.first_ns > 0)
        };
        let (bytes, packets, added, has_begun) = seen(&out);
        assert_eq!((bytes, packets, has_begun), (84_000, 1000, true));
        assert!((39..=42).contains(&added), "{added}");
        let (bytes, packets, added, has_begun) = seen(&back);
        assert_eq!((bytes, packets, has_begun), (0, 0, false));
        assert!((6..=9).contains(&added), "{added}");
        assert_eq!(seen(&without), (0, 0, 0, false));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let folder = Folder(std::env::temp_dir().join(format!("bm-lifetimes-bad-{}", std::process::id())));
        let state = folder.0.join("ipsec.state");
        fs::create_dir_all(&folder.0).unwrap();
        for bad in ["x", "01 out 1 2 3", "01 up 1 2 3 4", "01 out 1 2 3 -4"] {
            fs::write(folder.0.join("ipsec.state.lifetimes"), bad).unwrap();
            let Err(why) = Lifetimes::open(&state) else { panic!("{bad}") };
            assert!(why.contains("delete it"), "{why}");
        }
    }
}

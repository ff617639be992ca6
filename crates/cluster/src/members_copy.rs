//! The members in a file, with which a daemon starts while their store cannot be reached. It is authenticated like the list
//! in the store.

use std::fmt;
use std::path::Path;

use bm_sys::{open_regular, read_up_to};

use crate::members::MemberList;
use crate::message::Key;

/// The longest list: 256 members with the longest names.
const COPY_MAX: u64 = 64 * 1024;

/// The file.
pub(crate) struct MembersCopy<'a> {
    pub file: &'a Path,
    /// The path of the list in the store.
    pub path: &'a str,
    pub key: &'a Key,
}

impl MembersCopy<'_> {
    /// `None` if there is none, or it was written with another key.
    pub fn read(&self) -> Option<MemberList> {
        let text = read_up_to(&open_regular(self.file).ok()?, COPY_MAX).ok()?;
        MemberList::from_text(self.path, &text, self.key)
    }

    /// Writes it; without it a daemon cannot start without the store, which is logged.
    pub fn write(&self, list: &MemberList) {
        if let Err(why) = self.replace(&list.to_text(self.path, self.key)) {
            tracing::warn!("{self}: {why}: this node cannot start while the store cannot be reached");
        }
    }

    /// Never leaves half of a file.
    fn replace(&self, text: &[u8]) -> std::io::Result<()> {
        let new = self.file.with_extension("new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, self.file)
    }
}

impl fmt::Display for MembersCopy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_copy_with_the_same_key_is_read() {
        let file = std::env::temp_dir().join(format!("bm-members-{}", std::process::id()));
        let (key, other) = (Key::new(b"0123456789abcdef"), Key::new(b"another key"));
        let copy = MembersCopy { file: &file, path: "/x/members", key: &key };
        assert_eq!(copy.read(), None);
        let list = MemberList::default().with("a", None).expect("room");
        copy.write(&list);
        assert_eq!(copy.read(), Some(list));
        assert_eq!(MembersCopy { key: &other, ..copy }.read(), None);
        std::fs::remove_file(&file).expect("it was written");
        MembersCopy { file: Path::new("/nonexistent/members"), path: "/x/members", key: &key }
            .write(&MemberList::default());
    }
}

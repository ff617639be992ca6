//! Where modules are found: in the user's folders, then in the sources in the binary.

use std::path::{Path, PathBuf};

/// Sources under `lua/`, by path.
static SOURCES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// The sources in the binary: path below `lua/`, and bytes.
pub fn embedded() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    SOURCES.iter().copied()
}

/// Where Lua files are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree(PathBuf);

impl Tree {
    /// The folders for `--path folder`: the folder itself, or those of a Snabb checkout if it is the root of one.
    pub fn at(folder: &Path) -> Vec<Self> {
        let inside = ["src", "lib/pflua/src", "lib/ljsyscall", "lib/luajit/dynasm", "lib/luajit/src"];
        if !folder.join("src/core").is_dir() {
            return vec![Self(folder.into())];
        }
        inside.iter().map(|name| folder.join(name)).filter(|path| path.is_dir()).map(Self).collect()
    }

    /// The content of the file `name` below the folder, with the full path.
    fn read(&self, name: &str) -> Option<(String, Vec<u8>)> {
        let path = self.0.join(name);
        let bytes = std::fs::read(&path).ok()?;
        Some((path.display().to_string(), bytes))
    }
}

/// A file in the user's folders by its relative path, such as `lib/lua/class.lua`: its name in messages, and its
/// content. Files under `core/` always come from the binary.
pub(crate) fn from_trees(trees: &[Tree], name: &str) -> Option<(String, Vec<u8>)> {
    if name.starts_with("core/") { None } else { trees.iter().find_map(|tree| tree.read(name)) }
}

/// A file in the binary, in the same way.
pub(crate) fn from_binary(name: &str) -> Option<(String, Vec<u8>)> {
    let (path, bytes) = embedded().find(|(path, _)| *path == name)?;
    Some((format!("brickmoon/{path}"), bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_modules_cannot_be_replaced() {
        let root = std::env::temp_dir().join(format!("bm-lua-tree-{}", std::process::id()));
        for file in ["src/core/startup.lua", "src/lib/lua/class.lua", "src/apps/own.lua"] {
            std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            std::fs::write(root.join(file), "theirs").unwrap();
        }
        let trees = Tree::at(&root);
        assert_eq!(trees, [Tree(root.join("src"))]);
        assert_eq!(from_trees(&trees, "core/startup.lua"), None);
        assert_eq!(from_binary("core/startup.lua").unwrap().0, "brickmoon/core/startup.lua");
        let own = root.join("src/apps/own.lua").display().to_string();
        assert_eq!(from_trees(&trees, "apps/own.lua"), Some((own, b"theirs".to_vec())));
        assert!(
            from_trees(&trees, "lib/lua/class.lua").is_some() && from_binary("lib/lua/class.lua").is_some()
        );
        assert_eq!((from_trees(&trees, "apps/none.lua"), from_binary("apps/none.lua")), (None, None));
        std::fs::remove_dir_all(&root).unwrap();
    }
}

//! The token that a browser must send, read from a file that only its owner can use.

use std::fmt;
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Minimum length of a token, which nobody guesses at the rate that [`super::guard::Guard`] allows.
const SHORTEST: usize = 16;
/// Maximum size of the file.
const FILE_MAX: u64 = 4096;

/// A secret of the daemon and of those who may use the page.
pub struct Token(Vec<u8>);

/// Why a file cannot be used as token file.
#[derive(Debug)]
pub enum TokenError {
    Unreadable(std::io::Error),
    /// Group or others have access to it: its mode.
    Open(u32),
    /// The token is too short: its length.
    Short(usize),
    /// It contains characters that cannot be part of a header, or is too long.
    Characters,
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::Open(mode) => {
                write!(f, "other users have access to it (mode {mode:03o}): use `chmod 600`")
            }
            Self::Short(length) => write!(
                f,
                "the token has {length} characters, fewer than {SHORTEST}: `openssl rand -hex 16` makes a good one"
            ),
            Self::Characters => {
                f.write_str("it must be one line of printable ASCII characters without spaces")
            }
        }
    }
}

impl std::error::Error for TokenError {}

impl Token {
    /// Reads a file with a token and nothing else.
    ///
    /// # Errors
    /// If it cannot be read, other users have access to it, or it contains no usable token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        // The mode of the file that is open, which nobody can exchange in between.
        let file = File::open(path).map_err(TokenError::Unreadable)?;
        let mode = file.metadata().map_err(TokenError::Unreadable)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Open(mode));
        }
        let mut text = Vec::new();
        file.take(FILE_MAX).read_to_end(&mut text).map_err(TokenError::Unreadable)?;
        Self::new(text.trim_ascii_end())
    }

    fn new(text: &[u8]) -> Result<Self, TokenError> {
        if !text.iter().all(u8::is_ascii_graphic) || text.len() as u64 >= FILE_MAX / 2 {
            return Err(TokenError::Characters);
        }
        if text.len() < SHORTEST {
            return Err(TokenError::Short(text.len()));
        }
        Ok(Self(text.into()))
    }

    /// Whether this is the token. How long that takes depends on the lengths only, not on where the two differ.
    pub fn is(&self, other: &[u8]) -> bool {
        let mut differing = self.0.len() ^ other.len();
        for (index, byte) in self.0.iter().enumerate() {
            let theirs = other.get(index).copied().unwrap_or_default();
            differing |= usize::from(black_box(byte ^ theirs));
        }
        black_box(differing) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_the_whole_token_is_right() {
        let token = Token::new(b"0123456789abcdef").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for wrong in ["", "0", "0123456789abcdeF", "0123456789abcdef0", "x123456789abcdef"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        assert!(!token.is(&[0; 16]) && !token.is(b"0123456789abcde\0"));
    }

    #[test]
    fn open_files_and_bad_tokens_are_refused() {
        let path = std::env::temp_dir().join(format!("bm-token-{}", std::process::id()));
        let why = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map_err(|error| error.to_string()).err()
        };
        assert_eq!(why("0123456789abcdef\n", 0o600), None);
        assert!(why("0123456789abcdef\n", 0o640).unwrap().contains("mode 640"));
        assert!(why("short\n", 0o600).unwrap().contains("has 5 characters"));
        assert!(why("0123456789 abcdef", 0o600).unwrap().contains("one line"));
        fs::remove_file(&path).unwrap();
        assert!(Token::read(&path).is_err());
    }
}

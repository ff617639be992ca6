//! How the demo speaks: what is being done, how long it took, the figures. Nothing else.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Instant;

use super::DemoError;
use super::results::Results;

/// The column where the time of a step stands.
const TIME_COLUMN: usize = 62;

/// The telling: to the output, or beside it where the output is for programs.
pub struct Story<'a> {
    out: &'a mut dyn Write,
    is_json: bool,
    began: Instant,
}

impl<'a> Story<'a> {
    pub fn begin(out: &'a mut dyn Write, is_json: bool) -> Self {
        Self { out, is_json, began: Instant::now() }
    }

    /// Does something and tells how long it took.
    pub fn step<T, E: Into<DemoError>>(
        &mut self,
        what: &str,
        doing: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, DemoError> {
        self.write(what)?;
        let began = Instant::now();
        let done = doing();
        let room = TIME_COLUMN.saturating_sub(what.chars().count()).max(8);
        match done {
            Ok(_) => self.write(&format!("{:>room$.1} s\n", began.elapsed().as_secs_f64()))?,
            Err(_) => self.write("\n")?,
        }
        done.map_err(E::into)
    }

    /// A line of its own.
    pub fn say(&mut self, what: &str) -> io::Result<()> {
        self.write(&format!("{what}\n"))
    }

    /// A line that belongs to the one before.
    pub fn note(&mut self, what: &str) -> io::Result<()> {
        self.write(&format!("  {what}\n"))
    }

    /// The result, and that all is well.
    pub fn end(&mut self, results: &Results) -> io::Result<()> {
        if self.is_json {
            self.out.write_all(results.json().as_bytes())?;
        } else {
            let mut text = format!("\n{}\n{}", results.table(), results.gaps());
            let _ = write!(
                text,
                "\nNothing is left behind. {:.0} s in all.\n",
                self.began.elapsed().as_secs_f64()
            );
            self.out.write_all(text.as_bytes())?;
        }
        self.out.flush()
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.is_json {
            return io::stderr().write_all(text.as_bytes());
        }
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_print_what_and_how_long() {
        let mut text = Vec::new();
        let mut story = Story::begin(&mut text, false);
        story.step("do it", || Ok::<_, io::Error>(())).unwrap();
        story.note("done").unwrap();
        assert!(story.step("fail", || Err::<(), _>(io::Error::other("no"))).is_err());
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, format!("do it{:>57} s\n  done\nfail\n", "0.0"));
    }
}

//! Configuration files, and the devices and addresses in them.
//!
//! Checks: a text is a valid configuration or has errors, each with a line of the text and a message; reading it again
//! gives the same result; and a device that was read is printed in a form that reads back as the same device.

use std::path::Path;

use bm_control::config::{Config, Device};

/// Reads a text.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let file = Path::new("/etc/brickmoon/brickmoon.toml");
    let read = Config::parse(file, &text);
    match &read {
        Ok(config) => assert_eq!(Config::parse(file, &text).as_ref(), Ok(config)),
        Err(error) => {
            assert!(!error.problems.is_empty(), "refused without a reason");
            let lines = text.lines().count().max(1) + 1;
            for problem in &error.problems {
                assert!((1..=lines).contains(&problem.line), "line {} of {lines}: {problem:?}", problem.line);
                assert!(!problem.kind.to_string().is_empty(), "{problem:?}");
            }
        }
    }
    for line in text.lines().take(8) {
        if let Ok(device) = line.parse::<Device>() {
            assert_eq!(device.to_string().parse::<Device>().as_ref(), Ok(&device), "{line:?}");
        }
        let _mac = line.parse::<bm_api::Mac>();
    }
}

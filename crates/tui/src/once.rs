//! One frame as text or JSON, for scripts and tests.

use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::run::Options;
use crate::sample::{Get, Sample};
use crate::screen::{Screen, heading};

/// Two samples, one interval apart, and what the screen would show then: as text, or as JSON.
///
/// # Errors
/// Why the daemon did not answer.
pub fn once(options: Options, get: &mut dyn Get, as_json: bool) -> Result<String, String> {
    let begin = Instant::now();
    let mut screen = Screen::new(options.view);
    screen.model.add(begin.elapsed(), Ok(Sample::take(get)?));
    std::thread::sleep(options.interval);
    screen.model.add(begin.elapsed(), Ok(Sample::take(get)?));
    Ok(if as_json { object(&screen).to_string() + "\n" } else { text(&screen) })
}

fn text(screen: &Screen) -> String {
    let heading = screen.model.sample().map(heading).unwrap_or_default();
    let body = screen.body();
    let lines = body.iter().map(|line| line.to_string().trim_end().to_string());
    [heading, String::new()].into_iter().chain(lines).map(|line| line + "\n").collect()
}

/// An entry for each table, by its title.
fn object(screen: &Screen) -> Value {
    let status = screen.model.sample().map(|sample| &sample.status);
    let mut object = Map::new();
    object.insert("pid".into(), json!(status.map(|status| status.pid)));
    object.insert("uptime_s".into(), json!(status.map(|status| status.uptime_s)));
    object.insert("path".into(), json!(status.map(|status| &status.path)));
    for panel in screen.view.panels(&screen.model) {
        object.insert(panel.title.to_lowercase().replace(' ', "_"), panel.json());
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::request;

    use crate::sample::Reply;
    use crate::view::View;
    use std::time::Duration;

    /// A daemon whose port receives 10 frames between any two requests for ports.
    struct Fake {
        received: u64,
    }

    impl Get for Fake {
        fn get(&mut self, path: &str) -> Reply {
            let body = match path {
                path if path == request::STATUS.path => {
                    json!({"version": "1.2", "pid": 7, "path": "kernel", "ready": true})
                }
                path if path == request::PORTS.path => {
                    self.received += 10;
                    json!({"ports": [{"name": "a", "up": true, "active": true, "account": {"received": self.received}}]})
                }
                path if path == request::DROPS.path => json!({"drops": [], "total": 0}),
                _ => json!({"workers": [], "apps": [], "links": [], "switches": [], "hooks": [], "sas": []}),
            };
            Ok((200, body.to_string().into_bytes()))
        }
    }

    const OPTIONS: Options = Options { interval: Duration::from_millis(10), view: View::Overview };

    #[test]
    fn prints_rates_as_text_and_json() {
        let text = once(OPTIONS, &mut Fake { received: 0 }, false).unwrap();
        assert!(
            text.starts_with("brickmoon 1.2, process 7, up 0 s, path kernel, ready\n\nPorts\n  PORT  STATE"),
            "{text}"
        );
        assert!(text.contains("\n  a     up") && text.contains("\nDrops\n  nothing was dropped\n"), "{text}");
        let object: Value =
            serde_json::from_str(&once(OPTIONS, &mut Fake { received: 0 }, true).unwrap()).unwrap();
        assert_eq!((&object["pid"], &object["ports"][0]["port"]), (&json!(7), &json!("a")));
        assert!(object["ports"][0]["received_s"].as_f64().unwrap() > 0.0, "{object}");
    }

    #[test]
    fn says_why_there_is_nothing() {
        struct Dead;
        impl Get for Dead {
            fn get(&mut self, _: &str) -> Reply {
                Ok((400, br#"{"message":"no","hint":"wait"}"#.to_vec()))
            }
        }
        assert_eq!(once(OPTIONS, &mut Dead, false), Err("no: wait".into()));
    }
}

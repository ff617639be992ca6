//! The configured network: apps by name and the links between them, checked before anything runs.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use crate::app::App;

/// Why a network cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    #[error("link {0:?} is not of the form \"app.output -> app.input\"")]
    LinkForm(String),
    #[error("link {link:?}: no app is called {app:?}")]
    UnknownApp {
        link: String,
        /// The name.
        app: String,
    },
    #[error("two apps are called {0:?}")]
    DuplicateApp(String),
    #[error("two links use {0:?}; an input or output takes only one")]
    DuplicateEnd(String),
}

/// One link of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinkSpec {
    /// The app that sends frames into it, and the app's name for the link.
    pub from: (String, String),
    /// The app that receives frames from it, and the app's name for the link.
    pub to: (String, String),
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} -> {}.{}", self.from.0, self.from.1, self.to.0, self.to.1)
    }
}

impl FromStr for LinkSpec {
    type Err = NetworkError;
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let ends = text.split_once("->").and_then(|(from, to)| Some((parse_end(from)?, parse_end(to)?)));
        let (from, to) = ends.ok_or_else(|| NetworkError::LinkForm(text.into()))?;
        Ok(Self { from, to })
    }
}

/// Reads `app.link`. The app's name may contain dots (`eth0.100`): the link's name is the part after the last one.
fn parse_end(text: &str) -> Option<(String, String)> {
    let (app, link) = text.trim().rsplit_once('.')?;
    let is_name = |name: &str| !name.is_empty() && !name.contains(char::is_whitespace);
    (is_name(app) && is_name(link)).then(|| (app.to_owned(), link.to_owned()))
}

/// Apps by name and links between them.
#[derive(Default)]
pub struct Network {
    pub(crate) apps: Vec<(String, Box<dyn App>)>,
    pub(crate) links: Vec<LinkSpec>,
}

impl Network {
    /// An empty network.
    pub fn new() -> Self {
        Self::default()
    }

    /// The links, in the order they were added.
    pub fn links(&self) -> impl Iterator<Item = &LinkSpec> {
        self.links.iter()
    }

    /// Adds an app.
    ///
    /// # Errors
    /// [`NetworkError::DuplicateApp`] if the name is taken.
    pub fn app(&mut self, name: &str, app: Box<dyn App>) -> Result<(), NetworkError> {
        if self.has(name) {
            return Err(NetworkError::DuplicateApp(name.into()));
        }
        self.apps.push((name.into(), app));
        Ok(())
    }

    /// Whether there is an app of that name.
    pub fn has(&self, name: &str) -> bool {
        self.apps.iter().any(|(other, _)| other == name)
    }

    /// Adds a link, written `app.output -> app.input`. The apps may be added later.
    ///
    /// # Errors
    /// [`NetworkError::LinkForm`], or [`NetworkError::DuplicateEnd`] if an end is in use.
    pub fn link(&mut self, text: &str) -> Result<(), NetworkError> {
        self.add_link(text.parse()?)
    }

    /// Adds a link from an app's output to an app's input, whatever characters their names contain.
    ///
    /// # Errors
    /// [`NetworkError::DuplicateEnd`] if an end is in use.
    pub fn connect(&mut self, from: (&str, &str), to: (&str, &str)) -> Result<(), NetworkError> {
        let [from, to] = [from, to].map(|(app, link)| (app.to_owned(), link.to_owned()));
        self.add_link(LinkSpec { from, to })
    }

    fn add_link(&mut self, link: LinkSpec) -> Result<(), NetworkError> {
        for other in &self.links {
            for (end, taken) in [(&link.from, &other.from), (&link.to, &other.to)] {
                if end == taken {
                    return Err(NetworkError::DuplicateEnd(format!("{}.{}", end.0, end.1)));
                }
            }
        }
        self.links.push(link);
        Ok(())
    }

    /// Checks that the apps of every link exist.
    ///
    /// # Errors
    /// [`NetworkError::UnknownApp`].
    pub fn check(&self) -> Result<(), NetworkError> {
        for link in &self.links {
            for (app, _) in [&link.from, &link.to] {
                if !self.apps.iter().any(|(name, _)| name == app) {
                    return Err(NetworkError::UnknownApp { link: link.to_string(), app: app.clone() });
                }
            }
        }
        Ok(())
    }

    /// Indices of the apps in the order of `push`: sources first; in a loop of links, as added. What a port has
    /// received was on its links before anything is pushed, so its place does not depend on them: it is behind the apps
    /// that send to it, and what they send leaves in the same breath, while it is still in the cache.
    pub(crate) fn push_order(&self) -> Vec<usize> {
        let index: HashMap<_, _> =
            self.apps.iter().enumerate().map(|(at, (name, _))| (name.as_str(), at)).collect();
        let mut waiting = vec![0usize; self.apps.len()];
        let edges: Vec<_> = self
            .links
            .iter()
            .filter_map(|link| Some((*index.get(link.from.0.as_str())?, *index.get(link.to.0.as_str())?)))
            .filter(|&(from, _)| !self.apps[from].1.is_port())
            .collect();
        edges.iter().for_each(|&(_, to)| waiting[to] += 1);
        let mut order: Vec<usize> = Vec::with_capacity(self.apps.len());
        while order.len() < self.apps.len() {
            let left = (0..self.apps.len()).filter(|at| !order.contains(at));
            // In a loop every app has a predecessor: choose the one that waits for the fewest.
            let next = left.min_by_key(|&at| waiting[at]).expect("some app is left");
            edges.iter().filter(|&&(from, _)| from == next).for_each(|&(_, to)| {
                waiting[to] = waiting[to].saturating_sub(1);
            });
            order.push(next);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;
    impl App for Nothing {}

    fn network(apps: &[&str], links: &[&str]) -> Network {
        let mut network = Network::new();
        apps.iter().for_each(|name| network.app(name, Box::new(Nothing)).unwrap());
        links.iter().for_each(|link| network.link(link).unwrap());
        network
    }

    #[test]
    fn reads_links_with_dots_in_names() {
        let link: LinkSpec = "eth0.100.output -> router.eth0".parse().unwrap();
        assert_eq!(link.from, ("eth0.100".into(), "output".into()));
        assert_eq!(link.to_string(), "eth0.100.output -> router.eth0");
        for wrong in ["a.b", "a -> b.c", "a. -> b.c", "a.b -> .c", "a b.c -> d.e"] {
            assert_eq!(wrong.parse::<LinkSpec>(), Err(NetworkError::LinkForm(wrong.into())));
        }
    }

    #[test]
    fn connects_names_with_any_characters() {
        let mut net = network(&["router", "a->b.7"], &[]);
        net.connect(("a->b.7", "output"), ("router", "a->b.7")).unwrap();
        assert_eq!(net.check(), Ok(()));
        let link = net.links().next().unwrap();
        assert_eq!(link.to, ("router".into(), "a->b.7".into()));
        let again = net.connect(("a->b.7", "output"), ("router", "b"));
        assert_eq!(again, Err(NetworkError::DuplicateEnd("a->b.7.output".into())));
    }

    #[test]
    fn refuses_what_cannot_run() {
        let mut net = network(&["a", "b"], &["a.x -> b.y"]);
        assert_eq!(net.app("a", Box::new(Nothing)), Err(NetworkError::DuplicateApp("a".into())));
        assert_eq!(net.link("a.x -> b.z"), Err(NetworkError::DuplicateEnd("a.x".into())));
        net.link("a.w -> c.y").unwrap();
        let unknown = NetworkError::UnknownApp { link: "a.w -> c.y".into(), app: "c".into() };
        assert_eq!(net.check(), Err(unknown));
    }

    #[test]
    fn pushes_sources_first_and_survives_loops() {
        let net = network(&["sink", "middle", "source"], &["source.o -> middle.i", "middle.o -> sink.i"]);
        assert_eq!(net.push_order(), [2, 1, 0]);
        let net = network(&["port", "router"], &["port.o -> router.p", "router.p -> port.i"]);
        assert_eq!(net.push_order(), [0, 1]);
    }

    struct Port;
    impl App for Port {
        fn is_port(&self) -> bool {
            true
        }
    }

    #[test]
    fn pushes_ports_after_what_sends_to_them() {
        let mut net = Network::new();
        ["left", "right"].iter().for_each(|name| net.app(name, Box::new(Port)).unwrap());
        ["router", "slow"].iter().for_each(|name| net.app(name, Box::new(Nothing)).unwrap());
        for port in ["left", "right"] {
            net.link(&format!("{port}.output -> router.{port}")).unwrap();
            net.link(&format!("router.{port} -> {port}.router")).unwrap();
            net.link(&format!("slow.{port} -> {port}.slow")).unwrap();
        }
        assert_eq!(net.push_order(), [2, 3, 0, 1]);
    }
}

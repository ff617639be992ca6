//! The daemon's answers for `brickmoon top`, over one connection.

use bm_serve::client::Session;

/// A connection that `bm-tui` sends its requests over.
pub struct Connection(pub Session);

impl bm_tui::Get for Connection {
    fn get(&mut self, path: &str) -> bm_tui::Reply {
        let reply = self.0.get(path);
        reply.map(|(status, body)| (status, body.into())).map_err(|failure| failure.to_string())
    }
}

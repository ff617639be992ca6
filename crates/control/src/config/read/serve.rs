//! Reads the addresses at which the daemon serves metrics and the web page.

use super::*;

/// Reads these keys of `[daemon]`. The file with the token is looked for in `folder`.
pub(super) fn serve(section: &mut Section<'_, '_>, folder: &Path, daemon: &mut Daemon) {
    section.listen("metrics", &mut daemon.metrics);
    section.listen("web", &mut daemon.web);
    if let Some((_, file)) = section.text("web_token", "\"web-token\"") {
        daemon.web_token = (file != "off").then(|| folder.join(file));
    }
}

impl Section<'_, '_> {
    fn listen(&mut self, key: &'static str, target: &mut Option<SocketAddr>) {
        let Some((at, text)) = self.text(key, "\"127.0.0.1:9473\"") else { return };
        match text.parse() {
            Ok(address) => *target = Some(address),
            Err(_) if text == "off" => *target = None,
            Err(_) => {
                let kind = ProblemKind::Address { key: self.key(key), found: text.into() };
                self.report.add(at, kind);
            }
        }
    }
}

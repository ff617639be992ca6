//! The files of the page, and the headers of every reply.

/// A file of the page.
pub struct File {
    pub path: &'static str,
    /// Its media type.
    pub kind: &'static str,
    pub text: &'static str,
}

/// All files; the first is the page itself.
pub static FILES: [File; 3] = [
    File { path: "/", kind: "text/html; charset=utf-8", text: include_str!("../../page/page.html") },
    File { path: "/page.css", kind: "text/css; charset=utf-8", text: include_str!("../../page/page.css") },
    File {
        path: "/page.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("../../page/page.js"),
    },
];

/// Headers of every reply. With them the browser runs no script but `page.js`, sends requests to this server only, and does
/// not show the page within one of another site. JSON is not taken for a script.
pub const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::request;
    use std::collections::BTreeSet;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        for File { path, text, .. } in &FILES {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            // The last two would run text that came from the API as a script.
            for outside in ["http://", "https://", "//cdn", "@import", "url(", "innerHTML", "eval("] {
                assert!(!text.contains(outside), "{path} has {outside}");
            }
        }
        let size: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(size < 64 << 10, "{size} bytes are too many for a phone");
    }

    #[test]
    fn the_page_names_its_files() {
        for File { path, .. } in &FILES[1..] {
            assert!(FILES[0].text.contains(&format!("\"{path}\"")), "{path}");
        }
    }

    #[test]
    fn the_script_uses_elements_that_exist() {
        let ids = FILES[2].text.split("$(\"").skip(1).filter_map(|rest| rest.split('"').next());
        let tables = FILES[2].text.split("table(\"").skip(1).filter_map(|rest| rest.split('"').next());
        for id in ids.chain(tables) {
            assert!(FILES[0].text.contains(&format!("id=\"{id}\"")), "{id}");
        }
    }

    #[test]
    fn the_script_only_reads() {
        let script = FILES[2].text;
        let whole = script.split("ask(\"/v1/").skip(1).filter_map(|rest| rest.split(['"', '?']).next());
        let named = script.split("askAbout(\"").skip(1).filter_map(|rest| rest.split('"').next());
        let asked: BTreeSet<String> =
            whole.filter(|path| !path.is_empty()).chain(named).map(|path| format!("/v1/{path}")).collect();
        let known = [
            request::STATUS.path,
            request::PORTS.path,
            request::DROPS.path,
            request::FLOWS.path,
            request::ROUTES.path,
            request::WORKERS.path,
            request::LINKS.path,
            request::HOOKS.path,
            request::SAS.path,
            request::CLUSTER.path,
        ];
        assert_eq!(asked, known.into_iter().map(String::from).collect());
        assert_eq!(script.matches("fetch(").count(), 1);
        assert!(!script.contains("POST") && !script.contains("method"));
    }
}

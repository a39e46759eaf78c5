//! Files of the page, which are a part of the program, and the paths that return them.

use std::hash::{DefaultHasher, Hash, Hasher};

/// File of the page.
#[derive(Debug)]
pub(super) struct Asset {
    pub(super) content_type: &'static str,
    pub(super) content: &'static str,
}

/// Content type of a script.
const SCRIPT: &str = "text/javascript; charset=utf-8";
/// Document of every view.
static DOCUMENT: Asset =
    Asset { content_type: "text/html; charset=utf-8", content: include_str!("assets/index.html") };
/// Further files, by path.
static FILES: [(&str, Asset); 9] = [
    (
        "/page.css",
        Asset { content_type: "text/css; charset=utf-8", content: include_str!("assets/page.css") },
    ),
    ("/favicon.svg", Asset { content_type: "image/svg+xml", content: include_str!("assets/favicon.svg") }),
    ("/page.js", Asset { content_type: SCRIPT, content: include_str!("assets/page.js") }),
    ("/store.js", Asset { content_type: SCRIPT, content: include_str!("assets/store.js") }),
    ("/table.js", Asset { content_type: SCRIPT, content: include_str!("assets/table.js") }),
    ("/views.js", Asset { content_type: SCRIPT, content: include_str!("assets/views.js") }),
    ("/details.js", Asset { content_type: SCRIPT, content: include_str!("assets/details.js") }),
    ("/failing.js", Asset { content_type: SCRIPT, content: include_str!("assets/failing.js") }),
    ("/elements.js", Asset { content_type: SCRIPT, content: include_str!("assets/elements.js") }),
];
/// Paths of the views without an object.
const VIEWS: [&str; 6] = ["/", "/map", "/networks", "/nodes", "/addresses", "/failures"];
/// Number of names in a deep link's path, by object kind.
const LINKS: [(&str, usize); 3] = [("pod", 2), ("network", 2), ("node", 1)];

// === impl Asset ===

impl Asset {
    /// Returns the entity tag.
    pub(super) fn tag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.content.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }
}

/// Returns the file of a path.
pub(super) fn find(path: &str) -> Option<&'static Asset> {
    if is_view(path) {
        return Some(&DOCUMENT);
    }
    FILES.iter().find(|(known, _)| *known == path).map(|(_, asset)| asset)
}

fn is_view(path: &str) -> bool {
    let names: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let is_link = LINKS.iter().any(|(kind, count)| {
        names.len() == count + 1 && names.first() == Some(kind) && names.iter().all(|name| !name.is_empty())
    });
    VIEWS.contains(&path) || is_link
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_paths_are_views_files_or_unknown() {
        for view in ["/", "/nodes", "/pod/blue/web", "/network/blue/net-a", "/node/w1", "/pod/a/%3Cb%3E"] {
            assert!(find(view).is_some_and(|asset| asset.content.starts_with("<!doctype html>")), "{view}");
        }
        assert!(find("/page.css").is_some_and(|asset| asset.content_type.starts_with("text/css")));
        for unknown in
            ["", "/pod", "/pod/a", "/pod//a", "/pod/a/b/c", "/node/", "/../etc/passwd", "/index.html"]
        {
            assert!(find(unknown).is_none(), "{unknown}");
        }
    }

    #[test]
    fn page_files_have_no_inline_script_and_no_other_host() {
        let files = FILES.iter().map(|(_, asset)| asset).chain([&DOCUMENT]);
        for asset in files {
            for forbidden in
                ["innerHTML", "http://", "https://", "onclick=", "style=\"", "eval(", "document.write"]
            {
                let lines = asset.content.lines().filter(|line| !line.contains("http://www.w3.org/"));
                assert!(lines.clone().all(|line| !line.contains(forbidden)), "{forbidden}");
            }
        }
    }
}

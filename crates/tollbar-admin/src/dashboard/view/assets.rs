//! What pages need besides themselves: a style sheet, a script, an icon. They are part of the binary, and
//! their addresses change with them, so that browsers keep them for good.

use std::sync::LazyLock;

/// Every file there is.
pub(crate) static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets {
    style: Asset::new("css", "text/css; charset=utf-8", include_str!("assets/dashboard.css")),
    script: Asset::new("js", "text/javascript; charset=utf-8", include_str!("assets/dashboard.js")),
    icon: Asset::new("svg", "image/svg+xml", include_str!("assets/icon.svg")),
});

/// The files.
#[derive(Debug)]
pub(crate) struct Assets {
    pub(crate) style: Asset,
    pub(crate) script: Asset,
    pub(crate) icon: Asset,
}

/// One file.
#[derive(Debug)]
pub(crate) struct Asset {
    /// Where it is: with a hash of what it says.
    pub(crate) path: String,
    pub(crate) kind: &'static str,
    pub(crate) text: &'static str,
}

impl Assets {
    /// The file at a path. One of another version is not there.
    pub(crate) fn find(&self, path: &str) -> Option<&Asset> {
        [&self.style, &self.script, &self.icon].into_iter().find(|asset| asset.path == path)
    }
}

impl Asset {
    fn new(extension: &str, kind: &'static str, text: &'static str) -> Self {
        let hash = blake3::hash(text.as_bytes()).to_hex();
        Self { path: format!("/assets/dashboard-{}.{extension}", &hash[..16]), kind, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_from_elsewhere() {
        for asset in [&ASSETS.style, &ASSETS.script, &ASSETS.icon] {
            assert_eq!(ASSETS.find(&asset.path).map(|found| found.text), Some(asset.text));
            let text = asset.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http:") && !text.contains("https:"), "{}", asset.path);
            assert!(!text.contains("@import") && !text.contains("eval("), "{}", asset.path);
        }
        assert!(ASSETS.find("/assets/dashboard.css").is_none());
        assert!(ASSETS.script.text.lines().count() < 300);
    }
}

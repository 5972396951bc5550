//! The npm packages that tests need: clients in JavaScript that share no code with ours.
//!
//! They are installed under the target directory. Packages that are there already, in their version, are not touched,
//! so a second run needs no network. A machine without npm skips their tests.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;
use crate::test::target_directory;

/// A package in the one version that is tested with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodePackage {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

/// The variable that names the directory of `node_modules`. It is empty if there is no npm. `TOLLBAR_NODE` is a setting
/// of the daemon.
pub(crate) const NPM: &str = "TOLLBAR_NPM";

/// Installs `packages` unless all of them are there. Returns the variable to start tests with.
pub(crate) fn ensure(root: &Path, packages: &[NodePackage]) -> Result<(&'static str, OsString)> {
    if !shell::succeeds(&["npm", "--version"]) {
        let names: Vec<_> = packages.iter().map(|package| package.name).collect();
        println!("==> npm is not installed: the tests with {} are skipped", names.join(", "));
        return Ok((NPM, OsString::new()));
    }
    let directory = target_directory(root).join("node");
    if !packages.iter().all(|package| is_present(&directory, package)) {
        // All at once: npm removes what an earlier call has installed without saving it.
        let wanted: Vec<String> = packages
            .iter()
            .map(|package| format!("{}@{}", package.name, package.version))
            .collect();
        println!("==> installing {} with npm", wanted.join(" "));
        std::fs::create_dir_all(&directory)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-save", "--no-audit", "--no-fund", "--prefix"]);
        shell::run(npm.arg(&directory).args(&wanted)).with_context(|| {
            format!("these tests need {}, and npm cannot install it", wanted.join(" "))
        })?;
    }
    Ok((NPM, directory.into_os_string()))
}

fn is_present(directory: &Path, package: &NodePackage) -> bool {
    let manifest = directory.join("node_modules").join(package.name).join("package.json");
    let Ok(text) = std::fs::read_to_string(manifest) else {
        return false;
    };
    serde_json::from_str::<serde_json::Value>(&text)
        .is_ok_and(|manifest| manifest["version"] == package.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_missing_in_another_version_and_where_nothing_is_installed() {
        let directory = std::env::temp_dir().join(format!("xtask-node-{}", std::process::id()));
        let module = directory.join("node_modules/@scope/parser");
        let package = |version| NodePackage { name: "@scope/parser", version };
        assert!(!is_present(&directory, &package("1.2.3")));
        std::fs::create_dir_all(&module).unwrap();
        std::fs::write(module.join("package.json"), r#"{"version": "1.2.3"}"#).unwrap();
        assert!(is_present(&directory, &package("1.2.3")));
        assert!(!is_present(&directory, &package("1.2.4")));
        std::fs::write(module.join("package.json"), "half a fi").unwrap();
        assert!(!is_present(&directory, &package("1.2.3")));
        std::fs::remove_dir_all(directory).unwrap();
    }
}

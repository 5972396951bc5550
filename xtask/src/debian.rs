//! The Debian packages that tests need beyond Rust and a C compiler, and how they get here.
//!
//! A package that is present is never touched, so a prepared machine needs neither root nor apt.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;

/// A package and the command that succeeds once it is usable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DebianPackage {
    pub(crate) name: &'static str,
    pub(crate) probe: &'static [&'static str],
}

/// What Debian asks before it starts a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// While it lives, what is installed starts no services: the tests start servers of their own. A policy that
/// is there already stays as it is.
struct NoServicesPolicy<'p>(Option<&'p Path>);

impl<'p> NoServicesPolicy<'p> {
    fn at(path: &'p Path) -> Self {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o755).open(path);
        let is_written =
            file.is_ok_and(|mut file| file.write_all(b"#!/bin/sh\nexit 101\n").is_ok());
        Self(is_written.then_some(path))
    }
}

impl Drop for NoServicesPolicy<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// Installs those of `packages` whose probe fails.
pub(crate) fn ensure(packages: &[DebianPackage]) -> Result<()> {
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !shell::succeeds(&["apt-get", "--version"]) {
        bail!("missing: {list}; there is no apt-get here, install them by other means");
    }
    if !is_root() {
        bail!("missing: {list}; run as root: apt-get update && apt-get install -y {list}");
    }
    println!("==> installing {list}");
    shell::run(apt_get().arg("update"))?;
    let quiet = NoServicesPolicy::at(Path::new(POLICY));
    shell::run(apt_get().args(["install", "-y", "--no-install-recommends"]).args(&missing))?;
    drop(quiet);

    let still_missing = self::missing(packages);
    if !still_missing.is_empty() {
        bail!("apt-get succeeded, and yet these do not work: {}", still_missing.join(" "));
    }
    Ok(())
}

fn missing(packages: &[DebianPackage]) -> Vec<&'static str> {
    packages
        .iter()
        .filter(|package| !shell::succeeds(package.probe))
        .map(|package| package.name)
        .collect()
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet").env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_root() -> bool {
    shell::read(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_missing_when_its_probe_fails_or_cannot_start() {
        let packages = [
            DebianPackage { name: "here", probe: &["true"] },
            DebianPackage { name: "broken", probe: &["false"] },
            DebianPackage { name: "absent", probe: &["no-such-program-here", "--version"] },
        ];
        assert_eq!(missing(&packages), ["broken", "absent"]);
    }

    #[test]
    fn services_stay_off_for_a_while_and_a_policy_that_is_there_stays() {
        let name = format!("tollbar-policy-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let quiet = NoServicesPolicy::at(&path);
        let asked = Command::new(&path).status().expect("the policy can be run");
        assert_eq!(asked.code(), Some(101));
        drop(NoServicesPolicy::at(&path));
        assert!(path.exists(), "it is not its own");
        drop(quiet);
        assert!(!path.exists());
    }

    #[test]
    fn nothing_is_installed_when_nothing_is_missing() {
        let packages = [DebianPackage { name: "no-such-package", probe: &["true"] }];
        ensure(&packages).expect("the probe succeeds, so apt is never asked");
    }
}

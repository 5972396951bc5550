//! The Python packages that tests need, and how they get here: some servers are packed for pip, and for
//! nothing else that every machine has.
//!
//! They live in a virtual environment under the target directory. What is there already, in its version,
//! is not touched, so a second run needs no network.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;
use crate::test::target_directory;

/// A package in the one version that is tested with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PythonPackage {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// What the tests want of it.
    pub(crate) files: &'static [PackageFile],
}

/// A file, and who is told where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackageFile {
    /// The variable that the tests read.
    pub(crate) variable: &'static str,
    /// A program that prints the path.
    pub(crate) print: &'static str,
}

/// The variable that says where the Python is that has the packages.
pub(crate) const PYTHON: &str = "TOLLBAR_PYTHON";

/// Installs those of `packages` that are missing. Returns the variables to start tests with.
pub(crate) fn ensure(
    root: &Path,
    packages: &[PythonPackage],
) -> Result<Vec<(&'static str, OsString)>> {
    let python = environment(root)?;
    let missing: Vec<String> = packages
        .iter()
        .filter(|package| !is_present(&python, package))
        .map(|package| format!("{}=={}", package.name, package.version))
        .collect();
    if !missing.is_empty() {
        println!("==> installing {} with pip", missing.join(" "));
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(&missing);
        shell::run(&mut pip).with_context(|| {
            format!("these tests need {}, and pip cannot have it", missing.join(" "))
        })?;
    }
    let mut variables = vec![(PYTHON, python.clone().into_os_string())];
    for package in packages {
        for file in package.files {
            variables.push((file.variable, path_of(&python, package, file)?.into_os_string()));
        }
    }
    Ok(variables)
}

/// The Python of the environment, which is made if there is none.
fn environment(root: &Path) -> Result<PathBuf> {
    let directory = target_directory(root).join("python");
    let python = directory.join("bin").join("python");
    if !python.exists() {
        println!("==> making a Python environment for tests");
        shell::run(Command::new("python3").args(["-m", "venv"]).arg(&directory)).context(
            "these tests need python3 with its module venv (on Debian: apt-get install python3-venv)",
        )?;
    }
    Ok(python)
}

fn is_present(python: &Path, package: &PythonPackage) -> bool {
    let program = "import sys, importlib.metadata as m; \
                   sys.exit(m.version(sys.argv[1]) != sys.argv[2])";
    let mut command = Command::new(python);
    command.args(["-c", program, package.name, package.version]);
    command.output().is_ok_and(|output| output.status.success())
}

fn path_of(python: &Path, package: &PythonPackage, file: &PackageFile) -> Result<PathBuf> {
    let path = PathBuf::from(shell::read(Command::new(python).args(["-c", file.print]))?.trim());
    if !path.is_file() {
        bail!("{} has no file {}: is it another version?", package.name, path.display());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python() -> PathBuf {
        PathBuf::from("python3")
    }

    #[test]
    fn a_package_is_missing_in_another_version_or_where_there_is_no_python() {
        let package = PythonPackage { name: "no-such-package-here", version: "1", files: &[] };
        assert!(!is_present(&python(), &package));
        assert!(!is_present(Path::new("no-such-program-here"), &package));
    }

    #[test]
    fn a_file_that_is_not_there_is_an_error_that_names_its_package() {
        const FILE: PackageFile = PackageFile { variable: "X", print: "print('/no/such/file')" };
        let package = PythonPackage { name: "servers", version: "1", files: &[FILE] };
        let error = path_of(&python(), &package, &FILE).expect_err("it is not there").to_string();
        assert!(error.contains("servers") && error.contains("/no/such/file"), "{error}");
    }
}

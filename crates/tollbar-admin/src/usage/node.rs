//! What this daemon is called among those over one database.
//!
//! Usage is counted once for each name and number, so a name belongs to one daemon at a time: it is in a
//! file of its own, which that daemon keeps locked, and which the next one takes over.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The longest name.
const NAME_BYTES_MAX: usize = 128;

/// How many daemons may have their names beside one database.
const FILES_MAX: usize = 64;

/// The name of this node, and the lock that keeps others from taking it.
#[derive(Debug)]
pub struct NodeIdentity {
    pub name: String,
    /// Locked for as long as it is open.
    _file: Option<File>,
}

/// A name as it is given by a flag.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    let is_name = (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_name {
        return Ok(text.to_owned());
    }
    Err(format!("write 1 to {NAME_BYTES_MAX} visible ASCII characters, such as edge-1"))
}

impl NodeIdentity {
    /// By the flag; else by a file beside `database_path`; else another one at each start.
    pub fn new(named: Option<&str>, database_path: Option<&Path>) -> io::Result<Self> {
        match (named, database_path) {
            (Some(name), _) => Ok(Self { name: name.to_owned(), _file: None }),
            (None, Some(database_path)) => Self::from_file_beside(database_path),
            (None, None) => Ok(Self { name: random_name(), _file: None }),
        }
    }

    fn from_file_beside(database_path: &Path) -> io::Result<Self> {
        for at in 1..=FILES_MAX {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let mut file = file.open(path_of(database_path, at))?;
            match file.try_lock() {
                Ok(()) => {
                    let name = read_or_write(&mut file)?;
                    return Ok(Self { name, _file: Some(file) });
                }
                // Another daemon over the same database.
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        let message =
            format!("{FILES_MAX} daemons are here already: give this one a name by --node");
        Err(io::Error::new(io::ErrorKind::ResourceBusy, message))
    }
}

/// `limits.sqlite.node`, `limits.sqlite.node-2` and so on.
fn path_of(database_path: &Path, at: usize) -> PathBuf {
    let mut path = database_path.as_os_str().to_owned();
    path.push(".node");
    if at > 1 {
        path.push(format!("-{at}"));
    }
    path.into()
}

fn read_or_write(file: &mut File) -> io::Result<String> {
    let mut text = String::new();
    let read = Read::take(&mut *file, NAME_BYTES_MAX as u64 + 2).read_to_string(&mut text);
    if let (Ok(_), Ok(name)) = (read, parse(text.trim_end())) {
        return Ok(name);
    }
    // New, or torn by a crash as it was written: nobody has used such a name yet.
    let name = random_name();
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(format!("{name}\n").as_bytes())?;
    file.sync_all()?;
    Ok(name)
}

/// Returns the host's name and random digits, so that no two nodes have the same.
fn random_name() -> String {
    let mut host = String::new();
    let read = File::open("/proc/sys/kernel/hostname")
        .and_then(|file| file.take(64).read_to_string(&mut host));
    let host = match read {
        Ok(_) if parse(host.trim()).is_ok() => host.trim(),
        _ => "node",
    };
    format!("{host}-{:016x}", rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let name = format!("tollbar-node-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_name_stays_over_a_restart_and_no_two_daemons_share_one() {
        let database_path = scratch("kept").join("limits.sqlite");
        let first = NodeIdentity::new(None, Some(&database_path)).unwrap();
        let second = NodeIdentity::new(None, Some(&database_path)).unwrap();
        assert_ne!(first.name, second.name);
        let name = first.name.clone();
        drop(first);
        assert_eq!(NodeIdentity::new(None, Some(&database_path)).unwrap().name, name);
        std::fs::remove_dir_all(database_path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_torn_file_gets_a_new_name() {
        let database_path = scratch("torn").join("limits.sqlite");
        for torn in [&b""[..], b"\xff\xfe", b"a b", &[b'x'; 500]] {
            std::fs::write(path_of(&database_path, 1), torn).unwrap();
            let name = NodeIdentity::new(None, Some(&database_path)).unwrap().name;
            assert_eq!(parse(&name).as_deref(), Ok(&*name));
            assert_eq!(NodeIdentity::new(None, Some(&database_path)).unwrap().name, name);
        }
        std::fs::remove_dir_all(database_path.parent().unwrap()).unwrap();
    }

    #[test]
    fn names_are_short_and_visible() {
        assert_eq!(NodeIdentity::new(Some("edge-1"), None).unwrap().name, "edge-1");
        for text in ["", "a b", "é", "a\n", &"x".repeat(129)] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}

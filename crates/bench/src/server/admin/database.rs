//! Databases with many rows. The daemon makes the tables, its first token and the first row; the others
//! are copies of that.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rusqlite::Connection;

use super::client::Client;
use super::{free_port, peers};

/// A database that no daemon has open.
pub(super) struct Database {
    folder: PathBuf,
    token: String,
    rule: String,
}

/// Rules for paths of their own, `bench-1` and on.
const RULES: &str = "\
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO rate_limit_rules (rule_uuid, spec)
SELECT lower(substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-4' || substr(h, 14, 3) || '-a' ||
             substr(h, 18, 3) || '-' || substr(h, 21, 12)),
       json_object('name', 'bench-' || i, 'pathPattern', '/bench/' || i, 'maxRequests', 1000, 'windowSeconds', 60)
FROM (SELECT i, hex(randomblob(16)) AS h FROM n)";

/// Users who are exempt from the one rule there is; with the one there is, so many.
const EXEMPTIONS: &str = "\
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 - 1)
INSERT INTO rate_limit_exemptions (rule_id, subject_type, subject_value, created_by)
SELECT rule_id, subject_type, i, created_by FROM n, rate_limit_exemptions";

impl Database {
    pub(super) fn with_rules(count: u64) -> io::Result<Self> {
        let database = Self::new("rules", |_, _| Ok(()))?;
        database.copy(RULES, count)?;
        Ok(database)
    }

    pub(super) fn with_exemptions(count: u64) -> io::Result<Self> {
        let database = Self::new("exemptions", Client::exempt)?;
        database.copy(EXEMPTIONS, count)?;
        Ok(database)
    }

    fn new(name: &str, prepare: fn(&mut Client, &str) -> io::Result<()>) -> io::Result<Self> {
        let folder = peers::target()?.join(format!("bench-admin-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let mut database = Self { folder, token: String::new(), rule: String::new() };
        let rules = "rules: [{ name: per_user, per: [user], limit: 1000000/s, burst: 1000000 }]\n";
        fs::write(database.rules_file(), rules)?;
        let port = free_port()?;
        let mut command = Command::new(peers::program()?);
        command.arg("serve").arg("--database").arg(database.file());
        command.args(["--resp", "off", "--listen", "off", "--grpc", "off"]);
        command.args(["--admin", &format!("127.0.0.1:{port}")]);
        let mut daemon = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let made = daemon.stdout.take().map(BufReader::new).map(|lines| {
            let mut lines = lines.lines().map_while(Result::ok);
            let token =
                lines.find_map(|line| Some(line.split_once("(shown once): ")?.1.to_owned()));
            database.token = token.ok_or_else(|| io::Error::other("there is no first token"))?;
            // It listens before it says so.
            let mut client = Client::connect(port, &database.token)?;
            database.rule = client.make_rule()?;
            prepare(&mut client, &database.rule)
        });
        daemon.kill()?;
        daemon.wait()?;
        made.unwrap_or_else(|| Err(io::Error::other("the daemon says nothing")))?;
        Ok(database)
    }

    fn copy(&self, statement: &str, count: u64) -> io::Result<()> {
        let count = i64::try_from(count).map_err(io::Error::other)?;
        let connection = Connection::open(self.file()).map_err(io::Error::other)?;
        connection.execute(statement, [count]).map_err(io::Error::other)?;
        connection.close().map_err(|(_, error)| io::Error::other(error))
    }

    pub(super) fn file(&self) -> PathBuf {
        self.folder.join("rules.sqlite")
    }

    pub(super) fn rules_file(&self) -> PathBuf {
        self.folder.join("rules.yaml")
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// The rule that is changed.
    pub(super) fn rule(&self) -> &str {
        &self.rule
    }
}
